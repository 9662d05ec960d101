//! A model of the kernel behind [`Files`]: it refuses, populates and renames as the kernel does,
//! with the kernel's error numbers and status texts. Tests run on it without root, and on states
//! that no test should bring a machine into.
//!
//! What it does was taken from Documentation/admin-guide/{cgroup-v1/cpusets,cgroup-v2}.rst,
//! Documentation/filesystems/ resctrl.rst, and seen on Linux 6.18 (v1) and 6.12 (v2, in a virtual
//! machine); resctrl on 6.12 and 7.2 in the lab. A deviation from the real kernel that is known is
//! written down in the module it is in, under "Deviations".
//!
//! The model is a feature of its own (`fake`), so that the shipped program does not carry it.
//!
//! Deviations of the whole:
//! - Everything happens at once: a killed task is dead, a grace period takes no time, nothing is
//!   ever `EINTR`.
//! - There are no permissions: whoever asks is root. Modes are shown, and refuse nobody, as for
//!   root.
//! - Times are ticks of the model: a task's start is the number of tasks before it. Nothing runs,
//!   so usage is zero.

mod cgroup;
mod control;
mod cpuset;
mod knobs;
mod limits;
mod machine;
mod memory;
mod partition;
mod proc;
mod resctrl;
mod spec;
mod state;
mod task;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_types::cpuset::CpuSet;
use quell_types::task::TaskId;

use crate::root::Files;
pub use resctrl::Rdt;
pub use spec::{Flavour, Spec};
pub use state::Machine;

/// The kernel's answer: an error number.
pub(crate) type Answer<T> = Result<T, i32>;

/// What is asked of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A file is read.
    Read,
    /// A file is written, or an affinity set (`/proc/TID/affinity`).
    Write,
    /// A directory is made.
    Make,
    /// A directory is removed.
    Remove,
}

type Action = Box<dyn FnMut(&mut Machine, Op, &str, &str) + Send>;

/// The model, shared as the kernel is.
pub struct Fake {
    machine: Mutex<Machine>,
    meanwhile: Mutex<Option<Action>>,
    refusal: Mutex<Option<(Op, String, i32)>>,
}

impl Fake {
    /// A machine as described.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        Self {
            machine: Mutex::new(Machine::new(spec)),
            meanwhile: Mutex::new(None),
            refusal: Mutex::new(None),
        }
    }

    /// Looks at the machine, or does something on it as somebody else would.
    pub fn with<T>(&self, f: impl FnOnce(&mut Machine) -> T) -> T {
        f(&mut self.lock())
    }

    /// From now on this happens after every call that was answered without an error: what others do
    /// meanwhile. It is told the operation, the path and the text.
    pub fn meanwhile(&self, action: impl FnMut(&mut Machine, Op, &str, &str) + Send + 'static) {
        *self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
    }

    /// Nothing happens meanwhile any more.
    pub fn quiet(&self) {
        *self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// From now on an operation on paths that end like this is refused: what the model has no
    /// reason of its own for (a read-only mount, a security module).
    pub fn refuse(&self, op: Op, end: &str, errno: i32) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((op, end.to_owned(), errno));
    }

    /// Everything there is to be seen: every readable file, and where every task is and may run.
    #[must_use]
    pub fn dump(&self) -> BTreeMap<String, String> {
        let machine = self.lock();
        let mut found = BTreeMap::new();
        let mut open = vec![String::from("/sys"), String::from("/proc")];
        while let Some(dir) = open.pop() {
            for name in machine.list(&dir).unwrap_or_default() {
                let path = format!("{dir}/{name}");
                if machine.list(&path).is_ok() {
                    open.push(path.clone());
                }
                // What was said last is no state.
                if path.ends_with("/info/last_cmd_status") {
                    continue;
                }
                if let Ok(text) = machine.read(&path) {
                    found.insert(path, text);
                }
            }
        }
        for (tid, task) in &machine.tasks {
            found.insert(format!("/proc/{tid}/affinity"), task.allowed.to_string());
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T>(
        &self,
        op: Op,
        path: &str,
        text: &str,
        f: impl FnOnce(&mut Machine, &str) -> Answer<T>,
    ) -> io::Result<T> {
        let refusal = self
            .refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((o, end, errno)) = refusal
            && o == op
            && path.ends_with(&end)
        {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let mut machine = self.lock();
        let plain = machine.resolve(path);
        let answer = f(&mut machine, &plain).map_err(io::Error::from_raw_os_error)?;
        let mut action = self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(action) = action.as_mut() {
            action(&mut machine, op, path, text.trim());
        }
        Ok(answer)
    }
}

impl Files for Fake {
    fn read(&self, path: &str) -> io::Result<String> {
        self.ask(Op::Read, path, "", |m, p| m.read(p))
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.ask(Op::Write, path, text, |m, p| {
            m.write(p, text.trim_end_matches('\n'))
        })
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.ask(Op::Read, path, "", |m, p| m.list(p))
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.ask(Op::Make, path, "", Machine::mkdir)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.ask(Op::Remove, path, "", Machine::rmdir)
    }

    fn mount(&self, kind: &str, path: &str, options: &str) -> io::Result<()> {
        self.ask(Op::Make, path, options, |m, p| m.mount(kind, p, options))
    }

    fn unmount(&self, path: &str) -> io::Result<()> {
        self.ask(Op::Remove, path, "", Machine::unmount)
    }

    fn exists(&self, path: &str) -> bool {
        // `access(2)`: what others do meanwhile happens after it, too.
        let found = self.ask(Op::Read, path, "", |m, p| Ok(m.mode(p).is_ok()));
        found.unwrap_or(false)
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        self.ask(Op::Read, path, "", |m, p| m.mode(p))
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.ask(Op::Read, path, "", |m, p| m.link(p))
    }

    fn affinity(&self, tid: u32) -> io::Result<CpuSet> {
        let path = format!("/proc/{tid}/affinity");
        self.ask(Op::Read, &path, "", |m, _| m.affinity(tid))
    }

    fn scheduler(&self, tid: u32) -> io::Result<i32> {
        let path = format!("/proc/{tid}/scheduler");
        self.ask(Op::Read, &path, "", |m, _| m.scheduler(tid))
    }

    fn set_affinity(&self, tid: u32, cpus: &CpuSet) -> io::Result<()> {
        let path = format!("/proc/{tid}/affinity");
        self.ask(Op::Write, &path, &cpus.to_string(), |m, _| {
            m.set_affinity(tid, cpus)
        })
    }

    fn signal(&self, task: TaskId, signal: i32) -> io::Result<()> {
        let path = format!("/proc/{}/signal", task.pid);
        self.ask(Op::Write, &path, &signal.to_string(), |m, _| {
            m.signal(task, signal)
        })
    }
}
