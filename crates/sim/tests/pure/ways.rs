//! Ways that follow what a group misses: a list of changing size next to a stream. The stream has
//! more of the cache than under the smallest static mask that protects the list as well.

use std::collections::BTreeMap;

use quell_engine::drive::{Order, Script, drive};
use quell_plan::planner::plan;
use quell_policy::Policy;
use quell_record::backend::{
    Action, Backend, HoldOptions, Probe, Program, Seen, SubjectId, SubjectSpec,
};
use quell_record::events::Event;
use quell_record::ways::{Change, Timeline};
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::stats::median;
use quell_types::units::Nanos;

/// Lists that fit five of eight segments of 128 KiB, then one, then five again. Each is walked for
/// this long.
const STAGES: [(&str, Nanos); 3] = [
    ("latency:size=576KiB", Nanos::millis(40)),
    ("latency:size=64KiB", Nanos::millis(160)),
    ("latency:size=576KiB", Nanos::millis(40)),
];

/// Walks one list after the other next to the stream.
#[derive(Default)]
struct Stages {
    stream: Option<SubjectId>,
    job: Option<SubjectId>,
    stage: usize,
    windows: Vec<Vec<f64>>,
    done: bool,
}

impl Stages {
    fn spec(group: &str, name: &str, run: &str) -> Order {
        Order::Start(SubjectSpec {
            name: name.to_owned(),
            group: group.to_owned(),
            program: Program::Generator(run.parse().unwrap()),
            cpus: None,
            env: BTreeMap::new(),
            capture: true,
        })
    }

    fn go(subject: SubjectId, duration: Nanos) -> Order {
        Order::Act(Action::Go {
            subject,
            warmup: Nanos::millis(1),
            duration,
        })
    }
}

impl Script for Stages {
    fn begin(&mut self, _: Nanos, orders: &mut Vec<Order>) -> Result<(), String> {
        orders.push(Self::spec("noise", "stream", "bandwidth:write,size=4MiB"));
        orders.push(Self::spec("job", "list0", STAGES[0].0));
        Ok(())
    }

    fn started(&mut self, name: &str, id: SubjectId, _: Nanos) {
        match name {
            "stream" => self.stream = Some(id),
            _ => self.job = Some(id),
        }
    }

