//! Tests of which tasks belong to which group.

use super::*;
use crate::identity::unescaped;
use crate::reading::tests::Slowly;
use crate::root::Kernel;
use std::path::Path;
use std::time::Duration;

fn process(root: &Path, pid: u32, parent: u32, comm: &str, args: &str, cgroup: &str) {
    let dir = root.join(format!("proc/{pid}"));
    std::fs::create_dir_all(&dir).unwrap();
    let stat = format!("{pid} ({comm}) S {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid}00 0 0");
    std::fs::write(dir.join("stat"), stat).unwrap();
    std::fs::write(dir.join("cmdline"), args.replace(' ', "\0") + "\0").unwrap();
    std::fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    std::fs::write(
        dir.join("status"),
        format!("Tgid:\t{pid}\nUid:\t0\t{}\t0\t0\n", 1000),
    )
    .unwrap();
}

fn machine() -> (tempfile::TempDir, Kernel) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let base = 4_000_000;
    process(root, base + 1, 1, "init", "init", "/");
    process(root, base + 10, base + 1, "shell", "bash", "/user.slice");
    process(
        root,
        base + 11,
        base + 10,
        "python3",
        "python3 detect.py",
        "/user.slice",
    );
    process(
        root,
        base + 12,
        base + 11,
        "helper",
        "helper",
        "/user.slice",
    );
    process(
        root,
        base + 20,
        base + 1,
        "dockerd",
        "x",
        "/system.slice/docker-0123456789abcdef.scope/inner",
    );
    std::fs::create_dir_all(root.join("proc/self")).unwrap();
    std::fs::write(root.join("proc/self/cgroup"), "0::/\n").unwrap();
    let mounts = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    std::fs::write(root.join("proc/self/mountinfo"), mounts).unwrap();
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/:\nvision:x:1000:1000::/:\n",
    )
    .unwrap();
    let kernel = Kernel::at(root);
    (dir, kernel)
}

fn found(kernel: &Kernel, groups: &[(&str, &[TaskMatch])]) -> Result<BTreeMap<String, Vec<u32>>> {
    let matchers: Vec<Matcher> = groups
        .iter()
        .map(|(name, tables)| Matcher::new(kernel, name, tables))
        .collect::<Result<_>>()?;
    present(kernel, &matchers, &BTreeSet::new())?;
    let mut assigned = assign(kernel, &matchers, &BTreeSet::new(), &mut || {})?;
    let mut pids = |name: &str| {
        let tasks = assigned.take(name).into_iter();
        tasks.map(|task| task.id.pid - 4_000_000).collect()
    };
    Ok(groups
        .iter()
        .map(|(name, _)| ((*name).to_owned(), pids(name)))
        .collect())
}

fn by(f: impl FnOnce(&mut TaskMatch)) -> TaskMatch {
    let mut keys = TaskMatch::default();
    f(&mut keys);
    keys
}

#[test]
fn children_follow_their_parent_unless_matched_themselves() {
    let (_dir, kernel) = machine();
    let shell = by(|m| m.comm = Some("shell".into()));
    let detect = by(|m| {
        m.arg = Some("detect\\.py$".into());
        m.user = Some("vision".into());
    });
    let groups = found(&kernel, &[("a", &[shell]), ("b", &[detect])]).unwrap();
    assert_eq!(groups["a"], [10]);
    assert_eq!(groups["b"], [11, 12]);
}

#[test]
fn who_lets_readers_wait_stays_in_its_group_or_is_named() {
    let (dir, kernel) = machine();
    let pid = 4_000_500;
    process(dir.path(), pid, 1, "late", "late worker", "/user.slice");
    let slowly = Slowly {
        kernel: kernel.clone(),
        pid,
        wait: Duration::ZERO,
        errno: Some(libc::ETIMEDOUT),
        ends: None,
    };
    let matcher = |name, table: TaskMatch| Matcher::new(&kernel, name, &[table]).unwrap();
    let worker = matcher("by-arg", by(|m| m.arg = Some("worker".into())));
    let found = |files: &dyn Files, groups: &[Matcher]| {
        let assigned = assign(files, groups, &BTreeSet::new(), &mut || {}).unwrap();
        let pids = assigned.of("by-arg").iter().map(|t| t.id.pid);
        (pids.collect::<Vec<_>>(), assigned.left_out)
    };
    let by_arg = [worker];
    let (pids, out) = found(&slowly, &by_arg);
    assert_eq!((pids, out.len()), (Vec::new(), 1));
    assert!(
        out[0]
            .to_string()
            .starts_with("process 4000500 (late) lets whoever reads its arguments wait")
    );
    assert_eq!(found(&kernel, &by_arg), (vec![pid], Vec::new()));
    assert_eq!(found(&slowly, &by_arg), (vec![pid], Vec::new()));
    // Who is known by a fact is not asked.
    let [worker] = by_arg;
    let user = matcher("by-user", by(|m| m.user = Some("vision".into())));
    assert_eq!(found(&slowly, &[worker, user]), (Vec::new(), Vec::new()));
}

