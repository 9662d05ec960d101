//! From what was seen to the verdict on each claim.

use std::collections::HashMap;

use quell_types::cpuset::CpuSet;
use quell_types::ids::{GroupId, PromiseId};
use quell_types::partition::Mask;
use quell_types::units::{Bytes, Nanos, Share};

use crate::claim::{Claim, What};
use crate::drawn::Sample;
use crate::limits::Dir;
use crate::tasks::Scan;
use crate::{Witness, alone, limits, ways};
use quell_types::witness::{Fault, Verdict};

/// The most processes of a group whose cgroups are read.
const PROCESSES: usize = 8;

/// What was counted at the last look of the CPUs of a claim.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    /// CPU time of the group.
    group: Option<Nanos>,
    /// Nanoseconds of threads of the kernel and of Quell. `None` where nothing was suspicious.
    exempt: Option<HashMap<u32, u64>>,
}

fn broken_or_holds(fault: Option<Fault>) -> Verdict {
    fault.map_or(Verdict::Holds, Verdict::Broken)
}

impl Witness {
    /// Judges one claim.
    pub(crate) fn verdict(&mut self, claim: &Claim, scan: &Scan, now: Nanos) -> Verdict {
        if claim.what == What::Invisible {
            return Verdict::Unseen("nothing outside of Quell shows whether it holds".to_owned());
        }
        let Some(group) = self.party(&claim.group) else {
            return Verdict::Unseen(format!("group {} is not known", claim.group));
        };
        let party = &self.parties[group];
        if party.homes.is_empty() && party.matching.is_empty() {
            return Verdict::Unseen(format!(
                "nothing says which tasks are those of group {}",
                claim.group
            ));
        }
        let judged = match &claim.what {
            What::Alone { cpus } => self.alone(claim.id, group, cpus, scan),
            What::CpuTime { share, period } => {
                self.cpu_time(claim.id, group, now, |series| series.judge(*share, *period))
            }
            What::Memory { most } => self.memory(group, *most),
            What::Ways {
                level,
                mask,
                shared_with,
            } => self.ways(group, *level, *mask, shared_with, scan),
            What::Invisible => Verdict::Holds,
        };
        let worse = matches!(
            judged,
            Verdict::Broken(Fault::NoProcess { .. } | Fault::Stranger { .. })
        );
        match scan.outside.get(&group) {
            Some(fault) if !worse => Verdict::Broken(fault.clone()),
            None if judged == Verdict::Holds => match self.blindness(claim, group, scan) {
                Some(why) => Verdict::Unseen(why),
                None => judged,
            },
            _ => judged,
        }
    }

    /// Why the witness may have missed something that breaks a claim.
    fn blindness(&self, claim: &Claim, group: usize, scan: &Scan) -> Option<String> {
        if let Some(why) = self.tasks.matches.wrong(group) {
            return Some(why.to_owned());
        }
        let about_tasks = matches!(claim.what, What::Alone { .. } | What::Ways { .. });
        let matched = !self.parties[group].matching.is_empty();
        scan.blind.clone().filter(|_| about_tasks || matched)
    }

    fn alone(&mut self, id: PromiseId, group: usize, cpus: &CpuSet, scan: &Scan) -> Verdict {
        let party = &self.parties[group];
        let threads = &scan.threads;
        if !threads.iter().any(|t| t.groups.contains(&group)) {
            let why = self.tasks.matches.wrong(group).map(str::to_owned);
            return match why.or_else(|| scan.blind.clone()) {
                Some(why) => Verdict::Unseen(why),
                None => Verdict::Broken(Fault::NoProcess {
                    group: party.name.clone(),
                }),
            };
        }
        let on_tasks = alone::stranger(cpus, group, threads)
            .or_else(|| alone::elsewhere(cpus, &party.cpus, group, threads));
        let fault = on_tasks
            .or_else(|| self.limited(group, cpus, scan))
            .or_else(|| {
                let (uses, span) = self.times.between()?;
                alone::stacked(cpus, group, threads, uses, span)
            })
            .or_else(|| self.used(id, group, cpus));
        match (fault, self.times.missing(cpus)) {
            (Some(fault), _) => Verdict::Broken(fault),
            (None, Some(cpu)) => {
                Verdict::Unseen(format!("CPU {cpu} has no line in /proc/stat (offline?)"))
            }
            (None, None) => Verdict::Holds,
        }
    }

    /// Whether a limit keeps the group from using its CPUs.
    fn limited(&self, group: usize, cpus: &CpuSet, scan: &Scan) -> Option<Fault> {
        let files = &*self.files;
        let dirs = self.dirs(group, scan);
        let (share, memory) = self.limits_of_the_plan(group);
        let whole = Share(Share::WHOLE.0.saturating_mul(cpus.len() as u64));
        let wanted = share.map_or(whole, |share| share.min(whole));
        let limited = limits::limited(wanted, &limits::quotas(files, &dirs));
        limited.or_else(|| limits::pressed(memory, &limits::memory_limits(files, &dirs)))
    }

