//! Parts of caches and banks, on machines that divide them in different ways.

use quell_types::partition::Mask;

use super::boards::{apollolake, icelake_sp, p4080, simulated, xeon_w3530};
use super::*;

/// Groups of one CPU each, critical, with these further lines.
fn cores(groups: &[(&str, &str)]) -> String {
    let one = |(name, keys): &(&str, &str)| {
        format!("[group.{name}]\nrole='critical'\ncommand=['x']\ncpus=1\n{keys}\n")
    };
    groups.iter().map(one).collect()
}

/// `group: ways mask` or `group: kind colours[, …]`, in order.
fn parts(plan: &Plan) -> Vec<String> {
    let told = plan.steps.iter().filter_map(|step| {
        let what = match &step.set {
            Setting::Ways { level, mask, .. } => format!("L{level} {mask}"),
            Setting::Lock { level, mask, size } => format!("lock {size} L{level} {mask}"),
            Setting::Colour { choices, .. } => {
                let each = choices
                    .iter()
                    .map(|c| format!("{:?} {}", c.divides, c.colours));
                each.collect::<Vec<_>>().join(", ")
            }
            _ => return None,
        };
        Some(format!("{}: {what}", step.group.as_deref().unwrap_or("-")))
    });
    told.collect()
}

fn part_of<'a>(plan: &'a Plan, group: &str) -> &'a Held {
    let mut held = plan
        .promises
        .iter()
        .filter(|p| !matches!(p.promise, Promise::Cpus { .. }));
    held.find(|p| p.group == group)
        .unwrap_or_else(|| panic!("{:?}", plan.promises))
}

/// Kernel work on the group's own CPUs fills its ways. A group that shares CPUs has none.
#[test]
fn cpus_of_a_groups_own_are_in_its_class() {
    let given = |policy: &str, machine: &Inventory| {
        let plan = planned(policy, machine);
        plan.steps.into_iter().find_map(|step| match step.set {
            Setting::WaysCpus { cpus } => Some((step.group.unwrap(), cpus.to_string())),
            _ => None,
        })
    };
    let own = PAIR.replace("cpus = 1\n", "cpus = 1\nreserve.cache = { ways = 2 }\n");
    let mut kernel = icelake_sp();
    kernel.means.movable_irqs = 0;
    kernel.means.fixed_irqs = 0;
    assert_eq!(given(&own, &kernel), None, "no kernel works there");
    kernel.means.fixed_irqs = 1;
    let (group, cpus) = given(&own, &kernel).unwrap();
    assert_eq!(
        (group.as_str(), cpus.parse::<CpuSet>().unwrap().len()),
        ("victim", 1)
    );
    let shared = own.replace("cpus = 1\nreserve", "cpus = \"any\"\nreserve");
    assert_eq!(given(&shared, &kernel), None);
    assert_eq!(given(PAIR, &kernel), None);
}

#[test]
fn banks_of_four_cores() {
    let text = cores(&[
        ("core1", "reserve.banks='0-3'"),
        ("core2", "reserve.banks='4-7'"),
        ("core3", "reserve.banks='8-11'"),
        ("core4", "reserve.banks='12-15'"),
    ]);
    let plan = planned(&text, &p4080());
    assert_eq!(
        parts(&plan),
        [
            "core1: Banks 0-3",
            "core2: Banks 4-7",
            "core3: Banks 8-11",
            "core4: Banks 12-15"
        ]
    );
    let held = part_of(&plan, "core1");
    assert_eq!(
        held.promise.to_string(),
        "colours 0-3 of the 16 of DRAM banks to itself"
    );
    assert_eq!(held.level, Level::Enforced);
    assert_eq!(held.held_by.len(), 4, "everybody keeps out");
    assert!(told(&plan, "no task runs on a simulated machine"));
    assert!(
        told(&plan, "large pages have 1 of the 16 colours of DRAM banks"),
        "{:?}",
        plan.notes
    );
    // On a real machine there are always other tasks.
    let mut real = p4080();
    real.simulated = None;
    let text = refused(&text, &real);
    assert!(
        text.contains("take 16 of the 16 colours of DRAM banks")
            && text.contains("nothing is left for unmatched tasks"),
        "{text}"
    );
}

