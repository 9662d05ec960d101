//! Predictable paging on this machine: what `paging` of a policy gives a launched program and one
//! that runs, and that the latter is as before when the run has ended, however it ended. Seen from
//! outside: the kernel's own files, and what an unmodified `python3` counts of itself.
//!
//! Skipped aloud without root, without `/usr/bin/python3`, and where a program cannot be made to
//! lock its memory or there are no pages of 2 MiB.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{
    Machine, Program, Running, eventually, in_status, machine, process_named, quell, send,
    watchdog_of,
};
use quell_kernel::{paging, trace};
use quell_types::units::Bytes;
use rustix::process::Signal;

const PYTHON: &str = "/usr/bin/python3";
const MIB: u64 = 1 << 20;

/// Maps 64 MiB, then touches every page and counts its own faults.
const TOUCHES: &str = r#"
import mmap, resource
def status(key):
    with open('/proc/self/status') as f:
        for line in f:
            if line.startswith(key): return line.split()[1]
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def faults():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_minflt + u.ru_majflt
faults()
before = faults()
for i in range(0, len(m), 4096): m[i] = 1
after = faults()
print('faults', after - before, 'locked', status('VmLck:'), 'large', status('THP_enabled:'))
"#;

/// Touches 64 MiB and waits until the kernel shows it in large pages.
const LARGE: &str = r#"
import mmap, time
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, len(m), 4096): m[i] = i // 4096 % 251
def huge():
    with open('/proc/self/smaps') as f:
        return sum(int(l.split()[1]) for l in f if l.startswith('AnonHugePages:'))
