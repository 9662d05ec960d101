//! The session byte by byte: the contract between the program, which writes, and Quell, which
//! reads. `docs/client.md` is its description for others; this is the one place the code takes it
//! from.
//!
//! A memory file of [`SIZE`] bytes, sealed against shrinking, growing and further seals, in the
//! machine's byte order: a page with the header, then a ring of [`SLOTS`] slots of four 64-bit
//! words. Everything a program writes is a 64-bit word at a multiple of eight.

/// The environment variable that names the session's file descriptor, in decimal.
pub const VARIABLE: &str = "QUELL_SESSION";
/// The environment variable that names the socket at which a program asks for a session, where it
/// is not [`SOCKET`].
pub const SOCKET_VARIABLE: &str = "QUELL_SOCKET";
/// The socket at which a program asks that was not launched by Quell: it connects, and gets one
/// message of two words, [`MAGIC`] and a code, with the session's descriptor attached
/// (`SCM_RIGHTS`) if the code is [`GRANTED`]. A folder of its own, which a container can be given.
pub const SOCKET: &str = "/run/quell/client/socket";
/// The code of an answer that brings a session.
pub const GRANTED: u64 = 0;
/// At offset 0.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"quellses");
/// At offset 8: raised when a program of another version could not write it.
pub const VERSION: u64 = 1;
/// Slots of the ring.
pub const SLOTS: u64 = 1024;
/// The whole session in bytes.
pub const SIZE: usize = HEADER + 1024 * SLOT;

/// Bytes of the header and of a slot.
pub(crate) const HEADER: usize = 4096;
pub(crate) const SLOT: usize = 32;

/// Words of the header, by offset in bytes. The first line is written by Quell.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    /// What the policy's target is, in nanoseconds; 0: none.
    pub(crate) const DEADLINE: usize = 16;
    /// Grows with every look of Quell's; 0: it has let go.
    pub(crate) const LOOKS: usize = 24;
    /// The process that writes; 0: nobody yet, or it has closed the session.
    pub(crate) const OWNER: usize = 64;
    /// What the program says of itself: bytes that a unit moves, bytes of its working set; 0: it
    /// does not say.
    pub(crate) const BYTES_PER_UNIT: usize = 72;
    pub(crate) const WORKING_SET: usize = 80;
    /// Units written so far.
    pub(crate) const HEAD: usize = 128;
}

/// Words of a slot. `NUMBER` is the unit's, from 1; 0 while the slot is being written.
pub(crate) mod slot {
    pub(crate) const NUMBER: usize = 0;
    /// When the unit ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) const ENDED: usize = 8;
    /// How long it took.
    pub(crate) const TOOK: usize = 16;
    /// How long it was to take at most; 0: the program does not say.
    pub(crate) const TARGET: usize = 24;
}

/// Where the slot of a unit begins, counted from 0.
pub(crate) const fn slot_of(unit: u64) -> usize {
    HEADER + (unit % SLOTS) as usize * SLOT
}

/// Why a program that asks gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refused {
    /// It belongs to no group whose units are told of through this library.
    NoGroup = 1,
    /// It has a session already.
    Second = 2,
    /// There are as many sessions as there can be.
    TooMany = 3,
}

impl Refused {
    /// The reason of that code.
    #[must_use]
    pub const fn of(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::NoGroup),
            2 => Some(Self::Second),
            3 => Some(Self::TooMany),
            _ => None,
        }
    }

    /// A sentence that ends with zero, for C.
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
