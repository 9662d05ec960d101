//! Crashes of the main process, of the watchdog and of both, at every boundary. Afterwards the
//! machine is as before.
//!
//! The program plays all three parts. Without arguments it runs the tests. `main …` is a process
//! that changes the machine and holds. `__watchdog DIR` is its watchdog.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;

use common::{Picture, Program, eventually, header, machine};
use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::root::{Files, Kernel};
use quell_kernel::tasks::{Matcher, assign};
use quell_kernel::{procfs, rt};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::{confine, confine_rest};
use quell_linux::enforce::{cpumax, quiet};
use quell_linux::group_cgroups::GroupCgroups;
use quell_linux::journal::{self, Journal};
use quell_linux::lease::Lease;
use quell_linux::lock::{Lock, make_dir};
use quell_linux::watchdog::{self, Health};
use quell_linux::{fault, restore};
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskMatch;
use quell_types::units::{Nanos, Share};
use rustix::process::Signal;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("__watchdog") => match watchdog::run(Path::new(&arguments[2])) {
            Ok(_) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        Some("main") => {
            fault::arm_from_environment();
            hold(
                Path::new(&arguments[2]),
                arguments[3].parse().unwrap(),
                arguments[4] == "rest",
            );
            ExitCode::SUCCESS
        }
        Some("--list") => {
            let all = TESTS
                .iter()
                .filter(|_| !arguments.iter().any(|a| a == "--ignored"));
            all.for_each(|(name, _)| println!("{LIVE}{name}: test"));
            ExitCode::SUCCESS
        }
        _ => {
            let filter = arguments.iter().skip(1).find(|a| !a.starts_with('-'));
            run_tests(filter.map(|f| f.strip_prefix(LIVE).unwrap_or(f)))
        }
    }
}

type Test = fn(&Kernel);

/// Says that they change the machine.
const LIVE: &str = "live::";

const TESTS: [(&str, Test); 11] = [
    ("a_run_that_ends_by_itself_leaves_nothing", ends_by_itself),
    ("a_killed_main_process_is_undone_for", killed),
    ("a_stopped_main_process_loses_its_run_and_says_so", stopped),
    ("a_dead_watchdog_is_noticed_and_replaced", watchdog_killed),
    ("when_both_die_restore_suffices", both_killed),
    (
        "a_watchdog_that_dies_while_undoing_leaves_the_rest_to_restore",
        watchdog_dies_undoing,
    ),
    (
        "a_second_run_is_refused_while_the_first_is_undone",
        second_run_refused,
    ),
    (
        "a_kill_of_the_whole_cgroup_does_not_reach_the_watchdog",
        cgroup_killed,
    ),
    (
        "a_run_whose_journal_was_removed_is_undone_by_the_watchdogs_copy",
        journal_removed,
    ),
    ("a_watchdog_keeps_the_rights_that_it_needs", few_rights),
    ("a_kill_at_every_boundary_leaves_nothing", every_boundary),
];

