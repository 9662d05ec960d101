//! A scripted machine for the tests: subjects behave as scripted, time jumps to the next event, and
//! faults come on demand. It refuses what a real backend refuses: actions on subjects that do not
//! exist, or a start before a generator is ready.

use std::collections::BTreeMap;
use std::ops::Range;

use quell_control::deadline::Unit;
use quell_control::pressure::Sample;
use quell_plan::inventory::{
    Availability, Cache, CacheKind, Cpu, CpusetKind, DemandSource, Identity, Inventory, Means,
    Measured, MemoryMeans, MeterKind, Node,
};
use quell_plan::{Loops, Plan, Pressured, Setting, Step};
use quell_record::backend::{
    Action, Backend, BackendError, HoldOptions, Observation, Own, Probe, Program, Seen, SubjectId,
    SubjectSpec, TellerId, Undone,
};
use quell_record::demand::Drawn;
use quell_record::events::{CpuTimes, Declared, Event};
use quell_record::measurement::Measurement;
use quell_record::standing::Standing;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::{PromiseId, StepId};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::Partitions;
use quell_types::units::{Bytes, Nanos, Rate};
use quell_types::witness::{Fault, Verdict};

/// What a generator reports, as a function of the scene.
pub type Behaviour = Box<dyn Fn(&Scene<'_>) -> Measurement + Send>;

/// What a generator's report may depend on.
pub struct Scene<'a> {
    /// The steps that are applied.
    pub steps: &'a [Step],
    /// The names of all other running subjects.
    pub beside: Vec<&'a str>,
    /// How many cells have begun so far.
    pub cell: u32,
    /// The number that the engine gave this cell.
    pub number: u64,
    /// The length of the measured span.
    pub duration: Nanos,
}

struct CommandScript {
    takes: Nanos,
    status: i32,
    lines: Vec<String>,
}

struct Running {
    spec: SubjectSpec,
    ready: bool,
}

/// The scripted machine: its script, its state and a log.
#[derive(Default)]
pub struct Fake {
    /// Everything done to the machine, in order.
    pub log: Vec<String>,
    /// Whether all promises held, each time that this was told.
    pub stood: Vec<bool>,
    /// Answers of [`Backend::shared_cache`], call by call; after the last one `Some(1.0)`.
    pub shared: Vec<Option<f64>>,
    /// The specs of all subjects ever started.
    pub specs: Vec<SubjectSpec>,
    now: Nanos,
    due: Vec<(Nanos, u64, Seen)>,
    order: u64,
    next_id: u32,
    cells: u32,
    number: u64,
    generators: BTreeMap<String, Behaviour>,
    mute: Vec<String>,
    commands: BTreeMap<String, CommandScript>,
    running: BTreeMap<SubjectId, Running>,
    applied: Vec<Step>,
    faults: Vec<String>,
    throttle: bool,
    account: bool,
    draws: bool,
    memory: Option<fn(Nanos) -> Sample>,
    refuses_memory: Option<String>,
    blind: Range<Nanos>,
    broken: Option<Range<Nanos>>,
}