begun = time.time()
while huge() < 60 << 10 and time.time() - begun < 30: time.sleep(0.1)
intact = all(m[i] == i // 4096 % 251 for i in range(0, len(m), 4096))
print('huge', huge(), 'intact', intact)
"#;

/// Waits in several ways, in several threads, and checks its own memory and clock all the time.
const CHECKS: &str = r#"
import os, select, socket, sys, threading, time
data = bytearray(os.urandom(1 << 20)); first = bytes(data)
wrong = []
def sleeper():
    while True:
        begun = time.monotonic(); time.sleep(0.2)
        if time.monotonic() - begun < 0.199: wrong.append('short sleep')
def reader(end):
    while True:
        if len(end.recv(1)) != 1: wrong.append('recv')
def polls():
    p = select.poll(); a, b = socket.socketpair(); p.register(a, select.POLLIN)
    while True:
        if p.poll(150): wrong.append('poll')
a, b = socket.socketpair()
for f, args in ((sleeper, ()), (reader, (b,)), (polls, ())):
    threading.Thread(target=f, args=args, daemon=True).start()
out = sys.argv[1]
n = 0
while True:
    if bytes(data) != first: wrong.append('data')
    a.send(b'x'); n += 1
    if n % 50 == 0:
        with open(out + '.new', 'w') as f: f.write('%d %s' % (n, wrong))
        os.rename(out + '.new', out)
    time.sleep(0.002)
"#;

/// Installs a filter that allows every system call.
const FILTERED: &str = r#"
import ctypes, time
libc = ctypes.CDLL(None)
class Filter(ctypes.Structure):
    _fields_ = [('code', ctypes.c_uint16), ('jt', ctypes.c_uint8), ('jf', ctypes.c_uint8), ('k', ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [('len', ctypes.c_uint16), ('filter', ctypes.POINTER(Filter))]
# mlockall(2) and munlockall(2) fail.
list = (Filter * 5)(Filter(0x20, 0, 0, 0), Filter(0x15, 1, 0, 151), Filter(0x15, 0, 1, 152), Filter(6, 0, 0, 0x50001), Filter(6, 0, 0, 0x7fff0000))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(5, list)), 0, 0) == 0
while True: time.sleep(1)
"#;

/// The machine, if a program can be made to lock its memory on it.
fn able() -> Option<Machine> {
    if !fs::exists(PYTHON).unwrap() {
        quell_testing::skip(format_args!("there is no {PYTHON}"));
        return None;
    }
    if !trace::is_built() {
        quell_testing::skip("not built for this architecture");
        return None;
    }
    machine()
}

fn large_pages(machine: &Machine) -> bool {
    let found = paging::large_pages(&machine.kernel);
    if found != Ok(Bytes(2 * MIB)) {
        quell_testing::skip(format_args!("{found:?}"));
        return false;
    }
    true
}

/// A policy for one program, which is launched.
fn launched(machine: &Machine, script: &str, paging: &str) -> crate::common::Done {
    let script = machine.file("program.py", script);
    let policy = format!(
        "quell = 1\n[group.rt]\nrole = 'critical'\ncpus = 'any'\ncommand = ['{PYTHON}', '{script}']\n{paging}\n"
    );
    let policy = machine.file("policy.toml", &policy);
    Running::start(quell().args(["run", &policy])).wait()
}

/// The number after a word of a program's output.
fn number(done: &crate::common::Done, word: &str) -> u64 {
    assert_eq!(done.code, 0, "{done:?}");
    let mut words = done.out.split_whitespace().skip_while(|w| *w != word);
    let found = words.nth(1).and_then(|n| n.parse().ok());
    found.unwrap_or_else(|| panic!("{word}: {done:?}"))
}

#[test]
fn a_launched_program_takes_no_fault_in_its_measured_span() {
    let Some(mut machine) = able() else {
        return;
    };
    machine.remember();
    let plain = launched(&machine, TOUCHES, "paging.pages = '4KiB'");
    assert!(number(&plain, "faults") >= 16384, "{plain:?}");
    assert_eq!((number(&plain, "locked"), number(&plain, "large")), (0, 0));
    machine.unchanged("after pages of 4 KiB");
    let filled = "paging = { locked = true, prefault = true, pages = '4KiB' }";
    let done = launched(&machine, TOUCHES, filled);
    assert_eq!(number(&done, "faults"), 0, "{done:?}");
    assert!(number(&done, "locked") > 64 << 10, "{done:?}");
    machine.unchanged("after locked and filled");
    // Locked as it is touched: it is not there before.
    let done = launched(
        &machine,
        TOUCHES,
        "paging = { locked = true, pages = '4KiB' }",
    );
    assert!(number(&done, "faults") >= 16384, "{done:?}");
    assert!(number(&done, "locked") > 64 << 10, "{done:?}");
}

#[test]
fn a_launched_program_gets_large_pages_with_its_content() {
    let Some(mut machine) = able() else {
        return;
    };
    if !large_pages(&machine) {
        return;
    }
    machine.remember();
    let done = launched(&machine, LARGE, "paging.pages = '2MiB'");
    assert!(number(&done, "huge") >= 60 << 10, "{done:?}");
    assert!(done.out.contains("intact True"), "{done:?}");
    // What lay in them at last is in the summary.
    assert!(done.err.contains("lay in large pages"), "{done:?}");
}

/// A program that checks itself, with a limit of locked memory of its own.
struct Checked {
    program: Program,
    report: PathBuf,
    limit: String,
}

fn limit_of(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find(|l| l.starts_with("Max locked memory"));
    line.unwrap().to_owned()
}

impl Checked {
    fn start(machine: &Machine) -> Self {
        let script = machine.file("checks.py", CHECKS);
        let report = machine.path("report");
        let _ = fs::remove_file(&report);
        let command = format!(
            "ulimit -l 3000; exec {PYTHON} {script} {}",
            report.display()
        );
        let program = Program::start(&["sh", "-c", &command]);
        eventually("the program runs", || report.exists());
        let limit = limit_of(program.pid());
        Self {
            program,
            report,
            limit,
        }
    }

    fn locked(&self) -> u64 {
        in_status(self.program.pid(), "VmLck")
    }

    /// A policy that locks its memory.
    fn policy(&self, machine: &Machine, more: &str) -> String {
        let pid = self.program.pid();
        let policy = format!(
            "quell = 1\n[group.rt]\nrole = 'critical'\ncpus = 'any'\nmatch = [{{ pid = {pid} }}]\npaging.locked = true\n{more}"
        );
        machine.file("policy.toml", &policy)
    }

    /// A run that has locked it.
    fn held(&self, machine: &Machine) -> Running {
        let run = Running::start(quell().args(["run", &self.policy(machine, "")]));
        eventually("its memory is locked", || self.locked() > MIB);
        // The kernel counts what it has locked so far. Who made the program do it lets it go.
        eventually("nobody traces it", || {
            let threads = threads(self.program.pid());
            let pid = self.program.pid();
            threads.iter().all(|tid| {
                let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
                status.is_ok_and(|status| status.contains("TracerPid:\t0\n"))
            }) && process_named("quell-helper").is_none()
        });
        // CAP_SYS_RESOURCE: without it, the limit of a program that no limit holds stays.
        let limit = limit_of(self.program.pid());
        assert_eq!(
            limit.contains("unlimited"),
            quell_kernel::is_capable(24),
            "{limit}"
        );
        run
    }

    /// The program goes on with all it had before.
    #[track_caller]
    fn is_as_before(&self) {
        assert_eq!(self.locked(), 0);
        assert_eq!(limit_of(self.program.pid()), self.limit);
        let said = || fs::read_to_string(&self.report).unwrap();
        let steps = || said().split(' ').next().unwrap().parse::<u64>().unwrap();
        let before = steps();
        eventually("the program goes on", || steps() > before + 100);
        assert!(said().ends_with("[]"), "{}", said());
    }
}

#[test]
fn a_running_program_is_as_before_when_the_run_ends() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine);
    machine.remember();
    let run = program.held(&machine);
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    eprintln!("{}", done.err);
    program.is_as_before();
    machine.unchanged("after the end");
}

