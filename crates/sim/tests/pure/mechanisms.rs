//! Every mechanism of the simulated machine has its effect: directions and rough sizes, no
//! published figures.

use quell_sim::Counts;
use quell_sim::board::Board;
use quell_sim::frames::{Choice, Frames, Placement, Refused};
use quell_sim::os::{Os, TaskId};
use quell_sim::pattern::{Lattice, Pattern};
use quell_sim::profile::{FrameOrder, Profile};
use quell_types::address::Colours;
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000_000;

fn profile(name: &str) -> Profile {
    Profile::built_in(name).unwrap()
}

fn boot(profile: Profile) -> Os {
    Os::boot(&Board::of(profile).unwrap(), 1).unwrap()
}

fn spawn(
    os: &mut Os,
    core: u32,
    class: u8,
    pattern: Pattern,
    bytes: u64,
    placement: &Placement,
) -> TaskId {
    let space = os.allocate(bytes, placement).unwrap();
    let cores = CpuSet::from_iter([core]);
    let id = os.spawn(&cores, None, class, (pattern, space), bytes, false);
    os.go_on(id.unwrap(), u64::MAX);
    id.unwrap()
}

/// What a task does within the next `ms` milliseconds.
fn during(os: &mut Os, id: TaskId, ms: u64) -> Counts {
    let before = os.counts(id);
    os.run(os.now().plus(Nanos::millis(ms)));
    let after = os.counts(id);
    Counts {
        accesses: after.accesses - before.accesses,
        misses: after.misses - before.misses,
        prefetches: after.prefetches - before.prefetches,
        walks: after.walks - before.walks,
        active: after.active - before.active,
        ..after
    }
}

fn chase(os: &mut Os, core: u32, class: u8, bytes: u64) -> TaskId {
    let list = Pattern::latency(bytes, 1);
    spawn(os, core, class, list, bytes, &Placement::Plain)
}

fn stream(os: &mut Os, core: u32, class: u8, bytes: u64) -> TaskId {
    let pattern = Pattern::bandwidth(bytes, false);
    spawn(os, core, class, pattern, bytes, &Placement::Plain)
}

/// Picoseconds on the core per access.
fn each(counts: &Counts) -> f64 {
    counts.active as f64 / counts.accesses as f64
}

#[test]
fn beyond_the_tlbs_reach_small_pages_walk_and_large_do_not() {
    let with = |bytes: u64, placement: &Placement| {
        let mut os = boot(profile("xeon-w3530"));
        let list = Pattern::latency(bytes, 1);
        let id = spawn(&mut os, 0, 0, list, bytes, placement);
        os.run(Nanos::millis(2));
        during(&mut os, id, 2)
    };
    // 512 entries reach 2 MiB. The list lies in the third level.
    let (small, large) = (
        with(4 * MIB, &Placement::Plain),
        with(4 * MIB, &Placement::Huge),
    );
    assert!(small.walks > small.accesses / 3 && large.walks == 0);
    let ratio = each(&small) / each(&large);
    // Half of the accesses walk: 15 cycles on top of 38.
    assert!((1.25..1.8).contains(&ratio), "{ratio}");
    let (small, large) = (with(MIB, &Placement::Plain), with(MIB, &Placement::Huge));
    let ratio = each(&small) / each(&large);
    assert!(
        small.walks < 300 && (0.9..1.1).contains(&ratio),
        "{ratio}, {small:?}"
    );
}

#[test]
fn a_tlb_without_tags_forgets_when_tasks_change() {
    let walks = |tagged| {
        let mut profile = profile("xeon-w3530");
        profile.tlb.tagged = tagged;
        let mut os = boot(profile);
        let one = chase(&mut os, 0, 0, MIB);
        chase(&mut os, 0, 0, MIB);
        os.run(Nanos::millis(12));
        during(&mut os, one, 24).walks
    };
    let (tagged, untagged) = (walks(true), walks(false));
    // 256 pages each, again in each of four slices.
    assert!(tagged < 64, "{tagged} walks");
    assert!((4 * 200..=6 * 256).contains(&untagged), "{untagged} walks");
}

