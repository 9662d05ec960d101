//! Streams that store past the caches, or from one half of a buffer to the other.

use crate::access::{Access, Effect, LINE};

/// Goes over the lines in order, again and again. A copy loads a line from the first half of the
/// buffer, then stores it to the second.
#[derive(Clone, Debug)]
pub struct Stream {
    /// How many lines a round stores.
    lines: u64,
    at: u64,
    copies: bool,
    /// Whether the line's load is done and its store comes next.
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

    /// Copies the first half of `bytes` to the second; `past`: with stores past the caches.
    #[must_use]
    pub fn copy(bytes: u64, past: bool) -> Self {
        Self::over(bytes / LINE / 2, true, past)
    }

    /// Stores past the caches over all of `bytes`.
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
