//! Who is meant by a policy is where its plan says: read from the kernel's own files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{
    Done, Machine, Program, Running, eventually, machine, quell, status_of, watchdog_of,
};
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_types::cpuset::CpuSet;
use rustix::process::Signal;

/// A program that computes for ever.
pub(super) fn busy() -> Program {
    Program::start(&["sh", "-c", "while :; do :; done"])
}

/// The CPUs that a process may use.
pub(super) fn allowed(pid: u32) -> CpuSet {
    let list = status_of(pid, "Cpus_allowed_list").unwrap();
    list.trim().parse().unwrap()
}

/// A cgroup that nobody but the test has. It is removed at the end, once it is empty.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(mount: &str, name: &str) -> Self {
        let path = Path::new(mount).join(name);
        // One that was killed has left it.
        let _ = fs::remove_dir(&path);
        fs::create_dir(&path).unwrap();
        // What a v1 cpuset needs before it takes tasks.
        for file in ["cpuset.mems", "cpuset.cpus"] {
            if let Ok(all) = fs::read_to_string(Path::new(mount).join(file)) {
                fs::write(path.join(file), all).unwrap();
            }
        }
        Self(path)
    }

    pub(super) fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn has(&self, pid: u32) -> bool {
        let procs = fs::read_to_string(self.0.join("cgroup.procs")).unwrap();
        procs.lines().any(|line| line == pid.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Its programs end before it: they were started after it was made.
        let gone = |_: &u32| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::remove_dir(&self.0).is_ok()
        };
        let removed = (0..250).find(gone).is_some();
        assert!(removed || std::thread::panicking(), "{:?}", self.0);
    }
}

/// Holds a policy until `seen`, and ends it.
fn hold_until(machine: &Machine, policy: &str, what: &str, seen: impl Fn() -> bool) -> Done {
    let file = machine.file("policy.toml", policy);
    let run = Running::start(quell().args(["run", &file]));
    eventually(what, seen);
    // A second look of the run changes nothing of it.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    run.signal(Signal::TERM);
    run.wait()
}

#[test]
fn a_group_of_any_cpus_is_kept_off_those_of_a_critical_one() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (critical, neighbour) = (busy(), busy());
    machine.remember();
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\nmatch = [{{ pid = {} }}]\n\
        [group.b]\nrole = 'best-effort'\ncpus = 'any'\nmatch = [{{ pid = {} }}]\n",
        critical.pid(),
        neighbour.pid()
    );
    let all = allowed(critical.pid());
    let apart = || {
        let (own, theirs) = (allowed(critical.pid()), allowed(neighbour.pid()));
        own.len() == 1 && theirs == all.difference(&own)
    };
    let done = hold_until(&machine, &policy, "each has its own CPUs", apart);
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("after the run");
}

#[test]
fn a_group_of_a_unit_and_a_process_has_both() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let cpuset = cgroups.of(Controller::Cpuset).unwrap();
    let unit = Folder::new(&cpuset.mount, "mixed-of-a-test.service");
    let (of_unit, alone) = (busy(), busy());
    unit.take(of_unit.pid());
    machine.remember();
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\n\
        match = [{{ unit = 'mixed-of-a-test.service' }}, {{ pid = {} }}]\n",
        alone.pid()
    );
    let both = || {
        let cpus = allowed(of_unit.pid());
        cpus.len() == 1 && cpus == allowed(alone.pid()) && unit.has(of_unit.pid())
    };
    let done = hold_until(&machine, &policy, "both have the group's CPU", both);
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("after the run");
}

/// As on a machine with both versions, where a unit has its folder in one hierarchy alone.
#[test]
fn a_unit_without_a_folder_among_the_cpusets_gets_its_cpu() {
    let Some(mut machine) = machine() else {
        return;
    };
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let cpuset = cgroups.of(Controller::Cpuset).unwrap();
    let Some(v2) = cgroups.v2().filter(|_| cpuset.version == Version::V1) else {
        return quell_testing::skip("cgroup v1 and v2 are not mounted side by side");
    };
    let unit = Folder::new(&v2.mount, "unified-of-a-test.service");
    let (of_unit, other) = (busy(), busy());
    unit.take(of_unit.pid());
    machine.remember();
    let policy = "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\n\
        match = [{ unit = 'unified-of-a-test.service' }]\n";
    let apart = || {
        let (own, theirs) = (allowed(of_unit.pid()), allowed(other.pid()));
        own.len() == 1 && own.intersection(&theirs).is_empty() && unit.has(of_unit.pid())
    };
    let done = hold_until(&machine, policy, "the unit has a CPU of its own", apart);
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("after the run");
}

/// Nobody asked for the end of the protection: the terminal is gone.
#[test]
fn a_run_that_loses_its_terminal_does_not_end_well() {
    let Some(mut machine) = machine() else {
        return;
    };
    let critical = busy();
    machine.remember();
    let pid = format!("pid={}", critical.pid());
    let run = Running::start(quell().args(["run", "--cpus", "auto", "--critical", &pid]));
    eventually("it has its CPU", || allowed(critical.pid()).len() == 1);
    run.signal(Signal::HUP);
    let done = run.wait();
    assert_eq!(done.code, 128 + 1, "{done:?}");
    machine.unchanged("after the run");
}

/// It outlives the shell that started the run, whose pipes would never end.
#[test]
fn the_watchdog_has_a_name_and_no_files_of_its_starter() {
    let Some(mut machine) = machine() else {
        return;
    };
    let critical = busy();
    machine.remember();
    let path = machine.file("kept-open", "");
    let quell = quell().get_program().to_string_lossy().into_owned();
    let pid = format!("pid={}", critical.pid());
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        "exec 9<\"$1\"; shift; exec \"$@\"",
        "sh",
        &path,
        &quell,
    ]);
    let run = Running::start(shell.args(["run", "--critical", &pid]));
    eventually("a watchdog runs", || watchdog_of(run.pid()).is_some());
    let watchdog = watchdog_of(run.pid()).unwrap();
    let files = |pid: u32| {
        let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let targets = all
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok());
        targets
            .map(|to| to.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    eventually("it has its name", || {
        status_of(watchdog, "Name").as_deref() == Some("quell-watchdog")
    });
    assert!(
        files(run.pid()).contains(&path),
        "the run itself has it: {:?}",
        files(run.pid())
    );
    assert!(!files(watchdog).contains(&path), "{:?}", files(watchdog));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    machine.unchanged("after the run");
}
