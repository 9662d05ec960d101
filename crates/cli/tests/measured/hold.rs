//! `quell run` while nothing goes wrong: it launches or attaches, holds, tells, and restores.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    Done, Machine, Program, Running, busy, eventually, is_held, machine, quell, run, status,
    throttles,
};
use rustix::process::Signal;

/// The command that attaches to a critical and a best-effort process.
fn attach(critical: &Program, best_effort: &Program) -> Command {
    let matching = |program: &Program| format!("pid={}", program.pid());
    let mut attach = quell();
    attach
        .args(["run", "--critical", &matching(critical)])
        .args(["--best-effort", &matching(best_effort)])
        .args(["--limit", "20%", "--period", "1ms", "--cpus", "1"]);
    attach
}

/// A run that has launched a command which sleeps for a minute, and the command's process number.
fn launched(machine: &Machine) -> (Running, u32) {
    let note = machine.path("pid");
    let script = format!(
        "echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60",
        note.display()
    );
    let run = Running::start(quell().args(["run", "--", "sh", "-c", &script]));
    eventually("the command runs", || note.exists());
    let command = fs::read_to_string(&note).unwrap().trim().parse().unwrap();
    fs::remove_file(note).unwrap();
    (run, command)
}

/// Lets a run end in good order, as a user would.
#[track_caller]
fn end(run: Running) -> Done {
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    done
}

#[test]
fn the_commands_exit_status_is_passed_through() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let done = run(&["run", "--", "sh", "-c", script]);
        assert_eq!(done.code, code, "{script}: {done:?}");
        machine.unchanged(script);
    }
    // We are spared when memory runs out, where that is allowed, and what we start is not.
    let scores = "cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj";
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let done = run(&["run", "--quiet", "--", "sh", "-c", scores]);
    let spared = quell_kernel::oom::may_be_immune().map_or(own.clone(), |()| "-1000\n".to_owned());
    assert_eq!(done.out, format!("{own}{spared}"));
    run(&["run", "--", "/no/such/program"])
        .fails(127, &["/no/such/program", "nothing was changed"]);
    run(&["run", "--", "/etc/passwd"]).fails(126, &["/etc/passwd", "nothing was changed"]);
    let done = run(&["run", "--quiet", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(done.out, "out\n");
    // What goes wrong while it holds is told even so.
    for silent in ["Plan for", "Steps", "holding", "held for", "reverted"] {
        assert!(!done.err.contains(silent), "{done:?}");
    }
    assert!(done.err.contains("err\n"), "{done:?}");
}

#[test]
fn a_signal_ends_the_command_and_restores() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (run, command) = launched(&machine);
        assert!(is_held(command));
        assert!(!machine.differences().is_empty(), "the machine was changed");
        run.signal(signal);
        assert_eq!(run.wait().code, code);
        machine.unchanged("after the signal");
        let state = fs::read_to_string(format!("/proc/{command}/stat")).unwrap_or_default();
        assert!(
            state.is_empty() || state.contains(") Z "),
            "the command was ended: {state}"
        );
    }
}

#[test]
fn a_signal_while_it_measures_ends_it() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (victim, other) = (busy(), busy());
    machine.remember();
    // They keep both CPUs busy, so that measuring takes over a minute.
    let nothing_known = machine.path("state");
    let run = Running::start(attach(&victim, &other).env("QUELL_STATE_DIR", nothing_known));
    std::thread::sleep(Duration::from_secs(1));
    run.signal(Signal::TERM);
    let begun = Instant::now();
    let done = run.wait();
    assert_eq!(done.code, 143, "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{begun:?}");
    machine.unchanged("after the signal");
}

