//! What the percentages of memory-bandwidth allocation amount to: the rate that streams reach, for
//! each step and number of CPUs.
//!
//! The hardware throttles each core separately. The same 10 % are one rate for one thread and
//! several times that for four (Documentation/filesystems/resctrl.rst, "Memory bandwidth
//! Allocation"). Steps that are written differently may also have the same effect.
//!
//! Method: each percentage is set in turn, and each number of CPUs streams under it. All are run
//! once per round, so that a disturbance hits all alike. The caller provides the machine: how a
//! percentage is set, and how CPUs stream.

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::MbaBounds;
use quell_types::units::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Spread;

/// The most steps that are tried. Hardware with more of them is measured at every few.
const MOST_STEPS: u32 = 10;

/// Which rate each percentage of memory-bandwidth allocation comes to, as measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MbaCurve {
    /// What the streams did, by the generators' name of the operation.
    pub operation: String,
    /// By number of CPUs, then percentage, both ascending.
    pub points: Vec<MbaPoint>,
}

/// The rate of several CPUs together under one percentage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MbaPoint {
    /// Number of CPUs that streamed at the same time.
    pub cpus: u32,
    /// The percentage that was set for each of these CPUs.
    pub percent: u32,
    /// The rate of all of them together, in 10^6 program bytes per second.
    pub mb_s: Spread,
}

impl MbaPoint {
    /// The largest rate of all rounds.
    #[must_use]
    pub fn most(&self) -> Rate {
        Rate::measured(self.mb_s.high * 1e6)
    }

    /// The rate of the median round.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate::measured(self.mb_s.p50 * 1e6)
    }
}

/// The numbers of CPUs that stream: each power of two, and all.
fn counts(cpus: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|n| 1usize << n);
    let mut counts: Vec<usize> = powers.take_while(|n| *n < cpus).collect();
    counts.push(cpus);
    counts
}

/// The percentages that are tried: those that the hardware takes, at most [`MOST_STEPS`].
fn percentages(bounds: &MbaBounds) -> Vec<u32> {
    let step = bounds.step.max(1);
    let step = step * (100 / step).div_ceil(MOST_STEPS).max(1);
    let mut list: Vec<u32> = (1..100 / step + 1)
        .map(|n| n * step)
        .filter(|percent| (bounds.least..100).contains(percent))
        .collect();
    if list.first() != Some(&bounds.least) && bounds.least < 100 {
        list.insert(0, bounds.least);
    }
    list.push(100);
    list
}

impl MbaCurve {
    /// The number of runs in a round of the measurement.
    #[must_use]
    pub fn cells(bounds: &MbaBounds, cpus: &CpuSet) -> usize {
        counts(cpus.len()).len() * percentages(bounds).len()
    }

