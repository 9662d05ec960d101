use std::fs;
use std::path::Path;

use quell_kernel::root::Kernel;

use super::*;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
const ALONE: u64 = 1 << 56;

/// Process 7 with three mappings, and the frames that its pages have.
fn machine(state: char, entries: &[(u64, u64)]) -> (tempfile::TempDir, Kernel) {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc/7");
    fs::create_dir_all(&proc).unwrap();
    let put = |name: &str, text: &str| fs::write(proc.join(name), text).unwrap();
    put(
        "stat",
        &format!(
            "7 (prog) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0"
        ),
    );
    put("status", "Name:\tprog\nTgid:\t7\nVmPTE:\t      44 kB\n");
    put(
        "maps",
        "1000-5000 r-xp 00000000 08:01 12 /bin/prog\n\
         5000-6000 rw-s 00000000 00:01 9 /dev/shm/x\n\
         8000-c000 rw-p 00000000 00:00 0\n\
         ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
    );
    let last = entries.iter().map(|(page, _)| *page).max().unwrap_or(0);
    let mut all = vec![0u64; usize::try_from(last).unwrap() + 1];
    for (page, entry) in entries {
        all[usize::try_from(*page).unwrap()] = *entry;
    }
    write(&proc.join("pagemap"), &all);
    let kernel = Kernel::at(dir.path());
    (dir, kernel)
}

fn write(path: &Path, entries: &[u64]) {
    let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_ne_bytes()).collect();
    fs::write(path, bytes).unwrap();
}

fn colouring() -> Colouring {
    Colouring::of_pages([1 << 12, 1 << 13], 0)
}

#[test]
fn pages_are_counted_by_kind_and_colour() {
    let (dir, kernel) = machine(
        'S',
        &[
            (1, PRESENT | OF_FILE | 5),
            (2, PRESENT | OF_FILE | 9),
            (3, PRESENT | ALONE | 6),
            (5, PRESENT | OF_FILE | 2),
            (8, PRESENT | ALONE | 4),
            (9, PRESENT | 7),
            (10, SWAPPED | 3),
            (11, PRESENT | ALONE | 11),
        ],
    );
    let found = of(&kernel, 7, &colouring()).unwrap();
    assert!(!found.flags_known);
    assert_eq!(found.colours, 4);
    assert_eq!(found.page_tables, Some(Bytes(44 << 10)));
    let text = &found.kinds[&Kind::Text];
    assert_eq!(
        (text.resident, text.by_colour.as_slice()),
        (2, &[0, 2, 0, 0][..])
    );
    assert_eq!(found.kinds[&Kind::Written].by_colour, [0, 0, 1, 0]);
    assert_eq!(found.kinds[&Kind::Shared].by_colour, [0, 0, 1, 0]);
    let own = &found.kinds[&Kind::Anonymous];
    assert_eq!(own.by_colour, [1, 0, 0, 2]);
    assert_eq!((own.resident, own.shared, own.swapped), (3, 1, 1));
    assert_eq!(found.right(&"0".parse().unwrap()), (1, 3));
    assert_eq!(found.right(&"0,3".parse().unwrap()), (3, 3));
    assert_eq!(found.right(&"9".parse().unwrap()), (0, 3));
    assert_eq!(found.fixed(), Bytes(4 * 4096));
    // Frame 4 is the page of zeroes, frame 11 part of a huge page.
    let mut flags = vec![0; 12];
    (flags[4], flags[11]) = (1 << 24, 1 << 22);
    write(&dir.path().join("proc/kpageflags"), &flags);
    let found = of(&kernel, 7, &colouring()).unwrap();
    assert!(found.flags_known);
    assert_eq!(found.kinds[&Kind::Zeroes].resident, 1);
    let own = &found.kinds[&Kind::Anonymous];
    assert_eq!((own.resident, own.huge), (2, 1));
    // Pages of 16 KiB: the same frame numbers are other addresses.
    let large = Colouring {
        page: Bytes(16 << 10),
        ..Colouring::of_pages([1 << 14], 0)
    };
    let (_dir, kernel) = machine('S', &[(2, PRESENT | ALONE | 3)]);
    let found = of(&kernel, 7, &large).unwrap();
    assert_eq!(found.kinds[&Kind::Anonymous].by_colour, [0, 1]);
}

#[test]
fn processes_without_visible_memory_are_refused() {
    let said = |kernel: &Kernel, pid: u32| of(kernel, pid, &colouring()).unwrap_err().to_string();
    let hidden = [(8, PRESENT | ALONE), (9, PRESENT | ALONE)];
    let (dir, kernel) = machine('S', &hidden);
    let why = said(&kernel, 7);
    assert!(why.contains("frame 0; run as root"), "{why}");
    assert_eq!(said(&kernel, 8), "there is no process 8 (any more)");
    fs::remove_file(dir.path().join("proc/7/pagemap")).unwrap();
    let why = said(&kernel, 7);
    assert!(why.contains("CONFIG_PROC_PAGE_MONITOR"), "{why}");
    let (_dir, kernel) = machine('Z', &hidden);
    let why = said(&kernel, 7);
    assert!(why.contains("zombie"), "{why}");
    let (dir, kernel) = machine('S', &hidden);
    fs::write(dir.path().join("proc/7/status"), "Tgid:\t6\n").unwrap();
    let why = said(&kernel, 7);
    assert_eq!(
        why,
        "7 is a thread of process 6; give 6: a process is taken whole"
    );
}
