//! What `quell run` says, and that it changes nothing for a program that does not run.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::gathered::allowed;
use crate::common::{
    Machine, Program, Running, busy, eventually, is_held, machine, quell, run, send, status,
};
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use rustix::process::Signal;

/// A copy of sleep(1) under a name that nothing else on this machine has; its path.
fn sleeper(machine: &Machine, name: &str) -> String {
    let path = machine.path(name);
    fs::copy("/bin/sleep", &path).unwrap();
    path.display().to_string()
}

#[test]
fn a_critical_program_that_does_not_run_is_refused() {
    let Some(mut machine) = machine() else {
        return;
    };
    let path = sleeper(&machine, "quell-spoken");
    let program = Program::start(&[&path, "600"]);
    machine.remember();
    let close = format!("comm=quell-spoken (process {})", program.pid());
    let names = [
        "group critical",
        "comm=quell-spokne",
        &close,
        "nothing was changed",
        "--wait",
    ];
    let refused = run(&["run", "--critical", "comm=quell-spokne"]);
    refused.fails(2, &names);
    assert!(refused.err.lines().count() <= 3, "{}", refused.err);
    machine.unchanged("refused");
    // The right name below a wrong path.
    let right = format!("exe={path} (process {})", program.pid());
    run(&["run", "--critical", "exe=/no/such/quell-spoken"]).fails(2, &[&right]);
    // The same of a policy file.
    let policy = machine.file(
        "p.toml",
        "quell = 1\n[group.app]\nrole = \"critical\"\nmatch = [{ comm = \"no-such-program\" }]\n",
    );
    run(&["run", &policy]).fails(2, &["group app", "comm=no-such-program", "--wait"]);
    // Nobody knows a process number in advance, and a command is there when it is launched.
    let gone = Program::start(&["true"]);
    let number = format!("pid={}", gone.pid());
    drop(gone);
    run(&["run", "--wait", "--critical", &number]).fails(2, &[&number, "another key"]);
    run(&["run", "--wait", "--", "true"]).fails(2, &["--wait", "nothing to wait for"]);
    machine.unchanged("at the end");
}

#[test]
fn a_run_that_waits_changes_nothing_until_its_program_runs() {
    let Some(mut machine) = machine() else {
        return;
    };
    let path = sleeper(&machine, "quell-awaited");
    machine.remember();
    let wait =
        || Running::start(quell().args(["run", "--wait", "--critical", "comm=quell-awaited"]));
    let mut waiting = wait();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(waiting.alive());
    machine.unchanged("while it waits");
    waiting.signal(Signal::INT);
    waiting.wait().fails(
        130,
        &["waiting", "comm=quell-awaited", "nothing was changed"],
    );
    machine.unchanged("after the wait");

    let mut waiting = wait();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.alive());
    let late = Program::start(&[&path, "600"]);
    eventually("what was waited for is held", || is_held(late.pid()));
    eventually("all steps are applied", || status()[0]["holds"] == true);
    std::thread::sleep(Duration::from_millis(500));
    waiting.signal(Signal::TERM);
    let done = waiting.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.err.contains("holding: critical (comm=quell-awaited)"),
        "{done:?}"
    );
    drop(late);
}

/// Next to nothing that is named, the program gets a weight, and no other task is moved.
#[test]
fn against_everything_else_a_program_gets_a_weight() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (victim, client) = (busy(), busy());
    machine.remember();
    let pid = format!("pid={}", victim.pid());
    let run = Running::start(quell().args(["run", "--critical", &pid]));
    eventually("held", || is_held(victim.pid()));
    eventually("all steps are applied", || status()[0]["holds"] == true);
    let plan = &status()[0]["plan"];
    assert_eq!(plan["promises"][0]["promise"]["weight"], 1000, "{plan}");
    let everywhere = allowed(std::process::id());
    assert_eq!(allowed(victim.pid()), everywhere);
    assert_eq!(allowed(client.pid()), everywhere);
    assert!(!is_held(client.pid()));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    let promised = "100 %  critical: weight 1000 where others with 100 want the CPU";
    assert!(done.err.contains(promised), "{done:?}");
    machine.unchanged("after the hold");
}

