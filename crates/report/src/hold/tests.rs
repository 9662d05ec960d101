use quell_plan::{GroupPlan, Loops, Promise, Setting, Step};
use quell_record::events::{Event, Phase, Spent};
use quell_record::standing::Cause;
use quell_types::ids::{PromiseId, StepId};
use quell_types::mechanism::Mechanism;
use quell_types::options::CpuWeight;

use super::*;

fn s(n: u64) -> Nanos {
    Nanos::secs(n)
}

/// CPU 1 for the critical group, a low weight and a limit for its neighbour.
fn plan() -> Plan {
    let step = |id, group: &str, mechanism, set| Step {
        id: StepId(id),
        group: Some(group.to_owned()),
        mechanism,
        set,
        because: String::new(),
        assumed: false,
    };
    let held = |group: &str, promise, level, step| Held {
        group: group.to_owned(),
        promise,
        level,
        held_by: vec![StepId(step)],
        weakest: None,
        assumed: false,
    };
    let cpus = || "1".parse().unwrap();
    Plan {
        policy: "run".to_owned(),
        groups: vec![GroupPlan {
            name: "critical".to_owned(),
            cpus: cpus(),
            matching: Vec::new(),
        }],
        steps: vec![
            step(
                1,
                "best-effort",
                Mechanism::Weight,
                Setting::Weight {
                    weight: CpuWeight::Of(10),
                },
            ),
            step(
                2,
                "critical",
                Mechanism::Cores,
                Setting::Confine {
                    cpus: cpus(),
                    mems: "0".parse().unwrap(),
                    exclusive: true,
                },
            ),
        ],
        promises: vec![
            held(
                "critical",
                Promise::Cpus { cpus: cpus() },
                Level::Enforced,
                2,
            ),
            held(
                "best-effort",
                Promise::LimitBandwidth {
                    rate: "2GB/s".parse().unwrap(),
                },
                Level::Estimated,
                1,
            ),
        ],
        notes: Vec::new(),
        acts: Vec::new(),
        assumed: None,
        loops: Loops::default(),
    }
}

fn lost(id: u32, level: Level) -> Event {
    Event::Promise {
        id: PromiseId(id),
        level,
        because: Cause::Removed {
            what: "/sys/fs/cgroup/quell.slice".to_owned(),
        },
    }
}

fn spent(ran_ms: u64, waited_ms: u64) -> Event {
    Event::Spent {
        group: "best-effort".to_owned(),
        spent: Spent {
            ran_ns: ran_ms * 1_000_000,
            waited_ns: waited_ms * 1_000_000,
            ..Spent::default()
        },
    }
}

fn account(events: &[(Nanos, Event)]) -> Account {
    let mut account = Account::new(&plan(), ["best-effort".to_owned()].iter());
    account.take(s(100), &Event::Phase { name: Phase::Hold });
    for (at, event) in events {
        account.take(*at, event);
    }
    account
}

fn at(width: usize) -> Style {
    let color = false;
    Style { color, width }
}

#[test]
fn the_line_says_what_by_what_at_which_level_and_the_end() {
    let critical = [("critical".to_owned(), "comm=redis-server".to_owned())];
    let on_terminal = Ends::OnSignal { process: None };
    assert_eq!(
        holding_line(&plan(), &critical, on_terminal),
        "holding: critical (comm=redis-server) is protected by cores (level enforced); \
         Ctrl-C ends it and reverts everything"
    );
    let in_a_pipe = Ends::OnSignal { process: Some(812) };
    let line = holding_line(&plan(), &critical, in_a_pipe);
    assert!(
        line.ends_with("; `kill 812` ends it and reverts everything"),
        "{line}"
    );
    let mut none = plan();
    none.promises[0].level = Level::None;
    assert_eq!(
        holding_line(&none, &critical, Ends::WithCommand),
        "holding: critical (comm=redis-server) is helped by weight and cores, without a promise \
         (level none); it ends with the command, and everything is reverted"
    );
}

