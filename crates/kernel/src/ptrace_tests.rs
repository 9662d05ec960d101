//! A thread that does calls outlives the death of its tracer at any point.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// What a program and this test share.
struct Shared {
    /// Rounds of the program that came out right, and wrong.
    right: AtomicU64,
    wrong: AtomicU64,
    /// Points at which a tracer may die.
    points: AtomicU64,
}

fn shared() -> &'static Shared {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping of zeroes, which is what the type may consist of, and which stays.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast::<Shared>()
    }
}

/// A process that does this for ever; killed on drop.
struct Program(i32);

impl Program {
    fn start(round: impl Fn() -> bool, shared: &Shared) -> Self {
        // SAFETY: the child allocates nothing, and ends with this process.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                let came_out = if round() {
                    &shared.right
                } else {
                    &shared.wrong
                };
                came_out.fetch_add(1, Ordering::SeqCst);
            }
        }
        Self(pid)
    }

    fn blocked(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:"));
        line.unwrap().to_owned()
    }

    /// It goes on, and nothing came out wrong.
    fn goes_on(&self, shared: &Shared, when: u64) {
        let before = shared.right.load(Ordering::SeqCst);
        let begun = Instant::now();
        while shared.right.load(Ordering::SeqCst) < before + 2 {
            assert!(
                begun.elapsed().as_secs() < 20,
                "it stands still after {when}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(shared.wrong.load(Ordering::SeqCst), 0, "after {when}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nothing has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Makes a program do three calls, from another process that dies at the given point. The process's
/// status.
fn traced(program: &Program, shared: &Shared, death: u64) -> i32 {
    shared.points.store(0, Ordering::SeqCst);
    let vdso = Vdso::of(program.0.unsigned_abs());
    // SAFETY: the child allocates nothing, and ends by `_exit` or SIGKILL.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let done = vdso.and_then(|vdso| calls(program.0, &vdso, shared, death));
        let code = done.map_or_else(|e| e.raw_os_error().unwrap_or(1), |()| 0);
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the kernel writes the status into a live value.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

fn calls(tid: i32, vdso: &Vdso, shared: &Shared, death: u64) -> io::Result<()> {
    let dies = || {
        if shared.points.fetch_add(1, Ordering::SeqCst) + 1 == death {
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    };
    request(libc::PTRACE_SEIZE, tid, 0, SEIZED)?;
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
    stop(tid, true)?;
    let mut lent = Lent::new(tid, vdso, 0, &dies)?;
    let parent = lent.call(&Call::NONE)?;
    let map = [0, 4096, 3, 0x22, u64::MAX, 0];
    let at = lent.call(&Call::of(libc::SYS_mmap, map))?;
    lent.call(&Call::unmap(at, 4096))?;
    lent.rest()?;
    let wrong = parent == 0 || at < 4096;
    request(libc::PTRACE_DETACH, tid, 0, 0)?;
    match wrong {
        true => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        false => Ok(()),
    }
}

/// Kills a tracer of such a program at each point in turn. A new program each time.
fn survives(round: impl Fn() -> bool + Copy) {
    if !is_built() {
        quell_testing::skip("no calls of threads on this architecture");
        return;
    }
    let shared = shared();
    for death in 1.. {
        let program = Program::start(round, shared);
        program.goes_on(shared, 0);
        let blocked = program.blocked();
        let status = traced(&program, shared, death);
        program.goes_on(shared, death);
        assert_eq!(program.blocked(), blocked, "{death}");
        if !libc::WIFSIGNALED(status) {
            assert_eq!(status, 0, "{}", libc::WEXITSTATUS(status));
            assert!(death > 15, "{death}");
            break;
        }
    }
}

/// Whether a sleep that the kernel must restart takes as long as it should.
fn sleeps_as_long() -> bool {
    let begun = Instant::now();
    let length = libc::timespec {
        tv_sec: 0,
        tv_nsec: 30_000_000,
    };
    // SAFETY: reads a live value.
    let answer = unsafe { libc::nanosleep(&raw const length, std::ptr::null_mut()) };
    answer == 0 && begun.elapsed().as_millis() >= 30
}

#[test]
fn registers_outlive_the_death_of_a_tracer_at_any_point() {
    survives(arch::tests::keeps_registers);
}

#[test]
fn a_sleep_outlives_the_death_of_a_tracer_at_any_point() {
    survives(sleeps_as_long);
}

/// Each such death uses up room for a way back. Then calls are refused, and the program goes on.
#[test]
fn without_room_for_a_way_back_a_thread_does_no_call() {
    if !is_built() {
        quell_testing::skip("no calls of threads on this architecture");
        return;
    }
    let shared = shared();
    let program = Program::start(sleeps_as_long, shared);
    // The second point is one within the first call.
    let mut deaths = 0;
    loop {
        let status = traced(&program, shared, 2);
        program.goes_on(shared, deaths);
        if !libc::WIFSIGNALED(status) {
            assert_eq!(libc::WEXITSTATUS(status), libc::ENOSPC);
            break;
        }
        deaths += 1;
    }
    assert!((4..50).contains(&deaths), "{deaths}");
}

/// A program that takes its system calls itself, and makes none.
fn takes_its_calls_and_spins() -> bool {
    static ON: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    static SELECTOR: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
    const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    extern "C" fn handler(_: i32) {}
    if !ON.swap(true, Ordering::SeqCst) {
        let handler: extern "C" fn(i32) = handler;
        // SAFETY: the handler does nothing; the selector lives as long as the process.
        let set = unsafe {
            libc::signal(libc::SIGSYS, handler as libc::sighandler_t);
            libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, SELECTOR.as_ptr())
        };
        SELECTOR.store(u8::from(set == 0), Ordering::SeqCst);
        return set == 0;
    }
    std::hint::spin_loop();
    true
}

#[test]
fn who_takes_its_calls_itself_is_refused_and_left_as_it_was() {
    let shared = shared();
    let program = Program::start(takes_its_calls_and_spins, shared);
    while shared.right.load(Ordering::SeqCst) < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    if shared.wrong.load(Ordering::SeqCst) > 0 {
        return quell_testing::skip("this kernel delivers no system calls to programs");
    }
    let pid = program.0.unsigned_abs();
    let signals = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let lines = status.lines().filter(|line| line.starts_with("Sig"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let (before, begun) = (signals(), Instant::now());
    let thread = crate::trace::Thread {
        of: crate::stat::Stat::parse(&stat().unwrap()).unwrap().id,
        tid: pid,
    };
    let done = crate::trace::within(thread, &Call::NONE, None, stat, &mut || ());
    assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EACCES));
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_eq!(signals(), before);
    program.goes_on(shared, 1);
}
