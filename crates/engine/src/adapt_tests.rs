//! The loop around a target, on the scripted machine.

use super::*;
use crate::fake::{Fake, command, plan_with_steps};
use crate::hold::{self, Until};
use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_plan::{Headroom, Held, Lever};
use quell_record::backend::HoldOptions;
use quell_record::standing::Standing;
use quell_types::ids::StepId;
use quell_types::mechanism::Mechanism;
use quell_types::options::Split;

const DEADLINE: Nanos = Nanos::millis(8);

/// A job with a target. Its neighbour on two CPUs gets 4 GB/s while that is met, and always 1.
fn plan() -> Plan {
    let mut plan = plan_with_steps(1);
    let step = &mut plan.steps[0];
    step.mechanism = Mechanism::Bandwidth;
    step.set = Setting::Regulate(Regulation {
        cpus: CpuSet::from_iter([2, 3]),
        budget: Lines::at(Rate(2_000_000_000), Nanos::millis(1)),
        period: Nanos::millis(1),
        meter: Meter::Time,
        peak: Rate(2_000_000_000),
        pooling: None,
        split: Split::Even,
        least: Lines(0),
    });
    let observed = Observed {
        source: Source::Client,
        matching: Vec::new(),
        deadline: Some(DEADLINE),
        percentile: Share::percent(99),
    };
    plan.loops.observed.insert("job".into(), observed);
    plan.loops.adapts = Some(Adaptation {
        groups: vec!["job".into()],
        sustainable: Rate(10_000_000_000),
        draws: BTreeMap::from([("job".into(), Rate(8_500_000_000))]),
        levers: vec![Lever {
            group: "noise".into(),
            step: StepId(1),
            least: Rate(1_000_000_000),
            most: Rate(4_000_000_000),
        }],
        headroom: Vec::new(),
    });
    plan.promises.push(in_time("job"));
    plan
}

fn in_time(group: &str) -> Held {
    Held {
        group: group.to_owned(),
        promise: Promise::Deadline {
            deadline: Some(DEADLINE),
            percentile: Share::percent(99),
        },
        level: Level::Regulated,
        held_by: vec![StepId(1)],
        weakest: None,
        assumed: false,
    }
}

/// Holds the plan until the job ends.
fn held(fake: &mut Fake, plan: &Plan, sink: &mut dyn Sink) -> Standing {
    let how = HoldOptions::default();
    let job = [command("job")];
    let held = hold::run(fake, plan, how, &job, Until::First, sink);
    held.unwrap().standing
}

/// A job that ends after six seconds. From 1 s on a unit ends every 10 ms, with these times in
/// turn.
fn ran(plan: &Plan, took: &[Nanos]) -> (Fake, Vec<(Nanos, Event)>) {
    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(6), 0, &[]);
    for (n, took) in (0..).zip(took) {
        fake.unit_at(Nanos::millis(1_000 + 10 * n), "job", *took);
    }
    let mut sink = Vec::new();
    held(&mut fake, plan, &mut sink);
    (fake, sink)
}

#[test]
fn late_units_take_from_the_others_and_it_is_on_record() {
    let mut took = vec![Nanos::millis(7); 50];
    took.extend([Nanos::millis(9)]);
    let (fake, sink) = ran(&plan(), &took);
    assert_eq!(fake.log[0], "observe job");
    let adapted: Vec<_> = sink
        .iter()
        .filter(|(_, e)| matches!(e, Event::Adapted { .. }))
        .collect();
    let [
        (
            at,
            Event::Adapted {
                from_bytes_per_s,
                to_bytes_per_s,
                reserved_bytes_per_s,
                why,
                ..
            },
        ),
    ] = adapted.as_slice()
    else {
        panic!("{adapted:?}")
    };
    // Seen at the latest one step after the unit ended.
    assert!(
        (Nanos::millis(1_500)..=Nanos::millis(1_510)).contains(at),
        "{at}"
    );
    assert_eq!(
        (*from_bytes_per_s, *to_bytes_per_s, *reserved_bytes_per_s),
        (4_000_000_000, 3_920_000_000, 6_080_000_000)
    );
    assert_eq!(why, "a unit took 9ms of 8ms");
    // 1.96 GB/s each, in lines of 64 bytes per millisecond.
    let budgets: Vec<&String> = fake
        .log
        .iter()
        .filter(|l| l.starts_with("budget"))
        .collect();
    assert_eq!(budgets, ["budget 2-3 30624"]);
    let (mut units, mut late) = (0, 0);
    for (_, event) in &sink {
        if let Event::Units {
            units: n,
            late: l,
            worst_ns,
            ..
        } = event
        {
            units += n;
            late += l;
            assert!((7_000_000..=9_000_000).contains(worst_ns));
        }
    }
    assert_eq!((units, late), (51, 1));
}

