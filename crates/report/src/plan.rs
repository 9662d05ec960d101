//! A plan in words: what it promises, what would break that first, what it costs, and what will be
//! done and why.

use quell_control::config::{Allows, Meter, Regulation};
use quell_plan::{Held, Plan, Promise, Setting, Step};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::ids::StepId;
use quell_types::mechanism::Level;
use quell_types::options::CpuWeight;
use quell_types::task::TaskMatch;
use quell_types::units::{LINE_BYTES, Lines, Nanos, Rate};

use crate::partitions;
use crate::quanta;
use crate::text::{Style, Table, TableCell, Tone, list, percent};
use crate::windows;

/// The plan for a terminal of the style's width: what is promised, which groups pay what for it,
/// and what the user has to do.
#[must_use]
pub fn plan_text(plan: &Plan, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &format!("Plan for '{}'", plan.policy)) + "\n\n";
    out.push_str(&promises(plan, false, style));
    out.push('\n');
    out.push_str(&costs(plan, style));
    out.push_str(&acts(plan, style));
    out
}

/// The same, with the groups' CPUs, every step with its reason, and the plan's notes.
#[must_use]
pub fn plan_steps_text(plan: &Plan, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &format!("Plan for '{}'", plan.policy)) + "\n\n";
    out.push_str(&promises(plan, true, style));
    out.push('\n');
    out.push_str(&costs(plan, style));
    out.push_str(&acts(plan, style));
    if !plan.groups.is_empty() {
        out.push('\n');
        out.push_str(&groups(plan, style));
    }
    out.push('\n');
    out.push_str(&steps(plan, style));
    out.push_str(&listed("Good to know", &plan.notes, style));
    out
}

/// What the user has to do or decide.
fn acts(plan: &Plan, style: Style) -> String {
    let mut out = String::new();
    for (n, act) in plan.acts.iter().enumerate() {
        out.push_str(if n == 0 { "\n" } else { "" });
        out.push_str(&style.wrap("Note: ", "      ", act));
    }
    out
}

fn listed(title: &str, notes: &[String], style: Style) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", style.paint(Tone::Title, title));
    for note in notes {
        out.push_str(&style.wrap("  - ", "    ", note));
    }
    out
}

fn groups(plan: &Plan, style: Style) -> String {
    let mut table = Table {
        left: vec![1],
        head: ["  group", "CPUs"].map(str::to_owned).to_vec(),
        ..Table::default()
    };
    let rest = plan.steps.iter().find_map(|step| match &step.set {
        Setting::ConfineRest { cpus } => Some(vec![
            TableCell::new(format!("  {REST}")),
            TableCell::new(cpus.brief()),
        ]),
        _ => None,
    });
    for group in &plan.groups {
        table.rows.push(vec![
            TableCell::new(format!("  {}", group.name)),
            TableCell::new(group.cpus.brief()),
        ]);
    }
    table.rows.extend(rest);
    table.render(style)
}

fn steps(plan: &Plan, style: Style) -> String {
    let mut out = style.paint(Tone::Title, "Steps") + "\n";
    if plan.steps.is_empty() {
        out.push_str("  none: nothing is changed\n");
    }
    for step in &plan.steps {
        let who = step
            .group
            .as_ref()
            .map_or_else(String::new, |g| format!("{g}: "));
        let by: Vec<String> = step.mechanisms().iter().map(ToString::to_string).collect();
        let assumed = if step.assumed { " (assumed)" } else { "" };
        let what = format!("{who}{}{assumed} [{}]", describe(&step.set), by.join(" + "));
        out.push_str(&style.wrap(&format!("{:>3}. ", step.id.0), "     ", &what));
        out.push_str(&faint(style, &style.wrap("     ", "     ", &step.because)));
    }
    out
}

/// The indentation behind a level or the name of a group.
const COLUMN: &str = "             ";

fn promises(plan: &Plan, steps: bool, style: Style) -> String {
    let mut out = style.paint(Tone::Title, "Promises") + "\n";
    if plan.promises.is_empty() {
        out.push_str(match plan.steps.is_empty() {
            true => "  none: nothing that the policy asks for can be done here\n",
            false => "  none: the policy states no CPU, reserve, limit or target\n",
        });
    }
    for held in &plan.promises {
        let assumed = if held.assumed { " (assumed)" } else { "" };
        let by = if steps { by(held) } else { String::new() };
        let first = format!("  {:<9}  ", held.level.name());
        let what = format!("{}: {}{assumed}{by}", held.group, held.promise);
        let text = style.wrap(&first, COLUMN, &what);
        out.push_str(&match text.strip_prefix(&first) {
            Some(tail) => style.paint(tone(held.level), &first) + tail,
            None => text,
        });
        if let Some(weakest) = &held.weakest {
            let text = style.wrap(COLUMN, COLUMN, &format!("but {weakest}"));
            out.push_str(&faint(style, &text));
        }
    }
    out
}

