use std::collections::BTreeMap;

use quell_control::config::Meter;
use quell_types::partition::Partitions;
use quell_types::units::{Bytes, Lines, Nanos, Rate, Share};

use super::*;
use crate::inventory::*;
use crate::plan::Held;

mod adaptive_ways;
mod assumed;
mod boards;
mod codedata;
mod deadline;
mod directions;
mod division;
mod hoard;
mod isolated;
mod mba;
mod measured;
mod memory;
mod near;
mod nodes;
mod pooling;
mod registers;
mod schedule;
mod stranger;
mod throttle;
mod too_small;
mod window_parts;
mod windows;

/// A machine with `cores` cores of `threads` threads, everything available, 10 GB/s per CPU, 20
/// GB/s together.
pub(crate) fn machine(cores: u32, threads: u32) -> Inventory {
    let cpus: Vec<Cpu> = (0..cores * threads)
        .map(|id| Cpu {
            id,
            siblings: (0..threads).map(|t| id % cores + t * cores).collect(),
            package: 0,
            node: 0,
            tier: 0,
            isolated: false,
            tickless: false,
        })
        .collect();
    let all: CpuSet = cpus.iter().map(|c| c.id).collect();
    let yes = |best| Availability::Yes {
        best,
        how: "as on the test machine".to_owned(),
    };
    Inventory {
        identity: Identity::default(),
        caches: vec![Cache {
            level: 3,
            kind: CacheKind::Unified,
            size: Bytes(32 << 20),
            ways: Some(16),
            sets: Some(32768),
            line: Bytes(64),
            cpus: all.clone(),
        }],
        nodes: vec![Node {
            id: 0,
            cpus: all.clone(),
            memory: Bytes(8 << 30),
            near: CpuSet::new(),
        }],
        mechanisms: BTreeMap::from([
            (Mechanism::Cores, yes(Level::Enforced)),
            (Mechanism::Bandwidth, yes(Level::Estimated)),
            (Mechanism::CpuMax, yes(Level::Enforced)),
        ]),
        means: Means {
            cpuset: CpusetKind::V1,
            movable_irqs: 3,
            fixed_irqs: 1,
            workqueue_mask: true,
            meter: MeterKind::Time,
            time_meter: true,
            brake: Ok(()),
            brake_in_place: Ok(()),
            cpu_max: true,
            registers: unknown_registers(),
            counter_users: Vec::new(),
            memory: MemoryMeans::default(),
            demand: DemandSource::default(),
        },
        measured: Some(Measured {
            peak_cpu: Rate(10_000_000_000),
            peak_operation: "read".to_owned(),
            by_operation: BTreeMap::new(),
            sustainable: Rate(20_000_000_000),
            cpus: cores * threads,
            stop_cost: Some(Nanos::micros(10)),
            operations: Vec::new(),
            counters: BTreeMap::new(),
            mba: None,
            within_cache: None,
            rest: Some(Rate(0)),
            cache_steps: None,
            at_unix_s: 0,
            deep: None,
            assumed: false,
        }),
        partitions: Partitions::default(),
        simulated: None,
        cpus,
    }
}

fn policy(text: &str) -> Policy {
    Policy::parse(&format!("quell = 1\n{text}"), "test.toml").unwrap_or_else(|p| panic!("{p:?}"))
}

fn planned(text: &str, machine: &Inventory) -> Plan {
    plan(&policy(text), machine).unwrap_or_else(|r| panic!("{r:?}"))
}

fn refused(text: &str, machine: &Inventory) -> String {
    let refusals = plan(&policy(text), machine).expect_err("the plan should be refused");
    refusals
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

const BRAKE: &str = "mechanisms.bandwidth = 'regulator'\n";
const PAIR: &str = "
[group.victim]
role = 'critical'
command = ['a']
cpus = 1
[group.noise]
role = 'best-effort'
command = ['b']
";

/// The reserve leaves the neighbour its limit.
const RESERVE: &str = "
[group.victim]
role = 'critical'
command = ['a']
cpus = 1
reserve.bandwidth = '2GB/s'
[group.noise]
role = 'best-effort'
command = ['b']
";

/// The machine with counters that count. On the CPUs `fills_only` they miss what is written back;
/// on the rest they count both directions separately.
fn counted(mut machine: Inventory, fills_only: &str) -> Inventory {
    let fills_only: CpuSet = fills_only.parse().unwrap();
    machine.means.meter = MeterKind::Hardware {
        events: vec!["cpu/x".to_owned()],
        apart: machine.cpu_set().difference(&fills_only),
        fills_only,
    };
    machine
}

/// The first promise of a group.
fn held<'a>(plan: &'a Plan, group: &str) -> &'a Held {
    let mut promises = plan.promises.iter();
    promises
        .find(|p| p.group == group)
        .unwrap_or_else(|| panic!("nothing is promised to {group}"))
}

