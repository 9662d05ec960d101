//! Quell's side of the session. The program that writes may be faulty or malicious. Nothing that it
//! writes is used as an index or a length, or makes a read longer than the ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;
use std::time::Duration;

use crate::layout::{self, SIZE, SLOTS, at, slot, slot_of};
use crate::map::Map;
use crate::session::Demand;

/// The longest time that a unit can take: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// More units than can end between two reads.
const IMPOSSIBLE: u64 = 1 << 40;

/// A unit of work that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// When it ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub ended_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The longest it was to take, in nanoseconds, if the program declares it.
    pub target_ns: Option<u64>,
}

/// What a read of the session found besides units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Units that were overwritten before they were read.
    pub lost: u64,
    /// Units with impossible times, and how often the count of units was impossible.
    pub strange: u64,
}

/// A session, which Quell reads while the program writes it.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    file: OwnedFd,
    read: u64,
    last: u64,
}

impl Reader {
    /// A new session with the policy's target for each unit. Its descriptor is closed on exec. The
    /// caller that launches a program clears that flag in the child only.
    ///
    /// # Errors
    /// The kernel's error, for example when there is no memory for it.
    pub fn create(deadline: Option<Duration>) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with zero.
        let file = unsafe { libc::memfd_create(c"quell-session".as_ptr(), flags) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let size = libc::off_t::try_from(SIZE).map_err(io::Error::other)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: both take numbers only.
        let sealed = unsafe {
            libc::ftruncate(file.as_raw_fd(), size) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !sealed {
            return Err(io::Error::last_os_error());
        }
        let map = Map::new(file.as_fd())?;
        let deadline = deadline.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        map.word(at::DEADLINE).store(deadline, Relaxed);
        map.word(at::LOOKS).store(1, Relaxed);
        map.word(at::VERSION).store(layout::VERSION, Relaxed);
        map.word(at::MAGIC).store(layout::MAGIC, Relaxed);
        Ok(Self {
            map,
            file,
            read: 0,
            last: 0,
        })
    }

    /// The memory file that the program inherits.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// PID of the process that uses it, in its own PID namespace. 0: no process yet, or it has
    /// closed the session.
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.map.word(at::OWNER).load(Relaxed)
    }

    /// What the program declares about a unit; zeros where it declares nothing.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand {
            bytes_per_unit: self.map.word(at::BYTES_PER_UNIT).load(Relaxed),
            working_set: self.map.word(at::WORKING_SET).load(Relaxed),
        }
    }

    /// Adds the units that have ended since the last read, in order of time. A program gives the
    /// session up if it is not read for two seconds. `now` returns the time of the same clock. It
    /// is called after the count of units was read, because no unit of that count can end later.
    pub fn read(&mut self, now: impl FnOnce() -> u64, units: &mut Vec<Unit>) -> Seen {
        self.map.word(at::LOOKS).fetch_add(1, Relaxed);
        let mut seen = Seen::default();
        let head = self.map.word(at::HEAD).load(Acquire);
        let now = now();
        // The count went back, or further than any program gets between two reads.
        if head < self.read || head - self.read > IMPOSSIBLE {
            seen.strange = 1;
            self.read = head;
            return seen;
        }
        let behind = head - self.read;
        if behind > SLOTS {
            seen.lost = behind - SLOTS;
            self.read = head - SLOTS;
        }
        while self.read < head {
            match self.unit(self.read) {
                None => seen.lost += 1,
                Some(unit) if unit.took_ns > LONGEST_NS.min(now) || unit.ended_ns > now => {
                    seen.strange += 1;
                }
                Some(unit) => {
                    self.last = self.last.max(unit.ended_ns);
                    units.push(Unit {
                        ended_ns: self.last,
                        ..unit
                    });
                }
            }
            self.read += 1;
        }
        seen
    }

    /// The unit with that number, from 0; `None` if its slot holds another unit by now.
    fn unit(&self, number: u64) -> Option<Unit> {
        let at_slot = slot_of(number);
        let word = |offset: usize| self.map.word(at_slot + offset);
        if word(slot::NUMBER).load(Acquire) != number + 1 {
            return None;
        }
        let target = word(slot::TARGET).load(Relaxed);
        let unit = Unit {
            ended_ns: word(slot::ENDED).load(Relaxed),
            took_ns: word(slot::TOOK).load(Relaxed),
            target_ns: (target > 0).then_some(target),
        };
        fence(Acquire);
        (word(slot::NUMBER).load(Relaxed) == number + 1).then_some(unit)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.map.word(at::LOOKS).store(0, Relaxed);
    }
}
