//! What every mechanism works on: the machine's files, the session that records changes, the plan,
//! and the groups.

mod claims;
mod gate;
mod groups;
mod newborn;
mod worth;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_kernel::cgroup::Cgroups;
use quell_kernel::error::{Error, Result};
use quell_kernel::pmu::{Counting, Traffic};
use quell_kernel::root::Kernel;
use quell_kernel::stat::Stat;
use quell_kernel::{cgroup_tree, oom, pmu, procfs, rt};
use quell_plan::Plan;
use quell_plan::inventory::{Inventory, Measured};
use quell_policy::workload::{Caches, Workload};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Bytes;

use crate::change::JournaledWriter;
use crate::colours::Declared;
use crate::colours::settler::SettlerCommand;
use crate::probe::{self, Before};
use crate::resident::KeeperCommand;
use crate::session::{Session, WatchdogCommand};
use crate::without;

pub use claims::{claims, parties};
pub use groups::{BOUND, Bound, Group, Groups, moves};
pub use worth::{finding, limits};

/// What the backend needs from the rest of the program.
pub struct Tools {
    /// The command that serves a generator on a CPU with these caches.
    pub generator: fn(&Workload, &Caches) -> Vec<String>,
    /// Whether two CPUs share a cache now. 1: a line of the other CPU is as near as its own. 0: it
    /// is as far as memory. `None` where it cannot be measured.
    pub shared_cache: fn(CpuId, CpuId) -> std::io::Result<Option<f64>>,
    /// Measures the memory rates of CPUs. The size is that of the last-level cache.
    pub rates: fn(&CpuSet, Bytes) -> std::io::Result<Measured>,
    /// Prepares a stream far larger than a last-level cache of this size, to check counters with.
    /// `true` makes it write, `false` read.
    pub traffic: fn(bool, Bytes) -> std::io::Result<Traffic>,
    /// The command that starts the watchdog.
    pub watchdog: WatchdogCommand,
    /// The command that starts the keeper of a group's files.
    pub keeper: KeeperCommand,
    /// The command that starts the keeper of page frames.
    pub hoard: KeeperCommand,
    /// The command that starts a settler.
    pub settler: SettlerCommand,
}

/// What is known of the machine so far.
#[derive(Default)]
struct Known {
    before: Before,
    inventory: Option<Inventory>,
    counting: Vec<Counting>,
}

/// The machine, and the hold on it.
pub struct Host {
    pub files: Kernel,
    pub cgroups: Cgroups,
    pub run_root: PathBuf,
    pub tools: Tools,
    known: Known,
    pub plan: Option<Plan>,
    pub session: Option<Session>,
    pub groups: Groups,
    /// Processes of the brakes, which no group gets, whatever it matches.
    pub brakes: BTreeSet<u32>,
}

impl Host {
    /// This machine, not held yet.
    pub fn new(run_root: &Path, tools: Tools) -> Result<Self> {
        let files = Kernel::new()?;
        Ok(Self {
            cgroups: Cgroups::discover(&files)?,
            files,
            run_root: run_root.to_owned(),
            tools,
            known: Known::default(),
            plan: None,
            session: None,
            groups: Groups::default(),
            brakes: BTreeSet::new(),
        })
    }

    /// Takes over what an earlier run measured on this machine.
    pub fn measured(&mut self, measured: Measured) {
        self.known.before.measured = Some(measured);
        // Which events can meter depends on it.
        self.known.inventory = None;
    }

    /// Takes over the address map that a person has stated for this machine.
    pub fn address_map(&mut self, declared: Declared) {
        self.known.before.address_map = Some(declared);
        self.known.inventory = None;
    }

    pub fn inventory(&mut self) -> Result<&Inventory> {
        if self.known.inventory.is_none() {
            let before = Before {
                cpus: without::cpus(&self.files, &self.cgroups, &self.run_root)?,
                ..self.known.before.clone()
            };
            let probed = probe::probe(&self.files, &probe::Live, &self.cgroups, before)?;
            self.known.counting = probed.counting;
            self.known.inventory = Some(probed.inventory);
        }
        self.known
            .inventory
            .as_ref()
            .ok_or_else(|| Error::refused("the machine could not be read"))
    }

