//! The program's side.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

use crate::layout::{self, at, slot, slot_of};
use crate::map::{Map, now};

/// Times this process has forked, counted in the children: a session belongs to the process that opened it.
static FORKED: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKED.fetch_add(1, Relaxed);
}

fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to a counter, which is allowed in a child.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// What a unit of work asks of the machine, as far as the program knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that a unit moves to and from memory; 0: unknown.
    pub bytes_per_unit: u64,
    /// Bytes that it uses again and again; 0: unknown.
    pub working_set: u64,
}

/// A session with Quell, or none: then every call does next to nothing. One per process; its units are told of by one thread.
#[derive(Debug)]
pub struct Session {
    open: Option<Open>,
    target: u64,
    begun: Option<u64>,
    beat: Option<u64>,
}

#[derive(Debug)]
struct Open {
    map: Map,
    written: u64,
    forked: u32,
}

impl Session {
    /// The session that Quell has left for this process, if it has and no other process uses it.
    #[must_use]
    pub fn open() -> Self {
        let file = std::env::var(layout::VARIABLE).ok();
        let file = file.and_then(|number| number.parse::<RawFd>().ok());
        Self::of(file.filter(|number| *number > 2).and_then(take))
    }

    fn of(open: Option<Open>) -> Self {
        Self {
            open,
            target: 0,
            begun: None,
            beat: None,
        }
    }

    /// Whether Quell is there.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.live().is_some()
    }

    fn live(&self) -> Option<&Open> {
        self.open
            .as_ref()
            .filter(|open| open.forked == FORKED.load(Relaxed))
    }

    /// What the policy wants of each unit, if it says.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let deadline = self.live()?.map.word(at::DEADLINE).load(Relaxed);
        (deadline > 0).then(|| Duration::from_nanos(deadline))
    }

    /// From now on a unit is to take at most so long. What the policy wants goes before it.
    pub fn set_target(&mut self, target: Duration) {
        self.target = nanos(target);
    }

    /// Says what a unit asks of the machine.
    pub fn set_demand(&mut self, demand: Demand) {
        if let Some(open) = self.live() {
            open.map
                .word(at::BYTES_PER_UNIT)
                .store(demand.bytes_per_unit, Relaxed);
            open.map
                .word(at::WORKING_SET)
                .store(demand.working_set, Relaxed);
        }
    }

    /// A unit has ended just now, and took so long: counted from when it was due, if that is known.
    pub fn unit(&mut self, took: Duration) {
        if self.open.is_some() {
            self.put(now(), nanos(took));
        }
    }

    /// A unit begins.
    pub fn begin(&mut self) {
        if self.open.is_some() {
            self.begun = Some(now());
        }
    }

    /// The unit that was begun has ended.
    pub fn end(&mut self) {
        if let Some(begun) = self.begun.take() {
            let ended = now();
            self.put(ended, ended.saturating_sub(begun));
        }
    }

    /// A heartbeat: a unit lasts from one to the next.
    pub fn beat(&mut self) {
        if self.open.is_none() {
            return;
        }
        let ended = now();
        if let Some(begun) = self.beat.replace(ended) {
            self.put(ended, ended.saturating_sub(begun));
        }
    }

    fn put(&mut self, ended: u64, took: u64) {
        let target = self.target;
        let Some(open) = &mut self.open else {
            return;
        };
        if open.forked != FORKED.load(Relaxed) {
            // A child that was forked: the session is its parent's.
            self.open = None;
            return;
        }
        let (map, unit) = (&open.map, open.written);
        let at_slot = slot_of(unit);
        let word = |offset: usize| map.word(at_slot + offset);
        // As a sequence lock: who reads between the two stores of the number finds it changed (Boehm, MSPC 2012).
        word(slot::NUMBER).store(0, Relaxed);
        fence(Release);
        word(slot::ENDED).store(ended, Relaxed);
        word(slot::TOOK).store(took, Relaxed);
        word(slot::TARGET).store(target, Relaxed);
        word(slot::NUMBER).store(unit.wrapping_add(1), Release);
        map.word(at::HEAD).store(unit.wrapping_add(1), Release);
        open.written = unit.wrapping_add(1);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Takes the session of a descriptor, if it is one and free.
fn take(file: RawFd) -> Option<Open> {
    // SAFETY: used within this function only; what it names is asked of the kernel by calls that may fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(file) };
    let map = Map::new(borrowed).ok()?;
    if map.word(at::MAGIC).load(Relaxed) != layout::MAGIC
        || map.word(at::VERSION).load(Relaxed) != layout::VERSION
    {
        return None;
    }
    let own = u64::from(std::process::id());
    let owner = map.word(at::OWNER);
    if let Err(other) = owner.compare_exchange(0, own, AcqRel, Acquire) {
        // Whoever had it may be gone: a shell's command before this one.
        if other == own
            || !gone(other)
            || owner.compare_exchange(other, own, AcqRel, Acquire).is_err()
        {
            return None;
        }
    }
    count_forks();
    // What this process starts is not what Quell launched.
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(borrowed.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    let written = map.word(at::HEAD).load(Acquire);
    Some(Open {
        map,
        written,
        forked: FORKED.load(Relaxed),
    })
}

fn gone(pid: u64) -> bool {
    let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else {
        return true;
    };
    // SAFETY: takes numbers only, and signal 0 is none.
    let found = unsafe { libc::kill(pid, 0) };
    found < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
