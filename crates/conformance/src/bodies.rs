//! The test bodies. Each begins on a machine where nothing is applied and nothing runs, and leaves
//! it in that state.

mod divided;
mod held;
mod mechanisms;
mod next_to;

use quell_control::config::Meter;
use quell_control::config::Pooling;
use quell_control::config::Regulation;
use quell_control::config::{Frame, Span};
use quell_plan::inventory::MeterKind;
use quell_plan::{DiskRates, Observed, Promise, Setting};
use quell_record::backend::{Action, HoldOptions, Seen, SubjectId};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::options::{After, Idle};
use quell_types::source::Source;
use quell_types::units::{Lines, Nanos, Rate, Share};

use crate::{
    Arm, confine, divided, gather, inventory, measured, measured_together, offers, plan, rate,
    started, step, subject, within,
};

pub use divided::{
    exclusive_groups_keep_what_is_in_their_ways,
    groups_of_the_same_ways_share_a_class_where_there_are_few,
};
pub use held::{a_promise_lost_while_held_is_told_by_its_number, drift_is_answered_as_asked};

pub use mechanisms::*;

pub use next_to::{
    a_program_beside_a_limited_group_runs_on, two_limited_groups_on_a_cpu_have_a_budget_each,
};

/// Work that needs a CPU and nothing else.
const WORK: &str = "latency:size=16KiB";
/// The same, with a rate that is proportional to its CPU time.
const BUSY: &str = "bandwidth:read,size=16KiB";

/// A subject begins when asked to, and reports what it did in the span asked for. It runs on
/// afterwards, can be measured again, and ends when asked to.
pub fn subjects_start_are_measured_run_on_and_stop(arm: &mut dyn Arm) {
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let stream = subject("a", arm.stream(), Some(&first));
    let id = started(arm, &stream);
    let once = measured(arm, id, warmup, duration);
    assert!(once.bytes > 0 && once.duration_ns >= duration.0, "{once:?}");
    let windows = &once.metrics["bandwidth_mb_s"];
    let expected = duration.0 / once.window_ns;
    assert_eq!(windows.len() as u64, expected, "a value for every window");
    let before = arm.progress(id);
    pass(arm, duration);
    let after = arm.progress(id);
    assert!(after > before, "it rests after being measured: {before}");
    let again = measured(arm, id, Nanos(0), duration);
    assert!(again.bytes > 0, "{again:?}");
    arm.backend().act(&Action::Stop(id)).unwrap();
    arm.backend().undo().unwrap();
}

/// Waits for `duration` on the machine's clock.
fn pass(arm: &mut dyn Arm, duration: Nanos) {
    let mut seen = Vec::new();
    let end = arm.backend().now().plus(duration);
    while arm.backend().wait(end, &mut seen).unwrap() < end {}
}

/// A group confined to CPUs, regulated if `limit` is given.
fn confined(arm: &mut dyn Arm, name: &str, cpus: &CpuSet, limit: Option<Regulation>) {
    gather(arm, name);
    confine(arm, name, cpus, false);
    if let Some(limit) = limit {
        let regulate = step(name, Mechanism::Bandwidth, Setting::Regulate(limit));
        arm.backend().apply(&regulate).unwrap();
    }
}

/// Starts the machine's stream in a group, and prefers it to all other tasks.
fn streaming(arm: &mut dyn Arm, name: &str, cpus: &CpuSet) -> SubjectId {
    arm.prefer();
    let stream = subject(name, arm.stream(), Some(cpus));
    started(arm, &stream)
}

/// All subjects of the group are confined, wherever they were started.
pub fn a_confined_group_runs_on_its_cpus(arm: &mut dyn Arm) {
    let (first, others) = divided(arm);
    for cpus in [&first, &others] {
        gather(arm, "a");
        confine(arm, "a", cpus, false);
        for _ in 0..2 {
            let id = started(arm, &subject("a", WORK, None));
            let found = arm.found_on(id);
            assert!(
                !found.is_empty() && found.is_subset(cpus),
                "{found}, not {cpus}"
            );
        }
        arm.backend().undo().unwrap();
    }
}

