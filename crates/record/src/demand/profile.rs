//! A profile as it is stored and read again: schema `quell.profile/1`. Fields that do not apply are
//! absent, never zero.

use quell_plan::deep::Fingerprint;
use quell_policy::workload::Workload;
use quell_types::stats::Interval;
use quell_types::task::TaskMatch;
use quell_types::units::{Nanos, Rate, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BIN, Burst, Figures, Phase, Proposal, Sweep, burst};
use crate::result::Timing;

/// Schema id of a profile.
pub const PROFILE_SCHEMA: &str = "quell.profile/1";

/// The demand of one program over time, alone or as it was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The format and its version.
    pub schema: String,
    /// The version of Quell that made it.
    pub version: String,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// What it is called: a generator's kind, a program's name.
    pub name: String,
    /// The program that was profiled.
    pub subject: Subject,
    /// Identifies the content of the program's file, as `sha256:HEX`. Absent where it is not known
    /// which file that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The backend, as in `--on`.
    pub backend: String,
    /// Whether its times were measured or simulated.
    pub timing: Timing,
    /// Which machine it holds for.
    pub machine: Fingerprint,
    /// How the demand was found out.
    pub measuring: Measuring,
    /// Length of the profiled span, in nanoseconds.
    pub span_ns: u64,
    /// Length of a bin, in nanoseconds.
    pub bin_ns: u64,
    /// The demand: bytes read and bytes written, or CPU time, never both.
    pub series: Vec<Series>,
    /// What all series together come to, in their unit.
    pub total: Figures,
    /// The bursts that return; absent where none do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// What it does per cycle and per microsecond, phase by phase. Empty where instructions and
    /// accesses are not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The memory it works on. Absent where the backend cannot find it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<WorkingSet>,
    /// How long its units of work took. Absent where the program reported none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<UnitTimes>,
    /// What sampling cost. Absent on a simulated machine, where it costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampler: Option<Sampler>,
    /// How much slower it gets under pressure on one resource at a time; empty without `--probe`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Sensitivity>,
    /// How much of a cache or of bandwidth it needs; empty without `--sweep`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<Sweep>,
    /// What a policy could ask for.
    pub proposal: Proposal,
}

impl Profile {
    /// What the series count: bytes or CPU time. [`Quantity::Read`] if there is none.
    #[must_use]
    pub fn quantity(&self) -> Quantity {
        self.series.first().map_or(Quantity::Read, |s| s.quantity)
    }

    /// The sum of all series in each bin, in the unit of the quantity.
    #[must_use]
    pub fn values(&self) -> Vec<f64> {
        total(&self.series, self.bin_ns)
    }
}

/// The sum of all series in each bin of `bin_ns`, in the unit of the quantity.
fn total(series: &[Series], bin_ns: u64) -> Vec<f64> {
    let quantity = series.first().map_or(Quantity::Read, |s| s.quantity);
    let sums = sums(series).into_iter();
    sums.map(|sum| quantity.rate(sum, bin_ns)).collect()
}

fn sums(series: &[Series]) -> Vec<u64> {
    let longest = series.iter().map(|s| s.per_bin.len()).max().unwrap_or(0);
    let of = |bin: usize| series.iter().filter_map(|s| s.per_bin.get(bin)).sum();
    (0..longest).map(of).collect()
}

/// The figures of all series together, for bins of [`BIN`], and their bursts. `None` without a bin.
#[must_use]
pub fn assess(series: &[Series]) -> Option<(Figures, Option<Burst>)> {
    let amounts: Vec<f64> = sums(series).into_iter().map(|n| n as f64 / 1e6).collect();
    Some((Figures::of(&total(series, BIN.0))?, burst(&amounts)))
}

/// The program that a profile is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Subject {
    /// A load generator of Quell's.
    Generator {
        /// The generator and its parameters.
        run: Workload,
    },
    /// A program that was started for it.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// Tasks that were running.
    Tasks {
        /// Tasks that fit any of these.
        matching: Vec<TaskMatch>,
    },
}

impl Subject {
    /// A name that is valid for a group and a file: letters, digits, `-` and `_`, at most 64.
    #[must_use]
    pub fn name(&self) -> String {
        let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let name = match self {
            Self::Generator { run } => run.kind().to_owned(),
            Self::Command { command } => last(command.first().map_or("", String::as_str)),
            Self::Tasks { matching } => matching.first().map_or_else(String::new, |m| {
                let texts = [
                    &m.comm,
                    &m.exe,
                    &m.unit,
                    &m.cgroup,
                    &m.container,
                    &m.user,
                    &m.arg,
                ];
                let text = texts.into_iter().flatten().next();
                let pid = m.pid.map(|pid| format!("pid-{pid}"));
                text.map(|t| last(t)).or(pid).unwrap_or_default()
            }),
        };
        let fit = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name: String = name
            .chars()
            .map(|c| if fit(c) { c } else { '-' })
            .take(64)
            .collect();
        match name.as_str() {
            "" | quell_types::ids::REST => "program".to_owned(),
            _ => name,
        }
    }
}

