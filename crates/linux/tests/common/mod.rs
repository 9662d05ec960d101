//! Shared by the tests on the running kernel: the machine-wide lock, and a picture of everything
//! that Quell may change. The helpers never leave anything behind.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::cgroup_tree::tasks_in;
use quell_kernel::irq;
use quell_kernel::procfs::{self, Membership};
use quell_kernel::root::{Files, Kernel};
use quell_linux::group_cgroups::outermost;
use quell_linux::journal::{Header, Journal, VERSION};
use quell_linux::known;
use quell_linux::lock::{Lock, RUN_ROOT};
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskId;

/// The running kernel, held by the lock. `None` where the test is skipped, with the reason printed.
pub fn machine() -> Option<(Kernel, Lock)> {
    if !rustix::process::geteuid().is_root() {
        quell_testing::skip("needs root (CAP_SYS_ADMIN, CAP_SYS_NICE)");
        return None;
    }
    let kernel = Kernel::new().unwrap();
    if Cgroups::discover(&kernel)
        .unwrap()
        .of(Controller::Cpuset)
        .is_none()
    {
        quell_testing::skip("no cpuset hierarchy is mounted");
        return None;
    }
    if quell_kernel::topology::online(&kernel).unwrap().len() < 2 {
        quell_testing::skip("needs two CPUs");
        return None;
    }
    let lock = Lock::acquire_within(Path::new(RUN_ROOT), "test", Duration::from_secs(300)).unwrap();
    Some((kernel, lock))
}

pub fn header(kernel: &Kernel) -> Header {
    Header {
        version: VERSION,
        boot: procfs::boot_id(kernel).unwrap(),
        run: "test".into(),
        main: procfs::ourselves(kernel).unwrap().id,
    }
}

/// A journal that undoes on drop, so that a failing test leaves nothing behind.
pub struct Guard {
    pub kernel: Kernel,
    pub journal: Journal,
    pub dir: tempfile::TempDir,
}

impl Guard {
    pub fn new(kernel: &Kernel) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::create(dir.path(), header(kernel)).unwrap();
        Self {
            kernel: kernel.clone(),
            journal,
            dir,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(known::stranger(&self.kernel, self.journal.entries()), None);
        }
        let undone = self.journal.undo_all(&self.kernel);
        if !std::thread::panicking() {
            assert!(
                self.journal.entries().is_empty(),
                "not undone: {:?}",
                undone.left
            );
        }
    }
}

/// A child in a session of its own, killed (with its process group) on drop. Where the test is
/// killed the child is, too.
pub struct Program(pub Child);

