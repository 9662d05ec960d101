//! What is written, on values: over the machine zoo, and for what a probe may find.

use std::io::Cursor;

use quell_policy::{CpusWanted, Policy, Role};
use quell_record::demand::{Pressed, Sensitivity};
use quell_types::mechanism::Mechanism;
use quell_types::stats::Interval;

use super::group::{Figures, ThreadUse};
use super::*;

const MACHINES: &str = "../../tests/machines";

/// The captured machines by name.
fn zoo() -> Vec<(String, Inventory)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(MACHINES);
    let mut found: Vec<(String, Inventory)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, crate::plan::captured(&path).unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn of(name: &str) -> Inventory {
    let found = zoo().into_iter().find(|(n, _)| n == name);
    found.unwrap().1
}

/// A program with so many threads, each of which ran half of the time and waited a quarter as long.
fn figures(threads: usize) -> Figures {
    let thread = ThreadUse {
        ran_ns: 60_000_000_000,
        lately_ns: 500_000_000,
        waited_ns: 125_000_000,
    };
    Figures {
        processes: 1,
        threads: vec![thread; threads],
        memory: Bytes(40 << 20),
        major_faults: 0,
        span_ns: 1_000_000_000,
    }
}

fn group(matching: &str, threads: usize) -> Chosen {
    let matching: Vec<TaskMatch> = vec![matching.parse().unwrap()];
    Chosen {
        name: name_of(&matching, &[]),
        matching,
        figures: figures(threads),
    }
}

fn situation(machine: &Inventory) -> Situation<'_> {
    Situation {
        machine,
        root: true,
        critical: group("exe=/usr/bin/redis-check-rdb,comm=redis-server", 1),
        neighbours: vec![group("comm=stress-ng", 2)],
        unnamed_cpus: 0.1,
        probed: Probed::No("Nothing was probed (--no-probe).".to_owned()),
        file: "policy.toml",
    }
}

/// A resource that slows the stand-in by `slowdowns`, each a little, at 100 MB/s, 200 MB/s, ….
fn pressed(resource: &str, slowdowns: &[f64]) -> Sensitivity {
    let pressed = (1..).zip(slowdowns).map(|(n, slowdown)| Pressed {
        pressure: format!("{n}00MB/s"),
        reached_mb_s: Some(f64::from(n) * 100.0),
        slowdown: *slowdown,
        ci95: Some(Interval::from([slowdown - 0.01, slowdown + 0.01])),
    });
    Sensitivity {
        resource: resource.to_owned(),
        neighbour: "bandwidth:read".to_owned(),
        metric: None,
        pressed: pressed.collect(),
        skipped: None,
    }
}

fn found(all: Vec<Sensitivity>) -> Probed {
    Probed::Found {
        stand_in: "A stand-in".to_owned(),
        all,
    }
}

/// Read as `quell plan` reads the file, and planned as it plans.
fn planned(written: &Written, machine: &Inventory) -> (Policy, quell_plan::Plan) {
    let policy = Policy::parse(&written.text, "policy.toml")
        .unwrap_or_else(|e| panic!("{e:?}\n{}", written.text));
    let plan = quell_plan::planner::plan(&policy, machine)
        .unwrap_or_else(|e| panic!("{e:?}\n{}", written.text));
    assert_eq!(plan, written.plan);
    (policy, plan)
}

