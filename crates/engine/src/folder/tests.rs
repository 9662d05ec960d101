use super::*;
use quell_types::ids::StepId;

#[test]
fn hashes_are_the_published_ones() {
    // Test vectors of FIPS 180-4 (the empty text and "abc") and of RFC 9923.
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(hash(""), format!("sha256:{empty}"));
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(hash("abc"), format!("sha256:{abc}"));
    assert_eq!(fnv1a64("foobar"), 0x8594_4171_f739_67e8);
}

#[test]
fn a_record_has_its_name_only_when_it_is_whole() {
    let runs = tempfile::tempdir().unwrap();
    let mut folder = Folder::begin(runs.path(), "neighbour", 0, Nanos(5)).unwrap();
    let event = Event::Step {
        step: StepId(1),
        outcome: "applied".into(),
    };
    folder.put(Nanos(12), &event);
    let span = |windows: &[f64], begun| Measurement {
        metrics: [("latency_ns".to_owned(), windows.to_vec())].into(),
        window_ns: 1_000,
        begun,
        memory_bytes: None,
        ..Measurement::default()
    };
    for (round, span) in [
        (3, span(&[1.5, 2.0], Some(Nanos(4)))),
        (4, span(&[7.0], None)),
    ] {
        folder
            .samples("regulated@10%", "a/b", "latency_ns", round, &span)
            .unwrap();
    }
    let met = Measurement {
        metrics: [
            ("cache_misses".to_owned(), vec![0.0, 0.25]),
            ("resident_mb".to_owned(), vec![300.0, 12.5]),
            ("major_faults".to_owned(), vec![0.0, 3.0]),
        ]
        .into(),
        ended_ns: vec![10, 30],
        begun: Some(Nanos(4)),
        ..Measurement::default()
    };
    folder.course("none", "a/b", 2, &met).unwrap();
    let nowhen = Measurement { begun: None, ..met };
    folder.course("none", "a/b", 3, &nowhen).unwrap();
    let times = CpuTimes {
        cpu: 1,
        steal_ns: 30,
        ..CpuTimes::default()
    };
    folder.cpu_times(Nanos(105), &[times]);
    let names = || -> Vec<_> {
        fs::read_dir(runs.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    assert_eq!(names(), [".neighbour-19700101-000000.partial"]);
    let last = folder.finish().unwrap();
    assert_eq!(names(), ["neighbour-19700101-000000"]);
    let events = fs::read_to_string(last.join("events.jsonl")).unwrap();
    assert_eq!(
        events,
        "{\"schema\":\"quell.events/1\"}\n{\"at_ns\":7,\"event\":\"step\",\"step\":1,\"outcome\":\"applied\"}\n"
    );
    let samples = fs::read_to_string(last.join("samples/regulated@10%--a_b.csv")).unwrap();
    assert_eq!(
        samples,
        "round,window,at_ns,latency_ns\n3,0,4,1.5\n3,1,1004,2\n4,0,,7\n"
    );
    let met = fs::read_to_string(last.join("samples/memory-none--a_b.csv")).unwrap();
    assert_eq!(
        met,
        format!("{COURSE_HEAD}\n2,14,300,0,0\n2,34,12.5,0.25,3\n")
    );
    let machine = fs::read_to_string(last.join("samples/machine.csv")).unwrap();
    assert_eq!(machine, format!("{TIMES_HEAD}\n100,1,0,0,0,30,0\n"));
}

#[test]
fn two_runs_in_one_second_do_not_collide() {
    let runs = tempfile::tempdir().unwrap();
    let first = Folder::begin(runs.path(), "n", 0, Nanos(0)).unwrap();
    let second = Folder::begin(runs.path(), "n", 0, Nanos(0)).unwrap();
    assert!(first.finish().unwrap().ends_with("n-19700101-000000"));
    assert!(second.finish().unwrap().ends_with("n-19700101-000000-2"));
}

#[test]
fn a_place_that_cannot_be_written_names_path_and_remedy() {
    let runs = tempfile::tempdir().unwrap();
    let file = runs.path().join("file");
    fs::write(&file, "").unwrap();
    let text = Folder::begin(&file, "n", 0, Nanos(0))
        .unwrap_err()
        .to_string();
    assert!(text.contains(file.to_str().unwrap()) && text.contains("--out"));
}
