//! The simulated machine behind the engine. Steps become settings of its operating system, and
//! generators its tasks. Waiting lets its time pass.
//!
//! Every cell of an experiment begins with a fresh boot, and every hold ends with one. Then caches
//! are cold, memory is free, and page frames are drawn from the seed and the cell's number. So what
//! happens depends on the board, the seed, the cell and the calls made in it, and on nothing else.
//! Earlier cells and the number of machines do not matter.
//!
//! It refuses what it does not have: commands, tasks found rather than started, the time meter, and
//! mechanisms that its profile lacks.

mod generator;
pub(crate) mod inventory;
mod measure;
mod partition;
mod ways;
mod witness;

use std::collections::{BTreeMap, BTreeSet};

use quell_control::config::Regulation;
use quell_plan::inventory::Inventory;
use quell_plan::{Held, Plan, Setting, Step};
use quell_record::about::About;
use quell_record::backend::{
    Action, Backend, BackendError, HoldOptions, Observation, Probe, Program, Seen, SubjectId,
    SubjectSpec, TellerId, Undone,
};
use quell_record::demand::{self, Drawn, WorkingSet};
use quell_record::events::{Decision, Event};
use quell_record::standing::Cause;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::GroupId;
use quell_types::ids::PromiseId;
use quell_types::ids::REST;
use quell_types::mechanism::Level;
use quell_types::units::{LINE_BYTES, Nanos};

use crate::board::Board;
use crate::os::{Notice, Os, TaskId, Throttled};
use generator::{Generator, Key, Link, Place, Work};
use partition::Divided;
use quell_types::rng::SplitMix;

#[derive(Debug)]
struct Group {
    cpus: CpuSet,
    exclusive: bool,
    share: Divided,
}

impl Group {
    fn on(cpus: CpuSet) -> Self {
        Self {
            cpus,
            exclusive: false,
            share: Divided::default(),
        }
    }
}

/// A simulated machine as a backend of the engine.
#[derive(Debug)]
pub struct Sim {
    board: Board,
    seed: u64,
    machine: Inventory,
    os: Os,
    /// When it was booted last, on the clock that the engine sees.
    booted: Nanos,
    /// The number of the current cell, as the engine gave it.
    cell: u64,
    groups: BTreeMap<String, Group>,
    rest: Group,
    changes: u32,
    /// Regulated CPU and group → what was reported of its regulator.
    regulated: BTreeMap<(CpuId, GroupId), Throttled>,
    /// The groups whose units of work are reported.
    observed: BTreeSet<GroupId>,
    /// The plan that is held; `None` between holds.
    plan: Option<Plan>,
    /// What was recorded of cache ways.
    told: ways::Told,
    subjects: BTreeMap<SubjectId, Generator>,
    born: u32,
    /// The hand-over between the stages of a video call.
    link: Link,
    pending: Observation,
}

impl Sim {
    /// Boots `board`. Everything random comes from `seed`.
    ///
    /// # Errors
    /// When the board describes an impossible machine.
    pub fn new(board: Board, seed: u64) -> Result<Self, BackendError> {
        let machine = inventory::inventory(&board);
        let os = boot(&board, seed, 0)?;
        Ok(Self {
            rest: Group::on(machine.cpu_set()),
            board,
            seed,
            machine,
            os,
            booted: Nanos(0),
            cell: 0,
            groups: BTreeMap::new(),
            changes: 0,
            regulated: BTreeMap::new(),
            observed: BTreeSet::new(),
            plan: None,
            told: ways::Told::default(),
            subjects: BTreeMap::new(),
            born: 0,
            link: Link::default(),
            pending: Vec::new(),
        })
    }

    /// Boots again. The clock that the engine sees continues.
    fn reboot(&mut self) -> Result<(), BackendError> {
        self.booted = self.now();
        self.os = boot(&self.board, self.seed, self.cell)?;
        self.born = 0;
        self.link = Link::default();
        self.told = ways::Told::default();
        Ok(())
    }

