//! The bodies for memory and for stopping: `memory`, `freezer`, `pidfd`, `oom`, `sysctl`, `psi`,
//! `vm`.

use quell_kernel::cached_file::CachedFile;
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::memory::{self, Memory};
use quell_kernel::psi::{self, Resource};
use quell_kernel::root::Files;
use quell_kernel::{oom, pidfd, procfs, sysctl, vm};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::freezer::Freezer;
use quell_linux::enforce::{self, stop};
use quell_linux::group_cgroups::{CgroupDir, GroupCgroups};
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};

use crate::arms::{Arm, Held};
use crate::bodies::{GROUP, family, gathered};

const MIB: u64 = 1 << 20;

fn id(files: &dyn Files, pid: u32) -> TaskId {
    procfs::stat(files, pid).unwrap().unwrap().id
}

fn state(files: &dyn Files, pid: u32) -> char {
    procfs::stat(files, pid).unwrap().unwrap().state
}

/// Waits until a signal has taken effect, which comes after the kernel accepted it.
fn becomes(files: &dyn Files, pid: u32, stopped: bool) {
    crate::common::eventually("the process stops or goes on", || {
        pidfd::stopped(state(files, pid)) == stopped
    });
}

fn memory_of(cgroups: &Cgroups, group_cgroups: &GroupCgroups) -> Option<(CgroupDir, Memory)> {
    let place = group_cgroups
        .dirs(cgroups, Controller::Memory)
        .next()?
        .clone();
    let memory = Memory::of(&place.hierarchy, &place.dir);
    Some((place, memory))
}

pub fn a_group_is_limited_in_memory_and_let_back(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    arm.remember();
    let files = arm.files();
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Memory]);
    let Some((_, memory)) = memory_of(&cgroups, &group_cgroups) else {
        return quell_testing::skip("no hierarchy here carries the memory controller");
    };
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    assert!(memory::has(files, &memory));
    let most = Bytes(512 * MIB);
    enforce::memory::limit(&mut writer, &memory, most, true).unwrap();
    let of = |path: &str| memory::amount(path, &files.text(path).unwrap()).unwrap();
    match memory.version() {
        Version::V1 => {
            assert_eq!(of(&memory.steered()), Some(most));
            let error = enforce::memory::limit(&mut writer, &memory, most, false).unwrap_err();
            assert!(error.to_string().contains("allow"), "{error}");
        }
        Version::V2 => {
            let high = memory.steered();
            assert_eq!(
                of(&high),
                Some(Bytes(480 * MIB)),
                "slowed down before killed"
            );
            assert_eq!(of(&high.replace(".high", ".max")), Some(most));
        }
    }
    let usage: u64 = files.text(&memory.usage()).unwrap().parse().unwrap();
    let stat = memory.parse_stat(&files.text(&memory.stat()).unwrap());
    assert!(stat.unwrap().anonymous.0 <= usage.max(MIB));
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    drop(held);
    assert_eq!(arm.differences(), Vec::<String>::new());
}

pub fn swappiness_of_a_group_is_set_and_comes_back_or_is_refused(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    arm.remember();
    let files = arm.files();
    let (cgroups, mut held, home) = gathered(files, pid, &[Controller::Memory]);
    let Some((place, memory)) = memory_of(&cgroups, &home) else {
        return quell_testing::skip("no hierarchy here carries the memory controller");
    };
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let set = enforce::memory::swappiness(&mut writer, &memory, 90);
    if memory.version() == Version::V2 {
        let error = set.unwrap_err().to_string();
        assert!(error.contains("memory.swap.max"), "{error}");
    } else {
        set.unwrap();
        let path = format!("{}/memory.swappiness", place.dir);
        assert_eq!(files.text(&path).unwrap(), "90");
    }
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    drop(held);
    assert_eq!(arm.differences(), Vec::<String>::new());
}

