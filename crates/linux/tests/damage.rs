//! Every parser of what the kernel and the user write, on damaged text. It reads the text or
//! refuses it. It does not panic, take memory without bound, or go on for ever. Real texts are
//! damaged (captured machines, examples, experiments, lines of `/proc`), because random characters
//! do not get past the first key.
//!
//! A few hundred cases each run in `make test`, and minutes of each with `QUELL_SOAK=1`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use quell_kernel::cgroup::{self, Cgroups};
use quell_kernel::memory::Memory;
use quell_kernel::root::{self, Files};
use quell_kernel::{io as io_files, irq, procfs, psi, topology, vm};
use quell_linux::capture::Capture;
use quell_linux::group_cgroups::CgroupDir;
use quell_linux::journal::{self, Header, Journal};
use quell_plan::inventory::Inventory;
use quell_policy::Policy;
use quell_policy::experiment::Experiment;
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;
use quell_types::task::TaskId;

/// Counts the bytes that a thread holds, and the most that it held. The counters are per thread, so
/// that tests next to each other do not count for each other.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged. Counting next to it allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that a text of a few kilobytes may cost.
const MEMORY: isize = 32 << 20;
/// The longest time that a text may take: three orders of magnitude above the usual one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `what` and checks that it stays within the bounds.
fn bounded<T>(what: impl FnOnce() -> T) -> Result<T, TestCaseError> {
    let (held, began) = (HELD.get(), Instant::now());
    MOST.set(held);
    let done = what();
    let most = MOST.get() - held;
    prop_assert!(most <= MEMORY, "took {most} bytes");
    prop_assert!(
        began.elapsed() <= PATIENCE,
        "took {:.1} s",
        began.elapsed().as_secs_f64()
    );
    Ok(done)
}

