//! The text of `quell demo`: what hurts on a machine.

use std::fmt::Write as _;

use quell_plan::choose::pays;
use quell_record::demo::{DemoResult, Found, HURTS, Resource};

use crate::text::{Style, Tone, count, list, number, percent, unit};

/// Facts for the text that come from no measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct DemoStory<'a> {
    /// The page, as a path to open. `None`: no record was kept.
    pub page: Option<&'a str>,
    /// Whether the caller is root, so that Quell could act.
    pub root: bool,
}

/// The shared resource as part of a sentence.
pub(crate) const fn shared(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "a neighbour on the same CPU",
        Resource::Memory => "a neighbour that takes memory",
        Resource::Cache => "a neighbour in the last-level cache",
        Resource::Bandwidth => "a neighbour that draws memory bandwidth",
        Resource::Sibling => "a neighbour on the other thread of the core",
        Resource::Disk => "a neighbour on the same disk",
    }
}

/// The command that protects a program of the reader's, line by line. Empty where options, or a
/// policy of one screen, cannot express it.
pub(crate) const fn command(resource: Resource) -> &'static [&'static str] {
    match resource {
        Resource::Cpu => &[
            "sudo quell run --critical comm=YOURS \\",
            "  --best-effort comm=NEIGHBOUR",
        ],
        Resource::Cache | Resource::Bandwidth => &[
            "sudo quell run --critical comm=YOURS \\",
            "  --best-effort comm=NEIGHBOUR --limit 10%",
        ],
        Resource::Memory => &[
            "sudo quell run /dev/stdin <<'END'",
            "quell = 1",
            "group.a.role = \"critical\"",
            "group.a.match = [{ comm = \"YOURS\" }]",
            "group.a.cpus = \"any\"",
            "group.b.role = \"best-effort\"",
            "group.b.match = [{ comm = \"NEIGHBOUR\" }]",
            "group.b.cpus = \"any\"",
            "group.b.allow = [\"limit-memory\", \"freeze\",",
            "  \"reclaim\", \"kill\"]",
            "pressure.controller = \"quell\"",
            "END",
        ],
        Resource::Sibling | Resource::Disk => &[],
    }
}

/// What a command is for, and what it may do that is not expected.
pub(crate) const fn for_yours(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "for a program of yours; at worst it kills the neighbour",
        _ => "for a program of yours",
    }
}

/// Why a limit is not offered although it covers the resource: it takes more than it helps.
pub(crate) fn dear(found: &Found) -> Option<String> {
    let limits = matches!(found.name, Resource::Cache | Resource::Bandwidth);
    let faster = found.none / found.quell.filter(|with| *with > 0.0)?;
    let slower = found.neighbour_kept.filter(|kept| *kept > 0.0)?.recip();
    (limits && found.covered() && !pays(faster, slower)).then(|| {
        format!(
            "No limit is proposed: it makes the program {} faster and the neighbour {} slower. Where \
             that is worth it: --limit 10%.",
            times(faster),
            times(slower)
        )
    })
}

fn times(ratio: f64) -> String {
    format!("{} times", number(ratio))
}

fn between(interval: Option<quell_types::stats::Interval>) -> String {
    interval.map_or_else(String::new, |i| {
        format!(" ({} to {})", number(i.low), number(i.high))
    })
}

/// Whether it hurts, as a word or two.
pub(crate) fn word(found: &Found) -> &'static str {
    match found.hurts {
        true => "hurts",
        false if found.none >= HURTS => "not shown to hurt (rounds differ too much)",
        false => "does not hurt",
    }
}

/// One line about a resource that was measured, for the progress.
#[must_use]
pub fn demo_line(found: &Found) -> String {
    let name = found.name.name();
    let none = format!("{}{}", times(found.none), between(found.none_ci95));
    if !found.hurts {
        let word = word(found);
        return format!("{name}: {word}: p95 next to the neighbour is {none} that alone");
    }
    let with = found.quell.map_or_else(String::new, |quell| {
        format!("; with Quell {}", times(quell))
    });
    format!("{name}: hurts: p95 next to the neighbour is {none} that alone{with}")
}

