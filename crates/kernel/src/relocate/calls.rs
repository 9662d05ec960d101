//! The system calls that a thread does for a chunk, and whether its filters allow them.

use std::io;

use quell_types::pages::SideArea;

use super::{ARGUMENTS, Manner};
use crate::ptrace::{Call, Lent};
use crate::uffd::Move;

/// `MADV_DONTNEED_LOCKED` (Linux 5.18): removes pages, locked ones, too.
const DISCARD_LOCKED: u64 = 24;
const MLOCK_ONFAULT: u64 = 1;

/// Opens a userfaultfd.
pub(super) const OPEN: Call = Call::of(
    libc::SYS_userfaultfd,
    [
        (libc::O_CLOEXEC | libc::O_NONBLOCK).cast_unsigned() as u64,
        0,
        0,
        0,
        0,
        0,
    ],
);

pub(super) fn map(side: &SideArea) -> Call {
    let unsigned = |n: libc::c_int| u64::from(n.unsigned_abs());
    let access = unsigned(libc::PROT_READ | libc::PROT_WRITE);
    let flags = unsigned(
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
    );
    let arguments = [side.at, side.length(), access, flags, u64::MAX, 0];
    Call::of(libc::SYS_mmap, arguments)
}

pub(super) fn lock(side: &SideArea) -> Call {
    let arguments = [side.at, side.length(), MLOCK_ONFAULT, 0, 0, 0];
    Call::of(libc::SYS_mlock2, arguments)
}

pub(super) fn discard(at: u64, length: u64) -> Call {
    Call::of(libc::SYS_madvise, [at, length, DISCARD_LOCKED, 0, 0, 0])
}

pub(super) fn move_by(number: u32, what: u64) -> Call {
    let arguments = [u64::from(number), Move::REQUEST, what, 0, 0, 0];
    Call::of(libc::SYS_ioctl, arguments)
}

/// Whether the thread's filters (seccomp) allow all calls of a chunk, and what finishes it.
pub(super) fn allowed(thread: &Lent<'_>, side: &SideArea, manner: Manner) -> io::Result<()> {
    /// A number that a descriptor may get.
    const SOME: u32 = 9;
    let mut calls = vec![
        ("mmap", map(side)),
        ("userfaultfd", OPEN),
        ("ioctl", move_by(SOME, side.at + ARGUMENTS)),
        ("close", Call::close(SOME)),
        ("munmap", Call::unmap(side.at, side.length())),
        ("rt_sigprocmask", Call::MASK_SIGNALS),
        ("getppid", Call::NONE),
    ];
    if manner.locked {
        calls.extend([
            ("mlock2", lock(side)),
            ("madvise", discard(side.at, side.page)),
        ]);
    }
    let (names, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    let denied = thread.denied(&calls)?;
    match denied.and_then(|n| names.get(n)) {
        Some(name) => Err(io::Error::other(format!(
            "a filter (seccomp) denies {name}(2); start the program with one that allows it"
        ))),
        None => Ok(()),
    }
}