#[test]
fn a_task_in_two_groups_is_in_neither_and_the_rest_are_found() {
    let (_dir, kernel) = machine();
    let matcher = |name, table: TaskMatch| Matcher::new(&kernel, name, &[table]).unwrap();
    let groups = [
        matcher("a", by(|m| m.arg = Some("detect|bash".into()))),
        matcher("b", by(|m| m.comm = Some("python3".into()))),
    ];
    let mut assigned = assign(&kernel, &groups, &BTreeSet::new(), &mut || {}).unwrap();
    let pids = |tasks: Vec<Stat>| {
        let pids = tasks.iter().map(|t| t.id.pid - 4_000_000);
        pids.collect::<Vec<_>>()
    };
    assert_eq!(pids(assigned.take("a")), [10]);
    // What the one in two has begun is in none either.
    assert_eq!(pids(assigned.take("b")), [0; 0]);
    let [two] = assigned.left_out.as_slice() else {
        panic!("{:?}", assigned.left_out);
    };
    assert_eq!(
        two.to_string(),
        "process 4000011 (python3) is matched by two groups, a and b, and is in neither; make one of their match \
         tables narrower"
    );
    let fit = |groups: &[Matcher], pid: u32| matched(&kernel, groups, 4_000_000 + pid).unwrap();
    assert_eq!(fit(&groups, 11), Fit::Two(two.clone()));
    assert_eq!(fit(&groups, 10), Fit::Group("a".into()));
    assert_eq!(fit(&groups, 99), Fit::None);
    // Who says to be of two groups, or of another one, does not leave that of a fact.
    let [a, b] = groups;
    let fact = matcher("c", by(|m| m.user = Some("vision".into())));
    let groups = [a, b, fact];
    assert_eq!(fit(&groups, 11), Fit::Group("c".into()));
}

#[test]
fn a_number_means_the_process_that_had_it() {
    let (_dir, kernel) = machine();
    let own = Matcher::new(&kernel, "a", &[by(|m| m.pid = Some(4_000_011))]).unwrap();
    let stat = procfs::stat(&kernel, 4_000_011).unwrap().unwrap();
    let fits = |start| {
        let pin = TaskId { start, ..stat.id };
        let again = Matcher::new(&kernel, "a", &[by(|m| m.pid = Some(4_000_011))]).unwrap();
        let pinned = again.pinned(&BTreeMap::from([(pin.pid, pin)]));
        matched(&kernel, &[pinned], 4_000_011).unwrap()
    };
    assert_eq!(
        matched(&kernel, &[own], 4_000_011).unwrap(),
        Fit::Group("a".into())
    );
    assert_eq!(fits(stat.id.start), Fit::Group("a".into()));
    assert_eq!(fits(stat.id.start + 1), Fit::None);
}

#[test]
fn a_program_with_the_rights_of_a_user_is_not_that_users() {
    assert!(is_of([0; 3], 0) && is_of([7; 3], 7));
    assert!(
        is_of([0, 7, 0], 7),
        "a service that has put its rights aside"
    );
    assert!(!is_of([7, 0, 0], 0) && !is_of([7, 8, 8], 8) && !is_of([0; 3], 7));
}

#[test]
fn a_pid_that_is_gone_is_an_error_and_no_match_is_not() {
    let (_dir, kernel) = machine();
    let gone = by(|m| m.pid = Some(4_000_099));
    let error = found(&kernel, &[("a", &[gone])]).unwrap_err().to_string();
    assert_eq!(error, "group a: there is no process 4000099 (any more)");
    let nobody = by(|m| m.exe = Some("/no/such".into()));
    assert!(found(&kernel, &[("a", &[nobody])]).unwrap()["a"].is_empty());
}

