//! Changes on the running kernel, each undone and compared with a picture taken before.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{Guard, Picture, Program, eventually, machine, members, set};
use quell_core::cpuset::CpuSet;
use quell_core::task::TaskMatch;
use quell_core::units::{Nanos, Share};
use quell_linux::cgroup::{Cgroups, Controller};
use quell_linux::change::Hands;
use quell_linux::cpuset::{Keep, confine, confine_rest};
use quell_linux::home::Home;
use quell_linux::remaining::remaining_on;
use quell_linux::root::{Files, Kernel};
use quell_linux::tasks::{Matcher, assign};
use quell_linux::undo::door;
use quell_linux::{affinity, cgroup, cpumax, irq, procfs, workqueue};

const GROUP: &str = "quell-test";

fn by_pid(pid: u32) -> TaskMatch {
    TaskMatch {
        pid: Some(pid),
        ..TaskMatch::default()
    }
}

/// Gathers a process and its descendants in a home of the test's.
fn gather(hands: &mut Hands<'_>, cgroups: &Cgroups, pid: u32, controllers: &[Controller]) -> Home {
    let home = Home::create(hands, cgroups, GROUP, controllers).unwrap();
    let mut find = |files: &dyn Files| {
        let matcher = Matcher::new(files, GROUP, &[by_pid(pid)])?;
        Ok(assign(files, &[matcher], &BTreeSet::new())?
            .remove(GROUP)
            .unwrap_or_default())
    };
    home.gather(hands, &mut find).unwrap();
    home
}

fn ends(kernel: &Kernel) -> (CpuSet, CpuSet) {
    let all = quell_linux::topology::online(kernel).unwrap();
    let last = all.iter().next_back().unwrap();
    let first = all.first().unwrap();
    (CpuSet::from_iter([first]), CpuSet::from_iter([last]))
}

#[test]
fn a_group_with_children_is_gathered_confined_and_put_back() {
    let Some((kernel, _lock)) = machine("gather") else {
        return;
    };
    let program = Program::start(&["sh", "-c", "sleep 60 & sleep 60; wait"]);
    eventually("the shell starts its children", || {
        let all = procfs::processes(&kernel).unwrap();
        all.iter().filter(|s| s.parent == program.pid()).count() == 2
    });
    let before = Picture::take(&kernel);
    let mut guard = Guard::new(&kernel);
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    let all = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];
    let home = gather(&mut hands, &cgroups, program.pid(), &all);
    let (_, last) = ends(&kernel);
    let confined = confine(&mut hands, &cgroups, &home, &last, &set("0"), true, &[]).unwrap();
    assert!(
        confined.notes.is_empty() || !confined.partition,
        "{confined:?}"
    );
    for controller in all {
        let inside = members(&kernel, controller, GROUP);
        assert_eq!(
            inside.len(),
            3,
            "{controller:?}: the shell and both its children, {inside:?}"
        );
    }
    assert_eq!(kernel.affinity(program.pid()).unwrap(), last);
    drop(guard);
    assert_eq!(before.differences(&kernel), Vec::<String>::new());
}

