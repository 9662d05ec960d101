//! What the end-to-end tests share: the program under test, the machine alone to themselves, and a
//! picture of it before and after.

#![allow(dead_code, reason = "each test program uses a part of it")]
#[path = "../../../linux/tests/common/mod.rs"]
mod kernel;

pub mod coloured;
pub mod cyclictest;
pub mod ring;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use kernel::{Picture, Program, eventually};
use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::root::Kernel;
use quell_linux::lock::{Lock, RUN_ROOT};
use quell_types::rng::Rng;
use rustix::process::{Pid, Signal};

/// No command of these tests takes longer, the measuring of a new machine included.
const LONGEST: Duration = Duration::from_secs(240);

/// An experiment that is small enough for any machine and any user: nothing is changed by it.
pub const SMALL: &str = r#"
quell    = 1
name     = "small"
backends = ["linux"]
seed     = 1

[measure]
rounds   = 2
warmup   = "5ms"
duration = "250ms"
baseline = "solo"

[subject.victim]
role    = "critical"
cpus    = 1
run     = { kind = "latency", size = "64KiB", order = "random", pages = "4KiB" }
primary = "latency_ns"

[configuration.solo]
alone = true

[configuration.none]
"#;

/// The program under test.
pub fn quell() -> Command {
    Command::new(env!("CARGO_BIN_EXE_quell"))
}

/// The process with this name, if there is one.
pub fn process_named(name: &str) -> Option<u32> {
    let name = format!("({name}) ");
    let processes = std::fs::read_dir("/proc").unwrap();
    let mut pids = processes.filter_map(|p| p.unwrap().file_name().to_str()?.parse().ok());
    pids.find(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(&name) && !stat.contains(") Z ")
    })
}

/// What stands behind `key:` in a process's status.
pub fn status_of(pid: u32, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    Some(line?.strip_prefix(':')?.trim().to_owned())
}

/// The same of `key: N kB`, in bytes; 0 where nobody is.
pub fn in_status(pid: u32, key: &str) -> u64 {
    let text = status_of(pid, key).unwrap_or_default();
    let number = text.strip_suffix(" kB").and_then(|n| n.parse().ok());
    number.unwrap_or(0) << 10
}