impl Fake {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a generator that is ready after 50 ms and reports what `behaviour` returns.
    pub fn generator(
        &mut self,
        name: &str,
        behaviour: impl Fn(&Scene<'_>) -> Measurement + Send + 'static,
    ) {
        self.generators.insert(name.into(), Box::new(behaviour));
    }

    /// A generator that never says `what`: `ready`, or its result.
    pub fn mute(&mut self, name: &str, what: &str) {
        self.mute.push(format!("{what} {name}"));
    }

    /// Adds a command that writes `lines` and ends after `takes`.
    pub fn command(&mut self, name: &str, takes: Nanos, status: i32, lines: &[&str]) {
        let lines = lines.iter().map(|l| (*l).to_owned()).collect();
        self.commands.insert(
            name.into(),
            CommandScript {
                takes,
                status,
                lines,
            },
        );
    }

    /// Makes every cell with a regulation report throttling.
    pub fn report_throttling(&mut self) {
        self.throttle = true;
    }

    /// Makes the machine account its one CPU's time: all of it is stolen.
    pub fn keep_account(&mut self) {
        self.account = true;
    }

    /// Makes the machine count what each subject draws: a byte read per nanosecond.
    pub fn count_draws(&mut self) {
        self.draws = true;
    }

    /// Makes the first promise of a plan observable: it is broken in this span.
    pub fn break_promise(&mut self, span: Range<Nanos>) {
        self.broken = Some(span);
    }

    /// Makes its memory observable; `look` gives the state at each moment.
    pub fn memory(&mut self, look: fn(Nanos) -> Sample) {
        self.memory = Some(look);
    }

    /// In this time memory cannot be read.
    pub fn blind(&mut self, when: Range<Nanos>) {
        self.blind = when;
    }

    /// Every action on memory fails with this reason.
    pub fn refuse_memory(&mut self, why: &str) {
        self.refuses_memory = Some(why.into());
    }

    /// The next time the log would get `what` (or at a `wait`), the call fails instead.
    pub fn fail_once(&mut self, what: &str) {
        self.faults.push(what.into());
    }

    pub fn stop_at(&mut self, at: Nanos, signal: i32) {
        self.push(at, Seen::Stop(signal));
    }

    /// A unit of work of this group ends at this time.
    pub fn unit_at(&mut self, ended: Nanos, group: &str, took: Nanos) {
        let unit = Unit {
            ended,
            took,
            target: None,
        };
        self.push(ended, Seen::Units(group.into(), TellerId(0), vec![unit], 0));
    }

    pub fn declared_at(&mut self, at: Nanos, group: &str, declared: Declared) {
        self.push(at, Seen::Declared(group.into(), declared));
    }

    pub fn revoke_at(&mut self, at: Nanos, why: &str) {
        self.push(at, Seen::Revoked(why.into()));
    }

    /// Whether no step is applied and no subject runs.
    pub fn clean(&self) -> bool {
        self.applied.is_empty() && self.running.is_empty()
    }

    fn push(&mut self, at: Nanos, seen: Seen) {
        self.order += 1;
        self.due.push((at, self.order, seen));
    }

    fn fault(&mut self, what: &str) -> Result<(), BackendError> {
        if let Some(found) = self.faults.iter().position(|f| f == what) {
            self.faults.remove(found);
            return Err(BackendError(format!("scripted fault at '{what}'")));
        }
        Ok(())
    }

    fn forget(&mut self, id: SubjectId) {
        self.running.remove(&id);
        self.due.retain(|(_, _, seen)| {
            !matches!(seen, Seen::Ready(i) | Seen::Result(i, _) | Seen::Line(i, _) | Seen::Exited(i, _, _) if *i == id)
        });
    }
}

impl Backend for Fake {
    fn inventory(&mut self, _: Probe) -> Result<Inventory, BackendError> {
        Ok(machine(2))
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn begin(&mut self, cell: u64, _: u32) -> Result<(), BackendError> {
        assert!(self.clean(), "a cell begins on a clean machine");
        self.number = cell;
        Ok(())
    }

    fn hold(&mut self, plan: &Plan, _: HoldOptions) -> Result<(), BackendError> {
        let observed = plan.loops.observed.keys();
        self.log
            .extend(observed.map(|name| format!("observe {name}")));
        Ok(())
    }

    fn stands(&mut self, standing: &Standing) {
        self.stood.push(standing.holds());
    }

    fn apply(&mut self, step: &Step) -> Result<Vec<String>, BackendError> {
        let text = format!("apply {}", step.id.0);
        self.fault(&text)?;
        self.log.push(text);
        self.applied.push(step.clone());
        Ok(Vec::new())
    }

    fn undo(&mut self) -> Result<Undone, BackendError> {
        let restored = u32::try_from(self.applied.len()).unwrap();
        self.log.push("undo".into());
        self.applied.clear();
        for id in self.running.keys().copied().collect::<Vec<_>>() {
            self.forget(id);
        }
        self.fault("undo")?;
        Ok(Undone {
            restored,
            left: Vec::new(),
        })
    }

    fn start(&mut self, spec: &SubjectSpec) -> Result<SubjectId, BackendError> {
        let text = format!("start {}", spec.name);
        self.fault(&text)?;
        self.log.push(text);
        self.specs.push(spec.clone());
        self.next_id += 1;
        let id = SubjectId(self.next_id);
        match &spec.program {
            Program::Generator(_) => {
                assert!(
                    self.generators.contains_key(&spec.name),
                    "unknown {}",
                    spec.name
                );
                if !self.mute.contains(&format!("ready {}", spec.name)) {
                    self.push(self.now.plus(Nanos::millis(50)), Seen::Ready(id));
                }
            }
            Program::Command(_) => {
                let script = self.commands.remove(&spec.name).unwrap();
                let end = self.now.plus(script.takes);
                for line in &script.lines {
                    self.push(end, Seen::Line(id, line.clone()));
                }
                self.push(end, Seen::Exited(id, script.status, script.takes));
                self.commands.insert(spec.name.clone(), script);
            }
        }
        let spec = spec.clone();
        self.running.insert(id, Running { spec, ready: false });
        Ok(id)
    }

    fn wait(&mut self, until: Nanos, seen: &mut Observation) -> Result<Nanos, BackendError> {
        self.fault("wait")?;
        self.due.sort_by_key(|(at, order, _)| (*at, *order));
        let first = self.due.first().map_or(Nanos(u64::MAX), |(at, _, _)| *at);
        self.now = self.now.max(first.min(until));
        while self.due.first().is_some_and(|(at, _, _)| *at <= self.now) {
            let (_, _, one) = self.due.remove(0);
            match &one {
                Seen::Ready(id) => self.running.get_mut(id).unwrap().ready = true,
                Seen::Exited(id, _, _) => {
                    let gone = self.running.remove(id).unwrap();
                    self.log.push(format!("exit {}", gone.spec.name));
                }
                _ => {}
            }
            seen.push(one);
        }
        Ok(self.now)
    }

    fn can_look(&self) -> bool {
        self.broken.is_some()
    }

    fn look(&mut self) -> Vec<(PromiseId, Verdict)> {
        let broken = self
            .broken
            .iter()
            .map(|span| match span.contains(&self.now) {
                true => Verdict::Broken(Fault::NoProcess { group: "g".into() }),
                false => Verdict::Holds,
            });
        broken.map(|verdict| (PromiseId(1), verdict)).collect()
    }

    fn drawn(&mut self, id: SubjectId) -> Result<Option<Drawn>, BackendError> {
        assert!(self.running.contains_key(&id), "it is not running");
        Ok(self.draws.then_some(Drawn {
            read: self.now.0,
            ..Drawn::default()
        }))
    }

    fn cpu_times(&mut self) -> Result<Option<Vec<CpuTimes>>, BackendError> {
        self.fault("account")?;
        let stolen = CpuTimes {
            steal_ns: self.now.0,
            ..CpuTimes::default()
        };
        Ok(self.account.then(|| vec![stolen]))
    }

    fn watch(&mut self, _: &Pressured) -> Result<(), BackendError> {
        self.log.push("watch".into());
        match self.memory {
            Some(_) => Ok(()),
            None => Err(BackendError("there is no memory here".into())),
        }
    }

    fn own(&mut self) -> Result<Option<Own>, BackendError> {
        // A two-hundredth of a CPU.
        Ok(Some(Own {
            cpu: Nanos(self.now().0 / 200),
            resident: Bytes(7 << 20),
            locked: Bytes(3 << 20),
        }))
    }

    fn memory(&mut self, _: bool, look: &mut Sample) -> Result<(), BackendError> {
        if self.blind.contains(&self.now) {
            return Err(BackendError("a file reads oddly".into()));
        }
        if let Some(memory) = self.memory {
            *look = memory(self.now);
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<(), BackendError> {
        match action {
            Action::Go {
                subject,
                warmup,
                duration,
            } => {
                let name = self.running[subject].spec.name.clone();
                assert!(self.running[subject].ready, "{name} was sent off unready");
                self.fault(&format!("go {name}"))?;
                self.log.push(format!("go {name} {warmup} {duration}"));
                self.cells += 1;
                let scene = Scene {
                    steps: &self.applied,
                    beside: self
                        .running
                        .values()
                        .map(|r| r.spec.name.as_str())
                        .filter(|n| *n != name)
                        .collect(),
                    cell: self.cells,
                    number: self.number,
                    duration: *duration,
                };
                let measurement = self.generators[&name](&scene);
                let at = self.now.plus(*warmup).plus(*duration);
                if self.throttle
                    && let Some(Setting::Regulate(_)) = self.applied.last().map(|s| &s.set)
                {
                    let event = Event::Throttle {
                        cpu: 1,
                        group: "neighbour".into(),
                        overflows: 12,
                        throttles: 10,
                        throttled_ns: 9_000,
                        lines: 64,
                        pooled: None,
                    };
                    self.push(at, Seen::Event(event));
                }
                if !self.mute.contains(&format!("result {name}")) {
                    self.push(at, Seen::Result(*subject, measurement));
                }
            }
            Action::Ways { group, level, mask } => {
                self.log.push(format!("ways {group} L{level} {mask}"));
            }
            Action::Memory(_) => {
                if let Some(why) = &self.refuses_memory {
                    return Err(BackendError(why.clone()));
                }
            }
            Action::Budget { cpus, budget, .. } => {
                self.log.push(format!("budget {cpus} {}", budget.0));
            }
            Action::Stop(id) => {
                let name = self.running[id].spec.name.clone();
                self.log.push(format!("stop {name}"));
                self.forget(*id);
            }
        }
        Ok(())
    }

    fn shared_cache(&mut self, a: CpuId, b: CpuId) -> Result<Option<f64>, BackendError> {
        self.fault("canary")?;
        assert_ne!(a, b);
        assert!(self.clean(), "the canary must not run beside subjects");
        self.log.push(format!("canary {a} {b}"));
        Ok(if self.shared.is_empty() {
            Some(1.0)
        } else {
            self.shared.remove(0)
        })
    }
}

/// A machine of so many cores with one thread each, all below one last-level cache.
pub fn machine(cpus: u32) -> Inventory {
    let all: CpuSet = (0..cpus).collect();
    Inventory {
        identity: Identity {
            kernel: "6.18.0".into(),
            architecture: "x86_64".into(),
            vendor: "Test".into(),
            model: "Scripted".into(),
            microcode: None,
            hypervisor: None,
            lab: None,
        },
        cpus: (0..cpus)
            .map(|id| Cpu {
                id,
                siblings: CpuSet::from_iter([id]),
                package: 0,
                node: 0,
                tier: 0,
                isolated: false,
                tickless: false,
            })
            .collect(),
        caches: vec![Cache {
            level: 3,
            kind: CacheKind::Unified,
            size: Bytes(32 << 20),
            ways: None,
            sets: None,
            line: Bytes(64),
            cpus: all.clone(),
        }],
        nodes: vec![Node {
            id: 0,
            cpus: all,
            memory: Bytes(8 << 30),
            near: CpuSet::new(),
        }],
        mechanisms: [
            (Mechanism::Cores, Level::Enforced),
            (Mechanism::Bandwidth, Level::Estimated),
            (Mechanism::CpuMax, Level::Enforced),
        ]
        .map(|(mechanism, best)| {
            let how = "as the test says".to_owned();
            (mechanism, Availability::Yes { best, how })
        })
        .into(),
        means: Means {
            cpuset: CpusetKind::V2,
            movable_irqs: 0,
            fixed_irqs: 0,
            workqueue_mask: false,
            meter: MeterKind::Time,
            time_meter: true,
            brake: Ok(()),
            brake_in_place: Ok(()),
            cpu_max: true,
            registers: quell_plan::inventory::unknown_registers(),
            counter_users: Vec::new(),
            memory: MemoryMeans::default(),
            demand: DemandSource::default(),
        },
        measured: Some(Measured {
            peak_cpu: Rate(10_000_000_000),
            peak_operation: "write".into(),
            by_operation: BTreeMap::new(),
            sustainable: Rate(15_000_000_000),
            cpus,
            stop_cost: Some(Nanos::micros(10)),
            operations: Vec::new(),
            counters: BTreeMap::new(),
            mba: None,
            within_cache: None,
            rest: None,
            cache_steps: None,
            at_unix_s: 0,
            deep: None,
            assumed: false,
        }),
        partitions: Partitions::default(),
        simulated: None,
    }
}

/// A subject with one name for subject, command and group.
pub fn command(name: &str) -> SubjectSpec {
    SubjectSpec {
        name: name.into(),
        group: name.into(),
        program: Program::Command(vec![name.into()]),
        cpus: None,
        env: BTreeMap::new(),
        capture: false,
    }
}

/// A plan with so many steps that move interrupts.
pub fn plan_with_steps(steps: u32) -> Plan {
    Plan {
        policy: "test".into(),
        groups: Vec::new(),
        steps: (1..=steps)
            .map(|id| Step {
                id: StepId(id),
                group: None,
                mechanism: Mechanism::Cores,
                set: Setting::WorkqueueMask {
                    cpus: CpuSet::from_iter([1]),
                },
                because: "the test says so".into(),
                assumed: false,
            })
            .collect(),
        promises: Vec::new(),
        notes: Vec::new(),
        loops: Loops::default(),
        acts: Vec::new(),
        assumed: None,
    }
}
