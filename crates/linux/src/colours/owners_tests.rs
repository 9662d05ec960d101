use std::fs;
use std::path::Path;

use quell_kernel::root::Kernel;
use quell_record::owners::Rest;

use super::*;

const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
const ALONE: u64 = 1 << 56;
const PAGE: u64 = 4096;

fn write(path: &Path, entries: &[u64]) {
    let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_ne_bytes()).collect();
    fs::write(path, bytes).unwrap();
}

/// A process with these entries of `pagemap`, from page 1 on.
fn process(dir: &Path, pid: u32, comm: &str, flags: u64, entries: &[u64]) {
    let proc = dir.join(format!("proc/{pid}"));
    fs::create_dir_all(&proc).unwrap();
    let put = |name: &str, text: &str| fs::write(proc.join(name), text).unwrap();
    put(
        "stat",
        &format!(
            "{pid} ({comm}) S 1 {pid} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0"
        ),
    );
    put(
        "maps",
        "1000-8000 rw-p 00000000 00:00 0\n8000-9000 r-xp 00000000 00:00 0 [vdso]\n",
    );
    let all: Vec<u64> = [0].iter().chain(entries).copied().collect();
    write(&proc.join("pagemap"), &all);
}

fn asked(colours: &str) -> Asked {
    Asked::new(Colouring::of_pages([1 << 12], 0), colours.parse().unwrap())
}

fn count(dir: &Path, asked: &Asked) -> FrameOwners {
    of(&Kernel::at(dir), asked, &mut || {}).unwrap()
}

/// Frames by their number: odd ones have the colour 1.
#[test]
fn frames_are_counted_by_program_and_how_they_are_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let own = |frame: u64| PRESENT | ALONE | frame;
    let (forked, text) = (PRESENT | 21, PRESENT | OF_FILE | 31);
    // Two processes of a program share frames after a fork, and all map a file.
    process(dir, 10, "db", 0, &[own(3), own(5), own(4), forked, text]);
    process(dir, 11, "db", 0, &[own(7), forked, text, 0]);
    process(
        dir,
        12,
        "cat",
        0,
        &[text, PRESENT | OF_FILE | ALONE | 33, own(8)],
    );
    // Only even frames; a kernel thread; one that holds the colour; one that is in no memory.
    process(dir, 13, "even", 0, &[own(2)]);
    process(dir, 14, "kswapd", 0x0020_0000, &[own(41)]);
    process(dir, 15, "keeper", 0, &[own(43), own(45)]);
    process(dir, 16, "critical", 0, &[own(51), own(53), own(55)]);
    let mut asked = asked("1");
    asked.keeper = Some((15, Bytes(2 * PAGE)));
    asked.groups = [(16, "a".to_owned()), (12, "b".to_owned())].into();
    asked.reserving = ["a".to_owned()].into();
    let found = count(dir, &asked);
    let owner = |program: &str, group: Option<&str>, processes, pages: [u64; 3]| Owner {
        program: program.to_owned(),
        group: group.map(str::to_owned),
        processes,
        mapped: Mapped {
            private_bytes: pages[0] * PAGE,
            shared_bytes: pages[1] * PAGE,
            files_bytes: pages[2] * PAGE,
        },
    };
    let expected = [
        owner("db", None, 2, [3, 1, 1]),
        owner("cat", Some("b"), 1, [0, 0, 2]),
    ];
    assert_eq!(found.programs, expected);
    assert_eq!(
        (found.held_bytes, found.reserving_bytes),
        (2 * PAGE, 3 * PAGE)
    );
    assert_eq!(
        (found.unread, found.uses, found.rest),
        (0, None, None::<Rest>)
    );
}

#[test]
fn what_no_process_maps_is_the_rest_of_the_census() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = PRESENT | OF_FILE | 3;
    process(dir, 10, "a", 0, &[PRESENT | ALONE | 1, text, PRESENT | 9]);
    process(dir, 11, "b", 0, &[text, PRESENT | 9]);
    // Frames 0 to 9, of which 9 is the page of zeroes.
    let zones = "Node 0, zone Normal\n  spanned  10\n  start_pfn:  0\n";
    fs::write(dir.join("proc/zoneinfo"), zones).unwrap();
    let (free, anon, lru, kernel) = (1 << 10, 1 << 12, 1 << 5, 1 << 7);
    let flags = [0, anon, 0, lru, 0, lru, 0, free, 0, kernel | 1 << 24];
    write(&dir.join("proc/kpageflags"), &flags);
    let found = count(dir, &asked("1"));
    let bytes = |owner: &Owner| (owner.mapped.private_bytes, owner.mapped.bytes());
    let all: Vec<_> = found.programs.iter().map(bytes).collect();
    assert_eq!(all, [(PAGE, 2 * PAGE), (0, PAGE)]);
    let uses = Uses {
        all_bytes: 5 * PAGE,
        free_bytes: PAGE,
        cached_bytes: PAGE,
        kernel_bytes: PAGE,
    };
    assert_eq!(found.uses, Some(uses));
}

#[test]
fn processes_that_end_or_may_not_be_read_are_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    process(dir, 10, "a", 0, &[PRESENT | ALONE | 1]);
    process(dir, 11, "closed", 0, &[PRESENT | ALONE | 1]);
    fs::remove_file(dir.join("proc/11/pagemap")).unwrap();
    let found = count(dir, &asked("1"));
    assert_eq!((found.programs.len(), found.unread), (1, 1));
    // Its files are gone between two looks.
    fs::remove_file(dir.join("proc/11/maps")).unwrap();
    assert_eq!(count(dir, &asked("1")).unread, 1);
    let refused = |asked: &Asked| {
        of(&Kernel::at(dir), asked, &mut || {})
            .unwrap_err()
            .to_string()
    };
    assert_eq!(refused(&asked("2")), "there are no such colours");
    process(dir, 10, "a", 0, &[PRESENT | ALONE]);
    let why = refused(&asked("1"));
    assert!(why.contains("frame 0") && why.contains("root"), "{why}");
}