#[test]
fn what_the_others_are_not_left_is_headroom() {
    let mut plan = plan();
    let mut own = plan.steps[0].clone();
    own.id = StepId(2);
    if let Setting::Regulate(regulation) = &mut own.set {
        regulation.cpus = CpuSet::from_iter([1]);
    }
    plan.steps.push(own);
    plan.loops.adapts.as_mut().unwrap().headroom = vec![Headroom {
        group: "job".into(),
        step: StepId(2),
        least: Rate(1_000_000_000),
    }];
    let (fake, _) = ran(&plan, &[Nanos::millis(9)]);
    let budgets: Vec<&String> = fake
        .log
        .iter()
        .filter(|l| l.starts_with("budget"))
        .collect();
    // The neighbour has 3.92 of 10 GB/s. The job has the other 6.08: 95,000 lines per millisecond.
    assert_eq!(budgets, ["budget 2-3 30624", "budget 1 95000"]);
}

#[test]
fn a_silent_job_and_an_unmet_target_are_told() {
    let findings = |took: &[Nanos]| {
        let (fake, sink) = ran(&plan(), took);
        assert!(fake.clean());
        let found = sink.into_iter().filter_map(|(_, e)| match e {
            Event::Finding { what, .. } => Some(what),
            Event::Promise { level, because, .. } => Some(format!("{because}: {level}")),
            _ => None,
        });
        found.collect::<Vec<_>>()
    };
    let silent = findings(&[Nanos::millis(7); 20]);
    assert_eq!(silent.len(), 1, "{silent:?}");
    assert!(
        silent[0].starts_with("no unit of group job has ended for 1"),
        "{silent:?}"
    );
    let unmet = findings(&[Nanos::millis(9); 450]);
    assert_eq!(unmet.len(), 2, "{unmet:?}");
    assert!(
        unmet[0].contains("are left no more than 1GB/s"),
        "{unmet:?}"
    );
    assert!(unmet[1].ends_with(": none"), "{unmet:?}");
}

#[test]
fn a_program_that_tells_of_nothing_is_told_of_once() {
    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(30), 0, &[]);
    let mut sink = Vec::new();
    held(&mut fake, &plan(), &mut sink);
    let mut findings = sink
        .iter()
        .filter(|(_, e)| matches!(e, Event::Finding { .. }));
    let Some((at, Event::Finding { what, .. })) = findings.next() else {
        panic!("{sink:?}")
    };
    assert!(
        (Nanos::secs(10)..=Nanos::millis(10_200)).contains(at),
        "{at}"
    );
    assert!(what.contains("through quell-client"), "{what}");
    assert_eq!(findings.next(), None);
}

#[test]
fn no_more_is_believed_of_units_than_their_cpus_draw() {
    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(1), 0, &[]);
    let said = Declared {
        bytes_per_unit: u64::MAX,
        working_set: 0,
    };
    fake.declared_at(Nanos::millis(300), "job", said);
    let mut sink = Vec::new();
    held(&mut fake, &plan(), &mut sink);
    let given = sink.iter().find_map(|(_, e)| match e {
        Event::Adapted { to_bytes_per_s, .. } => Some(*to_bytes_per_s),
        _ => None,
    });
    assert_eq!(given, Some(1_500_000_000));
    let told = |e: &Event| matches!(e, Event::Finding { what, .. } if what.contains("8.5GB/s"));
    assert!(sink.iter().any(|(_, e)| told(e)), "{sink:?}");
}

