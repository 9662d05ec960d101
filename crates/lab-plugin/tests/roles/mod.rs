//! What the test program does inside the guest: it touches memory in known ways, and reads from the
//! kernel what resulted.

use std::fs;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

mod touch;

use touch::{LINE, Memory, count, counter};

/// Plays a role, given with its arguments as words.
pub fn play(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let size = |n: usize| words[n].parse::<usize>().unwrap();
    match words[0] {
        "walk" => walk(size(1), size(2), &words[3..]),
        "list" => list(size(1), size(2), words[3], words.get(4).copied()),
        "stream" => {
            let mut memory = Memory::new(size(1));
            join(words[2]);
            loop {
                memory.write();
            }
        }
        "rate" => rate(size(1), words[2]),
        "banks" => banks(size(1)),
        "instructions" => instructions(words[1].parse().unwrap()),
        "sample" => sample(words[1].parse().unwrap()),
        other => panic!("role {other}"),
    }
}

fn tell(text: impl std::fmt::Display) {
    println!("ROLE {text}");
}

/// Accesses memory by two rows of 8 KiB at a time, a line of each in turn: rows of one bank, then
/// rows of two. Prints cycles per access. In a large page the last 21 bits of an address are the
/// physical ones.
fn banks(size: usize) {
    const CYCLES: u64 = 0;
    let memory = Memory::new(size);
    let mut counter = counter(CYCLES, 0);
    let mut by_pairs = |apart: usize| {
        let before = count(&mut counter);
        for row in (0..size).step_by(8 << 10).filter(|row| row & apart == 0) {
            for at in (row..row + (8 << 10)).step_by(LINE) {
                memory.load(at);
                memory.load(at | apart);
            }
        }
        (count(&mut counter) - before) as f64 / (size / LINE) as f64
    };
    let [one, two] = [1 << 16, 1 << 13].map(&mut by_pairs);
    tell(format!("{one} {two}"));
}

/// Moves this thread into a resource group.
fn join(group: &str) {
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() };
    let tasks = Path::new(group).join("tasks");
    let mut tasks = fs::OpenOptions::new().write(true).open(tasks).unwrap();
    writeln!(tasks, "{thread}").unwrap();
}

/// An event of a group, in its only domain.
struct Monitor(fs::File);

impl Monitor {
    fn new(group: &str, event: &str) -> Self {
        let path = Path::new(group).join("mon_data/mon_L3_00").join(event);
        Self(fs::File::open(path).unwrap())
    }

    fn read(&mut self) -> u64 {
        let mut text = String::new();
        self.0.rewind().unwrap();
        self.0.read_to_string(&mut text).unwrap();
        text.trim().parse().unwrap_or_else(|_| panic!("'{text}'"))
    }
}

/// Reads memory so many times as a member of the groups. Prints what the last one occupies.
fn walk(size: usize, times: usize, groups: &[&str]) {
    let memory = Memory::new(size);
    // Making the memory has cached its lines, for no group. This evicts them.
    Memory::new(64 << 20);
    let mut occupancy = Monitor::new(groups[groups.len() - 1], "llc_occupancy");
    groups.iter().for_each(|group| join(group));
    (0..times).for_each(|_| memory.read());
    tell(format!("occupancy {size} {}", occupancy.read()));
}

/// Walks through lines without a pattern, once to cache them and then so many times. Prints lines
/// from memory per access of these times. Before each walk, the members of `beside` have fetched
/// twice the cache, however the host divides its time.
fn list(size: usize, times: usize, group: &str, beside: Option<&str>) {
    const TWICE: u64 = 16 << 20;
    let memory = Memory::new(size);
    let lines = size / LINE;
    let mut bytes = Monitor::new(group, "mbm_total_bytes");
    let mut beside = beside.map(|group| Monitor::new(group, "mbm_total_bytes"));
    let (mut came, root) = (0, Path::new(group).parent().unwrap().to_str().unwrap());
    for time in 0..=times {
        // Waiting must not count for the list's group.
        join(root);
        if let Some(beside) = &mut beside {
            let from = beside.read();
            while beside.read() < from + TWICE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let before = bytes.read();
        join(group);
        for n in 0..lines {
            // An odd factor visits every line of a power of two.
            let at = n.wrapping_mul(0x9e37_79b1) % lines * LINE;
            memory.load(at);
        }
        if time > 0 {
            came += (bytes.read() - before) / LINE as u64;
        }
    }
    tell(came as f64 / (times * lines) as f64);
}

/// Prints the bytes per second of a stream, as a member of a group.
fn rate(size: usize, group: &str) {
    let memory = Memory::new(size);
    let mut bytes = Monitor::new(group, "mbm_total_bytes");
    join(group);
    let (before, began) = (bytes.read(), Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        memory.read();
    }
    tell((bytes.read() - before) as f64 / began.elapsed().as_secs_f64());
}

/// Counts the two instructions of a loop.
fn instructions(times: u64) {
    const INSTRUCTIONS: u64 = 1;
    let mut counter = counter(INSTRUCTIONS, 0);
    let before = count(&mut counter);
    // SAFETY: the code uses one register.
    unsafe { std::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) times => _) };
    tell(count(&mut counter) - before);
}

/// Samples last-level misses. Prints how many there were, and how many records the overflows left.
fn sample(period: u64) {
    const CACHE_MISSES: u64 = 3;
    const PAGE: usize = 4096;
    const PAGES: usize = 64;
    const HEAD: usize = 1024;
    const RECORD: u64 = 16;
    let memory = Memory::new(16 << 20);
    let mut counter = counter(CACHE_MISSES, period);
    // SAFETY: the ring of this event: a control page, and a power of two of pages.
    let ring = unsafe {
        use std::os::fd::AsRawFd;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            std::ptr::null_mut(),
            (PAGES + 1) * PAGE,
            access,
            libc::MAP_SHARED,
            counter.as_raw_fd(),
            0,
        )
    };
    assert_ne!(ring, libc::MAP_FAILED);
    let before = count(&mut counter);
    (0..8).for_each(|_| memory.read());
    let misses = count(&mut counter) - before;
    // For late interrupts.
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: `data_head` of the control page.
    let head = unsafe { ring.cast::<u8>().add(HEAD).cast::<u64>().read_volatile() };
    tell(format!("misses {misses}"));
    tell(format!("samples {}", head / RECORD));
}
