//! Bandwidth allocation under a real kernel, in the lab: what its percentages come to is measured
//! by `quell doctor --deep`, planned with and set by `quell run`, in a virtual machine whose
//! emulated processor delays a class as it is told. Read by the kernel's own files, never by Quell.
//! The guest's programs are this one, in a role.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::guest::Said;
use quell_plan::deep::MbaCurve;
use quell_plan::inventory::Inventory;
use quell_types::units::{Rate, Share};

/// Words, a critical sleeper and a neighbour that writes without end.
const SUBJECTS: &str = r#"
bandwidth() { sed -n 's/ *MB:0= *//p' $1/schemata; }
# Bytes that a group moves in a second.
rate() { a=$(cat $1/mon_data/mon_L3_00/mbm_total_bytes); sleep 2; b=$(cat $1/mon_data/mon_L3_00/mbm_total_bytes); echo $(((b - a) / 2)); }
# The class of a process; nothing for the default one.
class() { sed -n 's,^res:/*,,p' /proc/$1/cpu_resctrl_groups; }
set_to() { [ "$(bandwidth $R/$1)" = $2 ]; }
# policy MECHANISM LIMIT [MORE]
policy() {
    printf 'quell = 1\n[mechanisms]\nbandwidth = "%s"\n[group.victim]\nrole = "critical"\ncpus = "0"\nmatch = [{ pid = %s }]\n' $1 $V
    printf '[group.noise]\nrole = "best-effort"\ncpus = "1"\nmatch = [{ pid = %s }]\nlimit.bandwidth = "%s"\n%s\n' $N "$2" "$3"
}
planned() { echo "plan $1 $(quell plan /tmp/policy.toml --steps | tr '\n' ' ')"; }
inside() { for pid in $*; do [ -n "$(class $pid)" ] || return 1; done; }
brakes() { find /sys/fs/cgroup -path '*/stop/cgroup.procs' -exec cat {} + | wc -l; }
# holds NAME LOOK PID…: until these are in a class, then looks and lets go. A guest that stood still for a second has lost its hold,
# and is tried again.
holds() {
    name=$1 look=$2; shift 2
    for try in 1 2 3; do
        quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
        within 60 inside $*; seen=$($look)
        kill -TERM $run; wait $run; status=$?
        [ $status = 0 ] && break
        within 30 gone
    done
    echo $name $seen; echo status $name $status; tell "restored $name"; said
}

sleep 10001 & V=$!
(role sweep 33554432 >/dev/null 2>&1) & N=$!
SUBJECTS="$V $N"
before
export QUELL_STATE_DIR=/tmp/state
"#;

/// What the neighbour does while nothing holds it.
const FREE: &str = r#"
sleep 1
echo free $(rate $R)
kill -STOP $N
"#;

const SCRIPT: &str = r#"
# What it comes to is measured.
# Times that a busy host spreads make no curve.
measures() { quell doctor --deep --quick --json >/tmp/doctor.json 2>/tmp/log && grep -q '"percent":' /tmp/doctor.json; }
thrice measures; echo deep $?; tell measured
echo doctor $(cat /tmp/doctor.json)
eval $(role limits | grep ^LOW=)
kill -CONT $N

# The hardware alone: the class, and what the kernel counts of it.
policy mba $LOW >/tmp/policy.toml
planned mba
mba() { echo MB $(bandwidth $R/COS1) rest $(bandwidth $R) rate $(rate $R/COS1); }
holds mba mba $N
echo free $(rate $R)
"#;

/// Where the kernel takes rates it is told one.
const RATE: &str = r#"
lab-watch off
umount $R; mount -t resctrl -o mba_MBps resctrl $R
before
policy mba 200MiB/s >/tmp/policy.toml
planned rate
limit() { echo MB $(bandwidth $R/COS1); }
holds rate limit $N
"#;

/// The long run's: beside the regulator, and where classes are few.
const MORE: &str = r#"
# Beside the regulator, which holds the limit, the hardware spreads the requests.
policy mba+regulator $LOW >/tmp/policy.toml
planned both
both() { echo MB $(bandwidth $R/COS1) rate $(rate $R/COS1) brakes $(brakes); }
holds both both $N

