//! Colours where memory nodes have all of them: a hoard holds the free page frames of the groups'
//! colours, and pages of the groups' processes are moved into frames that it releases.
//!
//! - The hoard is filled before a process is settled. A program with fewer colours that keeps its
//!   neighbours is worse off than with all colours.
//! - Processes are found in the groups' cgroups every second, and right after a launch. Their
//!   memory is gone through again and again, chunk by chunk, between other duties of the run. Where
//!   nothing is to be moved, that takes at most one in [`REST`] parts of the time.
//! - Frames are released on a CPU of the group. What is left over there, its programs get first.
//! - Where the policy allows it, pages of other groups leave the reserved colours in the same way
//!   (`vacate`). No promise rests on that.

use std::collections::{BTreeMap, BTreeSet};

use quell_control::hoard::{Regrowth, Rules};
use quell_kernel::error::{Error, Result};
use quell_kernel::{paging, procfs, rt, vm};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::{Observation, Seen};
use quell_record::events::Event;
use quell_record::owners::FrameOwners;
use quell_record::standing::Cause;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};

use super::{Applied, Enforcer};
use crate::colours::hoard::{Report, What};
use crate::colours::settle::{self, Counted, Wanted};
use crate::host::{Host, finding};

mod held;
mod owners;
mod process;
mod vacate;

use held::{Held, ended};
use process::{PASS, Process, Wanting};

pub(crate) use held::begin;

const NEVER: Nanos = Nanos(u64::MAX);
/// Going through memory in which nothing is to be moved, and sieving again, take at most one in so
/// many parts of the time each.
const REST: u64 = 200;
/// How long to wait after something failed.
const AGAIN: Nanos = Nanos::secs(10);
/// The most memory that a settler holds to find frames.
const HOLD: Bytes = Bytes(256 << 20);
/// One in so many pages or bytes is few.
const FEW: u64 = 100;
/// Why a process has pages of other colours that are being moved.
const BEHIND: &str = "they are moved at the pace that the policy allows (hoard.pace)";

/// The hoard, and the groups whose pages are moved.
pub(crate) struct Colours {
    held: Option<Held>,
    groups: BTreeMap<String, Group>,
    /// Who had frames when the hoard was full, until that is reported.
    owners: Option<FrameOwners>,
    /// Before this time no pages leave reserved colours. Groups may have any number of processes,
    /// and going through their memory takes one in [`REST`] parts of the time.
    vacates: Nanos,
    /// When [`Colours::turn`] has something to do.
    pub next: Nanos,
}

impl Default for Colours {
    fn default() -> Self {
        Self {
            held: None,
            groups: BTreeMap::new(),
            owners: None,
            vacates: Nanos(0),
            next: NEVER,
        }
    }
}

/// A group whose pages are moved.
struct Group {
    wanting: Wanting,
    spill: bool,
    processes: BTreeMap<TaskId, Process>,
    /// Processes whose pages are not moved, or not yet.
    failed: BTreeSet<TaskId>,
    /// Whether the hoard was found empty.
    spilled: bool,
    /// Whether frames of its colours were lost to other programs.
    unheld: bool,
}

fn settles(set: &Setting) -> bool {
    matches!(set, Setting::Settle { .. })
}

impl Group {
    fn new(wanting: Wanting, spill: bool) -> Self {
        Self {
            wanting,
            spill,
            processes: BTreeMap::new(),
            failed: BTreeSet::new(),
            spilled: false,
            unheld: false,
        }
    }

