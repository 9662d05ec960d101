//! `quell colours check`

use quell_kernel::root::Kernel;
use quell_linux::colours::owners::{self, Asked};
use quell_linux::colours::placement::{self, Kind, Pages, Placement};
use quell_record::owners::FrameOwners;
use quell_report::owners_text;
use quell_types::cpuset::CpuSet;
use quell_types::partition::KnownMap;
use quell_types::task::TaskMatch;
use quell_types::units::Bytes;
use serde::Serialize;

use super::{colouring, exist, percent};
use crate::exit::{Exit, Result, failed};
use crate::machine;

/// `quell colours check`
#[derive(Debug, clap::Args)]
pub struct Check {
    /// The programs, by process number
    #[arg(value_name = "PID", required_unless_present_any = ["matching", "colours"])]
    pid: Vec<u32>,
    /// Programs to look at: KEY=VALUE[,KEY=VALUE…] as for `quell run --critical`; repeat for more
    #[arg(long = "match", value_name = "MATCH")]
    matching: Vec<TaskMatch>,
    /// Colours that the pages should have, such as 0-3: also print how many have. Without programs:
    /// print which programs of this machine have frames of these colours
    #[arg(long, value_name = "LIST")]
    colours: Option<CpuSet>,
    /// The address map: a file, or the name of a published one [default: the declared one]
    #[arg(long, value_name = "FILE|NAME")]
    map: Option<String>,
    /// Colours of cache sets instead of DRAM banks
    #[arg(long)]
    sets: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// What is printed as JSON.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    map: KnownMap,
    processes: Vec<Found>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Found {
    #[serde(flatten)]
    placement: Placement,
    /// Bytes that cannot be given a colour: pages of files, and shared ones.
    fixed: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<Right>,
}

/// Pages that can be given a colour, and those of them that have a wanted one.
#[derive(Serialize)]
struct Right {
    pages: u64,
    of: u64,
}

/// What is printed as JSON where no program is named.
#[derive(Serialize)]
struct Owned {
    map: KnownMap,
    owners: FrameOwners,
}

/// Reads where the pages lie, and prints it.
pub fn run(args: &Check) -> Result {
    let files = Kernel::new().map_err(failed)?;
    let pids = machine::running(&files, "", &args.pid, &args.matching)?;
    let (map, colouring) = colouring(args.map.as_deref(), args.sets, &files)?;
    if let Some(wanted) = &args.colours {
        exist(wanted, &colouring)?;
        if args.pid.is_empty() && args.matching.is_empty() {
            return owned(args, map, Asked::new(colouring, wanted.clone()));
        }
    }
    let found = pids.into_iter().map(|pid| {
        let placement = placement::of(&files, pid, &colouring).map_err(failed)?;
        let right = args.colours.as_ref().map(|wanted| {
            let (pages, of) = placement.right(wanted);
            Right { pages, of }
        });
        Ok(Found {
            fixed: placement.fixed(),
            placement,
            right,
        })
    });
    let processes = found.collect::<Result<Vec<_>>>()?;
    quell_kernel::signals::end_with_the_reader();
    if args.json {
        let report = Report { map, processes };
        let json = serde_json::to_string_pretty(&report).map_err(failed)?;
        println!("{json}");
        return Ok(Exit::Done);
    }
    for one in &processes {
        print!("{}", text(one, args));
    }
    Ok(Exit::Done)
}

/// Counts which programs have frames of these colours, and prints it.
fn owned(args: &Check, map: KnownMap, asked: Asked) -> Result {
    let files = Kernel::new().map_err(failed)?;
    let owners = owners::of(&files, &asked, &mut || {}).map_err(failed)?;
    quell_kernel::signals::end_with_the_reader();
    if args.json {
        let json = serde_json::to_string_pretty(&Owned { map, owners });
        println!("{}", json.map_err(failed)?);
        return Ok(Exit::Done);
    }
    println!(
        "frames of colours {} of {} of {}, by program, in MiB",
        asked.colours.brief(),
        asked.colouring.count(),
        what(args.sets)
    );
    print!("{}", owners_text(&owners));
    Ok(Exit::Done)
}

/// What has the colours.
const fn what(sets: bool) -> &'static str {
    match sets {
        true => "cache sets",
        false => "DRAM banks",
    }
}

/// A size in MiB.
fn mib(bytes: Bytes) -> String {
    format!("{:.1}", bytes.0 as f64 / f64::from(1 << 20))
}

fn text(found: &Found, args: &Check) -> String {
    let placement = &found.placement;
    let what = what(args.sets);
    let mut out = format!(
        "process {} ({}): {} colours of {what}, pages of {}\n{:<24}{:>10}{:>10}{:>8}{:>8}{:>9}\n",
        placement.pid,
        placement.comm,
        placement.colours,
        placement.page,
        "",
        "pages",
        "MiB",
        "huge",
        "shared",
        "right"
    );
    let there = Kind::ALL
        .iter()
        .filter_map(|kind| Some((kind, placement.kinds.get(kind)?)));
    for (kind, pages) in there {
        out.push_str(&row(*kind, pages, placement, args.colours.as_ref()));
    }
    if let Some(right) = &found.right {
        out.push_str(&format!(
            "right: {} of {} pages that can be given a colour ({})\n",
            right.pages,
            right.of,
            percent(right.pages, right.of)
        ));
    }
    out.push_str(&format!(
        "cannot be given a colour: {} MiB (pages of files, and shared ones)\n",
        mib(found.fixed)
    ));
    if let Some(tables) = placement.page_tables {
        out.push_str(&format!(
            "page tables: {} MiB; the kernel does not show where they lie\n",
            mib(tables)
        ));
    }
    if !placement.flags_known {
        out.push_str(
            "huge pages and the page of zeroes are not known: /proc/kpageflags cannot be read\n",
        );
    }
    out
}

fn row(kind: Kind, pages: &Pages, placement: &Placement, wanted: Option<&CpuSet>) -> String {
    let size = Bytes(pages.resident.saturating_mul(placement.page.0));
    let right = match wanted {
        Some(wanted) if kind.is_own() => percent(pages.right(wanted), pages.resident),
        _ => String::new(),
    };
    let mut out = format!(
        "{:<24}{:>10}{:>10}{:>8}{:>8}{right:>9}\n",
        kind.words(),
        pages.resident,
        mib(size),
        pages.huge,
        pages.shared
    );
    if pages.swapped > 0 {
        out.push_str(&format!("    in swap space: {} pages\n", pages.swapped));
    }
    const EACH: usize = 8;
    for (line, counts) in (0..).zip(pages.by_colour.chunks(EACH)) {
        let first = line * EACH;
        let counts: Vec<String> = counts.iter().map(|n| format!("{n:>8}")).collect();
        out.push_str(&format!("    colour {first:>4} on: {}\n", counts.join(" ")));
    }
    out
}
