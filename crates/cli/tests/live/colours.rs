//! `quell colours`: a declared map, and where the pages of a program lie. The colours of a declared
//! map mean nothing for the hardware here. What is checked is that pages are counted right.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::common::{Done, Running, quell, run};

/// Pages that the child allocates.
const PAGES: usize = 3000;
const PAGE: usize = 4096;
/// Bits 12, 13 and 14: eight colours, by frame number modulo 8.
const MAP: &str = "# declared for a test\n12\n13\n14\n";

/// Not a test of its own: a program with a known number of pages of its own, until its input ends.
#[test]
#[ignore = "a program that another test starts"]
fn holds_pages() {
    // SAFETY: a new mapping, which stays until the end.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGES * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the whole mapping, and no other memory.
    unsafe { libc::madvise(memory, PAGES * PAGE, libc::MADV_NOHUGEPAGE) };
    for page in 0..PAGES {
        // SAFETY: within the mapping.
        unsafe { memory.cast::<u8>().add(page * PAGE).write_volatile(1) };
    }
    println!("\nready {}", memory.addr());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// The program above, where its pages begin, and its output, which it may write to until its end.
fn child() -> (Child, usize, BufReader<ChildStdout>) {
    child_of(&std::env::current_exe().unwrap())
}

fn child_of(program: &Path) -> (Child, usize, BufReader<ChildStdout>) {
    let mut child = Command::new(program)
        .args([
            "--exact",
            "colours::holds_pages",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let at = loop {
        let mut line = String::new();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child ended");
        if let Some(at) = line.strip_prefix("ready ") {
            break at.trim().parse().unwrap();
        }
    };
    (child, at, output)
}

/// Entries of `pagemap`, read plainly.
fn entries(pid: u32, from: usize, to: usize) -> Vec<u64> {
    let mut file = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    file.seek(SeekFrom::Start((from / PAGE * 8) as u64))
        .unwrap();
    let mut bytes = vec![0; (to - from) / PAGE * 8];
    let got = file.read(&mut bytes).unwrap_or(0);
    let words = bytes[..got].chunks_exact(8);
    words
        .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
        .collect()
}

/// Pages in memory of private mappings without a file, by frame number modulo 8: this shares no
/// code with the program.
fn counted(pid: u32) -> BTreeMap<u64, u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut found = BTreeMap::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let nameless = words.get(5).is_none_or(|name| name.starts_with("[anon"));
        if !nameless || words[4] != "0" || !words[1].ends_with('p') {
            continue;
        }
        let (from, to) = words[0].split_once('-').unwrap();
        let hex = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
        for entry in entries(pid, hex(from), hex(to)) {
            // Present, and a frame that is not hidden.
            if entry & (1 << 63) != 0 {
                *found.entry((entry & 0x7f_ffff_ffff_ffff) % 8).or_insert(0) += 1;
            }
        }
    }
    found
}

/// Pages of a process in frames of colours 2 and 3: those of no file that it alone maps, others of
/// no file, and those of files. A frame counts once, and the page of zeroes does not.
fn owned(pid: u32) -> [u64; 3] {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut flags = File::open("/proc/kpageflags").unwrap();
    let mut frames = BTreeMap::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kernels = words.get(5).is_some_and(|n| n.starts_with("[v"));
        if kernels {
            continue;
        }
        let (from, to) = words[0].split_once('-').unwrap();
        let hex = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
        for entry in entries(pid, hex(from), hex(to)) {
            let frame = entry & 0x7f_ffff_ffff_ffff;
            if entry >> 63 == 1 && [2, 3].contains(&(frame % 8)) {
                let mut word = [0; 8];
                flags.seek(SeekFrom::Start(frame * 8)).unwrap();
                flags.read_exact(&mut word).unwrap();
                let zeroes = u64::from_le_bytes(word) >> 24 & 1 == 1;
                let kind = match (entry >> 61 & 1, entry >> 56 & 1) {
                    (1, _) => 2,
                    (_, alone) => usize::from(alone == 0),
                };
                frames.insert(frame, (kind, zeroes));
            }
        }
    }
    let mut found = [0; 3];
    let counted = frames.values().filter(|(_, zeroes)| !zeroes);
    counted.for_each(|(kind, _)| found[*kind] += 1);
    found
}

