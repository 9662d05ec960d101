//! The machine, and which mechanisms it offers.

use quell_plan::inventory::Availability;

use crate::doctor;

use super::escape;
use super::page::{Page, Section};
use super::table::facts;

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let machine = page.record.machine.as_ref()?;
    let mut rows = vec![
        ("machine".to_owned(), escape(&doctor::name(machine))),
        ("CPUs".to_owned(), escape(&doctor::cpus(machine))),
    ];
    let caches = doctor::caches(machine).into_iter();
    rows.extend(caches.map(|(label, text)| (label, escape(&text))));
    if let Some(measured) = &machine.measured {
        let text = format!(
            "one CPU draws {} ({}), all together {}",
            measured.peak_cpu, measured.peak_operation, measured.sustainable
        );
        rows.push(("measured".to_owned(), escape(&text)));
    }
    let mut body = facts(&rows);
    let mechanisms: Vec<(String, String)> = machine
        .mechanisms
        .iter()
        .map(|(mechanism, availability)| {
            let text = match availability {
                Availability::Yes { best, how } => {
                    format!(
                        "<span class=\"good\">yes</span>, up to {best}: {}",
                        escape(how)
                    )
                }
                Availability::No { why, remedy } => {
                    let remedy = remedy
                        .as_ref()
                        .map_or_else(String::new, |r| format!(". Remedy: {}", escape(r)));
                    format!("<span class=\"faint\">no</span>: {}{remedy}", escape(why))
                }
            };
            (mechanism.to_string(), text)
        })
        .collect();
    if !mechanisms.is_empty() {
        body.push_str("<h3>Mechanisms it offers</h3>\n");
        body.push_str(&facts(&mechanisms));
    }
    Some(Section {
        id: "machine",
        title: "The machine",
        body,
    })
}