/// How demand was found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Measuring {
    /// The simulated machine counts every line for every task: exact.
    Simulated,
    /// Hardware events of the program's threads, a line each.
    Events {
        /// The events, as `pmu/event`.
        events: Vec<String>,
        /// They see lines that come in, and none that are written back.
        fills_only: bool,
    },
    /// CPU time, since no event counts here. It says when the program works, not what it moves:
    /// each nanosecond stands for at most what one CPU of this machine was measured to move in one.
    CpuTime {
        /// Why no event counts.
        why: String,
        /// That rate, where it was measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bound: Option<Rate>,
    },
}

/// What a series counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Bytes read from memory, prefetched ones included.
    Read,
    /// Bytes written to memory.
    Written,
    /// Nanoseconds of CPU time.
    CpuTime,
}

impl Quantity {
    /// The unit in which figures of this quantity are given.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Read | Self::Written => "MB/s",
            Self::CpuTime => "CPUs",
        }
    }

    /// The name that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Written => "written",
            Self::CpuTime => "CPU time",
        }
    }

    /// Converts an amount per bin of `bin_ns` into [`Self::unit`].
    #[must_use]
    pub fn rate(self, per_bin: u64, bin_ns: u64) -> f64 {
        let scale = match self {
            Self::Read | Self::Written => 1e3,
            Self::CpuTime => 1.0,
        };
        per_bin as f64 * scale / bin_ns.max(1) as f64
    }
}

/// One counter over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// What the counter counts.
    pub quantity: Quantity,
    /// How much in each bin: bytes, or nanoseconds.
    pub per_bin: Vec<u64>,
    /// What that comes to, in the quantity's unit.
    pub figures: Figures,
}

impl Series {
    /// A series with its figures; `None` without a bin.
    #[must_use]
    pub fn of(quantity: Quantity, per_bin: Vec<u64>, bin_ns: u64) -> Option<Self> {
        let values: Vec<f64> = per_bin.iter().map(|n| quantity.rate(*n, bin_ns)).collect();
        Some(Self {
            quantity,
            figures: Figures::of(&values)?,
            per_bin,
        })
    }
}

/// How long units of work took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitTimes {
    /// How many there were.
    pub units: u64,
    /// Nanoseconds that so many thousandths of them took at most, from 0 (the fastest) to 1000 (the
    /// slowest): values that occurred.
    pub per_mille_ns: Vec<u64>,
}

impl UnitTimes {
    /// The distribution of durations in nanoseconds; `None` without a unit.
    #[must_use]
    pub fn of(mut took_ns: Vec<u64>) -> Option<Self> {
        took_ns.sort_unstable();
        let units = took_ns.len();
        let rank = |mille: usize| (mille * units).div_ceil(1_000).saturating_sub(1);
        let per_mille_ns = (0..=1_000).map(|mille| took_ns.get(rank(mille)).copied());
        Some(Self {
            units: units as u64,
            per_mille_ns: per_mille_ns.collect::<Option<_>>()?,
        })
    }

    /// The duration that this share of the units did not exceed. Rounds up to whole thousandths.
    #[must_use]
    pub fn at(&self, share: Share) -> Option<Nanos> {
        let mille = usize::try_from(share.0.div_ceil(1_000)).ok()?;
        self.per_mille_ns.get(mille).map(|ns| Nanos(*ns))
    }
}

/// The memory a program works on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkingSet {
    /// The memory that it has in use, in bytes.
    pub resident_bytes: u64,
    /// Bytes of it that the program touched within the span. Absent where this cannot be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_bytes: Option<u64>,
    /// Bytes of that which lay in the last-level cache at the end of the span. Absent where this
    /// cannot be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_bytes: Option<u64>,
    /// Size of the last-level cache in bytes. Absent where `cached_bytes` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// The unit in which memory is counted, in bytes.
    pub resolution_bytes: u64,
    /// How it was found out, in a sentence.
    pub how: String,
}

/// What sampling a program cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampler {
    /// How often the counters were read.
    pub readings: u64,
    /// Bins in which they were not: what they show is the mean over several.
    pub unread_bins: u64,
    /// CPU time of the reader ÷ span.
    pub cpu_share: f64,
}

/// What a program suffers from pressure on one resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// The resource: `cache`, `reads`, `writes`, `sibling`.
    pub resource: String,
    /// The neighbour that presses.
    pub neighbour: String,
    /// What the program is judged by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Slowdown by pressure, the least first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pressed: Vec<Pressed>,
    /// Why it could not be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// A program beside one neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pressed {
    /// What was asked of the neighbour: a size or a rate.
    pub pressure: String,
    /// What the neighbour reached, in 10^6 program bytes per second, where it is judged by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached_mb_s: Option<f64>,
    /// Time beside it ÷ time alone: 1 is no interference, 2 is half as fast.
    pub slowdown: f64,
    /// The interval of that over rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
}
