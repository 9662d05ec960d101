//! Processes that take turns under a real kernel in the lab. Those of one scene do so by what their
//! counters say. The record has each decision and what was known before it, and the pure scheduler
//! is given the same. In the other one they are stopped, traced and hold a lock, and a CPU goes
//! offline.
//!
//! Skipped aloud where the lab cannot be had.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use quell_control::config::Scheduling;
use quell_control::quanta::{Quanta, Ready, Turn};
use quell_engine::turns;
use quell_kernel::rt;
use quell_plan::{Plan, Setting};
use quell_policy::lab::{Accelerator, Guest};
use quell_record::quanta::Quantum;
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;
use rustix::time::ClockId;
use serde_json::Value;

/// Two writers, two programs that compute, and one that sleeps. No rate is declared.
const TURNS: &str = r#"
export QUELL_STATE_DIR=/tmp/state
computes() { while :; do :; done; }
for n in 1 2; do (role sweep 16777216 >/dev/null 2>&1) & ALL="$ALL $!"; done
for n in 1 2; do computes & ALL="$ALL $!"; done
sleep 10000 & ALL="$ALL $!"
usleep 300000; kill -STOP $ALL
before
for pid in $ALL; do MATCH="$MATCH { pid = $pid },"; done
printf 'quell = 1\n[group.batch]\nrole = "best-effort"\nallow = ["freeze"]\nmatch = [%s]\n[scheduler]\npolicy = "bounded"\nquantum = "200ms"\n' "$MATCH" >/tmp/policy.toml
quell run /tmp/policy.toml --out /tmp/runs >/tmp/log 2>&1 & run=$!
within 60 grep -q holding: /tmp/log || echo never held
kill -CONT $ALL
sleep 6
kill -TERM $run; wait $run; echo status $?
said
echo manifest $(cat /tmp/runs/*/manifest.json)
sed 's/^/row /' /tmp/runs/*/samples/turns.csv
kill -STOP $ALL
tell restored
# Another program has all counters: they cannot say what a process demands.
(role takes >/tmp/takes 2>&1) & taker=$!
within 20 grep -q taken /tmp/takes || cat /tmp/takes
quell run /tmp/policy.toml >/tmp/log 2>&1; echo taken $?
sed 's/^/refused /' /tmp/log
tell unchanged
kill -9 $taker $ALL
"#;

/// Cores with two threads, one of them for a critical program. It wants a lock that members hold.
/// Other members are stopped or traced. A CPU goes offline for a while.
const HAZARDS: &str = r#"
computes() { while :; do :; done; }
ticks() { for pid; do cut -d' ' -f14 /proc/$pid/stat; done; }
state() { cut -d' ' -f3 /proc/$1/stat; }
# ran WORD PID…: how many of them had CPU time within two seconds
ran() {
    word=$1; shift; ticks $* >/tmp/was; sleep 2; ticks $* >/tmp/now
    echo $word $(paste /tmp/was /tmp/now | awk '$2 > $1' | wc -l)
}
for n in 1 2 3 4; do computes & RUN="$RUN $!"; done
for n in 1 2; do (role locks >/dev/null 2>&1) & RUN="$RUN $!"; done
computes & stopped=$!; computes & paused=$!; computes & traced=$!
kill -STOP $stopped
(role wants >/tmp/wants 2>&1) & wants=$!
SUBJECTS="$RUN $stopped $paused $traced $wants"
before
for pid in $RUN $stopped $paused $traced; do MATCH="$MATCH { pid = $pid },"; done
printf 'quell = 1\n[group.control]\nrole = "critical"\ncpus = "0-1"\nmatch = [{ pid = %s }]\n[group.batch]\nrole = "best-effort"\nallow = ["freeze"]\nmatch = [%s]\n[scheduler]\npolicy = "bounded"\nquantum = "100ms"\ndemand.batch = { memory = "1GB/s", first-level = "10GB/s" }\n' $wants "$MATCH" >/tmp/policy.toml
quell run /tmp/policy.toml --out /tmp/runs >/tmp/log 2>&1 & run=$!
within 60 grep -q holding: /tmp/log || echo never held
kill -STOP $paused
(role traces $traced >/tmp/traces 2>&1) & tracer=$!
ran turns $RUN $traced
echo stays $(state $stopped) $(state $paused)
kill -CONT $paused
offline=/sys/devices/system/cpu/cpu5/online
echo 0 >$offline; sleep 2; ran without $RUN $traced $paused
echo 1 >$offline; sleep 2; ran again $RUN $traced $paused
within 60 grep -q longest /tmp/wants; within 60 grep -q stops /tmp/traces
echo traces $(grep -h stops /tmp/traces)
echo wants $(grep -h longest /tmp/wants)
kill -TERM $run; wait $run; echo status $?
said
sed 's/^/row /' /tmp/runs/*/samples/turns.csv
echo after $(state $stopped)
tell restored
ran free $RUN $traced $paused
kill -9 $SUBJECTS
"#;

fn scheduling(plan: &Plan) -> &Scheduling {
    let found = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Schedule(by) => Some(by),
        _ => None,
    });
    found.unwrap()
}

/// Gives the pure scheduler what the dispatcher had, and compares what it decides.
fn replayed(by: &Scheduling, quanta: &[Quantum]) {
    let demands: Vec<_> = by.groups.values().copied().collect();
    let mut again: Option<(u64, Quanta)> = None;
    for quantum in quanta {
        if again.as_ref().is_none_or(|(seed, _)| *seed != quantum.seed) {
            again = Some((quantum.seed, Quanta::new(by, &by.cores, quantum.seed)));
        }
        let ready = quantum.chances.iter().map(|chance| Ready {
            id: chance.member,
            demand: demands[chance.group],
            did: chance.did,
        });
        let ready: Vec<Ready> = ready.collect();
        let mut decided = again.as_mut().unwrap().1.decide(&ready);
        decided.sort_by_key(|turn| turn.id);
        let turns = quantum.chances.iter().filter_map(|chance| {
            let (id, cpu) = (chance.member, chance.cpu?);
            Some(Turn { id, cpu })
        });
        let mut turns: Vec<Turn> = turns.collect();
        turns.sort_by_key(|turn| turn.id);
        assert_eq!(turns, decided, "at {}", quantum.at);
    }
}

fn counters_decide(kernel: &str) {
    let Some(said) = crate::guest::says(kernel, "icelake", TURNS, Duration::from_secs(600)) else {
        return;
    };
    assert!(["0", "3"].contains(&said.one("status")));
    assert_eq!(said.one("restored"), "restored");
    let manifest: Value = serde_json::from_str(said.one("manifest")).unwrap();
    let plan: Plan = serde_json::from_value(manifest["plan"].clone()).unwrap();
    let by = scheduling(&plan);
    assert!(by.counted, "{by:?}");
    let quanta = turns::read(&said.all("row").join("\n")).unwrap();
    replayed(by, &quanta);
    // Of all five it is known what they did. The writers, which came first, moved most of it.
    let last = quanta.last().unwrap();
    let done = last.chances.iter().map(|chance| chance.did.unwrap().memory);
    let lines: Vec<u64> = done.collect();
    println!("{} decisions; lines moved: {lines:?}", quanta.len());
    assert!(quanta.len() > 15 && lines.len() == 5, "{}", quanta.len());
    let others = lines[2..].iter().max().unwrap();
    assert!(lines[0] + lines[1] > 20 * others, "{lines:?}");
    assert_ne!(said.one("taken"), "0");
    assert_eq!(said.one("unchanged"), "restored");
    let refused = said.all("refused").join("\n");
    assert!(
        refused.contains("scheduler.demand.batch.memory"),
        "{refused}"
    );
}

#[test]
fn counters_decide_and_the_record_says_so_under_6_12() {
    counters_decide("6.12");
}

/// On cgroup v2 alone, as all kernels of the lab are.
fn turns_go_on(kernel: &str) {
    let machine = Guest {
        accelerator: Accelerator::Counted,
        kernel: kernel.to_owned(),
        cpus: 6,
        smt: true,
        ..Guest::default()
    };
    let Some(said) = crate::guest::says_on(machine, HAZARDS, Duration::from_secs(600)) else {
        return;
    };
    assert!(["0", "3"].contains(&said.one("status")));
    let ran = ["turns", "without", "again", "free"].map(|word| said.one(word));
    assert_eq!(ran, ["7", "8", "8", "8"]);
    // Those that were stopped by others are left so.
    assert_eq!([said.one("stays"), said.one("after")], ["T T", "T"]);
    assert_eq!(said.one("restored"), "restored");
    let [stops, longest] = [("traces", "stops"), ("wants", "longest")]
        .map(|(who, what)| crate::guest::figure(said.one(who), what));
    println!("stopped {stops} times by its tracer; waited for a lock for {longest} ms at most");
    assert!(stops >= 10.0, "{stops}");
    // A member that has the lock waits for its turn: two quanta, and as long as it holds the lock.
    assert!((10.0..1_000.0).contains(&longest), "{longest}");
    let quanta = turns::read(&said.all("row").join("\n")).unwrap();
    let cpus =
        |quantum: &Quantum| -> CpuSet { quantum.chances.iter().filter_map(|c| c.cpu).collect() };
    let all: Vec<CpuSet> = quanta.iter().map(cpus).collect();
    let [whole, less] = ["2-5", "2-4"].map(|list| list.parse::<CpuSet>().unwrap());
    assert!(all.iter().all(|cpus| cpus.is_subset(&whole)), "{all:?}");
    let count = |wanted: &CpuSet| all.iter().filter(|cpus| *cpus == wanted).count();
    println!(
        "{} quanta, {} on all CPUs, {} on one less",
        all.len(),
        count(&whole),
        count(&less)
    );
    assert!(count(&whole) > 20 && count(&less) > 5);
}

/// For how long a program of the hazards does what it does.
const LENGTH: Duration = Duration::from_secs(20);

/// The lock that members hold. Opened, it is free.
struct Lock(File);

impl Lock {
    fn open() -> Self {
        Self(File::create("/tmp/lock").unwrap())
    }

    fn set(&self, taken: bool) {
        let what = if taken { libc::LOCK_EX } else { libc::LOCK_UN };
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::flock(self.0.as_raw_fd(), what) }, 0);
    }
}

/// Takes the lock for 20 ms of CPU time, again and again.
fn locks() -> ! {
    let lock = Lock::open();
    loop {
        lock.set(true);
        let begun = rt::clock(ClockId::ProcessCPUTime);
        while rt::clock(ClockId::ProcessCPUTime).since(begun) < Nanos::millis(20) {}
        lock.set(false);
        // So that another one gets it.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Wants the lock every 5 ms, and says in milliseconds how long it waited for it at most.
fn wants() -> ! {
    let (lock, begun, mut longest) = (Lock::open(), Instant::now(), Duration::ZERO);
    while begun.elapsed() < LENGTH {
        let wanted = Instant::now();
        lock.set(true);
        longest = longest.max(wanted.elapsed());
        lock.set(false);
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("longest {}", longest.as_millis());
    loop {
        std::thread::park();
    }
}

/// Stops a process by ptrace(2) for 20 ms, again and again, and says how often.
fn traces(pid: usize) {
    let pid = libc::pid_t::try_from(pid).unwrap();
    let request = |what| {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the request touches no memory of this process.
        unsafe { libc::ptrace(what, pid, null, null) }
    };
    assert_eq!(request(libc::PTRACE_SEIZE), 0);
    let (begun, mut stops) = (Instant::now(), 0);
    while begun.elapsed() < LENGTH {
        assert_eq!(request(libc::PTRACE_INTERRUPT), 0);
        // SAFETY: no status is asked for.
        let stopped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(stopped, pid);
        stops += 1;
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(request(libc::PTRACE_CONT), 0);
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("stops {stops}");
}

/// Has all hardware counters of all CPUs, before any program's.
fn takes() -> ! {
    const INSTRUCTIONS: u64 = 1;
    const PINNED: u64 = 1 << 2;
    /// No processor has more.
    const MOST: usize = 24;
    let mut attributes = [0u64; 14];
    (attributes[0], attributes[1], attributes[5]) = (112 << 32, INSTRUCTIONS, PINNED);
    for cpu in 0..std::thread::available_parallelism().unwrap().get() {
        for _ in 0..MOST {
            let at = attributes.as_ptr();
            // SAFETY: the attributes are as long as they say. The descriptor stays open.
            let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, at, -1, cpu, -1, 0) };
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        }
    }
    println!("taken");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn turns_go_on_whatever_happens_under_6_12() {
        turns_go_on("6.12");
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn counters_decide_and_the_record_says_so_under_7_2() {
        counters_decide("7.2");
    }

    #[test]
    #[ignore = "for the long run"]
    fn turns_go_on_whatever_happens_under_7_2() {
        turns_go_on("7.2");
    }
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "sweep" => crate::guest::sweep(numbers[0]),
        "takes" => takes(),
        "locks" => locks(),
        "wants" => wants(),
        "traces" => traces(numbers[0]),
        other => panic!("role {other}"),
    }
}
