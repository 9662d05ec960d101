//! Windows on several CPUs, and ways and budgets that switch with them, under real kernels in the
//! lab. Read by the kernel's own files and counters, and by programs that only read the clock.
//!
//! Skipped aloud where the lab cannot be had.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quell_kernel::rt;
use quell_plan::{Plan, Setting};
use quell_policy::lab::{Accelerator, Guest};
use quell_types::units::Nanos;

const MS: u64 = 1_000_000;
/// How long a program in a window runs.
const LENGTH: Duration = Duration::from_secs(8);
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
    printf 'quell = 1\n[group.control]\nrole = "critical"\nallow = ["freeze", "throttle"]\n%s\n' "$1"
    printf '[group.batch]\nrole = "best-effort"\nallow = ["freeze", "throttle"]\n%s\n' "$2"
    printf '[windows]\nframe = "%s"\nguard = "5ms"\ncpus = "1-2"\nschedule = [%s]\n' ${FRAME:-200ms} "$3"
}
"#;

const WAYS: &str = r#"
lab-watch off
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
for kill in $(seq $KILLS); do
    quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
    within 60 reads 30 || echo never switched
    usleep $((100000 + kill * 37000 % 400000)); kill -9 $run; wait $run 2>/dev/null
    within 30 gone; tell killed
done
policy '' "match = [{ pid = $N }]" "$SCHEDULE" >/tmp/policy.toml
for point in 21 45; do dies at /tmp/policy.toml $point; done
"#;

const SEVERAL: &str = r#"
for who in 'control 0 120' 'batch 120 200'; do
    set -- $who
    printf '%s\n' "(QUELL_LAB_ROLE='watch 1 $2 $3' $EXE $GUEST --exact --ignored --nocapture) >/tmp/$1.1 &
        QUELL_LAB_ROLE='watch 2 $2 $3' $EXE $GUEST --exact --ignored --nocapture >/tmp/$1.2; wait" >/tmp/$1.sh
done
policy 'command = ["sh", "/tmp/control.sh"]' 'command = ["sh", "/tmp/batch.sh"]' '
    { group = "control", start = "0ms", length = "120ms" },
    { group = "batch", start = "120ms", length = "80ms" }' >/tmp/policy.toml
SUBJECTS=
before
echo preemption $(dmesg | grep -o 'Dynamic Preempt: .*')
quell run /tmp/policy.toml >/tmp/log 2>&1; echo status $?
said
for who in control.1 control.2 batch.1 batch.2; do echo witness $who $(grep outside /tmp/$who); done
tell restored
"#;

/// What a group may do in its windows: a fork bomb within a limit of processes, an end, and system
/// calls that last longer than a frame.
const HAZARDS: &str = r#"
role() { printf '%s\n' "QUELL_LAB_ROLE='$1' exec $EXE $GUEST --exact --ignored --nocapture >/tmp/$2" >/tmp/$2.sh; }
SUBJECTS=
before
role 'watch 1 0 120' control
for hazard in bomb ends calls; do
    case $hazard in
    ends) echo 'sleep 1' >/tmp/ends.sh;;
    *) role $hazard $hazard;;
    esac
    policy 'command = ["sh", "/tmp/control.sh"]' "command = [\"sh\", \"/tmp/$hazard.sh\"]" '
        { group = "control", start = "0ms", length = "120ms" },
        { group = "batch", start = "120ms", length = "80ms" }' >/tmp/policy.toml
    quell run /tmp/policy.toml >/tmp/log 2>&1; echo $hazard status $?
    said
    echo $hazard $(grep outside /tmp/control)
    grep -h made /tmp/$hazard
    tell $hazard
done
"#;

/// Two writers in each group. The plan has the budgets; `drawn` reads what the writers moved.
const BUDGETS: &str = r#"
export QUELL_STATE_DIR=/tmp/state
WRITERS=
for n in 1 2 3 4; do (role sweep 16777216 >/dev/null 2>&1) & WRITERS="$WRITERS $!"; done
set -- $WRITERS
FRAME=1s
policy "match = [{ pid = $1 }, { pid = $2 }]" "match = [{ pid = $3 }, { pid = $4 }]" '
    { group = "control", start = "0ms", length = "250ms", bandwidth = "20%" },
    { group = "batch", start = "250ms", length = "250ms", bandwidth = "10%" },
    { group = "control", start = "500ms", length = "250ms", bandwidth = "5%" },
    { group = "batch", start = "750ms", length = "250ms" }' >/tmp/policy.toml
