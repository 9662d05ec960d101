//! Arguments of processes (/proc/PID/cmdline), read by a child of ours.
//!
//! They are memory of the program, and a program can make whoever reads its memory wait: while a
//! file system of its own (FUSE) does not answer, its address space can be kept locked. So a child
//! reads, and is left where it does not answer. Who has let readers wait for long is not read for a
//! while, with all processes of that user.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quell_types::ids::GroupId;
use quell_types::task::TaskId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::CapabilitySet;

use crate::error::{Error, Result};
use crate::helper::Birth;
use crate::identity::person;
use crate::privileges;
use crate::procfs::{self, Stat};
use crate::root::{Files, gone};

/// The most bytes that are read.
const MOST: usize = 128 << 10;
/// How long an answer is waited for.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// An answer that takes longer counts.
const QUICK: Duration = Duration::from_millis(5);
/// So much of what counts is waited for a user at once, and a tenth of the time later.
const ALLOWANCE: Duration = Duration::from_millis(200);
const TENTH: u32 = 10;
/// With more processes known than that, those that have ended are forgotten.
const MANY: usize = 1024;
/// The most children that wait for programs.
const MOST_LEFT: usize = 32;

/// What is known of readers and of those who let them wait.
struct Reading {
    readers: Readers,
    /// By user.
    slow: BTreeMap<u32, Slow>,
    /// The group of each process that was matched by its arguments: it stays in it while they
    /// cannot be read.
    known: BTreeMap<TaskId, GroupId>,
}

static READING: Mutex<Reading> = Mutex::new(Reading {
    readers: Readers {
        now: None,
        left: Vec::new(),
    },
    slow: BTreeMap::new(),
    known: BTreeMap::new(),
});

fn reading() -> MutexGuard<'static, Reading> {
    READING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A user who has let readers wait.
#[derive(Clone, Copy, Debug)]
struct Slow {
    /// What was waited, less a tenth of the time since.
    waited: Duration,
    at: Instant,
    /// The process that let the last one wait.
    pid: u32,
    /// The child that still waits for it.
    child: Option<libc::pid_t>,
}

impl Slow {
    /// What was waited for this user, less a tenth of the time since.
    fn left(&self, now: Instant) -> Duration {
        self.waited
            .saturating_sub(now.duration_since(self.at) / TENTH)
    }
}

/// What came of reading the arguments of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// The program's name first. Empty for kernel threads and ended processes.
    Told(Vec<String>),
    /// It lets its readers wait.
    Silent,
    /// They were not asked for: another process of its user lets readers wait, or there is no
    /// reader.
    NotAsked,
}

impl Arguments {
    /// What was told, if anything was.
    #[must_use]
    pub fn words(self) -> Vec<String> {
        match self {
            Self::Told(words) => words,
            Self::Silent | Self::NotAsked => Vec::new(),
        }
    }
}

/// The arguments of a process: the first 128 KiB of them, as a process can make them as long as it
/// likes (`PR_SET_MM_MAP`).
///
/// # Errors
/// [`Error::File`].
pub fn arguments(files: &dyn Files, pid: u32) -> Result<Arguments> {
    let path = format!("/proc/{pid}/cmdline");
    read_within_allowance(files, pid, &path).map_err(|e| Error::file("read", &path, None, e))
}

fn read_within_allowance(files: &dyn Files, pid: u32, path: &str) -> io::Result<Arguments> {
    // Asked first: a process that lets its readers wait may become another user's meanwhile.
    let users = procfs::users(files, pid).ok().flatten();
    let real = users.map_or(u32::MAX, |[real, _, _]| real);
    let user = match reading().slow.is_empty() {
        true => None,
        false => Some(person(files, real)),
    };
    if let Some(pid_of) = user.and_then(|user| reading().holds_off(user)) {
        return Ok(match pid_of == pid {
            true => Arguments::Silent,
            false => Arguments::NotAsked,
        });
    }
    let begun = Instant::now();
    let read = files.read_start(path, MOST);
    let took = begun.elapsed();
    let errno = read.as_ref().err().and_then(io::Error::raw_os_error);
    let late = errno == Some(libc::ETIMEDOUT);
    if took > QUICK || late {
        let user = user.unwrap_or_else(|| person(files, real));
        reading().has_waited(user, pid, took, late);
    }
    match read {
        Ok(text) => Ok(Arguments::Told(
            text.split_terminator('\0').map(str::to_owned).collect(),
        )),
        Err(_) if late => Ok(Arguments::Silent),
        Err(_) if errno == Some(libc::EAGAIN) => Ok(Arguments::NotAsked),
        Err(e) if gone(&e) => Ok(Arguments::Told(Vec::new())),
        Err(e) => Err(e),
    }
}

