//! Quell's side. What is read was written by a program that may be wrong, or mean it: nothing of it
//! is an index or a length, and nothing it says makes a reading longer than the ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;
use std::time::Duration;

use crate::layout::{self, SIZE, SLOTS, at, slot, slot_of};
use crate::map::Map;
use crate::session::Demand;

/// No unit takes longer: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// More units than end between two looks.
const IMPOSSIBLE: u64 = 1 << 40;

/// A unit of work that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub ended_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// How long it was to take at most, if the program says.
    pub target_ns: Option<u64>,
}

/// What a look at the session found besides units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Units that were overwritten before they were read.
    pub lost: u64,
    /// Units that cannot be, and times that the count of units went back.
    pub strange: u64,
}

/// A session, read as the program writes it.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    file: OwnedFd,
    read: u64,
    last: u64,
}

impl Reader {
    /// A new session, with what the policy wants of each unit. Its descriptor is closed on exec:
    /// who launches a program clears that in the child alone.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn create(deadline: Option<Duration>) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with zero.
        let file = unsafe { libc::memfd_create(c"quell-session".as_ptr(), flags) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
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

    /// What the program inherits.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The process that uses it, in its own numbering; 0: nobody yet, or it has closed the session.
    #[must_use]
    pub fn owner(&self) -> u64 {
        self.map.word(at::OWNER).load(Relaxed)
    }

    /// What the program says a unit asks of the machine.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand {
            bytes_per_unit: self.map.word(at::BYTES_PER_UNIT).load(Relaxed),
            working_set: self.map.word(at::WORKING_SET).load(Relaxed),
        }
    }

    /// Adds the units that have ended since the last look, in order of time. A program that sees no
    /// look for two seconds gives the session up. `now` tells the same clock's time: what ends
    /// later than the count of units was read cannot be, so it is asked for after that.
    pub fn read(&mut self, now: impl FnOnce() -> u64, units: &mut Vec<Unit>) -> Seen {
        self.map.word(at::LOOKS).fetch_add(1, Relaxed);
        let mut seen = Seen::default();
        let head = self.map.word(at::HEAD).load(Acquire);
        let now = now();
        // It went back, or further than any program gets between two looks.
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

    /// The unit of that number, from 0; `None` if its slot holds another one by now.
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
