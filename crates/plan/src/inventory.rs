//! What the machine is and offers. A backend fills it in, the planner reads it. It is a value, so
//! that plans can be made for another machine.

use std::collections::BTreeMap;

use quell_policy::workload::Caches;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{Partitions, WayPartition};
use quell_types::refusal::Cause;
use quell_types::stats::median;
use quell_types::units::{Bytes, Nanos, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::deep::{CacheSteps, CounterCheck, Deep, Fingerprint, MbaCurve, OperationRates, Streams};
use crate::hardware::known;
pub use crate::hardware::{Cache, CacheKind, Cpu, Identity};

/// A machine: what it has, and what Quell can do on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Inventory {
    /// Which machine this is.
    pub identity: Identity,
    /// The CPUs that are online and that we may use, ascending.
    pub cpus: Vec<Cpu>,
    /// Every cache, by level.
    pub caches: Vec<Cache>,
    /// The memory nodes, at least one.
    pub nodes: Vec<Node>,
    /// Which mechanisms are available, and why not.
    pub mechanisms: BTreeMap<Mechanism, Availability>,
    /// How the mechanisms would be carried out.
    pub means: Means,
    /// What its caches, banks and controllers can be divided by.
    #[serde(default, skip_serializing_if = "Partitions::is_empty")]
    pub partitions: Partitions,
    /// What was measured on it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// What it is made of, if it exists in the simulator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// What a simulated machine is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Simulated {
    /// Name of the machine's profile.
    pub profile: String,
    /// Every parameter that simulated times depend on.
    pub parameters: Vec<Parameter>,
}

/// One parameter of a simulated machine, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Parameter {
    /// Name of the parameter.
    pub name: String,
    /// Its value, with the unit.
    pub value: String,
    /// Where the value comes from: a data sheet, a manual, a measurement, or nowhere ("assumed").
    pub origin: String,
}

/// A NUMA node: memory and the CPUs next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Node {
    /// The kernel's number of the node.
    #[serde(deserialize_with = "known")]
    #[schemars(with = "u32")]
    pub id: u32,
    /// The CPUs that belong to the node.
    pub cpus: CpuSet,
    /// Size of the node's memory.
    pub memory: Bytes,
    /// Other nodes whose memory is as near to these CPUs: parts of one memory, as `numa=fake`
    /// makes them.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub near: CpuSet,
}

/// Why a mechanism cannot be used, as data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// Quell may not change this machine.
    Rights,
    /// The hardware or the kernel does not offer it.
    #[default]
    Machine,
    /// This version of Quell does not have it.
    NotBuilt,
}

impl Lack {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_machine(&self) -> bool {
        *self == Self::Machine
    }

    /// The cause of a refusal that follows from it.
    #[must_use]
    pub const fn cause(self) -> Cause {
        match self {
            Self::Rights => Cause::Rights,
            Self::Machine => Cause::Machine,
            Self::NotBuilt => Cause::NotBuilt,
        }
    }
}

/// Whether a mechanism can be used here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "available")]
pub enum Availability {
    /// The mechanism can be used.
    Yes {
        /// The best level a promise can reach with it.
        best: Level,
        /// How it is done here, and within what bounds.
        how: String,
    },
    /// The mechanism cannot be used.
    No {
        /// The reason, as text for a person.
        why: String,
        /// What is missing, as data.
        #[serde(default, skip_serializing_if = "Lack::is_machine")]
        lack: Lack,
        /// What would enable it. Absent where nothing is known to.
        #[serde(skip_serializing_if = "Option::is_none")]
        remedy: Option<String>,
    },
}

/// Which version of a cgroup controller is mounted, and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CpusetKind {
    /// A cgroup v1 hierarchy.
    V1,
    /// The v2 hierarchy, without `cpuset.cpus.partition`.
    V2,
    /// The v2 hierarchy with `cpuset.cpus.partition`: the kernel takes the CPUs away from all other
    /// cgroups.
    V2Partition,
    /// No usable controller: affinity of the matched tasks only.
    AffinityOnly,
}

