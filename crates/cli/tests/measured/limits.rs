//! Limits at their edges: tasks that no limit holds, limits that are very small or no limit, groups
//! of many tasks.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    Machine, Program, Running, busy, cpu_share, eventually, in_group, is_held, machine, quell, run,
    send, status,
};
use quell_kernel::procfs;
use quell_kernel::root::Kernel;
use rustix::process::Signal;

/// A limit by `cpu.max`, and one by the brake.
const LIMITS: [(&str, &str); 2] = [
    ("cpu-time = \"20%\"", "none"),
    ("bandwidth = \"20%\"", "regulator"),
];

/// A policy that limits one process, by `cpu.max` or by the brake.
fn policy(machine: &Machine, program: &Program, limit: &str, mechanism: &str) -> String {
    let text = format!(
        "quell = 1\nname = \"limits\"\n[group.batch]\nrole = \"best-effort\"\nmatch = [{{ pid = {} }}]\nlimit = {{ {limit} }}\n\
         [mechanisms]\nbandwidth = \"{mechanism}\"\n",
        program.pid()
    );
    machine.file("limits.toml", &text)
}

fn chrt(args: &[&str], program: &Program) -> bool {
    let pid = program.pid().to_string();
    let done = Command::new("chrt").args(args).arg(&pid).output().unwrap();
    done.status.success()
}

#[test]
fn a_real_time_task_in_a_limited_group_is_refused() {
    let Some(mut machine) = machine() else {
        return;
    };
    let other = busy();
    assert!(chrt(&["--fifo", "--pid", "10"], &other));
    machine.remember();
    for (limit, mechanism) in LIMITS {
        let policy = policy(&machine, &other, limit, mechanism);
        let done = run(&["run", &policy]);
        // Where cgroups have real-time budgets of their own, the kernel refuses it first.
        let said = done.err.contains("SCHED_FIFO") || done.err.contains("real-time");
        assert!(
            done.code != 0 && said && done.err.contains("chrt"),
            "{done:?}"
        );
        machine.unchanged("after the refusal");
    }
}

/// The kernel lets deadline tasks into every cgroup, and takes a task of any cgroup among them.
#[test]
fn a_task_that_turns_so_while_it_is_limited_costs_the_promise() {
    let Some(mut machine) = machine() else {
        return;
    };
    let other = busy();
    machine.remember();
    let policy = policy(&machine, &other, "cpu-time = \"20%\"", "none");
    let held = Running::start(quell().args(["run", &policy]));
    eventually("it is held", || is_held(other.pid()));
    // A step to come would refuse it.
    std::thread::sleep(Duration::from_secs(1));
    let deadline = [
        "--deadline",
        "--sched-runtime",
        "1000000",
        "--sched-deadline",
        "10000000",
    ];
    let period = ["--sched-period", "10000000", "--pid", "0"];
    if chrt(&[&deadline[..], &period[..]].concat(), &other) {
        eventually("its promise is lost", || {
            let promises = status()[0]["plan"]["promises"].clone();
            promises
                .as_array()
                .is_some_and(|all| all.iter().any(|p| p["level"] == "none"))
        });
    } else {
        quell_testing::skip_part("this kernel admits no deadline task here");
    }
    held.signal(Signal::TERM);
    let done = held.wait();
    assert!(done.err.contains("SCHED_DEADLINE"), "{done:?}");
    machine.unchanged("after the run");
}

/// The pids of the brakes that hold the group `batch`.
fn brakes() -> Vec<u32> {
    let all = procfs::processes(&Kernel::new().unwrap()).unwrap();
    let pids = all.iter().map(|process| process.id.pid);
    let braking = |pid: &u32| {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        cgroups.is_ok_and(|text| {
            text.lines()
                .any(|line| line.ends_with("/quell-batch.slice/stop"))
        })
    };
    pids.filter(braking).collect()
}