    /// Reports what becomes of the promise after a turn of a process.
    fn judge(
        &mut self,
        host: &Host,
        name: &str,
        task: TaskId,
        counted: Option<Counted>,
        ended: Option<String>,
        seen: &mut Observation,
    ) {
        if let Some(why) = ended {
            // One that has ended is noticed by the next look at the group.
            let stat = procfs::stat(&host.files, task.pid).ok().flatten();
            let runs = stat.is_some_and(|stat| stat.id == task && !stat.leaving());
            if runs {
                self.unsettled(host, name, task, why, seen);
            }
            return;
        }
        let Some(process) = self.processes.get_mut(&task) else {
            return;
        };
        if process.note(counted) {
            let found = std::mem::take(&mut self.spilled);
            if self.failed.remove(&task) || found {
                self.restored(host, name, &Cause::Settled, seen);
            }
        } else if process.is_behind() && !self.wanting.out {
            self.unsettled(host, name, task, BEHIND.to_owned(), seen);
        }
    }

    /// Pages of a process cannot be moved, or not in time. Reported once.
    fn unsettled(
        &mut self,
        host: &Host,
        name: &str,
        task: TaskId,
        why: String,
        seen: &mut Observation,
    ) {
        if !self.failed.insert(task) {
            return;
        }
        let pid = task.pid;
        if self.wanting.out {
            let what = vacate::stays(name, pid, &why, self.failed.len());
            seen.extend(what.map(|what| finding(about(), what, Some(name))));
            return;
        }
        let because = Cause::Unsettled { pid, why };
        seen.extend(host.worth(name, &settles, Level::None, &because));
    }

    /// Reports that the promise holds again, if all of the group's processes are settled and its
    /// frames are held.
    fn restored(&self, host: &Host, name: &str, because: &Cause, seen: &mut Observation) {
        if self.failed.is_empty() && !self.spilled && !self.unheld && !self.wanting.out {
            seen.extend(host.worth(name, &settles, Level::Enforced, because));
        }
    }
}

impl Colours {
    /// Moves a chunk of the process whose turn it is, if it is time.
    pub fn turn(&mut self, host: &mut Host, seen: &mut Observation) {
        if rt::now() < self.next {
            return;
        }
        if let Err(e) = self.one(host, seen) {
            self.fail(host, &e, seen);
        }
        let sieving = self.held.as_ref().is_some_and(|held| held.sieving);
        self.next = match self.due().map(|(next, ..)| next) {
            Some(_) if sieving => rt::now().plus(PASS),
            Some(next) => next,
            None => NEVER,
        };
    }

    /// The process whose turn is next, and when. While a settler looks for frames that were
    /// released for a group, no other one takes any.
    fn due(&self) -> Option<(Nanos, TaskId, String)> {
        let groups = self.groups.iter();
        let own = groups.clone().filter(|(_, group)| !group.wanting.out);
        let mut own = own.flat_map(|(_, group)| group.processes.values());
        let busy = own.any(|process| process.settling.settler().is_some());
        let may = groups.filter(|(_, group)| !(busy && group.wanting.out));
        let due = may.flat_map(|(name, group)| {
            let processes = group.processes.iter();
            let (task, process) = processes.min_by_key(|(_, process)| process.next)?;
            let least = if group.wanting.out {
                self.vacates
            } else {
                Nanos(0)
            };
            Some((process.next.max(least), *task, name.clone()))
        });
        due.min()
    }

    fn one(&mut self, host: &mut Host, seen: &mut Observation) -> Result<()> {
        let Some((_, task, name)) = self.due().filter(|(next, ..)| *next <= rt::now()) else {
            return Ok(());
        };
        if self.held.as_ref().is_some_and(|held| held.sieving) {
            return Ok(());
        }
        let Some(group) = self.groups.get_mut(&name) else {
            return Ok(());
        };
        let Some(process) = group.processes.get_mut(&task) else {
            return Ok(());
        };
        let begun = rt::now();
        let came = process.turn(host, self.held.as_mut(), &group.wanting)?;
        // Without a settler, memory was gone through and nothing was moved.
        if group.wanting.out && process.settling.settler().is_none() {
            let spent = rt::now().since(begun);
            self.vacates = rt::now().plus(Nanos(spent.0.saturating_mul(REST)));
        }
        if let Some(counted) = came.counted {
            let kept = self.held.as_ref().map(|held| held.hoard.kept());
            let pages = process.pages(counted, kept.unwrap_or_default());
            if process.reported.replace(pages) != Some(pages) {
                seen.push(Seen::Event(Event::Coloured {
                    group: name.clone(),
                    pid: task.pid,
                    program: process.comm.clone(),
                    out: group.wanting.out,
                    pages,
                }));
            }
        }
        let ended = process.settling.done().ended.clone().or(came.failed);
        if ended.is_some() {
            process.next = rt::now().plus(PASS);
            process.settling.forget();
        }
        let program = process.comm.clone();
        group.judge(host, &name, task, came.counted, ended, seen);
        if came.empty {
            self.used_up(host, &name, program, seen);
        }
        self.heard(host, came.reports, seen);
        Ok(())
    }