fn told(plan: &Plan, what: &str) -> bool {
    let mut said = plan.notes.iter().chain(&plan.acts);
    said.any(|n| n.contains(what))
}

fn regulation(plan: &Plan) -> &quell_control::config::Regulation {
    plan.steps
        .iter()
        .find_map(|s| match &s.set {
            Setting::Regulate(r) => Some(r),
            _ => None,
        })
        .expect("a regulation step")
}

#[test]
fn a_core_partition_moves_everybody_and_everything_else_away() {
    let plan = planned(PAIR, &machine(2, 1));
    let cpus = |group: &str| plan.cpus(group).map(ToString::to_string);
    assert_eq!(cpus("victim").as_deref(), Some("1"));
    assert_eq!(cpus("noise").as_deref(), Some("0"));
    let kinds: Vec<&str> = plan
        .steps
        .iter()
        .map(|s| match s.set {
            Setting::Gather { .. } => "gather",
            Setting::Confine { .. } => "confine",
            Setting::ConfineRest { .. } => "rest",
            Setting::MoveIrqs { .. } => "irqs",
            Setting::WorkqueueMask { .. } => "workqueue",
            _ => "other",
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "gather",
            "gather",
            "confine",
            "confine",
            "rest",
            "irqs",
            "workqueue"
        ]
    );
    assert_eq!(plan.level(), Level::Enforced);
}

#[test]
fn a_limit_becomes_a_budget_per_cpu_and_period() {
    let text = format!("{BRAKE}{PAIR}limit.bandwidth = '10%'\n");
    let plan = planned(&text, &machine(2, 1));
    let r = regulation(&plan);
    // 10 % of 10 GB/s for 1 ms: 1 MB, 15625 lines.
    assert_eq!(
        (r.budget, r.period, r.meter),
        (Lines(15_625), Nanos::millis(1), Meter::Time)
    );
    assert_eq!(plan.level(), Level::Estimated);
}

#[test]
fn a_group_on_several_cpus_begins_with_an_even_part_on_each() {
    let plan = planned(
        &format!("{BRAKE}{PAIR}limit.bandwidth = '6GB/s'\n"),
        &machine(4, 1),
    );
    let r = regulation(&plan);
    assert_eq!(r.cpus.to_string(), "0-2");
    assert_eq!(r.budget, Lines::at(Rate(2_000_000_000), Nanos::millis(1)));
}

#[test]
fn hardware_counters_make_a_limit_regulated() {
    let text = format!("{PAIR}limit.bandwidth = '10%'\n");
    let mut machine = counted(machine(2, 1), "");
    let plan = planned(&text, &machine);
    assert_eq!(regulation(&plan).meter, Meter::Hardware);
    assert_eq!(held(&plan, "noise").level, Level::Regulated);
    // Rates from within the last-level cache say little about memory's.
    machine.measured.as_mut().unwrap().within_cache = Some(Bytes(31 << 20));
    let plan = planned(&text, &machine);
    let limit = held(&plan, "noise");
    assert_eq!(limit.level, Level::Estimated);
    let weakest = limit.weakest.as_deref().unwrap();
    assert!(weakest.contains("buffers of 31MiB"), "{weakest}");
}

#[test]
fn a_counter_that_misses_what_is_written_back_is_an_estimate() {
    let text = format!("{PAIR}limit.bandwidth = '10%'\n");
    let plan = planned(&text, &counted(machine(2, 1), "0-1"));
    assert_eq!(regulation(&plan).meter, Meter::Hardware);
    let limit = held(&plan, "noise");
    assert_eq!(limit.level, Level::Estimated);
    let weakest = limit.weakest.as_deref().unwrap();
    assert!(
        weakest.contains("counters of CPU 0") && weakest.contains("written back"),
        "{weakest}"
    );
    // A hybrid: the group runs where the counters see both.
    let plan = planned(&text, &counted(machine(2, 1), "1"));
    assert_eq!(held(&plan, "noise").level, Level::Regulated);
}

