//! From windows to figures: what one round, and all rounds together, say about a metric. The rules
//! are those of [`quell_record::result`]. Everything here is a pure function of its arguments.

use quell_record::result::Figures;
use quell_types::stats::Better;
use quell_types::stats::{Interval, bootstrap, mean, median, percentile, ratios, sorted};

/// With fewer windows in a round its 95th percentile means nothing: one lies in the tail.
const FOR_P95: usize = 20;
const FOR_P99: usize = 100;

/// One metric in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The mean of all windows, in the metric's unit.
    pub mean: f64,
    /// The 50th percentile of the windows. `None` below 2 windows.
    pub p50: Option<f64>,
    /// The 95th percentile. `None` below 20 windows.
    pub p95: Option<f64>,
    /// The 99th percentile. `None` below 100 windows.
    pub p99: Option<f64>,
    /// The largest window, in the metric's unit.
    pub max: f64,
    /// How many windows the round has.
    pub samples: u64,
}

impl Round {
    /// From a round's windows; `None` without any that is a finite number.
    #[must_use]
    pub fn of(windows: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = windows.iter().copied().filter(|v| v.is_finite()).collect();
        let ordered = sorted(&finite);
        let at = |p: f64, needed: usize| {
            (ordered.len() >= needed)
                .then(|| percentile(&ordered, p))
                .flatten()
        };
        Some(Self {
            mean: mean(&finite)?,
            p50: at(50.0, 2),
            p95: at(95.0, FOR_P95),
            p99: at(99.0, FOR_P99),
            max: *ordered.last()?,
            samples: ordered.len() as u64,
        })
    }
}

impl Round {
    /// The round of something that goes no faster than `rate`, in the metric's unit. For a rate
    /// only the mean means anything then.
    #[must_use]
    pub fn at_most(&self, rate: f64) -> Self {
        Self {
            mean: self.mean.min(rate),
            ..self.clone()
        }
    }
}

/// How figures are formed from rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Which direction of the metric is good. Without one nothing is normalized.
    pub better: Option<Better>,
    /// The confidence level of every interval, between 0 and 1.
    pub confidence: f64,
    /// Seeds the resampling of the rounds (bootstrap).
    pub seed: u64,
}

/// The figures over the given rounds. `baseline` has the same metric under the baseline, round by
/// round. Rounds that were not measured are `None`. Figures that cannot be formed are absent.
#[must_use]
pub fn figures(rounds: &[Option<&Round>], baseline: &[Option<&Round>], rules: Rules) -> Figures {
    type Pick = fn(&Round) -> Option<f64>;
    let column = |of: &[Option<&Round>], pick: Pick| -> Vec<Option<f64>> {
        of.iter().map(|r| r.and_then(pick)).collect()
    };
    let over_rounds = |values: Vec<f64>| {
        let interval = bootstrap(&values, median, rules.confidence, rules.seed);
        let interval = interval.map(|i| Interval::from([tidy(i.low), tidy(i.high)]));
        (median(&values).map(tidy), interval)
    };
    let plain = |pick: Pick| over_rounds(column(rounds, pick).into_iter().flatten().collect());
    let lower = |pick: Pick| {
        if rules.better == Some(Better::Lower) {
            over_rounds(ratios(&column(baseline, pick), &column(rounds, pick)))
        } else {
            (None, None)
        }
    };
    let measured: Vec<&Round> = rounds.iter().copied().flatten().collect();
    let Ok(count) = u32::try_from(measured.len()) else {
        return Figures::default();
    };
    if count == 0 {
        return Figures::default();
    }
    let mean: Pick = |r| Some(r.mean);
    let (value, ci95) = plain(mean);
    let (normalized, normalized_ci95) = match rules.better {
        Some(Better::Higher) => over_rounds(ratios(&column(rounds, mean), &column(baseline, mean))),
        _ => lower(mean),
    };
    let (p50, p50_ci95) = plain(|r| r.p50);
    let (p99, p99_ci95) = plain(|r| r.p99);
    let (normalized_p50, normalized_p50_ci95) = lower(|r| r.p50);
    let (normalized_p95, normalized_p95_ci95) = lower(|r| r.p95);
    let (normalized_p99, normalized_p99_ci95) = lower(|r| r.p99);
    Figures {
        value,
        ci95,
        normalized,
        normalized_ci95,
        normalized_p50,
        normalized_p50_ci95,
        normalized_p95,
        normalized_p95_ci95,
        normalized_p99,
        normalized_p99_ci95,
        p50,
        p50_ci95,
        p95: plain(|r| r.p95).0,
        p99,
        p99_ci95,
        max: measured.iter().map(|r| tidy(r.max)).max_by(f64::total_cmp),
        samples: Some(measured.iter().map(|r| r.samples).sum()),
        rounds: Some(count),
    }
}