#[test]
fn running_programs_are_attached_to_told_about_and_let_go() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (victim, other) = (busy(), busy());
    machine.remember();
    let run = Running::start(&mut attach(&victim, &other));
    eventually("both are held and the busy one is throttled", || {
        is_held(victim.pid()) && is_held(other.pid()) && throttles() > 0
    });
    let (first, told) = (throttles(), status());
    assert_eq!(told[0]["holds"], true, "{told}");
    assert_eq!(told[0]["plan"]["policy"], "run", "{told}");
    eventually("it goes on being throttled", || throttles() > first);
    let text = crate::common::run(&["status"]);
    assert_eq!(text.code, 0);
    assert!(
        text.out.contains("holds") && text.out.contains("best-effort"),
        "{text:?}"
    );

    let refused = crate::common::run(&["run", "--", "true"]);
    refused.fails(
        125,
        &["another Quell holds", &format!("process {}", run.pid())],
    );
    assert_eq!(
        refused.err.matches("another Quell").count(),
        1,
        "said once: {}",
        refused.err
    );
    crate::common::run(&["restore"]).fails(1, &["is alive", &run.pid().to_string()]);

    let done = end(run);
    assert!(
        done.err.contains("throttled") && done.err.contains("reverted: "),
        "{done:?}"
    );
    machine.unchanged("after the hold");
    let after = crate::common::run(&["status"]);
    assert_eq!(
        (after.code, after.out.as_str()),
        (5, "no run is active, nothing is changed\n")
    );
}

#[test]
fn the_saved_policy_plans_and_runs_with_a_command_of_its_own() {
    let Some(mut machine) = machine() else {
        return;
    };
    let other = busy();
    machine.remember();
    let saved = machine.path("saved.toml").display().to_string();
    let matching = format!("pid={}", other.pid());
    let done = run(&[
        "run",
        "--best-effort",
        &matching,
        "--limit",
        "30%",
        "--save",
        &saved,
        "--",
        "true",
    ]);
    assert_eq!(done.code, 0, "{done:?}");
    let again = run(&["run", &saved]);
    assert_eq!(again.code, 0, "{again:?}");
    // Without its own command, the group is open to one of the command line.
    let text = fs::read_to_string(&saved).unwrap();
    let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with("command")).collect();
    assert_eq!(kept.len() + 1, text.lines().count(), "{text}");
    fs::write(&saved, kept.join("\n")).unwrap();
    let again = run(&["run", &saved, "--", "sh", "-c", "exit 4"]);
    assert_eq!(again.code, 4, "{again:?}");

    let critical = busy();
    machine.remember();
    let attached = Running::start(attach(&critical, &other).args(["--save", &saved]));
    eventually("held", || is_held(critical.pid()));
    end(attached);
    let plan = run(&["plan", &saved, "--json"]).json();
    assert!(plan["steps"].as_array().unwrap().len() > 3, "{plan}");
}

/// A child in a group of idle weight gets no CPU for long, and the main thread waits until it
/// executes: the run is not taken for one that hangs.
#[test]
fn a_neighbour_that_gets_no_cpu_is_waited_for() {
    let Some(mut machine) = machine() else {
        return;
    };
    let policy = machine.file(
        "p.toml",
        "quell = 1\n[group.app]\nrole = \"critical\"\ncpus = 1\ncommand = [\"sleep\", \"1\"]\n\
         [group.other]\nrole = \"best-effort\"\ncommand = [\"true\"]\n",
    );
    // More than the kernel gives an idle group on their CPU; each in a session, and so an
    // autogroup.
    let hog = "{ echo -19 >/proc/self/autogroup; } 2>/dev/null; exec timeout 8 sh -c 'while :; do :; done'";
    let hogs: Vec<Program> = (0..4)
        .map(|_| Program::start(&["setsid", "sh", "-c", hog]))
        .collect();
    machine.remember();
    let done = run(&["run", &policy]);
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("at the end");
    drop(hogs);
}

#[test]
fn a_task_that_appears_later_is_found() {
    let Some(mut machine) = machine() else {
        return;
    };
    let victim = busy();
    // A name that nothing else on this machine has.
    let program = machine.path("quell-late");
    fs::copy("/bin/sleep", &program).unwrap();
    machine.remember();
    let run = Running::start(quell().args([
        "run",
        "--critical",
        &format!("pid={}", victim.pid()),
        "--best-effort",
        "comm=quell-late",
        "--cpus",
        "1",
    ]));
    eventually("held", || is_held(victim.pid()));
    let late = Program::start(&[program.to_str().unwrap(), "60"]);
    let born = Instant::now();
    eventually("the late one is found", || is_held(late.pid()));
    assert!(
        born.elapsed() < Duration::from_secs(20),
        "it is looked for every second"
    );
    end(run);
    assert!(!is_held(late.pid()));
}

