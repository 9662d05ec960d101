//! Hoards of page frames on the kernel that the tests run on: a declared map, whose colours mean
//! nothing for the hardware, and at most 256 MiB. The witness is a reader of `pagemap` that shares
//! no code with the keeper.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::coloured::child_of;
use crate::common::{Running, eventually, in_status, quell, run};
use quell_kernel::root::Kernel;
use quell_kernel::{affinity, rt, vm};
use quell_linux::colours::hoard::{Command, Hoard, Report, Rules, What};
use quell_linux::resident::{KeeperCommand, may_lock};
use quell_types::partition::Colouring;
use quell_types::units::Bytes;
use rustix::process::Signal;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Bits 14, 15 and 16: eight colours, each of runs of four pages.
const MAP: &str = "14\n15\n16\n";
const COMPACTION: &str = "/proc/sys/vm/compact_unevictable_allowed";

/// The colour of a frame by this map: this shares no code with the program.
fn colour(frame: u64) -> u64 {
    frame >> 2 & 7
}

fn keeper() -> KeeperCommand {
    KeeperCommand {
        program: env!("CARGO_BIN_EXE_quell").into(),
        arguments: vec!["__hoard".into()],
    }
}

/// A hoard of colours 4 to 7.
fn rules(limit: u64, reserve: u64) -> Rules {
    Rules {
        colouring: Colouring::of_pages([1 << 14, 1 << 15, 1 << 16], 0),
        colours: "4-7".parse().unwrap(),
        limit: Bytes(limit),
        reserve: Bytes(reserve),
    }
}

fn memory() -> vm::Meminfo {
    vm::memory(&Kernel::new().unwrap()).unwrap().unwrap()
}

/// Whether the test may run; said aloud if not.
fn possible() -> bool {
    // Pages of files that were read are not free.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
    let why = if !rustix::process::geteuid().is_root() {
        "page frames are shown to root only".to_owned()
    } else if let Err(why) = may_lock() {
        why
    } else if PAGE != rustix::param::page_size() as u64 {
        "the map is one for pages of 4 KiB".to_owned()
    } else if memory().free < Bytes(2048 * MIB) {
        "less than 2 GiB of memory are free".to_owned()
    } else {
        return true;
    };
    quell_testing::skip(why);
    false
}

fn start(rules: &Rules, cgroups: &[String]) -> Hoard {
    Hoard::start(&keeper(), rules, cgroups, &mut || {}).unwrap()
}

/// What it reports until one is of this kind, that one last.
fn until(hoard: &mut Hoard, such: impl Fn(&What) -> bool) -> Vec<Report> {
    let begun = Instant::now();
    let mut all = Vec::new();
    while begun.elapsed() < Duration::from_secs(60) {
        for report in hoard.reports().unwrap() {
            let last = such(&report.what);
            all.push(report);
            if last {
                return all;
            }
        }
        assert_eq!(hoard.ended(), None, "{all:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    panic!("no such report within a minute: {all:?}");
}

fn sieved(hoard: &mut Hoard) -> Vec<Report> {
    until(hoard, |what| matches!(what, What::Sieved { .. }))
}

/// The frames of a process's largest mapping that are in memory, with their addresses.
fn frames(pid: u32) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ranges = maps.lines().map(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
        hex(from)..hex(to)
    });
    let largest = ranges.max_by_key(|range| range.end - range.start).unwrap();
    let file = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut bytes = vec![0; usize::try_from((largest.end - largest.start) / PAGE * 8).unwrap()];
    file.read_exact_at(&mut bytes, largest.start / PAGE * 8)
        .unwrap();
    let entries = bytes.chunks_exact(8).zip((largest.start..).step_by(4096));
    let there = entries.filter_map(|(entry, at)| {
        let entry = u64::from_le_bytes(entry.try_into().unwrap());
        (entry >> 63 == 1).then_some((at, entry & 0x7f_ffff_ffff_ffff))
    });
    there.collect()
}