/// The CPUs are denied to another group's subjects and to those of no group.
pub fn exclusive_cpus_are_denied_to_others_and_to_the_rest(arm: &mut dyn Arm) {
    let (first, others) = divided(arm);
    gather(arm, "a");
    confine(arm, "a", &first, true);
    gather(arm, "b");
    confine(arm, "b", &others, false);
    let cpus = others.clone();
    let rest = step("rest", Mechanism::Cores, Setting::ConfineRest { cpus });
    arm.backend().apply(&rest).unwrap();
    for name in ["b", "of-no-group"] {
        let id = started(arm, &subject(name, WORK, None));
        let found = arm.found_on(id);
        assert!(found.is_subset(&others), "{name} is found on {found}");
    }
    // A subject that is pinned there is refused, or runs elsewhere.
    if let Ok(id) = arm.backend().start(&subject("b", WORK, Some(&first))) {
        let found = arm.found_on(id);
        assert!(
            found.is_subset(&others),
            "b insisted and is found on {found}"
        );
    }
    let id = started(arm, &subject("a", WORK, None));
    assert_eq!(arm.found_on(id), first);
    arm.backend().undo().unwrap();
}

/// The rate is at most 5 % above the limit, by the stream's own count, and the subject still runs.
pub fn a_bandwidth_limit_is_held_and_the_subject_goes_on(arm: &mut dyn Arm) {
    let Some(meter) = arm.meter() else { return };
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let stream = |arm: &mut dyn Arm, limit: Option<(Rate, Rate)>| {
        let limit = limit.map(|(limit, peak)| regulation(arm, &first, meter, limit, peak));
        confined(arm, "a", &first, limit);
        let id = streaming(arm, "a", &first);
        let found = rate(&measured(arm, id, warmup, Nanos(4 * duration.0)));
        arm.backend().undo().unwrap();
        found
    };
    for part in [0.2, 0.5] {
        let what = format!("a stream, of its limit of {part} of what it reaches");
        // A rate far below 1 means that it hardly ran.
        within(arm, &what, (0.5, 1.05), &mut |arm| {
            let free = stream(arm, None);
            let limit = free * part;
            stream(arm, Some((of(limit), of(free)))) / limit
        });
    }
}

/// The budget of a running stream is moved to half, and that is held from then on.
pub fn a_budget_that_is_moved_holds(arm: &mut dyn Arm) {
    let Some(meter) = arm.meter() else { return };
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    within(
        arm,
        "a stream, of its budget moved to half",
        (0.35, 0.6),
        &mut |arm| {
            confined(arm, "a", &first, None);
            let id = streaming(arm, "a", &first);
            let free = rate(&measured(arm, id, warmup, duration));
            arm.backend().undo().unwrap();
            let limit = regulation(arm, &first, meter, of(free * 0.6), of(free));
            confined(arm, "a", &first, Some(limit));
            let id = streaming(arm, "a", &first);
            let before = rate(&measured(arm, id, warmup, Nanos(4 * duration.0)));
            let budget = Lines::at(of(free * 0.3), arm.period());
            let cpus = first.clone();
            let group = "a".to_owned();
            let moved = Action::Budget {
                group,
                cpus,
                budget,
            };
            arm.backend().act(&moved).unwrap();
            let after = rate(&measured(arm, id, warmup, Nanos(4 * duration.0)));
            arm.backend().undo().unwrap();
            after / before
        },
    );
}

