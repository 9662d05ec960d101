use quell_kernel::root::Kernel;

use super::*;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn write(path: &str, old: &str, new: &str) -> Undo {
    Undo::Write {
        path: path.into(),
        old: old.into(),
        new: new.into(),
    }
}

fn files(root: &Path, content: &[(&str, &str)]) -> Kernel {
    for (path, text) in content {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Kernel::at(root)
}

#[test]
fn only_what_still_carries_our_value_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = files(
        dir.path(),
        &[
            ("a/smp_affinity_list", "0,1\n"),
            ("b", "somebody's"),
            ("c", "old"),
        ],
    );
    let entries = [
        write("/a/smp_affinity_list", "0-3", "0-1"),
        write("/b", "1", "2"),
        write("/c", "old", "new"),
    ];
    let outcome = undo(&kernel, &entries);
    assert_eq!(outcome.undone.restored, 1);
    assert_eq!(kernel.read("/a/smp_affinity_list").unwrap(), "0-3\n");
    assert_eq!(kernel.read("/b").unwrap(), "somebody's");
    assert_eq!(outcome.undone.left.len(), 1);
    assert!(
        outcome.undone.left[0].contains("somebody has changed it"),
        "{:?}",
        outcome.undone.left
    );
    assert!(
        outcome.failed.is_empty(),
        "what others set is not to be tried again"
    );
    assert_eq!(
        undo(&kernel, &entries[..1]).undone,
        Undone::default(),
        "a second time there is nothing to do"
    );
}

#[test]
fn everything_possible_stands_for_a_cpuset_that_was_not_set() {
    let dir = tempfile::tempdir().unwrap();
    let content = [
        ("sys/devices/system/cpu/possible", "0-3\n"),
        ("g/cpuset.cpus", "0-3\n"),
    ];
    let kernel = files(dir.path(), &content);
    // As after an earlier undo, in which the kernel refused an empty value.
    let entry = write("/g/cpuset.cpus", "", "0-2");
    assert_eq!(undo(&kernel, &[entry]).undone, Undone::default());
    let entry = write("/g/cpuset.cpus", "1", "0-2");
    assert_eq!(undo(&kernel, &[entry]).undone.left.len(), 1);
}

#[test]
fn all_nodes_stand_for_memory_nodes_that_were_not_set() {
    let dir = tempfile::tempdir().unwrap();
    let content = [
        ("sys/devices/system/node/possible", "0-1\n"),
        ("g/cpuset.mems", "0-1\n"),
    ];
    let kernel = files(dir.path(), &content);
    let entry = write("/g/cpuset.mems", "", "0");
    assert_eq!(undo(&kernel, &[entry]), Outcome::default());
}

#[test]
fn a_partition_gives_its_cpus_back_before_its_cgroup_goes() {
    let dir = tempfile::tempdir().unwrap();
    let content = [("g/cpuset.cpus", "3"), ("g/cpuset.cpus.partition", "root")];
    let kernel = files(dir.path(), &content);
    let made = Undo::Cgroup {
        path: "/g".into(),
        heir: "/".into(),
    };
    // A directory of plain files cannot be removed as a cgroup can, so that part fails.
    undo(
        &kernel,
        &[
            made,
            write("/g/cpuset.cpus", "", "3"),
            write("/g/cpuset.cpus.partition", "member", "root"),
        ],
    );
    let now = |name: &str| kernel.read(&format!("/g/{name}")).unwrap();
    assert_eq!(now("cpuset.cpus.partition").trim(), "member");
    assert_eq!(now("cpuset.cpus").trim(), "3", "what goes with the cgroup");
}

