//! Cells on the scripted machine.

use super::*;
use crate::drive::{DriveError, Driven, drive};
use crate::fake::{self, Fake, Scene, plan_with_steps};
use crate::sink::NoSink;
use quell_policy::workload::{Access, Operation, Order as Walk, Pages, Size, Workload};
use quell_record::backend::HoldOptions;

fn member(name: &str, program: Program, decides: bool) -> Member {
    let command = matches!(program, Program::Command(_));
    Member {
        spec: SubjectSpec {
            program,
            capture: true,
            ..fake::command(name)
        },
        decides,
        after: None,
        again: command && !decides,
        extracts: Vec::new(),
    }
}

fn list(name: &str, decides: bool) -> Member {
    let list = Workload::Latency {
        size: Size::Llc(0.5),
        order: Walk::Random,
        pages: Pages::Base,
        operation: Access::Read,
    };
    member(name, Program::Generator(list), decides)
}

fn stream(name: &str, decides: bool) -> Member {
    let stream = Workload::Bandwidth {
        operation: Operation::Write,
        size: Size::Llc(4.0),
        pages: Pages::Base,
        rate: None,
    };
    member(name, Program::Generator(stream), decides)
}

fn command(name: &str, decides: bool) -> Member {
    member(name, Program::Command(vec![name.into()]), decides)
}

fn extract(name: &str, pattern: &str, last_only: bool) -> Extract {
    Extract {
        name: name.into(),
        pattern: pattern.parse().unwrap(),
        last_only,
        required: true,
    }
}

/// Reports one window with this value per second of span.
fn steady(metric: &'static str, value: f64) -> impl Fn(&Scene<'_>) -> Measurement {
    move |scene| Measurement {
        ended_ns: Vec::new(),
        account: None,
        metrics: [(metric.to_owned(), vec![value])].into(),
        window_ns: 1_000_000,
        bytes: 1_000,
        duration_ns: scene.duration.0,
        begun: None,
        memory_bytes: None,
    }
}

const SPAN: Span = Span {
    warmup: Nanos::millis(200),
    duration: Nanos::secs(2),
    runs: false,
    longest: Nanos::secs(600),
};

fn run(
    fake: &mut Fake,
    members: Vec<Member>,
) -> (Result<Driven, DriveError>, BTreeMap<String, Measurement>) {
    let mut cell = Cell::new(members, SPAN);
    let out = drive(
        fake,
        &plan_with_steps(0),
        HoldOptions::default(),
        &mut cell,
        &mut NoSink,
    );
    assert!(fake.clean());
    (out, cell.into_measurements().0)
}

#[test]
fn generators_start_together_when_all_are_ready() {
    let mut fake = Fake::new();
    fake.generator("victim", steady("latency_ns", 15.0));
    fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
    let (out, measured) = run(
        &mut fake,
        vec![list("victim", true), stream("neighbour", false)],
    );
    out.unwrap();
    assert_eq!(
        fake.log,
        [
            "start victim",
            "start neighbour",
            "go victim 200ms 2s",
            "go neighbour 200ms 2s",
            "stop victim",
            "stop neighbour",
            "undo"
        ]
    );
    assert_eq!(measured["victim"].metrics["latency_ns"], [15.0]);
    assert_eq!(measured["neighbour"].bytes, 1_000);
}

#[test]
fn generators_are_load_for_as_long_as_a_command_takes() {
    let mut fake = Fake::new();
    fake.command(
        "job",
        Nanos::millis(2900),
        0,
        &["frame took 8 ms", "frame took 9 ms"],
    );
    fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
    let mut job = command("job", true);
    job.extracts = vec![extract("frame_ms", "took ([0-9.]+) ms", false)];
    let (out, measured) = run(&mut fake, vec![job, stream("neighbour", false)]);
    out.unwrap();
    // The command starts into a warm load. Spans of one second follow until it has ended.
    assert_eq!(
        fake.log,
        [
            "start neighbour",
            "go neighbour 200ms 1s",
            "start job",
            "go neighbour 0ns 1s",
            "go neighbour 0ns 1s",
            "exit job",
            "stop neighbour",
            "undo"
        ]
    );
    assert_eq!(measured["job"].metrics[RUN_TIME], [2.9]);
    assert_eq!(measured["job"].metrics["frame_ms"], [8.0, 9.0]);
    assert_eq!(measured["neighbour"].metrics["bandwidth_mb_s"].len(), 2);
    assert_eq!(measured["neighbour"].duration_ns, 2_000_000_000);
}