/// What the plan takes from each group, and from the tasks of no group.
fn costs(plan: &Plan, style: Style) -> String {
    let mut out = style.paint(Tone::Title, "Cost") + "\n";
    let names = plan.groups.iter().map(|g| Some(g.name.as_str()));
    let mut none = true;
    for name in names.chain([Some(REST), None]) {
        let own = plan.steps.iter().filter(|s| s.group.as_deref() == name);
        let windows = name.and_then(|name| in_windows(plan, name));
        // In its windows no other program wants its CPU.
        let weighs =
            |step: &&Step| windows.is_none() || !matches!(step.set, Setting::Weight { .. });
        let own = own.filter(weighs);
        let mut each: Vec<String> = own.filter_map(|step| cost(plan, step)).collect();
        each.extend(windows);
        if name == Some(REST) {
            each.extend(plan.steps.iter().filter_map(outweighed));
        }
        if each.is_empty() {
            continue;
        }
        none = false;
        let first = format!("  {:<9}  ", name.unwrap_or("machine"));
        out.push_str(&style.wrap(&first, COLUMN, &each.join("; ")));
    }
    if none {
        out.push_str("  none: no task is slowed or moved\n");
    }
    out
}

/// When a group runs that has windows. `None` where it has none.
fn in_windows(plan: &Plan, group: &str) -> Option<String> {
    let frame = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Windows(frame) => Some(frame),
        _ => None,
    })?;
    let has = frame.groups().iter().any(|name| *name == group);
    let (time, length) = (frame.time_left_to(group), frame.length);
    has.then(|| format!("stopped but for {time} of each {length}"))
}

/// What a high weight takes from the tasks of no group.
fn outweighed(step: &Step) -> Option<String> {
    let Setting::Weight {
        weight: CpuWeight::Of(weight @ 101..),
    } = step.set
    else {
        return None;
    };
    let group = step.group.as_deref()?;
    let left = percent(100.0 / (100.0 + f64::from(weight)));
    Some(format!("keeps {left} of a CPU that {group} keeps busy"))
}

/// What a step takes from the group or tasks it is set for. `None` where it gives them something,
/// or takes nothing.
fn cost(plan: &Plan, step: &Step) -> Option<String> {
    let assumed = if step.assumed { " (assumed)" } else { "" };
    let given = |held: &Held| {
        let reserve = matches!(
            held.promise,
            Promise::ReserveWays { .. }
                | Promise::ReserveColours { .. }
                | Promise::ReserveLocked { .. }
        );
        reserve && Some(&held.group) == step.group.as_ref() && held.held_by.contains(&step.id)
    };
    let what = match &step.set {
        Setting::Confine {
            cpus,
            exclusive: false,
            ..
        } => format!("runs on {} only", on(cpus)),
        // Also what a person forgets: the clients of a server that is protected.
        Setting::ConfineRest { cpus } => {
            format!("runs on {} only, clients of the groups included", on(cpus))
        }
        Setting::Weight {
            weight: CpuWeight::Of(100..),
        } => return None,
        Setting::Weight {
            weight: CpuWeight::Idle,
        } => "gets 0.3 % of a busy CPU (cpu.idle)".to_owned(),
        Setting::Weight { .. } | Setting::LimitMemory { .. } => describe(&step.set),
        Setting::Regulate(regulation) if regulation.is_capped() => {
            let lines = match regulation.meter {
                Meter::Directions { writes } => Lines(regulation.budget.0 + writes.0),
                _ => regulation.budget,
            };
            let each = if regulation.cpus.len() > 1 {
                " on each CPU"
            } else {
                ""
            };
            format!(
                "stopped in each {} once it has moved its {}{each}",
                regulation.period,
                rate(lines, regulation.period)
            )
        }
        Setting::CpuMax { share, period } => {
            format!("at most {share} of one CPU's time in each {period}")
        }
        Setting::IoMax(rates) => format!("at most {rates}"),
        Setting::Schedule(by) if !by.groups.is_empty() => quanta::cost(by),
        Setting::Ways { .. }
        | Setting::WaysCodeData { .. }
        | Setting::WayRegisters { .. }
        | Setting::Colour { .. }
            if !plan.promises.iter().any(given) =>
        {
            describe(&step.set)
        }
        // What is its own is all that it fills.
        Setting::Ways {
            level,
            mask,
            caches_of,
        } => {
            let s = if mask.count() == 1 { "" } else { "s" };
            let of = partitions::caches_of_level(*level, caches_of);
            format!("fills these {} way{s} of {of} only", mask.count())
        }
        Setting::WayRegisters { level, mask, .. } => {
            let s = if mask.count() == 1 { "" } else { "s" };
            format!("fills these {} way{s} of L{level} only", mask.count())
        }
        Setting::SteerMemory { .. }
        | Setting::Hoard { .. }
        | Setting::Settle { .. }
        | Setting::Vacate { .. }
        | Setting::Swappiness { .. }
        | Setting::BoundMemory { .. }
        | Setting::Sysctls { .. }
        | Setting::MountCodeData { .. }
        | Setting::Mba { .. }
        | Setting::MbaRate { .. } => describe(&step.set),
        _ => return None,
    };
    Some(what + assumed)
}

