//! The fast controller of CPUs whose budgets are pooled: one per regulated CPU, run inside the
//! brake thread or the simulated interrupt handler.
//!
//! Method: MemGuard (Yun et al., RTAS 2013, section III, and IEEE Transactions on Computers 65(2),
//! 2016). Per CPU a budget of memory transactions per regulation period.
//!
//! * *Reclaim*: at the start of a period a CPU keeps the smaller of its budget and its predicted
//!   use (a weighted mean of what it drew in the past) and gives the rest to the [`Pool`]. Out of
//!   what it kept, it takes back what it gave, then takes quanta of what others gave.
//! * *Reservation miss*: what it gave is gone. It goes on up to its budget all the same; the miss
//!   is counted, the lines that have so been granted twice are too (never more than it gave), and
//!   it keeps all of its next budget.
//! * *After*: every CPU has drawn all it may, and the pool is empty, before the period is over.
//!   Then nobody's reservation is touched by drawing more: all wait, or run freely until the period
//!   ends (*spare sharing*), or begin a new period at once (*proportional sharing*). What that
//!   grants is best effort, and counted apart.
//!
//! What is drawn beyond the grant before the stop takes hold is debited from the periods that
//! follow.
//!
//! **Periods that begin together, and what they cost.** The lazily refreshed budgets of
//! [`CpuRegulator`] begin whenever the CPU next overflows, and cost a CPU below its budget nothing.
//! Here that cannot be: a gift is of use only while the period lasts for which the giver does
//! without, so all members are in the same period, and each must be woken at its start to predict
//! and give. That is an interrupt (on Linux: the waking of a thread) per member and period, whether
//! or not it draws anything; so a regulation without reclaim and sharing stays lazy. Where a
//! wake-up is late the CPU joins the current period whenever it is next looked at: budgets of the
//! periods it missed pay its debt, and are not given.
//!
//! **Deviations from MemGuard.** After a miss it lifts the cap until the period ends; here it is
//! lifted to the budget, so that what a miss grants twice is bounded. It leaves idle CPUs out when
//! it asks whether all are exhausted; here an idle CPU counts as spent only when it has given all
//! it had away, so that without reclaim nothing is shared while anybody has budget left. But no
//! counter of an idle CPU stands still (interrupts, the brake's own waking), so "all" is all but
//! [`NOISE`], which it keeps, and whose use wakes nobody. What is taken back grows with what has
//! been drawn in the period (from a quantum up), so that a CPU that wakes for a moment leaves the
//! others what they have. A CPU that is not capped (a critical group's by default) is never
//! stopped: its reserve is what it gives from, and beyond it it runs on. Where the reserve follows
//! a deadline it is *headroom*, room for a unit to be quick in, and what is drawn says nothing
//! about how much of it may go: it is given while no such CPU draws anything, and kept whole as
//! soon as one does.
//!
//! No allocation, no clock, no system call: the caller brings the time and the counter's reading,
//! and has [`PooledRegulator::begin`] called on every member when a period begins.
//!
//! [`CpuRegulator`]: super::bandwidth::CpuRegulator

use quell_types::options::After;
use quell_types::units::{Lines, Nanos, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bandwidth::{LONGEST_DEBT, Verdict};
use super::pool::{Period, Pool};
use crate::config::Pooling;

/// What an idle CPU keeps, in parts of its budget; never more than a quantum.
const NOISE: u64 = 32;

/// What a CPU gave to the pool of budgets and had from it. Lines, but for the misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pooled {
    /// Granted within the budgets of periods that began on time.
    pub guaranteed: u64,
    /// Given away.
    pub donated: u64,
    /// Of that, taken back.
    pub taken_back: u64,
    /// Had from what others gave.
    pub reclaimed: u64,
    /// Times that what it needed back was gone.
    pub missed: u64,
    /// Granted twice by that: at most what it had given.
    pub granted_twice: u64,
    /// Had beyond all budgets: granted in periods that began early, or drawn freely once everybody
    /// had drawn all there was.
    pub best_effort: u64,
}

