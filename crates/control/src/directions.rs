//! The fast controller of a CPU whose reads and writes have a budget each.
//!
//! Method: two counters and two budgets, as MemGuard has them since Bechtel and Yun,
//! "Denial-of-Service Attacks on Shared Cache in Multicore: Analysis and Prevention" (RTAS 2019).
//! Lines that are written back hurt other CPUs far more than lines that come in. One budget for the
//! sum is therefore too large for a program that writes, or too small for one that reads.
//!
//! The group is stopped on that CPU when either budget is used up, and resumed when both allow it.
//! Each is a [`CpuRegulator`] with its own lazily refreshed periods, and pays its own debts. A stop
//! for one direction leaves the rest of the other budget as it is. A direction that is not drawn
//! changes nothing.
//!
//! No allocation, no clock, no system call: the caller brings the time and the counters' readings.

use quell_types::units::{Lines, Nanos};

use super::bandwidth::{CpuRegulator, Verdict};
use crate::config::LineCounts;

/// The regulator of one CPU: two reservations.
#[derive(Clone, Debug)]
pub struct DirectionsRegulator {
    reads: CpuRegulator,
    writes: CpuRegulator,
    /// Whether the reads, and whether the writes, keep the CPU stopped.
    stopped: [bool; 2],
}

impl DirectionsRegulator {
    /// A regulator with `budget` per `period`. It begins at `now` with the counters at `used`.
    #[must_use]
    pub fn new(budget: LineCounts, period: Nanos, now: Nanos, used: LineCounts) -> Self {
        Self {
            reads: CpuRegulator::new(budget.lines, period, now, used.lines),
            writes: CpuRegulator::new(budget.writes, period, now, used.writes),
            stopped: [false; 2],
        }
    }

    /// The lines left in each direction before its next overflow.
    #[must_use]
    pub fn left(&self, used: LineCounts) -> LineCounts {
        LineCounts {
            lines: self.reads.left(used.lines),
            writes: self.writes.left(used.writes),
        }
    }

    /// Sets the budgets. Each takes effect when the current one of its direction is used up.
    pub fn set_budget(&mut self, budget: LineCounts) {
        self.reads.set_budget(budget.lines);
        self.writes.set_budget(budget.writes);
    }

    /// The budgets, each as it is once the current one of its direction is used up.
    #[must_use]
    pub fn budget(&self) -> LineCounts {
        LineCounts {
            lines: self.reads.budget(),
            writes: self.writes.budget(),
        }
    }

    /// Lines of debt forgiven since the beginning, both directions together.
    #[must_use]
    pub fn forgiven(&self) -> Lines {
        Lines(self.reads.forgiven().0 + self.writes.forgiven().0)
    }

    /// A stop is over: the directions that caused it pay. What came in during the stop can stop the
    /// CPU again at once.
    pub fn begin(&mut self, now: Nanos, used: LineCounts) -> Verdict {
        let [reads, writes] = self.stopped;
        if reads {
            self.reads.begin(now, used.lines);
        }
        if writes {
            self.writes.begin(now, used.writes);
        }
        self.overflow(now, used)
    }

