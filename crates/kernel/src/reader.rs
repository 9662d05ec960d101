//! A child of ours that reads files of processes: what is memory of a program may make whoever
//! reads it wait. It is left where it does not answer.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::CapabilitySet;

use crate::helper::Birth;
use crate::privileges;

/// The most bytes that are read.
pub(crate) const MOST: usize = 128 << 10;
/// How long an answer is waited for.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// The most children that wait for programs.
const MOST_LEFT: usize = 32;

static READERS: Mutex<Readers> = Mutex::new(Readers {
    now: None,
    left: Vec::new(),
});

fn readers() -> MutexGuard<'static, Readers> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a process is a child that reads.
pub(crate) fn is_reader(pid: u32) -> bool {
    let readers = readers();
    let all = readers
        .left
        .iter()
        .chain(readers.now.as_ref().map(|now| &now.pid));
    libc::pid_t::try_from(pid).is_ok_and(|pid| all.into_iter().any(|one| *one == pid))
}

/// Whether a child that was left still waits.
pub(crate) fn waits(child: libc::pid_t) -> bool {
    let mut readers = readers();
    readers.reap();
    readers.left.contains(&child)
}

/// The child that was left last.
pub(crate) fn last_left() -> Option<libc::pid_t> {
    readers().left.last().copied()
}

/// The beginning of a file, read by the child. ETIMEDOUT where it does not answer in time, EAGAIN
/// where there is none.
pub(crate) fn by_child(path: &str, most: usize) -> io::Result<Vec<u8>> {
    let path = CString::new(path)?;
    let mut bytes = readers().read(&path)?;
    bytes.truncate(most);
    Ok(bytes)
}

struct Readers {
    now: Option<Reader>,
    /// Those that wait for a program. They end when it lets them.
    left: Vec<libc::pid_t>,
}

impl Readers {
    fn reap(&mut self) {
        self.left.retain(|pid| !has_ended(*pid));
    }

    fn read(&mut self, path: &CStr) -> io::Result<Vec<u8>> {
        self.reap();
        // A child that somebody killed is replaced once.
        for _ in 0..2 {
            let reader = match self.now.take() {
                Some(reader) => reader,
                None if self.left.len() >= MOST_LEFT => break,
                None => match Reader::start() {
                    Ok(reader) => reader,
                    Err(_) => break,
                },
            };
            let answer = reader.read(path);
            if let Answer::Late | Answer::Ended = answer {
                // SAFETY: a child of this process that was not waited for has this number.
                unsafe { libc::kill(reader.pid, libc::SIGKILL) };
                self.left.push(reader.pid);
            } else {
                self.now = Some(reader);
            }
            match answer {
                Answer::Read(bytes) => return Ok(bytes),
                Answer::Refused(errno) => return Err(io::Error::from_raw_os_error(errno)),
                Answer::Late => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
                Answer::Ended => {}
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }
}

/// Whether a child has ended. It is waited for then.
fn has_ended(pid: libc::pid_t) -> bool {
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) != 0 }
}

enum Answer {
    Read(Vec<u8>),
    /// The kernel's error.
    Refused(i32),
    /// It waits for a program.
    Late,
    /// It has ended.
    Ended,
}

/// A child that reads.
struct Reader {
    pid: libc::pid_t,
    socket: OwnedFd,
}

impl Reader {
    fn start() -> io::Result<Self> {
        let (socket, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (mut buffer, birth) = (vec![0; 4 + MOST], Birth::new());
        // SAFETY: the child makes system calls on prepared values only, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        match pid {
            0 => serve(theirs.as_raw_fd(), &mut buffer, birth),
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(Self { pid, socket }),
        }
    }

