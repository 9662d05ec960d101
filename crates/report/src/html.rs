//! One self-contained page about a comparison: verdict, table, frontier, distribution, plans, machine and the exact
//! command. No script, nothing loaded from anywhere, light or dark as the reader's system is.

use std::fmt::Write;

use quell_core::result::{ReportInput, Subset};

use crate::compare::{partly_shared, table};
use crate::doctor;
use crate::frontier::Data;
use crate::plan::describe;
use crate::svg;
use crate::text::{Table, Tone, count, unit};
use crate::throttling::{LEGEND, throttling};
use crate::verdict::{spoken_for, verdict};
use crate::view::View;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c1c1e; --faint: #6b6b70; --rule: #d9d9de; --page: #ffffff;
  --good: #1a7f37; --bad: #b42318;
  --c0: #9a6700; --c1: #0969da; --c2: #1a7f37; --c3: #8250df; --c4: #bf3989; --c5: #57606a; --c6: #c2410c; --c7: #0e7490; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6ea; --faint: #9a9aa2; --rule: #3a3a40; --page: #17171a;
  --good: #4ac26b; --bad: #ff7b72;
  --c0: #d4a72c; --c1: #58a6ff; --c2: #4ac26b; --c3: #bc8cff; --c4: #f778ba; --c5: #adb5bd; --c6: #fb923c; --c7: #22d3ee; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.faint, caption { color: var(--faint); font-size: .875rem; } .good { color: var(--good); } .bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
