//! How many ways of a cache a group gets, by what it misses.
//!
//! Method: a program's need is its miss curve, misses against ways. Without shadow tags (UCP:
//! Qureshi and Patt, "Utility-Based Cache Partitioning", MICRO 2006) only the current point of it
//! can be seen. So ways are tried, as in dCat (Xu et al., EuroSys 2018):
//!
//! - When all is calm, the group gives one way back.
//! - If its misses then rise by more than is tolerated, it has that way again at the next sample.
//! - A rise without a trial means that the program works on something else. It gets all the ways it
//!   may have at once, what was learned of its curve is forgotten, and ways are given back again
//!   one by one.
//! - Programs that miss alike with any number of ways (streams) come down to the least.
//!
//! What keeps it from oscillating:
//!
//! - Misses are compared with the fewest seen since the program works on what it does, not with
//!   those before the last step. So small rises do not add up.
//! - Each failed trial doubles the time to the next one, as long as the program does not change.
//! - After the group got ways it is not judged until it has filled them.
//!
//! [`Boundary`](crate::config::Boundary) turns a number of ways into masks. The ways given back lie
//! next to those of the best-effort groups, so that no mask gets a hole.

use quell_types::units::{Nanos, Rate};

/// Samples without a rise after which a way is given back.
const CALM: u32 = 10;
/// Samples that are not judged after the group got ways: it fills them meanwhile.
const FILL: u32 = 3;
/// Each failed trial doubles the calm before the next one, at most this many times.
const PATIENCE: u32 = 6;
/// A rise within this many samples after a change of work belongs to that change: it does not reset
/// the count of failed trials.
const AFTER: u32 = CALM;

/// The bounds and the tolerance of one [`Sizer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Time between two samples; at least 1 ns.
    pub interval: Nanos,
    /// Ways that the group keeps in any case: at least what a mask must have.
    pub least: u32,
    /// Ways that it has at most, and at first.
    pub most: u32,
    /// How much more it may draw from memory than the least it drew with more ways.
    pub tolerated: Rate,
}

/// A change of the number of ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Ways before the change.
    pub from: u32,
    /// Ways from the change on.
    pub to: u32,
    /// What caused the change.
    pub why: Why,
}

/// Why a group's number of ways changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It missed no more than with more ways: it gives one way back on trial.
    Calm,
    /// The trial left too few ways, and is reverted.
    Missed {
        /// What it drew from memory during the trial.
        drew: Rate,
        /// The least it drew with more ways.
        with_more: Rate,
    },
    /// It misses more than before without having lost a way: it works on something else.
    Changed {
        /// What it draws from memory now.
        draws: Rate,
        /// The least it drew before.
        before: Rate,
    },
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Calm => f.write_str("it misses no more than with more ways"),
            Self::Missed { drew, with_more } => {
                let (drew, with_more) = (whole(*drew), whole(*with_more));
                write!(f, "it drew {drew} with them, and {with_more} with more")
            }
            Self::Changed { draws, before } => {
                let (draws, before) = (whole(*draws), whole(*before));
                write!(
                    f,
                    "it draws {draws} instead of {before}: it works on something else"
                )
            }
        }
    }
}

/// Rounds a rate down to whole MB/s, for a sentence.
fn whole(rate: Rate) -> Rate {
    Rate(rate.0 / 1_000_000 * 1_000_000)
}

/// The controller of one group's number of ways.
#[derive(Clone, Debug)]
pub struct Sizer {
    rules: Rules,
    ways: u32,
    at: Nanos,
    /// Bytes drawn so far, at the last sample. `None` at first, and after a sample that failed.
    drawn: Option<u64>,
    /// The least that it drew since it works on what it does.
    best: Option<Rate>,
    /// Samples in a row without a rise.
    calm: u32,
    /// Samples still to come that are not judged, while ways fill.
    filling: u32,
    /// Samples since the last change of work.
    same: u32,
    /// The last step was a trial, and it is not over.
    trying: bool,
    /// Failed trials since the last change of work, at most [`PATIENCE`].
    failed: u32,
}

impl Sizer {
    /// Begins with all the ways that the group may have.
    #[must_use]
    pub fn new(rules: &Rules, now: Nanos) -> Self {
        let rules = Rules {
            least: rules.least.min(rules.most),
            interval: Nanos(rules.interval.0.max(1)),
            ..*rules
        };
        Self {
            ways: rules.most,
            rules,
            at: now,
            drawn: None,
            best: None,
            calm: 0,
            filling: FILL,
            same: 0,
            trying: false,
            failed: 0,
        }
    }

    /// The number of ways that the group has now.
    #[must_use]
    pub const fn ways(&self) -> u32 {
        self.ways
    }

    /// When the next sample is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.at.plus(self.rules.interval)
    }

    /// To be called where a sample failed: the next one only starts a new difference.
    pub fn blind(&mut self, now: Nanos) {
        self.at = now;
        self.drawn = None;
    }

    /// Takes a sample: the bytes that the group has drawn from memory so far. `Some`: ways change.
    pub fn sample(&mut self, now: Nanos, drawn: u64) -> Option<Step> {
        let span = now.since(self.at).0;
        let before = self.drawn.replace(drawn);
        self.at = now;
        let before = before?;
        if span == 0 {
            return None;
        }
        let rate = u128::from(drawn.saturating_sub(before)) * 1_000_000_000 / u128::from(span);
        let rate = Rate(u64::try_from(rate).unwrap_or(u64::MAX));
        self.same = self.same.saturating_add(1);
        let best = self.best.unwrap_or(rate);
        let rose = rate.0 > best.0.saturating_add(self.rules.tolerated.0);
        if rose && self.trying {
            // The way that the trial gave back was needed.
            self.failed = (self.failed + 1).min(PATIENCE);
            self.trying = false;
            let why = Why::Missed {
                drew: rate,
                with_more: best,
            };
            return self.go(self.ways + 1, why);
        }
        if self.filling > 0 {
            self.filling -= 1;
            return None;
        }
        if rose {
            return self.changed(rate, best);
        }
        self.best = Some(best.min(rate));
        self.calm += 1;
        if self.calm >= CALM {
            // A trial that failed would have shown it by now.
            self.trying = false;
        }
        if self.calm < CALM << self.failed || self.ways <= self.rules.least {
            return None;
        }
        self.trying = true;
        let step = self.go(self.ways - 1, Why::Calm);
        self.filling = 0;
        step
    }

    /// It works on something else, which begins with misses whatever ways it has.
    fn changed(&mut self, rate: Rate, before: Rate) -> Option<Step> {
        if self.same > AFTER {
            self.failed = 0;
        }
        self.same = 0;
        self.best = None;
        self.calm = 0;
        self.filling = FILL;
        let why = Why::Changed {
            draws: rate,
            before,
        };
        self.go(self.rules.most, why)
    }

    fn go(&mut self, to: u32, why: Why) -> Option<Step> {
        let from = self.ways;
        self.ways = to.clamp(self.rules.least, self.rules.most);
        self.calm = 0;
        self.filling = FILL;
        (from != self.ways).then_some(Step {
            from,
            to: self.ways,
            why,
        })
    }
}

#[cfg(test)]
#[path = "ways_tests.rs"]
mod tests;
