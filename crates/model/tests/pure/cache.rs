//! Caches against a simple, slow model, and against laws that any right cache obeys. Where
//! cachegrind is installed, they are also compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use proptest::prelude::*;
use quell_model::cache::{
    Cache, Fill, Geometry, Hierarchy, Inclusion, Index, Level, Policy, Victim,
};
use quell_types::address::{Functions, bits};

#[derive(Clone, Copy)]
struct Entry {
    way: u32,
    line: u64,
    dirty: bool,
    locked: bool,
    owner: u8,
}

/// The simple model: a set is a list with the least recently used line first.
#[derive(Default)]
struct Naive {
    sets: BTreeMap<u64, Vec<Entry>>,
}

impl Naive {
    fn access(
        &mut self,
        set: u64,
        line: u64,
        write: bool,
        owner: u8,
        mask: u64,
        ways: u32,
    ) -> (bool, Option<Victim>) {
        let set = self.sets.entry(set).or_default();
        if let Some(at) = set.iter().position(|entry| entry.line == line) {
            let mut entry = set.remove(at);
            entry.dirty |= write;
            set.push(entry);
            return (true, None);
        }
        let free =
            (0..ways).find(|way| mask >> way & 1 == 1 && set.iter().all(|entry| entry.way != *way));
        if let Some(way) = free {
            set.push(Entry {
                way,
                line,
                dirty: write,
                locked: false,
                owner,
            });
            return (false, None);
        }
        let Some(at) = set
            .iter()
            .position(|entry| mask >> entry.way & 1 == 1 && !entry.locked)
        else {
            return (false, None);
        };
        let gone = set.remove(at);
        set.push(Entry {
            way: gone.way,
            line,
            dirty: write,
            locked: false,
            owner,
        });
        (
            false,
            Some(Victim {
                address: gone.line * 64,
                dirty: gone.dirty,
                owner: gone.owner,
            }),
        )
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Access { line: u64, write: bool, who: u8 },
    Mask { who: u8, mask: u64 },
    Remove { line: u64 },
    Lock { line: u64 },
    Unlock { line: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        40 => (0..200u64, any::<bool>(), 0..3u8).prop_map(|(line, write, who)| Step::Access { line, write, who }),
        2 => (0..3u8, 0..256u64).prop_map(|(who, mask)| Step::Mask { who, mask }),
        1 => (0..200u64).prop_map(|line| Step::Remove { line }),
        1 => (0..200u64).prop_map(|line| Step::Lock { line }),
        1 => (0..200u64).prop_map(|line| Step::Unlock { line }),
    ];
    prop::collection::vec(step, 1..600)
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let index = prop_oneof![
        (1..20u64).prop_map(Index::Sets),
        (1..5u32).prop_map(|log| Index::Sets(1 << log)),
        Just(Index::Functions {
            set: bits(6, 7),
            slice: vec![0b1011 << 7, 0b1101 << 8]
        }),
    ];
    (index, 1..9u32).prop_map(|(index, ways)| Geometry {
        line: 64,
        ways,
        index,
    })
}

/// The set by the definition.
fn set_of(geometry: &Geometry, address: u64) -> u64 {
    match &geometry.index {
        Index::Sets(sets) => address / 64 % sets,
        Index::Functions { set, slice } => {
            Functions::new(set.clone()).of(address)
                | Functions::new(slice.clone()).of(address) << set.len()
        }
    }
}

proptest! {
    #[test]
    fn least_recently_used_with_masks_and_locks_is_the_simple_model(geometry in geometries(), steps in steps()) {
        let ways = geometry.ways;
        let all = (1u64 << ways) - 1;
        let mut cache = Cache::new(&geometry, Policy::Lru, 3).unwrap();
        let mut naive = Naive::default();
        let mut masks = [all; 3];
        for step in steps {
            match step {
                Step::Access { line, write, who } => {
                    let expected = naive.access(set_of(&geometry, line * 64), line, write, who, masks[usize::from(who)], ways);
                    prop_assert_eq!(cache.access(line * 64 + 63, write, who), expected, "{:?}", step);
                }
                Step::Mask { who, mask } => {
                    masks[usize::from(who)] = mask & all;
                    cache.set_fill_mask(who, mask & all).unwrap();
                }
                Step::Remove { line } => {
                    let set = naive.sets.entry(set_of(&geometry, line * 64)).or_default();
                    let gone = set.iter().position(|entry| entry.line == line).map(|at| set.remove(at));
                    prop_assert_eq!(cache.remove(line * 64), gone.map(|g| Victim { address: line * 64, dirty: g.dirty, owner: g.owner }));
                }
                Step::Lock { line } => {
                    // Only a line that is in the cache. Filling in is tested below.
                    let set = naive.sets.entry(set_of(&geometry, line * 64)).or_default();
                    if let Some(entry) = set.iter_mut().find(|entry| entry.line == line) {
                        entry.locked = true;
                        prop_assert_eq!(cache.lock(line * 64, all, 0), Ok(None));
                    }
                }
                Step::Unlock { line } => {
                    let set = naive.sets.entry(set_of(&geometry, line * 64)).or_default();
                    let entry = set.iter_mut().find(|entry| entry.line == line);
                    prop_assert_eq!(cache.unlock(line * 64), entry.is_some_and(|entry| std::mem::take(&mut entry.locked)));
                }
            }
            for who in 0..3 {
                let lines = naive.sets.values().flatten().filter(|entry| entry.owner == who).count() as u64;
                prop_assert_eq!(cache.counts(who).lines, lines);
            }
        }
        let dirty = naive.sets.values().flatten().filter(|entry| entry.dirty).count();
        prop_assert_eq!(cache.lines().filter(|(_, line)| line.dirty).count(), dirty);
    }

    /// Mattson et al. 1970: with LRU a cache of more ways contains all lines that one of fewer ways
    /// does.
    #[test]
    fn more_ways_hold_all_that_fewer_do(lines in prop::collection::vec(0..120u64, 1..500), ways in 1..8u32) {
        let cache = |ways| Cache::new(&Geometry { line: 64, ways, index: Index::Sets(4) }, Policy::Lru, 1).unwrap();
        let (mut small, mut large) = (cache(ways), cache(ways + 3));
        for line in lines {
            let hit = small.access(line * 64, false, 0).0;
            prop_assert!(large.access(line * 64, false, 0).0 || !hit);
            prop_assert!(small.lines().all(|(_, line)| large.slot_of(line.address).is_some()));
        }
    }

    /// What a requester fills remains within its mask, whatever the policy. Locked lines remain.
    #[test]
    fn fills_stay_within_the_mask(policy in policies(), ways in 1..13u32, steps in steps()) {
        let all = (1u64 << ways) - 1;
        let mut cache = Cache::new(&Geometry { line: 64, ways, index: Index::Sets(4) }, policy, 3).unwrap();
        let mut masks = [all; 3];
        let mut locked = Vec::new();
        for step in steps {
            match step {
                Step::Access { line, write, who } if cache.lookup(line * 64, write, who).is_none() => {
                    let mask = masks[usize::from(who)];
                    match cache.fill(line * 64, write, who) {
                        Fill::Done { slot, .. } => prop_assert!(mask >> (slot as u32 % ways.next_multiple_of(8)) & 1 == 1),
                        Fill::Bypassed => prop_assert!(mask == 0 || !locked.is_empty()),
                    }
                }
                Step::Mask { who, mask } => {
                    masks[usize::from(who)] = mask & all;
                    cache.set_fill_mask(who, mask & all).unwrap();
                }
                Step::Lock { line } if cache.lock(line * 64, all, 1).is_ok() => locked.push(line),
                _ => {}
            }
            prop_assert!(locked.iter().all(|line| cache.is_locked(line * 64)));
        }
    }

    /// Wherever the addresses are: long ones, and short ones that become long.
    #[test]
    fn addresses_of_any_length_are_told_apart(policy in policies(), far in 38..58u32, steps in steps()) {
        let geometry = Geometry { line: 64, ways: 4, index: Index::Sets(4) };
        let [mut near, mut away] = [0, 1].map(|_| Cache::new(&geometry, policy, 3).unwrap());
        for (n, step) in steps.into_iter().enumerate() {
            let Step::Access { line, write, who } = step else { continue };
            // Odd lines are far away, and none of them comes before the tenth step.
            let line = if n < 10 { line & !1 } else { line };
            let there = (line * 64) | (line & 1) << far;
            let (here, there) = (near.access(line * 64, write, who), away.access(there, write, who));
            prop_assert_eq!(here.0, there.0);
            let home = there.1.map(|line| Victim { address: line.address & ((1 << far) - 1), ..line });
            prop_assert_eq!(here.1, home);
        }
    }

    /// Inclusive levels contain all nearer lines, and exclusive ones none. A line that is newer
    /// than memory is in some cache, or it would be lost. Everything is deterministic.
    #[test]
    fn hierarchies_keep_their_promise_and_lose_nothing(
        accesses in prop::collection::vec((0..2usize, 0..150u64, any::<bool>()), 1..800),
        last in prop_oneof![Just(Inclusion::Inclusive), Just(Inclusion::NonInclusive), Just(Inclusion::Exclusive)],
        middle in prop_oneof![Just(Inclusion::Inclusive), Just(Inclusion::NonInclusive)],
        policy in policies(),
        mask in 1..64u64,
    ) {
        let level = |sets, ways, inclusion, cache_of: &[usize]| Level {
            geometry: Geometry { line: 64, ways, index: Index::Sets(sets) }, policy, inclusion, cache_of: cache_of.to_vec(),
        };
        let levels = [level(2, 2, Inclusion::NonInclusive, &[0, 1]), level(4, 3, middle, &[0, 1]), level(6, 6, last, &[0, 0])];
        let mut caches = Hierarchy::new(&levels, 2).unwrap();
        caches.cache_mut(2, 0).set_fill_mask(1, mask).unwrap();
        let (mut newer, mut written) = (BTreeSet::new(), BTreeSet::new());
        for (core, line, write) in accesses {
            // Each core has its own memory: there is no coherence.
            let address = (line * 64) | (core as u64) << 32;
            caches.access(core, core as u8, address, write);
            let dirty = |address: u64| {
                let core = (address >> 32) as usize;
                (0..3).any(|n| caches.cache(n, core).lines().any(|(_, l)| l.address == address && l.dirty))
            };
            if write {
                newer.insert(address);
                written.insert(address);
            }
            for &gone in caches.writebacks() {
                prop_assert!(written.contains(&gone), "written back without having been written to");
                // An older version may leave an outer level while a newer one is further in.
                if !dirty(gone) {
                    newer.remove(&gone);
                }
            }
            for &address in &newer {
                prop_assert!(dirty(address), "{address:#x} is lost");
            }
            for core in 0..2 {
                let near: Vec<u64> = (0..2).flat_map(|n| caches.cache(n, core).lines().map(|(_, l)| l.address).collect::<Vec<_>>()).collect();
                let far = caches.cache(2, core);
                match last {
                    Inclusion::Inclusive => prop_assert!(near.iter().all(|&a| far.slot_of(a).is_some())),
                    Inclusion::Exclusive if middle == Inclusion::Inclusive => prop_assert!(near.iter().all(|&a| far.slot_of(a).is_none())),
                    _ => {}
                }
                if middle == Inclusion::Inclusive {
                    prop_assert!(caches.cache(0, core).lines().all(|(_, l)| caches.cache(1, core).slot_of(l.address).is_some()));
                }
            }
        }
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Lru),
        Just(Policy::TreePlru),
        Just(Policy::Random),
        (1u32..40).prop_map(|aging| Policy::Bimodal { aging })
    ]
}