    /// Where a task of this group may run: its own CPUs, except those that another group has
    /// exclusively.
    fn allowed(&self, group: &str) -> CpuSet {
        let own = &self.groups.get(group).unwrap_or(&self.rest).cpus;
        let others = self
            .groups
            .iter()
            .filter(|(name, g)| g.exclusive && *name != group);
        others.fold(own.clone(), |cpus, (_, g)| cpus.difference(&g.cpus))
    }

    /// A group that was gathered, or the rest.
    fn group(&mut self, name: &str) -> Result<&mut Group, BackendError> {
        let found = match name {
            REST => Some(&mut self.rest),
            _ => self.groups.get_mut(name),
        };
        found.ok_or_else(|| BackendError(format!("group {name} was not gathered before this step")))
    }

    fn exists(&self, cpus: &CpuSet) -> Result<(), BackendError> {
        let all = self.machine.cpu_set();
        if cpus.is_empty() || !cpus.is_subset(&all) {
            return Err(BackendError(format!(
                "CPUs '{cpus}': the simulated machine has {all}"
            )));
        }
        Ok(())
    }

    fn regulate(&mut self, group: &str, regulation: &Regulation) -> Result<(), BackendError> {
        self.countable(regulation)?;
        self.group(group)?;
        let class = self.class(group)?;
        self.os.regulate(class, regulation);
        for cpu in regulation.cpus.iter() {
            let regulated = (cpu, group.to_owned());
            self.regulated.insert(regulated, Throttled::default());
        }
        Ok(())
    }

    fn class(&mut self, group: &str) -> Result<u8, BackendError> {
        let class = self.os.class(group);
        class.map_err(|e| BackendError(e.to_string()))
    }

    fn birth(&mut self, spec: &SubjectSpec) -> Result<SubjectId, BackendError> {
        let Program::Generator(workload) = &spec.program else {
            return Err(BackendError(format!(
                "subject '{}' is a command, and no program of this machine can run on a simulated one; give it a generator (`run`), or use --on linux",
                spec.name
            )));
        };
        let allowed = self.allowed(&spec.group);
        let cpus = spec
            .cpus
            .as_ref()
            .map_or(allowed.clone(), |own| own.intersection(&allowed));
        let Some(first) = cpus.first() else {
            return Err(BackendError(format!(
                "subject '{}' is pinned to CPUs {} and its group may run on {allowed} only",
                spec.name,
                spec.cpus.clone().unwrap_or_default()
            )));
        };
        let place = Place {
            caches: self.machine.data_caches(first),
            clock: self.board.description.clock,
            cached: self.board.description.cached_latency(),
            latency: self.board.description.idle_latency(),
            booted: self.booted,
        };
        let work = Work::new(workload, &place)?;
        let refused = |why: &dyn std::fmt::Display| {
            BackendError(format!("subject '{}' cannot be started: {why}", spec.name))
        };
        let group = if self.groups.contains_key(&spec.group) {
            &spec.group
        } else {
            REST
        };
        let placement = self
            .placement(group, &work.placement)
            .map_err(|e| refused(&e))?;
        let space = self
            .os
            .allocate(work.memory.0, &placement)
            .map_err(|e| refused(&e))?;
        if space.spilled() > 0 {
            let because = Cause::Spilled {
                pages: space.spilled() as u64,
                program: spec.name.clone(),
            };
            let told = self.lost(group, because);
            self.pending.extend(told);
        }
        let class = self.os.class(group).map_err(|e| refused(&e))?;
        let program = (work.pattern(&space)?, space);
        let task = self
            .os
            .spawn(
                &cpus,
                work.priority,
                class,
                program,
                work.memory.0,
                work.writes,
            )
            .ok_or_else(|| refused(&format!("there is no CPU {cpus}")))?;
        self.lock(group, task, work.memory.0)
            .map_err(|e| refused(&e))?;
        self.born += 1;
        let id = SubjectId(self.born);
        let link = &mut self.link;
        let mut generator = Generator::new(id, task, &spec.group, &work, place.clock, link);
        if self.observed.contains(&spec.group) {
            generator.observe();
            let told = |said| Seen::Declared(spec.group.clone(), said);
            self.pending.extend(work.declared.map(told));
        }
        self.subjects.insert(id, generator);
        self.pending.push(Seen::Ready(id));
        Ok(id)
    }

