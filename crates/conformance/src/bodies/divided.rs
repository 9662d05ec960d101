//! Caches with ways that are divided between groups.

use quell_plan::GroupPlan;
use quell_record::backend::HoldOptions;
use quell_types::partition::{Mask, WayPartition};

use super::*;

/// The bodies of this file, for [`conformance!`](crate::conformance).
#[macro_export]
macro_rules! divided_caches {
    ($arm:path) => {
        $crate::conformance!($arm:
            exclusive_groups_keep_what_is_in_their_ways,
            groups_of_the_same_ways_share_a_class_where_there_are_few,
        );
    };
}

/// The ways of the last-level cache. `None`, with a message, where there are none.
fn ways(arm: &mut dyn Arm) -> Option<WayPartition> {
    if !offers(arm, Mechanism::Ways) {
        return None;
    }
    let all = inventory(arm).partitions.ways;
    all.into_iter().max_by_key(|ways| ways.level)
}

/// The lower and the upper half of the ways, and all of them.
fn halves(ways: &WayPartition) -> (Mask, Mask, Mask) {
    let half = (ways.bits / 2).max(ways.least);
    let (all, low) = ((1 << ways.bits) - 1, (1 << half) - 1);
    (Mask(low), Mask(all & !low), Mask(all))
}

/// Ways of all caches of a level.
fn of_all(level: u32, mask: Mask) -> Setting {
    Setting::Ways {
        level,
        mask,
        caches_of: CpuSet::new(),
    }
}

fn give(arm: &mut dyn Arm, group: &str, level: u32, mask: Mask) {
    let set = of_all(level, mask);
    arm.backend()
        .apply(&step(group, Mechanism::Ways, set))
        .unwrap();
}

/// A group reads a quarter of a cache again and again, next to a stream through the same cache. It
/// draws less from memory where its ways are its own than where the stream fills all of them.
pub fn exclusive_groups_keep_what_is_in_their_ways(arm: &mut dyn Arm) {
    let Some(ways) = ways(arm) else { return };
    let machine = inventory(arm);
    let level = ways.level;
    let cache = machine.caches.iter().find(|c| c.level == level).unwrap();
    let mut cpus = cache.cpus.iter().map(|cpu| CpuSet::from_iter([cpu]));
    let (Some(one), Some(other)) = (cpus.next(), cpus.next()) else {
        return quell_testing::skip(format_args!("no two CPUs share a cache of L{level}"));
    };
    let reader = format!("latency:size={}", cache.size.0 / 4);
    let (own, rest, all) = halves(&ways);
    let (warmup, duration) = arm.spans();
    let drawn = |arm: &mut dyn Arm, (a, b): (Mask, Mask)| {
        for (name, cpus, mask) in [("a", &one, a), ("b", &other, b)] {
            gather(arm, name);
            confine(arm, name, cpus, false);
            give(arm, name, level, mask);
        }
        let reader = started(arm, &subject("a", &reader, Some(&one)));
        let stream = subject("b", arm.stream(), Some(&other));
        let stream = started(arm, &stream);
        let both = [reader, stream];
        measured_together(arm, both, warmup, duration);
        let before = arm.backend().drawn_by("a").unwrap();
        measured_together(arm, both, Nanos(0), Nanos(4 * duration.0));
        let after = arm.backend().drawn_by("a").unwrap();
        arm.backend().undo().unwrap();
        after.zip(before).map_or(0.0, |(a, b)| (a - b) as f64)
    };
    let what = "a reader's traffic, of that without ways of its own";
    within(arm, what, (0.0, 0.8), &mut |arm| {
        let without = drawn(arm, (all, all));
        assert!(without > 0.0, "the stream takes nothing of the reader's");
        drawn(arm, (own, rest)) / without
    });
}

/// A plan has more groups than there are classes of service, and all get the same ways. It is
/// applied all the same, and the machine reports what each group draws.
pub fn groups_of_the_same_ways_share_a_class_where_there_are_few(arm: &mut dyn Arm) {
    let Some(ways) = ways(arm) else { return };
    let (first, _) = divided(arm);
    let (own, ..) = halves(&ways);
    let names: Vec<String> = (0..=ways.classes).map(|n| format!("g{n}")).collect();
    let set = |name: &String| step(name, Mechanism::Ways, of_all(ways.level, own));
    let promise = Promise::ReserveWays {
        level: ways.level,
        mask: own,
        shared_with: names[..names.len() - 1].to_vec(),
    };
    let mut held = plan(names.iter().map(set).collect(), promise, Level::Estimated);
    let planned = |name: &String| GroupPlan {
        name: name.clone(),
        cpus: first.clone(),
        matching: Vec::new(),
    };
    held.groups = names.iter().map(planned).collect();
    let how = HoldOptions::default();
    arm.backend().hold(&held, how).unwrap();
    for (name, step) in names.iter().zip(&held.steps) {
        gather(arm, name);
        confine(arm, name, &first, false);
        arm.backend().apply(step).unwrap();
    }
    for name in &names {
        arm.backend().drawn_by(name).unwrap();
    }
    arm.backend().undo().unwrap();
}
