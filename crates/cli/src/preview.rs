//! What a plan meets on this machine, for the tables of `plan` and `run`: the processes of its
//! groups, and limits on the critical ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quell_kernel::births::Births;
use quell_kernel::cgroup::{Cgroups, Controller, Hierarchy, Version};
use quell_kernel::cgroup_limits::{Limit, limits, low_weights};
use quell_kernel::error::Result as Read;
use quell_kernel::procfs;
use quell_kernel::real_time;
use quell_kernel::root::{Files, Kernel};
use quell_kernel::tasks::{Assigned, Matcher, assign, cgroups_of, present};
use quell_linux::group_cgroups::SLICE;
use quell_linux::limited::{Limited, Limits};
use quell_plan::{Plan, Setting};
use quell_policy::{Group, Policy, Role};
use quell_record::backend::{Program, SubjectSpec};
use quell_record::preview::{Fate, LimitAbove, Met, Process};
use quell_types::ids::GroupId;
use quell_types::task::TaskMatch;
use quell_types::units::Share;
use quell_types::witness::Amount;

use crate::exit::{Failure, Result, failed, usage};

/// Processes that are not moved and are named.
const MOST_NAMED: usize = 10;

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
    present(files, &matchers, &BTreeSet::new()).map_err(refused)?;
    assign(files, &matchers, &BTreeSet::new(), &mut || {}).map_err(refused)
}

/// The processes of all groups with what the plan does to each, and limits on critical groups that
/// it does not lift; `launched` are the programs that the run starts. Empty without root, which
/// cannot see all processes. Promised ways that a resctrl group of another program fills are
/// refused, as a run refuses them.
pub fn look(policy: &Policy, plan: &Plan, launched: &[SubjectSpec]) -> Result<Met> {
    if !quell_kernel::is_root() {
        return Ok(Met::default());
    }
    let files = Kernel::new().map_err(failed)?;
    let cgroups = Cgroups::discover(&files).map_err(failed)?;
    let run_root = Path::new(crate::machine::RUN_ROOT);
    quell_linux::enforce::classes::check(&files, plan, run_root).map_err(refused)?;
    let (processes, notes) = processes(&files, policy, plan, launched)?;
    let critical = policy
        .groups
        .iter()
        .filter(|(_, g)| g.role == Role::Critical);
    let mut limits = Vec::new();
    for (name, _) in critical {
        let own = processes.iter().filter(|process| process.group == *name);
        let dirs = dirs(&files, &cgroups, own).map_err(failed)?;
        let cpus = plan.groups.iter().find(|group| group.name == *name);
        let cpus = cpus.map_or(0, |group| group.cpus.len());
        let exclusive = plan.steps.iter().any(|step| {
            let alone = matches!(
                step.set,
                Setting::Confine {
                    exclusive: true,
                    ..
                }
            );
            alone && step.group.as_ref() == Some(name)
        });
        let own = processes.iter().filter(|process| process.group == *name);
        let bound = real_time::bound(&files, own.filter_map(|process| process.pid), cpus);
        limits.extend(bound.map(|limit| above(name, limit)));
        limits.extend(limits_on(&files, name, cpus, exclusive, &dirs));
    }
    let one_by_one = |group: &Group| group.matching.iter().any(|table| !table.in_place());
    let unreported = match policy.groups.values().any(one_by_one) {
        true => Births::listen().err().map(|e| e.to_string()),
        false => None,
    };
    Ok(Met {
        processes,
        limits,
        unreported,
        notes,
    })
}

/// The cgroups that processes stay in, each with its hierarchy.
fn dirs<'c, 'p>(
    files: &dyn Files,
    cgroups: &'c Cgroups,
    processes: impl Iterator<Item = &'p Process>,
) -> Read<BTreeMap<String, &'c Hierarchy>> {
    let mut all = BTreeMap::new();
    for process in processes {
        for hierarchy in &cgroups.hierarchies {
            let moved = hierarchy.version == Version::V2 || {
                let moves = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];
                let mut names = moves.iter().map(|c| c.name());
                names.any(|name| hierarchy.controllers.iter().any(|c| c == name))
            };
            let Some(pid) = process
                .pid
                .filter(|_| !moved || process.fate != Fate::Gathered)
            else {
                continue;
            };
            if let Some(dir) = hierarchy.dir_of(files, pid)? {
                all.insert(dir, hierarchy);
            }
        }
    }
    Ok(all)
}

/// The limits on these cgroups and above them. A quota of as much as the group's CPUs is none. On
/// CPUs that the group has to itself no weight counts.
fn limits_on(
    files: &dyn Files,
    group: &GroupId,
    cpus: usize,
    exclusive: bool,
    dirs: &BTreeMap<String, &Hierarchy>,
) -> Vec<LimitAbove> {
    let mut found = Vec::new();
    for (dir, hierarchy) in dirs {
        found.extend(limits(files, hierarchy, dir));
        if !exclusive {
            found.extend(low_weights(files, hierarchy, dir));
        }
    }
    let key = |limit: &Limit| (limit.file.clone(), limit.value.clone());
    let each: BTreeMap<_, Limit> = found.into_iter().map(|one| (key(&one), one)).collect();
    let enough = Share::percent(100 * cpus as u64);
    let limits = each.into_values().filter(|limit| match limit.gets {
        Amount::CpuTime(share) => share < enough,
        _ => true,
    });
    limits.map(|limit| above(group, limit)).collect()
}

