//! Sampling of cache ways with real processes: very many threads, processes that end while they are
//! sampled, and programs too short to be seen by samples.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::divided::Divided;
use quell_kernel::switches::Switches;
use quell_linux::ways::Looker;
use quell_record::ways::ROOT;
use quell_types::cpuset::CpuSet;

const MANY: usize = 10_000;

#[test]
fn ten_thousand_threads_are_no_error() {
    let own = std::process::id();
    let (hold, held) = mpsc::channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let mut threads = Vec::new();
    for _ in 0..MANY {
        let held = std::sync::Arc::clone(&held);
        // All but one wait for the lock.
        let wait = move || {
            let _ = held.lock().unwrap().recv();
        };
        let builder = std::thread::Builder::new().stack_size(64 << 10);
        match builder.spawn(wait) {
            Ok(thread) => threads.push(thread),
            Err(e) => {
                quell_testing::skip_part(format_args!(
                    "no more than {} threads here: {e}",
                    threads.len()
                ));
                break;
            }
        }
    }
    let machine = Divided::new();
    let tids = machine.show(own);
    machine.class("db", "f", &tids);
    let files = machine.files();
    let mut looker = Looker::new(&files, false).unwrap();
    let mut times = Vec::new();
    for _ in 0..20 {
        let begun = Instant::now();
        let seen = looker.sample(&files, None).unwrap();
        times.push(begun.elapsed());
        let of_class = seen.threads.values().filter(|thread| thread.class == "db");
        assert!(of_class.count() >= threads.len());
    }
    println!("{} threads, samples took {times:?}", tids.len());
    drop(hold);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    // They have ended, and resctrl lists them no more.
    machine.class("db", "f", &[own]);
    let seen = looker.sample(&files, None).unwrap();
    assert!(seen.threads.len() < 1_000, "{}", seen.threads.len());
}

#[test]
fn processes_that_end_while_they_are_sampled_are_no_error() {
    let machine = Divided::new();
    let files = machine.files();
    machine.class("db", "f", &[]);
    let mut looker = Looker::new(&files, false).unwrap();
    for round in 0..40u32 {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        machine.show(pid);
        machine.class("db", "f", &[pid]);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(u64::from(round) * 50));
            child.kill().unwrap();
            child.wait().unwrap();
        });
        while !killer.is_finished() {
            looker.sample(&files, None).unwrap();
        }
        killer.join().unwrap();
        // Its number is still in the list, as when the list was read before the end.
        let seen = looker.sample(&files, None).unwrap();
        assert!(!seen.threads.contains_key(&pid), "round {round}");
    }
}

#[test]
fn a_short_program_is_seen_by_its_switches() {
    let machine = Divided::new();
    let own = std::process::id();
    let tids = machine.show(own);
    machine.class("db", "f", &tids);
    let files = machine.files();
    let mut looker = Looker::new(&files, false).unwrap();
    let cpus: CpuSet = files_of_cpus();
    let mut switches = match Switches::open(&cpus) {
        Ok(switches) => switches,
        Err(e) => {
            return quell_testing::skip(format_args!("switches cannot be recorded here: {e}"));
        }
    };
    let taken = switches.take();
    looker.sample(&files, Some(&taken)).unwrap();
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let taken = switches.take();
    let seen = looker.sample(&files, Some(&taken)).unwrap();
    let thread = &seen.threads[&pid];
    // It has the class of the thread that made it, which resctrl cannot tell any more.
    assert_eq!(
        (thread.name.as_str(), thread.class.as_str()),
        ("true", "db")
    );
    let runs = taken.runs.values().flatten();
    assert!(runs.filter(|run| run.task.pid == pid).count() > 0);
    // What else ran is there, too, and is nothing that was asked for.
    let passing = seen.threads.values().filter(|thread| thread.passing);
    assert!(passing.clone().all(|thread| thread.class == ROOT));
    // It has ended.
    let taken = switches.take();
    let seen = looker.sample(&files, Some(&taken)).unwrap();
    assert!(!seen.threads.contains_key(&pid));
}

/// All CPUs that are online.
fn files_of_cpus() -> CpuSet {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    online.trim().parse().unwrap()
}
