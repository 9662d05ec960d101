//! What a program has done, by counters.

/// What a program has done until a moment: counters, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Nanoseconds of CPU time.
    pub cpu_ns: u64,
    /// Core cycles while it ran.
    pub cycles: u64,
    /// Instructions.
    pub instructions: u64,
    /// Transactions with main memory: lines.
    pub memory: u64,
    /// Loads and stores at the first-level cache.
    pub first_level: u64,
}

impl Work {
    /// What was done after `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            cycles: self.cycles.saturating_sub(before.cycles),
            instructions: self.instructions.saturating_sub(before.instructions),
            memory: self.memory.saturating_sub(before.memory),
            first_level: self.first_level.saturating_sub(before.first_level),
        }
    }

    /// Both together.
    #[must_use]
    pub const fn with(self, more: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns + more.cpu_ns,
            cycles: self.cycles + more.cycles,
            instructions: self.instructions + more.instructions,
            memory: self.memory + more.memory,
            first_level: self.first_level + more.first_level,
        }
    }

    /// Instructions per cycle, and transactions per microsecond of CPU time with memory and first
    /// level.
    #[must_use]
    pub fn figures(self) -> [f64; 3] {
        let us = self.cpu_ns.max(1) as f64 / 1e3;
        [
            self.instructions as f64 / self.cycles.max(1) as f64,
            self.memory as f64 / us,
            self.first_level as f64 / us,
        ]
    }
}