/// Where the machine separates lines that come in from lines written back, each direction is held
/// to its budget. A direction that is not drawn stops no group. Elsewhere the regulation is
/// refused.
pub fn each_direction_has_its_own_budget(arm: &mut dyn Arm) {
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let limits = |arm: &dyn Arm, reads: f64, writes: f64| {
        let writes = Lines::at(of(writes), arm.period());
        regulation(
            arm,
            &first,
            Meter::Directions { writes },
            of(reads),
            of(reads),
        )
    };
    let meter = inventory(arm).means.meter;
    let separate = matches!(&meter, MeterKind::Hardware { apart, .. } if first.is_subset(apart));
    if !separate {
        quell_testing::skip_part(format_args!(
            "reads and writes are not counted separately here ({meter:?}): that is refused"
        ));
        gather(arm, "a");
        confine(arm, "a", &first, false);
        let set = Setting::Regulate(limits(arm, 1e9, 1e9));
        let refused = arm.backend().apply(&step("a", Mechanism::Bandwidth, set));
        refused.expect_err("two budgets without two counters");
        arm.backend().undo().unwrap();
        return;
    }
    let stream = |arm: &mut dyn Arm, run: &str, limit: Option<Regulation>| {
        confined(arm, "a", &first, limit);
        arm.prefer();
        let id = started(arm, &subject("a", run, Some(&first)));
        let found = rate(&measured(arm, id, warmup, Nanos(4 * duration.0)));
        arm.backend().undo().unwrap();
        found
    };
    let (read, write) = ("bandwidth:read,size=64MiB", "bandwidth:write,size=64MiB");
    // A store to memory brings the line in and writes it back, so its rate is that of either
    // direction.
    for (which, of_reads, of_writes) in [("reads", 0.3, 2.0), ("write-backs", 2.0, 0.3)] {
        let what = format!("a stream of stores, of its budget of {which}");
        within(arm, &what, (0.5, 1.05), &mut |arm| {
            let free = stream(arm, write, None);
            let limit = limits(arm, free * of_reads, free * of_writes);
            stream(arm, write, Some(limit)) / (0.3 * free)
        });
    }
    let what = "a stream that only reads, next to a small budget of writes, of its free rate";
    within(arm, what, (0.95, 1.05), &mut |arm| {
        let free = stream(arm, read, None);
        let limit = limits(arm, free * 2.0, free * 0.1);
        stream(arm, read, Some(limit)) / free
    });
}

/// All units of an observed group are seen, in order of time; of other groups none is seen.
pub fn units_of_observed_groups_are_seen(arm: &mut dyn Arm) {
    let (first, _) = divided(arm);
    let target = Nanos::millis(5);
    let observed = Observed {
        source: Source::Client,
        matching: Vec::new(),
        deadline: Some(target),
        percentile: Share::percent(99),
    };
    let mut plan = plan(
        vec![step("a", Mechanism::Cores, Setting::OomImmune)],
        Promise::Deadline {
            deadline: Some(target),
            percentile: Share::percent(99),
        },
        Level::None,
    );
    plan.loops.observed.insert("a".to_owned(), observed);
    let how = HoldOptions::default();
    arm.backend().hold(&plan, how).unwrap();
    let job = "periodic:size=16KiB,period=2ms";
    for name in ["a", "b"] {
        let subject = started(arm, &subject(name, job, Some(&first)));
        let (warmup, duration) = (Nanos(0), Nanos::millis(100));
        let go = Action::Go {
            subject,
            warmup,
            duration,
        };
        arm.backend().act(&go).unwrap();
    }
    let end = arm.backend().now().plus(Nanos::millis(200));
    let (mut seen, mut units) = (Vec::new(), Vec::new());
    loop {
        let now = arm.backend().wait(end, &mut seen).unwrap();
        for one in seen.drain(..) {
            if let Seen::Units(group, _, new, lost) = one {
                assert_eq!((group.as_str(), lost), ("a", 0));
                assert!(new.iter().all(|u| u.ended <= now), "{new:?}");
                units.extend(new);
            }
        }
        if now >= end {
            break;
        }
    }
    // A hundred; some may not begin where other tasks want the CPU.
    assert!((10..=101).contains(&units.len()), "{units:?}");
    let mut pairs = units.windows(2);
    assert!(pairs.all(|p| p[0].ended <= p[1].ended), "{units:?}");
    arm.backend().undo().unwrap();
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive rate"
)]
fn of(bytes_per_s: f64) -> Rate {
    Rate(bytes_per_s as u64)
}