#[test]
fn on_every_captured_machine_the_policy_plans() {
    let machines = zoo();
    assert!(machines.len() >= 10, "{}", machines.len());
    let probes = || {
        [
            Probed::No("It was declined.".to_owned()),
            found(vec![
                pressed("reads", &[1.0, 1.1]),
                pressed("writes", &[1.1]),
            ]),
            found(vec![
                pressed("reads", &[1.1, 2.9]),
                pressed("cache", &[1.6]),
            ]),
            found(vec![pressed("writes", &[3.0]), pressed("sibling", &[1.5])]),
        ]
    };
    for (name, machine) in &machines {
        for root in [true, false] {
            for threads in [1, 3, 500] {
                for (n, probed) in probes().into_iter().enumerate() {
                    for neighbours in [
                        vec![],
                        vec![group("comm=stress-ng", 2)],
                        vec![
                            group("unit=batch.service", 2),
                            group("container=4c01db0b339c", 1),
                        ],
                    ] {
                        let mut critical = group("comm=redis-server", threads);
                        critical.figures.major_faults = 50;
                        let asked = Situation {
                            root,
                            critical,
                            neighbours,
                            probed: probed.clone(),
                            ..situation(machine)
                        };
                        let written =
                            choose::write(&asked).unwrap_or_else(|e| panic!("{name} {n}: {e:?}"));
                        planned(&written, machine);
                        let last: Vec<&str> = written.text.lines().rev().take(2).collect();
                        assert_eq!(
                            last,
                            [
                                "#   sudo quell run policy.toml",
                                "#   quell plan policy.toml"
                            ]
                        );
                        for line in written.text.lines().filter(|l| l.starts_with('#')) {
                            assert!(line.chars().count() <= 80, "{name}: {line}");
                        }
                        // Fewer CPUs than it has busy threads would be worse than nothing done.
                        if let Some(cores) = written.setup.cores {
                            assert!(cores.count >= threads, "{name}: {}", written.text);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_weight_comes_first_and_needs_no_cores_and_no_limit() {
    let machine = of("small-vm");
    let written = choose::write(&situation(&machine)).unwrap();
    let (policy, plan) = planned(&written, &machine);
    let mechanisms: BTreeSet<Mechanism> = plan.steps.iter().map(|s| s.mechanism).collect();
    assert_eq!(
        mechanisms,
        BTreeSet::from([Mechanism::Weight, Mechanism::Cores]),
        "weight, and the cgroup that it is given to: {}",
        written.text
    );
    assert_eq!(policy.groups["redis-server"].role, Role::Critical);
    assert_eq!(policy.groups["redis-server"].cpus, Some(CpusWanted::Any));
    assert!(policy.groups["stress-ng"].limit.is_empty());
    for said in [
        "waited for a CPU in 20 % of the time",
        "where no other program wants the CPU",
        "Nothing was probed (--no-probe).",
    ] {
        let text = written.text.replace("\n#", "");
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn against_everything_else_it_gets_a_high_weight() {
    let machine = of("small-vm");
    let mut asked = situation(&machine);
    asked.neighbours.clear();
    asked.unnamed_cpus = 1.9;
    for threads in [1, 2] {
        asked.critical = group("comm=ffmpeg", threads);
        let written = choose::write(&asked).unwrap();
        let (policy, plan) = planned(&written, &machine);
        let ffmpeg = &policy.groups["ffmpeg"];
        assert_eq!(ffmpeg.cpus, Some(CpusWanted::Any), "{}", written.text);
        assert_eq!(ffmpeg.cpu_weight, Some(quell_plan::choose::HIGH));
        assert!(written.acts() && plan.promises.len() == 1, "{plan:?}");
    }
    let text = choose::write(&asked).unwrap().text.replace("\n#", "");
    assert!(
        text.contains("2 threads of it may work at once, and half of the 2 cores here is 1"),
        "{text}"
    );
}

#[test]
fn a_weight_is_not_enough_where_programs_of_no_group_are_busier() {
    let machine = of("dual-socket-rdt");
    let mut asked = situation(&machine);
    asked.unnamed_cpus = 1.5;
    let written = choose::write(&asked).unwrap();
    assert_eq!(written.setup.cores.map(|c| c.count), Some(1));
    let text = written.text.replace("\n#", "");
    assert!(
        text.contains("programs of no group used 1.50 CPUs"),
        "{text}"
    );
    // One that does not wait needs no more than the weight.
    asked.critical.figures.threads[0].waited_ns = 1_000_000;
    assert_eq!(choose::write(&asked).unwrap().setup.cores, None);
}

#[test]
fn of_a_program_that_hardly_ran_all_threads_may_work_at_once() {
    let threads = |ran_ns: u64, n: usize| Figures {
        threads: vec![
            ThreadUse {
                ran_ns,
                ..ThreadUse::default()
            };
            n
        ],
        ..figures(0)
    };
    assert_eq!(threads(1_000_000, 8).busy(), 8);
    assert_eq!(threads(1_000_000, 1).busy(), 1);
    // One that works, and helpers that hardly ever run.
    let redis = threads(60_000_000_000, 1).with(&threads(2_000_000, 4));
    assert_eq!(redis.busy(), 1);
    // Many threads that live briefly.
    let mut brief = threads(60_000_000_000, 1);
    brief.threads[0].lately_ns = 2_600_000_000;
    assert_eq!(brief.busy(), 3);
    let machine = of("small-vm");
    let mut asked = situation(&machine);
    asked.neighbours.clear();
    asked.critical.figures = threads(1_000_000, 8);
    assert_eq!(choose::write(&asked).unwrap().setup.cores, None);
}

#[test]
fn a_limit_is_written_where_it_helps_by_more_than_it_takes() {
    let machine = of("small-vm");
    let written = |writes: &[f64]| {
        let probed = found(vec![pressed("reads", &[1.0]), pressed("writes", writes)]);
        choose::write(&Situation {
            probed,
            ..situation(&machine)
        })
        .unwrap()
    };
    let limited = written(&[1.1, 2.2]);
    let (policy, _) = planned(&limited, &machine);
    let limit = policy.groups["stress-ng"].limit.bandwidth.unwrap();
    assert_eq!(
        toml::Value::try_from(limit).unwrap().as_str(),
        Some("100MB/s")
    );
    let text = limited.text.replace("\n#", "");
    assert!(
        text.contains("A stand-in took 2.20 times as long"),
        "{text}"
    );
    let dear = written(&[1.1, 1.9]);
    assert_eq!(dear.setup.limit, None);
    let text = dear.text.replace("\n#", "");
    assert!(text.contains("would slow the neighbours by more"), "{text}");
}

#[test]
fn what_the_planner_refuses_is_left_out_with_the_reason() {
    // No limit can be held without counters, a CPU clock and a quota.
    let container = of("container");
    let asked = Situation {
        neighbours: vec![],
        ..situation(&container)
    };
    let written = choose::write(&asked).unwrap();
    assert_eq!(written.setup.cores, None);
    let text = written.text.replace("\n#", "");
    assert!(text.contains("The planner refuses it here"), "{text}");
    assert!(text.contains("changes nothing"), "{text}");
    let asked = Situation {
        probed: found(vec![pressed("reads", &[1.1, 2.9])]),
        ..situation(&container)
    };
    let written = choose::write(&asked).unwrap();
    assert_eq!(written.setup.limit, None);
    let text = written.text.replace("\n#", "");
    assert!(
        text.contains("- A limit of memory bandwidth. The planner refuses"),
        "{text}"
    );
}

#[test]
fn where_memory_cannot_be_kept_its_neighbours_are_held_back() {
    let vm = of("small-vm");
    let mut critical = group("comm=redis-server", 1);
    critical.figures.major_faults = 50;
    let asked = Situation {
        critical,
        ..situation(&vm)
    };
    let written = choose::write(&asked).unwrap();
    assert!(!written.setup.memory && written.setup.pressure);
    let (policy, plan) = planned(&written, &vm);
    assert!(policy.pressure.is_some());
    assert!(plan.loops.pressure.is_some(), "{}", written.text);
    // Nobody is named who could be.
    let alone = Situation {
        neighbours: vec![],
        ..asked
    };
    assert!(!choose::write(&alone).unwrap().setup.pressure);
}

fn candidates() -> Vec<Candidate> {
    let one = |name: &str, matching: &str| Candidate {
        name: name.to_owned(),
        matching: matching.parse().unwrap(),
        figures: figures(1),
    };
    vec![
        one("stress-ng", "comm=stress-ng"),
        one("redis-server", "unit=redis-server.service"),
        one("ffmpeg", "container=4c01db0b339c"),
    ]
}

fn asked(input: &str) -> (std::result::Result<Answers, Stopped>, String) {
    let mut shown = Vec::new();
    let answers = ask::ask(&candidates(), &mut Cursor::new(input), &mut shown);
    (answers, String::from_utf8(shown).unwrap())
}

#[test]
fn answers_are_numbers_names_or_matches_and_others_asked_again() {
    let tables =
        |all: &[&str]| -> Vec<TaskMatch> { all.iter().map(|t| t.parse().unwrap()).collect() };
    let (answers, shown) = asked("2\n1,3\n");
    let answers = answers.unwrap();
    assert_eq!(answers.critical, tables(&["unit=redis-server.service"]));
    assert_eq!(
        answers.neighbours,
        tables(&["comm=stress-ng", "container=4c01db0b339c"])
    );
    for said in ["(unit redis-server.service)", "(container 4c01db0b339c)"] {
        assert!(shown.contains(said), "{shown}");
    }
    let (answers, shown) = asked("\n9\nredis\ncomm=\nredis-server\nredis-server\n\n");
    let answers = answers.unwrap();
    assert_eq!(answers.critical, tables(&["unit=redis-server.service"]));
    assert!(answers.neighbours.is_empty());
    for said in [
        "Name at least one program",
        "There is no number 9",
        "No program named redis runs",
        "comm: is empty",
        "stay fast already",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let answers = asked("exe=/usr/bin/a,comm=b\n\n").0.unwrap();
    assert_eq!(answers.critical, tables(&["exe=/usr/bin/a,comm=b"]));
    for ended in ["", "q\n", "1\n", "1\nq\n"] {
        assert!(matches!(asked(ended).0, Err(Stopped::Ended)), "{ended:?}");
    }
}

#[test]
fn only_a_yes_allows_the_probe() {
    let yes = |input: &str| ask::yes("Probe now?", &mut Cursor::new(input), &mut Vec::new());
    assert!(yes("y\n").unwrap() && yes("what\nYES\n").unwrap());
    assert!(!yes("\n").unwrap() && !yes("n\n").unwrap());
    assert!(matches!(yes(""), Err(Stopped::Ended)));
}

#[test]
fn the_cost_of_a_probe_says_how_long_and_how_bad() {
    let mut machine = of("small-vm");
    let cost = probe::Cost::of(&machine);
    assert!((30..=90).contains(&cost.seconds), "{cost}");
    assert!(cost.worst.unwrap() >= 2.0, "{cost}");
    machine.measured = None;
    let unmeasured = probe::Cost::of(&machine);
    assert!(unmeasured.seconds > cost.seconds, "{unmeasured}");
    assert!(
        unmeasured.to_string().contains("was not measured"),
        "{unmeasured}"
    );
}

#[test]
fn a_group_has_a_name_that_a_policy_takes() {
    let name = |matching: &str| name_of(&[matching.parse().unwrap()], &[]);
    assert_eq!(name("exe=/usr/bin/python3.11,arg=x"), "python3-11");
    assert_eq!(name("unit=redis-server.service"), "redis-server");
    assert_eq!(name("container=4c01db0b339c"), "container-4c01db0b339c");
    assert_eq!(name("comm=rest"), "rest-program");
    assert_eq!(name("comm=..."), "program");
    assert_eq!(
        name_of(
            &["comm=a".parse().unwrap()],
            &["a".to_owned(), "a-2".to_owned()]
        ),
        "a-3"
    );
    let table: TaskMatch = r"exe=/a\,b,arg=x\,y".parse().unwrap();
    assert_eq!(spelled(&table).parse::<TaskMatch>().unwrap(), table);
}
