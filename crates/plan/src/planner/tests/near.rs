//! Ways on a machine with several caches of a level.

use quell_types::partition::Mask;

use super::boards::icelake_sp;
use super::*;

/// Eight CPUs, and an L3 for each two of them.
fn four_caches() -> Inventory {
    let mut machine = icelake_sp();
    let one = machine.caches[0].clone();
    machine.caches = (0..4)
        .map(|n| Cache {
            cpus: [2 * n, 2 * n + 1].into_iter().collect(),
            ..one.clone()
        })
        .collect();
    machine
}

/// `group: mask in the caches of these CPUs`, in order.
fn ways(plan: &Plan) -> Vec<String> {
    let told = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::Ways {
            mask, caches_of, ..
        } => {
            let group = step.group.as_deref().unwrap_or("-");
            Some(format!("{group}: {mask} of {caches_of}"))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn others_lose_ways_only_where_the_group_runs() {
    let text = PAIR.replace("cpus = 1\n", "cpus = 1\nreserve.cache = '25%'\n");
    let plan = planned(&text, &four_caches());
    let all = [
        "victim: 0x7 of 6-7",
        "noise: 0xff8 of 6-7",
        "rest: 0xff8 of 6-7",
    ];
    assert_eq!(ways(&plan), all);
    assert!(
        told(&plan, "nothing changes in the others"),
        "{:?}",
        plan.notes
    );
    // With one cache nothing is said of caches.
    let all = ["victim: 0x7 of ", "noise: 0xff8 of ", "rest: 0xff8 of "];
    assert_eq!(ways(&planned(&text, &icelake_sp())), all);
}

#[test]
fn a_neighbour_on_other_caches_keeps_all_ways() {
    let text = PAIR.replace("cpus = 1\n", "cpus = '6'\nreserve.cache = '25%'\n");
    let text = text.replace("command = ['b']\n", "command = ['b']\ncpus = '0-3'\n");
    let all = ["victim: 0x7 of 6-7", "rest: 0xff8 of 6-7"];
    assert_eq!(ways(&planned(&text, &four_caches())), all);
}

#[test]
fn a_group_that_is_alone_on_its_cache_keeps_all_of_it() {
    let text = PAIR.replace("cpus = 1\n", "cpus = 2\nreserve.cache = '25%'\n");
    let plan = planned(&text, &four_caches());
    assert_eq!(ways(&plan), Vec::<String>::new());
    let [cpus, ways] = &plan.promises[..] else {
        panic!("{:?}", plan.promises)
    };
    assert_eq!(ways.held_by, cpus.held_by);
    assert_eq!((ways.level, &ways.weakest), (cpus.level, &cpus.weakest));
    let Promise::ReserveWays { mask, .. } = ways.promise else {
        panic!("{ways:?}")
    };
    assert_eq!(mask, Mask(0xfff));
    // Devices fill two of them.
    let mut shared = four_caches();
    shared.partitions.ways[0].shareable = Mask(0xc00);
    let plan = planned(&text, &shared);
    let ways = plan.promises[1].promise.to_string();
    assert_eq!(ways, "10 ways (0x3ff) of L3 to itself");
}

#[test]
fn ways_that_the_policy_names_are_given_as_named() {
    let text = PAIR.replace(
        "cpus = 1
",
        "cpus = 2
reserve.cache = { mask = '0xf' }
",
    );
    let all = ["victim: 0xf of 6-7", "rest: 0xff0 of 6-7"];
    let mut given = ways(&planned(&text, &four_caches()));
    given.retain(|step| !step.starts_with("noise"));
    assert_eq!(given, all);
}

#[test]
fn groups_on_caches_of_their_own_share_no_ways() {
    let group = |name: &str, cpu: u32| {
        format!(
            "[group.{name}]\nrole = 'critical'\ncommand = ['x']\ncpus = '{cpu}'\n\
             reserve.cache = '60%'\n"
        )
    };
    let apart = group("a", 4) + &group("b", 6);
    let all = [
        "a: 0xff of 4-5",
        "b: 0xff of 6-7",
        "rest: 0xf00 of 4-5",
        "rest: 0xf00 of 6-7",
    ];
    assert_eq!(ways(&planned(&apart, &four_caches())), all);
    let together = group("a", 6) + &group("b", 7);
    assert!(refused(&together, &four_caches()).contains("of the 12 ways of L3"));
}

#[test]
fn ways_that_move_are_the_same_in_all_caches() {
    let text = PAIR.replace("cpus = 1\n", "cpus = 1\nreserve.cache = '25%'\n");
    let text = format!("mechanisms.ways = 'by-misses'\n{text}");
    let plan = planned(&text, &four_caches());
    assert!(
        ways(&plan).iter().all(|step| step.ends_with("of ")),
        "{:?}",
        ways(&plan)
    );
}
