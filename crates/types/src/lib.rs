//! The types that all parts of Quell use: units, CPU sets, identifiers, options, text, statistics,
//! random numbers.
//!
//! Nothing here reads a clock, a file, an environment variable or a random source: time arrives as
//! integer nanoseconds ([`units::Nanos`]), randomness as a seeded generator ([`rng::Rng`]).

pub mod address;
pub mod calendar;
pub mod cpuset;
pub mod ids;
pub mod journal;
pub mod mechanism;
pub mod options;
pub mod pace;
pub mod pages;
pub mod partition;
pub mod refusal;
pub mod rng;
pub mod source;
pub mod spelled;
pub mod stats;
pub mod task;
pub mod text;
pub mod units;
pub mod windows;
pub mod witness;