fn cases(few: u32) -> ProptestConfig {
    let soak = std::env::var_os("QUELL_SOAK").is_some();
    ProptestConfig {
        cases: if soak { few * 200 } else { few },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

// --- Damage

/// Texts that break parsers: numbers at and past their limits, endless lists, separators without
/// anything in between.
const NASTY: &[&str] = &[
    "",
    " ",
    "\n",
    "\n\n",
    "\t",
    "\0",
    ",",
    "-",
    "0-",
    "-0",
    "-1",
    "0,,1",
    "0-4294967295",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e309",
    "1e-400",
    "nan",
    "inf",
    "max",
    "0x",
    "0xffffffffffffffff",
    "ffffffff,ffffffff",
    "é",
    "\u{202e}",
    "%s",
    "../..",
    "/",
    "\"",
    "'",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "{}",
    "{0-4294967295}",
    "=",
    "#",
    "\\",
    "\\u{",
    "(",
    ")",
    ":",
    "::",
    "K",
    "999999999999999999999999GB/s",
    "0.5 LLC",
    "true",
    "1979-05-27T07:32:00Z",
];

#[derive(Clone, Debug)]
enum Damage {
    Cut(Index, usize),
    Put(Index, &'static str),
    Swap(Index, &'static str, usize),
    Twice(Index, usize),
    Long(Index, usize),
    End(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let nasty = || prop::sample::select(NASTY);
    prop_oneof![
        (any::<Index>(), 1usize..20).prop_map(|(i, n)| Damage::Cut(i, n)),
        (any::<Index>(), nasty()).prop_map(|(i, t)| Damage::Put(i, t)),
        (any::<Index>(), nasty(), 1usize..8).prop_map(|(i, t, n)| Damage::Swap(i, t, n)),
        (any::<Index>(), 1usize..80).prop_map(|(i, n)| Damage::Twice(i, n)),
        (any::<Index>(), 1usize..5000).prop_map(|(i, n)| Damage::Long(i, n)),
        any::<Index>().prop_map(Damage::End),
    ]
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    prop::collection::vec(damage(), 1..4)
}

fn damaged(text: &str, damages: &[Damage]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for damage in damages {
        let place = |i: &Index| i.index(chars.len() + 1);
        match damage {
            Damage::Cut(i, n) => {
                let at = place(i);
                chars.drain(at..(at + n).min(chars.len()));
            }
            Damage::Put(i, t) => {
                let at = place(i);
                chars.splice(at..at, t.chars());
            }
            Damage::Swap(i, t, n) => {
                let at = place(i);
                chars.splice(at..(at + n).min(chars.len()), t.chars());
            }
            Damage::Twice(i, n) => {
                let at = place(i);
                let piece = chars[at..(at + n).min(chars.len())].to_vec();
                chars.splice(at..at, piece);
            }
            Damage::Long(i, n) => {
                let at = place(i);
                chars.splice(at..at, std::iter::repeat_n('9', *n));
            }
            Damage::End(i) => {
                let at = place(i);
                chars.truncate(at);
            }
        }
    }
    chars.into_iter().collect()
}

// --- What is damaged

fn texts(dir: &str) -> Vec<(String, String)> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(dir);
    let mut found: Vec<(String, String)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| {
            (
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                std::fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn examples() -> &'static [(String, String)] {
    static ALL: OnceLock<Vec<(String, String)>> = OnceLock::new();
    ALL.get_or_init(|| texts("examples"))
}

fn experiments() -> &'static [(String, String)] {
    static ALL: OnceLock<Vec<(String, String)>> = OnceLock::new();
    ALL.get_or_init(|| texts("experiments"))
}

fn machines() -> &'static [(String, String)] {
    static ALL: OnceLock<Vec<(String, String)>> = OnceLock::new();
    ALL.get_or_init(|| texts("tests/machines"))
}

fn policies() -> &'static [Policy] {
    static ALL: OnceLock<Vec<Policy>> = OnceLock::new();
    ALL.get_or_init(|| {
        examples()
            .iter()
            .map(|(name, text)| {
                Policy::parse(text, name).unwrap_or_else(|p| panic!("{name}: {p:?}"))
            })
            .collect()
    })
}

fn inventories() -> &'static [Inventory] {
    static ALL: OnceLock<Vec<Inventory>> = OnceLock::new();
    ALL.get_or_init(|| {
        machines()
            .iter()
            .map(|(_, text)| Capture::parse(text).unwrap().inventory().unwrap())
            .collect()
    })
}

/// A machine on which some files have another content than they should.
fn machine_with(text: &str, which: &[(Index, Vec<Damage>)]) -> String {
    let mut machine: toml::Table = toml::from_str(text).unwrap();
    let files = machine["files"].as_table_mut().unwrap();
    let names: Vec<String> = files.keys().cloned().collect();
    for (file, damages) in which {
        match &mut files[file.get(&names)] {
            toml::Value::String(text) => *text = damaged(text, damages),
            toml::Value::Table(table) => {
                if let Some(toml::Value::String(text)) = table.get_mut("text") {
                    *text = damaged(text, damages);
                }
            }
            _ => {}
        }
    }
    toml::to_string(&machine).unwrap()
}

/// A machine on which every file has the same text, and every directory the same two names.
struct Everywhere(String);

impl Files for Everywhere {
    fn read(&self, _: &str) -> io::Result<String> {
        Ok(self.0.clone())
    }
    fn write(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(vec!["1".into(), "cpu0".into()])
    }
    fn mkdir(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn rmdir(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn exists(&self, _: &str) -> bool {
        true
    }
    fn mode(&self, _: &str) -> io::Result<u32> {
        Ok(0o644)
    }
    fn link(&self, _: &str) -> io::Result<String> {
        Ok(self.0.clone())
    }
    fn affinity(&self, _: u32) -> io::Result<CpuSet> {
        Ok(CpuSet::default())
    }
    fn scheduler(&self, _: u32) -> io::Result<i32> {
        Ok(0)
    }
    fn set_affinity(&self, _: u32, _: &CpuSet) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn signal(&self, _: TaskId, _: i32) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

fn place(version: cgroup::Version) -> CgroupDir {
    let hierarchy = cgroup::Hierarchy {
        version,
        mount: "/sys/fs/cgroup".into(),
        top: "/".into(),
        controllers: vec!["memory".into()],
        own: "/".into(),
    };
    CgroupDir {
        hierarchy,
        dir: "/sys/fs/cgroup/a".into(),
        ours: true,
        braked: false,
    }
}

/// Lines as kernels write them, one of each file that is read as a whole.
const LINES: &[&str] = &[
    "1234 (a (b) c) S 1 1234 1234 0 -1 4194560 4297 159 30 0 12 5 0 0 20 0 3 0 8243 12345344 880 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "Name:\tsh\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t77\nPid:\t77\nUid:\t1000\t1000\t1000\t1000\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
    "12:cpuset:/a/b\n5:cpu,cpuacct:/\n1:name=systemd:/user.slice\n0::/user.slice/session-1.scope\n",
    "24 30 0:22 / /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset\n31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    "cpuset cpu io memory hugetlb pids\n",
    "0-3,8-11\n",
    "ff,ffffffff\n",
    "nr_periods 10\nnr_throttled 3\nthrottled_usec 1200\n",
    "max 100000\n",
    "populated 1\nfrozen 0\n",
    "domain threaded\n",
    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu vme hypervisor rdt_a cat_l3\n",
    "cpu  10 0 20 30 0 0 0 4 0 0\ncpu0 10 0 20 30 0 0 0 4 0 0\nintr 5 0 5\nctxt 7\nbtime 1\n",
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "MemTotal:       24684084 kB\nMemFree:        23055652 kB\nMemAvailable:   23668632 kB\nSwapTotal:  0 kB\n",
    "Node 0, zone   Normal\n  pages free     1\n        min      21\n        low      26\n        high     31\n",
    "anon 1\nfile 20\nshmem 4\nfile_mapped 5\nactive_file 6\nunevictable 7\nworkingset_refault_file 9\n",
    "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n",
    "8:0 rbytes=10 wbytes=1 rios=1 wios=1 dbytes=5 dios=1\n",
    "8:0 rbps=10 wbps=max riops=max wiops=max\n",
    "event=0x2e,umask=0x41\n",
    "config:0-7,32-35\n",
    "6.12.9-arch1-1\n",
    "32K\n",
    "8ca3b5f2-6bb1-4dd1-8a41-0e2b2a3f4b5c\n",
];

fn entries() -> [Undo; 3] {
    [
        Undo::Write {
            path: "/sys/fs/cgroup/a/cpuset.cpus".into(),
            old: "0-3\n".into(),
            new: "1".into(),
        },
        Undo::Cgroup {
            path: "/sys/fs/cgroup/quell.slice".into(),
            heir: "/sys/fs/cgroup".into(),
        },
        Undo::Affinity {
            task: TaskId { pid: 77, start: 5 },
            old: "0-3".parse().unwrap(),
            new: "1".parse().unwrap(),
        },
    ]
}

/// The text of a journal with that many entries.
fn real_journal(dir: &std::path::Path, lines: usize) -> String {
    let header = Header {
        version: journal::VERSION,
        boot: "b00t".into(),
        run: "r1".into(),
        main: TaskId { pid: 1, start: 2 },
    };
    let mut journal = Journal::create(dir, header).unwrap();
    journal.record_all(&entries()[..lines]).unwrap();
    std::fs::read_to_string(journal.path()).unwrap()
}

// --- The properties

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_policy(which: Index, damages in damages(), machine: Index) {
        let (name, text) = which.get(examples());
        let text = damaged(text, &damages);
        let machine = machine.get(inventories());
        bounded(|| match Policy::parse(&text, name) {
            Ok(policy) => quell_plan::planner::plan(&policy, machine).map(drop).unwrap_or_else(|r| assert!(!r.is_empty())),
            Err(problems) => assert!(!problems.is_empty()),
        })?;
    }

    #[test]
    fn an_experiment(which: Index, damages in damages()) {
        let (name, text) = which.get(experiments());
        let text = damaged(text, &damages);
        bounded(|| match Experiment::parse(&text, name) {
            Ok(experiment) => assert!(!experiment.configurations().is_empty()),
            Err(problems) => assert!(!problems.is_empty()),
        })?;
    }

    /// Files of a machine are wrong. The result can be planned on, or the error names the file.
    #[test]
    fn a_machine(which: Index, lies in prop::collection::vec((any::<Index>(), damages()), 1..4), policy: Index) {
        let text = machine_with(&which.get(machines()).1, &lies);
        let policy = policy.get(policies());
        bounded(|| {
            let Ok(capture) = Capture::parse(&text) else { return };
            if let Ok(machine) = capture.inventory() {
                let _ = quell_plan::planner::plan(policy, &machine);
            }
        })?;
    }

    #[test]
    fn a_capture(which: Index, damages in damages()) {
        let text = damaged(&which.get(machines()).1, &damages);
        bounded(|| if let Ok(capture) = Capture::parse(&text) { let _ = capture.inventory(); })?;
    }

    #[test]
    fn a_kernel_file(which: Index, damages in damages()) {
        let text = damaged(which.get::<&str>(LINES), &damages);
        let files = Everywhere(text.clone());
        bounded(|| {
            let _ = procfs::stat(&files, 1);
            let _ = procfs::processes(&files);
            let _ = procfs::threads(&files, 1);
            let _ = procfs::process_of(&files, 1);
            let _ = procfs::effective_user(&files, 1);
            let _ = procfs::arguments(&files, 1);
            let _ = procfs::executable(&files, 1);
            let _ = procfs::memberships(&files, "1");
            let _ = procfs::boot_id(&files);
            let _ = procfs::ancestry(&files, 1);
            let _ = cgroup::populated(&files, "/sys/fs/cgroup/x");
            if let Ok(all) = Cgroups::discover(&files) {
                let _ = all.own_cpus(&files);
            }
            let _ = topology::read(&files, None);
            let _ = topology::online(&files);
            let _ = topology::counter_users(&files);
            let _ = psi::read(&files, "/proc/pressure/memory");
            let _ = psi::some_total("/x", &text);
            let _ = vm::meminfo(&text);
            let _ = vm::huge_pages(&files, 1 << 21);
            let _ = procfs::cpu_times(&files, 100);
            let _ = irq::served(&files, 0);
            let _ = vm::watermarks(&files);
            let _ = io_files::moved("/x", &text);
            for version in [cgroup::Version::V1, cgroup::Version::V2] {
                let place = place(version);
                let memory = Memory::of(&place.hierarchy, &place.dir);
                let _ = memory.parse_stat(&text);
            }
            let _ = root::parse_mask(&text);
            let _ = text.parse::<CpuSet>();
        })?;
    }

    #[test]
    fn a_saved_inventory(which: Index, damages in damages(), policy: Index) {
        let text = damaged(&serde_json::to_string(which.get(inventories())).unwrap(), &damages);
        let policy = policy.get(policies());
        bounded(|| if let Ok(machine) = serde_json::from_str::<Inventory>(&text) {
            let _ = quell_plan::planner::plan(policy, &machine);
        })?;
    }

    #[test]
    fn a_journal(damages in damages(), lines in 1usize..4) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, damaged(&real_journal(folder.path(), lines), &damages)).unwrap();
        let found = bounded(|| journal::read(&path))?.unwrap();
        // An entry is as it was written, or it is damaged: none is made up.
        prop_assert!(found.entries.iter().all(|e| entries().contains(e)), "{found:?}");
    }
}
