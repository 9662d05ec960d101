//! Physical addresses: functions of their bits, and what follows from them for dividing memory by
//! page. Which cache set, channel or bank an address selects is such a function.
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
pub mod published;
pub mod recovery;

mod colour;
mod function;
mod ranges;
mod regions;
mod written;

pub use colour::{Colours, Joint, large_shift};
pub use function::{Functions, bits, of_index};
pub use ranges::{Ranges, constant};
pub use regions::{BankMap, Region};
pub use written::{ADDRESS_BITS, BitFunctions};
