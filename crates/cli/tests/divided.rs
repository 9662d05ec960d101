//! Parts of a cache under real kernels, in the lab: `quell plan` and `quell run` in a virtual machine with an emulated processor.
//! Read by the kernel's own files, by Intel's `pqos` and by perf counters, never by Quell. The guest's programs are this one,
//! in a role.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::time::Duration;

#[path = "../../lab-plugin/tests/roles/touch.rs"]
mod touch;

use quell_core::lab::{Accelerator, Guest};
use quell_lab::Error;
use quell_lab::packages::Packages;
use quell_lab::vm::Lab;
use touch::{LINE, Memory, count, counter};

const SCRIPT: &str = r#"
R=/sys/fs/resctrl
role() { export QUELL_LAB_ROLE="$*"; exec "$EXE" guest --exact --ignored --nocapture; }
mask() { sed -n 's/ *L3:0=0*//p' $1/schemata; }
# within SECONDS COMMAND…: true as soon as the command is
within() { n=$(($1 * 10)); shift; until "$@" 2>/dev/null; do n=$((n - 1)); [ $n -gt 0 ] || return 1; usleep 100000; done; }
narrowed() { [ "$(mask $R)" != ffff ] && grep -q COS /proc/$N/cpu_resctrl_groups; }
reads() { [ "$(mask $1)" = $2 ]; }
# Emulated on a busy host a process may be held up for longer than the second that a heartbeat may be late.
thrice() { "$@" || "$@" || "$@"; }
picture() {
    for group in $R $R/*; do
        [ -e $group/tasks ] && for file in schemata mode cpus_list; do echo $group/$file $(cat $group/$file); done
    done
    for pid in $V $N; do echo $(cat /proc/$pid/cpu_resctrl_groups); done
}
before() { picture >/tmp/before; }
gone() { ! pidof quell >/dev/null; }
restored() { picture >/tmp/after; cmp -s /tmp/before /tmp/after; }
said() { sed 's/^/said /' /tmp/log; }
# policy WHO WHAT: the part of the critical group, which is found so
policy() {
    printf 'quell = 1\n[group.victim]\nrole = "critical"\ncpus = "any"\n%s\nreserve.cache = %s\n' "$1" "$2"
    printf '[group.noise]\nrole = "best-effort"\nmatch = [{ pid = %s }]\n' $N
}

sleep 10001 & V=$!
sleep 10002 & N=$!
before

# What a policy may say, and what the plan makes of it.
for part in '"25%"' '{ ways = 3 }' '{ mask = "0xf0" }' '"2MiB"'; do
    policy "match = [{ pid = $V }]" "$part" >/tmp/policy.toml
    echo plan $(quell plan /tmp/policy.toml | grep 'to itself')
done

# What cannot be had here, and what can instead.
policy "match = [{ pid = $V }]" '{ locked = "1MiB" }' >/tmp/policy.toml
echo locked $(quell plan /tmp/policy.toml 2>&1)

# Held: the kernel and pqos say the same. What pqos changes is seen and set again.
policy "match = [{ pid = $V }]" '"25%"' >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 60 narrowed || echo never narrowed
echo held rest $(mask $R) victim $(mask $R/COS1) noise $(mask $R/COS2) mode $(cat $R/COS1/mode)
echo where $(cat /proc/$V/cpu_resctrl_groups) $(cat /proc/$N/cpu_resctrl_groups)
pqos -s >/tmp/pqos 2>&1
echo pqos $(sed -n 's/ *L3CA COS[012] => MASK //p' /tmp/pqos)
echo pids $(grep -E "COS1 => $V\$|COS2 => $N\$" /tmp/pqos)
echo newcomer $(mask $R/COS3)
pqos -e 'llc:0=0x7000' >/dev/null 2>&1
within 30 grep -q "L3:0=7000': set again" /tmp/log
within 5 reads $R fff0; echo repaired $(mask $R)
kill -TERM $run; wait $run; echo status $?
# What pqos has made by the way.
rmdir $R/COS3 $R/COS4 $R/COS5 $R/COS6 $R/COS7
restored && echo restored yes || { echo restored $(diff /tmp/before /tmp/after); }
said

# Killed at journal boundaries.
policy '' '"25%"' >/tmp/policy.toml
for point in 9 21 33; do
    QUELL_FAULT=$point quell run /tmp/policy.toml -- true >/tmp/log 2>&1; status=$?
    within 30 gone
    within 5 restored && echo killed $point $status restored || echo killed $point $status $(diff /tmp/before /tmp/after)
done

# A list that fits beside a stream that does not: misses per access.
kill $N; wait $N 2>/dev/null
echo 0 >/tmp/passes
echo alone $(role list 2097152 4 0)
(role stream 33554432 >/dev/null 2>&1) & N=$!
echo none $(role list 2097152 4 1)
policy '' '"50%"' >/tmp/policy.toml
echo way $(thrice quell run /tmp/policy.toml -- env QUELL_LAB_ROLE='list 2097152 4 1' "$EXE" guest --exact --ignored --nocapture 2>/tmp/log)
said
kill $N; wait $N 2>/dev/null

# Where nobody has mounted it, it is only while the plan holds.
umount $R
sleep 10003 & N=$!
policy '' '"25%"' >/tmp/policy.toml
echo meanwhile $(thrice quell run /tmp/policy.toml -- sh -c 'cat /proc/self/cpu_resctrl_groups; cat /sys/fs/resctrl/schemata' 2>/tmp/log)
said
grep -q resctrl /proc/mounts && echo mounted still || echo mounted no
"#;

/// Boots a kernel; what the guest said.
fn guest_says(kernel: &str) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("SKIPPED the lab: its packages are for x86-64");
        return None;
    }
    let exe = std::env::current_exe().unwrap().display().to_string();
    let lab = Lab {
        guest: Guest {
            kernel: kernel.to_owned(),
            profile: Some("icelake".to_owned()),
            accelerator: Accelerator::Tcg,
            with: vec![
                exe.clone(),
                format!("{}=/bin/quell", env!("CARGO_BIN_EXE_quell")),
            ],
            ..Guest::default()
        },
        timeout: Some(Duration::from_secs(400)),
        console: Some("/dev/null".into()),
        command: ["sh", "-c", &format!("EXE={exe}\n{SCRIPT}")]
            .map(str::to_owned)
            .to_vec(),
        ..Lab::default()
    };
    let packages = Packages::new(|line| eprintln!("{line}")).unwrap();
    match lab.gather(&packages) {
        Ok((_, output, errors)) => {
            println!("{output}{errors}");
            Some(output)
        }
        Err(Error::Unavailable(reason)) => {
            eprintln!("SKIPPED the lab: {reason}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn parts_are_held(kernel: &str) {
    let Some(output) = guest_says(kernel) else {
        return;
    };
    let all = |key: &str| -> Vec<&str> {
        let words = output
            .lines()
            .filter_map(|l| l.strip_prefix(key)?.strip_prefix(' '));
        words.collect()
    };
    let one = |key: &str| all(key).first().copied().unwrap_or_default();
    let plans = all("plan");
    assert_eq!(plans.len(), 4);
    for (plan, mask) in plans.iter().zip(["0xf", "0x7", "0xf0", "0xf"]) {
        let told = format!(
            "enforced victim: {} ways ({mask}) of L3 to itself",
            plan_ways(mask)
        );
        assert!(plan.starts_with(&told), "{plan}");
    }
    let locked = one("locked");
    for words in [
        "Broadwell-X, Goldmont and Goldmont Plus only",
        "and this is family 6, model ",
        "write cache = { ways = 2, level = \"L3\" }",
    ] {
        assert!(locked.contains(words), "{locked}");
    }
    assert_eq!(one("held"), "rest fff0 victim f noise fff0 mode exclusive");
    assert_eq!(one("where"), "res:COS1 mon: res:COS2 mon:");
    assert_eq!(one("pqos"), "0xfff0 0xf 0xfff0");
    assert_eq!(one("pids").matches("COS").count(), 2, "{}", one("pids"));
    // Groups made meanwhile begin without what is somebody's own.
    assert_eq!(one("newcomer"), "fff0");
    assert!(output.contains("schemata was changed by somebody else"));
    assert!(output.contains("L3:0=7000': set again"));
    assert_eq!(one("repaired"), "fff0");
    assert_eq!((one("status"), one("restored")), ("0", "yes"));
    let killed = all("killed");
    assert_eq!(killed.len(), 3);
    for death in killed {
        assert!(death.ends_with(" 137 restored"), "{death}");
    }
    let misses = |key: &str| -> f64 {
        let words = one(key).split_once("misses ").unwrap_or_default().1;
        words.split(' ').next().unwrap().parse().unwrap()
    };
    let [alone, none, way] = ["alone", "none", "way"].map(misses);
    assert!(
        none > alone + 0.5,
        "the stream does not hurt: {alone} alone, {none} beside it"
    );
    assert!(
        (way - alone).abs() < 0.05,
        "{alone} alone, {way} with ways of its own"
    );
    let occupied = one("way").split_once("occupancy ").unwrap().1;
    let occupied: f64 = occupied.split(' ').next().unwrap().parse().unwrap();
    // The list and what else its program touches, within eight ways of 512 KiB.
    let (list, part) = (2_097_152.0, 4_194_304.0);
    assert!(
        (0.95 * list..=1.05 * part).contains(&occupied),
        "{occupied} of a list of {list}"
    );
    let meanwhile = one("meanwhile");
    assert!(
        meanwhile.contains("res:COS1") && meanwhile.contains("L3:0=fff0"),
        "{meanwhile}"
    );
    assert_eq!(one("mounted"), "no");
}

fn plan_ways(mask: &str) -> u32 {
    u64::from_str_radix(&mask[2..], 16).unwrap().count_ones()
}

#[test]
fn parts_are_held_under_6_12() {
    parts_are_held("6.12");
}

#[test]
fn parts_are_held_under_7_2() {
    parts_are_held("7.2");
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let role = std::env::var("QUELL_LAB_ROLE").unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let size: usize = words[1].parse().unwrap();
    match words[0] {
        "list" => list(size, words[2].parse().unwrap(), words[3] == "1"),
        "stream" => stream(size),
        other => panic!("role {other}"),
    }
}

/// Where the stream tells how often it has gone through its memory.
const PASSES: &str = "/tmp/passes";

fn stream(size: usize) {
    let mut memory = Memory::new(size);
    for pass in 1u64.. {
        memory.write();
        fs::write(PASSES, pass.to_string()).unwrap();
    }
}

fn passes() -> u64 {
    loop {
        // Empty between being cut and being written.
        if let Ok(passes) = fs::read_to_string(PASSES).unwrap().trim().parse() {
            return passes;
        }
    }
}

/// Walks through lines in an order of no pattern, once to have them and then so many times: misses of the last level per access
/// of those times, by this thread's counter. Before each, a stream beside it has gone through four times the cache.
fn list(size: usize, times: usize, beside: bool) {
    const CACHE_MISSES: u64 = 3;
    let memory = Memory::new(size);
    let lines = size / LINE;
    let mut counter = counter(CACHE_MISSES, 0);
    let mut misses = 0;
    for time in 0..=times {
        let from = passes();
        while beside && passes() < from + 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let before = count(&mut counter);
        for n in 0..lines {
            // An odd factor visits every line of a power of two.
            memory.load(n.wrapping_mul(0x9e37_79b1) % lines * LINE);
        }
        if time > 0 {
            misses += count(&mut counter) - before;
        }
    }
    let home = fs::read_to_string("/proc/self/cpu_resctrl_groups").unwrap();
    let group = home
        .lines()
        .next()
        .unwrap()
        .trim_start_matches("res:")
        .trim_matches('/');
    let occupancy = format!("/sys/fs/resctrl/{group}/mon_data/mon_L3_00/llc_occupancy");
    println!(
        "misses {} occupancy {}",
        misses as f64 / (times * lines) as f64,
        fs::read_to_string(occupancy).unwrap().trim()
    );
}
