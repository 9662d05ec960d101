use super::*;
use crate::pool::SharedPool;
use proptest::prelude::*;

const LENGTH: Nanos = Nanos(1_000_000);
const QUANTUM: u64 = 8;

fn rules(reclaim: bool, after: After) -> Pooling {
    Pooling {
        reclaim,
        after,
        predictor: Share::percent(50),
        idle: Idle::Counted,
        quantum: Lines(QUANTUM),
        capped: true,
        headroom: false,
    }
}

/// A CPU under regulation: what it has drawn, when its counter overflows, until when it is stopped.
#[derive(Clone, Debug)]
struct Cpu {
    regulator: PooledRegulator,
    used: u64,
    armed: Option<u64>,
    stopped: bool,
    /// Drawn in this period, and whether it was stopped in it below its budget.
    drawn: u64,
    starved: bool,
    /// Drawn in the period before.
    last: u64,
    gone: bool,
}

/// A machine without any delays: each CPU begins a new period on time.
struct Machine {
    pool: SharedPool,
    cpus: Vec<Cpu>,
    now: u64,
    /// Periods that began early, and how often all were allowed to run freely.
    renewed: u64,
    freed: u64,
    /// Lines drawn between overflows and stops.
    late: u64,
}

impl Machine {
    fn new(rules: &[Pooling], budgets: &[u64]) -> Self {
        let cpus = rules.iter().zip(budgets).map(|(rules, budget)| Cpu {
            regulator: PooledRegulator::new(rules, Lines(*budget), LENGTH),
            used: 0,
            armed: None,
            stopped: false,
            drawn: 0,
            starved: false,
            last: u64::MAX,
            gone: false,
        });
        let mut machine = Self {
            pool: SharedPool::new(Nanos(0)),
            cpus: cpus.collect(),
            now: 0,
            renewed: 0,
            freed: 0,
            late: 0,
        };
        machine.begin_all();
        machine
    }

    fn begin_all(&mut self) {
        for cpu in self.cpus.iter_mut().filter(|cpu| !cpu.gone) {
            if cpu.regulator.period().is_some() {
                cpu.last = cpu.drawn;
            }
            (cpu.drawn, cpu.starved) = (0, false);
            let verdict = cpu
                .regulator
                .begin(Nanos(self.now), Lines(cpu.used), &self.pool);
            cpu.follow(verdict);
        }
    }

    /// Time passes; periods that end meanwhile begin anew on all CPUs.
    fn pass(&mut self, span: u64) {
        let until = self.now + span;
        loop {
            let end = self.pool.period().start.0 + LENGTH.0;
            if end > until {
                break;
            }
            self.now = end;
            self.begin_all();
        }
        self.now = until;
    }

    /// A CPU draws up to `want` lines, and `late` more after its counter's overflow.
    fn draw(&mut self, which: usize, want: u64, late: u64) {
        let mut want = want;
        while want > 0 && !self.cpus[which].stopped && !self.cpus[which].gone {
            let cpu = &mut self.cpus[which];
            let Some(armed) = cpu.armed else {
                cpu.used += want;
                cpu.drawn += want;
                return;
            };
            let step = want.min(armed.saturating_sub(cpu.used).max(1));
            let over = cpu.used + step >= armed;
            let step = if over { step + late } else { step };
            cpu.used += step;
            cpu.drawn += step;
            want = want.saturating_sub(step);
            if over {
                self.late += late;
                self.overflow(which);
            }
        }
    }

    fn overflow(&mut self, which: usize) {
        let before = self.pool.period();
        let cpu = &mut self.cpus[which];
        let (used, now) = (Lines(cpu.used), Nanos(self.now));
        let verdict = cpu.regulator.overflow(now, used, &self.pool);
        if self.pool.period() != before {
            assert!(self.all_spent(which), "renewed while a CPU had lines left");
            self.renewed += 1;
            self.begin_all();
            return;
        }
        self.cpus[which].follow(verdict);
        if self.pool.is_free(before) {
            assert!(self.all_spent(which), "let run while a CPU had lines left");
            self.freed += 1;
            for cpu in self.cpus.iter_mut().filter(|cpu| !cpu.gone) {
                let verdict = cpu.regulator.begin(now, Lines(cpu.used), &self.pool);
                assert!(matches!(verdict, Verdict::RunFreeUntil(_)));
                cpu.follow(verdict);
            }
        }
    }

