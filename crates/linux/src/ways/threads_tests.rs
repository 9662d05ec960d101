//! Which threads are read, on a machine that is a folder.

use quell_kernel::root::Kernel;
use quell_types::units::Nanos;

use super::*;

/// A machine with processes of one thread each.
struct Machine {
    dir: tempfile::TempDir,
    threads: Threads,
    /// Threads with a class.
    classes: BTreeMap<u32, String>,
}

impl Machine {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            threads: Threads::default(),
            classes: BTreeMap::new(),
        }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The thread has run for so long, and last on this CPU.
    fn put(&self, tid: u32, ns: u64, cpu: u32) {
        let zeros = |n: usize| "0 ".repeat(n);
        let stat = format!(
            "{tid} (rt) S 1 0 0 0 -1 0 {}20 0 1 0 100 0 9 {}{cpu} 0 0",
            zeros(8),
            zeros(14)
        );
        self.write(&format!("proc/{tid}/task/{tid}/stat"), &stat);
        self.write(&format!("proc/{tid}/schedstat"), &format!("{ns} 0 1"));
        self.write(&format!("proc/{tid}/status"), &format!("Tgid:\t{tid}\n"));
    }

    fn end(&self, tid: u32) {
        std::fs::remove_dir_all(self.dir.path().join(format!("proc/{tid}"))).unwrap();
    }

    fn in_class(&mut self, tids: impl IntoIterator<Item = u32>) {
        self.classes = tids.into_iter().map(|tid| (tid, "db".to_owned())).collect();
    }

    fn sample(&mut self, taken: Option<&Taken>) -> BTreeMap<u32, Thread> {
        let files = Kernel::at(self.dir.path());
        let mut seen = Snapshot::default();
        let threads = &mut self.threads;
        threads
            .sample(&files, &self.classes, taken, &mut seen)
            .unwrap();
        seen.threads
    }
}

fn run(tid: u32, from: u64, until: u64) -> Run {
    Run {
        task: Task { pid: tid, tid },
        from: Nanos(from),
        until: Nanos(until),
    }
}

#[test]
fn only_a_thread_that_ran_is_read_again() {
    let mut machine = Machine::new();
    machine.put(7, 5, 0);
    machine.in_class([7]);
    machine.sample(None);
    assert_eq!(machine.sample(None)[&7].cpu, 0);
    // It cannot be on another CPU without having run.
    machine.put(7, 5, 3);
    assert_eq!(machine.sample(None)[&7].cpu, 0);
    machine.put(7, 6, 3);
    let seen = machine.sample(None);
    assert_eq!((seen[&7].cpu, seen[&7].passing), (3, false));
    // Where nothing counts its time, it is read each time.
    std::fs::remove_file(machine.dir.path().join("proc/7/schedstat")).unwrap();
    machine.threads = Threads::default();
    machine.sample(None);
    let stat = std::fs::read_to_string(machine.dir.path().join("proc/7/task/7/stat")).unwrap();
    machine.write("proc/7/task/7/stat", &stat.replace(" 3 0 0", " 1 0 0"));
    assert_eq!(machine.sample(None)[&7].cpu, 1);
}

#[test]
fn of_many_threads_those_that_sleep_are_read_in_turn() {
    let mut machine = Machine::new();
    let all = 1..=200;
    all.clone().for_each(|tid| machine.put(tid, 5, 0));
    machine.in_class(all.clone());
    for _ in 0..=AWAKE + 1 {
        assert_eq!(machine.sample(None).len(), 200);
    }
    assert!(machine.threads.known.values().all(|k| k.idle >= AWAKE));
    machine.put(150, 6, 3);
    machine.end(160);
    machine.in_class(all.filter(|tid| *tid != 160));
    let looks = 200 / u32::try_from(IN_TURN).unwrap() + 1;
    let seen = (0..looks).map(|_| machine.sample(None)).last().unwrap();
    assert_eq!(seen[&150].cpu, 3);
    assert!(!seen.contains_key(&160));
}

#[test]
fn a_thread_that_leaves_its_class_goes_to_the_roots() {
    let mut machine = Machine::new();
    machine.put(7, 5, 0);
    machine.put(8, 5, 0);
    machine.in_class([7, 8]);
    assert_eq!(machine.sample(None)[&7].class, "db");
    machine.in_class([]);
    machine.end(8);
    let seen = machine.sample(None);
    assert_eq!((seen[&7].class.as_str(), seen.len()), (ROOT, 1));
}

#[test]
fn switches_say_who_ran_where_and_who_was_born() {
    let mut machine = Machine::new();
    machine.put(7, 5, 0);
    machine.put(9, 5, 0);
    machine.in_class([7]);
    // 7 runs on two CPUs. It makes 8, which ends before it is looked at. 9 is in no class.
    let mut taken = Taken {
        runs: [
            (0, vec![run(7, 10, 20), run(9, 30, 40)]),
            (2, vec![run(8, 22, 25), run(7, 40, 50)]),
        ]
        .into(),
        born: [(Task { pid: 8, tid: 8 }, 7)].into(),
        names: [(8, "ls".to_owned())].into(),
        ended: vec![8],
        lost: 0,
    };
    let seen = machine.sample(Some(&taken));
    let thread = |tid: u32| {
        let thread = &seen[&tid];
        (thread.class.as_str(), thread.cpu, thread.passing)
    };
    assert_eq!(thread(7), ("db", 2, false));
    assert_eq!(
        (thread(8), seen[&8].name.as_str()),
        (("db", 2, false), "ls")
    );
    assert_eq!(thread(9), (ROOT, 0, true));
    // What ended is gone; what sleeps is still there, and is not read.
    taken = Taken::default();
    machine.put(9, 6, 3);
    let seen = machine.sample(Some(&taken));
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [7, 9]);
    assert_eq!(seen[&9].cpu, 0);
    // Records of an end were lost.
    machine.end(9);
    taken.lost = 1;
    let seen = machine.sample(Some(&taken));
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [7]);
}

#[test]
fn what_a_watched_program_starts_is_watched_too() {
    let mut machine = Machine::new();
    machine.put(7, 5, 0);
    machine.threads.watch(7);
    let seen = machine.sample(None);
    assert!(!seen[&7].passing);
    machine.put(7, 6, 0);
    machine.put(8, 5, 0);
    machine.write("proc/7/task/7/children", "8 \n");
    let seen = machine.sample(None);
    assert!(!seen[&8].passing);
    // The same by switches.
    machine.put(9, 5, 0);
    let taken = Taken {
        runs: [(0, vec![run(9, 10, 20)])].into(),
        born: [(Task { pid: 9, tid: 9 }, 8)].into(),
        ..Taken::default()
    };
    let seen = machine.sample(Some(&taken));
    assert!(!seen[&9].passing);
}
