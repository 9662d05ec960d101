//! What changes the machine: one file for each mechanism. Each change goes through [`Hands`](crate::change::Hands), which
//! record it first, so that it can be taken back.

pub mod affinity;
pub mod cache;
pub mod cores;
pub mod cpumax;
pub mod freezer;
pub mod memory;
pub mod quiet;
pub mod stop;
pub mod threaded;
pub mod weight;
