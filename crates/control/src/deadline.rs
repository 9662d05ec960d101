//! The slow controller behind `regulator.adapt = "deadline"`. It moves what is left to the
//! best-effort groups by how late the units of work of one critical group are. That group's
//! percentile stays inside its target, and the best-effort groups get the rest.
//!
//! What acts is the budget of the best-effort groups. A critical group is never throttled, so what
//! is reserved for it is what they may not draw.
//!
//! Method: each unit is late or in time. The share of late units is steered, not a duration. That
//! needs no model of how durations follow the budget. One late unit in a hundred is what a
//! percentile of 99 allows. The level to which the share of late units settles is that of
//! stochastic approximation of a quantile (Robbins and Monro 1951):
//!
//! * A late unit takes [`FIRST_CUT`] away.
//! * Before the budget at which it was late is tried again, it is outweighed by as many units in
//!   time as the percentile asks for each late one, and as many again.
//!
//! Far from the goal that alone would be slow. Therefore:
//!
//! * Late units that follow each other double the cut, up to half of everything. So the reserve
//!   grows at once.
//! * The way back is a search, as in binary increase congestion control (Xu, Harfoush, Rhee,
//!   INFOCOM 2004). Each step goes half-way to where units were late last, after [`JUDGED`] units
//!   in time. It goes no further than durations leave room for: those at the last two budgets,
//!   extended as a line. A step that turns out late is reverted whole.
//! * Close to that ceiling, and beyond it, steps are small. They grow only as long as no unit is
//!   late.
//!
//! Only units that began after a change has settled say something about it. Without units nothing
//! is known, and at first nothing is changed. What was taken away is not kept for ever for a
//! program that has nothing more to say: half of it goes back for every [`FORGETS`] of silence,
//! until the best-effort groups have what they had at first.
//!
//! A program that declares what its units move is believed once, before anything is known
//! ([`Deadline::guess`]). The best-effort groups then begin with what that leaves instead of with
//! everything. The first step from there is a small one, to learn how durations follow.
//!
//! Time is counted in units, not in seconds. So frames of 16 ms and jobs of 1 ms settle alike in
//! their own time.

use std::fmt;

use quell_types::units::{Nanos, Rate, Share};

/// The shortest time between two decisions of a slow controller.
pub const SHORTEST: Nanos = Nanos::millis(10);

/// What one late unit after many in time takes away, of what is given.
const FIRST_CUT: Share = Share::percent(2);
/// The most that is taken away at once, of what is given.
const LARGEST_CUT: Share = Share::percent(50);
/// Units in time, begun after a change, that show that it was no mistake.
const JUDGED: u64 = 16;
/// A budget is near the ceiling within this share of the ceiling.
const NEAR: Share = Share::percent(4);
/// A small step, of what is given: 0.5 %. It doubles at most up to [`LARGEST_GROWTH`] times that.
const STEP: Share = Share(5_000);
const LARGEST_GROWTH: u64 = 16;
/// The first step from a guess, of what is given: large enough to learn from.
const FIRST_STEP: Share = Share::percent(8);
/// The most units in time that one late unit asks for. Bounds percentiles next to 100.
const LONGEST_PATIENCE: u64 = 20_000;
/// The most late units that are still to be outweighed. What caused more of them in a row will
/// pass, and is not held against the budget.
const MOST_OWED: u64 = 4;
/// Silence is reported after this long, or after this many times the gap between the last two
/// units.
const SILENT: Nanos = Nanos::secs(1);
const SILENT_UNITS: u64 = 20;
/// How long a program may take to its first unit after it has declared what that needs.
const FIRST: Nanos = Nanos::secs(30);
/// It is not waited for longer than this, or twice the longest time of a unit: who tells of two
/// units an hour apart is not to keep what was taken from others for a day.
const SILENT_MOST: Nanos = Nanos::secs(300);
/// How long units may stay away before half of what was taken away for them goes back.
const FORGETS: Nanos = Nanos::secs(10);

/// A unit of work of an application: a frame, a job, a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// When it ended, on the backend's clock.
    pub ended: Nanos,
    /// How long it took, from when it was due if the program knows that.
    pub took: Nanos,
    /// The longest it was to take, if the program says so.
    pub target: Option<Nanos>,
}

