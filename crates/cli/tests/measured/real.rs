//! An unmodified service with its client next to an unmodified neighbour, by the file-less form of
//! `quell run`.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Program, Running, eventually, in_group, machine, quell, status};
use quell_kernel::procfs;
use rustix::process::Signal;

const SERVER: &str = "/usr/bin/redis-server";
const CLIENT: &str = "/usr/bin/redis-benchmark";
const NEIGHBOUR: &str = "/usr/bin/stress-ng";
/// Not the usual one: a server that is there already is none of ours.
const PORT: &str = "36379";

/// Requests per second and the p99 in milliseconds of a client on one CPU.
fn asked(cpu: usize) -> (f64, f64) {
    let done = Command::new("taskset")
        .args(["-c", &cpu.to_string(), CLIENT, "-p", PORT])
        .args(["-n", "80000", "-c", "20", "-t", "get", "--csv"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    // Name, requests per second, then latencies: average, least, p50, p95, p99, most.
    let text = String::from_utf8(done.stdout).unwrap();
    let line = text.lines().find(|l| l.contains("\"GET\"")).unwrap();
    let cells: Vec<&str> = line.split(',').map(|c| c.trim_matches('"')).collect();
    (cells[1].parse().unwrap(), cells[6].parse().unwrap())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The first command that a newcomer types once made redis slower than the neighbours did: its
/// client was stopped with them.
#[test]
fn redis_with_its_client_is_no_worse_off_than_with_nothing_done() {
    for program in [SERVER, CLIENT, NEIGHBOUR] {
        if !Path::new(program).exists() {
            return quell_testing::skip(format_args!("{program} is not installed"));
        }
    }
    let Some(mut machine) = machine() else {
        return;
    };
    let server = Program::start(&[SERVER, "--port", PORT, "--save", "", "--appendonly", "no"]);
    let both = ["--stream", "2", "--timeout", "300", "--quiet"];
    let neighbour = Program::start(&[&[NEIGHBOUR], &both[..]].concat());
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
        stream.len() >= 2
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
    let ours = std::fs::read_link(format!("/proc/{}/exe", server.pid()));
    assert!(ours.is_ok(), "port {PORT} is another server's");
    machine.remember();
    let (mut nothing, mut protected) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        nothing.push(asked(0));
        let run = Running::start(quell().args([
            "run",
            "--critical",
            &format!("exe={SERVER}"),
            "--best-effort",
            "comm=stress-ng",
            "--limit",
            "20%",
            "--cpus",
            "1",
        ]));
        eventually("all are held", || {
            in_group(server.pid(), "critical")
                && stream.iter().all(|pid| in_group(*pid, "best-effort"))
                && status()[0]["holds"] == true
        });
        // The last steps may still be under way.
        std::thread::sleep(std::time::Duration::from_millis(500));
        protected.push(asked(0));
        run.signal(Signal::TERM);
        let done = run.wait();
        assert_eq!(done.code, 0, "{done:?}");
        machine.unchanged("after the hold");
    }
    eprintln!("requests/s, p99 ms: nothing done {nothing:?}, with quell {protected:?}");
    let [before, after] = [&nothing, &protected].map(|all| {
        (
            median(all.iter().map(|r| r.0)),
            median(all.iter().map(|r| r.1)),
        )
    });
    assert!(
        after.0 >= 0.95 * before.0,
        "throughput {after:?} after {before:?}"
    );
    assert!(after.1 <= 1.05 * before.1, "p99 {after:?} after {before:?}");
    assert!(reachable(), "the server is unharmed");
}
