//! When user code last runs after a stop, and first after a release, by several means. A
//! measurement, not a test:
//!
//! ```sh
//! cargo test -p quell-linux --test measured -- --ignored --nocapture edges::means
//! ```
//!
//! It needs root and two CPUs, and takes the last one. What it stops are its own programs.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Program, machine};
use crate::witness::quantile;
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::rt;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Nanos;
use rustix::process::{Pid, PidfdFlags, Signal};

const WITNESS: &str = "QUELL_WITNESS";
/// Stops of each means, and how long each lasts and the time between them.
const STOPS: u64 = 400;
const EACH: Nanos = Nanos::millis(5);
/// How long before an edge the dispatching thread takes the CPU.
const GUARD: Nanos = Nanos::micros(200);

#[test]
#[ignore = "no test: the program that is stopped"]
fn watch() {
    let path = std::env::var_os(WITNESS).unwrap();
    crate::witness::watch(Path::new(&path), Nanos(2 * EACH.0 * (STOPS + 60)));
}

/// What stops the witness and lets it go on.
enum Means {
    /// A file of a cgroup, and what is written to stop and to resume.
    File(PathBuf, &'static str, &'static str),
    /// Signals, by pidfd.
    Signals(OwnedFd),
}

impl Means {
    /// Returns how long that took, in nanoseconds.
    fn set(&self, stopped: bool) -> i64 {
        let begun = rt::now();
        match self {
            Self::File(path, stop, go) => {
                fs::write(path, if stopped { stop } else { go }).unwrap();
            }
            Self::Signals(fd) => {
                let signal = if stopped { Signal::STOP } else { Signal::CONT };
                rustix::process::pidfd_send_signal(fd, signal).unwrap();
            }
        }
        rt::now().since(begun).0.cast_signed()
    }
}

fn nap(until: Nanos) {
    let clock = rustix::time::ClockId::Monotonic;
    let _ = rustix::thread::clock_nanosleep_absolute(clock, &rt::timespec(until));
}

/// Sets the means at each edge from an ordinary thread on another CPU. Returns what each took.
fn ordinary(means: &Means, edges: &[Nanos]) -> Vec<i64> {
    let set = |(n, edge): (usize, &Nanos)| {
        nap(*edge);
        means.set(n % 2 == 0)
    };
    edges.iter().enumerate().map(set).collect()
}

/// The same from a real-time thread on the CPU itself, which takes it a guard ahead of each edge
/// and leaves it at the edge.
fn dispatched(means: &Means, edges: &[Nanos], cpu: CpuId) -> Vec<i64> {
    rt::pin(cpu).unwrap();
    rt::fifo(rt::DISPATCHER_PRIORITY).unwrap();
    let set = |(n, edge): (usize, &Nanos)| {
        nap(edge.since(GUARD));
        if n % 2 == 0 {
            return means.set(true);
        }
        nap(edge.since(Nanos(GUARD.0 / 2)));
        let took = means.set(false);
        while rt::now() < *edge {
            rt::relax();
        }
        took
    };
    edges.iter().enumerate().map(set).collect()
}

/// A brake: an ordinary thread in a cgroup of the highest weight, next to that of the witness,
/// which is `cpu.idle`. It spins for as long as the witness is stopped.
fn braked(stop: &Path, edges: &[Nanos], cpu: CpuId) {
    fs::write(stop.join("tasks"), "0").unwrap();
    rt::pin(cpu).unwrap();
    for pair in edges.chunks_exact(2) {
        nap(pair[0]);
        let mut gave_way = rt::now();
        while rt::now() < pair[1] {
            if rt::now().since(gave_way) >= Nanos::micros(20) {
                std::thread::yield_now();
                gave_way = rt::now();
            }
        }
    }
}

/// How late user code ended after each stop and began after each release, in ascending order.
struct Late {
    ended: Vec<i64>,
    begun: Vec<i64>,
    /// The numbers of the stops within which user code ran nevertheless.
    leaked: Vec<usize>,
}

fn late(spans: &[crate::witness::Span], edges: &[Nanos]) -> Late {
    let mut all = Late {
        ended: Vec::new(),
        begun: Vec::new(),
        leaked: Vec::new(),
    };
    for (n, pair) in edges.chunks_exact(2).enumerate() {
        let (stop, go) = (pair[0].0, pair[1].0);
        let middle = u64::midpoint(stop, go);
        // What runs in the middle of a stop was not stopped.
        if spans.iter().any(|(b, l)| *b <= middle && *l >= middle) {
            all.leaked.push(n);
            continue;
        }
        let ended = spans.iter().rev().find(|(b, _)| *b < middle);
        let begun = spans.iter().find(|(b, _)| *b > middle);
        let signed = |time: u64, edge: u64| time.cast_signed() - edge.cast_signed();
        all.ended.extend(ended.map(|(_, last)| signed(*last, stop)));
        all.begun.extend(begun.map(|(begun, _)| signed(*begun, go)));
    }
    all.ended.sort_unstable();
    all.begun.sort_unstable();
    all
}