impl Reading {
    /// The process for which nothing of this user is read now.
    fn holds_off(&mut self, user: u32) -> Option<u32> {
        self.readers.reap();
        let slow = self.slow.get(&user)?;
        let waits = slow
            .child
            .is_some_and(|pid| self.readers.left.contains(&pid));
        let left = slow.left(Instant::now());
        if left.is_zero() && !waits {
            self.slow.remove(&user);
            return None;
        }
        (waits || left >= ALLOWANCE).then_some(slow.pid)
    }

    fn has_waited(&mut self, user: u32, pid: u32, took: Duration, late: bool) {
        let now = Instant::now();
        let before = self
            .slow
            .get(&user)
            .map_or(Duration::ZERO, |slow| slow.left(now));
        let slow = Slow {
            waited: before + took,
            at: now,
            pid,
            child: self.readers.left.last().copied().filter(|_| late),
        };
        self.slow.insert(user, slow);
    }
}

/// Remembers the group that matched a process by its arguments, or that none did.
pub(crate) fn remember(task: TaskId, group: Option<&GroupId>) {
    let mut reading = reading();
    match group {
        Some(group) => drop(reading.known.insert(task, group.clone())),
        None => drop(reading.known.remove(&task)),
    }
}

/// The group that matched a process by its arguments when they were read last.
pub(crate) fn remembered(task: TaskId) -> Option<GroupId> {
    reading().known.get(&task).cloned()
}

/// Forgets processes that are not among these, once there are many.
pub(crate) fn forget_others(all: &[Stat]) {
    let known = &mut reading().known;
    if known.len() > MANY {
        let all: BTreeSet<TaskId> = all.iter().map(|stat| stat.id).collect();
        known.retain(|task, _| all.contains(task));
    }
}

/// Whether a process is a child that reads.
pub(crate) fn is_reader(pid: u32) -> bool {
    let readers = &reading().readers;
    let all = readers
        .left
        .iter()
        .chain(readers.now.as_ref().map(|now| &now.pid));
    libc::pid_t::try_from(pid).is_ok_and(|pid| all.into_iter().any(|one| *one == pid))
}

