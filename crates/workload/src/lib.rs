//! The generators as real programs: a dependent list walk (`latency`), streams (`stream`), several
//! lists side by side (`parallel`), lines churned through a cache (`churn`), stores at a stride
//! (`stores`), a real-time task (`periodic`), the two stages of a video call (`frames`), a detector
//! and what takes memory from it (`pressure`), calls that flush per-CPU kernel work ([`flush`]), a
//! detector of the times a CPU does not run a thread ([`overrun`]), a request server with its
//! client (`requests`), an open-loop client of a request server ([`open_loop`]); what a runner
//! speaks with a generator in a child process ([`serve()`]); what `quell bench` shows
//! ([`bench()`]); and measurements of the machine itself: whether two CPUs share a cache now
//! ([`probe`]) and the rates it reaches ([`measure`]); and with these the rest of what `quell
//! doctor --deep` finds out ([`deep`]).
//!
//! The method follows IsolBench (CSL-KU): a victim walking a list beside streams. What is added is
//! percentiles over short windows, because an average hides bursts shorter than a regulation
//! period, and target rates.
//!
//! Bytes are *program bytes*: what the instructions read and wrote. The line that a plain store
//! fetches first, and its later write-back, are not in them; a copy counts the byte read and the
//! byte written.

mod account;
pub mod affinity;
mod arch;
pub mod bench;
mod cacheline;
mod churn;
mod clock;
pub mod deep;
mod error;
mod factory;
pub mod flush;
mod frames;
mod generator;
mod kernels;
mod latency;
mod lattice;
mod list;
mod load;
pub mod measure;
mod memory;
mod misses;
mod node;
#[cfg(test)]
mod noise;
pub mod open_loop;
pub mod overrun;
mod pagemap;
mod parallel;
mod periodic;
mod pressure;
pub mod probe;
mod procfs;
mod requests;
mod resolved;
pub mod serve;
mod stores;
mod stream;
mod windows;

pub use bench::{BenchOptions, BenchReport, bench};
pub use error::Error;
pub use memory::huge_pages;
pub use resolved::{Load, ResolvedWorkload};
pub use serve::{ServeOptions, serve};