    /// Reports that the promises resting on a group's colours are worth nothing now. Where no
    /// promise does, reports the cause as a finding.
    fn lost(&self, group: &str, because: Cause) -> Vec<Seen> {
        let colours = |set: &Setting| matches!(set, Setting::Colour { .. });
        let plan = self.plan.iter();
        let resting = plan.flat_map(|plan| plan.resting_on(group, &colours));
        let promise = |(id, _): (PromiseId, &Held)| Event::Promise {
            id,
            level: Level::None,
            because: because.clone(),
        };
        let mut told: Vec<Seen> = resting.map(promise).map(Seen::Event).collect();
        if told.is_empty() {
            let what = because.to_string();
            let event = Event::finding(About::Lost { because }, what, Some(group));
            told.push(Seen::Event(event));
        }
        told
    }

    fn task_of(&self, subject: SubjectId) -> Result<TaskId, BackendError> {
        let found = self.subjects.get(&subject);
        found
            .map(|generator| generator.task)
            .ok_or_else(|| BackendError(format!("there is no subject {}", subject.0)))
    }

    /// Reports what the regulators did since the last call.
    fn account(&mut self, seen: &mut Observation) {
        let booted = self.booted;
        let mut decided: Vec<(GroupId, CpuId, Vec<Decision>)> = Vec::new();
        for ((cpu, group), told) in &mut self.regulated {
            let core = usize::try_from(*cpu).unwrap_or(usize::MAX);
            let class = self.os.class(group).ok();
            let Some((now, decisions)) = class.and_then(|class| self.os.throttled(core, class))
            else {
                continue;
            };
            let before = std::mem::replace(told, now);
            seen.push(Seen::Event(Event::Throttle {
                cpu: *cpu,
                group: group.clone(),
                overflows: now.overflows - before.overflows,
                throttles: now.throttles - before.throttles,
                throttled_ns: now.throttled_ns - before.throttled_ns,
                lines: now.lines - before.lines,
                pooled: now
                    .pooled
                    .map(|all| all.less(before.pooled.unwrap_or_default())),
            }));
            decided.push((group.clone(), *cpu, decisions));
        }
        for (group, cpu, mut decisions) in decided {
            for decision in &mut decisions {
                decision.at = booted.plus(decision.at);
                decision.what = decision.what.on_clock(|at| booted.plus(at));
            }
            if !decisions.is_empty() {
                seen.push(Seen::Decisions(group, cpu, decisions, 0));
            }
        }
    }

    /// Reports the units of observed groups that ended since the last call.
    fn tell_units(&mut self, seen: &mut Observation) {
        for (id, subject) in &mut self.subjects {
            let mut units = subject.fresh(&mut self.os);
            for unit in &mut units {
                unit.ended = self.booted.plus(unit.ended);
            }
            if !units.is_empty() {
                let teller = TellerId(id.0);
                seen.push(Seen::Units(subject.group.clone(), teller, units, 0));
            }
        }
    }

    /// Wakes the stages of a call that have to look again.
    fn pass_news(&mut self) {
        while let Some(id) = self.link.next_news() {
            if let Some(subject) = self.subjects.get_mut(&id) {
                subject.news(&mut self.os);
            }
        }
    }

    fn noticed(&mut self, notice: Notice, seen: &mut Observation) {
        let os = &mut self.os;
        let (id, measured) = match notice {
            Notice::Alarm(key) => {
                let (key, bell) = Key::rang(key);
                let id = SubjectId(key.0);
                let subject = self.subjects.get_mut(&id);
                (id, subject.and_then(|s| s.alarm(os, key, bell)))
            }
            Notice::Runs(task) => {
                let Some((&id, subject)) = self.subjects.iter_mut().find(|(_, s)| s.task == task)
                else {
                    return;
                };
                (id, subject.runs(os, Key(id.0)))
            }
            Notice::Finished(task) => {
                match self.subjects.iter_mut().find(|(_, s)| s.task == task) {
                    Some((id, subject)) => subject.finished(os, Key(id.0), &mut self.link),
                    None => os.sleep(task),
                }
                self.pass_news();
                return;
            }
        };
        if let Some(measured) = measured {
            self.account(seen);
            seen.push(Seen::Result(id, measured));
        }
    }
}

