//! Colours that whole memory nodes have: a group, and everything else, has memory from its nodes.

use quell_types::partition::{Colouring, KnownMap, MapOrigin, Mask};

use super::boards::with;
use super::*;

/// Eight CPUs, and eight nodes of 1 GiB with a colour of banks each.
fn eight_nodes(origin: MapOrigin) -> Inventory {
    let mut machine = with(machine(8, 1), &[Mechanism::Banks]);
    let all: CpuSet = (0..8).collect();
    let node = |id| Node {
        id,
        cpus: all.clone(),
        memory: Bytes(1 << 30),
        near: all.iter().filter(|other| *other != id).collect(),
    };
    machine.nodes = (0..8).map(node).collect();
    machine.partitions.banks = Some(Colouring {
        functions: [30, 31, 32].map(|bit| Mask(1 << bit)).to_vec(),
        nodes: (0..8).map(|id| CpuSet::from_iter([id])).collect(),
        ..Colouring::of_pages([], 3)
    });
    machine.partitions.address_map = Some(KnownMap {
        origin,
        from: "map.txt".to_owned(),
        about: None,
        banks: None,
        sets: None,
        shared: 0,
    });
    machine
}

const RESERVE: &str = "[group.a]\nrole='critical'\ncommand=['x']\ncpus=1\nreserve.banks=2\n\
    [group.b]\nrole='best-effort'\ncommand=['y']\n";

/// The memory nodes of each group's colours.
fn nodes(plan: &Plan) -> Vec<(String, String)> {
    let told = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::Colour { choices, spill } => {
            assert!(!spill, "memory of other nodes is never taken");
            let group = step.group.clone().unwrap_or_default();
            Some((group, choices[0].nodes.to_string()))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn every_other_task_is_kept_off_the_nodes_of_a_reserve() {
    let plan = planned(RESERVE, &eight_nodes(MapOrigin::Declared));
    let pair = |group: &str, nodes: &str| (group.to_owned(), nodes.to_owned());
    assert_eq!(
        nodes(&plan),
        [pair("a", "0-1"), pair("b", "2-7"), pair("rest", "2-7")]
    );
    let held = plan
        .promises
        .iter()
        .find(|held| matches!(held.promise, Promise::ReserveColours { .. }));
    let held = held.unwrap();
    assert_eq!((held.level, held.held_by.len()), (Level::Enforced, 3));
    let weakest = held.weakest.as_deref().unwrap();
    assert!(weakest.contains("from any node"), "{weakest}");
    let note = "group a: 2GiB of memory, on nodes 0-1";
    assert!(
        plan.notes.iter().any(|n| n.starts_with(note)),
        "{:?}",
        plan.notes
    );
    assert!(
        !plan.notes.iter().any(|n| n.contains("large pages")),
        "{:?}",
        plan.notes
    );
    // A core partition leaves a group all nodes that are equally near.
    let mems = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Confine { mems, .. } => Some(mems.to_string()),
        _ => None,
    });
    assert_eq!(mems.as_deref(), Some("0-7"));
}

#[test]
fn a_published_map_is_the_weakest_link() {
    let plan = planned(RESERVE, &eight_nodes(MapOrigin::Published));
    let mut weakest = plan
        .promises
        .iter()
        .filter_map(|held| held.weakest.as_deref());
    assert!(
        weakest.any(|w| w.contains("the published map map.txt is believed")),
        "{:?}",
        plan.promises
    );
}

/// Colouring the critical program alone makes it worse: it has fewer banks, and all its neighbours.
#[test]
fn nodes_that_others_may_use_are_refused() {
    let machine = eight_nodes(MapOrigin::Declared);
    let exempt = format!("{RESERVE}[group.c]\nrole='exempt'\nmatch=[{{comm='sshd'}}]\n");
    let why = refused(&exempt, &machine);
    assert!(why.contains("group c is exempt"), "{why}");
    assert!(why.contains("worse off"), "{why}");
    let all = RESERVE.replace("banks=2", "banks=8");
    let why = refused(&all, &machine);
    assert!(
        why.contains("nothing is left for group b and unmatched tasks"),
        "{why}"
    );
    let none = RESERVE.replace("banks=2", "banks='9'");
    let why = refused(&none, &machine);
    assert!(why.contains("9 is not here"), "{why}");
}

#[test]
fn without_a_map_banks_are_refused_with_the_machines_remedy() {
    let mut machine = machine(8, 1);
    machine.mechanisms.insert(
        Mechanism::Banks,
        Availability::No {
            why: "no address map of this machine is known".to_owned(),
            lack: Lack::Machine,
            remedy: Some("declare its map (quell colours map FILE)".to_owned()),
        },
    );
    let why = refused(RESERVE, &machine);
    assert!(
        why.contains("group.a.reserve.banks") && why.contains("no address map"),
        "{why}"
    );
    assert!(why.contains("quell colours map FILE"), "{why}");
}

/// Two nodes of two CPUs each.
fn of_nodes(memory: [u64; 2]) -> Inventory {
    let mut machine = machine(4, 1);
    for cpu in &mut machine.cpus {
        cpu.node = cpu.id / 2;
    }
    machine.nodes = (0..2)
        .map(|id| Node {
            id,
            cpus: [2 * id, 2 * id + 1].into_iter().collect(),
            memory: Bytes(memory[id as usize]),
            near: CpuSet::new(),
        })
        .collect();
    machine
}

fn memory_of(plan: &Plan, group: &str) -> (String, String) {
    let steps = plan.steps.iter();
    let mut own = steps.filter(|step| step.group.as_deref() == Some(group));
    let found = own.find_map(|step| match &step.set {
        Setting::Confine { cpus, mems, .. } => Some((cpus.to_string(), mems.to_string())),
        _ => None,
    });
    found.unwrap()
}

const ONE: &str = "[group.a]\nrole = 'critical'\ncommand = ['a']\ncpus = 1\n";

#[test]
fn memory_that_no_cpu_is_next_to_stays_allowed() {
    let mut machine = of_nodes([8 << 30, 8 << 30]);
    machine.nodes.push(Node {
        id: 2,
        cpus: CpuSet::new(),
        memory: Bytes(64 << 30),
        near: CpuSet::new(),
    });
    let found = memory_of(&planned(ONE, &machine), "a");
    assert_eq!(found, ("3".to_owned(), "1-2".to_owned()));
}

#[test]
fn a_node_without_memory_is_chosen_last_and_gives_none() {
    let found = memory_of(&planned(ONE, &of_nodes([8 << 30, 0])), "a");
    assert_eq!(found, ("1".to_owned(), "0".to_owned()));
    // All CPUs that are left are next to it: memory comes from where it is.
    let two = "[group.a]\nrole = 'critical'\ncommand = ['a']\ncpus = '2-3'\n";
    let found = memory_of(&planned(two, &of_nodes([8 << 30, 0])), "a");
    assert_eq!(found, ("2-3".to_owned(), "0".to_owned()));
}
