//! `quell doctor`

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