fn boot(board: &Board, seed: u64, cell: u64) -> Result<Os, BackendError> {
    let seed = SplitMix::new(SplitMix::new(seed).bits() ^ cell).bits();
    Os::boot(board, seed).map_err(|e| {
        BackendError(format!(
            "there can be no machine {}: {e}",
            board.profile.name
        ))
    })
}

impl Backend for Sim {
    fn inventory(&mut self, depth: Probe) -> Result<Inventory, BackendError> {
        if depth == Probe::Deep && self.machine.measured.is_none() {
            let cpus = self.machine.cpu_set();
            let llc = self.machine.data_caches(cpus.first().unwrap_or(0)).llc;
            let measured = measure::rates(&self.board, &cpus, llc.0, self.seed)?;
            self.machine.measured = Some(measured);
        }
        Ok(self.machine.clone())
    }

    fn now(&self) -> Nanos {
        self.booted.plus(self.os.now())
    }

    fn begin(&mut self, cell: u64, _: u32) -> Result<(), BackendError> {
        self.cell = cell;
        self.reboot()
    }

    fn hold(&mut self, plan: &Plan, _: HoldOptions) -> Result<(), BackendError> {
        self.observed = plan.loops.observed.keys().cloned().collect();
        self.plan = Some(plan.clone());
        Ok(())
    }

    fn apply(&mut self, step: &Step) -> Result<Vec<String>, BackendError> {
        if !self.subjects.is_empty() {
            return Err(BackendError(
                "the simulated machine is set up before anything runs on it".to_owned(),
            ));
        }
        let name = step.group.as_deref().unwrap_or(REST);
        match &step.set {
            Setting::Gather { matching, .. } => {
                if !matching.is_empty() {
                    return Err(BackendError(format!(
                        "group {name}: there are no tasks to be found on a simulated machine, only generators that are started"
                    )));
                }
                let group = Group::on(self.machine.cpu_set());
                self.groups.insert(name.to_owned(), group);
            }
            Setting::Confine {
                cpus, exclusive, ..
            } => {
                self.exists(cpus)?;
                let group = self.group(name)?;
                group.cpus = cpus.clone();
                group.exclusive = *exclusive;
            }
            Setting::ConfineRest { cpus } => {
                self.exists(cpus)?;
                self.rest.cpus = cpus.clone();
            }
            // This machine has neither.
            Setting::MoveIrqs { .. } | Setting::WorkqueueMask { .. } => {}
            Setting::Regulate(regulation) => self.regulate(name, regulation)?,
            Setting::Windows(frame) => self.windows(frame)?,
            Setting::CpuMax { .. }
            | Setting::Ways { .. }
            | Setting::Colour { .. }
            | Setting::Lock { .. }
            | Setting::Mba { .. }
            | Setting::MbaRate { .. } => self.divide(name, step)?,
            // No plan for this machine has these steps: its inventory does not offer them.
            _ => {
                return Err(BackendError(format!(
                    "{} is not built for simulated machines",
                    step.mechanism
                )));
            }
        }
        self.changes += 1;
        Ok(Vec::new())
    }

    fn undo(&mut self) -> Result<Undone, BackendError> {
        self.reboot()?;
        self.groups.clear();
        self.rest = Group::on(self.machine.cpu_set());
        self.regulated.clear();
        self.observed.clear();
        self.plan = None;
        self.subjects.clear();
        self.pending.clear();
        Ok(Undone {
            restored: std::mem::take(&mut self.changes),
            left: Vec::new(),
        })
    }

    fn start(&mut self, subject: &SubjectSpec) -> Result<SubjectId, BackendError> {
        self.birth(subject)
    }

    fn wait(&mut self, until: Nanos, seen: &mut Observation) -> Result<Nanos, BackendError> {
        seen.append(&mut self.pending);
        let end = until.since(self.booted);
        while seen.is_empty() && self.os.now() < end {
            let Some(notice) = self.os.run(end) else {
                break;
            };
            self.noticed(notice, seen);
        }
        self.tell_units(seen);
        Ok(self.now())
    }