/// The verdict in a sentence or two.
pub(crate) fn headline(result: &DemoResult) -> String {
    let hurting: Vec<&Found> = result.resources.iter().filter(|f| f.hurts).collect();
    let names = |all: &[&Found]| {
        let names: Vec<String> = all.iter().map(|f| f.name.name().to_owned()).collect();
        list(&names)
    };
    if result.control {
        return if hurting.is_empty() {
            "Neighbours that sleep hurt nothing, as it must be.".to_owned()
        } else {
            format!(
                "Neighbours that sleep seem to hurt ({}): this machine is too noisy to trust these figures.",
                names(&hurting)
            )
        };
    }
    if hurting.is_empty() {
        return if result.resources.is_empty() {
            "Nothing could be measured.".to_owned()
        } else {
            "No neighbour that was tried is shown to hurt on this machine.".to_owned()
        };
    }
    let covered: Vec<&Found> = hurting.iter().copied().filter(|f| f.covered()).collect();
    let first = format!(
        "On this machine neighbours hurt through {}.",
        names(&hurting)
    );
    if covered.is_empty() {
        first
    } else {
        format!("{first} Quell covers {}.", names(&covered))
    }
}

/// What is not covered, and why: a sentence each.
pub(crate) fn uncovered(result: &DemoResult, root: bool) -> Vec<String> {
    let mut all = Vec::new();
    for found in result.resources.iter().filter(|f| f.hurts && !f.covered()) {
        let name = found.name.name();
        if result.control {
            continue;
        }
        all.push(match (&found.refused, found.quell, found.excess_gone) {
            (Some(_), None, _) if !root => {
                format!("{name}: Quell changes this machine as root only; call it with sudo.")
            }
            (Some(refusal), None, _) => format!("{name}: {refusal}."),
            (_, Some(_), Some(gone)) if gone > 0.0 => format!(
                "{name}: Quell takes {} of the excess away, which is too little or not sure.",
                percent(gone)
            ),
            (_, Some(_), _) => format!("{name}: Quell takes nothing away here."),
            _ => format!("{name}: it was not measured with Quell."),
        });
    }
    all
}

/// The whole text of a demonstration.
#[must_use]
pub fn demo_text(result: &DemoResult, story: DemoStory<'_>, style: Style) -> String {
    let mut out = style.paint(
        Tone::Title,
        style.wrap("", "", &headline(result)).trim_end(),
    );
    out.push('\n');
    for found in &result.resources {
        out.push('\n');
        out += &one(found, result.control, style);
    }
    let section = |out: &mut String, title: &str, lines: &[String]| {
        if !lines.is_empty() {
            let _ = writeln!(out, "\n{}", style.paint(Tone::Title, title));
            for line in lines {
                *out += &style.wrap("  ", "    ", line);
            }
        }
    };
    section(&mut out, "Not covered", &uncovered(result, story.root));
    let left: Vec<String> = result
        .left_out
        .iter()
        .map(|l| format!("{}: {}", l.name.name(), l.why))
        .collect();
    section(&mut out, "Left out", &left);
    out.push('\n');
    let took = format!(
        "It took {} s. p95 is what 95 % of the values lie below; intervals are over rounds.",
        number(result.took_s)
    );
    out += &style.wrap("", "", &took);
    if let Some(page) = story.page {
        out += &style.wrap("", "", &format!("The page with all figures: {page}"));
    }
    out
}

