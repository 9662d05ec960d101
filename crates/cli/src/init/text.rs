//! The policy file that `quell init` writes: TOML with a comment per choice.

use std::fmt::Write;

use quell_plan::choose::{HIGH, HURTS};
use quell_plan::inventory::Availability;
use quell_plan::{Plan, Setting};

use quell_types::mechanism::Mechanism;
use quell_types::options::CpuWeight;
use quell_types::units::{Bytes, Nanos, Rate};

use super::choose::{Part, Probed, Reason, Setup, Situation, lower};
use super::group::{Chosen, Figures, as_toml};
use crate::terminal::quoted;

/// Columns of a comment's text.
const COLUMNS: usize = 78;

/// Memory as a person reads it.
pub fn memory(bytes: Bytes) -> String {
    let mib = bytes.0 as f64 / f64::from(1 << 20);
    match mib {
        m if m >= 10_240.0 => format!("{:.0} GiB", m / 1024.0),
        m if m >= 1024.0 => format!("{:.1} GiB", m / 1024.0),
        m => format!("{m:.0} MiB"),
    }
}

/// A refusal of the planner as sentences of a comment.
pub fn refused(why: &str, remedy: Option<&str>) -> String {
    let remedy = remedy.map_or(String::new(), |r| format!(" To have it: {r}."));
    format!("The planner refuses it here: {why}.{remedy}")
}

