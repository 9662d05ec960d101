//! What no file says: the answers of the machine that Quell runs on, or of a capture.

use std::os::fd::AsFd;

use quell_kernel::perf::{Event, EventCode, SW_CPU_CLOCK, Scope, TYPE_SOFTWARE, Wake, cgroup_dir};
use quell_kernel::pmu::{self, Named, Pmu};
use quell_kernel::root::Files;
use quell_kernel::{oom, resctrl, rt};
use quell_plan::inventory::{DemandSource, unknown_registers};
use quell_types::partition::{Partitions, SMALL_PAGE, WayPartition};
use quell_types::units::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::colours::settle;
use crate::resident;
use crate::work::Countable;

/// What no file says and has to be tried. Answered by the machine that Quell runs on ([`Live`]) or
/// by a capture ([`Tried`]).
pub trait Trials {
    /// Whether Quell may change the machine.
    fn root(&self) -> bool;
    /// Whether an event is seen to count.
    fn counts(&self, pmu: &Pmu, event: &Named) -> bool;
    /// Whether the CPU time of the cgroup in `dir` can be counted on one CPU. The error is the
    /// reason.
    fn cgroup_clock(&self, dir: &str) -> Result<(), String>;
    /// Whether a program can be made immune from the OOM killer. The error is the reason.
    fn immunity(&self) -> Result<(), String>;
    /// Whether any amount of memory can be locked. The error is the reason.
    fn lock(&self) -> Result<(), String>;
    /// What the processor itself reports that it can divide. Asked where resctrl is not mounted.
    fn divides(&self, files: &dyn Files) -> Option<Partitions>;
    /// What registers divide while resctrl is not mounted. The error is the reason, and what to do.
    fn registers(&self, files: &dyn Files) -> Result<Vec<WayPartition>, String>;
    /// Whether pages of running programs can be moved. The error is the reason.
    fn settling(&self) -> Result<(), String>;
    /// Whether counters of a process say what it demands ([`crate::work`]).
    fn demands(&self) -> bool;
    /// The size of the kernel's small pages.
    fn page(&self) -> Bytes;
}

/// The results of trying.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tried {
    /// Whether Quell may change the machine.
    #[serde(default)]
    pub root: bool,
    /// Found in captures of versions that throttled with real-time threads. It is read and not
    /// used.
    #[serde(default, skip_serializing)]
    pub realtime_refused: Option<String>,
    /// Why a cgroup's CPU clock cannot be opened. `None` where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_clock_refused: Option<String>,
    /// Why a program cannot be made immune from the OOM killer. `None` where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immunity_refused: Option<String>,
    /// Why memory of any amount cannot be locked. `None` where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_refused: Option<String>,
    /// What the processor itself reported that it can divide, where resctrl was not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divides: Option<Partitions>,
    /// What registers divide, or why they divide nothing. `None` in captures of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<Result<Vec<WayPartition>, String>>,
    /// Whether pages of running programs can be moved, or why not. `None` in captures of older
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settling: Option<Result<(), String>>,
    /// Whether counters of a process say what it demands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub demands: bool,
    /// Events that were seen to count, as `pmu/event`.
    #[serde(default)]
    pub counters: Vec<String>,
    /// The size of the kernel's small pages: a power of two from 4 KiB to 64 KiB. `None`: 4 KiB.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "small_page"
    )]
    pub page: Option<Bytes>,
}

/// Reads a page size that kernels have.
fn small_page<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let page = Bytes::deserialize(deserializer)?;
    let known = page.0.is_power_of_two() && (4 << 10..=64 << 10).contains(&page.0);
    let wrong = || D::Error::custom(format!("pages of {page}: kernels have 4KiB to 64KiB"));
    known.then_some(Some(page)).ok_or_else(wrong)
}

impl Tried {
    /// Where a scheduling policy gets to know what a process demands.
    pub(super) const fn demand(&self) -> DemandSource {
        match self.demands {
            true => DemandSource::ByProcess,
            false => DemandSource::Declared,
        }
    }
}

impl Trials for Tried {
    fn root(&self) -> bool {
        self.root
    }

    fn counts(&self, pmu: &Pmu, event: &Named) -> bool {
        self.counters.contains(&pmu.event(event))
    }

    fn cgroup_clock(&self, _: &str) -> Result<(), String> {
        self.cgroup_clock_refused.clone().map_or(Ok(()), Err)
    }

    fn immunity(&self) -> Result<(), String> {
        self.immunity_refused.clone().map_or(Ok(()), Err)
    }

    fn lock(&self) -> Result<(), String> {
        self.lock_refused.clone().map_or(Ok(()), Err)
    }

    fn divides(&self, _: &dyn Files) -> Option<Partitions> {
        self.divides.clone()
    }

    fn registers(&self, _: &dyn Files) -> Result<Vec<WayPartition>, String> {
        self.registers.clone().unwrap_or_else(unknown_registers)
    }

    fn settling(&self) -> Result<(), String> {
        let unknown = || Err("it was not tried whether pages can be moved".to_owned());
        self.settling.clone().unwrap_or_else(unknown)
    }

    fn demands(&self) -> bool {
        self.demands
    }

    fn page(&self) -> Bytes {
        self.page.unwrap_or(SMALL_PAGE)
    }
}

/// Tries on the machine that Quell runs on.
#[derive(Clone, Copy, Debug)]
pub struct Live;

impl Trials for Live {
    fn root(&self) -> bool {
        quell_kernel::may_change()
    }

    fn counts(&self, pmu: &Pmu, event: &Named) -> bool {
        pmu::counts(pmu, event)
    }

    fn cgroup_clock(&self, dir: &str) -> Result<(), String> {
        let dir = cgroup_dir(std::path::Path::new(dir)).map_err(|e| e.to_string())?;
        let code = EventCode {
            kind: TYPE_SOFTWARE,
            config: SW_CPU_CLOCK,
        };
        Event::open(code, Scope::Cgroup(dir.as_fd(), rt::current_cpu()), Wake::Once).map(drop).map_err(|e| {
            format!("a cgroup's CPU clock is refused ({e}): it needs CAP_PERFMON, or kernel.perf_event_paranoid below 0")
        })
    }

    fn immunity(&self) -> Result<(), String> {
        oom::may_be_immune()
    }

    fn lock(&self) -> Result<(), String> {
        resident::may_lock()
    }

    fn divides(&self, files: &dyn Files) -> Option<Partitions> {
        resctrl::processor::partitions(files)
    }

    fn registers(&self, files: &dyn Files) -> Result<Vec<WayPartition>, String> {
        resctrl::offer::by_registers(files).map_err(|e| e.to_string())
    }

    fn settling(&self) -> Result<(), String> {
        settle::movable()
    }

    fn demands(&self) -> bool {
        Countable::here(&[]).is_some()
    }

    fn page(&self) -> Bytes {
        Bytes(rustix::param::page_size() as u64)
    }
}