/// What counts a regulated CPU's use of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum MeterKind {
    /// Hardware events, seen to count on this machine: `(PMU, event names)`.
    Hardware {
        /// The events, as `pmu/event` names.
        events: Vec<String>,
        /// CPUs whose events count only lines that come in, and none that are written back: a
        /// proxy. On the other CPUs both count.
        #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
        fills_only: CpuSet,
        /// CPUs whose events count lines that come in and lines written back separately. There each
        /// direction can have a budget.
        #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
        apart: CpuSet,
    },
    /// CPU time × the measured peak single-CPU rate: an upper bound.
    Time,
    /// Neither hardware events nor CPU time can be counted.
    None {
        /// The reason, as text for a person.
        why: String,
    },
}

/// How mechanisms would be carried out on this machine: what the planner chooses from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Means {
    /// How a group is confined to CPUs.
    pub cpuset: CpusetKind,
    /// Number of interrupts whose affinity can be written.
    pub movable_irqs: u32,
    /// Number of interrupts that cannot be moved: the kernel binds them, or Quell may not.
    pub fixed_irqs: u32,
    /// Whether the mask of unbound kernel work can be written.
    pub workqueue_mask: bool,
    /// What the regulator would count with.
    pub meter: MeterKind,
    /// The time proxy can be had even where `meter` is hardware.
    pub time_meter: bool,
    /// Whether a group can be stopped without stopping its CPU (`cpu.idle`, a cgroup's CPU clock).
    /// If not, the reason.
    #[serde(default = "unknown_brake")]
    pub brake: Result<(), String>,
    /// Whether a group that stays in its own cgroup can be stopped there (threaded children of
    /// cgroup v2). If not, the reason.
    #[serde(default = "unknown_brake")]
    pub brake_in_place: Result<(), String>,
    /// Whether the CPU-time quota (`cpu.max` or `cpu.cfs_quota_us`) can be written.
    pub cpu_max: bool,
    /// What can be divided by the processor's registers alone, while resctrl is not mounted. If
    /// nothing can, the reason and what to do.
    #[serde(
        default = "unknown_registers",
        skip_serializing_if = "is_unknown_registers"
    )]
    pub registers: Result<Vec<WayPartition>, String>,
    /// Other users of hardware counters, for example the NMI watchdog.
    pub counter_users: Vec<String>,
    /// What can be done about memory.
    #[serde(default, skip_serializing_if = "MemoryMeans::is_unknown")]
    pub memory: MemoryMeans,
    /// Where a scheduling policy gets to know what a process demands.
    #[serde(default, skip_serializing_if = "DemandSource::is_declared")]
    pub demand: DemandSource,
}

/// Where a scheduling policy gets to know what a process demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DemandSource {
    /// From the policy file, or a kept profile.
    #[default]
    Declared,
    /// Counters of each process that takes turns.
    ByProcess,
    /// The machine counts it for every process, and decides for all of them.
    Counted,
}

impl DemandSource {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_declared(&self) -> bool {
        *self == Self::Declared
    }
}

/// The value for inventories of versions without the brake.
fn unknown_brake() -> Result<(), String> {
    Err("this inventory says nothing about it; take it again".to_owned())
}

/// The value for inventories that say nothing about registers.
///
/// # Errors
/// Always: nothing is known.
pub fn unknown_registers() -> Result<Vec<WayPartition>, String> {
    Err("this machine says nothing about its registers; take its inventory again".to_owned())
}

fn is_unknown_registers(registers: &Result<Vec<WayPartition>, String>) -> bool {
    *registers == unknown_registers()
}

/// Which cgroup controller limits and protects memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryControl {
    /// cgroup v2: `memory.min`, `memory.high`.
    V2,
    /// cgroup v1: limits beyond which the kernel kills, and no protection.
    V1,
    /// No hierarchy carries the controller, or this machine has none.
    #[default]
    None,
}

/// What can be done about memory on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MemoryMeans {
    /// Which cgroup controller limits and protects memory.
    pub control: MemoryControl,
    /// Whether the kernel reports how long tasks wait for memory (PSI). If not, the reason.
    pub pressure: Result<(), String>,
    /// Whether the kernel also reports it for each group (v2 cgroups).
    pub group_pressure: bool,
    /// Whether a group can be frozen.
    pub freeze: bool,
    /// Whether memory of a group can be reclaimed ahead of need (`memory.reclaim`).
    pub reclaim: bool,
    /// Whether a program can be made immune from the OOM killer. If not, the reason.
    pub immunity: Result<(), String>,
    /// Whether files can be locked in memory. If not, the reason.
    pub lock: Result<(), String>,
    /// Whether a program can be made to lock its memory. If not, the reason.
    #[serde(default = "unknown_memory::<()>")]
    pub hold: Result<(), String>,
    /// The size of large pages that memory can be moved into while its program runs. If there are
    /// none, the reason.
    #[serde(default = "unknown_memory::<Bytes>")]
    pub large_pages: Result<Bytes, String>,
}

