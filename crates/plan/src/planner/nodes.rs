//! Colours that whole memory nodes have: given by `cpuset.mems`, page cache included.
//!
//! A group with such colours is confined to a part of memory. Were other tasks free to use that
//! part, the group would be worse off than without colours: it has fewer sets or banks, and keeps
//! its neighbours. So such colours are refused where some group is exempt, and every other group
//! and unmatched tasks are confined to the nodes that are left.

use quell_policy::Role;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{Colouring, Divides, MapOrigin};
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use super::division::{Divided, Refused, colouring};
use super::draft::Draft;
use super::words::division as words;

/// The colours of nodes of this kind. `None` where there are none, or pages are chosen one by one.
pub(super) fn of<'a>(draft: &'a Draft<'_>, divides: Divides) -> Option<&'a Colouring> {
    let colours = colouring(&draft.machine.partitions, divides)?;
    (!colours.nodes.is_empty()).then_some(colours)
}

/// Why a group cannot have colours of nodes; `None` if it can.
pub(super) fn refused(draft: &Draft<'_>, mechanism: Mechanism, key: String) -> Option<Refused> {
    let divides = match mechanism {
        Mechanism::Banks => Divides::Banks,
        Mechanism::Sets => Divides::Sets,
        _ => return None,
    };
    of(draft, divides)?;
    let (exempt, _) = draft.policy.with_role(Role::Exempt).next()?;
    let remedies = vec![
        Remedy::set_text(format!("group.{exempt}.role"), "best-effort"),
        Remedy::leave_out(key),
    ];
    Some((words::exempt_uses_the_nodes(exempt), remedies))
}

/// The weakest link of a promise of nodes.
pub(super) fn weakest(draft: &Draft<'_>) -> String {
    let map = draft.machine.partitions.address_map.as_ref();
    match map.filter(|map| map.origin == MapOrigin::Published) {
        Some(map) => words::published_map(&map.from),
        None => words::KERNEL_USES_ALL_NODES.to_owned(),
    }
}

/// Notes how much memory each group has, and which nodes.
pub(super) fn notes(draft: &Draft<'_>, one: &Divided, colours: &Colouring) -> Vec<String> {
    let owned = one.claims.iter().zip(&one.allotted.parts);
    let owned = owned.map(|(claim, part)| (&claim.group, part));
    let left = one.others.iter().map(|group| (group, &one.allotted.left));
    let memory = |nodes: &CpuSet| {
        let own = draft.machine.nodes.iter().filter(|n| nodes.contains(n.id));
        Bytes(own.map(|n| n.memory.0).fold(0, u64::saturating_add))
    };
    let note = |(group, part): (&String, &CpuSet)| {
        let nodes = colours.nodes_of(part);
        words::has_memory_of(&words::who(group), memory(&nodes), &nodes)
    };
    owned.chain(left).map(note).collect()
}
