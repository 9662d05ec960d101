use super::*;
use crate::sample;

#[test]
fn a_plan_reads_as_a_page() {
    let text = plan_text(
        &sample::plan(),
        Style {
            color: false,
            width: 80,
        },
    );
    sample::golden("plan", &text);
    let text = plan_steps_text(
        &sample::plan(),
        Style {
            color: false,
            width: 80,
        },
    );
    sample::golden("plan-steps", &text);
}

#[test]
fn an_empty_plan_says_that_nothing_happens() {
    let mut plan = sample::plan();
    plan.steps.clear();
    plan.promises.clear();
    plan.groups.clear();
    plan.notes.clear();
    assert_eq!(
        plan_text(&plan, Style::default()),
        "Plan for 'regulated@10%'\n\nPromises\n  none: nothing that the policy asks for can be done here\n\nCost\n  none: no task is slowed or moved\n"
    );
}

#[test]
fn where_everything_else_runs_stands_with_the_groups() {
    let mut plan = sample::plan();
    plan.steps.truncate(1);
    plan.steps[0].set = Setting::ConfineRest {
        cpus: "0,2,4,6,8".parse().unwrap(),
    };
    let text = plan_steps_text(&plan, Style::default());
    let row = text.lines().find(|l| l.starts_with("  rest")).unwrap();
    assert!(row.contains("0,2,…,8"), "{text}");
}

#[test]
fn what_is_not_held_is_not_said_to_be_held_by_a_step() {
    let mut plan = sample::plan();
    plan.promises.truncate(1);
    plan.promises[0].level = Level::None;
    plan.promises[0].held_by = vec![StepId(3), StepId(4)];
    let text = plan_steps_text(&plan, Style::default());
    assert!(
        text.contains(", not held, though steps 3 and 4 help\n"),
        "{text}"
    );
}

#[test]
fn both_budgets_are_said_in_lines_per_period() {
    let plan = sample::plan();
    let mut regulate = plan.steps.into_iter().find_map(|step| match step.set {
        Setting::Regulate(regulation) => Some(regulation),
        _ => None,
    });
    let regulation = regulate.as_mut().unwrap();
    (regulation.budget, regulation.period) = (Lines(4_000), Nanos::millis(1));
    let mut said = |meter| {
        regulation.meter = meter;
        let text = describe(&Setting::Regulate(regulation.clone()));
        text.split(", counted").next().unwrap().to_owned()
    };
    let writes = Lines(500);
    assert_eq!(
        said(Meter::Directions { writes }),
        "let CPU 1 read 256MB/s (4000 cache lines per 1ms) and write back 32MB/s (500 cache lines per 1ms)"
    );
    assert_eq!(
        said(Meter::Writes),
        "let CPU 1 write back 256MB/s (4000 cache lines per 1ms)"
    );
}

#[test]
fn matches_read_as_on_the_command_line() {
    let table = TaskMatch {
        exe: Some("/usr/bin/x".into()),
        user: Some("y".into()),
        ..TaskMatch::default()
    };
    let set = Setting::Gather {
        matching: vec![table],
        outermost: false,
        braked: false,
    };
    assert_eq!(describe(&set), "gather in a cgroup: exe=/usr/bin/x,user=y");
    let unit = TaskMatch {
        unit: Some("a.service".into()),
        ..TaskMatch::default()
    };
    let set = Setting::Gather {
        matching: vec![unit],
        outermost: false,
        braked: false,
    };
    assert_eq!(describe(&set), "use its own cgroup: unit=a.service");
}
