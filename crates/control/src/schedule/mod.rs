//! Which processes run in the next quantum, and which of them share a core. Every policy is a
//! [`Scheduler`]: pure, values in and a decision out.
//!
//! One quantum: the caller reads each process's counters and fills in one [`Member`] per runnable
//! process. [`Scheduler::decide`] then says which of them run, each on which hardware thread. The
//! caller stops the others, and counts up how long they have waited.
//!
//! What the policies have in common:
//!
//! - No hardware thread stays idle while a member waits.
//! - A member has at most one hardware thread.
//! - Members that have waited equally long are ordered as the caller lists them.
//! - Cores are alike, and so are the hardware threads of a core.
//!
//! `docs/design/smt-scheduling.md` has each policy's source and its deviations from it.

pub mod allocation;
pub mod bandwidth_aware;
pub mod bounded;
pub mod contention;
pub mod fair;
pub mod grouping;
pub mod linux;
pub mod named;
pub mod oracle;
pub mod pair;
pub mod progress;
pub mod random;
pub mod recorded;
pub mod select;
pub mod selection;
#[cfg(test)]
mod tests;
pub mod within;
pub mod worst;

/// The processor's cores. All have the same number of hardware threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// How many cores there are.
    pub count: usize,
    /// Hardware threads of each core.
    pub threads: usize,
}

impl Cores {
    /// All hardware threads.
    #[must_use]
    pub fn seats(self) -> usize {
        self.count * self.threads
    }
}

/// What was measured of a process that runs alone on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alone {
    /// Main-memory transactions per microsecond, on average over its whole execution.
    pub memory: f64,
    /// Instructions per cycle, in the part of its work that it is in.
    pub ipc: f64,
    /// Time of its whole execution, in seconds.
    pub time: f64,
}

/// A runnable process, before the quantum that is to be decided. Policies read only what they
/// need.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Member {
    /// What it did alone. All zero if that was not measured.
    pub alone: Alone,
    /// Main-memory transactions per microsecond, in the last quantum that it ran in. Zero if it
    /// has not run yet, as in the published algorithm.
    pub memory: f64,
    /// First-level transactions per microsecond, in the same quantum.
    pub first_level: f64,
    /// Instructions per cycle, in the same quantum.
    pub ipc: f64,
    /// What it has done, as the time that this takes alone, divided by the time since it became
    /// runnable. Waiting counts: 1 is as fast as alone, and 0 is nothing done.
    pub progress: f64,
    /// Quanta since it became runnable.
    pub age: u32,
    /// Quanta that it has waited since it last ran, or since it became runnable.
    pub waited: u32,
}

/// One hardware thread, and the member that runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// The core, from 0.
    pub core: usize,
    /// The hardware thread of the core, from 0.
    pub thread: usize,
    /// The member's place in the list that was passed in.
    pub member: usize,
}

/// A policy cannot decide for so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// How many there are.
    pub there: usize,
    /// How many the policy can take.
    pub most: usize,
}

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { there, most } = self;
        write!(
            f,
            "{there} are too many for this policy, which takes {most}"
        )
    }
}

impl std::error::Error for TooMany {}

/// A policy. It may keep state from one quantum to the next, such as its random numbers.
pub trait Scheduler {
    /// The policy's name in policies, experiments and results.
    fn name(&self) -> &'static str;

    /// Decides for one quantum. A core's seats are in the order of its hardware threads. Hardware
    /// threads without a member are left out.
    ///
    /// # Errors
    /// If the policy cannot decide for so many members. Only the exhaustive one cannot.
    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany>;
}