printf '[regulator]\nmeter = "hardware"\nperiod = "50ms"\n' >>/tmp/policy.toml
SUBJECTS=
before
usleep 300000; kill -STOP $WRITERS
# Measures the rates, for this plan and for the run.
thrice quell plan /tmp/policy.toml --json >/tmp/plan.json 2>/tmp/log || said
echo plan $(cat /tmp/plan.json)
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 60 grep -q holding: /tmp/log || echo never held
kill -CONT $WRITERS
(role drawn $1 $3 16) 2>&1
kill -TERM $run; wait $run; echo status $?
said
tell restored
lab-watch off
for kill in $(seq $KILLS); do
    quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
    within 60 grep -q holding: /tmp/log || echo never held
    usleep $((kill * 137000 % 1000000)); kill -9 $run; wait $run 2>/dev/null
    within 30 gone; tell killed
done
kill $WRITERS
"#;

/// How often a run is killed.
fn kills() -> usize {
    if quell_testing::soak() {
        quell_testing::kills()
    } else {
        1
    }
}

fn booted(kernel: &str, profile: Option<&str>, script: &str) -> Option<crate::guest::Said> {
    booted_with(kernel, profile, &[], script)
}

/// The same with more words on the kernel's command line.
fn booted_with(
    kernel: &str,
    profile: Option<&str>,
    append: &[&str],
    script: &str,
) -> Option<crate::guest::Said> {
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
        append: append.iter().map(|word| (*word).to_owned()).collect(),
        ..Guest::default()
    };
    let kills = kills();
    let longest = Duration::from_secs(500 + 10 * kills as u64);
    crate::guest::says_on(machine, &format!("KILLS={kills}\n{WORDS}{script}"), longest)
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
    assert_eq!(said.all("killed"), vec!["restored"; kills()]);
    let at = said.all("at");
    assert_eq!(at.len(), 2);
    for death in at {
        assert!(death.ends_with(" 137 restored"), "{death}");
    }
}

fn each_group_has_all_windowed_cpus(kernel: &str, preemption: &str) {
    let Some(said) = booted_with(kernel, None, &[&format!("preempt={preemption}")], SEVERAL) else {
        return;
    };
    assert_eq!(
        said.one("preemption"),
        format!("Dynamic Preempt: {preemption}")
    );
    assert_eq!(said.one("restored"), "restored");
    let witnesses = said.all("witness");
    assert_eq!(witnesses.len(), 4);
    for witness in witnesses {
        let [outside, used] = ["outside", "used"].map(|word| crate::guest::figure(witness, word));
        println!("{kernel}, preemption {preemption}: {witness}");
        // Two busy CPUs share the instructions, so each runs half of the time.
        assert!(outside < 0.01 && used > 0.4, "{witness}");
    }
}

#[test]
fn each_group_has_all_windowed_cpus_in_its_windows() {
    each_group_has_all_windowed_cpus("6.12", "voluntary");
}

/// Of the windows of a frame of 1 s, what each moved of its budget. An emulated machine is late by
/// milliseconds, so that its windows and periods are long.
fn budgets_hold(kernel: &str) {
    let Some(said) = booted(kernel, Some("icelake"), BUDGETS) else {
        return;
    };
    let plan: Plan = serde_json::from_str(said.one("plan")).unwrap();
    let frame = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Windows(frame) => Some(frame),
        _ => None,
    });
    let budgets = frame.unwrap().spans.iter().map(|span| {
        let budget = span.budget.as_ref()?;
        let periods = span.end.since(span.start).0 / budget.period.0;
        Some(budget.budget.0 * budget.cpus.len() as u64 * periods)
    });
    let budgets: Vec<Option<u64>> = budgets.collect();
    let mut parts: Vec<Vec<i64>> = vec![Vec::new(); budgets.len()];
    for drawn in said.all("drawn") {
        let numbers: Vec<u64> = drawn.split(' ').map(|n| n.parse().unwrap()).collect();
        let (place, lines) = (numbers[0] as usize, numbers[1] + numbers[2]);
        if let Some(budget) = budgets[place] {
            parts[place].push((lines * 1_000 / budget).cast_signed());
        }
    }
    for (budget, parts) in budgets.iter().zip(&mut parts) {
        parts.sort_unstable();
        println!("of {budget:?} lines, in thousandths: {parts:?}");
    }
    assert_eq!(said.one("restored"), "restored");
    assert_eq!(said.all("killed"), vec!["restored"; kills()]);
    for (_, parts) in budgets.iter().zip(&parts).filter(|(b, _)| b.is_some()) {
        assert!(parts.len() >= 15, "{parts:?}");
        // Single windows are off by what an emulated CPU stands still. The budgets are so small
        // that most have the time for them all the same.
        let middle = parts[parts.len() / 2];
        assert!((950..=1_050).contains(&middle), "{parts:?}");
    }
}

