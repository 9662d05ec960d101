//! The parts of all figures: scales with round ticks, axes, marks, labels that avoid each other,
//! and the frame that makes an SVG a figure with a caption. Every figure is drawn twice, for a page
//! and for a phone. An SVG that only shrinks becomes unreadable. The style sheet shows one of the
//! two.

use std::fmt::Write;
use std::ops::Range;

use maud::{Markup, PreEscaped, html};

use crate::text::{number, thousands};

/// What a figure is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// A page or a screen: 760 units.
    Wide,
    /// A phone: 340 units, about as many as it has pixels.
    Narrow,
}

impl Width {
    pub(crate) fn units(self) -> f64 {
        match self {
            Self::Wide => 760.0,
            Self::Narrow => 340.0,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    /// How many panels stand in a row: `most` on a page, one on a phone.
    pub(crate) fn columns(self, most: usize) -> usize {
        match self {
            Self::Wide => most.max(1),
            Self::Narrow => 1,
        }
    }
}

/// Width of a character of the figures' text, in units: an estimate on the safe side.
const CHARACTER: f64 = 7.6;
/// The same for bold text.
const STRONG: f64 = 8.4;

/// The width that a text takes, in units.
pub(crate) fn room(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// The width that a bold text takes, in units.
pub(crate) fn strong_room(text: &str) -> f64 {
    text.chars().count() as f64 * STRONG
}

/// Colour and mark of curves and other series, in turn.
pub(crate) const LOOKS: [(&str, Mark); 8] = [
    ("s2", Mark::Disc),
    ("s1", Mark::Square),
    ("s4", Mark::Triangle),
    ("s5", Mark::Diamond),
    ("s3", Mark::Cross),
    ("s7", Mark::Cross),
    ("s6", Mark::Square),
    ("s0", Mark::Triangle),
];

/// A scale from values to places in the drawing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    log: bool,
}

impl Scale {
    pub(crate) fn linear(values: Range<f64>, places: Range<f64>) -> Self {
        Self {
            from: values.start,
            to: values.end,
            start: places.start,
            end: places.end,
            log: false,
        }
    }

    /// A logarithmic scale, for values above zero.
    pub(crate) fn log(values: Range<f64>, places: Range<f64>) -> Self {
        Self {
            log: true,
            ..Self::linear(values, places)
        }
    }

    /// Logarithmic if all values are above zero, else linear. It is a little wider than the values.
    pub(crate) fn fitting(values: impl Iterator<Item = f64>, places: Range<f64>) -> Option<Self> {
        let (low, high) = values
            .filter(|v| v.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
                (low.min(v), high.max(v))
            });
        if low > high {
            return None;
        }
        if low > 0.0 {
            Some(Self::log(low * 0.93..high * 1.07, places))
        } else {
            let margin = ((high - low) * 0.05).max(f64::MIN_POSITIVE);
            Some(Self::linear(low - margin..high + margin, places))
        }
    }

    /// The place of `value`. Beyond the ends it is the end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let part = if part.is_finite() { part } else { 0.0 };
        self.start + (self.end - self.start) * part.clamp(0.0, 1.0)
    }

    /// About `wanted` round values, each with its text.
    pub(crate) fn ticks(&self, wanted: usize) -> Vec<(f64, String)> {
        let wanted = wanted.max(2);
        if self.log {
            let all = |digits: &[f64]| -> Vec<f64> {
                (-9..=15)
                    .flat_map(|e| digits.iter().map(move |d| d * 10f64.powi(e)))
                    .filter(|v| (self.from..=self.to).contains(v))
                    .collect()
            };
            let choices: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
            let fine = choices.iter().map(|d| all(d)).find(|t| t.len() <= wanted);
            let ticks = fine.unwrap_or_else(|| {
                let decades = all(&[1.0]);
                let skip = decades.len().div_ceil(wanted);
                decades.into_iter().step_by(skip).collect()
            });
            if ticks.len() >= 2 {
                return ticks.into_iter().map(|v| (v, plain(v, v))).collect();
            }
        }
        let span = self.to - self.from;
        let rough = span / wanted as f64;
        if !(rough.is_finite() && rough > 0.0) {
            return Vec::new();
        }
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|d| d * decade)
            .find(|s| span / s <= wanted as f64 + 1e-9)
            .unwrap_or(10.0 * decade);
        let first = (self.from / step - 1e-9).ceil();
        (0..=wanted + 1)
            .map(|n| (first + n as f64) * step)
            .filter(|v| *v <= self.to + step * 1e-6)
            .map(|v| (v, plain(v, step)))
            .collect()
    }
}

