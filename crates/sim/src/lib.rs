//! The simulated machine: what a profile describes ([`profile`]), built ([`board`]): cores with
//! bounded outstanding misses, a TLB ([`tlb`]) and a prefetcher ([`prefetch`]) before the caches
//! and DRAM of `quell-model` ([`Machine`]), a page allocator ([`frames`]), the generators as access
//! patterns ([`pattern`]), a small operating system ([`os`]), and all of it behind the engine's
//! trait ([`Sim`]).
//!
//! A run is a function of its description, its seed and what is asked of it: integer time, one
//! total order of events (time, then kind, then core, then order of creation), no maps with an
//! order of their own, an own generator of random numbers ([`quell_types::rng::SplitMix`]).

pub mod access;
mod backend;
pub mod board;
pub mod frames;
mod machine;
pub mod os;
pub mod pattern;
pub mod prefetch;
pub mod profile;
pub mod tlb;
pub mod trace;

pub use backend::Sim;
pub use machine::{
    CLASSES, CoreCounts, Counts, Description, LEVELS, Machine, Program, Raised, Unit,
};