#[test]
fn a_reserve_beside_uncounted_writes_is_an_estimate_too() {
    let mut narrow = counted(machine(2, 1), "0");
    narrow.measured.as_mut().unwrap().sustainable = Rate(11_000_000_000);
    let plan = planned(RESERVE, &narrow);
    let held = plan.promises.last().unwrap();
    assert_eq!(held.level, Level::Estimated);
    let weakest = held.weakest.as_deref().unwrap();
    assert!(
        weakest.starts_with("the limit of group noise") && weakest.contains("written back"),
        "{weakest}"
    );
}

#[test]
fn a_reserve_is_worth_its_weakest_link() {
    let mut narrow = machine(2, 1);
    narrow.measured.as_mut().unwrap().sustainable = Rate(11_000_000_000);
    let plan = planned(RESERVE, &narrow);
    let weakest = plan.promises.last().unwrap().weakest.clone().unwrap();
    assert!(weakest.starts_with("the limit of group noise"), "{weakest}");
    // Counters of the group's lines, and unmatched tasks that draw nothing: the loop holds it.
    let mut counted = counted(machine(2, 1), "");
    counted.measured.as_mut().unwrap().sustainable = Rate(11_000_000_000);
    let plan = planned(RESERVE, &counted);
    let held = plan
        .promises
        .iter()
        .find(|p| matches!(p.promise, Promise::ReserveBandwidth { .. }))
        .unwrap();
    assert_eq!(held.level, Level::Regulated);
    // What the reserve leaves is the neighbour's limit: 11 − 2 GB/s.
    assert_eq!(
        regulation(&plan).budget,
        Lines::at(Rate(9_000_000_000), Nanos::millis(1))
    );
}

/// Four CPUs with counters, on which unmatched tasks were measured to draw `rest`.
fn with_rest(rest: Option<Rate>) -> Inventory {
    let mut machine = counted(machine(4, 1), "");
    machine.measured.as_mut().unwrap().rest = rest;
    machine
}

/// What the reserve of the victim is worth, and why.
fn reserve_beside(limit: &str, rest: Option<Rate>) -> (Level, String) {
    let text = format!("require = 'none'\n{RESERVE}{limit}");
    let plan = planned(&text, &with_rest(rest));
    let held = plan.promises.last().unwrap();
    (held.level, held.weakest.clone().unwrap_or_default())
}

#[test]
fn unmatched_tasks_that_were_not_measured_void_a_reserve() {
    let (level, why) = reserve_beside("", None);
    assert_eq!(level, Level::None);
    assert!(
        why.contains("group rest") && why.contains("not been measured (`quell doctor --deep`)"),
        "{why}"
    );
    let text = refused(RESERVE, &with_rest(None));
    assert!(text.contains("group rest"), "{text}");
}

#[test]
fn twice_what_unmatched_tasks_draw_must_fit_beside_the_budgets() {
    let rest = Some(Rate(1_500_000_000));
    // 2 + 15 + 2 x 1.5 = 20 GB/s is what there is.
    let (level, why) = reserve_beside("limit.bandwidth = '15GB/s'\n", rest);
    assert_eq!(level, Level::Estimated, "{why}");
    assert!(why.contains("2 x the 1.5GB/s"), "{why}");
    let (level, why) = reserve_beside("limit.bandwidth = '15.1GB/s'\n", rest);
    assert_eq!(level, Level::None);
    for figure in [
        "group rest",
        "the budgets (17.1GB/s) come to 20.1GB/s",
        "to draw 1.5GB/s; 2 x that",
        "20.1GB/s, more than the 20GB/s",
    ] {
        assert!(why.contains(figure), "{figure}: {why}");
    }
    // Without unmatched tasks the budgets still have to fit.
    let nothing = Some(Rate(0));
    let (level, why) = reserve_beside("limit.bandwidth = '18GB/s'\n", nothing);
    assert_eq!(level, Level::Regulated, "{why}");
    let (level, why) = reserve_beside("limit.bandwidth = '18.1GB/s'\n", nothing);
    assert_eq!(level, Level::None);
    assert!(
        why.contains("the budgets come to 20.1GB/s, more than the 20GB/s"),
        "{why}"
    );
}

