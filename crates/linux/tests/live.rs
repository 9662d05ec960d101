//! Changes on the running kernel that no model can stand for: every task of the machine confined,
//! processes killed by signal. `conformance` has all that both can show.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{Guard, Picture, Program, eventually, machine, set};
use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::cgroup_tree::procs_file;
use quell_kernel::remaining::remaining_on;
use quell_kernel::root::{Files, Kernel};
use quell_kernel::tasks::{Matcher, assign};
use quell_kernel::{cgroup, procfs};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::{confine, confine_rest};
use quell_linux::group_cgroups::GroupCgroups;
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskMatch;

const GROUP: &str = "quell-test";

fn by_pid(pid: u32) -> TaskMatch {
    TaskMatch {
        pid: Some(pid),
        ..TaskMatch::default()
    }
}

/// Gathers a process and its descendants in the cgroups of the test's group.
fn gather(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    pid: u32,
    controllers: &[Controller],
) -> GroupCgroups {
    let group_cgroups = GroupCgroups::create(writer, cgroups, GROUP, controllers).unwrap();
    let mut find = |files: &dyn Files| {
        let matcher = Matcher::new(files, GROUP, &[by_pid(pid)])?;
        Ok(assign(files, &[matcher], &BTreeSet::new(), &mut || {})?.take(GROUP))
    };
    group_cgroups.gather(writer, &mut find).unwrap();
    group_cgroups
}

fn ends(kernel: &Kernel) -> (CpuSet, CpuSet) {
    let all = quell_kernel::topology::online(kernel).unwrap();
    let last = all.iter().next_back().unwrap();
    let first = all.first().unwrap();
    (CpuSet::from_iter([first]), CpuSet::from_iter([last]))
}

#[test]
fn the_rest_is_kept_off_a_cpu_and_let_back() {
    let Some((kernel, _lock)) = machine() else {
        return;
    };
    let (first, last) = ends(&kernel);
    let victim = Program::start(&["sleep", "60"]);
    let pinned = Program::start(&["sleep", "60"]);
    kernel.set_affinity(pinned.pid(), &first).unwrap();
    let before = Picture::take(&kernel);
    let stay = BTreeSet::from([std::process::id()]);
    let mut guard = Guard::new(&kernel);
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let mut writer = JournaledWriter::new(&kernel, &mut guard.journal);
    let group_cgroups = gather(&mut writer, &cgroups, victim.pid(), &[Controller::Cpuset]);
    // Not a partition: in that case the kernel itself keeps all tasks off, and there is nothing to
    // narrow.
    confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &first,
        &set("0"),
        false,
        &[],
    )
    .unwrap();
    let mark = writer.journal.mark();
    for round in 0..3 {
        let mut writer = JournaledWriter::new(&kernel, &mut guard.journal);
        let started = Instant::now();
        let keep = Keep {
            homes: &[&group_cgroups],
            processes: &stay,
        };
        let notes = confine_rest(&mut writer, &cgroups, keep, &last).unwrap();
        let applied = started.elapsed();
        assert!(
            notes
                .iter()
                .any(|n| n.contains(&format!("sleep ({})", pinned.pid()))),
            "{notes:?}"
        );
        assert_eq!(
            kernel.affinity(victim.pid()).unwrap(),
            first,
            "the victim is alone on its CPU"
        );
        assert_eq!(
            kernel.affinity(pinned.pid()).unwrap(),
            last,
            "its own wish is overridden"
        );
        // A task born among the rest stays with it, and is released with it.
        let born = Program::start(&["sleep", "60"]);
        let rest = format!(
            "{}/quell.slice/rest",
            cgroups.of(Controller::Cpuset).unwrap().mount
        );
        kernel
            .write(&procs_file(&kernel, &rest), &born.pid().to_string())
            .unwrap();
        let left = remaining_on(&kernel, &first, &BTreeSet::from([victim.pid()])).unwrap();
        assert!(left.user.is_empty(), "{:?}", left.user);
        assert!(
            !left.bound.is_empty(),
            "every CPU has kernel threads of its own"
        );
        let started = Instant::now();
        let undone = guard.journal.undo_to(&kernel, mark);
        let undoing = started.elapsed();
        eprintln!(
            "round {round}: rest confined in {applied:.1?}, undone in {undoing:.1?}, {} changes",
            undone.restored
        );
        assert!(undone.left.is_empty(), "{undone:?}");
        assert_eq!(
            kernel.affinity(pinned.pid()).unwrap(),
            first,
            "its own wish is back"
        );
        assert_ne!(
            kernel.affinity(born.pid()).unwrap(),
            last,
            "the newborn is free"
        );
    }
    drop(guard);
    assert_eq!(before.differences(&kernel), Vec::<String>::new());
}

#[test]
fn a_group_of_ours_is_killed_whole() {
    let Some((kernel, _lock)) = machine() else {
        return;
    };
    let mut program = Program::start(&["sh", "-c", "sleep 60 & setsid sleep 60 & wait"]);
    eventually("the shell starts its children", || {
        let all = procfs::processes(&kernel).unwrap();
        all.iter().filter(|s| s.parent == program.pid()).count() == 2
    });
    let mut guard = Guard::new(&kernel);
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let mut writer = JournaledWriter::new(&kernel, &mut guard.journal);
    // Once by `cgroup.kill` and once process by process, as far as this machine has both versions.
    let group_cgroups = gather(
        &mut writer,
        &cgroups,
        program.pid(),
        &[Controller::Cpu, Controller::PerfEvent],
    );
    for place in &group_cgroups.places {
        assert!(cgroup::populated(&kernel, &place.dir).unwrap());
    }
    for place in &group_cgroups.places {
        // The shell is reaped here and leaves its cgroup. init reaps its children.
        assert!(
            cgroup::kill(&kernel, &place.dir, Duration::from_secs(5)).unwrap(),
            "{}",
            place.dir
        );
    }
    assert!(!program.0.wait().unwrap().success());
}
