//! `quell status` and `quell restore`

mod groups;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;

use quell_kernel::error::Error;
use quell_kernel::root::Kernel;
use quell_kernel::rt;
use quell_linux::lease::{self, Lease, State};
use quell_linux::lock::Lock;
use quell_linux::restore as undo;
use quell_plan::{Plan, Setting};
use quell_record::events::Declared;
use quell_record::now::{GroupNow, PromiseNow};
use quell_record::standing::Standing;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::{Exit, Result, failed};
use crate::machine::RUN_ROOT;
use groups::RunFolder;

/// `quell status`
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Whether a run holds what it promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    /// It does.
    Holds,
    /// It does not, or has ended.
    Lost,
    /// That cannot be told.
    Unseen,
}

#[derive(Debug, Serialize)]
struct Run {
    run: String,
    /// As `state`, for scripts of earlier versions.
    holds: bool,
    state: Word,
    why: String,
    /// Entries of its undo record. Absent where that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<usize>,
    groups: Vec<GroupNow>,
    promises: Vec<PromiseNow>,
    /// Values that another program has changed.
    drift: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Plan>,
    throttled: Vec<Cpu>,
    /// What programs say of their units, by group.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    declared: BTreeMap<GroupId, Declared>,
}

/// What the brakes of a CPU did, of all its groups together.
#[derive(Debug, Serialize)]
struct Cpu {
    cpu: u32,
    groups: Vec<String>,
    regulated: bool,
    throttles: u64,
    throttled_ns: u64,
}

/// Tells what is applied and whether it holds.
pub fn run(args: &Status) -> Result {
    let dirs = match undo::folders(Path::new(RUN_ROOT)) {
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            eprintln!("quell: {RUN_ROOT} is for root to see; call it with sudo");
            return Ok(Exit::Unseen);
        }
        dirs => dirs.map_err(failed)?,
    };
    let kernel = Kernel::new().map_err(failed)?;
    let mut runs = Vec::new();
    for dir in dirs {
        runs.push(read(&kernel, &dir, !args.json)?);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runs).map_err(failed)?);
    } else if runs.is_empty() {
        println!("no run is active, nothing is changed");
    }
    if !args.json {
        runs.iter().for_each(show);
    }
    if runs.is_empty() {
        return Ok(Exit::Inactive);
    }
    let any = |word| runs.iter().any(|run| run.state == word);
    Ok(match (any(Word::Lost), any(Word::Unseen)) {
        (true, _) => Exit::NotHeld,
        (false, true) => Exit::Unseen,
        (false, false) => Exit::Done,
    })
}

/// A file of a run, as JSON. `None` where it is not there; an error says that it cannot be read.
fn json<T: DeserializeOwned>(path: &Path) -> std::result::Result<Option<T>, String> {
    let told = |e: &dyn std::fmt::Display| format!("{} cannot be read: {e}", path.display());
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| told(&e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(told(&e)),
    }
}

/// What a run's groups and promises are now.
#[derive(Default)]
struct Now {
    groups: Vec<GroupNow>,
    promises: Vec<PromiseNow>,
    drift: Vec<String>,
}

fn now(kernel: &Kernel, run: &RunFolder<'_>, sample: bool) -> Result<Now> {
    let members = groups::members(kernel, run.plan).map_err(failed)?;
    let promises = run.promises();
    let drift = run.drifted(kernel);
    let mut all = run.groups(&promises, &members, &drift);
    if sample && !members.is_empty() {
        let used = groups::used(kernel, &members);
        for group in &mut all {
            group.used = used.get(&group.group).copied();
        }
    }
    Ok(Now {
        groups: all,
        promises,
        drift: drift.into_values().flatten().collect(),
    })
}

/// Why nothing holds in a run without the levels of its promises.
const UNSETTLED: &str = "its steps are being applied or undone, or it measures";

/// Whether the heartbeat of a run goes on, and why.
fn beats(lease: &std::result::Result<Lease, Error>) -> (Word, String) {
    let (word, why) = match lease {
        Ok(lease) if lease.is_held(rt::now()) => {
            (Word::Holds, "its process runs and renews its heartbeat")
        }
        Ok(lease) if lease.state() == State::Held => (
            Word::Lost,
            "its process does not renew its heartbeat; the watchdog reverts it, else `quell restore`",
        ),
        Ok(lease) if lease.state() == State::Revoked => {
            (Word::Lost, "the watchdog has reverted it")
        }
        Ok(_) => (Word::Lost, "it is being reverted"),
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            return (
                Word::Unseen,
                "its heartbeat is for root to see; call it with sudo".to_owned(),
            );
        }
        Err(_) => (
            Word::Lost,
            "its process has ended without reverting; run `quell restore`",
        ),
    };
    (word, why.to_owned())
}

/// What the brakes of each CPU did so far.
fn throttled(plan: &Plan, lease: &Lease) -> Vec<Cpu> {
    let mut all: Vec<Cpu> = Vec::new();
    for step in &plan.steps {
        let Setting::Regulate(regulation) = &step.set else {
            continue;
        };
        for cpu in regulation.cpus.iter() {
            let Some(record) = lease.record(cpu as usize) else {
                continue;
            };
            let group = step.group.clone().unwrap_or_default();
            if let Some(known) = all.iter_mut().find(|known| known.cpu == cpu) {
                known.groups.push(group);
                continue;
            }
            let value = |i: usize| record.0[i].load(Ordering::Relaxed);
            all.push(Cpu {
                cpu,
                groups: vec![group],
                regulated: value(4) == 1,
                throttles: value(1),
                throttled_ns: value(2),
            });
        }
    }
    all
}

