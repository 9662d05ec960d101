//! What the witness is to judge, in the policy's words.

use quell_types::cpuset::CpuSet;
use quell_types::ids::{GroupId, PromiseId};
use quell_types::partition::Mask;
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Nanos, Share};

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
        /// The period of the kernel's quota, in which a group may draw its share at once.
        period: Nanos,
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
    /// The witness has no way to see whether this holds.
    Invisible,
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