/// A tick's value, with as many decimal places as its step needs.
fn plain(value: f64, step: f64) -> String {
    let value = if value.abs() < step.abs() * 1e-6 {
        0.0
    } else {
        value
    };
    if step == 0.0 {
        return number(value);
    }
    let steps = std::iter::successors(Some(step.abs()), |step| Some(step * 10.0)).take(12);
    let places = steps.take_while(|step| *step < 0.999).count();
    let text = format!("{value:.places$}");
    if places == 0 { thousands(&text) } else { text }
}

/// Places for labels that are wanted at `wanted`, in any order. They keep a distance of `gap`, lie
/// inside `room` where they fit, and are as near as that allows.
pub(crate) fn spread(wanted: &[f64], gap: f64, room: Range<f64>) -> Vec<f64> {
    let Range {
        start: from,
        end: to,
    } = room;
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    let place = |index: usize| wanted.get(index).copied().unwrap_or(from);
    order.sort_by(|a, b| place(*a).total_cmp(&place(*b)));
    let mut places: Vec<f64> = Vec::with_capacity(order.len());
    for index in &order {
        let least = places.last().map_or(from, |last| last + gap);
        places.push(place(*index).max(least));
    }
    // Labels pushed past the end push back.
    let mut most = to;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
    let mut out = vec![from; wanted.len()];
    for (index, place) in order.into_iter().zip(places) {
        if let Some(slot) = out.get_mut(index) {
            *slot = place;
        }
    }
    out
}

/// Labels that hide neither marks nor each other. Each goes to the first of its places that is
/// still free.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    /// Left, top, right, bottom of what is already drawn.
    taken: Vec<[f64; 4]>,
}

impl Labels {
    /// Keeps the place of a mark free.
    pub(crate) fn mark(&mut self, x: f64, y: f64) {
        self.taken.push([x - 4.0, y - 4.0, x + 4.0, y + 4.0]);
    }

    /// The first free place inside `area`. `None` where there is none.
    pub(crate) fn place(
        &mut self,
        area: &Area,
        wide: f64,
        places: impl IntoIterator<Item = (f64, f64, Anchor)>,
    ) -> Option<(f64, f64, Anchor)> {
        let (found, spot) = places.into_iter().find_map(|(x, y, anchor)| {
            let left = match anchor {
                Anchor::Start => x,
                Anchor::Middle => x - wide / 2.0,
                Anchor::End => x - wide,
            };
            let spot = [left, y - 10.0, left + wide, y + 3.0];
            let inside = left >= area.left
                && left + wide <= area.right
                && spot[1] >= area.top - 2.0
                && spot[3] <= area.bottom + 2.0;
            let free = self
                .taken
                .iter()
                .all(|t| spot[2] <= t[0] || t[2] <= spot[0] || spot[3] <= t[1] || t[3] <= spot[1]);
            (inside && free).then_some(((x, y, anchor), spot))
        })?;
        self.taken.push(spot);
        Some(found)
    }
}

/// The inner rectangle of a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

/// A panel with its two scales.
#[derive(Clone, Copy)]
pub(crate) struct Axes<'a> {
    pub(crate) area: &'a Area,
    pub(crate) x: &'a Scale,
    pub(crate) y: &'a Scale,
}

impl Area {
    pub(crate) fn across(&self) -> Range<f64> {
        self.left..self.right
    }

    /// From the bottom to the top: larger values are higher.
    pub(crate) fn up(&self) -> Range<f64> {
        self.bottom..self.top
    }

    pub(crate) fn axes<'a>(&'a self, x: &'a Scale, y: &'a Scale) -> Axes<'a> {
        Axes { area: self, x, y }
    }

    pub(crate) fn middle(&self) -> f64 {
        (self.left + self.right) / 2.0
    }
}

/// How a value is marked: by shape and not only by colour, for print and for the colour-blind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Disc,
    Square,
    Triangle,
    Diamond,
    Cross,
}

/// Where a text stands relative to its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG drawing under construction.
#[derive(Debug)]
pub(crate) struct Svg {
    out: String,
    width: Width,
    pub(crate) height: f64,
}

