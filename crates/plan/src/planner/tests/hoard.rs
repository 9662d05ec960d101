//! Colours by a hoard: frames are held first, and the owners' pages are moved into them.

use proptest::prelude::*;
use quell_types::cpuset::CpuSet;
use quell_types::partition::{Colouring, KnownMap, MapOrigin, Mask};

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
fn a_group_that_is_not_locked_is_said_to_drift() {
    let mut machine = hoarding();
    let yes = Availability::Yes {
        best: Level::Enforced,
        how: "mlockall".to_owned(),
    };
    machine.mechanisms.insert(Mechanism::Paging, yes);
    machine.means.memory.hold = Ok(());
    let drifts = |before: &str, after: &str| {
        let plan = planned(&format!("{before}{RESERVE}{after}"), &machine);
        let says = |note: &&String| note.contains("group.a.paging.locked = true");
        plan.notes.iter().filter(says).count()
    };
    assert_eq!(drifts("", ""), 1);
    assert_eq!(drifts("", "[group.a.paging]\nlocked=true\n"), 0);
    // Without a hoard there is no promise that could drift.
    assert_eq!(drifts("require='none'\n", "[hoard]\nlimit='0B'\n"), 0);
}

/// As [`hoarding`], with four colours of sets that share no address bit with the banks.
fn both_kinds() -> Inventory {
    let mut machine = hoarding();
    let regulated = machine.mechanisms[&Mechanism::Banks].clone();
    machine.mechanisms.insert(Mechanism::Sets, regulated);
    machine.partitions.sets = Some(Colouring::of_pages([1 << 17, 1 << 18], 0));
    machine
}

/// Groups a and b are critical with these reserves. Group c is a neighbour.
fn reserving(a: &str, b: &str) -> String {
    let group = |name: &str, reserves: &str| {
        format!("[group.{name}]\nrole='critical'\ncommand=['x']\ncpus=1\n{reserves}\n")
    };
    let neighbour = "[group.c]\nrole='best-effort'\ncommand=['y']\n";
    group("a", a) + &group("b", b) + neighbour
}

#[test]
fn sets_and_banks_of_two_groups_are_held_by_one_hoard() {
    let policy = reserving("reserve.banks=2", "reserve.cache={ colours='0' }");
    let plan = planned(&policy, &both_kinds());
    // Sets are the two lower bits of a combined colour. Group a has banks 0 and 1 and what sets are
    // left, group b has set 0 and what banks are left.
    assert_eq!(
        colours(&plan),
        [
            "hold 0-8,12,16,20,24,28 None 1GiB 0B",
            "settle a 1-3,5-7 true",
            "settle b 8,12,16,20,24,28 true"
        ]
    );
    let functions = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Hoard { colouring, .. } => Some(colouring.functions.clone()),
        _ => None,
    });
    assert_eq!(
        functions.unwrap(),
        [17, 18, 14, 15, 16].map(|bit| Mask(1 << bit))
    );
    // Each of 32 colours has 224 MiB of what is not in the reserve.
    for note in [
        "at most 3136MiB of memory in 14 of 32 colours",
        "group a: 1-3 of the colours of cache sets and 0-1 of the colours of DRAM banks are 6 of 32 \
        combined colours, at most 1344MiB",
        "of what is held, at most 448MiB in 2 combined colours no program can use",
    ] {
        let mut notes = plan.notes.iter();
        assert!(notes.any(|n| n.starts_with(note)), "{:#?}", plan.notes);
    }
    let held = |name: &str| {
        let promises = plan.promises.iter();
        let held: Vec<&Held> = promises
            .filter(|held| matches!(held.promise, Promise::ReserveColours { .. }))
            .filter(|held| held.group == name)
            .collect();
        assert_eq!(held.len(), 1);
        (
            held[0].level,
            held[0].held_by.clone(),
            held[0].promise.clone(),
        )
    };
    let steps = plan.steps.iter();
    let steps = steps.filter(|s| matches!(s.set, Setting::Hoard { .. } | Setting::Settle { .. }));
    let steps: Vec<&Step> = steps.collect();
    for step in &steps {
        assert_eq!(step.mechanisms(), [Mechanism::Sets, Mechanism::Banks]);
    }
    let [hoard, of_a, of_b] = [0, 1, 2].map(|i| steps[i].id);
    // What group b's pages have does not change what group a is promised.
    let (level, by, promise) = held("a");
    assert_eq!((level, by), (Level::Regulated, vec![hoard, of_a]));
    assert!(
        promise
            .to_string()
            .contains("colours 0-1 of the 8 of DRAM banks"),
        "{promise}"
    );
    let (level, by, promise) = held("b");
    assert_eq!((level, by), (Level::Regulated, vec![hoard, of_b]));
    assert!(
        promise
            .to_string()
            .contains("colour 0 of the 4 of cache sets"),
        "{promise}"
    );
    let because = &steps[2].because;
    assert!(
        because.ends_with("; of the colours of DRAM banks it has those that no group reserves"),
        "{because}"
    );
}

