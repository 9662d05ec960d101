//! The Linux backend: what a plan sets and reverts on this machine, the brakes, and the journal
//! with its watchdog.

pub mod ancestor_limits;
pub mod backend;
pub mod bpf;
pub mod brake;
pub mod capture;
pub mod change;
mod children;
mod clients;
pub mod colours;
mod deputy;
mod disks;
pub mod dispatcher;
pub mod drift;
pub mod enforce;
pub mod fault;
pub mod group_cgroups;
mod heirs;
mod host;
pub mod journal;
pub mod known;
pub mod lease;
pub mod lock;
mod memory_lock;
pub mod meter;
pub mod placement;
pub mod pool;
mod probe;
pub mod profile;
pub mod resident;
pub mod rest;
pub mod restore;
pub mod ring;
mod sampler;
pub mod session;
mod tee;
mod twin;
pub mod undo;
mod units;
mod unsettle;
pub mod watchdog;
pub mod ways;
mod without;
mod work;
pub mod writer;

pub use children::shell_status;