/// Starts the witness with more tasks in its cgroups, which sleep, stops them again and again, and
/// prints how late user code ended and began.
fn measured(
    name: &str,
    dirs: &[PathBuf],
    tasks: usize,
    cpu: CpuId,
    stop: impl Fn(&Program, &[Nanos]) -> Vec<i64>,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spans");
    let exe = std::env::current_exe().unwrap();
    let note = format!("{WITNESS}={}", path.display());
    let command = [
        "env",
        &note,
        exe.to_str().unwrap(),
        "--exact",
        "edges::watch",
        "--ignored",
    ];
    let witness = Program::start(&command);
    let others: Vec<Program> = (1..tasks)
        .map(|_| Program::start(&["sleep", "600"]))
        .collect();
    for pid in others.iter().chain([&witness]).map(Program::pid) {
        for dir in dirs {
            fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let task = task
                .unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .parse()
                .unwrap();
            quell_kernel::affinity::set(task, &CpuSet::from_iter([cpu])).unwrap();
        }
    }
    let first = rt::now().plus(Nanos::millis(200));
    let edges: Vec<Nanos> = (0..2 * STOPS)
        .map(|n| first.plus(Nanos(n * EACH.0)))
        .collect();
    let mut took = stop(&witness, &edges);
    took.sort_unstable();
    drop(others);
    let mut witness = witness;
    witness.0.wait().unwrap();
    let late = late(&crate::witness::read(&path), &edges);
    let us = |values: &[i64], part| quantile(values, part) as f64 / 1e3;
    let figures = |values: &[i64]| {
        [0.5, 0.99, 1.0]
            .map(|part| format!("{:>8.1}", us(values, part)))
            .join(" ")
    };
    println!(
        "{name:<34} {tasks:>5} | ended {} | begun {} | took {} | leaked {:?}",
        figures(&late.ended),
        figures(&late.begun),
        figures(&took),
        late.leaked
    );
}

/// A cgroup of this test, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn make(mount: &str) -> Self {
        Self::make_at(Path::new(mount).join("quell-edges"))
    }

    fn make_at(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
#[ignore = "a measurement: takes the last CPU for a minute"]
fn means() {
    let Some((kernel, _lock)) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&kernel).unwrap();
    let cpu = quell_kernel::topology::online(&kernel)
        .unwrap()
        .iter()
        .next_back()
        .unwrap();
    let v1 = cgroups
        .of(Controller::Freezer)
        .filter(|h| h.controllers.iter().any(|c| c == "freezer"));
    let v1 = v1.map(|h| Dir::make(&h.mount));
    let v2 = cgroups.v2().map(|h| Dir::make(&h.mount));
    let dirs: Vec<PathBuf> = v1.iter().chain(&v2).map(|d| d.0.clone()).collect();
    println!("{}", fs::read_to_string("/proc/version").unwrap().trim());
    println!("µs after the edge: median, p99, longest; {STOPS} stops of {EACH}; CPU {cpu}");
    let files = [
        (
            "v1 freezer",
            v1.as_ref(),
            "freezer.state",
            "FROZEN",
            "THAWED",
        ),
        ("v2 freezer", v2.as_ref(), "cgroup.freeze", "1", "0"),
    ];
    for tasks in [1, 10, 100] {
        for (name, dir, file, freeze, thaw) in &files {
            let Some(dir) = dir else {
                println!("{name}: not mounted");
                continue;
            };
            let means = Means::File(dir.0.join(file), freeze, thaw);
            let from = format!("{name}, ordinary thread");
            measured(&from, &dirs, tasks, cpu, |_, edges| ordinary(&means, edges));
            let from = format!("{name}, real-time dispatcher");
            measured(&from, &dirs, tasks, cpu, |_, edges| {
                std::thread::scope(|scope| {
                    let thread = scope.spawn(|| dispatched(&means, edges, cpu));
                    thread.join().unwrap()
                })
            });
        }
    }
    brake(&cgroups, cpu);
    measured(
        "SIGSTOP by pidfd, ordinary thread",
        &dirs,
        1,
        cpu,
        |witness, edges| {
            let pid = Pid::from_raw(i32::try_from(witness.pid()).unwrap()).unwrap();
            let fd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
            ordinary(&Means::Signals(fd), edges)
        },
    );
}

/// The brake, where the cpu controller is on cgroup v1: there a thread can have its own cgroup.
fn brake(cgroups: &Cgroups, cpu: CpuId) {
    let hierarchy = cgroups.of(Controller::Cpu);
    let Some(hierarchy) = hierarchy.filter(|h| h.version == Version::V1) else {
        println!("brake: the cpu controller is not on cgroup v1");
        return;
    };
    let top = Dir::make(&hierarchy.mount);
    let [work, stop] = ["work", "stop"].map(|name| Dir::make_at(top.0.join(name)));
    fs::write(work.0.join("cpu.idle"), "1").unwrap();
    fs::write(stop.0.join("cpu.shares"), "262144").unwrap();
    let dirs = [work.0.clone()];
    measured("brake, ordinary thread", &dirs, 1, cpu, |_, edges| {
        std::thread::scope(|scope| {
            scope.spawn(|| braked(&stop.0, edges, cpu));
        });
        vec![0]
    });
}
