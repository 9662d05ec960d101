//! What `quell plan` says of this machine is what `quell run` does.

use std::fs;

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use rustix::process::Signal;

use super::gathered::{Folder, allowed, busy};
use crate::common::{Program, Running, eventually, machine, quell, run, send, watchdog_of};

#[test]
fn plan_and_run_refuse_alike() {
    let Some(mut machine) = machine() else {
        return;
    };
    let program = Program::start(&["sleep", "600"]);
    let gone = {
        let mut short = Program::start(&["true"]);
        short.0.wait().unwrap();
        short.pid().to_string()
    };
    machine.remember();
    let pid = program.pid().to_string();
    let of = |tables: &str, name: &str| {
        let text = format!("quell = 1\n[group.a]\nrole = 'critical'\n{tables}\n");
        machine.file(name, &text)
    };
    let mixed = of("match = [{ unit = 'x.service', comm = 'sleep' }]", "m.toml");
    let user = of("match = [{ user = 'no-such-user' }]", "u.toml");
    let missing = of("match = [{ comm = 'no-such-program' }]", "c.toml");
    let (is, was) = (format!("pid={pid}"), format!("pid={gone}"));
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--critical", "comm=no-such"], &["comm=no-such", "--wait"]),
        (&["--critical", &was], &[&was]),
        (&["--critical", &is, "--best-effort", &was], &[&gone]),
        (
            &["--critical", &is, "--best-effort", &is],
            &["two groups", &pid, "sleep"],
        ),
        (&[&mixed], &["group a", "in place"]),
        (&[&user], &["no-such-user"]),
        (&[&missing], &["comm=no-such-program"]),
    ];
    for (args, names) in cases {
        for command in ["plan", "run"] {
            let all = [&[command], args].concat();
            run(&all).fails(2, &[names, &["nothing was changed"]].concat());
        }
    }
    machine.unchanged("refused");
    // For another machine nothing is looked for.
    let there = ["plan", &missing, "--on", "sim"];
    assert_eq!(run(&there).code, 0);
}

#[test]
fn the_processes_are_shown_before_anything_is_done() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let cpuset = cgroups.of(Controller::Cpuset).unwrap();
    let unit = Folder::new(&cpuset.mount, "shown-of-a-test.service");
    let (of_unit, alone, other) = (busy(), busy(), busy());
    unit.take(of_unit.pid());
    machine.remember();
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\n\
        match = [{{ unit = 'shown-of-a-test.service' }}, {{ pid = {} }}]\n\
        [group.b]\nrole = 'best-effort'\nmatch = [{{ pid = {} }}]\n\
        [group.c]\nrole = 'best-effort'\ncommand = ['sleep', '600']\n",
        alone.pid(),
        other.pid()
    );
    let policy = machine.file("p.toml", &policy);
    let row = |text: &str, first: &str, what: &str| {
        let mut lines = text.lines().map(str::trim_start);
        let said = lines.any(|line| line.starts_with(first) && line.ends_with(what));
        assert!(said, "{first} … {what}: {text}");
    };
    let all_said = |text: &str| {
        row(text, &format!("{} ", of_unit.pid()), "changed in place");
        row(
            text,
            &format!("{} ", alone.pid()),
            "moved into a cgroup of Quell",
        );
        row(
            text,
            &format!("{} ", other.pid()),
            "moved into a cgroup of Quell",
        );
        row(text, "- ", "started in a cgroup of Quell");
    };
    let planned = run(&["plan", &policy]);
    assert_eq!(planned.code, 0, "{planned:?}");
    all_said(&planned.out);
    let json = run(&["plan", &policy, "--json"]).json();
    let processes = json["processes"].as_array().unwrap();
    let of = |pid: u32| processes.iter().find(|p| p["pid"] == pid).unwrap();
    assert_eq!(of(of_unit.pid())["fate"], "in-place");
    assert_eq!(of(of_unit.pid())["cgroup"], "/shown-of-a-test.service");
    assert_eq!(of(other.pid())["fate"], "gathered");
    machine.unchanged("planned");
    let held = Running::start(quell().args(["run", &policy]));
    eventually("it has its CPU", || allowed(alone.pid()).len() == 1);
    held.signal(Signal::TERM);
    all_said(&held.wait().err);
    machine.unchanged("after the run");
}

