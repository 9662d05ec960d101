//! The policy language, by examples: what is read, and what is answered to mistakes.
use proptest::prelude::*;
use quell_policy::*;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::After;
use quell_types::options::Split;
use quell_types::options::{OnDrift, PageSize};
use quell_types::source::Source;
use quell_types::units::{Bytes, Nanos, Rate, Share};

const REFERENCE: &str = include_str!("../../../../examples/reference.toml");

const EXAMPLES: [(&str, &str); 6] = [
    ("reference", REFERENCE),
    ("one-cpu", include_str!("../../../../examples/one-cpu.toml")),
    (
        "cap-a-neighbour",
        include_str!("../../../../examples/cap-a-neighbour.toml"),
    ),
    ("reserve", include_str!("../../../../examples/reserve.toml")),
    (
        "cpu-quota",
        include_str!("../../../../examples/cpu-quota.toml"),
    ),
    (
        "read-write",
        include_str!("../../../../examples/read-write.toml"),
    ),
];

/// The problems found in a policy, one line each.
fn answers(text: &str) -> Vec<String> {
    match Policy::parse(text, "policy.toml") {
        Ok(policy) => panic!("accepted as {policy:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// The problems found in text below a correct group.
fn answers_below(text: &str) -> Vec<String> {
    answers(&format!(
        "quell = 1\n[group.a]\nrole = \"best-effort\"\nmatch = [{{ comm = \"a\" }}]\n{text}"
    ))
}

#[test]
fn every_example_is_read() {
    for (name, text) in EXAMPLES {
        let policy = Policy::parse(text, &format!("examples/{name}.toml")).unwrap();
        assert!(!policy.groups.is_empty(), "{name}");
    }
}

#[test]
fn the_reference_is_read_key_by_key() {
    let policy = Policy::parse(REFERENCE, "examples/reference.toml").unwrap();
    assert_eq!(
        (policy.name.as_str(), policy.require, policy.on_drift),
        ("detector", Level::Estimated, OnDrift::Repair)
    );
    assert_eq!(
        policy.groups.keys().collect::<Vec<_>>(),
        ["detector", "batch"]
    );

    let detector = &policy.groups["detector"];
    assert_eq!(
        (detector.role, detector.cpus.clone()),
        (Role::Critical, Some(CpusWanted::Count(2)))
    );
    assert_eq!((detector.smt, detector.irqs), (Smt::Auto, Some(Irqs::Away)));
    assert_eq!(detector.matching[1].arg.as_deref(), Some(r"detect\.py"));
    let target = detector.target.as_ref().unwrap();
    assert_eq!(
        (target.deadline, target.percentile),
        (Some(Nanos::millis(50)), 99.0)
    );
    let Some(Source::Pattern(source)) = &target.source else {
        panic!("{target:?}")
    };
    assert_eq!(source.pattern.find("frame took 31.5 ms"), Some(31.5));
    assert_eq!(
        detector.reserve.bandwidth,
        Some(Bandwidth::Rate(Rate(600_000_000)))
    );
    assert_eq!(
        detector.reserve.cache,
        Some(CacheWanted {
            form: CacheForm::Size(Bytes(3 << 20)),
            level: None
        })
    );
    assert_eq!(detector.reserve.banks, Some(Banks::Count(4)));
    assert_eq!(detector.reserve.memory, Some(MemoryWanted::WorkingSet));
    assert_eq!(detector.reserve.files, ["/opt/detector/weights.bin"]);

    let paging = Paging {
        locked: true,
        prefault: true,
        pages: Some(PageSize::Huge),
    };
    assert_eq!(detector.paging, paging);

    let batch = &policy.groups["batch"];
    assert_eq!(
        (batch.weight(), batch.coloured),
        (100, Some(Coloured::Spill))
    );
    assert!(batch.allows(Permission::Freeze) && !batch.allows(Permission::Kill));
    assert_eq!(
        batch.reserve.bandwidth,
        Some(Bandwidth::Rate(Rate(100_000_000)))
    );
    assert_eq!(
        batch.limit.bandwidth,
        Some(Bandwidth::Rate(Rate(2_000_000_000)))
    );
    assert_eq!(
        (batch.limit.memory, batch.limit.cpu_time),
        (Some(Bytes(6 << 30)), Some(Share::percent(40)))
    );

    assert_eq!(policy.mechanisms.deny, [Mechanism::PseudoLock]);
    assert_eq!(policy.mechanisms.cache, CacheMechanism::Ways);
    assert_eq!(policy.mechanisms.bandwidth, BandwidthMechanism::Regulator);
    assert_eq!(
        policy.regulator,
        RegulatorKeys {
            period: Some(Nanos::millis(1)),
            reclaim: true,
            after: After::Proportional,
            adapt: Adapt::Deadline,
            split: Split::Demand,
            predictor: Some(0.5),
            quantum: Some(Bytes(64 << 10)),
            ..RegulatorKeys::default()
        }
    );
    // [rest] and [pressure] show their defaults.
    assert_eq!(policy.rest, Rest::default());
    assert_eq!(policy.pressure, Some(Pressure::default()));
}

#[test]
fn defaults_are_the_documented_ones() {
    let text = "quell = 1\n[group.c]\nrole = \"critical\"\ncommand = [\"true\"]\n[group.b]\nrole = \"best-effort\"\ncommand = [\"true\"]\n";
    let policy = Policy::parse(text, "somewhere/video.toml").unwrap();
    assert_eq!(
        (policy.name.as_str(), policy.require, policy.on_drift),
        ("video", Level::Estimated, OnDrift::Repair)
    );
    let (critical, batch) = (&policy.groups["c"], &policy.groups["b"]);
    assert_eq!(
        (critical.cpus_wanted(), batch.cpus_wanted()),
        (CpusWanted::Auto, CpusWanted::Remaining)
    );
    assert_eq!(
        (critical.irqs_wanted(), batch.irqs_wanted()),
        (Irqs::Away, Irqs::Leave)
    );
    assert_eq!((critical.smt, batch.weight()), (Smt::Auto, 100));
    let permissions = [
        Permission::Throttle,
        Permission::LimitMemory,
        Permission::Freeze,
        Permission::Reclaim,
        Permission::Kill,
    ];
    assert_eq!(
        permissions.map(|p| batch.allows(p)),
        [true, true, false, false, false]
    );
    assert!(permissions.iter().all(|p| !critical.allows(*p)));
    assert_eq!(
        (policy.rest.cpus.clone(), policy.rest.allow.len()),
        (CpusWanted::Remaining, 0)
    );
    let regulator = &policy.regulator;
    assert_eq!(regulator.period, None);
    assert_eq!(
        (
            regulator.reclaim,
            regulator.strict,
            regulator.after,
            regulator.adapt
        ),
        (false, false, After::Wait, Adapt::Off)
    );
    assert_eq!(
        (regulator.meter, regulator.sustainable),
        (MeterWanted::Auto, Sustainable::Auto)
    );
    assert_eq!(policy.mechanisms, Mechanisms::default());
    assert_eq!(policy.pressure, None);
}

#[test]
fn an_unknown_key_is_answered_with_the_line_and_a_suggestion() {
    assert_eq!(
        answers_below("[group.a.limit]\n  bandwith = \"2GB/s\"\n"),
        ["policy.toml:6:3: unknown key 'bandwith' in group.a.limit; did you mean 'bandwidth'?"]
    );
    assert_eq!(
        answers_below("[regulater]\nperiod = \"1ms\"\n"),
        ["policy.toml:5:2: unknown key 'regulater' at the top; did you mean 'regulator'?"]
    );
    assert_eq!(
        answers_below("limit.io = 3\n"),
        [
            "policy.toml:5:7: unknown key 'io' in group.a.limit; known here: bandwidth, memory, cpu-time, disk-read, disk-write, disk-read-iops, disk-write-iops"
        ]
    );
}

#[test]
fn every_mistake_is_named_in_one_go() {
    let text = r#"
quell = 1
on-drift = "fix"
[group.a]
role = "critcal"
match = [{ comm = "a" }]
[group.b]
match = [{ exe = "b" }]
reserve.bandwidth = "600MB"
role = "best-effort"
cpus = { count = 1 }
limit.memory = 6
[regulator]
period = "5us"
"#;
    assert_eq!(
        answers(text),
        [
            "policy.toml:3:12: on-drift: 'fix' is not one of repair, report, stop",
            "policy.toml:5:8: group.a.role: 'critcal' is not one of critical, best-effort, exempt; did you mean 'critical'?",
            "policy.toml:9:21: group.b.reserve.bandwidth: '600MB' is not a rate such as 600MB/s, a share such as 20%, or a table such as { read = \"500MB/s\", write = \"100MB/s\" }; an amount of memory is reserve.memory or limit.memory",
            "policy.toml:11:1: group.b.cpus: a table is not a number of CPUs, a list such as \"0,2-3\", or one of \"auto\", \"remaining\", \"any\"",
            "policy.toml:12:16: group.b.limit.memory: integer '6' is not a size such as 64KiB, 3MiB or 2GB",
            "policy.toml:8:18: group.b.match[0].exe: 'b' is not a path from the root: it must start with '/'",
            "policy.toml:14:10: regulator.period: 5us is not between 100us and 1s",
        ]
    );
}

#[test]
fn keys_of_the_real_time_throttler_are_refused_with_new_ones() {
    let text = "quell = 1\n[group.a]\nrole = \"best-effort\"\ncommand = [\"a\"]\n[regulator]\nfloor = \"1%\"\nlongest = \"5ms\"\n";
    let said = answers(text);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("policy.toml:6:1: regulator.floor went with")
            && said[0].contains("longer period"),
        "{said:?}"
    );
    assert!(
        said[1].contains("policy.toml:7:1: regulator.longest went with")
            && said[1].contains("regulator.period"),
        "{said:?}"
    );
}

#[test]
fn syntax_and_duplicates_stop_with_their_line() {
    assert_eq!(
        answers("quell = 1\nname = \"a\"\nname = \"b\"\n"),
        ["policy.toml:3:1: duplicate key; keep one of the two"]
    );
    assert_eq!(
        answers("quell = 1\n[group.a\nrole = 3"),
        ["policy.toml:2:9: unclosed table, expected `]`"]
    );
    assert_eq!(
        answers("quell = 1\nname = detector"),
        ["policy.toml:2:8: string values must be quoted, expected literal string"]
    );
}

#[test]
fn impossible_values_are_answered() {
    for (text, answer) in [
        (
            "limit.bandwidth = \"120%\"",
            "5:19: group.a.limit.bandwidth: 120% is more than the machine has; percentages are of the sustainable rate, at most 100%",
        ),
        (
            "limit.cpu-time = \"0%\"",
            "5:18: group.a.limit.cpu-time: a limit of nothing stops the group; freezing is done with `allow`",
        ),
        (
            "limit.bandwidth = {}",
            "5:7: group.a.limit.bandwidth: neither `read` nor `write` is given",
        ),
        (
            "cpus = 0",
            "5:8: group.a.cpus: a group without CPUs cannot run; ask for at least 1",
        ),
        (
            "cpus = \"3-1\"",
            "5:8: group.a.cpus: the range '3-1' ends before it starts",
        ),
        (
            "cpus = -1",
            "5:8: group.a.cpus: integer '-1' is not a number of CPUs, a list such as \"0,2-3\", or one of \"auto\", \"remaining\", \"any\"",
        ),
        (
            "weight = 0",
            "5:10: group.a.weight: a weight is between 1 and 10000",
        ),
        (
            "reserve.bandwidth = \"2GB/s\"\nlimit.bandwidth = \"1GB/s\"",
            "6:19: group.a.limit.bandwidth: the group's own reserve is more than its limit",
        ),
        (
            "reserve.cache = { ways = 2, mask = \"0x3\" }",
            "5:9: group.a.reserve.cache: give exactly one of size, share, ways, code and data, mask, colours, locked",
        ),
        (
            "target.slowdown = 0.9",
            "5:19: group.a.target.slowdown: 0.9 is not a factor of at least 1; 1.10 is 10 % slower than alone",
        ),
        (
            "[regulator]\npredictor = 1.5",
            "6:13: regulator.predictor: a weight is between 0 and 1",
        ),
        (
            "[pressure]\nstart = \"1%\"\nrelease = \"2%\"",
            "7:11: pressure.release: 2% is not below start = 1%: it would let go as soon as it acts",
        ),
        (
            "[rest]\nallow = [\"kill\"]",
            "6:9: rest.allow: everything unmatched is here, your shell included: it cannot be allowed to kill; put the tasks meant into a group of their own",
        ),
        (
            "[group.rest]\nrole = \"best-effort\"\ncommand = [\"x\"]",
            "5:8: group.rest: this group always exists and has its own section; write it as [rest]",
        ),
        (
            "[group.\"a b\"]\nrole = \"best-effort\"\ncommand = [\"x\"]",
            "5:8: group.\"a b\": the name cannot become a cgroup's directory; use letters, digits, '-' and '_', at most 64 of them",
        ),
        (
            "[group.b]\ncommand = [\"x\"]",
            "5:8: group.b.role is missing",
        ),
        (
            "[group.b]\nrole = \"critical\"",
            "5:8: group.b: no task can belong to it; give `match` or `command`",
        ),
        (
            "[group.b]\nrole = \"critical\"\nmatch = [{}]",
            "7:10: group.b.match[0]: matches nothing: give at least one of pid, exe, comm, arg, user, cgroup, unit, container",
        ),
        (
            "[group.b]\nrole = \"critical\"\nmatch = [{ comm = \"a\" }]",
            "7:10: group.b.match[0]: the groups 'a' and 'b' match the same tasks, but a task is in exactly one group; remove one of the two",
        ),
        (
            "[group.b]\nrole = \"critical\"\ncommand = [\"x\"]\nallow = [\"freeze\"]",
            "8:9: group.b.allow: a critical group is protected: it cannot be allowed to freeze; remove it, or make the group best-effort",
        ),
        (
            "[group.b]\nrole = \"exempt\"\ncommand = [\"x\"]\nlimit.cpu-time = \"5%\"",
            "8:1: group.b.limit: an exempt group is never slowed, stopped or moved; remove it, or make the group best-effort",
        ),
    ] {
        assert_eq!(
            answers_below(&format!("{text}\n")),
            [format!("policy.toml:{answer}")],
            "{text}"
        );
    }
    assert_eq!(
        answers("quell = 2\n[group.a]\nrole = \"critical\"\ncommand = [\"x\"]"),
        ["policy.toml:1:9: quell: format version 2 is not known; this program reads version 1"]
    );
    assert_eq!(
        answers("quell = 1"),
        ["policy.toml: group: no group is given; a policy needs at least one [group.NAME]"]
    );
    assert_eq!(
        answers(""),
        [
            "policy.toml: quell is missing",
            "policy.toml: group: no group is given; a policy needs at least one [group.NAME]"
        ]
    );
}

#[test]
fn values_with_several_spellings_are_read_in_each() {
    let cache = |text: &str| -> CacheWanted {
        toml::from_str::<Reserve>(&format!("cache = {text}"))
            .unwrap()
            .cache
            .unwrap()
    };
    let wanted = |form, level| CacheWanted { form, level };
    assert_eq!(
        cache("'25%'"),
        wanted(CacheForm::Share(Share::percent(25)), None)
    );
    assert_eq!(cache("{ ways = 4 }"), wanted(CacheForm::Ways(4), None));
    assert_eq!(
        cache("{ mask = '0xf', level = 'L3' }"),
        wanted(CacheForm::Mask(15), Some(3))
    );
    assert_eq!(
        cache("{ code = 2, data = 4, level = 'L2' }"),
        wanted(CacheForm::Apart { code: 2, data: 4 }, Some(2))
    );
    let half = toml::from_str::<Reserve>("cache = { code = 2 }");
    assert!(
        half.unwrap_err()
            .to_string()
            .contains("both, code and data")
    );
    assert_eq!(
        cache("{ colours = '0-3' }"),
        wanted(CacheForm::Colours("0-3".parse().unwrap()), None)
    );
    assert_eq!(
        cache("{ locked = '128KiB', level = 'L2' }"),
        wanted(CacheForm::Locked(Bytes(128 << 10)), Some(2))
    );
    let bandwidth = |text: &str| -> Bandwidth {
        toml::from_str::<Limit>(&format!("bandwidth = {text}"))
            .unwrap()
            .bandwidth
            .unwrap()
    };
    assert_eq!(bandwidth("'20%'"), Bandwidth::Share(Share::percent(20)));
    assert_eq!(
        bandwidth("{ read = '500MB/s', write = '100MB/s' }"),
        Bandwidth::ReadWrite {
            read: Some(Rate(500_000_000)),
            write: Some(Rate(100_000_000))
        }
    );
}

#[test]
fn a_table_put_together_by_the_program_is_read_without_lines() {
    let table: toml::Table =
        "quell = 1\n[group.a]\nrole = 'critical'\nmatch = [{ comm = 'a' }]\ncpu = 1"
            .parse()
            .unwrap();
    let problems = Policy::from_table(&table, "--critical").unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "--critical: unknown key 'cpu' in group.a; did you mean 'cpus'?"
    );
}

fn cpus() -> impl Strategy<Value = CpusWanted> {
    let list = proptest::collection::btree_set(0u32..64, 1..6);
    prop_oneof![
        (1u32..99).prop_map(CpusWanted::Count),
        list.prop_map(|set| CpusWanted::List(set.into_iter().collect::<CpuSet>())),
        Just(CpusWanted::Auto),
        Just(CpusWanted::Remaining),
        Just(CpusWanted::Any),
    ]
}

fn bandwidth() -> impl Strategy<Value = Bandwidth> {
    prop_oneof![
        (1u64..1 << 40).prop_map(|n| Bandwidth::Rate(Rate(n))),
        (1u64..=1_000_000).prop_map(|n| Bandwidth::Share(Share(n))),
        (1u64..1 << 40).prop_map(|n| Bandwidth::ReadWrite {
            read: Some(Rate(n)),
            write: None
        }),
    ]
}

proptest! {
    #[test]
    fn any_text_is_read_or_answered(text in "\\PC{0,200}") {
        if let Err(problems) = Policy::parse(&text, "p") {
            prop_assert!(!problems.is_empty());
        }
    }

    /// The reference with pieces cut out and inserted. That is closer to real mistakes than random
    /// characters.
    #[test]
    fn any_damage_is_read_or_answered(at in 0usize..REFERENCE.len(), cut in 0usize..40, put in "[\\[\\]{}=\"'.,a-z0-9 \n]{0,12}") {
        let clean = |mut i: usize| { while !REFERENCE.is_char_boundary(i) { i += 1 } i };
        let (from, to) = (clean(at), clean((at + cut).min(REFERENCE.len())));
        let text = format!("{}{put}{}", &REFERENCE[..from], &REFERENCE[to..]);
        let lines = text.lines().count() + 1;
        if let Err(problems) = Policy::parse(&text, "p") {
            prop_assert!(!problems.is_empty());
            prop_assert!(problems.iter().all(|p| p.line.is_none_or(|line| (1..=lines).contains(&line))));
        }
    }

    #[test]
    fn what_is_written_out_is_read_back(cpus in cpus(), reserve in bandwidth(), weight in 1u32..=10_000, period in 100_000u64..=1_000_000_000, freeze: bool) {
        let mut policy = Policy::new("p");
        let mut group = Group::new(Role::BestEffort);
        group.command = Some(vec!["x".into()]);
        group.cpus = Some(cpus);
        group.reserve.bandwidth = Some(reserve);
        group.weight = Some(weight);
        group.allow = freeze.then(|| vec![Permission::Throttle, Permission::Freeze]);
        policy.groups.insert("b".into(), group);
        policy.groups.insert("a".into(), Group { command: Some(vec!["y".into()]), ..Group::new(Role::Critical) });
        policy.regulator.period = Some(Nanos(period));
        let text = toml::to_string(&policy).unwrap();
        let back = Policy::parse(&text, "other.toml").unwrap_or_else(|p| panic!("{}\n{text}", p[0]));
        prop_assert_eq!(back, policy);
    }
}
