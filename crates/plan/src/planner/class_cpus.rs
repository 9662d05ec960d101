//! Classes of service by CPU. A task in no group takes the class of the CPU that it runs on. So
//! kernel threads and interrupts on a critical group's own CPUs fill that group's ways, where its
//! program reads what they write, and leave those of all other tasks alone.

use quell_policy::Role;
use quell_types::mechanism::Mechanism;

use crate::plan::Setting;

use super::codedata;
use super::draft::Draft;
use super::words::division as words;

/// Adds a step for each critical group that has CPUs and ways to itself.
pub(super) fn plan(draft: &mut Draft<'_>) {
    let means = &draft.machine.means;
    if means.fixed_irqs + means.movable_irqs == 0 || draft.policy.mechanisms.registers {
        // A simulated machine has no kernel. Registers give classes to CPUs in any case.
        return;
    }
    let has_ways = |name: &String| {
        let own = |group: &Option<String>| group.as_ref() == Some(name);
        let mut steps = draft.steps.iter();
        steps.any(|s| own(&s.group) && codedata::masks(&s.set).is_some())
    };
    let groups = draft.policy.with_role(Role::Critical);
    let groups = groups.map(|(name, _)| name.clone()).filter(has_ways);
    let groups = groups.filter(|name| draft.division.of(name).exclusive);
    let groups: Vec<String> = groups.collect();
    for name in groups {
        let cpus = draft.division.of(&name).cpus.clone();
        let set = Setting::WaysCpus { cpus };
        draft.step(Some(&name), Mechanism::Ways, set, words::WORK_ON_ITS_CPUS);
    }
}