#[test]
fn owners_are_counted_as_another_reader_counts_them() {
    const NAME: &str = "holds-frames";
    if !root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map.txt");
    std::fs::write(&map, MAP).unwrap();
    let program = folder.path().join(NAME);
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    let (mut child, _, _output) = child_of(&program);
    let before = loop {
        let one = owned(child.id());
        std::thread::sleep(Duration::from_millis(200));
        if owned(child.id()) == one {
            break one;
        }
    };
    // A quarter of its pages, or thereabouts.
    assert!(before[0] > PAGES as u64 / 8, "{before:?}");
    let map = map.to_str().unwrap();
    let args = ["colours", "check", "--map", map, "--colours", "2-3"];
    let json = run(&[&args[..], &["--json"]].concat()).json();
    let after = owned(child.id());
    let all = json["owners"]["programs"].as_array().unwrap();
    let own = all.iter().find(|one| one["program"] == NAME).unwrap();
    println!("{own} and {before:?} to {after:?} pages");
    assert_eq!(own["processes"], 1);
    for (at, key) in ["private_bytes", "shared_bytes", "files_bytes"]
        .iter()
        .enumerate()
    {
        let pages = own[key].as_u64().unwrap() / PAGE as u64;
        let seen = before[at].min(after[at])..=before[at].max(after[at]);
        assert!(seen.contains(&pages), "{key}: {own}, {seen:?}");
    }
    let uses = &json["owners"]["uses"];
    assert!(
        uses["all_bytes"].as_u64() > uses["free_bytes"].as_u64(),
        "{uses}"
    );
    let text = run(&args);
    for word in [
        "frames of colours 2-3 of 8 of DRAM banks",
        "private",
        "the kernel",
        "free",
    ] {
        assert!(text.out.contains(word), "{word}: {text:?}");
    }
    run(&["colours", "check", "--map", map]).fails(2, &["required"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        quell_testing::skip("page frames are shown to root only");
    }
    root
}

#[test]
fn every_page_is_counted_as_another_reader_counts_it() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map.txt");
    std::fs::write(&map, MAP).unwrap();
    let map = map.to_str().unwrap();
    if !root() {
        return;
    }
    let (mut child, at, _output) = child();
    let pid = child.id().to_string();
    let own = entries(child.id(), at, at + PAGES * PAGE);
    let own = own.iter().filter(|entry| **entry >> 63 == 1).count();
    assert_eq!(own, PAGES, "the pages of the child are in memory");
    // Until it waits for its input, and touches no more pages.
    let before = loop {
        let one = counted(child.id());
        std::thread::sleep(Duration::from_millis(200));
        if counted(child.id()) == one {
            break one;
        }
    };
    let args = ["colours", "check", &pid, "--map", map, "--colours", "0-3"];
    let json = run(&[&args[..], &["--json"]].concat()).json();
    let after = counted(child.id());
    let process = &json["processes"][0];
    let kinds = &process["kinds"];
    let anonymous: Vec<u64> = kinds["anonymous"]["by-colour"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect();
    assert_eq!(anonymous.len(), 8);
    // The page of zeroes, which is no page of the child's, may be among what the other counts.
    let zeroes = kinds["zeroes"]["resident"].as_u64().unwrap_or(0);
    assert_eq!(before, after, "nothing moved meanwhile");
    let sum = |all: &[u64]| all.iter().sum::<u64>();
    let other: Vec<u64> = (0..8)
        .map(|c| before.get(&c).copied().unwrap_or(0))
        .collect();
    assert!(sum(&anonymous) >= PAGES as u64);
    assert_eq!(sum(&anonymous) + zeroes, sum(&other), "{json}");
    if zeroes == 0 {
        assert_eq!(anonymous, other);
    }
    let right = &process["right"];
    let kinds_of_own = ["anonymous", "heap", "stack"];
    let expected: u64 = kinds_of_own
        .iter()
        .flat_map(|kind| (0..4).map(|c| kinds[*kind]["by-colour"][c].as_u64().unwrap_or(0)))
        .sum();
    assert_eq!(right["pages"].as_u64(), Some(expected), "{json}");
    assert!(kinds["text"]["resident"].as_u64().unwrap() > 0, "{json}");
    assert_eq!(json["map"]["origin"], "declared");
    let text = run(&args);
    assert_eq!(text.code, 0, "{text:?}");
    for said in [
        "8 colours of DRAM banks",
        "private anonymous",
        "cannot be given a colour",
        "page tables",
    ] {
        assert!(text.out.contains(said), "{said}: {}", text.out);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    run(&args).fails(2, &["no such process"]);
}

/// `quell` with this directory for what it keeps.
fn kept(folder: &tempfile::TempDir, args: &[&str]) -> Done {
    let mut command = quell();
    command.env("QUELL_STATE_DIR", folder.path());
    Running::start(command.args(args)).wait()
}

#[test]
fn a_map_is_declared_shown_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.txt");
    std::fs::write(&file, MAP).unwrap();
    let file = file.to_str().unwrap();
    kept(&folder, &["colours", "map"]).fails(2, &["no address map", "quell colours map FILE"]);
    let done = kept(&folder, &["colours", "map", file]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.out.contains("declared in") && done.out.contains("8 colours of pages"),
        "{done:?}"
    );
    let doctor = kept(&folder, &["doctor"]);
    assert!(doctor.out.contains("address map"), "{}", doctor.out);
    let json = kept(&folder, &["doctor", "--json"]).json();
    assert_eq!(json["partitions"]["address-map"]["origin"], "declared");
    // With a map the colours are known. A hoard divides them, or frames cannot be held here.
    let banks = &json["mechanisms"]["banks"];
    match banks["available"].as_str().unwrap() {
        "yes" => assert_eq!(banks["best"], "regulated", "{banks}"),
        _ => assert!(!banks.to_string().contains("no address map"), "{banks}"),
    }
    let done = kept(&folder, &["colours", "map", "raspberry-pi-5"]);
    assert!(
        done.out.contains("the published one of raspberry-pi-5"),
        "{done:?}"
    );
    assert!(done.out.contains("SDRAM_BANKLOW"), "{done:?}");
    // A map of another machine.
    let stored = folder.path().join("address-map.json");
    let text = std::fs::read_to_string(&stored).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["machine"]["model"] = "another".into();
    std::fs::write(&stored, json.to_string()).unwrap();
    let doctor = kept(&folder, &["doctor"]);
    assert!(
        doctor
            .err
            .contains("it was declared on another, and this is"),
        "{}",
        doctor.err
    );
    assert!(!doctor.out.contains("SDRAM_BANKLOW"), "{}", doctor.out);
    let done = kept(&folder, &["colours", "map", "--forget"]);
    assert_eq!((done.code, stored.exists()), (0, false));
    let list = kept(&folder, &["colours", "map", "--list"]);
    assert!(
        list.out.contains("i7-8700") && list.out.contains("drama-pp"),
        "{}",
        list.out
    );
}

#[test]
fn a_simulated_machine_tells_its_map_by_timing() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = |rest: &[&str]| kept(&folder, &[&["doctor", "--address-map"], rest].concat());
    let sim = ["--deep", "--on", "sim:apollolake"];
    let told = doctor(&sim).out;
    for line in ["choose one of 16 banks", "14 17", "colours of 64 KiB pages"] {
        assert!(told.contains(line), "{told}");
    }
    let json = doctor(&[&sim, ["--json"].as_slice()].concat()).json();
    let verdict = &json["measured"]["deep"]["address-map"]["found"]["verdict"];
    assert_eq!(verdict["is"], "map", "{verdict}");
    let functions = serde_json::json!(["0x40", "0x24000", "0x48000", "0x90000"]);
    assert_eq!(verdict["functions"], functions);
    doctor(&[]).fails(2, &["--deep"]);
    doctor(&["--deep", "--on", "coarse"]).fails(2, &["--deep and --capture look at Linux"]);
    // Nothing was timed on this machine.
    kept(&folder, &["colours", "map", "recovered"])
        .fails(2, &["no address map was recovered here"]);
}