/// A brake that somebody kills takes its promise with it, and a command that ended well does not
/// hide that. Its own status says more where it failed.
#[test]
fn a_promise_lost_while_it_runs_is_the_exit_status_of_a_run() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let cpus = std::thread::available_parallelism().unwrap().get();
    for (own, code) in [(0, 3), (7, 7)] {
        let over = machine.path("over");
        let _ = fs::remove_file(&over);
        let text = format!(
            "quell = 1\nname = \"lost\"\n[group.batch]\nrole = \"best-effort\"\n\
             command = [\"sh\", \"-c\", \"until [ -e {} ]; do :; done; exit {own}\"]\n\
             limit = {{ bandwidth = \"20%\" }}\n[mechanisms]\nbandwidth = \"regulator\"\n",
            over.display()
        );
        let policy = machine.file("lost.toml", &text);
        let held = Running::start(quell().args(["run", &policy]));
        // One that is killed while it starts is no loss: the run is refused.
        eventually("all brakes regulate", || {
            let of_cpus = status()[0]["throttled"].clone();
            let all = of_cpus.as_array().map_or(&[][..], Vec::as_slice);
            all.len() == cpus && all.iter().all(|of_cpu| of_cpu["regulated"] == true)
        });
        let killed = brakes();
        for brake in &killed {
            send(*brake, Signal::KILL);
        }
        // The look that starts them anew has told of the loss before.
        eventually("there are others", || {
            brakes().iter().any(|brake| !killed.contains(brake))
        });
        fs::write(&over, "").unwrap();
        let done = held.wait();
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.err.contains("level none"), "{done:?}");
        machine.unchanged("after the run");
    }
}

#[test]
fn a_limit_of_a_thousandth_and_one_above_the_peak_work() {
    let Some(mut machine) = machine() else {
        return;
    };
    let other = busy();
    machine.remember();
    for (limit, mechanism, least, most) in [
        ("cpu-time = \"0.1%\"", "none", 0.0, 0.01),
        ("bandwidth = \"0.1%\"", "regulator", 0.0, 0.01),
        ("cpu-time = \"6400%\"", "none", 0.5, 1.01),
        ("bandwidth = \"1000GB/s\"", "regulator", 0.5, 1.01),
    ] {
        let policy = policy(&machine, &other, limit, mechanism);
        let held = Running::start(quell().args(["run", &policy]));
        eventually("it is held", || status()[0]["holds"] == true);
        // What it drew before it was limited, and what others take from it, are in some spans only.
        let spans = (0..5).map(|_| cpu_share(other.pid(), Duration::from_secs(1)));
        let shares: Vec<f64> = spans.collect();
        held.signal(Signal::TERM);
        let done = held.wait();
        assert_eq!(done.code, 0, "{limit}: {done:?}");
        let right = shares.iter().any(|share| (least..most).contains(share));
        assert!(right, "{limit}: {shares:?}: {done:?}");
        machine.unchanged(limit);
    }
    let policy = policy(&machine, &other, "bandwidth = \"400%\"", "regulator");
    run(&["run", &policy]).fails(2, &["limit.bandwidth: 400% is more than the machine has"]);
}

/// Every task is moved, also those that are born meanwhile, and none is left behind.
#[test]
fn thousands_of_forking_tasks_are_limited_and_released() {
    let Some(machine) = machine() else {
        return;
    };
    let many = "i=0; while [ $i -lt 2000 ]; do sleep 300 & i=$((i+1)); done; echo done >&2; \
        while :; do /bin/true; done";
    let other = Program::start(&["sh", "-c", many]);
    let sleepers = || {
        let all = procfs::processes(&Kernel::new().unwrap()).unwrap();
        let ours = all
            .iter()
            .filter(|s| s.parent == other.pid() && s.comm == "sleep");
        ours.map(|s| s.id.pid).collect::<Vec<u32>>()
    };
    eventually("they run", || sleepers().len() == 2000);
    for (limit, mechanism) in LIMITS {
        let policy = policy(&machine, &other, limit, mechanism);
        let begun = Instant::now();
        let held = Running::start(quell().args(["run", &policy]));
        eventually("all are held", || {
            sleepers().iter().all(|pid| in_group(*pid, "batch"))
        });
        eprintln!(
            "{mechanism}: 2,000 tasks were held after {:?}",
            begun.elapsed()
        );
        held.signal(Signal::TERM);
        let done = held.wait();
        assert_eq!(done.code, 0, "{done:?}");
        assert!(!sleepers().iter().any(|pid| is_held(*pid)));
    }
}
