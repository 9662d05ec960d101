//! `quell doctor`

use std::num::NonZeroUsize;

use quell_linux::capture;
use quell_plan::inventory::Inventory;
use quell_policy::lab::Guest;
use quell_report::Measurements;
use quell_workload::deep::Depth;

use crate::args::Doctor;
use crate::exit::{Exit, Result, failed, usage};
use crate::inside::{self, Luggage};
use crate::machine;
use crate::target::On;

/// Tells what the machine is and offers.
pub fn run(args: &Doctor) -> Result {
    if let On::Lab(profile) = &args.on {
        let mut luggage = Luggage::default();
        luggage.back(args.capture.as_ref());
        return inside::call(&Guest::default(), profile.as_ref(), &args.lab, luggage);
    }
    inside::unasked(&args.lab)?;
    if args.on != On::Linux {
        if args.deep || args.capture.is_some() {
            return Err(usage(
                "--deep and --capture look at Linux; a simulated machine tells all there is to it",
            ));
        }
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
