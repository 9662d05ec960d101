//! A run as it is now: a line for each group, and one for each promise.

use quell_record::now::{GroupNow, PromiseNow, PromiseState};
use quell_types::units::Nanos;

use crate::hold::duration;
use crate::text::{Style, Table, TableCell, Tone};

const fn name(state: PromiseState) -> &'static str {
    match state {
        PromiseState::Holds => "holds",
        PromiseState::Lowered => "LOWERED",
        PromiseState::Unheld => "not held",
        PromiseState::Lost => "LOST",
    }
}

const fn tone(state: PromiseState) -> Tone {
    match state {
        PromiseState::Holds => Tone::Good,
        PromiseState::Unheld => Tone::Faint,
        PromiseState::Lowered | PromiseState::Lost => Tone::Bad,
    }
}

fn since(time: Option<Nanos>, at_least: bool) -> String {
    let text = time.map_or_else(|| "-".to_owned(), duration);
    if at_least {
        format!("{text} or more")
    } else {
        text
    }
}

/// The groups and promises of a run, and what other programs have changed.
#[must_use]
pub fn status_text(
    groups: &[GroupNow],
    promises: &[PromiseNow],
    drift: &[String],
    style: Style,
) -> String {
    let head = [
        "  group",
        "processes",
        "CPUs",
        "uses",
        "promise",
        "since",
        "drift",
    ];
    let mut table = Table {
        left: vec![2, 4],
        head: head.map(str::to_owned).to_vec(),
        ..Table::default()
    };
    for group in groups {
        let promise = group.promise.map_or_else(
            || TableCell::new("none"),
            |state| TableCell::tone(name(state), tone(state)),
        );
        let used = group
            .used
            .map_or_else(|| "-".to_owned(), |n| format!("{n:.2} CPUs"));
        table.rows.push(vec![
            TableCell::new(format!("  {}", group.group)),
            TableCell::new(group.processes.to_string()),
            TableCell::new(group.cpus.brief()),
            TableCell::new(used),
            promise,
            TableCell::new(since(group.since, false)),
            TableCell::new(group.drift.to_string()),
        ]);
    }
    let mut out = match groups.is_empty() {
        true => String::new(),
        false => table.render(style),
    };
    let indent = " ".repeat(14);
    for promise in promises {
        let because = promise
            .because
            .as_ref()
            .map_or(String::new(), |why| format!(": {why}"));
        let long = match promise.since {
            Some(_) => format!(", for {}", since(promise.since, promise.at_least)),
            None => String::new(),
        };
        let text = format!(
            "{}: {} (level {}{long}){because}",
            promise.group, promise.promise, promise.level
        );
        let first = format!("  {:<10}  ", name(promise.state));
        let wrapped = style.wrap(&first, &indent, &text);
        let tail = wrapped.strip_prefix(&first).unwrap_or(&wrapped).to_owned();
        out.push_str(&(style.paint(tone(promise.state), &first) + &tail));
    }
    for what in drift {
        out.push_str(&style.wrap("  drift       ", &indent, what));
    }
    out
}

#[cfg(test)]
mod tests {
    use quell_types::mechanism::Level;

    use super::*;

    #[test]
    fn a_line_for_each_group_and_each_promise() {
        let group = |name: &str, promise, drift| GroupNow {
            group: name.to_owned(),
            processes: 3,
            cpus: "0-1".parse().unwrap(),
            used: Some(0.984),
            promise,
            since: Some(Nanos::secs(75)),
            drift,
        };
        let lost = PromiseNow {
            group: "a".to_owned(),
            promise: "CPUs 0-1 to itself".to_owned(),
            state: PromiseState::Lost,
            level: Level::None,
            since: Some(Nanos::secs(12)),
            at_least: true,
            because: Some("it has no process".to_owned()),
        };
        let groups = [group("a", Some(PromiseState::Lost), 1), group("b", None, 0)];
        let text = status_text(&groups, &[lost], &["x is 1".to_owned()], Style::default());
        let wanted = "  group  processes  CPUs       uses  promise       since  drift
  a              3  0-1   0.98 CPUs  LOST     1 min 15 s      1
  b              3  0-1   0.98 CPUs  none     1 min 15 s      0
  LOST        a: CPUs 0-1 to itself (level none, for 12 s or more): it has no process
  drift       x is 1
";
        assert_eq!(text, wanted);
        assert_eq!(status_text(&[], &[], &[], Style::default()), "");
    }
}
