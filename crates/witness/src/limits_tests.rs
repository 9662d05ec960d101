use quell_kernel::fake::{Fake, Flavour, Spec};
use quell_kernel::root::Kernel;

use super::*;

const MIB: u64 = 1 << 20;

fn quota_of(file: &str, percent: u64) -> Quota {
    Quota {
        file: file.to_owned(),
        value: String::new(),
        gets: Share::percent(percent),
    }
}

fn memory_limit(file: &str, limit: u64, used: u64, file_pages: u64) -> MemoryLimit {
    MemoryLimit {
        file: file.to_owned(),
        value: (limit * MIB).to_string(),
        limit: Bytes(limit * MIB),
        used: Bytes(used * MIB),
        file_pages: Bytes(file_pages * MIB),
        reached: Some(3),
    }
}

fn file_of(fault: Option<Fault>) -> String {
    match fault {
        Some(Fault::Limited { file, .. } | Fault::Unlimited { file, .. }) => file,
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

#[test]
fn quotas_read_as_the_kernel_writes_them() {
    assert_eq!(quota("20000 100000\n"), Some(Share::percent(20)));
    assert_eq!(quota("150000 100000"), Some(Share::percent(150)));
    for none in ["max 100000", "-1 100000", "", "5", "5 0"] {
        assert_eq!(quota(none), None, "{none}");
    }
}

#[test]
fn the_tightest_quota_counts() {
    let quotas = [
        quota_of("/a", 150),
        quota_of("/a/b", 20),
        quota_of("/a/b/c", 50),
    ];
    let of = |percent| file_of(limited(Share::percent(percent), &quotas));
    assert_eq!(of(100), "/a/b");
    assert_eq!(of(20), "", "it is what was promised");
    assert_eq!(file_of(limited(Share::percent(200), &quotas[..1])), "/a");
    assert_eq!(limited(Share::percent(100), &[]), None);
}

#[test]
fn a_limit_of_memory_counts_once_it_is_reached() {
    let before = || Reached::from([("/a".to_owned(), 2)]);
    let of = |limit| file_of(pressed(None, &[limit], &mut before()));
    assert_eq!(of(memory_limit("/a", 100, 90, 0)), "");
    assert_eq!(of(memory_limit("/a", 100, 96, 0)), "/a");
    assert_eq!(of(memory_limit("/a", 100, 100, 40)), "", "files can go");
    let own = memory_limit("/a", 100, 100, 0);
    let own = &[own];
    let promised = Some(Bytes(100 * MIB));
    assert_eq!(pressed(promised, own, &mut before()), None, "of the plan");
    // Nobody has run into it since the last look.
    let mut last = before();
    assert!(pressed(None, own, &mut last).is_some());
    assert_eq!(pressed(None, own, &mut last), None);
    assert_eq!(pressed(None, own, &mut Reached::new()), None, "first look");
}

#[test]
fn memory_is_limited_and_used_as_promised() {
    let most = Bytes(100 * MIB);
    let home = |used: u64, limit: Option<u64>| Charged {
        used: Bytes(used * MIB),
        limit: limit.map(|limit| memory_limit("/a/limit", limit, used, 0)),
        file: "/a/memory.max".to_owned(),
    };
    let judge = |homes: &[Charged]| file_of(at_most(most, homes, Bytes(0)));
    assert_eq!(judge(&[home(104, Some(100))]), "");
    assert_eq!(judge(&[home(10, Some(101))]), "/a/limit");
    assert_eq!(
        judge(&[home(10, Some(100)), home(10, None)]),
        "/a/memory.max"
    );
    let both = judge(&[home(60, Some(100)), home(60, Some(100))]);
    assert_eq!(
        both,
        "the group has 120MiB of memory, where it may have 100MiB"
    );
}

#[test]
fn files_of_both_versions_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let files = Kernel::at(dir.path());
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("v2/cpu.max", "300000 100000\n");
    put("v2/a/cpu.max", "max 100000\n");
    put("v2/a/b/cpu.max", "20000 100000\n");
    put("v1/a/cpu.cfs_quota_us", "50000\n");
    put("v1/a/cpu.cfs_period_us", "100000\n");
    let at = |mount: &str, dir: &str| Dir {
        mount: mount.to_owned(),
        dir: dir.to_owned(),
    };
    let dirs = [at("/v2", "/v2/a/b"), at("/v2", "/v2/a"), at("/v1", "/v1/a")];
    let found: Vec<(String, String)> = quotas(&files, &dirs)
        .into_iter()
        .map(|q| (q.file, q.value))
        .collect();
    let pair = |file: &str, value: &str| (file.to_owned(), value.to_owned());
    let expected = [
        pair("/v1/a/cpu.cfs_quota_us", "50000 100000"),
        pair("/v2/cpu.max", "300000 100000"),
        pair("/v2/a/b/cpu.max", "20000 100000"),
    ];
    assert_eq!(found, expected);
    put("v2/a/memory.current", "1000\n");
    put("v2/a/memory.max", "max\n");
    put("v2/a/memory.high", "5000\n");
    put("v2/a/b/memory.current", "900\n");
    put("v2/a/b/memory.max", "max\n");
    let found = charged(&files, &dirs[..1]);
    assert_eq!(found[0].used, Bytes(900));
    let limit = found[0].limit.as_ref().unwrap();
    assert_eq!(
        (limit.file.as_str(), limit.limit),
        ("/v2/a/memory.high", Bytes(5000))
    );
    put("v1/a/memory.usage_in_bytes", "900\n");
    put("v1/a/memory.limit_in_bytes", "9223372036854771712\n");
    let found = charged(&files, &dirs[2..]);
    assert_eq!((found[0].used, &found[0].limit), (Bytes(900), &None));
    assert_eq!(found[0].file, "/v1/a/memory.limit_in_bytes");
}

#[test]
fn a_limit_that_is_lifted_is_seen() {
    for flavour in [Flavour::V1, Flavour::V2] {
        let fake = Fake::new(&Spec::new(flavour));
        let files: &dyn Files = &fake;
        let (mount, file, none) = match flavour {
            Flavour::V1 => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "-1"),
            Flavour::V2 => ("/sys/fs/cgroup", "memory.max", "max"),
        };
        let dir = format!("{mount}/a");
        if flavour == Flavour::V2 {
            files
                .write(&format!("{mount}/cgroup.subtree_control"), "+memory")
                .unwrap();
        }
        files.mkdir(&dir).unwrap();
        let home = [Dir {
            mount: mount.to_owned(),
            dir: dir.clone(),
        }];
        let file = format!("{dir}/{file}");
        files.write(&file, &(64 * MIB).to_string()).unwrap();
        let judge = |mib: u64| at_most(Bytes(mib * MIB), &charged(files, &home), Bytes(0));
        assert_eq!(judge(64), None, "{flavour:?}");
        assert_eq!(file_of(judge(63)), file);
        files.write(&file, none).unwrap();
        assert_eq!(file_of(judge(64)), file);
    }
}