#[test]
fn a_group_with_sets_and_banks_has_what_is_in_both() {
    let both = "reserve.cache={ colours='0-1' }\nreserve.banks='4-5'\ncoloured='fail'";
    let plan = planned(&reserving(both, ""), &both_kinds());
    assert_eq!(
        colours(&plan),
        [
            "hold 0-1,4-5,8-9,12-13,16-25,28-29 None 1GiB 0B",
            "settle a 16-17,20-21 false"
        ]
    );
    // Two promises, of both kinds, and 16 of 20 held colours that no program can use.
    let promises = plan.promises.iter();
    let promises = promises.filter(|held| matches!(held.promise, Promise::ReserveColours { .. }));
    let levels = promises.map(|held| (held.level, held.held_by.len()));
    assert_eq!(levels.collect::<Vec<_>>(), [(Level::Regulated, 2); 2]);
    let unused = "at most 3584MiB in 16 combined colours no program can use";
    assert!(
        plan.notes.iter().any(|note| note.contains(unused)),
        "{:#?}",
        plan.notes
    );
    let large = both.replace("coloured='fail'", "paging.pages='2MiB'");
    let mut machine = both_kinds();
    machine.means.memory.large_pages = Ok(Bytes(2 << 20));
    let yes = machine.mechanisms[&Mechanism::CpuMax].clone();
    machine.mechanisms.insert(Mechanism::Paging, yes);
    let why = refused(&reserving(&large, ""), &machine);
    assert!(why.contains("1 of the 32 colours"), "{why}");
}

#[test]
fn each_owner_of_combined_colours_gets_its_memory() {
    let mut machine = both_kinds();
    machine.means.memory.control = MemoryControl::V2;
    let yes = machine.mechanisms[&Mechanism::CpuMax].clone();
    machine.mechanisms.insert(Mechanism::Memory, yes);
    machine.means.memory.immunity = Ok(());
    let policy = |a: &str, b: &str, keys: &str| {
        let a = format!("reserve.banks=2\nreserve.memory='{a}'");
        let b = format!("reserve.cache={{ colours='0' }}\nreserve.memory='{b}'");
        reserving(&a, &b) + keys
    };
    // Six of fourteen held colours are 448 MiB for group a: so much that 1046 MiB have to be held.
    let plan = planned(&policy("448MiB", "1MiB", ""), &machine);
    let least = (448u64 << 20) * 14;
    assert!(
        colours(&plan)[0].ends_with(&Bytes(least.div_ceil(6)).to_string()),
        "{:?}",
        colours(&plan)
    );
    // The other group's memory does not count, however much the hoard could hold.
    let why = refused(&policy("1MiB", "1345MiB", ""), &machine);
    let part = "6 of the 32 colours come to 1344MiB outside of the reserve and within the limit, and \
        group b needs 1345MiB";
    assert!(why.contains(part), "{why}");
    let limit = "[hoard]\nlimit='140MiB'\n";
    let why = refused(&policy("61MiB", "1MiB", limit), &machine);
    for part in [
        "come to 60MiB",
        "group a needs 61MiB",
        "reserve more colours",
    ] {
        assert!(why.contains(part), "{why}");
    }
    planned(&policy("60MiB", "60MiB", limit), &machine);
    // Groups with the same colours share them.
    let same = |size: &str| format!("reserve.banks='0-1'\nreserve.memory='{size}'");
    let why = refused(&reserving(&same("1GiB"), &same("1GiB")), &machine);
    assert!(why.contains("groups a and b need 2GiB"), "{why}");
    planned(&reserving(&same("512MiB"), &same("1GiB")), &machine);
}

