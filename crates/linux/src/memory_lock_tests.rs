//! On the running kernel, with programs that lock memory. Their limit counts as lifted where it is
//! more than [`BEFORE`].

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use quell_kernel::root::Kernel;

use super::*;
use crate::journal::{Journal, tests::header};
use crate::undo::undo;

const PYTHON: &str = "/usr/bin/python3";
const LOCKED: u64 = 4 << 20;
const BEFORE: LockLimit = LockLimit {
    soft: Some(64 << 10),
    hard: Some(64 << 10),
};

/// Locks 4 MiB.
const LOCKS: &str = r#"
import ctypes, mmap, os, threading, time
libc = ctypes.CDLL(None)
memory = mmap.mmap(-1, 4 << 20)
def lock():
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(4 << 20)) == 0
"#;

/// Its first thread ends, another one goes on.
const THREAD: &str = r#"
lock()
threading.Thread(target=lambda: time.sleep(600)).start()
print(os.getpid(), flush=True)
libc.syscall(60, 0)
"#;

/// A child locks memory, with all capabilities or with none.
const FORKS: &str = r#"
if os.fork() == 0:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert KEEPS or libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
    lock()
    print(os.getpid(), flush=True)
time.sleep(600)
"#;

/// All is locked, and a child shares it.
const SHARES: &str = r#"
assert libc.mlockall(3) == 0
stack = ctypes.create_string_buffer(1 << 16)
top = ctypes.c_void_p((ctypes.addressof(stack) + (1 << 16)) & ~15)
print(libc.clone(libc.pause, top, 0x100 | 17, None), flush=True)
time.sleep(600)
"#;

/// A program, and the process that it has named: itself, or its child.
struct Program {
    first: Child,
    named: u32,
}

