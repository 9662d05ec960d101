//! Locked memory and the size of its pages: two steps per group, each with a promise of its own.

use quell_policy::{Group, Permission, Role};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::PageSize;
use quell_types::partition::{Colouring, Divides};
use quell_types::refusal::{Cause, Remedy};

use crate::plan::{Promise, Setting};

use super::bandwidth::allowing;
use super::division::colouring;
use super::draft::Draft;
use super::wanted::Worth;
use super::words::paging as words;

/// Adds all steps, promises and notes about paging. To be called after the colours are divided.
pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    for (name, group) in &policy.groups {
        if group.paging.is_empty() || unavailable(draft, name, group) {
            continue;
        }
        lock(draft, name, group);
        match group.paging.pages {
            Some(PageSize::Base) => small(draft, name, group),
            Some(PageSize::Huge) => large(draft, name),
            None => {}
        }
    }
}

/// The keys of a group's section that are written.
fn keys(name: &str, group: &Group) -> Vec<String> {
    let paging = &group.paging;
    let written = [
        ("locked", paging.locked),
        ("prefault", paging.prefault),
        ("pages", paging.pages.is_some()),
    ];
    let written = written.iter().filter(|(_, written)| *written);
    let keys = written.map(|(key, _)| format!("group.{name}.paging.{key}"));
    keys.collect()
}

/// Refuses the whole section where nothing of it can be had.
fn unavailable(draft: &mut Draft<'_>, name: &str, group: &Group) -> bool {
    let keys = keys(name, group);
    let key = keys.first().cloned().unwrap_or_default();
    let without = Remedy::LeaveOut { keys };
    if group.role == Role::Exempt {
        draft.refuse(key, words::EXEMPT, without);
        return true;
    }
    let Some(why) = draft.unavailable(Mechanism::Paging) else {
        return false;
    };
    draft.refuse_lacking(Mechanism::Paging, key, why, without);
    true
}

fn lock(draft: &mut Draft<'_>, name: &str, group: &Group) {
    let (paging, key) = (&group.paging, format!("group.{name}.paging.locked"));
    if !paging.locked {
        if paging.prefault {
            let prefault = format!("group.{name}.paging.prefault");
            let remedies = [Remedy::set(key, true), Remedy::leave_out(prefault.clone())];
            draft.refuse(prefault, words::PREFAULT_NEEDS_LOCKED, remedies);
        }
        return;
    }
    let without = || Remedy::LeaveOut {
        keys: keys(name, group)
            .into_iter()
            .filter(|key| !key.ends_with(".pages"))
            .collect(),
    };
    if let Err(why) = &draft.machine.means.memory.hold {
        let why = words::cannot_be_locked(why);
        draft.refuse_for(Cause::Machine, key, why, without());
        return;
    }
    if let Some(most) = group
        .limit
        .memory
        .filter(|_| !group.allows(Permission::Kill))
    {
        let mut remedies = vec![Remedy::leave_out(format!("group.{name}.limit.memory"))];
        remedies.extend(allowing(name, group, Permission::Kill));
        draft.refuse(key, words::limit_cannot_be_kept(most), remedies);
        return;
    }
    let prefault = paging.prefault;
    let because = if prefault {
        words::FILLED
    } else {
        words::LOCKED
    };
    let set = Setting::LockMemory { prefault };
    let step = draft.step(Some(name), Mechanism::Paging, set, because);
    let worth = Worth::of(Level::Regulated, words::UNTIL_FOUND);
    draft.promise(name, Promise::LockedMemory { prefault }, worth, [step]);
    if prefault && group.limit.memory.is_none() {
        draft.notes.push(words::fills_all_it_maps(name));
    }
}

/// Keeps a group's programs from large pages.
fn small(draft: &mut Draft<'_>, name: &str, group: &Group) {
    let pages = PageSize::Base;
    if !group.matching.is_empty() {
        let key = format!("group.{name}.paging.pages");
        let remedies = [
            Remedy::leave_out(key.clone()),
            Remedy::from(words::LAUNCH_IT),
        ];
        draft.refuse_for(Cause::NotBuilt, key, words::SMALL_FOR_LAUNCHED, remedies);
        return;
    }
    let set = Setting::PageSize { pages };
    let step = draft.step(Some(name), Mechanism::Paging, set, words::NEVER_LARGER);
    let worth = Worth::plain(Level::Enforced);
    draft.promise(name, Promise::PageSize { pages }, worth, [step]);
}

/// Moves a group's memory into large pages.
fn large(draft: &mut Draft<'_>, name: &str) {
    let (pages, key) = (PageSize::Huge, format!("group.{name}.paging.pages"));
    let without = Remedy::leave_out(key.clone());
    let why = match draft.machine.means.memory.large_pages.clone() {
        Ok(size) if size == pages.bytes() => None,
        Ok(size) => Some(words::other_large_pages(size)),
        Err(why) => Some(words::no_large_pages(&why)),
    };
    if let Some(why) = why {
        draft.refuse_for(Cause::Machine, key, why, without);
        return;
    }
    if let Some((divides, colouring)) = undivided(draft, name) {
        let (large, small) = (colouring.count_large(), colouring.count());
        let why = words::too_few_colours(large, small, divides.of());
        draft.refuse(key, why, without);
        return;
    }
    let set = Setting::PageSize { pages };
    let step = draft.step(Some(name), Mechanism::Paging, set, words::COLLAPSED);
    let worth = Worth::of(Level::Regulated, words::WHERE_FREE);
    draft.promise(name, Promise::PageSize { pages }, worth, [step]);
}