fn regulation(arm: &dyn Arm, cpus: &CpuSet, meter: Meter, limit: Rate, peak: Rate) -> Regulation {
    let period = arm.period();
    Regulation {
        cpus: cpus.clone(),
        budget: Lines::at(limit, period),
        period,
        meter,
        peak,
        pooling: None,
        split: Split::Even,
        least: Lines(0),
    }
}

/// A group that sleeps has a reserve. Its neighbour draws what the reserve leaves with `reclaim`,
/// and not without. With sharing it draws more than in both cases.
pub fn pooled_budgets_give_what_a_sleeper_leaves(arm: &mut dyn Arm) {
    let Some(meter) = arm.meter() else { return };
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, others) = divided(arm);
    let second = CpuSet::from_iter(others.first());
    let (warmup, duration) = arm.spans();
    // The neighbour's rate; `free`: both CPUs are regulated to a fifth of it.
    let stream = |arm: &mut dyn Arm, free: Option<f64>, reclaim, after| {
        for (name, cpus) in [("a", &first), ("b", &second)] {
            let pooling = Some(Pooling {
                reclaim,
                after,
                predictor: Share::WHOLE,
                idle: Idle::Counted,
                quantum: Lines(1 << 16),
                capped: true,
                headroom: false,
            });
            let limit = free.map(|free| Regulation {
                pooling,
                ..regulation(arm, cpus, meter, of(free * 0.2), of(free))
            });
            confined(arm, name, cpus, limit);
        }
        arm.prefer();
        started(arm, &subject("a", WORK, Some(&first)));
        let id = streaming(arm, "b", &second);
        let found = rate(&measured(arm, id, warmup, Nanos(4 * duration.0)));
        arm.backend().undo().unwrap();
        found
    };
    // A short budget may yield far less than its part of a longer one: a burst begins with cold
    // caches.
    within(
        arm,
        "with reclaim, of its own",
        (1.6, f64::INFINITY),
        &mut |arm| {
            let free = stream(arm, None, false, After::Wait);
            let own = stream(arm, Some(free), false, After::Wait);
            let both = stream(arm, Some(free), true, After::Wait);
            let most = 1.05 + arm.noise().0;
            let of_budgets = [own / free / 0.2, both / free / 0.4];
            match of_budgets.iter().all(|of| *of <= most) {
                true => both / own,
                false => f64::NAN,
            }
        },
    );
    for after in [After::Spare, After::Proportional] {
        let what = format!("{after:?} sharing, of both");
        within(arm, &what, (1.3, f64::INFINITY), &mut |arm| {
            let free = stream(arm, None, false, After::Wait);
            let both = stream(arm, Some(free), true, After::Wait);
            stream(arm, Some(free), true, after) / both
        });
    }
}

/// One of a group's two CPUs draws. Split by demand it gets nearly all of the budget, split evenly
/// half.
pub fn a_budget_goes_to_the_cpu_that_draws_it(arm: &mut dyn Arm) {
    let Some(meter) = arm.meter() else { return };
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, others) = divided(arm);
    let second = CpuSet::from_iter(others.first());
    let both = first.union(&second);
    let (_, duration) = arm.spans();
    let stream = |arm: &mut dyn Arm, limit: Option<(f64, Split)>| {
        let limit = limit.map(|(free, split)| Regulation {
            split,
            ..regulation(arm, &both, meter, of(free * 0.25), of(free))
        });
        confined(arm, "a", &both, limit);
        let id = streaming(arm, "a", &first);
        // The budget is split again several times before the measurement counts.
        let found = rate(&measured(
            arm,
            id,
            Nanos(4 * duration.0),
            Nanos(4 * duration.0),
        ));
        arm.backend().undo().unwrap();
        found
    };
    within(
        arm,
        "by demand, of an even part",
        (1.6, f64::INFINITY),
        &mut |arm| {
            let free = stream(arm, None);
            let even = stream(arm, Some((free, Split::Even)));
            let demand = stream(arm, Some((free, Split::Demand)));
            let of_budget = demand / free / 0.5;
            match of_budget <= 1.05 + arm.noise().0 {
                true => demand / even,
                false => f64::NAN,
            }
        },
    );
}

