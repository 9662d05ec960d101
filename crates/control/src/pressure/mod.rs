//! The slow controllers of memory pressure (`[pressure]`): `quell` (this project's), `latd` and
//! `cgroup` (both as Channabasappa and Ravindran describe them). They are pure: a [`Sample`] of
//! memory goes in every interval, decisions come out.
//!
//! They may act on what [`Rules`] names: neighbours, by their number, and processes that a sample
//! shows to be in one. They cannot stop, limit or kill a critical group: the only [`Act`] that
//! names one protects it.

mod ceiling;
mod cgroup;
mod latd;
#[cfg(test)]
mod plant;
mod quell;
mod rank;
mod stall;
#[cfg(test)]
mod tests;
mod working;

use crate::config::Allows;
use std::fmt;

use quell_types::options::PressureController;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos, Share};

pub use cgroup::Cgroup;
pub use latd::Latd;
pub use quell::{LONGEST_FREEZE, Quell, reserve};
pub use working::WorkingSet;

/// A sample of memory at one moment. Times waited and counts are sums from an arbitrary beginning,
/// so only their differences mean anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The machine, or the limit above all groups.
    pub machine: Machine,
    /// The critical groups, in the order of the plan.
    pub critical: Vec<Critical>,
    /// The groups that may be acted upon, in the order of the plan.
    pub neighbours: Vec<Neighbour>,
    /// The neighbours' processes, if they were asked for ([`Controller::wants_processes`]).
    pub processes: Vec<Process>,
}

/// The machine's memory. Where a limit above all groups leaves them less (a slice's, a container's,
/// an experiment's), it is what that limit allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// All memory, used or not.
    pub total: Bytes,
    /// What could be had without swapping, by the kernel's estimate: free memory and pages of
    /// files.
    pub available: Bytes,
    /// Swap space that is not used yet.
    pub swap_free: Bytes,
    /// What was swapped out into compressed memory, before compression.
    pub compressed: Bytes,
    /// The memory that it takes there.
    pub compressed_takes: Bytes,
    /// Below this the kernel begins to reclaim (the zones' `low`, summed).
    pub low: Bytes,
    /// Up to this the kernel reclaims (the zones' `high`, summed).
    pub high: Bytes,
    /// Share of the last ten seconds in which some task waited for memory, as the kernel averages
    /// it (PSI `avg10`). `None`: the kernel does not report it.
    pub average: Option<Share>,
}

/// One critical group in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Critical {
    /// Time in which some task of it waited for memory, so far.
    pub memory_stall: Nanos,
    /// Time in which all its tasks waited for memory at once, so far. Nothing is decided by it.
    pub memory_full: Nanos,
    /// Time in which some task of it waited for input or output, so far.
    pub io_stall: Nanos,
    /// All memory that is charged to it.
    pub usage: Bytes,
    /// Of `usage`, its programs' own memory.
    pub anonymous: Bytes,
    /// Of `usage`, pages of files that it uses again and again: the active ones, or the mapped ones
    /// where those are more.
    pub file: Bytes,
    /// Pages of it that were reclaimed and came back soon, so far.
    pub refaults: u64,
    /// When a unit of its work last ended. `None`: units are not reported.
    pub unit_end: Option<Nanos>,
}

/// A group that may be acted upon, in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// All memory that is charged to it.
    pub usage: Bytes,
    /// Of `usage`, its programs' own memory: only swapping or killing frees it.
    pub anonymous: Bytes,
    /// Pages that were reclaimed and came back soon, so far.
    pub refaults: u64,
    /// Bytes read from and written to disks so far.
    pub io: u64,
    /// Time in which some task of it waited for memory, so far. `None`: it is not reported.
    pub stall: Option<Nanos>,
    /// Whether there is a process in it.
    pub populated: bool,
    /// Whether it was frozen and runs again without a thaw: its cgroup was made anew since the last
    /// sample.
    pub thawed: bool,
}

/// A process of a neighbour, in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process: its PID and start time.
    pub task: TaskId,
    /// The number of its neighbour in [`Sample::neighbours`].
    pub neighbour: usize,
    /// The kernel's `oom_score`; higher is worse.
    pub oom_score: u32,
    /// Memory that it has resident.
    pub resident: Bytes,
    /// Bytes read from and written to disks so far.
    pub io: u64,
    /// Page faults that waited for a disk, so far.
    pub major_faults: u64,
}

/// The parameters of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Time between two samples.
    pub interval: Nanos,
    /// Stall share of a critical group from which it acts.
    pub start: Share,
    /// Stall share up to which all is calm.
    pub release: Share,
    /// How long it waits between two steps.
    pub grace: Nanos,
    /// Of each critical group: whether its working set is measured, and its protection follows.
    pub measured: Vec<bool>,
    /// Of each neighbour: what may be done to it.
    pub allows: Vec<Allows>,
}

