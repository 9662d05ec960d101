//! The processes that a plan meets on this machine, for the table of `plan` and `run`.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::error::Result as Read;
use quell_kernel::procfs;
use quell_kernel::root::{Files, Kernel};
use quell_kernel::tasks::{Assigned, Matcher, assign, cgroups_of};
use quell_plan::{Plan, Setting};
use quell_policy::{Group, Policy};
use quell_record::backend::{Program, SubjectSpec};
use quell_record::preview::{Fate, Process};
use quell_types::task::TaskMatch;

use crate::exit::{Failure, Result, failed, usage};

/// A refusal is of what the user gave, everything else of the machine.
pub fn refused(error: quell_kernel::error::Error) -> Failure {
    match error {
        quell_kernel::error::Error::Refused { .. } => {
            usage(format!("{error}; nothing was changed"))
        }
        _ => failed(error),
    }
}

/// A command of a group, as the run starts it.
pub fn subject(group: &str, command: &[String]) -> SubjectSpec {
    SubjectSpec {
        name: group.to_owned(),
        group: group.to_owned(),
        program: Program::Command(command.to_vec()),
        cpus: None,
        env: BTreeMap::new(),
        capture: false,
    }
}

/// The commands that the policy launches.
pub fn commands(policy: &Policy) -> Vec<SubjectSpec> {
    let groups = policy.groups.iter();
    let launched = groups.filter_map(|(name, group)| Some((name, group.command.as_deref()?)));
    launched
        .map(|(name, command)| subject(name, command))
        .collect()
}

/// The processes of each group as they are now, by the rules of a run.
pub fn assigned(files: &dyn Files, policy: &Policy) -> Result<Assigned> {
    let groups = policy.groups.iter();
    let matchers = groups.map(|(name, group)| Matcher::new(files, name, &group.matching));
    let matchers: Vec<Matcher> = matchers.collect::<Read<_>>().map_err(refused)?;
    assign(files, &matchers, &BTreeSet::new()).map_err(refused)
}

/// The processes of all groups, and what the plan does to each; `launched` are the programs that
/// the run starts. Empty without root, which cannot see all processes.
pub fn look(policy: &Policy, plan: &Plan, launched: &[SubjectSpec]) -> Result<Vec<Process>> {
    if !quell_kernel::is_root() {
        return Ok(Vec::new());
    }
    let files = Kernel::new().map_err(failed)?;
    let mut assigned = assigned(&files, policy)?;
    let mut all = Vec::new();
    for (name, group) in &policy.groups {
        let gathered = plan.steps.iter().any(|step| {
            step.group.as_ref() == Some(name) && matches!(step.set, Setting::Gather { .. })
        });
        let started = launched.iter().filter(|subject| subject.group == *name);
        all.extend(started.filter_map(|subject| started_by(subject, gathered)));
        for stat in assigned.remove(name).unwrap_or_default() {
            let pid = stat.id.pid;
            let lies = procfs::memberships(&files, &pid.to_string()).map_err(failed)?;
            let named = in_place(&files, group, &stat).map_err(failed)?;
            let meant = |path: &str| named.iter().any(|cgroup| path.starts_with(cgroup.as_str()));
            // In the hierarchies without a cgroup of its own it is in the root.
            let paths = lies.into_iter().map(|place| place.path);
            let Some(cgroup) = paths.max_by_key(|path| (meant(path), path.len())) else {
                continue;
            };
            all.push(Process {
                group: name.clone(),
                pid: Some(pid),
                command: stat.comm,
                cgroup: Some(cgroup),
                fate: match gathered {
                    true if !named.is_empty() => Fate::InPlace,
                    true if group.matching.iter().any(|t| !t.in_place()) => Fate::Gathered,
                    _ => Fate::Untouched,
                },
            });
        }
    }
    Ok(all)
}

/// The cgroups that the group names and a process lies in.
fn in_place(files: &dyn Files, group: &Group, stat: &procfs::Stat) -> Read<BTreeSet<String>> {
    let tables = group.matching.iter().filter(|table| table.in_place());
    let tables: Vec<TaskMatch> = tables.cloned().collect();
    cgroups_of(files, &tables, std::slice::from_ref(stat))
}

fn started_by(subject: &SubjectSpec, gathered: bool) -> Option<Process> {
    let Program::Command(command) = &subject.program else {
        return None;
    };
    let program = command.first()?;
    let fate = if gathered {
        Fate::Launched
    } else {
        Fate::Untouched
    };
    Some(Process {
        group: subject.group.clone(),
        pid: None,
        command: program.rsplit('/').next().unwrap_or(program).to_owned(),
        cgroup: None,
        fate,
    })
}
