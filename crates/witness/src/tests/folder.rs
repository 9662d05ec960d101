//! Machines in folders: what the model of the kernel does not have, such as times.

use super::*;

const MOUNTS: &str = "21 1 8:1 / / rw - ext4 /dev/vda1 rw\n\
    30 21 0:40 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";

/// A machine with cgroup v2 in a folder.
struct Machine {
    dir: tempfile::TempDir,
}

/// A thread in such a machine.
struct Task<'a> {
    tid: u32,
    /// Its process.
    pid: u32,
    comm: &'a str,
    may: &'a str,
    last: u32,
    cgroup: &'a str,
    /// Milliseconds that it ran, and that it waited.
    spent: [u64; 2],
}

const TASK: Task<'static> = Task {
    tid: 0,
    pid: 0,
    comm: "x",
    may: "0-3",
    last: 0,
    cgroup: "/",
    spent: [0, 0],
};

impl Machine {
    /// Four CPUs, init, a thread of the kernel, and process 10, which has CPUs 2 and 3.
    fn new() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        machine.put("proc/self/mountinfo", MOUNTS);
        machine.put("proc/self/cgroup", "0::/\n");
        machine.task(&Task {
            tid: 1,
            pid: 1,
            comm: "init",
            may: "0-1",
            ..TASK
        });
        machine.put(
            "proc/2/task/2/stat",
            &stat(2, "kthreadd", 0x20_0000, 0, 'S'),
        );
        machine.put("proc/2/status", "Cpus_allowed_list:\t0-3\n");
        machine.own(10, "2-3", 2, [0, 0]);
        machine.members("/own", &[10]);
        machine
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn gone(&self, path: &str) {
        fs::remove_dir_all(self.dir.path().join(path)).unwrap();
    }

    fn task(&self, task: &Task<'_>) {
        let (tid, pid) = (task.tid, task.pid);
        let own = stat(tid, task.comm, 0, task.last, 'S');
        self.put(&format!("proc/{pid}/task/{tid}/stat"), &own);
        self.put(&format!("proc/{tid}/stat"), &own);
        let status = format!("Name:\t{}\nCpus_allowed_list:\t{}\n", task.comm, task.may);
        self.put(&format!("proc/{tid}/status"), &status);
        self.put(
            &format!("proc/{tid}/cgroup"),
            &format!("0::{}\n", task.cgroup),
        );
        let [ran, waited] = task.spent.map(|ms| ms * 1_000_000);
        self.put(
            &format!("proc/{tid}/schedstat"),
            &format!("{ran} {waited} 1\n"),
        );
    }

    /// A process of the group.
    fn own(&self, pid: u32, may: &str, last: u32, spent: [u64; 2]) {
        self.task(&Task {
            tid: pid,
            pid,
            comm: "own",
            may,
            last,
            cgroup: "/own",
            spent,
        });
    }

    fn members(&self, cgroup: &str, tids: &[u32]) {
        let lines: String = tids.iter().map(|tid| format!("{tid}\n")).collect();
        let dir = format!("sys/fs/cgroup{cgroup}");
        self.put(&format!("{dir}/cgroup.procs"), &lines);
        self.put(&format!("{dir}/cgroup.threads"), &lines);
    }

    /// Milliseconds busy and idle of each CPU so far, from CPU 0 on.
    fn times(&self, times: &[[u64; 2]]) {
        let line = |(cpu, [busy, idle]): (usize, &[u64; 2])| {
            format!("cpu{cpu} {} 0 0 {} 0 0 0 0\n", busy / 10, idle / 10)
        };
        let lines: String = times.iter().enumerate().map(line).collect();
        self.put("proc/stat", &lines);
    }

    fn used(&self, cgroup: &str, ms: u64) {
        let text = format!("usage_usec {}\n", ms * 1_000);
        self.put(&format!("sys/fs/cgroup{cgroup}/cpu.stat"), &text);
    }

