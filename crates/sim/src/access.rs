//! One access to memory, and the sizes that it is counted in.

/// Bits of a virtual address. Programs are numbered above them.
pub const ADDRESS_BITS: u32 = 48;
/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes of a cache line. Programs step by it: one access per line, as the published benchmarks
/// count.
pub const LINE: u64 = 64;

/// What an access has the memory system do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The access uses the line, through the caches.
    #[default]
    Use,
    /// A store to memory past the caches, which lose the line.
    Past,
    /// The line is written back if any cache has it modified. The caches keep it.
    WriteBack,
    /// The line is written back if any cache has it modified. All caches lose it.
    Flush,
}

/// One access of a program to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Virtual, in the program's own address space from 0.
    pub address: u64,
    /// Whether it writes; otherwise it reads.
    pub write: bool,
    /// What becomes of the line.
    pub effect: Effect,
    /// Whether the next access must wait for the data of this one.
    pub dependent: bool,
    /// Core cycles that the program computes before it.
    pub compute: u32,
    /// Instructions since the access before, the accessing one included. 0 for a further access of
    /// the same instruction. `None`: one per cycle computed, and one for the access.
    pub instructions: Option<u32>,
    /// Whether it begins a unit of work (a frame). It waits until the unit is due.
    pub begins: bool,
    /// Whether it is to the program's code, stack or page tables, and not to its data.
    pub own: bool,
}

impl Access {
    /// Takes `cycles` of what is computed before it. Returns the instructions of that time: as many
    /// in each cycle, that of the access included.
    #[inline]
    pub fn compute(&mut self, cycles: u32) -> u32 {
        let cycles = cycles.min(self.compute);
        let all = self.instructions.unwrap_or(self.compute.saturating_add(1));
        let part = u64::from(all) * u64::from(cycles) / (u64::from(self.compute) + 1);
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        self.compute -= cycles;
        self.instructions = Some(all - part);
        part
    }
}
