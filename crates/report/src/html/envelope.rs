//! Many points on few pixels without losing the important ones. Each bucket has the smallest, the
//! median and the largest value, so no peak disappears and none is invented. Averages would hide
//! exactly the late units that a report is about.

use std::ops::Range;

use quell_record::events::Stop;
use quell_types::stats::{percentile, sorted};

/// What the points of one bucket are reduced to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    /// The middle of the bucket, in the unit of the points' first coordinate.
    pub(crate) at: f64,
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

/// The bucket of `at` among `buckets` equal ones of a span. `None` outside.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "held between zero and the last bucket"
)]
fn bucket(at: f64, span: &Range<f64>, buckets: usize) -> Option<usize> {
    let (from, to) = (span.start, span.end);
    if !(from <= at && at <= to && from < to) || buckets == 0 {
        return None;
    }
    let place = (at - from) / (to - from) * buckets as f64;
    Some((place as usize).min(buckets - 1))
}

/// The buckets of a span that have points, in order. Points outside and values that
/// are not finite are left out.
pub(crate) fn envelope(points: &[(f64, f64)], span: Range<f64>, buckets: usize) -> Vec<Bucket> {
    let mut filled: Vec<Vec<f64>> = vec![Vec::new(); buckets];
    for (at, value) in points.iter().filter(|(_, value)| value.is_finite()) {
        if let Some(place) = bucket(*at, &span, buckets).and_then(|b| filled.get_mut(b)) {
            place.push(*value);
        }
    }
    let width = (span.end - span.start) / buckets.max(1) as f64;
    filled
        .iter()
        .enumerate()
        .filter_map(|(index, values)| {
            let ordered = sorted(values);
            Some(Bucket {
                at: span.start + width * (index as f64 + 0.5),
                min: *ordered.first()?,
                median: percentile(&ordered, 50.0)?,
                max: *ordered.last()?,
            })
        })
        .collect()
}

/// For each of `buckets` equal stretches between two times (ns): the part of it that `stops` cover,
/// from 0 to 1. The stops are in order of time and do not overlap.
pub(crate) fn covered(stops: &[Stop], span: Range<u64>, buckets: usize) -> Vec<f64> {
    let Range {
        start: from,
        end: to,
    } = span;
    let mut parts = vec![0.0; buckets];
    if buckets == 0 || to <= from {
        return parts;
    }
    let width = (to - from) as f64 / buckets as f64;
    for stop in stops {
        let (a, b) = (stop.from_ns.max(from), stop.until_ns.min(to));
        if b <= a {
            continue;
        }
        let (a, b) = ((a - from) as f64, (b - from) as f64);
        let range = 0.0..(to - from) as f64;
        let (Some(first), Some(last)) = (bucket(a, &range, buckets), bucket(b, &range, buckets))
        else {
            continue;
        };
        for index in first..=last {
            let begin = a.max(index as f64 * width);
            let end = b.min((index + 1) as f64 * width);
            if let Some(part) = parts.get_mut(index) {
                *part += ((end - begin) / width).max(0.0);
            }
        }
    }
    // Rounding may add up to slightly more than 1.
    parts.iter().map(|part| part.min(1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_late_window_among_thousands_is_seen() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|n| (f64::from(n), 15.0)).collect();
        points[7_003].1 = 9_000.0;
        let all = envelope(&points, 0.0..10_000.0, 100);
        assert_eq!(all.len(), 100);
        assert_eq!(
            (all[70].min, all[70].median, all[70].max),
            (15.0, 15.0, 9_000.0)
        );
        assert!(
            all.iter()
                .enumerate()
                .all(|(n, b)| n == 70 || b.max == 15.0)
        );
    }

    #[test]
    fn nothing_and_nonsense_come_to_nothing() {
        assert!(envelope(&[], 0.0..1.0, 10).is_empty());
        assert!(envelope(&[(0.5, f64::NAN)], 0.0..1.0, 10).is_empty());
        assert!(envelope(&[(0.5, 1.0)], 1.0..1.0, 10).is_empty());
        assert!(envelope(&[(0.5, 1.0)], 0.0..1.0, 0).is_empty());
        assert_eq!(covered(&[], 5..5, 2), [0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn the_envelope_holds_every_point(
            points in proptest::collection::vec((0.0..100.0f64, -1e6..1e6f64), 1..400),
            buckets in 1..60usize,
        ) {
            let all = envelope(&points, 0.0..100.0, buckets);
            prop_assert!(all.len() <= buckets);
            prop_assert!(all.windows(2).all(|w| w[0].at < w[1].at));
            let half = 50.0 / buckets as f64 * (1.0 + 1e-9);
            for (at, value) in &points {
                prop_assert!(
                    all.iter().any(|b| (b.at - at).abs() <= half && b.min <= *value && *value <= b.max),
                    "({at}, {value}) is outside"
                );
            }
            for bucket in &all {
                prop_assert!(bucket.min <= bucket.median && bucket.median <= bucket.max);
                let seen = |wanted: f64| points.iter().any(|(_, v)| *v == wanted);
                prop_assert!(seen(bucket.min) && seen(bucket.max), "an edge that nobody measured");
            }
        }

        #[test]
        fn what_is_covered_adds_up_to_the_time_stopped(
            gaps in proptest::collection::vec((0..5_000u64, 1..5_000u64), 0..100),
            buckets in 1..80usize,
        ) {
            let (mut at, mut stops) = (0, Vec::new());
            for (gap, length) in gaps {
                stops.push(Stop { from_ns: at + gap, until_ns: at + gap + length });
                at += gap + length;
            }
            let to = 100_000;
            let parts = covered(&stops, 0..to, buckets);
            prop_assert!(parts.iter().all(|p| (0.0..=1.0).contains(p)));
            let sum: f64 = parts.iter().sum::<f64>() * to as f64 / buckets as f64;
            let real: u64 = stops.iter().map(|s| s.until_ns.min(to).saturating_sub(s.from_ns.min(to))).sum();
            prop_assert!((sum - real as f64).abs() < 1.0, "{sum} is not {real}");
        }
    }
}
