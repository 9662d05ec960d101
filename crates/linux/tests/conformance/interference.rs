//! What other programs do at exactly the wrong moment, and what the kernel refuses. On the model
//! only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::cgroup_tree::tasks_in;
use quell_kernel::fake::{Fake, Flavour, Op, Spec};
use quell_kernel::root::Files;
use quell_kernel::{irq, workqueue};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::{confine, confine_rest};
use quell_linux::enforce::quiet;
use quell_linux::group_cgroups::GroupCgroups;
use quell_types::cpuset::CpuSet;

use crate::arms::{Held, compare, furnished};
use crate::bodies::{ALL, GROUP, ends, family, gathered};

const BOTH: [Flavour; 2] = [Flavour::V1, Flavour::V2];

fn machine(flavour: Flavour) -> Fake {
    furnished(&Spec::new(flavour))
}

#[test]
fn children_born_while_their_parents_are_moved_are_collected() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let pid = fake.with(|m| m.spawn("forker"));
        let before = fake.dump();
        let births = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&births);
        // Just before a move arrives, its task has forked, and the child is still outside.
        fake.meanwhile(move |m, op, path, _| {
            if op == Op::Read
                && path.ends_with(&format!("/proc/{pid}/cgroup"))
                && count.load(Ordering::SeqCst) < 5
            {
                count.fetch_add(1, Ordering::SeqCst);
                m.fork(pid);
            }
        });
        let files: &dyn Files = &fake;
        let (_, mut held, group_cgroups) = gathered(files, pid, &ALL);
        let born = births.load(Ordering::SeqCst);
        assert!(born > 0);
        for place in &group_cgroups.places {
            assert_eq!(
                tasks_in(files, &place.dir).unwrap().len(),
                1 + born as usize,
                "{}",
                place.dir
            );
        }
        // The newborn were recorded with their moves, or go where their parent came from.
        assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
        let now = fake.dump();
        let changed = compare(&before, &now);
        assert!(
            changed.iter().all(|c| c.contains("was None")
                || c.contains("stat")
                || c.contains("procs")
                || c.contains("tasks")
                || c.contains("threads")
                || c.contains("pids.current")),
            "{changed:#?}"
        );
        assert!(!now.keys().any(|k| k.contains("quell.slice")));
    }
}

#[test]
fn a_fork_bomb_is_given_up_on_and_taken_back() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let pid = fake.with(|m| m.spawn("bomb"));
        let outside = fake.with(|m| m.spawn("fuse"));
        fake.meanwhile(move |m, op, path, _| {
            if op == Op::Write && path.contains(GROUP) && path.ends_with("cgroup.procs") {
                // Born of a process outside, and a child of the bomb only for a moment.
                let child = m.fork(outside);
                m.adopt(child, pid);
            }
        });
        let files: &dyn Files = &fake;
        let cgroups = Cgroups::discover(files).unwrap();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let group_cgroups =
            GroupCgroups::create(&mut writer, &cgroups, GROUP, &[Controller::Cpuset]).unwrap();
        let gathered = group_cgroups.gather(&mut writer, &mut |f| family(f, pid));
        assert!(!gathered.unwrap().whole, "some are always outside");
        fake.quiet();
        assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    }
}

#[test]
fn a_task_that_ends_while_it_is_moved_is_no_error() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let (pid, child) = fake.with(|m| {
            let pid = m.spawn("parent");
            (pid, m.fork(pid))
        });
        let door = format!("/proc/{child}/cgroup");
        fake.meanwhile(move |m, _, path, _| {
            if path == door {
                m.exit(child);
                m.reap(child);
            }
        });
        let files: &dyn Files = &fake;
        let (_, mut held, group_cgroups) = gathered(files, pid, &ALL);
        assert_eq!(
            tasks_in(files, &group_cgroups.places[0].dir).unwrap(),
            [pid]
        );
        assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    }
}

