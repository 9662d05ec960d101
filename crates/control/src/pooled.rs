//! The fast controller of CPUs whose budgets are pooled: one per regulated CPU, run inside the
//! brake thread or the simulated interrupt handler.
//!
//! Method: MemGuard (Yun et al., RTAS 2013, section III, and IEEE Transactions on Computers 65(2),
//! 2016). Each CPU has a budget of memory transactions per regulation period.
//!
//! * *Reclaim*: at the start of a period a CPU keeps the smaller of its budget and its predicted
//!   use (a weighted mean of what it drew in the past). It gives the rest to the [`Pool`]. When it
//!   has used what it kept, it takes back what it gave. Then it takes quanta of what other CPUs
//!   gave.
//! * *Reservation miss*: what it gave is gone. It still continues up to its budget. The miss is
//!   counted, and so are the lines that were granted twice (never more than it gave). It keeps all
//!   of its next budget.
//! * *After*: all CPUs have drawn all they may, and the pool is empty, before the period is over.
//!   Then drawing more touches no reservation. All wait, or run freely until the period ends
//!   (*spare sharing*), or begin a new period at once (*proportional sharing*). What that grants is
//!   best effort, and is counted separately.
//!
//! What is drawn beyond the grant before the stop begins is debited from the periods that follow.
//!
//! **Periods that begin together, and what they cost.** The lazily refreshed budgets of
//! [`CpuRegulator`] begin whenever the CPU next overflows. They cost a CPU below its budget
//! nothing. Here that is impossible. A gift is of use only during the period in which the giver
//! does without it. So all members are in the same period, and each must be woken at its start to
//! predict and give. That is one interrupt (on Linux: one wake-up of a thread) per member and
//! period, whether or not the member draws anything. A regulation without reclaim and sharing
//! therefore stays lazy. A CPU that is woken late joins the current period when it next runs. The
//! budgets of the periods it missed pay its debt, and are not given.
//!
//! **Deviations from MemGuard.**
//!
//! - After a miss MemGuard lifts the cap until the period ends. Here the cap is lifted to the
//!   budget, so that what a miss grants twice is bounded.
//! - MemGuard leaves idle CPUs out when it asks whether all are exhausted ([`Idle::LeftOut`]). By
//!   default an idle CPU counts as spent only when it has given away all it had. So without reclaim
//!   nothing is shared while any CPU has budget left. MemGuard asks the kernel at the start of a
//!   period whether the CPU runs its idle task. Here a CPU is idle that drew nothing but
//!   [`NOISE`] in the last period.
//! - No counter of an idle CPU stands still (interrupts, the brake's own wake-ups). So "all" is all
//!   but [`NOISE`]. The CPU keeps that part, and its use wakes no other CPU.
//! - What is taken back grows with what has been drawn in the period, from a quantum up. A CPU that
//!   wakes for a moment thus leaves the other CPUs what they have.
//! - A CPU that is not capped (by default one of a critical group) is never stopped. It gives from
//!   its reserve, and beyond that it runs on.
//! - A reserve that follows a deadline is *headroom*, room for a unit to be quick in. What is drawn
//!   does not show how much of it can be spared. It is given while no such CPU draws anything, and
//!   kept whole as soon as one does.
//!
//! No allocation, no clock, no system call: the caller brings the time and the counter's reading.
//! It calls [`PooledRegulator::begin`] on every member when a period begins.
//!
//! [`CpuRegulator`]: super::bandwidth::CpuRegulator

use quell_types::options::{After, Idle};
use quell_types::units::{Lines, Nanos, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bandwidth::{LONGEST_DEBT, Verdict};
use super::pool::{Period, Pool};
use crate::config::Pooling;

/// What an idle CPU keeps, as a divisor of its budget; never more than a quantum.
const NOISE: u64 = 32;

/// What a CPU gave to the pool of budgets and took from it, in lines. `missed` alone is a number of
/// misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pooled {
    /// Granted within the budgets of periods that began on time.
    pub guaranteed: u64,
    /// Lines given to the pool, because the CPU was predicted not to draw them.
    pub donated: u64,
    /// Lines of its own gift that the CPU took back from the pool.
    pub taken_back: u64,
    /// Lines that the CPU took from gifts of other CPUs.
    pub reclaimed: u64,
    /// How often the CPU needed its gift back and it was gone.
    pub missed: u64,
    /// Lines granted twice by these misses. Never more than the CPU gave.
    pub granted_twice: u64,
    /// Lines beyond all budgets: granted in periods that began early, or drawn freely once all CPUs
    /// had drawn all there was.
    pub best_effort: u64,
}

