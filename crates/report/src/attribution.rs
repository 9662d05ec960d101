//! Why critical subjects were late: a row per configuration and subject, and a column per cause
//! that has a part in any of them.

use quell_record::attribution::{Attribution, Cause, How};
use quell_record::result::CompareResult;

use crate::text::{Style, Table, TableCell, Tone, number, percent};

/// All attributions: configuration, subject, attribution.
pub(crate) fn all(result: &CompareResult) -> impl Iterator<Item = (&str, &str, &Attribution)> {
    result.configurations.iter().flat_map(|c| {
        c.subjects
            .iter()
            .filter_map(move |s| Some((c.name.as_str(), s.name.as_str(), s.attribution.as_ref()?)))
    })
}

/// Whether more than one subject has an attribution.
pub(crate) fn several(result: &CompareResult) -> bool {
    let mut subjects = all(result).map(|(_, subject, _)| subject);
    let first = subjects.next();
    subjects.any(|subject| Some(subject) != first)
}

pub(crate) fn whose(configuration: &str, subject: &str, several: bool) -> String {
    if several {
        format!("{configuration}, {subject}")
    } else {
        configuration.to_owned()
    }
}

/// `None` where no account was kept, or nothing was late.
pub(crate) fn table(result: &CompareResult) -> Option<Table> {
    let late: Vec<_> = all(result).filter(|(_, _, a)| a.late > 0).collect();
    let (_, first, _) = late.first()?;
    let several = several(result);
    let causes: Vec<Cause> = Cause::ALL
        .into_iter()
        .filter(|cause| {
            late.iter().any(|(_, _, a)| {
                a.parts
                    .iter()
                    .any(|p| p.cause == *cause && p.share >= 0.005)
            })
        })
        .collect();
    let mut head = vec![format!("late: {}", if several { "subject" } else { first })];
    head.extend(["units late", "late time"].map(str::to_owned));
    head.extend(causes.iter().map(|c| c.name().to_owned()));
    head.push("memory bounds".to_owned());
    let rows = all(result)
        .map(|(configuration, subject, a)| {
            let mut row = vec![TableCell::new(whose(configuration, subject, several))];
            let units = a.units.max(1) as f64;
            row.push(TableCell::new(percent(a.late as f64 / units)));
            row.push(TableCell::new(format!(
                "{} ms",
                number(a.late_ns as f64 / 1e6)
            )));
            row.extend(causes.iter().map(|cause| {
                let part = a.parts.iter().find(|p| p.cause == *cause);
                part.map_or_else(
                    || TableCell::tone("–", Tone::Faint),
                    |p| {
                        let about = if p.how == How::Counted { "~" } else { "" };
                        TableCell::new(format!("{about}{}", percent(p.share)))
                    },
                )
            }));
            row.push(TableCell::tone(
                a.memory.map_or_else(String::new, |[low, high]| {
                    format!("{} to {}", percent(low), percent(high))
                }),
                Tone::Faint,
            ));
            row
        })
        .collect();
    Some(Table {
        head,
        rows,
        left: Vec::new(),
    })
}

/// What the columns mean, and the rule of attribution.
pub(crate) fn legend(result: &CompareResult) -> String {
    let rule = all(result).next().map_or(0.0, |(_, _, a)| a.late_above);
    let cost = all(result).map(|(_, _, a)| a.sample_ns).fold(0.0, f64::max);
    format!(
        "Late: a unit (window, job) that took more than {} times the median unit of {} in the same round for the same \
         work; late time is what it took beyond that. Causes by the kernel's own clocks (~: a number of events × what one was \
         measured to take); memory is what they leave, within the bounds. Reading the clocks took {} µs between units.",
        number(rule),
        result.baseline.as_deref().unwrap_or("the baseline"),
        number(cost / 1e3)
    )
}

/// The table for a terminal. Empty where there is nothing to attribute.
pub(crate) fn text(result: &CompareResult, style: Style) -> String {
    table(result).map_or_else(String::new, |table| {
        format!(
            "\n{}{}",
            table.render(style),
            style.wrap("", "", &legend(result))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn each_configuration_has_a_row_and_the_rule_is_said() {
        let text = text(&sample::result(), Style::default());
        let none = text.lines().find(|l| l.starts_with("none ")).unwrap();
        assert!(
            none.contains("62 %") && none.contains("60 % to 64 %"),
            "{text}"
        );
        assert!(none.contains("~2.0 %"), "counted is marked: {text}");
        assert!(text.contains("1.25 times the median unit of"), "{text}");
        assert!(
            !text.contains("page faults"),
            "no column without a part: {text}"
        );
    }

    #[test]
    fn nothing_late_says_nothing() {
        let mut result = sample::result();
        for subject in sample::subjects(&mut result) {
            subject.attribution = None;
        }
        assert_eq!(text(&result, Style::default()), "");
    }
}