#[test]
fn a_prefetcher_hides_latency_but_not_the_bus() {
    let with = |on, pattern: fn() -> Pattern| {
        let mut profile = profile("xeon-w3530");
        profile.prefetcher.as_mut().unwrap().on = on;
        let mut os = boot(profile);
        let id = spawn(&mut os, 0, 0, pattern(), 32 * MIB, &Placement::Plain);
        os.run(Nanos::millis(1));
        during(&mut os, id, 3)
    };
    let in_order = || Pattern::latency_in_order(32 * MIB);
    let (off, on) = (with(false, in_order), with(true, in_order));
    assert!(each(&off) > 2.5 * each(&on), "{off:?} {on:?}");
    assert!(
        off.prefetches == 0 && on.prefetches > 5 * on.misses,
        "{on:?}"
    );
    let streams = || Pattern::bandwidth(32 * MIB, false);
    let (off, on) = (with(false, streams), with(true, streams));
    // 8.53 GB/s are 7.5 ns a line.
    for counts in [off, on] {
        assert!((7_490.0..8_600.0).contains(&each(&counts)), "{counts:?}");
    }
    let random = || Pattern::latency(32 * MIB, 1);
    let (off, on) = (with(false, random), with(true, random));
    let ratio = each(&off) / each(&on);
    assert!((0.9..1.1).contains(&ratio), "{off:?} {on:?}");
}

#[test]
fn masks_restrict_what_is_filled_and_not_what_is_hit() {
    let all = CpuSet::new();
    let mut os = boot(profile("xeon-w3530"));
    let (victim, others) = (os.class("victim").unwrap(), os.class("others").unwrap());
    // In large pages, so that it is spread evenly over the sets.
    let list = Pattern::latency(MIB, 1);
    let list = spawn(&mut os, 0, victim, list, MIB, &Placement::Huge);
    // One way of 512 KiB. But all lines are cached already, in any way.
    os.set_ways(victim, 3, 0x1, &all).unwrap();
    os.set_ways(others, 3, 0xfffe, &all).unwrap();
    os.run(Nanos::millis(1));
    assert_eq!(during(&mut os, list, 2).misses, 0);
    stream(&mut os, 1, others, 32 * MIB);
    os.run(os.now().plus(Nanos::millis(4)));
    let after = during(&mut os, list, 4);
    assert!(after.misses > after.accesses / 4, "{after:?}");
    // With four ways to itself it fits, and the stream does not take them.
    os.set_ways(victim, 3, 0xf, &all).unwrap();
    os.set_ways(others, 3, 0xfff0, &all).unwrap();
    os.run(os.now().plus(Nanos::millis(6)));
    let own = during(&mut os, list, 2);
    assert!(own.misses < own.accesses / 50, "{own:?}");
    assert!(
        os.set_ways(victim, 3, 0, &all).is_err() && os.set_ways(victim, 3, 1 << 16, &all).is_err()
    );
    assert!(os.set_ways(victim, 4, 1, &all).is_err());
}

#[test]
fn masks_of_one_cache_leave_the_others_as_they_are() {
    let mut os = boot(profile("apollolake"));
    let class = os.class("a").unwrap();
    // Two of sixteen ways of 64 KiB, in the first of two caches.
    os.set_ways(class, 2, 0x3, &CpuSet::one(0)).unwrap();
    let list = |os: &mut Os, core| {
        let list = Pattern::latency(MIB / 2, 1);
        let list = spawn(os, core, class, list, MIB / 2, &Placement::Huge);
        during(os, list, 2);
        during(os, list, 2)
    };
    let narrow = list(&mut os, 0);
    let wide = list(&mut os, 2);
    assert!(narrow.misses > narrow.accesses / 4, "{narrow:?}");
    assert!(wide.misses < wide.accesses / 50, "{wide:?}");
}

