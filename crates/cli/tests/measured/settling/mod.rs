//! `quell colours settle`: pages of a program that runs are moved to frames of other colours, under
//! a declared map, whose colours mean nothing for the hardware here. What is checked is where the
//! pages lie, that their content is intact at every moment, and that nothing is left, however it
//! ends. The program checks its own memory all the time.
//!
//! Skipped aloud without root, and where the kernel moves no pages.

mod drift;
mod policies;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::coloured::{PAGE, able, counted, run_of, settle};
use crate::common::{Machine, Running, eventually, send, status_of};
use quell_kernel::affinity;
use rustix::process::Signal;

/// Set by the program's signal handler.
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicBool = AtomicBool::new(false);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// What a page holds: words that depend on the page, the place and a number that goes up.
fn word(page: usize, at: usize, version: u64) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64) << 40 ^ version
}

/// Memory of the program, of which each thread writes and checks a part.
#[derive(Clone, Copy)]
struct Memory(*mut u64, usize);

// SAFETY: each thread accesses its own pages only.
unsafe impl Send for Memory {}

impl Memory {
    fn new(pages: usize) -> Self {
        // SAFETY: a new mapping, which stays until the end, and no other memory.
        let at = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                pages * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, pages * PAGE, libc::MADV_NOHUGEPAGE);
            at
        };
        Self(at.cast(), pages)
    }

    fn page(self, page: usize) -> *mut [u64; PAGE / 8] {
        assert!(page < self.1);
        // SAFETY: within the mapping.
        unsafe { self.0.cast::<[u64; PAGE / 8]>().add(page) }
    }

    fn write(self, page: usize, version: u64) {
        // SAFETY: one thread accesses this page.
        let words = unsafe { &mut *self.page(page) };
        for (at, place) in words.iter_mut().enumerate() {
            *place = word(page, at, version);
        }
    }

    fn is_intact(self, page: usize, version: u64) -> bool {
        // SAFETY: one thread accesses this page, or it is a copy after a fork.
        let words = unsafe { &*self.page(page) };
        (0..PAGE / 8).all(|at| words[at] == word(page, at, version))
    }
}

/// One thread of the program: writes its pages anew and checks them, for ever.
fn work(memory: Memory, pages: std::ops::Range<usize>, rounds: &AtomicU64, rest: Duration) {
    let mut version = 1;
    loop {
        for page in pages.clone() {
            if !memory.is_intact(page, version - 1) {
                WRONG.store(true, Ordering::Relaxed);
            }
            memory.write(page, version);
        }
        version += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(rest);
    }
}

/// A child that checks memory which nobody writes, as it was at the fork.
fn fork_and_check(memory: Memory, pages: std::ops::Range<usize>) {
    // SAFETY: the child reads memory and ends by `_exit`.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let intact = pages.clone().all(|page| memory.is_intact(page, 0));
            libc::_exit(i32::from(!intact));
        }
        let mut status = 0;
        // A signal interrupts it.
        while libc::waitpid(child, &mut status, 0) < 0 {}
        if status != 0 {
            WRONG.store(true, Ordering::Relaxed);
        }
    }
}

