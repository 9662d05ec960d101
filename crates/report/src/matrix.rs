//! Results of more than two subjects: a table per figure, with configurations down and subjects
//! across.

use quell_record::result::{CompareResult, Figures, SubjectResult};

use crate::text::{Style, Table, TableCell, normalized, spread};

/// From so many subjects on, rows of configuration, subject and metric are too long to read.
pub(crate) const MANY: usize = 3;

/// The subjects' names, in the order of the first configuration that has them.
fn subjects(result: &CompareResult) -> Vec<&str> {
    let most = result
        .configurations
        .iter()
        .max_by_key(|c| c.subjects.len());
    most.map_or_else(Vec::new, |c| {
        c.subjects.iter().map(|s| s.name.as_str()).collect()
    })
}

/// Whether there are at least [`MANY`] subjects.
pub(crate) fn many(result: &CompareResult) -> bool {
    subjects(result).len() >= MANY
}

fn table(
    result: &CompareResult,
    title: &str,
    show: impl Fn(&SubjectResult) -> Option<String>,
) -> Option<Table> {
    let names = subjects(result);
    let mut any = false;
    let rows = result
        .configurations
        .iter()
        .filter(|c| c.refused.is_empty())
        .map(|configuration| {
            let cells = names.iter().map(|name| {
                let shown = configuration.subject(name).and_then(&show);
                any |= shown.is_some();
                TableCell::new(shown.unwrap_or_else(|| "–".to_owned()))
            });
            let cells: Vec<TableCell> = cells.collect();
            [TableCell::new(&configuration.name)]
                .into_iter()
                .chain(cells)
                .collect()
        })
        .collect();
    let head = [title].into_iter().chain(names.iter().copied());
    let head = head.map(str::to_owned).collect();
    any.then_some(Table {
        head,
        rows,
        left: Vec::new(),
    })
}

fn main_of(subject: &SubjectResult) -> (&str, &Figures) {
    (&subject.metric, &subject.figures)
}

/// First what each subject keeps of its solo speed, then each metric.
pub(crate) fn text(result: &CompareResult, style: Style) -> String {
    let kept = table(result, "normalized", |subject| {
        let f = &subject.figures;
        f.normalized
            .is_some()
            .then(|| normalized(f.normalized, f.normalized_ci95))
    });
    let mut metrics: Vec<&str> = Vec::new();
    for subject in result.configurations.iter().flat_map(|c| &c.subjects) {
        let all = subject.metrics.keys().map(String::as_str);
        for name in std::iter::once(subject.metric.as_str()).chain(all) {
            // The throttling section reports how well a cap was held.
            if !metrics.contains(&name) && name != "achieved_of_cap" {
                metrics.push(name);
            }
        }
    }
    let each = metrics.into_iter().filter_map(|metric| {
        table(result, metric, |subject| {
            let main = Some(main_of(subject)).filter(|(name, _)| *name == metric);
            let found = main
                .map(|(_, f)| f)
                .or_else(|| subject.metrics.get(metric))?;
            found
                .value
                .is_some()
                .then(|| spread(found.value, found.ci95))
        })
    });
    kept.into_iter()
        .chain(each)
        .map(|table| format!("\n{}", table.render(style)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn many_subjects_are_columns() {
        let mut result = sample::result();
        assert!(!many(&result), "two subjects have rows");
        for configuration in &mut result.configurations {
            let more = configuration.subjects.iter().map(|subject| SubjectResult {
                name: format!("{}-2", subject.name),
                ..subject.clone()
            });
            let more: Vec<_> = more.collect();
            configuration.subjects.extend(more);
        }
        assert!(many(&result));
        let text = text(&result, Style::default());
        let first: Vec<&str> = text.lines().skip(1).collect();
        assert!(
            first[0].starts_with("normalized") && first[0].contains("victim-2"),
            "{text}"
        );
        assert!(
            text.contains("\nlatency_ns") && text.contains("\nbandwidth_mb_s"),
            "{text}"
        );
    }
}
