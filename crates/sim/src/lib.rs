//! The simulated machine: cores with bounded outstanding misses before the caches and DRAM of `quell-model`
//! ([`Machine`]), a page allocator ([`frames`]) and the generators as access patterns ([`pattern`]).
//!
//! A run is a function of its description and seed: integer time, one total order of events (time, then kind, then core,
//! then order of creation), no maps with an order of their own, an own generator of random numbers ([`random`]).
//!
//! Not here yet: the backend, tasks and throttling, counters with overflow; TLB ([`tlb`]), prefetcher ([`prefetch`]), machine profiles
//! ([`profile`]) and recorded traces ([`trace`]) are values that no machine uses yet.

pub mod frames;
mod machine;
pub mod pattern;
pub mod prefetch;
pub mod profile;
pub mod random;
pub mod tlb;
pub mod trace;

pub use machine::{CoreCounts, Description, Machine};
