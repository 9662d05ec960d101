//! What a user without rights tries against a Quell that runs as root (docs/threats.md).

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Done, Program, Running, SMALL, eventually, machine, quell, run, watchdog_of};
use crate::gathered::{Folder, allowed, busy};
use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::privileges;
use rustix::process::Signal;

/// A user without rights.
const NOBODY: u32 = 65_534;

/// A program of that user's, in a session of its own.
fn of_nobody(command: &mut Command) -> Program {
    command.uid(NOBODY).gid(NOBODY).process_group(0);
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Program(quiet.spawn().unwrap())
}

/// A shell of that user's that computes for ever. `words` are among its arguments.
fn busy_as_nobody(words: &str) -> Program {
    of_nobody(Command::new("sh").args(["-c", "while :; do :; done", words]))
}

/// The processes of a group in a plan.
fn planned(policy: &str, group: &str) -> Vec<u64> {
    let plan = run(&["plan", "--json", policy]).json();
    let processes = plan["processes"].as_array().cloned().unwrap_or_default();
    let own = processes.iter().filter(|p| p["group"] == group);
    own.filter_map(|p| p["pid"].as_u64()).collect()
}

#[test]
fn a_folder_of_a_units_name_that_a_user_made_is_not_the_unit() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let cpuset = cgroups.of(Controller::Cpuset).unwrap();
    let unit = Folder::new(&cpuset.mount, "hostile-of-a-test.service");
    let delegated = Folder::new(&cpuset.mount, "delegated-to-nobody");
    let theirs = delegated.0.to_str().unwrap();
    let forged = Folder::new(theirs, "hostile-of-a-test.service");
    chown(&delegated.0, Some(NOBODY), None).unwrap();
    chown(&forged.0, Some(NOBODY), None).unwrap();
    let (service, hostile) = (busy(), busy_as_nobody("x"));
    unit.take(service.pid());
    forged.take(hostile.pid());
    machine.remember();
    let policy = |more: &str| {
        let text = format!(
            "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\n\
            match = [{{ unit = 'hostile-of-a-test.service'{more} }}]\n"
        );
        machine.file("policy.toml", &text)
    };
    let held = Running::start(quell().args(["run", &policy("")]));
    eventually("the unit has a CPU to itself", || {
        allowed(service.pid()).len() == 1 && allowed(service.pid()) != allowed(hostile.pid())
    });
    held.signal(Signal::TERM);
    let done = held.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(planned(&policy(""), "a"), [u64::from(service.pid())]);
    // Of that user's manager it is.
    let by_user = policy(", user = '65534'");
    assert_eq!(planned(&by_user, "a"), [u64::from(hostile.pid())]);
    machine.unchanged("after the run");
    drop((service, hostile));
}

#[test]
fn a_program_in_its_own_mounts_is_not_that_of_the_path() {
    let Some(machine) = machine() else {
        return;
    };
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(machine.folder.path(), open).unwrap();
    let genuine = machine.path("genuine");
    fs::copy("/bin/sleep", &genuine).unwrap();
    let evil = machine.path("evil");
    fs::copy("/bin/sleep", &evil).unwrap();
    let own = Program::start(&[genuine.to_str().unwrap(), "1000"]);
    let script = r#"mount --bind "$1" "$2" && exec "$2" 1000"#;
    let hostile = of_nobody(
        Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
            .args([&evil, &genuine]),
    );
    let text = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\nmatch = [{{ exe = '{}' }}]\n",
        genuine.display()
    );
    let policy = machine.file("policy.toml", &text);
    let runs = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let mut refused = false;
    eventually("it runs what it has mounted", || {
        refused = runs(hostile.pid()) == Path::new("");
        refused || runs(hostile.pid()) == genuine
    });
    if refused {
        return quell_testing::skip("no user namespaces for users");
    }
    assert_eq!(planned(&policy, "a"), [u64::from(own.pid())]);
    // An upgrade replaces the file of a program that runs.
    let newer = machine.path("newer");
    fs::copy("/bin/sleep", &newer).unwrap();
    fs::rename(&newer, &genuine).unwrap();
    assert_eq!(planned(&policy, "a"), [u64::from(own.pid())]);
}

