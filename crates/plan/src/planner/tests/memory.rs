//! Memory: what is kept, what is limited, what steers.

use quell_control::config::Allows;
use quell_types::options::PressureController;

use super::*;
use crate::inventory::MemoryControl;
use crate::plan::{Pressured, Promise};

const KEPT: &str = "
[group.victim]
role = 'critical'
command = ['a']
cpus = 'any'
reserve.memory = '2GiB'
reserve.files = ['/w']
[group.noise]
role = 'best-effort'
command = ['b']
cpus = 'any'
allow = ['limit-memory', 'freeze', 'reclaim', 'kill']
[group.mild]
role = 'best-effort'
command = ['c']
cpus = 'any'
";

fn with(control: MemoryControl) -> Inventory {
    let mut machine = machine(4, 1);
    for mechanism in [Mechanism::Memory, Mechanism::Stop] {
        let yes = Availability::Yes {
            best: Level::Enforced,
            how: "as on the test machine".to_owned(),
        };
        machine.mechanisms.insert(mechanism, yes);
    }
    machine.means.memory = MemoryMeans {
        reclaim: control == MemoryControl::V2,
        control,
        pressure: Ok(()),
        group_pressure: true,
        freeze: true,
        immunity: Ok(()),
        lock: Ok(()),
        ..MemoryMeans::default()
    };
    machine
}

fn pressure(plan: &Plan) -> &Pressured {
    plan.loops
        .pressure
        .as_ref()
        .expect("the plan controls memory")
}

/// The level of each promise of a group, by its words.
fn levels(plan: &Plan, group: &str) -> Vec<(String, Level)> {
    let of = plan.promises.iter().filter(|p| p.group == group);
    of.map(|p| (p.promise.to_string(), p.level)).collect()
}

#[test]
fn what_is_reserved_is_enforced_and_the_others_are_steered() {
    let plan = planned(KEPT, &with(MemoryControl::V2));
    assert_eq!(
        levels(&plan, "victim"),
        [
            ("2GiB of memory kept".to_owned(), Level::Enforced),
            ("/w kept in memory".to_owned(), Level::Enforced),
            (
                "waits for memory at most 5% of the time".to_owned(),
                Level::Regulated
            ),
        ]
    );
    let kinds: Vec<&Setting> = plan
        .steps
        .iter()
        .filter(|s| s.mechanism == Mechanism::Memory)
        .map(|s| &s.set)
        .collect();
    assert_eq!(
        *kinds[0],
        Setting::OomImmune,
        "before anything is protected"
    );
    let immune = kinds.iter().filter(|s| ***s == Setting::OomImmune).count();
    assert_eq!(immune, 1);
    let pressure = pressure(&plan);
    assert_eq!(pressure.controller, PressureController::Quell);
    assert!(!pressure.critical[0].measured);
    let all = Allows {
        limit: true,
        freeze: true,
        reclaim: true,
        kill: true,
    };
    let mild = Allows {
        limit: true,
        ..Allows::default()
    };
    let allowed: Vec<Allows> = pressure.neighbours.iter().map(|n| n.allows).collect();
    assert_eq!(allowed, [all, mild]);
}

#[test]
fn a_working_set_is_regulated_and_followed() {
    let text = KEPT.replace("'2GiB'", "'working-set'");
    let plan = planned(&text, &with(MemoryControl::V2));
    assert_eq!(
        levels(&plan, "victim")[0],
        ("the memory it works on kept".to_owned(), Level::Regulated)
    );
    assert!(pressure(&plan).critical[0].measured);
}

#[test]
fn v1_protects_nothing_and_limits_only_who_may_be_killed() {
    let error = refused(KEPT, &with(MemoryControl::V1));
    assert!(
        error.contains("group.victim.reserve.memory: the memory controller is on cgroup v1, which protects nothing"),
        "{error}"
    );
    let text = KEPT.replace("reserve.memory = '2GiB'", "");
    let plan = planned(&text, &with(MemoryControl::V1));
    let neighbours = &pressure(&plan).neighbours;
    assert_eq!(neighbours.len(), 1, "nothing may be done to the mild one");
    assert!(neighbours[0].allows.limit && !neighbours[0].allows.reclaim);
    assert_eq!(
        levels(&plan, "victim")[1].1,
        Level::Estimated,
        "nothing of its own is kept"
    );
    assert!(
        plan.notes
            .iter()
            .any(|n| n.contains("group mild: none of the actions that it allows"))
    );
    let limit = format!("{PAIR}limit.memory = '1GiB'");
    let error = refused(&limit, &with(MemoryControl::V1));
    assert!(
        error.contains("may not be killed")
            && error.contains("allow = [\"throttle\", \"limit-memory\", \"kill\"]"),
        "{error}"
    );
}