pub fn memory_is_protected_with_its_ancestors_or_refused(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    arm.remember();
    let files = arm.files();
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Memory]);
    let Some((place, memory)) = memory_of(&cgroups, &group_cgroups) else {
        return quell_testing::skip("no hierarchy here carries the memory controller");
    };
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let set = enforce::memory::protect(&mut writer, &memory, Bytes(0), Bytes(8 * MIB), false);
    if memory.version() == Version::V1 {
        let error = set.unwrap_err().to_string();
        assert!(error.contains("v1 cannot protect memory"), "{error}");
        return;
    }
    set.unwrap();
    let slice = place.dir.rsplit_once('/').unwrap().0.to_owned();
    let read = |dir: &str, name: &str| files.text(&format!("{dir}/{name}")).unwrap();
    for dir in [&slice, &place.dir] {
        assert_eq!(read(dir, "memory.min"), (8 * MIB).to_string(), "{dir}");
        assert_eq!(read(dir, "memory.low"), (10 * MIB).to_string(), "{dir}");
    }
    // A loop moves it. The protection that other groups had in the ancestor stays.
    files
        .put(&format!("{slice}/memory.min"), &(12 * MIB).to_string())
        .unwrap();
    enforce::memory::protect(&mut writer, &memory, Bytes(8 * MIB), Bytes(16 * MIB), true).unwrap();
    assert_eq!(read(&place.dir, "memory.min"), (16 * MIB).to_string());
    assert_eq!(read(&slice, "memory.min"), (20 * MIB).to_string());
    held.journal.undo_all(files);
    drop(held);
    assert_eq!(arm.differences(), Vec::<String>::new());
}

pub fn a_moved_limit_goes_back_whatever_it_reads(arm: &mut dyn Arm) {
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let Some(hierarchy) = cgroups.of(Controller::Memory) else {
        return quell_testing::skip("no hierarchy here carries the memory controller");
    };
    // The cgroup of a service, changed in place.
    let service = format!("{}/quell-test-service", hierarchy.mount);
    let mut outer = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut outer.journal);
    if hierarchy.version == Version::V2 {
        writer.enable(&hierarchy.mount, "memory").unwrap();
    }
    writer.make(&service, &hierarchy.mount).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let mut group_cgroups = GroupCgroups {
        group: GROUP.into(),
        places: Vec::new(),
    };
    group_cgroups
        .adopt(
            &mut writer,
            &cgroups,
            "/quell-test-service",
            &[Controller::Memory],
        )
        .unwrap();
    let (_, memory) = memory_of(&cgroups, &group_cgroups).unwrap();
    let path = memory.steered();
    let old = files.text(&path).unwrap();
    for mib in [900, 800, 700] {
        writer.steer(&path, &files.text(&path).unwrap()).unwrap();
        files.put(&path, &(mib * MIB).to_string()).unwrap();
    }
    let steered = |h: &Held<'_>| h.journal.entries().len();
    assert_eq!(steered(&held), 1, "recorded once for all moves");
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    assert_eq!(files.text(&path).unwrap(), old);
}

pub fn a_group_is_frozen_and_thawed_and_nobody_elses_is(arm: &mut dyn Arm) {
    let pid = arm.start(1);
    arm.remember();
    let files = arm.files();
    let (_, mut held, group_cgroups) =
        gathered(files, pid, &[Controller::PerfEvent, Controller::Freezer]);
    let freezers: Vec<Freezer> = group_cgroups
        .places
        .iter()
        .filter_map(|p| Freezer::of(files, p))
        .collect();
    assert!(!freezers.is_empty());
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    for freezer in &freezers {
        let recorded = writer.journal.entries().len();
        assert!(freezer.freeze(&mut writer).unwrap());
        assert!(freezer.frozen(files).unwrap());
        assert!(
            !freezer.freeze(&mut writer).unwrap(),
            "it is frozen already"
        );
        freezer.thaw(&mut writer).unwrap();
        assert!(!freezer.frozen(files).unwrap());
        assert_eq!(
            writer.journal.entries().len(),
            recorded,
            "a pair leaves nothing"
        );
        // Frozen when the run ends: undoing thaws it.
        assert!(freezer.freeze(&mut writer).unwrap());
    }
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    drop(held);
    assert_eq!(arm.differences(), Vec::<String>::new());
}

