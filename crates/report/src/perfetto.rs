//! A record's timeline for `ui.perfetto.dev` and `chrome://tracing`, as JSON in the Trace Event
//! Format ("Trace Event Format", Google, 2016). Times are microseconds since the run began. Each
//! kind of thing is a process, and each track a thread.
//!
//! | process | tracks |
//! |---|---|
//! | the run | stages; steps, findings, moved budgets and ends of commands as instants |
//! | | the slowest units of work; the rate left to best-effort groups |
//! | CPUs | each CPU's throttled stretches; its time by kind, in percent between two samples |
//! | a cache | each of its ways, by the classes that may fill it; what each class had and moved |
//! | threads | each thread's class; on each CPU what ran there, by context switches |
//! | a subject | its measured spans, named by configuration; its metric, window by window |

use quell_record::events::{CpuTimes, Event, Record, Span};
use quell_record::ways::rate;
use serde_json::{Value, json};

use crate::ways::{Stage, fillers, stages, thread_name, title};

const RUN: u64 = 1;
const CPUS: u64 = 2;
const FIRST_SUBJECT: u64 = 3;
/// Process numbers from here on follow those of any number of subjects.
const THREADS: u64 = 1_000;
const RAN: u64 = 1_001;
const FIRST_CACHE: u64 = 1_002;

/// Tracks of the process for the run.
const STAGES: u64 = 1;
const EVENTS: u64 = 2;

/// The trace, with an event per line. Windows without a known time are left out.
#[must_use]
pub fn perfetto(record: &Record) -> String {
    let mut trace = Trace::default();
    run(&mut trace, record);
    cpus(&mut trace, record);
    subjects(&mut trace, record);
    ways(&mut trace, record);
    let about = json!({
        "name": record.name,
        "quell": record.version,
        "created": record.created,
        "command_line": record.command_line,
    });
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[\n{}\n]}}\n",
        trace.lines.join(",\n")
    )
}

#[derive(Default)]
struct Trace {
    lines: Vec<String>,
}

impl Trace {
    fn put(&mut self, event: &Value) {
        self.lines.push(event.to_string());
    }