    /// Seen from outside: no other CPU has anything left that it could draw without asking, except
    /// noise, and but for idle ones that are left out.
    fn all_spent(&self, cpu: usize) -> bool {
        let noise = |cpu: &Cpu| (cpu.regulator.budget().0 / NOISE).clamp(1, QUANTUM);
        let idle = |cpu: &Cpu| {
            let left_out = cpu.regulator.rules.idle == Idle::LeftOut && cpu.last <= noise(cpu);
            let armed = cpu.armed;
            left_out || armed.is_some_and(|armed| armed - cpu.used <= noise(cpu))
        };
        let others = self.cpus.iter().enumerate().filter(|(i, _)| *i != cpu);
        others
            .into_iter()
            .all(|(_, cpu)| cpu.gone || cpu.stopped || cpu.armed.is_none() || idle(cpu))
    }

    /// A CPU's regulator ends, as when the CPU goes offline. Stopped CPUs that see this ask again.
    fn leave(&mut self, which: usize) {
        let cpu = &mut self.cpus[which];
        if std::mem::replace(&mut cpu.gone, true) {
            return;
        }
        cpu.regulator.leave(&self.pool);
        for other in 0..self.cpus.len() {
            let cpu = &self.cpus[other];
            if !cpu.gone && cpu.stopped && cpu.regulator.news(&self.pool) {
                self.overflow(other);
            }
        }
    }

    fn did(&self) -> Pooled {
        let all = self.cpus.iter().map(|cpu| cpu.regulator.did());
        all.fold(Pooled::default(), Pooled::plus)
    }

    fn granted(&self) -> u64 {
        let held = self.cpus.iter().filter(|cpu| !cpu.gone);
        held.map(|cpu| cpu.regulator.granted().0).sum()
    }
}

impl Cpu {
    fn follow(&mut self, verdict: Verdict) {
        (self.armed, self.stopped) = match verdict {
            Verdict::Rearm(lines) | Verdict::NewPeriod(lines) => {
                assert!(lines.0 > 0);
                (Some(self.used + lines.0), false)
            }
            Verdict::RunFreeUntil(_) => (None, false),
            Verdict::ThrottleUntil(_) => (self.armed, true),
        };
    }
}

#[test]
fn without_reclaim_a_cpu_draws_its_budget_and_waits() {
    let mut machine = Machine::new(
        &[rules(false, After::Wait), rules(false, After::Wait)],
        &[100, 50],
    );
    machine.draw(0, 500, 0);
    assert_eq!(
        (machine.cpus[0].drawn, machine.cpus[0].stopped),
        (100, true)
    );
    machine.pass(LENGTH.0);
    machine.draw(0, 30, 0);
    assert_eq!(
        (machine.cpus[0].drawn, machine.cpus[0].stopped),
        (30, false)
    );
    assert_eq!(machine.did().donated, 0);
}

#[test]
fn what_an_idle_cpu_gives_away_the_other_draws() {
    let r = rules(true, After::Wait);
    let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
    for _ in 0..10 {
        machine.pass(LENGTH.0);
        machine.draw(1, 1_000, 0);
    }
    // It has been idle for ten periods, and keeps only what may be noise: a thirty-second part.
    assert_eq!(machine.cpus[1].drawn, 197);
    assert_eq!(machine.granted(), 200);
}

#[test]
fn a_waking_cpu_takes_back_its_own_and_a_miss_its_budget() {
    let r = rules(true, After::Wait);
    let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
    machine.pass(20 * LENGTH.0);
    machine.pass(LENGTH.0);
    // Nothing has been taken yet: all of it comes back.
    machine.draw(0, 100, 0);
    let did = machine.cpus[0].regulator.did();
    assert_eq!((machine.cpus[0].drawn, did.missed), (100, 0));
    assert!(machine.cpus[0].regulator.did().taken_back >= 97);
    // The second CPU has drawn everything: one miss, and the first gets its budget all the same.
    machine.pass(20 * LENGTH.0);
    machine.draw(1, 1_000, 0);
    machine.draw(0, 150, 0);
    let did = machine.cpus[0].regulator.did();
    assert_eq!(
        (machine.cpus[0].drawn, machine.cpus[0].stopped),
        (100, true)
    );
    assert_eq!((did.missed, did.granted_twice), (1, 97));
    assert_eq!(machine.granted(), 200, "of which nothing was granted twice");
    // And in the next period it keeps all of it.
    machine.pass(LENGTH.0);
    machine.draw(1, 1_000, 0);
    assert_eq!(machine.cpus[1].drawn, 100);
}

