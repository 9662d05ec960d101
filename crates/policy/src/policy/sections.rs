//! The sections of a policy: a group's promises, and how the machine's mechanisms are to be used.

use quell_types::mechanism::Mechanism;
use quell_types::options::PageSize;
use quell_types::options::PressureController;
use quell_types::options::Split;
use quell_types::options::{After, Idle};
use quell_types::source::Source;
use quell_types::units::{Bytes, Nanos, Rate, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Permission;
use super::values::{Bandwidth, Banks, CacheWanted, MemoryWanted, Sustainable};

/// The outcome wanted: either a deadline or a slowdown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Target {
    /// The longest time per unit of work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Nanos>,
    /// The largest factor against the profiled solo run, for example 1.10: the percentile of the
    /// units' times may be so many times what it was in the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// The profile that `slowdown` refers to, by its name or file. Default: the one that `quell
    /// profile` keeps of the group's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Which percentile of the units of work must meet it, of each program of the group.
    #[serde(default = "ninety_nine")]
    pub percentile: f64,
    /// Where the times come from: the program itself, through quell-client (default: "client"),
    /// launched or running already; or the output of one that Quell launches, which is passed on
    /// unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

impl Target {
    /// The percentile as the share of units that must meet the target.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a million"
    )]
    pub fn share(&self) -> Share {
        Share((self.percentile.clamp(0.0, 100.0) * 10_000.0).round() as u64)
    }
}

const fn ninety_nine() -> f64 {
    99.0
}

/// What a group gets at least.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Reserve {
    /// Memory bandwidth. As a table: of lines that come in, and of lines written back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// A part of the cache that no other group fills. Groups that name the same part share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheWanted>,
    /// DRAM banks that hold no other group's memory, as page colours. Groups that name the same
    /// banks share them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banks: Option<Banks>,
    /// Memory that is kept from reclaim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryWanted>,
    /// Files kept resident, warmed from inside the group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The mean time of a request to a disk, above which the kernel holds other groups back, on
    /// every disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_latency: Option<Nanos>,
    /// Its weight where several groups want the same disk, 1 to 10000; any other cgroup has 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_weight: Option<u32>,
}

impl Reserve {
    /// Whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a group gets at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Limit {
    /// Memory bandwidth. Absent: what the reserves of others leave. As a table: of lines that come
    /// in (those that a store fetches included) and of lines written back, where hardware counters
    /// tell them apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// Memory, at most. Absent: no fixed limit; `[pressure]` may set one that moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// CPU time over all its CPUs together, 100 % = one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<Share>,
    /// What it reads from each disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read: Option<Rate>,
    /// What it writes to each disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_write: Option<Rate>,
    /// Requests to read from each disk, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read_iops: Option<u64>,
    /// Requests to write to each disk, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_write_iops: Option<u64>,
}

impl Limit {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How the memory of a group's programs is kept in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Paging {
    /// Whether all memory of its programs stays in memory, once it is there (as `mlockall` does):
    /// it is neither swapped out nor reclaimed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub locked: bool,
    /// With `locked`: whether memory is there as soon as a program maps it, and not only once the
    /// program touches it. Touching it then takes no page fault.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prefault: bool,
    /// The pages of its anonymous memory: "4KiB" (never larger), or "2MiB" (wherever 2 MiB lie side
    /// by side). Absent: as the machine's settings of transparent huge pages say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<PageSize>,
}

