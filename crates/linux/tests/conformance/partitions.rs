//! v2 cpusets of the model compared, step by step, with what Linux 6.12 and 6.1 were seen to do in
//! a virtual machine.

use std::collections::BTreeSet;

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::fake::{Flavour, Spec};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::confine_rest;

use crate::arms::{Held, compare, furnished};
use crate::bodies::none;
use crate::model::{TOP, answers, reads, v2};

/// One row of the recorded states: partition, effective CPUs, effective exclusive CPUs.
fn state(files: &dyn Files, group: &str) -> [String; 3] {
    [
        "cpuset.cpus.partition",
        "cpuset.cpus.effective",
        "cpuset.cpus.exclusive.effective",
    ]
    .map(|n| {
        files
            .optional(&format!("{TOP}/{group}/{n}"))
            .unwrap()
            .unwrap_or_default()
    })
}

#[test]
fn v2_partitions_become_valid_and_invalid_as_on_6_12() {
    let fake = v2("6.12.0");
    let files: &dyn Files = &fake;
    let pid = &fake.with(|m| m.spawn("program")).to_string();
    let tid: u32 = pid.parse().unwrap();
    answers(
        files,
        TOP,
        &[
            ("a/cpuset.cpus.partition", "junk", libc::EINVAL),
            ("a/cpuset.cpus.partition", "root", 0),
        ],
    );
    assert_eq!(
        state(files, "a")[0],
        "root invalid (cpuset.cpus and cpuset.cpus.exclusive are empty)"
    );
    answers(
        files,
        TOP,
        &[
            ("a/cpuset.cpus.partition", "member", 0),
            ("a/cpuset.cpus", "3", 0),
            ("a/cpuset.cpus.partition", "root", 0),
        ],
    );
    assert_eq!(state(files, "a"), ["root", "3", "3"]);
    reads(files, TOP, &[("cpuset.cpus.effective", "0-2")]);
    assert_eq!(files.affinity(tid).unwrap().to_string(), "0-2");
    answers(files, TOP, &[("a/cpuset.cpus.partition", "isolated", 0)]);
    reads(files, TOP, &[("cpuset.cpus.isolated", "3")]);
    answers(files, TOP, &[("a/cpuset.cpus.partition", "root", 0)]);
    files.mkdir(&format!("{TOP}/b")).unwrap();
    answers(files, TOP, &[("b/cpuset.cpus", "2-3", 0)]);
    assert_eq!(state(files, "a")[0], "root invalid");
    reads(files, TOP, &[("cpuset.cpus.effective", "0-3")]);
    answers(
        files,
        TOP,
        &[
            ("b/cpuset.cpus.partition", "root", 0),
            ("b/cpuset.cpus.exclusive", "3", libc::EINVAL),
            ("b/cpuset.cpus.exclusive", "2", 0),
        ],
    );
    assert_eq!(state(files, "b"), ["root", "2", "2"]);
    reads(files, TOP, &[("cpuset.cpus.effective", "0-1,3")]);
    for group in ["b", "a"] {
        files.rmdir(&format!("{TOP}/{group}")).unwrap();
    }
    reads(files, TOP, &[("cpuset.cpus.effective", "0-3")]);
}

#[test]
fn v2_remote_partitions_need_exclusive_cpus_all_the_way_down() {
    let fake = v2("6.12.0");
    let files: &dyn Files = &fake;
    let pid = &fake.with(|m| m.spawn("program")).to_string();
    files.mkdir(&format!("{TOP}/a/b")).unwrap();
    answers(
        files,
        TOP,
        &[
            ("a/cgroup.subtree_control", "+cpuset", 0),
            ("a/b/cpuset.cpus", "3", 0),
            ("a/b/cpuset.cpus.partition", "root", 0),
        ],
    );
    let refused = "root invalid (Invalid cpu list in cpuset.cpus.exclusive)";
    assert_eq!(state(files, "a/b"), [refused, "3", ""]);
    answers(
        files,
        TOP,
        &[
            ("a/b/cpuset.cpus.partition", "member", 0),
            ("a/b/cpuset.cpus.exclusive", "3", 0),
            ("a/b/cpuset.cpus.partition", "root", 0),
        ],
    );
    assert_eq!(state(files, "a/b")[0], refused, "its parent has none");
    answers(
        files,
        TOP,
        &[
            ("a/b/cpuset.cpus.partition", "member", 0),
            ("a/cpuset.cpus.exclusive", "3", 0),
        ],
    );
    assert_eq!(state(files, "a/b"), ["member", "3", "3"]);
    answers(
        files,
        TOP,
        &[
            ("a/b/cpuset.cpus.partition", "root", 0),
            ("a/b/cgroup.procs", pid, 0),
        ],
    );
    assert_eq!(
        (state(files, "a/b"), state(files, "a")),
        (
            ["root", "3", "3"].map(str::to_owned),
            ["member", "0-2", "3"].map(str::to_owned)
        )
    );
    reads(files, TOP, &[("cpuset.cpus.effective", "0-2")]);
    assert_eq!(
        files.affinity(pid.parse().unwrap()).unwrap().to_string(),
        "3"
    );
    answers(
        files,
        TOP,
        &[
            ("a/cpuset.cpus", "0-2", 0),
            ("a/cpuset.cpus", "", libc::ENOSPC),
            ("a/b/cpuset.cpus.exclusive", "", 0),
        ],
    );
    assert_eq!(state(files, "a/b"), [refused, "0-2", ""]);
    reads(files, TOP, &[("cpuset.cpus.effective", "0-3")]);
}

