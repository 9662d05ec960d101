//! What `quell doctor --deep` finds out about a machine, as values. It measures which CPUs share a
//! cache in fact, rates, latency under load, the cost of address translation, where latency steps
//! up with size, and how late sleepers wake.
//!
//! `quell-workload` makes the measurements. Here are the figures and what they mean (where the knee
//! is, which cache a step belongs to), so that both can be tested on values. `docs/doctor.md` says
//! what each figure means for a person.

mod address_map;
mod cache_sets;
mod counter;
mod fingerprint;
mod knee;
mod mba;
mod rates;
mod steps;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use address_map::AddressMap;
pub use cache_sets::{CacheSets, Difference, targets};
pub use counter::CounterCheck;
pub use fingerprint::Fingerprint;
pub use knee::knee;
pub use mba::{MbaCurve, MbaPoint};
pub use rates::{Runs, Streams};
pub use steps::{LevelSeen, Seen, levels};

use quell_types::cpuset::CpuId;
use quell_types::stats::{Interval, percentile, sorted, wilson};
use quell_types::units::Bytes;

/// A score from here on means that a cache is shared.
pub const SHARED_FROM: f64 = 0.5;

/// A figure over a few rounds: their median, smallest and largest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// The median over the rounds.
    pub p50: f64,
    /// The smallest value of a round.
    pub low: f64,
    /// The largest value of a round.
    pub high: f64,
}

impl Spread {
    /// Over rounds in any order; `None` without a finite one.
    #[must_use]
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let rounds = numbers(rounds);
        let at = |p| percentile(&rounds, p).map(tidy);
        Some(Self {
            p50: at(50.0)?,
            low: at(0.0)?,
            high: at(100.0)?,
        })
    }
}

/// The finite values in order. Others could not be written to a file and read again.
fn numbers(values: &[f64]) -> Vec<f64> {
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted(&finite)
}

/// Rounds to six digits: more than these figures are worth, and files stay readable.
fn tidy(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Percentiles of many samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tail {
    /// The value that half of the samples do not exceed.
    pub p50: f64,
    /// The value that 95 % of the samples do not exceed.
    pub p95: f64,
    /// The value that 99 % of the samples do not exceed.
    pub p99: f64,
    /// The largest of all samples.
    pub max: f64,
    /// How many samples the percentiles are of.
    pub samples: u64,
}

impl Tail {
    /// Over samples in any order; `None` without a finite one.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let values = numbers(samples);
        let at = |p| percentile(&values, p).map(tidy);
        Some(Self {
            p50: at(50.0)?,
            p95: at(95.0)?,
            p99: at(99.0)?,
            max: at(100.0)?,
            samples: values.len() as u64,
        })
    }
}

/// The results of a deep measurement (`quell doctor --deep`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Deep {
    /// Measured with fewer rounds (`--quick`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quick: bool,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// The part of the CPUs' time that the hypervisor gave to other guests meanwhile (`steal` in
    /// `/proc/stat`), 0 to 1. Absent where the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
    /// Which CPUs share a last-level cache. Absent when not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Latency of memory against the rate of the other CPUs. Absent when not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    /// Latency against the size of what is read. Absent when not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<CacheSteps>,
    /// What address translation costs, by size of what is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageCost>,
    /// How late threads wake from a timed sleep, by CPU and scheduling policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wakeups: Vec<Wakeup>,
    /// The check of counters, tried on page faults, which every kernel counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<CounterCheck>,
    /// Which address bits choose the DRAM bank, by timing (`--address-map`). Absent when not
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_map: Option<AddressMap>,
    /// Which address bits choose the sets of caches beyond the first level, by eviction
    /// (`--address-map`). Empty when not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_sets: Vec<CacheSets>,
    /// What could not be measured, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skipped: BTreeMap<String, String>,
}

/// Which CPUs share a last-level cache in fact, and how reliable the probe is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Sharing {
    /// The pairs probed; on machines with many pairs, the first CPU of each cache, its neighbours,
    /// and one pair across.
    pub pairs: Vec<Pair>,
    /// Cases whose answer is known beforehand.
    pub controls: Vec<Control>,
}