/// A large program that ends gives its memory back for a while, and no write moves it. It is not
/// waited for.
#[test]
fn tasks_that_are_about_to_end_are_left_where_they_are() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let pid = fake.with(|m| {
            let stranger = m.spawn("stranger");
            m.begin_exit(stranger);
            let pid = m.spawn("parent");
            let child = m.fork(pid);
            m.begin_exit(child);
            pid
        });
        let files: &dyn Files = &fake;
        let (_, last) = ends(files);
        let rest = quell_kernel::topology::online(files)
            .unwrap()
            .difference(&last);
        let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        assert_eq!(
            tasks_in(files, &group_cgroups.places[0].dir).unwrap(),
            [pid]
        );
        let mems: CpuSet = "0".parse().unwrap();
        confine(
            &mut writer,
            &cgroups,
            &group_cgroups,
            &last,
            &mems,
            false,
            &[],
        )
        .unwrap();
        let keep = Keep {
            homes: &[&group_cgroups],
            processes: &[std::process::id()].into(),
        };
        confine_rest(&mut writer, &cgroups, keep, &rest).unwrap();
        assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    }
}

#[test]
fn values_that_somebody_else_has_set_since_are_left_and_named() {
    let fake = machine(Flavour::V1);
    let files: &dyn Files = &fake;
    let (first, last) = ends(files);
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    quiet::interrupts(&mut writer, &first, &last).unwrap();
    quiet::kernel_work(&mut writer, &last).unwrap();
    files.write("/proc/irq/24/smp_affinity_list", "1").unwrap();
    files.write(workqueue::MASK, "6").unwrap();
    let undone = held.journal.undo_all(files);
    assert_eq!(undone.left.len(), 2, "{undone:?}");
    assert!(
        undone
            .left
            .iter()
            .all(|l| l.contains("somebody has changed it since")),
        "{undone:?}"
    );
    assert_eq!(files.text("/proc/irq/24/smp_affinity_list").unwrap(), "1");
    assert_eq!(
        files.text("/proc/irq/25/smp_affinity_list").unwrap(),
        "0",
        "its own is back"
    );
}

#[test]
fn interrupts_that_cannot_be_moved_are_told() {
    let fake = machine(Flavour::V1);
    let files: &dyn Files = &fake;
    let (first, last) = ends(files);
    let mut held = Held::new(files);
    let moved = quiet::interrupts(
        &mut JournaledWriter::new(files, &mut held.journal),
        &first,
        &last,
    )
    .unwrap();
    assert_eq!((moved.moved, moved.fixed.clone()), (2, vec![0, 26]));
    assert!(
        moved
            .note(&first)
            .unwrap()
            .contains("CPU 0 keeps 2 interrupts bound by the kernel")
    );
    assert_eq!(
        irq::count(files).unwrap(),
        (3, 1),
        "by permission alone the managed one looks movable"
    );
}

/// Refusals are errors that name the file, the content tried, the reason and, where it is known,
/// the remedy.
#[test]
fn refusals_name_path_reason_and_remedy() {
    let cases = [
        (
            Flavour::V1,
            Op::Make,
            "quell.slice",
            libc::EROFS,
            "make",
            "writable cgroup mount",
        ),
        (
            Flavour::V1,
            Op::Make,
            "quell.slice",
            libc::EACCES,
            "make",
            "run as root",
        ),
        (
            Flavour::V1,
            Op::Write,
            "quell-test/cgroup.procs",
            libc::ENOSPC,
            "write",
            "give the cgroup CPUs and memory nodes first",
        ),
        (
            Flavour::V2,
            Op::Write,
            "cgroup.subtree_control",
            libc::EBUSY,
            "write",
            "start Quell outside of it",
        ),
        (
            Flavour::V2,
            Op::Write,
            "cgroup.procs",
            libc::EBUSY,
            "write",
            "still uses",
        ),
        (
            Flavour::V2,
            Op::Read,
            "cgroup.subtree_control",
            libc::EMFILE,
            "read",
            "limit of open files",
        ),
    ];
    for (flavour, op, end, errno, verb, remedy) in cases {
        let fake = machine(flavour);
        let pid = fake.with(|m| m.spawn("victim"));
        let before = fake.dump();
        fake.refuse(op, end, errno);
        let files: &dyn Files = &fake;
        let cgroups = Cgroups::discover(files).unwrap();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let error = GroupCgroups::create(&mut writer, &cgroups, GROUP, &ALL)
            .and_then(|group_cgroups| group_cgroups.gather(&mut writer, &mut |f| family(f, pid)))
            .unwrap_err()
            .to_string();
        let reason = std::io::Error::from_raw_os_error(errno).to_string();
        for part in [&format!("cannot {verb}"), end, &reason, remedy] {
            assert!(error.contains(part), "'{part}' is missing in: {error}");
        }
        fake.refuse(op, "\0", 0);
        held.journal.undo_all(files);
        assert_eq!(compare(&before, &fake.dump()), Vec::<String>::new());
    }
}

