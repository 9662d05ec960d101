//! How much of the time a critical group waited. Taken from differences of sums (`total=`): the
//! averages that the kernel offers move every two seconds and span ten.

use quell_types::units::{Nanos, Share};

use super::{Critical, Neighbour};

/// The time that is counted for reading back one page that was taken, at most. Where a disk access
/// takes 10 ms, it brings about ten pages.
const COMES_BACK: Nanos = Nanos::millis(1);

/// A sum that is sampled again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Difference {
    last: Option<u64>,
}

impl Difference {
    /// What was added since the last sample. Zero at the first one, and where the sum began anew.
    pub fn of(&mut self, sum: u64) -> u64 {
        let last = self.last.replace(sum);
        last.map_or(0, |last| sum.saturating_sub(last))
    }
}

/// What one critical group waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stall {
    memory: Difference,
    io: Difference,
    refaults: Difference,
}

impl Stall {
    /// The share of `span` for which the group waited. `short`: memory is short. `others`:
    /// neighbours used the disks and are to be limited for that.
    ///
    /// Waiting for input and output counts only while memory is short. Before that, pages that come
    /// back were taken earlier, and no limit would bring them sooner. It counts as far as pages
    /// that were taken and came back can explain it ([`COMES_BACK`] each). Where `others` is set
    /// all of it counts. A program that reads something for the first time waits, too, without
    /// fault of a neighbour.
    pub fn share(&mut self, group: &Critical, span: Nanos, short: bool, others: bool) -> Share {
        let memory = self.memory.of(group.memory_stall.0);
        let io = self.io.of(group.io_stall.0);
        let refaults = self.refaults.of(group.refaults);
        let back = refaults.saturating_mul(COMES_BACK.0);
        let io = match (short, others) {
            (false, _) => 0,
            (true, false) => io.min(back),
            (true, true) => io,
        };
        Share::ratio(memory.saturating_add(io), span.0).min(Share::WHOLE)
    }
}

/// Whether any neighbour used the disks since the last sample.
pub(super) fn disks_used(moved: &mut [Difference], neighbours: &[Neighbour]) -> bool {
    let mut used = false;
    for (moved, neighbour) in moved.iter_mut().zip(neighbours) {
        used |= moved.of(neighbour.io) > 0;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_reads_count_only_for_limited_groups() {
        let span = Nanos::millis(1000);
        let sample = |io, refaults| Critical {
            io_stall: Nanos::millis(io),
            refaults,
            ..Critical::default()
        };
        let share = |before, after, others| {
            let mut stall = Stall::default();
            stall.share(&before, span, true, others);
            stall.share(&after, span, true, others)
        };
        assert_eq!(share(sample(0, 5), sample(400, 5), false), Share(0));
        assert_eq!(
            share(sample(0, 5), sample(400, 5), true),
            Share::percent(40)
        );
        assert_eq!(
            share(sample(0, 5), sample(400, 15), false),
            Share::percent(1)
        );
        assert_eq!(
            share(sample(0, 5), sample(400, 500), false),
            Share::percent(40)
        );

        let mut plenty = Stall::default();
        plenty.share(&sample(0, 5), span, false, true);
        let waited = Critical {
            memory_stall: Nanos::millis(50),
            ..sample(400, 500)
        };
        let counted = plenty.share(&waited, span, false, true);
        assert_eq!(
            counted,
            Share::percent(5),
            "memory was waited for, whatever there is"
        );
    }
}
