//! From what was seen to the verdict on each claim.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use quell_kernel::topology;
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::partition::Mask;
use quell_types::units::{Bytes, Nanos, Rate, Share};

use crate::claim::{Claim, Counted, What};
use crate::colours::Sampled;
use crate::disks::Disks;
use crate::limits::{Dir, Reached};
use crate::memory::Waiting;
use crate::series::{Allowed, Series};
use crate::tasks::Scan;
use crate::traffic::Traffic;
use crate::{Witness, alone, disks, limits, memory, registers, ways, weights};
use quell_types::witness::{Fault, Verdict};

/// The most processes of a group whose mappings or cgroups are read in one look.
const PROCESSES: usize = 8;
/// Looks that have to find a process before its memory is judged: it may not have been treated yet.
const KNOWN: u32 = 2;
/// As many times as a look at mappings or at files took, the next one waits: it takes a hundredth
/// of a CPU at most.
const PAUSE: u64 = 100;
/// As much more as a dispatcher may leave a group beyond its windows.
const LATE: Share = Share::percent(5);

/// What is remembered of a promise between two looks.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    suspicion: Suspicion,
    /// What groups used, each in its place of the claim.
    used: Vec<Series>,
    /// The open counters, or why there are none.
    traffic: Option<Result<Traffic, String>>,
    sampled: Sampled,
    waiting: Waiting,
    /// The group's processes, and how many looks have found them.
    known: BTreeMap<u32, u32>,
    /// When what takes long is looked at again, and what was seen.
    seldom: Option<(Nanos, Seen)>,
    /// Which of the group's processes are read then.
    turn: Turn,
}

/// Which processes of a group are read in one look, where not all can be.
#[derive(Debug, Default)]
struct Turn(usize);

impl Turn {
    /// The processes whose turn it is.
    fn of<'p>(&mut self, pids: &'p [u32]) -> &'p [u32] {
        if self.0 >= pids.len() {
            self.0 = 0;
        }
        let end = pids.len().min(self.0.saturating_add(PROCESSES));
        &pids[self.0..end]
    }

    /// The next ones have their turn. Where something was found it is looked at once more.
    const fn go_on(&mut self, all_well: bool) {
        if all_well {
            self.0 = self.0.saturating_add(PROCESSES);
        }
    }
}

/// What was counted at the last look of the CPUs of a claim.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    /// CPU time of the group.
    group: Option<Nanos>,
    /// Nanoseconds of threads of the kernel and of Quell. `None` where nothing was suspicious.
    exempt: Option<HashMap<u32, u64>>,
    /// How often limits of memory were run into.
    reached: Reached,
    /// What went to and from disks that have a limit.
    disks: disks::Windows,
}

/// What a look found, or why it could not see.
type Seen = Result<Option<Fault>, String>;

fn verdict(seen: Seen) -> Verdict {
    match seen {
        Ok(None) => Verdict::Holds,
        Ok(Some(fault)) => Verdict::Broken(fault),
        Err(why) => Verdict::Unseen(why),
    }
}