#[test]
fn banks_and_sets_that_share_no_bits_are_two_choices() {
    let group = |banks: &str, colours: &str| {
        format!("reserve.banks='{banks}'\nreserve.cache={{ colours='{colours}' }}")
    };
    let plan = planned(
        &cores(&[
            ("core1", &group("0-3", "0")),
            ("core2", &group("4-7", "1")),
            ("core3", &group("8-11", "2")),
            ("core4", &group("12-15", "3")),
        ]),
        &p4080(),
    );
    assert_eq!(parts(&plan)[1], "core2: Banks 4-7, Sets 1");
    let mechanisms = plan.steps.iter().flat_map(Step::mechanisms);
    let mechanisms: std::collections::BTreeSet<Mechanism> = mechanisms.collect();
    assert!(mechanisms.contains(&Mechanism::Sets) && mechanisms.contains(&Mechanism::Banks));
    assert_eq!(plan.level(), Level::Enforced);
}

#[test]
fn a_regulated_group_next_to_parts_is_an_estimate_as_its_meter() {
    let keys = |banks: &str| {
        format!("reserve.banks='{banks}'\nlimit.bandwidth='2GB/s'\nallow=['throttle']")
    };
    let text = cores(&[("core1", &keys("0-3")), ("core2", &keys("4-7"))]);
    let plan = planned(&text, &p4080());
    let kinds = |m| plan.steps.iter().filter(|s| s.mechanism == m).count();
    assert_eq!(
        (kinds(Mechanism::Banks), kinds(Mechanism::Bandwidth)),
        (3, 2)
    );
    assert_eq!(parts(&plan)[2], "rest: Banks 8-15");
    assert_eq!(plan.level(), Level::Regulated);
}

#[test]
fn eight_cores_share_four_set_partitions_by_name() {
    let mut text = cores(&[
        ("core1", "reserve.cache={ colours='0' }\nreserve.banks=2"),
        ("core2", "reserve.cache={ colours='1' }\nreserve.banks=2"),
    ]);
    for core in 3..=7 {
        text += &cores(&[(
            &format!("core{core}"),
            "reserve.cache={ colours='2-3' }\nreserve.banks=2",
        )]);
    }
    text += "[group.core8]\nrole='best-effort'\ncommand=['x']\nreserve.cache={ colours='2-3' }\nreserve.banks=2\n";
    let plan = planned(&text, &p4080());
    assert_eq!(parts(&plan)[0], "core1: Banks 0-1, Sets 0");
    assert_eq!(parts(&plan)[7], "core8: Banks 14-15, Sets 2-3");
    let sets = plan
        .promises
        .iter()
        .find(|p| p.group == "core3" && p.promise.to_string().contains("cache sets"));
    assert_eq!(
        sets.unwrap().promise.to_string(),
        "colours 2-3 of the 4 of cache sets shared with core4, core5, core6, core7, core8"
    );
}

#[test]
fn ways_with_holes_and_without() {
    let text = cores(&[
        ("core1", "reserve.cache={ ways=8 }"),
        ("core2", "reserve.cache={ ways=8 }"),
        ("core3", "reserve.cache={ ways=8 }"),
        ("core4", "reserve.cache={ ways=8 }"),
    ]);
    let plan = planned(&text, &p4080());
    assert_eq!(parts(&plan)[3], "core4: L3 0xff000000");
    assert_eq!(part_of(&plan, "core4").level, Level::Enforced);
    let hole = cores(&[("a", "reserve.cache={ mask='0x5' }")]);
    assert_eq!(
        parts(&planned(&hole, &p4080())),
        ["a: L3 0x5", "rest: L3 0xfffffffa"]
    );
    let text = refused(&hole, &apollolake());
    assert!(text.contains("the mask 0x5 has holes"), "{text}");
}