#[test]
fn a_run_keeps_few_rights_and_what_it_starts_has_all() {
    let Some(mut machine) = machine() else {
        return;
    };
    let rights = |status: &str| {
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        [
            of("CapEff:"),
            of("CapPrm:"),
            of("CapBnd:"),
            of("NoNewPrivs:"),
            of("Seccomp:"),
        ]
    };
    let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let [all, _, bounds, ..] = rights(&status(std::process::id()));
    let kept = privileges::HOLDING.bits();
    let own = busy();
    machine.remember();
    let group = "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\n";
    let matching = format!("{group}match = [{{ pid = {} }}]\n", own.pid());
    let policy = machine.file("policy.toml", &matching);
    let held = Running::start(quell().args(["run", &policy]));
    eventually("the program has a CPU", || allowed(own.pid()).len() == 1);
    let few = [all & kept, all & kept, bounds & kept, 1, 2];
    assert_eq!(rights(&status(held.pid())), few);
    let watchdog = watchdog_of(held.pid()).unwrap();
    assert_eq!(rights(&status(watchdog))[3..], [1, 2]);
    held.signal(Signal::TERM);
    let done = held.wait();
    assert_eq!(done.code, 0, "{done:?}");
    let policy = machine.file("policy.toml", group);
    let done = run(&["run", &policy, "--", "cat", "/proc/self/status"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(rights(&done.out), rights(&status(std::process::id())));
    machine.unchanged("after the runs");
    drop(own);
}

/// Whoever reads arguments waits for a CPU then, and for no program.
#[test]
fn busy_programs_keep_nobody_from_being_matched() {
    let Some(mut machine) = machine() else {
        return;
    };
    let own = Program::start(&[
        "sh",
        "-c",
        "while :; do sleep 0.01; done",
        "hostile-critical",
    ]);
    let busy: Vec<Program> = (0..60)
        .map(|n| busy_as_nobody(&format!("busy-{n}")))
        .collect();
    machine.remember();
    let policy = "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\n\
        match = [{ arg = 'hostile-critical' }]\n";
    let policy = machine.file("policy.toml", policy);
    let held = Running::start(quell().args(["run", &policy]));
    eventually("the program has a CPU", || allowed(own.pid()).len() == 1);
    held.signal(Signal::TERM);
    let done = held.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.err.contains("arguments wait"), "{done:?}");
    machine.unchanged("after the run");
    drop(busy);
}

#[test]
fn a_program_of_two_groups_is_in_neither_and_stops_nothing() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (own, first) = (busy(), busy_as_nobody("hostile-one hostile-two"));
    let one = busy_as_nobody("hostile-one");
    machine.remember();
    let group = |name: &str| {
        format!(
            "[group.{name}]\nrole = 'best-effort'\nlimit.cpu-time = '50%'\n\
            match = [{{ arg = 'hostile-{name}' }}]\n"
        )
    };
    let critical = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\nmatch = [{{ pid = {} }}]\n",
        own.pid()
    );
    let policy = machine.file("policy.toml", &(critical + &group("one") + &group("two")));
    let held = Running::start(quell().args(["run", &policy]));
    let home = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    eventually("the others are held", || {
        allowed(own.pid()).len() == 1 && home(one.pid()).contains("/quell-one.slice")
    });
    assert!(
        !home(first.pid()).contains("/quell-one.slice")
            && !home(first.pid()).contains("/quell-two.slice")
    );
    let second = busy_as_nobody("hostile-two hostile-one");
    let later = busy_as_nobody("hostile-two");
    eventually("who comes later is found", || {
        home(later.pid()).contains("/quell-two.slice")
    });
    std::thread::sleep(std::time::Duration::from_millis(2500));
    held.signal(Signal::TERM);
    let done = held.wait();
    assert_eq!(done.code, 0, "{done:?}");
    let named = |pid: u32| {
        let text = format!("process {pid} (sh) is matched by two groups, one and two");
        let all = format!("{}{}", done.out, done.err).replace("\n", " ");
        all.matches(&text).count()
    };
    assert!((1..=2).contains(&named(first.pid())), "{done:?}");
    assert_eq!(named(second.pid()), 1, "{done:?}");
    // Processes of several users that are matched by what they say of themselves.
    let mine = Program::start(&["sh", "-c", "while :; do :; done", "hostile-two"]);
    let plan = run(&["plan", &policy]);
    assert!(
        plan.out
            .replace("\n", " ")
            .contains("group two has processes of users 0, 65534"),
        "{plan:?}"
    );
    drop(mine);
    // A critical group with no other process is refused, and the two groups are named.
    let only = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\nmatch = [{{ arg = '{0}' }}]\n\
        [group.b]\nrole = 'best-effort'\nmatch = [{{ arg = '{0}$' }}]\n",
        "hostile-one"
    );
    let only = machine.file("only.toml", &only);
    drop((first, second, later));
    let refused = run(&["run", &only]);
    refused.fails(
        2,
        &[
            "is matched by two groups, a and b",
            "group a has no other process",
        ],
    );
    machine.unchanged("after the runs");
}

