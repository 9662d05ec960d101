//! The Linux backend: one module per kernel interface, the brakes, and the journal with its watchdog.
//!
//! Every reader and writer of kernel files takes its root ([`root::Files`]), so that captured machines and models of the
//! kernel stand where the kernel does.

pub mod above;
mod arch;
pub mod backend;
pub mod below;
pub mod bpf;
pub mod brake;
pub mod capture;
pub mod cgroup;
pub mod change;
mod children;
mod clients;
pub mod cpuset;
mod deputy;
mod drift;
pub mod enforce;
pub mod error;
pub mod fair;
#[cfg(feature = "fake")]
pub mod fake;
pub mod fault;
pub mod home;
pub mod io;
pub mod irq;
pub mod journal;
pub mod kept;
pub mod lease;
pub mod lock;
pub mod memory;
pub mod meter;
pub mod oom;
pub mod own;
pub mod perf;
pub mod pidfd;
pub mod pmu;
pub mod pool;
mod probe;
pub mod procfs;
pub mod profile;
pub mod psi;
pub mod remaining;
pub mod resctrl;
pub mod resident;
pub mod rest;
pub mod restore;
pub mod ring;
pub mod root;
pub mod rt;
mod sampler;
pub mod session;
pub mod signals;
mod spent;
pub mod sysctl;
pub mod tasks;
mod tee;
pub mod topology;
mod twin;
pub mod undo;
mod units;
mod value;
pub mod vm;
pub mod watchdog;
pub mod ways;
pub mod workqueue;
pub mod writer;

pub use children::shell_status;

/// Whether we may change the machine at all.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a file may be executed by us.
#[must_use]
pub fn is_executable(path: &std::path::Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