#[test]
fn the_rest_is_kept_off_a_cpu_and_let_back() {
    let Some((kernel, _lock)) = machine("confine rest") else {
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
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    let home = gather(&mut hands, &cgroups, victim.pid(), &[Controller::Cpuset]);
    // Not a partition: where the kernel itself keeps everybody off there is nothing to narrow.
    confine(&mut hands, &cgroups, &home, &first, &set("0"), false, &[]).unwrap();
    let mark = hands.journal.mark();
    for round in 0..3 {
        let mut hands = Hands::new(&kernel, &mut guard.journal);
        let started = Instant::now();
        let keep = Keep {
            homes: &[&home],
            processes: &stay,
        };
        let notes = confine_rest(&mut hands, &cgroups, keep, &last).unwrap();
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
        // One born among the rest stays with it, and is let back with it.
        let born = Program::start(&["sleep", "60"]);
        let rest = format!(
            "{}/quell.slice/rest",
            cgroups.of(Controller::Cpuset).unwrap().mount
        );
        kernel
            .write(&door(&kernel, &rest), &born.pid().to_string())
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
fn interrupts_and_kernel_work_are_kept_away_and_let_back() {
    let Some((kernel, _lock)) = machine("interrupts") else {
        return;
    };
    let (first, last) = ends(&kernel);
    let before = Picture::take(&kernel);
    let mut guard = Guard::new(&kernel);
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    let moved = irq::keep_away(&mut hands, &first, &last).unwrap();
    eprintln!(
        "interrupts: {moved:?}; by permission {:?}",
        irq::count(&kernel).unwrap()
    );
    workqueue::confine(&mut hands, &last).unwrap();
    assert_eq!(workqueue::mask(&kernel).unwrap(), Some(last.clone()));
    let files: &dyn Files = &kernel;
    for number in files
        .names("/proc/irq")
        .unwrap()
        .iter()
        .filter_map(|n| n.parse::<u32>().ok())
    {
        let now = files
            .cpus(&format!("/proc/irq/{number}/smp_affinity_list"))
            .unwrap()
            .unwrap();
        let quiet = now.intersection(&first).is_empty();
        assert!(
            quiet || moved.fixed.contains(&number),
            "interrupt {number} may still arrive on CPU {first}"
        );
    }
    assert!(irq::keep_away(&mut hands, &first, &first).is_err());
    drop(guard);
    assert_eq!(before.differences(&kernel), Vec::<String>::new());
}

#[test]
fn a_quota_is_set_changed_and_taken_back() {
    let Some((kernel, _lock)) = machine("quota") else {
        return;
    };
    let program = Program::start(&["sleep", "60"]);
    let mut guard = Guard::new(&kernel);
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let hierarchy = cgroups.of(Controller::Cpu).unwrap();
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    let home = gather(&mut hands, &cgroups, program.pid(), &[Controller::Cpu]);
    let read = || -> Vec<String> {
        let dir = format!("{}/quell.slice/{GROUP}", hierarchy.mount);
        let names = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"];
        names
            .iter()
            .filter_map(|n| kernel.read(&format!("{dir}/{n}")).ok())
            .flat_map(|t| t.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let fresh = read();
    let mark = hands.journal.mark();
    let ms = |n| Nanos::millis(n);
    assert!(
        cpumax::limit(&mut hands, &cgroups, &home, Share::percent(40), ms(100))
            .unwrap()
            .is_empty()
    );
    assert_eq!(read(), ["40000", "100000"]);
    // A period that is ten times as long, and one that is far shorter: no value in between is refused.
    cpumax::limit(&mut hands, &cgroups, &home, Share::percent(10), ms(1000)).unwrap();
    let notes = cpumax::limit(&mut hands, &cgroups, &home, Share::percent(10), ms(1)).unwrap();
    assert_eq!(read(), ["1000", "10000"]);
    assert!(notes[0].contains("10ms instead of 1ms"), "{notes:?}");
    let undone = guard.journal.undo_to(&kernel, mark);
    assert!(undone.left.is_empty(), "{undone:?}");
    assert_eq!(read(), fresh);
}

#[test]
fn a_group_of_ours_is_killed_whole() {
    let Some((kernel, _lock)) = machine("kill") else {
        return;
    };
    let mut program = Program::start(&["sh", "-c", "sleep 60 & setsid sleep 60 & wait"]);
    eventually("the shell starts its children", || {
        let all = procfs::processes(&kernel).unwrap();
        all.iter().filter(|s| s.parent == program.pid()).count() == 2
    });
    let mut guard = Guard::new(&kernel);
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    // Once by `cgroup.kill` and once process by process, as far as this machine has both versions.
    let home = gather(
        &mut hands,
        &cgroups,
        program.pid(),
        &[Controller::Cpu, Controller::PerfEvent],
    );
    for place in &home.places {
        assert!(cgroup::populated(&kernel, &place.dir).unwrap());
    }
    for place in &home.places {
        // Reaped by us, the shell is gone from its cgroup; its children are reaped by init.
        assert!(
            cgroup::kill(&kernel, &place.dir, Duration::from_secs(5)).unwrap(),
            "{}",
            place.dir
        );
    }
    assert!(!program.0.wait().unwrap().success());
}

#[test]
fn what_somebody_else_has_changed_since_is_left() {
    let Some((kernel, _lock)) = machine("left alone") else {
        return;
    };
    let before = Picture::take(&kernel);
    let (first, last) = ends(&kernel);
    let program = Program::start(&["sleep", "60"]);
    let mut guard = Guard::new(&kernel);
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    let stat = procfs::stat(&kernel, program.pid()).unwrap().unwrap();
    let notes = affinity::confine(&mut hands, &[stat.id.pid], &last).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(kernel.affinity(program.pid()).unwrap(), last);
    kernel.set_affinity(program.pid(), &first).unwrap();
    let undone = guard.journal.undo_all(&kernel);
    assert_eq!((undone.restored, undone.left.len()), (0, 1), "{undone:?}");
    assert_eq!(kernel.affinity(program.pid()).unwrap(), first);
    drop(guard);
    drop(program);
    assert_eq!(before.differences(&kernel), Vec::<String>::new());
}

#[test]
fn a_cgroup_in_ours_goes_with_it_and_its_tasks_go_to_where_their_parent_came_from() {
    let Some((kernel, _lock)) = machine("nested") else {
        return;
    };
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let hierarchy = cgroups
        .of(Controller::PerfEvent)
        .or(cgroups.of(Controller::Cpu))
        .unwrap()
        .clone();
    let origin = format!("{}/quell-test-origin", hierarchy.mount);
    let program = Program::start(&["sh", "-c", "sleep 61 & wait"]);
    let mut outer = Guard::new(&kernel);
    Hands::new(&kernel, &mut outer.journal)
        .make(&origin, &hierarchy.mount)
        .unwrap();
    kernel
        .write(
            &format!("{origin}/cgroup.procs"),
            &program.pid().to_string(),
        )
        .unwrap();
    let mut guard = Guard::new(&kernel);
    let mut hands = Hands::new(&kernel, &mut guard.journal);
    let home = Home::create(
        &mut hands,
        &cgroups,
        GROUP,
        &[Controller::PerfEvent, Controller::Cpu],
    )
    .unwrap();
    let mut only_parent =
        |files: &dyn Files| Ok(procfs::stat(files, program.pid())?.into_iter().collect());
    home.gather(&mut hands, &mut only_parent).unwrap();
    // A child, as if born there, in a cgroup that somebody made within ours.
    let child = procfs::processes(&kernel)
        .unwrap()
        .into_iter()
        .find(|s| s.parent == program.pid())
        .unwrap();
    let place = home
        .places
        .iter()
        .find(|p| p.hierarchy == hierarchy)
        .unwrap();
    let nested = format!("{}/inner", place.dir);
    kernel.mkdir(&nested).unwrap();
    kernel
        .write(&format!("{nested}/cgroup.procs"), &child.id.pid.to_string())
        .unwrap();
    drop(guard);
    assert!(!kernel.exists(&place.dir));
    let now = hierarchy.dir_of(&kernel, child.id.pid).unwrap();
    assert_eq!(
        now.as_deref(),
        Some(origin.as_str()),
        "the child is where its parent came from"
    );
}