# More groups than classes are free: those that get the same share one.
sleep 10002 & A=$!
sleep 10003 & B=$!
for n in 1 2 3 4 5; do mkdir $R/theirs$n; sleep 2000$n & echo $! >$R/theirs$n/tasks; done
SUBJECTS="$V $N $A $B"
before
group() { printf '[group.%s]\nrole = "best-effort"\nmatch = [{ pid = %s }]\nlimit.bandwidth = "%s"\n' $1 $2 $3; }
policy mba $LOW "$(group same $A $LOW; group other $B $HIGH)" >/tmp/policy.toml
merged() { echo $(class $N) $(class $A) $(class $B) MB $(bandwidth $R/$(class $N)) other $(bandwidth $R/$(class $B)); }
holds merged merged $N $A $B

# Classes that somebody has left behind, narrow: one is taken for the time.
for n in 1 2 3 4 5; do kill $(cat $R/theirs$n/tasks); rmdir $R/theirs$n; done
for n in 1 2 3 4 5 6 7; do mkdir $R/left$n; echo 'L3:0=00f0' >$R/left$n/schemata; echo 'MB:0=20' >$R/left$n/schemata; done
before
policy mba $HIGH >/tmp/policy.toml
idle() { echo $(class $N) mask $(mask $R/$(class $N)) MB $(bandwidth $R/$(class $N)); }
holds idle idle $N
rmdir $R/left*
"#;

/// Nothing is left of a look that is killed while it measures what the percentages come to.
const KILLED: &str = r#"
throttled() { [ -n "$(bandwidth $R/COS1)" ] && ! set_to COS1 100; }
quell doctor --deep --quick >/tmp/log 2>&1 & deep=$!
within 120 throttled; echo meanwhile COS1 MB $(bandwidth $R/COS1) threads $(wc -l <$R/COS1/tasks)
kill -KILL $deep; wait $deep
within 30 gone; within 5 restored; tell killed
"#;

/// Somebody takes the counters before the brake has one. It is said, and CPU time is counted
/// instead.
const TAKEN: &str = r#"
policy regulator 30% '[regulator]
meter = "hardware"' >/tmp/policy.toml
# Measures the rates.
quell plan /tmp/policy.toml >/tmp/log 2>&1; echo planned $?; kill -CONT $N
taken() {
    (role take 1 >/tmp/take 2>&1) & taker=$!
    within 30 grep -q ready /tmp/take
    quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
    within 30 grep -q took /tmp/take && within 10 grep -q 'CPU 1: its counter stopped counting' /tmp/log
}
for try in 1 2 3; do
    taken && [ "$(brakes)" = 1 ] && quell status >/tmp/status && break
    kill -TERM $run; wait $run; kill $taker; wait $taker
done
echo taken $(grep -c 'level estimated' /tmp/log) brakes $(brakes)
echo now $(cat /tmp/status)
kill -TERM $run; wait $run; echo status taken $?; tell "restored taken"; said
kill $taker
"#;

/// The kernel's watchdog for CPUs that hang takes a counter (the fixed one of cycles), first beside
/// a brake that has its own, then before there is one. Neither loses what it has.
const WATCHDOG: &str = r#"
watchdog() { echo $1 >/proc/sys/kernel/nmi_watchdog; }
# How the fixed counters of CPU 1 are set: four bits each.
fixed() { dd if=/dev/cpu/1/msr bs=8 count=1 iflag=skip_bytes skip=909 2>/dev/null | od -An -tx1 | cut -c2-3; }
for when in later first; do
    for try in 1 2 3; do
        [ $when = later ] && watchdog 0 || watchdog 1
        quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
        within 60 grep -q 'CPU 0 keeps' /tmp/log; watchdog 1
        seen="$(cat /proc/sys/kernel/nmi_watchdog) fixed $(fixed) rate $(rate $R)"
        seen="$seen brakes $(brakes) lost $(grep -c 'stopped counting' /tmp/log)"
        quell status >/tmp/status && break
        kill -TERM $run; wait $run
    done
    echo watchdog $seen
    kill -TERM $run; wait $run; echo status $when $?; tell "restored $when"; said