/// Touches so many pages, and tells their frames.
fn fresh(pages: u64) -> Vec<u64> {
    let length = usize::try_from(pages * PAGE).unwrap();
    // SAFETY: a new mapping, which is unmapped below.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the whole mapping, and no other memory.
    unsafe { libc::madvise(at, length, libc::MADV_NOHUGEPAGE) };
    for offset in (0..length).step_by(4096) {
        // SAFETY: within the mapping.
        unsafe { at.cast::<u8>().add(offset).write_volatile(1) };
    }
    let file = File::open("/proc/self/pagemap").unwrap();
    let mut bytes = vec![0; length / 4096 * 8];
    file.read_exact_at(&mut bytes, at.addr() as u64 / PAGE * 8)
        .unwrap();
    // SAFETY: the mapping from above, of which nothing is used any more.
    unsafe { libc::munmap(at, length) };
    let entries = bytes.chunks_exact(8);
    let entries = entries.map(|entry| u64::from_le_bytes(entry.try_into().unwrap()));
    entries.map(|entry| entry & 0x7f_ffff_ffff_ffff).collect()
}

#[test]
fn a_hoard_holds_frames_of_its_colours_alone() {
    if !possible() {
        return;
    }
    let mut hoard = start(&rules(256 * MIB, 1024 * MIB), &[]);
    let reports = sieved(&mut hoard);
    for report in &reports {
        println!("{}", report.words());
    }
    let kept = hoard.kept();
    assert!(kept >= Bytes(240 * MIB), "{kept}");
    let held = frames(hoard.pid());
    assert_eq!(held.len() as u64 * PAGE, kept.0);
    let mut by_colour = [0u64; 8];
    held.iter()
        .for_each(|(_, frame)| by_colour[colour(*frame) as usize] += 1);
    println!("pages by colour: {by_colour:?}");
    assert_eq!(by_colour[..4], [0; 4]);
    assert!(by_colour[4..].iter().all(|n| *n > 0));
    // Locked, and never more than it takes to find so many: half of all frames have its colours.
    assert_eq!(in_status(hoard.pid(), "VmLck"), 512 * MIB);
    let most = in_status(hoard.pid(), "VmHWM");
    assert!(most <= (512 + 24) * MIB, "{} MiB", most / MIB);
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", hoard.pid()));
    assert_eq!(score.unwrap().trim(), "1000");
    // No page is empty, and no two are equal: none can be merged.
    let content = File::open(format!("/proc/{}/mem", hoard.pid())).unwrap();
    let mut words: Vec<u64> = Vec::new();
    for (at, _) in &held {
        let mut word = [0; 8];
        content.read_exact_at(&mut word, *at).unwrap();
        words.push(u64::from_le_bytes(word));
    }
    assert!(!words.contains(&0));
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), held.len());
    // Another round gains little: the same frames are free as before.
    hoard.ask(&Command::Sieve).unwrap();
    let again = sieved(&mut hoard);
    println!("again: {}", again.last().unwrap().words());
    assert!(hoard.kept() >= kept && hoard.kept() <= Bytes(256 * MIB));
    let wrong = frames(hoard.pid());
    assert!(wrong.iter().all(|(_, frame)| colour(*frame) >= 4));
}

#[test]
fn frames_are_released_on_request_on_one_cpu() {
    const PAGES: u64 = 256;
    if !possible() {
        return;
    }
    let mut hoard = start(&rules(128 * MIB, 1024 * MIB), &[]);
    sieved(&mut hoard);
    let cpu = affinity::of(0).unwrap().first().unwrap();
    rt::pin(cpu).unwrap();
    let before = hoard.kept();
    let right = |frames: &[u64]| frames.iter().filter(|f| colour(**f) >= 4).count() as u64;
    let others = right(&fresh(PAGES));
    // Half of all frames have one. Other programs on this CPU may take some of those released.
    let (mut most, mut tries) = (0, 0);
    while most < PAGES / 4 * 3 {
        assert!(tries < 20, "{most}");
        tries += 1;
        let pages = PAGES;
        hoard
            .ask(&Command::Release {
                pages,
                cpu: Some(cpu),
                colours: None,
            })
            .unwrap();
        let said = until(&mut hoard, |what| matches!(what, What::Released { .. }));
        assert_eq!(said.last().unwrap().what, What::Released { pages });
        most = most.max(right(&fresh(PAGES)));
    }
    println!("of {PAGES} new pages {others} had a reserved colour, and {most} after a release");
    assert_eq!(hoard.kept().0, before.0 - tries * PAGES * PAGE);
    assert_eq!(frames(hoard.pid()).len() as u64 * PAGE, hoard.kept().0);
    // More than there is.
    let pages = u64::MAX;
    hoard
        .ask(&Command::Release {
            pages,
            cpu: None,
            colours: None,
        })
        .unwrap();
    until(&mut hoard, |what| matches!(what, What::Released { .. }));
    assert_eq!(hoard.kept(), Bytes(0));
    assert_eq!(frames(hoard.pid()), []);
}

