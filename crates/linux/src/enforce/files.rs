//! Files that a keeper process holds in memory, charged to their group.

use std::collections::BTreeMap;

use quell_kernel::cgroup::Controller;
use quell_plan::Setting;
use quell_record::backend::Observation;
use quell_record::standing::Cause;
use quell_types::mechanism::Level;

use super::{Applied, Enforcer};
use crate::host::Host;
use crate::resident::Keeper;

/// The keeper process of each group.
#[derive(Default)]
pub(crate) struct LockedFiles {
    keepers: BTreeMap<String, Keeper>,
}

impl Enforcer for LockedFiles {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Setting::LockFiles { files } = set else {
            return Ok(None);
        };
        host.extend(group, &[Controller::Memory])?;
        // Also into cgroups that are changed in place: pages are charged to the cgroup that touches
        // them.
        let places = &host.groups.one(group)?.cgroups.places;
        let procs_files: Vec<String> = places
            .iter()
            .map(|p| format!("{}/cgroup.procs", p.tasks_dir()))
            .collect();
        let keeper = Keeper::start(&host.tools.keeper, files, &procs_files, &mut host.heart())?;
        let note = format!(
            "group {group}: {} of files are locked in memory",
            keeper.bytes
        );
        self.keepers.insert(group.to_owned(), keeper);
        Ok(Some(vec![note]))
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        self.keepers.retain(|group, keeper| {
            let Some(how) = keeper.ended() else {
                return true;
            };
            let files = |set: &Setting| matches!(set, Setting::LockFiles { .. });
            let because = Cause::KeeperEnded {
                how: how.to_string(),
            };
            seen.extend(host.worth(group, &files, Level::None, &because));
            false
        });
    }

    fn release(&mut self, _: &mut Host) {
        self.keepers.clear();
    }
}
