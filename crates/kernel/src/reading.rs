//! Arguments of processes (/proc/PID/cmdline), read by a child of ours.
//!
//! They are memory of the program, and a program can make whoever reads its memory wait: while a
//! file system of its own (FUSE) does not answer, its address space can be kept locked. So a child
//! reads, and is left where it does not answer. Who has let readers wait for long is not read for a
//! while, with all processes of that user.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quell_types::ids::GroupId;
use quell_types::task::TaskId;

use crate::error::{Error, Result};
use crate::identity::person;
use crate::procfs::{self, Stat};
use crate::reader::{self, QUICK};
use crate::root::{Files, Start, gone};

/// How many processes are read at once.
const AT_ONCE: usize = 64;
/// So much of what counts is waited for a user at once, and a tenth of the time later.
const ALLOWANCE: Duration = Duration::from_millis(200);
const TENTH: u32 = 10;
/// With more processes known than that, those that have ended are forgotten.
const MANY: usize = 1024;

/// What is known of those who let readers wait.
struct Reading {
    /// By user.
    slow: BTreeMap<u32, Slow>,
    /// The group of each process that was matched by its arguments: it stays in it while they
    /// cannot be read.
    known: BTreeMap<TaskId, GroupId>,
}

static READING: Mutex<Reading> = Mutex::new(Reading {
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
    /// They are not known: another process of its user lets readers wait, or there was no reader,
    /// or no CPU for it.
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
    let mut all = arguments_of(files, &[pid], &mut || {})?;
    Ok(all.pop().unwrap_or(Arguments::NotAsked))
}

/// The same of several processes, which takes less than one by one. `alive` is called now and then.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn arguments_of(
    files: &dyn Files,
    pids: &[u32],
    alive: &mut dyn FnMut(),
) -> Result<Vec<Arguments>> {
    let mut told = Vec::new();
    while let Some(first) = pids.get(told.len()) {
        alive();
        // Asked first: a process that lets its readers wait may end or become another user's.
        if let Some(held) = held_off(files, *first, user_of(files, *first)) {
            told.push(held);
            continue;
        }
        let next = pids[told.len()..].iter().take(AT_ONCE);
        let next = next.map(|pid| (*pid, user_of(files, *pid)));
        let next = next.take_while(|(pid, user)| held_off(files, *pid, *user).is_none());
        let next: Vec<(u32, u32)> = next.collect();
        let path = |(pid, _): &(u32, u32)| format!("/proc/{pid}/cmdline");
        let paths: Vec<String> = next.iter().map(path).collect();
        let read = files.read_starts(&paths, reader::MOST);
        let before = told.len();
        for (((pid, user), path), start) in next.iter().zip(&paths).zip(read) {
            let one =
                taken(files, *pid, *user, start).map_err(|e| Error::file("read", path, None, e));
            told.push(one?);
        }
        if told.len() == before {
            told.push(Arguments::NotAsked);
        }
    }
    Ok(told)
}

/// What stands for the arguments of a process while its user is not asked.
fn held_off(files: &dyn Files, pid: u32, user: u32) -> Option<Arguments> {
    if reading().slow.is_empty() {
        return None;
    }
    let slow = reading().holds_off(person(files, user))?;
    Some(match slow == pid {
        true => Arguments::Silent,
        false => Arguments::NotAsked,
    })
}

fn user_of(files: &dyn Files, pid: u32) -> u32 {
    let users = procfs::users(files, pid).ok().flatten();
    users.map_or(u32::MAX, |[real, _, _]| real)
}

fn taken(files: &dyn Files, pid: u32, user: u32, start: Start) -> io::Result<Arguments> {
    let errno = start.bytes.as_ref().err().and_then(io::Error::raw_os_error);
    let late = errno == Some(libc::ETIMEDOUT);
    if start.waited > QUICK || start.left.is_some() {
        let user = person(files, user);
        reading().has_waited(user, pid, start.waited, start.left);
    }
    match start.bytes {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let words = text.split_terminator('\0').map(str::to_owned);
            Ok(Arguments::Told(words.collect()))
        }
        Err(_) if late => Ok(Arguments::Silent),
        Err(_) if errno == Some(libc::EAGAIN) => Ok(Arguments::NotAsked),
        Err(e) if gone(&e) => Ok(Arguments::Told(Vec::new())),
        Err(e) => Err(e),
    }
}

impl Reading {
    /// The process for which nothing of this user is read now.
    fn holds_off(&mut self, user: u32) -> Option<u32> {
        let slow = self.slow.get(&user)?;
        let waits = slow.child.is_some_and(reader::waits);
        let left = slow.left(Instant::now());
        if left.is_zero() && !waits {
            self.slow.remove(&user);
            return None;
        }
        (waits || left >= ALLOWANCE).then_some(slow.pid)
    }

    fn has_waited(&mut self, user: u32, pid: u32, took: Duration, left: Option<libc::pid_t>) {
        let now = Instant::now();
        let before = self
            .slow
            .get(&user)
            .map_or(Duration::ZERO, |slow| slow.left(now));
        let slow = Slow {
            waited: before + took,
            at: now,
            pid,
            child: left,
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::root::Kernel;

    /// A machine on which a process answers late, or with an error.
    pub(crate) struct Slowly {
        pub kernel: Kernel,
        pub pid: u32,
        pub wait: Duration,
        pub errno: Option<i32>,
        /// Its folder, where it has ended once it is read.
        pub ends: Option<std::path::PathBuf>,
    }

    impl Files for Slowly {
        fn read(&self, path: &str) -> io::Result<String> {
            self.kernel.read(path)
        }
        fn read_starts(&self, paths: &[String], most: usize) -> Vec<Start> {
            let slow = format!("/proc/{}/cmdline", self.pid);
            let mut all = self.kernel.read_starts(paths, most);
            if let Some(n) = paths.iter().position(|path| *path == slow) {
                std::thread::sleep(self.wait);
                all.truncate(n + 1);
                all[n].waited = self.wait;
                if let Some(folder) = &self.ends {
                    std::fs::remove_dir_all(folder).unwrap();
                }
                if let Some(errno) = self.errno {
                    all[n].bytes = Err(io::Error::from_raw_os_error(errno));
                }
            }
            all
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
            ends: None,
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
    fn who_ends_while_it_is_read_has_let_wait_all_the_same() {
        let (dir, mut files) = slowly(73_000, Duration::from_millis(300), None);
        files.ends = Some(dir.path().join("proc/4000071"));
        arguments(&files, 4_000_071).unwrap();
        assert_eq!(arguments(&files, 4_000_072).unwrap(), Arguments::NotAsked);
        assert_ne!(arguments(&files, 4_000_081).unwrap(), Arguments::NotAsked);
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
