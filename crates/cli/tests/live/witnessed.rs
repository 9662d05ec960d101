//! What is untrue while a plan is held is said, by a look that shares nothing with what holds it:
//! named at once, in the summary, and by the exit status.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::gathered::{Folder, allowed, busy};
use crate::common::{
    Done, Machine, Program, Running, cpu_share, eventually, in_group, in_status, machine, quell,
    send, status,
};
use quell_kernel::cgroup::{Cgroups, Controller};
use rustix::process::Signal;

/// A run that protects a program by a CPU of its own.
fn protected(critical: &Program) -> Running {
    let pid = format!("pid={}", critical.pid());
    let run = Running::start(quell().args(["run", "--cpus", "auto", "--critical", &pid]));
    eventually("it has its CPU", || {
        allowed(critical.pid()).len() == 1 && holds()
    });
    run
}

/// Whether the run that is active holds all that it promised, as another program is told.
fn holds() -> bool {
    status()[0]["holds"] == true
}

/// Waits until the promise is known to be broken, and ends the run.
fn broken(run: Running, names: &[&str]) -> Done {
    eventually("it is known that the promise is broken", || !holds());
    // What comes back does not take back what was.
    std::thread::sleep(Duration::from_millis(200));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 3, "{done:?}");
    for name in ["does not hold: ", "; lost"].iter().chain(names) {
        assert!(done.err.contains(name), "'{name}' is not in {done:?}");
    }
    done
}

/// The directory of a group of Quell's, in the hierarchy of a controller.
fn of_group(machine: &Machine, controller: Controller, pid: u32) -> String {
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let hierarchy = cgroups.of(controller).unwrap();
    hierarchy.dir_of(&machine.kernel, pid).unwrap().unwrap()
}

#[test]
fn a_stranger_on_the_critical_cpu_is_named() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let mount = cgroups.of(Controller::Cpuset).unwrap().mount.clone();
    let critical = busy();
    machine.remember();
    let run = protected(&critical);
    std::thread::sleep(Duration::from_millis(1600));
    assert!(holds(), "before the stranger comes");
    // A cgroup that another program makes while the plan is held, with all CPUs.
    let folder = Folder::new(&mount, "strange-of-a-test");
    let stranger = busy();
    folder.take(stranger.pid());
    broken(run, &[&format!("process {} (sh)", stranger.pid())]);
    drop((stranger, folder));
    machine.unchanged("after the run");
}

#[test]
fn a_critical_program_that_is_gone_is_said_to_be() {
    let Some(mut machine) = machine() else {
        return;
    };
    let critical = busy();
    machine.remember();
    let run = protected(&critical);
    send(critical.pid(), Signal::KILL);
    broken(run, &["has no process"]);
    machine.unchanged("after the run");
}

#[test]
fn a_quota_that_is_set_above_the_group_is_named() {
    let Some(mut machine) = machine() else {
        return;
    };
    let critical = busy();
    machine.remember();
    let run = protected(&critical);
    let dir = of_group(&machine, Controller::Cpu, critical.pid());
    let [file, value] = match Path::new(&dir).join("cpu.max").exists() {
        true => ["cpu.max", "20000 100000"],
        false => ["cpu.cfs_quota_us", "20000"],
    };
    fs::write(Path::new(&dir).join(file), value).unwrap();
    broken(run, &[file, "20000"]);
    machine.unchanged("after the run");
}

/// A run that limits a program to a tenth of a CPU's time, by the quota or by a brake. With its
/// weight it uses more on a busy machine, too, once nothing limits it.
fn limited(machine: &Machine, hog: &Program, how: &str) -> Running {
    let text = format!(
        "quell = 1\non-drift = \"report\"\n{how}\
         match = [{{ pid = {} }}]\ncpus = \"any\"\ncpu-weight = 100\n",
        hog.pid()
    );
    let run = Running::start(quell().args(["run", &machine.file("limit.toml", &text)]));
    eventually("it is held, and seen to be", || {
        std::thread::sleep(Duration::from_millis(1600));
        holds()
    });
    run
}

#[test]
fn a_quota_that_is_lifted_is_told_by_what_is_used() {
    let Some(mut machine) = machine() else {
        return;
    };
    let hog = busy();
    machine.remember();
    let how = "[group.batch]\nrole = \"best-effort\"\nlimit.cpu-time = \"10%\"\n";
    let run = limited(&machine, &hog, how);
    let dir = of_group(&machine, Controller::Cpu, hog.pid());
    let (file, value) = match Path::new(&dir).join("cpu.max").exists() {
        true => ("cpu.max", "max"),
        false => ("cpu.cfs_quota_us", "-1"),
    };
    fs::write(Path::new(&dir).join(file), value).unwrap();
    broken(run, &["the group used", "of CPU time in"]);
    machine.unchanged("after the run");
}

