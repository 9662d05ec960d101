//! Certain lines in a certain order.

use crate::access::{Access, Effect};

/// Goes over lines in their order, again and again. A read waits for the one before.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    lines: Vec<u64>,
    effect: Effect,
    at: usize,
}

impl Walk {
    /// Reads the lines at these virtual addresses, or flushes them from the caches. Without a line
    /// it takes that at 0.
    #[must_use]
    pub fn new(lines: Vec<u64>, effect: Effect) -> Self {
        let at = 0;
        Self { lines, effect, at }
    }

    /// Accesses of a round.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.lines.len() as u64
    }

    pub(super) fn next_access(&mut self) -> Access {
        let address = self.lines.get(self.at).copied().unwrap_or_default();
        self.at = if self.at + 1 < self.lines.len() {
            self.at + 1
        } else {
            0
        };
        Access {
            address,
            effect: self.effect,
            dependent: self.effect == Effect::Use,
            ..Access::default()
        }
    }
}
