//! A machine's rates, calculated from the runs of its streams. Linux and the simulated machine only
//! make the runs. `quell_workload::measure` says which runs, and the rule for each figure.

use std::collections::BTreeMap;

use quell_types::cpuset::CpuId;

use super::{CpuRate, OperationRates, Spread};

/// CPU → the rate of each run, in program bytes per second.
pub type Runs = BTreeMap<CpuId, Vec<f64>>;

/// The runs of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    /// Name of the operation, such as `read` or `copy`.
    pub operation: &'static str,
    /// CPUs that ran alone, one at a time.
    pub alone: Runs,
    /// All CPUs at once.
    pub together: Runs,
}

impl Streams {
    /// What all CPUs together reached in each run.
    pub(crate) fn sums(&self) -> Vec<f64> {
        let runs = self.together.values().map(Vec::len).max().unwrap_or(0);
        (0..runs)
            .map(|i| self.together.values().filter_map(|r| r.get(i)).sum())
            .collect()
    }

    pub(crate) fn best_alone(&self) -> f64 {
        self.alone.values().flatten().copied().fold(0.0, f64::max)
    }
}

impl OperationRates {
    /// An operation's figures; `None` without any run.
    #[must_use]
    pub fn of(streams: &Streams) -> Option<Self> {
        let mb_s = |rates: &[f64]| Spread::of(&rates.iter().map(|r| r / 1e6).collect::<Vec<f64>>());
        let each = |runs: &Runs| {
            let rates = runs.iter().map(|(cpu, runs)| {
                Some(CpuRate {
                    cpu: *cpu,
                    mb_s: mb_s(runs)?,
                })
            });
            rates.collect::<Option<Vec<CpuRate>>>()
        };
        Some(Self {
            operation: streams.operation.to_owned(),
            alone: each(&streams.alone)?,
            loaded: each(&streams.together)?,
            together: mb_s(&streams.sums())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use quell_types::units::Rate;

    use super::*;
    use crate::inventory::Measured;

    #[test]
    fn peak_is_the_best_alone_and_sustainable_the_median_sum() {
        let runs = |all: &[(CpuId, &[f64])]| all.iter().map(|(c, r)| (*c, r.to_vec())).collect();
        let streams = |operation, alone, together| Streams {
            operation,
            alone,
            together,
        };
        let read = streams(
            "read",
            runs(&[(0, &[3.1e9, 4.0000001e9])]),
            runs(&[(0, &[3e9, 2e9, 1e9]), (1, &[3e9, 3e9, 3e9])]),
        );
        let write = streams(
            "write",
            runs(&[(0, &[2e9])]),
            runs(&[(0, &[9e9]), (1, &[9e9])]),
        );
        let measured = Measured::of_streams(&[write, read], 2, 7).unwrap();
        assert_eq!(
            (measured.peak_operation.as_str(), measured.peak_cpu),
            ("read", Rate(4_001_000_000))
        );
        assert_eq!(measured.sustainable, Rate(5_000_000_000));
        assert_eq!(measured.by_operation["write"], Rate(2_000_000_000));
        let read = &measured.operations[1];
        assert_eq!(
            (read.together.p50, read.alone[0].mb_s.low),
            (5000.0, 3100.0)
        );
        assert_eq!(Measured::of_streams(&[], 2, 7), None);
    }
}