    fn witness(&self, what: What) -> Witness {
        let parties = vec![party("own", "", &["/sys/fs/cgroup/own"], "2-3")];
        self.witness_of(what, parties)
    }

    fn witness_of(&self, what: What, parties: Vec<Party>) -> Witness {
        let files = Arc::new(Kernel::at(self.dir.path()));
        Witness::new(
            files,
            vec![claim("own", what)],
            parties,
            BTreeSet::from([900]),
        )
    }
}

fn stat(tid: u32, comm: &str, flags: u64, last: u32, state: char) -> String {
    format!(
        "{tid} ({comm}) {state} 1 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0 0 0 0 0 0 0 0 0 0 \
         0 0 0 0 17 {last} 0 0\n"
    )
}

fn seconds(n: u64) -> Nanos {
    Nanos::secs(n)
}

#[test]
fn a_quiet_machine_holds() {
    let machine = Machine::new();
    let mut witness = machine.witness(alone("2-3"));
    for now in 0..20 {
        assert_eq!(look(&mut witness, seconds(now)), Verdict::Holds);
    }
}

#[test]
fn a_stranger_is_named_and_its_run_is_seen() {
    let machine = Machine::new();
    let mut witness = machine.witness(alone("2-3"));
    let stranger = Task {
        tid: 21,
        pid: 20,
        comm: "hog",
        last: 3,
        spent: [500, 0],
        ..TASK
    };
    machine.task(&Task {
        tid: 20,
        may: "0-1",
        ..stranger
    });
    machine.task(&stranger);
    let first = said(&look(&mut witness, seconds(0)));
    assert_eq!(first, "thread 21 (hog) of process 20 may run on CPU 2");
    machine.task(&Task {
        spent: [700, 0],
        ..stranger
    });
    let second = said(&look(&mut witness, seconds(1)));
    assert_eq!(second, "thread 21 (hog) of process 20 ran on CPU 3");
    assert!(said(&look(&mut witness, seconds(2))).contains("may run"));
    machine.task(&Task {
        may: "0-1",
        ..stranger
    });
    assert_eq!(look(&mut witness, seconds(3)), Verdict::Holds);
}

#[test]
fn quells_own_processes_and_those_that_end_do_not_count() {
    let machine = Machine::new();
    machine.task(&Task {
        tid: 900,
        pid: 900,
        ..TASK
    });
    machine.put("proc/30/task/30/stat", &stat(30, "z", 0, 2, 'Z'));
    machine.put("proc/31/task/31/stat", &stat(31, "e", 4, 2, 'R'));
    for pid in [30, 31, 32] {
        machine.put(&format!("proc/{pid}/status"), "Cpus_allowed_list:\t0-3\n");
    }
    // It ends while it is looked at: its files are gone.
    fs::create_dir_all(machine.dir.path().join("proc/32/task/32")).unwrap();
    let mut witness = machine.witness(alone("2-3"));
    assert_eq!(look(&mut witness, seconds(0)), Verdict::Holds);
    witness.ignore(BTreeSet::new());
    assert!(said(&look(&mut witness, seconds(1))).contains("process 900"));
}

#[test]
fn a_group_without_a_process_is_no_promise_kept() {
    let machine = Machine::new();
    machine.members("/own", &[]);
    machine.gone("proc/10");
    let mut witness = machine.witness(alone("2-3"));
    let verdict = look(&mut witness, seconds(0));
    assert_eq!(said(&verdict), "group own has no process");
}