#[test]
fn what_cannot_be_counted_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let map = write("map.txt", MAP);
    let own = std::process::id().to_string();
    let check = |rest: &[&str]| kept(&folder, &[&["colours", "check"], rest].concat());
    check(&[&own]).fails(2, &["no address map", "--map FILE"]);
    check(&[]).fails(2, &["PID"]);
    check(&["4194304", "--map", &map]).fails(2, &["4194304: no such process"]);
    check(&[&own, "--map", "/nowhere"]).fails(2, &["/nowhere", "no published map either"]);
    check(&[&own, "--map", &write("bad", "14 18\n14 18\n")]).fails(2, &["'14 18' follows"]);
    check(&[&own, "--map", &write("offset", "6 7\n")]).fails(1, &["leave no colours"]);
    check(&[&own, "--map", &map, "--colours", "8"]).fails(2, &["there are the colours 0-7"]);
    check(&["--match", "comm=no-such-program", "--map", &map]).fails(2, &["no process matches"]);
    // A process that ended and was not waited for.
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id().to_string();
    while crate::common::status_of(ended.id(), "State").is_some_and(|s| !s.contains('Z')) {
        std::thread::sleep(Duration::from_millis(5));
    }
    check(&[&pid, "--map", &map]).fails(1, &["zombie"]);
    ended.wait().unwrap();
    check(&["2", "--map", &map]).fails(1, &["thread of the kernel"]);
}

/// Without CAP_SYS_ADMIN the kernel shows frame 0.
#[test]
fn frames_that_the_kernel_hides_are_named() {
    if !root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map.txt");
    std::fs::write(&map, MAP).unwrap();
    // Where everybody may execute it, wherever it was built.
    let program = folder.path().join("quell");
    std::fs::copy(env!("CARGO_BIN_EXE_quell"), &program).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", "\"$0\" colours check $$ --map \"$1\""])
        .args([&program, &map])
        .uid(65_534)
        .gid(65_534);
    let done = Running::start(&mut command).wait();
    done.fails(1, &["frame 0", "CAP_SYS_ADMIN"]);
}