/// As a service of its own user in a container has it: no rights, and a filter of system calls. One
/// call kills the process. mlockall(2) fails.
fn confine(denied: u32) {
    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const EPERM: u32 = 0x0005_0001;
    let one = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = |call: libc::c_long| u32::try_from(call).unwrap();
    // The number of the call is compared with two.
    let mut filter = [
        one(0x20, 0, 0, 0),
        one(0x15, 2, 0, denied),
        one(0x15, 2, 0, number(libc::SYS_mlockall)),
        one(0x06, 0, 0, ALLOW),
        one(0x06, 0, 0, KILL),
        one(0x06, 0, 0, EPERM),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: live values.
    unsafe {
        assert_eq!(libc::setgid(65_534), 0);
        assert_eq!(libc::setuid(65_534), 0);
        // As after an exec.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}

/// Not a test of its own: a program with `QUELL_TEST_MIB` of memory, five threads, a signal every
/// 5 ms and, with `QUELL_TEST_FORKS`, a fork every 20 ms. It writes what it found to a file, again
/// and again. Between two checks each thread rests for `QUELL_TEST_REST` milliseconds.
#[test]
#[ignore = "a program that another test starts"]
fn checks_its_memory() {
    const THREADS: usize = 4;
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|n| n.parse::<usize>().ok())
    };
    let pages = number("QUELL_TEST_MIB").unwrap() * (1 << 20) / PAGE;
    let out = std::env::var("QUELL_TEST_OUT").unwrap();
    if let Ok(denied) = std::env::var("QUELL_TEST_DENIED") {
        confine(denied.parse().unwrap());
    }
    // SAFETY: the handler only adds to a number.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
    }
    let rest = number("QUELL_TEST_REST").unwrap_or(0);
    let rest = Duration::from_millis(rest as u64);
    let memory = Memory::new(pages);
    for page in 0..pages {
        memory.write(page, 0);
    }
    // Half is written all the time; the rest is read by this thread and by children.
    let each = pages / 2 / THREADS;
    let rounds: &'static AtomicU64 = Box::leak(Box::default());
    for n in 0..THREADS {
        std::thread::spawn(move || work(memory, n * each..(n + 1) * each, rounds, rest));
    }
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: 5000,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: live values.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    let still = THREADS * each..pages;
    let mut forks = 0;
    loop {
        if number("QUELL_TEST_FORKS").is_some() {
            fork_and_check(memory, still.clone());
            forks += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        if !still.clone().all(|page| memory.is_intact(page, 0)) {
            WRONG.store(true, Ordering::Relaxed);
        }
        let said = format!(
            "{} {} {} {}",
            rounds.load(Ordering::Relaxed),
            SIGNALS.load(Ordering::Relaxed),
            forks,
            WRONG.load(Ordering::Relaxed)
        );
        fs::write(format!("{out}.new"), said).unwrap();
        fs::rename(format!("{out}.new"), &out).unwrap();
        std::thread::sleep(rest);
    }
}

/// The program above; killed on drop.
struct Checked {
    child: Child,
    out: String,
}

impl Checked {
    fn start(machine: &Machine, mib: usize, forks: bool) -> Self {
        Self::named(machine, "found", mib, forks)
    }

    /// With another file for what it found.
    fn named(machine: &Machine, file: &str, mib: usize, forks: bool) -> Self {
        Self::with(machine, file, mib, forks, None)
    }

    /// Without rights, and with a filter that kills it for this call.
    fn confined(machine: &Machine, mib: usize, denied: libc::c_long) -> Self {
        // It writes there what it finds.
        fs::set_permissions(machine.path(""), Permissions::from_mode(0o777)).unwrap();
        Self::with(machine, "confined", mib, false, Some(denied))
    }

    fn with(
        machine: &Machine,
        file: &str,
        mib: usize,
        forks: bool,
        denied: Option<libc::c_long>,
    ) -> Self {
        let out = machine.path(file).display().to_string();
        let _ = fs::remove_file(&out);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "settling::checks_its_memory",
                "--ignored",
                "--nocapture",
            ])
            .env("QUELL_TEST_MIB", mib.to_string())
            .env("QUELL_TEST_OUT", &out)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if forks {
            command.env("QUELL_TEST_FORKS", "1");
        }
        if let Some(denied) = denied {
            command.env("QUELL_TEST_DENIED", denied.to_string());
        }
        let child = command.spawn().unwrap();
        let program = Self { child, out };
        eventually("the program runs", || fs::exists(&program.out).unwrap());
        program
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Rounds, signals and forks so far.
    fn counts(&self) -> [u64; 3] {
        let said = fs::read_to_string(&self.out).unwrap();
        let mut words = said.split(' ');
        let counts = [(); 3].map(|()| words.next().unwrap().parse().unwrap());
        assert_eq!(words.next(), Some("false"), "its memory is wrong: {said}");
        counts
    }

    /// It goes on in all its threads, with its memory as it was, and nothing of Quell's is left.
    #[track_caller]
    fn is_intact(&self) {
        let before = self.counts();
        eventually("the program goes on", || {
            let now = self.counts();
            now[0] > before[0] + 40 && now[1] > before[1] + 10
        });
        let fds = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let links = fds.map(|e| fs::read_link(e.unwrap().path()));
        let links: Vec<_> = links.filter_map(Result::ok).collect();
        let userfaultfd = |l: &&std::path::PathBuf| l.to_string_lossy().contains("userfaultfd");
        assert_eq!(links.iter().find(userfaultfd), None);
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.pid())).unwrap();
        let flags = smaps.lines().filter(|l| l.starts_with("VmFlags:"));
        assert_eq!(flags.filter(|l| l.contains(" um")).count(), 0);
        assert_eq!(status_of(self.pid(), "TracerPid").as_deref(), Some("0"));
        let own = affinity::of(0).unwrap();
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap() {
            let tid = thread.unwrap().file_name().to_str().unwrap().parse();
            assert_eq!(affinity::of(tid.unwrap()).unwrap(), own);
        }
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The two halves of the colours: so that a program that has one can be given the other.
const HALVES: [&str; 2] = ["2-5", "0-1,6-7"];

/// The half that fewer pages have: frames that another program gave back may be of few colours.
fn fewer(found: &[u64; 8]) -> usize {
    let [first, all]: [u64; 2] = [&found[2..6], &found[..]].map(|part| part.iter().sum());
    usize::from(first * 2 > all)
}