#[test]
fn a_brake_that_sleeps_is_told_by_what_is_used() {
    let Some(mut machine) = machine() else {
        return;
    };
    let hog = busy();
    machine.remember();
    let how = "[mechanisms]\nbandwidth = \"regulator\"\n[group.batch]\nrole = \"best-effort\"\n\
         limit.bandwidth = \"5%\"\n";
    let run = limited(&machine, &hog, how);
    // Brakes are in the cgroup next to the one of the group's tasks.
    let dir = of_group(&machine, Controller::Cpu, hog.pid());
    let stop = Path::new(&dir).parent().unwrap().join("stop/cgroup.procs");
    let brakes = fs::read_to_string(stop).unwrap();
    let brakes: Vec<u32> = brakes.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(!brakes.is_empty());
    for pid in &brakes {
        send(*pid, Signal::STOP);
    }
    broken(run, &["the group used", "of CPU time in"]);
    machine.unchanged("after the run");
}

/// Next to programs outside an idle group has nothing, whatever weight another group has.
#[test]
fn an_idle_group_beside_a_weighted_one_yields() {
    let Some(mut machine) = machine() else {
        return;
    };
    let on_one_cpu = ["taskset", "-c", "0", "sh", "-c", "while :; do :; done"];
    let (idle, other) = (Program::start(&on_one_cpu), Program::start(&on_one_cpu));
    let quiet = Program::start(&["sleep", "1000"]);
    machine.remember();
    let group = |name: &str, of: &Program, weight: &str| {
        let pid = of.pid();
        format!(
            "[group.{name}]\nrole = \"best-effort\"\ncpus = \"0\"\nmatch = [{{ pid = {pid} }}]\n\
             cpu-weight = {weight}\n"
        )
    };
    let groups = group("idle", &idle, "\"idle\"") + &group("quiet", &quiet, "50");
    let policy = machine.file("weights.toml", &format!("quell = 1\n{groups}"));
    let run = Running::start(quell().args(["run", &policy]));
    eventually("they are held, and seen to be", || {
        in_group(idle.pid(), "idle") && in_group(quiet.pid(), "quiet") && holds()
    });
    let share = |of: &Program| cpu_share(of.pid(), Duration::from_secs(1));
    let (left, had) = (share(&idle), share(&other));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    // With the other group's weight it would have half as much.
    assert!(left < had / 5.0, "{left} of a CPU beside {had}: {done:?}");
    machine.unchanged("after the run");
}

#[test]
fn memory_from_before_counts_against_a_limit() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    if cgroups.of(Controller::Memory).is_none() {
        return quell_testing::skip("no cgroup hierarchy has the memory controller");
    }
    let has = machine.path("has");
    let holds_much = format!(
        "x=$(head -c 60000000 /dev/zero | tr '\\0' x); : >{}; while :; do sleep 0.2; done",
        has.display()
    );
    let hog = Program::start(&["sh", "-c", &holds_much]);
    eventually("it has its memory", || has.exists());
    assert!(in_status(hog.pid(), "RssAnon") > 50 << 20);
    machine.remember();
    let text = format!(
        "quell = 1\n[group.batch]\nrole = \"best-effort\"\ncpus = \"any\"\nlimit.memory = \"32MiB\"\n\
         allow = [\"limit-memory\", \"kill\"]\nmatch = [{{ pid = {} }}]\n",
        hog.pid()
    );
    let policy = machine.file("memory.toml", &text);
    let run = Running::start(quell().args(["run", &policy]));
    let told = "of memory, where it may have 32MiB";
    eventually("that is seen", || status()[0].to_string().contains(told));
    broken(run, &[told]);
    machine.unchanged("after the run");
}

/// As `su` and `systemd-run --scope` do. Then the program takes its time to end.
#[test]
fn a_launched_program_that_leaves_is_named() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let mount = cgroups.of(Controller::Cpu).unwrap().mount.clone();
    machine.remember();
    let leaves =
        format!("trap : TERM; sleep 2; echo $$ >{mount}/cgroup.procs; while :; do sleep 0.2; done");
    let text = format!(
        "quell = 1\n[group.batch]\nrole = \"best-effort\"\ncpus = \"any\"\n\
         limit.cpu-time = \"50%\"\ncommand = [\"sh\", \"-c\", \"{leaves}\"]\n"
    );
    let policy = machine.file("leaves.toml", &text);
    let run = Running::start(quell().args(["run", &policy]));
    eventually("it is held, and seen to be", holds);
    eventually("it is known that the promise is broken", || !holds());
    run.signal(Signal::TERM);
    let undone = "its steps are being applied or undone, or it measures";
    eventually("nothing holds any more", || status()[0]["why"] == undone);
    let done = run.wait();
    for name in ["belongs to the group, but is in cgroup", "; lost"] {
        assert!(done.err.contains(name), "'{name}' is not in {done:?}");
    }
    machine.unchanged("after the run");
}