/// What a command came to.
#[derive(Debug)]
pub struct Done {
    /// The exit status; 128 + n for signal n.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Asserts the exit code and that stderr names all of this.
    #[track_caller]
    pub fn fails(&self, code: i32, names: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for name in names {
            assert!(
                self.err.contains(name),
                "'{name}' is not named in: {}",
                self.err
            );
        }
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}

/// A command that runs, its output collected; killed on drop.
pub struct Running {
    child: Child,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

fn collected(stream: impl Read + Send + 'static) -> Option<JoinHandle<String>> {
    let mut stream = stream;
    Some(std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }))
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = collected(child.stdout.take().unwrap());
        let err = collected(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub fn alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn wait(self) -> Done {
        self.within(LONGEST)
    }

    /// Its end, which comes within so long.
    pub fn within(mut self, longest: Duration) -> Done {
        use std::os::unix::process::ExitStatusExt;
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > longest {
                let _ = self.child.kill();
                panic!("not ended after {longest:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = |stream: &mut Option<JoinHandle<String>>| stream.take().unwrap().join().unwrap();
        Done {
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap()),
            out: text(&mut self.out),
            err: text(&mut self.err),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `quell ARGS` to its end.
pub fn run(args: &[&str]) -> Done {
    Running::start(quell().args(args)).wait()
}

/// `quell profile`, with its files in a folder.
pub fn profile(dir: &Path, args: &[&str]) -> Done {
    let mut command = quell();
    command.arg("profile").args(args).current_dir(dir);
    Running::start(command.env("QUELL_STATE_DIR", dir)).wait()
}

pub fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The machine, alone, and how it was. On drop everything must be as it was.
pub struct Machine {
    pub kernel: Kernel,
    before: Option<Picture>,
    pub folder: tempfile::TempDir,
    _alone: File,
}

/// The machine for a test that changes it; `None`, said aloud, where that cannot be.
pub fn machine() -> Option<Machine> {
    if !rustix::process::geteuid().is_root() {
        quell_testing::skip("needs root (CAP_SYS_ADMIN, CAP_SYS_NICE)");
        return None;
    }
    let kernel = Kernel::new().unwrap();
    let cgroups = Cgroups::discover(&kernel).unwrap();
    if cgroups.of(Controller::Cpuset).is_none() {
        quell_testing::skip("no cpuset hierarchy is mounted");
        return None;
    }
    if quell_kernel::topology::online(&kernel).unwrap().len() < 2 {
        quell_testing::skip("needs two CPUs");
        return None;
    }
    let alone = File::create(std::env::temp_dir().join("quell-e2e.lock")).unwrap();
    rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive).unwrap();
    // Somebody else's Quell may be at work, too: waited for, then let go, as the program under test
    // wants it.
    drop(Lock::acquire_within(Path::new(RUN_ROOT), "test", Duration::from_secs(300)).unwrap());
    Some(Machine {
        before: None,
        kernel,
        folder: tempfile::tempdir().unwrap(),
        _alone: alone,
    })
}

impl Machine {
    /// Remembers how the machine is now, the test's own programs included.
    pub fn remember(&mut self) {
        self.before = Some(Picture::take(&self.kernel));
    }

    pub fn differences(&self) -> Vec<String> {
        let before = self
            .before
            .as_ref()
            .expect("the test remembered the machine");
        before.differences(&self.kernel)
    }

    /// Everything is as it was.
    #[track_caller]
    pub fn unchanged(&self, when: &str) {
        assert_eq!(self.differences(), Vec::<String>::new(), "{when}");
        let runs = quell_linux::restore::folders(Path::new(RUN_ROOT)).unwrap();
        assert!(runs.is_empty(), "{when}: {runs:?} is left");
    }

    /// Waits until the watchdog has undone a run, and tells how long that took.
    #[track_caller]
    pub fn undone(&self) -> Duration {
        let started = Instant::now();
        eventually("the run is undone", || {
            quell_linux::restore::folders(Path::new(RUN_ROOT))
                .unwrap()
                .is_empty()
                && Lock::acquire(Path::new(RUN_ROOT), "test").is_ok()
        });
        started.elapsed()
    }

    /// The same for a death that may have come before there was a watchdog: then `quell restore`
    /// suffices.
    #[track_caller]
    pub fn undone_or_restored(&self) -> Duration {
        let started = Instant::now();
        eventually("the lock is free", || {
            Lock::acquire(Path::new(RUN_ROOT), "test").is_ok()
        });
        let took = started.elapsed();
        let restored = run(&["restore"]);
        assert_eq!(restored.code, 0, "{restored:?}");
        took
    }

    /// Kills at least so many runs of a command at random moments of their first `span`. After each
    /// the machine is as it was, and `check` is called. Returns how many were alive.
    pub fn killed_at_random(
        &self,
        rounds: usize,
        span: Duration,
        command: impl Fn() -> Command,
        check: impl Fn(),
    ) -> usize {
        let span = u32::try_from(span.as_micros()).unwrap();
        let mut random = Rng::new(std::process::id().into());
        let (mut alive, mut longest) = (0, Duration::ZERO);
        // Where the machine got faster meanwhile, more of them have ended before their moment.
        for round in 0..4 * rounds {
            if round >= rounds && 2 * alive > rounds {
                break;
            }
            let mut run = Running::start(&mut command());
            let moment = Duration::from_micros(random.below(span).into());
            std::thread::sleep(moment);
            if run.alive() {
                alive += 1;
                run.signal(Signal::KILL);
            }
            run.wait();
            longest = longest.max(self.undone_or_restored());
            self.unchanged(&format!("round {round}, killed {moment:?} after its start"));
            check();
        }
        eprintln!("{alive} killed alive; undone {longest:.1?} later at most");
        alive
    }

    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What a failed test left must not make the next one fail.
            std::thread::sleep(Duration::from_secs(2));
            let _ = quell().arg("restore").status();
        } else if self.before.is_some() {
            self.unchanged("at the end of the test");
        }
    }
}

/// What `quell status --json` says.
pub fn status() -> serde_json::Value {
    serde_json::from_str(&run(&["status", "--json"]).out).unwrap_or_default()
}

/// Throttles so far, over all CPUs, as `quell status` tells.
pub fn throttles() -> u64 {
    let status = status();
    let cpus = status[0]["throttled"].as_array().cloned();
    cpus.unwrap_or_default()
        .iter()
        .map(|c| c["throttles"].as_u64().unwrap())
        .sum()
}

/// What a shell does that is started by `nice -n -15`, so that its programs get most of a CPU
/// whatever else the machine does (as root). Where the kernel groups by session, niceness counts
/// within a session only, and the session has one of its own.
pub const AHEAD: &str = "{ echo -15 >/proc/self/autogroup; } 2>/dev/null";

/// A program that computes for ever on one CPU, and gets most of it.
pub fn busy() -> Program {
    let busy = format!("{AHEAD}; while :; do :; done");
    Program::start(&["nice", "-n", "-15", "sh", "-c", &busy])
}

/// The share of a CPU that a program gets, over `span`.
pub fn cpu_share(pid: u32, span: Duration) -> f64 {
    let (begun, used) = (Instant::now(), cpu_ticks(pid));
    std::thread::sleep(span);
    let ticks = cpu_ticks(pid) - used;
    ticks / rustix::param::clock_ticks_per_second() as f64 / begun.elapsed().as_secs_f64()
}

fn cpu_ticks(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
}

/// The process number of the watchdog of a run.
pub fn watchdog_of(main: u32) -> Option<u32> {
    let kernel = Kernel::new().unwrap();
    let all = quell_kernel::procfs::processes(&kernel).unwrap();
    let ours = all.iter().find(|s| {
        s.parent == main
            && std::fs::read_to_string(format!("/proc/{}/cmdline", s.id.pid))
                .is_ok_and(|line| line.contains("__watchdog"))
    });
    ours.map(|s| s.id.pid)
}

/// Whether the process is in a cgroup of Quell's.
pub fn is_held(pid: u32) -> bool {
    in_group(pid, "")
}

/// Whether a process is in the cgroup of a group of that name (beginning).
pub fn in_group(pid: u32, group: &str) -> bool {
    let outermost = match group.split_once('/') {
        Some((group, below)) => format!("/quell-{group}.slice/{below}"),
        None => format!("/quell-{group}"),
    };
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| {
        text.contains(&format!("/quell.slice/{group}")) || text.contains(&outermost)
    })
}