/// Whether 99.9 % of the pages have colours of this half.
fn is_right(found: &[u64; 8], half: usize) -> bool {
    let [first, all]: [u64; 2] = [&found[2..6], &found[..]].map(|part| part.iter().sum());
    [first, all - first][half] * 1000 >= all * 999
}

/// At full pace. Other programs of a busy machine keep threads from stopping in time.
const AT_ONCE: [&str; 4] = ["--pace", "100%", "--longest-stop", "100ms"];

#[test]
fn a_program_with_threads_and_signals_is_settled() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine, 64, false);
    machine.remember();
    let before = counted(program.pid());
    assert!(before.iter().sum::<u64>() >= 16_384, "{before:?}");
    let half = fewer(&before);
    let begun = Instant::now();
    let args = [&AT_ONCE[..], &["--json"]].concat();
    let done = Running::start(&mut settle(&machine, program.pid(), HALVES[half], &args)).wait();
    let took = begun.elapsed();
    eprintln!("{took:?} {} {}", done.out, done.err);
    let json = done.json();
    assert!(done.err.contains("exclude no other"), "{}", done.err);
    // Counted while it runs: it may have got new pages.
    let after = counted(program.pid());
    assert!(is_right(&after, half), "{before:?} {after:?}");
    let of = |key: &str, part: &str| json[key][part].as_u64().unwrap();
    assert!(
        of("before", "pages") * 10 < of("before", "of") * 7,
        "{json}"
    );
    assert!(json["moved"].as_u64().unwrap() > 6000, "{json}");
    assert!(json["stops"]["count"].as_u64().unwrap() > 5, "{json}");
    program.is_intact();
    machine.unchanged("after settling");
}

#[test]
fn a_program_that_forks_stays_intact() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine, 16, true);
    machine.remember();
    let args = [&AT_ONCE[..], &["--json"]].concat();
    let done = Running::start(&mut settle(&machine, program.pid(), HALVES[0], &args)).wait();
    eprintln!("{} {}", done.out, done.err);
    let json = done.json();
    assert!(json["moved"].as_u64().unwrap() > 0, "{json}");
    let forks = program.counts()[2];
    eventually("it goes on to fork", || program.counts()[2] > forks + 10);
    program.is_intact();
    machine.unchanged("after settling");
}

/// Lets every program open a userfaultfd, as long as it lives.
struct ForAll(String);

impl ForAll {
    const PATH: &str = "/proc/sys/vm/unprivileged_userfaultfd";

    fn set() -> Self {
        let before = fs::read_to_string(Self::PATH).unwrap();
        fs::write(Self::PATH, "1").unwrap();
        Self(before)
    }
}

impl Drop for ForAll {
    fn drop(&mut self) {
        fs::write(Self::PATH, &self.0).unwrap();
    }
}

/// A program without rights is settled where it may open a userfaultfd. Its filter is respected:
/// what it would kill for is not called.
#[test]
fn a_program_without_rights_and_with_a_filter_is_settled() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::confined(&machine, 16, libc::SYS_ptrace);
    if fs::read_to_string(ForAll::PATH).unwrap().trim() == "0" {
        let done = Running::start(&mut settle(&machine, program.pid(), HALVES[0], &[])).wait();
        assert_ne!(done.code, 0, "{done:?}");
        let said = format!("{}{}", done.out, done.err);
        assert!(said.contains("vm.unprivileged_userfaultfd"), "{said}");
        program.is_intact();
    }
    let _all = ForAll::set();
    machine.remember();
    let half = fewer(&counted(program.pid()));
    let args = [&AT_ONCE[..], &["--json"]].concat();
    let done = Running::start(&mut settle(&machine, program.pid(), HALVES[half], &args)).wait();
    eprintln!("{} {}", done.out, done.err);
    let json = done.json();
    assert!(json["moved"].as_u64().unwrap() > 1000, "{json}");
    let after = counted(program.pid());
    assert!(is_right(&after, half), "{after:?}");
    program.is_intact();
    machine.unchanged("after settling");
    drop(program);
    for (call, name) in [
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_userfaultfd, "userfaultfd"),
    ] {
        let program = Checked::confined(&machine, 4, call);
        let done = Running::start(&mut settle(&machine, program.pid(), HALVES[0], &[])).wait();
        let says = format!("a filter (seccomp) denies {name}(2)");
        assert!(done.out.contains(&says) && done.code == 3, "{done:?}");
        program.is_intact();
    }
}

/// How far apart the points of death are. The long run has every one.
fn stride(usual: usize) -> usize {
    if quell_testing::soak() { 1 } else { usual }
}

