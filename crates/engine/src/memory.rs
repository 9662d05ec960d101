//! The control of memory pressure while a plan holds: samples of the machine's memory, decisions as
//! actions, and the record of both. [`Controller`] decides.

use quell_control::pressure::{Act, Controller, Critical, Decision, Rules, Sample};
use quell_plan::{Plan, Pressured};
use quell_record::about::About;
use quell_record::backend::{Action, Backend, Own, Seen};
use quell_record::events::{Event, Steering};
use quell_types::mechanism::Mechanism;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};

use crate::loops::Loop;
use crate::sink::Sink;

/// How often memory use and waiting times are recorded.
const TELL_EVERY: Nanos = Nanos::secs(1);

/// Capacities that are kept between samples, so that nothing is allocated under memory pressure.
const PROCESSES: usize = 1024;
const DECISIONS: usize = 64;

/// The controller of a plan, and what it needs between samples.
#[derive(Debug)]
pub(crate) struct Memory {
    plan: Pressured,
    control: Controller,
    look: Sample,
    decisions: Vec<Decision>,
    /// Processes that were stopped, each with its neighbour's index. When they are resumed they may
    /// be in no neighbour any more.
    stopped: Vec<(TaskId, usize)>,
    /// When a unit of each critical group ended last. `None` before the first.
    unit_ends: Vec<Option<Nanos>>,
    tell: Nanos,
    /// After a sample that failed: when the next one is due.
    retry: Nanos,
    /// The critical groups as they were recorded last.
    told: Vec<Critical>,
    /// Quell's own use of CPU and memory at the last record, and when that was.
    own: Option<(Nanos, Own)>,
    /// Failures that were reported already.
    failed: Vec<String>,
}

impl Loop for Memory {
    fn next(&self) -> Nanos {
        self.control.next().max(self.retry)
    }

    fn seen(
        &mut self,
        _: &mut dyn Backend,
        _: Nanos,
        seen: &Seen,
        _: &mut dyn Sink,
    ) -> Result<(), String> {
        if let Seen::Units(group, _, units, _) = seen
            && let Some(last) = units.last()
            && let Some(place) = self.plan.critical.iter().position(|c| c.group == *group)
        {
            self.unit_ends[place] = Some(last.ended);
        }
        Ok(())
    }

    /// A failure is reported once, and the run continues without that action.
    fn step(
        &mut self,
        backend: &mut dyn Backend,
        now: Nanos,
        sink: &mut dyn Sink,
    ) -> Result<(), String> {
        self.sample(backend, now, sink);
        Ok(())
    }
}

impl Memory {
    /// Begins after the steps were applied. `None` where the plan controls no memory.
    pub(crate) fn begin(backend: &mut dyn Backend, plan: &Plan) -> Result<Option<Self>, String> {
        let now = backend.now();
        let Some(pressure) = &plan.loops.pressure else {
            return Ok(None);
        };
        let rules = Rules {
            interval: pressure.interval,
            start: pressure.start,
            release: pressure.release,
            grace: pressure.grace,
            measured: pressure.critical.iter().map(|c| c.measured).collect(),
            allows: pressure.neighbours.iter().map(|n| n.allows).collect(),
        };
        let Some(control) = Controller::new(pressure.controller, &rules, now) else {
            return Ok(None);
        };
        backend
            .watch(pressure)
            .map_err(|e| format!("memory cannot be watched: {e}"))?;
        let mut look = Sample::default();
        look.processes.reserve(PROCESSES);
        let own = backend.own().map_err(|e| e.to_string())?;
        Ok(Some(Self {
            plan: pressure.clone(),
            control,
            look,
            decisions: Vec::with_capacity(DECISIONS),
            stopped: Vec::with_capacity(4),
            unit_ends: vec![None; pressure.critical.len()],
            tell: now.plus(TELL_EVERY),
            retry: now,
            told: Vec::new(),
            own: own.map(|own| (now, own)),
            failed: Vec::new(),
        }))
    }