#[test]
fn a_matched_process_outside_of_its_cgroup_is_named() {
    let machine = Machine::new();
    let parties = || vec![party("own", "comm=own", &["/sys/fs/cgroup/own"], "2-3")];
    let mut witness = machine.witness_of(alone("2-3"), parties());
    assert_eq!(look(&mut witness, seconds(0)), Verdict::Holds);
    machine.put("proc/uptime", "100.00 50.00\n");
    machine.task(&Task {
        tid: 40,
        pid: 40,
        comm: "own",
        may: "0-1",
        cgroup: "/user.slice",
        ..TASK
    });
    let expected = "process 40 (own) belongs to the group, but is in cgroup /user.slice, not in \
                    /sys/fs/cgroup/own";
    assert_eq!(said(&look(&mut witness, seconds(1))), expected);
    // It is so young that it may be gathered yet.
    machine.put("proc/uptime", "5.50 5.00\n");
    assert_eq!(look(&mut witness, seconds(2)), Verdict::Holds);
    machine.put("proc/uptime", "6.50 5.00\n");
    assert_eq!(said(&look(&mut witness, seconds(3))), expected);
    // A limit says nothing about it, either.
    let share = Share::percent(50);
    let what = What::CpuTime {
        share,
        period: Nanos::millis(100),
        tolerance: Share::percent(5),
    };
    machine.used("/own", 1);
    let mut limit = machine.witness_of(what, parties());
    assert_eq!(said(&look(&mut limit, seconds(0))), expected);
}

#[test]
fn a_process_of_two_parties_is_left_out() {
    let machine = Machine::new();
    machine.task(&Task {
        tid: 40,
        pid: 40,
        comm: "both",
        may: "0-1",
        ..TASK
    });
    let parties = vec![
        party("own", "comm=both", &["/sys/fs/cgroup/own"], "2-3"),
        party("other", "comm=both", &[], "0-1"),
    ];
    let mut witness = machine.witness_of(alone("2-3"), parties);
    assert_eq!(look(&mut witness, seconds(0)), Verdict::Holds);
}

#[test]
fn a_thread_of_the_group_elsewhere_is_named() {
    let machine = Machine::new();
    let mut witness = machine.witness(alone("2-3"));
    machine.own(10, "0-3", 2, [0, 0]);
    let expected = "process 10 (own) of the group may run on CPUs 0-3, where it should have 2-3";
    assert_eq!(said(&look(&mut witness, seconds(0))), expected);
}

#[test]
fn a_quota_above_the_group_is_named() {
    let machine = Machine::new();
    let mut witness = machine.witness(alone("2-3"));
    machine.put("sys/fs/cgroup/own/cpu.max", "250000 100000\n");
    assert_eq!(look(&mut witness, seconds(0)), Verdict::Holds);
    machine.put("sys/fs/cgroup/cpu.max", "20000 100000\n");
    let expected = "/sys/fs/cgroup/cpu.max reads '20000 100000': the group gets at most 20% of a CPU, \
                    where it should get 200% of a CPU";
    assert_eq!(said(&look(&mut witness, seconds(1))), expected);
}

#[test]
fn threads_that_share_an_isolated_cpu_are_seen() {
    let machine = Machine::new();
    machine.members("/own", &[10, 11]);
    let share = |n: u64| {
        machine.own(10, "2-3", 2, [500 * n, 500 * n]);
        machine.own(11, "2-3", 2, [500 * n, 500 * n]);
        let idle = [0, 1_000 * n];
        machine.times(&[idle, idle, [1_000 * n, 0], idle]);
    };
    let mut witness = machine.witness(alone("2-3"));
    let verdicts: Vec<String> = (0..3)
        .map(|n| {
            share(n);
            said(&look(&mut witness, seconds(n)))
        })
        .collect();
    let expected = "2 threads of the group share CPU 2 while its CPU 3 idles";
    assert_eq!(verdicts, ["holds", expected, expected]);
}

