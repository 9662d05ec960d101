//! Streams that store past the caches, or from one half of a buffer to the other.

use crate::access::{Access, Effect, LINE};

/// Line after line, round and round: loaded from the first half of the buffer if it copies, and
/// stored.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Lines of a round.
    lines: u64,
    at: u64,
    copies: bool,
    /// Between a line's load and its store.
    loaded: bool,
    effect: Effect,
}

impl Stream {
    fn over(lines: u64, copies: bool, past: bool) -> Self {
        Self {
            lines: lines.max(1),
            at: 0,
            copies,
            loaded: false,
            effect: if past { Effect::Past } else { Effect::Use },
        }
    }

    /// From the first half of `bytes` to the second, the stores past the caches or through them.
    #[must_use]
    pub fn copy(bytes: u64, past: bool) -> Self {
        Self::over(bytes / LINE / 2, true, past)
    }

    /// Stores past the caches, all over `bytes`.
    #[must_use]
    pub fn past(bytes: u64) -> Self {
        Self::over(bytes / LINE, false, true)
    }

    pub(super) fn next_access(&mut self) -> Access {
        if self.copies && !self.loaded {
            self.loaded = true;
            return Access {
                address: self.at * LINE,
                ..Access::default()
            };
        }
        let to = if self.copies { self.lines } else { 0 };
        let address = (to + self.at) * LINE;
        self.loaded = false;
        self.at = if self.at + 1 == self.lines {
            0
        } else {
            self.at + 1
        };
        Access {
            address,
            write: true,
            effect: self.effect,
            ..Access::default()
        }
    }
}
