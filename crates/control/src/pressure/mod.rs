//! The slow controllers of memory pressure (`[pressure]`): `quell` (ours), `latd` and `cgroup` (as
//! described by Channabasappa and Ravindran, experiments.md C). Pure: a [`Look`] at memory goes in
//! every interval, decisions come out.
//!
//! What they may touch is what [`Rules`] names: neighbours, by their number, and processes that a
//! look shows to be in one. A critical group has no way to be stopped, limited or killed by them:
//! no [`Act`] can name it, but to protect it.

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

/// Memory as it is at one moment. Times waited and counts are sums since some beginning:
/// differences tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Of the machine.
    pub machine: Machine,
    /// Of the critical groups, in the order of the plan.
    pub critical: Vec<Critical>,
    /// Of the groups that may be acted upon, in the order of the plan.
    pub neighbours: Vec<Neighbour>,
    /// The neighbours' processes, if they were asked for ([`Controller::wants_processes`]).
    pub processes: Vec<Process>,
}

/// The machine's memory; or, where a limit above all groups leaves them less (a slice's, a
/// container's, an experiment's), what there is of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// All of it.
    pub total: Bytes,
    /// What could be had without swapping, by the kernel's estimate: free, and pages of files.
    pub available: Bytes,
    /// Unused swap space.
    pub swap_free: Bytes,
    /// Below this the kernel begins to reclaim (zones' `low`, summed).
    pub low: Bytes,
    /// Up to this it does (zones' `high`, summed).
    pub high: Bytes,
    /// Share of the last ten seconds in which some task waited for memory, as the kernel averages
    /// it (PSI `avg10`).
    pub average: Option<Share>,
}

/// A critical group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Critical {
    /// Time in which some task of it waited for memory, so far.
    pub memory_stall: Nanos,
    /// Time in which some task of it waited for input or output, so far.
    pub io_stall: Nanos,
    /// What it uses.
    pub usage: Bytes,
    /// Of that, its programs' own.
    pub anonymous: Bytes,
    /// Of that, pages of files that it uses again and again: active ones, or mapped ones where
    /// those are more.
    pub file: Bytes,
    /// Pages of it that were reclaimed and came back soon, so far.
    pub refaults: u64,
    /// When a unit of its work last ended; absent: nobody tells.
    pub beat: Option<Nanos>,
}

/// A group that may be acted upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// What it uses.
    pub usage: Bytes,
    /// Of that, its programs' own: to be had by swapping or killing only.
    pub anonymous: Bytes,
    /// Pages that were reclaimed and came back soon, so far.
    pub refaults: u64,
    /// Bytes read from and written to disks so far.
    pub io: u64,
    /// Time in which some task of it waited for memory, so far; absent: nobody tells.
    pub stall: Option<Nanos>,
    /// Whether somebody lives in it.
    pub populated: bool,
    /// Whether it was frozen and goes on although nobody let it: its cgroup was made anew since the
    /// last look.
    pub thawed: bool,
}

/// A process of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Which.
    pub task: TaskId,
    /// Of which neighbour.
    pub neighbour: usize,
    /// How bad the kernel finds it.
    pub oom_score: u32,
    /// What it has in memory.
    pub resident: Bytes,
    /// Bytes read from and written to disks so far.
    pub io: u64,
    /// Page faults that waited for a disk, so far.
    pub major_faults: u64,
}

/// What a controller keeps to.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// How often it looks.
    pub interval: Nanos,
    /// Stall share of a critical group from which it acts.
    pub start: Share,
    /// Stall share up to which all is calm.
    pub release: Share,
    /// How long it waits between two steps.
    pub grace: Nanos,
    /// Of each critical group: whether its working set is measured, and its protection follows.
    pub measured: Vec<bool>,
    /// Of each neighbour.
    pub allows: Vec<Allows>,
}

/// What is done. Neighbours and critical groups by their number in the look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// So much of a critical group's memory is protected.
    Protect {
        /// Whose.
        critical: usize,
        /// How much.
        memory: Bytes,
    },
    /// A neighbour's limit moves; `None`: it has none.
    Limit {
        /// Whose.
        neighbour: usize,
        /// To.
        most: Option<Bytes>,
    },
    /// A neighbour is stopped whole.
    Freeze {
        /// Which.
        neighbour: usize,
    },
    /// It goes on.
    Thaw {
        /// Which.
        neighbour: usize,
    },
    /// Memory of a neighbour is reclaimed.
    Reclaim {
        /// Whose.
        neighbour: usize,
        /// How much.
        amount: Bytes,
    },
    /// A process is stopped.
    Stop(TaskId),
    /// It goes on.
    Continue(TaskId),
    /// A process is killed.
    Kill(TaskId),
}

/// An act and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What.
    pub act: Act,
    /// Why.
    pub why: Why,
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A critical group waited for so much of the time since the last look.
    Stalled(Share),
    /// The machine did, over ten seconds.
    Pressure(Share),
    /// So much is left that is not the critical groups'.
    Spare(Bytes),
    /// Nothing was short for a while.
    Calm,
    /// The longest it may be stopped is over.
    Bound,
    /// Units of work of the critical group do not end any more: it may wait for the one that is
    /// stopped.
    Heartbeat,
    /// It works on so much.
    WorkingSet,
    /// The neighbour waits for memory, and there is some.
    Wanted(Share),
    /// The neighbour is stopped, so that what it has can be had.
    WhileStopped,
    /// It is in none of the groups any more.
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
            Self::Gone => f.write_str("it is in none of the groups any more"),
        }
    }
}

/// One of the three.
#[derive(Clone, Debug)]
pub enum Controller {
    /// Ours.
    Quell(Box<Quell>),
    /// The latency daemon.
    Latd(Latd),
    /// Limits that grow.
    Cgroup(Cgroup),
}

impl Controller {
    /// The controller of a policy; `None` where there is to be none.
    #[must_use]
    pub fn new(kind: PressureController, rules: &Rules, now: Nanos) -> Option<Self> {
        Some(match kind {
            PressureController::Quell => Self::Quell(Box::new(Quell::new(rules, now))),
            PressureController::Latd => Self::Latd(Latd::new(rules, now)),
            PressureController::Cgroup => Self::Cgroup(Cgroup::new(rules, now)),
            PressureController::None => return None,
        })
    }

    /// When the next look is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        match self {
            Self::Quell(c) => c.next(),
            Self::Latd(c) => c.next(),
            Self::Cgroup(c) => c.next(),
        }
    }

    /// Whether the next look has to show processes: looking at them is dear.
    #[must_use]
    pub fn wants_processes(&self) -> bool {
        match self {
            Self::Quell(c) => c.wants_processes(),
            Self::Latd(_) | Self::Cgroup(_) => true,
        }
    }

    /// Memory cannot be seen now: nobody new is acted upon, and who is frozen or stopped goes on in
    /// time all the same. Decisions are appended. (The described ones know no longest stop; with
    /// them it begins with the first look that fails.)
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        match self {
            Self::Quell(c) => c.blind(now, decisions),
            Self::Latd(c) => c.blind(now, decisions),
            Self::Cgroup(c) => c.blind(now, decisions),
        }
    }

    /// Decides. Decisions are appended.
    pub fn step(&mut self, now: Nanos, look: &Look, decisions: &mut Vec<Decision>) {
        match self {
            Self::Quell(c) => c.step(now, look, decisions),
            Self::Latd(c) => c.step(now, look, decisions),
            Self::Cgroup(c) => c.step(now, look, decisions),
        }
    }
}
