//! The content of `/proc/PID/stat` (proc_pid_stat(5)).

use quell_types::task::TaskId;
use quell_types::text::steers;
use quell_types::units::Bytes;

/// Kernel thread (`PF_KTHREAD`, include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;
/// Getting shut down (`PF_EXITING`, include/linux/sched.h).
const PF_EXITING: u64 = 0x0000_0004;
/// User space may not change the affinity (`PF_NO_SETAFFINITY`).
const PF_NO_SETAFFINITY: u64 = 0x0400_0000;

/// Thread that the kernel has started in a program, for io_uring (`PF_IO_WORKER`).
const PF_IO_WORKER: u64 = 0x0000_0010;

/// The fields of the `stat` of a process or thread that Quell needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Number and start time (clock ticks since boot).
    pub id: TaskId,
    /// The command name, at most 15 bytes; control characters are `?`.
    pub comm: String,
    /// State letter (`R S D T t Z X I`).
    pub state: char,
    /// Process id of the parent.
    pub parent: u32,
    /// The kernel's flags of the task (`PF_*`).
    pub flags: u64,
    /// Number of threads in the process.
    pub threads: u32,
    /// The CPU that it last ran on.
    pub last_cpu: u32,
    /// Page faults that read nothing from a disk. For a process those of all its threads, for a
    /// thread its own.
    pub minor_faults: u64,
    /// Page faults that read from a disk, counted as `minor_faults`.
    pub major_faults: u64,
    /// Bytes of resident memory, including file pages. The kernel rounds it by some tens of pages
    /// per thread.
    pub resident: Bytes,
}

impl Stat {
    /// Whether it is a kernel thread.
    #[must_use]
    pub fn kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Whether it is a thread of a program that runs the kernel's code alone: it never returns to
    /// the program, so it can do no system call for anybody.
    #[must_use]
    pub fn io_worker(&self) -> bool {
        self.flags & PF_IO_WORKER != 0
    }

    /// Whether the kernel has bound it: neither its affinity nor its cpuset can be changed.
    #[must_use]
    pub fn bound(&self) -> bool {
        self.flags & PF_NO_SETAFFINITY != 0
    }

    /// Whether it is dead, though perhaps not reaped.
    #[must_use]
    pub fn dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Whether all of a process is dead. A process whose first thread has ended reads as dead while
    /// others run.
    #[must_use]
    pub fn over(&self) -> bool {
        self.dead() && self.threads <= 1
    }

    /// Whether it is dead or ending: it runs no program any more. The kernel accepts a move of such
    /// a task to another cgroup and leaves it where it is (`cgroup_migrate_add_task`). An end may
    /// last, where much memory is given back.
    #[must_use]
    pub fn leaving(&self) -> bool {
        self.dead() || self.flags & PF_EXITING != 0
    }

    /// Whether it is this very task (number and start time), and alive. A zombie is not.
    #[must_use]
    pub fn is_alive(&self, task: TaskId) -> bool {
        self.id.start == task.start && !self.dead()
    }

    /// Parses a `stat`. The command name may contain spaces and parentheses itself: it ends at the
    /// *last* closing one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (pid, rest) = text.split_once(" (")?;
        let (comm, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // `fields[0]` is field 3 of the manual page.
        let field = |number: usize| fields.get(number - 3).copied();
        let pages: u64 = field(24).and_then(|f| f.parse().ok()).unwrap_or(0);
        Some(Self {
            id: TaskId {
                pid: pid.trim().parse().ok()?,
                start: field(22)?.parse().ok()?,
            },
            // Chosen by the process: on a terminal it is text and nothing else.
            comm: comm.replace(steers, "?"),
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            minor_faults: field(10)?.parse().ok()?,
            major_faults: field(12)?.parse().ok()?,
            resident: Bytes(pages.saturating_mul(rustix::param::page_size() as u64)),
            last_cpu: field(39).and_then(|f| f.parse().ok()).unwrap_or(0),
        })
    }
}