#[test]
fn a_running_program_is_as_before_after_kills() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine);
    machine.remember();
    let run = program.held(&machine);
    run.signal(Signal::KILL);
    machine.undone();
    program.is_as_before();
    machine.unchanged("after SIGKILL");
    // The watchdog, too: then `quell restore` does it.
    let run = program.held(&machine);
    let watchdog = watchdog_of(run.pid()).unwrap();
    run.signal(Signal::STOP);
    send(watchdog, Signal::KILL);
    run.signal(Signal::KILL);
    drop(run);
    assert!(program.locked() > MIB);
    machine.undone_or_restored();
    program.is_as_before();
    machine.unchanged("after `quell restore`");
}

#[test]
fn a_running_program_survives_a_death_at_every_boundary() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine);
    machine.remember();
    let more = "[group.job]\nrole = 'best-effort'\ncpus = 'any'\ncommand = ['true']\n";
    let policy = program.policy(&machine, more);
    for point in 1.. {
        let mut run = quell();
        run.args(["run", &policy])
            .env("QUELL_FAULT", point.to_string());
        let done = Running::start(&mut run).wait();
        machine.undone_or_restored();
        assert_eq!(program.locked(), 0, "{point}: {done:?}");
        assert_eq!(limit_of(program.program.pid()), program.limit, "{point}");
        if done.code == 0 {
            eprintln!("{} boundaries", point - 1);
            assert!(point > 10, "{done:?}");
            break;
        }
        assert_eq!(done.code, 137, "{point}: {done:?}");
    }
    program.is_as_before();
    machine.unchanged("after all boundaries");
}

fn threads(pid: u32) -> Vec<i32> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let number = |name: &str| name.parse().unwrap();
    all.map(|thread| number(thread.unwrap().file_name().to_str().unwrap()))
        .collect()
}

/// The threads of a child, which this thread traces: any of them can be asked to unlock.
struct Traced(Vec<i32>);

impl Traced {
    fn start(pid: u32) -> Self {
        let traced = Self(threads(pid));
        traced.request(libc::PTRACE_SEIZE);
        traced
    }

    fn request(&self, what: libc::c_uint) {
        for tid in &self.0 {
            // SAFETY: requests without memory.
            assert_eq!(unsafe { libc::ptrace(what, *tid, 0, 0) }, 0);
        }
    }

    fn end(self) {
        self.request(libc::PTRACE_INTERRUPT);
        for tid in &self.0 {
            let mut status = 0;
            // SAFETY: a thread of a child of ours.
            unsafe { libc::waitpid(*tid, &raw mut status, libc::__WALL) };
        }
        self.request(libc::PTRACE_DETACH);
    }
}

/// As by the helper of a run that dies.
#[test]
fn a_program_that_is_traced_when_its_run_dies_is_waited_for() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine);
    machine.remember();
    let run = program.held(&machine);
    let watchdog = watchdog_of(run.pid()).unwrap();
    let traced = Traced::start(program.program.pid());
    drop(run);
    std::thread::sleep(Duration::from_secs(1));
    assert!(program.locked() > MIB);
    assert!(Path::new(&format!("/proc/{watchdog}")).exists());
    traced.end();
    machine.undone();
    program.is_as_before();
    machine.unchanged("after SIGKILL");
}

