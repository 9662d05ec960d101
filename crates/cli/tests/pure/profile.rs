//! `quell profile` on the simulated machine, where what is found is known.

use std::fs;

use crate::common::{profile, quell};
use serde_json::Value;

fn figure(profile: &Value, pointer: &str) -> f64 {
    let found = profile.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is not in the profile"))
}

/// What the subject is made of: 342 MB/s read in the mean, 1247 at the peak, thirty frames a
/// second, a quarter of the lines written.
#[test]
fn the_published_demand_of_the_call_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let done = profile(
        dir.path(),
        &[
            "frames-call",
            "--on",
            "sim",
            "--for",
            "500ms",
            "--json",
            "--html",
            "page.html",
        ],
    );
    let found = done.json();
    assert_eq!(found["schema"], "quell.profile/1");
    assert_eq!(found["measuring"]["by"], "simulated");
    let period = figure(&found, "/burst/period_ms");
    assert!((period - 1e3 / 30.0).abs() < 0.5, "{period} ms");
    let read = &found["series"][0];
    assert_eq!(read["quantity"], "read");
    assert_eq!(read["per_bin"].as_array().unwrap().len(), 500);
    let (mean, peak) = (figure(read, "/figures/mean"), figure(read, "/figures/peak"));
    assert!((mean / 342.0 - 1.0).abs() < 0.08, "mean {mean} MB/s");
    assert!((peak / 1247.0 - 1.0).abs() < 0.05, "peak {peak} MB/s");
    let written = figure(&found["series"][1], "/figures/mean");
    assert!(
        (written / mean / 0.25 - 1.0).abs() < 0.1,
        "written {written} of {mean} MB/s"
    );
    // A frame moves mean ÷ 30, in mean ÷ peak of the time. A second, shorter burst has a part of
    // it.
    let (amount, share) = (
        figure(&found, "/burst/amount"),
        figure(&found, "/burst/share"),
    );
    assert!(
        (amount / share / ((mean + written) / 30.0) - 1.0).abs() < 0.1,
        "{amount} MB, {share} of all"
    );
    assert!(share > 0.75, "{share}");
    let length = figure(&found, "/burst/length_ms");
    assert!((length - period * mean / peak).abs() < 2.0, "{length} ms");
    assert_eq!(found["proposal"]["basis"], "peak");
    let set = figure(&found, "/working_set/resident_bytes");
    assert!(
        (set - 4.0 * f64::from(8u32 << 20) - f64::from(512u32 << 10)).abs() < 4097.0,
        "{set}: 4 LLC of buffers, and a working set of 2 L2"
    );
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    assert!(page.contains("fig-second-wide") && page.contains("exact"));

    // It was kept, reads the same again, and the policy is one.
    let again = profile(dir.path(), &["--show", "frames-call@xeon-w3530", "--json"]).json();
    assert_eq!(again, found);
    let text = profile(
        dir.path(),
        &["--show", "profiles/frames-call@xeon-w3530.json"],
    )
    .out;
    assert!(text.contains("one every 33.3"), "{text}");
    let policy = found["proposal"]["policy"].as_str().unwrap();
    fs::write(dir.path().join("p.toml"), policy).unwrap();
    let plan = quell()
        .args(["plan", "p.toml", "--on", "sim"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(plan.status.code(), Some(0), "{plan:?}\n{policy}");
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn a_stream_and_a_list_have_the_profiles_that_they_must() {
        let dir = tempfile::tempdir().unwrap();
        let of = |generator: &str| {
            let args = [generator, "--on", "sim", "--for", "100ms", "--json"];
            profile(dir.path(), &args).json()
        };
        let [stream, list] = &["bandwidth:read", "latency:size=64KiB"].map(of);
        assert_eq!(stream.get("burst"), None);
        assert_eq!(stream["proposal"]["basis"], "mean");
        assert_eq!(figure(list, "/total/peak"), 0.0);
        assert_eq!(list["proposal"]["basis"], "none");
        assert_eq!(figure(list, "/working_set/cached_bytes"), 65_536.0);

        // One that is always on its CPU: lines of 64 bytes per microsecond are 64 MB/s each.
        assert_eq!(stream["phases"].as_array().unwrap().len(), 1);
        let memory = figure(stream, "/phases/0/memory_per_us") * 64.0;
        let mean = figure(stream, "/total/mean");
        assert!((memory / mean - 1.0).abs() < 0.02, "{memory} and {mean}");
        assert_eq!(figure(list, "/phases/0/memory_per_us"), 0.0);
        assert!(figure(list, "/phases/0/first_level_per_us") > 10.0);
        let ipc = |of: &Value| figure(of, "/phases/0/ipc");
        assert!(
            ipc(list) > ipc(stream),
            "a list in the second level stalls less"
        );
        let text = profile(dir.path(), &["--show", "latency@xeon-w3530"]).out;
        assert!(text.contains("lines/µs"), "{text}");
    }
}
