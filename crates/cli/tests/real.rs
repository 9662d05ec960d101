//! An unmodified service beside an unmodified neighbour, by the file-less form of `quell run`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Program, Running, eventually, in_group, machine, quell, throttles};
use quell_linux::procfs;
use rustix::process::Signal;

const SERVER: &str = "/usr/bin/redis-server";
const CLIENT: &str = "/usr/bin/redis-benchmark";
const NEIGHBOUR: &str = "/usr/bin/stress-ng";
/// Not the usual one: a server that is there already is none of ours.
const PORT: &str = "36379";

#[test]
fn redis_is_kept_from_stress_ng() {
    for program in [SERVER, CLIENT, NEIGHBOUR] {
        if !Path::new(program).exists() {
            return eprintln!("SKIPPED redis beside stress-ng: {program} is not installed");
        }
    }
    let Some(mut machine) = machine("redis beside stress-ng") else {
        return;
    };
    let server = Program::start(&[SERVER, "--port", PORT, "--save", "", "--appendonly", "no"]);
    let neighbour = Program::start(&[NEIGHBOUR, "--stream", "1", "--timeout", "50", "--quiet"]);
    let children = || {
        let all = procfs::processes(&machine.kernel).unwrap();
        let of = |parent| {
            all.iter()
                .filter(move |s| s.parent == parent)
                .map(|s| s.id.pid)
        };
        let direct: Vec<u32> = of(neighbour.pid()).collect();
        let mut found = direct.clone();
        found.extend(direct.into_iter().flat_map(of));
        found
    };
    let mut stream = Vec::new();
    eventually("the stream runs", || {
        stream = children();
        !stream.is_empty()
    });
    let reachable = || {
        let done = Command::new(CLIENT)
            .args(["-p", PORT, "-n", "200", "-c", "2", "-q", "-t", "get"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        done.unwrap().success()
    };
    eventually("the server answers", reachable);
    machine.remember();
    let run = Running::start(quell().args([
        "run",
        "--critical",
        &format!("exe={SERVER}"),
        "--best-effort",
        "comm=stress-ng",
        "--limit",
        "20%",
    ]));
    eventually("all are held, the stream is throttled", || {
        in_group(server.pid(), "critical")
            && in_group(neighbour.pid(), "best-effort")
            && stream.iter().all(|pid| in_group(*pid, "best-effort"))
            && throttles() > 0
    });
    assert!(
        reachable(),
        "the server answers beside the throttled stream"
    );
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("after the hold");
    assert!(reachable(), "the server is unharmed");
}