#[test]
fn values_are_compared_as_the_kernel_means_them() {
    assert!(same(
        "/proc/irq/default_smp_affinity",
        "00000000,00000003",
        "3"
    ));
    assert!(same("/sys/devices/virtual/workqueue/cpumask", "03", "3"));
    assert!(!same("/sys/devices/virtual/workqueue/cpumask", "1", "3"));
    assert!(same("/sys/fs/cgroup/x/cpuset.cpus", "0,1,2", "0-2"));
    assert!(same(
        "/sys/fs/cgroup/x/cpuset.cpus.partition",
        "root invalid (no CPU)",
        "root"
    ));
    assert!(!same(
        "/sys/fs/cgroup/x/cpuset.cpus.partition",
        "member",
        "root"
    ));
    // In other files a number is a number: 10 and 010 are not proven equal.
    assert!(!same("/sys/fs/cgroup/x/cpu.weight", "10", "010"));
}

#[test]
fn a_file_that_is_gone_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        undo(&Kernel::at(dir.path()), &[write("/x", "1", "2")]),
        Outcome::default()
    );
}

#[test]
fn enabling_a_controller_is_taken_back_by_disabling_it() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = files(dir.path(), &[("cg/cgroup.subtree_control", "cpu cpuset\n")]);
    let outcome = undo(
        &kernel,
        &[write("/cg/cgroup.subtree_control", "-cpuset", "+cpuset")],
    );
    assert_eq!(outcome.undone.restored, 1);
    assert_eq!(
        kernel.read("/cg/cgroup.subtree_control").unwrap(),
        "-cpuset\n"
    );
}

#[test]
fn who_is_set_back_by_himself_is_no_heir_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let stat = |pid: u32, start: u32| format!("{pid} (x) S 1{} {start} 0 0", " 0".repeat(17));
    let all = [(10, 100), (11, 200), (12, 300)].map(|(pid, start)| {
        [
            (format!("proc/{pid}/stat"), stat(pid, start)),
            (format!("proc/{pid}/oom_score_adj"), "-1000".to_owned()),
        ]
    });
    let content: Vec<(&str, &str)> = all
        .iter()
        .flatten()
        .map(|(p, t)| (p.as_str(), t.as_str()))
        .chain([("g/cgroup.procs", "10\n11\n12\n")])
        .collect();
    let kernel = files(dir.path(), &content);
    let scored = |pid, start, old| Undo::OomScore {
        task: TaskId { pid, start },
        old,
        new: -1000,
        dir: "/g".into(),
    };
    // 11 came later and had its own. 12 has it from 10 or 11, but its parent does not show which.
    let outcome = undo(&kernel, &[scored(11, 200, 300), scored(10, 100, 0)]);
    assert!(outcome.failed.is_empty() && outcome.undone.left.is_empty());
    let now = |pid| kernel.read(&format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(
        [now(10), now(11), now(12)].map(|t| t.trim().to_owned()),
        ["0", "300", "0"]
    );
}

#[test]
fn a_child_in_a_cgroup_that_is_not_utf_8_is_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let stat = |pid: u32, start: u32| format!("{pid} (x) S 1{} {start} 0 0", " 0".repeat(17));
    let all = [(10, 100), (11, 200)].map(|(pid, start)| {
        [
            (format!("proc/{pid}/stat"), stat(pid, start)),
            (format!("proc/{pid}/oom_score_adj"), "-1000".to_owned()),
        ]
    });
    let mounts = "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n";
    let content: Vec<(&str, &str)> = all
        .iter()
        .flatten()
        .map(|(p, t)| (p.as_str(), t.as_str()))
        .chain([
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "0::/\n"),
            ("cg/own/cgroup.procs", "10\n"),
            ("proc/10/cgroup", "0::/own\n"),
        ])
        .collect();
    let kernel = files(dir.path(), &content);
    let hidden = std::ffi::OsStr::from_bytes(b"b\xff");
    std::fs::create_dir(dir.path().join("cg/own").join(hidden)).unwrap();
    std::fs::write(dir.path().join("proc/11/cgroup"), b"0::/own/b\xff\n").unwrap();
    let scored = Undo::OomScore {
        task: TaskId {
            pid: 10,
            start: 100,
        },
        old: 0,
        new: -1000,
        dir: "/cg/own".into(),
    };
    let outcome = undo(&kernel, &[scored]);
    assert!(outcome.failed.is_empty() && outcome.undone.left.is_empty());
    let now = |pid| kernel.read(&format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!([now(10), now(11)], ["0\n", "0\n"]);
}

