use super::*;
use crate::folder::Folder;
use crate::sink::Sink;
use quell_types::units::Nanos;

/// A record of a run with this manifest.
fn record(runs: &Path, manifest: &str) -> PathBuf {
    let mut folder = Folder::begin(runs, "n", 0, Nanos(5)).unwrap();
    folder.put(Nanos(12), &Event::Phase { name: Phase::Hold });
    let times = CpuTimes {
        cpu: 3,
        steal_ns: 7,
        ..CpuTimes::default()
    };
    folder.cpu_times(Nanos(15), &[times]);
    folder.write("manifest.json", manifest).unwrap();
    folder.finish().unwrap()
}

const RUN: &str = r#"{"schema":"quell.manifest/1","version":"0.1.0",
        "plan":{"policy":"db","groups":[],"steps":[],"promises":[],"notes":[]}}"#;

fn error(folder: &Path) -> String {
    read(folder).unwrap_err().to_string()
}

#[test]
fn cells_of_older_records_are_cells() {
    let cell = |configuration: &str, subject: Option<&str>| Event::Cell {
        round: 2,
        of: 8,
        configuration: configuration.to_owned(),
        subject: subject.map(str::to_owned),
    };
    assert_eq!(cell_1("round 3 of 8, cap@20%"), Some(cell("cap@20%", None)));
    assert_eq!(
        cell_1("round 3 of 8, solo, x.1"),
        Some(cell("solo", Some("x.1")))
    );
    assert_eq!(cell_1("hold"), None);
    assert_eq!(cell_1("round 0 of 8, solo"), None);
}

#[test]
fn the_record_of_a_run_is_read_as_far_as_it_goes() {
    let runs = tempfile::tempdir().unwrap();
    let record = read(&record(runs.path(), RUN)).unwrap();
    assert_eq!((record.name.as_str(), record.result), ("db", None));
    assert_eq!(record.events.len(), 1);
    assert_eq!(record.cpu_times[&3][0].1.steal_ns, 7);
    assert!(record.plans.contains_key("db") && record.stops.is_empty());
}

#[test]
fn what_is_no_record_is_told_with_what_one_is() {
    let empty = tempfile::tempdir().unwrap();
    let text = error(empty.path());
    assert!(
        text.contains("manifest.json") && text.contains("quell compare"),
        "{text}"
    );
    let text = error(&empty.path().join("nowhere"));
    assert!(text.contains("nowhere"), "{text}");
}

#[test]
fn another_versions_schema_is_refused_with_that_version() {
    let runs = tempfile::tempdir().unwrap();
    let newer = r#"{"schema":"quell.manifest/2","version":"9.1"}"#;
    let text = error(&record(runs.path(), newer));
    assert!(
        text.contains("\"quell.manifest/2\"") && text.contains("(9.1)"),
        "{text}"
    );
    assert!(text.contains("reads \"quell.manifest/1\""), "{text}");
}

#[test]
fn what_is_broken_is_named_by_file_and_line() {
    let runs = tempfile::tempdir().unwrap();
    let folder = record(
        runs.path(),
        "{\"schema\":\"quell.manifest/1\",\n\"version\":1}",
    );
    let text = error(&folder);
    assert!(text.contains("manifest.json:2:"), "{text}");
    let folder = record(runs.path(), RUN);
    fs::write(folder.join(TIMES), format!("{TIMES_HEAD}\n1,2\n")).unwrap();
    let text = error(&folder);
    assert!(
        text.contains("machine.csv:2: not 7 whole numbers"),
        "{text}"
    );
    let folder = record(runs.path(), RUN);
    fs::write(
        folder.join("events.jsonl"),
        "{\"schema\":\"quell.events/1\"}\n{\n",
    )
    .unwrap();
    let text = error(&folder);
    assert!(text.contains("events.jsonl:2:"), "{text}");
}

#[test]
fn a_comparison_that_did_not_end_says_so() {
    let runs = tempfile::tempdir().unwrap();
    let manifest = r#"{"schema":"quell.manifest/1","version":"0.1.0","experiment":"x"}"#;
    let text = error(&record(runs.path(), manifest));
    assert!(
        text.contains("results.json") && text.contains("did not come to its end"),
        "{text}"
    );
}

#[test]
fn windows_and_stops_are_read_with_their_times() {
    let path = Path::new("x.csv");
    let text = "round,window,at_ns,latency_ns\n0,0,5,1.5\n0,1,6,2\n1,0,,3\n";
    let all = spans(path, text, "none", "victim").unwrap();
    assert_eq!(
        (&all[0].values[..], all[0].at_ns.as_deref()),
        (&[1.5, 2.0][..], Some(&[5, 6][..]))
    );
    assert_eq!((all[1].round, all[1].at_ns.as_ref()), (1, None));
    assert!(spans(path, "round,window,latency_ns\n0,0,1\n", "none", "victim").is_err());
    let text = format!("{DECISIONS_HEAD_1}\n1,2,rearm,3,,,\n4,9,throttle,,8,30,kernel\n");
    let stop = Stop {
        from_ns: 4,
        until_ns: 8,
    };
    assert_eq!(stops(path, &text).unwrap(), [stop]);
    // Resumed before its time, by a period that began early. What comes later changes nothing.
    let two = format!("{DECISIONS_HEAD}\n4,9,throttle,,8,30,kernel,a\n6,9,rearm,5,,,,b\n");
    assert_eq!(stops(path, &two).unwrap(), [stop], "of another group");
    let let_go = format!("{text}6,9,rearm,5,,,\n20,14,free,,30,,\n");
    let stop = Stop {
        until_ns: 6,
        ..stop
    };
    assert_eq!(stops(path, &let_go).unwrap(), [stop]);
}

#[test]
fn what_was_met_in_memory_is_read_round_by_round() {
    let path = Path::new("x.csv");
    let text = format!("{COURSE_HEAD}\n2,14,300,0,0\n2,34,12.5,0.25,3\n3,50,1,0,0\n");
    let all = courses(path, &text, "none", "detector").unwrap();
    assert_eq!(all.iter().map(|c| c.round).collect::<Vec<_>>(), [2, 3]);
    let met = MemoryPoint {
        at_ns: 34,
        resident_mb: 12.5,
        cache_misses: 0.25,
        major_faults: 3.0,
    };
    assert_eq!(all[0].points[1], met);
    let short = format!("{COURSE_HEAD}\n2,14,300\n");
    let why = courses(path, &short, "none", "detector").unwrap_err();
    assert!(why.to_string().contains("x.csv"), "{why}");
}

proptest::proptest! {
    /// Whatever a file was cut to or filled with gives a record or an error, never a panic.
    #[test]
    fn damage_is_an_error_at_worst(text in "[-0-9a-z,.\n\"{}:]{0,200}", head in 0..4usize) {
        let path = Path::new("x.csv");
        let head = [SAMPLES_HEAD, TIMES_HEAD, DECISIONS_HEAD, COURSE_HEAD][head];
        for text in [text.clone(), format!("{head}\n{text}"), format!("{head}x\n1,2,3,{text}")] {
            let _ = spans(path, &text, "none", "victim");
            let _ = times(path, &text);
            let _ = courses(path, &text, "none", "victim");
            let _ = stops(path, &text);
            let _ = json::<Stamped>(path, &text, 0);
            let _ = known::<Manifest>(path, &text, MANIFEST_SCHEMA);
        }
    }
}
