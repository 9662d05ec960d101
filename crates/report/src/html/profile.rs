//! The page of a profile: demand per millisecond over one second, the whole span, the figures, and
//! what follows from them.

use std::ops::Range;

use maud::html;
use quell_record::demand::{Measuring, Profile, Quantity, Sweep};
use quell_types::calendar;

use crate::profile::{
    circumstances, figures, measured_by, of_phases, phases, sensitivity, sentences, untried,
};
use crate::sweep;
use crate::text::number;

use super::chart::{Anchor, Area, Figure, Scale, Svg, Width};
use super::document;
use super::envelope::envelope;
use super::head::paragraphs;
use super::page::Section;
use super::series::{buckets, steps};
use super::table::html_table;

const TALL: f64 = 200.0;
/// How many bins the first figure has, as in the published figures.
const SECOND: usize = 1_000;

/// The page of a profile as HTML.
#[must_use]
pub fn profile_html(profile: &Profile) -> String {
    let title = format!("What {} asks of memory over time", profile.name);
    let head = html! {
        h1 { (title) }
        p.faint {
            (circumstances(profile)) " · " (calendar::utc(profile.created_unix_s)) " · Quell " (profile.version)
        }
        div.verdict { (paragraphs(&said_first(profile))) }
    };
    let sections = [one_second(profile), whole(profile), table(profile)];
    let more = [
        by_phase(profile),
        sensitive(profile),
        needs(profile),
        Some(proposed(profile)),
    ];
    let all: Vec<Section> = sections
        .into_iter()
        .chain(more.into_iter().flatten())
        .collect();
    document(&title, &head, &all)
}

/// What the page says before its figures.
fn said_first(profile: &Profile) -> Vec<String> {
    let mut all = measured_by(&profile.measuring);
    all.extend(sentences(profile));
    all
}

/// What the vertical scale shows.
fn what(profile: &Profile) -> &'static str {
    match (&profile.measuring, profile.quantity()) {
        (_, Quantity::CpuTime) => "CPU time in use (CPUs), not memory traffic",
        (
            Measuring::Events {
                fills_only: true, ..
            },
            _,
        ) => "read from memory (MB/s)",
        _ => "read and written (MB/s)",
    }
}

/// The same next to the scale, which is short.
fn scale_title(profile: &Profile) -> &'static str {
    match profile.quantity() {
        Quantity::CpuTime => "CPU time (CPUs)",
        Quantity::Read | Quantity::Written => what(profile),
    }
}

/// The index of the second that is most typical: its mean is nearest to that of the whole. 0 for a
/// shorter span.
fn usual_second(values: &[f64]) -> usize {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    let whole = mean(values);
    let seconds = values.chunks_exact(SECOND).enumerate();
    seconds
        .min_by(|a, b| {
            (mean(a.1) - whole)
                .abs()
                .total_cmp(&(mean(b.1) - whole).abs())
        })
        .map_or(0, |(n, _)| n * SECOND)
}

/// Scales from zero to the peak of everything, so that both figures can be compared.
fn frame(profile: &Profile, svg: &mut Svg, area: &Area, span: Range<f64>) -> (Scale, Scale) {
    let x = Scale::linear(span, area.across());
    let top = (profile.total.peak * 1.05).max(f64::MIN_POSITIVE);
    let y = Scale::linear(0.0..top, area.up());
    svg.rows(area, &y, &y.ticks(5), true);
    svg.upright(
        area.left - 50.0,
        (area.top + area.bottom) / 2.0,
        scale_title(profile),
    );
    (x, y)
}

/// Draws the mean of the whole profile, on top of the rest.
fn mean(profile: &Profile, svg: &mut Svg, area: &Area, y: &Scale) {
    let mean = y.at(profile.total.mean);
    svg.line("one", &[(area.left, mean), (area.right, mean)]);
    let text = format!("mean {}", number(profile.total.mean));
    svg.text(area.right, mean - 4.0, Anchor::End, "small halo", &text);
}

fn canvas(width: Width) -> (Svg, Area) {
    let area = Area {
        left: 62.0,
        right: width.units() - 10.0,
        top: 12.0,
        bottom: 12.0 + TALL,
    };
    (Svg::new(width, area.bottom + 42.0), area)
}

fn one_second(profile: &Profile) -> Section {
    let values = profile.values();
    let first = usual_second(&values);
    let shown = values.get(first..).unwrap_or_default();
    let shown = shown.get(..shown.len().min(SECOND)).unwrap_or_default();
    let ms = profile.bin_ns as f64 / 1e6;
    let span = first as f64 * ms..(first + shown.len()) as f64 * ms;
    let shows = format!(
        "Demand in each of {} milliseconds, from {} ms on: {}.",
        shown.len(),
        number(span.start),
        what(profile)
    );
    let below = match profile.quantity() {
        Quantity::CpuTime => "",
        Quantity::Read | Quantity::Written => {
            ": what a reserve at the mean would let through is below it"
        }
    };
    let reading = format!(
        "A column per millisecond. The dashed line is the mean of the whole profile{below}. The second shown is the one whose mean is nearest to that."
    );
    let figure = Figure {
        id: "fig-second",
        title: "Demand over one second",
        shows: &shows,
        reading: &reading,
    };
    let draw = |width| {
        let (mut svg, area) = canvas(width);
        let (x, y) = frame(profile, &mut svg, &area, span.clone());
        svg.columns(&area, &x, &x.ticks(10), "ms");
        steps(&mut svg, "fill s2", &x, &y, span.clone(), shown);
        mean(profile, &mut svg, &area, &y);
        svg
    };
    Section {
        id: "second",
        title: "One second",
        body: figure.render(draw),
    }
}