    /// The events that count memory traffic on a CPU. `None` where none do, and before the
    /// inventory was made.
    pub fn counting(&self, cpu: CpuId) -> Option<&Counting> {
        pmu::of_cpu(&self.known.counting, cpu)
    }

    pub fn all_cpus(&mut self) -> Result<CpuSet> {
        Ok(self.inventory()?.cpu_set())
    }

    /// The caches of the given CPU, or of the first one.
    pub fn caches(&mut self, cpu: Option<CpuId>) -> Result<Caches> {
        let machine = self.inventory()?;
        let first = machine.cpus.first().map_or(0, |c| c.id);
        Ok(machine.data_caches(cpu.unwrap_or(first)))
    }

    /// Measures the rates, and whether counters count right. Changes nothing.
    pub fn measure(&mut self) -> Result<Measured> {
        let (cpus, llc) = (self.all_cpus()?, self.caches(None)?.llc);
        let refused = |e| {
            Error::refused(format!(
                "the rates of this machine could not be measured: {e}"
            ))
        };
        let mut measured = (self.tools.rates)(&cpus, llc).map_err(refused)?;
        let vendor = self.inventory()?.identity.vendor.clone();
        let traffic = self.tools.traffic;
        measured.counters = pmu::check(&self.files, &vendor, &|write| traffic(write, llc))?;
        Ok(measured)
    }

    /// The session, begun where there is none, with notes for a person.
    pub fn session(&mut self) -> Result<(&mut Session, Vec<String>)> {
        let mut notes = Vec::new();
        if self.session.is_none() {
            if !quell_kernel::may_change() {
                return Err(Error::refused_with(
                    "changing the machine needs root (CAP_SYS_ADMIN for cgroups)",
                    "run it with sudo",
                ));
            }
            let most = self
                .all_cpus()?
                .iter()
                .next_back()
                .map_or(1, |c| c as usize + 1);
            oom::shelter();
            let (session, said) = Session::begin(
                &self.files,
                &self.cgroups,
                &self.run_root,
                most,
                &self.tools.watchdog,
            )?;
            if let Some(plan) = &self.plan {
                session.describe(plan)?;
            }
            self.session = Some(session);
            notes = said;
        }
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::refused("no hold on the machine"))?;
        Ok((session, notes))
    }

    /// A writer for changes, with the cgroups and groups that it is used on.
    pub fn changes(&mut self) -> Result<(JournaledWriter<'_>, &Cgroups, &mut Groups)> {
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::refused("no hold on the machine"))?;
        let writer = JournaledWriter::new(&self.files, session.journal());
        Ok((writer, &self.cgroups, &mut self.groups))
    }

    /// A writer that records each change first. Fails without a session.
    pub fn writer(&mut self) -> Result<JournaledWriter<'_>> {
        Ok(self.changes()?.0)
    }

    /// A writer for changes, with one of the groups.
    pub fn of(&mut self, group: &str) -> Result<(JournaledWriter<'_>, &Cgroups, &mut Group)> {
        let (writer, cgroups, groups) = self.changes()?;
        Ok((writer, cgroups, groups.one_mut(group)?))
    }

    /// The processes of a group that run.
    pub fn processes(&self, group: &str) -> Result<Vec<Stat>> {
        let Some(group) = self.groups.of.get(group) else {
            return Ok(Vec::new());
        };
        let mut inside = BTreeSet::new();
        for dir in group.cgroups.tasks_dirs() {
            cgroup_tree::processes(&self.files, &dir, |pid| {
                inside.insert(pid);
            });
        }
        let mut found = Vec::new();
        for pid in inside {
            let stat = procfs::stat(&self.files, pid)?;
            found.extend(stat.filter(|s| !s.leaving() && !s.kernel_thread()));
        }
        Ok(found)
    }

    /// Whether the run still holds the machine, asked during slow work. If so, renews the
    /// heartbeat.
    pub fn still_held(&self) -> bool {
        self.session.as_ref().is_some_and(Session::still_held)
    }

    /// Renews the heartbeat when called, as long as the run is not revoked. For slow work.
    pub fn heart(&self) -> impl FnMut() + use<> {
        let lease = self.session.as_ref().map(|s| Arc::clone(s.lease()));
        move || {
            if let Some(lease) = lease.as_ref().filter(|l| !l.is_revoked()) {
                lease.beat(rt::now());
            }
        }
    }
}
