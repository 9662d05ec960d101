//! Ways and budgets of windows.

use quell_control::config::{Fill, Frame, Meter};
use quell_types::partition::Mask;

use super::boards::{apollolake, icelake_sp, p4080, simulated};
use super::windows::with_windows;
use super::*;

const GROUPS: &str = "
[group.control]
role = 'critical'
command = ['a']
allow = ['freeze', 'throttle']
[group.batch]
role = 'best-effort'
command = ['b']
allow = ['freeze', 'throttle']
[group.other]
role = 'best-effort'
command = ['c']
";

/// Windows of a frame of 10 ms on CPU 3: who, from, for so many ms, and further keys.
fn schedule(windows: &[(&str, u64, u64, &str)]) -> String {
    let one = |(group, start, length, keys): &(&str, u64, u64, &str)| {
        format!("{{ group = '{group}', start = '{start}ms', length = '{length}ms'{keys} }}")
    };
    let all: Vec<String> = windows.iter().map(one).collect();
    let all = all.join(", ");
    format!("{GROUPS}[windows]\nframe = '10ms'\ncpus = '3'\nschedule = [{all}]\n")
}

fn frame(plan: &Plan) -> &Frame {
    let mut steps = plan.steps.iter();
    let frame = steps.find_map(|step| match &step.set {
        Setting::Windows(frame) => Some(frame),
        _ => None,
    });
    frame.unwrap()
}

/// The group and the mask of each span.
fn fills(plan: &Plan) -> Vec<(&str, Option<u64>)> {
    let spans = frame(plan).spans.iter();
    let of = |ways: Option<Fill>| ways.map(|Fill { mask, .. }| mask.0);
    let all = spans.map(|s| (s.group.as_deref().unwrap_or("-"), of(s.ways)));
    all.collect()
}

/// The ways that steps give, by group.
fn given(plan: &Plan) -> Vec<(&str, Mask)> {
    let steps = plan.steps.iter().filter_map(|step| match step.set {
        Setting::Ways { mask, .. } => Some((step.group.as_deref()?, mask)),
        _ => None,
    });
    steps.collect()
}

#[test]
fn windows_of_a_group_share_the_ways_of_the_largest() {
    let text = schedule(&[
        ("control", 0, 3, ", ways = 4"),
        ("batch", 3, 2, ", ways = 5"),
        ("batch", 5, 2, ", ways = 2"),
        ("batch", 7, 3, ""),
    ]);
    let plan = planned(&text, &with_windows(icelake_sp()));
    let masks = [
        ("control", Mask(0xf)),
        ("batch", Mask(0x1f0)),
        ("other", Mask(0xe00)),
        ("rest", Mask(0xe00)),
    ];
    assert_eq!(given(&plan), masks);
    assert_eq!(
        fills(&plan),
        [
            ("control", Some(0xf)),
            ("batch", Some(0x1f0)),
            ("batch", Some(0x30)),
            // Without ways it fills what groups without ways fill.
            ("batch", Some(0xe00)),
        ]
    );
    let told: Vec<String> = plan
        .promises
        .iter()
        .map(|p| format!("{}: {} {}", p.group, p.level, p.promise))
        .collect();
    for promise in [
        "control: enforced 4 ways (0xf) of L3 to itself",
        "batch: enforced 5 ways (0x1f0) of L3 to itself",
    ] {
        assert!(told.iter().any(|t| t == promise), "{told:?}");
    }
}

#[test]
fn masks_of_windows_are_taken_as_they_are() {
    let text = schedule(&[
        ("control", 0, 3, ", ways = '0x3c'"),
        ("batch", 3, 3, ", ways = '0x300'"),
        ("batch", 6, 3, ", ways = '0x700'"),
    ]);
    let plan = planned(&text, &with_windows(icelake_sp()));
    let expected = [
        ("control", Some(0x3c)),
        ("batch", Some(0x300)),
        ("batch", Some(0x700)),
        ("-", None),
    ];
    assert_eq!(fills(&plan), expected);
    assert_eq!(given(&plan)[1], ("batch", Mask(0x700)));
    let spare = text.replace("cpus = '3'", "cpus = '3'\nguard = '100us'\nspare = 'batch'");
    let plan = planned(&spare, &with_windows(icelake_sp()));
    // Spare time says no ways. Of those that are left a run is taken.
    assert_eq!(fills(&plan)[3], ("batch", Some(0xc0)));
}

#[test]
fn ways_of_windows_that_cannot_be_had_are_refused() {
    let with = |keys| schedule(&[("control", 0, 3, keys), ("batch", 3, 3, "")]);
    let four = with_windows(icelake_sp());
    let none = refused(&with(", ways = 4"), &with_windows(machine(4, 1)));
    assert!(
        none.contains("windows.schedule[0].ways") && none.contains("leave out schedule[0].ways"),
        "{none}"
    );
    let many = refused(&with(", ways = 13"), &four);
    assert!(
        many.contains("windows.schedule[0].ways: it takes 13 of the 12 ways of L3"),
        "{many}"
    );
    let holes = refused(&with(", ways = '0x5'"), &four);
    assert!(
        holes.contains("windows.schedule[0].ways") && holes.contains("0x5"),
        "{holes}"
    );
    let between = [
        ("control", 0, 3, ", ways = '0xf'"),
        ("control", 3, 3, ", ways = '0x5'"),
    ];
    let between = refused(&schedule(&between), &four);
    assert!(
        between.contains("windows.schedule[1].ways") && !between.contains("schedule[0]"),
        "{between}"
    );
    let beyond = refused(&with(", ways = '0x1000'"), &four);
    assert!(beyond.contains("windows.schedule[0].ways"), "{beyond}");
    let mut by_registers = four;
    by_registers.means.registers = Ok(by_registers.partitions.ways.clone());
    let registers = format!("mechanisms.registers = true\n{}", with(", ways = 4"));
    let registers = refused(&registers, &by_registers);
    assert!(
        registers.contains("windows.schedule[0].ways: registers give ways to CPUs")
            && registers.contains("leave out registers of [mechanisms]"),
        "{registers}"
    );
}