#[test]
fn a_limit_is_hard_only_for_who_may_be_killed() {
    let soft = planned(
        &format!("{PAIR}limit.memory = '1GiB'"),
        &with(MemoryControl::V2),
    );
    assert_eq!(
        levels(&soft, "noise"),
        [("at most 1GiB of memory".to_owned(), Level::Regulated)]
    );
    let text = format!("{PAIR}limit.memory = '1GiB'\nallow = ['throttle', 'limit-memory', 'kill']");
    let hard = planned(&text, &with(MemoryControl::V2));
    assert_eq!(levels(&hard, "noise")[0].1, Level::Enforced);
    let text = format!("{PAIR}limit.memory = '1GiB'\nallow = ['throttle']");
    let error = refused(&text, &with(MemoryControl::V2));
    assert!(
        error.contains("group.noise.limit.memory: the group (best-effort) may not be limited"),
        "{error}"
    );
    assert!(soft.loops.pressure.is_none(), "nobody asked for a loop");
    // A limit that is written is not moved.
    let text = format!("{KEPT}limit.memory = '1GiB'");
    let plan = planned(&text, &with(MemoryControl::V2));
    assert_eq!(pressure(&plan).neighbours.len(), 1);
}

#[test]
fn what_is_missing_is_refused_with_its_remedy() {
    let lacking = |change: fn(&mut MemoryMeans)| {
        let mut machine = with(MemoryControl::V2);
        change(&mut machine.means.memory);
        machine
    };
    let capability = lacking(|m| m.immunity = Err("EACCES".to_owned()));
    let error = refused(KEPT, &capability);
    assert!(
        error.contains("would be killed first: EACCES") && error.contains("give CAP_SYS_RESOURCE"),
        "{error}"
    );
    let unlocked = lacking(|m| m.lock = Err("8MiB".to_owned()));
    assert!(
        refused(KEPT, &unlocked).contains("group.victim.reserve.files: files cannot be locked")
    );
    // A loop that came with a reserve is left out with a note; one asked for is refused.
    let untold = lacking(|m| m.pressure = Err("no PSI".to_owned()));
    let plan = planned(KEPT, &untold);
    assert!(plan.loops.pressure.is_none());
    assert!(
        plan.acts
            .iter()
            .any(|n| n.contains("best-effort groups is not controlled") && n.contains("no PSI"))
    );
    let error = refused(&format!("{KEPT}[pressure]"), &untold);
    assert!(
        error.contains("pressure.controller") && error.contains("psi=1"),
        "{error}"
    );
    let alone = lacking(|m| m.group_pressure = false);
    assert!(refused(&format!("{KEPT}[pressure]"), &alone).contains("no cgroup v2 hierarchy"));
    let latd = planned(&format!("{KEPT}[pressure]\ncontroller = 'latd'"), &alone);
    assert_eq!(pressure(&latd).controller, PressureController::Latd);
    let nobody = with(MemoryControl::None);
    assert!(refused(KEPT, &nobody).contains("no cgroup hierarchy carries the memory controller"));
    let much = KEPT.replace("'2GiB'", "'7.5GiB'");
    assert!(refused(&much, &with(MemoryControl::V2)).contains("of 8GiB would be reserved"));
}

#[test]
fn pressure_without_anybody_to_act_upon_is_refused() {
    let text = "
[group.victim]
role = 'critical'
command = ['a']
[group.noise]
role = 'best-effort'
command = ['b']
allow = ['throttle']
[pressure]
";
    let error = refused(text, &with(MemoryControl::V2));
    assert!(
        error.contains("no best-effort group allows a limit") && error.contains("`allow`"),
        "{error}"
    );
    let text = text.replace("['throttle']", "['freeze']");
    let plan = planned(&text, &with(MemoryControl::V2));
    assert!(pressure(&plan).neighbours[0].allows.freeze);
    let none = planned(
        &format!("{text}controller = 'none'"),
        &with(MemoryControl::V2),
    );
    assert!(none.loops.pressure.is_none());
    let denied = refused(
        &format!("mechanisms.deny = ['memory']\n{text}"),
        &with(MemoryControl::V2),
    );
    assert!(denied.contains("the policy denies memory"), "{denied}");
}

