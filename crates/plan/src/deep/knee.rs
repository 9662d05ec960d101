//! The knee of a latency curve: the point beyond which more load costs latency out of proportion.
//!
//! It is the point farthest below the chord from idle to full, with both axes scaled to 1 (Satopää
//! et al. 2011, "Finding a Kneedle in a Haystack"). A monotone fit comes first: more load never
//! makes memory faster, so a dip is noise.

/// Latency that rises by less than this factor over the whole curve has no knee.
const RISE: f64 = 1.2;
/// How far below the chord a point must lie, with axes scaled to 1. Nearly straight curves have no
/// knee.
const BELOW: f64 = 0.1;

/// The knee's index in `(load, latency)`, ordered by load from idle to full. `None` for fewer than
/// three points, for loads that do not rise, and for a curve that hardly rises or bends.
#[must_use]
pub fn knee(points: &[(f64, f64)]) -> Option<usize> {
    let latency = rising(&points.iter().map(|p| p.1).collect::<Vec<f64>>());
    let (first, last) = (points.first()?, points.last()?);
    let (idle, full) = (*latency.first()?, *latency.last()?);
    let span = last.0 - first.0;
    // Written so that NaN has no knee.
    if points.len() < 3 || !(span > 0.0 && idle > 0.0 && full >= RISE * idle) {
        return None;
    }
    let below = |i: usize| (points[i].0 - first.0) / span - (latency[i] - idle) / (full - idle);
    (1..points.len() - 1)
        .max_by(|a, b| below(*a).total_cmp(&below(*b)))
        .filter(|i| below(*i) > BELOW)
}

/// The nearest values that never fall (least squares; pool adjacent violators, Ayer et al. 1955).
pub(super) fn rising(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for value in values {
        let mut pool = (*value, 1);
        while let Some((mean, count)) = pools.pop_if(|(mean, _)| *mean > pool.0) {
            let all = count + pool.1;
            pool = (
                (mean * count as f64 + pool.0 * pool.1 as f64) / all as f64,
                all,
            );
        }
        pools.push(pool);
    }
    pools
        .into_iter()
        .flat_map(|(mean, count)| std::iter::repeat_n(mean, count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn latency_that_takes_off_near_saturation_has_its_knee_there() {
        let curve = [
            (0.0, 90.0),
            (2.0, 91.0),
            (4.0, 93.0),
            (6.0, 97.0),
            (8.0, 110.0),
            (9.0, 190.0),
            (9.2, 300.0),
        ];
        assert_eq!(knee(&curve), Some(4));
    }

    #[test]
    fn a_dip_is_noise_and_does_not_move_the_knee() {
        let curve = [
            (0.0, 95.0),
            (2.0, 88.0),
            (4.0, 96.0),
            (6.0, 92.0),
            (8.0, 105.0),
            (9.0, 300.0),
        ];
        assert_eq!(knee(&curve), Some(4));
    }

    #[test]
    fn flat_straight_short_and_broken_curves_have_none() {
        assert_eq!(knee(&[(0.0, 90.0), (5.0, 95.0), (9.0, 100.0)]), None);
        assert_eq!(knee(&[(0.0, 90.0), (5.0, 145.0), (10.0, 200.0)]), None);
        assert_eq!(knee(&[(0.0, 90.0), (5.0, 200.0)]), None);
        assert_eq!(knee(&[(5.0, 90.0), (5.0, 100.0), (5.0, 200.0)]), None);
        assert_eq!(knee(&[(0.0, f64::NAN), (1.0, 1.0), (2.0, f64::NAN)]), None);
        assert_eq!(knee(&[]), None);
    }

    proptest! {
        #[test]
        fn neither_unit_moves_the_knee(
            latencies in proptest::collection::vec(50.0f64..500.0, 3..10), load in -20i32..20, time in -20i32..20,
        ) {
            // Powers of two, so that nothing is rounded.
            let curve = |load: i32, time: i32| -> Vec<(f64, f64)> {
                let points = latencies.iter().enumerate();
                points.map(|(i, l)| (i as f64 * 2f64.powi(load), l * 2f64.powi(time))).collect()
            };
            prop_assert_eq!(knee(&curve(0, 0)), knee(&curve(load, time)));
            prop_assert!(knee(&curve(0, 0)).is_none_or(|i| i > 0 && i + 1 < latencies.len()));
        }

        #[test]
        fn the_monotone_fit_never_falls_and_keeps_the_mean(
            values in proptest::collection::vec(1.0f64..1e3, 1..40),
        ) {
            let fit = rising(&values);
            prop_assert_eq!(fit.len(), values.len());
            prop_assert!(fit.is_sorted());
            let sum = |v: &[f64]| v.iter().sum::<f64>();
            prop_assert!((sum(&fit) - sum(&values)).abs() < 1e-6 * sum(&values));
            prop_assert_eq!(rising(&fit.clone()), fit);
        }
    }
}