#[test]
fn spare_sharing_lets_all_run_until_the_period_ends() {
    let r = rules(false, After::Spare);
    let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
    machine.draw(0, 300, 0);
    assert!(machine.cpus[0].stopped, "the other has not drawn anything");
    machine.draw(1, 300, 0);
    machine.draw(0, 300, 0);
    assert_eq!((machine.cpus[0].drawn, machine.cpus[1].drawn), (400, 300));
    machine.pass(LENGTH.0);
    assert_eq!(machine.did().best_effort, 500);
    machine.draw(0, 300, 0);
    assert_eq!(machine.cpus[0].drawn, 100, "nothing of it is a debt");
}

#[test]
fn proportional_sharing_begins_a_new_period_at_once() {
    let r = rules(false, After::Proportional);
    let mut machine = Machine::new(&[r.clone(), r], &[100, 50]);
    machine.draw(0, 100, 0);
    machine.pass(LENGTH.0 / 4);
    machine.draw(1, 50, 0);
    assert_eq!(machine.renewed, 1);
    assert_eq!(machine.pool.period().start.0, LENGTH.0 / 4);
    assert!(!machine.cpus[0].stopped);
    assert_eq!(machine.did().best_effort, 150);
}

#[test]
fn with_reclaim_an_idle_cpu_does_not_keep_the_others_waiting() {
    let r = rules(true, After::Proportional);
    let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
    machine.pass(20 * LENGTH.0);
    machine.pass(LENGTH.0 / 2);
    machine.draw(1, 1_000, 0);
    assert_eq!(machine.renewed, 5, "two budgets at a time");
    assert!(!machine.cpus[1].stopped);
}

#[test]
fn as_in_memguard_an_idle_cpu_is_left_out() {
    let periods = |idle, drawn| {
        let r = Pooling {
            idle,
            ..rules(false, After::Proportional)
        };
        let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
        machine.draw(0, drawn, 0);
        machine.pass(LENGTH.0);
        machine.draw(1, 1_000, 0);
        // Its budget is its own all the same.
        machine.draw(0, 60, 0);
        assert!(!machine.cpus[0].stopped);
        machine.renewed
    };
    assert_eq!(periods(Idle::Counted, 0), 0);
    assert_eq!(periods(Idle::LeftOut, 0), 10, "a budget at a time");
    // What a counter counts of an idle CPU is no use; a line more is.
    assert_eq!(periods(Idle::LeftOut, 3), 10);
    assert_eq!(periods(Idle::LeftOut, 4), 0);
}

#[test]
fn a_cpu_without_a_cap_is_never_stopped() {
    let mut critical = rules(true, After::Wait);
    critical.capped = false;
    let mut machine = Machine::new(&[critical, rules(true, After::Wait)], &[100, 100]);
    machine.pass(20 * LENGTH.0);
    machine.draw(1, 1_000, 0);
    assert_eq!(machine.cpus[1].drawn, 197);
    machine.draw(0, 1_000, 0);
    assert_eq!(
        (machine.cpus[0].drawn, machine.cpus[0].stopped),
        (1_000, false)
    );
    machine.pass(LENGTH.0);
    machine.draw(0, 10, 0);
    machine.draw(1, 1_000, 0);
    assert_eq!(machine.cpus[1].drawn, 100, "its prediction was corrected");
}

#[test]
fn headroom_is_whole_while_its_cpus_draw_and_given_while_idle() {
    let mut room = rules(true, After::Proportional);
    (room.capped, room.headroom) = (false, true);
    let other = rules(true, After::Proportional);
    let mut machine = Machine::new(&[room.clone(), room, other], &[1_000, 1_000, 100]);
    // What the third CPU draws in a period in which the first draws `working`. It asks in four
    // quarters.
    let mut period = |working: u64| {
        machine.pass(LENGTH.0);
        for _ in 0..4 {
            machine.draw(0, working / 4, 0);
            machine.draw(2, 1_000, 0);
        }
        machine.cpus[2].drawn
    };
    for _ in 0..20 {
        period(0);
    }
    assert!(period(0) > 1_900, "what both do not need");
    // A unit of work begins: from the next period on, though the first CPU draws little of what it
    // has, and the second nothing.
    period(200);
    for _ in 0..5 {
        assert_eq!(period(200), 100);
    }
    // It has ended: a prediction of half the weight takes some periods to fall to the noise.
    let idle: Vec<u64> = (0..10).map(|_| period(0)).collect();
    assert_eq!(idle[0], 100);
    assert!(idle[9] > 1_500, "{idle:?}");
}

