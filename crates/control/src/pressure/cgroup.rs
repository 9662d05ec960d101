//! `cgroup`: the limits that Channabasappa and Ravindran describe. On cgroup v1 steps of the plan
//! set the swappiness of the detector's group (90) and the hog's (0); on v2, which has none, they
//! keep the hog's memory from being swapped out. This module sets the limit on the hog and has
//! their later idea: it watches the hog's own pressure. While memory allows and the critical group
//! is calm, the hog's limit grows step by step instead of moving from group to group. It also has
//! what both strategies share: the worst process is stopped while the machine's pressure is high,
//! and terminated at 0.1 %.
//!
//! Frozen before any protected run, with their origins (all assumed: the description names none):
//! - [`FIRST`]: without a limit in the policy, an eighth of the machine, or what the group uses
//!   when it is first seen.
//! - [`STEP`]: a sixteenth of the machine, at most once per [`EVERY`].
//! - The hog waits: its own memory pressure is above the policy's `start`.
//! - Memory allows: twice the step is available beyond what the critical groups have of files.

use quell_types::units::{Bytes, Nanos, Share};

use super::latd::Stopper;
use super::stall::{Difference, Stall, disks_used};
use super::{Act, Decision, Rules, Sample, Why};

/// The first limit, as a divisor of the machine's memory.
const FIRST: u64 = 8;
/// How much the limit grows at a time, as a divisor of the machine's memory.
const STEP: u64 = 16;
/// Time between two samples.
const EVERY: Nanos = Nanos::secs(1);

/// Moves the neighbours' limits, and stops or kills the worst process.
#[derive(Clone, Debug)]
pub struct Cgroup {
    rules: Rules,
    stopper: Stopper,
    sampled: Nanos,
    critical: Vec<Stall>,
    moved: Vec<Difference>,
    waited: Vec<Difference>,
    limits: Vec<Option<Bytes>>,
}

impl Cgroup {
    /// A controller that samples every second from `now` on, whatever the policy's interval.
    #[must_use]
    pub fn new(rules: &Rules, now: Nanos) -> Self {
        let neighbours = rules.allows.len();
        Self {
            rules: rules.clone(),
            stopper: Stopper::new(&rules.allows),
            sampled: now,
            critical: vec![Stall::default(); rules.measured.len()],
            moved: vec![Difference::default(); neighbours],
            waited: vec![Difference::default(); neighbours],
            limits: vec![None; neighbours],
        }
    }

    /// When the next sample is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.sampled.plus(EVERY)
    }

    /// Decides by one sample. Appends to `decisions`.
    pub fn step(&mut self, now: Nanos, sample: &Sample, decisions: &mut Vec<Decision>) {
        let span = now.since(self.sampled);
        self.sampled = now;
        let others = disks_used(&mut self.moved, &sample.neighbours);
        let shares = self.critical.iter_mut().zip(&sample.critical);
        let share = shares
            .map(|(stall, group)| stall.share(group, span, true, others))
            .max();
        let calm = share.is_none_or(|share| share <= self.rules.release);
        let total = sample.machine.total.0;
        let step = total / STEP;
        let kept: u64 = sample.critical.iter().map(|c| c.file.0).sum();
        let mut spare = sample.machine.available.0.saturating_sub(kept);
        for (i, neighbour) in sample.neighbours.iter().enumerate() {
            let waited = Difference::of(&mut self.waited[i], neighbour.stall.unwrap_or_default().0);
            let wants = Share::ratio(waited, span.0);
            if !self.rules.allows[i].limit {
                continue;
            }
            let (most, why) = match self.limits[i] {
                None => (
                    neighbour.usage.0.max(total / FIRST),
                    Why::Spare(Bytes(spare)),
                ),
                Some(now) if calm && wants > self.rules.start && spare >= 2 * step => {
                    spare -= step;
                    (now.0 + step, Why::Wanted(wants))
                }
                Some(_) => continue,
            };
            self.limits[i] = Some(Bytes(most));
            decisions.push(Decision {
                act: Act::Limit {
                    neighbour: i,
                    most: Some(Bytes(most)),
                },
                why,
            });
        }
        self.stopper.step(sample, decisions);
    }

    /// Resumes the stopped process once samples have failed for too long.
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        self.stopper.blind(now, decisions);
    }
}