#[test]
fn use_by_others_is_seen_at_the_second_look() {
    let machine = Machine::new();
    let mut witness = machine.witness(alone("2-3"));
    // The CPU is busy all the time, the group had 300 ms of each second.
    let verdicts: Vec<String> = (0..5)
        .map(|n| {
            machine.used("/own", 300 * n);
            let idle = [0, 1_000 * n];
            machine.times(&[idle, idle, [1_000 * n, 0], idle]);
            said(&look(&mut witness, seconds(n)))
        })
        .collect();
    let expected = "other programs used 700 ms of CPUs 2-3 in 1000 ms";
    assert_eq!(verdicts, ["holds", "holds", "holds", expected, expected]);
    // A thread of the kernel did it.
    let verdicts: Vec<String> = (5..9)
        .map(|n| {
            machine.used("/own", 300 * n);
            machine.put("proc/2/schedstat", &format!("{} 0 1\n", n * 700_000_000));
            let idle = [0, 1_000 * n];
            machine.times(&[idle, idle, [1_000 * n, 0], idle]);
            said(&look(&mut witness, seconds(n)))
        })
        .collect();
    assert_eq!(verdicts[1..], ["holds", "holds", "holds"]);
}

#[test]
fn what_cannot_be_seen_is_said() {
    let machine = Machine::new();
    machine.times(&[[0, 0], [0, 0], [0, 0]]);
    let mut witness = machine.witness(alone("2-3"));
    let verdict = said(&look(&mut witness, seconds(0)));
    assert_eq!(
        verdict,
        "unseen: CPU 3 has no line in /proc/stat (offline?)"
    );
    machine.times(&[[0, 0]; 4]);
    machine.put("proc/loadavg", "0.00 0.00 0.00 1/3 10\n");
    assert_eq!(look(&mut witness, seconds(1)), Verdict::Holds);
    machine.put("proc/loadavg", "0.00 0.00 0.00 1/80 10\n");
    let verdict = said(&look(&mut witness, seconds(2)));
    let expected = "unseen: /proc shows 3 of 80 threads (hidepid, or another PID namespace)";
    assert_eq!(verdict, expected);
    // A fault that is seen all the same is a fault.
    machine.put("sys/fs/cgroup/own/cpu.max", "20000 100000\n");
    assert!(matches!(look(&mut witness, seconds(3)), Verdict::Broken(_)));
    let of = |what, parties| {
        let mut witness = machine.witness_of(what, parties);
        said(&look(&mut witness, seconds(0)))
    };
    let own = || vec![party("own", "", &["/sys/fs/cgroup/own"], "2-3")];
    let most = Bytes(1 << 20);
    assert!(of(What::Memory { most }, own()).contains("no cgroup of group own counts its memory"));
    assert!(of(What::Invisible("why"), own()).starts_with("unseen: "));
    let nameless = vec![party("own", "", &[], "")];
    assert!(of(alone("2"), nameless).contains("nothing says which tasks"));
    assert!(of(alone("2"), Vec::new()).contains("group own is not known"));
    let wrong = vec![party("own", "user=nosuch", &[], "")];
    assert!(of(alone("2"), wrong).contains("there is no user 'nosuch'"));
    let what = What::Ways {
        level: 3,
        mask: Mask(1),
        shared_with: Vec::new(),
    };
    assert!(of(what, own()).contains("resctrl is not mounted"));
}

#[test]
fn an_empty_folder_blinds_and_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let files = Arc::new(Kernel::at(Path::new(dir.path())));
    let claims = vec![claim("own", alone("2"))];
    let parties = vec![party("own", "comm=x", &["/sys/fs/cgroup/own"], "2")];
    let mut witness = Witness::new(files, claims, parties, BTreeSet::new());
    assert!(said(&look(&mut witness, seconds(0))).contains("/proc cannot be listed"));
}

#[test]
fn a_lifted_limit_of_cpu_time_is_seen() {
    let machine = Machine::new();
    let what = What::CpuTime {
        share: Share::percent(20),
        period: Nanos::millis(100),
        tolerance: Share::percent(5),
    };
    let mut witness = machine.witness(what);
    assert!(said(&look(&mut witness, seconds(0))).contains("counts its CPU time"));
    for n in 1..8 {
        machine.used("/own", 200 * n);
        assert_eq!(look(&mut witness, seconds(n)), Verdict::Holds);
    }
    machine.used("/own", 2_400);
    let expected = "the group used 1000 ms of CPU time in 1000 ms, where it may use 310 ms";
    assert_eq!(said(&look(&mut witness, seconds(8))), expected);
}