pub fn what_we_let_go_on_and_others_stop_stays_stopped(arm: &mut dyn Arm) {
    let (pid, other) = (arm.start(0), arm.start(0));
    let files = arm.files();
    let (task, idle) = (id(files, pid), id(files, other));
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    assert!(stop::stop(&mut writer, task).unwrap());
    becomes(files, pid, true);
    assert!(!stop::stop(&mut writer, task).unwrap(), "not twice");
    // Another change is recorded in between, so that the pair stays in the journal.
    assert!(stop::stop(&mut writer, idle).unwrap());
    becomes(files, other, true);
    stop::resume(&mut writer, task).unwrap();
    becomes(files, pid, false);
    files.signal(task, libc::SIGSTOP).unwrap();
    becomes(files, pid, true);
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    becomes(files, other, false);
    assert!(
        pidfd::stopped(state(files, pid)),
        "somebody else stopped it"
    );
    let later = TaskId {
        start: task.start + 1,
        ..task
    };
    let gone = files.signal(later, libc::SIGKILL).unwrap_err();
    assert_eq!(
        gone.raw_os_error(),
        Some(libc::ESRCH),
        "a later process of that number"
    );
    files.signal(task, libc::SIGCONT).unwrap();
}

pub fn an_oom_score_comes_back_for_children_too(arm: &mut dyn Arm) {
    let pid = arm.start(2);
    arm.remember();
    let files = arm.files();
    let (_, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpu]);
    let dir = group_cgroups.places[0].dir.clone();
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let task = id(files, pid);
    let before = oom::adjustment(files, pid).unwrap().unwrap();
    let ours = 300;
    assert!(enforce::memory::oom_score(&mut writer, task, ours, &dir).unwrap());
    assert!(!enforce::memory::oom_score(&mut writer, task, ours, &dir).unwrap());
    assert!(enforce::memory::oom_score(&mut writer, task, 2000, &dir).is_err());
    assert_eq!(oom::adjustment(files, pid).unwrap(), Some(ours));
    assert!(oom::score(files, pid).unwrap().unwrap() > 0);
    // A child born meanwhile would have it, too.
    for child in family(files, pid).unwrap() {
        files
            .put(&oom::path(child.id.pid), &ours.to_string())
            .unwrap();
    }
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    for child in family(files, pid).unwrap() {
        let now = oom::adjustment(files, child.id.pid).unwrap();
        assert_eq!(now, Some(before), "process {}", child.id.pid);
    }
    drop(held);
    assert_eq!(arm.differences(), Vec::<String>::new());
}

/// The settings that a plan changes.
const SYSCTLS: [&str; 5] = [
    "swappiness",
    "dirty_ratio",
    "dirty_background_ratio",
    "overcommit_memory",
    "min_free_kbytes",
];

pub fn sysctls_of_memory_are_set_and_taken_back(arm: &mut dyn Arm) {
    arm.remember();
    let files = arm.files();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let before: Vec<Option<i64>> = SYSCTLS
        .map(|name| sysctl::read(files, name).unwrap())
        .to_vec();
    assert!(before.iter().all(Option::is_some), "{before:?}");
    assert!(enforce::memory::sysctl(&mut writer, "swappiness", 61).unwrap());
    assert!(enforce::memory::sysctl(&mut writer, "dirty_background_ratio", 9).unwrap());
    assert!(enforce::memory::sysctl(&mut writer, "swappiness", 201).is_err());
    assert_eq!(sysctl::read(files, "swappiness").unwrap(), Some(61));
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    let after = SYSCTLS.map(|name| sysctl::read(files, name).unwrap());
    assert_eq!(after.to_vec(), before);
}