/// Runs the tests as Rust's test harness would: one after the other, failures collected.
fn run_tests(filter: Option<&str>) -> ExitCode {
    let Some((kernel, _lock)) = machine() else {
        return ExitCode::SUCCESS;
    };
    let mut failed = 0;
    for (name, test) in TESTS
        .iter()
        .filter(|(name, _)| filter.is_none_or(|f| name.contains(f)))
    {
        let before = Picture::take(&kernel);
        let result = std::panic::catch_unwind(|| test(&kernel));
        let differences = before.differences(&kernel);
        let passed = result.is_ok() && differences.is_empty();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        for difference in &differences {
            println!("    {difference}");
        }
        failed += u32::from(!passed);
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The main process: makes every change there is, holds while its input is open, reverts, and ends.
/// It prints `holding`, `respawned` and `revoked`.
fn hold(run_root: &Path, subject: u32, with_rest: bool) {
    let kernel = Kernel::new().unwrap();
    let lock = Lock::acquire(run_root, "run test").unwrap();
    let dir = run_root.join("test");
    make_dir(&dir).unwrap();
    let mut journal = Journal::create(&dir, header(&kernel)).unwrap();
    let lease = Arc::new(Lease::create(&dir, 2, rt::now()).unwrap());
    journal.bind(Arc::clone(&lease));
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let spec = || watchdog::Spec {
        program: "/proc/self/exe".into(),
        arguments: vec!["__watchdog".into()],
        dir: &dir,
        lock: &lock,
        lease: &lease,
    };
    let mut writer = JournaledWriter::new(&kernel, &mut journal);
    let mut watching = watchdog::spawn(&mut writer, &cgroups, &spec()).unwrap();
    change(&mut writer, &cgroups, subject, with_rest);
    say(&format!("holding {}", watching.pid()));
    let mut input = [PollIn::new(0)];
    loop {
        lease.beat(rt::now());
        if lease.is_revoked() {
            say("revoked");
            break;
        }
        if let Health::Died(_) = watching.check() {
            let mut writer = JournaledWriter::new(&kernel, &mut journal);
            watching = watchdog::spawn(&mut writer, &cgroups, &spec()).unwrap();
            say(&format!("respawned {}", watching.pid()));
        }
        if PollIn::ready(&mut input) {
            break;
        }
    }
    let undone = journal.undo_all(&kernel);
    assert!(undone.left.is_empty(), "{undone:?}");
    lease.release();
    watching.finish().unwrap();
    restore::close(journal, &dir).unwrap();
}

/// Standard input to wait for, 50 ms at a time.
struct PollIn(libc::pollfd);

impl PollIn {
    fn new(fd: i32) -> Self {
        Self(libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
    }

    fn ready(fds: &mut [Self; 1]) -> bool {
        // SAFETY: one valid pollfd, exclusively borrowed for the call.
        unsafe { libc::poll(&raw mut fds[0].0, 1, 50) > 0 }
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

fn change(writer: &mut JournaledWriter<'_>, cgroups: &Cgroups, subject: u32, with_rest: bool) {
    let online = quell_kernel::topology::online(writer.files).unwrap();
    let first = CpuSet::from_iter(online.first());
    let others = online.difference(&first);
    let controllers = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];
    let group_cgroups = GroupCgroups::create(writer, cgroups, "quell-test", &controllers).unwrap();
    let mut find = |files: &dyn Files| {
        let keys = TaskMatch {
            pid: Some(subject),
            ..TaskMatch::default()
        };
        let matcher = Matcher::new(files, "quell-test", &[keys])?;
        Ok(assign(files, &[matcher], &BTreeSet::new(), &mut || {})?.take("quell-test"))
    };
    group_cgroups.gather(writer, &mut find).unwrap();
    confine(
        writer,
        cgroups,
        &group_cgroups,
        &first,
        &"0".parse().unwrap(),
        true,
        &[],
    )
    .unwrap();
    cpumax::limit(
        writer,
        cgroups,
        &group_cgroups,
        Share::percent(30),
        Nanos::millis(10),
    )
    .unwrap();
    quiet::interrupts(writer, &first, &others).unwrap();
    quiet::kernel_work(writer, &others).unwrap();
    if with_rest {
        let processes = BTreeSet::from([std::process::id()]);
        let keep = Keep {
            homes: &[&group_cgroups],
            processes: &processes,
        };
        confine_rest(writer, cgroups, keep, &others).unwrap();
    }
}

/// A main process under test, and the program that it changes.
struct Run {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    _subject: Program,
    root: PathBuf,
    _folder: tempfile::TempDir,
}

impl Run {
    fn start(what: &str, environment: &[(&str, String)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("quell");
        let subject = Program::start(&["sleep", "600"]);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("main")
            .arg(&root)
            .arg(subject.pid().to_string())
            .arg(what)
            .envs(environment.iter().map(|(k, v)| (*k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        Self {
            child,
            input,
            output,
            _subject: subject,
            root,
            _folder: folder,
        }
    }

    /// Waits for a line `WORD NUMBER` and returns the number.
    fn hears(&mut self, word: &str) -> u32 {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let (said, number) = line.trim().split_once(' ').unwrap_or((line.trim(), "0"));
        assert_eq!(said, word);
        number.parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }

    /// Waits until the folder is gone and the lock is free: the watchdog has finished.
    fn undone(&self) {
        eventually("the run is undone", || {
            restore::folders(&self.root).unwrap().is_empty()
                && Lock::acquire(&self.root, "test").is_ok()
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        eventually("the watchdog goes", || {
            Lock::acquire(&self.root, "test").is_ok()
        });
        let kernel = Kernel::new().unwrap();
        let left = restore::restore(&kernel, &self.root).unwrap();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left to restore: {left:?}");
        }
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn ends_by_itself(_: &Kernel) {
    let mut run = Run::start("rest", &[]);
    run.hears("holding");
    drop(run.input.take());
    assert!(run.child.wait().unwrap().success());
    assert!(!run.root.join("test").exists());
}

fn killed(kernel: &Kernel) {
    let before = Picture::take(kernel);
    let mut run = Run::start("rest", &[]);
    run.hears("holding");
    assert!(
        !before.differences(kernel).is_empty(),
        "the machine was changed"
    );
    run.signal(Signal::KILL);
    run.child.wait().unwrap();
    run.undone();
    assert_eq!(before.differences(kernel), Vec::<String>::new());
}

fn stopped(kernel: &Kernel) {
    let before = Picture::take(kernel);
    let mut run = Run::start("rest", &[]);
    let watchdog = run.hears("holding");
    run.signal(Signal::STOP);
    // The process is still stopped and alive, and nothing of the run is left (even the watchdog's
    // own cgroup may be gone).
    eventually("undone while stopped", || {
        before.differences(kernel).is_empty()
    });
    let state = procfs::stat(kernel, run.child.id()).unwrap().unwrap().state;
    assert_eq!(
        state, 'T',
        "what was stopped by somebody else is not continued"
    );
    assert!(
        procfs::stat(kernel, watchdog)
            .unwrap()
            .is_some_and(|s| !s.dead()),
        "it stays until the process ends"
    );
    run.signal(Signal::CONT);
    run.hears("revoked");
    assert!(
        run.child.wait().unwrap().success(),
        "the main process undoes, too, and ends in good order"
    );
    run.undone();
}

fn watchdog_killed(kernel: &Kernel) {
    let before = Picture::take(kernel);
    let mut run = Run::start("rest", &[]);
    let first = run.hears("holding");
    send(first, Signal::KILL);
    let second = run.hears("respawned");
    assert_ne!(first, second);
    run.signal(Signal::KILL);
    run.child.wait().unwrap();
    run.undone();
    assert_eq!(before.differences(kernel), Vec::<String>::new());
}

/// No others come back by what it might execute.
fn few_rights(_: &Kernel) {
    // CAP_DAC_OVERRIDE, KILL, IPC_LOCK, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_NICE, SYS_RESOURCE.
    let kept = [1, 5, 14, 17, 19, 21, 23, 24];
    let kept: u64 = kept.iter().map(|bit| 1 << bit).sum();
    let mut run = Run::start("rest", &[]);
    let watchdog = run.hears("holding");
    let status = fs::read_to_string(format!("/proc/{watchdog}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let bits = |name: &str| u64::from_str_radix(field(name).unwrap().trim(), 16).unwrap();
    for set in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:"] {
        assert_eq!(bits(set) & !kept, 0, "{status}");
    }
    assert_ne!(bits("CapEff:"), 0, "{status}");
    assert_eq!(field("NoNewPrivs:").map(str::trim), Some("1"));
    drop(run.input.take());
    assert!(run.child.wait().unwrap().success());
}

fn both_killed(kernel: &Kernel) {
    let before = Picture::take(kernel);
    let mut run = Run::start("rest", &[]);
    let watchdog = run.hears("holding");
    // Stopped first, so that it cannot start another watchdog in between.
    run.signal(Signal::STOP);
    send(watchdog, Signal::KILL);
    run.signal(Signal::KILL);
    run.child.wait().unwrap();
    eventually("the lock is free", || {
        Lock::acquire(&run.root, "test").is_ok()
    });
    assert!(
        !before.differences(kernel).is_empty(),
        "nobody has undone it"
    );
    let done = restore::restore(kernel, &run.root).unwrap();
    assert!(
        done.len() == 1 && done[0].complete && done[0].undone.restored > 0,
        "{done:?}"
    );
    assert_eq!(before.differences(kernel), Vec::<String>::new());
}

fn watchdog_dies_undoing(kernel: &Kernel) {
    // Some of its boundaries: early, in the middle, late.
    for n in [1, 3, 12, 20] {
        let before = Picture::take(kernel);
        let mut run = Run::start("no", &[(fault::WATCHDOG_VARIABLE, n.to_string())]);
        run.hears("holding");
        run.signal(Signal::KILL);
        run.child.wait().unwrap();
        eventually("the lock is free", || {
            Lock::acquire(&run.root, "test").is_ok()
        });
        let done = restore::restore(kernel, &run.root).unwrap();
        assert!(done.iter().all(|d| d.complete), "{done:?}");
        assert_eq!(
            before.differences(kernel),
            Vec::<String>::new(),
            "died at boundary {n}"
        );
    }
}

fn second_run_refused(_: &Kernel) {
    let mut run = Run::start("no", &[]);
    run.hears("holding");
    let error = Lock::acquire(&run.root, "another").unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {} (run test)", run.child.id())),
        "{error}"
    );
    let error = restore::restore(&Kernel::new().unwrap(), &run.root)
        .unwrap_err()
        .to_string();
    assert!(error.contains("is alive"), "{error}");
}

fn journal_removed(kernel: &Kernel) {
    let before = Picture::take(kernel);
    let mut run = Run::start("no", &[]);
    run.hears("holding");
    let dir = restore::folders(&run.root).unwrap().remove(0);
    fs::remove_file(dir.join(journal::FILE)).unwrap();
    assert_ne!(before.differences(kernel), Vec::<String>::new());
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    run.undone();
    assert_eq!(before.differences(kernel), Vec::<String>::new());
}

fn cgroup_killed(kernel: &Kernel) {
    let cgroups = Cgroups::discover(kernel).unwrap();
    let Some(v2) = cgroups
        .v2()
        .filter(|h| kernel.exists(&format!("{}/cgroup.procs", h.mount)))
    else {
        return quell_testing::skip("no v2 hierarchy");
    };
    let before = Picture::take(kernel);
    let cell = format!("{}/quell-test-cell", v2.mount);
    kernel.mkdir(&cell).unwrap();
    let mut run = Run::start("no", &[]);
    kernel
        .write(&format!("{cell}/cgroup.procs"), &run.child.id().to_string())
        .unwrap();
    run.hears("holding");
    kernel.write(&format!("{cell}/cgroup.kill"), "1").unwrap();
    assert!(!run.child.wait().unwrap().success());
    run.undone();
    eventually("the cell is empty", || kernel.rmdir(&cell).is_ok());
    assert_eq!(before.differences(kernel), Vec::<String>::new());
}

/// SIGKILL at the first boundary, the second, … until a run survives. With `QUELL_SOAK` the rest is
/// confined, too, which doubles the boundaries.
fn every_boundary(kernel: &Kernel) {
    let what = if quell_testing::soak() { "rest" } else { "no" };
    let before = Picture::take(kernel);
    for n in 1.. {
        let mut run = Run::start(what, &[(fault::VARIABLE, n.to_string())]);
        // The process dies at its boundary, whether changing or reverting. It prints `holding` only
        // when all changes were survived.
        drop(run.input.take());
        let mut said = String::new();
        let _ = run.output.read_to_string(&mut said);
        let survived = run.child.wait().unwrap().success();
        eventually("the watchdog goes", || {
            Lock::acquire(&run.root, "test").is_ok()
        });
        // Before the watchdog is in place, only `restore` can revert.
        let done = restore::restore(kernel, &run.root).unwrap();
        assert!(
            done.iter().all(|d| d.complete && d.undone.left.is_empty()),
            "{done:?}"
        );
        assert_eq!(
            before.differences(kernel),
            Vec::<String>::new(),
            "killed at boundary {n}, having said {said:?}"
        );
        if survived {
            println!("    survived {} boundaries", n - 1);
            assert!(n > 40, "only {n} boundaries: the faults were not armed");
            return;
        }
    }
}
