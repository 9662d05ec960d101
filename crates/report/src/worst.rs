//! The worst units of the subjects that work in units, and what each of them met.

use std::collections::BTreeSet;

use quell_record::result::CompareResult;

use crate::text::{Style, Table, TableCell, number};

/// How many of each configuration a terminal shows.
const SHOWN: usize = 1;

/// What the columns mean.
pub(crate) const LEGEND: &str = "The units with the worst values, worst first, and their other values. `llc_misses` are lines read from memory, \
    and `own_misses` those of them that are code, stack and page tables. `buffer_cycles` and `own_cycles` were spent waiting for \
    these lines, `port_cycles` for a cache that another access occupied. `interrupt_cycles` were not the task's own.";

/// The `most` worst units of every configuration and subject that has any. `None`: none has.
pub(crate) fn table(result: &CompareResult, most: usize) -> Option<Table> {
    let subjects = result.configurations.iter().flat_map(|configuration| {
        let subjects = configuration.subjects.iter();
        let subjects = subjects.filter(|subject| !subject.worst.is_empty());
        subjects.map(move |subject| (configuration.name.as_str(), subject))
    });
    let subjects: Vec<_> = subjects.collect();
    let (_, first) = subjects.first()?;
    let units = subjects.iter().flat_map(|(_, subject)| &subject.worst);
    // A column of zeros says nothing.
    let met = units.flat_map(|unit| unit.met.iter().filter(|(_, value)| **value != 0.0));
    let met: BTreeSet<&String> = met.map(|(name, _)| name).collect();
    let mut head = vec!["worst units".to_owned(), "subject".to_owned()];
    head.extend(["round", "unit"].map(str::to_owned));
    head.push(first.metric.clone());
    head.extend(met.iter().map(|name| (*name).clone()));
    let rows = subjects.iter().flat_map(|(configuration, subject)| {
        subject.worst.iter().take(most).map(|unit| {
            let mut row = vec![
                TableCell::new(*configuration),
                TableCell::new(&subject.name),
                TableCell::new((unit.round + 1).to_string()),
                TableCell::new((unit.unit + 1).to_string()),
                TableCell::new(number(unit.value)),
            ];
            let value = |name: &&String| unit.met.get(*name);
            let values = met.iter().map(value);
            row.extend(values.map(|value| {
                TableCell::new(value.map_or_else(String::new, |value| number(*value)))
            }));
            row
        })
    });
    Some(Table {
        rows: rows.collect(),
        head,
        left: vec![1],
    })
}

/// The worst unit of every configuration, for a terminal. Empty where there are none.
pub(crate) fn text(result: &CompareResult, style: Style) -> String {
    table(result, SHOWN).map_or_else(String::new, |table| {
        format!("\n{}{}", table.render(style), style.wrap("", "", LEGEND))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use quell_record::worst::Worst;

    #[test]
    fn a_terminal_shows_one_unit_of_each_configuration() {
        let mut result = sample::result();
        assert!(table(&result, 10).is_none());
        for subject in sample::subjects(&mut result) {
            subject.worst = (0..2)
                .map(|unit| Worst {
                    round: 0,
                    unit,
                    value: 900.0 - unit as f64,
                    met: [("llc_misses", 7.0), ("misses", 0.0)]
                        .map(|(name, value)| (name.to_owned(), value))
                        .into(),
                })
                .collect();
        }
        let text = text(&result, Style::default());
        let none: Vec<&str> = text.lines().filter(|l| l.starts_with("none ")).collect();
        assert_eq!(none.len(), 2, "a row per subject: {text}");
        assert!(
            none[0].contains("900") && none[0].ends_with("7.00"),
            "{text}"
        );
        assert!(!text.contains(" misses"), "no column of zeros: {text}");
        let page = table(&result, 10).unwrap();
        let subjects = result.configurations.iter().map(|c| c.subjects.len());
        assert_eq!(page.rows.len(), 2 * subjects.sum::<usize>());
    }
}