/// Rounded to nine significant digits. No measurement has more, and every reader of the file gets
/// the same number back.
#[must_use]
pub fn tidy(value: f64) -> f64 {
    format!("{value:.8e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(better: Better) -> Rules {
        Rules {
            better: Some(better),
            confidence: 0.95,
            seed: 1,
        }
    }

    fn rounds(values: &[f64]) -> Vec<Round> {
        values
            .iter()
            .map(|v| Round::of(&[*v, *v]).unwrap())
            .collect()
    }

    fn refs(rounds: &[Round]) -> Vec<Option<&Round>> {
        rounds.iter().map(Some).collect()
    }

    #[test]
    fn a_round_has_the_percentiles_that_its_windows_support() {
        let few = Round::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.mean, few.p50, few.max), (2.0, Some(2.0), 3.0));
        assert_eq!((few.p95, few.p99), (None, None));
        let many: Vec<f64> = (0..=100).map(f64::from).collect();
        let many = Round::of(&many).unwrap();
        assert_eq!((many.p95, many.p99), (Some(95.0), Some(99.0)));
        assert_eq!(Round::of(&[5.0]).unwrap().p50, None);
        assert_eq!(Round::of(&[f64::NAN]), None);
    }

    #[test]
    fn times_are_normalized_as_solo_over_measured_rates_inversely() {
        let (solo, measured) = (rounds(&[10.0, 20.0, 30.0]), rounds(&[20.0, 40.0, 60.0]));
        let time = figures(&refs(&measured), &refs(&solo), rules(Better::Lower));
        assert_eq!((time.value, time.normalized), (Some(40.0), Some(0.5)));
        assert_eq!(time.normalized_p50, Some(0.5));
        assert_eq!(time.normalized_p99, None, "two windows have no p99");
        assert_eq!(time.max, Some(60.0));
        let rate = figures(&refs(&measured), &refs(&solo), rules(Better::Higher));
        assert_eq!(rate.normalized, Some(2.0));
        assert_eq!(rate.normalized_p50, None);
    }

    #[test]
    fn a_round_missing_on_either_side_is_left_out_of_the_ratio_only() {
        let (solo, measured) = (rounds(&[10.0, 10.0]), rounds(&[20.0, 40.0]));
        let base = [None, Some(&solo[1])];
        let figures = figures(&refs(&measured), &base, rules(Better::Lower));
        assert_eq!(figures.value, Some(30.0));
        assert_eq!(figures.rounds, Some(2));
        assert_eq!(figures.normalized, Some(0.25));
        assert_eq!(figures.normalized_ci95, None, "one pair has no spread");
    }

    #[test]
    fn figures_have_nine_digits() {
        assert_eq!(tidy(29.069_999_999_999_965), 29.07);
        assert_eq!(tidy(0.0), 0.0);
        assert_eq!(tidy(1_234_567_890.6), 1_234_567_890.0);
    }

    #[test]
    fn nothing_measured_is_absent_not_zero() {
        assert_eq!(
            figures(&[None, None], &[None, None], rules(Better::Lower)),
            Figures::default()
        );
    }
}