done
watchdog 0
"#;

fn limits_are_held(kernel: &str) {
    let more = if quell_testing::soak() { MORE } else { "" };
    let script = [SUBJECTS, FREE, SCRIPT, more].concat();
    let Some(said) = crate::guest::says(kernel, "icelake", &script, Duration::from_secs(900))
    else {
        return;
    };
    assert_eq!((said.one("deep"), said.one("measured")), ("0", "restored"));
    let machine: Inventory = serde_json::from_str(said.one("doctor")).unwrap();
    let measured = machine.measured.unwrap();
    let curve: MbaCurve = measured.mba.unwrap();
    let steps: Vec<u32> = curve.of(1).map(|p| p.percent).collect();
    assert_eq!(steps, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
    // Emulated: only that it throttles, and that the same step is more for more CPUs, is to be
    // seen. What CPUs reach unthrottled depends on what the host has to spare: the best counts.
    let best = |cpus, steps: RangeInclusive<u32>| {
        let points = curve.of(cpus).filter(|p| steps.contains(&p.percent));
        points.map(|p| p.mb_s.high).fold(0.0, f64::max)
    };
    assert!(best(1, 10..=10) < best(1, 50..=100) * 0.8, "{curve:?}");
    assert!(best(2, 10..=10) > best(1, 10..=10) * 1.1, "{curve:?}");

    let [low, _] = limits(&curve);
    let point = curve.at_most(low, 1).unwrap();
    let plan = said.one("plan");
    let told = format!("under {}% of the requests 1 CPU reached", point.percent);
    assert!(
        plan.starts_with("mba") && plan.contains(&told),
        "{told}: {plan}"
    );
    let held = said.one("mba");
    assert_eq!(number(held, "MB"), f64::from(point.percent), "{held}");
    assert_eq!(number(held, "rest"), 100.0, "{held}");
    let free = free(&said);
    assert!(number(held, "rate") < free * 0.7, "{free} free, {held}");

    all_went_back(&said, &["mba"]);
    if !more.is_empty() {
        limits_share_classes(&said, &curve, free);
    }
}

/// What [`MORE`] shows, beside what its neighbour did freely.
fn limits_share_classes(said: &Said, curve: &MbaCurve, free: f64) {
    let [low, high] = limits(curve);
    let point = curve.at_most(low, 1).unwrap();
    // The regulator holds the limit, and the step is one that lets it be reached.
    let both = said.one("both");
    let reaching = curve.reaching(low, 1).unwrap();
    assert_eq!(number(both, "MB"), f64::from(reaching.percent), "{both}");
    assert!(number(both, "rate") < free * 0.7, "{free} free, {both}");
    assert_eq!(number(both, "brakes"), 1.0, "{both}");

    let other = curve.at_most(high, 1).unwrap();
    let merged: Vec<&str> = said.one("merged").split(' ').collect();
    assert_eq!(merged[0], merged[1], "{merged:?}");
    assert_ne!(merged[0], merged[2], "{merged:?}");
    assert_eq!(
        (merged[4], merged[6]),
        (&*point.percent.to_string(), &*other.percent.to_string())
    );
    // As a new one: all of the cache, and what the plan says of bandwidth.
    let idle = format!("left1 mask ffff MB {}", other.percent);
    assert_eq!(said.one("idle"), idle);
    all_went_back(said, &["both", "merged", "idle"]);
}

/// Two limits that call for a step each: a little above what one CPU reaches under the narrowest
/// step, and half-way from there to what it reaches unthrottled; to the 0.1 MB/s.
fn limits(curve: &MbaCurve) -> [Rate; 2] {
    let whole = curve.of(1).find(|p| p.percent == 100).unwrap().rate();
    let low = curve.least(1).unwrap().most().part(Share::percent(115));
    [low.0, (low.0 + whole.0) / 2].map(|rate| Rate(rate / 100_000 * 100_000))
}

fn number(text: &str, key: &str) -> f64 {
    let mut words = text.split(' ').skip_while(|word| *word != key);
    words.nth(1).unwrap().parse().unwrap()
}

/// The neighbour's rate while nothing held it, as far as a busy host let it be free.
fn free(said: &Said) -> f64 {
    let free = said.all("free").into_iter().map(|n| n.parse().unwrap());
    free.fold(0.0, f64::max)
}

/// These runs ended as asked, and nothing is left of them.
fn all_went_back(said: &Said, scenes: &[&str]) {
    for what in scenes {
        let (status, restored) = (format!("{what} 0"), format!("{what} restored"));
        assert!(said.all("status").contains(&&*status), "{what}");
        assert!(said.all("restored").contains(&&*restored), "{what}");
    }
}

#[test]
fn a_rate_is_set_where_the_kernel_takes_rates() {
    let script = [SUBJECTS, RATE].concat();
    let Some(said) = crate::guest::says("6.12", "icelake", &script, Duration::from_secs(300))
    else {
        return;
    };
    assert_eq!(said.one("rate"), "MB 200");
    all_went_back(&said, &["rate"]);
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// Beside other guests a CPU reached twice what its narrowest step lets it, and not more.
    mod measured {
        use super::*;

        #[test]
        #[ignore = "where its files have changed"]
        fn limits_are_held_under_6_12() {
            limits_are_held("6.12");
        }
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn what_takes_counters_is_told_or_harmless() {
        let script = [SUBJECTS, FREE, KILLED, TAKEN, WATCHDOG].concat();
        let Some(said) = crate::guest::says("6.12", "icelake", &script, Duration::from_secs(900))
        else {
            return;
        };
        let meanwhile = said.one("meanwhile");
        assert_eq!(number(meanwhile, "threads"), 2.0, "{meanwhile}");
        assert_eq!(said.one("killed"), "restored");
        assert_eq!(said.one("taken"), "1 brakes 1");
        let now = said.one("now");
        let (_, limit) = now.split_once("holds noise: at most ").expect(now);
        let end = limit.split(')').next().unwrap();
        assert!(end.contains("(level estimated"), "{now}");
        let (free, watched) = (free(&said), said.all("watchdog"));
        assert_eq!(watched.len(), 2);
        for seen in watched {
            assert!(seen.starts_with("1 fixed b0 "), "{seen}");
            assert!(seen.ends_with(" brakes 1 lost 0"), "{seen}");
            assert!(number(seen, "rate") < free * 0.7, "{free} free, {seen}");
        }
        all_went_back(&said, &["taken", "later", "first"]);
    }
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "sweep" => crate::guest::sweep(numbers[0]),
        "limits" => {
            let text = std::fs::read_to_string("/tmp/doctor.json").unwrap();
            let machine: Inventory = serde_json::from_str(&text).unwrap();
            let [low, high] = limits(&machine.measured.unwrap().mba.unwrap());
            println!("LOW={low} HIGH={high}");
        }
        "take" => take(i32::try_from(numbers[0]).unwrap()),
        other => panic!("role {other}"),
    }
}

/// Takes all general counters of a CPU as soon as a Quell holds the machine, by events that are
/// always on it (`pinned`), and keeps them.
fn take(cpu: i32) {
    const MISSES: u64 = 0x412e;
    const PINNED: u64 = 1 << 2;
    const RAW: u64 = 4;
    let mut attributes = [0u64; 14];
    attributes[0] = 112 << 32 | RAW;
    attributes[1] = MISSES;
    attributes[5] = PINNED;
    println!("ready");
    let held =
        || std::fs::read_dir("/run/quell").is_ok_and(|mut d| d.any(|f| f.unwrap().path().is_dir()));
    while !held() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the attributes are as long as they say; everybody on that CPU.
    let open = || unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            -1,
            cpu,
            -1,
            0,
        )
    };
    let all: Vec<i64> = (0..4).map(|_| open()).collect();
    assert!(all.iter().all(|fd| *fd >= 0), "{all:?}");
    let mut value = 0u64;
    // SAFETY: eight bytes for eight; one that has no counter reads as ended.
    let read =
        |fd: &i64| unsafe { libc::read(i32::try_from(*fd).unwrap(), (&raw mut value).cast(), 8) };
    let counting = all.iter().map(read).filter(|n| *n == 8).count();
    println!("took {counting}");
    assert_eq!(counting, 4);
    loop {
        std::thread::park();
    }
}