/// Commands that write a file, with the option that names it last.
fn writers() -> Vec<Vec<String>> {
    let own = std::process::id();
    let all = [
        format!("init --critical pid={own} --no-probe --force --out"),
        format!("run --critical pid={own} --save"),
        "doctor --capture".to_owned(),
        "bench ladder --save".to_owned(),
    ];
    let words = all
        .iter()
        .map(|line| line.split(' ').map(str::to_owned).collect());
    words.collect()
}

fn told(words: &[String], path: &Path) -> Done {
    Running::start(quell().args(words).arg(path)).wait()
}

#[test]
fn nothing_is_written_through_a_folder_or_link_of_another_user() {
    let Some(machine) = machine() else {
        return;
    };
    let theirs = machine.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), None).unwrap();
    let target = PathBuf::from(machine.file("target", "as it was"));
    symlink(&target, machine.path("link")).unwrap();
    for words in writers() {
        let refused = told(&words, &theirs.join("out"));
        refused.fails(1, &["belongs to user 65534", "root"]);
        let refused = told(&words, &machine.path("link"));
        refused.fails(1, &["is a link"]);
    }
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(&target).unwrap(), "as it was");
}

#[test]
fn a_record_with_links_is_neither_read_nor_written_through_them() {
    let Some(machine) = machine() else {
        return;
    };
    let record = machine.path("record");
    let out = record.to_str().unwrap();
    let experiment = machine.file("small.toml", SMALL);
    let done = run(&["compare", &experiment, "--rounds", "1", "--out", out]);
    assert_eq!(done.code, 0, "{done:?}");
    let record = fs::read_dir(&record)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let target = PathBuf::from(machine.file("target", "as it was"));
    let page = record.join("report.html");
    fs::remove_file(&page).unwrap();
    symlink(&target, &page).unwrap();
    run(&["report", record.to_str().unwrap()]).fails(1, &["is a link"]);
    assert_eq!(fs::read_to_string(&target).unwrap(), "as it was");
    // A record to go on with, whose samples lead elsewhere: they would be removed.
    fs::remove_file(&page).unwrap();
    let elsewhere = machine.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("kept"), "x").unwrap();
    fs::remove_file(record.join("results.json")).unwrap();
    fs::remove_dir_all(record.join("samples")).unwrap();
    symlink(&elsewhere, record.join("samples")).unwrap();
    let resumed = run(&["compare", &experiment, "--resume", record.to_str().unwrap()]);
    assert_ne!(resumed.code, 0, "{resumed:?}");
    assert!(elsewhere.join("kept").exists());
    let events = record.join("events.jsonl");
    fs::rename(&events, machine.path("events")).unwrap();
    symlink("/etc/shadow", &events).unwrap();
    let read = run(&["report", "--text", record.to_str().unwrap()]);
    assert_ne!(read.code, 0, "{read:?}");
    assert!(read.err.contains("is a link"), "{}", read.err);
}

#[test]
fn policies_without_an_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    run(&["plan", "/dev/zero"]).fails(2, &["more than the 4 MiB"]);
    let pipe = folder.path().join("a\x1b[2Jb\nc.toml");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, 0o600.into(), 0).unwrap();
    let done = run(&["plan", pipe.to_str().unwrap()]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(
        !done.err.contains('\x1b') && done.err.contains("a?[2Jb?c.toml"),
        "{}",
        done.err
    );
    let tables = "{ comm = 'x' }, ".repeat(50_000);
    let many = format!("quell = 1\n[group.a]\nrole = 'critical'\nmatch = [{tables}]\n");
    let file = folder.path().join("many.toml");
    fs::write(&file, many).unwrap();
    run(&["plan", file.to_str().unwrap()]).fails(2, &["50000 tables", "at most 1000"]);
}
