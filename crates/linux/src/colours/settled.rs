//! What became of moving the pages of a process.

use quell_types::units::{Bytes, Nanos};

/// How it came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// How long all threads were stopped, each time.
    pub stops: Vec<Nanos>,
    /// Pages that were moved. One that was moved twice counts twice.
    pub moved: u64,
    /// Pages that the kernel refused to move.
    pub refused: u64,
    /// Chunks that were not begun because a thread did not stop in time, or none could do a call.
    pub busy: u64,
    /// The most memory that was held to find frames.
    pub held: Bytes,
    /// Why the kernel does not move some pages at all.
    pub kept: Option<String>,
    /// Why it ended before all pages were tried. `None`: it did not.
    pub ended: Option<String>,
}

impl Settled {
    /// The times within which these percentages of the stops were over. 0 where there was none.
    #[must_use]
    pub fn stopped<const N: usize>(&self, percent: [usize; N]) -> [Nanos; N] {
        let mut sorted = self.stops.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        percent.map(|percent| {
            let one = sorted.get((last * percent).div_ceil(100));
            one.copied().unwrap_or_default()
        })
    }
}
