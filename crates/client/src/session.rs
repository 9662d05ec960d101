//! The program's side of the session.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};
use std::time::Duration;

use crate::attach::{self, Answer, Asked};
use crate::layout::{self, Refused, at, slot, slot_of};
use crate::map::{Map, now};

/// How often it is checked whether Quell has started or has answered, in nanoseconds.
const AGAIN: u64 = 1_000_000_000;
/// The same after a refusal: another policy may accept.
const AGAIN_REFUSED: u64 = 10_000_000_000;
/// How long a program that opens a session waits for the answer, if there is a listener.
const ANSWERED_WITHIN: Duration = Duration::from_millis(300);
/// If Quell does not read the session for this long it is gone: a run that hangs for a second has
/// lost the machine. In nanoseconds.
const GONE_AFTER: u64 = 2_000_000_000;

/// How often this process was forked, counted in the children. A session belongs to the process
/// that opened it.
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

/// What a unit of work needs, as far as the program knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that a unit moves to and from memory; 0: unknown.
    pub bytes_per_unit: u64,
    /// Bytes that it uses again and again; 0: unknown.
    pub working_set: u64,
}

/// A session with Quell, or the attempt to get one. Without Quell a call reads the clock, and
/// checks once a second whether Quell has started. A process has one session, and one thread
/// reports its units.
#[derive(Debug)]
pub struct Session {
    open: Option<Open>,
    /// The socket at which to ask for another session.
    door: PathBuf,
    asked: Option<Asked>,
    refused: Option<Refused>,
    next_look: u64,
    forked: u32,
    target: u64,
    demand: Demand,
    begun: Option<u64>,
    beat: Option<u64>,
}

#[derive(Debug)]
struct Open {
    map: Map,
    written: u64,
    forked: u32,
    /// Quell's count of reads when it changed last, and when that was seen.
    looks: u64,
    since: u64,
}

impl Session {
    /// The session that Quell has left for this process, unless another process uses it. Else the
    /// process asks for one. Waits at most 0.3 s for an answer, and only if Quell is there. If
    /// Quell starts later, the session begins with one of the first units reported then.
    #[must_use]
    pub fn open() -> Self {
        let file = std::env::var(layout::VARIABLE).ok();
        let file = file.and_then(|number| number.parse::<RawFd>().ok());
        let inherited = file.filter(|number| *number > 2).and_then(|number| {
            // SAFETY: used for this call only. Whether it is a valid file is checked by system
            // calls that may fail.
            take(unsafe { BorrowedFd::borrow_raw(number) })
        });
        let door = std::env::var_os(layout::SOCKET_VARIABLE);
        let door = door.map_or_else(|| PathBuf::from(layout::SOCKET), PathBuf::from);
        let mut session = Self::of(inherited, door);
        if session.open.is_none() {
            let now = now();
            session.poll(now);
            if let Some(asked) = &session.asked {
                asked.wait(ANSWERED_WITHIN);
                session.poll(now);
            }
        }
        session
    }

    fn of(open: Option<Open>, door: PathBuf) -> Self {
        count_forks();
        Self {
            open,
            door,
            asked: None,
            refused: None,
            next_look: 0,
            forked: FORKED.load(Relaxed),
            target: 0,
            demand: Demand::default(),
            begun: None,
            beat: None,
        }
    }

