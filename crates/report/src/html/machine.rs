//! The machine, and which mechanisms it offers.

use maud::{Markup, html};
use quell_plan::inventory::Availability;

use crate::doctor;

use super::page::{Page, Section};
use super::table::facts;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let machine = page.record.machine.as_ref()?;
    let mut rows = vec![
        ("machine".to_owned(), html! { (doctor::name(machine)) }),
        ("CPUs".to_owned(), html! { (doctor::cpus(machine)) }),
    ];
    let caches = doctor::caches(machine).into_iter();
    rows.extend(caches.map(|(label, text)| (label, html! { (text) })));
    if let Some(measured) = &machine.measured {
        let text = format!(
            "one CPU draws {} ({}), all together {}",
            measured.peak_cpu, measured.peak_operation, measured.sustainable
        );
        rows.push(("measured".to_owned(), html! { (text) }));
    }
    let mechanisms: Vec<(String, Markup)> = machine
        .mechanisms
        .iter()
        .map(|(mechanism, availability)| {
            let text = match availability {
                Availability::Yes { best, how } => {
                    html! { span.good { "yes" } ", up to " (best) ": " (how) }
                }
                Availability::No { why, remedy, .. } => html! {
                    span.faint { "no" } ": " (why)
                    @if let Some(remedy) = remedy { ". Remedy: " (remedy) }
                },
            };
            (mechanism.to_string(), text)
        })
        .collect();
    let body = html! {
        (facts(&rows))
        @if !mechanisms.is_empty() {
            h3 { "Mechanisms it offers" }
            (facts(&mechanisms))
        }
    };
    Some(Section {
        id: "machine",
        title: "The machine",
        body,
    })
}