#[test]
fn what_is_locked_stays_whoever_thrashes_the_cache() {
    let misses = |lock: bool| {
        let mut os = boot(profile("apollolake"));
        let (task, others) = (os.class("rta").unwrap(), os.class("others").unwrap());
        let list = Pattern::latency(512 * KIB, 1);
        let id = spawn(&mut os, 0, task, list, 512 * KIB, &Placement::Sequential);
        if lock {
            os.lock(id, 2, 0xff, 512 * KIB).unwrap();
        }
        // The other core of the module.
        stream(&mut os, 1, others, 8 * MIB);
        os.run(Nanos::millis(2));
        let counts = during(&mut os, id, 2);
        os.end(id);
        counts
    };
    let (free, locked) = (misses(false), misses(true));
    assert!(free.misses > free.accesses / 20, "{free:?}");
    assert_eq!(locked.misses, 0, "{locked:?}");
    assert!(each(&free) > 1.5 * each(&locked));
    // Two ways hold 128 KiB and not a line more.
    let mut os = boot(profile("apollolake"));
    let list = Pattern::latency(256 * KIB, 1);
    let id = spawn(&mut os, 0, 0, list, 256 * KIB, &Placement::Sequential);
    let error = os.lock(id, 2, 0b11, 256 * KIB).unwrap_err().to_string();
    assert!(error.contains("all locked"), "{error}");
    assert!(os.lock(id, 2, 0xffff, 64).is_err(), "others need some way");
}

#[test]
fn frames_have_all_the_colours_chosen() {
    let p4080 = profile("p4080");
    let (sets, banks) = (p4080.sparing_set_colours(12), p4080.bank_colours(12));
    assert_eq!((sets.count(), banks.count()), (4, 16));
    let placement = |choices: &[(&Colours, &[u64])], spill| Placement::Coloured {
        choices: choices
            .iter()
            .map(|(colours, chosen)| Choice {
                colours: (*colours).clone(),
                chosen: chosen.to_vec(),
            })
            .collect(),
        spill,
    };
    let mut frames = Frames::new(16, 3);
    let both = placement(&[(&sets, &[1, 2]), (&banks, &[0, 5, 9])], false);
    let space = frames.allocate(4 * MIB, &both).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for frame in space.frames() {
        let found = (sets.of_frame(frame), banks.of_frame(frame));
        assert!(
            [1, 2].contains(&found.0) && [0, 5, 9].contains(&found.1),
            "{found:?}"
        );
        seen.insert(found);
    }
    assert_eq!(seen.len(), 6, "every combination is used");
    // Of 256 MiB these are 24 MiB.
    let full = frames.allocate(32 * MIB, &both).unwrap_err();
    let all = 24 * 256 - 1024;
    assert_eq!(
        full,
        Refused::Full {
            wanted: 8192,
            found: all
        }
    );
    let spilt = placement(&[(&sets, &[1, 2]), (&banks, &[0, 5, 9])], true);
    let space = frames.allocate(32 * MIB, &spilt).unwrap();
    assert_eq!(space.spilled(), 8192 - all);

    // Banks and sets of this machine share bits 12 and 13.
    let w3530 = profile("xeon-w3530");
    let (sets, banks) = (w3530.set_colours(2, 12), w3530.bank_colours(12));
    let apart = placement(&[(&sets, &[1]), (&banks, &[2])], false);
    assert_eq!(frames.allocate(4096, &apart).unwrap_err(), Refused::Apart);
}

#[test]
fn small_pages_leave_room_for_large_ones() {
    let board = Board::of(profile("p4080")).unwrap();
    let large = board.profile.tlb.large_page.0;
    let mut frames = Frames::of(board.memory(), large, FrameOrder::Random, 1);
    frames.allocate(256 * MIB, &Placement::Plain).unwrap();
    for _ in 0..8 {
        let region = frames.allocate(32 * MIB, &Placement::Huge).unwrap();
        assert_eq!(region.physical(0).unwrap() % large, 0);
    }
}

#[test]
fn regions_follow_each_other_where_memory_is_handed_out_once() {
    let p4080 = profile("p4080");
    let order = p4080.os.frames;
    let board = Board::of(p4080).unwrap();
    let large = board.profile.tlb.large_page.0;
    let mut frames = Frames::of(board.memory(), large, order, 1);
    let mut region = |bytes: u64| {
        let space = frames.allocate(bytes, &Placement::Huge).unwrap();
        assert!(space.is_large() && space.bytes() == bytes);
        let first = space.physical(0).unwrap();
        let last = space.physical(bytes - 1).unwrap();
        assert_eq!(last - first, bytes - 1, "one run");
        first
    };
    let sizes = [512 * KIB, 4 * MIB, 4 * MIB, 32 * MIB];
    let begins = sizes.map(&mut region);
    assert_eq!(begins, [0, 4 * MIB, 8 * MIB, 32 * MIB]);
    // A small one fills the gap that the alignment left.
    assert_eq!(region(MIB), MIB);
}

