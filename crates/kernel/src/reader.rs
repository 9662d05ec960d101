//! A child of ours that reads files of processes: what is memory of a program may make whoever
//! reads it wait. It is left where it does not answer.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::CapabilitySet;

use crate::helper::Birth;
use crate::privileges;

/// The most bytes that are read of a file.
pub(crate) const MOST: usize = 128 << 10;
/// A program that lets its reader wait for longer keeps others from being read with it.
pub(crate) const QUICK: Duration = Duration::from_millis(5);
/// How long an answer is waited for while the child waits, too.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a child is waited for that waits for a CPU only.
const STARVED: Duration = Duration::from_secs(1);
/// Between two looks at a child that does not answer.
const STEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};
/// How many files a child is asked for at once: each answer by itself costs two switches.
const AHEAD: usize = 32;
/// What comes before the bytes of an answer: the kernel's error, and the microseconds that the
/// child waited.
const HEAD: usize = 8;
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

/// What was read of a file.
#[derive(Debug)]
pub struct Start {
    /// The beginning of the file. ETIMEDOUT where a program lets its reader wait for longer than
    /// 0.1 s, EAGAIN where there is no reader, or it had no CPU for 1 s.
    pub bytes: io::Result<Vec<u8>>,
    /// How long the reader waited for the program. Zero where it waited for a CPU alone.
    pub waited: Duration,
    /// The child that still read this when it was left.
    pub left: Option<libc::pid_t>,
}

/// The beginnings of files, read by the child: of the first one, and of those that follow as far as
/// no program lets it wait.
pub(crate) fn by_child(paths: &[String], most: usize) -> Vec<Start> {
    let paths = paths.iter().map(|path| CString::new(path.as_str()));
    let paths: Vec<CString> = paths.map_while(Result::ok).collect();
    let mut all = readers().read(&paths);
    for start in &mut all {
        if let Ok(bytes) = &mut start.bytes {
            bytes.truncate(most);
        }
    }
    all
}

/// The same without a child, where no program can let its readers wait.
pub(crate) fn one_by_one(
    paths: &[String],
    most: usize,
    read: impl Fn(&str) -> io::Result<String>,
) -> Vec<Start> {
    let one = |path: &String| {
        let bytes = read(path).map(|text| {
            let mut bytes = text.into_bytes();
            bytes.truncate(most);
            bytes
        });
        let waited = Duration::ZERO;
        Start {
            bytes,
            waited,
            left: None,
        }
    };
    paths.iter().map(one).collect()
}

struct Readers {
    now: Option<Reader>,
    /// Those that did not answer. They end when it lets them.
    left: Vec<libc::pid_t>,
}

impl Readers {
    fn reap(&mut self) {
        self.left.retain(|pid| !has_ended(*pid));
    }

    fn read(&mut self, paths: &[CString]) -> Vec<Start> {
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
            let (all, is_free) = reader.read(paths);
            if is_free {
                self.now = Some(reader);
            } else {
                // SAFETY: a child of this process that was not waited for has this number.
                unsafe { libc::kill(reader.pid, libc::SIGKILL) };
                self.left.push(reader.pid);
            }
            if !all.is_empty() {
                return all;
            }
        }
        vec![failed(libc::EAGAIN, Duration::ZERO)]
    }
}

fn failed(errno: i32, waited: Duration) -> Start {
    Start {
        bytes: Err(io::Error::from_raw_os_error(errno)),
        waited,
        left: None,
    }
}