    /// Either counter overflowed at `now`. A verdict that lets the group run has the reads that are
    /// left; [`Self::left`] has both directions.
    pub fn overflow(&mut self, now: Nanos, used: LineCounts) -> Verdict {
        let reads = self.reads.overflow(now, used.lines);
        let writes = self.writes.overflow(now, used.writes);
        self.stopped = [reads.stops(), writes.stops()];
        match (reads, writes) {
            (Verdict::ThrottleUntil(one), Verdict::ThrottleUntil(other)) => {
                Verdict::ThrottleUntil(one.max(other))
            }
            (_, Verdict::ThrottleUntil(until)) => Verdict::ThrottleUntil(until),
            (Verdict::Rearm(lines), Verdict::NewPeriod(_)) => Verdict::NewPeriod(lines),
            (reads, _) => reads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Nanos = Nanos(1_000);
    const BUDGET: LineCounts = moved(100, 20);

    const fn moved(lines: u64, writes: u64) -> LineCounts {
        LineCounts {
            lines: Lines(lines),
            writes: Lines(writes),
        }
    }

    fn fresh() -> DirectionsRegulator {
        DirectionsRegulator::new(BUDGET, PERIOD, Nanos(0), LineCounts::default())
    }

    #[test]
    fn whichever_budget_is_used_up_first_stops_the_cpu() {
        let stop = Verdict::ThrottleUntil(PERIOD);
        assert_eq!(fresh().overflow(Nanos(300), moved(100, 3)), stop);
        assert_eq!(fresh().overflow(Nanos(300), moved(20, 20)), stop);
        assert_eq!(fresh().overflow(Nanos(300), moved(100, 20)), stop);
        let below = Verdict::Rearm(Lines(1));
        assert_eq!(fresh().overflow(Nanos(300), moved(99, 19)), below);
    }

    #[test]
    fn each_direction_pays_its_own_debt() {
        let mut cpu = fresh();
        // Three budgets of writes at once cost three periods, however little was read.
        let stop = Verdict::ThrottleUntil(Nanos(3_000));
        assert_eq!(cpu.overflow(Nanos(400), moved(30, 65)), stop);
        assert_eq!(
            cpu.begin(Nanos(3_000), moved(30, 65)),
            Verdict::Rearm(Lines(70))
        );
        // Five too many were written: fifteen are left. The reads did not cause the stop and pay
        // nothing.
        assert_eq!(cpu.left(moved(30, 65)), moved(70, 15));
    }

    #[test]
    fn a_budget_of_one_direction_is_renewed_next_to_the_other() {
        let mut cpu = fresh();
        let used = moved(50, 20);
        let new = Verdict::NewPeriod(Lines(50));
        assert_eq!(cpu.overflow(Nanos(1_200), used), new);
        assert_eq!(cpu.left(used), moved(50, 20));
    }

    #[test]
    fn what_came_in_while_the_cpu_was_stopped_stops_it_again() {
        let mut cpu = fresh();
        let stop = Verdict::ThrottleUntil(PERIOD);
        assert_eq!(cpu.overflow(Nanos(900), moved(0, 20)), stop);
        // 2000 lines arrive late: twenty periods from the beginning of the first.
        let again = Verdict::ThrottleUntil(Nanos(20_000));
        assert_eq!(cpu.begin(PERIOD, moved(2_000, 20)), again);
        assert_eq!(
            cpu.begin(Nanos(20_000), moved(2_000, 20)),
            Verdict::Rearm(Lines(100))
        );
    }

    #[test]
    fn changed_budgets_hold_from_when_each_is_used_up() {
        let mut cpu = fresh();
        cpu.set_budget(moved(10, 200));
        assert_eq!(cpu.budget(), moved(10, 200));
        let stop = Verdict::ThrottleUntil(PERIOD);
        assert_eq!(cpu.overflow(Nanos(500), moved(60, 20)), stop);
        cpu.begin(PERIOD, moved(60, 20));
        // The writes have their new budget; the reads, still within the old one, not yet.
        assert_eq!(cpu.left(moved(60, 20)), moved(40, 200));
        let stop = Verdict::ThrottleUntil(Nanos(2_000));
        assert_eq!(
            cpu.overflow(PERIOD, moved(100, 20)),
            Verdict::NewPeriod(Lines(10))
        );
        assert_eq!(cpu.overflow(Nanos(1_500), moved(110, 20)), stop);
    }

    /// A CPU under both budgets, with the lines it has used by `now`.
    struct Cpu {
        regulator: DirectionsRegulator,
        now: u64,
        used: LineCounts,
    }

    /// One spell: idle for `idle`. Then a line comes in every `read`, and one is written back every
    /// `write`, until a counter overflows, and for `late` longer.
    #[derive(Clone, Copy, Debug)]
    struct Spell {
        idle: u64,
        read: u64,
        write: u64,
        late: u64,
    }

    fn spell() -> impl Strategy<Value = Spell> {
        // A gap of 2^40 stands for a direction that does not move.
        let gap = || prop_oneof![3 => 1u64..50, 1 => Just(1 << 40)];
        (0u64..3_000, gap(), gap(), 0u64..400)
            .prop_filter("something moves", |(_, read, write, _)| {
                read.min(write) < &50
            })
            .prop_map(|(idle, read, write, late)| Spell {
                idle,
                read,
                write,
                late,
            })
    }

    impl Cpu {
        fn new(budget: LineCounts) -> Self {
            let used = LineCounts::default();
            Self {
                regulator: DirectionsRegulator::new(budget, PERIOD, Nanos(0), used),
                now: 0,
                used,
            }
        }

        /// Runs through a spell, and returns the regulator's verdict at its end.
        fn run(&mut self, spell: Spell) -> Verdict {
            let left = self.regulator.left(self.used);
            let ran = (left.lines.0 * spell.read).min(left.writes.0 * spell.write) + spell.late;
            self.now += spell.idle + ran;
            self.used.lines.0 += ran / spell.read;
            self.used.writes.0 += ran / spell.write;
            self.regulator.overflow(Nanos(self.now), self.used)
        }

        /// Waits until no stop is left, and returns how many there were.
        fn stopped(&mut self, mut what: Verdict) -> u32 {
            let mut stops = 0;
            while let Verdict::ThrottleUntil(until) = what {
                assert!(until.0 > self.now, "a stop that is over");
                self.now = until.0;
                what = self.regulator.begin(until, self.used);
                stops += 1;
            }
            stops
        }
    }

    proptest! {
        /// Whatever the demand and the reaction time: by any time t, neither direction has moved
        /// more than the budgets of the periods begun, plus what one reaction lets through.
        #[test]
        fn the_average_of_neither_direction_exceeds_its_budget(
            spells in proptest::collection::vec(spell(), 1..200),
            budget in (1u64..200, 1u64..200),
        ) {
            let mut cpu = Cpu::new(moved(budget.0, budget.1));
            for spell in spells {
                let what = cpu.run(spell);
                let periods = cpu.now / PERIOD.0 + 1;
                for (used, budget, gap) in [
                    (cpu.used.lines, budget.0, spell.read),
                    (cpu.used.writes, budget.1, spell.write),
                ] {
                    let bound = periods * budget + spell.late / gap + 1;
                    prop_assert!(used.0 <= bound, "{} of {bound} by {}", used.0, cpu.now);
                }
                cpu.stopped(what);
                let left = cpu.regulator.left(cpu.used);
                prop_assert!((1..=budget.0).contains(&left.lines.0));
                prop_assert!((1..=budget.1).contains(&left.writes.0));
            }
        }

        /// The same with budgets that change: no more than the largest budget so far allows.
        #[test]
        fn changed_budgets_are_not_exceeded(
            spells in proptest::collection::vec((spell(), 1u64..200, 1u64..200), 1..200),
        ) {
            let mut cpu = Cpu::new(BUDGET);
            let mut most = BUDGET;
            for (spell, reads, writes) in spells {
                let what = cpu.run(spell);
                let periods = cpu.now / PERIOD.0 + 1;
                let over = [spell.late / spell.read + 1, spell.late / spell.write + 1];
                prop_assert!(cpu.used.lines.0 <= periods * most.lines.0 + over[0]);
                prop_assert!(cpu.used.writes.0 <= periods * most.writes.0 + over[1]);
                cpu.stopped(what);
                cpu.regulator.set_budget(moved(reads, writes));
                most.lines = most.lines.max(Lines(reads));
                most.writes = most.writes.max(Lines(writes));
            }
        }

        /// A direction that is not drawn changes nothing: the other is regulated as if it were
        /// alone.
        #[test]
        fn one_direction_alone_is_one_budget(
            spells in proptest::collection::vec((1u64..50, 0u64..3_000, 0u64..400), 1..100),
            writes in any::<bool>(),
        ) {
            let one = |lines| if writes { moved(0, lines) } else { moved(lines, 0) };
            let budget = Lines(100);
            let mut both = DirectionsRegulator::new(moved(100, 100), PERIOD, Nanos(0), one(0));
            let mut alone = CpuRegulator::new(budget, PERIOD, Nanos(0), Lines(0));
            let (mut now, mut used) = (0, 0);
            for (gap, idle, late) in spells {
                let armed = alone.left(Lines(used)).0;
                let left = both.left(one(used));
                prop_assert_eq!(armed, if writes { left.writes.0 } else { left.lines.0 });
                now += idle + armed * gap + late;
                used += armed + late / gap;
                let what = alone.overflow(Nanos(now), Lines(used));
                let same = both.overflow(Nanos(now), one(used));
                prop_assert_eq!(what.stops(), same.stops());
                if let Verdict::ThrottleUntil(until) = what {
                    prop_assert_eq!(same, what);
                    now = until.0;
                    alone.begin(until, Lines(used));
                    both.begin(until, one(used));
                }
            }
        }

        #[test]
        fn below_both_budgets_it_is_never_stopped(read in 10u64..100, write in 50u64..500) {
            let mut cpu = Cpu::new(BUDGET);
            for _ in 0..50 {
                let spell = Spell { idle: 0, read, write, late: 0 };
                let what = cpu.run(spell);
                prop_assert!(!what.stops(), "{:?}", what);
            }
        }

        /// A CPU that always wants more of both gets all of the budget that binds it (to within one
        /// reaction), and is stopped no longer than that takes.
        #[test]
        fn a_greedy_cpu_gets_the_rate_of_the_budget_that_binds(read in 1u64..5, write in 1u64..40, late in 0u64..40) {
            let mut cpu = Cpu::new(BUDGET);
            while cpu.now < 400 * PERIOD.0 {
                let what = cpu.run(Spell { idle: 0, read, write, late });
                cpu.stopped(what);
            }
            let periods = cpu.now / PERIOD.0;
            let demand = [cpu.now / read, cpu.now / write];
            let full = |used: Lines, budget: Lines| {
                used.0 + 2 * budget.0 + late >= periods * budget.0
            };
            prop_assert!(
                full(cpu.used.lines, BUDGET.lines) || full(cpu.used.writes, BUDGET.writes)
                    || demand[0] <= cpu.used.lines.0 + 2,
                "{:?} of {periods} periods", cpu.used
            );
        }
    }
}