    fn sample(&mut self, backend: &mut dyn Backend, now: Nanos, sink: &mut dyn Sink) {
        let processes = self.control.wants_processes();
        let looked = backend.memory(processes, &mut self.look);
        self.decisions.clear();
        match &looked {
            Ok(()) => {
                for (group, unit_end) in self.look.critical.iter_mut().zip(&self.unit_ends) {
                    group.unit_end = *unit_end;
                }
                self.control.step(now, &self.look, &mut self.decisions);
            }
            // A file may read oddly once. The run continues, and the next sample is an interval
            // away.
            Err(e) => {
                self.failed(now, &format!("memory could not be looked at: {e}"), sink);
                self.retry = now.plus(self.plan.interval);
                self.control.blind(now, &mut self.decisions);
            }
        }
        for i in 0..self.decisions.len() {
            let decision = self.decisions[i];
            if let Err(e) = backend.act(&Action::Memory(decision.act)) {
                self.failed(now, &e.to_string(), sink);
                continue;
            }
            let event = self.event(&decision);
            match decision.act {
                Act::Stop(task) => self.stopped.extend(self.of(task).map(|of| (task, of))),
                Act::Continue(task) | Act::Kill(task) => self.stopped.retain(|s| s.0 != task),
                _ => {}
            }
            if let Some(event) = event {
                sink.put(now, &event);
            }
        }
        if looked.is_ok() && now >= self.tell {
            self.tell(now, sink);
            self.tell_own(backend, now, sink);
        }
    }

    /// Reports a failure once. A limit that fails once fails with every sample.
    fn failed(&mut self, now: Nanos, what: &str, sink: &mut dyn Sink) {
        if self.failed.iter().any(|f| f == what) {
            return;
        }
        self.failed.push(what.to_owned());
        let about = About::Mechanism {
            mechanism: Mechanism::Memory,
        };
        sink.put(now, &Event::finding(about, what, None));
    }

    /// The index of a process' neighbour: now, or when it was stopped.
    fn of(&self, task: TaskId) -> Option<usize> {
        let seen = self.look.processes.iter().find(|p| p.task == task);
        let stopped = || self.stopped.iter().find(|s| s.0 == task).map(|s| s.1);
        seen.map(|p| p.neighbour).or_else(stopped)
    }

    fn event(&self, decision: &Decision) -> Option<Event> {
        let neighbour = |i: usize| self.plan.neighbours.get(i).map(|n| n.group.clone());
        let of = |task| self.of(task).and_then(neighbour);
        let (group, did) = match decision.act {
            Act::Protect { critical, memory } => (
                self.plan.critical.get(critical).map(|c| c.group.clone()),
                Steering::Protect { bytes: memory.0 },
            ),
            Act::Limit { neighbour: n, most } => (
                neighbour(n),
                Steering::Limit {
                    bytes: most.map(|Bytes(bytes)| bytes),
                },
            ),
            Act::KeepUnswapped { neighbour: n } => (neighbour(n), Steering::KeepUnswapped),
            Act::Freeze { neighbour: n } => (neighbour(n), Steering::Freeze),
            Act::Thaw { neighbour: n } => (neighbour(n), Steering::Thaw),
            Act::Reclaim {
                neighbour: n,
                amount,
            } => (neighbour(n), Steering::Reclaim { bytes: amount.0 }),
            Act::Stop(task) => (of(task), Steering::Stop { pid: task.pid }),
            Act::Continue(task) => (of(task), Steering::Continue { pid: task.pid }),
            Act::Kill(task) => (of(task), Steering::Kill { pid: task.pid }),
        };
        Some(Event::Steered {
            group: group?,
            did,
            why: decision.why.to_string(),
        })
    }

    /// Records what each critical group used and waited for since the last record.
    fn tell(&mut self, now: Nanos, sink: &mut dyn Sink) {
        self.tell = now.plus(TELL_EVERY);
        let others = self.look.neighbours.iter().map(|n| n.usage.0).sum();
        // Empty at first: sums from before the run say nothing about it.
        let both = self.look.critical.iter().zip(&self.told);
        for (group, (now_is, was)) in self.plan.critical.iter().zip(both) {
            let event = Event::Waited {
                group: group.group.clone(),
                memory_ns: now_is.memory_stall.since(was.memory_stall).0,
                memory_full_ns: now_is.memory_full.since(was.memory_full).0,
                io_ns: now_is.io_stall.since(was.io_stall).0,
                refaults: now_is.refaults.saturating_sub(was.refaults),
                bytes: now_is.usage.0,
                others_bytes: others,
                available_bytes: self.look.machine.available.0,
                total_bytes: self.look.machine.total.0,
            };
            sink.put(now, &event);
        }
        self.told.clone_from(&self.look.critical);
    }

