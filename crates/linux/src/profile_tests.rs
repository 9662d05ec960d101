use quell_kernel::perf::SW_TASK_CLOCK;
use quell_kernel::root::Kernel;

use super::*;
use crate::sampler::tests::of_this_thread;
use std::io::Read;

fn run(wanted: Wanted<'_>, span: Nanos) -> Result<(Watched, Vec<String>)> {
    let files = Kernel::new().unwrap();
    let options = Options {
        name: "job",
        wanted,
        cpus: CpuSet::default(),
        all: CpuSet::default(),
        span,
        counting: &[],
    };
    let mut lines = Vec::new();
    let mut told = |line: &str| lines.push(line.to_owned());
    let watched = watch(&files, &options, &mut told, &mut |_| ())?;
    Ok((watched, lines))
}

fn words(text: &str) -> Vec<String> {
    ["sh", "-c", text].map(str::to_owned).to_vec()
}

#[test]
fn a_command_is_watched_to_its_end_children_included() {
    if of_this_thread(SW_TASK_CLOCK).is_none() {
        return;
    }
    let command = words(
        "echo one; (i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done) & wait; echo two; exit 3",
    );
    let (watched, lines) = run(Wanted::Command(&command), Nanos::secs(60)).unwrap();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(watched.notes, ["job ended with status 3"]);
    let last = watched.readings[watched.readings.len() - 1];
    // What the child ran until it was found is missing.
    assert!(last.1[0] > 5_000_000, "{last:?}");
}

#[test]
fn tasks_are_watched_for_the_span_and_what_they_touch_is_seen() {
    if of_this_thread(SW_TASK_CLOCK).is_none() {
        return;
    }
    let mut child = std::process::Command::new("sh")
        .args([
            "-c",
            "a=$(head -c 20000000 /dev/zero | tr '\\0' a); echo ready; read x",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // From now on it touches nothing of its memory. Pages of files that other processes touch
    // meanwhile count as touched.
    let mut ready = [0u8; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    let matching = [TaskMatch {
        pid: Some(child.id()),
        ..TaskMatch::default()
    }];
    let watched = run(Wanted::Tasks(&matching), Nanos::millis(150));
    child.kill().unwrap();
    child.wait().unwrap();
    let (watched, _) = watched.unwrap();
    let (first, last) = (
        watched.readings[0],
        watched.readings[watched.readings.len() - 1],
    );
    assert!(
        last.0.since(first.0) >= Nanos::millis(140),
        "{first:?} {last:?}"
    );
    // It waits: no time, and nothing touched.
    assert!(last.1[0] - first.1[0] < 5_000_000);
    let set = watched.working_set.unwrap();
    assert!(set.resident_bytes > 20_000_000, "{set:?}");
    match set.touched_bytes {
        Some(touched) => assert!(touched < set.resident_bytes / 2, "{set:?}"),
        None => quell_testing::skip_part(&set.how),
    }
}

#[test]
fn what_is_not_there_is_refused_with_its_name() {
    if of_this_thread(SW_TASK_CLOCK).is_none() {
        return;
    }
    let matching = [TaskMatch {
        comm: Some("no-such-program".to_owned()),
        ..TaskMatch::default()
    }];
    let error = run(Wanted::Tasks(&matching), Nanos::secs(1)).unwrap_err();
    assert!(error.to_string().contains("no task is matched"), "{error}");
    let command = ["/no/such/program".to_owned()];
    let error = run(Wanted::Command(&command), Nanos::secs(1)).unwrap_err();
    assert!(
        error.to_string().contains("could not be started"),
        "{error}"
    );
}