/// Reads a run's folder, and what the kernel says of its groups; `sample`: also how much CPU time
/// they use, which takes a moment.
fn read(kernel: &Kernel, dir: &Path, sample: bool) -> Result<Run> {
    let lease = Lease::open(&dir.join(lease::FILE));
    let (beat, said) = beats(&lease);
    let (mut state, mut why) = (beat, said.clone());
    let mut lose = |because: String, state: &mut Word| {
        if *state == Word::Holds {
            why = because;
            *state = Word::Lost;
        }
    };
    let plan: std::result::Result<Option<Plan>, _> = json(&dir.join(undo::PLAN));
    let standing: std::result::Result<Option<Standing>, _> = json(&dir.join(undo::STANDING));
    let unsettled = matches!((&plan, &standing), (Ok(_), Ok(None)));
    let damaged = [plan.as_ref().err(), standing.as_ref().err()];
    let damaged = damaged.into_iter().flatten().next().cloned();
    let (plan, standing) = (plan.ok().flatten(), standing.ok().flatten());
    if unsettled {
        lose(UNSETTLED.to_owned(), &mut state);
    }
    if let Some(standing) = standing.as_ref().filter(|s| !s.holds()) {
        let lost = standing.all().filter(|(_, worth)| worth.is_lost()).count();
        lose(
            format!("{lost} of its promises are at level none"),
            &mut state,
        );
    }
    let changes = undo::left_by(kernel, dir).ok();
    let now = match &plan {
        Some(plan) => {
            let of = RunFolder {
                dir,
                plan,
                standing: standing.as_ref(),
                changes: changes.as_deref().unwrap_or_default(),
                dead: match beat {
                    Word::Lost => Some(said.as_str()),
                    _ => unsettled.then_some(UNSETTLED),
                },
            };
            now(kernel, &of, sample)?
        }
        None => Now::default(),
    };
    let plan = match (plan, &standing) {
        (Some(plan), Some(standing)) => Some(standing.over(&plan)),
        (plan, _) => plan,
    };
    let declared: Option<BTreeMap<GroupId, Declared>> =
        json(&dir.join(undo::DECLARED)).ok().flatten();
    let throttled = match (&plan, &lease) {
        (Some(plan), Ok(lease)) => throttled(plan, lease),
        _ => Vec::new(),
    };
    if let Some(of) = throttled.iter().find(|of| !of.regulated) {
        let why = format!("CPU {} is not regulated any more", of.cpu);
        lose(why, &mut state);
    }
    if let Some(damaged) = damaged.filter(|_| state == Word::Holds) {
        (state, why) = (Word::Unseen, damaged);
    }
    Ok(Run {
        run: dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        holds: state == Word::Holds,
        state,
        why,
        changes: changes.map(|all| all.len()),
        groups: now.groups,
        promises: now.promises,
        drift: now.drift,
        plan,
        throttled,
        declared: declared.unwrap_or_default(),
    })
}

fn show(run: &Run) {
    let word = match run.state {
        Word::Holds => "holds",
        Word::Lost => "DOES NOT HOLD",
        Word::Unseen => "CANNOT BE SEEN",
    };
    let changes = match run.changes {
        Some(n) => format!("has {n} entries"),
        None => "cannot be read".to_owned(),
    };
    println!(
        "run {}: {word} ({}); its undo record {changes}",
        run.run, run.why
    );
    let style = crate::terminal::style();
    print!(
        "{}",
        quell_report::status_text(&run.groups, &run.promises, &run.drift, style)
    );
    for cpu in &run.throttled {
        println!(
            "  CPU {:<4} group{} {:<16} throttled {} times, {} in all",
            cpu.cpu,
            if cpu.groups.len() == 1 { "" } else { "s" },
            cpu.groups.join(", "),
            cpu.throttles,
            Nanos(cpu.throttled_ns / 1_000_000 * 1_000_000)
        );
    }
    for (group, declared) in &run.declared {
        println!("  group {group} says: {declared}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_not_one_that_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("standing.json");
        assert_eq!(json::<Vec<u32>>(&path), Ok(None));
        fs::write(&path, "[1]").unwrap();
        assert_eq!(json(&path), Ok(Some(vec![1_u32])));
        fs::write(&path, "[1").unwrap();
        let why = json::<Vec<u32>>(&path).unwrap_err();
        assert!(why.contains("standing.json cannot be read"), "{why}");
    }

    #[test]
    fn a_heartbeat_that_only_root_sees_is_not_a_lost_one() {
        let refused = |errno| {
            let source = std::io::Error::from_raw_os_error(errno);
            beats(&Err(Error::file(
                "open",
                "/run/quell/1/lease",
                None,
                source,
            )))
            .0
        };
        assert_eq!(refused(libc::EACCES), Word::Unseen);
        assert_eq!(refused(libc::ENOENT), Word::Lost);
    }
}