/// Two CPUs, and whether they share their last-level cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pair {
    /// The first CPU of the pair.
    pub a: CpuId,
    /// The second CPU of the pair.
    pub b: CpuId,
    /// The kernel says that they share their last-level cache.
    pub claimed: bool,
    /// The score over the probes with an answer: 1 = shared, 0 = not shared. Absent where no probe
    /// had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<Spread>,
    /// Number of probes with an answer.
    pub told: u32,
    /// Number of probes that were made.
    pub probes: u32,
}

impl Pair {
    /// Whether they shared it when probed; `None` where no probe gave an answer.
    #[must_use]
    pub fn shared(&self) -> Option<bool> {
        self.score.map(|s| s.p50 >= SHARED_FROM)
    }
}

/// A case whose answer is known, among the probes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Two threads on one CPU: the cache is shared.
    SameCpu,
    /// The two threads of one core: the cache is shared.
    Siblings,
    /// The lines were flushed to memory before they are looked for: nothing is shared.
    Flushed,
}

impl Case {
    /// Whether the two threads of the case do share a cache.
    #[must_use]
    pub const fn shared(self) -> bool {
        match self {
            Self::SameCpu | Self::Siblings => true,
            Self::Flushed => false,
        }
    }

    /// What the case is, for a person.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameCpu => "two threads on one CPU",
            Self::Siblings => "threads of one core",
            Self::Flushed => "lines flushed to memory",
        }
    }
}

/// How often the probe answered a known case wrongly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Control {
    /// Which known case it was.
    pub case: Case,
    /// Rounds in which the probe gave an answer.
    pub told: u32,
    /// Rounds of these in which the answer was wrong.
    pub wrong: u32,
    /// Rounds with an answer in which no probing thread was preempted.
    pub quiet: u32,
    /// Quiet rounds in which the answer was wrong.
    pub quiet_wrong: u32,
    /// Rounds in which the probe gave no answer.
    pub untold: u32,
    /// The rate of wrong answers among all answers, at 95 % confidence (Wilson). Absent without an
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong_rate: Option<Interval>,
}

impl Control {
    /// The outcome of one case. Each round has its score, if there was one, and whether the round
    /// was quiet.
    #[must_use]
    pub fn of(case: Case, rounds: &[(Option<f64>, bool)]) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let count = |quiet: bool, wrong: bool| {
            let counted = rounds.iter().filter(|(score, calm)| {
                let missed = |s: f64| (s >= SHARED_FROM) != case.shared();
                score.is_some_and(|s| !wrong || missed(s)) && (!quiet || *calm)
            });
            number(counted.count())
        };
        let (told, wrong) = (count(false, false), count(false, true));
        Self {
            case,
            told,
            wrong,
            quiet: count(true, false),
            quiet_wrong: count(true, true),
            untold: number(rounds.len()) - told,
            wrong_rate: wilson(wrong, told),
        }
    }
}

/// The rates of one operation, in 10^6 program bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct OperationRates {
    /// The generators' name of the operation.
    pub operation: String,
    /// Each CPU measured, running alone.
    pub alone: Vec<CpuRate>,
    /// Each CPU while all of them run the same.
    pub loaded: Vec<CpuRate>,
    /// The sum over all CPUs while they run together.
    pub together: Spread,
}

/// The rate of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CpuRate {
    /// The kernel's number of the CPU.
    pub cpu: CpuId,
    /// The rate in 10^6 program bytes per second.
    pub mb_s: Spread,
}

/// The latency of a list in memory on one CPU, while all other CPUs write at a rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Loaded {
    /// The CPU that walks the list.
    pub cpu: CpuId,
    /// The size of the list, far beyond the caches.
    pub list: Bytes,
    /// How many other CPUs write.
    pub writers: u32,
    /// One point per rate, from idle writers to unhindered ones.
    pub points: Vec<LoadedPoint>,
    /// Which point is the knee: beyond it more rate costs latency out of proportion. Absent where
    /// latency hardly rises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<usize>,
}