#[test]
fn a_partition_the_kernel_refuses_leaves_nothing_and_says_why() {
    // A sibling that has the CPU to itself.
    let fake = machine(Flavour::V2);
    let files: &dyn Files = &fake;
    let pid = fake.with(|m| m.spawn("victim"));
    let (_, last) = ends(files);
    files
        .write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset")
        .unwrap();
    files.mkdir("/sys/fs/cgroup/other").unwrap();
    files
        .write("/sys/fs/cgroup/other/cpuset.cpus", "3")
        .unwrap();
    let before = fake.dump();
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let mems: CpuSet = "0".parse().unwrap();
    let confined = confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &last,
        &mems,
        true,
        &[],
    )
    .unwrap();
    assert!(!confined.partition);
    assert!(
        confined.notes[0].contains("narrowed instead"),
        "{confined:?}"
    );
    assert_eq!(
        files
            .text("/sys/fs/cgroup/quell.slice/cpuset.cpus.exclusive")
            .unwrap(),
        ""
    );
    assert_eq!(files.affinity(pid).unwrap(), last, "confined all the same");
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    assert_eq!(compare(&before, &fake.dump()), Vec::<String>::new());
}

#[test]
fn a_cpuset_whose_parent_lacks_the_cpus_is_refused() {
    let fake = machine(Flavour::V2);
    let files: &dyn Files = &fake;
    let pid = fake.with(|m| m.spawn("victim"));
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    files
        .write("/sys/fs/cgroup/quell.slice/cpuset.cpus", "0-1")
        .unwrap();
    let (_, last) = ends(files);
    let mems: CpuSet = "0".parse().unwrap();
    let error = confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &last,
        &mems,
        false,
        &[],
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("got CPUs 0-1, not 3"), "{error}");
    assert!(
        error.contains("give the cgroups above it these CPUs"),
        "{error}"
    );
}

#[test]
fn newborns_of_the_root_are_kept_off_bound_kernel_threads_stay() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let pid = fake.with(|m| m.spawn("victim"));
        let other = fake.with(|m| m.spawn("other"));
        let files: &dyn Files = &fake;
        let (_, last) = ends(files);
        let rest = quell_kernel::topology::online(files)
            .unwrap()
            .difference(&last);
        let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let mems: CpuSet = "0".parse().unwrap();
        confine(
            &mut writer,
            &cgroups,
            &group_cgroups,
            &last,
            &mems,
            false,
            &[],
        )
        .unwrap();
        let born = Arc::new(AtomicU32::new(0));
        let child = Arc::clone(&born);
        fake.meanwhile(move |m, _, path, _| {
            if path == format!("/proc/{other}/stat") && child.load(Ordering::SeqCst) == 0 {
                child.store(m.fork(other), Ordering::SeqCst);
            }
        });
        let stay = [std::process::id()].into();
        let keep = Keep {
            homes: &[&group_cgroups],
            processes: &stay,
        };
        confine_rest(&mut writer, &cgroups, keep, &rest).unwrap();
        let born = born.load(Ordering::SeqCst);
        assert_eq!(files.affinity(born).unwrap(), rest);
        assert_eq!(
            files.affinity(13).unwrap(),
            last,
            "migration/3 stays where it is bound"
        );
        assert_eq!(
            files.affinity(std::process::id()).unwrap().len(),
            4,
            "we stay free"
        );
        fake.quiet();
        assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
        assert_eq!(files.affinity(born).unwrap().len(), 4);
    }
}

