//! The interface for C, `include/quell.h`. Each function accepts the null pointer and then does
//! nothing.

use std::time::Duration;

use crate::locked::locked;
use crate::session::{Demand, Session};

/// The session that the pointer points to; `None` for null.
///
/// # Safety
/// `session` came from [`quell_open`], was not closed, and no other thread uses it now.
unsafe fn of<'s>(session: *mut Session) -> Option<&'s mut Session> {
    // SAFETY: as the caller promises.
    unsafe { session.as_mut() }
}

/// [`Session::open`]. The result is never null.
#[unsafe(no_mangle)]
pub extern "C" fn quell_open() -> *mut Session {
    Box::into_raw(Box::new(Session::open()))
}

/// Closes the session and frees its memory.
///
/// # Safety
/// `session` is null or came from [`quell_open`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_close(session: *mut Session) {
    if !session.is_null() {
        // SAFETY: it came from `Box::into_raw`, and is not used again.
        drop(unsafe { Box::from_raw(session) });
    }
}

/// [`Session::connected`]: 1 if so, else 0.
///
/// # Safety
/// `session` is null or came from [`quell_open`], and no other thread uses it now. The same holds
/// for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_connected(session: *mut Session) -> libc::c_int {
    // SAFETY: as the caller promises.
    libc::c_int::from(unsafe { of(session) }.is_some_and(|s| s.connected()))
}

/// [`Session::refused`] as a sentence; null where Quell has refused nothing.
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_refused(session: *mut Session) -> *const libc::c_char {
    // SAFETY: as the caller promises.
    let why = unsafe { of(session) }.and_then(|s| s.refused());
    why.map_or(std::ptr::null(), |why| why.text().as_ptr())
}

/// [`Session::deadline`] in nanoseconds; 0: none.
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_deadline(session: *mut Session) -> u64 {
    // SAFETY: as the caller promises.
    let deadline = unsafe { of(session) }.and_then(|s| s.deadline());
    deadline.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// [`Session::set_target`].
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_set_target(session: *mut Session, target_ns: u64) {
    // SAFETY: as the caller promises.
    if let Some(session) = unsafe { of(session) } {
        session.set_target(Duration::from_nanos(target_ns));
    }
}

/// [`Session::set_demand`].
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_set_demand(
    session: *mut Session,
    bytes_per_unit: u64,
    working_set: u64,
) {
    // SAFETY: as the caller promises.
    if let Some(session) = unsafe { of(session) } {
        session.set_demand(Demand {
            bytes_per_unit,
            working_set,
        });
    }
}

/// [`Session::unit`].
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_unit(session: *mut Session, took_ns: u64) {
    // SAFETY: as the caller promises.
    if let Some(session) = unsafe { of(session) } {
        session.unit(Duration::from_nanos(took_ns));
    }
}

/// [`Session::begin`].
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_begin(session: *mut Session) {
    // SAFETY: as the caller promises.
    if let Some(session) = unsafe { of(session) } {
        session.begin();
    }
}

/// [`Session::end`].
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_end(session: *mut Session) {
    // SAFETY: as the caller promises.
    if let Some(session) = unsafe { of(session) } {
        session.end();
    }
}

/// [`Session::beat`].
///
/// # Safety
/// As of [`quell_connected`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_beat(session: *mut Session) {
    // SAFETY: as the caller promises.
    if let Some(session) = unsafe { of(session) } {
        session.beat();
    }
}

/// [`locked::locked`](crate::locked()): returns its first byte, and its length in `*bytes`. Null
/// with `*bytes` 0: nothing is locked for this program. Null with another `*bytes`: it could not be
/// mapped, and `errno` says why.
///
/// # Safety
/// `bytes` points to a number, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_locked_map(bytes: *mut usize) -> *mut libc::c_void {
    let mapped = locked();
    let (at, len) = match mapped {
        Ok(Some(locked)) => {
            let locked = std::mem::ManuallyDrop::new(locked);
            (locked.as_ptr().cast(), locked.len())
        }
        Ok(None) => (std::ptr::null_mut(), 0),
        Err(why) => {
            // SAFETY: the address of this thread's error number.
            unsafe { *libc::__errno_location() = why.errno().unwrap_or(libc::EIO) };
            (std::ptr::null_mut(), 1)
        }
    };
    // SAFETY: as the caller promises.
    if let Some(bytes) = unsafe { bytes.as_mut() } {
        *bytes = len;
    }
    at
}

/// Unmaps locked memory. Does nothing with a null pointer.
///
/// # Safety
/// `at` and `bytes` came from [`quell_locked_map`], once, and nothing points there any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_locked_unmap(at: *mut libc::c_void, bytes: usize) {
    if !at.is_null() {
        // SAFETY: as the caller promises.
        unsafe { libc::munmap(at, bytes) };
    }
}
