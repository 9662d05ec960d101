//! The slow controller behind `regulator.adapt = "deadline"`: what is left to the others follows
//! how late the units of work of one group are, so that its percentile stays inside its target and
//! the others get the rest.
//!
//! What acts is the others' budget: a critical group is never throttled, so what is reserved for it
//! is what they may not draw.
//!
//! Method: every unit is late or in time, and the share of late ones is steered, not a duration:
//! that needs no model of how durations follow the budget, and one stray late unit in a hundred is
//! what a percentile of 99 allows. The level to which the share of late units settles is that of
//! stochastic approximation of a quantile (Robbins and Monro 1951): a late unit takes [`FIRST_CUT`]
//! away, and is owed as many units in time as the percentile asks for each late one, and as many
//! again, before what was late is tried another time. Far from there that alone would be slow, so
//! that
//!
//! * late units that follow each other double the cut, up to half of everything: the reserve grows
//!   at once;
//! * the way back is a search: half-way to where it was late last, again and again, each time after
//!   [`JUDGED`] units in time, as in binary increase congestion control (Xu, Harfoush, Rhee,
//!   INFOCOM 2004), and no further than the durations seen at the last two budgets, drawn on as a
//!   line, leave room for. A step that turns out late is taken back whole;
//! * close to that ceiling, and beyond it, steps are small, and grow only as long as nothing is
//!   late.
//!
//! Only units that began after a change has settled tell of it. Without units nothing is known, and
//! nothing is changed.
//!
//! Who says what its units move is believed once, before anything is known ([`Deadline::guess`]):
//! the others then begin with what that leaves instead of with everything, and the first step from
//! there is a small one, to learn how durations follow.
//!
//! Time is counted in units, not in seconds, so that frames of 16 ms and jobs of 1 ms settle alike
//! in their own time.

use std::fmt;

use quell_types::units::{Nanos, Rate, Share};

/// Slow controllers decide no more often than this.
pub const SHORTEST: Nanos = Nanos::millis(10);

/// What one late unit after many in time takes away.
const FIRST_CUT: Share = Share::percent(2);

/// The most that is taken away at once.
const LARGEST_CUT: Share = Share::percent(50);

/// So many units in time, begun after a change, show that it was no mistake.
const JUDGED: u64 = 16;

/// As close to the ceiling as this is close.
const NEAR: Share = Share::percent(4);

/// A small step, and how much it grows at most while nothing is late.
const STEP: Share = Share(5_000);
const LARGEST_GROWTH: u64 = 16;

/// The first step from a guess: large enough to learn from.
const FIRST_STEP: Share = Share::percent(8);

/// Units in time for each late one: at most, for percentiles next to 100.
const LONGEST_PATIENCE: u64 = 20_000;

/// Late units that are outweighed at most: what made more of them late in a row is over some day,
/// and is not held against it.
const MOST_OWED: u64 = 4;

/// How long nothing may come before it is told: this long, or this many times as long as between
/// the last two.
const SILENT: Nanos = Nanos::secs(1);
const SILENT_UNITS: u64 = 20;

/// A unit of work of an application: a frame, a job, a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// When it ended, on the backend's clock.
    pub ended: Nanos,
    /// How long it took, from when it was due if it knows.
    pub took: Nanos,
    /// The longest it was to take, if the application says so.
    pub target: Option<Nanos>,
}

/// What is steered, and within what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The longest time per unit; absent: what each unit itself says.
    pub deadline: Option<Nanos>,
    /// Which share of the units must meet it.
    pub percentile: Share,
    /// What is left to the others at first and at most.
    pub most: Rate,
    /// What is left to them in any case.
    pub least: Rate,
    /// How long a change takes to come into force: their regulators' period.
    pub settles: Nanos,
}

/// Something to be done or told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// What is left to the others changes.
    Change {
        /// From.
        from: Rate,
        /// To.
        to: Rate,
        /// Why.
        why: Why,
    },
    /// Nothing has come since then: everything stays as it is.
    Silent {
        /// The end of the last unit.
        since: Nanos,
    },
    /// Units are late, and nothing can be taken away any more.
    Unmet {
        /// The slowest.
        took: Nanos,
        /// The longest it was to take.
        target: Nanos,
    },
}

