//! Windows on several CPUs, and ways that switch with them, under real kernels in the lab. Read by
//! the kernel's own files, and by programs that only read the clock.
//!
//! Skipped aloud where the lab cannot be had, and outside the long run (`QUELL_SOAK`).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quell_policy::lab::{Accelerator, Guest};
use quell_types::units::Nanos;

mod guest;
#[path = "../../linux/tests/common/witness.rs"]
mod witness;

const MS: u64 = 1_000_000;
/// The frame of all policies here. Long, because an emulated CPU may stand still.
const FRAME: u64 = 200 * MS;

/// What is to be as before also has the CPUs of the subjects, and that they run.
const WORDS: &str = r#"
ticks() { cut -d' ' -f14 /proc/$1/stat; }
runs() { from=$(ticks $1); usleep 300000; [ $(ticks $1) -gt $from ]; }
picture() {
    for group in $R $R/*; do
        [ -e $group/tasks ] && for file in schemata mode cpus_list; do echo $group/$file $(cat $group/$file); done
    done
    for pid in $SUBJECTS; do
        echo $pid $(cat /proc/$pid/cpu_resctrl_groups /proc/$pid/cgroup) $(grep Cpus_allowed_list /proc/$pid/status)
        within 20 runs $pid && echo runs || echo stands
    done
}
# policy CONTROL BATCH SCHEDULE: two groups with these keys, and windows of CPUs 1 and 2
policy() {
    printf 'quell = 1\n[group.control]\nrole = "critical"\nallow = ["freeze"]\n%s\n' "$1"
    printf '[group.batch]\nrole = "best-effort"\nallow = ["freeze"]\n%s\n' "$2"
    printf '[windows]\nframe = "200ms"\nguard = "5ms"\ncpus = "1-2"\nschedule = [%s]\n' "$3"
}
"#;

const WAYS: &str = r#"
works() { while :; do usleep 10000; done; }
works & V=$!
works & N=$!
SUBJECTS="$V $N"
before
SCHEDULE='
    { group = "control", start = "0ms", length = "80ms", ways = 4 },
    { group = "batch", start = "80ms", length = "60ms", ways = 6 },
    { group = "batch", start = "140ms", length = "60ms", ways = 2 }'
policy "match = [{ pid = $V }]" "match = [{ pid = $N }]" "$SCHEDULE" >/tmp/policy.toml
echo plan $(quell plan /tmp/policy.toml | grep 'to itself')
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
reads() { [ "$(mask $R/COS2)" = $1 ]; }
within 60 reads 30 || echo never switched
# The same record for all switches.
journal() { find /run/quell -name journal -exec cat {} + | grep -c schemata; }
entries=$(journal)
masks() { echo $(sed -n 's/ *L3:0=0*//p' $R/schemata $R/COS1/schemata $R/COS2/schemata); }
for n in $(seq 40); do masks; usleep 17000; done >/tmp/masks
sort /tmp/masks | uniq -c | while read n masks; do echo seen $masks $n; done
echo journal $entries $(journal)
kill -TERM $run; wait $run; echo status $?
said
tell restored
# Killed at moments that no frame repeats.
for kill in 1 2 3; do
    quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
    within 60 reads 30 || echo never switched
    usleep $((100000 + kill * 37000)); kill -9 $run; wait $run 2>/dev/null
    within 30 gone; tell killed
done
policy '' "match = [{ pid = $N }]" "$SCHEDULE" >/tmp/policy.toml
for point in 21 45; do dies at /tmp/policy.toml $point; done
"#;

const SEVERAL: &str = r#"
for who in 'control 0 120' 'batch 120 200'; do
    set -- $who
    printf '%s\n' "(QUELL_LAB_ROLE='watch 1 $2 $3' $EXE guest --exact --ignored --nocapture) >/tmp/$1.1 &
        QUELL_LAB_ROLE='watch 2 $2 $3' $EXE guest --exact --ignored --nocapture >/tmp/$1.2; wait" >/tmp/$1.sh
done
policy 'command = ["sh", "/tmp/control.sh"]' 'command = ["sh", "/tmp/batch.sh"]' '
    { group = "control", start = "0ms", length = "120ms" },
    { group = "batch", start = "120ms", length = "80ms" }' >/tmp/policy.toml
SUBJECTS=
before
quell run /tmp/policy.toml >/tmp/log 2>&1; echo status $?
said
for who in control.1 control.2 batch.1 batch.2; do echo witness $who $(grep outside /tmp/$who); done
tell restored
"#;

fn booted(kernel: &str, profile: Option<&str>, script: &str) -> Option<guest::Said> {
    if !guest::soak() {
        eprintln!("SKIPPED: the long run's (QUELL_SOAK)");
        return None;
    }
    let accelerator = match profile {
        Some(_) => Accelerator::Tcg,
        // Time counts instructions, so what this machine does meanwhile is not in it.
        None => Accelerator::Counted,
    };
    let machine = Guest {
        accelerator,
        kernel: kernel.to_owned(),
        profile: profile.map(str::to_owned),
        cpus: 3,
        ..Guest::default()
    };
    guest::says_on(
        machine,
        &format!("{WORDS}{script}"),
        Duration::from_secs(500),
    )
}

fn ways_switch(kernel: &str) {
    let Some(said) = booted(kernel, Some("icelake"), WAYS) else {
        return;
    };
    let plan = said.one("plan");
    assert!(
        plan.contains("control: 4 ways (0xf) of L3 to itself"),
        "{plan}"
    );
    assert!(
        plan.contains("batch: 6 ways (0x3f0) of L3 to itself"),
        "{plan}"
    );
    let seen = said.all("seen");
    for masks in ["fc00 f 3f0", "fc00 f 30"] {
        assert!(
            seen.iter().any(|s| s.starts_with(masks)),
            "{masks}: {seen:?}"
        );
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
    let journal: Vec<u32> = said
        .one("journal")
        .split(' ')
        .map(|n| n.parse().unwrap())
        .collect();
    assert!(journal[0] > 0 && journal[0] == journal[1], "{journal:?}");
    // On a busy host the guest may stand still for a second. That costs the promise for a while.
    assert!(["0", "3"].contains(&said.one("status")));
    assert_eq!(said.one("restored"), "restored");
    assert_eq!(said.all("killed"), ["restored"; 3]);
    let at = said.all("at");
    assert_eq!(at.len(), 2);
    for death in at {
        assert!(death.ends_with(" 137 restored"), "{death}");
    }
}

#[test]
fn ways_switch_with_windows_under_6_12() {
    ways_switch("6.12");
}

#[test]
fn ways_switch_with_windows_under_7_2() {
    ways_switch("7.2");
}

#[test]
fn each_group_has_all_windowed_cpus_in_its_windows() {
    let Some(said) = booted("6.12", None, SEVERAL) else {
        return;
    };
    assert_eq!(said.one("restored"), "restored");
    let witnesses = said.all("witness");
    assert_eq!(witnesses.len(), 4);
    for witness in witnesses {
        let [outside, used] = ["outside", "used"].map(|word| guest::figure(witness, word));
        // Two busy CPUs share the instructions, so each runs half of the time.
        assert!(outside < 0.01 && used > 0.4, "{witness}");
    }
}

/// Reads the clock for 8 s, and says which part of its running time was outside its windows, which
/// part of them, without their guards, it used, and how late it first ran in them: median and 99th
/// percentile in microseconds.
fn watch(number: usize, window: [u64; 2]) {
    let path = format!("/tmp/spans.{number}.{}", window[0]);
    witness::watch(Path::new(&path), Nanos::secs(8));
    let spans = witness::read(Path::new(&path));
    let (mut inside, mut all) = (0, 0);
    let mut late: BTreeMap<u64, i64> = BTreeMap::new();
    for (begun, last) in &spans {
        all += last - begun;
        for frame in begun / FRAME..=last / FRAME {
            let [from, to] = window.map(|at| frame * FRAME + at * MS);
            let within = (*last).min(to).saturating_sub((*begun).max(from));
            inside += within;
            if within > 0 {
                let first = begun.saturating_sub(from).cast_signed();
                late.entry(frame).or_insert(first);
            }
        }
    }
    let mut late: Vec<i64> = late.into_values().collect();
    late.sort_unstable();
    let late = [0.5, 0.99].map(|part| witness::quantile(&late, part) / 1_000);
    let frames = (spans.last().unwrap().1 - spans[0].0) as f64 / FRAME as f64;
    let whole = frames * ((window[1] - window[0] - 5) * MS) as f64;
    println!(
        "outside {:.5} used {:.3} late {late:?}",
        (all - inside) as f64 / all as f64,
        inside as f64 / whole
    );
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = guest::role();
    match &*role {
        "watch" => watch(numbers[0], [numbers[1] as u64, numbers[2] as u64]),
        other => panic!("role {other}"),
    }
}
