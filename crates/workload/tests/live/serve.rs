//! The child protocol over real pipes.
#![allow(
    clippy::unwrap_used,
    reason = "a test: helpers outside test functions, too"
)]

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quell_policy::workload::{Access, Operation, Order, Pages};
use quell_record::measurement::Measurement;
use quell_types::units::{Bytes, Rate};
use quell_workload::{Error, ResolvedWorkload, ServeOptions, serve};

struct Child {
    to: PipeWriter,
    from: BufReader<PipeReader>,
    thread: JoinHandle<Result<(), Error>>,
}

fn start(workload: ResolvedWorkload) -> Child {
    let (stdin, to) = pipe().unwrap();
    let (from, stdout) = pipe().unwrap();
    let thread = thread::spawn(move || serve(&workload, &ServeOptions::default(), stdin, stdout));
    Child {
        to,
        from: BufReader::new(from),
        thread,
    }
}

impl Child {
    fn say(&mut self, line: &str) {
        self.to.write_all(line.as_bytes()).unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line
    }

    fn result(&mut self) -> Measurement {
        let line = self.hear();
        serde_json::from_str(line.strip_prefix("result ").unwrap()).unwrap()
    }
}

fn list() -> ResolvedWorkload {
    ResolvedWorkload::Latency {
        size: Bytes(1 << 20),
        order: Order::Random,
        pages: Pages::Base,
        operation: Access::Read,
    }
}

fn stream(rate: Option<Rate>) -> ResolvedWorkload {
    ResolvedWorkload::Bandwidth {
        operation: Operation::Write,
        size: Bytes(1 << 20),
        pages: Pages::Base,
        rate,
    }
}

/// Whether `mean` can be a mean of the values, which are rounded to four decimals.
fn assert_between(values: &[f64], mean: f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    assert!(
        (least - 1e-4..=most + 1e-4).contains(&mean),
        "{least} {mean} {most}"
    );
}

#[test]
fn a_span_is_measured_and_the_load_stays_up_until_stop() {
    let mut child = start(list());
    assert_eq!(child.hear(), "ready\n");
    child.say("go 2000000 30000000\n");
    let first = child.result();
    assert_eq!(first.window_ns, 1_000_000);
    let values = &first.metrics["latency_ns"];
    assert_eq!(values.len(), 30);
    assert!(values.iter().all(|v| *v > 0.0));
    assert!(first.duration_ns >= 30_000_000);
    assert_eq!(first.bytes % 64, 0);
    // Bytes and windows agree: nanoseconds per line over the span is a weighted mean of the
    // windows.
    assert_between(values, first.duration_ns as f64 / (first.bytes / 64) as f64);

    thread::sleep(Duration::from_millis(5));
    assert!(!child.thread.is_finished(), "the load stays up");
    child.say("go 0 10000000\n");
    assert_eq!(child.result().metrics["latency_ns"].len(), 10);
    child.say("stop\n");
    child.thread.join().unwrap().unwrap();
}

#[test]
fn a_stream_counts_its_bytes() {
    let mut child = start(stream(None));
    assert_eq!(child.hear(), "ready\n");
    child.say("go 0 20000000\n");
    let result = child.result();
    assert_eq!(result.metrics["bandwidth_mb_s"].len(), 20);
    // Windows of 1 ms with so many bytes per microsecond. What was done after the last boundary is
    // in no window.
    let in_windows = result.metrics["bandwidth_mb_s"].iter().sum::<f64>() * 1e3;
    let bytes = result.bytes as f64;
    assert!(in_windows <= 1.0001 * bytes, "{in_windows} of {bytes}");
    // A stall at the end, longer than a fiftieth of the span, hides what follows it.
    let late = result.duration_ns as f64 / 20e6 - 1.0;
    assert!(
        late > 0.02 || in_windows >= 0.96 * bytes,
        "{in_windows} of {bytes}"
    );
    drop(child.to);
    child.thread.join().unwrap().unwrap();
}

#[test]
fn lists_side_by_side_report_their_latency_and_their_bandwidth() {
    let mut child = start(ResolvedWorkload::ParallelLists {
        lists: 4,
        size: Bytes(1 << 20),
        pages: Pages::Base,
        operation: Access::ReadWrite,
        banks: None,
    });
    assert_eq!(child.hear(), "ready\n");
    child.say("go 0 20000000\n");
    let result = child.result();
    let (latency, rate) = (
        &result.metrics["latency_ns"],
        &result.metrics["bandwidth_mb_s"],
    );
    assert_eq!((latency.len(), rate.len()), (20, 20));
    // Each access reads and writes a line.
    for (ns, mb_s) in latency.iter().zip(rate) {
        assert!(
            (ns * mb_s / 128e3 - 1.0).abs() < 1e-3,
            "{ns} ns, {mb_s} MB/s"
        );
    }
    drop(child.to);
    child.thread.join().unwrap().unwrap();
}

#[test]
fn the_end_of_input_ends_it_even_before_anything_began() {
    let child = start(list());
    drop(child.to);
    child.thread.join().unwrap().unwrap();
}

#[test]
fn stop_in_the_middle_of_a_long_span_ends_it_without_a_result() {
    // At a slow pace, so that it mostly sleeps. That must not delay the end either.
    for workload in [list(), stream(Some(Rate(1_000_000)))] {
        let mut child = start(workload);
        assert_eq!(child.hear(), "ready\n");
        child.say("go 0 3600000000000\n");
        thread::sleep(Duration::from_millis(3));
        let begin = Instant::now();
        child.say("stop\n");
        child.thread.join().unwrap().unwrap();
        // An hour was asked for. The bound in the contract is 10 ms; the rest is for a busy test
        // machine.
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert_eq!(child.from.lines().count(), 0);
    }
}

#[test]
fn what_is_no_command_is_an_error_that_quotes_it() {
    for (said, quoted) in [("gone 1 2\n", "gone 1 2"), ("go 0 0\n", "0ns")] {
        let mut child = start(list());
        assert_eq!(child.hear(), "ready\n");
        child.say(said);
        let text = child.thread.join().unwrap().unwrap_err().to_string();
        assert!(text.contains(quoted), "{text}");
    }
    let mut child = start(list());
    child.hear();
    child.say("go 0 3600000000000\ngo 0 1\n");
    assert!(child.thread.join().unwrap().is_err());
    let mut child = start(list());
    child.hear();
    child.say(&"x".repeat(300));
    assert!(child.thread.join().unwrap().is_err());
}