/// What is steered, and within which bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aim {
    /// The longest time per unit. Absent: what each unit itself says.
    pub deadline: Option<Nanos>,
    /// The share of the units that must meet it.
    pub percentile: Share,
    /// What is left to the best-effort groups at first and at most.
    pub most: Rate,
    /// What is left to them in any case.
    pub least: Rate,
    /// How long a change takes to become active: the period of their regulators.
    pub settles: Nanos,
}

/// A change, or a finding to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// What is left to the best-effort groups changes.
    Change {
        /// What was left to them before.
        from: Rate,
        /// What is left to them from now on.
        to: Rate,
        /// What caused the change.
        why: Why,
    },
    /// No unit has come for a long time: everything stays as it is for a while.
    Silent {
        /// When the last unit ended.
        since: Nanos,
    },
    /// Units are late, and nothing more can be taken away.
    Unmet {
        /// How long the slowest unit took.
        took: Nanos,
        /// The longest that unit was to take.
        target: Nanos,
    },
}

/// Why a budget changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Units took longer than their target.
    Late {
        /// How many were late since the last step.
        units: u64,
        /// How long the slowest unit took.
        took: Nanos,
        /// The longest that unit was to take.
        target: Nanos,
    },
    /// The last rise was too much, and is reverted.
    TooMuch {
        /// How long the slowest unit took.
        took: Nanos,
        /// The longest that unit was to take.
        target: Nanos,
    },
    /// Units were in time.
    InTime {
        /// How many in a row.
        units: u64,
    },
    /// No unit has come for so long that what was taken away goes back step by step.
    Silence {
        /// How long.
        lasts: Nanos,
    },
    /// What units are declared to move, before any has ended.
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
            Self::Silence { lasts } => {
                let whole = Nanos(lasts.0 / 1_000_000_000 * 1_000_000_000);
                write!(f, "no unit for {whole}")
            }
            Self::Declared { need } => write!(f, "its units are said to draw {need}"),
        }
    }
}

/// Durations of units in time at one budget, relative to their targets, in millionths.
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

    /// What is left until units are late, in millionths. It is assumed that some units will be a
    /// little slower than the slowest so far.
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
    /// The late unit that was slowest relative to its target: its duration and its target.
    worst: Option<(Nanos, Nanos)>,
}

/// The controller of one group with a target.
#[derive(Clone, Debug)]
pub struct Deadline {
    aim: Aim,
    /// Units in time that outweigh a late one.
    patience: u64,
    given: Rate,
    /// Units that began before this time say nothing about what is given now.
    judged_from: Nanos,
    stepped: Nanos,
    batch: Batch,
    /// Units in time since the last change or late unit.
    in_time: Durations,
    /// What was given, in bytes per second, and what share of their target units took then, on
    /// average, in millionths.
    learned: Option<(u64, u64)>,
    /// How much more was given, in bytes per second, and how much slower units were, in millionths.
    slope: Option<(u64, u64)>,
    /// Units in time that are still needed to outweigh late ones.
    owed: u64,
    /// The budget at which units begin to be late is not known yet, or no longer. Late units are
    /// then the price of finding it, and are not held against it.
    searching: bool,
    /// What the next late unit takes away.
    cut: Share,
    /// The budget at which units were late last, before the cuts that followed.
    ceiling: Option<Rate>,
    /// What was given before the last rise, until that is judged.
    before: Option<Rate>,
    growth: u64,
    /// What is given was guessed, and no step was taken since.
    guessed: bool,
    guessed_at: Option<Nanos>,
    /// At the last step this controller's budget was the one that was active.
    bounds: bool,
    /// When the last unit ended.
    last: Option<Nanos>,
    between: Nanos,
    silent: bool,
    /// How often [`FORGETS`] has passed since the last unit.
    forgotten: u64,
    unmet: bool,
}

