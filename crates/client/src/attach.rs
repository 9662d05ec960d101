//! How a program that Quell did not launch gets a session: it asks at a Unix socket, and is sent
//! one.
//!
//! The kernel reports which process asks (`SO_PEERCRED`, unix(7)), so the program sends nothing.
//! The answer is one message: [`layout::MAGIC`] and a code, and with code 0 the session's
//! descriptor. Nothing here waits, except [`Asked::wait`].

use std::mem::{ManuallyDrop, offset_of, size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::layout::{self, Refused};

/// A request that has no answer yet.
#[derive(Debug)]
pub(crate) struct Asked {
    socket: ManuallyDrop<OwnedFd>,
    /// The socket's device and inode number. A program that closes all descriptors (a daemon) may
    /// have another file under this number by now. That file must be neither read nor closed.
    identity: (u64, u64),
}

/// What a request has led to.
#[derive(Debug)]
pub(crate) enum Answer {
    /// There is no answer yet.
    Waiting(Asked),
    /// A session: its memory file.
    Session(OwnedFd),
    /// No session, with Quell's reason.
    Refused(Refused),
    /// The listener is gone, or its answer is not understood.
    Gone,
}

/// The address of a socket; `None` if its path is too long to be one.
pub(crate) fn address(path: &Path) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: an address of zeroes is one.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).ok()?;
    let path = path.as_os_str().as_bytes();
    // A path ends with a zero byte.
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return None;
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let length = offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1;
    Some((address, libc::socklen_t::try_from(length).ok()?))
}

fn identity(file: RawFd) -> Option<(u64, u64)> {
    // SAFETY: a `stat` of zeroes is one; the call fills it.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for the call.
    let done = unsafe { libc::fstat(file, &raw mut about) };
    (done == 0).then_some((about.st_dev, about.st_ino))
}

/// Asks at the socket; `None` if there is no listener.
pub(crate) fn ask(path: &Path) -> Option<Asked> {
    let (address, length) = address(path)?;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers only.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: a new descriptor without another owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the address is valid for the call, and has this length.
    let done = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    // Too many programs ask at once: ask another time.
    (done == 0).then_some(())?;
    let identity = identity(socket.as_raw_fd())?;
    let socket = ManuallyDrop::new(socket);
    Some(Asked { socket, identity })
}

impl Asked {
    fn ours(&self) -> bool {
        identity(self.socket.as_raw_fd()) == Some(self.identity)
    }

    /// Reads the answer, if it is there.
    pub(crate) fn answer(self) -> Answer {
        if !self.ours() {
            return Answer::Gone;
        }
        let mut words = [0u64; 2];
        // Room for one descriptor, aligned as the kernel wants it.
        let mut control = [0u64; 4];
        let mut part = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(&words),
        };
        // SAFETY: a message of zeroes is one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: everything the message points to is valid for the call.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if got < 0 {
            return match std::io::Error::last_os_error().kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => {
                    Answer::Waiting(self)
                }
                _ => Answer::Gone,
            };
        }
        let file = attached(&message);
        if usize::try_from(got) != Ok(size_of_val(&words)) || words[0] != layout::MAGIC {
            return Answer::Gone;
        }
        match (Refused::of(words[1]), file) {
            (None, Some(file)) if words[1] == layout::GRANTED => Answer::Session(file),
            (Some(why), _) => Answer::Refused(why),
            _ => Answer::Gone,
        }
    }

    #[cfg(test)]
    pub(crate) fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Waits for the answer, at most this long.
    pub(crate) fn wait(&self, most: Duration) {
        let mut watched = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let most = libc::c_int::try_from(most.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: one entry, valid for the call.
        unsafe { libc::poll(&raw mut watched, 1, most) };
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.ours() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

/// The descriptor that came with a message, if it has exactly one.
fn attached(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled the message, and its control buffer is still valid.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header within that buffer.
    let header = unsafe { header.as_ref() }?;
    // SAFETY: computes a length only.
    let least = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as libc::c_uint) };
    if header.cmsg_level != libc::SOL_SOCKET
        || header.cmsg_type != libc::SCM_RIGHTS
        || header.cmsg_len as usize != least as usize
    {
        return None;
    }
    // SAFETY: a message of this kind and length holds one descriptor, owned by this process now.
    unsafe {
        let file = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
        (file >= 0).then(|| OwnedFd::from_raw_fd(file))
    }
}
