//! The coarse machine as a backend of the engine. It runs recorded programs, and nothing else. One
//! mechanism is there: who runs with whom.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_control::config::Scheduling;
use quell_control::schedule::named::{Known, named};
use quell_control::schedule::{Cores, Member, Scheduler, Seat, TooMany};
use quell_plan::inventory::{Availability, DemandSource, Inventory, Lack};
use quell_plan::{Plan, Setting, Step};
use quell_policy::workload::{IPC, IPC_ALONE, PROGRESS, TURNAROUND_S, Workload};
use quell_record::backend::{
    Action, Backend, BackendError, HoldOptions, Observation, Probe, Program, Seen, SubjectId,
    SubjectSpec, Undone,
};
use quell_record::measurement::Measurement;
use quell_types::cpuset::CpuId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::SchedulerPolicy;
use quell_types::rng::{Rng, SplitMix};
use quell_types::units::{LINE_BYTES, Nanos};

use super::World;
use super::chip::{Chip, Fit};
use super::process::{Done, Process, Run, Told};
use crate::backend::inventory;
use crate::board::Board;
use crate::recorded;

/// For how long a decision holds where everything that there is runs.
const UNCONTENDED: f64 = 200_000.0;

#[derive(Debug)]
struct Subject {
    name: String,
    program: Arc<recorded::Program>,
    alone: Nanos,
    /// The part by which what policies know of it may be off.
    off: f64,
    /// The CPU it is pinned to.
    cpu: Option<CpuId>,
    /// Its number among the processes, once it runs.
    process: Option<usize>,
    reported: bool,
}

/// The coarse machine.
pub struct Coarse {
    board: Board,
    chip: Chip,
    machine: Inventory,
    seed: u64,
    round: u32,
    scheduled: Option<Scheduling>,
    subjects: BTreeMap<SubjectId, Subject>,
    /// Those that were sent off since time went on last.
    going: Vec<SubjectId>,
    world: Option<World>,
    /// When the present world began, on the clock that the engine sees.
    booted: Nanos,
    born: u32,
    pending: Observation,
    changes: u32,
}

/// Every process on the core that it is pinned to, two at most on each.
struct Pinned(Vec<usize>);

impl Scheduler for Pinned {
    fn name(&self) -> &'static str {
        "pinned"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let mut seats: Vec<Seat> = Vec::new();
        for (member, core) in self.0.iter().enumerate().take(members.len()) {
            let thread = seats.iter().filter(|seat| seat.core == *core).count();
            if thread == cores.threads {
                return Err(TooMany {
                    there: thread + 1,
                    most: thread,
                });
            }
            seats.push(Seat {
                core: *core,
                thread,
                member,
            });
        }
        Ok(seats)
    }
}

fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

fn refused(why: impl std::fmt::Display) -> BackendError {
    BackendError(why.to_string())
}

impl Coarse {
    /// The name of the profile that `--on coarse` means.
    pub const USUAL: &'static str = "xeon-e5645";

    /// The processor of `board`. Everything random comes from `seed`.
    ///
    /// # Errors
    /// What the board lacks.
    pub fn new(board: Board, seed: u64) -> Result<Self, BackendError> {
        let chip = Chip::of(&board, Fit::FITTED).map_err(refused)?;
        Ok(Self {
            machine: inventory_of(&board),
            board,
            chip,
            seed,
            round: 0,
            scheduled: None,
            subjects: BTreeMap::new(),
            going: Vec::new(),
            world: None,
            booted: Nanos(0),
            born: 0,
            pending: Vec::new(),
            changes: 0,
        })
    }

    /// A number for what is drawn, the same in all configurations of a round.
    fn draw(&self, of: &str) -> u64 {
        let seed = SplitMix::new(self.seed).bits() ^ u64::from(self.round);
        let mix = |drawn: u64, more: u64| SplitMix::new(drawn ^ more).bits();
        of.bytes().map(u64::from).fold(mix(seed, 0), mix)
    }

    /// The world, with a policy for the processes that begin.
    fn found(&self) -> World {
        // The kernel's policies decide for each slice.
        let slice = self.board.costs.slice;
        let (policy, quantum) = match &self.scheduled {
            None => (SchedulerPolicy::Linux, slice),
            Some(by) if by.policy.is_kernels() => (by.policy, slice),
            Some(by) => (by.policy, by.quantum),
        };
        let known = Known {
            contention: self.chip.contention(),
            quantum,
            bound: self.scheduled.as_ref().map_or(0, |by| by.bound),
            seed: self.draw("policy"),
        };
        let policy: Box<dyn Scheduler + Send> = match self.pinned() {
            Some(pinned) => Box::new(pinned),
            None => named(policy, known),
        };
        let fits = self.going.len() <= self.chip.cores * self.chip.threads;
        let quantum = if fits { UNCONTENDED } else { micros(quantum) };
        World::new(self.chip.clone(), policy, quantum, true)
    }