impl Deadline {
    /// A controller that leaves the best-effort groups the most, from `now` on.
    #[must_use]
    pub fn new(aim: Aim, now: Nanos) -> Self {
        let most = aim.most.max(Rate(1));
        let least = aim.least.clamp(Rate(1), most);
        // Half of the late units that are allowed.
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
            guessed_at: None,
            bounds: true,
            last: None,
            between: Nanos(0),
            silent: false,
            forgotten: 0,
            unmet: false,
        }
    }

    /// What these units alone would leave to the best-effort groups.
    #[must_use]
    pub fn given(&self) -> Rate {
        self.given
    }

    /// When the next step is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.stepped.plus(self.aim.settles.max(SHORTEST))
    }

    /// Records a unit of work that has ended.
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

    /// Leaves the best-effort groups `left` from now on, if that is less than before and nothing is
    /// known of units yet. Returns whether it did.
    pub fn guess(&mut self, now: Nanos, left: Rate) -> bool {
        let left = left.clamp(self.aim.least, self.aim.most);
        if self.knows() || left >= self.given {
            return false;
        }
        self.batch = Batch::default();
        self.ceiling = Some(self.given);
        self.guessed = true;
        self.guessed_at = Some(now);
        self.change(now, left);
        true
    }

    /// Whether anything is known of how units follow the budget.
    pub(super) fn knows(&self) -> bool {
        self.ceiling.is_some() || self.learned.is_some() || self.in_time.units > 0
    }

    /// Whether nothing has come for so long that it was told.
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Decides by what was seen since the last step. `force` is what the best-effort groups have in
    /// fact. It is less than [`Self::given`] where units of another group need that; then only late
    /// units say anything.
    pub fn step(&mut self, now: Nanos, force: Rate) -> Option<Step> {
        self.stepped = now;
        let bounds = force >= self.given;
        if bounds != std::mem::replace(&mut self.bounds, bounds) {
            self.in_time = Durations::default();
        }
        let batch = std::mem::take(&mut self.batch);
        if let Some(since) = self.silent_since(now) {
            if !std::mem::replace(&mut self.silent, true) {
                return Some(Step::Silent { since });
            }
            return self.forget(now, now.since(since));
        }
        self.silent = false;
        self.forgotten = 0;
        if let Some((took, target)) = batch.worst {
            if !bounds {
                // The units were late at what the best-effort groups had, not at what this
                // controller would leave.
                self.given = force;
            }
            return self.cut(now, &batch, took, target);
        }
        self.in_time.add(&batch.in_time);
        if bounds { self.give_back(now) } else { None }
    }

    /// The best-effort groups have much less, since units of another group were late. Only units
    /// that begin from now on say anything about that.
    pub(super) fn fell(&mut self, now: Nanos) {
        self.judged_from = now.plus(self.aim.settles);
    }

    #[cfg(test)]
    pub(super) fn has_late(&self) -> bool {
        self.batch.worst.is_some()
    }

    fn silent_since(&self, now: Nanos) -> Option<Nanos> {
        let deadline = self.aim.deadline.unwrap_or_default();
        // Who declares what the units need, and tells of none, is silent as well.
        let (last, between, least) = match (self.last, self.guessed_at) {
            (Some(last), _) if self.between == Nanos(0) => (last, deadline, SILENT),
            (Some(last), _) => (last, self.between, SILENT),
            (None, guessed_at) => (guessed_at?, deadline, FIRST),
        };
        let most = SILENT_MOST.max(Nanos(deadline.0.saturating_mul(2)));
        let usual = Nanos(between.0.saturating_mul(SILENT_UNITS));
        (now.since(last) > usual.clamp(least, most)).then_some(last)
    }

    /// Gives half of what was taken away back, once for each [`FORGETS`] of silence.
    fn forget(&mut self, now: Nanos, lasts: Nanos) -> Option<Step> {
        let (from, times) = (self.given, lasts.0 / FORGETS.0);
        if times <= self.forgotten {
            return None;
        }
        self.forgotten = times;
        let more = (self.aim.most.0 - from.0).div_ceil(2);
        let to = match more > self.aim.most.part(STEP).0 {
            true => Rate(from.0 + more),
            false => self.aim.most,
        };
        if to == from {
            return None;
        }
        self.in_time = Durations::default();
        self.before = None;
        self.cut = FIRST_CUT;
        self.change(now, to);
        let why = Why::Silence { lasts };
        Some(Step::Change { from, to, why })
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

    /// How much more can be given until units are late. Assumes that durations rise as they did
    /// since the last budget that was learned from.
    fn reach(&self) -> u64 {
        let Some((more, slower)) = self.slope else {
            return u64::MAX;
        };
        let reach = u128::from(more) * u128::from(self.in_time.room()) / u128::from(slower);
        u64::try_from(reach).unwrap_or(u64::MAX)
    }

    /// Learns how durations follow the budget, unless the two budgets differ too little to tell.
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

    /// How many late units are not outweighed yet; at least one.
    fn often(&self) -> u64 {
        self.owed.div_ceil(self.patience).max(1)
    }

    /// What the first of several late units in a row takes away. It is more where earlier late
    /// units are not outweighed yet.
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
