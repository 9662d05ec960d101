//! Policies by their names.

use quell_types::options::SchedulerPolicy;
use quell_types::units::Nanos;

use super::Scheduler;
use super::bandwidth_aware::BandwidthAware;
use super::bounded::Bounded;
use super::contention::Contention;
use super::fair::Fair;
use super::linux::Linux;
use super::pair::Pair;
use super::progress::Progress;
use super::random::Random;
use super::recorded::{self, Recorded};
use super::select::Select;
use super::worst::Worst;

/// What some policies need to know.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// What the machine can do.
    pub contention: Contention,
    /// For how long a decision holds.
    pub quantum: Nanos,
    /// Quanta that a member waits at most, where the policy bounds that.
    pub bound: u32,
    /// For what is drawn.
    pub seed: u64,
}

/// The policy of that name.
#[must_use]
pub fn named(policy: SchedulerPolicy, known: Known) -> Box<dyn Scheduler + Send> {
    match policy {
        SchedulerPolicy::Linux => Box::new(Linux::new(known.seed)),
        SchedulerPolicy::LinuxRecorded => {
            let kernel = recorded::kernel();
            Box::new(Recorded::new(kernel, known.quantum, known.seed))
        }
        SchedulerPolicy::Random => Box::new(Random::new(known.seed)),
        SchedulerPolicy::Worst => Box::new(Worst),
        SchedulerPolicy::BandwidthAware => Box::new(BandwidthAware),
        SchedulerPolicy::Select => Box::new(Select),
        SchedulerPolicy::Pair => Box::new(Pair),
        SchedulerPolicy::Bounded => Box::new(Bounded::new(known.bound)),
        SchedulerPolicy::Progress => Box::new(Progress),
        SchedulerPolicy::Fair => Box::new(Fair::new(known.contention, known.bound)),
    }
}
