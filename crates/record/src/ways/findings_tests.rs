//! Six configurations that are wrong on purpose, and the same set right. The cache has 8 MiB and 16
//! ways on four CPUs, and is sampled every 100 ms for 3 s. The counts are those of the lab's
//! emulated processor (`tests/lab/ways.sh`).

use super::*;

const MIB: u64 = 1 << 20;
const LOOK: u64 = 100_000_000;
const LOOKS: u64 = 30;

/// A machine and its settings.
struct Scene {
    caches: Vec<Cache>,
    now: Snapshot,
    told: Vec<(u64, Change)>,
    before: Snapshot,
    at: u64,
}

impl Scene {
    /// Third-level caches with two CPUs each. All tasks are in the root class.
    fn on(caches: u32) -> Self {
        let cache = |id: u32| Cache {
            place: Place::new("L3", id),
            bits: 16,
            bytes: 8 * MIB,
            cpus: [2 * id, 2 * id + 1].into_iter().collect(),
            least: 1,
            shareable: Mask(0),
        };
        let caches: Vec<Cache> = (0..caches).map(cache).collect();
        let mut scene = Self {
            told: vec![(
                0,
                Change::Machine {
                    caches: caches.clone(),
                    registers: false,
                },
            )],
            caches,
            now: Snapshot::default(),
            before: Snapshot::default(),
            at: 0,
        };
        scene.class(ROOT, 0xffff);
        scene
    }

    fn class(&mut self, name: &str, mask: u64) {
        let places = self.caches.iter().map(|c| c.place.clone());
        let masks = places.map(|place| (place, Mask(mask))).collect();
        let class = self.now.classes.entry(name.to_owned()).or_default();
        class.masks = masks;
    }

    fn thread(&mut self, tid: u32, pid: u32, class: &str, cpu: u32) {
        let thread = Thread {
            pid,
            name: "rt".to_owned(),
            class: class.to_owned(),
            cpu,
            passing: false,
        };
        self.now.threads.insert(tid, thread);
    }

    /// Takes one sample. Each entry is a class, what it has of the first cache, and what it has
    /// moved since the last sample.
    fn sample(&mut self, counted: &[(&str, u64, u64)]) {
        for (name, occupancy, moved) in counted {
            let class = self.now.classes.entry((*name).to_owned()).or_default();
            let figures = class.figures.entry(Place::new("L3", 0)).or_default();
            figures.occupancy = Some(*occupancy);
            figures.traffic = Some(figures.traffic.unwrap_or(0) + moved);
        }
        let new = changes(&self.before, &self.now);
        let at = self.at;
        self.told.extend(new.into_iter().map(|c| (at, c)));
        self.before = self.now.clone();
        self.at += LOOK;
    }

    fn looks(&mut self, counted: &[(&str, u64, u64)]) {
        for _ in 0..LOOKS {
            self.sample(counted);
        }
    }

    fn found(&self) -> Vec<Finding> {
        findings(&Timeline::of(
            self.told.iter().map(|(at, c)| (*at, c)),
            self.at,
        ))
    }

    /// The only finding, which must be of this kind.
    #[track_caller]
    fn only(&self, kind: Kind) -> Finding {
        let mut found = self.found();
        assert_eq!(found.len(), 1, "{found:#?}");
        let finding = found.remove(0);
        assert_eq!(finding.kind, kind, "{finding:#?}");
        finding
    }
}

/// A list of 1.9 MiB in four ways that it has alone, next to a stream in the other ways.
fn right() -> Scene {
    let mut scene = Scene::on(1);
    scene.class(ROOT, 0xff00);
    scene.class("rt", 0x000f);
    scene.thread(11, 11, "rt", 0);
    scene
}

const LIST: (&str, u64, u64) = ("rt", 1_990_000, 20_000);
const STREAM: (&str, u64, u64) = (ROOT, 2_000_000, 20_000);

#[test]
fn what_is_set_right_has_no_findings() {
    let mut scene = right();
    scene.looks(&[LIST, STREAM]);
    assert_eq!(scene.found(), []);
}

#[test]
fn nobody_uses_cache_allocation() {
    let mut scene = Scene::on(1);
    scene.thread(11, 11, ROOT, 0);
    scene.looks(&[(ROOT, 8 * MIB, 30 * MIB)]);
    let found = scene.only(Kind::Unused);
    assert!(found.what.contains("no program uses"), "{found:?}");
    // Another process uses it, and this one does not.
    scene.class("other", 0x000f);
    scene.class(ROOT, 0xffff);
    scene.thread(12, 12, "other", 1);
    scene.looks(&[(ROOT, 8 * MIB, 30 * MIB)]);
    let found = scene.found();
    assert!(
        found
            .iter()
            .any(|f| f.kind == Kind::Unused && f.what.contains("process 11 (rt)")),
        "{found:#?}"
    );
}