impl Program {
    pub fn start(command: &[&str]) -> Self {
        use std::os::unix::process::CommandExt;
        let mut program = Command::new(command[0]);
        program
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let alone = || {
            rustix::process::setsid()?;
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made.
        unsafe { program.pre_exec(alone) };
        loop {
            match program.spawn() {
                // A child that another test has just forked holds a copied program open for
                // writing.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => return Self(done.unwrap()),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Everything that Quell may change.
#[derive(Debug)]
pub struct Picture {
    pub tasks: BTreeMap<TaskId, (String, Vec<String>, Option<CpuSet>)>,
    pub files: BTreeMap<String, String>,
    pub cgroups: BTreeSet<String>,
}

impl Picture {
    pub fn take(kernel: &Kernel) -> Self {
        let files: &dyn Files = kernel;
        let mut tasks = BTreeMap::new();
        for process in procfs::processes(files).unwrap() {
            for tid in procfs::threads(files, process.id.pid).unwrap() {
                let Some(stat) = procfs::stat(files, tid).unwrap() else {
                    continue;
                };
                if stat.dead() {
                    continue;
                }
                let places = procfs::memberships(files, &tid.to_string()).unwrap();
                let places = places
                    .iter()
                    .filter(|m| changed_by_us(m))
                    .map(|m| format!("{:?}{}", m.controllers, m.path))
                    .collect();
                // Threads that the kernel binds are its own affair: a workqueue's rescuer takes the
                // mask of the pool that it has helped.
                let affinity = files.affinity(tid).ok().filter(|_| !stat.bound());
                tasks.insert(stat.id, (stat.comm, places, affinity));
            }
        }
        let mut settings = BTreeMap::new();
        let mut note = |path: String| {
            // Twice: an interrupt may just move.
            let first = files.read(&path);
            if let Ok(text) = first.and_then(|text| irq::read_settled(kernel, &path, &text)) {
                settings.insert(path, text);
            }
        };
        note("/sys/devices/virtual/workqueue/cpumask".into());
        note("/proc/irq/default_smp_affinity".into());
        for irq in files.names("/proc/irq").unwrap() {
            note(format!("/proc/irq/{irq}/smp_affinity_list"));
        }
        let mut cgroups = BTreeSet::new();
        for hierarchy in Cgroups::discover(files).unwrap().hierarchies {
            note(format!("{}/cgroup.subtree_control", hierarchy.mount));
            for name in files.names(&hierarchy.mount).unwrap() {
                let dir = format!("{}/{name}", hierarchy.mount);
                if files.exists(&format!("{dir}/cgroup.procs")) {
                    note(format!("{dir}/cpuset.cpus"));
                    cgroups.insert(dir);
                }
            }
        }
        Self {
            tasks,
            files: settings,
            cgroups,
        }
    }

    /// What differs now, a sentence each. Tasks that came or went do not count, unless they are in
    /// a cgroup that Quell made.
    pub fn differences(&self, kernel: &Kernel) -> Vec<String> {
        let now = Self::take(kernel);
        let mut found = Vec::new();
        for (task, (comm, places, affinity)) in &now.tasks {
            if places.iter().any(|p| p.contains("quell")) {
                found.push(format!("{comm} ({}) is still in {places:?}", task.pid));
            }
            let Some((_, before, affinity_before)) = self.tasks.get(task) else {
                continue;
            };
            if before != places {
                found.push(format!(
                    "{comm} ({}) was in {before:?}, is in {places:?}",
                    task.pid
                ));
            }
            // A worker of the kernel is bound only once it has begun, and a task may end meanwhile.
            if let (Some(before), Some(now)) = (affinity_before, affinity)
                && before != now
            {
                found.push(format!(
                    "{comm} ({}) ran on {before:?}, now {now:?}",
                    task.pid
                ));
            }
        }
        for (path, before) in &self.files {
            let settled = || irq::read_settled(kernel, path, before);
            let other = now.files.get(path).is_some_and(|text| text != before);
            if let Some(text) = other.then(settled).and_then(Result::ok)
                && &text != before
            {
                found.push(format!(
                    "{path} was '{}', is '{}'",
                    before.trim(),
                    text.trim()
                ));
            }
        }
        found.extend(
            now.cgroups
                .iter()
                .filter(|c| c.contains("quell"))
                .map(|c| format!("{c} is left")),
        );
        found
    }
}

/// Whether a membership is in a hierarchy that Quell moves tasks in. Other hierarchies do not
/// matter here.
fn changed_by_us(place: &Membership) -> bool {
    place.hierarchy == 0
        || place
            .controllers
            .iter()
            .any(|c| ["cpuset", "cpu", "freezer", "perf_event"].contains(&c.as_str()))
}

/// Waits until `done`. Fails after a minute, which only an unreasonably busy machine needs.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{what}: not within a minute"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The members of one of Quell's cgroups, in the hierarchy of a controller.
pub fn members(kernel: &Kernel, controller: Controller, group: &str) -> Vec<u32> {
    let cgroups = Cgroups::discover(kernel).unwrap();
    let hierarchy = cgroups.of(controller).unwrap();
    let of = |dir| tasks_in(kernel, &format!("{}/{dir}", hierarchy.mount));
    let found = [format!("quell.slice/{group}"), outermost(group)];
    found.map(|dir| of(dir).unwrap_or_default()).concat()
}

pub fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}
