//! Colours by a hoard: frames are held first, and the owners' pages are moved into them.

use quell_types::partition::{Colouring, KnownMap, MapOrigin};

use super::boards::with;
use super::*;

/// Eight CPUs and a node of 8 GiB, with eight colours of banks by a map.
fn hoarding() -> Inventory {
    let mut machine = with(machine(8, 1), &[]);
    let regulated = Availability::Yes {
        best: Level::Regulated,
        how: "a hoard".to_owned(),
    };
    machine.mechanisms.insert(Mechanism::Banks, regulated);
    machine.nodes[0].memory = Bytes(8 << 30);
    machine.partitions.banks = Some(Colouring::of_pages([1 << 14, 1 << 15, 1 << 16], 0));
    machine.partitions.hoarded = true;
    machine.partitions.address_map = Some(KnownMap {
        origin: MapOrigin::Published,
        from: "board".to_owned(),
        about: None,
        banks: None,
        sets: None,
        shared: 0,
    });
    machine
}

const RESERVE: &str = "[group.a]\nrole='critical'\ncommand=['x']\ncpus=1\nreserve.banks=2\n\
    [group.b]\nrole='best-effort'\ncommand=['y']\n";

fn colours(plan: &Plan) -> Vec<String> {
    let said = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::Hoard {
            colours,
            limit,
            reserve,
            least,
            ..
        } => Some(format!("hold {colours} {limit:?} {reserve} {least}")),
        Setting::Settle { colours, spill, .. } => {
            let group = step.group.clone().unwrap_or_default();
            Some(format!("settle {group} {colours} {spill}"))
        }
        Setting::Colour { .. } => Some("colour".to_owned()),
        _ => None,
    });
    said.collect()
}

#[test]
fn frames_are_held_before_the_owners_pages_are_moved() {
    let plan = planned(RESERVE, &hoarding());
    assert_eq!(
        colours(&plan),
        ["hold 0-1 None 1GiB 0B", "settle a 0-1 true"]
    );
    let mut held = plan.promises.iter();
    let held = held
        .find(|held| matches!(held.promise, Promise::ReserveColours { .. }))
        .unwrap();
    assert_eq!((held.level, held.held_by.len()), (Level::Regulated, 2));
    let weakest = held.weakest.as_deref().unwrap();
    for part in ["map board is believed", "hold already", "page tables"] {
        assert!(weakest.contains(part), "{weakest}");
    }
    // Two of eight colours of what is not in the reserve.
    let note = "at most 1792MiB of memory in 2 of 8 colours";
    assert!(
        plan.notes.iter().any(|n| n.starts_with(note)),
        "{:?}",
        plan.notes
    );
    // Any program is kept out, exempt ones, too.
    let exempt = format!("{RESERVE}[group.c]\nrole='exempt'\nmatch=[{{comm='sshd'}}]\n");
    let plan = planned(&exempt, &hoarding());
    assert!(
        plan.promises
            .iter()
            .any(|held| held.level == Level::Regulated
                && matches!(held.promise, Promise::ReserveColours { .. }))
    );
}

#[test]
fn two_owners_share_one_hoard() {
    let two = RESERVE.replace(
        "role='best-effort'\ncommand=['y']",
        "role='critical'\ncommand=['y']\ncpus=1\nreserve.banks='7'\ncoloured='fail'",
    );
    let keys = "[hoard]\nlimit='256MiB'\nreserve='2GiB'\npace='1%'\nlongest-stop='500us'\n";
    let plan = planned(&format!("{two}{keys}"), &hoarding());
    assert_eq!(
        colours(&plan),
        [
            "hold 0-1,7 Some(Bytes(268435456)) 2GiB 0B",
            "settle a 0-1 true",
            "settle b 7 false"
        ]
    );
    let paces = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::Settle { pace, longest, .. } => Some((pace.to_string(), longest.to_string())),
        _ => None,
    });
    let pace = ("1%".to_owned(), "500us".to_owned());
    assert_eq!(paces.collect::<Vec<_>>(), [pace.clone(), pace]);
}

#[test]
fn a_hoard_that_is_too_small_is_refused_with_numbers() {
    let mut machine = hoarding();
    machine.means.memory.control = MemoryControl::V2;
    let yes = machine.mechanisms[&Mechanism::CpuMax].clone();
    machine.mechanisms.insert(Mechanism::Memory, yes);
    let needs = |size: &str, keys: &str| {
        let banks = "reserve.banks=2";
        let both = format!("{banks}\nreserve.memory='{size}'");
        RESERVE.replace(banks, &both) + keys
    };
    let why = refused(&needs("2GiB", ""), &machine);
    assert!(
        why.contains("2 of the 8 colours come to 1792MiB") && why.contains("needs 2GiB"),
        "{why}"
    );
    let why = refused(&needs("300MiB", "[hoard]\nlimit='256MiB'\n"), &machine);
    assert!(why.contains("256MiB") && why.contains("300MiB"), "{why}");
    let why = refused(&format!("{RESERVE}[hoard]\nreserve='9GiB'\n"), &machine);
    assert!(why.contains("9GiB of 8GiB are to stay free"), "{why}");
    let all = RESERVE.replace("banks=2", "banks=8");
    let why = refused(&all, &machine);
    assert!(why.contains("nothing is left for group b"), "{why}");
    let denied = format!("{RESERVE}[mechanisms]\ndeny=['banks']\n");
    let why = refused(&denied, &machine);
    assert!(why.contains("the policy denies banks"), "{why}");
}