fn by(held: &Held) -> String {
    let steps: Vec<String> = held.held_by.iter().map(|StepId(n)| n.to_string()).collect();
    let these = match steps.len() {
        0 => return ", held by nothing".to_owned(),
        1 => format!("step {}", list(&steps)),
        _ => format!("steps {}", list(&steps)),
    };
    if held.level == Level::None {
        format!(
            ", not held, though {these} help{}",
            if steps.len() == 1 { "s" } else { "" }
        )
    } else {
        format!(", held by {these}")
    }
}

/// Whole lines, painted one by one so that a pager colours each of them.
fn faint(style: Style, lines: &str) -> String {
    lines
        .lines()
        .map(|line| style.paint(Tone::Faint, line) + "\n")
        .collect()
}

pub(crate) fn tone(level: Level) -> Tone {
    match level {
        Level::None => Tone::Bad,
        Level::Estimated => Tone::Plain,
        Level::Regulated | Level::Enforced => Tone::Good,
    }
}

pub(crate) fn on(cpus: &CpuSet) -> String {
    if cpus.len() == 1 {
        format!("CPU {cpus}")
    } else {
        format!("CPUs {}", cpus.brief())
    }
}

/// A setting in words.
pub(crate) fn describe(set: &Setting) -> String {
    match set {
        Setting::Gather {
            matching, braked, ..
        } => gathered(matching, *braked),
        Setting::Confine {
            cpus,
            mems,
            exclusive,
        } => confined(cpus, mems, *exclusive),
        Setting::ConfineRest { cpus } => format!("keep every other task on {}", on(cpus)),
        Setting::MoveIrqs { from, to } => {
            format!("send interrupts of {} to {}", on(from), on(to))
        }
        Setting::WorkqueueMask { cpus } => format!("run unbound kernel work on {} only", on(cpus)),
        Setting::Regulate(regulation) => regulated(regulation),
        Setting::Schedule(scheduling) => quanta::described(scheduling),
        Setting::Windows(frame) => windows::described(frame),
        Setting::Weight {
            weight: CpuWeight::Idle,
        } => "run only where nothing else wants the CPU (cpu.idle)".to_owned(),
        Setting::Weight { weight } => {
            format!(
                "weigh {weight} against {} of any other cgroup",
                CpuWeight::USUAL
            )
        }
        Setting::CpuMax { share, period } => {
            format!("give at most {share} of one CPU's time in each {period}")
        }
        Setting::IoMax(rates) => format!("move at most {rates}"),
        Setting::IoLatency { target } => {
            format!("hold others back while its requests to a disk take more than {target}")
        }
        Setting::IoWeight { weight } => {
            format!("weigh {weight} against 100 of any other cgroup on each disk")
        }
        Setting::Ways { .. }
        | Setting::MountCodeData { .. }
        | Setting::WaysCodeData { .. }
        | Setting::WaysCpus { .. }
        | Setting::WayRegisters { .. }
        | Setting::Colour { .. }
        | Setting::Hoard { .. }
        | Setting::Settle { .. }
        | Setting::Vacate { .. }
        | Setting::Lock { .. } => partitions::described(set),
        Setting::OomImmune => "make it immune from the kernel's killing for memory".to_owned(),
        Setting::ProtectMemory { size: Some(size) } => {
            format!("keep {size} of its memory from being reclaimed")
        }
        Setting::ProtectMemory { size: None } => {
            "keep what it works on from being reclaimed".to_owned()
        }
        Setting::LockMemory { prefault: false } => "lock all memory of its programs".to_owned(),
        Setting::LockMemory { prefault: true } => {
            "lock all memory of its programs, filled as soon as it is mapped".to_owned()
        }
        Setting::PageSize { pages } => format!("keep its memory in pages of {}", pages.name()),
        Setting::LockFiles { files } => format!("lock in memory: {}", files.join(", ")),
        Setting::LimitMemory { most, kills: true } => {
            format!("let it use at most {most} of memory")
        }
        Setting::LimitMemory { most, kills: false } => {
            format!("slow it down beyond {most} of memory")
        }
        Setting::BoundMemory { most } => {
            format!("let everything that runs here use at most {most} of memory together")
        }
        Setting::WatchMemory => "watch what it uses and how long it waits for memory".to_owned(),
        Setting::SteerMemory { allows, unswapped } => steered(*allows, *unswapped),
        Setting::Swappiness { value } => format!("set its memory.swappiness = {value}"),
        Setting::Sysctls { values } => {
            let each: Vec<String> = values
                .iter()
                .map(|(n, v)| format!("vm.{n} = {v}"))
                .collect();
            format!("set {}", each.join(", "))
        }
        Setting::Mba { percent } => {
            format!("delay its requests to memory to {percent}% of what a core can make")
        }
        Setting::MbaRate { mib_s } => {
            format!(
                "have the kernel delay its requests to memory until they are {mib_s}MiB/s on each memory domain"
            )
        }
    }
}

