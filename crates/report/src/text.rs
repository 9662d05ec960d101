//! Laying out text: aligned columns, wrapped paragraphs, numbers that a person can read, colour
//! where it is wanted.

use quell_types::stats::Interval;

/// Colour and width of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether to use terminal colours.
    pub color: bool,
    /// Columns to wrap paragraphs at.
    pub width: usize,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            color: false,
            width: 100,
        }
    }
}

/// What a piece of text means, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Title,
    Good,
    Bad,
    Faint,
}

impl Style {
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Title => "1",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Faint => "2",
            Tone::Plain => return text.to_owned(),
        };
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// `text` in lines of at most `width`. `first` begins the first line and `rest` all later ones.
    /// Words are never broken.
    #[must_use]
    pub fn wrap(self, first: &str, rest: &str, text: &str) -> String {
        let mut out = String::new();
        let mut line = first.to_owned();
        let mut empty = true;
        for word in text.split_whitespace() {
            if !empty && width(&line) + 1 + width(word) > self.width {
                out.push_str(line.trim_end());
                out.push('\n');
                line = rest.to_owned();
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        out.push_str(line.trim_end());
        out.push('\n');
        out
    }
}

/// Columns that a text takes: its characters, since nothing here is wider than one column.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

#[derive(Clone, Debug)]
pub(crate) struct TableCell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl TableCell {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: Tone::Plain,
        }
    }

    pub(crate) fn tone(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }
}

/// Rows below a head. The first column and the named ones are aligned left, all others right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<TableCell>>,
    pub(crate) left: Vec<usize>,
}

impl Table {
    pub(crate) fn render(&self, style: Style) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|h| width(h)).collect();
        for row in &self.rows {
            for (w, cell) in widths.iter_mut().zip(row) {
                *w = (*w).max(width(&cell.text));
            }
        }
        let head: Vec<TableCell> = self
            .head
            .iter()
            .map(|h| TableCell::tone(h.clone(), Tone::Title))
            .collect();
        let mut out = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            for (index, (cell, w)) in row.iter().zip(&widths).enumerate() {
                if index > 0 {
                    line.push_str("  ");
                }
                let pad = " ".repeat(w - width(&cell.text));
                let text = match cell.text.as_str() {
                    "" => String::new(),
                    text => style.paint(cell.tone, text),
                };
                if index == 0 || self.left.contains(&index) {
                    line.push_str(&(text + &pad));
                } else {
                    line.push_str(&(pad + &text));
                }
            }
            line.truncate(line.trim_end().len());
            out.push_str(&line);
            out.push('\n');
        }
        out
    }
}

/// Three significant digits, with thousands separated: `15.3`, `0.92`, `37,500`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if size >= 999.5 {
        let digits = size.log10().floor();
        let scale = 10f64.powf(digits - 2.0);
        let rounded = (value / scale).round() * scale;
        return thousands(&format!("{rounded:.0}"));
    }
    let places = match size {
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.0995 => 2,
        _ => 4,
    };
    format!("{value:.places$}")
}

pub(crate) fn thousands(digits: &str) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", digits),
    };
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    format!("{sign}{out}")
}

/// A figure with half the width of its interval, to the same decimal place: `15.3 ±0.2`.
pub(crate) fn spread(value: Option<f64>, interval: Option<Interval>) -> String {
    match (value, interval) {
        (Some(value), Some(interval)) => {
            let text = number(value);
            let places = text.split_once('.').map_or(0, |(_, places)| places.len());
            format!("{text} ±{:.places$}", interval.half_width())
        }
        (Some(value), None) => number(value),
        (None, _) => "–".to_owned(),
    }
}

/// A normalized figure, always with two decimal places: `0.92 ±0.03`.
pub(crate) fn normalized(value: Option<f64>, interval: Option<Interval>) -> String {
    match (value, interval) {
        (Some(value), Some(interval)) => format!("{value:.2} ±{:.2}", interval.half_width()),
        (Some(value), None) => format!("{value:.2}"),
        (None, _) => "–".to_owned(),
    }
}

/// A fraction as whole percent, with one decimal place below ten: `43 %`, `6.2 %`.
pub(crate) fn percent(fraction: f64) -> String {
    let value = fraction * 100.0;
    if value.abs() < 9.95 {
        format!("{value:.1} %")
    } else {
        format!("{value:.0} %")
    }
}

/// The unit at the end of a metric's name as people write it: `latency_ns` → `ns`.
pub(crate) fn unit(metric: &str) -> &str {
    const UNITS: [(&str, &str); 8] = [
        ("_mb_s", "MB/s"),
        ("_per_s", "/s"),
        ("_ns", "ns"),
        ("_us", "µs"),
        ("_ms", "ms"),
        ("_s", "s"),
        ("cycles", "cycles"),
        ("ipc", "IPC"),
    ];
    UNITS
        .iter()
        .find(|(end, _)| metric.ends_with(end))
        .map_or(metric, |(_, unit)| unit)
}

/// A list in a sentence: `a`, `a and b`, `a, b and c`.
pub(crate) fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// A number with its noun: `1 round`, `2 rounds`.
pub(crate) fn count(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Bytes in the largest binary unit that leaves at least one, with one decimal place: `7.8GiB`.
pub(crate) fn size(bytes: u64) -> String {
    let (unit, scale) = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        .into_iter()
        .find(|(_, scale)| bytes >= *scale)
        .unwrap_or(("B", 1));
    let number = bytes as f64 / scale as f64;
    // Small caches come in quarters of a MiB.
    let text = if number < 10.0 {
        format!("{number:.2}")
    } else {
        format!("{number:.1}")
    };
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.0123, "0.0123"),
            (0.123, "0.12"),
            (1.0, "1.00"),
            (15.34, "15.3"),
            (99.97, "100"),
            (168.4, "168"),
            (999.6, "1,000"),
            (37_484.0, "37,500"),
            (1_234_567.0, "1,230,000"),
            (-1234.0, "-1,230"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(percent(0.0621), "6.2 %");
        assert_eq!(percent(0.431), "43 %");
        assert_eq!(spread(Some(15.3), Some([15.0, 15.45].into())), "15.3 ±0.2");
        assert_eq!(spread(None, None), "–");
    }

    #[test]
    fn columns_line_up_with_and_without_colour() {
        let table = Table {
            head: vec!["a".into(), "b".into(), "note".into()],
            rows: vec![
                vec![
                    TableCell::new("long"),
                    TableCell::tone("1", Tone::Good),
                    TableCell::new("x"),
                ],
                vec![
                    TableCell::new("é"),
                    TableCell::new("22"),
                    TableCell::new(""),
                ],
            ],
            left: vec![2],
        };
        assert_eq!(
            table.render(Style::default()),
            "a      b  note\nlong   1  x\né     22\n"
        );
        let colour = table.render(Style {
            color: true,
            width: 80,
        });
        assert!(colour.contains("long   \x1b[32m1\x1b[0m  x"));
    }

    #[test]
    fn paragraphs_wrap_between_words() {
        let style = Style {
            color: false,
            width: 16,
        };
        assert_eq!(
            style.wrap("- ", "  ", "one two three four"),
            "- one two three\n  four\n"
        );
        assert_eq!(style.wrap("", "", ""), "\n");
    }

    #[test]
    fn units_are_read_off_the_metrics_name() {
        assert_eq!(unit("latency_ns"), "ns");
        assert_eq!(unit("bandwidth_mb_s"), "MB/s");
        assert_eq!(unit("requests_per_s"), "/s");
        assert_eq!(unit("run_s"), "s");
        assert_eq!(unit("score"), "score");
    }
}
