//! What all neighbours may use together, judged by how long the critical groups wait.
//!
//! It falls at once, in proportion to the share of the time for which they waited. It rises
//! slowly: half-way to where they waited last, then in steps that shrink as memory is used up (like
//! the closed loop around a deadline, [`crate::deadline`]). Between `start` and `release` nothing
//! moves.
//!
//! A rise is a trial: if it fails, it costs a critical group a unit of work. So each failure
//! doubles the time that passes before the ceiling comes near where the groups waited, up to
//! [`LONGEST`]. Once the neighbours use more than that and no group waits, it halves.

use quell_types::units::{Nanos, Share};

use super::Rules;
use super::quell::PLENTY;

/// A cut needs this many samples to show an effect.
const SETTLES: u64 = 3;
/// What is cut at once at a stall share of 100 %, as a divisor of what the neighbours use.
const CUT: u64 = 4;
/// The smallest cut and rise, as a divisor of the machine's memory.
const STEP: u64 = 256;
/// Beyond where the groups waited last, the ceiling rises by this part of what is left below
/// `known`, as a divisor.
const BEYOND: u64 = 16;
/// How near to where the groups waited last a rise has to be tried; a divisor of that.
const NEAR: u64 = 16;
/// The longest time between two trials.
const LONGEST: Nanos = Nanos::secs(60);

/// What a sample says of all neighbours that may be limited. Memory is in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    /// For which share of the time since the last sample a critical group waited.
    pub share: Share,
    /// Since when no critical group waits. `None`: one does.
    pub calm_since: Option<Nanos>,
    /// What the neighbours use.
    pub used: u64,
    /// What they are left in any case.
    pub least: u64,
    /// What they may have by what the critical groups and the reserve leave.
    pub known: u64,
    /// The machine's memory.
    pub total: u64,
}

/// The ceiling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    bytes: Option<u64>,
    /// What the neighbours used, or the ceiling if less, when the critical groups waited last.
    tripped: u64,
    moved_at: Nanos,
    /// Whether it rose since it fell last.
    risen: bool,
    /// The time before a trial. Zero before one failed.
    patience: Nanos,
}

impl Ceiling {
    /// No bound yet.
    pub fn new(now: Nanos) -> Self {
        Self {
            bytes: None,
            tripped: 0,
            moved_at: now,
            risen: false,
            patience: Nanos(0),
        }
    }

    /// What the neighbours may use together, in bytes. `None`: no bound by waits.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Takes a sample.
    pub fn step(&mut self, rules: &Rules, now: Nanos, seen: &Together) {
        if seen.share >= rules.start {
            self.fall(rules, now, seen);
        } else {
            self.rise(rules, now, seen);
        }
    }

    fn fall(&mut self, rules: &Rules, now: Nanos, seen: &Together) {
        let settles = Nanos(rules.interval.0.saturating_mul(SETTLES));
        if self.bytes.is_some() && now.since(self.moved_at) < settles {
            return;
        }
        let from = self.bytes.unwrap_or(u64::MAX).min(seen.used);
        let cut = Share(seen.share.0 / CUT);
        let cut = u128::from(from) * u128::from(cut.0) / u128::from(Share::WHOLE.0);
        let cut = u64::try_from(cut).unwrap_or(from).max(seen.total / STEP);
        if std::mem::take(&mut self.risen) {
            let twice = Nanos(self.patience.0.saturating_mul(2));
            self.patience = twice.clamp(rules.grace.min(LONGEST), LONGEST);
        }
        self.tripped = from;
        self.bytes = Some(from.saturating_sub(cut).max(seen.least));
        self.moved_at = now;
    }