impl Witness {
    /// Judges one claim.
    pub(crate) fn verdict(&mut self, claim: &Claim, scan: &Scan, now: Nanos) -> Verdict {
        if let What::Invisible(why) = claim.what {
            return Verdict::Unseen(why.to_owned());
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
        let mut kept = self.memories.remove(&claim.id).unwrap_or_default();
        let judged = self.judged(claim, group, scan, now, &mut kept);
        self.memories.insert(claim.id, kept);
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

    fn judged(
        &self,
        claim: &Claim,
        group: usize,
        scan: &Scan,
        now: Nanos,
        kept: &mut Memories,
    ) -> Verdict {
        let files = &*self.files;
        match &claim.what {
            What::Alone { cpus } => self.alone(group, cpus, scan, &mut kept.suspicion),
            What::CpuTime {
                share,
                period,
                tolerance,
            } => {
                let allowed = Allowed::cpu_time(*share, *period, *tolerance);
                verdict(self.cpu_time(group, now, allowed, &mut kept.used))
            }
            What::Weight { weight, levels } => {
                let homes = self.home_dirs(group);
                verdict(weights::judged(files, &homes, *weight, *levels))
            }
            What::Windows {
                cpus,
                frame,
                groups,
            } => self.windows(cpus, *frame, groups, scan, now, &mut kept.used),
            What::Memory { most } => self.memory(group, *most, scan, now, &mut kept.seldom),
            What::Traffic { most, counted } => {
                verdict(self.traffic(group, *most, counted, now, &mut kept.traffic))
            }
            What::Ways {
                level,
                mask,
                shared_with,
            } => self.ways(group, *level, *mask, shared_with, scan),
            What::WayRegisters {
                level,
                mask,
                shared_with,
            } => verdict(self.registers(group, *level, *mask, shared_with)),
            What::Colours {
                colouring,
                colours,
                at_birth,
            } => {
                let pids = known(group, scan, &mut kept.known);
                let pids = &pids[..pids.len().min(PROCESSES)];
                let sampled = &mut kept.sampled;
                let looked = sampled.look(files, pids, colouring, colours, *at_birth);
                verdict(looked.map(|()| sampled.judge()))
            }
            What::Kept { size } => {
                let homes = self.home_dirs(group);
                match memory::kept(files, &homes, *size) {
                    Ok(None) => verdict(seldom(&mut kept.seldom, now, || {
                        let pids = processes(group, scan);
                        Ok(memory::unkept(files, &homes, &pids, *size))
                    })),
                    seen => verdict(seen),
                }
            }
            What::Locked => {
                let pids = known(group, scan, &mut kept.known);
                let look = || Ok(memory::locked(files, &pids));
                verdict(seldom(&mut kept.seldom, now, look))
            }
            What::Cached { files: paths } => verdict(seldom(&mut kept.seldom, now, || {
                memory::cached(files, paths)
            })),
            What::Pages { large } => {
                let pids = known(group, scan, &mut kept.known);
                let turn = &mut kept.turn;
                verdict(seldom(&mut kept.seldom, now, || {
                    let fault = memory::paged(files, turn.of(&pids), *large);
                    turn.go_on(fault.is_none());
                    Ok(fault)
                }))
            }
            What::Stall { most } => match memory::waited(files, &self.home_dirs(group)) {
                None => Verdict::Unseen(self.uncounted(group, "how long it waits for memory")),
                Some(waited) => verdict(Ok(kept.waiting.judge(now, waited, *most))),
            },
            What::Disks(wanted) => verdict(disks::judged(files, &self.home_dirs(group), wanted)),
            What::Invisible(why) => Verdict::Unseen((*why).to_owned()),
        }
    }

    /// Why the witness may have missed something that breaks a claim.
    fn blindness(&self, claim: &Claim, group: usize, scan: &Scan) -> Option<String> {
        if let Some(why) = self.tasks.matches.wrong(group) {
            return Some(why.to_owned());
        }
        let matched = !self.parties[group].matching.is_empty();
        scan.blind
            .clone()
            .filter(|_| claim.is_about_tasks() || matched)
    }

    fn alone(
        &self,
        group: usize,
        cpus: &CpuSet,
        scan: &Scan,
        suspicion: &mut Suspicion,
    ) -> Verdict {
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
        // At each look: it counts from one to the next.
        let limited = self.limited(group, cpus, scan, suspicion);
        let on_tasks = alone::stranger(cpus, &[group], threads)
            .or_else(|| alone::elsewhere(cpus, &party.cpus, group, threads));
        let fault = on_tasks
            .or_else(|| {
                // One that is offline is told below.
                let all = self.times.missing(cpus).is_none();
                let homes = self.home_dirs(group);
                all.then(|| limits::narrowed(&*self.files, &homes, cpus))?
            })
            .or(limited)
            .or_else(|| {
                let (uses, span) = self.times.between()?;
                alone::stacked(cpus, group, threads, uses, span)
            })
            .or_else(|| self.used(group, cpus, suspicion));
        match (fault, self.times.missing(cpus)) {
            (Some(fault), _) => Verdict::Broken(fault),
            (None, Some(cpu)) => {
                Verdict::Unseen(format!("CPU {cpu} has no line in /proc/stat (offline?)"))
            }
            (None, None) => Verdict::Holds,
        }
    }

    /// Whether a limit keeps the group from using its CPUs.
    fn limited(
        &self,
        group: usize,
        cpus: &CpuSet,
        scan: &Scan,
        before: &mut Suspicion,
    ) -> Option<Fault> {
        let files = &*self.files;
        let dirs = self.dirs(group, scan);
        let (share, memory) = self.limits_of_the_plan(group);
        let disks: Vec<(&str, u64)> = self.disks_of_the_plan(group).collect();
        let span = self.times.between().map(|(_, span)| span);
        let slowed = disks::used_up(files, &dirs, &disks, span, &mut before.disks);
        let whole = Share(Share::WHOLE.0.saturating_mul(cpus.len() as u64));
        let wanted = share.map_or(whole, |share| share.min(whole));
        let limited = limits::limited(wanted, &limits::quotas(files, &dirs));
        let full = limits::memory_limits(files, &dirs);
        let pressed = limits::pressed(memory, &full, &mut before.reached);
        limited.or(pressed).or(slowed)
    }

    /// The limits of disks that the plan has set a group itself.
    fn disks_of_the_plan(&self, group: usize) -> impl Iterator<Item = (&'static str, u64)> {
        let name = &self.parties[group].name;
        let own = self.claims.iter().filter(move |claim| claim.group == *name);
        let limits = own.filter_map(|claim| match &claim.what {
            What::Disks(Disks::Most(limits)) => Some(limits.iter().copied()),
            _ => None,
        });
        limits.flatten()
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
        for pid in processes(group, scan).into_iter().take(PROCESSES) {
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
    fn used(&self, group: usize, cpus: &CpuSet, suspicion: &mut Suspicion) -> Option<Fault> {
        let files = &*self.files;
        let (uses, span) = self.times.between()?;
        let usage = self.homes.usage(files, group);
        let mut before = std::mem::take(suspicion);
        suspicion.reached = std::mem::take(&mut before.reached);
        suspicion.disks = std::mem::take(&mut before.disks);
        suspicion.group = usage;
        let own = usage?.since(before.group?);
        alone::used(cpus, uses, own, Nanos(0), span)?;
        let exempt = self.tasks.exempt_time(files, cpus, &self.ignore);
        let since = |before: &HashMap<u32, u64>| {
            let grown = |(tid, ran): (&u32, &u64)| match before.get(tid) {
                Some(before) => ran.saturating_sub(*before),
                None => *ran,
            };
            Nanos(exempt.iter().map(grown).fold(0, u64::saturating_add))
        };
        let kernel = before.exempt.as_ref().map(since);
        suspicion.exempt = Some(exempt);
        alone::used(cpus, uses, own, kernel?, span)
    }

    /// Why something of a group is not known.
    fn uncounted(&self, group: usize, what: &str) -> String {
        format!(
            "no cgroup of group {} counts {what}",
            self.parties[group].name
        )
    }

    fn cpu_time(&self, group: usize, now: Nanos, allowed: Allowed, kept: &mut Vec<Series>) -> Seen {
        let over = self.over(group, now, allowed, 0, kept)?;
        Ok(over.map(|over| Fault::Exceeded {
            drawn: Nanos(over.used),
            allowed: Nanos(over.allowed),
            span: over.span,
        }))
    }

    /// What a group used beyond what is allowed. Its account has a place among those of a claim.
    fn over(
        &self,
        group: usize,
        now: Nanos,
        allowed: Allowed,
        place: usize,
        kept: &mut Vec<Series>,
    ) -> Result<Option<crate::series::Over>, String> {
        let Some(used) = self.homes.usage(&*self.files, group) else {
            return Err(self.uncounted(group, "its CPU time"));
        };
        if kept.len() <= place {
            kept.resize_with(place + 1, Series::default);
        }
        let series = &mut kept[place];
        series.add(now, used.0);
        Ok(series.judge(allowed))
    }

    /// Whether groups that take turns use no more than their windows, and no other task may
    /// run there.
    fn windows(
        &self,
        cpus: &CpuSet,
        frame: Nanos,
        groups: &[(GroupId, Nanos)],
        scan: &Scan,
        now: Nanos,
        kept: &mut Vec<Series>,
    ) -> Verdict {
        let known = groups.iter().filter_map(|(name, _)| self.party(name));
        let known: Vec<usize> = known.collect();
        if let Some(fault) = alone::stranger(cpus, &known, &scan.threads) {
            return Verdict::Broken(fault);
        }
        let mut unseen = None;
        for (place, (name, time)) in groups.iter().enumerate() {
            let Some(group) = self.party(name) else {
                continue;
            };
            // A group may have further CPUs, which it uses in its windows only, too.
            let on = self.parties[group].cpus.len().max(cpus.len()) as u64;
            let share = Share::ratio(time.0.saturating_mul(on), frame.0.max(1));
            let allowed = Allowed::cpu_time(share, frame, LATE);
            match self.over(group, now, allowed, place, kept) {
                Ok(None) => {}
                Ok(Some(over)) => {
                    return Verdict::Broken(Fault::Overrun {
                        group: name.clone(),
                        drawn: Nanos(over.used),
                        allowed: Nanos(over.allowed),
                        span: over.span,
                    });
                }
                Err(why) => unseen = Some(why),
            }
        }
        unseen.map_or(Verdict::Holds, Verdict::Unseen)
    }

    fn traffic(
        &self,
        group: usize,
        most: Rate,
        counted: &[Counted],
        now: Nanos,
        kept: &mut Option<Result<Traffic, String>>,
    ) -> Seen {
        let homes = self.home_dirs(group);
        // A CPU that came online later has no counter.
        let cpus: CpuSet = counted.iter().map(|of| of.cpu).collect();
        if let Some(fault) = limits::widened(&*self.files, &homes, &cpus) {
            return Ok(Some(fault));
        }
        let open = || {
            let opened = homes.iter().map(|home| Traffic::open(&home.dir, counted));
            let none = Err(self.uncounted(group, "events"));
            opened.fold(none, |found, next| found.or(next))
        };
        let traffic = kept.get_or_insert_with(open).as_mut();
        traffic.map_err(|why| why.clone())?.judge(now, most)
    }

    fn registers(&self, group: usize, level: u32, mask: Mask, shared_with: &[GroupId]) -> Seen {
        let online = topology::online(&*self.files).map_err(|e| e.to_string())?;
        let fills = registers::fills(&*self.files, &online, level).map_err(|e| e.to_string())?;
        let own = &self.parties[group].cpus;
        if fills.is_empty() || own.is_empty() {
            return Err("the processor's registers cannot be read".to_owned());
        }
        let others = shared_with.iter().filter_map(|name| self.party(name));
        let shared = others.flat_map(|other| self.parties[other].cpus.iter());
        let shared: CpuSet = shared.collect();
        Ok(registers::judged(level, mask, own, &shared, &fills))
    }

    fn memory(
        &self,
        group: usize,
        most: Bytes,
        scan: &Scan,
        now: Nanos,
        kept: &mut Option<(Nanos, Seen)>,
    ) -> Verdict {
        let homes = self.home_dirs(group);
        let charged = limits::charged(&*self.files, &homes);
        if charged.is_empty() {
            return Verdict::Unseen(self.uncounted(group, "its memory"));
        }
        if let Some(fault) = limits::at_most(most, &charged, Bytes(0)) {
            return Verdict::Broken(fault);
        }
        verdict(seldom(kept, now, || {
            let elsewhere = memory::elsewhere(&*self.files, &homes, &processes(group, scan));
            Ok(limits::at_most(most, &charged, elsewhere))
        }))
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

/// Looks where the time for it has come, and says what was seen last otherwise. A fault is looked
/// for at the next look again: what was seen once is not seen twice.
fn seldom(kept: &mut Option<(Nanos, Seen)>, now: Nanos, look: impl FnOnce() -> Seen) -> Seen {
    let is_fault = |seen: &Seen| matches!(seen, Ok(Some(_)));
    let known = kept.as_ref().is_some_and(|(_, seen)| is_fault(seen));
    if let Some((_, seen)) = kept.as_ref().filter(|(next, _)| now < *next) {
        return seen.clone();
    }
    let begun = Instant::now();
    let seen = look();
    let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let next = match is_fault(&seen) && !known {
        true => now,
        false => now.plus(Nanos(took.saturating_mul(PAUSE))),
    };
    *kept = Some((next, seen.clone()));
    seen
}

/// The processes of a group.
fn processes(group: usize, scan: &Scan) -> Vec<u32> {
    let own = scan.threads.iter().filter(|t| t.groups.contains(&group));
    let mut pids: Vec<u32> = own.filter(|t| !t.exempt).map(|t| t.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The processes of a group that enough looks have found.
fn known(group: usize, scan: &Scan, known: &mut BTreeMap<u32, u32>) -> Vec<u32> {
    let looked = |pid| (pid, known.get(&pid).copied().unwrap_or(0).saturating_add(1));
    *known = processes(group, scan).into_iter().map(looked).collect();
    let old = known.iter().filter(|(_, looks)| **looks > KNOWN);
    old.map(|(pid, _)| *pid).collect()
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
