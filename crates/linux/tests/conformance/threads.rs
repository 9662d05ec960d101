//! A process with many threads, which any user can start: each thread takes a look that does not
//! grow with their number, and the heart beats meanwhile. On the model only.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::cgroup_tree::tasks_in;
use quell_kernel::fake::{Fake, Flavour, Op, Spec};
use quell_kernel::root::Files;
use quell_kernel::{procfs, rt, topology};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::confine_rest;
use quell_linux::group_cgroups::GroupCgroups;
use quell_linux::lease::Lease;
use quell_types::units::Nanos;

use crate::arms::{Held, furnished};
use crate::bodies::{GROUP, ends, gather, none};

/// More than are moved at once.
const THREADS: usize = 300;
/// What the heartbeat is set to, to see the next one.
const STILL: Nanos = Nanos(1);

fn with_threads(fake: &Fake) -> (u32, Vec<u32>) {
    fake.with(|m| {
        let pid = m.spawn("many");
        (pid, (0..THREADS).map(|_| m.thread(pid)).collect())
    })
}

/// How often each was seen.
#[derive(Default)]
struct Counts {
    /// Reads for which the kernel adds up all threads.
    sums: AtomicUsize,
    /// Reads of the CPUs that tasks of a cgroup have.
    usual: AtomicUsize,
    beats: AtomicUsize,
}

impl Counts {
    /// The sums, and whether the others are at most a few, and at least one for each thread.
    fn seen(&self) -> (usize, bool, bool) {
        let [sums, usual, beats] =
            [&self.sums, &self.usual, &self.beats].map(|count| count.load(Ordering::SeqCst));
        (sums, usual < 10, beats > THREADS)
    }
}

/// Counts from now on what concerns these threads, with a heart for the journal.
fn watch(fake: &Fake, threads: &[u32], held: &mut Held<'_>) -> Arc<Counts> {
    let dir = tempfile::tempdir().unwrap();
    let lease = Arc::new(Lease::create(dir.path(), 1, rt::now()).unwrap());
    held.journal.bind(Arc::clone(&lease));
    let counts = Arc::new(Counts::default());
    let seen = Arc::clone(&counts);
    let stats = threads.iter().map(|tid| format!("/proc/{tid}/stat"));
    let stats: BTreeSet<String> = stats.collect();
    fake.meanwhile(move |_, _, path, _| {
        for (count, counts) in [
            (&seen.sums, stats.contains(path)),
            (&seen.usual, path.ends_with("/cpuset.effective_cpus")),
            (&seen.beats, lease.last_beat() != STILL),
        ] {
            count.fetch_add(usize::from(counts), Ordering::SeqCst);
        }
        lease.beat(STILL);
    });
    counts
}

#[test]
fn threads_are_gathered_one_look_each_and_the_heart_beats() {
    let fake = furnished(&Spec::new(Flavour::V1));
    let (pid, threads) = with_threads(&fake);
    let files: &dyn Files = &fake;
    let cgroups = Cgroups::discover(files).unwrap();
    let mut held = Held::new(files);
    let counts = watch(&fake, &threads, &mut held);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = gather(&mut writer, &cgroups, pid, &[Controller::Cpuset]);
    assert_eq!(counts.seen(), (0, true, true));
    let inside = tasks_in(files, &group_cgroups.places[0].dir).unwrap();
    assert_eq!(inside.len(), 1 + THREADS);
    assert_eq!(held.journal.undo_all(files).left, none());
    assert_eq!(counts.seen().0, 0, "at the end, too");
    fake.quiet();
}

#[test]
fn threads_of_no_group_are_moved_one_look_each() {
    let fake = furnished(&Spec::new(Flavour::V1));
    let (_, threads) = with_threads(&fake);
    let files: &dyn Files = &fake;
    let (_, last) = ends(files);
    for tid in &threads {
        files.set_affinity(*tid, &last).unwrap();
    }
    let rest = topology::online(files).unwrap().difference(&last);
    let cgroups = Cgroups::discover(files).unwrap();
    let mut held = Held::new(files);
    let counts = watch(&fake, &threads, &mut held);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let keep = Keep {
        homes: &[],
        processes: &[std::process::id()].into(),
    };
    confine_rest(&mut writer, &cgroups, keep, &rest).unwrap();
    assert_eq!(counts.seen(), (0, true, true));
    assert_eq!(files.affinity(threads[0]).unwrap(), rest);
    assert_eq!(held.journal.undo_all(files).left, none());
    assert_eq!(counts.seen().0, 0, "at the end, too");
    assert_eq!(files.affinity(threads[0]).unwrap(), last);
    fake.quiet();
}

/// What was found of a process holds when it is moved, however many others there are.
#[test]
fn the_first_are_recorded_and_moved_before_the_next_look() {
    let fake = furnished(&Spec::new(Flavour::V1));
    let pids = [with_threads(&fake).0, with_threads(&fake).0];
    let files: &dyn Files = &fake;
    let cgroups = Cgroups::discover(files).unwrap();
    let mut held = Held::new(files);
    let journal = held.journal.path().to_owned();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&seen);
    let looks = pids.map(|pid| format!("/proc/{pid}/cgroup"));
    fake.meanwhile(move |_, op, path, text| {
        if looks.iter().any(|look| look == path) {
            events.lock().unwrap().push(path.to_owned());
        }
        if op == Op::Write && path.contains(GROUP) && path.ends_with("/cgroup.procs") {
            let recorded = std::fs::read_to_string(&journal).unwrap().lines().count();
            let recorded = recorded / THREADS;
            events.lock().unwrap().push(format!("{text} {recorded}"));
        }
    });
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups =
        GroupCgroups::create(&mut writer, &cgroups, GROUP, &[Controller::Cpuset]).unwrap();
    let mut find = |files: &dyn Files| {
        let each = pids.map(|pid| procfs::stat(files, pid).unwrap());
        Ok(each.into_iter().flatten().collect())
    };
    let gathered = group_cgroups.gather(&mut writer, &mut find).unwrap();
    fake.quiet();
    assert!(gathered.whole);
    let expected = [
        format!("/proc/{}/cgroup", pids[0]),
        format!("{} 1", pids[0]),
        format!("/proc/{}/cgroup", pids[1]),
        format!("{} 2", pids[1]),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}
