//! What a policy may choose, and what the plan passes on to controllers and backends.

use std::fmt;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize, Serializer};

use crate::spelled;
use crate::spelled::{NoTable, Spelled};
use crate::units::Bytes;

/// What a CPU does when all budgets are spent before the period ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum After {
    /// Waits for the next period.
    #[default]
    Wait,
    /// It runs on freely until the period ends.
    Spare,
    /// Gets a further budget in proportion to its reserve.
    Proportional,
}

/// Whether a CPU that draws nothing counts when it is asked whether all budgets are spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// It counts as spent once it has given its budget away.
    #[default]
    Counted,
    /// It is left out, as in MemGuard: it counts as spent in each period that follows one in which
    /// it drew nothing.
    LeftOut,
}

impl Idle {
    /// Whether this is the default, which records leave out.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        *self == Self::Counted
    }
}

/// How a group's budget is spread over its CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// By demand: what each CPU drew before.
    #[default]
    Demand,
    /// Evenly, as in MemGuard.
    Even,
}

impl Split {
    /// The default for older records, in which it is absent.
    #[must_use]
    pub const fn even() -> Self {
        Self::Even
    }

    /// Whether this is [`Self::Even`].
    #[must_use]
    pub fn is_even(&self) -> bool {
        *self == Self::Even
    }
}

/// Which controller acts on memory pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PressureController {
    /// Quell's own: protect first, stop second, kill last.
    #[default]
    Quell,
    /// A latency daemon as described in the literature: the worst process is stopped while the
    /// machine's pressure is high.
    Latd,
    /// Limits as described there. They grow while the critical groups are calm. Else it acts as the
    /// daemon.
    Cgroup,
    /// No controller acts on it.
    None,
}

/// Which policy decides who runs and who shares a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerPolicy {
    /// The most progress that is weighted by how far behind a process is.
    #[default]
    Fair,
    /// As the kernel does: in turn on each CPU.
    Linux,
    /// As a real kernel did: a schedule on record, replayed.
    LinuxRecorded,
    /// Drawn from the seed: a control.
    Random,
    /// In turn, and the most demanding share a core: a control.
    Worst,
    /// As published: rates of memory near the mean, high first-level rates with low ones.
    BandwidthAware,
    /// The published selection alone.
    Select,
    /// The published pairing alone.
    Pair,
    /// As published, and no process waits for more than a bound.
    Bounded,
    /// Half of the threads by least progress.
    Progress,
}

impl SchedulerPolicy {
    /// Whether the kernel decides as without Quell, for each of its own slices.
    #[must_use]
    pub const fn is_kernels(self) -> bool {
        matches!(self, Self::Linux | Self::LinuxRecorded)
    }

    /// Whether it reads what a process demands of main memory.
    #[must_use]
    pub const fn reads_memory(self) -> bool {
        !matches!(self, Self::Random | Self::Pair | Self::Worst)
    }

    /// Whether it reads first-level rates, to decide who shares a core.
    #[must_use]
    pub const fn reads_first_level(self) -> bool {
        !matches!(self, Self::Random | Self::Select)
    }

    /// The name used in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Linux => "linux",
            Self::LinuxRecorded => "linux-recorded",
            Self::Random => "random",
            Self::Worst => "worst",
            Self::BandwidthAware => "bandwidth-aware",
            Self::Select => "select",
            Self::Pair => "pair",
            Self::Bounded => "bounded",
            Self::Progress => "progress",
        }
    }
}

/// The size of the pages that a group's anonymous memory lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PageSize {
    /// Base pages of 4 KiB only.
    #[serde(rename = "4KiB")]
    Base,
    /// Large pages of 2 MiB, wherever 2 MiB of memory lie side by side.
    #[serde(rename = "2MiB")]
    Huge,
}

impl PageSize {
    /// The size of a page in bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        match self {
            Self::Base => Bytes(4 << 10),
            Self::Huge => Bytes(2 << 20),
        }
    }

    /// The name used in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "4KiB",
            Self::Huge => "2MiB",
        }
    }
}

/// The weight of a group where several cgroups want the same CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuWeight {
    /// It runs only where no task of another weight wants to run (`cpu.idle`).
    Idle,
    /// From 1 to 10000. The kernel gives each cgroup 100.
    Of(u32),
}

impl CpuWeight {
    /// The weight that the kernel gives each cgroup.
    pub const USUAL: Self = Self::Of(100);
}

impl fmt::Display for CpuWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::Of(weight) => write!(f, "{weight}"),
        }
    }
}

impl Spelled for CpuWeight {
    const WANTED: &'static str =
        "a weight from 1 to 10000 (100 is the kernel's default), or \"idle\"";
    type Table = NoTable;
    fn integer(n: u32) -> Option<Self> {
        (1..=10_000).contains(&n).then_some(Self::Of(n))
    }
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "idle" => Ok(Self::Idle),
            _ => Err(Self::mistaken(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        match table {}
    }
}

spelled!(CpuWeight: json_schema!({
    "description": CpuWeight::WANTED,
    "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": 10000 },
        { "type": "string", "enum": ["idle"] },
    ],
}));

impl Serialize for CpuWeight {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Idle => s.serialize_str("idle"),
            Self::Of(weight) => s.serialize_u32(*weight),
        }
    }
}

/// What happens when another program changes a setting that is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnDrift {
    /// Set it again, and report.
    #[default]
    Repair,
    /// Only report the change.
    Report,
    /// Undo everything and end.
    Stop,
}

/// How many guards a window has to last at least. Otherwise a switch would take more of it than a
/// tenth.
pub const GUARDS_PER_WINDOW: u64 = 10;

/// What happens when a window begins more than a guard late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnLate {
    /// It is counted and reported.
    #[default]
    Report,
    /// Everything is undone, and the run ends.
    Stop,
}
