//! Colours by a hoard under a real kernel, in the lab: a list and an ordinary stream, both started
//! by `quell run`, next to each other on an emulated processor with a cache of its own. Read by the
//! guest's perf counter and by a reader of `pagemap` that shares no code with the program.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::guest::touch::{LINE, Memory, count, counter};
use quell_plan::inventory::Inventory;
use quell_policy::lab::Guest;
use quell_types::address::recovery::{Recovery, Verdict};
use quell_types::partition::Mask;
use quell_types::units::Bytes;
use quell_workload::deep::{self, Clock};

const PAGE: usize = 4096;
/// The address bit by which reserved colours differ from others: the highest of the index of the
/// third level.
const BIT: u64 = 18;

/// Bytes of a list that has half of the reserved colours' half of the cache (8 MiB).
const SMALL: usize = 2 << 20;
/// The same of one that has seven eighths of it. It misses there without a stream, too: so it is
/// compared with that, as well.
const LARGE: usize = 7 << 19;

/// Emulated, stopping a thread alone takes milliseconds.
const SCRIPT: &str = r#"
export QUELL_STATE_DIR=/tmp/state
# Only lists are watched, while they count.
lab-watch off
cat /sys/devices/system/cpu/cpu0/cache/index3/size
printf '12\n13\n14\n15\n16\n17\n18\n' >/tmp/map.txt
quell colours map /tmp/map.txt >/dev/null 2>&1
# policy BANKS MANNER SIZE: a list and, but in manner 3, a stream, started by the run
policy() {
    cat <<END
quell = 1
[group.victim]
role = "critical"
cpus = "any"
command = ["env", "QUELL_LAB_ROLE=list $3 10 $2", "$EXE", "$GUEST", "--exact", "--ignored", "--nocapture"]
$1
[hoard]
reserve = "64MiB"
pace = "50%"
longest-stop = "100ms"
END
    [ $2 = 3 ] || cat <<END
[group.noise]
role = "best-effort"
cpus = "any"
cpu-weight = 100
command = ["env", "QUELL_LAB_ROLE=sweep 25165824", "$EXE", "$GUEST", "--exact", "--ignored", "--nocapture"]
END
}
# counted WORD POLICY…: the misses of a run. Tried again where the watchdog has ended it, as in a guest that stood still.
counted() {
    word=$1; shift
    for try in 1 2 3; do
        rm -rf /tmp/rec
        quell run "$@" >/tmp/out 2>/tmp/log; echo said $word ended with $?
        said
        grep -q ^misses /tmp/out && break
        sed 's/^/said /' /tmp/out
    done
    echo $word $(grep -h ^misses /tmp/out)
}
echo 0 >/tmp/passes
for size in $SIZES; do
    echo alone.$size $(role list $size 10 0)
    policy '' 2 $size >/tmp/none.toml
    counted none.$size /tmp/none.toml
    policy 'reserve.banks = "64-127"' 1 $size >/tmp/step.toml
    counted step.$size /tmp/step.toml --out /tmp/rec
    echo theirs.$size $(grep -h ^reserved /tmp/out)
    policy 'reserve.banks = "64-127"' 3 $size >/tmp/part.toml
    counted part.$size /tmp/part.toml
