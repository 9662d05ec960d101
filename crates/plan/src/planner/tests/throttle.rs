//! What holds a limit: the weight, the CPU-time quota, or the brake.

use super::*;

#[test]
fn a_budget_of_less_than_five_wake_ups_gets_a_longer_period() {
    let text = format!("{BRAKE}{PAIR}limit.bandwidth = '2%'\n");
    let plan = planned(&text, &machine(2, 1));
    // Five stops of 10 us at 2 %.
    assert_eq!(regulation(&plan).period, Nanos::micros(2_500));
    assert!(
        told(&plan, "the period is 2.5ms instead of 1ms"),
        "{:?}",
        plan.notes
    );
    let text = refused(&text.replace("2%", "0.001%"), &machine(2, 1));
    assert!(text.contains("no period of a second or less"), "{text}");
}

#[test]
fn below_a_millisecond_the_plan_states_what_a_sleep_costs() {
    let note = |period: &str| {
        let text = format!("regulator.period = '{period}'\n{BRAKE}{PAIR}limit.bandwidth = '70%'\n");
        let plan = planned(&text, &machine(2, 1));
        assert_eq!(regulation(&plan).meter, Meter::Time);
        told(&plan, "each time that it goes to sleep")
    };
    assert!(note("500us"));
    assert!(!note("1ms"));
}

#[test]
fn a_limit_is_held_by_the_quota_where_that_is_enough() {
    let quota = |text: &str| {
        let plan = planned(text, &machine(2, 1));
        plan.steps.iter().find_map(|s| match s.set {
            Setting::CpuMax { share, period } => Some((share, period)),
            _ => None,
        })
    };
    let text = format!("{PAIR}limit.bandwidth = '20%'\n");
    assert_eq!(quota(&text), Some((Share::percent(20), Nanos::millis(20))));
    let slow = format!("regulator.period = '50ms'\n{text}");
    assert_eq!(quota(&slow), Some((Share::percent(20), Nanos::millis(50))));
    let late = text.replace("cpus = 1", "cpus = 1\ntarget.deadline = '80ms'");
    assert_eq!(quota(&late), Some((Share::percent(20), Nanos::millis(8))));
    // Bytes, a short period, a budget for each CPU, a close deadline, a reserve, or the policy's
    // word need the brake.
    for keys in [
        "regulator.period = '1ms'\n",
        "regulator.split = 'even'\n",
        "mechanisms.bandwidth = 'regulator'\n",
    ] {
        assert_eq!(quota(&format!("{keys}{text}")), None, "{keys}");
    }
    let soon = text.replace("cpus = 1", "cpus = 1\ntarget.deadline = '16ms'");
    assert_eq!(quota(&soon), None);
    assert_eq!(quota(&format!("require = 'none'\n{RESERVE}")), None);
    let plan = planned(&text, &counted(machine(2, 1), ""));
    assert_eq!(regulation(&plan).meter, Meter::Hardware);
}

#[test]
fn best_effort_groups_get_a_low_weight_where_weights_exist() {
    let mut machine = machine(2, 1);
    machine.mechanisms.insert(
        Mechanism::Weight,
        Availability::Yes {
            best: Level::Enforced,
            how: String::new(),
        },
    );
    let of = |text: &str| {
        let plan = planned(text, &machine);
        let weights = plan.steps.iter().filter_map(|s| match s.set {
            Setting::Weight { weight } => Some((s.group.clone().unwrap(), weight.to_string())),
            _ => None,
        });
        let outermost = plan.steps.iter().filter_map(|s| match s.set {
            Setting::Gather {
                outermost: true, ..
            } => s.group.clone(),
            _ => None,
        });
        (weights.collect::<Vec<_>>(), outermost.collect::<Vec<_>>())
    };
    let noise = |weight: &str| vec![("noise".to_owned(), weight.to_owned())];
    let weighed = vec!["noise".to_owned()];
    assert_eq!(of(PAIR), (noise("idle"), weighed.clone()));
    let high = format!("{PAIR}cpu-weight = 200\n");
    assert_eq!(of(&high), (noise("200"), weighed.clone()));
    let high = planned(&high, &machine);
    let promised = high.promises.iter().find(|held| held.group == "noise");
    assert_eq!(promised.unwrap().level, Level::Enforced, "{high:?}");
    let seven = format!("{PAIR}cpu-weight = 7\n");
    assert_eq!(of(&seven), (noise("7"), weighed.clone()));
    // A cgroup that Quell did not make would lose the weight that it has.
    let own = PAIR.replace("command = ['b']", "match = [{ cgroup = '/batch.slice' }]");
    assert_eq!(of(&own).0, noise("2"));
    let denied = format!("mechanisms.deny = ['weight']\n{PAIR}");
    assert_eq!(of(&denied), (vec![], vec![]));
    let text = refused(&format!("{denied}cpu-weight = 7\n"), &machine);
    assert!(
        text.contains("group.noise.cpu-weight") && text.contains("denies weight"),
        "{text}"
    );
}