fn above(group: &GroupId, limit: Limit) -> LimitAbove {
    LimitAbove {
        group: group.clone(),
        file: limit.file,
        value: limit.value,
        gets: limit.gets,
    }
}

/// The processes of all groups, and sentences about those that none matches although they may be
/// meant, and about groups of several users.
fn processes(
    files: &Kernel,
    policy: &Policy,
    plan: &Plan,
    launched: &[SubjectSpec],
) -> Result<(Vec<Process>, Vec<String>)> {
    let mut assigned = assigned(files, policy)?;
    let v2 = Cgroups::discover(files).map_err(failed)?.v2().cloned();
    let slice = v2.as_ref().map(|v2| format!("{}/{SLICE}", v2.mount));
    let slice = slice.unwrap_or_default();
    let mut left = v2.as_ref().map(|v2| (v2, Limits::new(v2, &slice)));
    let (mut all, mut stay) = (Vec::new(), Vec::new());
    for (name, group) in &policy.groups {
        let gathered = plan.steps.iter().any(|step| {
            step.group.as_ref() == Some(name) && matches!(step.set, Setting::Gather { .. })
        });
        let started = launched.iter().filter(|subject| subject.group == *name);
        all.extend(started.filter_map(|subject| started_by(subject, gathered)));
        for stat in assigned.take(name) {
            let pid = stat.id.pid;
            let lies = procfs::memberships(files, &pid.to_string()).map_err(failed)?;
            let named = in_place(files, group, &stat).map_err(failed)?;
            let meant = |path: &str| {
                named
                    .iter()
                    .any(|cgroup| Path::new(path).starts_with(cgroup))
            };
            // In the hierarchies without a cgroup of its own it is in the root.
            let paths = lies.into_iter().map(|place| place.path);
            let Some(cgroup) = paths.max_by_key(|path| (meant(path), path.len())) else {
                continue;
            };
            let mut fate = match gathered {
                true if !named.is_empty() => Fate::InPlace,
                true if group.matching.iter().any(|t| !t.in_place()) => Fate::Gathered,
                _ => Fate::Untouched,
            };
            if let Some((v2, left)) = left.as_mut().filter(|_| fate == Fate::Gathered)
                && let Some(from) = v2.dir_of(files, pid).map_err(failed)?
                && let Some(limited) = left.of(files, &stat, &from).map_err(failed)?
            {
                fate = Fate::Untouched;
                stay.push((name, limited));
            }
            all.push(Process {
                group: name.clone(),
                pid: Some(pid),
                command: stat.comm,
                cgroup: Some(cgroup),
                fate,
            });
        }
    }
    moved_at_all(policy, &all, &stay)?;
    let out = assigned.left_out.iter().take(MOST_NAMED);
    let mut notes: Vec<String> = out.map(ToString::to_string).collect();
    let stay = stay.iter().take(MOST_NAMED);
    notes.extend(stay.map(|(name, one)| format!("group {name}: {one}; {}", one.remedy())));
    for (name, group) in &policy.groups {
        let own = all.iter().filter(|process| process.group == *name);
        notes.extend(claimed(files, name, group, own).map_err(failed)?);
    }
    Ok((all, notes))
}

/// Refuses a critical group none of whose processes can be moved.
fn moved_at_all(policy: &Policy, all: &[Process], stay: &[(&GroupId, Limited)]) -> Result<()> {
    for (name, one) in stay {
        let critical = policy
            .groups
            .get(*name)
            .is_some_and(|g| g.role == Role::Critical);
        let own = all.iter().filter(|process| process.group == **name);
        let stays = stay.iter().filter(|(group, _)| group == name).count();
        if critical && own.count() == stays {
            let remedy = one.remedy();
            return Err(usage(format!(
                "group {name}: {one}, and the group has no other; {remedy}; nothing was changed"
            )));
        }
    }
    Ok(())
}

/// That processes of several users are in a group by what they say of themselves.
fn claimed<'p>(
    files: &dyn Files,
    name: &str,
    group: &Group,
    processes: impl Iterator<Item = &'p Process>,
) -> Read<Option<String>> {
    let claims = |t: &TaskMatch| (t.comm.is_some() || t.arg.is_some()) && t.user.is_none();
    if !group.matching.iter().any(claims) {
        return Ok(None);
    }
    let mut users = BTreeSet::new();
    for pid in processes.filter_map(|process| process.pid) {
        users.extend(procfs::users(files, pid)?.map(|[_, effective, _]| effective));
    }
    let names: Vec<String> = users.iter().map(u32::to_string).collect();
    Ok((users.len() > 1).then(|| {
        format!(
            "group {name} has processes of users {}; comm and arg are what a program says of itself: add user=NAME \
             where users are no friends",
            names.join(", ")
        )
    }))
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