caption { text-align: left; } th, td { padding: .2rem .75rem .2rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, .left { text-align: left; }
pre { overflow-x: auto; padding: .5rem; border: 1px solid var(--rule); border-radius: .25rem; }
svg { width: 100%; max-width: 640px; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
svg .key { fill: var(--ink); } svg .grid { stroke: var(--rule); fill: none; }
svg .line { fill: none; stroke-width: 1.5; } summary { cursor: pointer; }
";

/// The page.
#[must_use]
pub fn html(report: &ReportInput) -> String {
    let result = &report.result;
    let title = result.title.as_deref().unwrap_or(&result.experiment);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{0}</title>\n<style>{STYLE}{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(title),
        series_style()
    );
    let _ = writeln!(
        out,
        "<p class=\"faint\">{} · {}, {} times · {} · seed {} · Quell {}</p>",
        escape(&result.experiment),
        escape(&result.backend),
        result.timing.name(),
        count(result.rounds, "round"),
        result.seed,
        escape(&result.version)
    );
    for sentence in verdict(result) {
        let _ = writeln!(out, "<p>{}</p>", escape(&sentence));
    }
    if let Some(all) = table(result, Subset::All) {
        out.push_str("<h2>Result</h2>\n");
        out.push_str(&html_table(&all, "All rounds"));
    }
    if let Some(shared) = table(result, Subset::Shared).filter(|_| partly_shared(result)) {
        out.push_str(&html_table(
            &shared,
            "Rounds in which the subjects' CPUs shared a cache before and after the cell",
        ));
    }
    if let Some(data) = Data::new(result, spoken_for(result)) {
        let _ = writeln!(
            out,
            "<h2>Frontier</h2>\n<p class=\"faint\">Solid: at the median, with intervals; dashed: at p99.</p>\n{}",
            svg::frontier(&data)
        );
    }
    if let Some(table) = throttling(result) {
        out.push_str("<h2>Throttling</h2>\n");
        out.push_str(&html_table(&table, LEGEND));
    }
    out.push_str(&distribution(report));
    out.push_str(&plans(report));
    out.push_str(&machine(report));
    let _ = writeln!(
        out,
        "<h2>Command</h2>\n<pre>{}</pre>\n<p class=\"faint\">Experiment {}</p>\n</body>\n</html>",
        escape(&report.command_line),
        escape(&result.policy_hash)
    );
    out
}

/// The colours of the charts' series: lines are stroked, dots are filled.
fn series_style() -> String {
    (0..8)
        .map(|n| format!("svg path.s{n} {{ stroke: var(--c{n}); }} svg circle.s{n} {{ fill: var(--c{n}); }}\n"))
        .collect()
}

fn html_table(table: &Table, caption: &str) -> String {
    let mut out = format!(
        "<div class=\"wide\"><table>\n<caption>{}</caption>\n<tr>",
        escape(caption)
    );
    let left = |index: usize| {
        if table.left.contains(&index) {
            " class=\"left\""
        } else {
            ""
        }
    };
    for (index, head) in table.head.iter().enumerate() {
        let _ = write!(
            out,
            "<th scope=\"col\"{}>{}</th>",
            left(index),
            escape(head)
        );
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let text = escape(&cell.text);
            let text = match cell.tone {
                Tone::Good => format!("<span class=\"good\">{text}</span>"),
                Tone::Bad => format!("<span class=\"bad\">{text}</span>"),
                Tone::Faint => format!("<span class=\"faint\">{text}</span>"),
                Tone::Plain | Tone::Title => text,
            };
            let _ = write!(out, "<td{}>{text}</td>", left(index));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
    out
}

/// The protected subject's windows: solo, unprotected, and every fourth of the others at most, to stay readable.
fn distribution(report: &ReportInput) -> String {
    let Some(view) = View::new(&report.result, Subset::All) else {
        return String::new();
    };
    let curve = |name: &str| {
        report
            .quantiles
            .get(name)?
            .get(view.protected)
            .map(Vec::as_slice)
    };
    let first_of_each = |name: &str, seen: &mut Vec<String>| {
        let base = name.split('@').next().unwrap_or(name).to_owned();
        let new = !seen.contains(&base);
        seen.push(base);
        new
    };
    let mut seen = Vec::new();
    let curves: Vec<(&str, &[f64])> = report
        .result
        .configurations
        .iter()
        .filter_map(|c| Some((c.name.as_str(), curve(&c.name)?)))
        .filter(|(name, _)| first_of_each(name, &mut seen))
        .take(8)
        .collect();
    let chart = svg::distribution(&curves, unit(view.metric()));
    if chart.is_empty() {
        return chart;
    }
    format!(
        "<h2>Distribution</h2>\n<p class=\"faint\">Windows of {}, all rounds together; of every mechanism the first \
         cap.</p>\n{chart}",
        escape(view.protected)
    )
}

fn plans(report: &ReportInput) -> String {
    let mut out = String::from("<h2>What was done</h2>\n");
    for configuration in &report.result.configurations {
        let name = escape(&configuration.name);
        if !configuration.refused.is_empty() {
            let why: Vec<String> = configuration
                .refused
                .iter()
                .map(|r| escape(&r.to_string()))
                .collect();
            let _ = writeln!(out, "<p>{name}: refused. {}</p>", why.join("; "));
            continue;
        }
        let Some(plan) = report.plans.get(&configuration.name) else {
            continue;
        };
        if plan.steps.is_empty() {
            let _ = writeln!(out, "<p>{name}: nothing</p>");
            continue;
        }
        let _ = writeln!(
            out,
            "<details><summary>{name}: level {}</summary>\n<ol>",
            plan.level()
        );
        for step in &plan.steps {
            let who = step
                .group
                .as_ref()
                .map_or_else(String::new, |g| format!("{}: ", escape(g)));
            let _ = writeln!(
                out,
                "<li>{who}{} <span class=\"faint\">{}</span></li>",
                escape(&describe(&step.set)),
                escape(&step.because)
            );
        }
        out.push_str("</ol>\n<ul>\n");
        for held in &plan.promises {
            let weakest = held
                .weakest
                .as_ref()
                .map_or_else(String::new, |w| format!("; weakest: {}", escape(w)));
            let _ = writeln!(
                out,
                "<li>{}: {}: <b>{}</b><span class=\"faint\">{weakest}</span></li>",
                escape(&held.group),
                escape(&held.promise.to_string()),
                held.level
            );
        }
        for note in &plan.notes {
            let _ = writeln!(out, "<li class=\"faint\">{}</li>", escape(note));
        }
        out.push_str("</ul></details>\n");
    }
    out
}

fn machine(report: &ReportInput) -> String {
    let machine = &report.result.machine;
    let mut out = format!(
        "<h2>Machine</h2>\n<p>{}<br>{}",
        escape(&doctor::name(machine)),
        escape(&format!("CPUs: {}", doctor::cpus(machine)))
    );
    for (label, text) in doctor::caches(machine) {
        let _ = write!(out, "<br>{}: {}", escape(&label), escape(&text));
    }
    if let Some(measured) = &machine.measured {
        let _ = write!(
            out,
            "<br>Measured: one CPU {}, all together {}",
            measured.peak_cpu, measured.sustainable
        );
    }
    out + "</p>\n"
}

/// Text for element content and quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// Every element is closed in order.
    fn balanced(page: &str) -> Result<(), String> {
        const VOID: [&str; 3] = ["meta", "br", "!doctype"];
        let mut open: Vec<&str> = Vec::new();
        for part in page.split('<').skip(1) {
            let tag = part.split('>').next().unwrap();
            let name = tag.split_whitespace().next().unwrap_or_default();
            if let Some(closing) = name.strip_prefix('/') {
                let last = open.pop();
                if last != Some(closing) {
                    return Err(format!("</{closing}> closes {last:?}"));
                }
            } else if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
        }
        if open.is_empty() {
            Ok(())
        } else {
            Err(format!("left open: {open:?}"))
        }
    }

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let page = html(&sample::report());
        balanced(&page).unwrap();
        for foreign in ["<script", "http:", "https:", "url(", "@import", "src="] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(!page.contains("NaN") && !page.contains("inf\""));
    }

    #[test]
    fn it_shows_all_that_a_reader_needs_to_judge() {
        let page = html(&sample::report());
        for needed in [
            "Beside neighbour, victim keeps 9.1 %",
            "aria-label=\"Protection against throughput kept\"",
            "aria-label=\"Distribution of windows\"",
            "regulated@10%: level estimated",
            "regulated@70%: refused. group.neighbour.limit.bandwidth: 70% cannot be metered here",
            "AMD EPYC",
            "fnv1a64:0123456789abcdef",
        ] {
            assert!(page.contains(needed), "{needed}");
        }
    }

    #[test]
    fn what_people_write_is_text_not_markup() {
        let mut report = sample::report();
        report.result.title = Some("<b>\"a\" & 'b'".into());
        let page = html(&report);
        assert!(page.contains("<title>&lt;b&gt;&quot;a&quot; &amp; &#39;b&#39;</title>"));
        assert!(page.contains("--on linux &amp;&amp; echo &lt;done&gt;"));
    }

    #[test]
    fn a_result_with_nothing_measured_is_still_a_page() {
        let mut report = sample::report();
        for configuration in &mut report.result.configurations {
            configuration.subjects.clear();
        }
        report.quantiles.clear();
        let page = html(&report);
        balanced(&page).unwrap();
        assert!(page.contains("Nothing could be measured."));
    }
}
