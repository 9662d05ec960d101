//! What the witness is to judge, in the policy's words.

use quell_types::cpuset::CpuSet;
use quell_types::ids::{GroupId, PromiseId};
use quell_types::options::CpuWeight;
use quell_types::partition::{Colouring, Mask};
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Nanos, Rate, Share};

pub use crate::disks::Disks;
pub use crate::traffic::Counted;

/// One promise of a plan, as a statement about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The promise's number within its plan.
    pub id: PromiseId,
    /// The group that the promise is made to, or whose use it bounds.
    pub group: GroupId,
    /// The statement.
    pub what: What,
}

impl Claim {
    /// Whether each thread of the machine, or of the group, has to be known.
    pub(crate) const fn is_about_tasks(&self) -> bool {
        matches!(
            self.what,
            What::Alone { .. }
                | What::Windows { .. }
                | What::Ways { .. }
                | What::Colours { .. }
                | What::Locked
                | What::Pages { .. }
        )
    }
}

/// The statement of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Only the group's tasks run on these CPUs.
    Alone {
        /// The kernel's numbers of the CPUs.
        cpus: CpuSet,
    },
    /// The group's tasks get at most this share of CPU time, by the kernel's own account.
    CpuTime {
        /// 100 % is one CPU.
        share: Share,
        /// The period of what limits it, in which a group may draw its share at once.
        period: Nanos,
        /// As much more as what limits it may let through, of the share.
        tolerance: Share,
    },
    /// The group's CPU time has this weight where others want a CPU, too.
    Weight {
        /// The weight.
        weight: CpuWeight,
        /// How many cgroups have to have it, from the group's own upwards: the kernel weighs
        /// siblings. `None`: all, so that it counts against every program.
        levels: Option<usize>,
    },
    /// Groups run on these CPUs in turn, each in its windows of a frame, and no other task
    /// does.
    Windows {
        /// The kernel's numbers of the CPUs.
        cpus: CpuSet,
        /// After how long the windows begin again.
        frame: Nanos,
        /// The groups, with the time of their windows in each frame.
        groups: Vec<(GroupId, Nanos)>,
    },
    /// The group's tasks move at most so much to and from memory, by counters of the witness's own.
    Traffic {
        /// Bytes per second.
        most: Rate,
        /// What counts it on each CPU of the group.
        counted: Vec<Counted>,
    },
    /// The group has at most this memory.
    Memory {
        /// All that is charged to the group's cgroups, pages of files included.
        most: Bytes,
    },
    /// Only the group, and the groups that share with it, fill these ways (resctrl).
    Ways {
        /// The level of the caches.
        level: u32,
        /// The ways, the same in every cache of the level on which the group runs.
        mask: Mask,
        /// Groups whose tasks may fill them, too.
        shared_with: Vec<GroupId>,
    },
    /// Only CPUs of the group, and of groups that share with it, fill these ways, by the
    /// processor's registers.
    WayRegisters {
        /// The level of the caches.
        level: u32,
        /// The ways.
        mask: Mask,
        /// Groups whose CPUs may fill them, too.
        shared_with: Vec<GroupId>,
    },
    /// Private pages of the group have these colours.
    Colours {
        /// How pages have colours.
        colouring: Colouring,
        /// The group's.
        colours: CpuSet,
        /// New pages have them. Else they are moved a moment later.
        at_birth: bool,
    },
    /// The kernel keeps so much memory of the group's cgroups.
    Kept {
        /// In bytes.
        size: Bytes,
    },
    /// All memory of the group's processes is locked.
    Locked,
    /// These files are in memory.
    Cached {
        /// Their paths.
        files: Vec<String>,
    },
    /// The group's anonymous memory lies in large pages, or in small ones.
    Pages {
        /// Whether in large ones.
        large: bool,
    },
    /// The group waits for memory at most this share of the time.
    Stall {
        /// Time waited ÷ all time.
        most: Share,
    },
    /// What the kernel's files say of the group's disks.
    Disks(Disks),
    /// The witness has no way to see whether this holds, for this reason (a sentence without its
    /// end).
    Invisible(&'static str),
}

/// A group as the policy names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// Its name.
    pub name: GroupId,
    /// The policy's match tables. Empty: only `homes` say which tasks are the group's.
    pub matching: Vec<TaskMatch>,
    /// Paths of the cgroup directories in which the group's tasks have to be, or below which, such
    /// as `/sys/fs/cgroup/cpuset/quell.slice/a`. In a hierarchy with several of them, a task may be
    /// in any. Empty: the tasks are those that match.
    pub homes: Vec<String>,
    /// CPUs on which its tasks may run. Empty: the policy does not say.
    pub cpus: CpuSet,
}