#[test]
fn overshoot_is_paid_in_the_periods_that_follow() {
    let mut machine = Machine::new(&[rules(false, After::Wait)], &[100]);
    machine.draw(0, 1_000, 150);
    assert_eq!(machine.cpus[0].drawn, 250);
    machine.pass(LENGTH.0);
    assert!(machine.cpus[0].stopped, "the next budget is drawn already");
    machine.pass(LENGTH.0);
    machine.draw(0, 1_000, 0);
    assert_eq!(machine.cpus[0].drawn, 50);
}

#[test]
fn what_a_counter_counts_of_an_idle_cpu_keeps_nobody_waiting() {
    let r = rules(true, After::Proportional);
    let mut machine = Machine::new(&[r.clone(), r], &[256, 256]);
    for _ in 0..20 {
        machine.pass(LENGTH.0);
        machine.draw(0, 7, 0);
    }
    let shared = machine.renewed;
    machine.draw(1, 2_000, 0);
    assert!(machine.renewed > shared, "{:?}", machine.cpus[0]);
    assert!(!machine.cpus[0].stopped && !machine.cpus[1].stopped);
    // One line more than noise is demand: it is waited for until it has drawn what it kept.
    for _ in 0..20 {
        machine.pass(LENGTH.0);
        machine.draw(0, 9, 0);
    }
    let shared = machine.renewed;
    machine.draw(1, 2_000, 0);
    assert_eq!(machine.renewed, shared);
    assert!(machine.cpus[1].stopped);
}

#[test]
fn nobody_waits_for_a_cpu_that_is_regulated_no_more() {
    for reclaim in [false, true] {
        let r = rules(reclaim, After::Proportional);
        let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
        machine.draw(1, 1_000, 0);
        assert!(machine.cpus[1].stopped, "the other has its budget left");
        machine.leave(0);
        assert!(!machine.cpus[1].stopped, "it has the pool to itself");
        machine.draw(1, 1_000, 0);
        machine.pass(LENGTH.0);
        machine.draw(1, 1_000, 0);
        assert!(machine.renewed > 10, "{}", machine.renewed);
    }
}

#[test]
fn what_comes_late_is_seen_by_those_that_are_stopped() {
    let r = rules(true, After::Wait);
    let mut machine = Machine::new(&[r.clone(), r], &[100, 100]);
    machine.pass(20 * LENGTH.0);
    // The first is late: the second draws what it has, and is stopped, before the first has given
    // anything.
    machine.now += LENGTH.0;
    let [late, greedy] = &mut machine.cpus[..] else {
        unreachable!("two")
    };
    let (now, pool) = (Nanos(machine.now), &machine.pool);
    let used = Lines(greedy.used + 1_000);
    assert!(
        !greedy
            .regulator
            .begin(now, Lines(greedy.used), pool)
            .stops()
    );
    assert!(greedy.regulator.overflow(now, used, pool).stops());
    assert!(!greedy.regulator.news(pool));
    late.regulator.begin(now, Lines(late.used), pool);
    assert!(greedy.regulator.news(pool));
}

/// Demands: the CPU, how many lines it wants, how late its stop is, and how much time passes then.
fn demands() -> impl Strategy<Value = Vec<(usize, u64, u64, u64)>> {
    proptest::collection::vec((0usize..4, 0u64..400, 0u64..6, 0u64..900_000), 1..300)
}

/// Departures: before which of the demands, and which CPU is regulated no more.
fn leaves() -> impl Strategy<Value = Vec<(usize, usize)>> {
    proptest::collection::vec((0usize..300, 0usize..4), 0..4)
}

fn after() -> impl Strategy<Value = After> {
    prop_oneof![
        Just(After::Wait),
        Just(After::Spare),
        Just(After::Proportional)
    ]
}

fn idle() -> impl Strategy<Value = Idle> {
    prop_oneof![Just(Idle::Counted), Just(Idle::LeftOut)]
}

const BUDGETS: [u64; 4] = [120, 60, 40, 200];