#[test]
fn unmatched_tasks_take_half_of_what_reserves_leave_at_most() {
    let text = format!("require = 'none'\n{RESERVE}");
    let plan = planned(&text, &with_rest(Some(Rate(15_000_000_000))));
    // (20 - 2) / 2, not 20 - 2 - 2 x 15.
    let rate = Rate(9_000_000_000);
    assert_eq!(
        held(&plan, "noise").promise,
        Promise::LimitBandwidth { rate }
    );
    assert_eq!(plan.promises.last().unwrap().level, Level::None);
}

#[test]
fn what_reserves_leave_excludes_what_unmatched_tasks_draw() {
    let plan = planned(RESERVE, &with_rest(Some(Rate(1_000_000_000))));
    // 20 - 2 - 2 x 1 GB/s, over three CPUs.
    let limit = held(&plan, "noise");
    assert_eq!(
        limit.promise,
        Promise::LimitBandwidth {
            rate: Rate(16_000_000_000)
        }
    );
    assert_eq!(plan.promises.last().unwrap().level, Level::Estimated);
    let because = plan.steps.iter().map(|s| s.because.as_str());
    assert!(
        because
            .clone()
            .any(|b| b.contains("what reserves, limits and 2GB/s for unmatched tasks leave")),
        "{:?}",
        because.collect::<Vec<_>>()
    );
}

#[test]
fn unmatched_tasks_cannot_be_regulated_and_that_is_refused() {
    let text = format!("{PAIR}limit.bandwidth = '20%'\n[rest]\nallow = ['throttle']\n");
    for machine in [machine(2, 1), counted(machine(2, 1), "")] {
        let why = refused(&text, &machine);
        assert!(
            why.contains("rest.allow: a limit counts") && why.contains("in a group of their own"),
            "{why}"
        );
    }
}

#[test]
fn reserves_beyond_the_sustainable_rate_are_refused() {
    let text = refused(
        "[group.a]\nrole='critical'\ncommand=['a']\ncpus=1\nreserve.bandwidth='15GB/s'\n\
         [group.b]\nrole='critical'\ncommand=['b']\ncpus=1\nreserve.bandwidth='6GB/s'\n",
        &machine(4, 1),
    );
    assert!(
        text.contains("come to 21GB/s, more than the 20GB/s"),
        "{text}"
    );
}

#[test]
fn cpus_that_do_not_exist_or_are_taken_are_refused() {
    let text = refused(
        "[group.a]\nrole='critical'\ncommand=['a']\ncpus='7'\n",
        &machine(2, 1),
    );
    assert!(text.contains("CPU 7 does not exist"), "{text}");
    let both = "[group.a]\nrole='critical'\ncommand=['a']\ncpus='1'\n[group.b]\nrole='critical'\ncommand=['b']\ncpus='1'\n";
    assert!(refused(both, &machine(4, 1)).contains("belongs to another critical group"));
    let all = refused(
        "[group.a]\nrole='critical'\ncommand=['a']\ncpus='0-1'\n",
        &machine(2, 1),
    );
    assert!(all.contains("other tasks need at least one"), "{all}");
}

#[test]
fn where_nobody_else_runs_critical_groups_may_take_every_cpu() {
    let all = "[group.a]\nrole='critical'\ncommand=['a']\ncpus='0-1'\n";
    let nobody = boards::simulated(machine(2, 1));
    let plan = planned(all, &nobody);
    let confined: Vec<_> = plan.steps.iter().map(|s| &s.set).collect();
    assert!(
        matches!(
            confined[..],
            [
                Setting::Gather { .. },
                Setting::Confine {
                    exclusive: true,
                    ..
                }
            ]
        ),
        "{confined:?}"
    );
    let beside = format!("{all}[group.b]\nrole='best-effort'\ncommand=['b']\n");
    assert!(refused(&beside, &nobody).contains("other tasks need at least one"));
}

#[test]
fn a_critical_group_is_alone_on_its_core_if_the_others_keep_one() {
    let plan = planned(PAIR, &machine(2, 2));
    assert_eq!(
        plan.cpus("victim").map(ToString::to_string).as_deref(),
        Some("3")
    );
    assert_eq!(
        plan.cpus("noise").map(ToString::to_string).as_deref(),
        Some("0,2")
    );
    // One core with two threads: sharing it is all there is, and the plan says so.
    let plan = planned(PAIR, &machine(1, 2));
    assert_eq!(
        plan.cpus("noise").map(ToString::to_string).as_deref(),
        Some("0")
    );
    assert!(
        told(&plan, "shares its cores with CPU 0"),
        "{:?}",
        plan.notes
    );
}

