//! A real-time task: released at a fixed interval, each job a pass over a buffer.

use crate::access::{Access, LINE};

/// One load every `step` bytes of the buffer, then the next job. The loads do not depend on each
/// other, as in the program on Linux.
#[derive(Clone, Debug)]
pub struct Task {
    bytes: u64,
    step: u64,
    /// Picoseconds between two releases.
    period: u64,
    at: u64,
}

impl Task {
    /// Passes over `bytes` in steps of `step` (at least one), every `period` picoseconds.
    #[must_use]
    pub fn new(bytes: u64, step: u64, period: u64) -> Self {
        Self {
            bytes: bytes.max(LINE),
            step: step.max(1),
            period: period.max(1),
            at: 0,
        }
    }

    pub(super) fn period(&self) -> u64 {
        self.period
    }

    pub(super) fn next_access(&mut self) -> Access {
        let address = self.at;
        self.at += self.step;
        if self.at >= self.bytes {
            self.at = 0;
        }
        Access {
            address,
            begins: address == 0,
            ..Access::default()
        }
    }
}
