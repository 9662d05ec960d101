//! `quell doctor`

use quell_linux::capture;
use quell_report::Measurements;
use quell_workload::deep::Depth;

use crate::args::Doctor;
use crate::exit::{Exit, Result, failed};
use crate::machine;

/// Tells what the machine is and offers.
pub fn run(args: &Doctor) -> Result {
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
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&inventory).map_err(failed)?
        );
    } else {
        let show = Measurements {
            now_unix_s: Some(machine::unix_s()),
            full: args.deep,
        };
        print!(
            "{}",
            quell_report::doctor_text(&inventory, show, machine::style())
        );
    }
    Ok(Exit::Done)
}