/// Whether a child has ended. It is waited for then.
fn has_ended(pid: libc::pid_t) -> bool {
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) != 0 }
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
        let (mut buffer, birth) = (vec![0; HEAD + MOST], Birth::new());
        // SAFETY: the child makes system calls on prepared values only, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        match pid {
            0 => serve(theirs.as_raw_fd(), &mut buffer, birth),
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(Self { pid, socket }),
        }
    }

    /// What was read, and whether the child waits for the next question. Once a program has let it
    /// wait it is asked for nothing else.
    fn read(&self, paths: &[CString]) -> (Vec<Start>, bool) {
        let (mut all, mut asked, mut slow) = (Vec::new(), 0, Duration::ZERO);
        let mut buffer = vec![0; HEAD + MOST];
        while all.len() < paths.len() {
            let ahead = if slow.is_zero() { AHEAD } else { 0 };
            for path in paths.iter().take(all.len() + ahead).skip(asked) {
                let path = path.to_bytes_with_nul();
                if rustix::net::send(&self.socket, path, SendFlags::NOSIGNAL).is_err() {
                    return (all, false);
                }
                asked += 1;
            }
            if asked == all.len() {
                return (all, true);
            }
            if slow > PATIENCE && !self.has_answered() {
                // It is left with what it was asked for next.
                let mut next = failed(libc::EAGAIN, Duration::ZERO);
                next.left = Some(self.pid);
                all.push(next);
                return (all, false);
            }
            // Without an answer it has ended.
            let Some((start, answered)) = self.answer(&mut buffer) else {
                return (all, false);
            };
            if start.waited > QUICK {
                slow += start.waited;
            }
            all.push(start);
            if !answered {
                return (all, false);
            }
        }
        (all, true)
    }

    fn has_answered(&self) -> bool {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        rustix::event::poll(&mut watched, Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// The next answer, or what stands for it. `None` where the child has ended.
    fn answer(&self, buffer: &mut [u8]) -> Option<(Start, bool)> {
        let (begun, mut waited) = (Instant::now(), Duration::ZERO);
        loop {
            let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
            let mut poll = || rustix::event::poll(&mut watched, Some(&STEP));
            if rustix::io::retry_on_intr(&mut poll).ok()? > 0 {
                break;
            }
            if !self.wants_a_cpu() {
                waited += Duration::from_millis(5);
            }
            if waited >= PATIENCE {
                let mut late = failed(libc::ETIMEDOUT, waited);
                late.left = Some(self.pid);
                return Some((late, false));
            }
            if begun.elapsed() > STARVED {
                return Some((failed(libc::EAGAIN, Duration::ZERO), false));
            }
        }
        let (length, _) = rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()).ok()?;
        let (errno, rest) = buffer.get(..length)?.split_first_chunk()?;
        let (micros, bytes) = rest.split_first_chunk()?;
        let waited = Duration::from_micros(u32::from_ne_bytes(*micros).into());
        let start = match i32::from_ne_bytes(*errno) {
            0 => Start {
                bytes: Ok(bytes.to_vec()),
                waited,
                left: None,
            },
            errno => failed(errno, waited),
        };
        Some((start, true))
    }

    /// Whether the child could run, if it had a CPU.
    fn wants_a_cpu(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('R'))
        })
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
        let (head, bytes) = answer.split_at_mut(HEAD);
        let (waits, begun) = (gave_way(), Instant::now());
        let (error, length) = match read(&path, bytes) {
            Ok(length) => (0, length),
            Err(e) => (e, 0),
        };
        let waited = match gave_way() == waits {
            // At most, it was another's turn.
            true => 0,
            false => u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX),
        };
        head[..4].copy_from_slice(&error.to_ne_bytes());
        head[4..].copy_from_slice(&waited.to_ne_bytes());
        // SAFETY: so many bytes are initialised.
        unsafe {
            libc::send(
                socket,
                answer.as_ptr().cast(),
                HEAD + length,
                libc::MSG_NOSIGNAL,
            )
        };
    }
}

/// How often this process has waited for something but a CPU.
fn gave_way() -> libc::c_long {
    // SAFETY: the kernel writes into a live value.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_nvcsw
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
    use rustix::fs::{Mode, OFlags};

    fn one(path: &str) -> io::Result<Vec<u8>> {
        let mut all = by_child(&[path.to_owned()], MOST);
        all.remove(0).bytes
    }

    /// One test: a process has one such child at a time, and no other test may ask it meanwhile.
    #[test]
    fn a_child_reads_and_is_left_where_it_waits() {
        let own = format!("/proc/{}/cmdline", std::process::id());
        assert_eq!(one(&own).unwrap(), std::fs::read(&own).unwrap());
        let none = one("/proc/0/cmdline").unwrap_err();
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
        assert!(!one(&own).unwrap().is_empty());

        // A pipe that nobody writes to never answers.
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("p");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RWXU).unwrap();
        let pipe = pipe.to_str().unwrap();
        let late = one(pipe).unwrap_err();
        assert_eq!(late.raw_os_error(), Some(libc::ETIMEDOUT));
        assert!(!one(&own).unwrap().is_empty());

        // Many are read at once, up to the first that lets the child wait.
        let many = vec![own.clone(); 100];
        let all = by_child(&many, MOST);
        assert!(all.len() == 100 && all.iter().all(|start| start.bytes.is_ok()));
        let stuck = [own.as_str(), pipe, &own].map(str::to_owned);
        let all = by_child(&stuck, MOST);
        assert!(all.len() == 2 && all[0].bytes.is_ok(), "{all:?}");
        assert_eq!(
            all[1].bytes.as_ref().unwrap_err().raw_os_error(),
            late.raw_os_error()
        );
        assert!(all[1].waited >= PATIENCE && all[1].left.is_some());
        assert!(!one(&own).unwrap().is_empty());
        slow_ones_are_told_from_the_one_that_is_left(&own, pipe);
    }

    /// A pipe whose writer opens it later lets the child wait for so long.
    fn slow_ones_are_told_from_the_one_that_is_left(own: &str, pipe: &str) {
        let after = |wait| {
            let pipe = pipe.to_owned();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(wait));
                // Nobody reads where the child was left before.
                let _ = rustix::fs::open(pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
            })
        };
        // It goes on with what it was asked for, where it is answered in time.
        let writer = after(30);
        let all = by_child(&[pipe, own, own].map(str::to_owned), MOST);
        writer.join().unwrap();
        if all[0].left.is_none() {
            assert!(all.len() == 3 && all[0].waited > QUICK, "{all:?}");
            assert!(all.iter().all(|start| start.bytes.is_ok()), "{all:?}");
        }
        // After a tenth of a second in all it is left with the next one, which is told by itself.
        let writers = [after(60), after(120)];
        let all = by_child(&[pipe, pipe, pipe, own].map(str::to_owned), MOST);
        for writer in writers {
            writer.join().unwrap();
        }
        let (last, before) = all.split_last().unwrap();
        assert!(last.left.is_some() && last.bytes.is_err(), "{all:?}");
        assert!(before.len() < 3 && before.iter().all(|start| start.left.is_none()));
    }
}
