use std::thread;
use std::time::Duration;

use quell_types::units::{Nanos, Rate};

use super::super::display::Display;
use super::super::share::{Listener, SLOTS};
use super::*;

fn call(point: &str) -> Call {
    let workload = ResolvedWorkload::FramesCall {
        frame: Bytes(96 << 10),
        fps: 30,
        ring: 3,
        search: 2,
        rate: Rate(1_000_000),
    };
    Call::new(&workload, point).unwrap()
}

fn display(point: &str) -> Display {
    let workload = ResolvedWorkload::FramesDisplay {
        frame: Bytes(96 << 10),
        fps: 30,
        ring: 3,
    };
    Display::new(&workload, point).unwrap()
}

fn point(name: &str) -> String {
    format!("quell-test-{}-{name}", std::process::id())
}

fn span(warmup: u64, duration: u64) -> Span {
    Span {
        warmup: Nanos::millis(warmup),
        duration: Nanos::millis(duration),
        window: Nanos::millis(1),
    }
}

fn mean(measured: &Measurement, metric: &str) -> f64 {
    let values = &measured.metrics[metric];
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn alone_on_a_quiet_loopback_the_rate_rises_to_what_is_allowed() {
    let mut call = call(&point("alone"));
    let start = call.control.rate();
    let measured = call
        .span(span(3_000, 2_000), &mut || false)
        .unwrap()
        .unwrap();
    // It starts at a quarter. How far it rises in three seconds depends on what else this machine
    // does.
    assert!(call.control.rate() > 1.5 * start, "{}", call.control.rate());
    let frames = mean(&measured, "frames_per_s");
    assert!((10.0..=31.0).contains(&frames), "{frames}");
    // Program bytes: (search + 9) per byte encoded and 2 per byte decoded.
    let per_frame = measured.bytes as f64 / (96 << 10) as f64;
    let encoded = measured.metrics["encode_ms"].len() as f64;
    assert!((11.0 * encoded * 0.9..=13.0 * encoded * 1.1 + 13.0).contains(&per_frame));
    let (rtt, media) = (mean(&measured, "rtt_ms"), mean(&measured, "media_kb_s"));
    assert!(rtt > 0.0 && media > 0.0 && media < 1_100.0, "{rtt} {media}");
    assert_eq!(measured.metrics["bandwidth_mb_s"].len(), 2_000);
    assert_eq!(measured.metrics["frames_per_s"].len(), 2);
}

#[test]
fn both_stages_meet_and_the_display_shows_the_calls_frames() {
    let point = point("both");
    let mut display = display(&point);
    let shown = thread::spawn({
        move || {
            display
                .span(span(300, 1_500), &mut || false)
                .unwrap()
                .unwrap()
        }
    });
    let mut call = call(&point);
    let mut over = false;
    call.span(span(0, 2_500), &mut || {
        over |= shown.is_finished();
        over
    })
    .unwrap();
    let shown = shown.join().unwrap();
    assert!(mean(&shown, "frames_per_s") > 5.0);
    assert!(mean(&shown, "age_ms") > 0.0 && !shown.metrics.contains_key("media_kb_s"));
}

#[test]
fn a_display_alone_makes_frames_of_its_own_at_its_rate() {
    let mut display = display(&point("display-alone"));
    let shown = display
        .span(span(100, 1_000), &mut || false)
        .unwrap()
        .unwrap();
    let frames = mean(&shown, "frames_per_s");
    assert!((10.0..=31.0).contains(&frames), "{frames}");
    assert!(!shown.metrics.contains_key("age_ms"));
    // A frame and its screen: 1 + 4 · 8/3 times the frame.
    let each = shown.bytes as f64 / shown.metrics["compose_ms"].len() as f64;
    assert!((each / ((96 << 10) as f64 * (1.0 + 32.0 / 3.0)) - 1.0).abs() < 0.1);
}

#[test]
fn a_stage_that_is_held_up_drops_frames_and_queues_nothing() {
    let mut call = call(&point("stalled"));
    let begin = clock::now();
    let mut stalls = 0;
    let measured = call
        .span(span(0, 2_000), &mut || {
            // Ten times 100 ms in which the stage does not run at all.
            if stalls < 10 && clock::now() > begin + (stalls + 1) * 150_000_000 {
                stalls += 1;
                thread::sleep(Duration::from_millis(100));
            }
            false
        })
        .unwrap()
        .unwrap();
    // Fewer than ten where the machine did not let it run all the time.
    assert!(stalls >= 3, "{stalls}");
    let encoded = measured.metrics["encode_ms"].len();
    // 60 frame times. Two or three of them passed in each stall.
    let most = 62 - 3 * usize::try_from(stalls).unwrap() / 2;
    assert!(encoded <= most, "{encoded} of 60 frames");
    assert!(call.flights.len() < REBUILT);
    let after = call.span(span(0, 1_000), &mut || false).unwrap().unwrap();
    let most = after.metrics["encode_ms"].len();
    assert!(most <= 31, "nothing is caught up with: {most}");
}

#[test]
fn a_display_that_stands_still_does_not_hold_the_call_up() {
    let point = point("still");
    let listener = Listener::new(&point).unwrap();
    let mut call = call(&point);
    let measured = call.span(span(0, 1_500), &mut || false).unwrap().unwrap();
    let mut stuck = listener.accept().unwrap();
    assert!(mean(&measured, "frames_per_s") > 2.0 * SLOTS as f64);
    // Three frames are in the display's slots. All later ones were never handed over.
    assert!(call.display.as_mut().unwrap().slot().unwrap().is_none());
    assert!(stuck.newest().unwrap().is_some());
}

#[test]
fn a_request_to_end_is_noticed_soon() {
    let mut call = call(&point("end"));
    let mut asked = 0;
    let ended = call
        .span(span(0, 3_600_000), &mut || {
            asked += 1;
            asked == 10
        })
        .unwrap();
    assert!(ended.is_none());
}