#[test]
fn more_windows_with_ways_than_classes_are_refused() {
    let names = ["g0", "g1", "g2", "g3"];
    let group = |name: &str| {
        format!("[group.{name}]\nrole='best-effort'\ncommand=['x']\nallow=['freeze']\n")
    };
    let policy = |groups: &[&str]| {
        let window = |(i, name): (usize, &&str)| {
            let start = 2 * i;
            format!("{{ group = '{name}', start = '{start}ms', length = '2ms', ways = 1 }}")
        };
        let windows: Vec<String> = groups.iter().enumerate().map(window).collect();
        let (groups, windows) = (names.map(group).concat(), windows.join(", "));
        format!("{groups}[windows]\nframe = '10ms'\ncpus = '3'\nschedule = [{windows}]\n")
    };
    let board = with_windows(apollolake());
    planned(&policy(&names[..3]), &board);
    let text = refused(&policy(&names), &board);
    assert!(
        text.contains("windows.schedule[0].ways: the plan takes 5 classes of service")
            && text.contains("has 4")
            && text.contains("give ways to windows of fewer groups"),
        "{text}"
    );
}

#[test]
fn a_budget_of_a_window_has_whole_periods_of_it() {
    let text = schedule(&[
        ("control", 0, 3, ", bandwidth = '64MB/s'"),
        ("batch", 3, 5, ", bandwidth = '10%'"),
    ]);
    // 2.5 periods of the usual length become three.
    let text = text.replace("length = '3ms'", "length = '2500us'");
    let plan = planned(&text, &with_windows(p4080()));
    let budgets: Vec<_> = frame(&plan)
        .spans
        .iter()
        .filter_map(|span| span.budget.as_ref())
        .map(|by| (by.cpus.to_string(), by.period, by.budget))
        .collect();
    let third = Nanos(2_500_000 / 3);
    assert_eq!(budgets[0], ("3".to_owned(), third, Lines(833)));
    assert_eq!(budgets[1].1, Nanos::millis(1));
    let told: Vec<String> = plan
        .promises
        .iter()
        .map(|p| format!("{} {}", p.level, p.promise))
        .collect();
    let held = "regulated at most 64MB/s in its window from 0ns to 2.5ms";
    assert!(told.iter().any(|t| t == held), "{told:?}");
}

#[test]
fn budgets_of_windows_that_cannot_be_had_are_refused() {
    let with = |rate: &str| {
        let key = format!(", bandwidth = '{rate}'");
        schedule(&[("control", 0, 3, ""), ("batch", 3, 5, &key)])
    };
    let mut uncounted = with_windows(icelake_sp());
    uncounted.means.meter = MeterKind::Time;
    let linux = refused(&with("10%"), &uncounted);
    assert!(
        linux.contains(
            "windows.schedule[1].bandwidth: a budget of a window needs hardware counters"
        ) && linux.contains("leave out schedule[1].bandwidth of [windows]"),
        "{linux}"
    );
    // Where counters count, a brake holds it, and the cgroup of its tasks has room for one.
    let plan = planned(&with("10%"), &with_windows(icelake_sp()));
    let budgets = frame(&plan).spans.iter();
    let budgets: Vec<_> = budgets.filter_map(|span| span.budget.as_ref()).collect();
    assert_eq!((budgets.len(), budgets[0].meter), (1, Meter::Hardware));
    let braked = |step: &Step| match step.set {
        Setting::Gather { braked, .. } => braked.then(|| step.group.clone()),
        _ => None,
    };
    let braked: Vec<_> = plan.steps.iter().filter_map(braked).collect();
    assert_eq!(braked, [Some("batch".to_owned())]);
    // A brake that is lost costs the budget, and not the windows.
    let limits = |set: &Setting| matches!(set, Setting::Windows(_));
    let lost: Vec<String> = plan
        .resting_on("batch", &limits)
        .map(|(_, held)| held.promise.to_string())
        .collect();
    assert!(
        lost.len() == 1 && lost[0].starts_with("at most"),
        "{lost:?}"
    );
    assert_eq!(plan.resting_on("control", &limits).count(), 0);
    let small = refused(&with("1kB/s"), &with_windows(p4080()));
    assert!(
        small.contains("windows.schedule[1].bandwidth") && small.contains("less than one line"),
        "{small}"
    );
    let mut unmeasured = with_windows(simulated(p4080()));
    unmeasured.measured = None;
    let unmeasured = refused(&with("10%"), &unmeasured);
    assert!(unmeasured.contains("quell doctor --deep"), "{unmeasured}");
    // More than its CPU can draw needs no budget.
    let plan = planned(&with("20GB/s"), &with_windows(p4080()));
    assert!(frame(&plan).spans.iter().all(|span| span.budget.is_none()));
    assert!(told(&plan, "a limit of 20GB/s in a window needs no step"));
}
