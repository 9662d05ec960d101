//! Programs that the OOM killer must not kill.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::error::Result;
use quell_kernel::{cgroup_tree, oom, procfs};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Observation;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;

use super::{Applied, Enforcer, memory};
use crate::host::{Host, finding};

/// The names of the groups that are immune.
#[derive(Default)]
pub(crate) struct Immunity {
    of: BTreeSet<String>,
}

impl Immunity {
    /// Makes all processes in a group immune from the OOM killer, if the plan wants that.
    fn immunise(&self, host: &mut Host, name: &str) -> Result<()> {
        let Some(group) = host.groups.of.get(name).filter(|_| self.of.contains(name)) else {
            return Ok(());
        };
        // Processes, on v1 too: after a thread has ended, nothing says which process it belonged
        // to. Each with the cgroup in which its children will be.
        let mut inside = BTreeMap::new();
        for dir in group.cgroups.tasks_dirs() {
            cgroup_tree::processes(&host.files, &dir, |pid| {
                inside.entry(pid).or_insert_with(|| dir.clone());
            });
        }
        for (pid, dir) in inside {
            let Some(stat) = procfs::stat(&host.files, pid)? else {
                continue;
            };
            memory::oom_score(&mut host.writer()?, stat.id, oom::IMMUNE, &dir)?;
        }
        Ok(())
    }
}

impl Enforcer for Immunity {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        if !matches!(set, Setting::OomImmune) {
            return Ok(None);
        }
        host.groups.one(group)?;
        self.of.insert(group.to_owned());
        self.immunise(host, group)?;
        Ok(Some(Vec::new()))
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        for group in &self.of {
            if let Err(e) = self.immunise(host, group) {
                let about = About::Mechanism {
                    mechanism: Mechanism::Memory,
                };
                seen.push(finding(about, format!("group {group}: {e}"), Some(group)));
            }
        }
    }

    /// The first process of a group. Its children are found with other newborn tasks.
    fn launched(&mut self, host: &mut Host, group: &str, _: Option<&CpuSet>) -> Result<()> {
        self.immunise(host, group)
    }

    fn release(&mut self, _: &mut Host) {
        self.of.clear();
    }
}