impl Paging {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What all groups have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Bounds {
    /// Memory, in every configuration and alone: a cgroup of Quell's with this limit is around all
    /// subjects. Controllers take it for the machine's. Absent: what the machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

impl Bounds {
    /// Whether nothing is bounded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which cache partition may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMechanism {
    /// The strongest level here, cheapest first.
    #[default]
    Any,
    /// Ways of the cache, by resctrl.
    Ways,
    /// Sets of the cache, by page colour.
    Sets,
    /// Ways whose contents the kernel locks (pseudo-locking).
    PseudoLock,
    /// No cache partition is used.
    None,
}

/// Which bandwidth mechanism may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BandwidthMechanism {
    /// The strongest level here, cheapest first.
    #[default]
    Any,
    /// Quell's regulator, in software.
    Regulator,
    /// Allocation in hardware (resctrl's MB).
    Mba,
    /// Both of them: the regulator holds limits, the hardware spreads requests over the period.
    #[serde(rename = "mba+regulator")]
    MbaAndRegulator,
    /// No bandwidth mechanism is used.
    None,
}

impl BandwidthMechanism {
    /// Whether the regulator may hold limits.
    #[must_use]
    pub const fn regulates(self) -> bool {
        matches!(self, Self::Any | Self::Regulator | Self::MbaAndRegulator)
    }

    /// Whether nothing but the regulator may hold limits.
    #[must_use]
    pub const fn insists(self) -> bool {
        matches!(self, Self::Regulator | Self::MbaAndRegulator)
    }
}

/// What becomes of ways that are reserved and not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WaysKept {
    /// They stay the group's own.
    #[default]
    Fixed,
    /// They go to other groups until the group misses more.
    ByMisses,
}

/// Which mechanisms may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Mechanisms {
    /// Mechanisms that are never used.
    pub deny: Vec<Mechanism>,
    /// What gives a part of the cache where a policy says how much, not which: a size or a share.
    pub cache: CacheMechanism,
    /// Whether ways are given through the processor's registers where resctrl is not mounted
    /// (`/dev/cpu/N/msr`, Intel). CPUs, not tasks, have classes then: a group that reserves ways
    /// needs CPUs to itself, and bandwidth, locked memory and ways that follow misses cannot be
    /// had.
    pub registers: bool,
    /// What holds limits of bandwidth.
    pub bandwidth: BandwidthMechanism,
    /// Whether a critical group keeps the ways that it reserves ("fixed"), or has them at first and
    /// at most ("by-misses"). With "by-misses", ways without which it draws no more from memory go
    /// to other groups, one by one. It has all of them again as soon as it draws more.
    pub ways: WaysKept,
}

/// Whether reserves follow the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Adapt {
    /// They stay as written.
    #[default]
    Off,
    /// They move with the slack of `target`.
    Deadline,
}

/// What memory traffic is counted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MeterWanted {
    /// Hardware where it has been seen to count, else time.
    #[default]
    Auto,
    /// Hardware events; the plan is refused where none counts.
    Hardware,
    /// CPU time × the measured peak single-CPU rate.
    Time,
}

/// How memory bandwidth is regulated in software.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RegulatorKeys {
    /// The regulation period, 100us to 1s. Default: derived from the shortest deadline, what the
    /// neighbours may draw, the last-level cache and what a stop costs; 1ms where nothing is known.
    /// The plan says which and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Nanos>,
    /// Whether budget that a CPU is predicted not to draw is given to other CPUs. It comes back
    /// when it is needed. This works among groups with a reserve and those that get what reserves
    /// leave. A limit that is written stays a limit. False = reservation only.
    pub reclaim: bool,
    /// What happens once all budgets are spent before the period ends: all CPUs wait, all run
    /// freely until it ends, or a new period begins at once.
    pub after: After,
    /// Whether an idle CPU keeps the others waiting for that: "counted" (until it has given its
    /// budget away, which takes `reclaim`) or "left-out" (a CPU that drew nothing in the last
    /// period is not asked, as in MemGuard; its budget stays its own).
    pub idle: Idle,
    /// Whether reserves follow the target. What is left to the best-effort groups under the
    /// regulator then moves with how many units are late in the critical groups with targets. The
    /// group that is worst off counts first. The planned rate is what best-effort groups have at
    /// first and at most: what reserves and limits leave or, without any, all that they can draw.
    /// With `reclaim` the rest is headroom: theirs while no critical group with a reserve draws
    /// anything, and kept whole while one does.
    pub adapt: Adapt,
    /// Whether a reserve is also its group's cap (as in MemGuard), whatever the group's `allow`. By
    /// default a critical group is never throttled.
    pub strict: bool,
    /// How a group's budget is spread over its CPUs: "demand" or "even". With "demand" it is split
    /// by what each CPU drew, at most once in ten periods and once in 10 ms.
    pub split: Split,
    /// What memory traffic is counted by.
    pub meter: MeterWanted,
    /// The rate that percentages refer to and reserves must fit into: measured (of the cheapest
    /// operation: what goes beyond the dearest is at level `none`), or given. "auto" is what the
    /// CPUs of the group in question draw together, "machine" what all do.
    pub sustainable: Sustainable,
    /// With `reclaim`: weight of the newest period in the demand estimate, 0 to 1. Default 0.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predictor: Option<f64>,
    /// With `reclaim`: the amount taken from the pool at a time. Default 64KiB; where CPU time is
    /// counted, what a CPU draws in 100us if that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Bytes>,
}

