//! `quell status` and `quell restore`

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use quell_kernel::root::Kernel;
use quell_kernel::rt;
use quell_linux::lease::{self, Lease, State};
use quell_linux::lock::Lock;
use quell_linux::restore as undo;
use quell_plan::{Plan, Setting};
use quell_record::events::Declared;
use quell_record::standing::Standing;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;
use serde::Serialize;

use crate::exit::{Exit, Result, failed};
use crate::machine::RUN_ROOT;

/// `quell status`
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Run {
    run: String,
    holds: bool,
    why: String,
    changes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    throttled: Vec<Cpu>,
    /// What programs say of their units, by group.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    declared: BTreeMap<GroupId, Declared>,
}

#[derive(Debug, Serialize)]
struct Cpu {
    cpu: u32,
    group: String,
    regulated: bool,
    throttles: u64,
    throttled_ns: u64,
}

/// Tells what is applied and whether it holds.
pub fn run(args: &Status) -> Result {
    let mut runs = Vec::new();
    for dir in undo::folders(Path::new(RUN_ROOT)).map_err(failed)? {
        runs.push(read(&dir)?);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runs).map_err(failed)?);
    } else if runs.is_empty() {
        println!("no run is active, nothing is changed");
    }
    let holds = runs.iter().all(|r| r.holds);
    if !args.json {
        runs.iter().for_each(show);
    }
    Ok(if holds { Exit::Done } else { Exit::NotHeld })
}

fn read(dir: &Path) -> Result<Run> {
    let lease = Lease::open(&dir.join(lease::FILE));
    let (mut holds, mut why) = match &lease {
        Ok(lease) if lease.is_held(rt::now()) => {
            (true, "its process runs and renews its heartbeat".to_owned())
        }
        Ok(lease) if lease.state() == State::Held => {
            (
                false,
                "its process does not renew its heartbeat; the watchdog reverts it, else `quell restore`".to_owned(),
            )
        }
        Ok(lease) if lease.state() == State::Revoked => {
            (false, "the watchdog has reverted it".to_owned())
        }
        Ok(_) => (false, "it is being reverted".to_owned()),
        Err(_) => (
            false,
            "its process has ended without reverting; run `quell restore`".to_owned(),
        ),
    };
    let plan: Option<Plan> = fs::read_to_string(dir.join(undo::PLAN))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    let standing = fs::read_to_string(dir.join(undo::STANDING)).ok();
    let standing = standing.and_then(|text| serde_json::from_str::<Standing>(&text).ok());
    if let Some(standing) = standing.as_ref().filter(|s| !s.holds()) {
        let lost = standing.all().filter(|(_, worth)| worth.is_lost()).count();
        if holds {
            why = format!("{lost} of its promises are at level none");
        }
        holds = false;
    }
    let plan = match (plan, &standing) {
        (Some(plan), Some(standing)) => Some(standing.over(&plan)),
        (plan, _) => plan,
    };
    let declared = fs::read_to_string(dir.join(undo::DECLARED)).ok();
    let declared = declared.and_then(|text| serde_json::from_str(&text).ok());
    let mut throttled = Vec::new();
    for step in plan.iter().flat_map(|p| &p.steps) {
        let Setting::Regulate(regulation) = &step.set else {
            continue;
        };
        for cpu in regulation.cpus.iter() {
            let Some(record) = lease.as_ref().ok().and_then(|l| l.record(cpu as usize)) else {
                continue;
            };
            let value = |i: usize| record.0[i].load(std::sync::atomic::Ordering::Relaxed);
            let regulated = value(4) == 1;
            if holds && !regulated {
                holds = false;
                why = format!("CPU {cpu} is not regulated any more");
            }
            throttled.push(Cpu {
                cpu,
                group: step.group.clone().unwrap_or_default(),
                regulated,
                throttles: value(1),
                throttled_ns: value(2),
            });
        }
    }
    Ok(Run {
        run: dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        holds,
        why,
        changes: undo::left_by(dir).map(|all| all.len()).unwrap_or(0),
        plan,
        throttled,
        declared: declared.unwrap_or_default(),
    })
}

fn show(run: &Run) {
    let word = if run.holds { "holds" } else { "DOES NOT HOLD" };
    println!(
        "run {}: {word} ({}); its undo record has {} entries",
        run.run, run.why, run.changes
    );
    for cpu in &run.throttled {
        println!(
            "  CPU {:<4} group {:<16} throttled {} times, {} in all",
            cpu.cpu,
            cpu.group,
            cpu.throttles,
            Nanos(cpu.throttled_ns / 1_000_000 * 1_000_000)
        );
    }
    for (group, declared) in &run.declared {
        println!("  group {group} says: {declared}");
    }
    if let Some(plan) = &run.plan {
        print!(
            "{}",
            quell_report::plan_text(plan, crate::terminal::style())
        );
    }
}

/// Before anything is planned: nobody else is at work, and what a dead run left is restored.
/// Otherwise the plan would be made for what is left of the machine. Without root nothing can be
/// applied, and nothing is done here.
pub fn settle() -> Result<()> {
    if !quell_kernel::is_root() {
        return Ok(());
    }
    let root = Path::new(RUN_ROOT);
    let lock = Lock::acquire(root, "quell").map_err(failed)?;
    let kernel = Kernel::new().map_err(failed)?;
    for left in undo::restore(&kernel, root).map_err(failed)? {
        eprintln!(
            "quell: restored what run {} left: {} changes taken back",
            left.run, left.undone.restored
        );
        for text in left.notes.iter().chain(&left.undone.left) {
            eprintln!("quell: {text}");
        }
    }
    // Until the run takes it for itself.
    drop(lock);
    Ok(())
}

/// Undoes what earlier runs left.
pub fn restore() -> Result {
    let kernel = Kernel::new().map_err(failed)?;
    let all = undo::restore(&kernel, Path::new(RUN_ROOT)).map_err(failed)?;
    if all.is_empty() {
        println!("nothing to restore");
    }
    let mut complete = true;
    for one in &all {
        println!(
            "run {}: {} changes taken back",
            one.run, one.undone.restored
        );
        for text in one.notes.iter().chain(&one.undone.left) {
            println!("  {text}");
        }
        complete &= one.complete;
    }
    Ok(if complete { Exit::Done } else { Exit::Failed })
}