    /// Where those that begin are pinned, in their order; `None` where one is not.
    fn pinned(&self) -> Option<Pinned> {
        let cores = u32::try_from(self.chip.cores).ok()?;
        // Linux numbers the first threads of all cores first.
        let seat = |cpu: CpuId| (cpu % cores) as usize;
        let all = self
            .going
            .iter()
            .map(|id| self.subjects.get(id)?.cpu.map(seat));
        Some(Pinned(all.collect::<Option<_>>()?))
    }

    /// Begins what was sent off.
    fn depart(&mut self) {
        if self.going.is_empty() {
            return;
        }
        let order = self.draw("order");
        Rng::new(order).shuffle(&mut self.going);
        let mut world = self.world.take().unwrap_or_else(|| self.found());
        for id in std::mem::take(&mut self.going) {
            let Some(subject) = self.subjects.get(&id) else {
                continue;
            };
            let offset = self.draw(&subject.name) as f64 / u64::MAX as f64;
            let (alone, now) = (micros(subject.alone), world.now());
            let program = Arc::clone(&subject.program);
            let mut process = Process::new(program, &self.chip, alone, offset, now);
            let off = |of: &str| {
                let drawn = self.draw(&format!("{} {of}", subject.name)) as f64 / u64::MAX as f64;
                1.0 + subject.off * (2.0 * drawn - 1.0)
            };
            process.told = Told {
                memory: off("memory"),
                ipc: off("ipc"),
                first_level: off("first level"),
            };
            let number = world.processes.len();
            world.processes.push(process);
            if let Some(subject) = self.subjects.get_mut(&id) {
                subject.process = Some(number);
            }
        }
        self.world = Some(world);
    }

    /// Reports first runs that are over.
    fn report(&mut self, seen: &mut Observation) {
        let Some(world) = &self.world else {
            return;
        };
        for (id, subject) in self
            .subjects
            .iter_mut()
            .filter(|(_, subject)| !subject.reported)
        {
            let process = subject
                .process
                .and_then(|number| world.processes.get(number));
            let over = process.and_then(|process| Some((process, process.first?)));
            if let Some((process, run)) = over {
                subject.reported = true;
                seen.push(Seen::Result(*id, measured(&run, process, &self.chip)));
            }
        }
    }
}

/// A first run as a generator reports it. Of a program that never waited, rates come quantum by
/// quantum.
fn measured(run: &Run, process: &Process, chip: &Chip) -> Measurement {
    let done = run.done;
    let whole = [done];
    let (windows, length) = match process.course.as_deref() {
        Some(course) if !course.is_empty() => (course, UNCONTENDED),
        _ => (whole.as_slice(), run.took),
    };
    let rates = |of: fn(&Done) -> f64, per: f64| -> Vec<f64> {
        windows
            .iter()
            .map(|done| of(done) / (done.on_cpu * per))
            .collect()
    };
    let metrics = [
        (IPC, rates(|done| done.instructions, chip.mhz)),
        (PROGRESS, vec![run.alone / run.took]),
        (TURNAROUND_S, vec![run.took / 1e6]),
        ("waited", vec![1.0 - done.on_cpu / run.took]),
        (IPC_ALONE, vec![process.ipc_alone()]),
        ("memory_per_us", rates(|done| done.memory, 1.0)),
        ("first_level_per_us", rates(|done| done.first_level, 1.0)),
    ];
    let whole = (run.took * 1e3) as u64;
    Measurement {
        metrics: metrics
            .map(|(name, values)| (name.to_owned(), values))
            .into(),
        window_ns: (length * 1e3) as u64,
        bytes: (done.first_level * LINE_BYTES as f64) as u64,
        memory_bytes: Some((done.memory * LINE_BYTES as f64) as u64),
        duration_ns: whole,
        ..Measurement::default()
    }
}

/// What the machine is: the simulated one's inventory, with one mechanism.
#[must_use]
pub fn inventory_of(board: &Board) -> Inventory {
    let mut machine = inventory::inventory(board);
    machine.means.demand = DemandSource::Counted;
    for (mechanism, available) in &mut machine.mechanisms {
        *available = match mechanism {
            Mechanism::Placement => Availability::Yes {
                best: Level::Estimated,
                how: "a policy decides each quantum which processes run, and which share a core"
                    .to_owned(),
            },
            _ => Availability::No {
                why: "the coarse machine has no such mechanism; use --on sim".to_owned(),
                lack: Lack::Machine,
                remedy: None,
            },
        };
    }
    machine
}