#[test]
fn a_group_in_its_own_cgroup_is_held_by_the_quota() {
    let text = PAIR.replace("command = ['b']", "match = [{ cgroup = '/batch.slice' }]");
    let text = format!("{text}limit.bandwidth = '20%'\n");
    let counts = counted(machine(2, 1), "");
    let plan = planned(&text, &counts);
    let step = plan.steps.last().unwrap();
    assert!(matches!(step.set, Setting::CpuMax { .. }), "{step:?}");
    assert!(
        step.because.contains("stays in its own cgroup"),
        "{}",
        step.because
    );
    let pooled = format!("require = 'none'\nregulator.reclaim = true\n{RESERVE}");
    let own = "match = [{ cgroup = '/batch.slice' }]";
    let pooled = refused(&pooled.replace("command = ['b']", own), &counts);
    assert!(pooled.contains("cannot be pooled"), "{pooled}");
}

#[test]
fn a_group_in_its_own_cgroup_is_braked_where_asked_for() {
    let own = |tables: &str| {
        let text = PAIR.replace("command = ['b']", &format!("match = [{tables}]"));
        format!("{BRAKE}{text}limit.bandwidth = '20%'\n")
    };
    let text = own("{ cgroup = '/batch.slice' }");
    let mut machine = machine(2, 1);
    let plan = planned(&text, &machine);
    assert_eq!(regulation(&plan).meter, Meter::Time);
    let gathered = plan.steps.iter().find_map(|s| match &s.set {
        Setting::Gather { braked, .. } if s.group.as_deref() == Some("noise") => Some(*braked),
        _ => None,
    });
    assert_eq!(gathered, Some(true));
    assert!(told(&plan, "threaded children"), "{:?}", plan.notes);
    // A brake holds one cgroup.
    let mixed = refused(&own("{ cgroup = '/a' }, { comm = 'b' }"), &machine);
    assert!(mixed.contains("also tasks outside of it"), "{mixed}");
    machine.means.brake_in_place = Err("cgroup v1 has no threaded children".to_owned());
    let v1 = refused(&text, &machine);
    assert!(v1.contains("stays in its own cgroup: cgroup v1"), "{v1}");
    assert!(
        v1.contains("write bandwidth = \"any\" in [mechanisms]"),
        "{v1}"
    );
    machine.means.brake = Err("cgroups cannot be idle".to_owned());
    assert!(refused(&text, &machine).contains("cgroups cannot be idle"));
}

#[test]
fn without_a_brake_the_quota_stands_in_and_says_so() {
    let mut machine = machine(2, 1);
    machine.means.brake = Err("cgroups cannot be idle".to_owned());
    let plan = planned(&format!("{PAIR}limit.bandwidth = '20%'\n"), &machine);
    let step = plan
        .steps
        .iter()
        .find(|s| s.mechanism == Mechanism::CpuMax)
        .expect("a quota");
    assert_eq!(
        step.set,
        Setting::CpuMax {
            share: Share::percent(20),
            period: Nanos::millis(20)
        }
    );
    assert!(step.because.contains("cgroups cannot be idle"));
    let text = format!("mechanisms.bandwidth = 'regulator'\n{PAIR}limit.bandwidth = '20%'\n");
    assert!(refused(&text, &machine).contains("cgroups cannot be idle"));
}

/// A second quota in the same cgroup would take the place of the first.
#[test]
fn one_quota_holds_a_limit_of_cpu_time_and_one_of_bandwidth() {
    let machine = machine(4, 1);
    for (cpu_time, bandwidth, tighter) in [("10%", "50%", 100_000), ("50%", "20%", 200_000)] {
        let plan = planned(
            &format!(
                "[group.app]\nrole = \"critical\"\nmatch = [{{ comm = \"app\" }}]\ncpus = 1\n\
                 [group.job]\nrole = \"best-effort\"\nmatch = [{{ comm = \"job\" }}]\ncpus = 1\n\
                 limit.cpu-time = \"{cpu_time}\"\nlimit.bandwidth = \"{bandwidth}\"\n"
            ),
            &machine,
        );
        let quotas: Vec<_> = plan
            .steps
            .iter()
            .filter_map(|step| match step.set {
                Setting::CpuMax { share, period } => Some((step.id, share, period)),
                _ => None,
            })
            .collect();
        let [(id, share, period)] = quotas[..] else {
            panic!("{quotas:?}");
        };
        assert_eq!((share, period), (Share(tighter), Nanos::millis(20)));
        let held = plan.promises.iter().filter(|held| held.held_by == [id]);
        assert_eq!(held.count(), 2, "{:?}", plan.promises);
    }
}
