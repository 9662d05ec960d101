//! Tasks of limited groups that the fair scheduler does not schedule, and cgroups of braked groups
//! that other programs changed. Such a task was born so or turned so. The group's promise is then
//! lost, and stays lost: what ran was not limited.

use std::collections::BTreeSet;

use quell_kernel::fair;
use quell_plan::Setting;
use quell_record::backend::Observation;
use quell_record::standing::Cause;
use quell_types::mechanism::Level;

use super::{Applied, Enforcer, threaded};
use crate::host::{Host, limits};

/// Checks all limited groups, whatever limits them.
pub(crate) struct Exempt;

impl Enforcer for Exempt {
    fn apply(&mut self, _: &mut Host, _: &str, _: &Setting) -> Applied {
        Ok(None)
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let steps = host.plan.iter().flat_map(|plan| &plan.steps);
        let mut names = BTreeSet::new();
        for step in steps.filter(|s| limits(&s.set)) {
            names.extend(step.group.clone());
            if let Setting::Windows(frame) = &step.set {
                names.extend(frame.budgeted().cloned());
            }
        }
        let replaced = fair::replaced_by(&host.files);
        for name in names {
            let Some(group) = host.groups.of.get(&name) else {
                continue;
            };
            if group.limit_most == Level::None {
                continue;
            }
            let because = match &replaced {
                Some(scheduler) => Cause::Exempt {
                    task: format!("the sched_ext scheduler '{scheduler}' was loaded"),
                },
                None => match fair::exempt(&host.files, &group.cgroups.tasks_dirs()) {
                    Some(task) => Cause::Exempt {
                        task: task.to_string(),
                    },
                    None => match threaded::lost(&host.files, &group.cgroups) {
                        Some(why) => Cause::Loose { why },
                        None => continue,
                    },
                },
            };
            // The watchdog may have reverted it. Then no other program changed it.
            if !host.still_held() {
                return;
            }
            seen.extend(host.spoil_limit(&name, Level::None, &because));
        }
    }
}
