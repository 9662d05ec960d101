//! The generators: each one runs, and the known relations between them hold.

use quell_policy::workload::Workload;
use quell_record::backend::{Backend, Program};
use quell_record::measurement::Measurement;
use quell_types::units::Nanos;

use crate::backend::{measure, rate, sim, subject};

const MS: Nanos = Nanos::millis(1);

/// What `run` measures alone on CPU 0, for 4 ms.
fn alone(run: &str) -> Measurement {
    program(run.parse().unwrap())
}

fn program(run: Workload) -> Measurement {
    let mut sim = sim();
    let mut spec = subject("one", "latency:size=4KiB", Some("0"));
    spec.program = Program::Generator(run);
    let id = sim.start(&spec).unwrap();
    let mut outcome = measure(&mut sim, &[id], MS, Nanos::millis(4));
    outcome.results.remove(&id).unwrap()
}

fn mean(measured: &Measurement, metric: &str) -> f64 {
    let values = &measured.metrics[metric];
    values.iter().sum::<f64>() / values.len() as f64
}

fn latency(run: &str) -> f64 {
    mean(&alone(run), "latency_ns")
}

#[test]
fn an_ordered_list_is_no_slower_than_a_random_one() {
    let random = latency("latency:size=16MiB");
    let ordered = latency("latency:size=16MiB,order=sequential");
    let storing = latency("latency:size=16MiB,operation=read-write");
    assert!(ordered <= random, "{ordered} in order, {random} at random");
    assert!(random > 30.0, "{random} ns: from memory");
    assert!(storing > 0.99 * random, "{storing} storing, {random} not");
    let measured = alone("latency:size=16KiB,operation=read-write");
    let accesses = measured.bytes / 128;
    let each = measured.duration_ns as f64 / accesses as f64;
    assert!((each / 1.428 - 1.0).abs() < 0.01, "{each} ns: four cycles");
}

#[test]
fn streams_move_what_they_say() {
    let of = |operation: &str| rate(&alone(&format!("bandwidth:{operation},size=16MiB")));
    let (read, write, copy, past) = (of("read"), of("write"), of("copy"), of("non-temporal"));
    // Alone a core is limited by its ten misses or by the bus. The bus moves at most 8.53 GB/s.
    let bus = 8.6e9;
    assert!(read > 1e9 && read < bus, "{read}");
    // Each written line is read first. A copy reads two lines and writes one.
    assert!(2.0 * write < bus && write < read, "{write} of {read}");
    assert!(1.5 * copy < bus && copy > write, "{copy} beside {write}");
    // No line is read.
    assert!(past < bus && past > 1.3 * write, "{past} beside {write}");
}

#[test]
fn lists_side_by_side_overlap_their_misses() {
    let of = |lists: u32| alone(&format!("parallel-lists:lists={lists},size=16MiB"));
    let (one, four) = (of(1), of(4));
    let (slow, fast) = (mean(&one, "latency_ns"), mean(&four, "latency_ns"));
    assert!(
        slow > 2.0 * fast,
        "{slow} ns with one list, {fast} with four"
    );
    let expected = 64e3 / fast;
    let found = mean(&four, "bandwidth_mb_s");
    assert!((found / expected - 1.0).abs() < 0.05, "{found} MB/s");
}

#[test]
fn lists_in_one_bank_wait_for_each_other() {
    let measured = |banks: &str| {
        let json = format!(
            r#"{{"kind":"parallel-lists","lists":8,"size":"4MiB","banks":{{"mask":"0x183000","take":{banks}}}}}"#
        );
        let mut spec = subject("one", "latency:size=4KiB", Some("0"));
        spec.program = Program::Generator(serde_json::from_str(&json).unwrap());
        let mut sim = sim();
        // Beyond the last-level cache. The lists fill a quarter of its sets more than twice over.
        let id = sim.start(&spec).unwrap();
        let noise = sim
            .start(&subject("noise", "bandwidth:read,size=32MiB", Some("1")))
            .unwrap();
        let outcome = measure(&mut sim, &[id, noise], MS, Nanos::millis(3));
        mean(&outcome.results[&id], "latency_ns")
    };
    let (one, all) = (
        measured("[0]"),
        measured("[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]"),
    );
    assert!(one > 1.2 * all, "{one} ns in one bank, {all} in all");
}