impl Pooled {
    /// Sums each figure; saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What has been added to each figure since `before`.
    #[must_use]
    pub fn less(self, before: Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let (one, other) = (self.to_array(), other.to_array());
        Self::from_array(std::array::from_fn(|i| with(one[i], other[i])))
    }

    /// The number of fields.
    pub const FIELDS: usize = 7;

    /// The figures, in the order of the fields.
    #[must_use]
    pub const fn to_array(self) -> [u64; Self::FIELDS] {
        [
            self.guaranteed,
            self.donated,
            self.taken_back,
            self.reclaimed,
            self.missed,
            self.granted_twice,
            self.best_effort,
        ]
    }

    /// The inverse of [`Self::to_array`].
    #[must_use]
    pub const fn from_array(figures: [u64; Self::FIELDS]) -> Self {
        let [
            guaranteed,
            donated,
            taken_back,
            reclaimed,
            missed,
            granted_twice,
            best_effort,
        ] = figures;
        Self {
            guaranteed,
            donated,
            taken_back,
            reclaimed,
            missed,
            granted_twice,
            best_effort,
        }
    }
}

/// The regulator of one member of a pool.
#[derive(Clone, Debug)]
pub struct PooledRegulator {
    rules: Pooling,
    length: u64,
    /// The budget from the next period on.
    next_budget: u64,
    period: Option<Period>,
    budget: u64,
    /// The counter's reading from which use is charged to this period: the reading when it began,
    /// less the debt.
    base: u64,
    /// What the CPU may draw in this period, debt included: what it kept, took back and took.
    grant: u64,
    /// What it gave away in this period, less what it got back.
    lent: u64,
    /// The pool counts this CPU as having nothing left.
    spent: bool,
    missed: bool,
    /// Lines that a miss granted twice in this period.
    twice: u64,
    /// The reading from which it runs freely until the period ends, and its debt at that reading.
    free: Option<(u64, u64)>,
    predicted: u64,
    /// Lines that it drew in the last period: its whole budget before there was one.
    drawn: u64,
    forgiven: u64,
    did: Pooled,
}

impl PooledRegulator {
    /// A regulator with `budget` lines per `length`. It draws nothing until [`Self::begin`], which
    /// makes it join the pool. It is predicted to draw all of its budget until it has drawn less.
    #[must_use]
    pub fn new(rules: &Pooling, budget: Lines, length: Nanos) -> Self {
        let budget = budget.0.max(1);
        Self {
            rules: rules.clone(),
            length: length.0.max(1),
            next_budget: budget,
            period: None,
            budget,
            base: 0,
            grant: 0,
            lent: 0,
            spent: false,
            missed: false,
            twice: 0,
            free: None,
            predicted: budget,
            drawn: budget,
            forgiven: 0,
            did: Pooled::default(),
        }
    }

    /// Sets the budget from the next period on.
    pub fn set_budget(&mut self, budget: Lines) {
        self.next_budget = budget.0.max(1);
    }

    /// The budget from the next period on.
    #[must_use]
    pub fn budget(&self) -> Lines {
        Lines(self.next_budget)
    }

    /// What it has given, taken and missed since the beginning.
    #[must_use]
    pub fn did(&self) -> Pooled {
        self.did
    }