#[test]
fn both_controllers_serve_every_region_of_the_p4080() {
    let mut os = boot(profile("p4080"));
    assert_eq!(os.channels(), 2);
    let pattern = Pattern::bandwidth(4 * MIB, false);
    let id = spawn(&mut os, 0, 0, pattern, 4 * MIB, &Placement::Huge);
    // Within the first turn of the loop, in which all lines miss.
    os.run(Nanos::micros(500));
    let counts = os.counts(id);
    let all: u64 = counts.channels.iter().sum();
    assert_eq!(all, counts.misses + counts.prefetches + counts.writebacks);
    let first = counts.channels[0] as f64 / all as f64;
    assert!((0.49..0.51).contains(&first), "{:?}", counts.channels);
}

#[test]
fn a_walk_by_software_waits_for_the_misses_before_it() {
    let lines = |software: bool| {
        let mut p4080 = profile("p4080");
        p4080.tlb.software = software;
        let mut os = boot(p4080);
        // A stream over more pages than the last level of the TLB has entries.
        let id = stream(&mut os, 0, 0, 4 * MIB);
        os.run(Nanos::millis(1));
        during(&mut os, id, 2)
    };
    let (hardware, software) = (lines(false), lines(true));
    let pages = software.accesses / 64;
    assert!(software.walks.abs_diff(pages) < 8, "a walk a page");
    assert!(
        (software.accesses as f64) < 0.999 * hardware.accesses as f64,
        "{} and {}",
        software.accesses,
        hardware.accesses
    );
}

#[test]
fn mba_lets_less_through_the_lower_its_percentage() {
    let lines = |percent| {
        let mut os = boot(profile("icelake-sp"));
        let class = os.class("noise").unwrap();
        os.set_mba(class, percent);
        let noise = stream(&mut os, 0, class, 32 * MIB);
        let other = stream(&mut os, 1, 0, 32 * MIB);
        os.run(Nanos::micros(200));
        let before = os.counts(other);
        let noise = during(&mut os, noise, 1);
        let other = os.counts(other).accesses - before.accesses;
        (noise.accesses as f64, other as f64)
    };
    let (free, beside_free) = lines(100);
    let mut last = free;
    for percent in [70, 50, 30, 10] {
        let (noise, other) = lines(percent);
        let part = noise / free * 100.0 / f64::from(percent);
        // The prefetcher draws more than misses alone do, and the percentages are of those.
        assert!((0.5..1.1).contains(&part), "{percent} %: {part} of that");
        assert!(noise < last && other > 0.95 * beside_free, "{percent} %");
        last = noise;
    }
}

#[test]
fn a_quota_holds_over_all_cores_of_a_group() {
    let mut os = boot(profile("xeon-w3530"));
    let class = os.class("batch").unwrap();
    os.set_quota(class, Nanos::millis(2), Nanos::millis(10));
    let work = || Pattern::Lattice(Lattice::new(MIB, 10_000));
    let tasks: Vec<TaskId> = [0, 1, 1]
        .map(|core| spawn(&mut os, core, class, work(), MIB, &Placement::Plain))
        .to_vec();
    let free = spawn(&mut os, 1, 0, work(), MIB, &Placement::Plain);
    os.run(Nanos::millis(205));
    let sum: u64 = tasks.iter().map(|id| os.counts(*id).active).sum();
    let share = sum as f64 / (205 * MS) as f64;
    assert!((0.19..0.215).contains(&share), "{share}");
    assert!(tasks.iter().all(|id| os.counts(*id).active > 5 * MS));
    // A task that shares a core with them runs whenever they may not.
    let rest = os.counts(free).active as f64 / (205 * MS) as f64;
    assert!(rest > 0.85, "{rest}");
}