/// A kind of colour that the group is kept to, and that large pages cannot be kept to.
fn undivided(draft: &Draft<'_>, name: &str) -> Option<(Divides, Colouring)> {
    let own = draft
        .steps
        .iter()
        .filter(|s| s.group.as_deref() == Some(name));
    let of = |divides| {
        Some((
            divides,
            colouring(&draft.machine.partitions, divides)?.clone(),
        ))
    };
    let mut divided = own.flat_map(|step| match &step.set {
        Setting::Colour { choices, .. } => choices.iter().filter_map(|c| of(c.divides)).collect(),
        Setting::Settle {
            divides, colouring, ..
        }
        | Setting::Vacate {
            divides, colouring, ..
        } => vec![(*divides, colouring.clone())],
        _ => Vec::new(),
    });
    divided.find(|(_, colouring)| colouring.count_large() < colouring.count())
}

#[cfg(test)]
mod tests {
    use quell_policy::Policy;
    use quell_types::partition::Partitions;
    use quell_types::refusal::Refusal;
    use quell_types::units::Bytes;

    use super::super::tests::machine;
    use super::*;
    use crate::inventory::{Inventory, MemoryControl};
    use crate::plan::Plan;

    fn able() -> Inventory {
        let mut machine = machine(4, 1);
        let yes = machine.mechanisms[&Mechanism::CpuMax].clone();
        for mechanism in [Mechanism::Paging, Mechanism::Memory, Mechanism::Sets] {
            machine.mechanisms.insert(mechanism, yes.clone());
        }
        machine.means.memory.control = MemoryControl::V2;
        machine.means.memory.hold = Ok(());
        machine.means.memory.large_pages = Ok(Bytes(2 << 20));
        machine
    }

    fn planned(keys: &str, machine: &Inventory) -> Result<Plan, Vec<Refusal>> {
        let text = format!(
            "quell = 1\n[group.g]\nrole = 'critical'\ncommand = ['a']\ncpus = 'any'\n{keys}"
        );
        super::super::plan(&Policy::parse(&text, "paging.toml").unwrap(), machine)
    }

    fn refused(keys: &str, machine: &Inventory) -> String {
        planned(keys, machine).unwrap_err()[0].to_string()
    }

    #[test]
    fn each_key_is_a_step_with_a_promise() {
        let all = "paging = { locked = true, prefault = true, pages = '2MiB' }";
        let plan = planned(all, &able()).unwrap();
        let promises: Vec<(String, Level)> = plan
            .promises
            .iter()
            .map(|p| (p.promise.to_string(), p.level))
            .collect();
        let locked = "its memory locked, and there before it is touched";
        assert_eq!(
            promises,
            [
                (locked.to_owned(), Level::Regulated),
                ("its memory in pages of 2MiB".to_owned(), Level::Regulated),
            ]
        );
        assert!(plan.notes.iter().any(|n| n.contains("prefault fills")));
        let small = planned("paging.pages = '4KiB'", &able()).unwrap();
        assert_eq!(small.promises[0].level, Level::Enforced);
        let kinds: Vec<&Setting> = small.steps.iter().map(|s| &s.set).collect();
        assert!(matches!(kinds[0], Setting::Gather { .. }), "{kinds:?}");
        let pages = PageSize::Base;
        assert_eq!(kinds[1], &Setting::PageSize { pages });
    }

    #[test]
    fn what_paging_cannot_give_is_refused_with_its_key() {
        let machine = able();
        let prefault = refused("paging.prefault = true", &machine);
        assert!(
            prefault.starts_with("group.g.paging.prefault:") && prefault.contains("locked = true"),
            "{prefault}"
        );
        let limited = refused("paging.locked = true\nlimit.memory = '1GiB'", &machine);
        let says = ["group.g.paging.locked:", "1GiB", "leave out limit.memory"];
        assert!(says.iter().all(|s| limited.contains(s)), "{limited}");
        let running = "paging.pages = '4KiB'\nmatch = [{ comm = 'b' }]";
        let running = refused(running, &machine);
        assert!(running.contains("launch it"), "{running}");
        let mut without = able();
        without.means.memory.large_pages = Ok(Bytes(512 << 20));
        let other = refused("paging.pages = '2MiB'", &without);
        assert!(other.contains("512MiB"), "{other}");
        without.means.memory.hold = Err("Yama forbids it".to_owned());
        let held = refused("paging.locked = true", &without);
        assert!(held.contains("Yama forbids it"), "{held}");
        without.mechanisms.remove(&Mechanism::Paging);
        let none = refused("paging.locked = true", &without);
        assert!(none.contains("says nothing about paging"), "{none}");
    }

    #[test]
    fn large_pages_without_the_colours_are_refused_with_numbers() {
        let mut machine = able();
        machine.partitions = Partitions {
            sets: Some(Colouring::of_pages((12..16).map(|bit| 1 << bit), 0)),
            ..Partitions::default()
        };
        let both = "reserve.cache = { colours = '0-3' }\npaging.pages = '2MiB'";
        let why = refused(both, &machine);
        assert!(
            why.starts_with("group.g.paging.pages:") && why.contains("1 of the 16 colours"),
            "{why}"
        );
        planned("reserve.cache = { colours = '0-3' }", &machine).unwrap();
        planned("paging.pages = '2MiB'", &machine).unwrap();
    }
}