    fn process(&mut self, pid: u64, name: &str) {
        self.put(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}));
        self.put(
            &json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}),
        );
    }

    fn track(&mut self, pid: u64, tid: u64, name: &str) {
        self.put(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}));
    }

    fn stretch(&mut self, pid: u64, tid: u64, name: &str, from: u64, until: u64, args: &Value) {
        let dur = us(until.saturating_sub(from));
        self.put(&json!({"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(from), "dur": dur, "args": args}));
    }

    fn count(&mut self, pid: u64, name: &str, at: u64, args: &Value) {
        self.put(
            &json!({"ph": "C", "name": name, "pid": pid, "tid": 1, "ts": us(at), "args": args}),
        );
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn run(trace: &mut Trace, record: &Record) {
    trace.process(RUN, &record.name);
    trace.track(RUN, STAGES, "stages");
    trace.track(RUN, EVENTS, "events");
    let begun: Vec<(u64, String)> = record
        .events
        .iter()
        .filter_map(|stamped| Some((stamped.at_ns, stage(&stamped.event)?)))
        .collect();
    for (i, (from, name)) in begun.iter().enumerate() {
        let until = begun.get(i + 1).map_or_else(|| end(record), |next| next.0);
        trace.stretch(RUN, STAGES, name, *from, until, &json!({}));
    }
    for stamped in &record.events {
        for (name, values) in counts(&stamped.event) {
            trace.count(RUN, &name, stamped.at_ns, &values);
        }
        if let Some((name, args)) = instant(&stamped.event) {
            trace.put(&json!({
                "ph": "i", "s": "t", "name": name, "pid": RUN, "tid": EVENTS, "ts": us(stamped.at_ns), "args": args,
            }));
        }
    }
}

/// The name of the stage that begins with an event.
fn stage(event: &Event) -> Option<String> {
    match event {
        Event::Phase { name } => Some(name.word().to_owned()),
        Event::Cell {
            round,
            of,
            configuration,
            subject,
        } => {
            let mut name = format!("round {} of {of}, {configuration}", round.saturating_add(1));
            if let Some(subject) = subject {
                name.push_str(&format!(", {subject}"));
            }
            Some(name)
        }
        _ => None,
    }
}

/// What an event counted: the names of the counters, and their values.
fn counts(event: &Event) -> Vec<(String, Value)> {
    match event {
        Event::Resized {
            group, level, to, ..
        } => vec![(
            format!("ways of {group} in L{level}"),
            json!({ "ways": to }),
        )],
        Event::Units {
            group, worst_ns, ..
        } => {
            let worst = json!({ "ms": *worst_ns as f64 / 1e6 });
            vec![(format!("slowest unit of {group}"), worst)]
        }
        Event::Adapted {
            group,
            to_bytes_per_s,
            ..
        } => {
            let left = json!({ "MB/s": *to_bytes_per_s as f64 / 1e6 });
            vec![(format!("left to the others by {group}"), left)]
        }
        Event::Waited {
            group,
            memory_ns,
            memory_full_ns,
            io_ns,
            bytes,
            ..
        } => {
            let waited = json!({
                "memory, ms": *memory_ns as f64 / 1e6,
                "memory, all tasks, ms": *memory_full_ns as f64 / 1e6,
                "disks, ms": *io_ns as f64 / 1e6,
            });
            let used = json!({ "MiB": bytes >> 20 });
            vec![
                (format!("waited by {group}"), waited),
                (format!("memory of {group}"), used),
            ]
        }
        Event::Own {
            span_ns,
            cpu_ns,
            resident_bytes,
            ..
        } => {
            let share = json!({ "% of a CPU": *cpu_ns as f64 / *span_ns as f64 * 100.0 });
            let has = json!({ "MiB": resident_bytes >> 20 });
            vec![
                ("Quell itself".to_owned(), share),
                ("memory of Quell".to_owned(), has),
            ]
        }
        _ => Vec::new(),
    }
}

/// What an event says as an instant: its text and its arguments.
fn instant(event: &Event) -> Option<(String, Value)> {
    Some(match event {
        // Stages and counters are written on their own. The rest are sums of other tracks.
        Event::Phase { .. }
        | Event::Cell { .. }
        | Event::Units { .. }
        | Event::Target { .. }
        | Event::Witnessed { .. }
        | Event::Waited { .. }
        | Event::Own { .. }
        | Event::Throttle { .. }
        | Event::Windows { .. }
        | Event::Turns { .. }
        | Event::Coloured { .. }
        | Event::Owners { .. }
        | Event::Paged { .. }
        | Event::Spent { .. } => return None,
        Event::Resized {
            group,
            level,
            to,
            why,
            ..
        } => (
            format!("{group} has {to} ways of L{level}: {why}"),
            json!({"group": group}),
        ),
        Event::Ways { change } => (change.told()?, json!({})),
        Event::Step { step, outcome } => (format!("step {} {outcome}", step.0), json!({})),
        Event::Finding { what, group, .. } => (what.clone(), json!({"group": group})),
        Event::Promise { id, level, because } => (
            format!("promise {} is at level {level}: {because}", id.0),
            json!({}),
        ),
        Event::Adapted {
            group,
            to_bytes_per_s,
            why,
            ..
        } => (
            format!("{:.0} MB/s: {why}", *to_bytes_per_s as f64 / 1e6),
            json!({"group": group}),
        ),
        Event::Declared { group, declared } => {
            (format!("{group} says: {declared}"), json!({"group": group}))
        }
        Event::Steered { group, did, why } => {
            let did = json!(did);
            let act = did["act"].as_str().unwrap_or_default();
            (
                format!("memory of {group}: {act}: {why}"),
                json!({"group": group, "did": did}),
            )
        }
        Event::Exit { group, status } => (
            format!("the command of group {group} ended with {status}"),
            json!({"group": group, "status": status}),
        ),
    })
}

/// The last time that the record knows of.
fn end(record: &Record) -> u64 {
    let events = record.events.iter().map(|e| e.at_ns);
    let stops = record.stops.values().flatten().map(|s| s.until_ns);
    let looks = record.cpu_times.values().flatten().map(|(at, _)| *at);
    let windows = record.spans.iter().filter_map(|s| Some(stretch(s)?.1));
    let all = events.chain(stops).chain(looks).chain(windows);
    all.max().unwrap_or(0)
}

fn cpus(trace: &mut Trace, record: &Record) {
    if record.stops.is_empty() && record.cpu_times.is_empty() {
        return;
    }
    trace.process(CPUS, "CPUs");
    for (cpu, stops) in &record.stops {
        // Thread 0 would be taken for the idle one.
        let tid = u64::from(*cpu) + 1;
        trace.track(CPUS, tid, &format!("CPU {cpu}"));
        for stop in stops {
            trace.stretch(
                CPUS,
                tid,
                "throttled",
                stop.from_ns,
                stop.until_ns,
                &json!({}),
            );
        }
    }
    for (cpu, looks) in &record.cpu_times {
        for pair in looks.windows(2) {
            let [(from, before), (until, after)] = pair else {
                continue;
            };
            let part = |of: fn(&CpuTimes) -> u64| {
                let spent = of(after).saturating_sub(of(before)) as f64;
                (spent * 1e3 / until.saturating_sub(*from).max(1) as f64).round() / 10.0
            };
            let args = json!({
                "busy": part(|t| t.busy_ns),
                "interrupts": part(|t| t.irq_ns + t.softirq_ns),
                "steal": part(|t| t.steal_ns),
            });
            trace.count(CPUS, &format!("CPU {cpu} time (%)"), *from, &args);
        }
    }
}

/// From the first window of a span to the end of its last one. That is taken to be as long as the
/// one before.
fn stretch(span: &Span) -> Option<(u64, u64)> {
    let at = span.at_ns.as_ref()?;
    let (first, last) = (*at.first()?, *at.last()?);
    let before = at.len().checked_sub(2).and_then(|i| at.get(i));
    let window = before.map_or(0, |before| last.saturating_sub(*before));
    Some((first, last.saturating_add(window)))
}

fn subjects(trace: &mut Trace, record: &Record) {
    let mut names: Vec<&str> = record.spans.iter().map(|s| s.subject.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for (pid, name) in (FIRST_SUBJECT..).zip(names) {
        trace.process(pid, &format!("subject {name}"));
        trace.track(pid, 1, "spans");
        let metric = metric(record, name);
        let mut spans: Vec<(u64, u64, &Span)> = record
            .spans
            .iter()
            .filter(|s| s.subject == name)
            .filter_map(|s| stretch(s).map(|(from, until)| (from, until, s)))
            .collect();
        spans.sort_by_key(|(from, ..)| *from);
        for (from, until, span) in spans {
            let args = json!({"round": span.round.saturating_add(1), "windows": span.values.len()});
            trace.stretch(pid, 1, &span.configuration, from, until, &args);
            for (at, value) in span.at_ns.iter().flatten().zip(&span.values) {
                trace.count(pid, metric, *at, &json!({ "value": value }));
            }
        }
    }
}

/// Which classes may fill which ways, what was counted of each class, and where threads were.
fn ways(trace: &mut Trace, record: &Record) {
    let stages = stages(record);
    let Some(first) = stages.first() else { return };
    if stages.iter().any(|s| !s.timeline.threads.is_empty()) {
        trace.process(THREADS, "threads by class");
    }
    for stage in &stages {
        for (tid, lane) in &stage.timeline.threads {
            let name = format!("{tid} {} of process {}", lane.name, lane.pid);
            let tid = u64::from(*tid);
            trace.track(THREADS, tid, &name);
            for was in &lane.was {
                let args = json!({"CPU": was.is.cpu});
                let (from, until) = (was.from_ns + stage.from_ns, was.until_ns + stage.from_ns);
                trace.stretch(THREADS, tid, &was.is.class, from, until, &args);
            }
        }
    }
    if stages.iter().any(|s| !s.timeline.ran.is_empty()) {
        trace.process(RAN, "what ran on each CPU");
    }
    for Stage {
        timeline, from_ns, ..
    } in &stages
    {
        for (cpu, all) in &timeline.ran {
            let track = u64::from(*cpu) + 1;
            trace.track(RAN, track, &format!("CPU {cpu}"));
            for run in all {
                let name = thread_name(timeline, run.is.tid);
                let args = json!({"class": timeline.classes.get(run.is.class)});
                let (from, until) = (run.from_ns + from_ns, run.until_ns + from_ns);
                trace.stretch(RAN, track, &name, from, until, &args);
            }
        }
    }
    for (pid, cache) in (FIRST_CACHE..).zip(&first.timeline.caches) {
        let place = &cache.place;
        trace.process(pid, &title(cache));
        for bit in 0..cache.bits {
            trace.track(pid, u64::from(bit) + 1, &format!("way {bit}"));
        }
        for stage in &stages {
            let (from, timeline) = (stage.from_ns, &stage.timeline);
            for block in timeline.blocks.get(place).into_iter().flatten() {
                for bit in block.is.first..block.is.first + block.is.count {
                    let tid = u64::from(bit) + 1;
                    let name = fillers(&block.is.fill);
                    let args = json!({"configuration": stage.name});
                    let (since, until) = (block.from_ns + from, block.until_ns + from);
                    trace.stretch(pid, tid, &name, since, until, &args);
                }
            }
            for class in &timeline.classes {
                let samples = timeline.sampled(class, place, &(0..timeline.end_ns));
                for sample in &samples {
                    if let Some(bytes) = sample.occupancy {
                        let had = json!({ "MiB": bytes as f64 / 1_048_576.0 });
                        trace.count(pid, &format!("{class} has"), sample.at_ns + from, &had);
                    }
                }
                for pair in samples.windows(2) {
                    if let (Some(bytes), Some(last)) = (rate(pair), pair.last()) {
                        let moved = json!({ "MB/s": bytes / 1e6 });
                        trace.count(pid, &format!("{class} moves"), last.at_ns + from, &moved);
                    }
                }
            }
        }
    }
}

/// The name of a subject's primary metric.
fn metric<'r>(record: &'r Record, subject: &str) -> &'r str {
    let configurations = record.result.iter().flat_map(|r| &r.configurations);
    configurations
        .flat_map(|c| &c.subjects)
        .find(|s| s.name == subject)
        .map_or("value", |s| s.metric.as_str())
}

#[cfg(test)]
mod tests {
    use quell_record::about::About;
    use std::collections::{BTreeMap, BTreeSet};

    use quell_record::events::Stamped;

    use super::*;
    use crate::sample;

    fn events(record: &Record) -> Vec<Value> {
        let trace: Value = serde_json::from_str(&perfetto(record)).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    }

    fn number(event: &Value, key: &str) -> f64 {
        event[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {event}"))
    }

    /// Start, end and name of every stretch of a track, in microseconds.
    fn track(events: &[Value], pid: u64, tid: u64) -> Vec<(f64, f64, &str)> {
        events
            .iter()
            .filter(|e| e["ph"] == "X" && e["pid"] == pid && e["tid"] == tid)
            .map(|e| {
                let ts = number(e, "ts");
                (ts, ts + number(e, "dur"), e["name"].as_str().unwrap())
            })
            .collect()
    }

    #[test]
    fn every_event_is_known_to_viewers_and_every_track_named() {
        let events = events(&sample::record());
        let mut named = BTreeSet::new();
        for event in &events {
            let (pid, tid) = (number(event, "pid"), event["tid"].as_u64());
            assert!(pid >= 1.0 && tid != Some(0), "{event}");
            match event["ph"].as_str().unwrap() {
                "M" => {
                    named.insert((event["pid"].as_u64(), tid));
                }
                "X" => assert!(number(event, "dur") >= 0.0, "{event}"),
                "i" => assert_eq!(event["s"], "t"),
                "C" => assert!(!event["args"].as_object().unwrap().is_empty()),
                other => panic!("{other} is not one of ours: {event}"),
            }
            if event["ph"] != "M" {
                assert!(number(event, "ts") >= 0.0, "{event}");
                assert!(named.contains(&(event["pid"].as_u64(), None)), "{event}");
            }
            if event["ph"] == "X" || event["ph"] == "i" {
                assert!(named.contains(&(event["pid"].as_u64(), tid)), "{event}");
            }
        }
    }

    #[test]
    fn stretches_are_where_the_record_has_them_and_do_not_overlap() {
        let record = sample::record();
        let events = events(&record);
        let stages = track(&events, RUN, STAGES);
        assert_eq!(stages[0], (0.0, 7e6, "round 1 of 2, solo"));
        assert_eq!((stages.len(), stages[2].2), (3, "undo"));
        // The machine was sampled every 100 ms until 12.9 s, before the last stage began. So that
        // stage ends where it began.
        assert_eq!(stages[2].0, stages[2].1);
        let stops = track(&events, CPUS, 2);
        assert_eq!(stops.len(), 400);
        assert_eq!(stops[1], (2_801_000.0, 2_801_900.0, "throttled"));
        let mut tracks: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        for event in events.iter().filter(|e| e["ph"] == "X") {
            let track = (
                event["pid"].as_u64().unwrap(),
                event["tid"].as_u64().unwrap(),
            );
            let (from, until) = (
                number(event, "ts"),
                number(event, "ts") + number(event, "dur"),
            );
            let before = tracks.insert(track, until).unwrap_or(0.0);
            assert!(
                from >= before,
                "begins before the one before it ends: {event}"
            );
        }
    }

    #[test]
    fn a_subject_has_spans_by_configuration_and_metric_windows() {
        let record = sample::record();
        let events = events(&record);
        // The neighbour comes before the victim. Six configurations, two rounds.
        let spans = track(&events, FIRST_SUBJECT + 1, 1);
        assert_eq!(spans.len(), 12);
        assert_eq!(spans[0], (0.0, 400_000.0, "solo"));
        let windows: Vec<&Value> = events
            .iter()
            .filter(|e| e["ph"] == "C" && e["pid"] == FIRST_SUBJECT + 1)
            .collect();
        assert_eq!(windows.len(), 12 * 400);
        assert!(windows.iter().all(|w| w["name"] == "latency_ns"));
        assert_eq!(windows[1]["args"]["value"], record.spans[0].values[1]);
    }

    #[test]
    fn cpu_time_is_told_in_percent() {
        let mut record = sample::record();
        let look = |at, busy_ns, steal_ns| {
            let times = CpuTimes {
                busy_ns,
                steal_ns,
                ..CpuTimes::default()
            };
            (at, times)
        };
        record.cpu_times = [(
            0,
            vec![look(5, 0, 0), look(100_000_005, 75_000_000, 10_000_000)],
        )]
        .into();
        let events = events(&record);
        let looked = events
            .iter()
            .find(|e| e["ph"] == "C" && e["pid"] == CPUS)
            .unwrap();
        assert_eq!(
            looked["args"],
            json!({"busy": 75.0, "interrupts": 0.0, "steal": 10.0})
        );
        assert_eq!(looked["ts"], 0.005);
    }

    #[test]
    fn ways_are_tracks_of_their_caches_and_threads_of_their_classes() {
        let events = events(&crate::ways::tests::record());
        let way = |bit: u64| track(&events, FIRST_CACHE, bit + 1);
        // A block ends where its neighbours change.
        let wanted = [
            (0.0, 1_000_000.0, "everybody else"),
            (1_000_000.0, 3_900_000.0, "everybody else"),
        ];
        assert_eq!(way(5), wanted);
        let names: Vec<(f64, &str)> = way(0).iter().map(|w| (w.0, w.2)).collect();
        let wanted = [
            (0.0, "everybody else"),
            (1_000_000.0, "everybody else and db"),
            (2_000_000.0, "db"),
        ];
        assert_eq!(names, wanted);
        let ran = track(&events, RAN, 2);
        assert_eq!(ran[0], (0.0, 50_000.0, "thread 7 redis"));
        let thread = track(&events, THREADS, 7);
        assert_eq!(thread[1], (1_200_000.0, 3_900_000.0, "db"));
        let counted = events.iter().filter(|e| e["name"] == "db has").count();
        assert_eq!(counted, 30);
    }

    #[test]
    fn the_record_of_a_run_is_a_timeline_too() {
        let finding = Stamped {
            at_ns: 1_500,
            event: Event::finding(About::Other, "a \"quoted\" finding", None),
        };
        let record = Record {
            name: "run".into(),
            events: vec![finding],
            ..Record::default()
        };
        let events = events(&record);
        let told = events.last().unwrap();
        assert_eq!(
            (told["ph"].as_str(), told["ts"].as_f64()),
            (Some("i"), Some(1.5))
        );
        assert_eq!(told["name"], "a \"quoted\" finding");
    }
}
