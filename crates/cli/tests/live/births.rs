//! Programs that live for less than a second are held from their beginning, by the account of who
//! started them.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::gathered::busy;
use crate::common::{AHEAD, Program, Running, eventually, machine, quell, status};
use quell_kernel::births::Births;
use rustix::process::Signal;

/// CPU time of the ended children of a process, in ticks.
fn of_children(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let fields = fields.skip(13).take(2);
    fields.map(|f| f.parse::<f64>().unwrap()).sum()
}

/// The share of a CPU that the ended children of a process had, over `span`.
fn share(pid: u32, span: Duration) -> f64 {
    let (begun, used) = (Instant::now(), of_children(pid));
    std::thread::sleep(span);
    let ticks = of_children(pid) - used;
    ticks / rustix::param::clock_ticks_per_second() as f64 / begun.elapsed().as_secs_f64()
}

#[test]
fn programs_of_milliseconds_are_limited() {
    let Some(mut machine) = machine() else {
        return;
    };
    if let Err(e) = Births::listen() {
        return quell_testing::skip(format!("the kernel reports no programs: {e}"));
    }
    // Started by a shell that no group matches, one after the other. Ahead of what else runs, and
    // with a weight: on a busy machine they would use less than their limit.
    let brief = machine.path("brief-of-tests");
    symlink("/bin/sh", &brief).unwrap();
    let once = "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done";
    let often = format!("{AHEAD}; while :; do {} -c '{once}'; done", brief.display());
    let starter = Program::start(&["nice", "-n", "-15", "sh", "-c", &often]);
    let critical = busy();
    machine.remember();
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 'any'\nmatch = [{{ pid = {} }}]\n\
        [group.b]\nrole = 'best-effort'\ncpus = 'any'\nmatch = [{{ comm = 'brief-of-tests' }}]\n\
        cpu-weight = 100\n\
        [group.b.limit]\ncpu-time = '10%'\n",
        critical.pid()
    );
    let free = share(starter.pid(), Duration::from_secs(2));
    let run = Running::start(quell().args(["run", &machine.file("policy.toml", &policy)]));
    eventually("the plan is held", || status()[0]["holds"] == true);
    std::thread::sleep(Duration::from_millis(500));
    let limited = share(starter.pid(), Duration::from_secs(4));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(free > 0.3, "they use {free} of a CPU while nothing is held");
    // A tenth of a CPU, and what each uses before it is moved: on a busy machine that takes longer.
    // Those that nobody moves use as much as without a limit.
    assert!(
        limited > 0.0 && limited < free / 2.0,
        "{limited} of a CPU, {free} before"
    );
    drop(starter);
    machine.unchanged("after the run");
}
