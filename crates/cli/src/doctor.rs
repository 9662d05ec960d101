//! `quell doctor`

use std::num::NonZeroUsize;

use quell_linux::capture::{self, Before};
use quell_plan::deep::{AddressMap, CacheSets, Deep, targets};
use quell_plan::inventory::Inventory;
use quell_policy::lab::Guest;
use quell_record::backend::{Backend, Probe};
use quell_report::Measurements;
use quell_sim::Sim;
use quell_sim::banks::{Pairs, Shown};
use quell_sim::board::Board;
use quell_sim::sets::Rereads;
use quell_workload::deep::Depth;

use crate::declared;
use crate::exit::{Exit, Result, failed, usage};
use crate::lab_exec::{self, Bundle};
use crate::machine;
use crate::target::On;
use std::path::PathBuf;
use std::time::Instant;

/// `quell doctor`
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Measure the machine instead of believing it, about a minute of full memory load, and
    /// remember what was found: who shares a cache in fact, rates, latency under load and against
    /// size, page size, wake-ups, counters
    #[arg(long)]
    pub deep: bool,
    /// Tell of another machine instead: a simulated one, sim or sim:PROFILE, or one of the lab, lab
    /// or lab:PROFILE
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// With --deep: fewer rounds, some fifteen seconds
    #[arg(long, requires = "deep")]
    pub quick: bool,
    /// With --deep: also recover which address bits choose the DRAM bank and the sets of caches, by
    /// timing lines in up to 1 GiB of memory (up to half a minute); simulated machines alone do
    /// that with --on sim
    #[arg(long, requires = "deep")]
    pub address_map: bool,
    /// Print the inventory as JSON; `quell plan --machine` reads it
    #[arg(long)]
    pub json: bool,
    /// Save the machine as text, host names removed: the kernel files that Quell reads, and what
    /// was tried and measured; `quell plan --machine` reads it
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
}

/// Tells what the machine is and offers.
pub fn run(args: &Doctor) -> Result {
    if let On::Lab(profile) = &args.on {
        let mut bundle = Bundle::default();
        bundle.back(args.capture.as_ref());
        return lab_exec::call(&Guest::default(), profile.as_ref(), &args.lab, bundle);
    }
    lab_exec::unasked(&args.lab)?;
    if args.on != On::Linux {
        return simulated(args);
    }
    machine::tell_holder();
    let (mut backend, mut inventory) = machine::linux()?;
    if args.deep {
        let depth = if args.quick {
            Depth::QUICK
        } else {
            Depth::FULL
        };
        let before = inventory.measured.as_ref().and_then(|m| m.deep.as_ref());
        // First, because it may be refused.
        let (map, sets) = match (args.address_map, before) {
            (true, _) => (
                Some(machine::address_map(&mut backend, &inventory)?),
                machine::cache_sets(&mut backend, &inventory)?,
            ),
            (false, Some(deep)) => (deep.address_map.clone(), deep.cache_sets.clone()),
            (false, None) => (None, Vec::new()),
        };
        inventory = machine::measure_deep(&mut backend, &depth, map, sets)?;
    }
    if let Some(file) = &args.capture {
        let before = Before {
            measured: inventory.measured.clone(),
            // One that does not hold was reported when the machine was read.
            address_map: declared::find(&inventory).unwrap_or(None),
            ..Before::default()
        };
        let capture = capture::take(before).map_err(failed)?;
        quell_files::put(file, &capture.to_string())
            .map_err(|e| failed(format!("{} cannot be written: {e}", file.display())))?;
    }
    print(args, &inventory)
}

/// A simulated machine, and its address map by timing where that is asked for.
fn simulated(args: &Doctor) -> Result {
    let board = args.on.board()?;
    let (Some(board), true, None) = (board, args.address_map, &args.capture) else {
        if args.deep || args.capture.is_some() {
            return Err(usage(
                "--deep and --capture look at Linux; a simulated machine tells all there is to it, but for its address map (--on sim --deep --address-map)",
            ));
        }
        let (_, inventory) = args.on.measured(0, NonZeroUsize::MIN)?;
        return print(args, &inventory);
    };
    let begin = Instant::now();
    let mut pairs = Pairs::new(&board, Shown::Host, 0).map_err(failed)?;
    let found = pairs.recover(0);
    let seen = AddressMap {
        pool: pairs.size(),
        took_s: begin.elapsed().as_secs_f64(),
        found,
    };
    let sets = cache_sets(&board)?;
    if !args.json {
        quell_kernel::signals::end_with_the_reader();
        let style = crate::terminal::style();
        print!("{}", quell_report::address_map_text(&seen, style));
        print!("{}", quell_report::cache_sets_text(&sets, style));
        return Ok(Exit::Done);
    }
    let (_, mut inventory) = args.on.measured(0, NonZeroUsize::MIN)?;
    if let Some(measured) = inventory.measured.as_mut() {
        measured.deep = Some(Box::new(Deep {
            took_s: seen.took_s,
            address_map: Some(seen),
            cache_sets: sets,
            ..Deep::default()
        }));
    }
    print(args, &inventory)
}

/// What eviction says of the sets of a simulated machine's caches.
fn cache_sets(board: &Board) -> Result<Vec<CacheSets>> {
    let mut sim = Sim::new(board.clone(), 0).map_err(failed)?;
    let machine = sim.inventory(Probe::Fast).map_err(failed)?;
    let cpu = machine.cpus.first().map(|cpu| cpu.id).unwrap_or_default();
    let all = targets(&machine.caches, cpu)
        .into_iter()
        .map(|(cache, shape)| {
            let begin = Instant::now();
            let mut rereads = Rereads::new(board, shape, Shown::Host, 0).map_err(failed)?;
            let found = rereads.recover(0);
            let took_s = begin.elapsed().as_secs_f64();
            Ok(CacheSets::new(&cache, rereads.size(), took_s, found))
        });
    all.collect()
}

fn print(args: &Doctor, inventory: &Inventory) -> Result {
    quell_kernel::signals::end_with_the_reader();
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(inventory).map_err(failed)?
        );
    } else {
        let show = Measurements {
            now_unix_s: inventory.simulated.is_none().then(machine::unix_s),
            full: args.deep,
        };
        print!(
            "{}",
            quell_report::doctor_text(inventory, show, crate::terminal::style())
        );
    }
    Ok(Exit::Done)
}
