//! One access to memory, and the sizes that it is counted in.

/// Bits of a virtual address. Programs are numbered above them.
pub const ADDRESS_BITS: u32 = 48;
/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes per step: one access per line, as the published benchmarks count.
pub const LINE: u64 = 64;

/// What an access has the memory system do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The line is used, through the caches.
    #[default]
    Use,
    /// The line is stored to memory past the caches, which lose it.
    Past,
    /// The line is written back, if any cache has it changed, and stays.
    WriteBack,
    /// The line is written back, if any cache has it changed, and leaves all of them.
    Flush,
}

/// One access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// A write.
    pub write: bool,
    /// What becomes of the line.
    pub effect: Effect,
    /// The next access needs what this one reads.
    pub dependent: bool,
    /// Core cycles that the program computes before it.
    pub compute: u32,
    /// It begins a unit of work (a frame), not before the unit is due: see
    /// [`Pattern::period`](crate::pattern::Pattern::period).
    pub begins: bool,
}