pub fn pressure_is_told_of_the_machine_and_of_groups(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    let files = arm.files();
    let (_, mut held, group_cgroups) = gathered(files, pid, &[Controller::PerfEvent]);
    for resource in [Resource::Memory, Resource::Io] {
        let Some(now) = psi::read(files, resource.system()).unwrap() else {
            return quell_testing::skip("this kernel has no pressure stall information");
        };
        let mut kept = CachedFile::open(files, resource.system()).unwrap().unwrap();
        let text = kept.text(files).unwrap().unwrap().to_owned();
        let total = psi::totals(kept.path(), &text).unwrap().some;
        assert!(total >= now.some.unwrap().total);
    }
    let v2 = group_cgroups
        .places
        .iter()
        .find(|p| p.hierarchy.version == Version::V2);
    if let Some(place) = v2 {
        let path = Resource::Memory.of(&place.dir);
        assert_eq!(
            psi::read(files, &path)
                .unwrap()
                .unwrap()
                .some
                .unwrap()
                .total,
            Nanos(0)
        );
        let mut kept = CachedFile::open(files, &path).unwrap().unwrap();
        held.journal.undo_all(files);
        assert_eq!(kept.text(files).unwrap(), None, "its cgroup was removed");
    }
    assert_eq!(psi::read(files, "/proc/pressure/none").unwrap(), None);
    let windows = psi::windows(files, Resource::Memory.system());
    assert_eq!(windows, psi::windows(files, Resource::Io.system()));
}

pub fn the_machines_memory_is_told(arm: &mut dyn Arm) {
    let files = arm.files();
    let memory = vm::meminfo(&files.text(vm::MEMINFO).unwrap()).unwrap();
    assert!(memory.available <= memory.total && memory.swap_free <= memory.swap_total);
    let marks = vm::watermarks(files).unwrap().unwrap();
    assert!(marks.min < marks.low && marks.low <= marks.high && marks.high < memory.total);
}

/// The number that the kernel gives out next comes after the one in this file.
const LAST: &str = "/proc/sys/kernel/ns_last_pid";

/// Only on the running kernel: the model gives no number twice.
mod a_later_process_of_a_number_is_left_as_it_is {
    use super::*;

    /// Others that start programs take the number.
    mod measured {
        use super::*;

        #[test]
        fn on_this_kernel() {
            let Some(mut arm) = crate::arms::live() else {
                return;
            };
            let first = arm.start(0);
            let kernel = quell_kernel::root::Kernel::new().unwrap();
            let task = id(&kernel, first);
            let mut held = Held::new(&kernel);
            let mut writer = JournaledWriter::new(&kernel, &mut held.journal);
            assert!(stop::stop(&mut writer, task).unwrap());
            becomes(&kernel, first, true);
            kernel.signal(task, libc::SIGKILL).unwrap();
            arm.wait(first);
            // Born in the same tick it would have the same start time.
            std::thread::sleep(std::time::Duration::from_millis(30));
            let again = (0..50).any(|_| {
                std::fs::write(LAST, (first - 1).to_string()).is_ok() && arm.start(0) == first
            });
            if !again {
                return quell_testing::skip("somebody else always had it");
            }
            let later = id(&kernel, first);
            assert!(later.start > task.start, "{later:?} {task:?}");
            kernel.signal(later, libc::SIGSTOP).unwrap();
            becomes(&kernel, first, true);
            let gone = kernel.signal(task, libc::SIGCONT).unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
            stop::resume(&mut writer, task).unwrap();
            assert_eq!(held.journal.undo_all(&kernel).left, Vec::<String>::new());
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(
                pidfd::stopped(state(&kernel, first)),
                "it is somebody else's stop"
            );
            kernel.signal(later, libc::SIGCONT).unwrap();
        }
    }
}