    /// The hoard has no frames of a group's colours left.
    fn used_up(&mut self, host: &Host, name: &str, program: String, seen: &mut Observation) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        if let Some(held) = &mut self.held {
            held.freed = true;
        }
        if std::mem::replace(&mut group.spilled, true) {
            return;
        }
        let all = group.processes.values().filter_map(|p| p.reported);
        let pages = all.map(|pages| pages.wrong).sum();
        let because = Cause::Spilled { pages, program };
        seen.extend(host.worth(name, &settles, Level::None, &because));
        if !group.spill {
            let what = format!(
                "group {name}: no frames of its colours are held any more, and it is to fail then (coloured = \"fail\")"
            );
            seen.push(finding(about(), what, Some(name)));
            seen.push(Seen::Stop(0));
        }
    }

    /// Takes note of what the keeper reports.
    fn heard(&mut self, host: &Host, reports: Vec<Report>, seen: &mut Observation) {
        let (own, mut lost, mut grown) = (self.own(), None, false);
        for report in reports {
            let Some(held) = &mut self.held else { return };
            let shrunk = held.regrowth.is_shrunk();
            let all = Bytes(report.kept.0.saturating_add(own.0));
            match &report.what {
                What::Sieved { cpu, .. } => {
                    held.sieving = false;
                    held.next_sieve = rt::now().plus(Nanos(cpu.0.saturating_mul(REST)).max(AGAIN));
                    self.next = rt::now();
                    grown |= held.regrowth.sieved(all);
                }
                What::GaveUp { .. } => {
                    held.regrowth.gave_up();
                    lost = Some(report.words());
                }
                What::Moved { .. } if held.regrowth.moved(all) => {
                    lost = Some(report.words());
                }
                _ => {}
            }
            let again = shrunk && matches!(report.what, What::Sieved { .. });
            if report.is_loss() || again {
                seen.push(finding(about(), report.words(), None));
            }
        }
        if let Some(why) = lost {
            self.unheld(host, &why, seen);
        } else if grown {
            for (name, group) in &mut self.groups {
                group.unheld = false;
                group.restored(host, name, &Cause::Held, seen);
            }
        }
    }

    /// What programs have got of the hoard: no more than was moved.
    fn own(&self) -> Bytes {
        let groups = self.groups.values().filter(|group| !group.wanting.out);
        let processes = groups.flat_map(|group| group.processes.values());
        let pages = processes.filter_map(|process| process.reported);
        let pages: u64 = pages.map(|pages| pages.right.min(pages.moved)).sum();
        let page = self.held.as_ref().map(|held| held.rules.colouring.page);
        Bytes(pages.saturating_mul(page.map_or(0, |page| page.0)))
    }

    /// No pages are moved any more, and any program may get frames of the groups' colours.
    fn fail(&mut self, host: &Host, why: &Error, seen: &mut Observation) {
        self.unheld(host, &why.to_string(), seen);
        self.held = None;
        self.groups.clear();
    }

    /// Any program may get frames of the groups' colours from now on.
    fn unheld(&mut self, host: &Host, why: &str, seen: &mut Observation) {
        let because = Cause::Unheld {
            why: why.to_owned(),
        };
        let groups = self.groups.iter_mut();
        for (name, group) in groups.filter(|(_, group)| !group.wanting.out) {
            group.unheld = true;
            seen.extend(host.worth(name, &settles, Level::None, &because));
        }
    }

    /// Looks for processes of a group that are new, and forgets those that have ended.
    fn find(
        &mut self,
        host: &mut Host,
        name: &str,
        young: bool,
        seen: &mut Observation,
    ) -> Result<()> {
        let Some(group) = self.groups.get_mut(name) else {
            return Ok(());
        };
        let present = host.processes(name)?;
        let tasks: BTreeSet<TaskId> = present.iter().map(|stat| stat.id).collect();
        let before = group.processes.len();
        group.processes.retain(|task, _| tasks.contains(task));
        if let Some(held) = self
            .held
            .as_mut()
            .filter(|_| group.processes.len() < before)
        {
            held.freed = true;
        }
        let failures = group.failed.len();
        group.failed.retain(|task| tasks.contains(task));
        if failures > group.failed.len() {
            group.restored(host, name, &Cause::Settled, seen);
        }
        for stat in present {
            if let Some(process) = group.processes.get_mut(&stat.id) {
                // It may have executed another program.
                process.comm = stat.comm;
                continue;
            }
            if let Err(e) = settle::possible(&host.files, stat.id.pid) {
                group.judge(host, name, stat.id, None, Some(e.to_string()), seen);
                continue;
            }
            let born = (young && !group.wanting.out).then(rt::now);
            let process = Process::new(&stat.comm, stat.id, &group.wanting, born, host)?;
            group.processes.insert(stat.id, process);
            self.next = Nanos(0);
        }
        Ok(())
    }

    /// Fills the hoard.
    fn hold(&mut self, host: &mut Host, set: &Setting) -> Applied {
        let Setting::Hoard {
            colouring,
            colours,
            limit,
            reserve,
            least,
            ..
        } = set
        else {
            return Ok(None);
        };
        let memory = vm::memory(&host.files)?.unwrap_or_default();
        let rules = Rules {
            colouring: colouring.clone(),
            colours: colours.clone(),
            limit: limit.unwrap_or(memory.total),
            reserve: *reserve,
        };
        let (hoard, mut notes) = begin(host, &rules)?;
        let mut held = Held {
            hoard,
            rules,
            sieving: false,
            freed: false,
            next_sieve: rt::now().plus(AGAIN),
            regrowth: Regrowth::new(*reserve, Bytes(0)),
        };
        let is_it = |what: &What| matches!(what, What::Sieved { .. });
        let (reports, _) = held.until(&mut host.heart(), NEVER, &is_it)?;
        notes.extend(reports.last().map(Report::words));
        let kept = held.hoard.kept();
        held.regrowth = Regrowth::new(*reserve, kept);
        if kept < *least || kept < colouring.page {
            return Err(Error::refused_with(
                format!(
                    "{kept} of free memory have colours {}, and the groups that reserve them need {least}: with fewer colours and all neighbours they would be worse off than now",
                    colours.brief()
                ),
                "free memory (end programs, drop pages of files that are not used), or reserve more colours",
            ));
        }
        host.brakes.insert(held.hoard.pid());
        self.owners = match owners::count(host, &held) {
            Ok(owners) => Some(owners),
            Err(e) => {
                notes.push(owners::unknown(&e));
                None
            }
        };
        self.held = Some(held);
        Ok(Some(notes))
    }

    /// Begins to move a group's pages.
    fn settle(&mut self, host: &mut Host, name: &str, set: &Setting) -> Applied {
        let Setting::Settle {
            colouring,
            colours,
            spill,
            unheld,
            pace,
            longest,
            ..
        } = set
        else {
            return Ok(None);
        };
        let wanted = |reserve: Bytes| Wanted {
            colouring: colouring.clone(),
            colours: colours.clone(),
            longest: *longest,
            pace: *pace,
            hold: HOLD.min(Bytes(reserve.0 / 2)),
        };
        if let Some(reserve) = *unheld {
            for stat in host.processes(name)? {
                settle::possible(&host.files, stat.id.pid)?;
            }
            return self.follow(host, name, wanted(reserve), Some(*spill), *unheld);
        }
        let Some(held) = &self.held else {
            return Err(Error::refused(format!("group {name}: no frames are held")));
        };
        // Of each colour about as much is held.
        let part = u128::from(held.hoard.kept().0) * colours.len() as u128;
        let part = part / held.rules.colours.len().max(1) as u128;
        let kept = Bytes(u64::try_from(part).unwrap_or(u64::MAX));
        let mut needed = 0u64;
        for stat in host.processes(name)? {
            settle::possible(&host.files, stat.id.pid)?;
            let sizes = paging::sizes(&host.files, stat.id.pid)?;
            needed = needed.saturating_add(sizes.map_or(0, |sizes| sizes.anonymous.0));
        }
        if kept.0 < needed {
            return Err(Error::refused_with(
                format!(
                    "group {name}: its processes have {} of memory of their own, and {kept} of its colours are held: a part of it would keep its neighbours",
                    Bytes(needed)
                ),
                "reserve more colours, or free memory",
            ));
        }
        let wanted = wanted(held.rules.reserve);
        self.follow(host, name, wanted, Some(*spill), None)
    }

    /// Begins to move a group's pages, into colours that it reserves and that may `spill`, or out
    /// of those that others reserve (`None`). `unheld`: see [`Wanting`].
    fn follow(
        &mut self,
        host: &mut Host,
        name: &str,
        wanted: Wanted,
        spill: Option<bool>,
        unheld: Option<Bytes>,
    ) -> Applied {
        let wanting = Wanting {
            wanted,
            cpu: host.groups.one(name)?.cpus.first(),
            out: spill.is_none(),
            unheld,
        };
        let group = Group::new(wanting, spill.unwrap_or(true));
        self.groups.insert(name.to_owned(), group);
        self.find(host, name, false, &mut Observation::new())?;
        Ok(Some(Vec::new()))
    }

    /// Reads what the keeper reports, and has it sieve again where frames came free.
    fn tend(&mut self, host: &mut Host, seen: &mut Observation) -> Result<()> {
        let own = self.own();
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        host.brakes.insert(held.hoard.pid());
        let reports = held.hoard.reports()?;
        if let Some(how) = held.hoard.ended().filter(|_| reports.is_empty()) {
            return Err(ended(&how));
        }
        held.sieve_if_due(host, own)?;
        self.heard(host, reports, seen);
        Ok(())
    }
}