#[test]
fn a_hoard_gives_way_to_a_program_that_needs_memory() {
    if !possible() {
        return;
    }
    // The keeper reads how much is available from a file of the test, mounted where only it sees
    // it: a test does not use up the machine's memory.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("meminfo").display().to_string();
    let available = |mib: u64| {
        let kib = mib << 10;
        let text =
            format!("MemTotal: 8388608 kB\nMemFree: 4194304 kB\nMemAvailable: {kib:>8} kB\n");
        // Of the same length each time: no reader finds it empty.
        let mut options = File::options();
        let file = options.create(true).write(true).truncate(false).open(&file);
        file.unwrap().write_all_at(text.as_bytes(), 0).unwrap();
    };
    available(4096);
    let mount = "mount --bind \"$0\" /proc/meminfo && exec \"$1\" __hoard \"$2\"";
    let own = env!("CARGO_BIN_EXE_quell");
    let command = KeeperCommand {
        program: "unshare".into(),
        arguments: ["-m", "sh", "-c", mount, &file, own]
            .map(str::to_owned)
            .to_vec(),
    };
    let mut hoard = Hoard::start(&command, &rules(64 * MIB, 1024 * MIB), &[], &mut || {}).unwrap();
    sieved(&mut hoard);
    let before = hoard.kept();
    assert!(before >= Bytes(16 * MIB), "{before}");
    // 4 MiB are missing: these and an eighth of the reserve are more than it has.
    available(1020);
    let said = until(&mut hoard, |what| matches!(what, What::GaveUp { .. }));
    let last = said.last().unwrap();
    println!("{}", last.words());
    assert!(last.is_loss() && last.kept == Bytes(0), "{last:?}");
    let gave =
        matches!(last.what, What::GaveUp { available, .. } if available == Bytes(1020 * MIB));
    assert!(gave, "{last:?}");
    assert_eq!(frames(hoard.pid()), []);
    // Once there is enough again, it takes frames when it is asked to.
    available(4096);
    hoard.ask(&Command::Sieve).unwrap();
    sieved(&mut hoard);
    assert!(hoard.kept() >= Bytes(16 * MIB), "{}", hoard.kept());
}

#[test]
fn a_keeper_ends_with_its_input_also_while_it_sieves() {
    if !possible() {
        return;
    }
    let rules = serde_json::to_string(&rules(256 * MIB, 1024 * MIB)).unwrap();
    for pause in [0, 20, 60, 400] {
        let mut child = quell()
            .args(["__hoard", &rules])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        drop(child.stdin.take());
        let begun = Instant::now();
        let status = child.wait().unwrap();
        assert!(status.success(), "{status} after {pause} ms");
        assert!(begun.elapsed() < Duration::from_secs(2), "after {pause} ms");
    }
}

#[test]
fn what_there_cannot_be_is_refused_with_the_numbers() {
    if !possible() {
        return;
    }
    let refused = |rules: &Rules, cgroups: &[String], says: &[&str]| {
        let why = Hoard::start(&keeper(), rules, cgroups, &mut || {});
        let why = why.unwrap_err().to_string();
        for word in says {
            assert!(why.contains(word), "{word}: {why}");
        }
    };
    let total = memory().total.0;
    refused(
        &rules(64 * MIB, total),
        &[],
        &["are free", "stay for other programs"],
    );
    refused(
        &rules(64 * MIB, PAGE),
        &[],
        &["4KiB is less than twice what the kernel keeps free"],
    );
    let mut wrong = rules(64 * MIB, 1024 * MIB);
    wrong.colours = "8".parse().unwrap();
    refused(&wrong, &[], &["colours 0-7"]);
    let mut large = rules(64 * MIB, 1024 * MIB);
    large.colouring.page = Bytes(16 << 10);
    refused(&large, &[], &["16KiB", "4KiB"]);
}

