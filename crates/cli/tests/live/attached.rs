//! Programs that run already and tell of their units: they were there before Quell, and outlive it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::common::{Program, Running, busy, eventually, machine, quell, run};
use rustix::process::Signal;

/// A job with a deadline far away, and a neighbour whose budget can be moved.
fn policy(job: u32, neighbour: u32) -> String {
    format!(
        "quell = 1
[group.job]
role   = 'critical'
cpus   = 1
match  = [{{ pid = {job} }}]
target = {{ deadline = '900ms' }}
[group.neighbour]
role   = 'best-effort'
match  = [{{ pid = {neighbour} }}]
[regulator]
adapt = 'deadline'
"
    )
}

/// A job every 5 ms.
fn job() -> Program {
    let quell = env!("CARGO_BIN_EXE_quell");
    let work = ["--size", "64KiB", "--period", "5ms", "--duration", "300s"];
    Program::start(&[&[quell, "bench", "periodic", "--declares"], &work[..]].concat())
}

/// Whether the run that holds has heard from the job.
fn heard() -> bool {
    let status = run(&["status", "--json"]);
    let runs: serde_json::Value = serde_json::from_str(&status.out).unwrap_or_default();
    runs[0]["declared"]["job"]["bytes_per_unit"] == 65_536
}

fn units(dir: &Path) -> u64 {
    let record = fs::read_dir(dir).unwrap().next().unwrap().unwrap();
    let events = fs::read_to_string(record.path().join("events.jsonl")).unwrap();
    let events = events
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    let units = events.filter(|e| e["event"] == "units");
    units.map(|e| e["units"].as_u64().unwrap()).sum()
}

#[test]
fn an_earlier_program_is_heard_and_again_after_a_kill() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (job, neighbour) = (job(), busy());
    let file = machine.file("attached.toml", &policy(job.pid(), neighbour.pid()));
    machine.remember();
    let hold = |out: &str| {
        let out = machine.path(out);
        Running::start(quell().args(["run", &file, "--out", out.to_str().unwrap()]))
    };
    let first = hold("first");
    eventually("it is heard", heard);
    first.signal(Signal::KILL);
    first.wait();
    machine.undone();
    // The same process again, and one that is nobody's.
    let second = hold("second");
    let stranger = self::job();
    eventually("it is heard again", heard);
    std::thread::sleep(Duration::from_secs(2));
    let pid = stranger.pid();
    drop(stranger);
    second.signal(Signal::TERM);
    let done = second.wait();
    assert_eq!(done.code, 0, "{done:?}");
    for told in [
        format!("group job: process {} tells of its units", job.pid()),
        format!("process {pid} wants to tell of its units, and is in no group"),
        "job says: a unit moves 64KiB, its working set is 64KiB".to_owned(),
    ] {
        assert!(done.err.contains(&told), "'{told}' is not in: {}", done.err);
    }
    let units = units(&machine.path("second"));
    assert!(units >= 200, "{units}: {done:?}");
    machine.unchanged("a run beside a program that runs already");
}

#[test]
fn every_process_of_a_launched_group_is_heard() {
    let Some(mut machine) = machine() else {
        return;
    };
    let neighbour = busy();
    machine.remember();
    let launched = policy(0, neighbour.pid()).replace("match  = [{ pid = 0 }]\n", "");
    let (file, out) = (machine.file("two.toml", &launched), machine.path("two"));
    // The first that comes has the session that was left for the command; the other one asks.
    let one = "\"$0\" bench periodic --size 64KiB --period 10ms --duration 3s";
    let both = format!("{one} & {one} & wait");
    let hold = ["run", &file, "--out", out.to_str().unwrap(), "--"];
    let command = ["sh", "-c", &both, env!("CARGO_BIN_EXE_quell")];
    let done = run(&[&hold[..], &command[..]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        done.err.matches(" tells of its units").count(),
        1,
        "{done:?}"
    );
    // More than one of them has.
    let units = units(&out);
    assert!((350..=640).contains(&units), "{units}: {done:?}");
    machine.unchanged("a run of two programs");
}