#[test]
fn what_is_left_of_an_immunity_goes_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let stat = |pid: u32| format!("{pid} (x) S 1{} {pid}00 0 0", " 0".repeat(17));
    // One was left as it is, one has raised its value, and one did so before it was immune again.
    let all = [(10, "-1000"), (11, "-300"), (12, "-200"), (13, "7")].map(|(pid, now)| {
        [
            (format!("proc/{pid}/stat"), stat(pid)),
            (format!("proc/{pid}/oom_score_adj"), now.to_owned()),
        ]
    });
    let content: Vec<(&str, &str)> = all
        .iter()
        .flatten()
        .map(|(p, t)| (p.as_str(), t.as_str()))
        .collect();
    let kernel = files(dir.path(), &content);
    let scored = |pid: u32, old| Undo::OomScore {
        task: TaskId {
            pid,
            start: u64::from(pid) * 100,
        },
        old,
        new: -1000,
        dir: String::new(),
    };
    let entries = [
        scored(10, 0),
        scored(11, 0),
        scored(12, 0),
        scored(12, -300),
        scored(13, 0),
    ];
    undo(&kernel, &entries);
    let now = [10, 11, 12, 13].map(|pid| {
        let now = kernel.read(&format!("/proc/{pid}/oom_score_adj"));
        now.unwrap().trim().to_owned()
    });
    assert_eq!(now, ["0", "0", "0", "7"]);
}

#[test]
fn an_heir_of_an_heir_and_one_of_a_subreaper_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let stat =
        |pid: u32, parent: u32| format!("{pid} (x) S {parent}{} {pid}00 0 0", " 0".repeat(17));
    // 10 has ended. 5 is a subreaper, 12 the child of an orphan, 8 began before and has its own.
    let all = [
        (5, 1, "0"),
        (8, 1, "-1000"),
        (11, 5, "-1000"),
        (12, 11, "-1000"),
        (13, 8, "-1000"),
    ];
    let all = all.map(|(pid, parent, now)| {
        [
            (format!("proc/{pid}/stat"), stat(pid, parent)),
            (format!("proc/{pid}/oom_score_adj"), now.to_owned()),
        ]
    });
    let content: Vec<(&str, &str)> = all
        .iter()
        .flatten()
        .map(|(p, t)| (p.as_str(), t.as_str()))
        .chain([("g/cgroup.procs", "8\n11\n12\n13\n")])
        .collect();
    let kernel = files(dir.path(), &content);
    let entry = Undo::OomScore {
        task: TaskId {
            pid: 10,
            start: 1000,
        },
        old: 0,
        new: -1000,
        dir: "/g".into(),
    };
    undo(&kernel, &[entry]);
    let now = [8, 11, 12, 13].map(|pid| {
        let now = kernel.read(&format!("/proc/{pid}/oom_score_adj"));
        now.unwrap().trim().to_owned()
    });
    assert_eq!(now, ["-1000", "0", "0", "-1000"]);
}

/// An interrupt that the kernel is about to move reads as it was before the last move.
#[test]
fn an_interrupt_that_just_moves_is_not_somebody_elses() {
    use quell_kernel::fake::{Fake, Flavour, Op, Spec};

    let cpus = |text: &str| text.parse::<CpuSet>().unwrap();
    let path = "/proc/irq/9/smp_affinity_list";
    for before in ["0", "0-1"] {
        let fake = Fake::new(&Spec::new(Flavour::V2));
        fake.with(|machine| machine.interrupt(9, &cpus(before), 0));
        let mut reads = 0;
        fake.meanwhile(move |machine, op, of, _| {
            if op == Op::Read && of == path {
                reads += 1;
                machine.interrupt(9, &cpus(if reads == 1 { before } else { "1" }), 0);
            }
        });
        let outcome = undo(&fake, &[write(path, "0-1", "1")]);
        fake.quiet();
        assert_eq!(outcome.undone.restored, 1, "{:?}", outcome.undone.left);
        assert_eq!(fake.read(path).unwrap().trim(), "0-1");
    }
}