    /// Whether Quell is there and reads the session.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.live().is_some()
    }

    /// Why Quell refuses this process a session, if it does.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        self.refused
    }

    fn live(&self) -> Option<&Open> {
        self.open
            .as_ref()
            .filter(|open| open.forked == FORKED.load(Relaxed) && open.looks() != 0)
    }

    /// The policy's target for each unit, if there is one.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let deadline = self.live()?.map.word(at::DEADLINE).load(Relaxed);
        (deadline > 0).then(|| Duration::from_nanos(deadline))
    }

    /// Declares the longest time of the units from now on. The policy's target takes precedence.
    pub fn set_target(&mut self, target: Duration) {
        self.target = nanos(target);
    }

    /// Declares what a unit needs. This is best done before the first unit, when a guess is of use.
    pub fn set_demand(&mut self, demand: Demand) {
        self.demand = demand;
        if let Some(open) = self.live() {
            open.say(demand);
        }
    }

    /// Reports a unit that has just ended. `took` counts from when it was due, if that is known.
    pub fn unit(&mut self, took: Duration) {
        self.put(now(), nanos(took));
    }

    /// Marks the beginning of a unit.
    pub fn begin(&mut self) {
        let now = now();
        self.begun = Some(now);
        self.attend(now);
    }

    /// Reports the unit that was begun. Does nothing without a [`Self::begin`].
    pub fn end(&mut self) {
        if let Some(begun) = self.begun.take() {
            let ended = now();
            self.put(ended, ended.saturating_sub(begun));
        }
    }

    /// A heartbeat: reports a unit that lasted since the last one.
    pub fn beat(&mut self) {
        let ended = now();
        match self.beat.replace(ended) {
            Some(begun) => self.put(ended, ended.saturating_sub(begun)),
            None => self.attend(ended),
        }
    }

    fn put(&mut self, ended: u64, took: u64) {
        self.attend(ended);
        let target = self.target;
        let Some(open) = &mut self.open else {
            return;
        };
        let (map, unit) = (&open.map, open.written);
        let at_slot = slot_of(unit);
        let word = |offset: usize| map.word(at_slot + offset);
        // A sequence lock: a reader between the two stores of the number finds it changed (Boehm,
        // MSPC 2012).
        word(slot::NUMBER).store(0, Relaxed);
        fence(Release);
        word(slot::ENDED).store(ended, Relaxed);
        word(slot::TOOK).store(took, Relaxed);
        word(slot::TARGET).store(target, Relaxed);
        word(slot::NUMBER).store(unit.wrapping_add(1), Release);
        map.word(at::HEAD).store(unit.wrapping_add(1), Release);
        open.written = unit.wrapping_add(1);
    }

    /// Gives up a session that Quell does not read any more, and asks for a new one at most once a
    /// second.
    #[inline]
    fn attend(&mut self, now: u64) {
        if self.open.as_mut().is_some_and(|open| open.held(now)) {
            return;
        }
        self.without(now);
    }

    #[cold]
    fn without(&mut self, now: u64) {
        // This closes the session, unless it belongs to the parent process.
        self.open = None;
        if now >= self.next_look && self.forked == FORKED.load(Relaxed) {
            self.poll(now);
        }
    }

    /// One step towards a session, a few system calls: asks, or checks for the answer.
    fn poll(&mut self, now: u64) {
        self.next_look = now.saturating_add(AGAIN);
        let Some(asked) = self.asked.take() else {
            self.asked = attach::ask(&self.door);
            return;
        };
        match asked.answer() {
            Answer::Waiting(asked) => self.asked = Some(asked),
            Answer::Session(file) => {
                self.refused = None;
                self.open = take(file.as_fd());
                if let Some(open) = &self.open {
                    open.say(self.demand);
                }
            }
            Answer::Refused(why) => {
                self.refused = Some(why);
                self.next_look = now.saturating_add(AGAIN_REFUSED);
            }
            Answer::Gone => self.refused = None,
        }
    }
}

impl Open {
    fn looks(&self) -> u64 {
        self.map.word(at::LOOKS).load(Relaxed)
    }

    /// Whether Quell still reads the session, and it belongs to this process.
    #[inline]
    fn held(&mut self, now: u64) -> bool {
        let looks = self.looks();
        if looks != self.looks {
            self.looks = looks;
            self.since = now;
        }
        looks != 0 && now - self.since.min(now) < GONE_AFTER && self.forked == FORKED.load(Relaxed)
    }

    fn say(&self, demand: Demand) {
        let word = |offset| self.map.word(offset);
        word(at::BYTES_PER_UNIT).store(demand.bytes_per_unit, Relaxed);
        word(at::WORKING_SET).store(demand.working_set, Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.forked == FORKED.load(Relaxed) {
            let own = u64::from(std::process::id());
            let owner = self.map.word(at::OWNER);
            let _ = owner.compare_exchange(own, 0, AcqRel, Relaxed);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Takes over the session behind a descriptor, if it is one and is free.
fn take(file: BorrowedFd<'_>) -> Option<Open> {
    let map = Map::new(file).ok()?;
    let looks = map.word(at::LOOKS).load(Relaxed);
    if map.word(at::MAGIC).load(Relaxed) != layout::MAGIC
        || map.word(at::VERSION).load(Relaxed) != layout::VERSION
        || looks == 0
    {
        return None;
    }
    let own = u64::from(std::process::id());
    let owner = map.word(at::OWNER);
    if let Err(other) = owner.compare_exchange(0, own, AcqRel, Acquire) {
        // The process that had it may be gone: for example, a shell's command before this one.
        if other == own
            || !gone(other)
            || owner.compare_exchange(other, own, AcqRel, Acquire).is_err()
        {
            return None;
        }
    }
    count_forks();
    // Programs that this process starts were not launched by Quell.
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    let written = map.word(at::HEAD).load(Acquire);
    Some(Open {
        map,
        written,
        forked: FORKED.load(Relaxed),
        looks,
        since: now(),
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
