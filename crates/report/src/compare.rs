//! The result of a comparison on a terminal: one table, the verdict, the frontier, and what was
//! left out.

use quell_record::result::{CompareResult, ConfigurationResult, Figures, Subset};
use quell_types::mechanism::Mechanism;
use quell_types::partition::MapOrigin;

use crate::columns::Columns;
use crate::doctor::lab;
use crate::frontier::{self, Data};
use crate::lost;
use crate::matrix;
use crate::programs;
use crate::text::{Style, Table, TableCell, Tone, count, normalized, number, percent, spread};
use crate::throttling::{LEGEND, POOLED, pooled, throttling};
use crate::verdict::{spoken_for, verdict};
use crate::view::View;

/// All that `compare` prints, for a terminal of the style's width.
#[must_use]
pub fn compare_text(result: &CompareResult, style: Style) -> String {
    let title = result.title.as_deref().unwrap_or(&result.experiment);
    let mut out = style.paint(Tone::Title, title);
    out.push_str(&format!(
        "\n{}, {} times, {}\n",
        result.backend,
        result.timing.name(),
        count(result.rounds, "round")
    ));
    if let Some(guest) = &result.machine.identity.lab {
        let told = format!("Linux {}, {}", result.machine.identity.kernel, lab(guest));
        out.push_str(&style.wrap("", "", &told));
    }
    if let Some(believed) = believed(result) {
        out.push_str(&style.wrap("", "", &believed));
    }
    out.push('\n');
    if programs::is_about(result) {
        out.push_str(&programs::text(result, style));
        out.push_str(&left_out(result, style));
        out.push_str(&expectations(result, style));
        return out;
    }
    out.push_str(&table_text(result, Subset::All, style));
    out.push_str(&(style.paint(Tone::Faint, &footnote(result)) + "\n"));
    for sentence in lost::of_cells(result) {
        out.push_str(&style.wrap("", "  ", &sentence));
    }
    if partly_shared(result) {
        out.push('\n');
        out.push_str(&style.wrap(
            "",
            "",
            "Only rounds in which the subjects' CPUs shared a cache before and after the cell:",
        ));
        out.push_str(&table_text(result, Subset::Shared, style));
    }
    if matrix::many(result) {
        out.push_str(&matrix::text(result, style));
    } else if let Some(others) = others(result) {
        out.push('\n');
        out.push_str(&others.render(style));
    }
    for (n, sentence) in verdict(result).iter().enumerate() {
        if n == 0 {
            out.push('\n');
        }
        out.push_str(&style.wrap("", "", sentence));
    }
    if let Some(data) = Data::new(result, spoken_for(result)) {
        out.push('\n');
        out.push_str(&frontier::text(&data, style));
    }
    out.push_str(&crate::curve::text(result, style));
    out.push_str(&crate::attribution::text(result, style));
    out.push_str(&crate::worst::text(result, style));
    if let Some(table) = throttling(result) {
        out.push('\n');
        out.push_str(&table.render(style));
        out.push_str(&style.wrap("", "", LEGEND));
    }
    if let Some(table) = pooled(result) {
        out.push('\n');
        out.push_str(&table.render(style));
        out.push_str(&style.wrap("", "", POOLED));
    }
    out.push_str(&crate::published::text(result, style));
    out.push_str(&left_out(result, style));
    out.push_str(&expectations(result, style));
    out
}

/// What colours mean by an address map that was declared and not measured. `None` where no
/// configuration has colours.
pub(crate) fn believed(result: &CompareResult) -> Option<String> {
    let coloured = [Mechanism::Sets, Mechanism::Banks];
    let mut all = result.configurations.iter().flat_map(|c| &c.mechanisms);
    let map = result.machine.partitions.address_map.as_ref()?;
    let believed = matches!(map.origin, MapOrigin::Declared | MapOrigin::Published);
    if !believed || !all.any(|mechanism| coloured.contains(mechanism)) {
        return None;
    }
    let from = &map.from;
    Some(match result.machine.identity.hypervisor {
        Some(_) => format!(
            "Colours are by the declared address map {from}. In a virtual machine page frames are the guest's: these colours mean \
             nothing for the hardware, and differences of times are not theirs."
        ),
        None => format!(
            "Colours are by the declared address map {from}, which is believed: on other hardware they are no colours."
        ),
    })
}

/// The first table: configuration, p50 and p99 with spread, both normalized, what the neighbour
/// keeps, level.
#[must_use]
pub fn table_text(result: &CompareResult, subset: Subset, style: Style) -> String {
    table(result, subset).map_or_else(String::new, |t| t.render(style))
}

/// Whether a configuration shared a cache in some rounds but not in all.
pub(crate) fn partly_shared(result: &CompareResult) -> bool {
    let of = |c: &ConfigurationResult| c.rounds_shared.map(|s| (s, c.rounds));
    let told: Vec<(u32, u32)> = result.configurations.iter().filter_map(of).collect();
    told.iter().any(|(s, _)| *s > 0) && told.iter().any(|(s, r)| s < r)
}