/// Where a group's tasks come together, in words.
fn gathered(matching: &[TaskMatch], braked: bool) -> String {
    if matching.is_empty() {
        return "launch its command in a cgroup of its own".to_owned();
    }
    let tasks: Vec<String> = matching.iter().map(matched).collect();
    let tasks = tasks.join(" or ");
    if !matching.iter().all(TaskMatch::in_place) {
        return format!("gather in a cgroup: {tasks}");
    }
    let inside = match braked {
        true => ", its tasks in a threaded child of it",
        false => "",
    };
    format!("use its own cgroup: {tasks}{inside}")
}

fn confined(cpus: &CpuSet, mems: &CpuSet, exclusive: bool) -> String {
    let nodes = if mems.len() == 1 { "node" } else { "nodes" };
    let alone = match exclusive {
        true => ", no other task there",
        false => "",
    };
    format!("run on {}, memory from {nodes} {mems}{alone}", on(cpus))
}

/// A budget in words.
fn regulated(regulation: &Regulation) -> String {
    let meter = match regulation.meter {
        Meter::Time => format!("counted as CPU time × {}", shown(regulation.peak)),
        _ => "counted by hardware events".to_owned(),
    };
    let lines = |lines: Lines| {
        let period = regulation.period;
        format!(
            "{} ({} cache lines per {period})",
            rate(lines, period),
            lines.0
        )
    };
    let budget = lines(regulation.budget);
    let what = match regulation.meter {
        Meter::Hardware | Meter::Time => format!("move {budget}"),
        Meter::Reads => format!("read {budget}"),
        Meter::Writes => format!("write back {budget}"),
        Meter::Directions { writes } => {
            format!("read {budget} and write back {}", lines(writes))
        }
    };
    format!(
        "let {}{} {what}, {meter}{}",
        if regulation.cpus.len() > 1 {
            "each of "
        } else {
            ""
        },
        on(&regulation.cpus),
        if regulation.is_capped() {
            "; the brake stops the group, and nothing else, for the rest of the period"
        } else {
            ""
        }
    )
}

fn steered(allows: Allows, unswapped: bool) -> String {
    let may = [
        (allows.limit, "limit it"),
        (allows.freeze, "freeze it"),
        (allows.reclaim, "reclaim from it"),
        (allows.kill, "kill in it"),
    ];
    let may: Vec<String> = may
        .iter()
        .filter(|(yes, _)| *yes)
        .map(|(_, what)| (*what).to_owned())
        .collect();
    let also = if unswapped {
        "; nothing of it is swapped out"
    } else {
        ""
    };
    format!("steer its memory: {} as needed{also}", list(&may))
}

/// The rate that a budget allows, in whole MB/s.
fn rate(budget: Lines, period: Nanos) -> String {
    let bytes = u128::from(budget.0) * u128::from(LINE_BYTES) * 1_000_000_000;
    let per_s = bytes.checked_div(u128::from(period.0)).unwrap_or(0);
    shown(Rate(u64::try_from(per_s).unwrap_or(u64::MAX)))
}

/// A rate, rounded to whole MB/s.
fn shown(rate: Rate) -> String {
    Rate(rate.0.saturating_add(500_000) / 1_000_000 * 1_000_000).to_string()
}

fn matched(table: &TaskMatch) -> String {
    let keys = [
        ("pid", table.pid.map(|p| p.to_string())),
        ("exe", table.exe.clone()),
        ("comm", table.comm.clone()),
        ("arg", table.arg.clone()),
        ("user", table.user.clone()),
        ("cgroup", table.cgroup.clone()),
        ("unit", table.unit.clone()),
        ("container", table.container.clone()),
    ];
    let given: Vec<String> = keys
        .into_iter()
        .filter_map(|(key, value)| value.map(|v| format!("{key}={v}")))
        .collect();
    given.join(",")
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