proptest! {
    /// What budgets guarantee, for any sequence of demands and any mode.
    #[test]
    fn guarantees_hold(
        demands in demands(),
        reclaim in any::<bool>(),
        after in after(),
        idle in idle(),
        uncapped in any::<bool>(),
        leaves in leaves(),
    ) {
        let mut all = vec![Pooling { idle, ..rules(reclaim, after) }; 4];
        all[0].capped = !uncapped;
        let mut machine = Machine::new(&all, &BUDGETS);
        for (n, (which, want, late, span)) in demands.into_iter().enumerate() {
            for (_, cpu) in leaves.iter().filter(|(at, _)| *at == n) {
                machine.leave(*cpu);
            }
            let before: Vec<Pooled> = machine.cpus.iter().map(|c| c.regulator.did()).collect();
            machine.draw(which, want, late);
            // The sum of what is guaranteed is within the sum of the budgets.
            prop_assert!(machine.granted() <= BUDGETS.iter().sum::<u64>());
            for (cpu, before) in machine.cpus.iter().zip(before) {
                let new = cpu.regulator.did().less(before);
                prop_assert!(reclaim || (new.donated, new.reclaimed, new.missed) == (0, 0, 0));
            }
            for (cpu, budget) in machine.cpus.iter().zip(BUDGETS) {
                let regulator = &cpu.regulator;
                // No CPU is stopped before it has drawn its reserve in this period or in advance;
                // not even for a miss.
                if cpu.stopped && !cpu.gone {
                    prop_assert!(cpu.used - regulator.base >= budget, "{cpu:?}");
                }
                prop_assert!(regulator.twice <= budget);
            }
            prop_assert!(!uncapped || !machine.cpus[0].stopped);
            machine.pass(span);
        }
        // Nothing is created or lost in the pool.
        let did = machine.did();
        let (left, expired) = (machine.pool.left().0, machine.pool.expired().0);
        prop_assert_eq!(did.donated, did.taken_back + did.reclaimed + left + expired);
        prop_assert!(did.granted_twice <= did.donated);
        // All that was drawn is accounted for: within budgets, twice by a miss, beyond all budgets,
        // or late.
        machine.pass(LENGTH.0);
        let did = machine.did();
        let drawn: u64 = machine.cpus.iter().map(|cpu| cpu.used).sum();
        prop_assert!(uncapped || drawn <= did.guaranteed + did.granted_twice + did.best_effort + machine.late);
        prop_assert!(after != After::Wait || (did.best_effort, machine.renewed, machine.freed) == (0, 0, 0));
    }

    /// Noise is not demand: whatever an idle CPU's counter counts below it, the other CPUs have all
    /// else, and share it.
    #[test]
    fn noise_keeps_nobody_waiting(budget in 1u64..10_000, parts in proptest::collection::vec(0u64..=100, 30..60)) {
        let r = rules(true, After::Proportional);
        let mut machine = Machine::new(&[r.clone(), r], &[budget, 10_000]);
        let noise = (budget / NOISE).clamp(1, QUANTUM) - 1;
        for part in parts {
            machine.pass(LENGTH.0);
            machine.draw(0, noise * part / 100, 0);
        }
        let before = machine.renewed;
        machine.draw(1, 30_000 + 3 * budget, 0);
        prop_assert!(machine.renewed > before || budget == 1);
        prop_assert!(machine.granted() <= budget + 10_000);
    }

    /// A miss is granted at most what the CPU gave away, and the next period it gives nothing.
    #[test]
    fn a_miss_corrects_the_predictor(idle in 1u64..30, drawn in 1u64..200) {
        let mut machine = Machine::new(&vec![rules(true, After::Wait); 2], &[120, 60]);
        machine.pass(idle * LENGTH.0);
        let before = machine.did();
        machine.draw(1, 1_000, 0);
        machine.draw(0, drawn, 0);
        let new = machine.did().less(before);
        prop_assert!(new.missed <= 1);
        prop_assert!(new.granted_twice <= 120);
        let given = machine.cpus[0].regulator.did().donated;
        machine.pass(LENGTH.0);
        if new.missed == 1 {
            prop_assert_eq!(machine.cpus[0].regulator.did().donated, given);
        }
    }

    /// Whatever the mode and the lateness: without sharing no CPU draws more than the budgets in
    /// the long run.
    #[test]
    fn the_average_holds(lates in proptest::collection::vec(0u64..80, 2..60)) {
        let mut machine = Machine::new(&vec![rules(true, After::Wait); 2], &[120, 60]);
        let mut drawn = 0;
        for (n, late) in lates.iter().enumerate() {
            for which in 0..2 {
                let before = machine.cpus[which].used;
                machine.draw(which, 1_000, *late);
                drawn += machine.cpus[which].used - before;
            }
            let periods = n as u64 + 1;
            prop_assert!(drawn <= periods * 180 + 2 * 80, "{drawn} in {periods} periods");
            machine.pass(LENGTH.0);
        }
    }
}
