//! Windows in the policy language: what is read, and what is answered to mistakes.
use quell_policy::{Bandwidth, Policy, WindowWays};
use quell_types::options::OnLate;
use quell_types::units::{Nanos, Share};

/// A policy with two groups and windows of a 10 ms frame, with `changes` made to its text.
fn windowed(changes: &[(&str, &str)]) -> Result<Policy, String> {
    let mut text = String::from(
        r#"quell = 1
[group.control]
role = "critical"
command = ["a"]
allow = ["freeze"]
[group.batch]
role = "best-effort"
command = ["b"]
allow = ["freeze"]
[group.fixed]
role = "exempt"
command = ["c"]
[windows]
frame = "10ms"
cpus = "1"
schedule = [
  { group = "control", start = "0ms", length = "4ms" },
  { group = "batch", start = "4ms", length = "5ms" },
]
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
fn windows_are_read() {
    let keys = windowed(&[]).unwrap().windows.unwrap();
    assert_eq!(
        (keys.frame, keys.guard, keys.on_late),
        (Nanos::millis(10), Nanos::micros(200), OnLate::Report)
    );
    assert_eq!(keys.spare_group(), None);
    assert_eq!(keys.schedule[1].end(), Nanos::millis(9));
    assert!(keys.has("batch") && !keys.has("fixed"));
    let granted = "5ms\", ways = \"0xf0\", bandwidth = \"20%\" }";
    let throttled = "command = [\"b\"]\nallow = [\"freeze\", \"throttle\"]";
    let keys = windowed(&[
        ("5ms\" }", granted),
        ("command = [\"b\"]\nallow = [\"freeze\"]", throttled),
    ]);
    let keys = keys.unwrap().windows.unwrap();
    let ways: Vec<_> = keys.ways_of("batch").collect();
    assert_eq!(ways, [(1, WindowWays::Mask(0xf0))]);
    assert_eq!(
        keys.schedule[1].bandwidth,
        Some(Bandwidth::Share(Share::percent(20)))
    );
    let spare = "cpus = \"1\"\nspare = \"batch\"\non-late = \"stop\"\nguard = \"50us\"";
    let keys = windowed(&[("cpus = \"1\"", spare)]).unwrap();
    let keys = keys.windows.unwrap();
    assert_eq!(keys.spare_group().map(String::as_str), Some("batch"));
    assert_eq!(
        (keys.on_late, keys.guard),
        (OnLate::Stop, Nanos::micros(50))
    );
}

/// Changes to the policy, each with what is answered.
const REFUSED: [(&str, &str, &str); 22] = [
    (
        "5ms\" }",
        "7ms\" }",
        "schedule[1]: the window ends at 11ms, beyond the frame of 10ms",
    ),
    (
        "4ms\" }",
        "0ms\" }",
        "schedule[0].length: a window of no length",
    ),
    (
        "start = \"4ms\"",
        "start = \"3ms\"",
        "it starts at 3ms, while the window above it lasts until 4ms",
    ),
    (
        "{ group = \"batch\", start = \"4ms\", length = \"5ms\" }",
        "{ group = \"batch\", start = \"5ms\", length = \"2ms\" }, { group = \"control\", start = \"4ms\", length = \"2ms\" }",
        "it starts at 4ms, before the window above it (5ms)",
    ),
    (
        "group = \"batch\"",
        "group = \"bath\"",
        "schedule[1].group: there is no group 'bath'",
    ),
    (
        "group = \"batch\"",
        "group = \"fixed\"",
        "group 'fixed' is exempt: it is never stopped",
    ),
    (
        "4ms\" }",
        "1ms\" }",
        "1ms is shorter than 10 guards of 200us, which are 2ms",
    ),
    (
        "cpus = \"1\"",
        "cpus = \"1\"\nguard = \"1ms\"",
        "4ms is shorter than 10 guards of 1ms, which are 10ms",
    ),
    (
        "frame = \"10ms\"",
        "frame = \"10000500ns\"",
        "is not a multiple of 1us, the step of the clock",
    ),
    (
        "frame = \"10ms\"",
        "frame = \"2s\"",
        "windows.frame: 2s is not between 1ms and 1s",
    ),
    (
        "cpus = \"1\"",
        "cpus = \"1\"\nguard = \"0us\"",
        "windows.guard: a switch takes time",
    ),
    (
        "cpus = \"1\"",
        "cpus = \"1\"\nspare = \"bath\"",
        "windows.spare: there is no group 'bath'",
    ),
    (
        "command = [\"b\"]\nallow = [\"freeze\"]",
        "command = [\"b\"]",
        "group 'batch' is frozen outside its windows, and may not be",
    ),
    (
        "command = [\"b\"]",
        "command = [\"b\"]\ncpus = 1",
        "group.batch.cpus: it has a window, so that it runs on the CPUs of [windows]",
    ),
    (
        "5ms\" }",
        "5ms\", ways = \"four\" }",
        "'four' is not a number of ways, or a mask of them such as \"0xf0\"",
    ),
    (
        "5ms\" }",
        "5ms\", ways = 0 }",
        "schedule[1].ways: a group without ways cannot fill the cache",
    ),
    (
        "4ms\" }",
        "2ms\", ways = 4 }, { group = \"control\", start = \"2ms\", length = \"2ms\", ways = \"0x3\" }",
        "schedule[1].ways: group 'control' has a number of ways in one window, and a mask here",
    ),
    (
        "command = [\"b\"]\nallow = [\"freeze\"]\n[group.fixed]\nrole = \"exempt\"\ncommand = [\"c\"]\n[windows]\nframe = \"10ms\"\ncpus = \"1\"\nschedule = [\n",
        "command = [\"b\"]\nallow = [\"freeze\"]\nreserve.cache = { ways = 4 }\n[windows]\nframe = \"10ms\"\ncpus = \"1\"\nschedule = [\n  { group = \"batch\", start = \"0ms\", length = \"2ms\", ways = 4 },\n",
        "group.batch.reserve.cache: its windows say which ways it has",
    ),
    (
        "5ms\" }",
        "5ms\", bandwidth = \"100MB/s\" }",
        "schedule[1].bandwidth: group 'batch' is stopped once it has moved that much, and may not be",
    ),
    (
        "5ms\" }",
        "5ms\", bandwidth = { read = \"100MB/s\" } }",
        "schedule[1].bandwidth: a window has one budget, for reads and writes together",
    ),
    (
        "5ms\" }",
        "5ms\", bandwidth = \"0%\" }",
        "schedule[1].bandwidth: a group that may move nothing cannot run",
    ),
    (
        "5ms\" }",
        "5ms\", budget = \"1%\" }",
        "unknown key 'budget' in windows.schedule[1]",
    ),
];

#[test]
fn windows_that_cannot_be_are_refused() {
    for (from, to, why) in REFUSED {
        let refused = windowed(&[(from, to)]).expect_err(why);
        assert!(refused.contains(why), "{why}: {refused}");
        assert!(
            refused.contains("p.toml:"),
            "{why}: it has no line: {refused}"
        );
    }
    // Only windows let a critical group be frozen.
    let alone = windowed(&[(
        "{ group = \"control\", start = \"0ms\", length = \"4ms\" },",
        "",
    )]);
    let refused = alone.unwrap_err();
    assert!(refused.contains("cannot be allowed to freeze"), "{refused}");
}