/// A loop over twice the cache, by policy:
/// - Least recently used: nothing is ever found.
/// - Random: each miss spares a line with probability 1 - 1/lines. Before the line is wanted again
///   there are twice the lines times the miss rate such misses. So h = exp(-2 (1 - h)), 0.203.
/// - Bimodal insertion: all but one or two ways of a set keep what settled there, half of the loop.
///   One miss of four settling, what settles and what is hit again fill the cache in a turn:
///   h + (1 - h) / 4 = 1/2, so a third.
#[test]
fn a_loop_too_large_hits_as_often_as_each_policy_says() {
    let rate = |policy| {
        let mut cache = Cache::new(&Geometry::plain(1 << 20, 32, 64).unwrap(), policy, 1).unwrap();
        let lines = 2 * (1 << 20) / 64;
        let mut hits = 0;
        for turn in 0..60 {
            for line in 0..lines {
                hits += u32::from(cache.access(line * 64, false, 0).0 && turn >= 50);
            }
        }
        f64::from(hits) / (10 * lines) as f64
    };
    assert_eq!(rate(Policy::Lru), 0.0);
    assert!((rate(Policy::Random) - 0.203).abs() < 0.01);
    let bimodal = |aging| rate(Policy::Bimodal { aging });
    assert!((0.4..0.5).contains(&bimodal(32)));
    assert!((0.3..0.4).contains(&bimodal(4)), "{}", bimodal(4));
    assert_eq!(bimodal(1), 0.0);
    assert_eq!(rate(Policy::Random), rate(Policy::Random));
}

