//! A thread of the model, with what `/proc` and the cgroups show of it.

use quell_types::cpuset::CpuSet;

#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub tgid: u32,
    pub parent: u32,
    pub start: u64,
    pub comm: String,
    pub args: Vec<String>,
    pub user: u32,
    pub state: char,
    pub flags: u64,
    /// Whether its policy is SCHED_FIFO.
    pub realtime: bool,
    /// The CPUs of its last `sched_setaffinity(2)`. `None` where it made none, or the kernel forgot
    /// them.
    pub asked: Option<CpuSet>,
    /// The CPUs that it may run on.
    pub allowed: CpuSet,
    /// Bytes of anonymous memory. That of a process is with its leader.
    pub anonymous: u64,
    pub oom_score_adj: i32,
    /// Files that it has open, from descriptor 3 on.
    pub open: Vec<String>,
    /// Its cgroup in each hierarchy, in the order of the trees.
    pub places: Vec<String>,
}

impl Task {
    pub fn dead(&self) -> bool {
        self.state == 'Z'
    }
}

pub(crate) const PF_KTHREAD: u64 = 0x0020_0000;
pub(crate) const PF_EXITING: u64 = 0x0000_0004;
pub(crate) const PF_NO_SETAFFINITY: u64 = 0x0400_0000;
