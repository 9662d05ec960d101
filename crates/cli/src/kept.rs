//! The profiles that are kept, and what they say of groups whose targets are slowdowns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_engine::folder::hash;
use quell_plan::deep::Fingerprint;
use quell_plan::inventory::Inventory;
use quell_plan::planner::{ProgramDemand, Solo, Solos, WaysCurve};
use quell_policy::{Group, Policy, Target as PolicyTarget};
use quell_record::demand::{Judged, PROFILE_SCHEMA, Phase, Profile, Subject, Swept};
use quell_types::units::{Bytes, LINE_BYTES, Nanos, Rate, Share};

use crate::exit::{Failure, Result, failed, usage};
use crate::machine;
use crate::target::On;

/// Where a profile of that name is kept.
fn place(name: &str) -> Result<PathBuf> {
    let dir = crate::state::state_dir().ok_or_else(|| {
        failed("there is no place to keep profiles (neither QUELL_STATE_DIR nor HOME is set); name a file with --out")
    })?;
    Ok(dir.join("profiles").join(format!("{name}.json")))
}

/// What the profile of a program is called: its name, and the machine's, if that is not this one.
pub fn named(program: &str, backend: &str) -> String {
    let fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if backend == On::LINUX {
        return program.to_owned();
    }
    let machine = backend.strip_prefix("sim:").unwrap_or(backend);
    let machine: String = machine
        .chars()
        .map(|c| if fit(c) { c } else { '-' })
        .collect();
    format!("{program}@{machine}")
}

pub fn keep(profile: &Profile, out: Option<&Path>) -> Result<()> {
    let path = match out {
        Some(path) => path.to_owned(),
        None => place(&named(&profile.name, &profile.backend))?,
    };
    let text = serde_json::to_string(profile).map_err(failed)?;
    crate::state::write_whole(&path, &(text + "\n")).map_err(|e| {
        failed(format!(
            "the profile could not be kept in {}: {e}; name a writable file with --out",
            path.display()
        ))
    })?;
    eprintln!("quell: the profile is in {}", path.display());
    Ok(())
}

/// A profile by its file, or by its name.
pub fn stored(named: &str) -> Result<Profile> {
    let file = PathBuf::from(named);
    at(&if file.exists() { file } else { place(named)? })
}

/// The profile in a file.
fn at(path: &Path) -> Result<Profile> {
    let wrong = |why: &dyn std::fmt::Display| -> Failure {
        usage(format!(
            "{}: {why}; give a profile's file, or the name of one that was kept",
            path.display()
        ))
    };
    let text = quell_files::text(path, quell_files::MOST_RECORD).map_err(|e| wrong(&e))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(PROFILE_SCHEMA) => {}
        Some(other) => return Err(wrong(&format!("it is a {other}, not a {PROFILE_SCHEMA}"))),
        None => return Err(wrong(&format!("it is not a {PROFILE_SCHEMA}"))),
    }
    serde_json::from_value(value).map_err(|e| wrong(&e))
}

/// What the profiles tell of the groups whose targets are slowdowns, and of those with a part of a
/// cache. `launched`: the programs that the command line names, by group.
pub fn solos(
    policy: &Policy,
    machine: &Inventory,
    on: &On,
    launched: &BTreeMap<String, Vec<String>>,
) -> Solos {
    let now = match on {
        On::Linux | On::Lab(_) => machine::fingerprint(machine),
        On::Sim(_) | On::Coarse(_) => machine.fingerprint(None),
    };
    let scheduled = match policy.scheduler {
        Some(_) => policy.scheduled(),
        None => Vec::new(),
    };
    let solo = |(name, group): (&String, &Group)| {
        let target = group.target.as_ref().filter(|t| t.slowdown.is_some());
        let turns = scheduled.contains(&name);
        if target.is_none() && group.reserve.cache.is_none() && !turns {
            return None;
        }
        let command = launched.get(name).or(group.command.as_ref());
        let subject = match (command, group.matching.as_slice()) {
            (Some(command), _) => Some(Subject::Command {
                command: command.clone(),
            }),
            (None, []) => None,
            (None, matching) => Some(Subject::Tasks {
                matching: matching.to_vec(),
            }),
        };
        let program = subject.as_ref().map_or_else(|| name.clone(), Subject::name);
        let (profile, stored) = match target.and_then(|t| t.profile.clone()) {
            Some(profile) => (profile.clone(), stored(&profile)),
            // A file of that name may be the program.
            None => {
                let profile = named(&program, &on.name());
                let stored = place(&profile).and_then(|path| at(&path));
                (profile, stored)
            }
        };
        let stored = current(&profile, stored, &now, subject.as_ref());
        let works_on = stored.as_ref().ok().and_then(works_on);
        let curve = stored.as_ref().ok().and_then(curve);
        let demand = stored.clone().and_then(|stored| demand(&profile, &stored));
        let took = match (stored, target) {
            (Ok(stored), Some(target)) => alone(&profile, &stored, target),
            (Ok(_), None) => Err("it has no target".to_owned()),
            (Err(why), _) => Err(why),
        };
        let solo = Solo {
            profile,
            took,
            works_on,
            curve,
            demand,
        };
        Some((name.clone(), solo))
    };
    policy.groups.iter().filter_map(solo).collect()
}

