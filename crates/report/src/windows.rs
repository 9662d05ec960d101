//! Windows of a repeating frame: what a step does, and how exactly the windows were kept.

use quell_control::config::{Fill, Frame};
use quell_record::windows::{GroupWindows, Kept, Late};

use crate::plan::on;
use crate::text::{count, list, number, thousands};

/// The step that dispatches a frame, in words.
pub(crate) fn described(frame: &Frame) -> String {
    let spans = frame.spans.iter().map(|span| {
        let who = span.group.as_deref().unwrap_or("nothing");
        let mut text = format!("{who} from {} to {}", span.start, span.end);
        let mut has = Vec::new();
        if let Some(Fill { level, mask }) = span.ways {
            has.push(format!("ways {mask} of L{level}"));
        }
        if let Some(by) = &span.budget {
            let (period, lines) = (by.period, by.budget.0);
            has.push(format!("{lines} lines per {period} on each CPU"));
        }
        if !has.is_empty() {
            text += &format!(" ({})", has.join(", "));
        }
        text
    });
    let spans: Vec<String> = spans.collect();
    format!(
        "run on {} in each {}: {}",
        on(&frame.cpus),
        frame.length,
        list(&spans)
    )
}

/// How exactly windows were kept: a line for each group, and one for what went wrong.
pub(crate) fn kept(kept: &Kept) -> Vec<String> {
    let mut lines: Vec<String> = kept.groups.iter().map(group).collect();
    if kept.skipped > 0 || kept.late > 0 {
        let late = count(u32::try_from(kept.late).unwrap_or(u32::MAX), "window");
        let [skipped, all] = [kept.skipped, kept.switches].map(|n| thousands(&n.to_string()));
        lines.push(format!(
            "{late} began more than a guard late; of {all} switches {skipped} were passed over"
        ));
    }
    lines
}

fn group(group: &GroupWindows) -> String {
    let mut line = format!(
        "{}: {} windows; begun late by {}",
        group.group,
        thousands(&group.windows.to_string()),
        late(group.begun)
    );
    if group.ended.most_ns > 0 {
        line += &format!("; stopped after the end by {}", late(group.ended));
    }
    if let (Some(all), Some(most)) = (group.outside_ns, group.outside_most_ns) {
        line += &format!(
            "; {} outside its windows, {} at most at once",
            us(all),
            us(most)
        );
    }
    line
}

/// Microseconds: median, 99th percentile and longest.
pub(crate) fn late(late: Late) -> String {
    let [p50, p99, most] = [late.p50_ns, late.p99_ns, late.most_ns].map(us);
    format!("{p50} p50, {p99} p99, {most} at most")
}

fn us(ns: u64) -> String {
    format!("{} µs", number(ns as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_control::config::{Meter, Regulation, Span};
    use quell_types::options::Split;
    use quell_types::partition::Mask;
    use quell_types::units::{Lines, Nanos, Rate};

    #[test]
    fn a_frame_reads_as_who_runs_when() {
        let windows = [Span {
            start: Nanos::millis(0),
            end: Nanos::millis(4),
            group: Some("control".to_owned()),
            ..Span::default()
        }];
        let (length, guard) = (Nanos::millis(10), Nanos::micros(200));
        let frame = Frame::new("3".parse().unwrap(), length, guard, &windows, None);
        assert_eq!(
            described(&frame),
            "run on CPU 3 in each 10ms: control from 0ns to 4ms and nothing from 4ms to 10ms"
        );
        let mask = Mask(0xf0);
        let granted = [Span {
            ways: Some(Fill { level: 3, mask }),
            budget: Some(Regulation {
                cpus: "3".parse().unwrap(),
                budget: Lines(400),
                period: Nanos::millis(1),
                meter: Meter::Hardware,
                peak: Rate(1_000_000_000),
                pooling: None,
                split: Split::Even,
                least: Lines(0),
            }),
            ..windows[0].clone()
        }];
        let frame = Frame::new("3".parse().unwrap(), length, guard, &granted, None);
        let granted = "control from 0ns to 4ms (ways 0xf0 of L3, 400 lines per 1ms on each CPU)";
        assert!(described(&frame).contains(granted), "{}", described(&frame));
    }

    #[test]
    fn figures_of_windows_have_a_line_per_group() {
        let late = Late {
            p50_ns: 2_000,
            p99_ns: 9_000,
            most_ns: 41_500,
        };
        let group = GroupWindows {
            group: "control".to_owned(),
            windows: 1_500,
            begun: late,
            outside_ns: Some(12_000),
            outside_most_ns: Some(3_000),
            ..GroupWindows::default()
        };
        let all = Kept {
            switches: 3_000,
            groups: vec![group],
            ..Kept::default()
        };
        assert_eq!(
            kept(&all),
            [
                "control: 1,500 windows; begun late by 2.00 µs p50, 9.00 µs p99, 41.5 µs at most; \
                 12.0 µs outside its windows, 3.00 µs at most at once"
            ]
        );
        let late = Kept {
            skipped: 2,
            late: 1,
            ..all
        };
        let line = "1 window began more than a guard late; of 3,000 switches 2 were passed over";
        assert_eq!(kept(&late)[1], line);
    }
}