fn about() -> About {
    About::Mechanism {
        mechanism: Mechanism::Banks,
    }
}

impl Enforcer for Colours {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        match set {
            Setting::Hoard { .. } => self.hold(host, set),
            Setting::Settle { .. } => self.settle(host, group, set),
            Setting::Vacate { .. } => self.vacate(host, group, set),
            _ => Ok(None),
        }
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        seen.extend(self.owners.take().map(owners::seen));
        if let Err(e) = self.tend(host, seen) {
            self.fail(host, &e, seen);
        }
        let names: Vec<String> = self.groups.keys().cloned().collect();
        for name in names {
            // A process that is found here was born since the last look.
            if let Err(e) = self.find(host, &name, true, seen) {
                seen.push(finding(about(), format!("group {name}: {e}"), Some(&name)));
            }
        }
    }

    /// The program executes soon. Its pages are moved from the first turn on.
    fn launched(&mut self, host: &mut Host, group: &str, _: Option<&CpuSet>) -> Result<()> {
        self.find(host, group, true, &mut Observation::new())
    }

    fn launch(&mut self, launch: &mut super::Launch<'_>) -> Result<()> {
        // The kernel would put its pages together into large ones, of all colours.
        let group = self.groups.get(launch.group);
        launch.paging.small |= group.is_some_and(|group| !group.wanting.out);
        Ok(())
    }

    fn release(&mut self, _: &mut Host) {
        *self = Self::default();
    }
}