#[test]
fn sets_and_banks_that_no_hoard_can_combine_are_refused() {
    let policy = reserving("reserve.banks=2", "reserve.cache={ colours='0' }");
    // They share a bit, and the inventory has no joint colours.
    let mut machine = both_kinds();
    machine.partitions.sets = Some(Colouring::of_pages([1 << 16, 1 << 18], 0));
    let why = refused(&policy, &machine);
    for part in [
        "share address bits",
        "leave out reserve.banks",
        "leave out reserve.cache",
    ] {
        assert!(why.contains(part), "{why}");
    }
    // With joint colours they are one kind.
    machine.partitions.joint = Some(Colouring::of_pages([1 << 16], 0));
    let one = policy.replace("reserve.banks=2\n", "");
    let plan = planned(
        &one.replace(
            "cache={ colours='0' }",
            "banks='0'\nreserve.cache={ colours='0' }",
        ),
        &machine,
    );
    assert_eq!(colours(&plan), ["hold 0 None 1GiB 0B", "settle b 0 true"]);
    let mut machine = both_kinds();
    machine.partitions.sets = Some(Colouring::of_pages((20..31).map(|bit| 1 << bit), 0));
    let why = refused(&policy, &machine);
    assert!(
        why.contains("2048 colours of cache sets and 8 of DRAM banks make more combined colours than the 8192"),
        "{why}"
    );
}