    /// Records what Quell itself uses.
    fn tell_own(&mut self, backend: &mut dyn Backend, now: Nanos, sink: &mut dyn Sink) {
        let Some((then, was)) = self.own else {
            return;
        };
        match backend.own() {
            Ok(Some(is)) => {
                let event = Event::Own {
                    span_ns: now.since(then).0,
                    cpu_ns: is.cpu.since(was.cpu).0,
                    resident_bytes: is.resident.0,
                    locked_bytes: is.locked.0,
                };
                sink.put(now, &event);
                self.own = Some((now, is));
            }
            Ok(None) => self.own = None,
            Err(e) => self.failed(now, &e.to_string(), sink),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{Ended, drive};
    use crate::fake::{Fake, plan_with_steps};
    use crate::hold::{Until, run};
    use quell_control::config::Allows;
    use quell_control::pressure::{Machine, Neighbour, Process};
    use quell_plan::{Steered, Watched};
    use quell_record::backend::HoldOptions;
    use quell_types::options::PressureController;
    use quell_types::units::Share;

    fn plan() -> Plan {
        let allows = Allows {
            limit: true,
            freeze: true,
            ..Allows::default()
        };
        let mut plan = plan_with_steps(1);
        plan.loops.pressure = Some(Pressured {
            controller: PressureController::Quell,
            interval: Nanos::millis(20),
            start: Share::percent(5),
            release: Share::percent(1),
            grace: Nanos::millis(500),
            critical: vec![Watched {
                group: "detector".into(),
                measured: false,
            }],
            neighbours: vec![Steered {
                group: "batch".into(),
                allows,
            }],
        });
        plan
    }

    /// From the first second on the critical group waits a quarter of the time.
    fn memory(now: Nanos) -> Sample {
        Sample {
            machine: Machine {
                total: Bytes(8 << 30),
                available: Bytes(6 << 30),
                ..Machine::default()
            },
            critical: vec![Critical {
                memory_stall: Nanos(now.since(Nanos::secs(1)).0 / 4),
                usage: Bytes(1 << 30),
                anonymous: Bytes(1 << 30),
                ..Critical::default()
            }],
            neighbours: vec![Neighbour {
                usage: Bytes(1 << 30),
                populated: true,
                ..Neighbour::default()
            }],
            processes: Vec::new(),
        }
    }

    #[test]
    fn looks_become_acts_and_events_within_a_tenth_of_a_second() {
        let mut fake = Fake::new();
        fake.memory(memory);
        fake.stop_at(Nanos::secs(4), 15);
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        run(
            &mut fake,
            &plan(),
            HoldOptions::default(),
            &[],
            Until::Stop,
            &mut sink,
        )
        .unwrap();
        let steered: Vec<_> = sink
            .iter()
            .filter_map(|(at, e)| match e {
                Event::Steered { group, did, why } => Some((*at, group.as_str(), did.clone(), why)),
                _ => None,
            })
            .collect();
        let (at, group, did, why) = &steered[0];
        assert!(
            *at > Nanos::secs(1) && *at <= Nanos::millis(1100),
            "{steered:?}"
        );
        assert_eq!(*group, "batch");
        assert!(
            matches!(did, Steering::Limit { bytes: Some(b) } if *b < 1 << 30),
            "{did:?}"
        );
        assert!(why.contains("25%"), "{why}");
        let frozen = steered.iter().find(|s| s.2 == Steering::Freeze).unwrap();
        assert!(frozen.0 >= Nanos::millis(1500), "limits first, for `grace`");
        assert!(fake.log.iter().any(|l| l == "watch"), "{:?}", fake.log);
        let waited: Vec<u64> = sink
            .iter()
            .filter_map(|(_, e)| match e {
                Event::Waited { memory_ns, .. } => Some(*memory_ns),
                _ => None,
            })
            .collect();
        assert!(
            waited
                .iter()
                .any(|w| (230_000_000..270_000_000).contains(w)),
            "{waited:?}"
        );
        let own = sink.iter().find_map(|(_, e)| match e {
            Event::Own {
                span_ns, cpu_ns, ..
            } => Some(span_ns / cpu_ns),
            _ => None,
        });
        assert_eq!(own, Some(200), "what it takes itself is told");
        assert!(fake.clean());
    }

    #[test]
    fn what_fails_is_told_once_and_the_run_goes_on() {
        let mut fake = Fake::new();
        fake.memory(memory);
        fake.refuse_memory("the limit could not be written");
        fake.stop_at(Nanos::secs(3), 15);
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        let held = run(
            &mut fake,
            &plan(),
            HoldOptions::default(),
            &[],
            Until::Stop,
            &mut sink,
        )
        .unwrap();
        assert_eq!(held.outcome, crate::hold::Outcome::Stopped(15));
        let told = |e: &&(Nanos, Event)| matches!(&e.1, Event::Finding { what, .. } if what.contains("could not be written"));
        assert_eq!(sink.iter().filter(told).count(), 1);
        assert!(!sink.iter().any(|(_, e)| matches!(e, Event::Steered { .. })));
    }

    #[test]
    fn an_odd_look_is_told_once_and_the_loop_goes_on() {
        let mut fake = Fake::new();
        fake.memory(memory);
        fake.blind(Nanos(0)..Nanos::millis(1500));
        fake.stop_at(Nanos::secs(3), 15);
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        let held = run(
            &mut fake,
            &plan(),
            HoldOptions::default(),
            &[],
            Until::Stop,
            &mut sink,
        )
        .unwrap();
        assert_eq!(held.outcome, crate::hold::Outcome::Stopped(15));
        let told = |e: &&(Nanos, Event)| matches!(&e.1, Event::Finding { what, .. } if what.contains("reads oddly"));
        assert_eq!(sink.iter().filter(told).count(), 1);
        let first = sink
            .iter()
            .find(|(_, e)| matches!(e, Event::Steered { .. }));
        let at = first.map(|(at, _)| *at).unwrap();
        assert!(at > Nanos::millis(1500) && at < Nanos::millis(1700), "{at}");
    }

    #[test]
    fn a_process_that_left_its_group_is_reported_when_it_goes_on() {
        let task = TaskId { pid: 7, start: 9 };
        let mut fake = Fake::new();
        fake.memory(|now| {
            let mut look = memory(now);
            look.machine.average = Some(Share::percent(50));
            let here = now < Nanos::secs(3);
            look.processes.extend(here.then_some(Process {
                task: TaskId { pid: 7, start: 9 },
                neighbour: 0,
                oom_score: 700,
                resident: Bytes(1 << 30),
                io: 0,
                major_faults: 0,
            }));
            look
        });
        fake.stop_at(Nanos::secs(5), 15);
        let mut plan = plan();
        if let Some(pressure) = &mut plan.loops.pressure {
            pressure.controller = PressureController::Latd;
        }
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        run(
            &mut fake,
            &plan,
            HoldOptions::default(),
            &[],
            Until::Stop,
            &mut sink,
        )
        .unwrap();
        let told = sink.iter().filter_map(|(_, e)| match e {
            Event::Steered { group, did, .. } => Some((group.as_str(), did.clone())),
            _ => None,
        });
        let (stop, go_on) = (
            Steering::Stop { pid: task.pid },
            Steering::Continue { pid: task.pid },
        );
        let expected = [("batch", stop), ("batch", go_on)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_frozen_group_goes_on_in_time_although_nothing_can_be_seen() {
        let mut fake = Fake::new();
        fake.memory(memory);
        let blind = Nanos::millis(1700);
        fake.blind(blind..Nanos::secs(60));
        fake.stop_at(Nanos::secs(4), 15);
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        run(
            &mut fake,
            &plan(),
            HoldOptions::default(),
            &[],
            Until::Stop,
            &mut sink,
        )
        .unwrap();
        let when = |wanted: &Steering| {
            let is =
                |e: &&(Nanos, Event)| matches!(&e.1, Event::Steered { did, .. } if did == wanted);
            sink.iter().find(is).map(|(at, _)| *at)
        };
        let (frozen, thawed) = (when(&Steering::Freeze), when(&Steering::Thaw));
        let (frozen, thawed) = (frozen.unwrap(), thawed.unwrap());
        assert!(frozen < blind && thawed > blind, "{frozen} to {thawed}");
        assert!(
            thawed.since(frozen) <= Nanos::millis(520),
            "{frozen} to {thawed}"
        );
        let after = sink.iter().filter(|(at, _)| *at > thawed);
        assert_eq!(
            after
                .filter(|(_, e)| matches!(e, Event::Steered { .. }))
                .count(),
            0
        );
    }

    #[test]
    fn a_machine_whose_memory_cannot_be_watched_fails_and_is_undone() {
        struct Never;
        impl crate::drive::Script for Never {
            fn begin(&mut self, _: Nanos, _: &mut Vec<crate::drive::Order>) -> Result<(), String> {
                Ok(())
            }
            fn started(&mut self, _: &str, _: quell_record::backend::SubjectId, _: Nanos) {}
            fn seen(
                &mut self,
                _: Nanos,
                _: Seen,
                _: &mut Vec<crate::drive::Order>,
            ) -> Result<(), String> {
                Ok(())
            }
            fn finished(&self) -> bool {
                true
            }
        }
        let mut fake = Fake::new();
        let mut sink: Vec<(Nanos, Event)> = Vec::new();
        let how = HoldOptions::default();
        let failed = drive(&mut fake, &plan(), how, &mut Never, &mut sink).unwrap_err();
        assert!(
            failed.to_string().contains("memory cannot be watched"),
            "{failed}"
        );
        assert!(fake.clean());
        let none = drive(&mut fake, &plan_with_steps(1), how, &mut Never, &mut sink).unwrap();
        assert_eq!(none.ended, Ended::Finished);
    }
}