/// The beginning of a file, read by the child. ETIMEDOUT where it does not answer in time, EAGAIN
/// where there is none.
pub(crate) fn by_child(path: &str, most: usize) -> io::Result<Vec<u8>> {
    let path = CString::new(path)?;
    let mut bytes = reading().readers.read(&path)?;
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
fn read(path: &[u8], buffer: &mut [u8]) -> std::result::Result<usize, i32> {
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
pub(crate) mod tests {
    use super::*;
    use crate::root::Kernel;

    /// How long a process takes to read the arguments of a thousand, and by the child: `cargo test
    /// -p quell-kernel --lib reading:: -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        let own = format!("/proc/{}/cmdline", std::process::id());
        for _ in 0..5 {
            let direct = Instant::now();
            (0..1000).for_each(|_| drop(std::fs::read(&own).unwrap()));
            let direct = direct.elapsed();
            let child = Instant::now();
            (0..1000).for_each(|_| drop(by_child(&own, MOST).unwrap()));
            println!("{direct:?} {:?}", child.elapsed());
        }
    }

    /// One test: there is one child at a time, and nobody else may ask it meanwhile.
    #[test]
    fn a_child_reads_and_is_left_where_it_waits() {
        let own = format!("/proc/{}/cmdline", std::process::id());
        assert_eq!(by_child(&own, MOST).unwrap(), std::fs::read(&own).unwrap());
        let none = by_child("/proc/0/cmdline", MOST).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ENOENT));

        // It has neither our words nor our files, and where it was killed there is another.
        let pid = reading().readers.now.as_ref().unwrap().pid;
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

    /// A machine on which a process answers late, or with an error.
    pub(crate) struct Slowly {
        pub kernel: Kernel,
        pub pid: u32,
        pub wait: Duration,
        pub errno: Option<i32>,
    }

    impl Files for Slowly {
        fn read(&self, path: &str) -> io::Result<String> {
            self.kernel.read(path)
        }
        fn read_start(&self, path: &str, most: usize) -> io::Result<String> {
            if path == format!("/proc/{}/cmdline", self.pid) {
                std::thread::sleep(self.wait);
                if let Some(errno) = self.errno {
                    return Err(io::Error::from_raw_os_error(errno));
                }
            }
            self.kernel.read_start(path, most)
        }
        fn write(&self, _: &str, _: &str) -> io::Result<()> {
            unreachable!()
        }
        fn list(&self, path: &str) -> io::Result<Vec<String>> {
            self.kernel.list(path)
        }
        fn mkdir(&self, _: &str) -> io::Result<()> {
            unreachable!()
        }
        fn rmdir(&self, _: &str) -> io::Result<()> {
            unreachable!()
        }
        fn exists(&self, path: &str) -> bool {
            self.kernel.exists(path)
        }
        fn mode(&self, _: &str) -> io::Result<u32> {
            unreachable!()
        }
        fn link(&self, path: &str) -> io::Result<String> {
            self.kernel.link(path)
        }
        fn affinity(&self, _: u32) -> io::Result<quell_types::cpuset::CpuSet> {
            unreachable!()
        }
        fn set_affinity(&self, _: u32, _: &quell_types::cpuset::CpuSet) -> io::Result<()> {
            unreachable!()
        }
        fn scheduler(&self, _: u32) -> io::Result<i32> {
            unreachable!()
        }
        fn signal(&self, _: TaskId, _: i32) -> io::Result<()> {
            unreachable!()
        }
    }

    /// Two processes of a user, of which the first is slow, and one of another user.
    fn slowly(user: u32, wait: Duration, errno: Option<i32>) -> (tempfile::TempDir, Slowly) {
        let dir = tempfile::tempdir().unwrap();
        for (pid, user) in [(4_000_071, user), (4_000_072, user), (4_000_081, user + 1)] {
            let of = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&of).unwrap();
            std::fs::write(of.join("cmdline"), "a\0b\0").unwrap();
            std::fs::write(
                of.join("status"),
                format!("Uid:\t{user}\t{user}\t{user}\t{user}\n"),
            )
            .unwrap();
        }
        let files = Slowly {
            kernel: Kernel::at(dir.path()),
            pid: 4_000_071,
            wait,
            errno,
        };
        (dir, files)
    }

    #[test]
    fn who_answers_late_is_read_for_a_tenth_of_the_time() {
        let (_dir, files) = slowly(71_000, Duration::from_millis(20), None);
        let told = Arguments::Told(vec!["a".to_owned(), "b".to_owned()]);
        let begun = Instant::now();
        let (mut asked, mut other) = (0u32, 0u32);
        while begun.elapsed() < Duration::from_millis(1000) {
            match arguments(&files, 4_000_071).unwrap() {
                Arguments::Told(_) => asked += 1,
                Arguments::Silent => {}
                Arguments::NotAsked => panic!("it is the one"),
            }
            other += u32::from(arguments(&files, 4_000_072).unwrap() == told);
            assert_eq!(arguments(&files, 4_000_081).unwrap(), told);
        }
        // 200 ms at once and 100 ms later, 20 ms each; fewer where the machine sleeps longer.
        assert!((1..=16).contains(&asked), "{asked}");
        assert!(other > 0);
        assert_eq!(arguments(&files, 4_000_072).unwrap(), Arguments::NotAsked);
    }

    #[test]
    fn what_is_no_fault_of_a_program_is_held_against_nobody() {
        let (_dir, files) = slowly(72_000, Duration::ZERO, Some(libc::EAGAIN));
        assert_eq!(arguments(&files, 4_000_071).unwrap(), Arguments::NotAsked);
        let told = Arguments::Told(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(arguments(&files, 4_000_072).unwrap(), told);
        let ended = arguments(&files, 4_000_099).unwrap();
        assert_eq!(ended, Arguments::Told(Vec::new()));
    }
}
