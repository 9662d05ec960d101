//! Generators that keep time by themselves, as programs: a task that is held up, and the two stages
//! of a call, killed and replaced. None of it needs root.
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{quell, run, send};
use quell_record::measurement::Measurement;
use rustix::process::Signal;

/// A generator as a runner starts it.
struct Generator {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Generator {
    fn start(workload: &str) -> Self {
        let mut child = quell()
            .args(["__generator", workload])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut generator = Self {
            child,
            to,
            from: BufReader::new(from),
        };
        assert_eq!(generator.line(), "ready\n");
        generator
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line
    }

    fn go(&mut self, warmup: u64, millis: u64) {
        let line = format!("go {} {}\n", warmup * 1_000_000, millis * 1_000_000);
        self.to.write_all(line.as_bytes()).unwrap();
    }

    fn result(&mut self) -> Measurement {
        let line = self.line();
        serde_json::from_str(line.strip_prefix("result ").unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        send(self.child.id(), signal);
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mean(measured: &Measurement, metric: &str) -> f64 {
    let values = &measured.metrics[metric];
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn a_task_that_is_held_up_misses_the_deadlines_of_that_time() {
    let mut task = Generator::start(r#"{"kind":"periodic","size":"16KiB","period":"10ms"}"#);
    task.go(0, 1_500);
    sleep(Duration::from_millis(300));
    task.signal(Signal::STOP);
    sleep(Duration::from_millis(400));
    task.signal(Signal::CONT);
    let measured = task.result();
    let missed: f64 = measured.metrics["misses"].iter().sum();
    // 40 releases lie in the stop; all but the first of them never began.
    assert!(missed >= 35.0, "{missed} misses");
    let latest = measured.metrics["wakeup_us"]
        .iter()
        .copied()
        .fold(0.0, f64::max);
    let typical = {
        let mut all = measured.metrics["wakeup_us"].clone();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    assert!(
        latest > 100_000.0 && latest > 5.0 * typical,
        "woken {latest} us late at worst, {typical} typically"
    );
}

const CALL: &str = r#"{"kind":"frames-call","frame":"96KiB","ring":3,"search":2,"rate":"1MB/s"}"#;
const DISPLAY: &str = r#"{"kind":"frames-display","frame":"96KiB","ring":3}"#;

/// Stages with one parent meet, and all tests here are one parent.
static STAGES: Mutex<()> = Mutex::new(());

/// Names that stages of this test's run hold in the abstract namespace.
fn names() -> usize {
    let ours = format!("@quell-frames-{}-", std::process::id());
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    all.lines().filter(|line| line.contains(&ours)).count()
}

#[test]
fn stages_that_are_killed_leave_nothing_and_can_be_replaced() {
    let _alone = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut display = Generator::start(DISPLAY);
    let mut call = Generator::start(CALL);
    assert_eq!(names(), 1, "the display waits under one name");
    display.go(500, 1_000);
    call.go(500, 1_000);
    let (shown, sent) = (display.result(), call.result());
    assert!(mean(&shown, "age_ms") > 0.0);
    assert!(mean(&sent, "rtt_ms") > 0.0 && mean(&sent, "media_kb_s") > 0.0);

    display.signal(Signal::KILL);
    drop(display);
    call.go(0, 500);
    assert!(
        mean(&call.result(), "frames_per_s") > 0.0,
        "the call goes on"
    );

    let mut display = Generator::start(DISPLAY);
    display.go(1_000, 500);
    call.go(1_000, 500);
    assert!(
        display.result().metrics.contains_key("age_ms"),
        "they meet again"
    );
    call.result();

    for stage in [call, display] {
        stage.signal(Signal::KILL);
        drop(stage);
    }
    assert_eq!(names(), 0);
}

#[test]
fn benches_report_every_metric_with_percentiles() {
    let _alone = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
    for (args, metrics) in [
        (
            vec![
                "bench", "periodic", "--size", "16KiB", "--period", "5ms", "--passes", "2",
            ],
            vec!["wakeup_us", "response_us", "misses"],
        ),
        (
            vec!["bench", "frames", "--frame", "96KiB", "--ring", "2"],
            vec!["rtt_ms", "frames_per_s", "media_kb_s", "encode_ms"],
        ),
        (
            vec![
                "bench", "frames", "--stage", "display", "--frame", "96KiB", "--ring", "2",
            ],
            vec!["frames_per_s", "compose_ms"],
        ),
    ] {
        let mut args = args;
        args.extend(["--warmup", "100ms", "--duration", "500ms"]);
        let text = run(&args);
        assert_eq!(text.code, 0, "{text:?}");
        args.push("--json");
        let report = run(&args).json();
        assert!(report["p99"].as_f64().unwrap() > 0.0, "{report}");
        for metric in metrics {
            assert!(
                report["metrics"][metric]["p99"].is_number(),
                "{metric} in {report}"
            );
            assert!(text.out.contains(metric), "{metric} in {}", text.out);
        }
    }
    run(&["bench", "frames", "--stage", "display", "--search", "3"]).fails(2, &["--search"]);
    run(&["bench", "frames", "--fps", "0"]).fails(2, &["fps", "240"]);
    run(&["bench", "periodic", "--priority", "90"]).fails(2, &["priority", "79"]);
}