    /// Measures the curve of `cpus` over `rounds`. `run` sets a percentage for all of them and lets
    /// some stream by `operation`. It returns what these reach together, in program bytes per
    /// second.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn measure<E, F>(
        bounds: &MbaBounds,
        cpus: &CpuSet,
        operation: &str,
        rounds: usize,
        run: &mut F,
    ) -> Result<Self, E>
    where
        F: FnMut(u32, &[CpuId]) -> Result<f64, E>,
    {
        let (counts, percentages) = (counts(cpus.len()), percentages(bounds));
        let cells: Vec<(usize, u32)> = counts
            .iter()
            .flat_map(|n| percentages.iter().map(|percent| (*n, *percent)))
            .collect();
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); cells.len()];
        for _ in 0..rounds {
            for (rates, (n, percent)) in rates.iter_mut().zip(&cells) {
                rates.push(run(*percent, &cpus.spread(*n))? / 1e6);
            }
        }
        let points = cells.iter().zip(rates).filter_map(|((n, percent), rates)| {
            Some(MbaPoint {
                cpus: u32::try_from(*n).unwrap_or(u32::MAX),
                percent: *percent,
                mb_s: Spread::of(&rates)?,
            })
        });
        Ok(Self {
            operation: operation.to_owned(),
            points: points.collect(),
        })
    }

    /// The steps of this many CPUs. Where the number was not measured, the steps of the next larger
    /// one, which draws no less. Empty where that was not measured either.
    pub fn of(&self, cpus: usize) -> impl Iterator<Item = &MbaPoint> {
        let enough = |point: &&MbaPoint| point.cpus as usize >= cpus;
        let measured = self.points.iter().filter(enough).map(|p| p.cpus).min();
        self.points.iter().filter(move |p| Some(p.cpus) == measured)
    }

    /// The step under which this many CPUs reach most, of those under which no round exceeded
    /// `rate`. Of steps with the same effect, the largest. `None`: they reach more under each.
    #[must_use]
    pub fn at_most(&self, rate: Rate, cpus: usize) -> Option<&MbaPoint> {
        self.of(cpus)
            .filter(|point| point.most() <= rate)
            .max_by_key(|point| (point.rate(), point.percent))
    }

    /// The smallest step under which this many CPUs reach `rate` in each round; `None`: none does.
    #[must_use]
    pub fn reaching(&self, rate: Rate, cpus: usize) -> Option<&MbaPoint> {
        let reached = |point: &&MbaPoint| point.mb_s.low * 1e6 >= rate.0 as f64;
        self.of(cpus).find(reached)
    }

    /// The step under which this many CPUs reach least.
    #[must_use]
    pub fn least(&self, cpus: usize) -> Option<&MbaPoint> {
        self.of(cpus)
            .min_by_key(|point| (point.most(), point.percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    const BOUNDS: MbaBounds = MbaBounds {
        classes: 8,
        least: 10,
        step: 10,
        unit: quell_types::partition::MbaUnit::Percent,
    };

    /// Hardware on which each CPU reaches 10 GB/s times the percentage, and all together at most 24
    /// GB/s. A setting from 60 to below 90 acts as 90.
    fn hardware(percent: u32, cpus: &[CpuId]) -> Result<f64, Infallible> {
        let does = if (60..90).contains(&percent) {
            90
        } else {
            percent
        };
        Ok((f64::from(does) * 1e8 * cpus.len() as f64).min(24e9))
    }

    fn curve(cpus: u32) -> MbaCurve {
        let cpus: CpuSet = (0..cpus).collect();
        MbaCurve::measure(&BOUNDS, &cpus, "read", 2, &mut hardware).unwrap()
    }

    #[test]
    fn every_step_is_measured_for_every_number_of_cpus() {
        let curve = curve(6);
        let cpus: Vec<u32> = curve.points.iter().map(|p| p.cpus).collect();
        assert_eq!(curve.points.len(), 4 * 10, "{cpus:?}");
        assert_eq!([cpus[0], cpus[10], cpus[20], cpus[39]], [1, 2, 4, 6]);
        let one: Vec<u32> = curve.of(1).map(|p| p.percent).collect();
        assert_eq!(one, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
    }

    #[test]
    fn the_same_rate_is_another_percentage_for_more_cpus() {
        let (curve, limit) = (curve(4), Rate(4_000_000_000));
        let percent = |cpus| curve.at_most(limit, cpus).map(|p| p.percent);
        assert_eq!(
            [percent(1), percent(2), percent(4)],
            [Some(40), Some(20), Some(10)]
        );
        // Three CPUs were not measured and count as four; of five nothing is known.
        assert_eq!([percent(3), percent(5)], [Some(10), None]);
        assert_eq!(curve.at_most(Rate(3_900_000_000), 4), None);
        assert_eq!(curve.least(4).unwrap().rate(), limit);
    }

    #[test]
    fn steps_that_do_the_same_are_seen() {
        let curve = curve(1);
        assert_eq!(curve.at_most(Rate(8_000_000_000), 1).unwrap().percent, 50);
        assert_eq!(curve.at_most(Rate(9_000_000_000), 1).unwrap().percent, 90);
        assert_eq!(curve.reaching(Rate(8_000_000_000), 1).unwrap().percent, 60);
        assert_eq!(curve.reaching(Rate(11_000_000_000), 1), None);
    }

    #[test]
    fn hardware_of_many_steps_is_measured_in_few() {
        let of = |least, step| {
            percentages(&MbaBounds {
                least,
                step,
                ..BOUNDS
            })
        };
        assert_eq!(of(1, 1), [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        assert_eq!(of(25, 25), [25, 50, 75, 100]);
        assert_eq!(of(100, 100), [100]);
        assert_eq!(counts(1), [1]);
        let cpus: CpuSet = (0..6).collect();
        assert_eq!(MbaCurve::cells(&BOUNDS, &cpus), 4 * 10);
    }

    #[test]
    fn what_goes_wrong_in_a_run_is_told() {
        let cpus: CpuSet = (0..2).collect();
        let failed = MbaCurve::measure(&BOUNDS, &cpus, "read", 2, &mut |_, _| Err("no memory"));
        assert_eq!(failed, Err("no memory"));
    }

    proptest! {
        /// For any curve: the choice never exceeded the rate, and no other step that never did
        /// reaches more. The step that is to reach a rate does.
        #[test]
        fn the_choice_is_the_most_that_is_not_too_much(
            rates in proptest::collection::vec((1u32..50_000, 0u32..500), 10),
            limit in 1u64..60_000,
        ) {
            let mut at = 0;
            let cpus: CpuSet = [0].into_iter().collect();
            let curve = MbaCurve::measure(&BOUNDS, &cpus, "read", 2, &mut |_, _| {
                let (rate, wobble) = rates[at % 10];
                let rate = f64::from(rate) + f64::from(wobble) * (at / 10) as f64;
                at += 1;
                Ok::<f64, Infallible>(rate * 1e6)
            })
            .unwrap();
            let limit = Rate(limit * 1_000_000);
            match curve.at_most(limit, 1) {
                None => prop_assert!(curve.of(1).all(|p| p.most() > limit)),
                Some(chosen) => {
                    prop_assert!(chosen.most() <= limit);
                    let fits = curve.of(1).filter(|p| p.most() <= limit);
                    prop_assert!(fits.map(MbaPoint::rate).max() == Some(chosen.rate()));
                }
            }
            if let Some(reaching) = curve.reaching(limit, 1) {
                prop_assert!(reaching.most() >= limit);
            }
        }
    }
}
