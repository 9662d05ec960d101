//! The session byte by byte: the contract between the program, which writes, and Quell, which
//! reads. `docs/client.md` describes it. This file is the only place from which the code takes it.
//!
//! It is a memory file of [`SIZE`] bytes, sealed against shrinking, growing and further seals. A
//! page with the header comes first, then a ring of [`SLOTS`] slots of four 64-bit words. All that
//! a program writes is a 64-bit word at a multiple of eight, in the machine's byte order.

/// The environment variable that names the session's file descriptor, in decimal.
pub const VARIABLE: &str = "QUELL_SESSION";
/// The environment variable that names the socket at which a program asks for a session, if that is
/// not [`SOCKET`].
pub const SOCKET_VARIABLE: &str = "QUELL_SOCKET";
/// The socket at which a program asks that Quell did not launch. The program connects, and gets one
/// message of two words, [`MAGIC`] and a code. If the code is [`GRANTED`] the session's descriptor
/// is attached (`SCM_RIGHTS`). The socket has a separate folder, which can be mounted into a
/// container.
pub const SOCKET: &str = "/run/quell/client/socket";
/// The code of an answer that brings a session.
pub const GRANTED: u64 = 0;
/// The first word of a session, at offset 0.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"quellses");
/// The word at offset 8. It is raised if a program of another version could not write the session.
pub const VERSION: u64 = 1;
/// Number of slots in the ring.
pub const SLOTS: u64 = 1024;
/// Size of the whole session in bytes.
pub const SIZE: usize = HEADER + 1024 * SLOT;

/// Bytes of the header and of a slot.
pub(crate) const HEADER: usize = 4096;
pub(crate) const SLOT: usize = 32;

/// Words of the header, by offset in bytes. The first group is written by Quell.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    /// The policy's target, in nanoseconds; 0: none.
    pub(crate) const DEADLINE: usize = 16;
    /// Grows each time Quell reads the session; 0: it does not read it any more.
    pub(crate) const LOOKS: usize = 24;
    /// PID of the process that writes; 0: no process yet, or it has closed the session.
    pub(crate) const OWNER: usize = 64;
    /// What the program declares: bytes that a unit moves, and bytes of its working set; 0: not
    /// declared.
    pub(crate) const BYTES_PER_UNIT: usize = 72;
    pub(crate) const WORKING_SET: usize = 80;
    /// Number of units written so far.
    pub(crate) const HEAD: usize = 128;
}

/// Words of a slot. `NUMBER` is the unit's number, from 1; it is 0 while the slot is being written.
pub(crate) mod slot {
    pub(crate) const NUMBER: usize = 0;
    /// When the unit ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) const ENDED: usize = 8;
    /// How long it took, in nanoseconds.
    pub(crate) const TOOK: usize = 16;
    /// The longest it was to take, in nanoseconds; 0: not declared.
    pub(crate) const TARGET: usize = 24;
}

/// Offset of the slot of a unit; units are counted from 0 here.
pub(crate) const fn slot_of(unit: u64) -> usize {
    HEADER + (unit % SLOTS) as usize * SLOT
}

/// Why a program that asks gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refused {
    /// It belongs to no group that reports its units through this library.
    NoGroup = 1,
    /// It has a session already.
    Second = 2,
    /// There are as many sessions as there can be.
    TooMany = 3,
}

impl Refused {
    /// The reason that a code stands for; `None` for an unknown code.
    #[must_use]
    pub const fn of(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::NoGroup),
            2 => Some(Self::Second),
            3 => Some(Self::TooMany),
            _ => None,
        }
    }

    /// The reason as a zero-terminated sentence, for C.
    #[must_use]
    pub const fn text(self) -> &'static std::ffi::CStr {
        match self {
            Self::NoGroup => {
                c"this process is in no group of Quell's policy whose target has source = \"client\""
            }
            Self::Second => c"this process has a session already; there is one for each process",
            Self::TooMany => c"Quell has as many sessions as it takes",
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text().to_string_lossy())
    }
}