    fn read(&self, path: &CStr) -> Answer {
        let asked = rustix::net::send(&self.socket, path.to_bytes_with_nul(), SendFlags::NOSIGNAL);
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        let mut poll = || rustix::event::poll(&mut watched, Some(&PATIENCE));
        match asked.and_then(|_| rustix::io::retry_on_intr(&mut poll)) {
            Ok(0) => return Answer::Late,
            Ok(_) => {}
            Err(_) => return Answer::Ended,
        }
        let mut answer = vec![0; 4 + MOST];
        let received = rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty());
        answer.truncate(received.map_or(0, |(length, _)| length));
        match answer.split_first_chunk() {
            None => Answer::Ended,
            Some((errno, bytes)) => match i32::from_ne_bytes(*errno) {
                0 => Answer::Read(bytes.to_vec()),
                errno => Answer::Refused(errno),
            },
        }
    }
}

/// The program of the child. It allocates nothing, and ends with the process that asks.
fn serve(socket: RawFd, answer: &mut [u8], birth: Birth) -> ! {
    birth.begin(c"quell-reader", &[socket]);
    // Where /proc hides the processes of others, it shows them to those who may trace them.
    let _ = privileges::lay_down(CapabilitySet::SYS_PTRACE);
    let mut path = [0u8; 512];
    loop {
        // SAFETY: the kernel writes into the array; its last byte stays zero.
        let asked = unsafe { libc::recv(socket, path.as_mut_ptr().cast(), path.len() - 1, 0) };
        if asked <= 0 {
            // SAFETY: runs nothing of the parent's.
            unsafe { libc::_exit(0) };
        }
        let (errno, bytes) = answer.split_at_mut(4);
        let (error, length) = match read(&path, bytes) {
            Ok(length) => (0, length),
            Err(e) => (e, 0),
        };
        errno.copy_from_slice(&error.to_ne_bytes());
        // SAFETY: so many bytes are initialised.
        unsafe {
            libc::send(
                socket,
                answer.as_ptr().cast(),
                4 + length,
                libc::MSG_NOSIGNAL,
            )
        };
    }
}

/// Reads a file (its path ends with a zero) until it ends or the buffer is full.
///
/// # Errors
/// The kernel's number.
fn read(path: &[u8], buffer: &mut [u8]) -> Result<usize, i32> {
    let errno = || {
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    };
    // SAFETY: the path ends with a zero.
    let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(errno());
    }
    let mut length = 0;
    let result = loop {
        let rest = &mut buffer[length..];
        // SAFETY: the kernel writes into the rest of the buffer.
        match unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) } {
            0 => break Ok(length),
            n => match usize::try_from(n) {
                Ok(n) => length += n,
                Err(_) => break Err(errno()),
            },
        }
    };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: a process has one such child at a time, and no other test may ask it meanwhile.
    #[test]
    fn a_child_reads_and_is_left_where_it_waits() {
        let own = format!("/proc/{}/cmdline", std::process::id());
        assert_eq!(by_child(&own, MOST).unwrap(), std::fs::read(&own).unwrap());
        let none = by_child("/proc/0/cmdline", MOST).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ENOENT));

        // It has neither our words nor our files, and where it was killed there is another.
        let pid = readers().now.as_ref().unwrap().pid;
        assert!(is_reader(pid.unsigned_abs()) && !is_reader(std::process::id()));
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(words.iter().all(|byte| *byte == 0), "{words:?}");
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        assert_eq!(files.count(), 1);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let few = CapabilitySet::SYS_PTRACE.bits();
        let has = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        let has = u64::from_str_radix(has.unwrap().trim(), 16).unwrap();
        assert_eq!(has & !few, 0, "{has:x}");
        // SAFETY: a child of this process.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        assert!(!by_child(&own, MOST).unwrap().is_empty());

        // A pipe that nobody writes to never answers.
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("p");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let pipe = pipe.to_str().unwrap();
        let late = by_child(pipe, MOST).unwrap_err();
        assert_eq!(late.raw_os_error(), Some(libc::ETIMEDOUT));
        assert!(!by_child(&own, MOST).unwrap().is_empty());
    }
}