    fn seen(&mut self, _: Nanos, seen: Seen, orders: &mut Vec<Order>) -> Result<(), String> {
        match seen {
            Seen::Ready(id) if Some(id) == self.stream => {
                orders.push(Self::go(id, Nanos::secs(10)));
            }
            Seen::Ready(id) => orders.push(Self::go(id, STAGES[self.stage].1)),
            Seen::Result(id, measured) if Some(id) == self.job => {
                self.windows.push(measured.metrics["latency_ns"].clone());
                orders.push(Order::Act(Action::Stop(id)));
                self.stage += 1;
                match STAGES.get(self.stage) {
                    Some((run, _)) => {
                        orders.push(Self::spec("job", &format!("list{}", self.stage), run));
                    }
                    None => self.done = true,
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.done
    }
}

struct Ran {
    /// Nanoseconds per access in each window of each list.
    windows: Vec<Vec<f64>>,
    /// Ways that the stream had, averaged over the whole time.
    left: f64,
    /// When the list's ways changed, to how many, and why.
    moves: Vec<(Nanos, u32, String)>,
    events: Vec<(Nanos, Event)>,
}

impl Ran {
    /// What half of the accesses to a list took at most.
    fn median(&self, stage: usize) -> f64 {
        median(&self.windows[stage]).unwrap()
    }
}

fn run(ways: u32, kept: &str) -> Ran {
    let board = Board::of(Profile::built_in("apollolake").unwrap()).unwrap();
    let mut sim = Sim::new(board, 1).unwrap();
    let machine = sim.inventory(Probe::Fast).unwrap();
    let text = format!(
        "quell = 1\nmechanisms.ways = '{kept}'\n\
         [group.job]\nrole='critical'\ncommand=['x']\ncpus='0'\nreserve.cache={{ ways = {ways}, level = 'L2' }}\n\
         [group.noise]\nrole='best-effort'\ncommand=['x']\ncpus='1'\n"
    );
    let policy = Policy::parse(&text, "test").unwrap();
    let plan = plan(&policy, &machine).unwrap();
    let mut script = Stages::default();
    let mut events: Vec<(Nanos, Event)> = Vec::new();
    drive(
        &mut sim,
        &plan,
        HoldOptions::default(),
        &mut script,
        &mut events,
    )
    .unwrap();
    let (first, end) = (events[0].0, events.last().unwrap().0);
    let mut moves = Vec::new();
    let (mut now, mut since, mut sum) = (ways, first, 0.0);
    for (at, event) in &events {
        if let Event::Resized { to, why, .. } = event {
            sum += f64::from(8 - now) * at.since(since).0 as f64;
            (now, since) = (*to, *at);
            moves.push((at.since(first), *to, why.clone()));
        }
    }
    sum += f64::from(8 - now) * end.since(since).0 as f64;
    Ran {
        windows: script.windows,
        left: sum / end.since(first).0 as f64,
        moves,
        events,
    }
}

fn the_record_tells_who_could_fill_what(ran: &Ran) {
    let first = ran.events[0].0;
    let changes = ran.events.iter().filter_map(|(at, event)| match event {
        Event::Ways { change } => Some((at.since(first).0, change)),
        _ => None,
    });
    let changes: Vec<(u64, &Change)> = changes.collect();
    let timeline = Timeline::of(changes, 0);
    assert_eq!(timeline.caches.len(), 2, "one per module");
    assert!(!ran.moves.is_empty());
    for (at, to, _) in &ran.moves {
        let mask = timeline.mask_at("job", &timeline.caches[0].place, at.0 + 1);
        // The last move may be reverted before it is recorded.
        if let Some(mask) = mask {
            assert_eq!(mask.count(), *to, "at {at}");
        }
    }
    for block in timeline.blocks.values().flatten() {
        let classes = &block.is.fill.classes;
        let shared = classes.iter().any(|c| c == "job") && classes.len() > 1;
        assert!(!shared, "nobody fills the job's ways: {block:?}");
    }
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn a_list_that_changes_keeps_what_it_needs_and_leaves_the_rest() {
        let fixed: Vec<Ran> = [5, 6, 7].into_iter().map(|n| run(n, "fixed")).collect();
        let best = |stage: usize| {
            let all = fixed.iter().map(|r| r.median(stage));
            all.fold(f64::INFINITY, f64::min)
        };
        let protects = |ran: &Ran| (0..STAGES.len()).all(|s| ran.median(s) <= best(s) * 1.1);
        let medians = |ran: &Ran| (0..STAGES.len()).map(|s| ran.median(s)).collect::<Vec<_>>();
        let told: Vec<_> = fixed.iter().map(|r| (medians(r), r.left)).collect();
        let most = fixed.iter().filter(|r| protects(r)).map(|r| r.left);
        let most = most.fold(0.0, f64::max);
        let follows = run(7, "by-misses");
        // When the large list comes back it gets its ways at once. Filling them, and trials, take
        // few windows.
        let slow = |ran: &Ran| {
            let windows = ran.windows[2].iter();
            windows.filter(|w| **w > best(2) * 1.2).count()
        };
        let least = fixed.iter().map(slow).min().unwrap();
        println!("static {told:?}, slow {least}");
        println!(
            "following {:?} {:.2}, slow {} of {}",
            medians(&follows),
            follows.left,
            slow(&follows),
            follows.windows[2].len()
        );
        for (at, to, why) in &follows.moves {
            println!("{at}: {to} ({why})");
        }
        assert!(protects(&follows), "{:?} of {told:?}", medians(&follows));
        assert!(follows.left > most + 1.0, "{} of {told:?}", follows.left);
        assert!(slow(&follows) <= least + follows.windows[2].len() / 4);
        the_record_tells_who_could_fill_what(&follows);
    }
}