#[test]
fn hits_are_not_restricted_by_masks() {
    let mut cache = Cache::new(&Geometry::plain(4096, 4, 64).unwrap(), Policy::Lru, 2).unwrap();
    cache.access(0, false, 0);
    cache.set_fill_mask(1, 0b1000).unwrap();
    assert_eq!(cache.access(0, false, 1), (true, None));
    // A mask that is set later evicts nothing and does not restrict hits.
    cache.set_fill_mask(0, 0b0100).unwrap();
    assert_eq!(cache.access(0, false, 0), (true, None));
}

#[test]
fn way_partitions_protect_and_one_way_keeps_a_line_per_set() {
    let geometry = Geometry::plain(1 << 20, 16, 64).unwrap();
    let mut cache = Cache::new(&geometry, Policy::TreePlru, 2).unwrap();
    cache.set_fill_mask(0, 0x000f).unwrap();
    cache.set_fill_mask(1, 0xfff0).unwrap();
    let quarter = (1 << 20) / 4;
    for round in 0..4 {
        for line in 0..quarter / 64 {
            let (hit, _) = cache.access(line * 64, false, 0);
            assert!(hit || round == 0);
            for n in 0..4 {
                cache.access(1 << 30 | (round * 4 + n) << 22 | (line * 64), true, 1);
            }
        }
    }
    assert_eq!(cache.counts(0).lines, quarter / 64);
}

