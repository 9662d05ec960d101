//! The pure core of Quell: what is wanted (policy, experiment), what there is (inventory), what will be done
//! (plan), how it is decided (controllers), and what the numbers mean (statistics).
//!
//! Nothing here reads a clock, a file, an environment variable or a random source: time arrives as integer
//! nanoseconds ([`units::Nanos`]), randomness as a seeded generator ([`rng::Rng`]).

pub mod attribution;
pub mod backend;
pub mod bits;
pub mod calendar;
pub mod control;
pub mod cpuset;
pub mod deep;
pub mod demand;
pub mod experiment;
pub mod ids;
pub mod inventory;
pub mod journal;
pub mod lab;
pub mod measurement;
pub mod mechanism;
pub mod options;
pub mod pace;
pub mod partition;
pub mod plan;
pub mod planner;
pub mod policy;
pub mod record;
pub mod result;
pub mod rng;
pub mod source;
pub mod standing;
pub mod stats;
pub mod task;
pub mod text;
pub mod units;
pub mod ways;
pub mod windows;
pub mod workload;