impl Backend for Coarse {
    fn inventory(&mut self, _: Probe) -> Result<Inventory, BackendError> {
        Ok(self.machine.clone())
    }

    fn now(&self) -> Nanos {
        let since = self.world.as_ref().map_or(0.0, World::now);
        self.booted.plus(Nanos((since * 1e3).round() as u64))
    }

    fn begin(&mut self, _: u64, round: u32) -> Result<(), BackendError> {
        self.round = round;
        Ok(())
    }

    fn hold(&mut self, _: &Plan, _: HoldOptions) -> Result<(), BackendError> {
        Ok(())
    }

    fn apply(&mut self, step: &Step) -> Result<Vec<String>, BackendError> {
        match &step.set {
            Setting::Gather { .. } => {}
            Setting::Schedule(by) => self.scheduled = Some(by.clone()),
            _ => {
                let why = format!("the coarse machine has no {}; use --on sim", step.mechanism);
                return Err(refused(why));
            }
        }
        self.changes += 1;
        Ok(Vec::new())
    }

    fn undo(&mut self) -> Result<Undone, BackendError> {
        self.booted = self.now();
        self.world = None;
        self.scheduled = None;
        self.subjects.clear();
        self.going.clear();
        self.pending.clear();
        Ok(Undone {
            restored: std::mem::take(&mut self.changes),
            left: Vec::new(),
        })
    }

    fn start(&mut self, subject: &SubjectSpec) -> Result<SubjectId, BackendError> {
        let name = &subject.name;
        let Program::Generator(Workload::Recorded {
            program,
            alone,
            cpi,
            overlap,
            off,
        }) = &subject.program
        else {
            return Err(refused(format!(
                "subject '{name}': the coarse machine runs recorded programs only (run = {{ kind = \"recorded\", program = … }}); use --on sim"
            )));
        };
        let cpu = match &subject.cpus {
            None => None,
            Some(cpus) if cpus.len() == 1 && self.scheduled.is_none() => cpus.first(),
            Some(cpus) => {
                return Err(refused(format!(
                    "subject '{name}' is pinned to CPUs {cpus}: on the coarse machine to one at most, and not where [scheduler] decides"
                )));
            }
        };
        let bounds = [
            ("cpi", cpi, 0.1),
            ("overlap", overlap, 0.1),
            ("off", off, 0.0),
        ];
        let wrong = bounds
            .into_iter()
            .find(|(_, value, least)| !(*least..=10.0).contains(*value));
        if let Some((key, value, least)) = wrong {
            let why =
                format!("subject '{name}': `{key}` = {value}: from {least} to 10 is possible");
            return Err(refused(why));
        }
        let mut known = recorded::built_in().iter().chain(recorded::synthetic());
        let Some((_, found)) = known.find(|(name, _)| *name == program) else {
            let known: Vec<&str> = recorded::built_in().keys().map(String::as_str).collect();
            return Err(refused(format!(
                "subject '{name}': there is no recorded program '{program}'; there are {}",
                known.join(", ")
            )));
        };
        self.born += 1;
        let id = SubjectId(self.born);
        self.subjects.insert(
            id,
            Subject {
                name: name.clone(),
                program: Arc::new(found.scaled(*cpi, *overlap)),
                off: *off,
                alone: *alone,
                cpu,
                process: None,
                reported: false,
            },
        );
        self.pending.push(Seen::Ready(id));
        Ok(id)
    }

    fn wait(&mut self, until: Nanos, seen: &mut Observation) -> Result<Nanos, BackendError> {
        seen.append(&mut self.pending);
        self.depart();
        let end = micros(until.since(self.booted));
        while seen.is_empty() {
            let Some(world) = self.world.as_mut().filter(|world| world.now() < end) else {
                break;
            };
            world.step(end).map_err(refused)?;
            self.report(seen);
        }
        Ok(self.now())
    }

    fn act(&mut self, action: &Action) -> Result<(), BackendError> {
        match action {
            Action::Go { subject, .. } => self.going.push(*subject),
            // All end together, at the end of the cell.
            Action::Stop(subject) => {
                self.subjects.remove(subject);
            }
            _ => return Err(refused("the coarse machine is not steered; use --on sim")),
        }
        Ok(())
    }

    fn shared_cache(&mut self, _: CpuId, _: CpuId) -> Result<Option<f64>, BackendError> {
        Ok(None)
    }
}