#[test]
fn locked_lines_survive_and_locking_says_when_it_cannot() {
    let mut caches = Hierarchy::new(
        &[
            Level {
                geometry: Geometry::plain(1024, 2, 64).unwrap(),
                policy: Policy::Lru,
                inclusion: Inclusion::NonInclusive,
                cache_of: vec![0, 1],
            },
            Level {
                geometry: Geometry::plain(4096, 4, 64).unwrap(),
                policy: Policy::Lru,
                inclusion: Inclusion::Inclusive,
                cache_of: vec![0, 0],
            },
        ],
        2,
    )
    .unwrap();
    for line in 0..16 {
        caches.lock(1, 0, line * 64, 0b0001, 0).unwrap();
    }
    for line in 0..10_000 {
        caches.access(1, 1, (1 << 20) + line * 64, true);
    }
    assert!((0..16).all(|line| caches.access(0, 0, line * 64, false) <= 1));
    let error = caches
        .lock(1, 0, 1 << 30, 0b0001, 0)
        .unwrap_err()
        .to_string();
    assert!(error.contains("all locked"), "{error}");
}

#[test]
fn impossible_shapes_say_what_is_wrong() {
    let error = |geometry: Geometry| {
        Cache::new(&geometry, Policy::Lru, 1)
            .unwrap_err()
            .to_string()
    };
    let good = Geometry::plain(4096, 4, 64).unwrap();
    assert!(
        error(Geometry {
            line: 48,
            ..good.clone()
        })
        .contains("48 bytes")
    );
    assert!(
        error(Geometry {
            ways: 65,
            ..good.clone()
        })
        .contains("65 ways")
    );
    assert!(
        error(Geometry {
            index: Index::Functions {
                set: vec![1 << 3],
                slice: vec![]
            },
            ..good.clone()
        })
        .contains("0x8")
    );
    assert!(
        Geometry::plain(5000, 4, 64)
            .unwrap_err()
            .to_string()
            .contains("5000")
    );
    let level = |cache_of: &[usize]| Level {
        geometry: good.clone(),
        policy: Policy::Lru,
        inclusion: Inclusion::NonInclusive,
        cache_of: cache_of.to_vec(),
    };
    assert!(
        Hierarchy::new(&[level(&[0, 1]), level(&[0, 2])], 1)
            .unwrap_err()
            .to_string()
            .contains("no core uses cache 1")
    );
}

