//! Windows of a repeating frame.

use super::*;

/// A machine whose kernel can keep windows.
fn dispatching(cores: u32, threads: u32) -> Inventory {
    with_windows(machine(cores, threads))
}

/// The same machine, with windows.
pub(super) fn with_windows(mut machine: Inventory) -> Inventory {
    let yes = Availability::Yes {
        best: Level::Regulated,
        how: "as on the test machine".to_owned(),
    };
    machine.mechanisms.insert(Mechanism::Windows, yes);
    machine
}

const GROUPS: &str = "
[group.control]
role = 'critical'
command = ['a']
allow = ['freeze']
[group.batch]
role = 'best-effort'
command = ['b']
allow = ['freeze']
[group.other]
role = 'best-effort'
command = ['c']
";

const WINDOWS: &str = "
[windows]
frame = '10ms'
cpus = '3'
schedule = [
  { group = 'control', start = '0ms', length = '4ms' },
  { group = 'batch', start = '5ms', length = '4ms' },
]
";

#[test]
fn a_group_of_any_cpus_is_kept_off_the_windows_cpus() {
    let groups = format!("{GROUPS}cpus = 'any'\n");
    let plan = planned(&format!("{groups}{WINDOWS}"), &dispatching(4, 1));
    assert_eq!(confined(&plan, "other").as_deref(), Some("0-2"));
}

#[test]
fn windowed_groups_share_a_cpu_and_nothing_else_runs_there() {
    let plan = planned(&format!("{GROUPS}{WINDOWS}"), &dispatching(4, 1));
    let cpus = |group: &str| plan.cpus(group).unwrap().to_string();
    assert_eq!([cpus("control"), cpus("batch")], ["3", "3"]);
    assert_eq!(cpus("other"), "0-2");
    let rest = plan.steps.iter().find_map(|step| match &step.set {
        Setting::ConfineRest { cpus } => Some(cpus.to_string()),
        _ => None,
    });
    assert_eq!(rest.as_deref(), Some("0-2"));
    let quiet = plan.steps.iter().find_map(|step| match &step.set {
        Setting::MoveIrqs { from, .. } => Some(from.to_string()),
        _ => None,
    });
    assert_eq!(quiet.as_deref(), Some("3"));
    let frame = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Windows(frame) => Some((step.id, frame)),
        _ => None,
    });
    let (step, frame) = frame.unwrap();
    let spans: Vec<_> = frame
        .spans
        .iter()
        .map(|s| (s.start, s.end, s.group.as_deref()))
        .collect();
    let ms = Nanos::millis;
    let expected = [
        (ms(0), ms(4), Some("control")),
        (ms(4), ms(5), None),
        (ms(5), ms(9), Some("batch")),
        (ms(9), ms(10), None),
    ];
    assert_eq!(spans, expected);
    for (held, group) in plan.promises.iter().zip(["control", "batch"]) {
        assert_eq!((held.group.as_str(), held.level), (group, Level::Regulated));
        assert_eq!(
            held.promise.to_string(),
            "3.8ms of each 10ms alone on CPU 3"
        );
        assert!(held.held_by.contains(&step), "{held:?}");
    }
    assert_eq!(plan.promises.len(), 2);
}

#[test]
fn several_cpus_are_emptied_and_divided_by_one_frame() {
    let two = WINDOWS.replace("cpus = '3'", "cpus = '1,3'");
    let plan = planned(&format!("{GROUPS}{two}"), &dispatching(4, 1));
    let cpus = |group: &str| plan.cpus(group).unwrap().to_string();
    assert_eq!([cpus("control"), cpus("batch")], ["1,3", "1,3"]);
    assert_eq!(cpus("other"), "0,2");
    let frames = plan.steps.iter().filter_map(|step| match &step.set {
        Setting::Windows(frame) => Some(frame.cpus.to_string()),
        _ => None,
    });
    assert_eq!(frames.collect::<Vec<_>>(), ["1,3"]);
    let told = plan.promises[0].promise.to_string();
    assert_eq!(told, "3.8ms of each 10ms alone on CPUs 1,3");
}

