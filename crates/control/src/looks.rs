//! How often to look where page frames lie: less often the longer nothing was amiss. A look costs
//! time for each page, and the kernel seldom moves pages.

use quell_types::units::Nanos;

/// Looking takes at most one in so many parts of the time.
pub const SHARE: u64 = 400;
/// The pause between two looks after one that found something amiss.
pub const SHORTEST: Nanos = Nanos::secs(10);
/// The longest pause between two looks that take little time.
pub const LONGEST: Nanos = Nanos::secs(80);

/// The pause before the next look.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    pause: Nanos,
}

impl Default for Looks {
    fn default() -> Self {
        Self { pause: SHORTEST }
    }
}

impl Looks {
    /// After a look that took so long, and found something amiss or did not.
    pub fn after(&mut self, took: Nanos, amiss: bool) -> Nanos {
        self.pause = match amiss {
            true => SHORTEST,
            false => Nanos(self.pause.0 * 2).min(LONGEST),
        };
        self.pause.max(Nanos(took.0.saturating_mul(SHARE)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn looks_become_rare_while_nothing_is_amiss(
            looks in proptest::collection::vec((0u64..1_000_000_000, any::<bool>()), 1..40),
        ) {
            let (mut pauses, mut before) = (Looks::default(), SHORTEST);
            for (took, amiss) in looks {
                let pause = pauses.after(Nanos(took), amiss);
                let least = Nanos(took * SHARE);
                prop_assert!(pause >= least && pause >= SHORTEST);
                prop_assert!(pause <= LONGEST.max(least));
                let wanted = if amiss { SHORTEST } else { LONGEST.min(Nanos(before.0 * 2)) };
                prop_assert_eq!(pause, wanted.max(least));
                before = wanted;
            }
        }
    }
}
