//! `quell profile --sweep` on simulated machines, where it is known how much is enough.

use std::path::Path;

use crate::common::{Done, Running, quell};
use serde_json::Value;

/// A short profile, with its files in `dir`.
fn profile(dir: &Path, args: &[&str]) -> Done {
    crate::common::profile(dir, &[&["--for", "100ms"], args].concat())
}

/// The only sweep of a profile.
fn swept(profile: &Value) -> &Value {
    let sweeps = profile["sweeps"].as_array().unwrap();
    assert_eq!(sweeps.len(), 1);
    &sweeps[0]
}

fn judged(sweep: &Value) -> Vec<&str> {
    let points = sweep["points"].as_array().unwrap();
    points
        .iter()
        .map(|p| p["judged"].as_str().unwrap())
        .collect()
}

fn enough(sweep: &Value) -> u64 {
    let found = sweep["needed"]["enough"].as_u64();
    found.unwrap_or_else(|| panic!("nothing is enough: {sweep:#}"))
}

/// A list of a third of the cache does not fit into a quarter of the sets.
#[test]
fn a_list_needs_the_colours_that_it_fills() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["latency:size=320KiB", "--on", "sim:cortex-a72", "--json"];
    let found = profile(dir.path(), &[&args[..], &["--sweep", "colours"]].concat()).json();
    let sweep = swept(&found);
    let labels: Vec<&str> = sweep["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["0", "0-1", "all"]);
    assert_eq!(judged(sweep)[0], "misses", "{sweep:#}");
    assert!(enough(sweep) >= 2, "{sweep:#}");
}

/// A stream of a known rate needs a budget of about that rate, within a step of the sweep.
#[test]
fn a_stream_needs_the_budget_that_it_draws() {
    let dir = tempfile::tempdir().unwrap();
    let stream = "bandwidth:read,size=4MiB,rate=300MB/s";
    let args = [stream, "--on", "sim:apollolake", "--json"];
    let found = profile(dir.path(), &[&args[..], &["--sweep", "budgets"]].concat()).json();
    let sweep = swept(&found);
    let rate = enough(sweep) as f64 / 300e6;
    assert!((0.9..=1.46 * 1.46).contains(&rate), "{rate}: {sweep:#}");
    let line = sweep["policy"].as_str().unwrap();
    assert!(line.starts_with("reserve.bandwidth = \""), "{line}");
    assert_eq!(sweep.get("cautions"), None, "{sweep:#}");
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    /// A list in one large page lies evenly in the sets, so of a cache of eight parts it needs as
    /// many as it is long.
    #[test]
    #[ignore = "where its files have changed"]
    fn a_list_needs_the_ways_that_it_fills() {
        let dir = tempfile::tempdir().unwrap();
        let on = ["--on", "sim:apollolake", "--sweep", "ways"];
        let of = |more: &[&str]| {
            let list = "latency:size=640KiB,pages=2MiB";
            profile(dir.path(), &[&[list], &on[..], more].concat())
        };
        let found = of(&["--json"]).json();
        let sweep = swept(&found);
        let found = enough(sweep);
        assert!(found.abs_diff(5) <= 1, "{found} of {sweep:#}");
        assert_eq!(sweep["points"].as_array().unwrap().len(), 8);
        assert_eq!(judged(sweep)[0], "misses", "{sweep:#}");
        assert_eq!(judged(sweep)[7], "holds", "{sweep:#}");
        assert_eq!(sweep["level"], 2);
        let line = format!("reserve.cache = {{ ways = {found} }}");
        assert_eq!(sweep["policy"], line.as_str());
        // It was kept, and its line is one of a policy.
        let text = profile(dir.path(), &["--show", "latency@apollolake"]).out;
        assert!(text.contains("Sweep of ways of L2: keep 95%"), "{text}");
        let line = text.lines().find(|l| l.starts_with("reserve.cache"));
        let policy = format!(
            "quell = 1\n[group.a]\nrole = \"critical\"\ncommand = [\"true\"]\n{}\n",
            line.unwrap()
        );
        std::fs::write(dir.path().join("p.toml"), &policy).unwrap();
        let mut plan = quell();
        plan.args(["plan", "p.toml", "--on", "sim:apollolake"])
            .current_dir(dir.path());
        let plan = Running::start(&mut plan).wait();
        assert_eq!(plan.code, 0, "{plan:?}\n{policy}");

        // A plan that gives the same program fewer ways says what the sweep has of them.
        let planned = |ways: u32| {
            let policy = format!(
                "quell = 1\n[group.latency]\nrole = \"critical\"\ncpus = 1\n\
                 match = [{{ comm = \"latency\" }}]\nreserve.cache = {{ ways = {ways} }}\n"
            );
            std::fs::write(dir.path().join("fewer.toml"), policy).unwrap();
            let mut plan = quell();
            plan.args(["plan", "fewer.toml", "--on", "sim:apollolake"])
                .env("QUELL_STATE_DIR", dir.path())
                .current_dir(dir.path());
            let plan = Running::start(&mut plan).wait();
            assert_eq!(plan.code, 0, "{plan:?}");
            plan.out
        };
        let fewer = planned(2);
        let fewer: Vec<&str> = fewer.split_whitespace().collect();
        let fewer = fewer.join(" ");
        assert!(fewer.contains("with 2 ways its program had"), "{fewer}");
        assert!(fewer.contains("profile latency@apollolake"), "{fewer}");
        assert!(!planned(6).contains("its program"));
    }
}