pub(crate) fn table(result: &CompareResult, subset: Subset) -> Option<Table> {
    let columns = Columns::new(result, subset)?;
    let head = columns.head();
    Some(Table {
        left: vec![head.len() - 1],
        rows: result
            .configurations
            .iter()
            .map(|c| columns.row(c))
            .collect(),
        head,
    })
}

/// How to read the table's figures.
pub(crate) fn footnote(result: &CompareResult) -> String {
    let spread = if result.rounds > 1 {
        format!(
            "±: half the {} confidence interval over rounds. ",
            percent(result.confidence)
        )
    } else {
        "One round: no spread. ".to_owned()
    };
    let baseline = result.baseline.as_ref().map_or_else(String::new, |b| {
        format!("Normalized: {b} ÷ measured, 1 = no interference.")
    });
    (spread + &baseline).trim_end().to_owned()
}

/// The subjects that the first table does not show, and their other metrics.
fn others(result: &CompareResult) -> Option<Table> {
    let view = View::new(result, Subset::All)?;
    let mut table = Table {
        head: ["other figures", "subject", "metric", "value", "normalized"]
            .map(str::to_owned)
            .to_vec(),
        rows: Vec::new(),
        left: vec![1, 2],
    };
    for configuration in &result.configurations {
        for subject in &configuration.subjects {
            let shown = subject.name == view.protected || Some(subject.name.as_str()) == view.pays;
            let main = (!shown).then_some((&subject.metric, &subject.figures));
            // The throttling section reports how well a cap was held.
            let reported = |(name, f): &(&String, &Figures)| {
                f.value.is_some() && name.as_str() != "achieved_of_cap"
            };
            for (metric, f) in main
                .into_iter()
                .chain(subject.metrics.iter().filter(reported))
            {
                table.rows.push(vec![
                    TableCell::new(&configuration.name),
                    TableCell::new(&subject.name),
                    TableCell::new(metric),
                    TableCell::new(spread(f.value, f.ci95)),
                    TableCell::new(normalized(f.normalized, f.normalized_ci95)),
                ]);
            }
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Every configuration that was not run, with the reason.
pub(crate) fn skipped(result: &CompareResult) -> impl Iterator<Item = String> {
    let refused = result
        .configurations
        .iter()
        .filter(|c| !c.refused.is_empty());
    refused.map(|configuration| {
        let why = configuration.refused.iter().map(ToString::to_string);
        let why = why.collect::<Vec<_>>().join("; ");
        format!("{} was skipped: {why}", configuration.name)
    })
}

/// Every cell that was run but not measured: `how` it failed, and the error.
pub(crate) fn unmeasured(result: &CompareResult, how: &str) -> impl Iterator<Item = String> {
    result.failures.iter().map(move |failure| {
        let subject = failure.subject.as_ref();
        let who = subject.map_or_else(String::new, |s| format!(", {s}"));
        let round = failure.round.saturating_add(1);
        format!(
            "{}{who}, round {round}, {how}: {}",
            failure.configuration, failure.error
        )
    })
}

fn left_out(result: &CompareResult, style: Style) -> String {
    let failed = unmeasured(result, "could not be measured");
    let out: String = skipped(result)
        .chain(failed)
        .map(|text| style.wrap("", "  ", &text))
        .collect();
    if out.is_empty() {
        out
    } else {
        format!("\n{out}")
    }
}

fn expectations(result: &CompareResult, style: Style) -> String {
    if result.expectations.is_empty() {
        return String::new();
    }
    let mut table = Table {
        head: ["expected", "of", "what", "found", ""]
            .map(str::to_owned)
            .to_vec(),
        rows: Vec::new(),
        left: vec![1, 2, 4],
    };
    for row in &result.expectations {
        let (word, tone) = if row.met {
            ("met", Tone::Good)
        } else {
            ("NOT MET", Tone::Bad)
        };
        table.rows.push(vec![
            TableCell::new(&row.configuration),
            TableCell::new(&row.subject),
            TableCell::new(&row.expected),
            TableCell::new(row.found.map_or_else(String::new, number)),
            TableCell::tone(word, tone),
        ]);
    }
    format!("\n{}", table.render(style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use quell_record::result::{CellFailure, ExpectationResult};
    use quell_types::stats::Better;

    #[test]
    fn the_first_screen_is_one_table() {
        let style = Style {
            color: false,
            width: 100,
        };
        let text = compare_text(&sample::result(), style);
        sample::golden("compare", &text);
    }

    #[test]
    fn a_declared_map_is_named_where_colours_are_compared() {
        use quell_types::partition::KnownMap;
        let mut result = sample::result();
        let map = |origin| KnownMap {
            origin,
            from: "map.txt".to_owned(),
            about: None,
            banks: None,
            sets: None,
            shared: 0,
        };
        result.machine.partitions.address_map = Some(map(MapOrigin::Declared));
        assert_eq!(believed(&result), None);
        result.configurations[1].mechanisms = vec![Mechanism::Banks];
        result.machine.identity.hypervisor = Some("KVM".to_owned());
        let said = |result: &CompareResult| {
            let text = compare_text(result, Style::default());
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(
            said(&result).contains("map.txt. In a virtual machine page frames are the guest's")
        );
        result.machine.identity.hypervisor = None;
        assert!(said(&result).contains("map.txt, which is believed"));
        for origin in [MapOrigin::Lab, MapOrigin::Recovered] {
            result.machine.partitions.address_map = Some(map(origin));
            assert_eq!(believed(&result), None);
        }
    }

    #[test]
    fn a_command_is_shown_by_its_run_time_without_percentiles() {
        let mut result = sample::result();
        for subject in sample::subjects(&mut result) {
            "run_time_s".clone_into(&mut subject.metric);
            let f = &mut subject.figures;
            (f.p50, f.p99) = (None, None);
            (f.normalized_p50, f.normalized_p99) = (None, None);
        }
        let text = table_text(&result, Subset::All, Style::default());
        let head = text.lines().next().unwrap();
        assert!(
            head.contains("victim s") && head.contains("normalized"),
            "{head}"
        );
        assert!(!head.contains("p99"), "{head}");
    }

    #[test]
    fn a_rate_is_shown_by_its_mean_and_what_else_is_reported_below() {
        let mut result = sample::result();
        for subject in sample::subjects(&mut result).filter(|s| s.name == "victim") {
            "bandwidth_mb_s".clone_into(&mut subject.metric);
            subject.better = Better::Higher;
            // Of a rate, only the mean is normalized.
            let f = &mut subject.figures;
            (f.normalized_p50, f.normalized_p99) = (None, None);
            let rtt = Figures {
                value: Some(17.2),
                normalized: Some(0.11),
                ..Figures::default()
            };
            let cap = Figures {
                value: Some(0.99),
                ..Figures::default()
            };
            subject.metrics.insert("rtt_ms".into(), rtt);
            subject.metrics.insert("achieved_of_cap".into(), cap);
        }
        let head = table_text(&result, Subset::All, Style::default());
        let head = head.lines().next().unwrap();
        assert!(
            head.contains("victim MB/s") && !head.contains("p50"),
            "{head}"
        );
        let text = compare_text(&result, Style::default());
        let rtt = |line: &&str| line.contains("victim") && line.contains("rtt_ms");
        let rows: Vec<&str> = text.lines().filter(rtt).collect();
        let measured = |c: &&ConfigurationResult| c.subject("victim").is_some();
        let measured = result.configurations.iter().filter(measured).count();
        assert_eq!(rows.len(), measured, "{text}");
        assert!(
            rows[0].contains("17.2") && rows[0].contains("0.11"),
            "{}",
            rows[0]
        );
        assert!(!text.contains("achieved_of_cap"));
    }

    #[test]
    fn both_sets_of_rounds_are_shown_when_they_differ() {
        let mut result = sample::result();
        assert!(!partly_shared(&result));
        result.configurations[1].rounds_shared = Some(9);
        let text = compare_text(&result, Style::default());
        assert!(text.contains("Only rounds in which the subjects' CPUs shared a cache"));
        // Two tables of results, and the one of causes.
        assert_eq!(text.matches("\nnone ").count(), 3);
    }

    #[test]
    fn a_broken_limit_and_a_missed_expectation_stand_out() {
        let mut result = sample::result();
        result.configurations[5].promises[0].held = Some(false);
        result.expectations = vec![ExpectationResult {
            configuration: "regulated@10%".into(),
            subject: "victim".into(),
            expected: "normalized_at_least = 0.95".into(),
            found: Some(0.916),
            met: false,
        }];
        result.failures = vec![CellFailure {
            configuration: "solo".into(),
            subject: Some("victim".into()),
            round: 3,
            error: "it was gone".into(),
        }];
        let text = compare_text(&result, Style::default());
        assert!(text.contains("estimated, NOT HELD"));
        assert!(text.contains("normalized_at_least = 0.95   0.92  NOT MET"));
        assert!(text.contains("solo, victim, round 4, could not be measured: it was gone"));
    }

    #[test]
    fn a_third_subject_is_a_column() {
        let mut result = sample::result();
        for configuration in &mut result.configurations {
            if let Some(second) = configuration.subjects.get(1) {
                let mut third = second.clone();
                third.name = "batch".into();
                configuration.subjects.push(third);
            }
        }
        let text = compare_text(&result, Style::default());
        assert!(!text.contains("other figures"));
        let kept = text.lines().find(|l| l.starts_with("normalized"));
        assert!(kept.is_some_and(|l| l.contains("batch")), "{text}");
    }
}