#[test]
fn a_cgroup_without_one_of_the_promised_cpus_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Kernel::at(folder.path());
    // The tasks of a group with brakes are in a child that has no such file.
    let homes = ["/all/work", "/less"].map(|dir| Dir {
        mount: String::new(),
        dir: dir.to_owned(),
    });
    for (home, file, cpus) in [
        ("all", "cpuset.cpus.effective", "1-4"),
        ("less", "cpuset.effective_cpus", "0-2"),
    ] {
        std::fs::create_dir_all(folder.path().join(home).join("work")).unwrap();
        std::fs::write(folder.path().join(home).join(file), cpus).unwrap();
    }
    let of = |cpus: &str| narrowed(&kernel, &homes, &cpus.parse().unwrap());
    assert_eq!(of("1-2"), None);
    let fault = of("2-3").unwrap().to_string();
    assert!(
        fault.contains("/less/cpuset.effective_cpus reads '0-2'"),
        "{fault}"
    );
    assert!(fault.contains("CPUs 2-3"), "{fault}");
    let beyond = |cpus: &str| widened(&kernel, &homes, &cpus.parse().unwrap());
    assert_eq!(beyond("0-4"), None);
    let fault = beyond("0-3").unwrap().to_string();
    assert!(
        fault.contains("/all/cpuset.cpus.effective reads '1-4'"),
        "{fault}"
    );
}