#[test]
fn the_status_tells_time_promises_and_neighbours() {
    let events = [(s(101), spent(500, 400)), (s(102), spent(420, 500))];
    let account = account(&events);
    let line = |account: &Account, now, width| status_line(account, &plan(), now, at(width));
    assert_eq!(
        line(&account, s(102), 80).unwrap(),
        "held 2.0 s | 2/2 promises hold | best-effort 0.46 CPUs"
    );
    assert_eq!(
        line(&account, s(102), 60).unwrap(),
        "held 2.0 s | 2/2 promises hold | best-effort 0.46 CPUs"
    );
    // What does not fit is left out as a whole, as is what was not seen recently.
    assert_eq!(
        line(&account, s(102), 50).unwrap(),
        "held 2.0 s | 2/2 promises hold"
    );
    assert_eq!(
        line(&account, s(165), 60).unwrap(),
        "held 1 min 05 s | 2/2 promises hold"
    );
    let before = Account::new(&plan(), [].iter());
    assert_eq!(line(&before, s(1), 80), None);
}

#[test]
fn a_lost_promise_is_named_at_every_width() {
    let account = account(&[(s(110), lost(2, Level::None))]);
    let line = |style| status_line(&account, &plan(), s(111), style).unwrap();
    assert_eq!(
        line(at(80)),
        "held 11 s | LOST 1 of 2 promises: best-effort: at most 2GB/s"
    );
    assert_eq!(
        line(at(60)),
        "held 11 s | LOST 1 of 2 promises: best-effort: at most 2..."
    );
    for columns in 1..100 {
        let plain = line(at(columns));
        assert!(
            width(&plain) < columns.max(1) + usize::from(columns == 0),
            "{columns}: {plain}"
        );
    }
    let color = true;
    let painted = line(Style { color, width: 60 });
    assert!(painted.contains("\x1b[31mLOST"), "{painted:?}");
    assert!(!line(at(60)).contains('\x1b'), "no colour without it");
}

#[test]
fn the_end_tells_time_shares_neighbours_and_what_was_reverted() {
    let throttle = Event::Throttle {
        cpu: 0,
        group: "best-effort".to_owned(),
        overflows: 3,
        throttles: 1234,
        throttled_ns: 34_000_000_000,
        lines: 5,
        pooled: None,
    };
    let account = account(&[
        (s(120), lost(2, Level::None)),
        (s(150), lost(2, Level::Estimated)),
        (s(170), throttle),
        (s(180), spent(73_600, 81_000)),
        (s(180), Event::Phase { name: Phase::Undo }),
    ]);
    let undone = Undone {
        restored: 23,
        left: vec!["/proc/irq/1/smp_affinity: changed by another program".to_owned()],
    };
    assert_eq!(
        closing(&account, &plan(), &undone, false),
        [
            "held for 1 min 20 s; the part of that time in which each promise held:",
            "   100 %  critical: CPU 1 to itself; level enforced",
            "  62.5 %  best-effort: at most 2GB/s; lost: another process removed /sys/fs/cgroup/quell.slice",
            "best-effort kept 0.92 of a CPU on average (1 min 13 s of CPU time); its threads waited 1 min 21 s for a CPU",
            "best-effort was throttled 1,234 times, 34 s in all",
            "reverted: 23 changes",
            "not reverted: /proc/irq/1/smp_affinity: changed by another program",
        ]
    );
}

#[test]
fn what_is_not_known_is_not_told() {
    let account = account(&[(s(100), Event::Phase { name: Phase::Undo })]);
    let restored = 1;
    let undone = Undone {
        restored,
        left: Vec::new(),
    };
    let told = closing(&account, &plan(), &undone, false);
    assert!(
        !told
            .iter()
            .any(|line| line.contains("kept") || line.contains("throttled"))
    );
    assert_eq!(told.last().unwrap(), "reverted: 1 change");
    let told = closing(&account, &plan(), &Undone::default(), true);
    assert!(
        told[0].contains("the watchdog reverted everything"),
        "{told:?}"
    );
    assert!(!told.iter().any(|line| line.contains('%')), "{told:?}");
    // A failure before all steps were applied.
    let never = Account::new(&plan(), [].iter());
    let told = closing(&never, &plan(), &undone, false);
    assert_eq!(told, ["reverted: 1 change"]);
}

#[test]
fn a_short_loss_is_never_all_of_the_time() {
    let account = account(&[
        (s(200), lost(2, Level::None)),
        (s(200).plus(Nanos::millis(1)), lost(2, Level::Estimated)),
        (s(9_000), Event::Phase { name: Phase::Undo }),
    ]);
    let told = closing(&account, &plan(), &Undone::default(), false);
    assert!(told[2].starts_with("  99.9 %  best-effort"), "{told:?}");
}