    /// Lines of debt forgiven since the beginning ([`LONGEST_DEBT`]).
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        Lines(self.forgiven)
    }

    /// When its current period ends.
    #[must_use]
    pub fn end(&self) -> Nanos {
        let start = self.period.map_or(Nanos(0), |p| p.start);
        start.plus(Nanos(self.length))
    }

    /// What it may draw in this period, debts included, without what a miss granted twice.
    #[must_use]
    pub fn granted(&self) -> Lines {
        Lines(self.grant - self.twice)
    }

    /// The period it is in; `None` before it has joined the pool.
    #[must_use]
    pub fn period(&self) -> Option<Period> {
        self.period
    }

    /// Whether a call of [`Self::overflow`] may end the stop of this CPU before its time. That is
    /// so if another period has begun, all may run freely, a late CPU has given something, or all
    /// are spent.
    #[must_use]
    pub fn news(&self, pool: &impl Pool) -> bool {
        let Some(period) = self.period else {
            return true;
        };
        pool.period() != period
            || pool.is_free(period)
            || (self.rules.reclaim && pool.offers(period))
            || (self.rules.after != After::Wait && pool.all_spent(period))
    }

    /// The CPU is regulated no more. It leaves the pool and takes with it what is left of its gift.
    /// No other CPU waits for it any longer.
    pub fn leave(&mut self, pool: &impl Pool) {
        if let Some(period) = self.period.take() {
            let back = pool.take(period, Lines(std::mem::take(&mut self.lent))).0;
            self.did.taken_back += back;
            pool.leave(period, !self.spent);
        }
    }

    /// To be called when a period may have begun. Joins the current one, or begins the next when it
    /// is due. Within the same period nothing changes.
    pub fn begin(&mut self, now: Nanos, used: Lines, pool: &impl Pool) -> Verdict {
        if self.period.is_none() {
            pool.join();
        }
        let mut current = pool.period();
        let over = now.since(current.start).0 / self.length;
        if over > 0 {
            let start = current.start.plus(Nanos(over * self.length));
            let early = false;
            current = pool.renew(current, Period { start, early });
        }
        if self.period == Some(current) {
            return self.decide(used, pool);
        }
        let debt = self.close(current, used);
        self.period = Some(current);
        self.budget = self.next_budget;
        self.base = used.0.saturating_sub(debt);
        let kept = self.kept(current, debt, pool);
        (self.lent, self.twice) = (self.budget - kept, 0);
        (self.spent, self.missed, self.free) = (false, false, None);
        self.grant = 0;
        self.grant(kept);
        if self.lent > 0 {
            pool.give(current, Lines(self.lent));
            self.did.donated += self.lent;
        }
        let left_out = self.rules.idle == Idle::LeftOut && self.drawn <= self.noise();
        if left_out || (self.lent > 0 && kept <= self.noise()) {
            // It seems idle. With reclaim it is counted as having lines again when it draws more
            // than the noise.
            self.spent = true;
            pool.spend(current);
        }
        match self.decide(used, pool) {
            Verdict::Rearm(lines) => Verdict::NewPeriod(lines),
            other => other,
        }
    }

    /// Decides what happens after an overflow at `now`, with the counter at `used`.
    pub fn overflow(&mut self, now: Nanos, used: Lines, pool: &impl Pool) -> Verdict {
        if now >= self.end() || self.period != Some(pool.period()) {
            return self.begin(now, used, pool);
        }
        match self.decide(used, pool) {
            // All members have drawn all there was: the first to find out begins the next period
            // for all.
            Verdict::ThrottleUntil(_) | Verdict::RunFreeUntil(_) if self.renews(pool) => {
                if let Some(period) = self.period {
                    pool.renew(period, period.early(now));
                }
                self.begin(now, used, pool)
            }
            decided => decided,
        }
    }

    fn renews(&self, pool: &impl Pool) -> bool {
        self.rules.after == After::Proportional && self.period.is_some_and(|p| pool.all_spent(p))
    }

    /// What this CPU keeps of its budget in `period`. Its debt is demand like any other.
    fn kept(&self, period: Period, debt: u64, pool: &impl Pool) -> u64 {
        if !self.rules.reclaim {
            return self.budget;
        }
        let demand = self.predicted.saturating_add(debt);
        if self.rules.headroom {
            if demand > self.noise() {
                pool.work(period);
            }
            if period.start.since(pool.worked()).0 <= self.length {
                return self.budget;
            }
        }
        self.budget.min(demand.max(self.noise()))
    }

    /// Lines per period that an idle CPU's counter may count.
    fn noise(&self) -> u64 {
        (self.budget / NOISE).min(self.rules.quantum.0).max(1)
    }

    fn grant(&mut self, lines: u64) {
        self.grant += lines;
        if self.period.is_some_and(|p| p.early) {
            self.did.best_effort += lines;
        } else {
            self.did.guaranteed += lines;
        }
    }

    /// Ends the last period: learns from it, and returns the debt that goes into the next one.
    fn close(&mut self, next: Period, used: Lines) -> u64 {
        let Some(last) = self.period else {
            return 0;
        };
        let spent = used.0.saturating_sub(self.base);
        let owed = match self.free {
            Some((from, owed)) => {
                if self.rules.capped {
                    self.did.best_effort += used.0.saturating_sub(from);
                }
                owed
            }
            None => spent.saturating_sub(self.grant),
        };
        let periods = (next.start.since(last.start).0 / self.length).max(1);
        self.drawn = spent / periods;
        for _ in 0..periods.min(64) {
            self.predict(self.drawn);
        }
        if self.missed {
            self.predicted = self.predicted.max(self.next_budget);
        }
        let debt = owed.saturating_sub((periods - 1).saturating_mul(self.next_budget));
        let most = (LONGEST_DEBT.0 / self.length).max(1) * self.next_budget;
        self.forgiven += debt.saturating_sub(most);
        debt.min(most)
    }

    /// Updates the weighted mean of what was drawn. Debts count, because a CPU that is stopped for
    /// its debt would draw if it could. Use beyond the budget is left out: it says nothing about
    /// what to give.
    fn predict(&mut self, drawn: u64) {
        let whole = u128::from(Share::WHOLE.0);
        let newest = u128::from(self.rules.predictor.0).min(whole);
        let sum = newest * u128::from(drawn.min(self.budget))
            + (whole - newest) * u128::from(self.predicted);
        self.predicted = u64::try_from(sum / whole).unwrap_or(u64::MAX);
    }

    /// The verdict in the current period, with the counter at `used`.
    fn decide(&mut self, used: Lines, pool: &impl Pool) -> Verdict {
        let (Some(period), until) = (self.period, self.end()) else {
            return Verdict::ThrottleUntil(self.end());
        };
        let spent = used.0.saturating_sub(self.base);
        if self.free.is_some() || pool.is_free(period) {
            return self.run_free(used, until);
        }
        if spent < self.grant {
            return Verdict::Rearm(Lines(self.grant - spent));
        }
        // It has asked already, and nothing has come since: asking again is of no use.
        if self.rules.reclaim && !(self.spent && self.lent == 0 && !pool.offers(period)) {
            self.have(period, pool);
            self.reclaim(spent, period, pool);
            if spent < self.grant {
                return Verdict::Rearm(Lines(self.grant - spent));
            }
        }
        self.exhausted(used, period, pool)
    }

    /// Makes sure the pool does not count it as spent while it takes lines.
    fn have(&mut self, period: Period, pool: &impl Pool) {
        if std::mem::take(&mut self.spent) {
            pool.hold(period);
        }
    }

    /// Takes back its own donation first, then quanta of other CPUs' gifts. It gets its reservation
    /// in any case.
    fn reclaim(&mut self, spent: u64, period: Period, pool: &impl Pool) {
        let quantum = self.rules.quantum.0.max(1);
        while self.lent > 0 && spent >= self.grant {
            let need = (spent - self.grant + 1).max(quantum).max(spent);
            let back = pool.take(period, Lines(need.min(self.lent))).0;
            if back == 0 {
                break;
            }
            self.lent -= back;
            self.did.taken_back += back;
            self.grant(back);
        }
        if self.lent > 0 && spent >= self.grant && spent < self.budget {
            self.missed = true;
            self.did.missed += 1;
            self.did.granted_twice += self.lent;
            self.twice = self.lent;
            self.grant += std::mem::take(&mut self.lent);
        }
        while spent >= self.grant {
            let need = (spent - self.grant + 1).max(quantum);
            let got = pool.take(period, Lines(need)).0;
            if got == 0 {
                return;
            }
            self.did.reclaimed += got;
            self.grant(got);
        }
    }

    /// The CPU has drawn all that it may.
    fn exhausted(&mut self, used: Lines, period: Period, pool: &impl Pool) -> Verdict {
        let until = self.end();
        if !std::mem::replace(&mut self.spent, true) {
            pool.spend(period);
        }
        if self.rules.after == After::Spare && pool.all_spent(period) {
            pool.set_free(period);
        }
        if !self.rules.capped || pool.is_free(period) {
            return self.run_free(used, until);
        }
        Verdict::ThrottleUntil(until)
    }

    fn run_free(&mut self, used: Lines, until: Nanos) -> Verdict {
        let owed = used.0.saturating_sub(self.base).saturating_sub(self.grant);
        // What a CPU without a cap drew beyond its reserve is not a debt.
        let owed = if self.rules.capped { owed } else { 0 };
        self.free.get_or_insert((used.0, owed));
        Verdict::RunFreeUntil(until)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pooled_tests.rs"]
mod tests;
