//! Recorded programs under scheduling policies: unfairness against speed, a mark per mix and a
//! colour per policy, and the two tables.

use maud::html;
use quell_record::result::{CompareResult, ConfigurationResult};

use crate::programs::{AGAINST, LEGEND, against, is_about, policy_of, table};
use crate::text::number;

use super::chart::{Anchor, Area, Figure, LOOKS, Scale, Svg, Width, room};
use super::page::{Page, Section};
use super::table::html_table;

const TALL: f64 = 330.0;
/// The distance of two lines of text.
const LINE: f64 = 16.0;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result().filter(|result| is_about(result))?;
    let figure = Figure {
        id: "fig-programs",
        title: "Unfairness and average IPC",
        shows: "A mark per mix of programs, a colour per policy. To the left is fair, upwards is fast.",
        reading: "Unfairness is the largest normalized progress of a program ÷ the smallest, with waiting charged: 1 is \
                  perfectly fair. Its scale is logarithmic. Average IPC counts cycles on a CPU only.",
    };
    let body = html! {
        (figure.render(|width| draw(result, width)))
        @if let Some(against) = against(result) { (html_table(&against, AGAINST)) }
        (html_table(&table(result), LEGEND))
    };
    Some(Section {
        id: "programs",
        title: "All programs together",
        body,
    })
}

/// The configurations that have both figures.
fn points(result: &CompareResult) -> impl Iterator<Item = (&ConfigurationResult, f64, f64)> {
    let all = result.configurations.iter();
    all.filter_map(|c| Some((c, c.totals.unfairness?, c.totals.avg_ipc?)))
}

fn draw(result: &CompareResult, width: Width) -> Svg {
    let mut policies: Vec<String> = Vec::new();
    for (configuration, ..) in points(result) {
        let policy = policy_of(configuration);
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let widest = policies.iter().map(|name| room(name)).fold(0.0, f64::max);
    let beside = width == Width::Wide;
    let top = if beside {
        12.0
    } else {
        LINE * policies.len() as f64 + 14.0
    };
    let area = Area {
        left: 62.0,
        right: width.units() - if beside { widest + 32.0 } else { 14.0 },
        top,
        bottom: top + TALL,
    };
    let mut svg = Svg::new(width, area.bottom + 42.0);
    let highest = points(result)
        .map(|(_, unfairness, _)| unfairness)
        .fold(1.1, f64::max);
    let x = Scale::log(0.95..highest * 1.1, area.across());
    let Some(y) = Scale::fitting(points(result).map(|(.., ipc)| ipc), area.up()) else {
        return svg;
    };
    svg.rows(&area, &y, &y.ticks(8), true);
    svg.columns(&area, &x, &x.ticks(6), "unfairness");
    svg.upright(
        area.left - 50.0,
        (area.top + area.bottom) / 2.0,
        "average IPC",
    );
    let looks = || LOOKS.into_iter().cycle();
    for (configuration, unfairness, ipc) in points(result) {
        let policy = policy_of(configuration);
        let Some((_, (class, mark))) = policies
            .iter()
            .zip(looks())
            .find(|(name, _)| **name == policy)
        else {
            continue;
        };
        let title = format!(
            "{}: unfairness {}, IPC {}",
            configuration.name,
            number(unfairness),
            number(ipc)
        );
        svg.mark(mark, class, x.at(unfairness), y.at(ipc), &title);
    }
    for (row, (name, (class, mark))) in policies.iter().zip(looks()).enumerate() {
        let left = if beside { area.right + 14.0 } else { area.left };
        let at = 12.0 + LINE * row as f64;
        svg.mark(mark, class, left + 4.0, at - 4.0, name);
        svg.text(
            left + 14.0,
            at,
            Anchor::Start,
            &format!("name {class}"),
            name,
        );
    }
    svg
}
