//! The machines that a body runs on, and what each of them can do.

use std::collections::BTreeMap;

use quell_kernel::fake::{Fake, Flavour, Rdt, Spec};
use quell_kernel::procfs;
use quell_kernel::resctrl::locked::holders;
use quell_kernel::root::{Files, Kernel};
use quell_linux::journal::{Header, Journal, VERSION};
use quell_linux::lock::Lock;
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;

use crate::common::{Picture, Program, eventually, machine};

/// What a body needs of a machine.
pub trait Arm {
    fn files(&self) -> &dyn Files;
    /// Starts a process with that many children, and returns its process id.
    fn start(&mut self, children: usize) -> u32;
    /// Waits for a process that was killed.
    fn wait(&mut self, pid: u32);
    /// Starts a process that opens the device of a locked region, and returns its process id.
    fn opens(&mut self, region: &str) -> u32;
    /// Ends the process that [`Self::opens`] started.
    fn closes(&mut self, pid: u32);
    /// Takes a picture of everything. From here on it has to stay so, or be restored.
    fn remember(&mut self);
    /// What differs from the remembered picture, a sentence each.
    fn differences(&self) -> Vec<String>;
}

pub struct FakeArm {
    pub fake: Fake,
    before: BTreeMap<String, String>,
}

/// A model with one of everything that Quell changes.
pub fn furnished(spec: &Spec) -> Fake {
    let fake = Fake::new(spec);
    fake.with(|m| {
        let all: CpuSet = (0..spec.cpus).collect();
        m.interrupt(0, &all, libc::EPERM);
        m.interrupt(24, &all, 0);
        m.interrupt(25, &CpuSet::from_iter([0]), 0);
        m.interrupt(26, &all, libc::EIO);
    });
    fake
}

impl FakeArm {
    fn new(flavour: Flavour, release: &'static str) -> Self {
        Self::of(&Spec {
            release,
            ..Spec::new(flavour)
        })
    }

    fn of(spec: &Spec) -> Self {
        let fake = furnished(spec);
        let before = fake.dump();
        Self { fake, before }
    }
}

pub fn v1() -> FakeArm {
    FakeArm::new(Flavour::V1, "6.18.0")
}

pub fn v2() -> FakeArm {
    FakeArm::new(Flavour::V2, "6.12.0")
}

/// A model of a processor that can be divided, under a kernel of this release.
pub fn divided(rdt: Rdt, release: &'static str) -> FakeArm {
    FakeArm::of(&Spec {
        release,
        rdt: Some(rdt),
        ..Spec::new(Flavour::V2)
    })
}

pub fn old_v2() -> FakeArm {
    FakeArm::new(Flavour::V2, "6.1.0")
}

/// What differs between two dumps, a sentence each.
pub fn compare(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for path in before
        .keys()
        .chain(now.keys().filter(|k| !before.contains_key(*k)))
    {
        let (was, is) = (before.get(path), now.get(path));
        if was != is {
            found.push(format!("{path} was {was:?}, is {is:?}"));
        }
    }
    found
}

impl Arm for FakeArm {
    fn files(&self) -> &dyn Files {
        &self.fake
    }

    fn start(&mut self, children: usize) -> u32 {
        self.fake.with(|m| {
            let pid = m.spawn("program");
            for _ in 0..children {
                m.fork(pid);
            }
            pid
        })
    }

    fn wait(&mut self, pid: u32) {
        self.fake.with(|m| {
            m.exit(pid);
            m.reap(pid);
        });
    }

    fn opens(&mut self, region: &str) -> u32 {
        self.fake.with(|m| {
            let pid = m.spawn("program");
            m.opens(pid, region).unwrap();
            pid
        })
    }

    fn closes(&mut self, pid: u32) {
        self.wait(pid);
    }

    fn remember(&mut self) {
        self.before = self.fake.dump();
    }

    fn differences(&self) -> Vec<String> {
        compare(&self.before, &self.fake.dump())
    }
}

/// The kernel that this test runs on.
pub struct LiveArm {
    kernel: Kernel,
    _lock: Lock,
    programs: Vec<Program>,
    before: Picture,
}

pub fn live() -> Option<LiveArm> {
    let (kernel, lock) = machine()?;
    let before = Picture::take(&kernel);
    Some(LiveArm {
        kernel,
        _lock: lock,
        programs: Vec::new(),
        before,
    })
}

/// The same where resctrl may be unmounted: in a virtual machine that permits it.
pub fn live_divided() -> Option<LiveArm> {
    if std::env::var_os("QUELL_TEST_RESCTRL").is_none() {
        quell_testing::skip(
            "resctrl is not this machine's to play with (QUELL_TEST_RESCTRL); see `lab`",
        );
        return None;
    }
    live()
}

impl Arm for LiveArm {
    fn files(&self) -> &dyn Files {
        &self.kernel
    }

    fn start(&mut self, children: usize) -> u32 {
        let script = "sleep 60 & ".repeat(children) + "wait";
        let program = match children {
            0 => Program::start(&["sleep", "60"]),
            _ => Program::start(&["sh", "-c", &script]),
        };
        let pid = program.pid();
        self.programs.push(program);
        eventually("the shell starts its children", || {
            let all = procfs::processes(&self.kernel).unwrap();
            all.iter().filter(|s| s.parent == pid).count() == children
        });
        pid
    }

    fn wait(&mut self, pid: u32) {
        let found = self.programs.iter_mut().find(|p| p.pid() == pid);
        assert!(!found.unwrap().0.wait().unwrap().success());
    }

    fn opens(&mut self, region: &str) -> u32 {
        let script = format!("exec 3<>/dev/pseudo_lock/{region} && exec sleep 60");
        let program = Program::start(&["sh", "-c", &script]);
        let pid = program.pid();
        self.programs.push(program);
        eventually("the device is opened", || {
            holders(&self.kernel, region).unwrap().contains(&pid)
        });
        pid
    }

    fn closes(&mut self, pid: u32) {
        let found = self.programs.iter_mut().find(|p| p.pid() == pid);
        let program = &mut found.unwrap().0;
        program.kill().unwrap();
        program.wait().unwrap();
    }

    fn remember(&mut self) {
        self.before = Picture::take(&self.kernel);
    }

    fn differences(&self) -> Vec<String> {
        let mut found = self.before.differences(&self.kernel);
        // A v2 partition that comes or goes widens the threads of threaded interrupts. They follow
        // their interrupt again when that is next moved. This is the kernel's own affair (seen with
        // Linux 6.12).
        found.retain(|what| !what.starts_with("irq/"));
        found
    }
}

/// A journal that undoes on drop, so that a failing body leaves nothing behind on a live machine.
pub struct Held<'a> {
    pub files: &'a dyn Files,
    pub journal: Journal,
    let_go: bool,
    _dir: tempfile::TempDir,
}

impl<'a> Held<'a> {
    pub fn new(files: &'a dyn Files) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let header = Header {
            version: VERSION,
            boot: procfs::boot_id(files).unwrap(),
            run: "test".into(),
            main: procfs::ourselves(files).unwrap().id,
        };
        let journal = Journal::create(dir.path(), header).unwrap();
        Self {
            files,
            journal,
            let_go: false,
            _dir: dir,
        }
    }

    /// Returns the recorded changes, which the caller undoes.
    pub fn let_go(mut self) -> Vec<Undo> {
        self.let_go = true;
        self.journal.entries().to_vec()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.let_go {
            self.journal.undo_all(self.files);
        }
    }
}