/// Breaks text into comment lines; words longer than a line stay whole.
fn comment(out: &mut String, text: &str) {
    if text.is_empty() {
        return;
    }
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.chars().count() > COLUMNS && line.len() > 1 {
            let _ = writeln!(out, "{line}");
            line = String::from("#");
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(out, "{line}");
}

fn used(figures: &Figures) -> String {
    let (processes, they) = match figures.processes {
        0 => return "No process of it ran when this was written.".to_owned(),
        1 => ("1 process".to_owned(), "it"),
        n => (format!("{n} processes"), "they"),
    };
    format!(
        "{processes} with {} of memory. Watched for {:.0} s, {they} used {:.2} CPUs.",
        memory(figures.memory),
        Nanos(figures.span_ns).as_secs_f64(),
        figures.cpus()
    )
}

fn group(out: &mut String, group: &Chosen, role: &str) {
    let _ = writeln!(out, "[group.{}]\nrole  = \"{role}\"", group.name);
    let tables: Vec<String> = group.matching.iter().map(as_toml).collect();
    let _ = writeln!(out, "match = [{}]", tables.join(", "));
}

/// The file. `plan`: what it comes to here, once that is known.
pub fn policy(
    situation: &Situation<'_>,
    setup: Setup,
    reasons: &[Reason],
    left_out: &[Reason],
    plan: Option<&Plan>,
) -> String {
    let critical = &situation.critical;
    let mut out = String::new();
    let others: Vec<&str> = situation
        .neighbours
        .iter()
        .map(|g| g.name.as_str())
        .collect();
    let from = if others.is_empty() {
        "everything else on this machine".to_owned()
    } else {
        others.join(", ")
    };
    comment(
        &mut out,
        &format!(
            "Written by `quell init`: protects {} from {from}.",
            critical.name
        ),
    );
    comment(
        &mut out,
        "It takes the least that is enough: a weight, then CPUs of its own, then limits.",
    );
    let _ = writeln!(out, "quell = 1\nname  = \"{}\"\n", critical.name);
    protected(&mut out, critical, setup, reasons);
    for one in &situation.neighbours {
        out.push('\n');
        comment(&mut out, &used(&one.figures));
        group(&mut out, one, "best-effort");
        comment(&mut out, &weight(situation, one, plan));
        if let Some(limit) = setup.limit {
            let groups = situation.neighbours.len() as u64;
            limited(&mut out, limit, groups, because(reasons, Part::Limit));
        }
        if setup.pressure {
            out.push_str("allow = [\"throttle\", \"limit-memory\", \"freeze\"]\n");
        }
    }
    if setup.pressure {
        out.push('\n');
        comment(&mut out, because(reasons, Part::Pressure));
        out.push_str("[pressure]\n");
    }
    out.push('\n');
    not_chosen(&mut out, situation, setup, left_out);
    if plan.is_some_and(|p| p.steps.is_empty()) {
        let why = if situation.root {
            "On this machine this policy changes nothing: nothing above can be had here."
        } else {
            "Quell was not run as root when it wrote this, and could not see what can be had. Run `sudo quell init` to have it choose."
        };
        comment(&mut out, why);
        out.push_str("#\n");
    }
    let file = quoted(situation.file);
    let _ = write!(
        out,
        "# See what it does, then do it:\n#   quell plan {file}\n#   sudo quell run {file}\n"
    );
    out
}

/// Why a part of the setup was chosen.
fn because(reasons: &[Reason], part: Part) -> &str {
    let found = reasons.iter().find(|r| r.part == part);
    found.map_or("", |r| r.why.as_str())
}

/// The critical group: its command, its CPUs and its memory.
fn protected(out: &mut String, critical: &Chosen, setup: Setup, reasons: &[Reason]) {
    comment(out, &used(&critical.figures));
    if let Some(waited) = critical.figures.waited() {
        let waited = waited * 100.0;
        comment(
            out,
            &format!(
                "Its threads waited for a CPU in {waited:.0} % of the time in which they wanted one."
            ),
        );
    }
    group(out, critical, "critical");
    match setup.cores {
        Some(cores) => {
            comment(out, because(reasons, Part::Cores));
            let threads = match cores.count {
                1 => "One thread of it works".to_owned(),
                n => format!("{n} threads of it may work at once"),
            };
            comment(
                out,
                &format!(
                    "{threads}. Everything else, programs that talk to it included, keeps the other CPUs."
                ),
            );
            let _ = writeln!(out, "cpus  = {}", cores.count);
            if cores.alone {
                out.push_str("smt   = \"alone\"\n");
            }
        }
        None => {
            comment(
                out,
                "No CPUs of its own: it runs wherever the kernel puts it.",
            );
            out.push_str("cpus  = \"any\"\n");
        }
    }
    if setup.high {
        let why = because(reasons, Part::Weight);
        let what = "Where it wants a CPU it goes first, and its clients keep a tenth. Clients on this machine that count as well belong into its match.";
        comment(out, &format!("{why} {what}"));
        let _ = writeln!(out, "cpu-weight = {HIGH}");
    }
    if setup.memory {
        comment(out, because(reasons, Part::Memory));
        out.push_str("reserve.memory = \"working-set\"\n");
    }
}

/// A neighbour's part of the rate that all of them have together.
fn limited(out: &mut String, limit: Rate, groups: u64, because: &str) {
    comment(out, because);
    if groups > 1 {
        comment(
            out,
            &format!("The {groups} groups of neighbours have equal parts of that rate."),
        );
    }
    let part = Rate((limit.0 / groups / 1_000_000).max(1) * 1_000_000);
    let _ = writeln!(out, "limit.bandwidth = \"{part}\"");
}

/// What the weight of a neighbour comes to.
fn weight(situation: &Situation<'_>, neighbour: &Chosen, plan: Option<&Plan>) -> String {
    let given = plan.and_then(|plan| {
        let mut steps = plan.steps.iter();
        steps.find_map(|step| match &step.set {
            Setting::Weight { weight } if step.group.as_ref() == Some(&neighbour.name) => {
                Some(*weight)
            }
            _ => None,
        })
    });
    let usual = "cpu-weight is not written; what best-effort groups have by default is enough:";
    match (
        given,
        situation.machine.mechanisms.get(&Mechanism::Weight),
        situation.root,
    ) {
        (Some(CpuWeight::Idle), _, _) => format!(
            "{usual} this group runs where no other program wants the CPU. While none does, it loses nothing."
        ),
        (Some(CpuWeight::Of(n)), _, _) => format!(
            "{usual} weight {n}, where any other cgroup has 100. While no other program wants the CPU, it loses nothing."
        ),
        (None, Some(Availability::No { .. }), false) => {
            "As root it has a low weight. While no other program wants the CPU, it loses nothing."
                .to_owned()
        }
        (None, Some(Availability::No { why, .. }), true) => {
            format!("It has no low weight here: {why}.")
        }
        (None, _, _) => String::new(),
    }
}

fn not_chosen(out: &mut String, situation: &Situation<'_>, setup: Setup, left_out: &[Reason]) {
    let mut all: Vec<String> = Vec::new();
    for reason in left_out {
        let what = match reason.part {
            Part::Weight => "A weight",
            Part::Cores => "CPUs of its own",
            Part::Limit => "A limit of memory bandwidth",
            Part::Memory => "Memory that is kept",
            Part::Pressure => "Neighbours held back while it waits for memory",
        };
        all.push(format!("{what}. {}", reason.why));
    }
    let cores_said = left_out.iter().any(|r| r.part == Part::Cores);
    if setup.cores.is_none() && !cores_said {
        let why = "A weight comes first, and costs its neighbours less.";
        all.push(format!("CPUs of its own. {why} To have them: cpus = 1."));
    }
    let limit_said = left_out.iter().any(|r| r.part == Part::Limit);
    match &situation.probed {
        _ if setup.limit.is_some() || limit_said => {}
        Probed::No(why) => all.push(format!(
            "A limit of memory bandwidth. {why} Whether it suffers from memory traffic is not known."
        )),
        Probed::Found { stand_in, all: found } => {
            let tried = found.iter().filter(|s| s.resource == "reads" || s.resource == "writes");
            let most = tried.filter_map(|s| s.pressed.last());
            let worst = most.map(|p| p.slowdown).max_by(f64::total_cmp);
            all.push(match worst {
                Some(worst) => format!(
                    "A limit of memory bandwidth. {stand_in} took {worst:.2} times as long next to the \
                     highest rate that was tried, with a lower bound of less than {HURTS}. A \
                     program that streams may suffer more."
                ),
                None => "A limit of memory bandwidth. The probe could not press on memory here.".to_owned(),
            });
        }
    }
    if let Probed::Found {
        stand_in,
        all: found,
    } = &situation.probed
    {
        let cache = found.iter().filter(|s| s.resource == "cache");
        let worst = cache
            .flat_map(|s| &s.pressed)
            .max_by(|a, b| lower(a).total_cmp(&lower(b)));
        if let Some(worst) = worst.filter(|p| lower(p) >= HURTS) {
            all.push(format!(
                "A part of the cache. {stand_in} took {:.2} times as long next to a program that \
                 works on {}. Nothing above holds that; where `quell doctor` has ways, \
                 reserve.cache does.",
                worst.slowdown, worst.pressure
            ));
        }
    }
    if all.is_empty() {
        return;
    }
    out.push_str("# Not chosen:\n");
    for line in all {
        comment(out, &format!("- {line}"));
    }
    out.push_str("#\n");
}