    fn rise(&mut self, rules: &Rules, now: Nanos, seen: &Together) {
        let Some(bytes) = self.bytes else {
            return;
        };
        // Half-way to where it was too much. From there on in small steps, or larger ones if
        // `known` shows that much more is left for the neighbours.
        let step = (self.tripped.saturating_sub(bytes) / 2)
            .max(seen.known.saturating_sub(bytes) / BEYOND)
            .max(seen.total / STEP);
        let to = bytes.saturating_add(step);
        let wait = if to > self.tripped - self.tripped / NEAR {
            rules.grace.max(self.patience)
        } else {
            rules.grace
        };
        let calm = seen
            .calm_since
            .is_some_and(|since| now.since(since) >= wait);
        if !calm || now.since(self.moved_at) < wait {
            return;
        }
        self.risen = true;
        if seen.used > self.tripped + self.tripped / NEAR {
            self.patience = Nanos(self.patience.0 / 2);
        }
        self.moved_at = now;
        // The neighbours use far less than the ceiling: it is removed.
        self.bytes = (to < seen.used.saturating_add(seen.total / PLENTY)).then_some(to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_types::units::Bytes;

    use super::*;

    fn rules() -> Rules {
        Rules {
            interval: Nanos::millis(20),
            start: Share::percent(5),
            release: Share::percent(2),
            grace: Nanos::millis(500),
            measured: vec![true],
            allows: Vec::new(),
        }
    }

    /// Neighbours that take whatever they may have, and a critical group that waits for half of a
    /// sample when they have more than `most`. Where the ceiling was, after each sample; when the
    /// group waited.
    fn play(most: impl Fn(Nanos) -> u64, samples: u64) -> (Vec<u64>, Vec<Nanos>) {
        let (rules, total) = (rules(), 512 << 20);
        let mut ceiling = Ceiling::new(Nanos(0));
        let (mut levels, mut waits, mut calm_since) = (Vec::new(), Vec::new(), None);
        let mut used: u64 = 0;
        for sample in 1..=samples {
            let now = Nanos::millis(20 * sample);
            used = (used + (2 << 20)).min(ceiling.bytes().unwrap_or(200 << 20));
            let waited = used > most(now);
            if waited {
                waits.push(now);
            }
            calm_since = (!waited).then(|| calm_since.unwrap_or(now));
            let seen = Together {
                share: Share::percent(if waited { 50 } else { 0 }),
                calm_since,
                used,
                least: 16 << 20,
                known: 150 << 20,
                total,
            };
            ceiling.step(&rules, now, &seen);
            levels.push(ceiling.bytes().unwrap_or(Bytes(total).0));
        }
        (levels, waits)
    }

    #[test]
    fn each_failed_trial_doubles_the_time_before_the_next() {
        let (levels, waits) = play(|_| 90 << 20, 6_000);
        let apart: Vec<Nanos> = waits.windows(2).map(|w| w[1].since(w[0])).collect();
        let trials: Vec<&Nanos> = apart.iter().filter(|a| **a > Nanos::millis(100)).collect();
        assert!(trials.is_sorted() && trials.len() <= 8, "{trials:?}");
        assert!(**trials.last().unwrap() > Nanos::secs(30), "{trials:?}");
        let late = &levels[3_000..];
        assert!(
            late.iter().all(|l| (70 << 20..=95 << 20).contains(l)),
            "the neighbours keep most of what they may have"
        );
    }

    #[test]
    fn it_follows_when_more_may_be_had() {
        let eased = Nanos::secs(20);
        let most = |now| if now < eased { 40 << 20 } else { 300 << 20 };
        let (levels, _) = play(most, 6_000);
        assert!(levels[999] < 45 << 20);
        assert!(levels[5_999] > 120 << 20, "{}", levels[5_999]);
    }

    proptest! {
        #[test]
        fn it_never_rises_while_a_group_waits(most in 20..150u64, later in 20..150u64) {
            let most = |now| if now < Nanos::secs(10) { most << 20 } else { later << 20 };
            let (levels, waits) = play(most, 2_000);
            for at in waits {
                let sample = usize::try_from(at.0 / 20_000_000).unwrap();
                prop_assert!(sample < 2 || levels[sample - 1] <= levels[sample - 2]);
            }
            prop_assert!(levels.iter().all(|l| *l >= 16 << 20));
        }
    }
}