#[test]
fn churn_displaces_and_flushing_makes_traffic_from_inside() {
    let beside = |run: &str| {
        let mut sim = sim();
        let victim = sim
            .start(&subject("victim", "latency:size=2MiB", Some("0")))
            .unwrap();
        let churn = sim.start(&subject("churn", run, Some("1"))).unwrap();
        let outcome = measure(
            &mut sim,
            &[victim, churn],
            Nanos::millis(3),
            Nanos::millis(4),
        );
        mean(&outcome.results[&victim], "latency_ns")
    };
    let inside = beside("cache-churn:size=256KiB");
    let whole = beside("cache-churn:size=8MiB");
    assert!(
        whole > 1.2 * inside,
        "{whole} beside 8 MiB, {inside} beside 256 KiB"
    );
    let of = |operations: &str| {
        let json = format!(r#"{{"kind":"cache-churn","size":"128KiB","operations":{operations}}}"#);
        rate(&program(serde_json::from_str(&json).unwrap()))
    };
    let (warm, flushed) = (of(r#"["read"]"#), of(r#"["write","flush"]"#));
    // A line at random is drawn in some cycles, and so is a hit.
    assert!(warm > 1.5 * flushed, "{warm} kept, {flushed} flushed");
}

#[test]
fn stores_count_the_words_they_store() {
    let of = |more: &str| rate(&alone(&format!("stores:size=16MiB,{more}")));
    let (line, word) = (of("stride=64B"), of("stride=8B"));
    // As many lines, with eight times the words in each.
    assert!((4.0..8.5).contains(&(word / line)), "{word} and {line}");
    let past = of("stride=8B,operation=non-temporal");
    assert!(past > 1.2 * word, "{past} past the caches, {word} through");
    let inside =
        |operation: &str| rate(&alone(&format!("stores:size=16KiB,operation={operation}")));
    let (kept, flushed) = (inside("plain"), inside("flush"));
    assert!(kept > 3.0 * flushed, "{kept} kept, {flushed} flushed");
}

#[test]
fn a_target_rate_holds_alone_and_beside_others() {
    for (run, target) in [
        ("bandwidth:write,size=16MiB,rate=500MB/s", 5e8),
        ("bandwidth:copy,size=16MiB,rate=1GB/s", 1e9),
        ("cache-churn:size=8MiB,rate=300MB/s", 3e8),
        ("stores:size=16MiB,stride=16B,rate=200MB/s", 2e8),
    ] {
        let measured = alone(run);
        let of_target = rate(&measured) / target;
        assert!((0.98..=1.02).contains(&of_target), "{run}: {of_target}");
        // Slots of a tenth of a window: each window has some.
        let windows = &measured.metrics["bandwidth_mb_s"];
        assert!(
            windows.iter().all(|w| *w > 0.9 * target / 1e6),
            "{windows:?}"
        );
    }
    let mut sim = sim();
    let start =
        |sim: &mut quell_sim::Sim, name, run, cpu| sim.start(&subject(name, run, Some(cpu)));
    let paced = start(
        &mut sim,
        "paced",
        "bandwidth:read,size=16MiB,rate=400MB/s",
        "1",
    )
    .unwrap();
    let other = start(&mut sim, "other", "bandwidth:read,size=16MiB", "1").unwrap();
    // The other generator began with a slice of 3 ms. The paced one catches up on that first.
    let outcome = measure(
        &mut sim,
        &[paced, other],
        Nanos::millis(9),
        Nanos::millis(10),
    );
    let of_target = rate(&outcome.results[&paced]) / 4e8;
    assert!(
        (0.98..=1.02).contains(&of_target),
        "{of_target} beside another on its CPU"
    );
    assert!(rate(&outcome.results[&other]) > 4e8, "which gets the rest");
}

#[test]
fn a_real_time_task_is_slowed_by_whoever_takes_its_cache() {
    let task = |neighbour: Option<&str>| {
        let mut sim = sim();
        let run = "periodic:size=128KiB,period=1ms,priority=50";
        let mut all = vec![sim.start(&subject("task", run, Some("0"))).unwrap()];
        if let Some(run) = neighbour {
            all.push(sim.start(&subject("noise", run, Some("1"))).unwrap());
        }
        let mut outcome = measure(&mut sim, &all, Nanos::millis(3), Nanos::millis(10));
        outcome.results.remove(&all[0]).unwrap()
    };
    let (solo, beside) = (task(None), task(Some("cache-churn:size=8MiB")));
    for measured in [&solo, &beside] {
        for metric in ["cycles", "response_us", "misses"] {
            assert_eq!(measured.metrics[metric].len(), 10, "{metric}");
        }
        assert_eq!(measured.bytes, 10 * (128 << 10));
        assert_eq!(mean(measured, "misses"), 0.0);
        assert!(mean(measured, "wakeup_us") < 10.0);
    }
    // 4096 loads, two of which share a line: a cycle each where the line is near.
    let (alone, slowed) = (mean(&solo, "cycles"), mean(&beside, "cycles"));
    assert!(
        alone >= 4096.0 && slowed > 1.5 * alone,
        "{alone} and {slowed} cycles"
    );
    assert!(mean(&beside, "misses_per_ms") > mean(&solo, "misses_per_ms") + 100.0);
    assert!(mean(&beside, "ipc") < mean(&solo, "ipc"));
}

#[test]
fn a_call_alone_shows_every_frame_and_next_to_streams_fewer() {
    let call = |others: &[&str]| {
        let mut sim = sim();
        let mut all = vec![
            sim.start(&subject("call", "frames-call", Some("0")))
                .unwrap(),
        ];
        for (n, run) in others.iter().enumerate() {
            let cpu = (n + 1).to_string();
            all.push(sim.start(&subject("other", run, Some(&cpu))).unwrap());
        }
        let mut outcome = measure(&mut sim, &all, Nanos::millis(34), Nanos::millis(134));
        outcome.results.remove(&all[0]).unwrap()
    };
    let solo = call(&[]);
    let frames = mean(&solo, "frames_per_s");
    assert!((29.0..31.0).contains(&frames), "{frames} frames/s");
    // Each frame's packets come back, at the highest rate.
    let media = mean(&solo, "media_kb_s");
    assert!((media / 4_000.0 - 1.0).abs() < 0.1, "{media} kB/s");
    assert_eq!(mean(&solo, "wasted_packets"), 0.0);
    let demand = mean(&solo, "bandwidth_mb_s");
    assert!(
        (290.0..400.0).contains(&demand),
        "{demand} MB/s: 342, and a fifth more or less per frame"
    );
    // The network's round trip was chosen by hand for this row of the study.
    let rtt = mean(&solo, "rtt_ms");
    assert!((rtt / 1.85 - 1.0).abs() < 0.1, "{rtt} ms");
    let stream = "bandwidth:write,size=32MiB";
    let beside = call(&["frames-display", stream, stream]);
    let of = |metric| (mean(&solo, metric), mean(&beside, metric));
    // Packets wait for a frame that takes longer than its period.
    for metric in ["rtt_ms", "encode_ms"] {
        let (alone, slowed) = of(metric);
        assert!(
            slowed > 3.0 * alone,
            "{metric}: {alone} alone, {slowed} beside"
        );
    }
    for metric in ["frames_per_s", "media_kb_s"] {
        let (alone, slowed) = of(metric);
        assert!(
            slowed < 0.9 * alone,
            "{metric}: {alone} alone, {slowed} beside"
        );
    }
}

#[test]
fn a_display_draws_what_the_call_has_made_and_no_more() {
    let mut sim = sim();
    let runs = [
        "frames-call",
        "frames-display",
        "bandwidth:write,size=32MiB",
    ];
    let start = |(n, run): (usize, &&str)| {
        let cpu = n.to_string();
        sim.start(&subject("one", run, Some(&cpu))).unwrap()
    };
    let all: Vec<_> = runs.iter().enumerate().map(start).collect();
    let outcome = measure(&mut sim, &all, Nanos::millis(67), Nanos::millis(200));
    let (call, display) = (&outcome.results[&all[0]], &outcome.results[&all[1]]);
    let (made, drawn) = (mean(call, "frames_per_s"), mean(display, "frames_per_s"));
    assert!((made / drawn - 1.0).abs() < 0.25, "{made} and {drawn}");
    // A frame has come back before it is drawn.
    let (age, encode) = (mean(display, "age_ms"), mean(call, "encode_ms"));
    assert!(age > encode + mean(call, "rtt_ms"), "{age} ms");
}

#[test]
fn a_display_composes_every_frame_alone() {
    let mut sim = sim();
    let id = sim
        .start(&subject("x", "frames-display", Some("0")))
        .unwrap();
    let mut outcome = measure(&mut sim, &[id], Nanos::millis(35), Nanos::millis(100));
    let solo = outcome.results.remove(&id).unwrap();
    let frames = mean(&solo, "frames_per_s");
    assert!((28.0..32.0).contains(&frames), "{frames} frames/s");
    assert!(
        solo.metrics.contains_key("compose_ms")
            && !solo.metrics.contains_key("rtt_ms")
            && !solo.metrics.contains_key("age_ms")
    );
}

#[test]
fn a_lattice_streams_and_a_trace_is_replayed() {
    let lattice = alone("lattice:size=16MiB");
    assert!(rate(&lattice) > 5e8, "{} bytes/s", rate(&lattice));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("small.trace");
    let lackey = "I 0,4\nI 4,4\n L 7f0000001000,8\nI 8,4\n S 2000,8\n";
    let to = std::fs::File::create(&file).unwrap();
    quell_sim::trace::import_lackey(lackey.as_bytes(), "lackey", to).unwrap();
    let trace = |file: &std::path::Path| {
        let json = serde_json::json!({ "kind": "trace", "file": file });
        serde_json::from_value::<Workload>(json).unwrap()
    };
    let measured = program(trace(&file));
    // Two accesses in five cycles: the accesses themselves, and three instructions, each access
    // being one.
    let expected = 1e9 / 0.357 * 2.0 / 3.0;
    let found = mean(&measured, "accesses_per_s");
    assert!(
        (found / expected - 1.0).abs() < 0.01,
        "{found} of {expected}"
    );
    assert!((mean(&measured, "latency_ns") * found / 1e9 - 1.0).abs() < 0.01);
    assert!((mean(&measured, "ipc") - 1.0).abs() < 0.01);
    let mut sim = sim();
    let mut spec = subject("one", "latency:size=4KiB", None);
    spec.program = Program::Generator(trace(&dir.path().join("none.trace")));
    let error = sim.start(&spec).unwrap_err().to_string();
    assert!(
        error.contains("none.trace") && error.contains("quell trace import"),
        "{error}"
    );
}

#[test]
fn what_the_simulator_cannot_vary_is_refused_with_the_reason() {
    let mut sim = sim();
    for (run, why) in [
        ("frames-call:fps=60", "its demand is the published one"),
        ("frames-display:ring=4", "its demand is the published one"),
        ("periodic:size=128KiB,passes=2", "not the passes of a job"),
        (
            "stores:size=4KiB,stride=8KiB",
            "the buffer ends before the second",
        ),
    ] {
        let error = sim
            .start(&subject("one", run, None))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{run}: {error}");
    }
    sim.start(&subject("one", "frames-call:rate=3MB/s", None))
        .unwrap();
}