/// Two nodes with a cache each, CPUs numbered alternately, two threads per core.
fn two_nodes(cores: u32) -> Inventory {
    let mut machine = machine(cores, 2);
    let node = |id: u32| id % 2;
    for cpu in &mut machine.cpus {
        cpu.node = node(cpu.id);
    }
    let all = machine.cpu_set();
    let whole = machine.caches[0].clone();
    machine.caches = (0..2)
        .map(|n| Cache {
            cpus: all.iter().filter(|id| node(*id) == n).collect(),
            ..whole.clone()
        })
        .collect();
    machine
}

#[test]
fn critical_cpus_are_fast_and_near_to_each_other() {
    let cpus = |text: &str, machine: &Inventory| planned(text, machine).groups[0].cpus.to_string();
    let two = PAIR.replace("cpus = 1", "cpus = 2");
    assert_eq!(cpus(&two, &two_nodes(8)), "13,15", "one node");
    let auto = PAIR.replace("cpus = 1", "cpus = 'auto'");
    assert_eq!(
        cpus(&auto, &two_nodes(8)),
        "9,11,13,15",
        "half of the cores"
    );
    // The small cores have the highest numbers, as on Intel's hybrids.
    let mut hybrid = machine(4, 1);
    for cpu in &mut hybrid.cpus[2..] {
        cpu.tier = 1;
    }
    assert_eq!(cpus(PAIR, &hybrid), "1");
    assert_eq!(
        cpus(&PAIR.replace("cpus = 1", "cpus = 3"), &hybrid),
        "0-1,3"
    );
}

#[test]
fn what_a_partition_does_not_divide_is_told() {
    let shared = PAIR.replace("cpus = 1", "cpus = 1\nsmt = 'shared'");
    let plan = planned(&shared, &two_nodes(4));
    let weakest = plan.promises[0].weakest.clone().unwrap();
    assert!(weakest.contains("other tasks run on CPU 3"), "{weakest}");
    assert!(
        told(&plan, "shares an L3 cache with CPUs 1,3,5"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn a_reserve_on_one_node_is_judged_by_that_node() {
    let text = |limit: &str| {
        format!(
            "require='none'\n[group.victim]\nrole='critical'\ncommand=['a']\ncpus=1\nreserve.bandwidth='1GB/s'\n\
             [group.noise]\nrole='best-effort'\ncommand=['b']\nlimit.bandwidth='{limit}'\n"
        )
    };
    let counted = counted(two_nodes(4), "");
    let reserve = |limit: &str| {
        let plan = planned(&text(limit), &counted);
        let held = plan.promises.last().unwrap();
        (held.level, held.weakest.clone().unwrap())
    };
    // 20 GB/s over both nodes: 10 of one.
    let (level, why) = reserve("12GB/s");
    assert_eq!(level, Level::None);
    assert!(
        why.contains("may draw 12GB/s there, and it gives about 10GB/s"),
        "{why}"
    );
    assert_eq!(reserve("8GB/s").0, Level::Estimated);
}

#[test]
fn counted_cpus_of_other_groups_are_near_to_each_other_too() {
    let plan = planned(&format!("{PAIR}cpus = 2\n"), &two_nodes(4));
    assert_eq!(plan.groups[1].cpus.to_string(), "0,2");
}

#[test]
fn interrupts_go_to_every_cpu_that_is_not_critical() {
    let plan = planned(&format!("{PAIR}[rest]\ncpus = 1\n"), &machine(4, 1));
    let to = plan.steps.iter().find_map(|s| match &s.set {
        Setting::MoveIrqs { to, .. } => Some(to.to_string()),
        _ => None,
    });
    assert_eq!(to.as_deref(), Some("0-2"));
}

#[test]
fn an_exempt_group_is_not_said_to_run_on_critical_cpus() {
    let text = format!("{PAIR}[group.radio]\nrole = 'exempt'\nmatch = [{{ comm = 'radio' }}]\n");
    let plan = planned(&text, &machine(2, 1));
    assert_eq!(
        plan.cpus("radio").map(ToString::to_string).as_deref(),
        Some("0")
    );
    assert!(told(&plan, "stays off CPU 1"), "{:?}", plan.notes);
}