#[test]
fn what_a_program_says_of_its_units_is_where_the_others_begin() {
    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(2), 0, &[]);
    let said = |bytes_per_unit| Declared {
        bytes_per_unit,
        working_set: 3 << 20,
    };
    // 64 MB in 8 ms are 8 of the 10 GB/s that all CPUs draw together.
    fake.declared_at(Nanos::millis(300), "job", said(64_000_000));
    fake.unit_at(Nanos::millis(500), "job", Nanos::millis(7));
    // A later declaration is recorded and moves nothing.
    fake.declared_at(Nanos::secs(1), "job", said(1));
    let mut sink = Vec::new();
    held(&mut fake, &plan(), &mut sink);
    let declared = sink
        .iter()
        .filter(|(_, e)| matches!(e, Event::Declared { .. }));
    assert_eq!(declared.count(), 2);
    let moves: Vec<_> = sink
        .iter()
        .filter_map(|(at, e)| match e {
            Event::Adapted {
                from_bytes_per_s,
                to_bytes_per_s,
                why,
                ..
            } => Some((*at, *from_bytes_per_s, *to_bytes_per_s, why.as_str())),
            _ => None,
        })
        .collect();
    let why = "its units are said to draw 8GB/s";
    assert_eq!(
        moves,
        [(Nanos::millis(300), 4_000_000_000, 2_000_000_000, why)]
    );
    assert!(
        fake.log.contains(&"budget 2-3 15624".to_owned()),
        "{:?}",
        fake.log
    );
}

#[test]
fn of_two_groups_the_worst_off_is_obeyed_and_each_is_judged() {
    let mut plan = plan();
    let observed = plan.loops.observed["job"].clone();
    plan.loops.observed.insert("other".into(), observed);
    if let Some(adapts) = &mut plan.loops.adapts {
        adapts.groups.push("other".into());
    }
    plan.promises.push(in_time("other"));
    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(6), 0, &[]);
    for n in 0..400 {
        fake.unit_at(Nanos::millis(1_000 + 10 * n), "job", Nanos::millis(7));
        fake.unit_at(Nanos::millis(1_001 + 10 * n), "other", Nanos::millis(9));
    }
    let mut sink = Vec::new();
    let standing = held(&mut fake, &plan, &mut sink);
    let mut left = 4_000_000_000;
    for (_, event) in &sink {
        if let Event::Adapted {
            group,
            from_bytes_per_s,
            to_bytes_per_s,
            ..
        } = event
        {
            assert_eq!((group.as_str(), *from_bytes_per_s), ("other", left));
            left = *to_bytes_per_s;
        }
    }
    assert_eq!(left, 1_000_000_000);
    let lost: Vec<_> = standing.all().filter(|(_, w)| w.was_lost()).collect();
    let [(id, worth)] = lost.as_slice() else {
        panic!("{lost:?}")
    };
    assert_eq!(plan.promise(*id).unwrap().group, "other");
    let why = worth.because.as_ref().unwrap().to_string();
    assert!(why.contains("units were late, more than"), "{why}");
}

#[test]
fn what_is_only_observed_moves_nothing() {
    let mut plan = plan();
    plan.loops.adapts = None;
    let (fake, sink) = ran(&plan, &[Nanos::millis(9); 30]);
    assert!(!fake.log.iter().any(|l| l.starts_with("budget")));
    assert!(
        sink.iter()
            .any(|(_, e)| matches!(e, Event::Units { late, .. } if *late > 0))
    );
}

#[test]
fn a_target_is_judged_whether_or_not_budgets_move() {
    let mut plan = plan();
    plan.loops.adapts = None;
    let verdict = |took: Nanos| {
        let (_, sink) = ran(&plan, &[took; 300]);
        let found = sink.iter().find_map(|(_, event)| match event {
            Event::Target { group, verdict } => Some((group.clone(), *verdict)),
            _ => None,
        });
        found.unwrap()
    };
    let (group, late) = verdict(Nanos::millis(90));
    assert!(
        !late.is_met() && late.late == late.units,
        "{group}: {late:?}"
    );
    assert_eq!(late.longest_ns, Nanos::millis(90).0);
    let (_, met) = verdict(Nanos(1_000));
    assert!(met.is_met() && met.units > 0, "{met:?}");
}