#[test]
fn misses_of_a_real_program_are_those_of_cachegrind() {
    compare_with_cachegrind(&["/bin/true"], 8192, 4);
    compare_with_cachegrind(&["/bin/ls", "-l", "/"], 32768, 8);
}

/// The data references of a real program (valgrind's lackey records them) through this cache and
/// through cachegrind's. The program's own output goes elsewhere than the records.
#[expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]
fn compare_with_cachegrind(program: &[&str], size: u64, ways: u32) {
    let log = format!("{}/valgrind-{size}", env!("CARGO_TARGET_TMPDIR"));
    let valgrind = |args: &[&str]| {
        let output = Command::new("valgrind")
            .args(args)
            .arg(format!("--log-file={log}"))
            .args(program)
            .output()
            .ok()?;
        let text = std::fs::read(&log).ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&text).into_owned())
    };
    let out = concat!(
        "--cachegrind-out-file=",
        env!("CARGO_TARGET_TMPDIR"),
        "/cachegrind"
    );
    let witness = valgrind(&[
        "--tool=cachegrind",
        "--I1=4096,1,64",
        &format!("--D1={size},{ways},64"),
        "--LL=65536,8,64",
        out,
    ]);
    let trace = valgrind(&["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]);
    let (Some(witness), Some(trace)) = (witness, trace) else {
        quell_testing::skip("valgrind is not installed or does not run here");
        return;
    };
    let counted = |label: &str| -> u64 {
        let line = witness
            .lines()
            .find(|line| line.contains(label))
            .unwrap_or_else(|| panic!("no {label:?} in {witness}"));
        let figure = line.split(':').nth(1).unwrap().split('(').next().unwrap();
        figure.replace(',', "").trim().parse().unwrap()
    };
    let mut cache = Cache::new(&Geometry::plain(size, ways, 64).unwrap(), Policy::Lru, 1).unwrap();
    let (mut references, mut misses) = (0u64, 0u64);
    for line in trace.lines() {
        // " L 1ffeffe7e0,8", " S …", " M …" (read and written). Instructions begin at the margin.
        let Some((kind, rest)) = line.strip_prefix(' ').and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let Some((address, size)) = rest.split_once(',') else {
            continue;
        };
        let (Ok(address), Ok(size)) = (u64::from_str_radix(address, 16), size.parse::<u64>())
        else {
            continue;
        };
        assert!(["L", "S", "M"].contains(&kind), "{line}");
        references += 1;
        // A reference across lines counts once, as a miss if either line misses.
        let first = cache.access(address, kind != "L", 0).0;
        let last = address + size - 1;
        let second = last / 64 == address / 64 || cache.access(last, kind != "L", 0).0;
        misses += u64::from(!first || !second);
    }
    let near = |what: &str, ours: u64, theirs: u64| {
        assert!(
            theirs > 1000 && ours.abs_diff(theirs) * 100 <= theirs,
            "{what}: {ours}, cachegrind {theirs}"
        );
    };
    near("data references", references, counted("D   refs:"));
    near("data misses", misses, counted("D1  misses:"));
}