/// What a cgroup's tasks moved on a CPU: an event of the kernel and of user code.
fn moved_by(group: &File, cpu: i32) -> File {
    const MISSES: u64 = 0x412e;
    const RAW: u64 = 4;
    const OF_CGROUP: u64 = 1 << 2;
    let mut attributes = [0u64; 14];
    attributes[0] = 112 << 32 | RAW;
    attributes[1] = MISSES;
    // SAFETY: the attributes are as long as they say.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            group.as_raw_fd(),
            cpu,
            -1,
            OF_CGROUP,
        )
    };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened and has no other owner.
    unsafe { File::from_raw_fd(i32::try_from(fd).unwrap()) }
}

/// Prints what two groups moved in each of four windows of a frame of 1 s, which they have in
/// turn. A group is read while the other one has its window, so no moment is to be met.
fn drawn(pids: [usize; 2], frames: u64) {
    const WINDOW: Nanos = Nanos::millis(250);
    let mut counters = pids.map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let path = text.trim().trim_start_matches("0::");
        let dir = File::open(format!("/sys/fs/cgroup{path}")).unwrap();
        [1, 2].map(|cpu| moved_by(&dir, cpu))
    });
    let mut read = |group: usize| counters[group].each_mut().map(crate::guest::touch::count);
    let mut before: [Option<[u64; 2]>; 2] = [None; 2];
    let first = rt::now().0 / WINDOW.0 + 8;
    for window in first..first + frames * 4 {
        let middle = Nanos(window * WINDOW.0 + WINDOW.0 / 2);
        std::thread::sleep(Duration::from_nanos(middle.since(rt::now()).0));
        let late = rt::now().since(middle);
        // The window before this one has ended.
        let (place, group) = ((window + 3) % 4, (window + 1) as usize % 2);
        let now = read(group);
        if let Some(old) = before[group] {
            let [one, two] = [0, 1].map(|cpu| now[cpu] - old[cpu]);
            println!("drawn {place} {one} {two} {}", late.0 / 1_000);
        }
        before[group] = Some(now);
    }
}

/// Forks for 8 s whenever it may, and so does each child. No more than 60 processes.
fn bomb() {
    let end = Instant::now() + LENGTH;
    let limit = libc::rlimit {
        rlim_cur: 60,
        rlim_max: 60,
    };
    // SAFETY: the limit is read, and the others have no memory to touch. The fresh mapping is large
    // enough for the number, and is never unmapped.
    let refused = unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit), 0);
        // It does not hold for root.
        assert_eq!(libc::setuid(65_534), 0);
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        let shared = libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0);
        assert_ne!(shared, libc::MAP_FAILED);
        &*shared.cast::<AtomicU32>()
    };
    let mut is_child = false;
    while Instant::now() < end {
        // SAFETY: a child touches nothing but its own stack and the shared number, and leaves by
        // `_exit`.
        match unsafe { libc::fork() } {
            0 => is_child = true,
            -1 => drop(refused.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
    }
    if is_child {
        // SAFETY: it ends.
        unsafe { libc::_exit(0) };
    }
    println!("made refused {}", refused.load(Ordering::Relaxed));
}

/// Makes system calls for 8 s that no freezer interrupts: each fills 300 MiB with pages. Prints how
/// many milliseconds the longest took.
fn calls() {
    const SIZE: usize = 300 << 20;
    let (end, mut longest) = (Instant::now() + LENGTH, Duration::ZERO);
    while Instant::now() < end {
        // SAFETY: a fresh mapping, which nothing uses, and which is unmapped.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(all, libc::MAP_FAILED);
            libc::madvise(all, SIZE, libc::MADV_NOHUGEPAGE);
            let begun = Instant::now();
            assert_eq!(libc::madvise(all, SIZE, libc::MADV_POPULATE_WRITE), 0);
            longest = longest.max(begun.elapsed());
            libc::munmap(all, SIZE);
        }
    }
    println!("made longest {}", longest.as_millis());
}