done
grep -h '"event":"\(coloured\|promise\)' /tmp/rec/*/events.jsonl | tail -5
echo setting $(cat /proc/sys/vm/compact_unevictable_allowed)
echo left $(pidof quell | wc -w)
"#;

/// The frames of the pages of some memory.
fn frames(memory: &Memory, size: usize) -> Vec<u64> {
    let file = File::open("/proc/self/pagemap").unwrap();
    let mut bytes = vec![0; size / PAGE * 8];
    let first = memory.address() / PAGE * 8;
    file.read_exact_at(&mut bytes, first as u64).unwrap();
    let entries = bytes.as_chunks::<8>().0.iter();
    let entries = entries.map(|entry| u64::from_le_bytes(*entry));
    let there = entries.filter(|entry| entry >> 63 == 1);
    there.map(|entry| entry & 0x7f_ffff_ffff_ffff).collect()
}

/// The share of the pages of some memory in frames of the reserved colours.
fn right(memory: &Memory, size: usize) -> f64 {
    let frames = frames(memory, size);
    let right = frames.iter().filter(|frame| *frame >> (BIT - 12) & 1 == 1);
    right.count() as f64 / (size / PAGE) as f64
}

/// Of the colours of some memory, how many have so many pages.
fn colours(memory: &Memory, size: usize) -> BTreeMap<u64, u64> {
    let count = |all: &mut BTreeMap<u64, u64>, key| *all.entry(key).or_default() += 1;
    let mut pages = BTreeMap::new();
    for frame in frames(memory, size) {
        count(&mut pages, frame & ((1 << (BIT - 11)) - 1));
    }
    let mut colours = BTreeMap::new();
    pages.values().for_each(|pages| count(&mut colours, *pages));
    colours
}

/// Has the emulated processor see what programs do, or not.
fn watch(whether: &str) {
    let done = Command::new("/bin/lab-watch").arg(whether).status();
    assert!(done.unwrap().success());
}

/// As `guest::list`. If it is to be `coloured`, it waits until its memory has frames of the
/// reserved colours, for 15 minutes at most, and 5 s more.
fn list(size: usize, times: usize, beside: bool, coloured: bool) {
    const CACHE_MISSES: u64 = 3;
    let memory = Memory::new(size);
    let begun = Instant::now();
    let mut share = right(&memory, size);
    while coloured && share < 0.995 && begun.elapsed() < Duration::from_secs(900) {
        std::thread::sleep(Duration::from_millis(100));
        share = right(&memory, size);
    }
    if coloured {
        // Other memory of this process is still being moved.
        std::thread::sleep(Duration::from_secs(5));
    }
    let lines = size / LINE;
    watch("on");
    let mut counter = counter(CACHE_MISSES, 0);
    let mut passes = Vec::new();
    for time in 0..=times {
        if beside {
            crate::guest::swept();
        }
        let before = count(&mut counter);
        for n in 0..lines {
            // A prime that does not divide the number of lines visits each of them.
            memory.load(n.wrapping_mul(0x9e37_79b1) % lines * LINE);
        }
        if time > 0 {
            passes.push((count(&mut counter) - before) as f64 / lines as f64);
        }
    }
    watch("off");
    // Quell looks every second, on a slow host within a pass or two, and has frames of any colour.
    passes.sort_by(f64::total_cmp);
    println!(
        "\nmisses {} right {share} colours {:?} passes {passes:?} waited {}",
        passes[times / 2],
        colours(&memory, size),
        begun.elapsed().as_secs_f64()
    );
    if beside {
        // The stream ends with it.
        fs::write("/tmp/over", "").unwrap();
    }
}

/// Writes so many bytes again and again, until the list has ended. Says which share of its pages
/// have reserved colours.
fn sweep(size: usize) {
    let mut memory = Memory::new(size);
    let _ = fs::remove_file("/tmp/over");
    let mut passes = 0u64;
    while fs::metadata("/tmp/over").is_err() {
        memory.write();
        passes += 1;
        fs::write("/tmp/passes", passes.to_string()).unwrap();
    }
    println!("\nreserved {}", right(&memory, size));
}

fn colours_hold_off_an_ordinary_stream(kernel: &str, sizes: &[usize]) {
    let machine = Guest {
        kernel: kernel.to_owned(),
        profile: Some("icelake".to_owned()),
        memory: Bytes(512 << 20),
        ..Guest::default()
    };
    let words: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let script = format!("SIZES='{}'\n{SCRIPT}", words.join(" "));
    let Some(said) = crate::guest::says_on(machine, &script, Duration::from_secs(1800)) else {
        return;
    };
    let figure = |key: &str, size: usize, of: &str| {
        let line = said.one(&format!("{key}.{size}")).to_owned();
        crate::guest::figure(&line, of)
    };
    for &size in sizes {
        let [alone, none, step, part] =
            ["alone", "none", "step", "part"].map(|key| figure(key, size, "misses"));
        let theirs = figure("theirs", size, "reserved");
        println!(
            "{kernel}, {size} bytes: misses per access {alone} alone, {none} without, {step} with colours, {part} with colours and no stream; {theirs} of the stream's pages have reserved colours"
        );
        assert!(none > alone + 0.3, "the stream does not hurt: {none}");
        // Seven eighths of a part are nearly all of it, with what else the process has there.
        assert!(step < alone + 0.3, "{alone} alone, {step} with colours");
        assert!(figure("step", size, "right") > 0.99);
        // Half of them without a hoard. What stays free for other programs has any colour.
        assert!(theirs < 0.06, "{theirs} of the stream's pages");
    }
    let [alone, step] = ["alone", "step"].map(|key| figure(key, SMALL, "misses"));
    assert!(
        (step - alone).abs() < 0.05,
        "{alone} alone, {step} with colours"
    );
    assert_eq!((said.one("setting"), said.one("left")), ("1", "0"));
}

/// What the times of lines tell of the address map.
fn recover() {
    let machine: Inventory = serde_json::from_slice(&fs::read("/tmp/machine").unwrap()).unwrap();
    let found = deep::address_map(&machine, Clock::Cycles, &mut |_, _| true).unwrap();
    println!("\nmap {}", serde_json::to_string(&found.found).unwrap());
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// Nothing has to be declared where the emulated processor has banks. Timing alone tells the
    /// same: one bit for the channel, and three functions for the bank.
    #[test]
    #[ignore = "where its files have changed"]
    fn a_guest_with_banks_knows_its_address_map() {
        const BANKS: [u64; 4] = [
            1 << 6,
            1 << 14 | 1 << 17,
            1 << 15 | 1 << 18,
            1 << 16 | 1 << 19,
        ];
        let script = "quell doctor --json >/tmp/machine 2>/dev/null\n\
            quell doctor 2>&1 | sed -n 's/^ *\\(address map\\|sets\\|banks\\) */\\1 /p'\nrole recover\n";
        let Some(said) = crate::guest::says("6.12", "apollolake", script, Duration::from_secs(600))
        else {
            return;
        };
        assert!(
            said.one("address map")
                .starts_with("that of the lab's own processor"),
            "{}",
            said.0
        );
        let map: Recovery = serde_json::from_str(said.one("map")).unwrap();
        let Verdict::Map {
            functions,
            confidence,
        } = map.verdict
        else {
            panic!("{map:?}");
        };
        assert_eq!(functions, BANKS.map(Mask));
        assert!(confidence > 0.95, "{confidence}");
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn colours_hold_off_an_ordinary_stream_under_7_2() {
        colours_hold_off_an_ordinary_stream("7.2", &[SMALL]);
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn colours_hold_off_an_ordinary_stream_under_6_12() {
        colours_hold_off_an_ordinary_stream("6.12", &[SMALL, LARGE]);
    }
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "list" => {
            let manner = numbers[2];
            list(
                numbers[0],
                numbers[1],
                [1, 2].contains(&manner),
                [1, 3].contains(&manner),
            );
        }
        "sweep" => sweep(numbers[0]),
        "recover" => recover(),
        other => panic!("role {other}"),
    }
}