#[test]
fn banks_and_sets_of_two_groups_are_not_held_together() {
    let mut machine = hoarding();
    let regulated = machine.mechanisms[&Mechanism::Banks].clone();
    machine.mechanisms.insert(Mechanism::Sets, regulated);
    machine.partitions.sets = Some(Colouring::of_pages([1 << 17, 1 << 18], 0));
    let policy = RESERVE.replace(
        "role='best-effort'\ncommand=['y']",
        "role='critical'\ncommand=['y']\ncpus=1\nreserve.cache={ colours='0' }",
    );
    let why = refused(&policy, &machine);
    for part in ["one hoard holds frames at a time", "group.a.reserve.banks"] {
        assert!(why.contains(part), "{why}");
    }
}

/// A program with few colours that keeps its neighbours is worse off than with all of them
/// (experiment `colours`, configuration `naive`).
#[test]
fn colours_that_a_neighbour_has_too_are_refused() {
    let policy = |a: &str, b: &str| {
        let own = format!("command=['y']\nreserve.banks={b}");
        let policy = RESERVE.replace("command=['y']", &own);
        policy.replace("banks=2", &format!("banks={a}"))
    };
    let why = refused(&policy("'0-1'", "'0-3'"), &hoarding());
    assert!(why.contains("has level none here"), "{why}");
    let worth = |a: &str, b: &str| {
        let policy = policy(&format!("'{a}'"), &format!("'{b}'"));
        let plan = planned(&format!("require='none'\n{policy}"), &hoarding());
        let all = plan.promises.into_iter();
        let all = all.filter(|held| matches!(held.promise, Promise::ReserveColours { .. }));
        let worth = all.map(|held| (held.level, held.weakest.unwrap_or_default()));
        worth.collect::<Vec<_>>()
    };
    let both = worth("0-1", "0-3");
    assert_eq!(both[0].0, Level::None);
    let why = "group b may use these colours of DRAM banks and more of them";
    assert!(both[0].1.starts_with(why), "{}", both[0].1);
    // What b shares with a is a's whole part.
    assert_eq!(both[1].0, Level::Regulated);
    for (a, b) in [("0-1", "0-1"), ("0-1", "2-3")] {
        let levels = worth(a, b).into_iter().map(|(level, _)| level);
        assert_eq!(levels.collect::<Vec<_>>(), [Level::Regulated; 2]);
    }
    // Colours that the planner chooses are never shared.
    for (a, b) in [(1, 1), (2, 5), (3, 4), (4, 3)] {
        let plan = planned(&policy(&a.to_string(), &b.to_string()), &hoarding());
        let parts = plan.steps.iter().filter_map(|step| match &step.set {
            Setting::Settle { colours, .. } => Some(colours.clone()),
            _ => None,
        });
        let parts: Vec<_> = parts.collect();
        assert_eq!(parts.len(), 2);
        assert!(parts[0].intersection(&parts[1]).is_empty(), "{parts:?}");
    }
}

/// Steps that move pages out of reserved colours.
fn vacated(plan: &Plan) -> Vec<String> {
    let said = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::Vacate {
            colours,
            pace,
            longest,
            ..
        } => Some(format!(
            "{:?} {colours} {pace} {longest}",
            step.group.as_deref()
        )),
        _ => None,
    });
    said.collect()
}

#[test]
fn best_effort_groups_leave_reserved_colours_if_allowed() {
    assert_eq!(vacated(&planned(RESERVE, &hoarding())), [""; 0]);
    let keys = "[hoard]\nmove='groups'\npace='1%'\nlongest-stop='500us'\n";
    let others = "[group.c]\nrole='exempt'\nmatch=[{comm='sshd'}]\n\
        [group.d]\nrole='critical'\ncommand=['z']\ncpus=1\n\
        [group.e]\nrole='best-effort'\ncommand=['w']\nreserve.banks='7'\n";
    let plan = planned(&format!("{RESERVE}{others}{keys}"), &hoarding());
    assert_eq!(vacated(&plan), ["Some(\"b\") 2-6 1% 500us"]);
    let cost =
        "group b: each of its processes is stopped for at most 1% of the time, about 500us each";
    assert!(
        plan.notes.iter().any(|n| n.starts_with(cost)),
        "{:?}",
        plan.notes
    );
    // No promise rests on it.
    let step = plan
        .steps
        .iter()
        .find(|s| matches!(s.set, Setting::Vacate { .. }));
    let step = step.unwrap().id;
    assert!(
        plan.promises
            .iter()
            .all(|held| !held.held_by.contains(&step))
    );
    let alone = "[group.a]\nrole='critical'\ncommand=['x']\ncpus=1\nreserve.banks=2\n";
    let plan = planned(&format!("{alone}{keys}"), &hoarding());
    assert_eq!(vacated(&plan), [""; 0]);
    let note = "hoard.move changes nothing";
    assert!(
        plan.notes.iter().any(|n| n.starts_with(note)),
        "{:?}",
        plan.notes
    );
}

#[test]
fn large_pages_of_a_group_that_leaves_colours_are_refused() {
    let pages = "command=['y']\npaging.pages='2MiB'";
    let policy = RESERVE.replace("command=['y']", pages);
    let mut machine = hoarding();
    let yes = machine.mechanisms[&Mechanism::CpuMax].clone();
    machine.mechanisms.insert(Mechanism::Paging, yes);
    machine.means.memory.large_pages = Ok(Bytes(2 << 20));
    planned(&policy, &machine);
    let why = refused(&format!("{policy}[hoard]\nmove='groups'\n"), &machine);
    assert!(why.contains("group.b.paging"), "{why}");
}
