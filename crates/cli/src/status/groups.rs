//! The groups and promises of a run as they are now: read from the run's folder and the kernel's
//! files, not told by the run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_kernel::error::Result;
use quell_kernel::procfs::{self, Stat};
use quell_kernel::root::Files;
use quell_kernel::tasks::cgroups_of;
use quell_linux::drift;
use quell_linux::group_cgroups::{SLICE, outermost};
use quell_linux::restore::{PLAN, STANDING};
use quell_plan::{GroupPlan, Plan, Setting};
use quell_record::now::{GroupNow, PromiseNow, PromiseState};
use quell_record::standing::{Standing, Worth};
use quell_types::ids::{GroupId, PromiseId};
use quell_types::journal::Undo;
use quell_types::mechanism::Level;
use quell_types::options::OnDrift;
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;

/// For so long the CPU time of the groups is looked at.
const SAMPLE: Duration = Duration::from_millis(250);

/// Whether the cgroup of this path is one that Quell made for a group.
fn made_for(path: &str, group: &str) -> bool {
    let mut parts = path.split('/');
    let outermost = outermost(group);
    let ours = parts.find(|part| *part == SLICE || *part == outermost);
    ours.is_some_and(|part| part != SLICE || parts.any(|part| part == group))
}

/// The processes of each group: those in cgroups that Quell made for it, and those in cgroups that
/// it changed in place.
pub fn members(files: &dyn Files, plan: &Plan) -> Result<BTreeMap<GroupId, Vec<u32>>> {
    let mut found: BTreeMap<GroupId, Vec<u32>> = BTreeMap::new();
    let tables = |group: &str| -> Vec<TaskMatch> {
        let gathered = plan.steps.iter().filter_map(|step| match &step.set {
            Setting::Gather { matching, .. } if step.group.as_deref() == Some(group) => {
                Some(matching)
            }
            _ => None,
        });
        gathered
            .flatten()
            .filter(|t| t.in_place())
            .cloned()
            .collect()
    };
    let groups: Vec<(&str, Vec<TaskMatch>)> = plan
        .groups
        .iter()
        .map(|group| (group.name.as_str(), tables(&group.name)))
        .collect();
    let alive = |stat: &Stat| !stat.kernel_thread() && !stat.dead();
    for stat in procfs::processes(files)?.into_iter().filter(alive) {
        let places = procfs::memberships(files, &stat.id.pid.to_string())?;
        for (group, tables) in &groups {
            let made = places.iter().any(|place| made_for(&place.path, group));
            let named = || cgroups_of(files, tables, std::slice::from_ref(&stat));
            if made || !named()?.is_empty() {
                found
                    .entry((*group).to_owned())
                    .or_default()
                    .push(stat.id.pid);
            }
        }
    }
    Ok(found)
}

/// CPU time of all threads of these processes so far. Threads that have ended are missing.
fn ran(files: &dyn Files, pids: &[u32]) -> BTreeMap<u32, u64> {
    let threads = pids
        .iter()
        .flat_map(|pid| procfs::threads(files, *pid).unwrap_or_default());
    let each = threads.filter_map(|tid| Some((tid, procfs::schedstat(files, tid).ok()??.0)));
    each.collect()
}

/// How many CPUs each group uses now, by the CPU time of its threads in a moment.
pub fn used(files: &dyn Files, members: &BTreeMap<GroupId, Vec<u32>>) -> BTreeMap<GroupId, f64> {
    let sample = || -> BTreeMap<&GroupId, BTreeMap<u32, u64>> {
        let each = members
            .iter()
            .map(|(group, pids)| (group, ran(files, pids)));
        each.collect()
    };
    let (begun, before) = (Instant::now(), sample());
    std::thread::sleep(SAMPLE);
    let (span, after) = (begun.elapsed(), sample());
    let spent = |(group, after): (&GroupId, BTreeMap<u32, u64>)| {
        let before = &before[group];
        let grown = after.iter().map(|(tid, ns)| {
            let old = before.get(tid).copied();
            old.map_or(0, |old| ns.saturating_sub(old))
        });
        let ns: u64 = grown.sum();
        (group.clone(), ns as f64 / span.as_nanos() as f64)
    };
    after.into_iter().map(spent).collect()
}

