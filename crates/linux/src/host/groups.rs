//! The groups of a plan that were gathered: their cgroups, and which tasks are in them.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::cgroup::Controller;
use quell_kernel::cpu_accounting::Ledger;
use quell_kernel::error::{Error, Result};
use quell_kernel::left_out::LeftOut;
use quell_kernel::procfs::{self, Stat};
use quell_kernel::root::Files;
use quell_kernel::tasks::{self, Matcher};
use quell_record::about::About;
use quell_record::backend::{Observation, Seen, put_ahead};
use quell_record::events::{Event, Spent};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Level;
use quell_types::task::{TaskId, TaskMatch};

use super::newborn::Newborn;
use super::{Host, finding};
use crate::group_cgroups::{CgroupDir, Gathered, GroupCgroups, Layout};
use crate::session::Session;

/// The controllers of the limit around all groups: one holds it, the other reports how long they
/// wait.
pub const BOUND: [Controller; 2] = [Controller::Memory, Controller::Pressure];

/// The most processes that are named over the whole run for one reason: whoever starts them without
/// end is not to fill the record.
const MOST_NAMED: usize = 100;

pub struct Group {
    pub cgroups: GroupCgroups,
    pub layout: Layout,
    pub matching: Vec<TaskMatch>,
    /// Cgroups named by `matching` that have been changed, or were tried to be.
    pub tried: BTreeSet<String>,
    pub cpus: CpuSet,
    /// The highest level of its limit. Lower than planned once something was found that the limit
    /// does not hold.
    pub limit_most: Level,
    /// Whether its tasks multiplied faster than they could be moved when they were last collected.
    pub multiplies: bool,
    /// Processes that are not moved, and were named.
    pub stay: BTreeSet<TaskId>,
    /// Sentences for a person that are to be reported.
    pub untold: Vec<String>,
    /// What its threads have spent. `None` once that could not be read.
    pub ledger: Option<Ledger>,
}

/// The cgroups with the limit around all groups and around programs of no group.
pub struct Bound {
    pub cgroups: GroupCgroups,
    /// Child of `cgroups` for programs that are in no group.
    pub loose: GroupCgroups,
}

/// The gathered groups by name, and what is around and outside them.
#[derive(Default)]
pub struct Groups {
    pub of: BTreeMap<String, Group>,
    pub bound: Option<Bound>,
    /// The CPUs that tasks of no group are confined to. `None` while they are not confined.
    pub rest: Option<CpuSet>,
    /// Whether the kernel was asked for reports of programs that begin.
    pub expecting: bool,
    /// These reports. `None` where it makes none.
    pub newborn: Option<Newborn>,
    /// Processes that are in no group and that were named.
    pub left_out: BTreeSet<TaskId>,
    /// The processes that tables mean by their numbers.
    pub pins: BTreeMap<u32, TaskId>,
    /// Those that have ended and were named.
    pub gone: BTreeSet<u32>,
}

impl Groups {
    pub fn one(&self, name: &str) -> Result<&Group> {
        self.of.get(name).ok_or_else(|| ungathered(name))
    }

    pub fn one_mut(&mut self, name: &str) -> Result<&mut Group> {
        self.of.get_mut(name).ok_or_else(|| ungathered(name))
    }
}

fn ungathered(name: &str) -> Error {
    Error::refused(format!("group {name} was not gathered before this step"))
}

/// Whether a group has processes that are moved into cgroups of ours: those that it starts or that
/// match by themselves. It may have cgroups that are changed in place as well.
pub fn moves(matching: &[TaskMatch]) -> bool {
    matching.is_empty() || matching.iter().any(|table| !table.in_place())
}

