//! Windows of a repeating frame: which cgroups the dispatcher freezes, how it is started, watched
//! and started again, and what the record gets of it ([`crate::dispatcher`]).

use std::sync::Arc;

use quell_control::config::Frame;
use quell_kernel::cgroup::{Controller, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::Files;
use quell_kernel::rt;
use quell_plan::{Promise, Setting};
use quell_record::about::About;
use quell_record::backend::{Observation, Seen, put_ahead};
use quell_record::events::Event;
use quell_record::standing::Cause;
use quell_types::journal::Stopped;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::OnLate;
use quell_types::units::Nanos;

use super::freezer::Freezer;
use super::{Applied, Enforcer, dispatching};
use crate::brake::Grants;
use crate::dispatcher::windows::{Common, Counts, Follower, Stats, WayMasks};
use crate::dispatcher::{self, Dispatcher, Duty, Gate};
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::{Host, finding};

/// The windows of the plan that is held.
#[derive(Default)]
pub(crate) struct Windows {
    held: Option<Held>,
    /// The ways that switch with the windows of the next step.
    pub masks: Arc<WayMasks>,
    /// The budgets that switch with the windows of the next step, in the order of its groups.
    pub grants: Vec<Option<Arc<Grants>>>,
}

struct Held {
    frame: Frame,
    /// The freezers of the frame's groups, in their order.
    freezers: Vec<Freezer>,
    /// One for each CPU of the frame. Empty after one has ended by itself, until others run.
    dispatchers: Vec<Dispatcher>,
    stats: Arc<Stats>,
    masks: Arc<WayMasks>,
    grants: Vec<Option<Arc<Grants>>>,
    /// Whether the run was asked to end because a window was late.
    stopped: bool,
    /// When it was last looked whether windows were late, and the counts then.
    looked: (Nanos, Counts),
    /// Whether they were.
    late: bool,
}

/// How often it is looked whether windows were late.
const LOOK: Nanos = Nanos::secs(1);

impl Enforcer for Windows {
    fn apply(&mut self, host: &mut Host, _: &str, set: &Setting) -> Applied {
        let Setting::Windows(frame) = set else {
            return Ok(None);
        };
        for group in frame.groups() {
            host.extend(group, &[Controller::Freezer, Controller::Pressure])?;
        }
        // A page that is not in memory would make the dispatcher late.
        let _ = rt::lock_memory();
        let mut held = Held {
            frame: frame.clone(),
            freezers: Vec::new(),
            dispatchers: Vec::new(),
            stats: Arc::new(Stats::new(frame.groups().len())),
            masks: Arc::clone(&self.masks),
            grants: self.grants.clone(),
            stopped: false,
            looked: (rt::now(), Counts::default()),
            late: false,
        };
        held.start(host)?;
        self.held = Some(held);
        Ok(Some(Vec::new()))
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let Some(held) = &mut self.held else {
            return;
        };
        let now = rt::now();
        let lost = held.dispatchers.iter().find_map(|d| d.lost(now));
        if let Some(why) = lost {
            held.end(host);
            let why = why.to_string();
            seen.extend(worth(host, Level::None, &Cause::Undispatched { why }));
        } else if held.dispatchers.is_empty() && held.start(host).is_ok() {
            seen.extend(worth(host, Level::Enforced, &Cause::Dispatched));
        }
        if now >= held.looked.0.plus(LOOK)
            && let Some((level, because)) = held.punctuality(now)
        {
            seen.extend(worth(host, level, &because));
        }
        let dispatchers = held.dispatchers.iter();
        host.brakes.extend(dispatchers.filter_map(Dispatcher::pid));
    }

    fn release(&mut self, host: &mut Host) {
        if let Some(mut held) = self.held.take() {
            held.end(host);
        }
        self.masks = Arc::default();
        self.grants.clear();
    }
}

impl Windows {
    /// Reports how exactly windows were kept so far, ahead of all else in `seen`.
    pub fn account(&mut self, host: &Host, seen: &mut Observation) {
        let Some(held) = &mut self.held else {
            return;
        };
        let kept = held.stats.kept(&held.frame);
        put_ahead(seen, Seen::Event(Event::Windows { kept }));
        if let Some((level, because)) = held.punctuality(rt::now()) {
            seen.extend(worth(host, level, &because));
        }
        let late = held.stats.counts().late;
        if late > 0 && held.frame.on_late == OnLate::Stop && !held.stopped {
            held.stopped = true;
            let mechanism = Mechanism::Windows;
            let what = "a window began more than a guard late: the run ends (windows.on-late)";
            seen.push(finding(
                About::Mechanism { mechanism },
                what.to_owned(),
                None,
            ));
            seen.push(Seen::Stop(0));
        }
    }

    /// Ends the dispatchers, which thaws all groups. The journal is left to its undoing.
    pub fn stop(&mut self) {
        if let Some(held) = &mut self.held {
            held.dismiss();
        }
    }
}

/// Reports what the promises of the windows are worth from now on: their level, `most` at most.
fn worth(host: &Host, most: Level, because: &Cause) -> Vec<Seen> {
    let plan = host.plan.iter();
    let all = plan.flat_map(|plan| plan.numbered());
    let windows = all.filter(|(_, held)| matches!(held.promise, Promise::Windows { .. }));
    let told = windows.map(|(id, held)| {
        Seen::Event(Event::Promise {
            id,
            level: held.level.min(most),
            because: because.clone(),
        })
    });
    told.collect()
}

/// What windows are worth after these switches, where that is news. `was`: some were late before.
fn changed(was: bool, new: Counts) -> Option<(Level, Cause)> {
    let Counts {
        switches,
        skipped,
        late,
    } = new;
    match (was, new.is_unpunctual()) {
        (false, true) => {
            let of = switches + skipped;
            Some((Level::None, Cause::LateWindows { late, skipped, of }))
        }
        (true, false) => Some((Level::Enforced, Cause::Punctual)),
        _ => None,
    }
}

impl Held {
    /// What the windows are worth, where that has changed since it was asked last: nothing while
    /// some begin late or not at all, as their groups have less than was promised.
    fn punctuality(&mut self, now: Nanos) -> Option<(Level, Cause)> {
        if self.dispatchers.is_empty() {
            return None;
        }
        let counts = self.stats.counts();
        let (_, before) = std::mem::replace(&mut self.looked, (now, counts));
        let new = counts.since(before);
        let was = std::mem::replace(&mut self.late, new.is_unpunctual());
        changed(was, new)
    }

    /// Starts a dispatcher for each CPU. That the groups are frozen from now on is recorded first.
    fn start(&mut self, host: &mut Host) -> Result<()> {
        let groups = self.frame.groups();
        let (Some(first), Some(any)) = (self.frame.cpus.first(), groups.first()) else {
            return Err(Error::refused("windows need a CPU and a group"));
        };
        let (mut gates, mut freezers) = (Vec::new(), Vec::new());
        for group in &groups {
            let group_cgroups = &host.groups.one(group)?.cgroups;
            let (gate, freezer) = gate(&host.files, group, group_cgroups)?;
            gates.push(gate);
            freezers.push(freezer);
        }
        let procs_files = dispatching::procs_files(host, any, &self.frame.cpus)?;
        let permit = dispatching::permit(host)?;
        let mut writer = host.writer()?;
        for freezer in &freezers {
            writer.stopping(Stopped::Group(freezer.path().to_owned()))?;
        }
        self.freezers = freezers;
        let common = Common::new(&self.frame, &self.stats);
        let mut begin = |cpu, duty: Box<dyn Duty>| {
            let name = format!("quell/w{cpu}");
            let (files, permit) = (procs_files.clone(), Arc::clone(&permit));
            let started = Dispatcher::start(&name, cpu, files, permit, duty);
            let started = started.map_err(|e| dispatching::no_dispatcher("windows", cpu, &e))?;
            host.brakes.extend(started.pid());
            self.dispatchers.push(started);
            Ok(())
        };
        let others = self.frame.cpus.iter().filter(|cpu| *cpu != first);
        let mut begun: Result<()> = Ok(());
        for cpu in others {
            let follower = Follower::new(common.clone());
            begun = begun.and_then(|()| begin(cpu, Box::new(follower)));
        }
        // The one that freezes comes last: then all others hold their CPUs for it.
        let leader = dispatcher::windows::Windows::new(common, gates, &self.masks, &self.grants);
        let begun = begun.and_then(|()| begin(first, Box::new(leader)));
        if begun.is_err() {
            self.end(host);
        }
        begun
    }

    /// Ends the dispatchers, all at the same time.
    fn dismiss(&mut self) {
        self.dispatchers.iter().for_each(Dispatcher::dismiss);
        self.dispatchers.clear();
        // One that was killed may have left a group to its brakes.
        self.grants.iter().flatten().for_each(|g| g.close());
    }

    /// Ends the dispatchers and lets all groups run.
    fn end(&mut self, host: &mut Host) {
        self.dismiss();
        if let Ok(mut writer) = host.writer() {
            for freezer in self.freezers.drain(..).rev() {
                // What fails stays in the journal, and is tried again at the end.
                let _ = freezer.thaw(&mut writer);
            }
        }
    }
}

/// The freezer of a group, and its open files.
fn gate(files: &dyn Files, group: &str, group_cgroups: &GroupCgroups) -> Result<(Gate, Freezer)> {
    let (_, freezer) = dispatching::freezable(files, group, group_cgroups)?;
    let mut places = group_cgroups.places.iter();
    let v2 = places.find(|p| p.hierarchy.version == Version::V2);
    let v2 = v2.map(CgroupDir::tasks_dir);
    let gate = Gate::open(files, freezer.path(), freezer.words(), v2.as_deref())?;
    Ok((gate, freezer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_skipped_windows_lose_the_promise_for_a_while() {
        let counts = |switches, skipped, late| Counts {
            switches,
            skipped,
            late,
        };
        let lost =
            |late, skipped, of| Some((Level::None, Cause::LateWindows { late, skipped, of }));
        assert_eq!(changed(false, counts(203, 0, 203)), lost(203, 0, 203));
        assert_eq!(changed(false, counts(9, 1, 0)), lost(0, 1, 10));
        assert_eq!(changed(true, counts(9, 1, 0)), None);
        assert_eq!(changed(false, counts(10, 0, 0)), None);
        let again = Some((Level::Enforced, Cause::Punctual));
        assert_eq!(changed(true, counts(10, 0, 0)), again);
    }
}
