//! Ways that follow what a group misses under a real kernel, in the lab: a program that works on
//! much, on little and on more again, beside a stream (what that does to a list without ways of its
//! own is tried in `divided.rs`). Ways are read by the program from the kernel's own files, misses
//! from its own counter.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::fs;
use std::time::{Duration, Instant};

use crate::guest::touch::{LINE, Memory, count, counter};

/// What it works on: nine and a half ways of 512 KiB, what a core's own cache has, twelve and a
/// half ways. So much that going through it once takes longer than it takes the stream to go
/// through the other ways: what has lost its way is not kept by being used.
const STAGES: &str = "4980736 65536 6553600";
/// What it reserves, of sixteen ways.
const MOST: u32 = 14;
/// It works on something else once it has so few.
const FEW: u32 = 6;
/// What it may draw more than with all of these, in bytes per second.
const TOLERATED: f64 = 32e6;

const SCRIPT: &str = r#"
cat >/tmp/plan.toml <<'P'
quell = 1
mechanisms.ways = "by-misses"
[group.victim]
role = "critical"
command = ["true"]
cpus = "0"
reserve.cache = { ways = 14 }
[group.noise]
role = "best-effort"
match = [{ pid = 1 }]
P
# It measures the machine's rates. Nothing here depends on them, and watched they take half a minute.
lab-watch off
echo plan $(quell plan /tmp/plan.toml --steps)
lab-watch on
works() { QUELL_LAB_ROLE="works $*" "$EXE" $GUEST --exact --ignored --nocapture | sed -n 's/.*stage/'$KEY'/p'; }
KEY=alone works 1 $STAGES
(role sweep 33554432 >/dev/null 2>&1) & N=$!
SUBJECTS=$N
before
sed "s/pid = 1/pid = $N/" /tmp/plan.toml | grep -v ^command >/tmp/policy.toml
follows() { QUELL_LAB_ROLE="works 60 $STAGES" quell run /tmp/policy.toml --out /tmp/record -- "$EXE" $GUEST --exact --ignored --nocapture >/tmp/worked 2>/tmp/log; }
thrice follows; echo status $?
sed -n 's/.*stage/follows/p' /tmp/worked
tell undone
said
grep -h resized /tmp/record/*/events.jsonl | sed 's/^/event /'
"#;

/// What the program saw while it worked on one thing.
#[derive(Debug)]
struct Stage {
    /// Of its accesses to so many bytes.
    misses: f64,
    /// The same once its ways were settled, and the bytes that came to in a second.
    settled: (f64, f64),
    seconds: f64,
    /// Its ways since so many milliseconds, while it was in a class.
    ways: Vec<(u64, u32)>,
    /// Ways that the stream had, over all the time.
    left: f64,
    /// Looks at which it had ways that the stream had, too.
    common: f64,
}

impl Stage {
    /// As [`works`] says it.
    fn read(line: &str) -> Self {
        let (numbers, ways) = line.split_once(" ways").unwrap();
        let number = |key: &str| -> f64 {
            let mut words = numbers.split(' ').skip_while(|w| *w != key);
            words.nth(1).unwrap().parse().unwrap()
        };
        let ways = ways.split_whitespace().map(|w| {
            let (at, ways) = w.split_once(':').unwrap();
            (at.parse().unwrap(), ways.parse().unwrap())
        });
        Self {
            misses: number("misses"),
            settled: (number("settled"), number("drew")),
            seconds: number("seconds"),
            ways: ways.collect(),
            left: number("left"),
            common: number("common"),
        }
    }

    fn last(&self) -> u32 {
        self.ways.last().unwrap().1
    }
}

#[test]
fn ways_follow_what_a_program_misses_under_6_12() {
    let script = format!("STAGES='{STAGES}'\n{SCRIPT}");
    let Some(said) = crate::guest::says("6.12", "icelake", &script, Duration::from_secs(500))
    else {
        return;
    };
    let stages = |key: &str| -> Vec<Stage> {
        let all: Vec<Stage> = said.all(key).into_iter().map(Stage::read).collect();
        assert_eq!(all.len(), 3, "{key}");
        all
    };
    let plan = said.one("plan");
    for words in ["regulated victim", "are what it has at first and at most"] {
        assert!(plan.contains(words), "{plan}");
    }
    assert_eq!(said.one("status"), "0");
    assert_eq!(said.one("undone"), "restored");
    let (alone, follows) = (stages("alone"), stages("follows"));
    for (alone, follows) in alone.iter().zip(&follows) {
        assert!(alone.misses < 0.05, "{alone:?}");
        assert!(follows.settled.0 < 0.2, "{follows:?}");
        assert!(follows.settled.1 < TOLERATED, "{follows:?}");
        // With what trials cost.
        assert!(follows.misses < 0.4, "{follows:?}");
    }
    let [much, little, more] = follows.as_slice() else {
        unreachable!()
    };
    assert!((10..MOST).contains(&much.last()), "{much:?}");
    assert!(little.last() <= FEW, "{little:?}");
    assert!((13..=MOST).contains(&more.last()), "{more:?}");
    // At once: a few looks, of 100 ms each where the host is quick. Slowly: one way after the
    // other.
    let grown = more.ways.iter().find(|(_, ways)| *ways == MOST).unwrap();
    assert!(grown.0 < 5000, "{more:?}");
    for stage in &follows {
        assert!(stage.common < 1.0, "{stage:?}");
        for two in stage.ways.windows(2).filter(|two| two[1].1 < two[0].1) {
            assert_eq!(two[1].1 + 1, two[0].1, "{stage:?}");
        }
    }
    let all = |of: fn(&Stage) -> f64| follows.iter().map(of).sum::<f64>();
    let left = all(|s| s.left * s.seconds) / all(|s| s.seconds);
    println!("left {left:.2} ways of 16");
    // The least part that always holds the largest list leaves three.
    assert!(left > 4.0, "{follows:?}");
}

#[test]
#[ignore = "no test: the program that the test above runs inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "works" => numbers[1..]
            .iter()
            .for_each(|size| works(*size, numbers[0] as u64)),
        "sweep" => crate::guest::sweep(numbers[0]),
        other => panic!("role {other}"),
    }
}

/// A class's ways; none where it is not there.
fn ways(class: &str) -> u64 {
    let text = fs::read_to_string(format!("/sys/fs/resctrl/{class}/schemata")).unwrap_or_default();
    let lines = text.lines().filter_map(|l| l.trim().strip_prefix("L3:0="));
    lines.map(|m| u64::from_str_radix(m, 16).unwrap()).sum()
}

/// Goes through so many bytes until its ways are settled, for so many seconds at most, and looks at
/// the ways of its class and of the other one 50 times a second.
fn works(size: usize, seconds: u64) {
    const CACHE_MISSES: u64 = 3;
    const LOOK: Duration = Duration::from_millis(20);
    // Settled: a trial that began in this stage has failed, or few are left, and ways have been
    // filled since. (A trial of the stage before may fail by what is missed now.)
    const FILLED: Duration = Duration::from_millis(500);
    const AFTER: Duration = Duration::from_millis(2500);
    let memory = Memory::new(size);
    let (begin, mut looked) = (Instant::now(), Instant::now());
    let mut counter = counter(CACHE_MISSES, 0);
    let mut series: Vec<(Duration, u32)> = Vec::new();
    let (mut accesses, mut left, mut common) = (0, 0.0, 0);
    let from = count(&mut counter);
    let mut settled = None;
    while begin.elapsed() < Duration::from_secs(seconds) {
        memory.read();
        accesses += size / LINE;
        let (now, since) = (begin.elapsed(), looked.elapsed());
        if since < LOOK {
            continue;
        }
        looked = Instant::now();
        let [own, others, again] = ["COS1", "COS2", "COS1"].map(ways);
        left += f64::from(others.count_ones()) * since.as_secs_f64();
        // Two files are never read at one time.
        common += u32::from(own == again && own & others != 0);
        let own = own.count_ones();
        if series.last().is_none_or(|(_, last)| *last != own) {
            series.push((now, own));
            settled = None;
        }
        let since = match *series.as_slice() {
            [.., (at, ways)] if ways <= FEW && ways > 0 => at,
            [.., (_, before), (_, tried), (at, ways)] if tried < before && ways == before => at,
            _ => continue,
        };
        if now > since + FILLED && settled.is_none() {
            settled = Some((count(&mut counter), accesses, now));
        }
        if now > since + AFTER {
            break;
        }
    }
    let now = count(&mut counter);
    let took = begin.elapsed();
    let (before, done, at) = settled.unwrap_or((from, 0, Duration::ZERO));
    let gone = (now - before) as f64;
    let series = series
        .iter()
        .map(|(at, ways)| format!("{}:{ways}", at.as_millis()));
    println!(
        "stage {size} accesses {accesses} misses {:.4} settled {:.4} drew {:.0} seconds {:.2} left {:.2} common {common} ways {}",
        (now - from) as f64 / accesses as f64,
        gone / (accesses - done) as f64,
        gone * LINE as f64 / (took - at).as_secs_f64(),
        took.as_secs_f64(),
        left / took.as_secs_f64(),
        series.collect::<Vec<_>>().join(" ")
    );
}