/// Linux 6.12 keeps the CPUs of a remote partition that a sibling made invalid. It loses them with
/// the partition's cgroup.
#[test]
fn an_invalidated_partition_gives_its_cpus_back() {
    let fake = machine(Flavour::V2);
    let files: &dyn Files = &fake;
    let pid = fake.with(|m| m.spawn("victim"));
    let before = fake.dump();
    let (_, last) = ends(files);
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let mems: CpuSet = "0".parse().unwrap();
    let confined = confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &last,
        &mems,
        true,
        &[],
    )
    .unwrap();
    assert!(confined.partition);
    let slice = "/sys/fs/cgroup/quell.slice";
    files.mkdir(&format!("{slice}/somebody")).unwrap();
    files
        .write(&format!("{slice}/somebody/cpuset.cpus"), "2-3")
        .unwrap();
    let state = files
        .text(&format!(
            "{}/cpuset.cpus.partition",
            group_cgroups.places[0].dir
        ))
        .unwrap();
    assert_eq!(state, "root invalid");
    let top = "/sys/fs/cgroup/cpuset.cpus.effective";
    assert_eq!(files.text(top).unwrap(), "0-2", "the CPU is nobody's");
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    assert_eq!(files.text(top).unwrap(), "0-3");
    assert_eq!(compare(&before, &fake.dump()), Vec::<String>::new());
}

#[test]
fn a_cgroup_that_another_process_makes_first_is_not_removed() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let files: &dyn Files = &fake;
        let cgroups = Cgroups::discover(files).unwrap();
        let mount = cgroups.of(Controller::Cpuset).unwrap().mount.clone();
        let slice = format!("{mount}/quell.slice");
        let target = slice.clone();
        // Between the check and the making.
        fake.meanwhile(move |m, op, path, _| {
            if op == Op::Read && path == target {
                let _ = m.somebody_makes(&target);
            }
        });
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        assert!(
            !writer.make(&slice, &mount).unwrap(),
            "it is there, and not made by us"
        );
        fake.quiet();
        assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
        assert!(
            files.exists(&slice),
            "{flavour:?}: somebody else's cgroup was removed"
        );
    }
}

#[test]
fn a_cgroup_that_failed_and_another_makes_later_is_not_removed() {
    let fake = machine(Flavour::V1);
    let files: &dyn Files = &fake;
    let slice = "/sys/fs/cgroup/cpu/quell.slice";
    let mut held = Held::new(files);
    fake.refuse(Op::Make, slice, libc::EAGAIN);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    assert!(writer.make(slice, "/sys/fs/cgroup/cpu").is_err());
    fake.refuse(Op::Make, "\0", 0);
    files.mkdir(slice).unwrap();
    held.journal.undo_all(files);
    assert!(files.exists(slice));
}

/// With CONFIG_RT_GROUP_SCHED a v1 `cpu` cgroup has no real-time runtime of its own.
#[test]
fn a_real_time_program_that_cannot_enter_is_told_why() {
    let fake = machine(Flavour::V1);
    let files: &dyn Files = &fake;
    let pid = fake.with(|m| {
        let pid = m.spawn("fifo");
        m.realtime(pid);
        pid
    });
    let before = fake.dump();
    let cgroups = Cgroups::discover(files).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = GroupCgroups::create(&mut writer, &cgroups, GROUP, &ALL).unwrap();
    let error = group_cgroups
        .gather(&mut writer, &mut |f| family(f, pid))
        .unwrap_err()
        .to_string();
    for part in [
        &pid.to_string(),
        "/sys/fs/cgroup/cpu/quell.slice",
        "Invalid argument",
        "cpu.rt_runtime_us",
    ] {
        assert!(error.contains(part), "'{part}' is missing in: {error}");
    }
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    assert_eq!(compare(&before, &fake.dump()), Vec::<String>::new());
}
