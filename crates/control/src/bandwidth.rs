//! The fast controller: one per regulated CPU, run inside the brake thread or the simulated
//! overflow handler.
//!
//! Method: MemGuard's reservation (Yun et al., RTAS 2013, section III): a budget of memory
//! transactions per CPU and period, and the CPU is stopped when the budget is spent. Here it is
//! refreshed lazily, as by a generic cell rate algorithm (ITU-T I.371, annex A):
//!
//! - Nothing happens at the start of a period.
//! - Only a budget that is used up is checked: did that take at least a period?
//! - If so, a new budget begins at once. If not, the group is stopped on that CPU until the period
//!   ends.
//!
//! A CPU below its budget is therefore never stopped. It is interrupted once per budget, not once
//! per period. What ran past the budget before the stop began is debited from the next periods. So
//! the average holds whatever the reaction time.
//!
//! No allocation, no clock, no system call: the caller brings the time and the counter's reading.

use quell_types::units::{Lines, Nanos};

/// What to do after a counter overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The overflow came early and the budget is not used up: go on counting, for this many lines.
    Rearm(Lines),
    /// The budget lasted at least a period: a new one begins now, with this many lines.
    NewPeriod(Lines),
    /// The budget was used up within a period: stop the group on this CPU until then, and call
    /// [`CpuRegulator::begin`].
    ThrottleUntil(Nanos),
    /// All members of the pool have drawn all they may, or this CPU has no cap. Run on uncounted
    /// until then, and call [`PooledRegulator::begin`](super::pooled::PooledRegulator::begin).
    RunFreeUntil(Nanos),
}

impl Verdict {
    /// Whether the CPU is to be stopped.
    #[must_use]
    pub fn stops(self) -> bool {
        matches!(self, Self::ThrottleUntil(_))
    }

    /// The same verdict, its times converted to another clock.
    #[must_use]
    pub fn on_clock(self, clock: impl FnOnce(Nanos) -> Nanos) -> Self {
        match self {
            Self::ThrottleUntil(until) => Self::ThrottleUntil(clock(until)),
            Self::RunFreeUntil(until) => Self::RunFreeUntil(clock(until)),
            Self::Rearm(_) | Self::NewPeriod(_) => self,
        }
    }
}

/// The longest time that a debt may stop a group on a CPU. A larger debt arises when the brake
/// itself was kept from running. The rest of it is forgiven and counted, so that one failure does
/// not freeze a CPU for minutes.
pub const LONGEST_DEBT: Nanos = Nanos::secs(1);

/// The state of the current budget, for a copy of the regulator that decides elsewhere (in the
/// counter's interrupt).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// When the budget began.
    pub start: Nanos,
    /// The counter's reading from which use is charged to it.
    pub base: Lines,
    /// Lines of this budget; at least one.
    pub budget: Lines,
    /// The regulation period; at least 1 ns.
    pub period: Nanos,
}

/// The regulator of one CPU with one budget, not pooled.
#[derive(Clone, Debug)]
pub struct CpuRegulator {
    budget: u64,
    /// The budget once the current one is used up and paid for.
    next_budget: u64,
    period: u64,
    /// The most periods that one spell of use may cost ([`LONGEST_DEBT`]).
    most_periods: u64,
    /// When the current budget began.
    start: Nanos,
    /// The counter's reading from which use is charged to the current budget. This is the reading
    /// when the budget began, less the debt.
    base: u64,
    forgiven: u64,
}

impl CpuRegulator {
    /// A regulator with `budget` lines per `period`. It begins at `now` with the counter at `used`.
    /// Zero is taken as one line, and as 1 ns.
    #[must_use]
    pub fn new(budget: Lines, period: Nanos, now: Nanos, used: Lines) -> Self {
        let period = period.0.max(1);
        Self {
            budget: budget.0.max(1),
            next_budget: budget.0.max(1),
            period,
            most_periods: (LONGEST_DEBT.0 / period).max(1),
            start: now,
            base: used.0,
            forgiven: 0,
        }
    }