/// Why a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Units were late.
    Late {
        /// How many since the last look.
        units: u64,
        /// The slowest.
        took: Nanos,
        /// The longest it was to take.
        target: Nanos,
    },
    /// A step back was too much, and is taken back.
    TooMuch {
        /// The slowest.
        took: Nanos,
        /// The longest it was to take.
        target: Nanos,
    },
    /// So many units in time.
    InTime {
        /// How many in a row.
        units: u64,
    },
    /// What units are said to move, before any has ended.
    Declared {
        /// The rate at which they then draw.
        need: Rate,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late {
                units: 1,
                took,
                target,
            } => write!(f, "a unit took {took} of {target}"),
            Self::Late {
                units,
                took,
                target,
            } => write!(f, "{units} units took up to {took} of {target}"),
            Self::TooMuch { took, target } => write!(
                f,
                "the last step was too much: a unit took {took} of {target}"
            ),
            Self::InTime { units } => write!(f, "{units} units in time"),
            Self::Declared { need } => write!(f, "its units are said to draw {need}"),
        }
    }
}

/// Durations against their targets, in millionths, of units in time at one budget.
#[derive(Clone, Copy, Debug, Default)]
struct Durations {
    units: u64,
    sum: u64,
    worst: u64,
}

impl Durations {
    fn take(&mut self, took: Nanos, target: Nanos) {
        let of = Share::ratio(took.0, target.0).0;
        self.units += 1;
        self.sum = self.sum.saturating_add(of);
        self.worst = self.worst.max(of);
    }

    fn add(&mut self, more: &Self) {
        self.units += more.units;
        self.sum = self.sum.saturating_add(more.sum);
        self.worst = self.worst.max(more.worst);
    }

    fn mean(&self) -> u64 {
        self.sum / self.units.max(1)
    }

    /// What is left until units are late: somewhat more than the slowest so far will come.
    fn room(&self) -> u64 {
        let slower = self.worst + (self.worst - self.mean()) / 8;
        Share::WHOLE.0.saturating_sub(slower)
    }
}

/// Units seen since the last step.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    in_time: Durations,
    late: u64,
    /// The slowest of the late ones against its target.
    worst: Option<(Nanos, Nanos)>,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Deadline {
    aim: Aim,
    /// Units in time that outweigh a late one.
    patience: u64,
    given: Rate,
    /// Units that began before tell nothing of what is given now.
    judged_from: Nanos,
    stepped: Nanos,
    batch: Batch,
    /// Units in time since the last change or late unit.
    in_time: Durations,
    /// What was given, in bytes per second, and what units took of their target then, on average,
    /// in millionths.
    learned: Option<(u64, u64)>,
    /// So much more given made units so much slower.
    slope: Option<(u64, u64)>,
    /// Units in time that late ones are still to be outweighed by.
    owed: u64,
    /// Where units begin to be late is not known yet, or not any more: late ones are what it takes
    /// to find out.
    searching: bool,
    /// What the next late unit takes away.
    cut: Share,
    /// Where units were late last, before the cuts that followed.
    ceiling: Option<Rate>,
    /// What was given before the last step back, as long as that is not judged.
    before: Option<Rate>,
    growth: u64,
    /// What is given was guessed, and no step was taken since.
    guessed: bool,
    /// What was given was what the others had, at the last step.
    bounds: bool,
    /// The last two units' ends.
    last: Option<Nanos>,
    between: Nanos,
    silent: bool,
    unmet: bool,
}

impl Deadline {
    /// One that leaves the others the most, from `now` on.
    #[must_use]
    pub fn new(aim: Aim, now: Nanos) -> Self {
        let most = aim.most.max(Rate(1));
        let least = aim.least.clamp(Rate(1), most);
        // Half of the late ones that are allowed.
        let allowed = Share::WHOLE.0.saturating_sub(aim.percentile.0) / 2;
        let patience = Share::WHOLE.0 / allowed.max(1);
        Self {
            aim: Aim { most, least, ..aim },
            patience: patience.clamp(2 * JUDGED, LONGEST_PATIENCE),
            given: most,
            judged_from: now,
            stepped: now,
            batch: Batch::default(),
            in_time: Durations::default(),
            learned: None,
            slope: None,
            owed: 0,
            searching: true,
            cut: FIRST_CUT,
            ceiling: None,
            before: None,
            growth: 1,
            guessed: false,
            bounds: true,
            last: None,
            between: Nanos(0),
            silent: false,
            unmet: false,
        }
    }

