//! The decision in the counter's interrupt, next to the same decision in the thread.

use quell_linux::brake::Decides;

use super::*;
use crate::counted::Counted;

const PERIOD: Nanos = Nanos::millis(1);

/// Throttles to a share of the CPU, in percent, which may be 100 or more. `None` where the
/// interrupt cannot decide.
fn throttle(busy: &Busy, percent: u64, decides: Decides) -> Option<Brake> {
    let dir = perf::cgroup_dir(&busy.dir).unwrap();
    let meter = Counted {
        meter: TimeMeter::open(&dir, busy.cpu, PEAK).unwrap(),
        decides,
    };
    let regulation = Regulation {
        budget: lines(percent),
        ..busy.regulation(Share::WHOLE, PERIOD)
    };
    let brake = busy.brake(&regulation, Box::new(meter), Arc::new(|_| true), &pool());
    if brake.decides != decides {
        quell_testing::skip("the kernel does not take a program for the counter's interrupt");
        return None;
    }
    Some(brake)
}

/// Lines per period for a share of the CPU.
fn lines(percent: u64) -> Lines {
    let period = Lines::at(PEAK, PERIOD).0;
    Lines(period * percent / 100)
}

fn load(of: &std::sync::atomic::AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

#[test]
fn below_its_budget_the_thread_sleeps_on() {
    let Some(busy) = Busy::start("sleeps-on") else {
        return;
    };
    // A budget a quarter above what it can draw.
    let Some(brake) = throttle(&busy, 125, Decides::Interrupt) else {
        return;
    };
    // Where the host takes the CPU away for longer than a quarter of a period, the thread debits
    // that, and may stop the group.
    let mut seen = Vec::new();
    for _ in 0..5 {
        let stats = brake.stats();
        let counts = || [&stats.overflows, &stats.renewed, &stats.throttles].map(load);
        let before = counts();
        sleep(Duration::from_secs(1));
        let after = counts();
        let [overflows, renewed, throttles] = std::array::from_fn(|i| after[i] - before[i]);
        seen.push((overflows, renewed, throttles));
        if renewed > 300 && overflows - renewed <= renewed / 50 {
            break;
        }
    }
    eprintln!("overflows, decided in the interrupt, stops: {seen:?}");
    assert!(seen.len() < 5, "{seen:?}");
    assert_eq!(brake.lost(), None);
    assert!(load(&brake.stats().lines) > 0);
}

#[test]
fn above_its_budget_it_is_stopped_as_by_the_thread() {
    let Some(busy) = Busy::start("stopped-as") else {
        return;
    };
    for percent in [20, 60] {
        let mut held = [[0.0_f64; 5]; 2];
        // Other programs and the host take the CPU away in some spans.
        for span in 0..5 {
            for (held, decides) in held.iter_mut().zip([Decides::Interrupt, Decides::Thread]) {
                let Some(brake) = throttle(&busy, percent, decides) else {
                    return;
                };
                sleep(Duration::from_millis(50));
                held[span] = busy.share_over(Duration::from_millis(400));
                assert!(load(&brake.stats().throttles) > 10);
            }
        }
        let [interrupt, thread] = held.map(|mut spans| {
            spans.sort_by(f64::total_cmp);
            spans[2]
        });
        let share = percent as f64 / 100.0;
        eprintln!("{percent} %: {interrupt:.3} by the interrupt, {thread:.3} by the thread");
        assert!((interrupt - thread).abs() < 0.1 * share, "{held:?}");
        assert!(interrupt < 1.1 * share, "{held:?}");
    }
}

#[test]
fn a_budget_changed_while_the_interrupt_decides_holds() {
    let Some(busy) = Busy::start("changed") else {
        return;
    };
    let Some(brake) = throttle(&busy, 125, Decides::Interrupt) else {
        return;
    };
    sleep(Duration::from_millis(600));
    assert!(load(&brake.stats().renewed) > 100);
    brake.set_budget(lines(30));
    sleep(Duration::from_millis(20));
    let bounds = 0.2..0.36;
    let held = busy.share_within(bounds.clone(), Duration::from_millis(300));
    assert!(bounds.contains(&held), "{held}");
    // Back to the large budget, where the interrupt decides again.
    brake.set_budget(lines(125));
    let before = load(&brake.stats().renewed);
    sleep(Duration::from_millis(900));
    assert!(load(&brake.stats().renewed) > before + 100);
}

/// The CPU's clock stands for a hardware event. A page fault would overflow at the first fault
/// after each arming.
#[test]
fn one_event_is_decided_about_in_its_interrupt() {
    let Some(busy) = Busy::start("one-event") else {
        return;
    };
    let code = EventCode {
        kind: TYPE_SOFTWARE,
        config: perf::SW_CPU_CLOCK,
    };
    let meter = Box::new(EventMeter::open(&[code], Scope::Cpu(busy.cpu)).unwrap());
    let regulation = Regulation {
        budget: lines(125),
        meter: Kind::Hardware,
        ..busy.regulation(Share::WHOLE, PERIOD)
    };
    let brake = busy.brake(&regulation, meter, Arc::new(|_| true), &pool());
    if brake.decides == Decides::Thread {
        quell_testing::skip("the kernel does not take a program for the counter's interrupt");
        return;
    }
    sleep(Duration::from_secs(2));
    let stats = brake.stats();
    let [overflows, renewed] = [&stats.overflows, &stats.renewed].map(load);
    assert_eq!(brake.lost(), None);
    assert!(renewed > 800, "{renewed}");
    assert!(overflows - renewed <= renewed / 20, "{overflows} {renewed}");
}