/// The value where nothing is known.
fn unknown_memory<T>() -> Result<T, String> {
    Err("this machine says nothing about it".to_owned())
}

impl MemoryMeans {
    /// Whether it has not been probed.
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for MemoryMeans {
    fn default() -> Self {
        Self {
            control: MemoryControl::None,
            pressure: unknown_memory(),
            group_pressure: false,
            freeze: false,
            reclaim: false,
            immunity: unknown_memory(),
            lock: unknown_memory(),
            hold: unknown_memory(),
            large_pages: unknown_memory(),
        }
    }
}

/// What the machine's memory gives: measured on it, or, where `assumed` says so, taken by a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Measured {
    /// The highest rate one CPU alone reached over all operations, in program bytes.
    pub peak_cpu: Rate,
    /// The operation that reached it.
    pub peak_operation: String,
    /// The rate of every operation on one CPU alone, in program bytes.
    pub by_operation: BTreeMap<String, Rate>,
    /// The rate all CPUs together sustained.
    pub sustainable: Rate,
    /// How many CPUs drew it.
    pub cpus: u32,
    /// CPU time that each stop costs the group: the interrupt, the wake-up of the brake and the
    /// switch back, and on virtual machines the exits they take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_cost: Option<Nanos>,
    /// The same runs with their spread, each CPU alone and all together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationRates>,
    /// Every event that could meter and was seen to count, beside known traffic, as `pmu/event`.
    /// One that is off, or is not here, is no meter.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, CounterCheck>,
    /// What the percentages of bandwidth allocation in hardware come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mba: Option<MbaCurve>,
    /// How much each CPU streamed through where memory was too short to go beyond the last-level
    /// cache: part of the traffic stayed in it, and memory may sustain less than these rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_cache: Option<Bytes>,
    /// What the tasks of no group (`rest`) drew from memory, in bytes per second: the CPU time that
    /// they used in windows of some 20 ms, 99th percentile over the windows, at the highest rate of
    /// one CPU. An upper bound. Absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Rate>,
    /// Nothing was measured: the figures come from the rule in [`crate::assumed`]. Such figures are
    /// never stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
    /// Latency against size, where it was measured after or without `quell doctor --deep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_steps: Option<CacheSteps>,
    /// When it was measured, seconds since 1970.
    pub at_unix_s: u64,
    /// What `quell doctor --deep` found out besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deep: Option<Box<Deep>>,
}

impl Measured {
    /// Why a promise that rests on these rates is at best an estimate; `None` where it is not.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        let size = self.within_cache?;
        Some(format!(
            "rates were measured within the last-level cache, for want of free memory (buffers of {size}): memory may sustain \
             less. Free memory and run `quell doctor --deep` again"
        ))
    }

    /// The operation of which all CPUs together sustain least, and its rate. That much is there
    /// whatever a program does. `None` where the operations were not measured together.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a measured rate: positive, far below 2^53"
    )]
    pub fn least_sustained(&self) -> Option<(&str, Rate)> {
        self.operations
            .iter()
            .min_by(|a, b| a.together.p50.total_cmp(&b.together.p50))
            .map(|o| (o.operation.as_str(), Rate((o.together.p50 * 1e6) as u64)))
    }
}

impl Measured {
    /// The figures of all operations' streams on `cpus` CPUs, measured at `at_unix_s` (seconds
    /// since 1970). `None` without any operation.
    #[must_use]
    pub fn of_streams(all: &[Streams], cpus: usize, at_unix_s: u64) -> Option<Self> {
        let (fastest, peak) = all
            .iter()
            .map(|streams| (streams, streams.best_alone()))
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        let sustained = median(&fastest.sums()).unwrap_or(0.0);
        Some(Self {
            peak_cpu: Rate::measured(peak),
            peak_operation: fastest.operation.to_owned(),
            by_operation: all
                .iter()
                .map(|s| (s.operation.to_owned(), Rate::measured(s.best_alone())))
                .collect(),
            sustainable: Rate::measured(sustained.max(peak)),
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            stop_cost: None,
            operations: all.iter().filter_map(OperationRates::of).collect(),
            counters: BTreeMap::new(),
            mba: None,
            within_cache: None,
            rest: None,
            assumed: false,
            cache_steps: None,
            at_unix_s,
            deep: None,
        })
    }
}