#[test]
fn a_class_whose_ways_the_root_kept() {
    let mut scene = right();
    scene.class(ROOT, 0xffff);
    scene.looks(&[LIST, (ROOT, 6 * MIB, 25 * MIB)]);
    let found = scene.only(Kind::Overlap);
    assert_eq!(found.class.as_deref(), Some("rt"));
    assert!(found.what.contains("4 of its 4 ways of L3:0 with class /"));
    assert!(found.evidence.contains("0xf"), "{found:?}");
    assert!(found.evidence.contains("/ moved 262 MB/s"), "{found:?}");
    assert!(
        found
            .remedy
            .ends_with("echo 'L3:0=fff0' > /sys/fs/resctrl/schemata"),
        "{found:?}"
    );
    // A quiet class may share.
    let mut scene = right();
    scene.class(ROOT, 0xffff);
    scene.looks(&[LIST, (ROOT, 6 * MIB, 1000)]);
    assert_eq!(scene.found(), []);
}

#[test]
fn a_mask_smaller_than_what_is_worked_on() {
    let mut scene = right();
    scene.class("rt", 0x0003);
    scene.looks(&[("rt", MIB - 4096, 20 * MIB), STREAM]);
    let found = scene.only(Kind::TooSmall);
    assert!(found.evidence.contains("1.0 MiB"), "{found:?}");
    assert!(found.evidence.contains("200 times a second"), "{found:?}");
}

#[test]
fn a_mask_larger_than_needed() {
    let mut scene = right();
    scene.class("rt", 0x00ff);
    scene.looks(&[("rt", MIB + MIB / 4, 1000), STREAM]);
    let found = scene.only(Kind::TooLarge);
    assert!(found.evidence.contains("1.2 MiB of 4.0 MiB"), "{found:?}");
    assert!(
        found.remedy.contains("3 ways") && found.remedy.contains("L3:0=7'"),
        "{found:?}"
    );
    // One that is being filled is not judged.
    let mut scene = right();
    scene.class("rt", 0x00ff);
    for look in 0..LOOKS {
        scene.sample(&[("rt", MIB + look * MIB / 20, MIB / 20), STREAM]);
    }
    assert_eq!(scene.found(), []);
}

#[test]
fn threads_that_stayed_behind() {
    let mut scene = right();
    scene.thread(12, 11, ROOT, 1);
    scene.thread(13, 11, "rt", 1);
    scene.looks(&[LIST, STREAM]);
    let found = scene.only(Kind::Escaped);
    assert!(found.what.contains("1 of 3 threads of process 11"));
    assert!(found.evidence.contains("12 in class /"), "{found:?}");
    assert!(found.remedy.contains("/sys/fs/resctrl/rt/tasks"));
    // Threads that are moved one by one have not escaped.
    let mut scene = right();
    scene.thread(12, 11, ROOT, 1);
    scene.sample(&[LIST, STREAM]);
    scene.thread(12, 11, "rt", 1);
    scene.looks(&[LIST, STREAM]);
    assert_eq!(scene.found(), []);
}

#[test]
fn a_thread_on_a_cpu_of_another_cache() {
    let mut scene = Scene::on(2);
    let second = Place::new("L3", 1);
    scene.class(ROOT, 0xff00);
    scene.class("rt", 0x000f);
    for class in ["rt", ROOT] {
        let class = scene.now.classes.get_mut(class).unwrap();
        class.masks.insert(second.clone(), Mask(0xffff));
    }
    scene.thread(11, 11, "rt", 0);
    scene.looks(&[LIST, STREAM]);
    assert_eq!(scene.found(), []);
    scene.thread(11, 11, "rt", 2);
    scene.looks(&[LIST, STREAM]);
    let found = scene.only(Kind::OtherCache);
    assert_eq!(found.place, Some(second));
    assert!(found.what.contains("it has 0xf of L3:0"), "{found:?}");
    assert!(found.evidence.contains("3.0 s of 6.0 s"), "{found:?}");
}