/// A cgroup with a limit of memory, removed in the end.
struct Limited(PathBuf, &'static str);

impl Limited {
    fn new(limit: u64) -> Option<Self> {
        let (top, name) = match std::path::Path::new("/sys/fs/cgroup/memory").is_dir() {
            true => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            false => ("/sys/fs/cgroup", "memory.max"),
        };
        let dir = PathBuf::from(format!("{top}/hoard-test-{}-{limit}", std::process::id()));
        std::fs::create_dir(&dir).ok()?;
        let made = Self(dir, name);
        std::fs::write(made.0.join(name), limit.to_string()).ok()?;
        Some(made)
    }

    fn door(&self) -> Vec<String> {
        vec![self.0.join("cgroup.procs").display().to_string()]
    }

    fn used(&self) -> u64 {
        let name = match self.1 {
            "memory.max" => "memory.current",
            _ => "memory.max_usage_in_bytes",
        };
        let text = std::fs::read_to_string(self.0.join(name)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_hoard_stays_below_the_limit_of_its_cgroup() {
    if !possible() {
        return;
    }
    let (Some(small), Some(large)) = (Limited::new(384 * MIB), Limited::new(560 * MIB)) else {
        return quell_testing::skip("no cgroup with a limit of memory can be made");
    };
    // While it sorts, it holds twice as much: half of all frames have its colours.
    let rules = rules(256 * MIB, 1024 * MIB);
    let refused = Hoard::start(&keeper(), &rules, &small.door(), &mut || {});
    let why = refused.unwrap_err().to_string();
    assert!(
        why.contains("hoard-test") && why.contains("256MiB"),
        "{why}"
    );
    let mut hoard = start(&rules, &large.door());
    sieved(&mut hoard);
    assert!(
        large.used() > 200 * MIB,
        "{} MiB are charged",
        large.used() / MIB
    );
    assert!(
        large.used() <= 560 * MIB,
        "{} MiB are charged",
        large.used() / MIB
    );
    println!("{} MiB are charged", large.used() / MIB);
    let kept = hoard.kept();
    assert!(
        kept >= Bytes(240 * MIB) && kept <= rules.limit,
        "{kept} are kept"
    );
    assert_eq!(frames(hoard.pid()).len() as u64 * PAGE, hoard.kept().0);
}

#[test]
fn the_command_holds_frames_and_reverts_what_it_set() {
    let Some(mut machine) = crate::common::machine() else {
        return;
    };
    if !possible() {
        return;
    }
    let setting = || std::fs::read_to_string(COMPACTION).unwrap_or_default();
    let map = machine.file("map.txt", MAP);
    let common = ["--map", &map, "--limit", "16MiB", "--reserve", "1GiB"];
    run(&["colours", "hoard", "0-7", "--map", &map]).fails(2, &["all 8 colours"]);
    run(&["colours", "hoard", "9", "--map", &map]).fails(2, &["colours 0-7"]);
    machine.remember();
    let before = setting();
    let done = Running::start(
        quell()
            .args(["colours", "hoard", "4-7", "--for", "10s"])
            .args(common),
    );
    eventually("the setting is made", || {
        before.is_empty() || setting().trim() == "0"
    });
    let done = done.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.err.contains("of reserved colours are held after"),
        "{done:?}"
    );
    assert!(done.out.starts_with("held "), "{done:?}");
    assert_eq!(setting(), before);
    machine.unchanged("after its time");
    // Killed, also while it sieves: the watchdog reverts, and the keeper ends.
    for pause in [150, 300, 700, 1500] {
        let run = Running::start(quell().args(["colours", "hoard", "4-7"]).args(common));
        std::thread::sleep(Duration::from_millis(pause));
        let keeper = child_of(run.pid(), "__hoard");
        run.signal(Signal::KILL);
        machine.undone_or_restored();
        assert_eq!(setting(), before, "after {pause} ms");
        if let Some(keeper) = keeper {
            eventually("the keeper is gone", || {
                !std::path::Path::new(&format!("/proc/{keeper}/pagemap")).exists()
                    || in_status(keeper, "VmRSS") == 0
            });
        }
        drop(run);
    }
    machine.unchanged("after the kills");
}