#[test]
fn a_short_command_waits_for_the_loads_first_report() {
    let mut fake = Fake::new();
    fake.command("job", Nanos::millis(100), 0, &[]);
    fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
    let (out, measured) = run(
        &mut fake,
        vec![command("job", true), stream("neighbour", false)],
    );
    out.unwrap();
    assert_eq!(measured["neighbour"].duration_ns, 1_000_000_000);
}

#[test]
fn a_command_that_does_not_end_fails_its_cell() {
    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(601), 0, &["still at it"]);
    fake.generator("neighbour", steady("bandwidth_mb_s", 9000.0));
    let (out, _) = run(
        &mut fake,
        vec![command("job", true), stream("neighbour", false)],
    );
    let why = out.unwrap_err().to_string();
    assert!(why.contains("'job' had not ended after 600s"), "{why}");
    // As a load it may.
    let mut fake = Fake::new();
    fake.generator("victim", steady("latency_ns", 15.0));
    fake.command("stress", Nanos::secs(1_000), 0, &[]);
    let (out, _) = run(
        &mut fake,
        vec![list("victim", true), command("stress", false)],
    );
    out.unwrap();
}

#[test]
fn a_command_that_is_load_is_kept_up_and_then_stopped() {
    let mut fake = Fake::new();
    fake.generator("victim", steady("latency_ns", 15.0));
    fake.command("stress", Nanos::millis(900), 0, &[]);
    let (out, measured) = run(
        &mut fake,
        vec![list("victim", true), command("stress", false)],
    );
    out.unwrap();
    assert_eq!(fake.log.iter().filter(|l| *l == "start stress").count(), 3);
    assert!(fake.log.contains(&"stop stress".to_owned()));
    assert_eq!(measured["stress"].metrics[RUN_TIME], [0.9]);
}

#[test]
fn a_subject_can_start_after_another() {
    let mut fake = Fake::new();
    fake.command("first", Nanos::secs(4), 0, &[]);
    fake.command("second", Nanos::secs(1), 0, &[]);
    let mut second = command("second", true);
    second.after = Some(("first".into(), Nanos::secs(1)));
    let (out, _) = run(&mut fake, vec![second, command("first", true)]);
    out.unwrap();
    assert_eq!(
        fake.log,
        [
            "start first",
            "start second",
            "exit second",
            "exit first",
            "undo"
        ]
    );
}

#[test]
fn the_last_match_counts_where_a_metric_is_per_run() {
    let mut fake = Fake::new();
    fake.command("bench", Nanos::secs(1), 0, &["rate 10", "rate 12.5"]);
    let mut bench = command("bench", true);
    bench.extracts = vec![extract("rate", "rate ([0-9.]+)", true)];
    let (_, measured) = run(&mut fake, vec![bench]);
    assert_eq!(measured["bench"].metrics["rate"], [12.5]);
}

#[test]
fn every_error_names_the_subject_and_what_it_said_last() {
    let case = |fake: &mut Fake, members| run(fake, members).0.unwrap_err().to_string();

    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(1), 2, &["cannot open input.mp4"]);
    assert_eq!(
        case(&mut fake, vec![command("job", true)]),
        "subject 'job' failed with exit status 2; its last output: cannot open input.mp4"
    );

    let mut fake = Fake::new();
    fake.command("job", Nanos::secs(1), 0, &["done"]);
    let mut job = command("job", true);
    job.extracts = vec![extract("fps", "fps=([0-9]+)", false)];
    assert_eq!(
        case(&mut fake, vec![job]),
        "subject 'job': no line matched the pattern 'fps=([0-9]+)' of metric 'fps' with a number; its last output: done"
    );

    let mut fake = Fake::new();
    fake.generator("victim", steady("latency_ns", 1.0));
    fake.mute("victim", "ready");
    assert!(
        case(&mut fake, vec![list("victim", true)])
            .starts_with("subject 'victim' was not ready within 120s")
    );

    let mut fake = Fake::new();
    fake.generator("victim", steady("latency_ns", 1.0));
    fake.mute("victim", "result");
    assert!(
        case(&mut fake, vec![list("victim", true)]).starts_with("subject 'victim' never reported")
    );
    assert_eq!(fake.log.last().unwrap(), "undo");

    let mut fake = Fake::new();
    fake.generator("victim", steady("latency_ns", 1.0));
    fake.command("noop", Nanos::millis(1), 0, &[]);
    assert!(
        case(
            &mut fake,
            vec![list("victim", true), command("noop", false)]
        )
        .contains("'noop' ended after 1ms")
    );
}
