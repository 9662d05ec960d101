//! The generators as real programs, and measurements of the machine.
//!
//! | module | is |
//! |---|---|
//! | `latency` | a dependent list walk |
//! | `stream` | streams |
//! | `parallel` | several lists, walked in turn |
//! | `churn` | lines churned through a cache |
//! | `stores` | stores at a stride |
//! | `lattice` | a lattice-Boltzmann stream |
//! | `periodic` | a real-time task |
//! | `frames` | the two stages of a video call |
//! | `pressure` | a detector, and programs that take memory from it |
//! | [`flush`] | calls that flush per-CPU kernel work |
//! | [`overrun`] | finds when a CPU does not run a thread |
//! | `requests` | a request server with its client |
//! | [`open_loop`] | an open-loop client of a request server |
//! | [`serve()`] | the protocol between a runner and a generator in a child process |
//! | [`bench()`] | what `quell bench` shows |
//! | [`probe`] | whether two CPUs share a cache now |
//! | [`measure`] | the rates that the machine reaches |
//! | [`deep`] | the other measurements of `quell doctor --deep` |
//!
//! The method follows IsolBench (CSL-KU): a victim walks a list next to streams. Quell adds target
//! rates, and percentiles over short windows. An average would hide bursts shorter than a
//! regulation period.
//!
//! Bytes are *program bytes*: what the instructions read and wrote. The line that a plain store
//! fetches first, and its later write-back, are not included. A copy counts the byte read and the
//! byte written.

mod account;
pub mod affinity;
mod arch;
pub mod bench;
mod cacheline;
mod churn;
mod clock;
mod counted;
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
