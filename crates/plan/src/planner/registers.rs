//! Ways given through the processor's registers, where resctrl is not mounted and the policy asks
//! for it (`mechanisms.registers`). CPUs, not tasks, have classes: a group with ways of its own
//! needs CPUs to itself. All other CPUs stay in class 0, which gets the ways that are left.

use quell_policy::{Policy, WaysKept};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::Mask;
use quell_types::refusal::{Cause, Refusal, Remedy};

use crate::inventory::{Availability, Inventory, Lack};
use crate::plan::Setting;

use super::division::ways_of_window;
use super::draft::Draft;
use super::words::division as words;

/// The key that asks for registers.
const KEY: &str = "mechanisms.registers";

/// The machine as registers divide it. `None` where the policy does not ask for them, or they
/// cannot be had.
pub(super) fn machine(
    policy: &Policy,
    machine: &Inventory,
    refusals: &mut Vec<Refusal>,
) -> Option<Inventory> {
    if !policy.mechanisms.registers {
        return None;
    }
    let mut refuse = |cause, why: &str| {
        refusals.push(Refusal {
            key: KEY.to_owned(),
            why: why.to_owned(),
            cause,
            remedies: vec![Remedy::leave_out(KEY)],
        });
    };
    let ways = match &machine.means.registers {
        Ok(ways) => ways,
        Err(why) => {
            refuse(Cause::Machine, why);
            return None;
        }
    };
    if policy.mechanisms.ways == WaysKept::ByMisses {
        refuse(Cause::Policy, words::NOTHING_COUNTS_MISSES);
        return None;
    }
    let mut by_registers = machine.clone();
    let offered = &mut by_registers.partitions;
    offered.ways.clone_from(ways);
    (offered.mba, offered.lock) = (None, None);
    let all = &mut by_registers.mechanisms;
    let how = Availability::Yes {
        best: Level::Enforced,
        how: words::BY_REGISTERS.to_owned(),
    };
    all.insert(Mechanism::Ways, how);
    for without in [Mechanism::Mba, Mechanism::PseudoLock] {
        let no = Availability::No {
            why: words::TAKES_RESCTRL.to_owned(),
            lack: Lack::default(),
            remedy: Some(format!("leave out {KEY}")),
        };
        all.insert(without, no);
    }
    Some(by_registers)
}

/// Makes of all steps that give ways such that write registers. Refuses a group that has ways of
/// its own and shares its CPUs.
pub(super) fn plan(draft: &mut Draft<'_>) {
    if !draft.policy.mechanisms.registers {
        return;
    }
    let given = |draft: &Draft<'_>, name: &str| -> Vec<(u32, Mask)> {
        let own = draft.steps.iter();
        let own = own.filter(|s| s.group.as_deref() == Some(name));
        own.filter_map(|s| match s.set {
            Setting::Ways { level, mask, .. } => Some((level, mask)),
            _ => None,
        })
        .collect()
    };
    let rest = given(draft, REST);
    let names: Vec<String> = draft.policy.groups.keys().cloned().collect();
    let mut own: Vec<(String, CpuSet)> = Vec::new();
    for name in names {
        let masks = given(draft, &name);
        if masks.is_empty() || masks == rest {
            continue;
        }
        let part = draft.division.of(&name);
        if part.exclusive {
            own.push((name, part.cpus.clone()));
            continue;
        }
        let windows = draft.policy.windows.as_ref();
        let window = windows.and_then(|keys| keys.ways_of(&name).next());
        let (key, instead) = match window {
            Some((i, _)) => (ways_of_window(i), Remedy::leave_out(ways_of_window(i))),
            None => (
                format!("group.{name}.reserve.cache"),
                Remedy::set(format!("group.{name}.cpus"), 1),
            ),
        };
        let remedies = [instead, Remedy::leave_out(KEY)];
        draft.refuse(key, words::classes_are_of_cpus(&name), remedies);
    }
    for step in &mut draft.steps {
        let Setting::Ways { level, mask, .. } = step.set else {
            continue;
        };
        let of = own
            .iter()
            .find(|(name, _)| step.group.as_ref() == Some(name));
        let cpus = of.map(|(_, cpus)| cpus.clone()).unwrap_or_default();
        step.set = Setting::WayRegisters { level, mask, cpus };
    }
}