#[test]
fn the_death_of_the_launched_program_ends_the_hold() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let (run, command) = launched(&machine);
    crate::common::send(command, Signal::KILL);
    assert_eq!(run.wait().code, 137);
    machine.unchanged("after the command's death");
}

/// A holding run fits into 16 MiB and 128 KiB per CPU, and none of it can be swapped out.
#[test]
fn a_holding_run_is_small_and_locked() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (victim, other) = (busy(), busy());
    machine.remember();
    let run = Running::start(&mut attach(&victim, &other));
    eventually("throttled", || throttles() > 10);
    let text = fs::read_to_string(format!("/proc/{}/status", run.pid())).unwrap();
    let kib = |key: &str| -> u64 {
        let line = text.lines().find(|l| l.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    let most = 16 * 1024 + 128 * cpus;
    eprintln!(
        "VmHWM {} KiB, VmRSS {} KiB, VmLck {} KiB of at most {most} KiB",
        kib("VmHWM"),
        kib("VmRSS"),
        kib("VmLck")
    );
    assert!(kib("VmRSS") <= most && kib("VmHWM") <= most, "{text}");
    assert!(kib("VmLck") > 0, "{text}");
    end(run);
}

/// A policy whose critical group sleeps: what it reserves goes to the neighbour, and beyond both
/// budgets all is shared.
#[test]
fn what_a_sleeping_critical_program_reserves_is_drawn() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (critical, neighbour) = (Program::start(&["sleep", "600"]), busy());
    machine.remember();
    let mut shares = Vec::new();
    for modes in ["", "reclaim = true\nafter = \"proportional\"\n"] {
        // A tenth of the time of each CPU: beside other programs the neighbour gets no more than
        // its part of what is left.
        let policy = format!(
            "quell = 1\nname = \"pooled\"\nrequire = \"none\"\n\
             [regulator]\nmeter = \"time\"\nperiod = \"5ms\"\nstrict = true\n{modes}\
             [group.it]\nrole = \"critical\"\nmatch = [{{ pid = {} }}]\ncpus = \"1\"\nreserve.bandwidth = \"10%\"\n\
             [group.others]\nrole = \"best-effort\"\nmatch = [{{ pid = {} }}]\nreserve.bandwidth = \"10%\"\n",
            critical.pid(),
            neighbour.pid(),
        );
        let policy = machine.file("pooled.toml", &policy);
        let records = machine.path("records");
        let mut command = quell();
        let hold = Running::start(command.args(["run", &policy, "--out"]).arg(&records));
        // Where the sleeper's budget is lent it need not be throttled at all.
        eventually("both are held and the busy one was throttled", || {
            let throttled = !modes.is_empty() || throttles() > 0;
            is_held(critical.pid()) && is_held(neighbour.pid()) && throttled
        });
        // The time that the host takes is charged to whoever ran.
        let span = Duration::from_millis(700);
        let spans = [(); 3].map(|()| crate::common::cpu_share(neighbour.pid(), span));
        shares.push(match modes.is_empty() {
            true => spans.into_iter().fold(1.0, f64::min),
            false => spans.into_iter().fold(0.0, f64::max),
        });
        let done = end(hold);
        machine.unchanged("after the hold");
        assert!(done.err.contains("holding:"), "{done:?}");
        let record = fs::read_dir(&records)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let events = fs::read_to_string(record.join("events.jsonl")).unwrap();
        let sum = |what: &str| -> u64 {
            let events = events.lines().map(|l| serde_json::from_str(l).unwrap());
            let figure = |e: serde_json::Value| e["pooled"][what].as_u64();
            events.filter_map(figure).sum()
        };
        let pooled = ["donated", "best_effort"].map(|what| sum(what) > 0);
        assert_eq!(pooled, [!modes.is_empty(); 2], "{events}");
        let decisions = fs::read_to_string(record.join("samples/decisions-cpu0.csv")).unwrap();
        assert!(decisions.lines().count() > 10, "{decisions}");
        fs::remove_dir_all(&records).unwrap();
    }
    assert!(
        shares[0] < 0.13 && shares[1] > 1.8 * shares[0],
        "without and with: {shares:?}"
    );
}