impl Svg {
    pub(crate) fn new(width: Width, height: f64) -> Self {
        Self {
            out: String::new(),
            width,
            height,
        }
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = match class {
            "" => String::new(),
            class => format!(" class=\"{class}\""),
        };
        let _ = writeln!(
            self.out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{class}>{}</text>",
            escape(text)
        );
    }

    /// A text that reads upwards, centred at the place.
    pub(crate) fn upright(&mut self, x: f64, y: f64, text: &str) {
        let _ = writeln!(
            self.out,
            "<text transform=\"rotate(-90 {x:.1} {y:.1})\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
            escape(text)
        );
    }

    /// A line through places. Fewer than two draw nothing.
    pub(crate) fn line(&mut self, class: &str, places: &[(f64, f64)]) {
        if places.len() > 1 {
            let _ = writeln!(self.out, "<path class=\"{class}\" d=\"{}\"/>", path(places));
        }
    }

    /// The surface inside these places.
    pub(crate) fn surface(&mut self, class: &str, places: &[(f64, f64)]) {
        if places.len() > 2 {
            let _ = writeln!(
                self.out,
                "<path class=\"{class}\" d=\"{}Z\"/>",
                path(places)
            );
        }
    }

    pub(crate) fn rect(&mut self, class: &str, x: f64, y: f64, w: f64, h: f64) {
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"/>"
        );
    }

    /// A mark with a title that a pointer shows.
    pub(crate) fn mark(&mut self, mark: Mark, class: &str, x: f64, y: f64, title: &str) {
        let shape = match mark {
            Mark::Disc => {
                format!("<circle class=\"mark {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"")
            }
            Mark::Square => format!(
                "<rect class=\"mark hollow {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"7.5\" height=\"7.5\"",
                x - 3.75,
                y - 3.75
            ),
            Mark::Triangle => format!(
                "<path class=\"mark {class}\" d=\"M{:.1} {:.1}h9l-4.5 -8z\"",
                x - 4.5,
                y + 4.0
            ),
            Mark::Diamond => format!(
                "<path class=\"mark {class}\" d=\"M{:.1} {y:.1}l5 -5l5 5l-5 5z\"",
                x - 5.0
            ),
            Mark::Cross => format!(
                "<path class=\"line {class}\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"",
                x - 4.0,
                y - 4.0
            ),
        };
        let name = shape
            .get(1..)
            .and_then(|s| s.split(' ').next())
            .unwrap_or("path");
        let _ = writeln!(
            self.out,
            "{shape}><title>{}</title></{name}>",
            escape(title)
        );
    }

    /// Gridlines and labels of the vertical scale.
    pub(crate) fn rows(
        &mut self,
        area: &Area,
        scale: &Scale,
        ticks: &[(f64, String)],
        labels: bool,
    ) {
        for (value, label) in ticks {
            let y = scale.at(*value);
            self.line("grid", &[(area.left, y), (area.right, y)]);
            if labels {
                self.text(area.left - 6.0, y + 4.0, Anchor::End, "", label);
            }
        }
    }

    /// Gridlines and labels of the horizontal scale, with its meaning below them. Labels that would
    /// touch are left out.
    pub(crate) fn columns(
        &mut self,
        area: &Area,
        scale: &Scale,
        ticks: &[(f64, String)],
        name: &str,
    ) {
        let mut free = f64::NEG_INFINITY;
        for (value, label) in ticks {
            let x = scale.at(*value);
            self.line("grid", &[(x, area.top), (x, area.bottom)]);
            let half = room(label) / 2.0;
            if x - half > free {
                self.text(x, area.bottom + 16.0, Anchor::Middle, "", label);
                free = x + half + 4.0;
            }
        }
        if !name.is_empty() {
            self.text(area.middle(), area.bottom + 34.0, Anchor::Middle, "", name);
        }
    }

    fn finish(self, id: &str, title: &str, description: &str) -> Markup {
        let (class, width) = (self.width.class(), self.width.units());
        let (title_id, desc_id) = (format!("{id}-{class}-t"), format!("{id}-{class}-d"));
        html! {
            svg class=(class) viewBox=(format!("0 0 {width} {:.0}", self.height)) role="img"
                aria-labelledby={ (title_id) " " (desc_id) } {
                title id=(title_id) { (title) }
                desc id=(desc_id) { (description) }
                (PreEscaped(self.out))
            }
        }
    }
}

