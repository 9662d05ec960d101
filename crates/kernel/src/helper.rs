//! Processes of ours that are forked without executing a program: they do what may wait for a
//! program for ever. Such a one keeps nothing that the next run would miss, and is no second
//! process with the words of the first.

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::RawFd;

/// Files that are closed one by one where the kernel closes no ranges (before 5.9).
const MOST_FILES: RawFd = 1 << 16;

/// What a helper has to know of the process that forks it: asked for before that, as a helper
/// allocates nothing.
pub(crate) struct Birth {
    /// Where the arguments of this process are in its memory. Empty where the kernel does not say.
    arguments: Range<usize>,
}

impl Birth {
    pub(crate) fn new() -> Self {
        /// `arg_start` of proc(5), counted after the command name.
        const START: usize = 45;
        let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields = text.rsplit(") ").next().unwrap_or_default();
        let mut fields = fields.split(' ').skip(START).map(str::parse);
        let arguments = match (fields.next(), fields.next()) {
            (Some(Ok(start)), Some(Ok(end))) => start..end,
            _ => 0..0,
        };
        Self { arguments }
    }

    /// To be called first in the helper. It keeps these descriptors, ascending, and no other;
    /// blocks all signals; and has a name and no arguments of its own. Allocates nothing.
    pub(crate) fn begin(self, name: &CStr, kept: &[RawFd]) {
        // SAFETY: the set is initialised before use; the arguments are on the stack of this
        // process, and nothing of the helper reads them; the other calls take numbers or a string.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigfillset(&raw mut set);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            let first = std::ptr::with_exposed_provenance_mut::<u8>(self.arguments.start);
            std::ptr::write_bytes(first, 0, self.arguments.len());
        }
        let mut from = 0;
        for next in kept.iter().copied().chain([RawFd::MAX]) {
            // SAFETY: nothing of the helper uses the files that are closed.
            let closed = next <= from
                || unsafe { libc::syscall(libc::SYS_close_range, from, next - 1, 0) } == 0;
            if !closed {
                for file in from..next.min(MOST_FILES) {
                    // SAFETY: as above.
                    unsafe { libc::close(file) };
                }
            }
            from = next.saturating_add(1);
        }
    }
}