impl Inventory {
    /// What figures about this machine depend on. `boot` is `/proc/sys/kernel/random/boot_id`. A
    /// virtual machine's memory changes and does not count. Its boot does, since it may run on
    /// another host since.
    #[must_use]
    pub fn fingerprint(&self, boot: Option<String>) -> Fingerprint {
        let guest = self.identity.hypervisor.is_some();
        let nodes = self.nodes.iter().filter(|_| !guest);
        let memory = nodes.map(|n| (n.id, n.memory)).collect();
        let boot = boot.filter(|_| guest);
        Fingerprint::of(&self.identity, &self.cpus, &self.caches, memory, boot)
    }

    /// The CPUs that Quell may use.
    #[must_use]
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|c| c.id).collect()
    }

    /// The last-level cache that `cpu` uses; `None` where the kernel reports none.
    #[must_use]
    pub fn llc(&self, cpu: CpuId) -> Option<&Cache> {
        self.caches
            .iter()
            .filter(|c| c.kind != CacheKind::Instruction && c.cpus.contains(cpu))
            .max_by_key(|c| c.level)
    }

    /// The sizes of the data caches that `cpu` uses. Levels that the machine does not report are
    /// assumed to be 32 KiB, 1 MiB and 32 MiB. Some machines have less and some have more. A last
    /// level that each of several cores has for itself does not count as one. Arm's servers have a
    /// cache behind it that no file of the kernel shows.
    #[must_use]
    pub fn data_caches(&self, cpu: CpuId) -> Caches {
        let level = |level| {
            self.caches
                .iter()
                .find(|c| c.holds_data_at(level) && c.cpus.contains(cpu))
                .map(|c| c.size)
        };
        let llc = match self.llc(cpu) {
            Some(last) if !self.is_of_one_core(last, cpu) => last.size,
            last => last.map_or(Bytes(0), |c| c.size).max(Bytes(32 << 20)),
        };
        Caches {
            l1: level(1).unwrap_or(Bytes(32 << 10)),
            l2: level(2).unwrap_or(Bytes(1 << 20)),
            llc,
            seen: self.seen_llc().unwrap_or(llc),
        }
    }

    /// The size at which measured latency leaves the plateau of the last visible cache. `None`: it
    /// was not measured, or no cache is visible.
    #[must_use]
    pub fn seen_llc(&self) -> Option<Bytes> {
        self.cache_steps()?.seen_last()
    }

    /// Latency against size; `None` where it was not measured.
    #[must_use]
    pub fn cache_steps(&self) -> Option<&CacheSteps> {
        let measured = self.measured.as_ref()?;
        let deep = || measured.deep.as_ref()?.caches.as_ref();
        measured.cache_steps.as_ref().or_else(deep)
    }

    /// Whether only the core of `cpu` uses this cache, up to the second level, and there are more
    /// CPUs.
    fn is_of_one_core(&self, cache: &Cache, cpu: CpuId) -> bool {
        let of_core = |c: &Cpu| c.id == cpu && cache.cpus.difference(&c.siblings).is_empty();
        cache.level <= 2 && self.cpus.len() > cache.cpus.len() && self.cpus.iter().any(of_core)
    }

    /// The rate that the given CPUs can draw together: the sum of their single-CPU peaks, at most
    /// what all CPUs sustain. A policy's percentages of bandwidth refer to this rate for the CPUs
    /// of their group.
    #[must_use]
    pub fn sustainable(&self, cpus: &CpuSet) -> Option<Rate> {
        let measured = self.measured.as_ref()?;
        let sum = measured.peak_cpu.0.saturating_mul(cpus.len() as u64);
        let all = measured.sustainable.0.max(measured.peak_cpu.0);
        Some(Rate(sum.min(all)))
    }
}