impl Pooled {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What has been added since `before`.
    #[must_use]
    pub fn less(self, before: Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    fn each(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let (one, other) = (self.to_array(), other.to_array());
        Self::from_array(std::array::from_fn(|i| with(one[i], other[i])))
    }

    /// How many figures there are.
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

    /// The same, back.
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
    /// Of the next period.
    next_budget: u64,
    period: Option<Period>,
    budget: u64,
    /// The counter's reading from which use is charged to this period: when it began, less the
    /// debt.
    base: u64,
    /// What it may draw in this period, debt included: what it kept, took back and took.
    grant: u64,
    /// What it gave away in this period and did not take back.
    lent: u64,
    /// Counted by the pool as having nothing left.
    spent: bool,
    missed: bool,
    /// Lines that a miss granted twice in this period.
    twice: u64,
    /// The reading from which it runs freely until the period ends, and its debt then.
    free: Option<(u64, u64)>,
    predicted: u64,
    forgiven: u64,
    did: Pooled,
}

impl PooledRegulator {
    /// A regulator with `budget` lines per `length`. It draws nothing until [`Self::begin`], with
    /// which it joins the pool. Until it has been seen to draw less it is predicted to draw all of
    /// its budget.
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
            forgiven: 0,
            did: Pooled::default(),
        }
    }

    /// The budget from the next period on.
    pub fn set_budget(&mut self, budget: Lines) {
        self.next_budget = budget.0.max(1);
    }

    /// The budget from the next period on.
    #[must_use]
    pub fn budget(&self) -> Lines {
        Lines(self.next_budget)
    }

    /// What it has given, taken, missed so far.
    #[must_use]
    pub fn did(&self) -> Pooled {
        self.did
    }

    /// Lines of debt forgiven since the beginning ([`LONGEST_DEBT`]).
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        Lines(self.forgiven)
    }

    /// When the period it is in ends.
    #[must_use]
    pub fn end(&self) -> Nanos {
        let start = self.period.map_or(Nanos(0), |p| p.start);
        start.plus(Nanos(self.length))
    }

    /// What it may draw in this period, without what a miss granted twice. Debts count.
    #[must_use]
    pub fn granted(&self) -> Lines {
        Lines(self.grant - self.twice)
    }

    /// The period it is in; none before it has joined.
    #[must_use]
    pub fn period(&self) -> Option<Period> {
        self.period
    }

    /// Of a CPU that is stopped: whether asking [`Self::overflow`] again may end its stop before
    /// its time, because another period has begun, all may run, somebody who came late has given
    /// something, or all are spent.
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

    /// The CPU is regulated no more: it leaves the pool, with what of its gift is still there, and
    /// nobody waits for it any longer.
    pub fn leave(&mut self, pool: &impl Pool) {
        if let Some(period) = self.period.take() {
            let back = pool.take(period, Lines(std::mem::take(&mut self.lent))).0;
            self.did.taken_back += back;
            pool.leave(period, !self.spent);
        }
    }

    /// A period may have begun: joins the current one, or begins the next when it is time. In the
    /// same period nothing changes.
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
        if self.lent > 0 && kept <= self.noise() {
            // It looks idle. What it draws beyond the noise tells otherwise.
            self.spent = true;
            pool.spend(current);
        }
        match self.decide(used, pool) {
            Verdict::Rearm(lines) => Verdict::NewPeriod(lines),
            other => other,
        }
    }

    /// The counter overflowed at `now` and reads `used`.
    pub fn overflow(&mut self, now: Nanos, used: Lines, pool: &impl Pool) -> Verdict {
        if now >= self.end() || self.period != Some(pool.period()) {
            return self.begin(now, used, pool);
        }
        match self.decide(used, pool) {
            // Everybody has drawn all there was: whoever learns it first begins the next period for
            // all.
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

    /// What this CPU keeps of its budget in `period`. The debt is demand like any other.
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

    /// What an idle CPU's counter may count.
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

    /// The last period is over: learns from it, and returns the debt that goes into the one that
    /// begins.
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
        for _ in 0..periods.min(64) {
            self.predict(spent / periods);
        }
        if self.missed {
            self.predicted = self.predicted.max(self.next_budget);
        }
        let debt = owed.saturating_sub((periods - 1).saturating_mul(self.next_budget));
        let most = (LONGEST_DEBT.0 / self.length).max(1) * self.next_budget;
        self.forgiven += debt.saturating_sub(most);
        debt.min(most)
    }

    /// The weighted mean of what was drawn, debts included: a CPU that is stopped for its debt
    /// would draw, if it could. No more than the budget: what goes beyond says nothing about what
    /// to give away.
    fn predict(&mut self, drawn: u64) {
        let whole = u128::from(Share::WHOLE.0);
        let newest = u128::from(self.rules.predictor.0).min(whole);
        let sum = newest * u128::from(drawn.min(self.budget))
            + (whole - newest) * u128::from(self.predicted);
        self.predicted = u64::try_from(sum / whole).unwrap_or(u64::MAX);
    }

    /// What to do in the current period with the counter at `used`.
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
        // Where it has asked already, and nothing has come since, it need not ask again.
        if self.rules.reclaim && !(self.spent && self.lent == 0 && !pool.offers(period)) {
            self.have(period, pool);
            self.reclaim(spent, period, pool);
            if spent < self.grant {
                return Verdict::Rearm(Lines(self.grant - spent));
            }
        }
        self.exhausted(used, period, pool)
    }

    /// It is not to be counted as spent while it takes.
    fn have(&mut self, period: Period, pool: &impl Pool) {
        if std::mem::take(&mut self.spent) {
            pool.hold(period);
        }
    }

    /// Its own donation first, then quanta of the others'; its reservation in any case.
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

    /// It has drawn all that it may.
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
        // What a CPU without a cap drew beyond its reserve is nobody's debt.
        let owed = if self.rules.capped { owed } else { 0 };
        self.free.get_or_insert((used.0, owed));
        Verdict::RunFreeUntil(until)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pooled_tests.rs"]
mod tests;
