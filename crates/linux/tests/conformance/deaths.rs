//! A death at every journal boundary: the journal is enough to restore the whole picture.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::fake::{Fake, Flavour, Rdt, Spec, divided_by_registers};
use quell_kernel::memory::Memory;
use quell_kernel::procfs;
use quell_kernel::resctrl::{self, Info, Mode, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::{confine, confine_rest};
use quell_linux::enforce::freezer::Freezer;
use quell_linux::enforce::{cache, cpumax, quiet, registers, stop, weight};
use quell_linux::group_cgroups::{GroupCgroups, Layout};
use quell_linux::known::Known;
use quell_linux::{enforce, fault, journal, undo};
use quell_types::cpuset::CpuSet;
use quell_types::options::CpuWeight;
use quell_types::partition::Mask;
use quell_types::units::{Bytes, Nanos, Share};

use crate::arms::{Held, compare, furnished};
use crate::bodies::{ALL, ends, gather};
use crate::in_place::braked_in_place;

/// A machine with a service in its own cgroup, a process with threads and children, and a process
/// that is pinned.
fn busy(spec: &Spec) -> (Fake, u32) {
    let fake = furnished(spec);
    let files: &dyn Files = &fake;
    let cgroups = Cgroups::discover(files).unwrap();
    let cpuset = cgroups.of(Controller::Cpuset).unwrap();
    let service = format!("{}/service", cpuset.mount);
    let (first, last) = ends(files);
    if cpuset.version == Version::V2 {
        let control = format!("{}/cgroup.subtree_control", cpuset.mount);
        files.write(&control, "+cpuset").unwrap();
    }
    files.mkdir(&service).unwrap();
    if cpuset.version == Version::V1 {
        files.write(&format!("{service}/cpuset.mems"), "0").unwrap();
        files
            .write(&format!("{service}/cpuset.cpus"), "0-3")
            .unwrap();
    }
    let (victim, pinned, server, other) = fake.with(|m| {
        let victim = m.spawn("victim");
        m.thread(victim);
        m.fork(victim);
        let pinned = m.spawn("pinned");
        let server = m.spawn("server");
        m.fork(server);
        m.thread(server);
        let other = m.spawn("other");
        let zombie = m.spawn("zombie");
        m.exit(zombie);
        (victim, pinned, server, other)
    });
    files.set_affinity(pinned, &first).unwrap();
    files.set_affinity(other, &last).unwrap();
    files
        .write(&format!("{service}/cgroup.procs"), &server.to_string())
        .unwrap();
    let theirs = format!("{}/theirs", resctrl::mount::USUAL);
    if files.mkdir(&theirs).is_ok() {
        files
            .write(&format!("{theirs}/tasks"), &victim.to_string())
            .unwrap();
    }
    (fake, victim)
}

/// Makes every kind of change that a hold makes.
fn hold(fake: &Fake, held: &mut Held<'_>, victim: u32, exclusive: bool) {
    let files: &dyn Files = fake;
    let (first, last) = ends(files);
    let rest = quell_kernel::topology::online(files)
        .unwrap()
        .difference(&last);
    let cgroups = Cgroups::discover(files).unwrap();
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = gather(&mut writer, &cgroups, victim, &ALL);
    let mems: CpuSet = "0".parse().unwrap();
    confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &last,
        &mems,
        exclusive,
        &[],
    )
    .unwrap();
    let stay = BTreeSet::from([std::process::id()]);
    let keep = Keep {
        homes: &[&group_cgroups],
        processes: &stay,
    };
    confine_rest(&mut writer, &cgroups, keep, &rest).unwrap();
    quiet::interrupts(&mut writer, &last, &first).unwrap();
    quiet::kernel_work(&mut writer, &rest).unwrap();
    cpumax::limit(
        &mut writer,
        &cgroups,
        &group_cgroups,
        Share::percent(40),
        Nanos::millis(100),
    )
    .unwrap();
    assert_eq!(files.affinity(victim).unwrap(), last);
    let layout = Layout {
        outermost: true,
        braked: true,
    };
    let noise =
        GroupCgroups::create_as(&mut writer, &cgroups, None, "noise", &ALL, layout).unwrap();
    weight::give(&mut writer, &cgroups, &noise, CpuWeight::Of(5)).unwrap();
    weight::under_the_brake(&mut writer, &noise).unwrap();
    if cgroups.of(Controller::Cpu).unwrap().version == Version::V2 {
        braked_in_place(&mut writer, &cgroups, "/service");
    }
    memory(&mut writer, &cgroups, victim);
    if files.exists("/dev/cpu/0/msr/0xc8f") {
        by_registers(&mut writer, &last);
    }
    if files.exists("/proc/filesystems") {
        let resctrl = cache::adopt_or_mount(&mut writer, "").unwrap();
        let info = resctrl.info(files).unwrap();
        match info.ways(3).next() {
            Some(_) => divide(&mut writer, &resctrl, &info, victim),
            None => lock(&mut writer, &resctrl, &info),
        }
    }
}