/// The latency at one rate of the writers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoadedPoint {
    /// The rate that all writers together were asked for, in 10^6 bytes per second. Absent when
    /// they wrote as fast as they could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_mb_s: Option<f64>,
    /// The rate that the writers reached together, in 10^6 bytes per second, over the rounds.
    pub mb_s: Spread,
    /// Nanoseconds per access over pieces of half a millisecond, all rounds together.
    pub latency_ns: Tail,
    /// The median latency of each round, in nanoseconds per access.
    pub rounds: Spread,
}

/// Latency of a random list against its size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CacheSteps {
    /// The CPU that walked the list.
    pub cpu: CpuId,
    /// One point per size of the list, ascending.
    pub points: Vec<SizePoint>,
    /// What was measured of each cache that the kernel reports.
    pub levels: Vec<LevelSeen>,
    /// Nanoseconds per access at the largest size.
    pub memory_ns: f64,
}

impl CacheSteps {
    /// The largest size that any cache served: where latency leaves the last plateau. `None`: no
    /// cache is visible.
    #[must_use]
    pub fn seen_last(&self) -> Option<Bytes> {
        self.levels.iter().filter_map(|level| level.seen).max()
    }
}

/// The latency at one size of the list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SizePoint {
    /// The size of the list.
    pub size: Bytes,
    /// Nanoseconds per access over the rounds.
    pub latency_ns: Spread,
}

/// The cost of address translation at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PageCost {
    /// The size of the list.
    pub size: Bytes,
    /// Nanoseconds per access in pages of 4 KiB.
    pub base_ns: Spread,
    /// Nanoseconds per access in pages of 2 MiB.
    pub huge_ns: Spread,
    /// The latency in 4 KiB pages ÷ that in 2 MiB pages, formed within each round.
    pub ratio: Spread,
}

/// How late a thread wakes that sleeps until every next millisecond.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Wakeup {
    /// The CPU on which the thread slept.
    pub cpu: CpuId,
    /// Whether the thread ran under the real-time policy SCHED_FIFO. Else it was an ordinary
    /// thread.
    pub fifo: bool,
    /// How long after the time asked for it woke, in microseconds.
    pub late_us: Tail,
    /// The part of this CPU's time that the hypervisor gave to other guests meanwhile, 0 to 1.
    /// Absent where the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_control_counts_what_was_wrong_and_what_was_quiet() {
        let rounds = [
            (Some(0.9), true),
            (Some(0.1), false),
            (Some(0.2), true),
            (None, false),
        ];
        let same = Control::of(Case::SameCpu, &rounds);
        assert_eq!((same.told, same.wrong, same.untold), (3, 2, 1));
        assert_eq!((same.quiet, same.quiet_wrong), (2, 1));
        let flushed = Control::of(Case::Flushed, &rounds);
        assert_eq!((flushed.wrong, flushed.quiet_wrong), (1, 1));
        assert_eq!(Control::of(Case::Flushed, &[]).wrong_rate, None);
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        assert_eq!(
            Spread::of(&[f64::NAN, 2.0, f64::INFINITY]).unwrap().high,
            2.0
        );
        assert_eq!(Tail::of(&[f64::NAN]), None);
    }

    proptest! {
        #[test]
        fn a_spread_encloses_its_median(rounds in proptest::collection::vec(0.01f64..1e6, 1..20)) {
            let spread = Spread::of(&rounds).unwrap();
            prop_assert!(spread.low <= spread.p50 && spread.p50 <= spread.high);
        }

        #[test]
        fn the_wrong_never_outnumber_the_told(rounds in proptest::collection::vec((proptest::option::of(0.0f64..1.0), any::<bool>()), 0..50)) {
            let c = Control::of(Case::Flushed, &rounds);
            prop_assert!(c.wrong <= c.told && c.quiet <= c.told && c.quiet_wrong <= c.wrong.min(c.quiet));
            prop_assert_eq!((c.told + c.untold) as usize, rounds.len());
        }
    }
}
