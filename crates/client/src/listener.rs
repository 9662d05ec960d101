//! Quell's side of the socket: programs that ask for a session, which process each is, and the
//! answer.
//!
//! Nothing here waits, and no program that asks can make it wait. Sockets do not block, and a
//! program sends nothing. A program that does not take the answer gets no session.

use std::fs;
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::attach::address;
use crate::layout::{GRANTED, MAGIC, Refused};
use crate::reader::Reader;

/// How many may ask at once. The kernel has further programs try again.
const BACKLOG: libc::c_int = 64;

/// The socket at which programs ask.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A program that asks.
#[derive(Debug)]
pub struct Caller {
    socket: OwnedFd,
    pid: u32,
    user: u32,
    process: Option<OwnedFd>,
}

/// `SO_PEERPIDFD` of Linux 6.5, which libc does not define on every architecture yet.
const PEER_PIDFD: libc::c_int = 77;

/// The result of a system call that returns a descriptor.
fn descriptor(answer: libc::c_int) -> io::Result<OwnedFd> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(answer) })
}

impl Listener {
    /// Listens at `path` for programs of every user, and makes its folder if it is missing. What an
    /// earlier run left there is replaced in one step. Only one process may call this for a path.
    ///
    /// # Errors
    /// The kernel's error, or a path that is too long.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            let there = folder.is_dir();
            fs::create_dir_all(folder)?;
            // Set explicitly, whatever the umask is: programs of every user need access.
            if !there {
                fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            }
        }
        let new = path.with_extension("new");
        let too_long = || io::Error::other("the path is too long for a socket");
        let (address, length) = address(&new).ok_or_else(too_long)?;
        match fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes numbers only.
        let socket = descriptor(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        let number = socket.as_raw_fd();
        // SAFETY: the address is valid for the call, and as long as said.
        let listens = unsafe {
            libc::bind(number, (&raw const address).cast(), length) == 0
                && libc::listen(number, BACKLOG) == 0
        };
        if !listens {
            return Err(io::Error::last_os_error());
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(0o666))?;
        fs::rename(&new, path)?;
        Ok(Self(socket))
    }

    /// The next program that asks; `None` if none does.
    ///
    /// # Errors
    /// When no descriptor can be had any more.
    pub fn next(&self) -> io::Result<Option<Caller>> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let nobody = std::ptr::null_mut();
        // SAFETY: takes no address.
        let answer =
            unsafe { libc::accept4(self.0.as_raw_fd(), nobody, std::ptr::null_mut(), flags) };
        let socket = match descriptor(answer) {
            Ok(socket) => socket,
            Err(e) => {
                return match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => Ok(None),
                    _ => Err(e),
                };
            }
        };
        let mut who = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut length = libc::socklen_t::try_from(size_of_val(&who)).map_err(io::Error::other)?;
        // SAFETY: both are valid for the call.
        let told = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &raw mut length,
            )
        };
        if told < 0 {
            return Err(io::Error::last_os_error());
        }
        let pid = u32::try_from(who.pid).unwrap_or(0);
        let process = peer_process(&socket);
        Ok(Some(Caller {
            socket,
            pid,
            user: who.uid,
            process,
        }))
    }
}

/// A pidfd of the process that connected, whatever its PID is by now. `None` before Linux 6.5.
fn peer_process(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut number: RawFd = -1;
    let mut length = libc::socklen_t::try_from(size_of_val(&number)).ok()?;
    // SAFETY: both are valid for the call.
    let told = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PEER_PIDFD,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    (told == 0).then(|| descriptor(number).ok()).flatten()
}

impl Caller {
    /// PID of the process that asks, in Quell's PID namespace. It is 0 if the process is not
    /// visible from there.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The effective user of the process that asks, by number.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user
    }

    /// A pidfd of the process that connected, even if its PID belongs to another process by now.
    /// Only the first call returns it. `None` before Linux 6.5.
    pub fn take_process(&mut self) -> Option<OwnedFd> {
        self.process.take()
    }

    /// Whether the program still has the socket open. Then its PID has hardly been given to another
    /// process.
    #[must_use]
    pub fn there(&self) -> bool {
        let mut watched = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, valid for the call.
        unsafe { libc::poll(&raw mut watched, 1, 0) >= 0 && watched.revents & libc::POLLHUP == 0 }
    }

    /// Sends the session to the program.
    ///
    /// # Errors
    /// When the program is gone.
    pub fn grant(self, session: &Reader) -> io::Result<()> {
        self.send(GRANTED, Some(session.file().as_raw_fd()))
    }

    /// Sends a refusal. It has no effect if the program is gone.
    pub fn refuse(self, why: Refused) {
        let _ = self.send(why as u64, None);
    }

    fn send(&self, code: u64, file: Option<RawFd>) -> io::Result<()> {
        let mut words = [MAGIC, code];
        let mut part = libc::iovec {
            iov_base: words.as_mut_ptr().cast(),
            iov_len: size_of_val(&words),
        };
        // Room for one descriptor, aligned as the kernel wants it.
        let mut control = [0u64; 4];
        // SAFETY: a message of zeroes is one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(file) = file {
            let size = size_of::<RawFd>() as libc::c_uint;
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: both compute lengths only.
            let (space, length) = unsafe { (libc::CMSG_SPACE(size), libc::CMSG_LEN(size)) };
            message.msg_controllen = space as _;
            // SAFETY: the buffer is valid, and has room for a header and a descriptor.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = length as _;
                libc::CMSG_DATA(header)
                    .cast::<RawFd>()
                    .write_unaligned(file);
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: everything the message points to is valid for the call.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags) };
        match sent {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
