//! `cgroup`: limits as described (experiments.md C). The detector's group and the hog's have
//! swappiness and a limit on the hog by steps of the plan; here the later idea (the hog's own
//! pressure is watched, and while memory allows and the critical group is calm its limit grows step
//! by step, instead of moving it from group to group), and what both strategies share: the worst
//! process is stopped while the machine's pressure is high and terminated at 0.1 %.
//!
//! Frozen before any protected run, with their origins (all assumed: the description names none):
//! - [`FIRST`]: without a limit in the policy, an eighth of the machine, or what the group uses
//!   when it is first seen.
//! - [`STEP`]: a sixteenth of the machine, at most once per [`EVERY`].
//! - the hog waits: its own memory pressure above the policy's `start`.
//! - memory allows: twice the step is available beyond what the critical groups have of files.

use quell_types::units::{Bytes, Nanos, Share};

use super::latd::Stopper;
use super::stall::{Difference, Stall, disks_used};
use super::{Act, Decision, Look, Rules, Why};

/// One part of so many of the machine: the first limit.
const FIRST: u64 = 8;
/// One part of so many of the machine: how much it grows at a time.
const STEP: u64 = 16;
/// How often it looks.
const EVERY: Nanos = Nanos::secs(1);

/// The controller.
#[derive(Clone, Debug)]
pub struct Cgroup {
    rules: Rules,
    stopper: Stopper,
    looked: Nanos,
    critical: Vec<Stall>,
    moved: Vec<Difference>,
    waited: Vec<Difference>,
    limits: Vec<Option<Bytes>>,
}

impl Cgroup {
    /// One that looks every second from `now` on, whatever the policy's interval.
    #[must_use]
    pub fn new(rules: &Rules, now: Nanos) -> Self {
        let neighbours = rules.allows.len();
        Self {
            rules: rules.clone(),
            stopper: Stopper::new(&rules.allows),
            looked: now,
            critical: vec![Stall::default(); rules.measured.len()],
            moved: vec![Difference::default(); neighbours],
            waited: vec![Difference::default(); neighbours],
            limits: vec![None; neighbours],
        }
    }

    /// When the next look is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.looked.plus(EVERY)
    }

    /// Decides.
    pub fn step(&mut self, now: Nanos, look: &Look, decisions: &mut Vec<Decision>) {
        let span = now.since(self.looked);
        self.looked = now;
        let others = disks_used(&mut self.moved, &look.neighbours);
        let shares = self.critical.iter_mut().zip(&look.critical);
        let share = shares
            .map(|(stall, group)| stall.share(group, span, (true, others)))
            .max();
        let calm = share.is_none_or(|share| share <= self.rules.release);
        let total = look.machine.total.0;
        let step = total / STEP;
        let kept: u64 = look.critical.iter().map(|c| c.file.0).sum();
        let mut spare = look.machine.available.0.saturating_sub(kept);
        for (i, neighbour) in look.neighbours.iter().enumerate() {
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
        self.stopper.step(look, decisions);
    }

    /// Lets go on who is stopped, once nothing can be seen for too long.
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        self.stopper.blind(now, decisions);
    }
}
