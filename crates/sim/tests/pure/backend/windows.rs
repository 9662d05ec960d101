//! Ways and budgets of windows, from the policy on: what a group has in its window after another
//! one, and what it may move in it.

use std::sync::OnceLock;

use quell_plan::inventory::Inventory;
use quell_plan::planner::plan;
use quell_policy::Policy;
use quell_record::backend::{Action, Backend, HoldOptions, Observation, Probe, SubjectId};
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::units::Nanos;

use crate::backend::subject;

const FRAME: Nanos = Nanos::millis(10);
/// Frames that are left out at the beginning, in which caches fill and the first debts arise; and
/// frames that count.
const FRAMES: [u64; 2] = [2, 3];

/// A simulated P4080 that holds a policy with windows on CPUs 1 and 2, and its subjects, which run.
struct Held {
    sim: Sim,
    subjects: Vec<SubjectId>,
    /// When the first whole frame begins.
    first: Nanos,
}

/// Windows for a critical and a best-effort group, with further keys. `subjects` are started: name,
/// generator, and the CPU.
fn held([control, batch]: [&str; 2], subjects: &[(&str, &str, &str)]) -> Held {
    let board = Board::of(Profile::built_in("p4080").unwrap()).unwrap();
    let mut sim = Sim::new(board, 1).unwrap();
    let text = format!(
        r#"quell = 1
[group.control]
role = "critical"
allow = ["freeze", "throttle"]
command = ["x"]
[group.batch]
role = "best-effort"
allow = ["freeze", "throttle"]
command = ["x"]
[windows]
frame = "10ms"
cpus = "1-2"
schedule = [
    {{ group = "control", start = "0ms", length = "4ms"{control} }},
    {{ group = "batch", start = "4ms", length = "6ms"{batch} }},
]
"#
    );
    let policy = Policy::parse(&text, "windows.toml").unwrap();
    // Its rates are measured once.
    static MACHINE: OnceLock<Inventory> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| sim.inventory(Probe::Deep).unwrap());
    let plan = plan(&policy, machine).unwrap();
    sim.begin(0, 0).unwrap();
    sim.hold(&plan, HoldOptions::default()).unwrap();
    for step in &plan.steps {
        sim.apply(step).unwrap();
    }
    let mut all = Vec::new();
    for (group, run, cpu) in subjects {
        all.push(sim.start(&subject(group, run, Some(cpu))).unwrap());
    }
    for id in &all {
        sim.act(&Action::Go {
            subject: *id,
            warmup: Nanos(0),
            duration: Nanos::secs(1),
        })
        .unwrap();
    }
    let first = Nanos(sim.now().0.next_multiple_of(FRAME.0));
    Held {
        sim,
        subjects: all,
        first,
    }
}

impl Held {
    /// Lets time pass until so long after the beginning of a frame. The first whole one is 0.
    fn until(&mut self, frame: u64, into: Nanos) {
        let at = Nanos(self.first.0 + frame * FRAME.0).plus(into);
        let mut seen = Observation::new();
        while self.sim.now() < at {
            seen.clear();
            self.sim.wait(at, &mut seen).unwrap();
        }
    }

    /// What the subjects at these places do together between two times of a frame.
    fn between(
        &mut self,
        frame: u64,
        places: &[usize],
        [from, to]: [Nanos; 2],
        of: fn(&mut Sim, SubjectId) -> u64,
    ) -> u64 {
        let ids: Vec<SubjectId> = places.iter().map(|place| self.subjects[*place]).collect();
        let mut at = |into| {
            self.until(frame, into);
            ids.iter().map(|id| of(&mut self.sim, *id)).sum::<u64>()
        };
        let before = at(from);
        at(to) - before
    }
}

fn frames() -> std::ops::Range<u64> {
    let [first, count] = FRAMES;
    first..first + count
}

fn accesses(sim: &mut Sim, id: SubjectId) -> u64 {
    sim.drawn(id).unwrap().unwrap().work.first_level
}

/// Bytes that come in. The counters of this machine see no others.
fn read(sim: &mut Sim, id: SubjectId) -> u64 {
    sim.drawn(id).unwrap().unwrap().read
}

/// A list of 512 KiB in random order, a quarter of the last-level cache.
const LIST: &str = "latency:size=512KiB";
const STREAM: &str = "bandwidth:write,size=8MiB";

#[test]
fn ways_keep_what_a_group_had_through_another_window() {
    let first = [Nanos(0), Nanos::millis(1)];
    let mean = |keys: [&str; 2], subjects: &[(&str, &str, &str)]| {
        let mut held = held(keys, subjects);
        let all = frames().map(|frame| held.between(frame, &[0], first, accesses));
        all.sum::<u64>() as f64 / FRAMES[1] as f64
    };
    let alone = ("control", LIST, "1");
    let beside = [alone, ("batch", STREAM, "1"), ("batch", STREAM, "2")];
    let ways = [", ways = 12", ", ways = 16"];
    let free = mean(["", ""], &[alone]);
    let loads = [["", ""], ways].map(|keys| mean(keys, &beside));
    let [none, own] = loads.map(|loads| free / loads);
    eprintln!(
        "loads in the first millisecond of a window: {free:.0} alone; without ways and with, and \
         the time of each ÷ alone: {loads:.0?}, {none:.3}, {own:.3}"
    );
    assert!(own < 1.10, "{own}");
    assert!(none > 1.5, "{none}");
}

#[test]
fn budgets_hold_within_each_window() {
    let streams = ["control", "batch"].map(|group| ["1", "2"].map(|cpu| (group, STREAM, cpu)));
    for rates in [[200, 100], [50, 600]] {
        let keys = rates.map(|rate| format!(", bandwidth = \"{rate}MB/s\""));
        let keys = keys.each_ref().map(String::as_str);
        let [from, edge, end] = [0, 4, 10].map(Nanos::millis);
        let windows = [([from, edge], [0, 1]), ([edge, end], [2, 3])];
        let mut held = held(keys, &streams.concat());
        for frame in frames() {
            let parts = [0, 1].map(|i| {
                let (window, places) = windows[i];
                let bytes = held.between(frame, &places, window, read) as f64;
                let length = window[1].since(window[0]).0 as f64;
                bytes * 1e3 / length / f64::from(rates[i])
            });
            eprintln!("{rates:?} MB/s, of which each window has {parts:.3?}");
            let within = parts.iter().all(|part| (0.95..=1.05).contains(part));
            assert!(within, "{rates:?} MB/s: {parts:?}");
        }
    }
}
