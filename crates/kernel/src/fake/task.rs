//! A thread of the model.

use quell_types::cpuset::CpuSet;

/// A thread.
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
    /// Real-time (SCHED_FIFO).
    pub realtime: bool,
    /// What it asked for by `sched_setaffinity(2)`.
    pub asked: Option<CpuSet>,
    /// Where it may run.
    pub allowed: CpuSet,
    /// Memory of its own, bytes; of a process that of its leader.
    pub anonymous: u64,
    pub oom_score_adj: i32,
    /// Files that it has open, from descriptor 3 on.
    pub open: Vec<String>,
    /// Its cgroup in each hierarchy.
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