impl Host {
    /// Adds controllers to a gathered group. They are enabled for its cgroups, or it gets cgroups
    /// in further hierarchies. Controllers that this machine does not have are left out.
    pub fn extend(&mut self, name: &str, controllers: &[Controller]) -> Result<()> {
        let group = self.groups.one(name)?;
        let in_place = group.matching.iter().filter(|m| m.in_place());
        let in_place: Vec<TaskMatch> = in_place.cloned().collect();
        if moves(&group.matching) {
            let more = self.make_cgroups(name, controllers, group.layout)?;
            let places = &mut self.groups.one_mut(name)?.cgroups.places;
            for place in more.places {
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        if !in_place.is_empty() {
            let found = self.assigned()?.take(name);
            for cgroup in tasks::cgroups_of(&self.files, &in_place, &found)? {
                let (mut writer, cgroups, group) = self.of(name)?;
                group
                    .cgroups
                    .adopt(&mut writer, cgroups, &cgroup, controllers)?;
            }
            self.complete(name, controllers)?;
        }
        self.collect_first(name, None)
    }

    /// Makes cgroups for a group that is changed in place, in hierarchies that lack its own: to
    /// give it CPUs, to see its pressure and to freeze it. On a machine with both versions a unit
    /// has its cgroup in one hierarchy, and no folder in those of the controllers.
    pub fn complete(&mut self, name: &str, controllers: &[Controller]) -> Result<()> {
        let group_cgroups = &self.groups.one(name)?.cgroups;
        if group_cgroups.places.is_empty() {
            return Ok(());
        }
        let lacks = |c: &Controller| group_cgroups.dirs(&self.cgroups, *c).next().is_none();
        let needed = [Controller::Cpuset, Controller::Pressure].into_iter();
        let needed = needed.filter(|c| controllers.contains(c)).filter(lacks);
        let missing: Vec<Controller> = needed.collect();
        if missing.is_empty() {
            return Ok(());
        }
        let more = self.make_cgroups(name, &missing, Layout::default())?;
        self.groups
            .one_mut(name)?
            .cgroups
            .places
            .extend(more.places);
        Ok(())
    }

    /// Makes cgroups for a group, below the limit around all groups if there is one.
    pub fn make_cgroups(
        &mut self,
        name: &str,
        controllers: &[Controller],
        layout: Layout,
    ) -> Result<GroupCgroups> {
        let (mut writer, cgroups, groups) = self.changes()?;
        let above = groups.bound.as_ref().map(|b| &b.cgroups);
        GroupCgroups::create_as(&mut writer, cgroups, above, name, controllers, layout)
    }

    /// The group's one cgroup with the memory controller. `None` where no hierarchy has that.
    pub fn memory_place(&self, name: &str) -> Result<Option<&CgroupDir>> {
        let group_cgroups = &self.groups.one(name)?.cgroups;
        let places: Vec<&CgroupDir> = group_cgroups
            .dirs(&self.cgroups, Controller::Memory)
            .collect();
        match places.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            several => Err(Error::refused_with(
                format!(
                    "group {name}: it lives in {} cgroups, whose memory would add up",
                    several.len()
                ),
                "select it by one cgroup, or by its tasks",
            )),
        }
    }

    /// What decides between groups: the tables of all groups of the plan.
    pub fn matchers(&self) -> Result<Vec<Matcher>> {
        let gathered = self.groups.of.iter().map(|(name, g)| (name, &g.matching));
        let planned = self.plan.iter().flat_map(|plan| &plan.groups);
        let others = planned.filter(|g| !self.groups.of.contains_key(&g.name));
        let others = others.filter(|g| !g.matching.is_empty());
        gathered
            .chain(others.map(|g| (&g.name, &g.matching)))
            .map(|(name, matching)| {
                let matcher = Matcher::new(&self.files, name, matching)?;
                Ok(matcher.pinned(&self.groups.pins))
            })
            .collect()
    }

    /// Processes of Quell that no group gets, whatever it matches.
    pub fn never(&self) -> BTreeSet<u32> {
        let watchdog = self.session.as_ref().and_then(Session::watchdog_pid);
        watchdog.into_iter().chain(self.brakes.clone()).collect()
    }

    pub fn assigned(&self) -> Result<tasks::Assigned> {
        tasks::assign(
            &self.files,
            &self.matchers()?,
            &self.never(),
            &mut self.heart(),
        )
    }

    /// Moves the tasks of a group that are still outside into its cgroups: those that were `found`,
    /// and then until a search finds none outside.
    pub fn collect(&mut self, name: &str, mut found: Option<Vec<Stat>>) -> Result<()> {
        let group_cgroups = &self.groups.one(name)?.cgroups;
        if !group_cgroups.places.iter().any(CgroupDir::collects) {
            return Ok(());
        }
        let (matchers, never, mut alive) = (self.matchers()?, self.never(), self.heart());
        let mut find = |files: &dyn Files| match found.take() {
            Some(found) => Ok(found),
            None => Ok(tasks::assign(files, &matchers, &never, &mut alive)?.take(name)),
        };
        let (mut writer, _, group) = self.of(name)?;
        let Gathered { whole, stay } = group.cgroups.gather(&mut writer, &mut find)?;
        if !std::mem::replace(&mut group.multiplies, !whole) && !whole {
            group.untold.push(format!(
                "group {name}: its tasks multiply faster than they can be moved; they are moved as they are found"
            ));
        }
        let meant = |task: &TaskId| {
            let mut tables = group.matching.iter();
            tables.any(|table| table.pid == Some(task.pid))
        };
        for one in stay {
            let named = group.stay.len() >= MOST_NAMED && !meant(&one.task);
            if !named && group.stay.insert(one.task) {
                let what = format!("group {name}: {one}; {}", one.remedy());
                group.untold.push(what);
            }
        }
        Ok(())
    }

    /// Collects when a step is applied: a process that the policy means by its number has to come.
    pub fn collect_first(&mut self, name: &str, found: Option<Vec<Stat>>) -> Result<()> {
        self.collect(name, found)?;
        let group = self.groups.one(name)?;
        let meant = |pid: u32| group.matching.iter().any(|table| table.pid == Some(pid));
        match group.stay.iter().find(|task| meant(task.pid)) {
            None => Ok(()),
            Some(_) => Err(Error::refused(group.untold.join("; "))),
        }
    }

    /// Names processes that are in no group although they may be meant, once each, and those that
    /// are gone although a policy names their number.
    pub fn report_processes(&mut self, left_out: &[LeftOut], seen: &mut Observation) {
        let groups = &mut self.groups;
        for one in left_out {
            if groups.left_out.len() < MOST_NAMED && groups.left_out.insert(one.task) {
                seen.push(finding(About::Gather, one.to_string(), None));
            }
        }
        for (pid, task) in &groups.pins {
            if !procfs::alive(&self.files, *task) && groups.gone.insert(*pid) {
                let what =
                    format!("process {pid} has ended; a later one of that number is another");
                seen.push(finding(About::Gather, what, None));
            }
        }
    }

    /// Remembers which processes are meant by the numbers in a group's tables.
    pub fn pin(&mut self, matching: &[TaskMatch]) -> Result<()> {
        for pid in matching.iter().filter_map(|table| table.pid) {
            if let Some(stat) = procfs::stat(&self.files, pid)? {
                self.groups.pins.entry(pid).or_insert(stat.id);
            }
        }
        Ok(())
    }

    /// Reports what the groups' threads have spent since the last time.
    pub fn report_spent(&mut self, seen: &mut Observation) {
        for (name, group) in &mut self.groups.of {
            let Some(ledger) = group.ledger.as_mut() else {
                continue;
            };
            let dirs = group.cgroups.tasks_dirs();
            match ledger.sample(&self.files, &dirs) {
                // The group has no thread.
                Ok(Some(spent)) if spent == Spent::default() => {}
                Ok(Some(spent)) => {
                    let group = name.clone();
                    put_ahead(seen, Seen::Event(Event::Spent { group, spent }));
                }
                Ok(None) => group.ledger = None,
                Err(e) => {
                    group.ledger = None;
                    let what = format!("what group {name} spends is not told: {e}");
                    seen.push(finding(About::Record, what, Some(name)));
                }
            }
        }
    }
}
