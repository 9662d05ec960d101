//! Sweeps for the tests: one that decides, one of budgets, and one that is too noisy.

use quell_record::demand::{Goal, Judged, Needed, Point, Sweep, Swept};
use quell_types::units::{Bytes, Rate, Share};

const KEEP: Share = Share::percent(95);

/// What is kept with a size, and half the width of its interval.
struct Kept(f64, f64);

fn point(label: String, size: u64, kept: &Kept) -> Point {
    let interval = [kept.0 - kept.1, kept.0 + kept.1].into();
    let time = 1.2 / kept.0;
    Point {
        label,
        size,
        cache: None,
        value: Some(time),
        ci95: Some([time - 0.01, time + 0.01].into()),
        kept: Some(kept.0),
        kept_ci95: Some(interval),
        judged: Judged::at_least(Some(interval), KEEP.as_f64()),
        refused: None,
    }
}

fn sweep(swept: Swept, mut points: Vec<Point>) -> Sweep {
    if let Some(all) = points.last_mut() {
        all.label = "all".to_owned();
    }
    let needed = Needed::of(&points);
    let enough = points.iter().find(|p| Some(p.size) == needed.enough);
    let enough = enough.filter(|p| p.label != "all");
    Sweep {
        swept,
        level: None,
        goal: Goal::Keep { share: KEEP },
        metric: "run_time_s".to_owned(),
        rounds: 5,
        confidence: 0.95,
        needed,
        policy: enough.map(|p| swept.reserve(&p.label)),
        cautions: Vec::new(),
        points,
    }
}

fn ways(kept: &[Kept]) -> Sweep {
    let points = (1..).zip(kept).map(|(n, kept)| Point {
        cache: Some(Bytes(n << 20)),
        ..point(n.to_string(), n, kept)
    });
    Sweep {
        level: Some(3),
        ..sweep(Swept::Ways, points.collect())
    }
}

/// Three of five ways are enough.
pub(crate) fn by_ways() -> Sweep {
    ways(&[
        Kept(0.31, 0.01),
        Kept(0.62, 0.03),
        Kept(0.97, 0.01),
        Kept(0.99, 0.01),
        Kept(1.0, 0.01),
    ])
}

/// The spread does not decide between two budgets.
pub(crate) fn by_budgets() -> Sweep {
    let kept = [
        Kept(0.2, 0.01),
        Kept(0.94, 0.02),
        Kept(0.98, 0.01),
        Kept(1.0, 0.005),
    ];
    let points = (1..).zip(&kept).map(|(n, kept)| {
        let rate = Rate(n * 415_000_000);
        point(rate.to_string(), rate.0, kept)
    });
    Sweep {
        cautions: vec!["No counter counts here.".to_owned()],
        ..sweep(Swept::Budgets, points.collect())
    }
}

/// Not even all of it is sure to keep the goal.
pub(crate) fn unclear() -> Sweep {
    ways(&[Kept(0.5, 0.1), Kept(0.9, 0.1), Kept(0.98, 0.1)])
}