#[test]
fn ways_exclude_colours_where_the_machine_says_so() {
    let text = refused(
        &cores(&[
            ("a", "reserve.cache={ ways=8 }"),
            ("b", "reserve.banks='0-3'"),
        ]),
        &p4080(),
    );
    assert!(
        text.contains("group.a.reserve.cache: ways and banks (here and in group.b.reserve.banks)")
            && text.contains("each core's memory must be sequential")
            && text.contains("{ colours"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    // The policy names no mechanism: one that goes with banks is taken, and a note says so.
    let plan = planned(
        &cores(&[
            ("a", "reserve.cache='25%'\nreserve.banks='0-3'"),
            ("b", "reserve.banks='4-7'"),
        ]),
        &p4080(),
    );
    assert_eq!(
        parts(&plan),
        [
            "a: Banks 0-3, Sets 0",
            "b: Banks 4-7, Sets 1-3",
            "rest: Banks 8-15, Sets 1-3"
        ]
    );
    assert!(
        told(&plan, "are given as sets: ways and banks"),
        "{:?}",
        plan.notes
    );
    // Alone, it is ways: the cheapest.
    let plan = planned(&cores(&[("a", "reserve.cache='25%'")]), &p4080());
    assert_eq!(parts(&plan)[0], "a: L3 0xff");
    assert!(told(
        &plan,
        "25% comes to 8 of the 32 ways of L3, 64KiB each"
    ));
}

const CALL: [&str; 3] = ["webrtc", "xserver", "corun"];

fn call(keys: [&str; 3]) -> String {
    let roles = ["'critical'\ncpus=1", "'critical'\ncpus=1", "'best-effort'"];
    let group = |i: usize| {
        format!(
            "[group.{}]\nrole={}\ncommand=['x']\n{}\n",
            CALL[i], roles[i], keys[i]
        )
    };
    (0..3).map(group).collect()
}

#[test]
fn bank_colours_that_spare_shared_bits_leave_the_cache_whole() {
    let banks = [
        "reserve.banks='0-3'",
        "reserve.banks='4-7'",
        "reserve.banks='8-15'",
    ];
    let plan = planned(&call(banks), &xeon_w3530());
    assert_eq!(parts(&plan)[2], "corun: Banks 8-15");
    assert!(!told(&plan, "parts of"), "{:?}", plan.notes);
    // Colour bits 0 and 1 are the cache's, too.
    let banks = ["reserve.banks='0,4,8'", "reserve.banks='1'", ""];
    let plan = planned(&call(banks), &xeon_w3530());
    assert!(
        told(
            &plan,
            "webrtc: colours of DRAM banks 0,4,8 leave 1 of 4 parts of the last-level cache's sets"
        ),
        "{:?}",
        plan.notes
    );
}

#[test]
fn sets_and_banks_that_share_bits_are_one_partition() {
    let joint =
        |list: &str| format!("reserve.cache={{ colours='{list}' }}\nreserve.banks='{list}'");
    let keys = [joint("0"), joint("1"), joint("2-3")];
    let plan = planned(&call([&keys[0], &keys[1], &keys[2]]), &xeon_w3530());
    assert_eq!(
        parts(&plan),
        ["webrtc: Joint 0", "xserver: Joint 1", "corun: Joint 2-3"]
    );
    assert_eq!(
        part_of(&plan, "corun").promise.to_string(),
        "colours 2-3 of the 4 of cache sets and DRAM banks together to itself"
    );
    assert!(
        told(
            &plan,
            "share 2 address bits: divided together they come to 4 joint colours, instead of 16 colours of banks and 16 of sets"
        ),
        "{:?}",
        plan.notes
    );
    // A share of the cache and private banks are one part, too. What is left is for all other
    // tasks.
    let keys = ["reserve.cache='25%'\nreserve.banks='private'", "", ""];
    let plan = planned(&call(keys), &xeon_w3530());
    assert_eq!(
        parts(&plan),
        [
            "webrtc: Joint 0",
            "xserver: Joint 1-3",
            "corun: Joint 1-3",
            "rest: Joint 1-3"
        ]
    );
    let keys = ["reserve.cache={ colours='0' }\nreserve.banks='1'", "", ""];
    let text = refused(&call(keys), &xeon_w3530());
    assert!(text.contains("write the same list twice"), "{text}");
    let keys = [
        "reserve.cache={ colours='0' }\nreserve.banks='0-3'",
        "reserve.banks='4-7'",
        "",
    ];
    let text = refused(&call(keys), &xeon_w3530());
    assert!(
        text.contains("4-7 are not here: there are 4 colours"),
        "{text}"
    );
}

fn segment(cache: &str) -> String {
    format!(
        "[group.rta]\nrole='critical'\ncommand=['x']\ncpus='0'\nreserve.cache={cache}\n\
         [group.neighbour]\nrole='best-effort'\ncommand=['y']\ncpus='1'\n"
    )
}

#[test]
fn segments_of_a_cache_for_one_task() {
    let plan = planned(&segment("{ ways=1 }"), &apollolake());
    assert_eq!(
        parts(&plan),
        ["rta: L2 0x1", "neighbour: L2 0xfe", "rest: L2 0xfe"]
    );
    assert!(
        told(&plan, "there are 2 caches of L2 (CPUs 0-1 | 2-3)"),
        "{:?}",
        plan.notes
    );
    let plan = planned(&segment("{ ways=4 }"), &apollolake());
    assert_eq!(parts(&plan)[1], "neighbour: L2 0xf0");
    let plan = planned(&segment("'200KiB'"), &apollolake());
    assert_eq!(parts(&plan)[0], "rta: L2 0x3");
    assert!(told(
        &plan,
        "200KiB comes to 2 of the 8 ways of L2, 128KiB each"
    ));
}

#[test]
fn locked_memory_takes_ways_from_everybody() {
    let plan = planned(&segment("{ locked='128KiB' }"), &apollolake());
    assert_eq!(
        parts(&plan),
        [
            "rta: L2 0x7f",
            "neighbour: L2 0x7f",
            "rest: L2 0x7f",
            "rta: lock 128KiB L2 0x80"
        ]
    );
    let held = part_of(&plan, "rta");
    assert_eq!((held.level, held.held_by.len()), (Level::Enforced, 4));
    assert_eq!(held.promise.to_string(), "128KiB locked in L2");
    assert_eq!(held.weakest, None);
    // A kernel that says so is not trusted before it was tried.
    let mut said = apollolake();
    let (best, how) = (Level::Estimated, String::new());
    let offered = Availability::Yes { best, how };
    said.mechanisms.insert(Mechanism::PseudoLock, offered);
    let plan = planned(&segment("{ locked='128KiB' }"), &said);
    let held = part_of(&plan, "rta");
    assert_eq!(held.level, Level::Estimated);
    let weakest = held.weakest.as_deref().unwrap();
    assert!(weakest.contains("once it has locked"), "{weakest}");
    let text = refused(&segment("{ locked='1MiB' }"), &apollolake());
    assert!(text.contains("take 8 of the 8 ways of L2"), "{text}");
    let text = refused(&segment("{ locked='128KiB', level='L3' }"), &apollolake());
    assert!(
        text.contains("locked in L2 on this machine, not in L3"),
        "{text}"
    );
    // Where nothing can be locked, ways of that size are the next best.
    let text = refused(&segment("{ locked='1500KiB' }"), &icelake_sp());
    assert!(text.contains("{ ways = 2, level = \"L3\" }"), "{text}");
    // The kernel locks one region in a cache, and a simulated machine any number.
    let two = segment("{ locked='128KiB' }") + "reserve.cache={ locked='128KiB' }\n";
    let text = refused(&two, &apollolake());
    assert!(
        text.contains("that of CPUs 0-1 has the one of group rta"),
        "{text}"
    );
    let apart = two.replace("cpus='1'", "cpus='2'");
    assert_eq!(parts(&planned(&apart, &apollolake())).len(), 5);
    assert_eq!(parts(&planned(&two, &simulated(apollolake()))).len(), 5);
    // One cache holds it.
    let wide = segment("{ locked='128KiB' }").replace("cpus='0'", "cpus='0,2'");
    let text = refused(&wide, &apollolake());
    assert!(text.contains("give the group CPUs of one cache"), "{text}");
}

#[test]
fn more_classes_than_the_hardware_has_are_refused() {
    let mut machine = apollolake();
    machine.caches.truncate(1);
    machine.caches[0].cpus = machine.cpu_set();
    let one = |n: usize| (format!("g{n}"), "reserve.cache={ ways=1 }");
    let groups: Vec<(String, &str)> = (0..4).map(one).collect();
    let groups: Vec<(&str, &str)> = groups.iter().map(|(n, k)| (n.as_str(), *k)).collect();
    assert_eq!(parts(&planned(&cores(&groups[..3]), &machine)).len(), 4);
    let four = cores(&groups).replacen("role='critical'", "role='best-effort'", 1);
    let text = refused(&four, &machine);
    assert!(
        text.contains("5 classes of service") && text.contains("has 4"),
        "{text}"
    );
}

#[test]
fn more_than_there_is_is_refused_with_the_numbers() {
    let text = refused(
        &cores(&[("a", "reserve.banks=12"), ("b", "reserve.banks=8")]),
        &p4080(),
    );
    assert!(
        text.contains("group.b.reserve.banks: it takes 8 of the 16 colours of DRAM banks, and 4 are left (others: a 12)"),
        "{text}"
    );
    let text = refused(&cores(&[("a", "reserve.banks='14-17'")]), &p4080());
    assert!(
        text.contains("16-17 are not here") && text.contains("0-15"),
        "{text}"
    );
    let text = refused(&segment("{ ways=8 }"), &apollolake());
    assert!(
        text.contains("nothing is left for group neighbour and unmatched tasks"),
        "{text}"
    );
    let text = refused(
        &cores(&[("a", "reserve.cache={ ways=2, level='L2' }")]),
        &icelake_sp(),
    );
    assert!(
        text.contains("no ways of L2 can be given here, those of L3 can"),
        "{text}"
    );
    let text = refused(
        &cores(&[("a", "reserve.cache={ colours='0' }")]),
        &icelake_sp(),
    );
    assert!(text.contains("group.a.reserve.cache"), "{text}");
}

#[test]
fn what_an_exempt_group_may_use_is_promised_to_nobody() {
    let text = format!(
        "{}[group.radio]\nrole='exempt'\nmatch=[{{ comm='radio' }}]\n",
        segment("{ ways=1 }")
    );
    let why = refused(&text, &apollolake());
    assert!(
        why.contains("group radio is exempt, so it is not kept out"),
        "{why}"
    );
    let plan = planned(&format!("require='none'\n{text}"), &apollolake());
    assert_eq!(part_of(&plan, "rta").level, Level::None);
    let own = "[group.radio]\nrole='exempt'\nmatch=[{ comm='radio' }]\nreserve.banks=2\n";
    assert!(refused(own, &apollolake()).contains("an exempt group is never confined"));
}

#[test]
fn ways_that_devices_fill_are_promised_to_nobody() {
    let mut machine = icelake_sp();
    machine.partitions.ways[0].shareable = Mask(0xc00);
    let text = |mask| cores(&[("a", &format!("reserve.cache={{ mask='{mask}' }}"))]);
    let why = refused(&text("0x600"), &machine);
    assert!(why.contains("devices fill 0x400 of L3, too"), "{why}");
    let plan = planned(&format!("require='none'\n{}", text("0x600")), &machine);
    assert_eq!(part_of(&plan, "a").level, Level::None);
    let plan = planned(&text("0x300"), &machine);
    assert_eq!(part_of(&plan, "a").level, Level::Enforced);
}

#[test]
fn the_mechanism_that_is_named_is_the_one_used() {
    let text = format!(
        "mechanisms.cache='sets'\n{}",
        cores(&[("a", "reserve.cache='25%'")])
    );
    assert_eq!(
        parts(&planned(&text, &p4080())),
        ["a: Sets 0", "rest: Sets 1-3"]
    );
    let text = format!(
        "mechanisms.cache='ways'\n{}",
        cores(&[("a", "reserve.cache={ colours='0' }")])
    );
    assert!(refused(&text, &p4080()).contains("mechanisms.cache is \"ways\""));
    let text = format!(
        "mechanisms.cache='none'\n{}",
        cores(&[("a", "reserve.cache='25%'")])
    );
    assert!(refused(&text, &p4080()).contains("switches cache partition off"));
    let text = format!("mechanisms.cache='pseudo-lock'\n{}", segment("'128KiB'"));
    assert_eq!(
        parts(&planned(&text, &apollolake()))[3],
        "rta: lock 128KiB L2 0x80"
    );
    let text = format!(
        "mechanisms.deny=['ways']\n{}",
        cores(&[("a", "reserve.cache='25%'")])
    );
    assert_eq!(parts(&planned(&text, &p4080()))[0], "a: Sets 0");
}

#[test]
fn out_of_coloured_memory_is_said_or_fails() {
    let text = |keys: &str| cores(&[("a", &format!("reserve.banks=4\n{keys}"))]);
    let plan = planned(&text(""), &p4080());
    let weakest = part_of(&plan, "a").weakest.clone().unwrap();
    assert!(weakest.contains("gets other pages, reported"), "{weakest}");
    let plan = planned(&text("coloured='fail'"), &p4080());
    let spill = plan.steps.iter().filter_map(|s| match &s.set {
        Setting::Colour { spill, .. } => Some(*spill),
        _ => None,
    });
    assert_eq!(spill.collect::<Vec<_>>(), [false, true], "rest spills");
}

#[test]
fn a_part_of_the_cache_is_not_said_to_be_shared_whole() {
    let plan = planned(&segment("{ ways=1 }"), &simulated(apollolake()));
    assert!(!told(&plan, "caches are not"), "{:?}", plan.notes);
    assert!(told(&plan, "misses in flight"), "{:?}", plan.notes);
}
