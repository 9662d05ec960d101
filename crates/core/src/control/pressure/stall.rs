//! How much of the time somebody waited: differences of sums (`total=`), since the averages that the kernel offers move
//! every two seconds and span ten.

use super::{Critical, Neighbour};
use crate::units::{Nanos, Share};

/// A sum that is looked at again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Difference {
    last: Option<u64>,
}

impl Difference {
    /// What was added since the last look; nothing at the first, and where the sum began anew.
    pub fn of(&mut self, sum: u64) -> u64 {
        let last = self.last.replace(sum);
        last.map_or(0, |last| sum.saturating_sub(last))
    }
}

/// Of one critical group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    memory: Difference,
    io: Difference,
    refaults: Difference,
}

impl Stall {
    /// The share of `span` for which it waited. Waiting for input and output counts when pages came back that had been
    /// taken from it, or others used the disks meanwhile: a program that reads something for the first time waits, too,
    /// and nobody has to be held back for that.
    pub fn share(&mut self, group: &Critical, span: Nanos, others: bool) -> Share {
        let memory = self.memory.of(group.memory_stall.0);
        let io = self.io.of(group.io_stall.0);
        let refaults = self.refaults.of(group.refaults);
        let waited = if refaults > 0 || others {
            memory.saturating_add(io)
        } else {
            memory
        };
        Share::ratio(waited, span.0).min(Share::WHOLE)
    }
}

/// Whether any neighbour used the disks since the last look.
pub(super) fn disks_used(moved: &mut [Difference], neighbours: &[Neighbour]) -> bool {
    let mut used = false;
    for (moved, neighbour) in moved.iter_mut().zip(neighbours) {
        used |= moved.of(neighbour.io) > 0;
    }
    used
}