fn whole(profile: &Profile) -> Section {
    let values = profile.values();
    let s = profile.bin_ns as f64 / 1e9;
    let points: Vec<(f64, f64)> = values
        .iter()
        .enumerate()
        .map(|(bin, v)| ((bin as f64 + 0.5) * s, *v))
        .collect();
    let end = values.len() as f64 * s;
    let shows = format!("The whole span of {} s: {}.", number(end), what(profile));
    let figure = Figure {
        id: "fig-whole",
        title: "The whole span",
        shows: &shows,
        reading: "Of all milliseconds that fall on one place the line is the median and the band reaches from the smallest to the largest: no peak is \
                  lost and none invented.",
    };
    let draw = |width| {
        let (mut svg, area) = canvas(width);
        let (x, y) = frame(profile, &mut svg, &area, 0.0..end);
        svg.columns(&area, &x, &x.ticks(8), "s");
        let all = envelope(&points, 0.0..end, buckets(area.right - area.left));
        let upper = all.iter().map(|b| (x.at(b.at), y.at(b.max)));
        let lower = all.iter().rev().map(|b| (x.at(b.at), y.at(b.min)));
        svg.surface("band s2", &upper.chain(lower).collect::<Vec<_>>());
        let middle: Vec<_> = all.iter().map(|b| (x.at(b.at), y.at(b.median))).collect();
        svg.line("line thin s2", &middle);
        mean(profile, &mut svg, &area, &y);
        svg
    };
    Section {
        id: "whole",
        title: "The whole span",
        body: figure.render(draw),
    }
}

fn table(profile: &Profile) -> Section {
    Section {
        id: "figures",
        title: "Figures",
        body: html_table(
            &figures(profile),
            "Over milliseconds; active are those with more than a tenth of the peak",
        ),
    }
}

fn by_phase(profile: &Profile) -> Option<Section> {
    let table = phases(profile)?;
    Some(Section {
        id: "phases",
        title: "What it does, phase by phase",
        body: html! { (html_table(&table, &of_phases(profile))) },
    })
}

fn sensitive(profile: &Profile) -> Option<Section> {
    let table = sensitivity(profile)?;
    Some(Section {
        id: "sensitivity",
        title: "What it suffers from",
        body: html! {
            (html_table(&table, "Beside one neighbour at a time, at controlled rates"))
            (paragraphs(&untried(profile)))
        },
    })
}

/// How much of each thing the program needs, a table for each sweep.
fn needs(profile: &Profile) -> Option<Section> {
    let one = |one: &Sweep| {
        html! {
            (html_table(&sweep::table(one), &sweep::title(one)))
            (paragraphs(&sweep::said(one)))
            @if let Some(policy) = &one.policy {
                pre { code { "[group." (profile.name) "]\n" (policy) } }
            }
        }
    };
    (!profile.sweeps.is_empty()).then(|| Section {
        id: "needs",
        title: "How much it needs",
        body: html! { @for sweep in &profile.sweeps { (one(sweep)) } },
    })
}

fn proposed(profile: &Profile) -> Section {
    Section {
        id: "proposal",
        title: "A policy to begin with",
        body: html! {
            p { (profile.proposal.because) }
            pre { code { (profile.proposal.policy) } }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::profile::{bursty, substitute};

    #[test]
    fn a_page_has_its_figures_and_says_what_they_are() {
        let page = profile_html(&bursty());
        for part in [
            "fig-second-wide",
            "fig-second-narrow",
            "fig-whole-wide",
            "read and written (MB/s)",
            "(30.0 a second)",
            "reserve.bandwidth",
            "What it suffers from",
            "How much it needs",
            "reserve.cache = { ways = 3 }",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(page.len() < 200_000, "{}", page.len());
        assert!(!page.contains("<script") && !page.contains("NaN"));
    }

    #[test]
    fn a_substitute_is_called_one_wherever_it_is_shown() {
        let page = profile_html(&substitute());
        assert!(page.contains("CPU time, as a substitute"));
        // Both figures, each for a page and for a phone.
        assert!(
            page.matches("CPU time in use (CPUs), not memory traffic")
                .count()
                >= 4
        );
        assert!(page.contains("at most, MB/s"));
        assert!(!page.contains("(MB/s)"));
        assert!(!page.contains("What it suffers from"));
    }

    #[test]
    fn the_second_shown_is_the_usual_one() {
        let mut values = vec![10.0; 3 * SECOND];
        values[..SECOND].fill(0.0);
        values[SECOND..2 * SECOND].fill(7.0);
        assert_eq!(usual_second(&values), SECOND);
        assert_eq!(usual_second(&values[..10]), 0);
    }
}
