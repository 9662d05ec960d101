//! Snapshots, changes and lanes agree, whatever is set.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;

fn caches() -> Vec<Cache> {
    let cache = |id: u32| Cache {
        place: Place::new("L3", id),
        bits: 8,
        bytes: 8 << 20,
        cpus: [2 * id, 2 * id + 1].into_iter().collect(),
        least: 1,
        shareable: Mask(0xc0),
    };
    vec![cache(0), cache(1)]
}

fn class() -> impl Strategy<Value = Class> {
    let place = |resource: &'static str| (0..2u32).prop_map(move |id| Place::new(resource, id));
    let mode = prop_oneof![
        Just(Mode::Shareable),
        Just(Mode::Exclusive),
        Just(Mode::PseudoLocked)
    ];
    (
        mode,
        btree_map(place("L3"), (1..256u64).prop_map(Mask), 0..3),
        btree_map(place("MB"), 10..100u64, 0..3),
        btree_set(0..4u32, 0..3),
        btree_map(place("L3"), 0..1000u64, 0..3),
    )
        .prop_map(|(mode, masks, throttles, cpus, figures)| Class {
            mode,
            masks,
            throttles,
            cpus: cpus.into_iter().collect(),
            figures: figures
                .into_iter()
                .map(|(place, bytes)| {
                    let figures = Figures {
                        occupancy: Some(bytes),
                        traffic: (bytes % 2 == 0).then_some(bytes),
                    };
                    (place, figures)
                })
                .collect(),
        })
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(ROOT.to_owned()),
        Just("a".to_owned()),
        Just("b".to_owned())
    ]
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let thread = (name(), 0..4u32).prop_map(|(class, cpu)| Thread {
        pid: 7,
        name: "t".to_owned(),
        class,
        cpu,
        passing: false,
    });
    let register = (0..2u32, 0..3u64).prop_map(|(cpu, register)| Register {
        cpu,
        number: 0xc90,
        of: "the mask of class / in L3:0".to_owned(),
        class: Some(ROOT.to_owned()),
        kernel: 0xff,
        register,
    });
    (
        btree_map(name(), class(), 0..4),
        btree_map(1..5u32, thread, 0..4),
        btree_map(1..5u32, 0..100u64, 0..4),
        btree_set(register, 0..3),
    )
        .prop_map(|(classes, threads, misses, registers)| Snapshot {
            classes,
            threads,
            misses,
            registers,
        })
}

/// The changes between these snapshots, taken every 100 ms, with their times.
fn told(snapshots: &[Snapshot]) -> Vec<(u64, Change)> {
    let mut all = vec![(
        0,
        Change::Machine {
            caches: caches(),
            registers: false,
        },
    )];
    let mut before = Snapshot::default();
    for (n, snapshot) in snapshots.iter().enumerate() {
        let at = n as u64 * 100;
        let new = changes(&before, snapshot);
        all.extend(new.into_iter().map(|change| (at, change)));
        before = snapshot.clone();
    }
    all
}

fn timeline(snapshots: &[Snapshot]) -> Timeline {
    let all = told(snapshots);
    let end = snapshots.len() as u64 * 100;
    Timeline::of(all.iter().map(|(at, c)| (*at, c)), end)
}

