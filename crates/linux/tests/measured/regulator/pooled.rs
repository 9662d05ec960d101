//! Budgets in one pool, on two CPUs of this machine, with the time meter: shares of CPU time as the
//! kernel accounts for them.
//!
//! Other programs and the host may take a CPU away in any span. So shares are compared with those
//! of the same run, and a span is tried again.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use quell_control::config::Pooling;
use quell_control::config::Regulation;
use quell_control::pooled::Pooled;
use quell_linux::brake::{Brake, Lost};
use quell_types::options::{After, Idle};
use quell_types::units::{Lines, Nanos, Share};

use crate::regulator::{Busy, pool};

/// Budget of each CPU, as a share of its time.
const BUDGET: f64 = 0.1;
const SPAN: Duration = Duration::from_millis(400);

/// Two busy CPUs with pooled budgets.
struct Pair {
    sleeper: Busy,
    neighbour: Busy,
}

impl Pair {
    fn start(name: &str) -> Option<Self> {
        let mut both = Busy::several(name, 2)?;
        Some(Self {
            sleeper: both.pop()?,
            neighbour: both.pop()?,
        })
    }

    fn throttle(&self, reclaim: bool, after: After) -> [Brake; 2] {
        let pool = pool();
        [&self.sleeper, &self.neighbour].map(|busy| {
            let regulation = Regulation {
                pooling: Some(Pooling {
                    reclaim,
                    after,
                    predictor: Share::percent(50),
                    // 50 µs of CPU time at this peak.
                    idle: Idle::Counted,
                    quantum: Lines(50_000),
                    capped: true,
                    headroom: false,
                }),
                ..busy.regulation(Share::percent(10), Nanos::millis(5))
            };
            busy.brake(&regulation, busy.meter(), Arc::new(|_| true), &pool)
        })
    }

    /// The neighbour's share while the sleeper sleeps: the closest to `wanted` of a few spans, or
    /// the first one within it.
    fn alone(&self, reclaim: bool, after: After, wanted: &RangeInclusive<f64>) -> f64 {
        self.sleeper.signal(rustix::process::Signal::STOP);
        let mut found = f64::NAN;
        for _ in 0..5 {
            let brakes = self.throttle(reclaim, after);
            sleep(Duration::from_millis(100));
            found = self.neighbour.share_over(SPAN);
            assert!(brakes.iter().all(|t| t.lost().is_none()));
            if wanted.contains(&found) {
                break;
            }
        }
        self.sleeper.signal(rustix::process::Signal::CONT);
        found
    }
}

#[test]
fn what_a_sleeper_leaves_its_neighbour_draws_and_gives_back() {
    let Some(pair) = Pair::start("reclaim") else {
        return;
    };
    let holds = |what: &str, found: f64, bounds: &RangeInclusive<f64>| {
        eprintln!("{what}: {found:.3} of a CPU");
        assert!(bounds.contains(&found), "{what}: {found}, not {bounds:?}");
    };
    // While the other CPU sleeps: its own budget, both budgets, and more than both.
    let bounds = 0.75 * BUDGET..=1.06 * BUDGET;
    let own = pair.alone(false, After::Wait, &bounds);
    holds("its own", own, &bounds);
    let bounds = 1.6 * own..=2.1 * BUDGET;
    let both = pair.alone(true, After::Wait, &bounds);
    holds("both", both, &bounds);
    for after in [After::Spare, After::Proportional] {
        // Nearly all that it has of its CPU when nothing is regulated. One more budget would be
        // half as much again as both.
        pair.sleeper.signal(rustix::process::Signal::STOP);
        let free = pair.neighbour.share_over(SPAN);
        let bounds = 0.7 * free..=1.0;
        holds(
            &format!("{after:?}"),
            pair.alone(true, after, &bounds),
            &bounds,
        );
    }

    // Awake, it has its budget back, whatever the neighbour would draw. The neighbour has no more
    // than its own, except for what was granted twice.
    let mut seen = Vec::new();
    let held = (0..5).any(|_| {
        // Its share when no CPU gives any budget: other programs may take some of its time.
        let brakes = pair.throttle(false, After::Wait);
        let alone = pair.sleeper.share_over(SPAN);
        drop(brakes);
        pair.sleeper.signal(rustix::process::Signal::STOP);
        let brakes = pair.throttle(true, After::Wait);
        sleep(Duration::from_millis(200));
        pair.sleeper.signal(rustix::process::Signal::CONT);
        let before = brakes.each_ref().map(|t| t.pooled().unwrap());
        let had = [&pair.sleeper, &pair.neighbour].map(Busy::cpu_time);
        let began = quell_kernel::rt::now();
        sleep(SPAN);
        let wall = quell_kernel::rt::now().since(began).as_secs_f64();
        let shares = [(&pair.sleeper, had[0]), (&pair.neighbour, had[1])]
            .map(|(busy, had)| busy.cpu_time().since(had).as_secs_f64() / wall);
        let did: Pooled = brakes[0].pooled().unwrap().less(before[0]);
        let twice = did.granted_twice as f64 / 1e9 / wall;
        seen.push((alone, shares, did));
        assert!(
            before[0].donated > 0,
            "it gave nothing while it slept: {before:?}"
        );
        // No miss in every other period of 5 ms.
        did.missed as f64 * 0.010 <= wall
            && shares[0] >= 0.8 * alone
            && shares.iter().all(|share| *share <= 1.08 * BUDGET + twice)
    });
    assert!(held, "{seen:?}");
    eprintln!("awake: {:?}", seen.last());
}

/// A CPU whose brake ends leaves the pool. The other CPU does not wait for it to spend a budget
/// that no brake holds any more.
#[test]
fn nobody_waits_for_a_cpu_that_is_regulated_no_more() {
    let Some(pair) = Pair::start("leave") else {
        return;
    };
    pair.sleeper.signal(rustix::process::Signal::STOP);
    let brakes = pair.throttle(false, After::Proportional);
    sleep(Duration::from_millis(50));
    // It has its whole budget left, and without reclaim what is not drawn is not shared.
    let held = pair.neighbour.share_within(0.0..1.1 * BUDGET, SPAN);
    assert!(held < 1.1 * BUDGET, "{held}");
    let _exile = pair.sleeper.exile_brake(pair.neighbour.cpu as usize);
    let free = pair.neighbour.share_above(2.0 * held, SPAN);
    assert_eq!(brakes[0].lost(), Some(Lost::WrongCpu));
    assert_eq!(brakes[1].lost(), None);
    pair.sleeper.signal(rustix::process::Signal::CONT);
    assert!(free > 2.0 * held, "held {held}, free {free}");
}