/// An act. Neighbours and critical groups are named by their number in the [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Protects memory of a critical group.
    Protect {
        /// Number of the group.
        critical: usize,
        /// How much is protected from now on.
        memory: Bytes,
    },
    /// Moves a neighbour's limit.
    Limit {
        /// Number of the neighbour.
        neighbour: usize,
        /// The new limit; `None`: no limit.
        most: Option<Bytes>,
    },
    /// Stops a whole neighbour.
    Freeze {
        /// Number of the neighbour.
        neighbour: usize,
    },
    /// Resumes a frozen neighbour.
    Thaw {
        /// Number of the neighbour.
        neighbour: usize,
    },
    /// Reclaims memory of a neighbour.
    Reclaim {
        /// Number of the neighbour.
        neighbour: usize,
        /// How much is to be reclaimed.
        amount: Bytes,
    },
    /// Forbids to swap out more of a neighbour's memory, as long as the plan holds.
    KeepUnswapped {
        /// Number of the neighbour.
        neighbour: usize,
    },
    /// Stops one process of a neighbour (SIGSTOP).
    Stop(TaskId),
    /// Resumes a stopped process.
    Continue(TaskId),
    /// Kills one process of a neighbour.
    Kill(TaskId),
}

/// An act and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is to be done.
    pub act: Act,
    /// What made the controller decide so.
    pub why: Why,
}

/// Why something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A critical group waited for this share of the time since the last sample.
    Stalled(Share),
    /// Some task of the machine waited for this share of ten seconds.
    Pressure(Share),
    /// This much is left that the critical groups do not have.
    Spare(Bytes),
    /// Nothing was short for a while.
    Calm,
    /// The longest stop is over.
    Bound,
    /// No unit of work of the critical group ends any more: it may wait for the process or group
    /// that is stopped.
    Heartbeat,
    /// A critical group's working set was measured anew.
    WorkingSet,
    /// The neighbour waits for memory for this share of the time, and there is room.
    Wanted(Share),
    /// The neighbour is stopped, so its memory can be reclaimed.
    WhileStopped,
    /// What is swapped out takes this share of its size in compressed memory.
    Incompressible(Share),
    /// The process is in none of the groups any more.
    Gone,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled(share) => write!(f, "the critical group waited {share} of the time"),
            Self::Pressure(share) => write!(f, "some task waited {share} of ten seconds"),
            Self::Spare(bytes) => write!(f, "{bytes} are left that are not the critical group's"),
            Self::Calm => f.write_str("nothing was short for a while"),
            Self::Bound => f.write_str("the longest stop is over"),
            Self::Heartbeat => {
                f.write_str("no unit of the critical group ends: it may wait for the one stopped")
            }
            Self::WorkingSet => f.write_str("what it works on, as measured"),
            Self::Wanted(share) => write!(f, "it waited {share} of the time, and there is room"),
            Self::WhileStopped => f.write_str("it is stopped"),
            Self::Incompressible(share) => {
                write!(
                    f,
                    "what is swapped out takes {share} of its size in memory again"
                )
            }
            Self::Gone => f.write_str("it is in none of the groups any more"),
        }
    }
}

/// One of the three controllers.
#[derive(Clone, Debug)]
pub enum Controller {
    /// This project's own; see its module.
    Quell(Box<Quell>),
    /// The latency daemon, as described.
    Latd(Latd),
    /// Limits that grow, as described.
    Cgroup(Cgroup),
}

impl Controller {
    /// The controller that a policy names; `None` where it names none.
    #[must_use]
    pub fn new(kind: PressureController, rules: &Rules, now: Nanos) -> Option<Self> {
        Some(match kind {
            PressureController::Quell => Self::Quell(Box::new(Quell::new(rules, now))),
            PressureController::Latd => Self::Latd(Latd::new(rules, now)),
            PressureController::Cgroup => Self::Cgroup(Cgroup::new(rules, now)),
            PressureController::None => return None,
        })
    }

    /// When the next sample is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        match self {
            Self::Quell(c) => c.next(),
            Self::Latd(c) => c.next(),
            Self::Cgroup(c) => c.next(),
        }
    }

    /// Whether the next sample has to show processes. Reading them is expensive.
    #[must_use]
    pub fn wants_processes(&self) -> bool {
        match self {
            Self::Quell(c) => c.wants_processes(),
            Self::Latd(_) | Self::Cgroup(_) => true,
        }
    }

    /// To be called when a sample fails. No group or process is newly acted upon. What is frozen or
    /// stopped still resumes in time. Appends to `decisions`.
    ///
    /// The described controllers have no longest stop; theirs begins with the first sample that
    /// fails.
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        match self {
            Self::Quell(c) => c.blind(now, decisions),
            Self::Latd(c) => c.blind(now, decisions),
            Self::Cgroup(c) => c.blind(now, decisions),
        }
    }

    /// Decides by one sample. Appends to `decisions`.
    pub fn step(&mut self, now: Nanos, sample: &Sample, decisions: &mut Vec<Decision>) {
        match self {
            Self::Quell(c) => c.step(now, sample, decisions),
            Self::Latd(c) => c.step(now, sample, decisions),
            Self::Cgroup(c) => c.step(now, sample, decisions),
        }
    }
}