/// Of each set colour and each bank colour, which group has it: 3 is none.
fn owners() -> impl Strategy<Value = (Vec<u32>, Vec<u32>, u64)> {
    let all = |most: usize| proptest::collection::vec(0u32..4, most);
    (all(3), all(7), any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against each frame of a small memory, by functions that share no code with the planner.
    #[test]
    fn a_frame_is_held_if_its_set_or_its_bank_is_reserved((sets, banks, seed) in owners()) {
        let mut random = quell_types::rng::SplitMix::new(seed);
        // Each function has a bit that no other has, and any of seven more.
        let mut masks = [0u64; 5];
        for (mask, own) in masks.iter_mut().zip(12..) {
            *mask = 1 << own | random.below(128) << 17;
        }
        let mut machine = both_kinds();
        machine.partitions.sets = Some(Colouring::of_pages(masks[..2].iter().copied(), 0));
        machine.partitions.banks = Some(Colouring::of_pages(masks[2..].iter().copied(), 0));
        let list = |all: &[u32], group| {
            let own = (0..).zip(all).filter(|(_, owner)| **owner == group);
            own.map(|(colour, _)| colour).collect::<CpuSet>()
        };
        let mut policy = "require='none'\n".to_owned();
        for group in 0..3 {
            policy += &format!("[group.g{group}]\nrole='critical'\ncommand=['x']\ncpus='any'\n");
            let (own, of) = (list(&sets, group), list(&banks, group));
            if !own.is_empty() {
                policy += &format!("reserve.cache={{ colours='{own}' }}\n");
            }
            if !of.is_empty() {
                policy += &format!("reserve.banks='{of}'\n");
            }
        }
        prop_assume!(sets.iter().chain(&banks).any(|owner| *owner < 3));
        let plan = planned(&policy, &machine);
        let odd = |address: u64, mask: u64| u32::from((address & mask).count_ones() % 2 == 1);
        let number = |address: u64, masks: &[u64]| {
            (0..).zip(masks).map(|(bit, mask)| odd(address, *mask) << bit).sum::<u32>()
        };
        // No colour beyond the lists is reserved: the last of each kind is left.
        let owner = |all: &[u32], colour: u32| all.get(colour as usize).copied().unwrap_or(3);
        for frame in 0..1u64 << 12 {
            let address = frame << 12;
            let set = owner(&sets, number(address, &masks[..2]));
            let bank = owner(&banks, number(address, &masks[2..]));
            for step in &plan.steps {
                let (colouring, colours, right) = match &step.set {
                    Setting::Hoard { colouring, colours, .. } => (colouring, colours, set < 3 || bank < 3),
                    Setting::Settle { colouring, colours, .. } => {
                        let group = step.group.as_ref().unwrap()[1..].parse::<u32>().unwrap();
                        // What is left, where it reserves none of that kind.
                        let part = |all: &[u32], owner: u32| match all.contains(&group) {
                            true => owner == group,
                            false => owner == 3,
                        };
                        (colouring, colours, part(&sets, set) && part(&banks, bank))
                    }
                    _ => continue,
                };
                let functions: Vec<u64> = colouring.functions.iter().map(|mask| mask.0).collect();
                let colour = number(address, &functions);
                prop_assert_eq!(colours.contains(colour), right, "frame {} {:?}", frame, step.set);
            }
        }
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

/// `hoard.limit` of 0: each group gets its colours, and any program gets them, too.
#[test]
fn without_a_hoard_groups_get_their_colours_and_no_promise() {
    let nothing = "[hoard]\nlimit='0B'\nreserve='2GiB'\n";
    let plan = planned(&format!("require='none'\n{RESERVE}{nothing}"), &hoarding());
    assert_eq!(colours(&plan), ["settle a 0-1 true"]);
    let unheld = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Settle { unheld, .. } => *unheld,
        _ => None,
    });
    assert_eq!(unheld, Some(Bytes(2 << 30)));
    let promises = plan.promises.iter();
    let held = promises.filter(|held| matches!(held.promise, Promise::ReserveColours { .. }));
    let held: Vec<&Held> = held.collect();
    assert_eq!((held.len(), held[0].level), (1, Level::None));
    let says = |text: &str| text.contains("no frames are held");
    assert!(says(held[0].weakest.as_deref().unwrap()), "{held:?}");
    assert!(plan.notes.iter().any(|note| says(note)), "{:?}", plan.notes);

    // A neighbour that may use all colours has no step. Nothing need be left for other programs.
    let all = RESERVE.replace("command=['y']", "command=['y']\nreserve.banks='0-7'");
    let all = all.replace("banks=2", "banks='0-1'");
    let plan = planned(&format!("require='none'\n{all}{nothing}"), &hoarding());
    assert_eq!(colours(&plan), ["settle a 0-1 true"]);
    let levels = plan.promises.iter();
    let levels = levels.filter(|held| matches!(held.promise, Promise::ReserveColours { .. }));
    let levels: Vec<Level> = levels.map(|held| held.level).collect();
    assert_eq!(levels, [Level::None; 2]);

    // Of what it does not reserve itself, a group has all.
    let both = reserving("reserve.banks='0-1'", "reserve.cache={ colours='0' }");
    let plan = planned(&format!("require='none'\n{both}{nothing}"), &both_kinds());
    assert_eq!(
        colours(&plan),
        ["settle a 0-7 true", "settle b 0,4,8,12,16,20,24,28 true"]
    );
}

#[test]
fn what_needs_a_hoard_is_refused_without_one() {
    let move_away = "require='none'\n[hoard]\nlimit='0B'\nmove='groups'\n";
    let why = refused(&format!("{move_away}{RESERVE}"), &hoarding());
    assert!(why.contains("would come back"), "{why}");
    // Without hoard.limit the same policy has a hoard, whatever it requires.
    let plan = planned(&format!("require='none'\n{RESERVE}"), &hoarding());
    assert_eq!(
        colours(&plan),
        ["hold 0-1 None 1GiB 0B", "settle a 0-1 true"]
    );
    // Where all colours are reserved, nothing is left for other programs.
    let all = RESERVE.replace("command=['y']", "command=['y']\nreserve.banks='0-7'");
    let all = all.replace("banks=2", "banks='0-1'");
    let why = refused(&format!("require='none'\n{all}"), &hoarding());
    assert!(why.contains("nothing is left"), "{why}");
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