/// The planner's rule for what asks for no limit: the cheapest means first.
fn weight_before_cores_and_no_limit(plan: &serde_json::Value) {
    let steps = plan["steps"].as_array().unwrap().iter();
    let kinds: Vec<&str> = steps.map(|s| s["set"]["kind"].as_str().unwrap()).collect();
    let at = |kind| kinds.iter().position(|k| *k == kind);
    let (weight, confine) = (at("weight"), at("confine"));
    assert!(weight.is_some() && weight < confine, "{kinds:?}");
    assert_eq!([at("regulate"), at("cpu-max")], [None, None], "{kinds:?}");
}

/// In a pipe: no control characters, no status, and the end tells what came of it. Nothing of that
/// with `--quiet`.
#[test]
fn a_run_in_a_pipe_says_when_it_holds_and_how_it_went() {
    let Some(mut machine) = machine() else {
        return;
    };
    let victim = busy();
    let loop_of_its_own = "while :; do :; done";
    let shell = machine.path("quell-late");
    fs::copy("/bin/sh", &shell).unwrap();
    machine.remember();
    for quiet in [false, true] {
        let mut command = quell();
        command
            .args(["run", "--critical", &format!("pid={}", victim.pid())])
            .args(["--best-effort", "comm=quell-late", "--cpus", "1"])
            .args(quiet.then_some("--quiet"))
            // Nothing is known of this machine, and nothing is measured for what needs no rate.
            .env("QUELL_STATE_DIR", machine.path("state"));
        let run = Running::start(&mut command);
        eventually("held", || is_held(victim.pid()));
        eventually("all steps are applied", || status()[0]["holds"] == true);
        weight_before_cores_and_no_limit(&status()[0]["plan"]);
        // The best-effort group was empty when it began.
        let late = Program::start(&[shell.to_str().unwrap(), "-c", loop_of_its_own]);
        eventually("the late one is followed", || is_held(late.pid()));
        std::thread::sleep(Duration::from_secs(4));
        let pid = run.pid();
        run.signal(Signal::TERM);
        let done = run.wait();
        assert_eq!((done.code, done.out.as_str()), (0, ""), "{done:?}");
        assert!(!done.err.contains(['\r', '\x1b']), "{:?}", done.err);
        assert!(!done.err.contains("measuring"), "{done:?}");
        assert!(!machine.path("state").exists(), "nothing was measured");
        if quiet {
            assert_eq!(done.err, "");
            continue;
        }
        let holding = done.err.lines().find(|l| l.starts_with("quell: holding:"));
        let holding = holding.unwrap_or_else(|| panic!("{done:?}"));
        for part in [
            &format!("critical (pid={}) is protected by cores", victim.pid()),
            "level enforced",
            &format!("`kill {pid}` ends it"),
        ] {
            assert!(holding.contains(part), "{part}: {holding}");
        }
        let (_, closing) = done.err.split_once("quell: held for ").unwrap();
        for part in [
            "100 %  critical: CPU 1 to itself; level enforced",
            "best-effort kept ",
            " of CPU time)",
            "quell: reverted: ",
        ] {
            assert!(closing.contains(part), "{part}: {}", done.err);
        }
        assert!(
            !done.err.contains("quell: held 4"),
            "no status: {}",
            done.err
        );
        assert!(!is_held(late.pid()));
    }
}

