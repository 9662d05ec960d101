//! Memory of other processes (process_vm_readv(2), process_vm_writev(2)).

use std::io;

/// Reads memory of a process or thread. All of it, or it is an error.
///
/// # Errors
/// The kernel's: EFAULT where nothing is mapped, ESRCH, EPERM.
pub fn read_memory(pid: u32, from: u64, into: &mut [u8]) -> io::Result<()> {
    let (own, theirs) = blocks(into.as_mut_ptr(), from, into.len());
    let tid = libc::pid_t::try_from(pid).unwrap_or(0);
    // SAFETY: `own` is a live slice that is borrowed mutably. The kernel checks the other process's
    // addresses.
    let done = unsafe { libc::process_vm_readv(tid, &raw const own, 1, &raw const theirs, 1, 0) };
    whole(done, into.len())
}

/// Writes memory of a process that it may write itself. All of it, or it is an error.
pub(crate) fn write_memory(pid: u32, to: u64, bytes: &[u8]) -> io::Result<()> {
    let (own, theirs) = blocks(bytes.as_ptr().cast_mut(), to, bytes.len());
    let tid = libc::pid_t::try_from(pid).unwrap_or(0);
    // SAFETY: `own` is a live slice that is only read. The kernel checks the other process's
    // addresses.
    let done = unsafe { libc::process_vm_writev(tid, &raw const own, 1, &raw const theirs, 1, 0) };
    whole(done, bytes.len())
}

/// Memory of this process and of another one, for a transfer.
fn blocks(own: *mut u8, theirs: u64, length: usize) -> (libc::iovec, libc::iovec) {
    let block = |at: *mut libc::c_void| libc::iovec {
        iov_base: at,
        iov_len: length,
    };
    (block(own.cast()), block(theirs as *mut libc::c_void))
}

fn whole(done: libc::ssize_t, length: usize) -> io::Result<()> {
    match usize::try_from(done) {
        Ok(done) if done == length => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