impl Default for RegulatorKeys {
    fn default() -> Self {
        Self {
            period: None,
            reclaim: false,
            after: After::Wait,
            idle: Idle::Counted,
            adapt: Adapt::Off,
            strict: false,
            split: Split::default(),
            meter: MeterWanted::Auto,
            sustainable: Sustainable::Auto,
            predictor: None,
            quantum: None,
        }
    }
}

/// How page colours are carried out where no memory node has them: a hoard holds the free page
/// frames of reserved colours, and pages of the groups that reserve them are moved into these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct HoardKeys {
    /// What the hoard keeps at most. While it sorts frames, it holds more. Absent: all memory
    /// that is free but `reserve`. With less than all, programs still get frames of reserved
    /// colours. With 0 (and `require` "none") there is no hoard: groups get their colours, and
    /// other programs get them, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// Memory that stays free for other programs, of all colours. Absent: an eighth of the
    /// machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Bytes>,
    /// The share of time that a process that runs already may be stopped to move its pages. Younger
    /// ones are stopped more until their pages are moved.
    pub pace: Share,
    /// The longest stop that is aimed at.
    pub longest_stop: Nanos,
    /// Whose pages are moved out of reserved colours, where they lie since before: "none"
    /// (default), or those of best-effort "groups". Each process is stopped at `pace`, whatever
    /// its age. Exempt groups and programs of no group are never stopped for it.
    #[serde(rename = "move")]
    pub moved: HoardMoves,
}

/// Whose pages are moved out of reserved colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HoardMoves {
    /// No program's: what other programs hold already stays theirs.
    #[default]
    None,
    /// Those of best-effort groups that reserve none of these colours.
    Groups,
}

impl Default for HoardKeys {
    fn default() -> Self {
        Self {
            limit: None,
            reserve: None,
            pace: Share(3_000),
            longest_stop: Nanos::millis(2),
            moved: HoardMoves::None,
        }
    }
}

/// How pressure on memory is controlled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pressure {
    /// The controller that decides what is done.
    pub controller: PressureController,
    /// Time between two decisions.
    pub interval: Nanos,
    /// Stall share of the critical group's own memory, and of its I/O while memory is short, at
    /// which it starts to act.
    pub start: Share,
    /// Stall share at which it stops acting.
    pub release: Share,
    /// What it does, mildest first; each needs the group's `allow`.
    pub escalate: Vec<Permission>,
    /// How long it waits between two steps.
    pub grace: Nanos,
    /// Whether machine-wide sysctls may be set (journaled).
    pub sysctls: bool,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            controller: PressureController::Quell,
            interval: Nanos::millis(20),
            start: Share::percent(5),
            release: Share::percent(1),
            escalate: vec![
                Permission::LimitMemory,
                Permission::Freeze,
                Permission::Reclaim,
                Permission::Kill,
            ],
            grace: Nanos::millis(500),
            sysctls: false,
        }
    }
}