/// Reads the clock for 8 s, and says which part of its running time was outside its windows, which
/// part of them, without their guards, it used, and how late it first ran in them: median and 99th
/// percentile in microseconds.
fn watch(number: usize, window: [u64; 2]) {
    let path = format!("/tmp/spans.{number}.{}", window[0]);
    crate::witness::watch(Path::new(&path), Nanos::millis(8_000));
    let spans = crate::witness::read(Path::new(&path));
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
    let late = [0.5, 0.99].map(|part| crate::witness::quantile(&late, part) / 1_000);
    let frames = (spans.last().unwrap().1 - spans[0].0) as f64 / FRAME as f64;
    let whole = frames * ((window[1] - window[0] - 5) * MS) as f64;
    println!(
        "outside {:.5} used {:.3} late {late:?}",
        (all - inside) as f64 / all as f64,
        inside as f64 / whole
    );
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// The windows are long enough for the budgets only where the host has the time.
    mod measured {
        use super::*;

        #[test]
        #[ignore = "where its files have changed"]
        fn budgets_hold_in_their_windows_under_6_12() {
            budgets_hold("6.12");
        }
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn ways_switch_with_windows_under_6_12() {
        ways_switch("6.12");
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn groups_may_misbehave_in_their_windows() {
        let Some(said) = booted("6.12", None, HAZARDS) else {
            return;
        };
        for hazard in ["bomb", "ends", "calls"] {
            let [status, control, restored] = said.all(hazard)[..] else {
                panic!("{hazard}: {:?}", said.all(hazard));
            };
            // Who stays in the kernel through windows of the other group breaks the promise. On a
            // busy host windows may begin late, too.
            let ends: &[&str] = match hazard {
                "calls" => &["status 3"],
                _ => &["status 0", "status 3"],
            };
            assert!(ends.contains(&status), "{hazard}: {status}");
            assert_eq!(restored, "restored", "{hazard}");
            let [outside, used] =
                ["outside", "used"].map(|word| crate::guest::figure(control, word));
            // A task of the other group that is in the kernel gets half of the CPU meanwhile.
            let least = if hazard == "calls" { 0.4 } else { 0.8 };
            assert!(outside < 0.01 && used > least, "{hazard}: {control}");
        }
        let [bomb, calls] = said.all("made")[..] else {
            panic!("{:?}", said.all("made"));
        };
        assert!(crate::guest::figure(bomb, "refused") > 100.0, "{bomb}");
        // Longer than three windows. It is reported what they took of the other group's windows.
        assert!(crate::guest::figure(calls, "longest") > 280.0, "{calls}");
        let of_calls = said.0.split("ends restored").nth(1).unwrap();
        assert!(of_calls.contains("outside its windows"), "{of_calls}");
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn ways_switch_with_windows_under_7_2() {
        ways_switch("7.2");
    }

    #[test]
    #[ignore = "for the long run"]
    fn windows_hold_with_full_preemption() {
        each_group_has_all_windowed_cpus("6.12", "full");
        each_group_has_all_windowed_cpus("7.2", "full");
    }

    #[test]
    #[ignore = "for the long run"]
    fn windows_hold_with_lazy_preemption() {
        each_group_has_all_windowed_cpus("7.2", "lazy");
    }

    mod measured {
        #[test]
        #[ignore = "for the long run"]
        fn budgets_hold_in_their_windows_under_7_2() {
            super::super::budgets_hold("7.2");
        }
    }
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "watch" => watch(numbers[0], [numbers[1] as u64, numbers[2] as u64]),
        "sweep" => crate::guest::sweep(numbers[0]),
        "drawn" => drawn([numbers[0], numbers[1]], numbers[2] as u64),
        "bomb" => bomb(),
        "calls" => calls(),
        other => panic!("role {other}"),
    }
}