#[test]
fn spare_time_is_a_window_of_its_group() {
    let spared = WINDOWS.replace("cpus = '3'", "cpus = '3'\nspare = 'batch'\nguard = '100us'");
    let plan = planned(&format!("{GROUPS}{spared}"), &dispatching(4, 1));
    let told: Vec<String> = plan
        .promises
        .iter()
        .map(|p| p.promise.to_string())
        .collect();
    assert_eq!(
        told,
        [
            "3.9ms of each 10ms alone on CPU 3",
            "5.9ms of each 10ms alone on CPU 3"
        ]
    );
}

#[test]
fn threads_of_the_same_core_are_noted() {
    let plan = planned(&format!("{GROUPS}{WINDOWS}"), &dispatching(2, 2));
    let note = "the windows of CPU 3 share a core with CPU 1 (SMT)";
    assert!(plan.notes.iter().any(|n| n.contains(note)), "{plan:?}");
}

#[test]
fn windows_that_this_machine_cannot_keep_are_refused() {
    let both = format!("{GROUPS}{WINDOWS}");
    let four = dispatching(4, 1);
    let on = |cpus: &str| both.replace("cpus = '3'", &format!("cpus = '{cpus}'"));
    let missing = refused(&on("7"), &four);
    assert!(
        missing.contains("windows.cpus: CPU 7 does not exist")
            && missing.contains("write cpus = \"3\" in [windows]"),
        "{missing}"
    );
    let all = refused(&on("0"), &dispatching(1, 1));
    assert!(all.contains("CPU 0 is all there is"), "{all}");
    let all = refused(&on("0-3"), &four);
    assert!(all.contains("CPU 0-3 is all there is"), "{all}");
    let lacking = refused(&both, &machine(4, 1));
    assert!(
        lacking.contains("windows: this machine says nothing about windows")
            && lacking.contains("leave out windows"),
        "{lacking}"
    );
    let denied = refused(&format!("mechanisms.deny = ['windows']\n{both}"), &four);
    assert!(denied.contains("the policy denies windows"), "{denied}");
}

#[test]
fn groups_that_the_dispatcher_cannot_switch_are_refused() {
    let both = format!("{GROUPS}{WINDOWS}");
    let four = dispatching(4, 1);
    let own = "match = [{ cgroup = '/batch.slice' }]";
    let in_place = refused(&both.replace("command = ['b']", own), &four);
    assert!(
        in_place.contains("group.batch.match: group batch stays in its own cgroup"),
        "{in_place}"
    );
    let free = "command = ['b']\nallow = ['freeze']";
    let limit = "command = ['b']\nallow = ['freeze', 'throttle']\nlimit.bandwidth = '20%'";
    let capped = format!("{BRAKE}{}", both.replace(free, limit));
    let capped = refused(&capped, &four);
    assert!(
        capped.contains("group batch has windows: what it may move is said of each of them"),
        "{capped}"
    );
}

/// The CPUs that a group is confined to. `None`: it is not.
fn confined(plan: &Plan, group: &str) -> Option<String> {
    let steps = plan.steps.iter();
    let mut own = steps.filter(|step| step.group.as_deref() == Some(group));
    own.find_map(|step| match &step.set {
        Setting::Confine { cpus, .. } => Some(cpus.to_string()),
        _ => None,
    })
}

#[test]
fn a_group_of_any_cpus_is_kept_off_a_partition() {
    let groups = |cpus: &str| {
        format!(
            "[group.a]\nrole = 'critical'\ncommand = ['a']\n{cpus}\n\
             [group.b]\nrole = 'best-effort'\ncommand = ['b']\ncpus = 'any'\n"
        )
    };
    let plan = planned(&groups("cpus = 1"), &machine(4, 1));
    assert_eq!(confined(&plan, "b").as_deref(), Some("0-2"));
    // Where no group has CPUs of its own, no task is moved.
    let plan = planned(&groups("cpus = 'any'"), &machine(4, 1));
    assert_eq!(confined(&plan, "b"), None);
}