#[test]
fn a_program_survives_a_death_at_every_boundary() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine, 4, false);
    machine.remember();
    for (n, point) in (1..).step_by(stride(9)).enumerate() {
        // All that an earlier one has done is wrong for the next one.
        let colours = HALVES[n % 2];
        let mut command = settle(&machine, program.pid(), colours, &AT_ONCE);
        command.env("QUELL_FAULT", point.to_string());
        let done = Running::start(&mut command).wait();
        machine.undone_or_restored();
        program.is_intact();
        if done.code == 0 {
            eprintln!("ended by itself at {point}");
            assert!(point > 8, "{done:?}");
            break;
        }
        assert_eq!(done.code, 137, "{point}: {done:?}");
    }
    machine.unchanged("after all boundaries");
}

/// The settler dies: between and within the calls that a thread does, and while pages are away. The
/// thread takes its way back, and the settler's parent puts the pages back.
#[test]
fn a_program_survives_the_death_of_the_settler() {
    let Some(mut machine) = able() else {
        return;
    };
    let _all = ForAll::set();
    // The first stop has so many points.
    for (point, confined) in (1..80)
        .step_by(stride(7))
        .flat_map(|n| [(n, false), (n + 3, true)])
    {
        let program = match confined {
            true => Checked::confined(&machine, 8, libc::SYS_ptrace),
            false => Checked::start(&machine, 8, false),
        };
        machine.remember();
        let mut command = settle(&machine, program.pid(), HALVES[0], &AT_ONCE);
        command.env("QUELL_SETTLER_FAULT", point.to_string());
        let done = Running::start(&mut command).wait();
        eprintln!("{point} {confined}: {} {}", done.out, done.err);
        assert!([0, 3].contains(&done.code), "{point}: {done:?}");
        program.is_intact();
        machine.unchanged("after the settler's death");
    }
}

/// The settler, Quell and its watchdog die: `quell restore` puts the pages back.
#[test]
fn a_program_survives_the_death_of_all_three() {
    let Some(mut machine) = able() else {
        return;
    };
    for (n, point) in (1..40).step_by(stride(9)).enumerate() {
        let program = Checked::start(&machine, 8, false);
        machine.remember();
        let colours = HALVES[n % 2];
        let mut command = settle(&machine, program.pid(), colours, &AT_ONCE);
        command
            .env("QUELL_FAULT", point.to_string())
            .env("QUELL_WATCHDOG_FAULT", "1")
            .env("QUELL_SETTLER_FAULT", (1 + point * 7 % 60).to_string());
        let done = Running::start(&mut command).wait();
        machine.undone_or_restored();
        program.is_intact();
        assert!([0, 3, 137].contains(&done.code), "{point}: {done:?}");
        machine.unchanged("after all deaths");
    }
}

/// It is refused for this reason, and nothing is changed.
#[track_caller]
fn is_refused(machine: &Machine, pid: u32, says: &[&str]) {
    let done = Running::start(&mut settle(machine, pid, HALVES[0], &[])).wait();
    done.fails(1, says);
    machine.unchanged(says[0]);
}

#[test]
fn what_cannot_be_settled_is_refused_with_the_reason() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine, 4, false);
    machine.remember();
    let pid = program.pid();
    send(pid, Signal::STOP);
    eventually("it is stopped", || {
        status_of(pid, "State").is_some_and(|s| s.starts_with('T'))
    });
    is_refused(&machine, pid, &["it is stopped", "kill -CONT"]);
    send(pid, Signal::CONT);
    let number = i32::try_from(pid).unwrap();
    // SAFETY: requests without memory.
    let trace = |request| assert_eq!(unsafe { libc::ptrace(request, number, 0, 0) }, 0);
    trace(libc::PTRACE_SEIZE);
    is_refused(&machine, pid, &["traces it", "end the tracer"]);
    trace(libc::PTRACE_INTERRUPT);
    let mut status = 0;
    // SAFETY: a child of ours.
    unsafe { libc::waitpid(number, &mut status, 0) };
    trace(libc::PTRACE_DETACH);
    program.is_intact();
    let own = std::process::id();
    let done = Running::start(&mut settle(&machine, own, "8", &[])).wait();
    done.fails(2, &["there are the colours 0-7"]);
    let done = Running::start(&mut settle(&machine, own, "1", &["--pace", "0%"])).wait();
    done.fails(2, &["--pace 0%"]);
    // A process that ended and was not waited for.
    let mut ended = Command::new("true").spawn().unwrap();
    eventually("it has ended", || {
        status_of(ended.id(), "State").is_some_and(|s| s.contains('Z'))
    });
    is_refused(&machine, ended.id(), &["zombie"]);
    ended.wait().unwrap();
}
