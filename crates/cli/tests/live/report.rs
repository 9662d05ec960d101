//! `report` and `export`: a record gives the same page again, and what is no record is refused.

use std::fs;
use std::path::PathBuf;

use crate::common::{SMALL, machine, run};

#[test]
fn a_record_gives_the_same_page_again_and_its_figures() {
    // As root an experiment reverts first what a dead run has left.
    let Some(machine) = machine() else {
        return;
    };
    let folder = &machine.folder;
    let file = folder.path().join("small.toml");
    fs::write(&file, SMALL).unwrap();
    let runs = folder.path().join("runs");
    let (file, out) = (file.to_str().unwrap(), runs.to_str().unwrap());
    let done = run(&["compare", file, "--out", out]);
    assert_eq!(done.code, 0, "{done:?}");
    let record: PathBuf = fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    let name = record.to_str().unwrap();
    let page = fs::read_to_string(record.join("report.html")).unwrap();

    let again = run(&["report", name, "--html", "-"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(
        again.out == page,
        "the page differs from what compare wrote"
    );
    let text = run(&["report", name, "--text"]);
    assert_eq!((text.code, &text.out), (0, &done.out));
    let written = run(&["report", name]);
    assert!(written.out.trim().ends_with("report.html"), "{written:?}");
    assert_eq!(
        fs::read_to_string(record.join("report.html")).unwrap(),
        page
    );

    // What the page shows was recorded: when windows were, and how the CPUs' time was spent.
    for figure in ["fig-bars", "fig-tails", "fig-series", "fig-whole"] {
        assert!(page.contains(&format!("id=\"{figure}\"")), "{figure}");
    }
    let machine = fs::read_to_string(record.join("samples/machine.csv")).unwrap();
    assert!(machine.lines().count() > 8, "{machine}");

    let csv = run(&["export", name, "--format", "csv"]);
    assert_eq!(
        csv.out
            .lines()
            .filter(|l| l.contains(",victim,latency_ns,2,"))
            .count(),
        2,
        "{csv:?}"
    );
    let json = run(&["export", name, "--format", "json"]).json();
    assert_eq!(json["schema"], "quell.compare/1");
    let trace = run(&["export", name, "--format", "perfetto"]).json();
    let mut events = trace["traceEvents"].as_array().unwrap().iter();
    assert!(
        events.any(|e| e["ph"] == "X" && e["name"] == "hold"),
        "{trace}"
    );

    let manifest = fs::read_to_string(record.join("manifest.json")).unwrap();
    let newer = manifest.replace("quell.manifest/1", "quell.manifest/7");
    fs::write(record.join("manifest.json"), newer).unwrap();
    run(&["report", name]).fails(2, &["manifest.json", "quell.manifest/7", "use the version"]);
}

#[test]
fn what_is_no_record_is_refused_with_what_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    run(&["report", name]).fails(2, &["manifest.json", "quell compare", "--out"]);
    run(&["export", "nowhere", "--format", "csv"]).fails(2, &["nowhere", "a record is"]);
}
