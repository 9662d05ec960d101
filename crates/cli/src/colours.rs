//! `quell colours`: the address map of this machine, and where the pages of programs lie.

mod check;
mod hoard;
mod settle;

use quell_kernel::root::Kernel;
use quell_kernel::topology;
use quell_linux::colours::{self, Declared, Offer};
use quell_plan::inventory::Inventory;
use quell_record::backend::{Backend as _, Probe};
use quell_types::address::published;
use quell_types::cpuset::CpuSet;
use quell_types::partition::{Colouring, KnownMap};
use quell_types::units::Bytes;

use crate::exit::{Exit, Result, failed, usage};
use crate::{declared, machine};

/// `quell colours`
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Colours {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Count the pages of running programs by colour; change nothing
    Check(check::Check),
    /// Keep page frames of some colours from all programs
    Hoard(hoard::Hoard),
    /// Move pages of a running program into frames of other colours
    Settle(settle::Settle),
    /// Show or declare which address bits choose this machine's DRAM banks
    Map(Map),
}

/// `quell colours map`
#[derive(Debug, clap::Args)]
struct Map {
    /// The map of this machine: a file with a line of address bits for each function, the name of
    /// a published map, or `recovered` for the one that quell doctor --deep --address-map found
    #[arg(value_name = "FILE|NAME", conflicts_with_all = ["list", "forget"])]
    map: Option<String>,
    /// List the published maps
    #[arg(long)]
    list: bool,
    /// Forget the map that was declared
    #[arg(long, conflicts_with = "list")]
    forget: bool,
}

/// Runs one of them.
pub fn run(args: &Colours) -> Result {
    match &args.command {
        Command::Check(a) => check::run(a),
        Command::Hoard(a) => hoard::run(a),
        Command::Settle(a) => settle::run(a),
        Command::Map(a) => map(a),
    }
}

fn map(args: &Map) -> Result {
    if args.list {
        quell_kernel::signals::end_with_the_reader();
        for map in published::all() {
            println!("{}\n  {}\n  {}", map.name, map.about(), map.source);
        }
        return Ok(Exit::Done);
    }
    if args.forget {
        let said = match declared::forget()? {
            true => "the declared address map is forgotten",
            false => "no address map was declared",
        };
        eprintln!("quell: {said}");
        return Ok(Exit::Done);
    }
    let (mut backend, mut inventory) = machine::linux()?;
    if let Some(name) = &args.map {
        let map = match name.as_str() {
            declared::RECOVERED => declared::recovered(&inventory)?,
            name => declared::read(name)?,
        };
        let path = declared::keep(&inventory, map.clone())?;
        eprintln!(
            "quell: declared as the map of this machine, in {}",
            path.display()
        );
        backend.address_map(map);
        inventory = backend.inventory(Probe::Fast).map_err(failed)?;
    }
    show(&inventory)
}

/// Prints what is known, as `quell doctor` does.
fn show(machine: &Inventory) -> Result {
    let lines = quell_report::colour_lines(machine);
    if lines.is_empty() {
        return Err(usage(
            "no address map of this machine is known; declare it with `quell colours map FILE`, or the NAME of a published one (--list); or recover it (quell doctor --deep --address-map)",
        ));
    }
    for line in lines {
        println!("{line}");
    }
    Ok(Exit::Done)
}

/// The map of this machine, or the one that is named, and what follows from it.
fn known(named: Option<&str>, files: &Kernel) -> Result<(KnownMap, Offer)> {
    let map: Declared = match named {
        Some(name) => declared::read(name)?,
        None => {
            let found = declared::find(&machine::confined()?).map_err(usage)?;
            found.ok_or_else(|| {
                usage(
                    "no address map of this machine is known; give --map FILE, or declare it (quell colours map FILE)",
                )
            })?
        }
    };
    let shape = topology::read(files, None).map_err(failed)?;
    let page = Bytes(rustix::param::page_size() as u64);
    let around = colours::Around {
        caches: &shape.caches,
        nodes: &shape.nodes,
        page,
        frames: Ok(()),
    };
    let offer = colours::offer(files, Some(&map), around);
    let offer = offer.map_err(failed)?;
    let known = offer.known.clone();
    Ok((
        known.ok_or_else(|| failed("the map came to nothing"))?,
        offer,
    ))
}

/// The map, and the colours that pages are counted by: those that plans use, else those of page
/// frames.
fn colouring(map: Option<&str>, sets: bool, files: &Kernel) -> Result<(KnownMap, Colouring)> {
    let (known, offer) = known(map, files)?;
    let (by_nodes, by_pages, what) = match sets {
        true => (offer.sets, known.sets.clone(), "cache sets"),
        false => (offer.banks, known.banks.clone(), "DRAM banks"),
    };
    let colouring = by_nodes.or(by_pages).ok_or_else(|| {
        failed(format!(
            "pages leave no colours of {what} under this map: its functions take both values within every page"
        ))
    })?;
    Ok((known, colouring))
}

/// Whether these colours exist.
fn exist(wanted: &CpuSet, colouring: &Colouring) -> Result<()> {
    if wanted.is_empty() || wanted.iter().any(|colour| colour >= colouring.count()) {
        return Err(usage(format!(
            "--colours {wanted}: there are the colours 0-{}",
            colouring.count().saturating_sub(1)
        )));
    }
    Ok(())
}

fn percent(part: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        _ => format!("{:.2}%", part as f64 * 100.0 / of as f64),
    }
}