#[test]
fn the_described_ones_are_estimates_and_sysctls_need_asking() {
    let text = format!("{KEPT}[pressure]\ncontroller = 'cgroup'\nsysctls = true");
    let plan = planned(&text, &with(MemoryControl::V2));
    let stall = plan
        .promises
        .iter()
        .find(|p| matches!(p.promise, Promise::MemoryStall { .. }))
        .unwrap();
    assert_eq!(stall.level, Level::Estimated);
    let steps = |f: &dyn Fn(&Setting) -> bool| plan.steps.iter().filter(|s| f(&s.set)).count();
    assert_eq!(steps(&|s| matches!(s, Setting::Sysctls { .. })), 1);
    assert_eq!(
        steps(&|s| matches!(
            s,
            Setting::SteerMemory {
                unswapped: true,
                ..
            }
        )),
        2
    );
    let latd = planned(
        &format!("{KEPT}[pressure]\ncontroller = 'latd'"),
        &with(MemoryControl::V2),
    );
    assert!(
        !latd
            .steps
            .iter()
            .any(|s| matches!(s.set, Setting::Sysctls { .. }))
    );
    assert!(
        latd.acts
            .iter()
            .any(|n| n.contains("pressure.sysctls = true"))
    );
}

#[test]
fn swappiness_of_groups_is_set_on_v1_and_told_once_on_v2() {
    let text = format!(
        "{}[pressure]\ncontroller = 'cgroup'",
        KEPT.replace("reserve.memory = '2GiB'", "")
    );
    let of = |controller: &str, control| {
        let plan = planned(&text.replace("cgroup", controller), &with(control));
        let steps = plan.steps.iter().filter_map(|s| match s.set {
            Setting::Swappiness { value } => Some((s.group.clone().unwrap(), value)),
            _ => None,
        });
        let told = plan
            .notes
            .iter()
            .filter(|n| n.contains("memory.swappiness"));
        (steps.collect::<Vec<_>>(), told.count())
    };
    let (steps, told) = of("cgroup", MemoryControl::V1);
    let expected = [("victim".to_owned(), 90), ("noise".to_owned(), 0)];
    assert_eq!((&steps[..], told), (&expected[..], 0));
    assert_eq!(of("cgroup", MemoryControl::V2), (vec![], 1));
    for other in ["latd", "quell"] {
        assert_eq!(of(other, MemoryControl::V1), (vec![], 0), "{other}");
    }
}

#[test]
fn what_is_around_everything_comes_first() {
    let bounded = |text: &str, most: u64| {
        // Under no policy at all, as the baseline of an experiment.
        let mut policy = match text {
            "" => Policy::new("solo"),
            text => policy(text),
        };
        policy.bounds.memory = Some(Bytes(most));
        policy
    };
    let reserves = KEPT.replace("2GiB", "300MiB");
    for control in [MemoryControl::V1, MemoryControl::V2] {
        let text = match control {
            MemoryControl::V2 => reserves.clone(),
            _ => KEPT.replace("reserve.memory = '2GiB'", ""),
        };
        let plan = plan(&bounded(&text, 400 << 20), &with(control)).unwrap();
        let most = Bytes(400 << 20);
        assert_eq!(plan.steps[0].set, Setting::BoundMemory { most });
        assert_eq!(plan.steps[0].group, None);
    }
    let none = plan(&bounded("", 400 << 20), &with(MemoryControl::V1)).unwrap();
    assert_eq!(none.steps.len(), 1);
    let refused = |policy: &Policy, machine: &Inventory| {
        let refusals = plan(policy, machine).expect_err("it should be refused");
        let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        all.join("\n")
    };
    let missing = refused(&bounded("", 400 << 20), &with(MemoryControl::None));
    assert!(
        missing.contains("bounds.memory: no cgroup with a limit") && missing.contains("root"),
        "{missing}"
    );
    let large = refused(&bounded("", 8 << 30), &with(MemoryControl::V2));
    assert!(large.contains("8GiB is no limit"), "{large}");
    // What is kept is kept of that.
    let much = refused(&bounded(&reserves, 320 << 20), &with(MemoryControl::V2));
    assert!(
        much.contains("300MiB of 320MiB would be reserved"),
        "{much}"
    );
}