/// CPUs that one group had alone can be used by all tasks again.
pub fn undoing_takes_everything_back_and_twice_changes_nothing(arm: &mut dyn Arm) {
    let (first, others) = divided(arm);
    assert_eq!(
        arm.backend().undo().unwrap().restored,
        0,
        "nothing was done"
    );
    gather(arm, "a");
    confine(arm, "a", &first, true);
    let rest = Setting::ConfineRest { cpus: others };
    arm.backend()
        .apply(&step("rest", Mechanism::Cores, rest))
        .unwrap();
    let running = started(arm, &subject("a", WORK, None));
    assert_eq!(arm.found_on(running), first);
    let undone = arm.backend().undo().unwrap();
    assert!(undone.restored > 0 && undone.left.is_empty(), "{undone:?}");
    let again = arm.backend().undo().unwrap();
    assert_eq!((again.restored, again.left), (0, Vec::new()));
    let id = started(arm, &subject("b", WORK, Some(&first)));
    assert_eq!(arm.found_on(id), first);
    arm.backend().undo().unwrap();
}

/// The message has the group's name.
pub fn a_group_that_was_not_gathered_is_refused(arm: &mut dyn Arm) {
    let (first, _) = divided(arm);
    let set = Setting::Confine {
        cpus: first,
        mems: CpuSet::from_iter([0]),
        exclusive: false,
    };
    let refused = arm
        .backend()
        .apply(&step("stranger", Mechanism::Cores, set))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("stranger"), "{refused}");
    assert_eq!(arm.backend().undo().unwrap().restored, 0);
}

/// Those of the CPUs that do exist are not set either.
pub fn cpus_that_do_not_exist_are_refused(arm: &mut dyn Arm) {
    let (first, others) = divided(arm);
    gather(arm, "a");
    let beyond = CpuSet::from_iter(first.iter().chain([4000]));
    let set = Setting::Confine {
        cpus: beyond,
        mems: CpuSet::from_iter([0]),
        exclusive: true,
    };
    let refused = arm.backend().apply(&step("a", Mechanism::Cores, set));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("4000"), "{refused}");
    // No task was moved away from the CPU that exists.
    let id = started(arm, &subject("b", WORK, Some(&first)));
    assert!(!arm.found_on(id).is_subset(&others));
    arm.backend().undo().unwrap();
}

/// The message has the subject's number.
pub fn a_subject_that_is_not_there_is_refused(arm: &mut dyn Arm) {
    let absent = SubjectId(77_777);
    let go = Action::Go {
        subject: absent,
        warmup: Nanos(0),
        duration: Nanos::millis(1),
    };
    for action in [go, Action::Stop(absent)] {
        let refused = arm.backend().act(&action).unwrap_err().to_string();
        assert!(refused.contains("77777"), "{refused}");
    }
}

/// This holds whatever was applied and reverted in between.
pub fn the_inventory_does_not_change(arm: &mut dyn Arm) {
    let before = inventory(arm);
    assert_eq!(inventory(arm), before);
    let (first, _) = divided(arm);
    gather(arm, "a");
    confine(arm, "a", &first, true);
    arm.backend().undo().unwrap();
    assert_eq!(inventory(arm), before);
}

/// Waiting ends at its time, with nothing seen. Undoing does not turn the clock back.
pub fn time_does_not_go_backwards(arm: &mut dyn Arm) {
    let (first, _) = divided(arm);
    let mut last = arm.backend().now();
    let mut goes_on = |arm: &mut dyn Arm| {
        let now = arm.backend().now();
        assert!(now >= last, "{now} after {last}");
        last = now;
    };
    for _ in 0..3 {
        let end = arm.backend().now().plus(Nanos::millis(2));
        let mut seen = Vec::new();
        while arm.backend().wait(end, &mut seen).unwrap() < end {
            goes_on(arm);
        }
        assert!(arm.backend().now() >= end);
        goes_on(arm);
        let id = started(arm, &subject("a", WORK, Some(&first)));
        goes_on(arm);
        arm.backend().act(&Action::Stop(id)).unwrap();
        arm.backend().undo().unwrap();
        goes_on(arm);
    }
}
