//! `quell doctor`

use quell_linux::capture;

use crate::args::Doctor;
use crate::exit::{Exit, Result, failed};
use crate::machine;

/// Tells what the machine is and offers.
pub fn run(args: &Doctor) -> Result {
    let (mut backend, mut inventory) = machine::linux()?;
    if args.deep {
        eprintln!("quell: measuring this machine's memory rates (a few seconds)");
        inventory = machine::measure(&mut backend)?;
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
        print!(
            "{}",
            quell_report::doctor_text(&inventory, machine::style())
        );
    }
    Ok(Exit::Done)
}
