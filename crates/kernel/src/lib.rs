//! The kernel's interfaces: one thin module each.
//!
//! Every reader and writer of kernel files takes its root ([`root::Files`]), so that captured
//! machines and the model of the kernel (`fake`, for tests) stand where the kernel does. Nothing
//! here decides, and nothing here knows how a change is undone.

pub mod affinity;
mod arch;
pub mod below;
pub mod cached_file;
pub mod cgroup;
pub mod cpuinfo;
pub mod cpuset;
pub mod error;
pub mod fair;
#[cfg(feature = "fake")]
pub mod fake;
pub mod freezer;
pub mod io;
pub mod irq;
pub mod memory;
pub mod oom;
pub mod own;
pub mod perf;
pub mod pidfd;
pub mod pmu;
pub mod procfs;
pub mod psi;
pub mod remaining;
pub mod resctrl;
pub mod root;
pub mod rt;
pub mod signals;
pub mod spent;
pub mod stat;
pub mod sysctl;
pub mod tasks;
pub mod topology;
pub mod value;
pub mod vm;
pub mod workqueue;

/// Whether we may change the machine at all.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this thread may do what the bit of a capability stands for (`capability.h`).
#[must_use]
pub fn is_capable(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|bits| bits & (1 << capability) != 0)
}

/// Whether we may change the machine: root in a container is root by name only.
#[must_use]
pub fn may_change() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    is_root() && is_capable(CAP_SYS_ADMIN)
}

/// Whether a file may be executed by us.
#[must_use]
pub fn is_executable(path: &std::path::Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
