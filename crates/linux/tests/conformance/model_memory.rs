//! The model's memory, triggers and OOM scores compared with what kernels were seen to do.

use quell_kernel::fake::{Fake, Flavour, Spec};
use quell_kernel::psi::{self, Windows};
use quell_kernel::root::Files;

use crate::model::{TOP, answers, errno, fake, reads, v2};

#[test]
fn memory_is_reclaimed_and_then_killed_for() {
    let fake = v2("6.12.0");
    let files: &dyn Files = &fake;
    let a = &format!("{TOP}/a");
    let pid = fake.with(|m| m.spawn("hog"));
    files
        .write(&format!("{a}/cgroup.procs"), &pid.to_string())
        .unwrap();
    fake.with(|m| {
        m.grow(pid, 4 << 20);
        m.read_file(pid, 8 << 20);
    });
    reads(files, a, &[("memory.current", "12582912")]);
    answers(
        files,
        a,
        &[
            ("memory.reclaim", "1M", 0),
            ("memory.reclaim", "junk", libc::EINVAL),
            ("memory.reclaim", "100M", libc::EAGAIN),
            ("memory.high", "2M", 0),
            ("memory.swap.max", "0", 0),
            ("memory.max", "3M", 0),
        ],
    );
    // Its anonymous memory could not be reclaimed: it was killed, and its memory went with it.
    reads(
        files,
        a,
        &[
            ("memory.current", "0"),
            (
                "memory.events",
                "low 0\nhigh 0\nmax 0\noom 1\noom_kill 1\noom_group_kill 0",
            ),
        ],
    );
    assert_eq!(
        errno(files.read(&format!("{a}/memory.reclaim")).map(|_| ())),
        libc::EINVAL
    );
    let v1 = fake_v1_memory();
    let (files, dir): (&dyn Files, _) = (&v1.0, v1.1);
    answers(
        files,
        &dir,
        &[
            ("memory.limit_in_bytes", "2M", libc::EBUSY),
            ("memory.limit_in_bytes", "5000k", 0),
            ("memory.swappiness", "201", libc::EINVAL),
        ],
    );
    reads(files, &dir, &[("memory.limit_in_bytes", "5120000")]);
}

/// A v1 cgroup that uses 4 MiB of anonymous memory and as much of files.
fn fake_v1_memory() -> (Fake, String) {
    let fake = fake(Flavour::V1);
    let dir = "/sys/fs/cgroup/memory/a".to_owned();
    let pid = fake.with(|m| m.spawn("hog"));
    fake.mkdir(&dir).unwrap();
    fake.write(&format!("{dir}/cgroup.procs"), &pid.to_string())
        .unwrap();
    fake.with(|m| {
        m.grow(pid, 4 << 20);
        m.read_file(pid, 4 << 20);
    });
    (fake, dir)
}

#[test]
fn without_the_capability_triggers_are_long_and_scores_stay() {
    for (release, windows) in [
        ("6.12.0", Windows::TwoSeconds),
        ("6.18.0", Windows::TwoSeconds),
    ] {
        let fake = Fake::new(&Spec {
            release,
            resource: false,
            ..Spec::new(Flavour::V2)
        });
        assert_eq!(
            psi::windows(&fake, "/proc/pressure/memory"),
            windows,
            "{release}"
        );
        let pid = fake.with(|m| m.spawn("program"));
        let files: &dyn Files = &fake;
        let path = format!("/proc/{pid}/oom_score_adj");
        assert_eq!(errno(files.write(&path, "-1000")), libc::EACCES);
        assert_eq!(errno(files.write(&path, "1001")), libc::EINVAL);
        files.write(&path, "500").unwrap();
        assert_eq!(
            files.text(&format!("/proc/{pid}/oom_score")).unwrap(),
            "1000"
        );
    }
    let of = |release, resource| {
        let spec = Spec {
            release,
            resource,
            ..Spec::new(Flavour::V2)
        };
        psi::windows(&Fake::new(&spec), "/proc/pressure/io")
    };
    assert_eq!(of("6.1.0", true), Windows::HalfSecond);
    assert!(matches!(of("6.1.0", false), Windows::None(_)));
    assert_eq!(of("6.12.0", true), Windows::Any);
}
