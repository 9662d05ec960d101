//! `quell colours settle`

use std::path::Path;

use quell_kernel::cgroup::Cgroups;
use quell_kernel::root::Kernel;
use quell_kernel::{oom, procfs, signals, topology};
use quell_linux::colours::placement;
use quell_linux::colours::settle::{self, Hold, Settled, Wanted};
use quell_linux::session::Session;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Colouring;
use quell_types::units::{Bytes, Nanos, Share};
use serde::Serialize;

use super::{colouring, exist, percent};
use crate::exit::{Exit, Result, failed, usage};
use crate::machine::{self, RUN_ROOT};

/// What a person has to know before.
const NOTE: &str = "quell: note: colours of one program alone exclude no other. Its neighbours still use its colours, \
and it has a smaller part of the cache and of the banks: it can become slower. Keep its neighbours off these colours, or measure before and after";

/// `quell colours settle`
#[derive(Debug, clap::Args)]
pub struct Settle {
    /// The program, by process number
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// The colours that its pages shall have, such as 0-3
    #[arg(long, value_name = "LIST")]
    colours: CpuSet,
    /// The address map: a file, or the name of a published one [default: the declared one]
    #[arg(long, value_name = "FILE|NAME")]
    map: Option<String>,
    /// Colours of cache sets instead of DRAM banks
    #[arg(long)]
    sets: bool,
    /// The share of time that the program may be stopped
    #[arg(long, value_name = "SHARE", default_value = "0.3%")]
    pace: Share,
    /// The longest stop that is aimed at
    #[arg(long, value_name = "TIME", default_value = "2ms")]
    longest_stop: Nanos,
    /// Hold at most so much memory to find frames
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    hold: Bytes,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Pages that can be given a colour, and those of them that have a wanted one.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Right {
    pages: u64,
    of: u64,
}

/// How long the program was stopped.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Stops {
    count: usize,
    p50: Nanos,
    p99: Nanos,
    longest: Nanos,
    total: Nanos,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    pid: u32,
    before: Right,
    after: Right,
    moved: u64,
    /// Pages that the kernel refused to move: shared after a fork, or in use by a device.
    refused: u64,
    /// Chunks that were not begun, because threads did not stop in time.
    busy: u64,
    held: Bytes,
    stops: Stops,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

/// Moves the pages, and prints how it came out.
pub fn run(args: &Settle) -> Result {
    if args.pace.0 == 0 || args.pace > Share::WHOLE {
        return Err(usage(format!(
            "--pace {}: more than 0%, at most 100%",
            args.pace
        )));
    }
    if args.longest_stop < Nanos::micros(100) {
        return Err(usage(format!(
            "--longest-stop {}: stopping threads alone takes as long; 100us or more",
            args.longest_stop
        )));
    }
    let files = Kernel::new().map_err(failed)?;
    machine::running(&files, "--pid ", &[args.pid], &[])?;
    let (_, colouring) = colouring(args.map.as_deref(), args.sets, &files)?;
    exist(&args.colours, &colouring)?;
    if !quell_kernel::may_change() {
        return Err(failed(
            "moving pages of a program needs root (CAP_SYS_ADMIN): run it with sudo",
        ));
    }
    let before = right(args, &files, &colouring)?;
    settle::possible(&files, args.pid).map_err(failed)?;
    let task = procfs::stat(&files, args.pid).map_err(failed)?;
    let task = task.ok_or_else(|| usage(format!("--pid {}: no such process", args.pid)))?;
    eprintln!("{NOTE}");
    let wanted = Wanted {
        longest: args.longest_stop,
        pace: args.pace,
        colouring: colouring.clone(),
        colours: args.colours.clone(),
        hold: args.hold,
    };
    let settled = held(&files, |hold| {
        settle::settle(hold, task.id, &wanted, &machine::settler()).map_err(failed)
    })?;
    let after = match procfs::alive(&files, task.id) {
        true => right(args, &files, &colouring)?,
        false => Right { pages: 0, of: 0 },
    };
    let report = report(args.pid, before, after, settled);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report).map_err(failed)?),
        false => print!("{}", text(&report)),
    }
    Ok(match report.ended {
        Some(_) => Exit::NotHeld,
        None => Exit::Done,
    })
}

/// Does something under a hold on the machine, and ends the hold.
fn held<T>(files: &Kernel, act: impl FnOnce(&mut Hold<'_>) -> Result<T>) -> Result<T> {
    let cgroups = Cgroups::discover(files).map_err(failed)?;
    let cpus = topology::online(files).map_err(failed)?;
    let cpus = cpus.iter().next_back().map_or(1, |cpu| cpu as usize + 1);
    let stops = signals::stop_signals().map_err(failed)?;
    oom::shelter();
    let watchdog = machine::watchdog();
    let begun = Session::begin(files, &cgroups, Path::new(RUN_ROOT), cpus, &watchdog);
    let (mut session, notes) = begun.map_err(failed)?;
    for note in notes {
        eprintln!("quell: note: {note}");
    }
    let mut stopped = false;
    let done = act(&mut Hold {
        files,
        cgroups: &cgroups,
        session: &mut session,
        ends: &mut || {
            stopped |= signals::next_signal(&stops).is_some();
            stopped
        },
    });
    let undone = session.end(files).map_err(failed);
    // Why nothing was done comes before what is left.
    let (done, undone) = (done?, undone?);
    for left in undone.left {
        eprintln!("quell: note: {left}");
    }
    Ok(done)
}

fn right(args: &Settle, files: &Kernel, colouring: &Colouring) -> Result<Right> {
    let placement = placement::of(files, args.pid, colouring).map_err(failed)?;
    let (pages, of) = placement.right(&args.colours);
    Ok(Right { pages, of })
}

fn report(pid: u32, before: Right, after: Right, settled: Settled) -> Report {
    let [p50, p99, longest] = settled.stopped([50, 99, 100]);
    let stops = settled.stops;
    Report {
        pid,
        before,
        after,
        moved: settled.moved,
        refused: settled.refused,
        busy: settled.busy,
        held: settled.held,
        stops: Stops {
            count: stops.len(),
            p50,
            p99,
            longest,
            total: Nanos(stops.iter().map(|stop| stop.0).sum()),
        },
        kept: settled.kept,
        ended: settled.ended,
    }
}

fn text(report: &Report) -> String {
    let share = |right: Right| {
        let of = percent(right.pages, right.of);
        format!("{} of {} pages ({of})", right.pages, right.of)
    };
    let stops = &report.stops;
    let each = stops.total.0 as f64 / 1000.0 / report.moved.max(1) as f64;
    let mut out = format!(
        "process {}: right before {}, after {}\n{} pages moved, {} refused by the kernel (shared after a fork, or in use)\n\
        {} stops of all threads: half within {}, 99% within {}, longest {}; {each:.1} us per page; {} chunks not begun\n\
        {} of memory were held to find frames\n",
        report.pid,
        share(report.before),
        share(report.after),
        report.moved,
        report.refused,
        stops.count,
        stops.p50,
        stops.p99,
        stops.longest,
        report.busy,
        report.held,
    );
    if let Some(why) = &report.kept {
        out.push_str(&format!("some pages stay: {why}\n"));
    }
    if let Some(why) = &report.ended {
        out.push_str(&format!("ended early: {why}\n"));
    }
    out
}
