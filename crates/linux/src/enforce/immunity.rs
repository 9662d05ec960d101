//! Programs that the OOM killer must not kill.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::error::Result;
use quell_kernel::{cgroup_tree, oom, procfs, rt};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Observation;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::task::TaskId;
use quell_types::units::Nanos;

use super::{Applied, Enforcer, memory};
use crate::host::{Host, finding};

/// How long a look makes processes of a group immune. The rest follow at the next: all processes
/// of the machine are compared with each.
const AT_MOST: Nanos = Nanos::millis(200);
/// The same where a step is applied, or a program was launched.
const AT_FIRST: Nanos = Nanos::secs(2);

/// The names of the groups that are immune.
#[derive(Default)]
pub(crate) struct Immunity {
    of: BTreeSet<String>,
    /// Processes that are not made immune, by group. That was noted.
    refused: BTreeMap<String, BTreeSet<TaskId>>,
    /// Sentences about those with their groups, until they are reported.
    found: Vec<(String, String)>,
}

impl Immunity {
    /// Makes all processes in a group immune from the OOM killer, if the plan wants that.
    fn immunise(&mut self, host: &mut Host, name: &str, within: Nanos) -> Result<()> {
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
        let mut present = Vec::new();
        for (pid, dir) in inside {
            if oom::adjustment(&host.files, pid)? != Some(oom::IMMUNE) {
                let stat = procfs::stat(&host.files, pid)?;
                present.extend(stat.map(|stat| (stat, dir)));
            }
        }
        let refused = self.refused.entry(name.to_owned()).or_default();
        refused.retain(|task| present.iter().any(|(stat, _)| stat.id == *task));
        // Whoever was not refused yet comes first.
        present.sort_by_key(|(stat, _)| refused.contains(&stat.id));
        let (begun, mut heart) = (rt::now(), host.heart());
        for (stat, dir) in present {
            heart();
            let why = memory::immunise(&mut host.writer()?, stat.id, &dir)?;
            match why {
                None => drop(refused.remove(&stat.id)),
                Some(why) if refused.insert(stat.id) => {
                    let what = format!(
                        "group {name}: process {} ({}) is not immune from the OOM killer: {why}",
                        stat.id.pid, stat.comm
                    );
                    self.found.push((name.to_owned(), what));
                }
                Some(_) => {}
            }
            if rt::now() > begun.plus(within) {
                break;
            }
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
        self.immunise(host, group, AT_FIRST)?;
        let found = std::mem::take(&mut self.found);
        Ok(Some(found.into_iter().map(|(_, what)| what).collect()))
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let about = || About::Mechanism {
            mechanism: Mechanism::Memory,
        };
        for group in self.of.clone() {
            if let Err(e) = self.immunise(host, &group, AT_MOST) {
                let what = format!("group {group}: {e}");
                seen.push(finding(about(), what, Some(&group)));
            }
        }
        for (group, what) in std::mem::take(&mut self.found) {
            seen.push(finding(about(), what, Some(&group)));
        }
    }

    /// The first process of a group. Its children are found with other newborn tasks.
    fn launched(&mut self, host: &mut Host, group: &str, _: Option<&CpuSet>) -> Result<()> {
        self.immunise(host, group, AT_FIRST)
    }

    fn release(&mut self, _: &mut Host) {
        self.of.clear();
    }
}