    /// What is left to the others, as far as these units go.
    #[must_use]
    pub fn given(&self) -> Rate {
        self.given
    }

    /// When the next step is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.stepped.plus(self.aim.settles.max(SHORTEST))
    }

    /// Takes in a unit of work that has ended.
    pub fn seen(&mut self, unit: &Unit) {
        if let Some(last) = self.last {
            self.between = unit.ended.since(last);
        }
        self.last = Some(unit.ended);
        let Some(target) = self.aim.deadline.or(unit.target) else {
            return;
        };
        let late = unit.took > target;
        self.owed = if late && !self.searching {
            let most = self.patience * MOST_OWED;
            self.owed.saturating_add(self.patience).min(most)
        } else {
            self.owed.saturating_sub(1)
        };
        if unit.ended.since(unit.took) < self.judged_from {
            return;
        }
        if !late {
            self.batch.in_time.take(unit.took, target);
            return;
        }
        self.batch.late += 1;
        let worse = |(took, of): (Nanos, Nanos)| {
            u128::from(unit.took.0) * u128::from(of.0) > u128::from(took.0) * u128::from(target.0)
        };
        if self.batch.worst.is_none_or(worse) {
            self.batch.worst = Some((unit.took, target));
        }
    }

    /// Leaves the others so much from now on, if less than before and nothing is known of units
    /// yet. Whether it did.
    pub fn guess(&mut self, now: Nanos, left: Rate) -> bool {
        let left = left.clamp(self.aim.least, self.aim.most);
        let known = self.ceiling.is_some() || self.learned.is_some() || self.in_time.units > 0;
        if known || left >= self.given {
            return false;
        }
        self.batch = Batch::default();
        self.ceiling = Some(self.given);
        self.guessed = true;
        self.change(now, left);
        true
    }

    /// Decides by what was seen since the last step. `force` is what the others are left in fact:
    /// less than [`Self::given`] where somebody else's units need it, and then only late ones tell
    /// anything.
    pub fn step(&mut self, now: Nanos, force: Rate) -> Option<Step> {
        self.stepped = now;
        let bounds = force >= self.given;
        if bounds != std::mem::replace(&mut self.bounds, bounds) {
            self.in_time = Durations::default();
        }
        let batch = std::mem::take(&mut self.batch);
        if let Some(since) = self.silent_since(now) {
            return (!std::mem::replace(&mut self.silent, true)).then_some(Step::Silent { since });
        }
        self.silent = false;
        if let Some((took, target)) = batch.worst {
            if !bounds {
                // They were late by what the others had, not by what these units would leave them.
                self.given = force;
            }
            return self.cut(now, &batch, took, target);
        }
        self.in_time.add(&batch.in_time);
        if bounds { self.give_back(now) } else { None }
    }

    /// The others have much less since somebody else's units were late: only what begins from now
    /// on tells of that.
    pub(super) fn fell(&mut self, now: Nanos) {
        self.judged_from = now.plus(self.aim.settles);
    }

    /// Whether units were late since the last step.
    #[cfg(test)]
    pub(super) fn has_late(&self) -> bool {
        self.batch.worst.is_some()
    }

    fn silent_since(&self, now: Nanos) -> Option<Nanos> {
        let last = self.last?;
        let usual = Nanos(self.between.0.saturating_mul(SILENT_UNITS));
        (now.since(last) > SILENT.max(usual)).then_some(last)
    }

    fn cut(&mut self, now: Nanos, batch: &Batch, took: Nanos, target: Nanos) -> Option<Step> {
        let calm = self.in_time.units + batch.in_time.units >= JUDGED;
        self.in_time = Durations::default();
        self.growth = 1;
        let from = self.given;
        let units = batch.late;
        let (to, why) = match self.before.take() {
            Some(before) => {
                self.ceiling = Some(from);
                self.cut = FIRST_CUT;
                let to = before.min(less(from, self.first_cut()));
                (to, Why::TooMuch { took, target })
            }
            None => {
                if calm || self.ceiling.is_none() {
                    self.ceiling = Some(from);
                    self.cut = self.first_cut();
                }
                self.searching |= self.cut >= LARGEST_CUT;
                let to = less(from, self.cut);
                self.cut = Share(self.cut.0 * 2).min(LARGEST_CUT);
                let late = Why::Late {
                    units,
                    took,
                    target,
                };
                (to, late)
            }
        };
        let to = to.max(self.aim.least);
        if to == from {
            return (!std::mem::replace(&mut self.unmet, true))
                .then_some(Step::Unmet { took, target });
        }
        self.change(now, to);
        Some(Step::Change { from, to, why })
    }

    fn give_back(&mut self, now: Nanos) -> Option<Step> {
        let (from, units) = (self.given, self.in_time.units);
        if units < JUDGED {
            return None;
        }
        self.before = None;
        self.unmet = false;
        self.learn();
        if from >= self.aim.most {
            return None;
        }
        let near = Share(NEAR.0 * self.often());
        let near = |ceiling: &Rate| ceiling.0.saturating_sub(from.0) <= ceiling.part(near).0;
        let mut reach = self.reach();
        if std::mem::take(&mut self.guessed) {
            reach = reach.min(from.part(FIRST_STEP).0);
        }
        let to = match self.ceiling {
            Some(ceiling) if !near(&ceiling) && reach > from.part(STEP).0 => {
                Rate(from.0 + reach.min((ceiling.0 - from.0) / 2))
            }
            _ => {
                self.searching = false;
                // Four small steps are what a late unit takes away.
                if units < self.patience / 4 || self.owed > 0 {
                    return None;
                }
                let to = from.0 + from.part(Share(STEP.0 * self.growth)).0.max(1);
                if self.ceiling.is_none_or(|ceiling| to > ceiling.0) {
                    self.ceiling = None;
                    self.growth = (self.growth * 2).min(LARGEST_GROWTH);
                }
                Rate(to)
            }
        };
        let to = to.min(self.aim.most);
        self.in_time = Durations::default();
        self.before = Some(from);
        self.change(now, to);
        Some(Step::Change {
            from,
            to,
            why: Why::InTime { units },
        })
    }

    /// How much more can be given until units are late, if their durations go on rising as they did
    /// since what was learned last.
    fn reach(&self) -> u64 {
        let Some((more, slower)) = self.slope else {
            return u64::MAX;
        };
        let reach = u128::from(more) * u128::from(self.in_time.room()) / u128::from(slower);
        u64::try_from(reach).unwrap_or(u64::MAX)
    }

    /// Learns how durations follow the budget, unless both differ too little to tell.
    fn learn(&mut self) {
        let (given, took) = (self.given.0, self.in_time.mean());
        if let Some((before, then)) = self.learned {
            let more = given.abs_diff(before);
            if more < self.given.part(NEAR).0 {
                return;
            }
            let slower = if given > before {
                took.saturating_sub(then)
            } else {
                then.saturating_sub(took)
            };
            self.slope = (slower > 0).then_some((more, slower));
        }
        self.learned = Some((given, took));
    }

    /// How many late ones are not outweighed yet; at least one.
    fn often(&self) -> u64 {
        self.owed.div_ceil(self.patience).max(1)
    }

    /// What the first of late units that follow each other takes away: the more, the shorter ago
    /// the others.
    fn first_cut(&self) -> Share {
        Share(FIRST_CUT.0 * self.often())
    }

    fn change(&mut self, now: Nanos, to: Rate) {
        self.given = to;
        self.judged_from = now.plus(self.aim.settles);
    }
}

fn less(rate: Rate, cut: Share) -> Rate {
    Rate(rate.0 - rate.part(cut).0)
}

#[cfg(test)]
#[path = "deadline_tests.rs"]
mod tests;
