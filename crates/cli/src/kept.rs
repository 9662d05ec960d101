//! The profiles that are kept, and what they say of groups whose targets are slowdowns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_plan::deep::Fingerprint;
use quell_plan::inventory::Inventory;
use quell_plan::planner::{Solo, Solos, WaysCurve};
use quell_policy::{Group, Policy, Target as PolicyTarget};
use quell_record::demand::{Judged, PROFILE_SCHEMA, Profile, Subject, Swept};
use quell_types::units::{Bytes, Nanos, Share};

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
    let path = if file.exists() { file } else { place(named)? };
    let wrong = |why: &dyn std::fmt::Display| -> Failure {
        usage(format!(
            "{}: {why}; give a profile's file, or the name of one that was kept",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(&e))?;
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
    let solo = |(name, group): (&String, &Group)| {
        let target = group.target.as_ref().filter(|t| t.slowdown.is_some());
        if target.is_none() && group.reserve.cache.is_none() {
            return None;
        }
        let command = launched.get(name).or(group.command.as_ref());
        let program = match (command, group.matching.as_slice()) {
            (Some(command), _) => Subject::Command {
                command: command.clone(),
            }
            .name(),
            (None, []) => name.clone(),
            (None, matching) => Subject::Tasks {
                matching: matching.to_vec(),
            }
            .name(),
        };
        let profile = target.and_then(|t| t.profile.clone());
        let profile = profile.unwrap_or_else(|| named(&program, &on.name()));
        let stored = of_this_machine(&profile, &now);
        let works_on = stored.as_ref().ok().and_then(works_on);
        let curve = stored.as_ref().ok().and_then(curve);
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
            .filter_map(|p| Some((ways(p.size)?, thousandths(p.kept?))))
            .collect(),
        enough: sweep.needed.enough.and_then(ways),
    })
}

/// A speed as a share of the speed alone.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a quotient of two times"
)]
fn thousandths(kept: f64) -> Share {
    Share::ratio((kept * 1000.0).round() as u64, 1000)
}

/// A profile of a program on this machine, or why there is none.
fn of_this_machine(profile: &str, now: &Fingerprint) -> std::result::Result<Profile, String> {
    let stored =
        stored(profile).map_err(|e| format!("there is no profile {profile}: {}", e.text))?;
    let changed = stored.machine.changed(now);
    if !changed.is_empty() {
        return Err(format!(
            "profile {profile} was made on another machine: {}",
            changed.join(", ")
        ));
    }
    Ok(stored)
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