/// Divides the cache through registers.
fn by_registers(writer: &mut JournaledWriter<'_>, own: &CpuSet) {
    let offered = divided_by_registers();
    let caches = registers::caches(writer.files, &[offered]).unwrap();
    let class = registers::free(writer.files, &caches)
        .unwrap()
        .first()
        .copied();
    let class = class.unwrap();
    registers::allocate(writer, &caches[0], class, Mask(0x000f)).unwrap();
    registers::classify(writer, own, class).unwrap();
    registers::allocate(writer, &caches[0], 0, Mask(0xfff0)).unwrap();
}

/// Divides the cache, with a newborn in one part.
fn divide(writer: &mut JournaledWriter<'_>, resctrl: &Resctrl, info: &Info, victim: u32) {
    let files = writer.files;
    let ours = cache::make(writer, resctrl, "quell.ours").unwrap();
    for (group, mask) in [(&ours, 0xf000), (&resctrl.default_group(), 0x0fff)] {
        let part = Schemata::masks("L3", [0], Mask(mask));
        cache::allocate(writer, resctrl, info, group, &part).unwrap();
    }
    let theirs = resctrl.group("theirs");
    if files.exists(&theirs.dir) {
        let part = Schemata::masks("L3", [0], Mask(0x0ff0));
        cache::allocate(writer, resctrl, info, &theirs, &part).unwrap();
    }
    cache::set_mode(writer, resctrl, &ours, &Mode::Exclusive).unwrap();
    let (_, last) = ends(files);
    let given = cache::give_cpus(writer, resctrl, &ours, &last).unwrap();
    assert_eq!(given.cpus, last);
    let slow = Schemata::numbers("MB", [0], 30);
    cache::allocate(writer, resctrl, info, &ours, &slow).unwrap();
    let mut find = |files: &dyn Files| Ok(procfs::threads(files, victim)?.into_iter().collect());
    cache::take(writer, resctrl, &ours, &mut find).unwrap();
    assert!(ours.tasks(files).unwrap().contains(&victim));
}

/// Locks memory in ways that every other group leaves.
fn lock(writer: &mut JournaledWriter<'_>, resctrl: &Resctrl, info: &Info) {
    let files = writer.files;
    let theirs = resctrl.group("theirs");
    let theirs = files.exists(&theirs.dir).then_some(theirs);
    for group in theirs.into_iter().chain([resctrl.default_group()]) {
        let left = Schemata::masks("L2", [0, 1], Mask(0xfffc));
        cache::allocate(writer, resctrl, info, &group, &left).unwrap();
    }
    let what = Schemata::masks("L2", [1], Mask(0x3));
    let region = cache::lock_memory(writer, resctrl, "quell-ours", &what).unwrap();
    assert_eq!(region.cpus.to_string(), "2-3");
}

/// Makes every change about memory. At the end one process is stopped, and another one was resumed.
fn memory(writer: &mut JournaledWriter<'_>, cgroups: &Cgroups, victim: u32) {
    let files = writer.files;
    let group_cgroups = gather(
        writer,
        cgroups,
        victim,
        &[Controller::Memory, Controller::Freezer],
    );
    let place = group_cgroups
        .dirs(cgroups, Controller::Memory)
        .next()
        .unwrap();
    let memory = Memory::of(&place.hierarchy, &place.dir);
    if memory.version() == Version::V2 {
        enforce::memory::protect(writer, &memory, Bytes(0), Bytes(1 << 20), false).unwrap();
    }
    enforce::memory::limit(writer, &memory, Bytes(512 << 20), true).unwrap();
    enforce::memory::sysctl(writer, "dirty_ratio", 5).unwrap();
    let task = procfs::stat(files, victim).unwrap().unwrap().id;
    enforce::memory::oom_score(writer, task, 300, &place.dir).unwrap();
    let freezer = group_cgroups
        .places
        .iter()
        .find_map(|p| Freezer::of(files, p))
        .unwrap();
    freezer.freeze(writer).unwrap();
    stop::stop(writer, task).unwrap();
    freezer.thaw(writer).unwrap();
    let service = format!("{}/service/", cgroups.of(Controller::Memory).unwrap().mount);
    let path = format!("{service}memory.high");
    if files.exists(&path) {
        writer.steer(&path, &files.text(&path).unwrap()).unwrap();
        files.put(&path, "1048576").unwrap();
    }
    freezer.freeze(writer).unwrap();
}