#[test]
fn lines_that_were_left_behind() {
    let mut scene = right();
    scene.class("rt", 0x00ff);
    scene.class(ROOT, 0xff00);
    scene.looks(&[("rt", 4 * MIB - 4096, 1000), STREAM]);
    scene.class("rt", 0x0003);
    scene.looks(&[("rt", 4 * MIB - 4096, 1000), STREAM]);
    let found = scene.only(Kind::Beyond);
    assert!(
        found
            .evidence
            .contains("up to 4.0 MiB with a mask for 1.0 MiB"),
        "{found:?}"
    );
    assert!(found.evidence.contains("still had them"), "{found:?}");
}

#[test]
fn a_class_that_nobody_is_in() {
    let mut scene = right();
    scene.class("spare", 0x00f0);
    scene.looks(&[LIST, STREAM]);
    let found = scene.only(Kind::Empty);
    assert!(found.evidence.contains("0xf0 of L3:0"), "{found:?}");
    assert!(found.remedy.contains("rmdir /sys/fs/resctrl/spare"));
    // A CPU is a member as well.
    let spare = scene.now.classes.get_mut("spare").unwrap();
    spare.cpus = [1].into_iter().collect();
    scene.looks(&[LIST, STREAM]);
    assert_eq!(scene.found(), []);
}

#[test]
fn registers_that_say_something_else() {
    let mut scene = right();
    for cpu in [0, 1] {
        scene.now.registers.insert(Register {
            cpu,
            number: 0xc90,
            of: "the mask of class / in L3:0".to_owned(),
            class: Some(ROOT.to_owned()),
            kernel: 0xff00,
            register: 0xffff,
        });
    }
    scene.looks(&[LIST, STREAM]);
    let found = scene.only(Kind::Register);
    assert!(found.evidence.contains("0xc90 read on CPU 0-1 is 0xffff"));
}

#[test]
fn ways_that_devices_fill() {
    let mut scene = right();
    for cache in &mut scene.caches {
        cache.shareable = Mask(0x0003);
    }
    scene.told = vec![(
        0,
        Change::Machine {
            caches: scene.caches.clone(),
            registers: false,
        },
    )];
    scene.looks(&[LIST, STREAM]);
    let found = scene.only(Kind::Devices);
    assert!(found.what.contains("2 of the 4 ways"), "{found:?}");
}

/// The same machine without resctrl: registers alone, and CPUs with classes.
fn by_registers() -> Scene {
    let mut scene = Scene::on(1);
    scene.told = vec![(
        0,
        Change::Machine {
            caches: scene.caches.clone(),
            registers: true,
        },
    )];
    scene.thread(8, 7, ROOT, 1);
    scene
}

#[test]
fn registers_alone_have_remedies_of_their_own() {
    let mut scene = by_registers();
    scene.looks(&[]);
    let found = scene.only(Kind::Unused);
    assert!(found.remedy.contains("--iface=msr"), "{found:?}");
    let mut scene = by_registers();
    scene.class("COS1", 0x000f);
    scene.looks(&[]);
    let found = scene.found();
    let empty = found.iter().find(|f| f.kind == Kind::Empty).unwrap();
    assert!(empty.remedy.contains("-a 'core:1=CPU'"), "{empty:?}");
    // The root kept the ways that were given away.
    let class = scene.now.classes.get_mut("COS1").unwrap();
    class.cpus = [1].into_iter().collect();
    scene.looks(&[]);
    let found = scene.found();
    let overlap = found.iter().find(|f| f.kind == Kind::Overlap).unwrap();
    assert!(overlap.remedy.contains("llc@0:0=0xfff0"), "{overlap:?}");
}

#[test]
fn a_change_names_the_core_the_process_and_the_thread() {
    let mut scene = by_registers();
    scene.class("COS1", 0x000f);
    scene.now.classes.get_mut("COS1").unwrap().cpus = [1].into_iter().collect();
    scene.class(ROOT, 0xfff0);
    scene.looks(&[]);
    scene.class("COS1", 0x0007);
    scene.looks(&[]);
    let timeline = Timeline::of(scene.told.iter().map(|(at, c)| (*at, c)), scene.at);
    let (_, told) = timeline.told.last().unwrap();
    assert_eq!(
        told,
        "L3:0: class COS1 may fill 0x7 instead of 0xf [CPU 1; process 7 (rt): thread 8 on CPU 1]"
    );
    let lane = &timeline.threads[&8].was;
    assert!(lane.iter().all(|w| w.is.class == "COS1" && w.is.by_cpu));
    assert!(findings(&timeline).is_empty(), "{:?}", findings(&timeline));
}