#[test]
fn v2_before_6_7_has_local_partitions_alone() {
    let fake = v2("6.1.0");
    let files: &dyn Files = &fake;
    assert!(!fake.exists(&format!("{TOP}/a/cpuset.cpus.exclusive")));
    files.mkdir(&format!("{TOP}/a/b")).unwrap();
    answers(
        files,
        TOP,
        &[
            ("a/cgroup.subtree_control", "+cpuset", 0),
            ("a/b/cpuset.cpus", "3", 0),
            ("a/b/cpuset.cpus.partition", "root", 0),
        ],
    );
    assert_eq!(
        state(files, "a/b")[0],
        "root invalid (Parent is not a partition root)"
    );
    answers(
        files,
        TOP,
        &[
            ("a/cpuset.cpus", "3", 0),
            ("a/cpuset.cpus.partition", "root", 0),
        ],
    );
    assert_eq!(state(files, "a")[0], "root");
    files.mkdir(&format!("{TOP}/c")).unwrap();
    answers(files, TOP, &[("c/cpuset.cpus", "2-3", 0)]);
    assert_eq!(
        state(files, "a")[0],
        "root invalid (Cpu list in cpuset.cpus not exclusive)"
    );
}

#[test]
fn what_a_task_asked_for_outlives_a_cpuset_since_6_2() {
    for (release, after) in [("6.12.0", "3"), ("6.1.0", "0-3")] {
        let fake = v2(release);
        let files: &dyn Files = &fake;
        let tid = fake.with(|m| m.spawn("program"));
        let pid = &tid.to_string();
        files.set_affinity(tid, &"3".parse().unwrap()).unwrap();
        answers(
            files,
            TOP,
            &[("a/cpuset.cpus", "1-2", 0), ("a/cgroup.procs", pid, 0)],
        );
        assert_eq!(files.affinity(tid).unwrap().to_string(), "1-2");
        answers(files, TOP, &[("cgroup.procs", pid, 0)]);
        assert_eq!(
            files.affinity(tid).unwrap().to_string(),
            after,
            "Linux {release}"
        );
    }
}

/// Threads that have pinned themselves, and one that inherits what the boot left it.
#[test]
fn affinities_of_bystanders_come_back_on_old_kernels() {
    for flavour in [Flavour::V1, Flavour::V2] {
        let fake = furnished(&Spec {
            release: "6.1.0",
            ..Spec::new(flavour)
        });
        let files: &dyn Files = &fake;
        let cgroups = Cgroups::discover(files).unwrap();
        let cpuset = cgroups.of(Controller::Cpuset).unwrap();
        let app = format!("{}/app", cpuset.mount);
        if flavour == Flavour::V2 {
            let enabled = format!("{}/cgroup.subtree_control", cpuset.mount);
            files.put(&enabled, "+cpuset").unwrap();
        }
        files.mkdir(&app).unwrap();
        let (cpus, mems) = ("cpuset.cpus", "cpuset.mems");
        for (name, all) in [(cpus, "0-3"), (mems, "0")] {
            files.put(&format!("{app}/{name}"), all).unwrap();
        }
        let pid = fake.with(|m| m.spawn("app"));
        files
            .put(&format!("{app}/cgroup.procs"), &pid.to_string())
            .unwrap();
        let threads = [pid]
            .into_iter()
            .chain((0..3).map(|_| fake.with(|m| m.thread(pid))));
        for (tid, cpu) in threads.zip(["0", "1", "2", "3"]) {
            files.set_affinity(tid, &cpu.parse().unwrap()).unwrap();
        }
        let before = fake.dump();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let keep = Keep {
            homes: &[],
            processes: &BTreeSet::from([std::process::id()]),
        };
        confine_rest(&mut writer, &cgroups, keep, &"0-2".parse().unwrap()).unwrap();
        assert_ne!(compare(&before, &fake.dump()), none(), "{flavour:?}");
        assert_eq!(held.journal.undo_all(files).left, none(), "{flavour:?}");
        assert_eq!(compare(&before, &fake.dump()), none(), "{flavour:?}");
    }
}
