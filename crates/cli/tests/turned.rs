//! Processes that take turns by what their counters say, under a real kernel in the lab. The
//! record has each decision and what was known before it. The pure scheduler is given the same.
//!
//! Skipped aloud where the lab cannot be had, and outside the long run (`QUELL_SOAK`).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use quell_control::config::Scheduling;
use quell_control::quanta::{Quanta, Ready, Turn};
use quell_engine::turns;
use quell_plan::{Plan, Setting};
use quell_record::quanta::Quantum;
use serde_json::Value;

mod guest;

/// Two writers, two programs that compute, and one that sleeps. No rate is declared.
const TURNS: &str = r#"
export QUELL_STATE_DIR=/tmp/state
computes() { while :; do :; done; }
for n in 1 2; do (role sweep 16777216 >/dev/null 2>&1) & ALL="$ALL $!"; done
for n in 1 2; do computes & ALL="$ALL $!"; done
sleep 10000 & ALL="$ALL $!"
usleep 300000; kill -STOP $ALL
before
for pid in $ALL; do MATCH="$MATCH { pid = $pid },"; done
printf 'quell = 1\n[group.batch]\nrole = "best-effort"\nallow = ["freeze"]\nmatch = [%s]\n[scheduler]\npolicy = "bounded"\nquantum = "200ms"\n' "$MATCH" >/tmp/policy.toml
quell run /tmp/policy.toml --out /tmp/runs >/tmp/log 2>&1 & run=$!
within 60 grep -q holding: /tmp/log || echo never held
kill -CONT $ALL
sleep 6
kill -TERM $run; wait $run; echo status $?
said
echo manifest $(cat /tmp/runs/*/manifest.json)
sed 's/^/row /' /tmp/runs/*/samples/turns.csv
kill -STOP $ALL
tell restored
kill -9 $ALL
"#;

fn scheduling(plan: &Plan) -> &Scheduling {
    let found = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Schedule(by) => Some(by),
        _ => None,
    });
    found.unwrap()
}

/// Gives the pure scheduler what the dispatcher had, and compares what it decides.
fn replayed(by: &Scheduling, quanta: &[Quantum]) {
    let demands: Vec<_> = by.groups.values().copied().collect();
    let mut again: Option<(u64, Quanta)> = None;
    for quantum in quanta {
        if again.as_ref().is_none_or(|(seed, _)| *seed != quantum.seed) {
            again = Some((quantum.seed, Quanta::new(by, &by.cores, quantum.seed)));
        }
        let ready = quantum.chances.iter().map(|chance| Ready {
            id: chance.member,
            demand: demands[chance.group],
            did: chance.did,
        });
        let ready: Vec<Ready> = ready.collect();
        let mut decided = again.as_mut().unwrap().1.decide(&ready);
        decided.sort_by_key(|turn| turn.id);
        let turns = quantum.chances.iter().filter_map(|chance| {
            let (id, cpu) = (chance.member, chance.cpu?);
            Some(Turn { id, cpu })
        });
        let mut turns: Vec<Turn> = turns.collect();
        turns.sort_by_key(|turn| turn.id);
        assert_eq!(turns, decided, "at {}", quantum.at);
    }
}

#[test]
fn counters_decide_and_the_record_says_so() {
    if !guest::soak() {
        eprintln!("SKIPPED: the long run's (QUELL_SOAK)");
        return;
    }
    let Some(said) = guest::says("6.12", "icelake", TURNS, Duration::from_secs(600)) else {
        return;
    };
    assert!(["0", "3"].contains(&said.one("status")));
    assert_eq!(said.one("restored"), "restored");
    let manifest: Value = serde_json::from_str(said.one("manifest")).unwrap();
    let plan: Plan = serde_json::from_value(manifest["plan"].clone()).unwrap();
    let by = scheduling(&plan);
    assert!(by.counted, "{by:?}");
    let quanta = turns::read(&said.all("row").join("\n")).unwrap();
    replayed(by, &quanta);
    // Of all five it is known what they did. The writers, which came first, moved most of it.
    let last = quanta.last().unwrap();
    let done = last.chances.iter().map(|chance| chance.did.unwrap().memory);
    let lines: Vec<u64> = done.collect();
    println!("{} decisions; lines moved: {lines:?}", quanta.len());
    assert!(quanta.len() > 15 && lines.len() == 5, "{}", quanta.len());
    let others = lines[2..].iter().max().unwrap();
    assert!(lines[0] + lines[1] > 20 * others, "{lines:?}");
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = guest::role();
    match &*role {
        "sweep" => guest::sweep(numbers[0]),
        other => panic!("role {other}"),
    }
}
