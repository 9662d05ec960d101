//! What the tests of colours share: a declared map, commands that use it, and a reader of page
//! frames that shares no code with the program under test.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use quell_kernel::root::Kernel;
use quell_kernel::{trace, uffd};

use crate::common::{Machine, Running, machine, quell};

pub const PAGE: usize = 4096;
/// Bits 12, 13 and 14: eight colours, by frame number modulo 8.
pub const MAP: &str = "# declared for a test\n12\n13\n14\n";

/// The machine, if pages of programs can be moved on it.
pub fn able() -> Option<Machine> {
    if let Err(why) = uffd::support() {
        quell_testing::skip(why);
        return None;
    }
    if !trace::is_built() || rustix::param::page_size() != PAGE {
        quell_testing::skip("not for this architecture or size of pages");
        return None;
    }
    machine()
}

/// `quell colours settle` of a process.
pub fn settle(machine: &Machine, pid: u32, colours: &str, more: &[&str]) -> Command {
    let map = machine.file("map.txt", MAP);
    let mut command = quell();
    command.args(["colours", "settle", "--colours", colours, "--map", &map]);
    command.args(["--pid", &pid.to_string()]).args(more);
    command
}

/// `quell run` of a policy, with [`MAP`] declared.
pub fn run_of(machine: &Machine, policy: &str) -> Command {
    run_under(machine, &machine.file("map.txt", MAP), policy)
}

/// The same with this map: a file or the name of a published one.
pub fn run_under(machine: &Machine, map: &str, policy: &str) -> Command {
    let state = machine.path("state");
    let mut declared = quell();
    declared.args(["colours", "map", map]);
    let done = Running::start(declared.env("QUELL_STATE_DIR", &state)).wait();
    assert_eq!(done.code, 0, "{done:?}");
    let mut command = quell();
    let policy = machine.file("colours.toml", policy);
    command.args(["run", &policy]).env("QUELL_STATE_DIR", state);
    command
}

/// Pages of private mappings without a file that may be written and not executed, by frame number
/// modulo 8.
pub fn counted(pid: u32) -> [u64; 8] {
    let mut found = [0; 8];
    for frame in own_frames(pid) {
        found[usize::try_from(frame % 8).unwrap()] += 1;
    }
    found
}

/// The frames of these pages. Pages that another process shares after a fork do not count, nor does
/// the page of zeroes.
pub fn own_frames(pid: u32) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut found = Vec::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let own = words
            .get(5)
            .is_none_or(|n| n.starts_with("[anon") || *n == "[heap]" || *n == "[stack]");
        if !own || words[4] != "0" || words[1] != "rw-p" {
            continue;
        }
        let (from, to) = words[0].split_once('-').unwrap();
        let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap() / PAGE as u64;
        let (from, to) = (hex(from), hex(to));
        let mut bytes = vec![0; usize::try_from(to - from).unwrap() * 8];
        // Of a mapping that is gone the kernel shows nothing.
        let read = pagemap.read_at(&mut bytes, from * 8).unwrap_or(0);
        for entry in bytes[..read].chunks_exact(8) {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap());
            // In memory, and mapped by this process alone.
            if entry >> 63 == 1 && entry >> 56 & 1 == 1 {
                found.push(entry & 0x7f_ffff_ffff_ffff);
            }
        }
    }
    found
}

/// The process with this word among its arguments that a process has started.
pub fn child_of(parent: u32, word: &str) -> Option<u32> {
    let kernel = Kernel::new().unwrap();
    let all = quell_kernel::procfs::processes(&kernel).unwrap();
    let mut all = all.iter().filter(|stat| stat.parent == parent);
    let found = all.find(|stat| {
        fs::read_to_string(format!("/proc/{}/cmdline", stat.id.pid))
            .is_ok_and(|line| line.contains(word))
    });
    found.map(|stat| stat.id.pid)
}
