//! Why critical subjects were late: per configuration a bar of the late time with a part per cause,
//! and the table.

use maud::html;
use quell_record::attribution::{Attribution, Cause};

use crate::attribution::{all, legend, several, table, whose};
use crate::text::{number, percent};

use super::chart::{Anchor, Area, Figure, Svg, Width, room, strong_room};
use super::page::{Page, Section};
use super::table::html_table;

const BAR: f64 = 15.0;

/// The bar of one configuration and subject.
struct Row<'a> {
    name: String,
    /// How much was late, as text.
    late: String,
    attribution: &'a Attribution,
}

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let result = page.result()?;
    let table = table(result)?;
    let several = several(result);
    let rows: Vec<Row<'_>> = all(result)
        .filter(|(_, _, a)| a.late > 0)
        .map(|(configuration, subject, attribution)| Row {
            name: whose(configuration, subject, several),
            late: format!(
                "{} of units, {} ms",
                percent(attribution.late as f64 / attribution.units.max(1) as f64),
                number(attribution.late_ns as f64 / 1e6)
            ),
            attribution,
        })
        .collect();
    let figure = Figure {
        id: "fig-causes",
        title: "Parts of the late time by cause",
        shows: "Where the late time went, by cause, under every configuration with late units.",
        reading: "A bar is all late time of a configuration, however much that is: beside it stand the part of the units \
                  that were late and their late time together. Memory is what the kernel's clocks leave: caches, \
                  bandwidth, banks. Everything else would make a program late on any machine as busy.",
    };
    let body = html! {
        (figure.render(|width| draw(&rows, width)))
        (html_table(&table, &legend(result)))
    };
    Some(Section {
        id: "causes",
        title: "Why it was late",
        body,
    })
}

fn draw(rows: &[Row<'_>], width: Width) -> Svg {
    // On a phone the names stand above the bars.
    let beside = width == Width::Wide;
    let (left, right, tall) = if beside {
        let names = rows.iter().map(|r| strong_room(&r.name));
        let names = names.fold(0.0, f64::max);
        let late = rows.iter().map(|r| room(&r.late)).fold(0.0, f64::max);
        (names + 8.0, width.units() - late - 8.0, BAR + 9.0)
    } else {
        (0.0, width.units(), BAR + 27.0)
    };
    let bars = tall * rows.len() as f64;
    let keys = keys(rows, width);
    let lines = keys.last().map_or(0.0, |(_, (_, y))| y + 20.0);
    let mut svg = Svg::new(width, bars + 12.0 + lines);
    for (index, row) in rows.iter().enumerate() {
        let bottom = tall * (index + 1) as f64 - 6.0;
        let area = Area {
            left,
            right,
            top: bottom - BAR,
            bottom,
        };
        let names = if beside { bottom - 4.0 } else { area.top - 5.0 };
        let (name, late) = if beside {
            ((left - 8.0, Anchor::End), (right + 8.0, Anchor::Start))
        } else {
            ((left, Anchor::Start), (right, Anchor::End))
        };
        svg.text(name.0, names, name.1, "strong", &row.name);
        svg.text(late.0, names, late.1, "", &row.late);
        bar(&mut svg, &area, row.attribution);
    }
    for (cause, (x, y)) in keys {
        let y = bars + 12.0 + y;
        svg.rect(&format!("fill {}", class(cause)), x, y, 10.0, 10.0);
        svg.text(x + 15.0, y + 9.0, Anchor::Start, "", cause.name());
    }
    svg
}

/// The parts of a bar in a row. Those with room for it carry their name.
fn bar(svg: &mut Svg, area: &Area, attribution: &Attribution) {
    let mut x = area.left;
    for part in &attribution.parts {
        let long = (area.right - area.left) * part.share.clamp(0.0, 1.0);
        // A gap between the parts, for readers that see no difference of colour.
        let wide = (long - 1.0).max(0.4);
        svg.rect(
            &format!("fill {}", class(part.cause)),
            x,
            area.top,
            wide,
            BAR,
        );
        let share = percent(part.share);
        let whole = format!("{} {share}", part.cause.name());
        if let Some(text) = [whole, share].into_iter().find(|t| room(t) + 6.0 < long) {
            svg.text(x + 5.0, area.bottom - 4.0, Anchor::Start, "inside", &text);
        }
        x += long;
    }
}

/// The causes that have a part in any row, each with its place in the key.
fn keys(rows: &[Row<'_>], width: Width) -> Vec<(Cause, (f64, f64))> {
    let mut at = (0.0, 0.0);
    let parts = || rows.iter().flat_map(|r| &r.attribution.parts);
    let mut keys = Vec::new();
    for cause in Cause::ALL {
        if !parts().any(|p| p.cause == cause) {
            continue;
        }
        let long = room(cause.name()) + 30.0;
        if at.0 + long > width.units() {
            at = (0.0, at.1 + 18.0);
        }
        keys.push((cause, at));
        at.0 += long;
    }
    keys
}

fn class(cause: Cause) -> &'static str {
    match cause {
        Cause::Memory => "s2",
        Cause::Preemption => "s1",
        Cause::ThrottledAlong => "s5",
        Cause::Steal => "s3",
        Cause::Interrupts => "s4",
        Cause::Faults => "s6",
        Cause::Waiting => "s0",
        Cause::Standstill => "s7",
    }
}
