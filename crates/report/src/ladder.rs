//! A ladder as a table: the victim's percentiles against the rate that the aggressors reached.

use quell_record::result::{CompareResult, ConfigurationResult};

use crate::text::{Style, Table, TableCell, Tone, count, normalized, number, spread, unit};

/// Below this part of the rate asked for, a rung counts as out of reach.
const REACHED: f64 = 0.95;

/// The table of a ladder: a row per rung, the victim alone first. Every other subject is an
/// aggressor. The axis `rate` is what each of them was asked for.
#[must_use]
pub fn ladder_text(result: &CompareResult, victim: &str, style: Style) -> String {
    let metric = result
        .configurations
        .iter()
        .find_map(|c| c.subject(victim))
        .map_or("", |v| v.metric.as_str());
    let unit = unit(metric);
    let mut missed = false;
    let rows = result
        .configurations
        .iter()
        .map(|configuration| row(result, configuration, victim, &mut missed))
        .collect();
    let table = Table {
        head: vec![
            "rate asked".to_owned(),
            "achieved MB/s".to_owned(),
            format!("{victim} p50 {unit}"),
            "p95".to_owned(),
            "p99".to_owned(),
            "normalized p50".to_owned(),
            "p99".to_owned(),
        ],
        rows,
        left: Vec::new(),
    };
    let title = result.title.as_deref().unwrap_or(&result.experiment);
    let mut out = style.paint(Tone::Title, title);
    out.push_str(&format!("\n{}\n\n", count(result.rounds, "round")));
    out.push_str(&table.render(style));
    let mut notes =
        "Rates are program bytes, of all aggressors together; ±: half the confidence interval over rounds; \
         normalized: alone ÷ measured, 1 = no interference."
            .to_owned();
    if missed {
        notes.push_str(" *: the aggressors could not go as fast as asked.");
    }
    out.push_str(&style.wrap("", "", &notes));
    let shared = result.configurations.iter().filter_map(|c| c.rounds_shared);
    if let Some(least) = shared.min()
        && least < result.rounds
    {
        let note = format!(
            "The CPUs shared a cache before and after every rung in {least} of {} rounds only: what is shared changes here.",
            result.rounds
        );
        out.push_str(&style.wrap("", "", &note));
    }
    out
}

fn row(
    result: &CompareResult,
    configuration: &ConfigurationResult,
    victim: &str,
    missed: &mut bool,
) -> Vec<TableCell> {
    let figures = configuration.subject(victim).map(|v| v.figures.clone());
    let f = figures.unwrap_or_default();
    let mut cells = if result.baseline.as_deref() == Some(&configuration.name) {
        vec![TableCell::new("0"), TableCell::tone("alone", Tone::Faint)]
    } else {
        let asked = configuration.axes.get("rate").map_or("", String::as_str);
        let aggressors = configuration.subjects.iter().filter(|s| s.name != victim);
        let rates: Vec<f64> = aggressors.filter_map(|s| s.figures.value).collect();
        let achieved: f64 = rates.iter().sum();
        let wanted = asked.parse::<quell_types::units::Rate>().ok();
        let short =
            wanted.is_some_and(|r| achieved < r.0 as f64 / 1e6 * rates.len() as f64 * REACHED);
        *missed |= short;
        let achieved = number(achieved) + if short { "*" } else { "" };
        vec![TableCell::new(asked), TableCell::new(achieved)]
    };
    cells.extend([
        TableCell::new(spread(f.p50, f.p50_ci95)),
        TableCell::new(spread(f.p95, None)),
        TableCell::new(spread(f.p99, f.p99_ci95)),
        // Rates are normalized as a whole: their percentiles have no baseline.
        TableCell::new(normalized(
            f.normalized_p50.or(f.normalized),
            f.normalized_p50_ci95.or(f.normalized_ci95),
        )),
        TableCell::new(normalized(f.normalized_p99, f.normalized_p99_ci95)),
    ]);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn rungs_are_rows_and_one_out_of_reach_is_marked() {
        let mut result = sample::result();
        result.configurations.truncate(4);
        for (configuration, rate) in result
            .configurations
            .iter_mut()
            .skip(1)
            .zip(["1GB/s", "500GB/s", "max"])
        {
            configuration.axes = [("rate".to_owned(), rate.to_owned())].into();
        }
        let text = ladder_text(&result, "victim", Style::default());
        let line = |start: &str| {
            text.lines()
                .find(|l| l.trim_start().starts_with(start))
                .unwrap()
        };
        assert!(line("rate asked").contains("victim p50 ns"), "{text}");
        assert!(line("0 ").contains("alone"), "{text}");
        assert!(!line("1GB/s").contains('*'), "{text}");
        assert!(
            line("500GB/s").contains('*') && !line("max").contains('*'),
            "{text}"
        );
        assert!(text.contains("could not go as fast as asked"), "{text}");
    }
}
