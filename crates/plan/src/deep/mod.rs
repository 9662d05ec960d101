//! What `quell doctor --deep` finds out about a machine, as values. It measures which CPUs share a
//! cache in fact, rates, latency under load, the cost of address translation, where latency steps
//! up with size, and how late sleepers wake.
//!
//! `quell-workload` makes the measurements. Here are the figures and what they mean (where the knee
//! is, which cache a step belongs to), so that both can be tested on values. `docs/doctor.md` says
//! what each figure means for a person.

mod counter;
mod fingerprint;
mod knee;
mod mba;
mod rates;
mod steps;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The median round.
    pub p50: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
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
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
    /// How many samples.
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

/// Everything found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Deep {
    /// Measured with fewer rounds (`--quick`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quick: bool,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// The part of the CPUs' time that the hypervisor gave to others meanwhile (`steal` in
    /// `/proc/stat`), 0 to 1. Absent where the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
    /// Which CPUs share a last-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Latency against the rate of the other CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Loaded>,
    /// Latency against size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<CacheSteps>,
    /// What address translation costs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageCost>,
    /// How late sleepers wake.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wakeups: Vec<Wakeup>,
    /// The check of counters, tried on page faults, which every kernel counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<CounterCheck>,
    /// What could not be measured, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skipped: BTreeMap<String, String>,
}

/// Which CPUs share a last-level cache in fact, and how far the probe that tells is to be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Sharing {
    /// The pairs probed; on machines with many pairs, the first CPU of each cache, its neighbours,
    /// and one pair across.
    pub pairs: Vec<Pair>,
    /// Cases whose answer is known beforehand.
    pub controls: Vec<Control>,
}

/// Two CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pair {
    /// One.
    pub a: CpuId,
    /// The other.
    pub b: CpuId,
    /// The kernel says that they share their last-level cache.
    pub claimed: bool,
    /// The score over the probes that told something: 1 = shared, 0 = not; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<Spread>,
    /// How many probes told something.
    pub told: u32,
    /// How many were made.
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
    /// The case.
    pub case: Case,
    /// Rounds in which the probe told something.
    pub told: u32,
    /// Rounds of these in which what it told was wrong.
    pub wrong: u32,
    /// The same over quiet rounds: those in which no probing thread was preempted.
    pub quiet: u32,
    /// Wrong answers in quiet rounds.
    pub quiet_wrong: u32,
    /// Rounds in which nothing could be told.
    pub untold: u32,
    /// The rate of wrong answers among all that told something, at 95 % confidence (Wilson); absent
    /// without any.
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
    /// Which.
    pub operation: String,
    /// Each CPU measured, running alone.
    pub alone: Vec<CpuRate>,
    /// Each CPU while all of them run the same.
    pub loaded: Vec<CpuRate>,
    /// All of them together.
    pub together: Spread,
}

/// A CPU's rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CpuRate {
    /// The CPU.
    pub cpu: CpuId,
    /// 10^6 program bytes per second.
    pub mb_s: Spread,
}

/// The latency of a list in memory on one CPU while the others write at a rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Loaded {
    /// The CPU of the list.
    pub cpu: CpuId,
    /// Its size.
    pub list: Bytes,
    /// How many other CPUs write.
    pub writers: u32,
    /// From idle to full.
    pub points: Vec<LoadedPoint>,
    /// Which point is the knee: beyond it more rate costs latency out of proportion. Absent where
    /// latency hardly rises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<usize>,
}

/// One rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoadedPoint {
    /// What the writers were told to reach together, 10^6 bytes per second; absent: as much as they
    /// could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_mb_s: Option<f64>,
    /// What they reached, over the rounds.
    pub mb_s: Spread,
    /// Nanoseconds per access over pieces of half a millisecond, all rounds together.
    pub latency_ns: Tail,
    /// The median of each round.
    pub rounds: Spread,
}

/// Latency of a random list against its size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CacheSteps {
    /// The CPU of the list.
    pub cpu: CpuId,
    /// By size.
    pub points: Vec<SizePoint>,
    /// What was seen of each cache that the kernel claims.
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

/// One size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SizePoint {
    /// The list's size.
    pub size: Bytes,
    /// Nanoseconds per access over the rounds.
    pub latency_ns: Spread,
}

/// The cost of address translation at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PageCost {
    /// The list's size.
    pub size: Bytes,
    /// Nanoseconds per access in pages of 4 KiB.
    pub base_ns: Spread,
    /// In pages of 2 MiB.
    pub huge_ns: Spread,
    /// 4 KiB ÷ 2 MiB, formed within each round.
    pub ratio: Spread,
}

/// How late a thread wakes that sleeps until every next millisecond.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Wakeup {
    /// The CPU.
    pub cpu: CpuId,
    /// Under the real-time policy SCHED_FIFO; else an ordinary thread.
    pub fifo: bool,
    /// Microseconds after the time asked for.
    pub late_us: Tail,
    /// The part of this CPU's time that the hypervisor gave to others meanwhile, 0 to 1.
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
