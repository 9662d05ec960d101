//! The simulated machine, from its profile to the engine's trait.
//!
//! | part | is |
//! |---|---|
//! | [`profile`], [`board`] | what a profile describes, and the machine built from it |
//! | [`Machine`] | cores with bounded misses before the caches and DRAM of `quell-model` |
//! | [`tlb`], [`prefetch`] | the TLB and the prefetcher of a core |
//! | [`frames`] | the page allocator |
//! | [`pattern`] | the generators as access patterns |
//! | [`os`] | a small operating system |
//! | [`Sim`] | all of it behind the engine's trait |
//! | [`banks`] | its address map, recovered by timing |
//! | [`recorded`] | real programs as figures of their runs |
//! | [`coarse`] | many programs for minutes, without single accesses |
//!
//! A run depends only on its description, its seed and the calls made. Time is an integer. All
//! events have one total order: time, then kind, then core, then order of creation. No map has an
//! order of its own, and random numbers come from [`quell_types::rng::SplitMix`].

pub mod access;
mod backend;
pub mod banks;
pub mod board;
pub mod coarse;
pub mod frames;
mod machine;
pub mod os;
pub mod pattern;
pub mod prefetch;
pub mod profile;
pub mod recorded;
pub mod sets;
pub mod tlb;
pub mod trace;

pub use backend::Sim;
pub use machine::{
    CLASSES, CoreCounts, Counts, Description, LEVELS, Machine, Met, Program, Raised, Unit,
};