#[test]
fn a_group_beyond_its_windows_breaks_those_of_all() {
    let machine = Machine::new();
    machine.task(&Task {
        tid: 20,
        pid: 20,
        comm: "batch",
        may: "2-3",
        cgroup: "/batch",
        ..TASK
    });
    machine.members("/batch", &[20]);
    let parties = vec![
        party("own", "", &["/sys/fs/cgroup/own"], "2-3"),
        party("batch", "", &["/sys/fs/cgroup/batch"], "2-3"),
    ];
    // 4 and 6 of each 10 ms on two CPUs: 800 and 1,200 ms of a second.
    let times = [("own", 4), ("batch", 6)];
    let groups = times.map(|(name, ms)| (name.to_owned(), Nanos::millis(ms)));
    let what = What::Windows {
        cpus: "2-3".parse().unwrap(),
        frame: Nanos::millis(10),
        groups: groups.to_vec(),
    };
    let mut witness = machine.witness_of(what, parties);
    for n in 0..5 {
        machine.used("/own", 800 * n);
        machine.used("/batch", 1_200 * n);
        assert_eq!(look(&mut witness, seconds(n)), Verdict::Holds, "{n}");
    }
    // A window that did not end.
    machine.used("/own", 4_000);
    machine.used("/batch", 6_800);
    let expected =
        "group batch used 2000 ms of CPU time in 1000 ms, where its windows give it 1272 ms";
    assert_eq!(said(&look(&mut witness, seconds(5))), expected);
    // Another program in the windows.
    machine.task(&Task {
        tid: 30,
        pid: 30,
        comm: "hog",
        ..TASK
    });
    let told = said(&look(&mut witness, seconds(6)));
    assert!(told.starts_with("process 30 (hog) "), "{told}");
}

#[test]
fn memory_is_judged_once_a_process_is_known() {
    let machine = Machine::new();
    let status = |locked: u64| {
        let text = format!("Cpus_allowed_list:\t2-3\nVmLck:\t{locked} kB\nVmRSS:\t90000 kB\n");
        machine.put("proc/10/status", &text);
    };
    status(0);
    let mut witness = machine.witness(What::Locked);
    let mut told = |n| said(&look(&mut witness, seconds(n)));
    assert_eq!([0, 1].map(&mut told), ["holds", "holds"]);
    assert!(told(2).contains("process 10 has in memory are locked"));
    status(90_000);
    assert_eq!(told(3), "holds");
}

#[test]
fn what_the_files_of_disks_and_pressure_say_is_read() {
    let machine = Machine::new();
    let mut witness = machine.witness(What::Disks(Disks::Most(vec![("wbps", 1_000)])));
    assert!(said(&look(&mut witness, seconds(0))).contains("has the io controller"));
    machine.put(
        "sys/fs/cgroup/own/io.max",
        "8:0 rbps=max wbps=2000 riops=max wiops=max\n",
    );
    let told = said(&look(&mut witness, seconds(1)));
    assert!(told.ends_with("where wbps=1000 was promised"), "{told}");
    let most = Share::percent(10);
    let mut witness = machine.witness(What::Stall { most });
    assert!(said(&look(&mut witness, seconds(0))).contains("counts how long it waits"));
    for n in 0..=12 {
        let text = format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n",
            500_000 * n
        );
        machine.put("sys/fs/cgroup/own/memory.pressure", &text);
        let told = said(&look(&mut witness, seconds(n)));
        let late = told.contains("waited for memory for");
        // 4.2 of 42 s are allowed.
        assert_eq!(late, n >= 9, "{n}: {told}");
    }
}