#[test]
fn the_arguments_of_a_caller_are_no_match() {
    let (_dir, kernel) = machine();
    let all = procfs::processes(&kernel).unwrap();
    let found = |keys: TaskMatch, callers: &[u32]| {
        let matcher = Matcher::new(&kernel, "g", &[keys]).unwrap();
        matcher.matches_any(&kernel, &all, callers).unwrap()
    };
    let arg = || by(|m| m.arg = Some("detect".into()));
    assert!(found(arg(), &[4_000_010]));
    assert!(!found(arg(), &[4_000_010, 4_000_011]));
    assert!(found(by(|m| m.comm = Some("python3".into())), &[4_000_011]));
    assert!(!found(by(|m| m.comm = Some("gone".into())), &[]));
}

#[test]
fn an_executable_is_known_by_any_of_its_names() {
    let (dir, kernel) = machine();
    let link = |target: &str, name: &str| {
        let at = dir.path().join(name);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, at).unwrap();
    };
    link("usr/bin", "bin");
    link("redis-check-rdb", "usr/bin/redis-server");
    link("/usr/bin/../bin/redis-server", "opt/server");
    link("round", "usr/bin/round");
    let of = |path| resolved(&kernel, path);
    assert_eq!(of("/bin/redis-server"), "/usr/bin/redis-check-rdb");
    assert_eq!(of("/opt/server"), "/usr/bin/redis-check-rdb");
    assert_eq!(of("/usr/bin/gone"), "/usr/bin/gone");
    assert_eq!(of("/bin/round"), "/usr/bin/round", "no way out of a circle");
}

#[test]
fn a_container_is_found_by_the_beginning_of_its_id() {
    let (_dir, kernel) = machine();
    let tables = [by(|m| m.container = Some("0123456789ab".into()))];
    assert_eq!(found(&kernel, &[("c", &tables)]).unwrap()["c"], [20]);
    let matcher = Matcher::new(&kernel, "c", &tables).unwrap();
    let tasks = assign(&kernel, &[matcher], &BTreeSet::new(), &mut || {})
        .unwrap()
        .take("c");
    let dirs = cgroups_of(&kernel, &tables, &tasks).unwrap();
    assert_eq!(
        dirs.into_iter().collect::<Vec<_>>(),
        ["/system.slice/docker-0123456789abcdef.scope"]
    );
}

#[test]
fn the_monitor_of_a_container_is_not_the_container() {
    let within = |path: &str| {
        let keys = by(|m| m.container = Some("0123456789ab".into()));
        in_cgroup(&keys, path)
    };
    assert!(within("/machine.slice/libpod-0123456789abcdef.scope"));
    assert!(within(
        "/machine.slice/libpod-0123456789abcdef.scope/container"
    ));
    assert!(!within(
        "/machine.slice/libpod-conmon-0123456789abcdef.scope"
    ));
    assert!(!within("/machine.slice/crio-conmon-0123456789abcdef.scope"));
}

#[test]
fn a_unit_is_found_by_both_spellings_of_its_name() {
    let path = r"/user.slice/app-gnome-firefox\x2dw-2504.scope";
    for name in [
        r"app-gnome-firefox\x2dw-2504.scope",
        "app-gnome-firefox-w-2504.scope",
    ] {
        let keys = by(|m| m.unit = Some(name.into()));
        assert!(in_cgroup(&keys, path), "{name}");
    }
    assert_eq!(unescaped(r"a\x2db\x2fc"), "a-b/c");
    // What is no escape stays.
    for odd in [r"a\x", r"a\xg0", r"a\xff", r"a\x2"] {
        assert_eq!(unescaped(odd), odd);
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let (_dir, kernel) = machine();
    let refused = |keys: TaskMatch| Matcher::new(&kernel, "g", &[keys]).unwrap_err().to_string();
    assert!(refused(TaskMatch::default()).contains("match everything"));
    assert!(refused(by(|m| m.arg = Some("(".into()))).contains("not a regular expression"));
    assert!(refused(by(|m| m.user = Some("nobody-here".into()))).contains("no user"));
    assert!(refused(by(|m| m.container = Some("0123".into()))).contains("too short"));
    let mixed = by(|m| {
        m.unit = Some("x.service".into());
        m.comm = Some("x".into());
    });
    assert!(refused(mixed).contains("changed in place"));
}

#[test]
fn a_long_command_is_compared_by_its_first_15_bytes() {
    let (dir, kernel) = machine();
    process(dir.path(), 4_000_030, 1, "a-very-long-com", "x", "/");
    let keys = by(|m| m.comm = Some("a-very-long-command".into()));
    assert_eq!(found(&kernel, &[("g", &[keys])]).unwrap()["g"], [30]);
}
