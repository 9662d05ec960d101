//! How many ways of a cache a group gets, by what it misses.
//!
//! Method: what is known of a program's need is its miss curve, misses against ways, of which only
//! the point it is at can be seen (without the shadow tags of UCP: Qureshi and Patt, "Utility-Based
//! Cache Partitioning", MICRO 2006). So, as in dCat (Xu et al., EuroSys 2018), ways are tried: when
//! all is calm the group gives one back, and if its misses rise by more than what is tolerated it
//! has it again at the next look. A rise that no trial explains means that it works on something
//! else: it gets all it may have at once, what was known of its curve is forgotten, and ways are
//! given back again one by one. Programs that miss alike with any number of ways (streams) come
//! down to the least.
//!
//! What keeps it from swinging: misses are compared with the fewest seen since the program works on
//! what it does, not with those before the last step, so that small rises do not add up; each
//! failed trial doubles the time to the next one, as long as the program does not change; and after
//! it got ways it is not judged until it has filled them.
//!
//! [`Boundary`](crate::config::Boundary) makes masks of a number: what is given back lies at the
//! side of those who get it, so that nobody's mask gets a hole.

use quell_types::units::{Nanos, Rate};

/// Looks without a rise after which a way is given back.
const CALM: u32 = 10;
/// Looks in which ways are filled after they were got.
const FILL: u32 = 3;
/// A failed trial doubles the calm that the next one waits for, up to so many times.
const PATIENCE: u32 = 6;
/// Rises within so many looks after a change of what it works on are part of it.
const AFTER: u32 = CALM;

/// What the controller goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How often it looks.
    pub interval: Nanos,
    /// Ways that the group has in any case: at least what a mask must have.
    pub least: u32,
    /// Ways that it has at most, and at first.
    pub most: u32,
    /// How much more it may draw from memory than it does with all of them.
    pub tolerated: Rate,
}

/// What is to be done, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Ways before.
    pub from: u32,
    /// Ways from now on.
    pub to: u32,
    /// Why.
    pub why: Why,
}

/// Why ways move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has missed no more with as many: one is tried to be left to the others.
    Calm,
    /// That was too few.
    Missed {
        /// What it drew from memory with them.
        drew: Rate,
        /// The least it drew with more.
        with_more: Rate,
    },
    /// It misses more than before without having lost any: it works on something else.
    Changed {
        /// What it draws from memory.
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

/// A rate for a sentence: whole MB/s.
fn whole(rate: Rate) -> Rate {
    Rate(rate.0 / 1_000_000 * 1_000_000)
}

/// Sizes one group's ways.
#[derive(Clone, Debug)]
pub struct Sizer {
    rules: Rules,
    ways: u32,
    at: Nanos,
    /// Bytes drawn so far, at the last look.
    drawn: Option<u64>,
    /// The least it drew since it works on what it does.
    best: Option<Rate>,
    /// Looks in a row without a rise.
    calm: u32,
    /// Looks that are not judged any more.
    filling: u32,
    /// Looks since the last change of what it works on.
    same: u32,
    /// The last step was a trial, and it is not over.
    trying: bool,
    /// Failed trials.
    failed: u32,
}

impl Sizer {
    /// Begins with all it may have.
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

    /// Its ways now.
    #[must_use]
    pub const fn ways(&self) -> u32 {
        self.ways
    }

    /// When the next look is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.at.plus(self.rules.interval)
    }

    /// A look that could not tell: the next one begins anew.
    pub fn blind(&mut self, now: Nanos) {
        self.at = now;
        self.drawn = None;
    }

    /// A look: the bytes that the group has drawn from memory so far.
    pub fn look(&mut self, now: Nanos, drawn: u64) -> Option<Step> {
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
            // It had enough with one more.
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
            // What a trial would have cost is known by now.
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

    /// It works on something else, which begins with misses however many ways it has.
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
