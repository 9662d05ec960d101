//! The session byte by byte: the contract between the program, which writes, and Quell, which reads. `docs/client.md` is its
//! description for others; this is the one place the code takes it from.
//!
//! A memory file of [`SIZE`] bytes, sealed against shrinking, growing and further seals, in the machine's byte order: a page with the header,
//! then a ring of [`SLOTS`] slots of four 64-bit words. Everything a program writes is a 64-bit word at a multiple of eight.

/// The environment variable that names the session's file descriptor, in decimal.
pub const VARIABLE: &str = "QUELL_SESSION";
/// At offset 0.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"quellses");
/// At offset 8: raised when a program of another version could not write it.
pub const VERSION: u64 = 1;
/// Slots of the ring.
pub const SLOTS: u64 = 1024;
/// The whole session in bytes.
pub const SIZE: usize = HEADER + 1024 * SLOT;

/// Bytes of the header and of a slot.
pub(crate) const HEADER: usize = 4096;
pub(crate) const SLOT: usize = 32;

/// Words of the header, by offset in bytes. The first line is written by Quell before the program has it.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    /// What the policy's target is, in nanoseconds; 0: none.
    pub(crate) const DEADLINE: usize = 16;
    /// The process that writes; 0: nobody yet.
    pub(crate) const OWNER: usize = 64;
    /// What the program says of itself: bytes that a unit moves, bytes of its working set; 0: it does not say.
    pub(crate) const BYTES_PER_UNIT: usize = 72;
    pub(crate) const WORKING_SET: usize = 80;
    /// Units written so far.
    pub(crate) const HEAD: usize = 128;
}

/// Words of a slot. `NUMBER` is the unit's, from 1; 0 while the slot is being written.
pub(crate) mod slot {
    pub(crate) const NUMBER: usize = 0;
    /// When the unit ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) const ENDED: usize = 8;
    /// How long it took.
    pub(crate) const TOOK: usize = 16;
    /// How long it was to take at most; 0: the program does not say.
    pub(crate) const TARGET: usize = 24;
}

/// Where the slot of a unit begins, counted from 0.
pub(crate) const fn slot_of(unit: u64) -> usize {
    HEADER + (unit % SLOTS) as usize * SLOT
}