/// A run of this policy is refused for this reason, and changes nothing.
#[track_caller]
fn is_refused(machine: &Machine, policy: &str, pid: u32, why: &str) {
    let done = Running::start(quell().args(["run", policy])).wait();
    assert_ne!(done.code, 0, "{done:?}");
    let says = [why, "leave paging.locked out"];
    assert!(says.iter().all(|s| done.err.contains(s)), "{done:?}");
    assert_eq!(in_status(pid, "VmLck"), 0);
    machine.unchanged(why);
}

#[test]
fn what_is_traced_or_filtered_is_refused_with_the_reason() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine);
    let script = machine.file("filtered.py", FILTERED);
    let filtered = Program::start(&[PYTHON, &script]);
    let has_filter = || crate::common::status_of(filtered.pid(), "Seccomp").as_deref() == Some("2");
    eventually("it has a filter", has_filter);
    machine.remember();
    let (pid, policy) = (program.program.pid(), program.policy(&machine, ""));
    send(pid, Signal::STOP);
    eventually("it is stopped", || {
        crate::common::status_of(pid, "State").is_some_and(|s| s.starts_with('T'))
    });
    is_refused(&machine, &policy, pid, "it is stopped");
    send(pid, Signal::CONT);
    let traced = Traced::start(pid);
    is_refused(&machine, &policy, pid, "traces it");
    traced.end();
    program.is_as_before();
    let pid = filtered.pid();
    let policy = format!(
        "quell = 1\n[group.rt]\nrole = 'critical'\ncpus = 'any'\nmatch = [{{ pid = {pid} }}]\npaging.locked = true\n"
    );
    let policy = machine.file("policy.toml", &policy);
    is_refused(&machine, &policy, pid, "seccomp");
}

#[test]
fn one_that_cannot_lock_keeps_no_other_from_it() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine);
    let script = machine.file("filtered.py", FILTERED);
    let filtered = Program::start(&[PYTHON, &script]);
    let has_filter = || crate::common::status_of(filtered.pid(), "Seccomp").as_deref() == Some("2");
    eventually("it has a filter", has_filter);
    machine.remember();
    let pids = [program.program.pid(), filtered.pid()];
    let policy = format!(
        "quell = 1\n[group.rt]\nrole = 'critical'\ncpus = 'any'\n\
        match = [{{ pid = {} }}, {{ pid = {} }}]\npaging.locked = true\n",
        pids[0], pids[1]
    );
    let policy = machine.file("policy.toml", &policy);
    let run = Running::start(quell().args(["run", &policy]));
    eventually("the other is locked", || program.locked() > MIB);
    std::thread::sleep(Duration::from_millis(2500));
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(in_status(pids[1], "VmLck"), 0);
    let said = format!("{}{}", done.out, done.err);
    for part in [&format!("process {}", pids[1]), "seccomp"] {
        assert!(said.contains(part), "{said}");
    }
    program.is_as_before();
    machine.unchanged("after the end");
}

/// A child that is forked, and a program that is executed, lock nothing by themselves. They are
/// found.
#[test]
fn a_program_that_is_executed_is_found() {
    let Some(machine) = able() else {
        return;
    };
    let policy = "quell = 1\n[group.rt]\nrole = 'critical'\ncpus = 'any'\n\
        command = ['sh', '-c', 'sleep 600 >/dev/null 2>&1 & echo $! >PID; wait']\npaging.locked = true\n";
    let file = machine.path("pid");
    let policy = policy.replace("PID", &file.display().to_string());
    let policy = machine.file("policy.toml", &policy);
    let run = Running::start(quell().args(["run", &policy]));
    let begun = Instant::now();
    let child = || fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok();
    eventually("the child of the shell is locked", || {
        child().is_some_and(|pid| in_status(pid, "VmLck") > 0)
    });
    assert!(begun.elapsed() < Duration::from_secs(20));
    run.signal(Signal::TERM);
    run.wait();
    // It outlives the run, and locks nothing any more.
    let child = child().unwrap();
    assert_eq!(in_status(child, "VmLck"), 0);
    send(child, Signal::KILL);
}
