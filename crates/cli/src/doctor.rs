//! `quell doctor`

use std::num::NonZeroUsize;

use quell_core::inventory::Inventory;
use quell_linux::capture;
use quell_report::Measurements;
use quell_workload::deep::Depth;

use crate::args::Doctor;
use crate::exit::{Exit, Result, failed};
use crate::machine;
use crate::target::On;

/// Tells what the machine is and offers.
pub fn run(args: &Doctor) -> Result {
    if args.on != On::Linux {
        let (_, inventory) = args.on.measured(0, NonZeroUsize::MIN)?;
        return print(args, &inventory);
    }
    let (mut backend, mut inventory) = machine::linux()?;
    if args.deep {
        let depth = if args.quick {
            Depth::QUICK
        } else {
            Depth::FULL
        };
        inventory = machine::measure_deep(&mut backend, &depth)?;
    }
    if let Some(file) = &args.capture {
        let capture = capture::take(inventory.measured.clone()).map_err(failed)?;
        std::fs::write(file, capture.to_string())
            .map_err(|e| failed(format!("{} cannot be written: {e}", file.display())))?;
    }
    print(args, &inventory)
}

fn print(args: &Doctor, inventory: &Inventory) -> Result {
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
            quell_report::doctor_text(inventory, show, machine::style())
        );
    }
    Ok(Exit::Done)
}