    fn act(&mut self, action: &Action) -> Result<(), BackendError> {
        let nobody = |id: &SubjectId| BackendError(format!("there is no subject {}", id.0));
        match action {
            Action::Go {
                subject,
                warmup,
                duration,
            } => {
                let generator = self
                    .subjects
                    .get_mut(subject)
                    .ok_or_else(|| nobody(subject))?;
                generator.go(&mut self.os, Key(subject.0), *warmup, *duration);
            }
            Action::Ways { group, level, mask } => {
                self.fill(group, *level, *mask, &CpuSet::new())?
            }
            Action::Memory(_) => {
                return Err(BackendError(
                    "the memory of a simulated machine cannot be steered".to_owned(),
                ));
            }
            Action::Budget {
                group,
                cpus,
                budget,
            } => {
                let free = |cpu: &CpuId| !self.regulated.contains_key(&(*cpu, group.clone()));
                if let Some(cpu) = cpus.iter().find(free) {
                    return Err(BackendError(format!(
                        "group {group} is not regulated on CPU {cpu}"
                    )));
                }
                let class = self.class(group)?;
                let apart = |cpu: &CpuId| self.os.regulates_directions(*cpu as usize, class);
                if let Some(cpu) = cpus.iter().find(apart) {
                    return Err(BackendError(format!(
                        "group {group} has a budget of reads and one of writes on CPU {cpu}: neither is moved by one for both"
                    )));
                }
                self.os.set_budget(class, cpus, *budget);
            }
            Action::Stop(subject) => {
                let generator = self.subjects.remove(subject);
                let generator = generator.ok_or_else(|| nobody(subject))?;
                self.os.end(generator.task);
                self.link.end(*subject);
                self.pass_news();
            }
        }
        Ok(())
    }

    fn drawn(&mut self, subject: SubjectId) -> Result<Option<Drawn>, BackendError> {
        let task = self.task_of(subject)?;
        let counts = self.os.counts(task);
        let read = counts.misses + counts.prefetches;
        Ok(Some(Drawn {
            read: read * LINE_BYTES,
            written: counts.writebacks * LINE_BYTES,
            work: demand::Work {
                cpu_ns: counts.active / 1_000,
                cycles: counts.active / self.board.description.clock.max(1),
                instructions: counts.instructions,
                memory: read + counts.writebacks,
                first_level: counts.accesses,
            },
        }))
    }

    fn drawn_by(&mut self, group: &str) -> Result<Option<u64>, BackendError> {
        let class = self.class(group)?;
        self.sample();
        Ok(Some(self.os.drawn_by(class)))
    }

    fn working_set(&mut self, subject: SubjectId) -> Result<Option<WorkingSet>, BackendError> {
        let task = self.task_of(subject)?;
        let (resident, cached) = self.os.memory_of(task);
        let core = self.os.core_of(task).and_then(|c| CpuId::try_from(c).ok());
        let llc = core.and_then(|cpu| self.machine.llc(cpu));
        Ok(Some(WorkingSet {
            resident_bytes: resident,
            touched_bytes: None,
            cached_bytes: Some(cached),
            cache_bytes: llc.map(|llc| llc.size.0),
            resolution_bytes: LINE_BYTES,
            how: "the simulated machine's page frames and the lines of them in its core's caches at the end: exact"
                .to_owned(),
        }))
    }

    fn shared_cache(&mut self, a: CpuId, b: CpuId) -> Result<Option<f64>, BackendError> {
        self.exists(&[a, b].into_iter().collect())?;
        let seen_by: BTreeSet<CpuId> = [a, b].into();
        let caches = &self.machine.caches;
        let last = caches.iter().map(|c| c.level).max();
        let shared = caches
            .iter()
            .any(|c| Some(c.level) == last && seen_by.iter().all(|cpu| c.cpus.contains(*cpu)));
        Ok(Some(if shared { 1.0 } else { 0.0 }))
    }
}