/// A run on a terminal of 60 columns, made by script(1); what was written to it.
fn on_a_terminal(machine: &Machine, victim: &Program, environment: &str) -> String {
    let typescript = machine.path("typescript");
    let inside = format!(
        "stty cols 60; TERM=xterm {environment} exec {} run --critical pid={} --best-effort comm=quell-none --cpus 1",
        env!("CARGO_BIN_EXE_quell"),
        victim.pid()
    );
    let mut script = Command::new("script");
    script.args(["-qefc", &inside]).arg(&typescript);
    let script = Running::start(&mut script);
    eventually("held", || {
        status()[0]["holds"] == true && is_held(victim.pid())
    });
    let drawn = || fs::read(&typescript).unwrap_or_default();
    let times = |text: &[u8]| {
        String::from_utf8_lossy(text)
            .matches("\x1b[2Kheld ")
            .count()
    };
    eventually("the status is drawn again and again", || {
        times(&drawn()) > 2
    });
    let run = status()[0]["run"].as_str().unwrap().to_owned();
    let pid = run.split('-').next().unwrap().parse().unwrap();
    send(pid, Signal::INT);
    let done = script.wait();
    assert_eq!(done.code, 0, "{done:?}");
    String::from_utf8_lossy(&drawn()).into_owned()
}

#[test]
fn a_terminal_of_60_columns_has_a_status_that_is_cleared() {
    let Some(mut machine) = machine() else {
        return;
    };
    if Command::new("script").arg("--version").output().is_err() {
        return quell_testing::skip("script(1) is not installed");
    }
    let victim = busy();
    machine.remember();
    let text = on_a_terminal(&machine, &victim, "NO_COLOR=1");
    assert!(
        text.contains("Ctrl-C ends it and reverts everything"),
        "{text}"
    );
    let shown: Vec<&str> = text.split("\r\x1b[2K").skip(1).collect();
    let (last, drawn) = shown.split_last().unwrap();
    for status in drawn {
        let line = status.split(['\r', '\n']).next().unwrap();
        assert!(line.chars().count() < 60, "{line:?}");
        assert!(line.contains("promise"), "{line:?}");
    }
    // Erased before what is said at the end.
    assert!(
        last.contains("held for ") && last.contains("reverted: "),
        "{text:?}"
    );
    assert!(
        !text.contains("\x1b[3") && !text.contains("\x1b[1m"),
        "{text:?}"
    );
    let colours = on_a_terminal(&machine, &victim, "NO_COLOR=");
    assert!(colours.contains("\x1b[1m"), "{colours:?}");
}

/// A cgroup that a best-effort group names, and in which a program starts after the run has begun.
#[test]
fn a_cgroup_that_fills_later_gets_what_the_plan_sets() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let Some(cpu) = cgroups.of(Controller::Cpu) else {
        return quell_testing::skip("no cpu controller");
    };
    let dir = std::path::Path::new(&cpu.mount).join("late-of-a-test");
    let _ = fs::remove_dir(&dir);
    fs::create_dir(&dir).unwrap();
    let file = match cpu.version {
        Version::V1 => "cpu.shares",
        Version::V2 => "cpu.weight",
    };
    let weight = || -> u64 {
        let text = fs::read_to_string(dir.join(file)).unwrap();
        text.trim().parse().unwrap()
    };
    let usual = weight();
    let victim = busy();
    machine.remember();
    let run = Running::start(quell().args([
        "run",
        "--critical",
        &format!("pid={}", victim.pid()),
        "--best-effort",
        "cgroup=/late-of-a-test",
        "--cpus",
        "1",
    ]));
    eventually("held", || is_held(victim.pid()));
    eventually("all steps are applied", || status()[0]["holds"] == true);
    assert_eq!(weight(), usual);
    let late = Program::start(&["sleep", "600"]);
    fs::write(dir.join("cgroup.procs"), late.pid().to_string()).unwrap();
    eventually("the late cgroup has a low weight", || weight() < usual);
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.err.contains("/late-of-a-test appeared"), "{done:?}");
    assert_eq!(weight(), usual, "reverted");
    machine.unchanged("after the hold");
    drop(late);
    eventually("the cgroup is empty", || fs::remove_dir(&dir).is_ok());
    machine.remember();
}