/// Escapes text for element content and quoted attributes.
fn escape(text: &str) -> String {
    html! { (text) }.into_string()
}

fn path(places: &[(f64, f64)]) -> String {
    let mut out = String::with_capacity(places.len() * 12);
    for (index, (x, y)) in places.iter().enumerate() {
        let _ = write!(out, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    out
}

/// A figure: what it shows, how to read it, and the drawing for a page and for a phone.
pub(crate) struct Figure<'f> {
    /// The id of its element, unique in the page.
    pub(crate) id: &'f str,
    pub(crate) title: &'f str,
    /// A sentence that says what the figure shows.
    pub(crate) shows: &'f str,
    /// A sentence that says how to read it.
    pub(crate) reading: &'f str,
}

impl Figure<'_> {
    pub(crate) fn render(&self, draw: impl Fn(Width) -> Svg) -> Markup {
        html! {
            figure id=(self.id) {
                figcaption { p { (self.shows) } p.faint { (self.reading) } }
                @for width in [Width::Wide, Width::Narrow] {
                    (draw(width).finish(self.id, self.title, self.shows))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(scale: &Scale, wanted: usize) -> Vec<String> {
        scale.ticks(wanted).into_iter().map(|(_, l)| l).collect()
    }

    #[test]
    fn ticks_are_round() {
        let places = || 0.0..100.0;
        assert_eq!(
            labels(&Scale::linear(0.0..1.1, places()), 6),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(
            labels(&Scale::linear(0.0..37_484.0, places()), 4),
            ["0", "10,000", "20,000", "30,000"]
        );
        assert_eq!(
            labels(&Scale::log(12.0..230.0, places()), 6),
            ["20", "50", "100", "200"]
        );
        assert_eq!(
            labels(&Scale::log(0.5..4e6, places()), 4),
            ["1", "100", "10,000", "1,000,000"]
        );
        assert!(labels(&Scale::linear(1.0..1.0, places()), 5).is_empty());
    }

    #[test]
    fn places_stay_inside_and_are_numbers() {
        let scale = Scale::log(10.0..1000.0, 0.0..100.0);
        assert_eq!((scale.at(1.0), scale.at(1e9)), (0.0, 100.0));
        assert!((scale.at(100.0) - 50.0).abs() < 1e-9);
        let flat = Scale::linear(5.0..5.0, 0.0..100.0);
        assert!(
            flat.at(5.0).is_finite()
                && scale.at(f64::NAN).is_finite()
                && scale.at(-1.0).is_finite()
        );
        assert!(Scale::fitting([f64::NAN].into_iter(), 0.0..1.0).is_none());
        assert!(Scale::fitting([0.0, 0.0].into_iter(), 0.0..1.0).is_some());
    }

    #[test]
    fn ticks_of_any_size_are_told_apart() {
        assert_eq!(plain(0.000_03, 0.000_01), "0.00003");
        assert_eq!([plain(0.3, 0.1), plain(2e3, 500.0)], ["0.3", "2,000"]);
    }

    #[test]
    fn a_label_hides_no_mark_and_no_other_label() {
        let area = Area {
            left: 0.0,
            right: 100.0,
            top: 0.0,
            bottom: 100.0,
        };
        let mut labels = Labels::default();
        labels.mark(50.0, 50.0);
        let mut at = |x, y| {
            labels
                .place(&area, room("10%"), [(x, y, Anchor::Middle)])
                .is_some()
        };
        assert!(!at(50.0, 52.0), "on the mark");
        assert!(at(50.0, 40.0));
        assert!(!at(55.0, 36.0), "on the first label");
        assert!(!at(2.0, 20.0) && !at(50.0, 4.0), "outside");
        assert!(at(50.0, 70.0));
    }

    proptest! {
        #[test]
        fn labels_keep_their_distance_and_their_order(
            wanted in proptest::collection::vec(0.0..200.0f64, 1..12),
        ) {
            let placed = spread(&wanted, 14.0, 0.0..200.0);
            let mut pairs: Vec<(f64, f64)> = wanted.iter().copied().zip(placed).collect();
            pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            for two in pairs.windows(2) {
                prop_assert!(two[1].1 - two[0].1 >= 14.0 - 1e-9, "{two:?}");
            }
            prop_assert!(pairs.iter().all(|(_, p)| (-1e-9..=200.0 + 1e-9).contains(p)));
        }
    }
}
