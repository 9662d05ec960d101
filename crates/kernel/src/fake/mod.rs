//! A model of the kernel behind [`Files`]. It refuses, populates and renames as the kernel does,
//! with the kernel's error numbers and status texts. Tests run on it without root, and on states
//! that no test should bring a machine into.
//!
//! Its behaviour was taken from Documentation/admin-guide/{cgroup-v1/cpusets,cgroup-v2}.rst and
//! Documentation/filesystems/resctrl.rst. It was seen on Linux 6.18 (v1) and 6.12 (v2, in a virtual
//! machine), resctrl on 6.12 and 7.2 in the lab. Each module lists its known deviations from the
//! real kernel under "Deviations".
//!
//! The model is a feature of its own (`fake`), so that the shipped program does not carry it.
//!
//! Deviations of the whole:
//! - Everything happens at once: a killed task is dead, a grace period takes no time, nothing is
//!   ever `EINTR`.
//! - There are no permissions: every caller is root. Modes are shown, and refuse nothing, as for
//!   root.
//! - Times are ticks of the model: a task's start grows by 100 with each task. Nothing runs, so
//!   usage is zero.

mod cgroup;
mod control;
mod cpuset;
mod knobs;
mod limits;
mod machine;
mod memory;
mod msr;
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
pub use msr::divided_by_registers;
pub use resctrl::Rdt;
pub use spec::{Flavour, Spec};
pub use state::Machine;

/// The kernel's answer, or an error number.
pub(crate) type Answer<T> = Result<T, i32>;

/// Kind of operation that the kernel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reading a file, or a directory, link, mode or affinity.
    Read,
    /// Writing a file, or setting an affinity (`/proc/TID/affinity`).
    Write,
    /// Making a directory, such as a cgroup.
    Make,
    /// Removing a directory, such as a cgroup.
    Remove,
}

type Action = Box<dyn FnMut(&mut Machine, Op, &str, &str) + Send>;

/// The model, shared as the kernel is: every call locks the machine.
pub struct Fake {
    machine: Mutex<Machine>,
    meanwhile: Mutex<Option<Action>>,
    refusal: Mutex<Option<(Op, String, i32)>>,
}

impl Fake {
    /// Makes a machine as `spec` describes it.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        Self {
            machine: Mutex::new(Machine::new(spec)),
            meanwhile: Mutex::new(None),
            refusal: Mutex::new(None),
        }
    }

    /// Calls `f` with the machine, to inspect or change it as another program would.
    pub fn with<T>(&self, f: impl FnOnce(&mut Machine) -> T) -> T {
        f(&mut self.lock())
    }

    /// Calls `action` after every later call that succeeded: what other programs do meanwhile. It
    /// gets the operation, the path and the text.
    pub fn meanwhile(&self, action: impl FnMut(&mut Machine, Op, &str, &str) + Send + 'static) {
        *self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
    }

    /// Ends what [`Self::meanwhile`] began.
    pub fn quiet(&self) {
        *self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Refuses an operation on paths with this end from now on. This is for refusals that the model
    /// has no reason for (a read-only mount, a security module).
    pub fn refuse(&self, op: Op, end: &str, errno: i32) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((op, end.to_owned(), errno));
    }

    /// Everything that can be seen: every readable file, and the affinity of every task.
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
                // The last status text is no state.
                if path.ends_with("/info/last_cmd_status") {
                    continue;
                }
                if let Ok(text) = machine.read(&path) {
                    found.insert(path, text);
                }
            }
        }
        found.extend(machine.registers.iter().flat_map(|r| r.dump()));
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
        // `access(2)`: other programs may act after it, too.
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
