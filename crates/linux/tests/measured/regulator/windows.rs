//! Budgets that switch with windows: what a busy process gets in each of them, by the kernel's own
//! account.

use quell_control::config::{Frame, Span};
use quell_linux::brake::Grants;
use quell_types::cpuset::CpuSet;

use super::*;

const WINDOW: Nanos = Nanos::millis(100);

fn sleep_until(time: Nanos) {
    sleep(Duration::from_nanos(time.since(rt::now()).0));
}

/// A fifth of the CPU in the first window of a frame, three fifths in the second one, no limit in
/// the third.
#[test]
fn budgets_switch_with_windows() {
    let Some(busy) = Busy::start("windows") else {
        return;
    };
    let shares = [Some(20), Some(60), None];
    let budget = |share| busy.regulation(Share::percent(share), Nanos::millis(10));
    let spans = (0..).zip(shares).map(|(place, share)| Span {
        start: Nanos(place * WINDOW.0),
        end: Nanos((place + 1) * WINDOW.0),
        group: Some("group".to_owned()),
        budget: share.map(budget),
        ..Span::default()
    });
    let (cpus, length) = (CpuSet::one(busy.cpu), Nanos(3 * WINDOW.0));
    let windows: Vec<Span> = spans.collect();
    let frame = Frame::new(cpus, length, Nanos::millis(1), &windows, None);
    let grants = Arc::new(Grants::of(&frame, "group").unwrap().unwrap());
    let first = grants.first().unwrap().clone();
    let permit: Permit = Arc::new(|_| true);
    let brake = busy.brake_in(&first, busy.meter(), permit, &pool(), Some(&grants));
    // Outside the windows it stops nothing.
    assert!(busy.share_above(0.7, Duration::from_millis(100)) > 0.7);
    let mut got: [Vec<f64>; 3] = Default::default();
    let mut at = Nanos((rt::now().0 / length.0 + 1) * length.0);
    for _ in 0..12 {
        for part in &mut got {
            sleep_until(at);
            grants.open(at);
            let before = busy.cpu_time();
            at = at.plus(WINDOW);
            sleep_until(at);
            part.push(busy.cpu_time().since(before).0 as f64 / WINDOW.0 as f64);
        }
    }
    grants.close();
    assert!(busy.share_above(0.7, Duration::from_millis(100)) > 0.7);
    assert_eq!(brake.lost(), None);
    for part in &mut got {
        part.sort_by(f64::total_cmp);
    }
    eprintln!("{got:.3?}");
    // The thread that measures may come late, and other programs take some of a window.
    let [fifth, three, free] = got.map(|part| part[part.len() / 2]);
    assert!((0.95..=1.05).contains(&(fifth / 0.2)), "{fifth}");
    assert!((0.95..=1.05).contains(&(three / 0.6)), "{three}");
    assert!(free > 0.7, "{free}");
}