impl Program {
    fn start(script: &str) -> Option<Self> {
        if !quell_kernel::is_root() || !Path::new(PYTHON).exists() {
            quell_testing::skip(format_args!("root and {PYTHON} are needed"));
            return None;
        }
        if !quell_kernel::trace::is_built() {
            quell_testing::skip("no calls of threads on this architecture");
            return None;
        }
        let mut command = Command::new(PYTHON);
        command.args(["-c", &format!("{LOCKS}{script}")]);
        let mut first = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(first.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let named = line.trim().parse().unwrap();
        Some(Self { first, named })
    }

    fn task(&self) -> TaskId {
        task_of(&kernel(), self.first.id()).unwrap().unwrap()
    }

    /// As recorded when its first process was made to lock. The other one is in the cgroup.
    fn entry(&self, dir: &Path) -> Undo {
        let procs = format!("{}\n", self.named);
        std::fs::write(dir.join("cgroup.procs"), procs).unwrap();
        let task = self.task();
        Undo::Lock {
            task,
            before: BEFORE,
            dir: dir.to_string_lossy().into_owned(),
            since: task.start,
        }
    }

    fn end_first(&mut self) {
        self.first.kill().unwrap();
        self.first.wait().unwrap();
    }

    /// What the other process has locked, and may lock.
    fn now(&self) -> (u64, Option<u64>) {
        let locked = paging::locked(&kernel(), self.named).unwrap().unwrap();
        (
            locked.0,
            kernel().lock_limit(self.named, None).unwrap().hard,
        )
    }

    fn signal(&self, signal: i32) {
        let task = task_of(&kernel(), self.named).unwrap().unwrap();
        kernel().signal(task, signal).unwrap();
    }

    fn waits_for(&self, state: char) {
        let is = || procfs::thread_stat(&kernel(), self.named, self.named).unwrap();
        while is().unwrap().state != state {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.named != self.first.id() {
            let task = task_of(&kernel(), self.named).ok().flatten();
            let _ = task.map(|task| kernel().signal(task, libc::SIGKILL));
        }
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

fn kernel() -> Kernel {
    Kernel::new().unwrap()
}

#[test]
fn a_program_whose_first_thread_has_ended_unlocks() {
    let Some(mut program) = Program::start(THREAD) else {
        return;
    };
    program.waits_for('Z');
    let (kernel, task) = (kernel(), program.task());
    let locked = || {
        let thread = living_thread(&kernel, task).unwrap().unwrap();
        assert_ne!(thread.tid, task.pid);
        paging::locked_by(&kernel, thread).unwrap().unwrap().0
    };
    assert_eq!(locked(), LOCKED);
    let until = Instant::now() + Duration::from_secs(10);
    assert_eq!(unlock(&kernel, task, until, &|| ()), Ok(true));
    assert_eq!(locked(), 0);
    assert_eq!(unlock(&kernel, task, until, &|| ()), Ok(false));
    // All of it has ended, and nobody has waited for it.
    program.first.kill().unwrap();
    let ended = || living_thread(&kernel, task).unwrap().is_none();
    while !ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(unlock(&kernel, task, until, &|| ()), Ok(false));
}

#[test]
fn an_heir_unlocks_what_it_has_locked_beyond_its_limit() {
    for keeps in ["True", "False"] {
        let Some(program) = Program::start(&FORKS.replace("KEEPS", keeps)) else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let (kernel, mut entries) = (kernel(), vec![program.entry(dir.path())]);
        assert_eq!(program.now().0, LOCKED);
        program.signal(libc::SIGSTOP);
        program.waits_for('T');
        let heir = task_of(&kernel, program.named).unwrap();
        // Its limit is set back at once. Each attempt names it, and it has an entry of its own.
        for _ in 0..2 {
            let outcome = undo(&kernel, &entries);
            entries = outcome.failed;
            assert!(matches!(&entries[..], [Undo::Lock { task, .. }] if Some(*task) == heir));
            let left = &outcome.undone.left;
            let stays = format!(
                "the memory of process {} stays locked: it is stopped",
                program.named
            );
            assert!(matches!(&left[..], [only] if *only == stays), "{left:?}");
            assert_eq!(program.now(), (LOCKED, BEFORE.hard));
        }
        program.signal(libc::SIGCONT);
        let outcome = undo(&kernel, &entries);
        assert!(outcome.failed.is_empty(), "{outcome:?}");
        assert_eq!(program.now(), (0, BEFORE.hard), "keeps: {keeps}");
        assert_eq!(undo(&kernel, &entries).undone.restored, 0);
    }
}

#[test]
fn what_an_heir_has_locked_within_its_limit_stays() {
    let Some(program) = Program::start(&FORKS.replace("KEEPS", "False")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let before = LockLimit {
        soft: Some(LOCKED),
        hard: Some(LOCKED),
    };
    let Undo::Lock {
        task, dir, since, ..
    } = program.entry(dir.path())
    else {
        return;
    };
    let entry = Undo::Lock {
        task,
        before,
        dir,
        since,
    };
    assert!(undo(&kernel(), &[entry]).failed.is_empty());
    assert_eq!(program.now(), (LOCKED, before.hard));
}

#[test]
fn who_shares_memory_unlocks_it_after_the_first_has_ended() {
    let Some(mut program) = Program::start(SHARES) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (kernel, entries) = (kernel(), [program.entry(dir.path())]);
    program.end_first();
    let orphan = procfs::stat(&kernel, program.named).unwrap().unwrap();
    if orphan.parent != 1 {
        return quell_testing::skip("orphans here have a parent whose limit counts as lifted");
    }
    assert!(program.now().0 > LOCKED);
    let outcome = undo(&kernel, &entries);
    assert!(outcome.failed.is_empty(), "{outcome:?}");
    assert_eq!(program.now(), (0, BEFORE.hard));
}

#[test]
fn a_limit_lifted_for_nothing_goes_from_children_born_since() {
    for keeps in ["True", "False"] {
        let Some(program) = Program::start(&FORKS.replace("KEEPS", keeps)) else {
            return;
        };
        let (kernel, folder) = (kernel(), tempfile::tempdir().unwrap());
        let entry = program.entry(folder.path());
        let Undo::Lock {
            task, dir, since, ..
        } = &entry
        else {
            return;
        };
        let mut journal = Journal::create(folder.path(), header()).unwrap();
        journal.record(&entry).unwrap();
        let mut writer = JournaledWriter::new(&kernel, &mut journal);
        let mut used = || used_meanwhile(&mut writer, *task, BEFORE, dir, *since).unwrap();
        // With CAP_IPC_LOCK it may lock as much as it likes, and it was made to lock nothing.
        if keeps == "True" {
            assert_eq!(used(), Vec::<String>::new());
            assert_eq!(program.now(), (LOCKED, BEFORE.hard));
            continue;
        }
        program.signal(libc::SIGSTOP);
        program.waits_for('T');
        assert!(matches!(&used()[..], [only] if only.ends_with("it is stopped")));
        assert_eq!(program.now(), (LOCKED, BEFORE.hard));
        program.signal(libc::SIGCONT);
        assert!(undo(&kernel, journal.entries()).failed.is_empty());
        assert_eq!(program.now(), (0, BEFORE.hard));
    }
}
