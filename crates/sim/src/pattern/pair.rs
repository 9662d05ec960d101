//! Two lines that are read in turn, from memory each time.

use crate::access::{Access, Effect};

/// Reads each line and flushes it from the caches. The next read waits for the one before.
#[derive(Clone, Debug)]
pub struct Pair {
    lines: (u64, u64),
    step: u8,
}

impl Pair {
    /// Of the lines at these virtual addresses.
    #[must_use]
    pub fn new(one: u64, other: u64) -> Self {
        let lines = (one, other);
        Self { lines, step: 0 }
    }

    /// Accesses of a round, flushes included.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        4
    }

    pub(super) fn next_access(&mut self) -> Access {
        let step = self.step;
        self.step = (step + 1) % 4;
        let flushes = step % 2 == 1;
        Access {
            address: if step < 2 { self.lines.0 } else { self.lines.1 },
            effect: if flushes { Effect::Flush } else { Effect::Use },
            dependent: !flushes,
            ..Access::default()
        }
    }
}