proptest! {
    #[test]
    fn who_is_told_the_changes_knows_the_state(snapshots in vec(snapshot(), 1..6)) {
        let mut known = Snapshot::default();
        let mut before = Snapshot::default();
        for snapshot in &snapshots {
            for change in changes(&before, snapshot) {
                // As a record keeps it.
                let line = serde_json::to_string(&change).unwrap();
                known.apply(&serde_json::from_str(&line).unwrap());
            }
            prop_assert_eq!(&known, snapshot);
            before = snapshot.clone();
        }
        prop_assert!(changes(&known, &before).is_empty());
    }

    #[test]
    fn blocks_tile_every_cache_and_say_what_the_masks_say(snapshots in vec(snapshot(), 1..6)) {
        let timeline = timeline(&snapshots);
        for cache in caches() {
            let blocks = timeline.blocks.get(&cache.place).cloned().unwrap_or_default();
            for (n, snapshot) in snapshots.iter().enumerate() {
                let at = n as u64 * 100 + 50;
                // Before the first setting there are no lanes.
                let any = blocks.first().is_some_and(|b| b.from_ns <= at);
                for bit in 0..cache.bits {
                    let mut over = blocks.iter().filter(|b| {
                        (b.from_ns..b.until_ns).contains(&at)
                            && (b.is.first..b.is.first + b.is.count).contains(&bit)
                    });
                    let Some(block) = over.next() else {
                        prop_assert!(!any, "way {bit} at {at}");
                        continue;
                    };
                    prop_assert!(over.next().is_none(), "two blocks for way {bit} at {at}");
                    for (name, class) in &snapshot.classes {
                        let mask = class.masks.get(&cache.place).copied().unwrap_or_default();
                        let has = mask.0 >> bit & 1 == 1;
                        if class.mode == Mode::PseudoLocked {
                            prop_assert!(!block.is.fill.classes.contains(name));
                            prop_assert!(!has || block.is.fill.locked.is_some());
                        } else {
                            prop_assert_eq!(block.is.fill.classes.contains(name), has);
                        }
                    }
                    prop_assert_eq!(block.is.fill.devices, bit >= 6);
                }
            }
        }
    }

    #[test]
    fn threads_are_where_the_looks_saw_them(snapshots in vec(snapshot(), 1..6)) {
        let timeline = timeline(&snapshots);
        for (n, snapshot) in snapshots.iter().enumerate() {
            let at = n as u64 * 100 + 50;
            for tid in 1..5u32 {
                let lane = timeline.threads.get(&tid);
                let was = lane.and_then(|l| l.was.iter().find(|w| (w.from_ns..w.until_ns).contains(&at)));
                let is = snapshot.threads.get(&tid);
                prop_assert_eq!(was.is_some(), is.is_some());
                if let (Some(was), Some(is)) = (was, is) {
                    prop_assert_eq!(was.is.cpu, is.cpu);
                    prop_assert_eq!(was.is.class.as_str(), snapshot.class_of(is));
                    prop_assert_eq!(was.is.by_cpu, was.is.class != is.class);
                }
            }
        }
    }

    #[test]
    fn cores_and_threads_may_fill_what_their_classes_may(snapshots in vec(snapshot(), 1..6)) {
        let timeline = timeline(&snapshots);
        for cache in caches() {
            let fillers = timeline.fillers(&cache);
            for (n, snapshot) in snapshots.iter().enumerate() {
                let at = n as u64 * 100 + 50;
                let mask = |class: &str| {
                    let class = snapshot.classes.get(class);
                    class.and_then(|c| c.masks.get(&cache.place)).map(|m| m.0)
                };
                for filler in &fillers {
                    let was = filler.was.iter().find(|w| (w.from_ns..w.until_ns).contains(&at));
                    let found = was.map(|w| w.is.iter().fold(0, |all, f| all | f.mask.0));
                    match &filler.who {
                        Who::Thread(tid, _) => {
                            let is = snapshot.threads.get(tid);
                            let is = is.filter(|t| cache.cpus.contains(t.cpu));
                            let wanted = is.and_then(|t| mask(snapshot.class_of(t)));
                            prop_assert_eq!(found, wanted);
                        }
                        // A task of no class fills the ways of its core's class.
                        Who::Core(cpu) => {
                            let task = Thread { cpu: *cpu, pid: 1, name: String::new(), class: ROOT.to_owned(), passing: false };
                            let wanted = mask(snapshot.class_of(&task)).unwrap_or(0);
                            prop_assert_eq!(found.unwrap_or(0) & wanted, wanted);
                        }
                        Who::Process(..) => {}
                    }
                }
            }
        }
    }

    #[test]
    fn findings_never_panic_and_lie_within_the_record(snapshots in vec(snapshot(), 0..6)) {
        let timeline = timeline(&snapshots);
        for finding in findings(&timeline) {
            prop_assert!(finding.from_ns <= finding.until_ns && finding.until_ns <= timeline.end_ns);
            prop_assert!(!finding.evidence.is_empty() && !finding.remedy.is_empty());
        }
    }
}

#[test]
fn a_threads_class_goes_before_its_cpus_and_then_the_roots() {
    let mut state = Snapshot::default();
    let cpus = Class {
        cpus: [1].into_iter().collect(),
        ..Class::default()
    };
    state.classes.insert("a".to_owned(), cpus);
    state.classes.insert("b".to_owned(), Class::default());
    let thread = |class: &str, cpu| Thread {
        pid: 1,
        name: String::new(),
        class: class.to_owned(),
        cpu,
        passing: false,
    };
    assert_eq!(state.class_of(&thread("b", 1)), "b");
    assert_eq!(state.class_of(&thread(ROOT, 1)), "a");
    assert_eq!(state.class_of(&thread(ROOT, 0)), ROOT);
}

#[test]
fn places_read_as_they_are_written() {
    assert_eq!("L3:0".parse(), Ok(Place::new("L3", 0)));
    assert_eq!(Place::new("L2CODE", 12).to_string(), "L2CODE:12");
    assert_eq!(Place::new("L2CODE", 12).counted(), Place::new("L2", 12));
    for wrong in ["L3", ":0", "L3:", "L3:x"] {
        assert!(wrong.parse::<Place>().is_err(), "{wrong}");
    }
}