    /// The limits that the plan has set a group itself.
    fn limits_of_the_plan(&self, group: usize) -> (Option<Share>, Option<Bytes>) {
        let name = &self.parties[group].name;
        let own = self.claims.iter().filter(|claim| claim.group == *name);
        let share = own.clone().filter_map(|claim| match claim.what {
            What::CpuTime { share, .. } => Some(share),
            _ => None,
        });
        let memory = own.filter_map(|claim| match claim.what {
            What::Memory { most } => Some(most),
            _ => None,
        });
        (share.min(), memory.min())
    }

    /// The cgroups of a group: its homes, and in other hierarchies those where its first processes
    /// are.
    fn dirs(&self, group: usize, scan: &Scan) -> Vec<Dir> {
        let mut all = self.home_dirs(group);
        let known: Vec<String> = all.iter().map(|dir| dir.mount.clone()).collect();
        let own = scan.threads.iter().filter(|t| t.groups.contains(&group));
        let mut pids: Vec<u32> = own.filter(|t| !t.exempt).map(|t| t.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        for pid in pids.into_iter().take(PROCESSES) {
            let dirs = self.homes.dirs_of(&*self.files, pid).into_iter();
            let others = dirs.filter(|(mount, _)| !known.contains(mount));
            all.extend(others.map(|(mount, dir)| Dir { mount, dir }));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    fn home_dirs(&self, group: usize) -> Vec<Dir> {
        let each = self.homes.of(group).flat_map(|(_, place)| {
            place.homes.iter().map(|home| Dir {
                mount: place.mount.clone(),
                dir: home.clone(),
            })
        });
        each.collect()
    }

    /// Whether others used the CPUs of a group. Time of the kernel's threads is read only once
    /// something is suspicious. So the first look that finds it says nothing yet. Without an
    /// account of the group's cgroups nothing can be said: children may have lived and died between
    /// two looks.
    fn used(&mut self, id: PromiseId, group: usize, cpus: &CpuSet) -> Option<Fault> {
        let files = &*self.files;
        let (uses, span) = self.times.between()?;
        let usage = self.homes.usage(files, group);
        let before = self.suspicions.remove(&id).unwrap_or_default();
        let suspicion = self.suspicions.entry(id).or_default();
        suspicion.group = usage;
        let own = usage?.since(before.group?);
        alone::used(cpus, uses, own, Nanos(0), span)?;
        let exempt = self.tasks.exempt_time(files, cpus, &self.ignore);
        let since = |before: &HashMap<u32, u64>| {
            let grown = |(tid, ran): (&u32, &u64)| match before.get(tid) {
                Some(before) => ran.saturating_sub(*before),
                None => *ran,
            };
            Nanos(exempt.iter().map(grown).sum())
        };
        let kernel = before.exempt.as_ref().map(since);
        suspicion.exempt = Some(exempt);
        alone::used(cpus, uses, own, kernel?, span)
    }

    fn cpu_time(
        &mut self,
        id: PromiseId,
        group: usize,
        now: Nanos,
        judge: impl FnOnce(&mut crate::drawn::Series) -> Option<Fault>,
    ) -> Verdict {
        let Some(used) = self.homes.usage(&*self.files, group) else {
            return Verdict::Unseen(format!(
                "no cgroup of group {} counts its CPU time",
                self.parties[group].name
            ));
        };
        let series = self.drawn.entry(id).or_default();
        series.add(Sample { at: now, used });
        broken_or_holds(judge(series))
    }

    fn memory(&self, group: usize, most: Bytes) -> Verdict {
        let charged = limits::charged(&*self.files, &self.home_dirs(group));
        if charged.is_empty() {
            return Verdict::Unseen(format!(
                "no cgroup of group {} counts its memory",
                self.parties[group].name
            ));
        }
        broken_or_holds(limits::at_most(most, &charged))
    }

    fn ways(
        &self,
        group: usize,
        level: u32,
        mask: Mask,
        shared_with: &[GroupId],
        scan: &Scan,
    ) -> Verdict {
        let files = &*self.files;
        let classes = match ways::classes(files, level) {
            Ok(Some(classes)) => classes,
            Ok(None) => {
                let why =
                    format!("resctrl is not mounted, or does not divide caches of level {level}");
                return Verdict::Unseen(why);
            }
            Err(e) => return Verdict::Unseen(e.to_string()),
        };
        let own = ways::classes_of(&classes, &scan.threads, &[group]);
        let groups = shared_with.iter().filter_map(|name| self.party(name));
        let shared = ways::classes_of(&classes, &scan.threads, &groups.collect::<Vec<_>>());
        let caches = ways::caches(files, &self.parties[group].cpus, level);
        let wanted = ways::Wanted {
            level,
            mask,
            caches: caches.as_ref(),
        };
        match ways::judged(&wanted, &classes, &own, &shared) {
            Some(fault) => Verdict::Broken(fault),
            None if own.is_empty() => Verdict::Unseen(format!(
                "group {} has no process, so its class is not known",
                self.parties[group].name
            )),
            None => Verdict::Holds,
        }
    }
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
