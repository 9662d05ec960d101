//! Turns of processes in the policy language: what is read, and what is answered to mistakes.
use quell_policy::Policy;
use quell_types::options::SchedulerPolicy;
use quell_types::units::{Nanos, Rate};

/// A policy with groups that take turns, with `changes` made to its text.
fn scheduled(changes: &[(&str, &str)]) -> Result<Policy, String> {
    let mut text = String::from(
        r#"quell = 1
[group.main]
role = "critical"
command = ["a"]
[group.batch]
role = "best-effort"
command = ["b"]
allow = ["freeze"]
[group.plain]
role = "best-effort"
command = ["c"]
[scheduler]
policy = "bounded"
groups = ["batch"]
demand.batch = { memory = "2GB/s" }
"#,
    );
    for (from, to) in changes {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    Policy::parse(&text, "p.toml").map_err(|problems| {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        all.join("\n")
    })
}

#[test]
fn turns_are_read() {
    let policy = scheduled(&[]).unwrap();
    assert_eq!(policy.scheduled(), ["batch"]);
    let keys = policy.scheduler.unwrap();
    assert_eq!(keys.policy, SchedulerPolicy::Bounded);
    assert_eq!((keys.quantum, keys.bound), (Nanos::millis(200), 4));
    assert_eq!(keys.demand["batch"].memory, Some(Rate(2_000_000_000)));
    assert_eq!(keys.demand["batch"].first_level, None);
    // Without a list it is all that may be frozen.
    let policy = scheduled(&[("groups = [\"batch\"]\n", "")]).unwrap();
    assert_eq!(policy.scheduled(), ["batch"]);
}

#[test]
fn turns_that_cannot_be_are_refused_by_key_and_line() {
    let quantum = |text| ("policy = \"bounded\"", text);
    for (change, told) in [
        (
            quantum("quantum = \"19ms\""),
            "scheduler.quantum: 19ms is not between 20ms and 5s",
        ),
        (
            quantum("quantum = \"5001ms\""),
            "is not between 20ms and 5s",
        ),
        (quantum("quantum = 200"), "scheduler.quantum"),
        (
            ("groups = [\"batch\"]", "groups = [\"batch\", \"main\"]"),
            "scheduler.groups[1]: group 'main' is critical: only best-effort groups wait for their turn",
        ),
        (
            ("groups = [\"batch\"]", "groups = [\"batch\", \"plain\"]"),
            "group 'plain' is frozen while it waits, and may not be",
        ),
        (
            ("groups = [\"batch\"]", "groups = [\"batch\", \"gone\"]"),
            "there is no group 'gone'",
        ),
        (
            ("demand.batch", "demand.plain"),
            "scheduler.demand.plain: group 'plain' does not take turns by [scheduler]",
        ),
        (("\"2GB/s\"", "\"2\""), "a rate such as 600MB/s"),
        (("\"2GB/s\"", "2000"), "a rate such as 600MB/s"),
        (("memory =", "misses ="), "misses"),
    ] {
        let said = scheduled(&[change]).unwrap_err();
        assert!(said.contains(told), "{told}: {said}");
    }
    let said = scheduled(&[quantum("quantum = \"19ms\"")]).unwrap_err();
    assert!(said.contains("p.toml:13"), "{said}");
}

#[test]
fn a_group_has_either_a_window_or_turns() {
    let windows = "[windows]\nframe = \"10ms\"\ncpus = \"1\"\nschedule = [{ group = \"batch\", start = \"0ms\", length = \"5ms\" }]\n[scheduler]";
    let said = scheduled(&[("[scheduler]", windows)]).unwrap_err();
    assert!(said.contains("group 'batch' has a window"), "{said}");
}
