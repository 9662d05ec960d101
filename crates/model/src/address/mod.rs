//! Physical addresses: which set, slice, channel, rank, bank, row and column an address selects,
//! and what follows from that for partitioning by page.
//!
//! Method: every output bit is the parity of some address bits, `parity(address & mask)`. That form
//! is published for Intel, AMD and Arm memory controllers, and for last-level caches with a power
//! of two of slices (DRAMA, Pessl et al., USENIX Security 2016; Maurice et al., RAID 2015). Such
//! functions are vectors over GF(2). So linear algebra ([`gf2`]) answers questions of partitioning:
//! how many colours a page size leaves, which bits bank and cache colours share, which frames have
//! a colour.
//!
//! Left out: the non-linear slice hashes of processors that have another number of slices than a
//! power of two. Any other number of sets or channels is taken as a plain remainder. That spreads
//! as evenly, but not in the same order.

pub mod gf2;

mod colour;
mod function;
mod map;

pub use colour::{Colours, Joint};
pub use function::{Functions, bits};
pub use map::{AddressMap, Field, Fields, Location};