/// What is known of a run from its folder.
pub struct RunFolder<'r> {
    pub dir: &'r Path,
    pub plan: &'r Plan,
    /// Absent while steps are applied or undone.
    pub standing: Option<&'r Standing>,
    /// The entries of its undo record.
    pub changes: &'r [Undo],
    /// Why the run holds nothing any more, if that is so.
    pub dead: Option<&'r str>,
}

impl RunFolder<'_> {
    /// How long ago a file of the run was written.
    fn age(&self, file: &str) -> Option<Nanos> {
        let written = fs::metadata(self.dir.join(file)).ok()?.modified().ok()?;
        let age = written.elapsed().ok()?;
        Some(Nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Each promise of the plan as it is now.
    pub fn promises(&self) -> Vec<PromiseNow> {
        let planned = Standing::of(self.plan);
        let standing = self.standing.unwrap_or(&planned);
        let of = |(id, worth)| self.promise(id, worth);
        standing.all().filter_map(of).collect()
    }

    fn promise(&self, id: PromiseId, worth: &Worth) -> Option<PromiseNow> {
        let held = self.plan.promise(id)?;
        let now = self.dead.map_or(worth.now, |_| Level::None);
        // The file was written at the last change of any promise.
        let changed = worth.because.as_ref().and_then(|_| self.age(STANDING));
        let because = worth.because.as_ref().map(ToString::to_string);
        Some(PromiseNow {
            group: held.group.clone(),
            promise: held.promise.to_string(),
            state: match now {
                Level::None if worth.planned > Level::None => PromiseState::Lost,
                Level::None => PromiseState::Unheld,
                now if now < worth.planned => PromiseState::Lowered,
                _ => PromiseState::Holds,
            },
            level: now,
            at_least: changed.is_some(),
            since: match self.dead {
                Some(_) => None,
                None => changed.or_else(|| self.age(PLAN)),
            },
            because: self.dead.map(str::to_owned).or(because),
        })
    }

    /// What other programs have changed of what the run has set, by group; `None` for what is of
    /// none.
    pub fn drifted(&self, files: &dyn Files) -> BTreeMap<Option<GroupId>, Vec<String>> {
        let mut all: BTreeMap<Option<GroupId>, Vec<String>> = BTreeMap::new();
        for drift in drift::find(files, self.changes, OnDrift::Report, &|| true) {
            let mut groups = self.plan.groups.iter().map(|group| &group.name);
            let group = groups.find(|group| made_for(&drift.path, group));
            let what = drift.what.trim_end_matches(": left so").to_owned();
            all.entry(group.cloned()).or_default().push(what);
        }
        all
    }

    /// Each group of the plan as it is now.
    pub fn groups(
        &self,
        promises: &[PromiseNow],
        members: &BTreeMap<GroupId, Vec<u32>>,
        drifted: &BTreeMap<Option<GroupId>, Vec<String>>,
    ) -> Vec<GroupNow> {
        let of = |group: &GroupPlan| {
            let own = || promises.iter().filter(|p| p.group == group.name);
            let shortest = own().filter_map(|p| p.since).min();
            GroupNow {
                group: group.name.clone(),
                processes: members.get(&group.name).map_or(0, Vec::len),
                cpus: group.cpus.clone(),
                used: None,
                promise: own().map(|p| p.state).max(),
                since: match self.dead {
                    Some(_) => None,
                    None => shortest.or_else(|| self.age(PLAN)),
                },
                drift: drifted.get(&Some(group.name.clone())).map_or(0, Vec::len),
            }
        };
        self.plan.groups.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_of_the_group_that_it_was_made_for() {
        assert!(made_for("/quell.slice/a", "a"));
        assert!(made_for("/init.scope/quell-a.slice/work", "a"));
        assert!(!made_for("/quell.slice/ab", "a"));
        assert!(!made_for("/a/quell.slice/b", "a"));
    }
}