fn one(found: &Found, control: bool, style: Style) -> String {
    let tone = if found.hurts { Tone::Bad } else { Tone::Plain };
    let mut out = format!(
        "{}  {}\n",
        style.paint(Tone::Title, found.name.name()),
        style.paint(tone, word(found))
    );
    let mut line = |name: &str, text: &str| {
        out += &style.wrap(&format!("  {name:<16}"), &" ".repeat(18), text);
    };
    let alone = format!("p95 {} {}", number(found.solo), unit(&found.metric));
    line("alone", &alone);
    let none = format!("{}{}", times(found.none), between(found.none_ci95));
    let next = if control {
        "a sleeping neighbour"
    } else {
        shared(found.name)
    };
    line("next to it", &format!("{none}: {next}"));
    if let Some(quell) = found.quell {
        let gone = found.excess_gone.map_or_else(String::new, |gone| {
            format!(", {} of the excess gone", percent(gone.max(0.0)))
        });
        let by: Vec<String> = found.by.iter().map(|m| m.name().to_owned()).collect();
        let by = if by.is_empty() {
            String::new()
        } else {
            format!(", by {}", list(&by))
        };
        line(
            "with Quell",
            &format!("{}{}{gone}{by}", times(quell), between(found.quell_ci95)),
        );
    }
    if let Some(kept) = found.neighbour_kept {
        line("neighbour keeps", &format!("{} of its rate", percent(kept)));
    }
    let rounds = count(found.rounds, "round");
    line(
        "again",
        &format!("quell compare {} ({rounds} here)", found.experiment),
    );
    if let Some(why) = dear(found) {
        out += &style.wrap("  ", "  ", &why);
    } else if found.covered() {
        let lines = command(found.name);
        if !lines.is_empty() {
            out += &format!("  {}\n", for_yours(found.name));
        }
        for line in lines {
            let _ = writeln!(out, "    {line}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_record::demo::{DEMO_SCHEMA, LeftOut};
    use quell_types::mechanism::Mechanism;
    use quell_types::refusal::{Cause, Refusal};
    use quell_types::stats::Interval;

    pub(crate) fn sample() -> DemoResult {
        let cpu = Found {
            name: Resource::Cpu,
            experiment: "hurts-cpu".into(),
            title: None,
            metric: "latency_us".into(),
            solo: 150.0,
            none: 31.0,
            none_ci95: Some(Interval::from([28.0, 35.0])),
            quell: Some(1.1),
            quell_ci95: Some(Interval::from([1.0, 1.2])),
            neighbour_kept: Some(0.9),
            by: vec![Mechanism::Weight],
            hurts: true,
            excess_gone: Some(0.997),
            refused: None,
            rounds: 5,
            record: None,
        };
        let disk = Found {
            name: Resource::Disk,
            quell: None,
            quell_ci95: None,
            neighbour_kept: None,
            by: Vec::new(),
            excess_gone: None,
            refused: Some(Refusal {
                key: "group.neighbour.limit.disk-read".into(),
                why: "disks are limited on cgroup v2".into(),
                cause: Cause::default(),
                remedies: Vec::new(),
            }),
            ..cpu.clone()
        };
        DemoResult {
            schema: DEMO_SCHEMA.into(),
            version: "0".into(),
            control: false,
            took_s: 93.0,
            resources: vec![cpu, disk],
            left_out: vec![LeftOut {
                name: Resource::Sibling,
                why: "cores have one thread here".into(),
            }],
            interrupted: None,
        }
    }

    fn text(result: &DemoResult, width: usize, root: bool) -> String {
        let style = Style {
            color: false,
            width,
        };
        demo_text(result, DemoStory { page: None, root }, style)
    }

    #[test]
    fn what_hurts_what_helps_and_what_does_not_is_said() {
        let said = text(&sample(), 100, true);
        for part in [
            "hurt through cpu and disk. Quell covers cpu.",
            "31.0 times (28.0 to 35.0)",
            "100 % of the excess gone, by weight",
            "90 % of its rate",
            "disk: group.neighbour.limit.disk-read: disks are limited on cgroup v2.",
            "sibling: cores have one thread here",
            "sudo quell run --critical",
        ] {
            assert!(said.contains(part), "'{part}' is missing in\n{said}");
        }
        assert!(text(&sample(), 100, false).contains("call it with sudo"));
    }

    #[test]
    fn a_limit_is_offered_where_it_helps_by_more_than_it_takes() {
        let mut result = sample();
        result.resources[0].name = Resource::Bandwidth;
        let said = text(&result, 100, true);
        assert!(
            said.contains("--best-effort comm=NEIGHBOUR --limit 10%"),
            "{said}"
        );
        // 28 times faster for a neighbour that is 33 times slower.
        result.resources[0].neighbour_kept = Some(0.03);
        let said = text(&result, 100, true);
        assert!(said.contains("the neighbour 33.3 times slower"), "{said}");
        assert!(!said.contains("comm=NEIGHBOUR"), "{said}");
    }

    #[test]
    fn a_policy_that_is_suggested_is_one() {
        let mut policies = 0;
        for resource in Resource::ALL {
            let lines = command(resource);
            if let [first, policy @ .., last] = lines
                && *last == "END"
            {
                assert!(first.ends_with("<<'END'"));
                let text = policy.join("\n");
                quell_policy::Policy::parse(&text, "suggested").unwrap();
                policies += 1;
            }
        }
        assert_eq!(policies, 1);
    }

    #[test]
    fn a_narrow_terminal_is_enough() {
        for line in text(&sample(), 60, true).lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }

    #[test]
    fn a_control_that_hurts_is_said_to_be_noise() {
        let mut control = DemoResult {
            control: true,
            ..sample()
        };
        assert!(headline(&control).contains("too noisy"));
        for found in &mut control.resources {
            found.hurts = false;
        }
        assert!(headline(&control).contains("as it must be"));
    }
}
