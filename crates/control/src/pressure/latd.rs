//! `latd`: the latency daemon that Channabasappa and Ravindran describe. Steps of the plan exempt
//! the critical task from the OOM killer and tune the sysctls. This module has the rest: it reads
//! the machine's *some* pressure from PSI. When that rises it stops the process with the highest
//! `oom_score`, and resumes it when the pressure is stable. It terminates it when available memory
//! falls to 0.1 % of the total.
//!
//! Frozen before any protected run, with their origins:
//! - [`RISES`]: 10 % of ten seconds. The description says "rises"; this is the threshold commonly
//!   used with `avg10` ("avg10>10%, 1 s").
//! - [`EVERY`]: a second, from the same rule.
//! - *stable*: `avg10` is not above the threshold any more.
//! - [`LEAST`]: a thousandth of the total, as described.
//!
//! Known weaknesses, kept:
//! - The average moves every two seconds. It may never reach the threshold while frames are late by
//!   a factor of a hundred.
//! - A process that is stopped gives nothing back.
//! - Nothing bounds how long it is stopped. (Added here: where samples fail, it is resumed after
//!   [`LONGEST_FREEZE`].)

use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos, Share};

use super::{Act, Decision, LONGEST_FREEZE, Process, Rules, Sample, Why};
use crate::config::Allows;

/// `avg10` above this is high.
const RISES: Share = Share::percent(10);
/// Time between two samples.
const EVERY: Nanos = Nanos::secs(1);
/// A process is terminated when this part of the total is available, or less; a divisor.
const LEAST: u64 = 1_000;

/// Stops the worst process while pressure is high, and terminates it when memory is all but gone.
#[derive(Clone, Debug)]
pub(super) struct Stopper {
    allows: Vec<Allows>,
    stopped: Option<TaskId>,
    /// Since when samples fail; `None` while they succeed.
    blind: Option<Nanos>,
}

impl Stopper {
    pub fn new(allows: &[Allows]) -> Self {
        Self {
            allows: allows.to_vec(),
            stopped: None,
            blind: None,
        }
    }

    /// To be called when a sample fails. After [`LONGEST_FREEZE`] without a sample it resumes.
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        let since = *self.blind.get_or_insert(now);
        if now.since(since) >= LONGEST_FREEZE
            && let Some(task) = self.stopped.take()
        {
            decisions.push(Decision {
                act: Act::Continue(task),
                why: Why::Bound,
            });
        }
    }

    fn worst(&self, sample: &Sample, may: impl Fn(&Allows) -> bool) -> Option<TaskId> {
        let allowed = |p: &&Process| self.allows.get(p.neighbour).is_some_and(&may);
        let of = sample.processes.iter().filter(allowed);
        of.max_by_key(|p| (p.oom_score, std::cmp::Reverse(p.task)))
            .map(|p| p.task)
    }

    pub fn step(&mut self, sample: &Sample, decisions: &mut Vec<Decision>) {
        self.blind = None;
        let machine = &sample.machine;
        // A process that left the group may not be stopped any more. One that ended is not harmed
        // by this.
        if let Some(task) = self.stopped
            && !sample.processes.iter().any(|p| p.task == task)
        {
            self.stopped = None;
            decisions.push(Decision {
                act: Act::Continue(task),
                why: Why::Gone,
            });
        }
        if machine.available <= Bytes(machine.total.0 / LEAST) {
            if let Some(task) = self.worst(sample, |a| a.kill) {
                if self.stopped == Some(task) {
                    self.stopped = None;
                }
                let why = Why::Spare(machine.available);
                decisions.push(Decision {
                    act: Act::Kill(task),
                    why,
                });
            }
            return;
        }
        let Some(average) = machine.average else {
            return;
        };
        match self.stopped {
            None if average > RISES => {
                if let Some(task) = self.worst(sample, |a| a.freeze) {
                    self.stopped = Some(task);
                    let why = Why::Pressure(average);
                    decisions.push(Decision {
                        act: Act::Stop(task),
                        why,
                    });
                }
            }
            Some(task) if average <= RISES => {
                self.stopped = None;
                decisions.push(Decision {
                    act: Act::Continue(task),
                    why: Why::Calm,
                });
            }
            _ => {}
        }
    }
}

/// The daemon: a [`Stopper`] that samples every second.
#[derive(Clone, Debug)]
pub struct Latd {
    stopper: Stopper,
    next: Nanos,
}

impl Latd {
    /// A controller that samples every second from `now` on, whatever the policy's interval.
    #[must_use]
    pub fn new(rules: &Rules, now: Nanos) -> Self {
        Self {
            stopper: Stopper::new(&rules.allows),
            next: now.plus(EVERY),
        }
    }

    /// When the next sample is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.next
    }

    /// Decides by one sample. Appends to `decisions`.
    pub fn step(&mut self, now: Nanos, sample: &Sample, decisions: &mut Vec<Decision>) {
        self.next = now.plus(EVERY);
        self.stopper.step(sample, decisions);
    }

    /// Resumes the stopped process once samples have failed for too long.
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        self.stopper.blind(now, decisions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::Machine;

    fn sample(average: u64, available: u64) -> Sample {
        let process = |pid, neighbour, oom_score| Process {
            task: TaskId { pid, start: 7 },
            neighbour,
            oom_score,
            resident: Bytes(0),
            io: 0,
            major_faults: 0,
        };
        Sample {
            machine: Machine {
                total: Bytes(1_000_000),
                available: Bytes(available),
                average: Some(Share::percent(average)),
                ..Machine::default()
            },
            processes: vec![process(5, 0, 900), process(6, 1, 700), process(7, 1, 800)],
            ..Sample::default()
        }
    }

    fn acts(latd: &mut Latd, sample: &Sample) -> Vec<Act> {
        let mut decisions = Vec::new();
        latd.step(Nanos::secs(1), sample, &mut decisions);
        decisions.iter().map(|d| d.act).collect()
    }

    #[test]
    fn the_worst_candidate_is_stopped_resumed_and_then_terminated() {
        let both = Allows {
            freeze: true,
            kill: true,
            ..Allows::default()
        };
        let rules = Rules {
            interval: Nanos::millis(20),
            start: Share::percent(5),
            release: Share::percent(1),
            grace: Nanos::millis(500),
            measured: vec![false],
            allows: vec![Allows::default(), both],
        };
        let mut latd = Latd::new(&rules, Nanos(0));
        let worst = TaskId { pid: 7, start: 7 };
        assert_eq!(latd.next(), Nanos::secs(1));
        assert_eq!(acts(&mut latd, &sample(10, 500_000)), []);
        assert_eq!(acts(&mut latd, &sample(11, 500_000)), [Act::Stop(worst)]);
        assert_eq!(acts(&mut latd, &sample(60, 500_000)), [], "one at a time");
        assert_eq!(acts(&mut latd, &sample(4, 500_000)), [Act::Continue(worst)]);
        assert_eq!(acts(&mut latd, &sample(60, 500_000)), [Act::Stop(worst)]);
        let mut left = sample(4, 500_000);
        left.processes.pop();
        let gone = acts(&mut latd, &left);
        assert_eq!(gone, [Act::Continue(worst)], "it moved elsewhere");
        assert_eq!(acts(&mut latd, &left), []);
        assert_eq!(acts(&mut latd, &sample(4, 1_001)), []);
        assert_eq!(acts(&mut latd, &sample(4, 1_000)), [Act::Kill(worst)]);
    }
}