    /// The lines left before the next overflow; at least one.
    #[must_use]
    pub fn left(&self, used: Lines) -> Lines {
        Lines(
            self.budget
                .saturating_sub(used.0.saturating_sub(self.base))
                .max(1),
        )
    }

    /// The lines by which `used` is above what all periods allow that have begun by `now`.
    #[must_use]
    pub fn debt(&self, now: Nanos, used: Lines) -> Lines {
        let begun = (now.since(self.start).0 / self.period).saturating_add(1);
        let spent = used.0.saturating_sub(self.base);
        Lines(spent.saturating_sub(begun.saturating_mul(self.budget)))
    }

    /// Sets the budget that begins when the current one is used up. What was drawn until then is
    /// paid for by the current one.
    pub fn set_budget(&mut self, budget: Lines) {
        self.next_budget = budget.0.max(1);
    }

    /// The budget that begins when the current one is used up.
    #[must_use]
    pub fn budget(&self) -> Lines {
        Lines(self.next_budget)
    }

    /// Lines of debt forgiven since the beginning ([`LONGEST_DEBT`]).
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        Lines(self.forgiven)
    }

    /// A budget begins at `now` with the counter at `used`, and no debt, because the CPU was not
    /// counted until now. Returns the lines left.
    pub fn restart(&mut self, now: Nanos, used: Lines) -> Lines {
        self.start = now;
        self.base = used.0;
        self.budget = self.next_budget;
        self.left(used)
    }

    /// The state of the current budget. `None` where the next budget differs from it.
    #[must_use]
    pub fn account(&self) -> Option<Account> {
        (self.budget == self.next_budget).then_some(Account {
            start: self.start,
            base: Lines(self.base),
            budget: Lines(self.budget),
            period: Nanos(self.period),
        })
    }

    /// Continues where a copy of this regulator arrived: in a budget that began at `start`, charged
    /// from the counter's reading `base`.
    pub fn resume(&mut self, start: Nanos, base: Lines) {
        self.start = start;
        self.base = base.0;
    }

    /// After a stop: the periods that have passed pay for what was used. Returns the lines to arm
    /// the counter with. The phase of the periods is kept, so that a CPU that always wants more
    /// gets exactly its rate.
    pub fn begin(&mut self, now: Nanos, used: Lines) -> Lines {
        let spent = used.0.saturating_sub(self.base);
        let passed = now.since(self.start).0 / self.period;
        let paid = spent.min(passed.saturating_mul(self.budget));
        self.start = self.start.plus(Nanos(passed.saturating_mul(self.period)));
        self.base = self.base.saturating_add(paid);
        self.budget = self.next_budget;
        self.left(used)
    }

    /// Decides what happens after an overflow at `now`, with the counter at `used`.
    pub fn overflow(&mut self, now: Nanos, used: Lines) -> Verdict {
        let spent = used.0.saturating_sub(self.base);
        if spent < self.budget {
            return Verdict::Rearm(Lines(self.budget - spent));
        }
        let mut costs = spent / self.budget;
        if costs > self.most_periods {
            let kept = self.most_periods * self.budget;
            self.forgiven = self.forgiven.saturating_add(spent - kept);
            self.base = used.0 - kept;
            costs = self.most_periods;
        }
        let due = self.start.plus(Nanos(costs.saturating_mul(self.period)));
        if now < due {
            return Verdict::ThrottleUntil(due);
        }
        self.start = now;
        self.base += costs * self.budget;
        self.budget = self.next_budget;
        Verdict::NewPeriod(self.left(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_what_no_period_that_began_allows() {
        let ms = Nanos::millis;
        let regulator = CpuRegulator::new(Lines(100), ms(1), ms(5), Lines(1_000));
        let debt = |now, used| regulator.debt(ms(now), Lines(used)).0;
        assert_eq!([debt(5, 1_100), debt(5, 1_130)], [0, 30]);
        // The fourth period has begun.
        assert_eq!([debt(8, 1_400), debt(8, 1_407)], [0, 7]);
    }
    use proptest::prelude::*;

    const PERIOD: Nanos = Nanos(1_000);
    const BUDGET: Lines = Lines(100);

    /// A CPU drew its old budget, 25 times the new one. It pays for that as one budget, since that
    /// is what it was when it was drawn.
    #[test]
    fn what_was_drawn_is_paid_from_the_budget_it_was_drawn_from() {
        let mut cpu = CpuRegulator::new(Lines(2_500), PERIOD, Nanos(0), Lines(0));
        cpu.set_budget(BUDGET);
        assert_eq!(
            cpu.overflow(Nanos(400), Lines(2_500)),
            Verdict::ThrottleUntil(PERIOD)
        );
        assert_eq!(cpu.begin(PERIOD, Lines(2_500)), BUDGET);
        assert_eq!(
            cpu.overflow(Nanos(1_016), Lines(2_600)),
            Verdict::ThrottleUntil(Nanos(2_000))
        );
    }

    fn fresh() -> CpuRegulator {
        CpuRegulator::new(BUDGET, PERIOD, Nanos(0), Lines(0))
    }

    #[test]
    fn a_budget_used_too_soon_stops_the_cpu_until_the_period_ends() {
        let mut cpu = fresh();
        assert_eq!(
            cpu.overflow(Nanos(300), Lines(100)),
            Verdict::ThrottleUntil(Nanos(1_000))
        );
        assert_eq!(cpu.begin(Nanos(1_000), Lines(100)), BUDGET);
    }

    #[test]
    fn after_a_restart_nothing_is_owed() {
        let mut cpu = fresh();
        cpu.set_budget(Lines(10));
        assert_eq!(cpu.restart(Nanos(5_300), Lines(50_000)), Lines(10));
        assert_eq!(
            cpu.overflow(Nanos(5_400), Lines(50_010)),
            Verdict::ThrottleUntil(Nanos(6_300))
        );
    }

    #[test]
    fn a_budget_that_lasted_a_period_is_renewed_without_a_stop() {
        let mut cpu = fresh();
        assert_eq!(
            cpu.overflow(Nanos(1_200), Lines(100)),
            Verdict::NewPeriod(BUDGET)
        );
        // The new budget began at 1200: using it up by 2000 is again too soon.
        assert_eq!(
            cpu.overflow(Nanos(2_000), Lines(200)),
            Verdict::ThrottleUntil(Nanos(2_200))
        );
    }

    #[test]
    fn overshoot_is_debited() {
        let mut cpu = fresh();
        assert_eq!(
            cpu.overflow(Nanos(200), Lines(130)),
            Verdict::ThrottleUntil(Nanos(1_000))
        );
        assert_eq!(cpu.begin(Nanos(1_003), Lines(130)), Lines(70));
        // Three budgets at once cost three periods, and the rest of the fourth.
        assert_eq!(
            cpu.overflow(Nanos(1_400), Lines(450)),
            Verdict::ThrottleUntil(Nanos(4_000))
        );
        assert_eq!(cpu.begin(Nanos(4_000), Lines(450)), Lines(50));
    }

    #[test]
    fn an_early_overflow_only_rearms() {
        assert_eq!(
            fresh().overflow(Nanos(10), Lines(60)),
            Verdict::Rearm(Lines(40))
        );
    }

    #[test]
    fn a_debt_beyond_a_second_is_forgiven_and_counted() {
        let mut cpu = fresh();
        let periods = LONGEST_DEBT.0 / PERIOD.0;
        let used = Lines(BUDGET.0 * (periods + 500));
        assert_eq!(
            cpu.overflow(Nanos(10), used),
            Verdict::ThrottleUntil(LONGEST_DEBT)
        );
        assert_eq!(cpu.forgiven(), Lines(BUDGET.0 * 500));
        assert_eq!(cpu.begin(LONGEST_DEBT, used), BUDGET);
    }

    #[test]
    fn a_resumed_regulator_decides_as_the_one_it_was_taken_from() {
        let mut first = fresh();
        let mut second = fresh();
        assert_eq!(
            first.overflow(Nanos(1_200), Lines(110)),
            Verdict::NewPeriod(Lines(90))
        );
        let account = first.account().unwrap();
        assert_eq!((account.start, account.base), (Nanos(1_200), Lines(100)));
        second.resume(account.start, account.base);
        let at = (Nanos(1_300), Lines(205));
        assert_eq!(second.overflow(at.0, at.1), first.overflow(at.0, at.1));
        first.set_budget(Lines(7));
        assert_eq!(first.account(), None);
    }

    /// A CPU that draws one line per `gap` while it runs. It pauses for `idle`, and is stopped only
    /// `late` after the overflow.
    struct Cpu {
        now: u64,
        used: u64,
    }

    proptest! {
        /// Whatever the demand and the reaction time: by any time t, no more has been used than the
        /// budgets of the periods begun, plus what one reaction lets through.
        #[test]
        fn the_average_never_exceeds_the_budget(
            spells in proptest::collection::vec((1u64..50, 0u64..3_000, 0u64..400), 1..200),
        ) {
            let mut cpu = fresh();
            let mut at = Cpu { now: 0, used: 0 };
            let mut armed = cpu.left(Lines(0)).0;
            for (gap, idle, late) in spells {
                at.now += idle;
                // Run at one line per `gap` until the armed count is used up, then `late` longer.
                at.used += armed + late / gap;
                at.now += armed * gap + late;
                let overshoot = late / gap;
                let bound = (at.now / PERIOD.0 + 1) * BUDGET.0 + overshoot;
                prop_assert!(at.used <= bound, "used {} by {}, bound {}", at.used, at.now, bound);
                armed = match cpu.overflow(Nanos(at.now), Lines(at.used)) {
                    Verdict::Rearm(lines) | Verdict::NewPeriod(lines) => lines.0,
                    Verdict::ThrottleUntil(until) => {
                        prop_assert!(until.0 > at.now);
                        at.now = until.0;
                        cpu.begin(until, Lines(at.used)).0
                    }
                    shared @ Verdict::RunFreeUntil(_) => unreachable!("{shared:?} without a pool"),
                };
                prop_assert!((1..=BUDGET.0).contains(&armed));
            }
        }

        /// A CPU that always wants more gets its whole budget in each period (to within one
        /// reaction).
        #[test]
        fn a_greedy_cpu_gets_its_rate(late in 0u64..40, wake in 0u64..5) {
            let mut cpu = fresh();
            let mut at = Cpu { now: 0, used: 0 };
            let mut armed = BUDGET.0;
            while at.now < 200 * PERIOD.0 {
                at.used += armed + late;
                at.now += armed + late;
                armed = match cpu.overflow(Nanos(at.now), Lines(at.used)) {
                    Verdict::Rearm(lines) | Verdict::NewPeriod(lines) => lines.0,
                    Verdict::ThrottleUntil(until) => {
                        at.now = until.0 + wake;
                        cpu.begin(Nanos(at.now), Lines(at.used)).0
                    }
                    shared @ Verdict::RunFreeUntil(_) => unreachable!("{shared:?} without a pool"),
                };
            }
            let due = at.now / PERIOD.0 * BUDGET.0;
            prop_assert!(at.used >= due - BUDGET.0 && at.used <= due + BUDGET.0 + late);
        }

        #[test]
        fn below_the_budget_nothing_happens(gap in 10u64..100) {
            let mut cpu = fresh();
            let (mut now, mut used) = (0, 0);
            for _ in 0..50 {
                now += BUDGET.0 * gap;
                used += BUDGET.0;
                let verdict = cpu.overflow(Nanos(now), Lines(used));
                prop_assert!(matches!(verdict, Verdict::NewPeriod(_)), "{:?}", verdict);
            }
        }
    }
}
