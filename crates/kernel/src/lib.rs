//! The kernel's interfaces: one thin module each.
//!
//! Every reader and writer of kernel files takes its root ([`root::Files`]). So captured machines
//! and the model of the kernel (`fake`, for tests) can replace the kernel. No decision is made
//! here, and nothing here knows how a change is reverted.

pub mod affinity;
mod arch;
pub mod births;
pub mod cached_file;
mod candidate;
pub mod cgroup;
pub mod cgroup_limits;
pub mod cgroup_tree;
pub mod cpu_accounting;
pub mod cpuinfo;
pub mod cpuset;
pub mod disks;
pub mod error;
pub mod fair;
#[cfg(feature = "fake")]
pub mod fake;
pub mod frames;
pub mod freezer;
mod helper;
pub mod identity;
pub mod io;
pub mod irq;
mod kcmp;
pub mod left_out;
pub mod limit;
pub mod maps;
pub mod memory;
pub mod msr;
pub mod node_memory;
pub mod oom;
pub mod page_cache;
pub mod pagemap;
pub mod paging;
pub mod perf;
pub mod pidfd;
pub mod pmu;
pub mod privileges;
mod process_memory;
pub mod procfs;
pub mod psi;
mod ptrace;
mod reader;
pub mod reading;
pub mod real_time;
pub mod refused;
pub mod relocate;
pub mod remaining;
pub mod resctrl;
pub mod root;
pub mod rt;
mod seccomp;
pub mod self_usage;
pub mod sharing;
pub mod signals;
pub mod stat;
mod stopped;
pub mod switches;
pub mod sysctl;
pub mod tasks;
pub mod topology;
pub mod trace;
pub mod traceable;
pub mod uffd;
pub mod value;
mod vdso;
pub mod vm;
pub mod workqueue;
pub mod zram;

/// Whether the effective user is root, perhaps of a container.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this thread has an effective capability, by its bit in `capability.h`.
#[must_use]
pub fn is_capable(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|bits| bits & (1 << capability) != 0)
}

/// Whether this process may change the machine. Root in a container is root by name only, without
/// CAP_SYS_ADMIN.
#[must_use]
pub fn may_change() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    is_root() && is_capable(CAP_SYS_ADMIN)
}

/// Whether this process may execute a file.
#[must_use]
pub fn is_executable(path: &std::path::Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
