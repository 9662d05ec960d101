//! Units of work that launched programs tell of, in a session or in their output, and the budgets
//! that follow them.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::common::{machine, quell, run};

/// A job with a deadline, and a neighbour whose budget can be moved.
fn policy(target: &str) -> String {
    format!(
        "quell = 1
[group.job]
role    = 'critical'
cpus    = 1
target  = {target}
[group.neighbour]
role    = 'best-effort'
command = ['sh', '-c', 'while :; do :; done']
[regulator]
adapt = 'deadline'
"
    )
}

/// The events of the only record below a folder.
fn events(dir: &Path) -> Vec<serde_json::Value> {
    let record = fs::read_dir(dir).unwrap().next().unwrap().unwrap();
    let text = fs::read_to_string(record.path().join("events.jsonl")).unwrap();
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

fn sum(events: &[serde_json::Value], key: &str) -> u64 {
    let units = events.iter().filter(|e| e["event"] == "units");
    units.map(|e| e[key].as_u64().unwrap_or(0)).sum()
}

/// Also where no loop moves budgets.
#[test]
fn a_missed_target_is_the_exit_status() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let policy =
        policy("{ deadline = '10ms', source = { pattern = 'took ([0-9.]+) ms', unit = 'ms' } }")
            .replace("[regulator]\nadapt = 'deadline'\n", "");
    let file = machine.file("missed.toml", &policy);
    // The first two seconds are not judged.
    let judged = |took: &str| {
        let script = format!(
            "n=0; while [ $n -lt 40 ]; do echo took {took} ms; sleep 0.1; n=$((n+1)); done"
        );
        run(&["run", &file, "--", "sh", "-c", &script])
    };
    let missed = judged("11");
    assert_eq!(missed.code, 3, "{missed:?}");
    assert!(missed.err.contains("job: target missed: "), "{missed:?}");
    let met = judged("9");
    assert_eq!(met.code, 0, "{met:?}");
    assert!(met.err.contains("job: target met: "), "{met:?}");
    machine.unchanged("after both runs");
}

#[test]
fn times_in_the_output_are_read_and_it_is_passed_on_unchanged() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    // Three in time, then three late; a line without a time, bytes that are no text, and no end of
    // line at the end.
    let script = r#"printf "a\377\n"; for t in 3 4 5; do echo "took $t ms"; sleep 0.1; done; for t in 11 12 13; do echo "took $t ms"; sleep 0.1; done; cat; printf end; exit 3"#;
    let target = "{ deadline = '10ms', source = { pattern = 'took ([0-9.]+) ms', unit = 'ms' } }";
    let (file, out) = (machine.path("pattern.toml"), machine.path("pattern"));
    fs::write(&file, policy(target)).unwrap();
    let output = quell()
        .args([
            "run",
            file.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
            "--quiet",
        ])
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let mut expected = b"a\xff\n".to_vec();
    for t in [3, 4, 5, 11, 12, 13] {
        expected.extend(format!("took {t} ms\n").bytes());
    }
    expected.extend(b"end");
    assert_eq!(output.stdout, expected, "{output:?}");
    let events = events(&out);
    assert_eq!((sum(&events, "units"), sum(&events, "late")), (6, 3));
    let moves: Vec<_> = events.iter().filter(|e| e["event"] == "adapted").collect();
    assert!(
        moves[0]["why"].as_str().unwrap().contains("of 10ms"),
        "{moves:?}"
    );
    machine.unchanged("a run whose output is read");
}

#[test]
fn a_program_with_a_session_is_heard() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let (file, out) = (machine.path("client.toml"), machine.path("client"));
    // Far away: nothing is late, and the neighbour keeps everything.
    fs::write(&file, policy("{ deadline = '900ms' }")).unwrap();
    let job = [
        env!("CARGO_BIN_EXE_quell"),
        "bench",
        "periodic",
        "--size",
        "64KiB",
        "--period",
        "5ms",
        "--duration",
        "2s",
    ];
    let hold = [
        "run",
        file.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--",
    ];
    let done = run(&[&hold[..], &job[..]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let events = events(&out);
    let units = sum(&events, "units");
    assert!((100..=600).contains(&units), "{units}: {done:?}");
    assert_eq!(sum(&events, "late"), 0);
    assert!(!events.iter().any(|e| e["event"] == "adapted"));
    machine.unchanged("a run with a session");
}

#[test]
fn a_pattern_that_is_none_is_answered_where_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.toml");
    for (source, answer) in [
        (
            "{ pattern = 'took ([0-9', unit = 'ms' }",
            "is not a regular expression",
        ),
        (
            "{ pattern = 'took [0-9]+', unit = 'ms' }",
            "has 0 groups, but exactly one is needed",
        ),
        (
            "{ pattern = 'took ([0-9]+)', unit = 'frames' }",
            "write one of ns, us, ms, s",
        ),
    ] {
        let target = format!("{{ deadline = '10ms', source = {source} }}");
        fs::write(&file, policy(&target)).unwrap();
        let done = run(&["plan", file.to_str().unwrap()]);
        done.fails(2, &["policy.toml:", "group.job.target.source", answer]);
    }
}
