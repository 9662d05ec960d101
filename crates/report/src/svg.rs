//! Charts as SVG, drawn with the page's own colours (`currentColor` and the classes `s0` to `s7`), so that they follow
//! light and dark.

use std::fmt::Write;

use crate::frontier::Data;
use crate::html::escape;
use crate::text::number;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;

/// A linear scale between values and places.
#[derive(Clone, Copy)]
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    fn at(self, value: f64) -> f64 {
        let part = (value - self.from) / (self.to - self.from);
        self.start + (self.end - self.start) * part.clamp(0.0, 1.0)
    }
}

fn across(from: f64, to: f64) -> Scale {
    Scale {
        from,
        to,
        start: LEFT,
        end: WIDTH - RIGHT,
    }
}

fn up(from: f64, to: f64) -> Scale {
    Scale {
        from,
        to,
        start: HEIGHT - BOTTOM,
        end: TOP,
    }
}

fn open(label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(label)
    )
}

/// Axes with ticks at the places given, labelled as given.
fn axes(out: &mut String, x: &[(f64, String)], y: &[(f64, String)], names: (&str, &str)) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (at, label) in y {
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            escape(label)
        );
    }
    for (at, label) in x {
        let _ = writeln!(
            out,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            escape(label)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        escape(names.0)
    );
    let middle = (TOP + bottom) / 2.0;
    let _ = writeln!(
        out,
        "<text transform=\"rotate(-90)\" x=\"{:.1}\" y=\"14\" text-anchor=\"middle\">{}</text>",
        -middle,
        escape(names.1)
    );
}

fn legend(out: &mut String, names: &[(usize, String)]) {
    for (row, (class, name)) in names.iter().enumerate() {
        let y = TOP + 14.0 + 18.0 * row as f64;
        let x = WIDTH - RIGHT - 8.0;
        let _ = writeln!(
            out,
            "<text class=\"key\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text><circle class=\"s{class}\" cx=\"{x}\" cy=\"{}\" r=\"5\"/>",
            x - 10.0,
            escape(name),
            y - 4.0
        );
    }
}

/// Protection against rate kept, at the median (points, with intervals) and at p99 (dashed).
pub(crate) fn frontier(data: &Data) -> String {
    let (x, y) = (across(0.0, 1.0), up(0.0, 1.1));
    let ticks = |scale: Scale, percent: bool| -> Vec<(f64, String)> {
        (0..=5)
            .map(|n| {
                let value = f64::from(n) / 5.0;
                let label = if percent {
                    format!("{} %", n * 20)
                } else {
                    format!("{value:.1}")
                };
                (scale.at(value), label)
            })
            .collect()
    };
    let mut out = open("Protection against throughput kept");
    axes(
        &mut out,
        &ticks(x, true),
        &ticks(y, false),
        (
            &format!("rate {} keeps", data.pays),
            &format!("{}: solo ÷ measured", data.protected),
        ),
    );
    let mut names = Vec::new();
    for (class, series) in data.series.iter().enumerate() {
        names.push((class % 8, series.name.clone()));
        let class = class % 8;
        let line = |values: Vec<(f64, f64)>, dash: &str| {
            let path: Vec<String> = values
                .iter()
                .map(|(kept, value)| format!("{:.1} {:.1}", x.at(*kept), y.at(*value)))
                .collect();
            if path.is_empty() {
                return String::new();
            }
            format!(
                "<path class=\"line s{class}\"{dash} d=\"M{}\"/>\n",
                path.join("L")
            )
        };
        let medians = series.points.iter().map(|p| (p.kept, p.median.value));
        out.push_str(&line(medians.collect(), ""));
        let tails = series
            .points
            .iter()
            .filter_map(|p| Some((p.kept, p.tail?.value)));
        out.push_str(&line(tails.collect(), " stroke-dasharray=\"4 4\""));
        for point in &series.points {
            let (cx, cy) = (x.at(point.kept), y.at(point.median.value));
            if let Some(ci) = point.median.ci {
                let _ = writeln!(
                    out,
                    "<path class=\"line s{class}\" d=\"M{cx:.1} {:.1}V{:.1}\"/>",
                    y.at(ci.low),
                    y.at(ci.high)
                );
            }
            let _ = writeln!(
                out,
                "<circle class=\"s{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"><title>{}: {:.2} at {:.1} % kept</title></circle>",
                escape(&point.name),
                point.median.value,
                point.kept * 100.0
            );
        }
    }
    legend(&mut out, &names);
    out.push_str("</svg>\n");
    out
}

/// The distribution of the windows of one subject: `curves` are percentiles 0 to 100 by configuration.
pub(crate) fn distribution(curves: &[(&str, &[f64])], unit: &str) -> String {
    let positive = || {
        curves
            .iter()
            .flat_map(|(_, c)| c.iter().copied())
            .filter(|v| *v > 0.0)
    };
    let low = positive().fold(f64::INFINITY, f64::min);
    let high = positive().fold(0.0, f64::max);
    if !(low.is_finite() && high > 0.0) {
        return String::new();
    }
    // Latencies spread over decades: a logarithmic scale, from one "nice" value to another.
    let (from, to) = ((low * 0.95).log10(), (high * 1.05).log10());
    let (x, y) = (across(from, to), up(0.0, 100.0));
    let mut nice = Vec::new();
    for exponent in -9..=12 {
        for digit in [1.0, 2.0, 5.0] {
            let value = digit * 10f64.powi(exponent);
            if (from..=to).contains(&value.log10()) {
                nice.push((x.at(value.log10()), number(value)));
            }
        }
    }
    let share = (0..=4)
        .map(|n| (y.at(f64::from(n) * 25.0), format!("{} %", n * 25)))
        .collect::<Vec<_>>();
    let mut out = open("Distribution of windows");
    axes(&mut out, &nice, &share, (unit, "windows at or below"));
    let mut names = Vec::new();
    for (class, (name, curve)) in curves.iter().enumerate() {
        let class = class % 8;
        names.push((class, (*name).to_owned()));
        let path: Vec<String> = curve
            .iter()
            .enumerate()
            .filter(|(_, v)| **v > 0.0)
            .map(|(p, v)| format!("{:.1} {:.1}", x.at(v.log10()), y.at(p as f64)))
            .collect();
        if !path.is_empty() {
            let _ = writeln!(
                out,
                "<path class=\"line s{class}\" d=\"M{}\"/>",
                path.join("L")
            );
        }
    }
    legend(&mut out, &names);
    out.push_str("</svg>\n");
    out
}