/// A v2 cpuset with tasks that was not set cannot be unset again. All that there is stands in for
/// the empty value.
fn comparable(mut dump: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for (path, text) in &mut dump {
        let all = [("/cpuset.cpus", "0-3\n"), ("/cpuset.mems", "0\n")];
        if all
            .iter()
            .any(|(end, all)| path.ends_with(end) && text == all)
        {
            "\n".clone_into(text);
        }
    }
    dump
}

/// Dies at the `n`-th boundary of the hold and, if `again`, at the `again`-th of the first undoing.
/// Returns whether it died in the hold, and in the undoing.
fn die(spec: &Spec, exclusive: bool, n: u64, again: u64) -> [bool; 2] {
    let (fake, victim) = busy(spec);
    let before = comparable(fake.dump());
    let mut held = Held::new(&fake);
    fault::unwind_at(n);
    let lived = catch_unwind(AssertUnwindSafe(|| {
        hold(&fake, &mut held, victim, exclusive)
    }));
    fault::unwind_at(0);
    if let Err(why) = &lived {
        assert!(
            why.is::<fault::Died>(),
            "{spec:?}, boundary {n}: {:?}",
            why.downcast_ref::<String>()
        );
    }
    let found = journal::read(held.journal.path(), &Known::here(&fake)).unwrap();
    assert_eq!(found.damaged, Vec::<String>::new());
    let mut died_again = false;
    if again > 0 {
        fault::unwind_at(again);
        let undone = catch_unwind(AssertUnwindSafe(|| undo::undo(&fake, &found.entries)));
        fault::unwind_at(0);
        died_again = undone.is_err_and(|why| why.is::<fault::Died>());
    }
    let outcome = undo::undo(&fake, &found.entries);
    let at = format!("{spec:?}, exclusive {exclusive}, boundary {n}, then {again}");
    assert_eq!(outcome.undone.left, Vec::<String>::new(), "{at}");
    assert_eq!(
        compare(&before, &comparable(fake.dump())),
        Vec::<String>::new(),
        "{at}"
    );
    [lived.is_err(), died_again]
}

fn every_boundary(flavour: Flavour, release: &'static str, exclusive: bool) {
    every_boundary_of(
        &Spec {
            release,
            ..Spec::new(flavour)
        },
        exclusive,
    );
}

fn every_boundary_of(spec: &Spec, exclusive: bool) {
    let mut n = 1;
    while die(spec, exclusive, n, 0)[0] {
        n += 1;
    }
    assert!(n > 20, "a hold has more boundaries than {n}");
    // Of undoing the whole hold, and the half of it.
    let undoing = [u64::MAX, n / 2].map(|of| {
        let died = |again: &u64| die(spec, exclusive, of, *again)[1];
        (1..).take_while(died).count()
    });
    assert!(undoing.iter().all(|deaths| *deaths > 5), "{undoing:?}");
    eprintln!("{spec:?}: {n} boundaries, {undoing:?} of undoing");
}

#[test]
fn a_death_at_every_boundary_v1() {
    every_boundary(Flavour::V1, "6.18.0", true);
}

#[test]
fn a_death_at_every_boundary_v1_where_affinities_are_forgotten() {
    every_boundary(Flavour::V1, "6.1.0", true);
}

#[test]
fn a_death_at_every_boundary_v2_with_a_partition() {
    every_boundary(Flavour::V2, "6.12.0", true);
}

#[test]
fn a_death_at_every_boundary_v2_narrowed() {
    every_boundary(Flavour::V2, "6.12.0", false);
}

#[test]
fn a_death_at_every_boundary_v2_where_affinities_are_forgotten() {
    every_boundary(Flavour::V2, "6.1.0", true);
}

#[test]
fn a_death_at_every_boundary_with_parts_of_caches() {
    for mounted in [true, false] {
        let rdt = Some(Rdt {
            mounted,
            ..Rdt::icelake()
        });
        let spec = Spec {
            rdt,
            ..Spec::new(Flavour::V2)
        };
        every_boundary_of(&spec, false);
    }
}

#[test]
fn a_death_at_every_boundary_with_registers() {
    let spec = Spec {
        registers: true,
        ..Spec::new(Flavour::V2)
    };
    every_boundary_of(&spec, true);
}

#[test]
fn a_death_at_every_boundary_with_memory_locked() {
    for mounted in [true, false] {
        let rdt = Some(Rdt {
            mounted,
            ..Rdt::goldmont()
        });
        let spec = Spec {
            rdt,
            ..Spec::new(Flavour::V2)
        };
        every_boundary_of(&spec, false);
    }
}