#[test]
fn a_limit_on_the_critical_program_is_told_beforehand() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let cpu = cgroups.of(Controller::Cpu).unwrap();
    let above = Folder::new(&cpu.mount, "limited-of-a-test.slice");
    let path = above.0.to_str().unwrap().to_owned();
    let (file, value) = match cpu.version {
        Version::V1 => (format!("{path}/cpu.cfs_quota_us"), "20000"),
        Version::V2 => (format!("{path}/cpu.max"), "20000 100000"),
    };
    fs::write(&file, value).unwrap();
    let unit = Folder::new(&path, "limited-of-a-test.service");
    let critical = busy();
    unit.take(critical.pid());
    machine.remember();
    let args = [
        "--critical",
        "unit=limited-of-a-test.service",
        "--cpus",
        "1",
    ];
    let wanted = format!("critical: {file} is 20000 100000: at most 20% of a CPU");
    let plan = run(&[&["plan"], &args[..]].concat());
    assert_eq!(plan.code, 0, "{plan:?}");
    // Lines are wrapped.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&plan.out).contains(&wanted), "{plan:?}");
    let json = run(&[&["plan", "--json"], &args[..]].concat()).json();
    assert_eq!(json["limits"][0]["gets"]["cpu-time"], "20%", "{json}");
    machine.unchanged("planned");
    let held = Running::start(quell().arg("run").args(args));
    eventually("it has its CPU", || allowed(critical.pid()).len() == 1);
    held.signal(Signal::TERM);
    let done = held.wait();
    assert!(words(&done.err).contains(&wanted), "{done:?}");
    machine.unchanged("after the run");
    // Moved out of it, the program has no quota.
    let pid = format!("pid={}", critical.pid());
    let moved = run(&["plan", "--critical", &pid, "--json"]).json();
    let cpu_time = |limit: &serde_json::Value| limit["gets"].get("cpu-time").is_some();
    let limits = moved["limits"].as_array().cloned().unwrap_or_default();
    assert!(!limits.iter().any(cpu_time), "{moved}");
    // Its cgroup goes before the one above it.
    drop((critical, unit));
}

/// The CPUs and promises of a plan that protects a process.
fn planned(pid: u32) -> [serde_json::Value; 2] {
    let plan = run(&["plan", "--critical", &format!("pid={pid}"), "--json"]).json();
    [plan["groups"].clone(), plan["promises"].clone()]
}

#[test]
fn a_plan_is_for_the_machine_without_quell() {
    let Some(mut machine) = machine() else {
        return;
    };
    let critical = busy();
    machine.remember();
    let pid = format!("pid={}", critical.pid());
    let before = planned(critical.pid());
    let held = Running::start(quell().args(["run", "--critical", &pid, "--cpus", "1"]));
    eventually("it has its CPU", || allowed(critical.pid()).len() == 1);
    assert_eq!(planned(critical.pid()), before, "during the run");
    let said = run(&["plan", "--critical", &pid]).err;
    assert!(said.contains(&format!("process {}", held.pid())), "{said}");
    // Nobody is left to revert it.
    let watchdog = watchdog_of(held.pid()).unwrap();
    send(watchdog, Signal::STOP);
    held.signal(Signal::KILL);
    send(watchdog, Signal::KILL);
    held.wait();
    assert_eq!(allowed(critical.pid()).len(), 1, "nothing was reverted");
    assert_eq!(planned(critical.pid()), before, "after both were killed");
    let said = run(&["plan", "--critical", &pid]).err;
    assert!(said.contains("quell restore"), "{said}");
    let told = run(&["status"]);
    assert_eq!(told.code, 3, "{told:?}");
    let lost = |line: &str| line.trim_start().starts_with("LOST");
    assert!(told.out.lines().any(lost), "{told:?}");
    assert!(!told.out.lines().any(|l| l.contains(" holds")), "{told:?}");
    assert_eq!(run(&["restore"]).code, 0);
    machine.unchanged("restored");
}