/// Bytes that the program had in the last-level cache, or where that is not known, touched.
fn works_on(stored: &Profile) -> Option<Bytes> {
    let set = stored.working_set.as_ref()?;
    set.cached_bytes.or(set.touched_bytes).map(Bytes)
}

/// What its sweep of ways says, where it has one.
fn curve(stored: &Profile) -> Option<WaysCurve> {
    let sweep = stored.sweeps.iter().find(|s| s.swept == Swept::Ways)?;
    let ways = |size: u64| u32::try_from(size).ok();
    let missed = sweep.points.iter().filter(|p| p.judged == Judged::Misses);
    Some(WaysCurve {
        level: sweep.level?,
        goal: sweep.goal.to_string(),
        missed: missed
            .filter_map(|p| Some((ways(p.size)?, Share::of(p.kept?))))
            .collect(),
        enough: sweep.needed.enough.and_then(ways),
    })
}

/// Identifies the content of a program's file. `None` where it is not known which file that is.
pub fn content(subject: &Subject) -> Option<String> {
    let file = match subject {
        Subject::Generator { .. } => return None,
        Subject::Command { command } => machine::files_of(command.first()?).into_iter().next()?,
        Subject::Tasks { matching } => matching.first()?.exe.as_ref()?.into(),
    };
    Some(hash(std::fs::read(file).ok()?))
}

/// A profile of a program as it is now, on this machine, or why there is none.
fn current(
    profile: &str,
    stored: Result<Profile>,
    now: &Fingerprint,
    subject: Option<&Subject>,
) -> std::result::Result<Profile, String> {
    let stored = stored.map_err(|e| format!("there is no profile {profile}: {}", e.text))?;
    let changed = stored.machine.changed(now);
    if !changed.is_empty() {
        return Err(format!(
            "profile {profile} was made on another machine: {}",
            changed.join(", ")
        ));
    }
    let other = |kept: &String| subject.and_then(content).is_some_and(|now| now != *kept);
    if stored.program.as_ref().is_some_and(other) {
        return Err(format!(
            "profile {profile} was made of another version of the program: its file has changed; \
             profile it again"
        ));
    }
    Ok(stored)
}

/// What one process of the program demands on average, or why that is not known.
fn demand(profile: &str, stored: &Profile) -> std::result::Result<ProgramDemand, String> {
    let ran: u64 = stored.phases.iter().map(|phase| phase.cpu_ns).sum();
    if ran == 0 {
        return Err(format!(
            "profile {profile} tells of no loads and stores: nothing counted them"
        ));
    }
    let mean = |per_us: fn(&Phase) -> f64| {
        let sum: f64 = stored
            .phases
            .iter()
            .map(|p| per_us(p) * p.cpu_ns as f64)
            .sum();
        Rate::measured(sum / ran as f64 * LINE_BYTES as f64 * 1e6)
    };
    Ok(ProgramDemand {
        memory: mean(|phase| phase.memory_per_us),
        first_level: mean(|phase| phase.first_level_per_us),
    })
}

/// What units took alone at a target's percentile, or why that is not known.
fn alone(
    profile: &str,
    stored: &Profile,
    target: &PolicyTarget,
) -> std::result::Result<Nanos, String> {
    let tells_none = || format!("profile {profile} tells of no units of work (docs/client.md)");
    let units = stored.units.as_ref().ok_or_else(tells_none)?;
    // One of so many units may be late: fewer say nothing of it.
    let least = (100.0 / (100.0 - target.percentile).max(0.1)).round();
    if (units.units as f64) < least {
        return Err(format!(
            "profile {profile} tells of {} units of work, and {least} are needed for percentile {}",
            units.units, target.percentile
        ));
    }
    units.at(target.share()).ok_or_else(tells_none)
}
