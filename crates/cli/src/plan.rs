//! `quell plan`

use std::path::Path;

use quell_core::inventory::Inventory;
use quell_core::policy::Policy;

use crate::args::Plan;
use crate::exit::{Exit, Result, failed, problems, usage};
use crate::machine;

/// Reads a policy file.
pub fn policy(path: &Path) -> Result<Policy> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|e| usage(format!("{name}: the policy cannot be read: {e}")))?;
    Policy::parse(&text, &name).map_err(|all| problems(&all))
}

/// Tells what would be done.
pub fn run(args: &Plan) -> Result {
    let policy = policy(&args.policy)?;
    let machine = match &args.machine {
        Some(file) => captured(file)?,
        None => machine::linux()?.1,
    };
    let plan = quell_core::planner::plan(&policy, &machine).map_err(|all| problems(&all))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&plan).map_err(failed)?);
    } else {
        print!("{}", quell_report::plan_text(&plan, machine::style()));
    }
    Ok(Exit::Done)
}

fn captured(file: &Path) -> Result<Inventory> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|e| usage(format!("{name}: the machine cannot be read: {e}")))?;
    serde_json::from_str(&text).map_err(|e| {
        usage(format!(
            "{name}: not a machine as `quell doctor --json` writes it: {e}"
        ))
    })
}
