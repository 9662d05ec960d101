//! A profile as text, and the sentences about it that the page shows, too.

use quell_record::demand::{
    Burst, Figures, Measuring, Phase, Profile, Quantity, Sensitivity, UnitTimes, WorkingSet,
};
use quell_types::units::{Rate, Share};

use crate::sweep;
use crate::text::{Style, Table, TableCell, Tone, number, percent, spread, thousands};

/// The most phases that are shown.
const SHOWN: usize = 12;

/// A profile for a terminal.
#[must_use]
pub fn profile_text(profile: &Profile, style: Style) -> String {
    let mut out = style.paint(Tone::Title, &profile.name);
    out.push_str(&format!("  {}\n", circumstances(profile)));
    out.push_str(&style.wrap("", "", &measured_by(&profile.measuring).join(" ")));
    out.push('\n');
    out.push_str(&figures(profile).render(style));
    out.push('\n');
    for sentence in sentences(profile) {
        out.push_str(&style.wrap("", "  ", &sentence));
    }
    if let Some(table) = phases(profile) {
        out.push('\n');
        out.push_str(&table.render(style));
        out.push_str(&style.wrap("", "  ", &of_phases(profile)));
    }
    if let Some(table) = sensitivity(profile) {
        out.push('\n');
        out.push_str(&table.render(style));
        for sentence in untried(profile) {
            out.push_str(&style.wrap("", "  ", &sentence));
        }
    }
    for one in &profile.sweeps {
        out.push('\n');
        out.push_str(&sweep::text(one, &profile.name, style));
    }
    out.push('\n');
    out.push_str(&profile.proposal.policy);
    out
}

/// On what machine and for how long it was measured.
pub(crate) fn circumstances(profile: &Profile) -> String {
    format!(
        "{}, {} times, {} s in bins of {} ms",
        profile.backend,
        profile.timing.name(),
        number(profile.span_ns as f64 / 1e9),
        number(profile.bin_ns as f64 / 1e6)
    )
}

/// How the figures were measured, and so what they are worth.
pub(crate) fn measured_by(measuring: &Measuring) -> Vec<String> {
    match measuring {
        Measuring::Simulated => {
            vec!["Lines read from and written to memory, as the simulated machine counts them: exact.".to_owned()]
        }
        Measuring::Events { events, fills_only } => {
            let mut all = vec![format!(
                "Lines counted by {}, 64 bytes each.",
                events.join(" and ")
            )];
            if *fills_only {
                all.push("Lines written back are not seen by them.".to_owned());
            }
            all
        }
        Measuring::CpuTime { why, bound } => {
            let bound = match bound {
                Some(rate) => format!(
                    "each CPU in use moves at most {rate}, the highest rate one CPU of this machine was measured to reach: an upper bound"
                ),
                None => "this machine's rates have not been measured (`quell doctor --deep`), so no bound can be given".to_owned(),
            };
            vec![
                "CPU time, as a substitute: it shows when the program works, not what it moves."
                    .to_owned(),
                format!("No event counts here: {why}; {bound}."),
            ]
        }
    }
}

/// Statistics as a row of a table.
fn row(name: String, figures: &Figures, scale: f64) -> Vec<TableCell> {
    let values = [
        figures.mean,
        figures.p50,
        figures.p95,
        figures.p99,
        figures.peak,
    ];
    let mut cells = vec![TableCell::new(name)];
    cells.extend(values.map(|v| TableCell::new(number(v * scale))));
    cells.push(TableCell::new(percent(figures.active)));
    cells
}

/// Bytes per second as 10^6 of them.
fn mb_s(rate: Rate) -> f64 {
    rate.0 as f64 / 1e6
}

/// The figures of every series, of all together, and the bound.
pub(crate) fn figures(profile: &Profile) -> Table {
    let unit = profile.quantity().unit();
    let head = ["", "mean", "p50", "p95", "p99", "peak", "time active"];
    let mut rows: Vec<_> = profile
        .series
        .iter()
        .map(|s| row(format!("{}, {unit}", s.quantity.name()), &s.figures, 1.0))
        .collect();
    if profile.series.len() > 1 {
        rows.push(row(format!("together, {unit}"), &profile.total, 1.0));
    }
    if let Measuring::CpuTime {
        bound: Some(bound), ..
    } = &profile.measuring
    {
        rows.push(row(
            "at most, MB/s".to_owned(),
            &profile.total,
            mb_s(*bound),
        ));
    }
    Table {
        head: head.map(str::to_owned).to_vec(),
        rows,
        left: Vec::new(),
    }
}

/// Sentences about bursts, memory and the cost of measuring.
pub(crate) fn sentences(profile: &Profile) -> Vec<String> {
    let mut all = vec![bursts(profile.burst.as_ref(), profile.quantity())];
    all.extend(profile.working_set.as_ref().map(works_on));
    all.extend(profile.units.as_ref().and_then(units));
    all.extend(profile.sampler.as_ref().map(|sampler| {
        let late = match sampler.unread_bins {
            0 => "all of them on time".to_owned(),
            1 => "1 millisecond without one, which shows the mean of its surroundings".to_owned(),
            n => format!("{n} milliseconds without one, which show the mean of their surroundings"),
        };
        format!(
            "Looking: {} readings, {late}; it took {} of a CPU.",
            thousands(&sampler.readings.to_string()),
            percent(sampler.cpu_share)
        )
    }));
    all.push(format!("Proposal: {}", profile.proposal.because));
    all
}

/// How long the units of work took, to which `target.slowdown` refers.
fn units(times: &UnitTimes) -> Option<String> {
    let at = |percent| {
        let took = times.at(Share::percent(percent))?;
        Some(number(took.0 as f64 / 1e6))
    };
    Some(format!(
        "Units of work: {}; half of them took {} ms at most, 99 % of them {} ms, the slowest {} ms.",
        thousands(&times.units.to_string()),
        at(50)?,
        at(99)?,
        at(100)?
    ))
}

fn bursts(burst: Option<&Burst>, quantity: Quantity) -> String {
    let Some(burst) = burst else {
        return "Bursts: none that return after a period.".to_owned();
    };
    let amount = match quantity {
        Quantity::Read | Quantity::Written => format!("{} MB", number(burst.amount)),
        Quantity::CpuTime => format!("{} ms of CPU time", number(burst.amount)),
    };
    // Rounded up it would claim to be certain.
    let confidence = (burst.confidence * 1e4).floor() / 100.0;
    format!(
        "Bursts: one every {:.2} ms ({:.1} a second), {} ms long, the first at {} ms; {amount} each, {} of all. Regularity {:.2} (1 is a clock); \
         that noise looks so is less likely than {:.2} %.",
        burst.period_ms,
        burst.per_s(),
        number(burst.length_ms),
        number(burst.phase_ms),
        percent(burst.share),
        burst.regularity,
        (100.0 - confidence).max(0.01)
    )
}

fn works_on(set: &WorkingSet) -> String {
    let mib = |bytes: u64| format!("{} MiB", number(bytes as f64 / f64::from(1u32 << 20)));
    let mut parts = vec![format!("{} resident", mib(set.resident_bytes))];
    parts.extend(
        set.touched_bytes
            .map(|b| format!("{} touched meanwhile", mib(b))),
    );
    if let Some(cached) = set.cached_bytes {
        let of = set.cache_bytes.map_or_else(String::new, |llc| {
            format!(" (the last level has {})", mib(llc))
        });
        parts.push(format!("{} of it in caches at the end{of}", mib(cached)));
    }
    format!("Working set: {}; {}.", parts.join(", "), set.how)
}

/// What it does in each phase, for the longest ones.
pub(crate) fn phases(profile: &Profile) -> Option<Table> {
    let head = [
        "phase, s",
        "CPU time, s",
        "IPC",
        "memory, lines/µs",
        "first level, accesses/µs",
    ];
    let mut longest: Vec<&Phase> = profile.phases.iter().collect();
    longest.sort_by_key(|phase| std::cmp::Reverse(phase.cpu_ns));
    longest.truncate(SHOWN);
    longest.sort_by_key(|phase| phase.from_ns);
    let s = |ns: u64| number(ns as f64 / 1e9);
    let row = |phase: &Phase| {
        let figures = [phase.ipc, phase.memory_per_us, phase.first_level_per_us];
        let span = format!("{}–{}", s(phase.from_ns), s(phase.until_ns));
        let mut cells = vec![TableCell::new(span), TableCell::new(s(phase.cpu_ns))];
        cells.extend(figures.map(|v| TableCell::new(number(v))));
        cells
    };
    (!longest.is_empty()).then(|| Table {
        head: head.map(str::to_owned).to_vec(),
        rows: longest.into_iter().map(row).collect(),
        left: Vec::new(),
    })
}

/// What the rates of phases are per, and how many phases are not shown.
pub(crate) fn of_phases(profile: &Profile) -> String {
    let rates = "Rates are per microsecond of CPU time.";
    match profile.phases.len().saturating_sub(SHOWN) {
        0 => rates.to_owned(),
        1 => format!("{rates} One shorter phase is in the file only."),
        more => format!("{rates} {more} shorter phases are in the file only."),
    }
}

/// The table of resource × pressure → slowdown.
pub(crate) fn sensitivity(profile: &Profile) -> Option<Table> {
    let head = [
        "resource",
        "neighbour",
        "pressure",
        "reached MB/s",
        "slowdown",
    ];
    let pressed = |s: &Sensitivity| -> Vec<Vec<TableCell>> {
        let rows = s.pressed.iter().map(|p| {
            // Half the interval's width to either side of 1: an effect that may be chance is none.
            let seen = p.ci95.is_some_and(|ci| ci.low > 1.0);
            let tone = if seen { Tone::Bad } else { Tone::Plain };
            vec![
                TableCell::new(s.resource.as_str()),
                TableCell::new(s.neighbour.as_str()),
                TableCell::new(p.pressure.as_str()),
                TableCell::new(p.reached_mb_s.map_or_else(|| "–".to_owned(), number)),
                TableCell::tone(spread(Some(p.slowdown), p.ci95), tone),
            ]
        });
        rows.collect()
    };
    let rows: Vec<_> = profile.sensitivity.iter().flat_map(pressed).collect();
    (!profile.sensitivity.is_empty()).then(|| Table {
        head: head.map(str::to_owned).to_vec(),
        rows,
        left: vec![1, 2],
    })
}

/// What could not be tried, and what the slowdown is of.
pub(crate) fn untried(profile: &Profile) -> Vec<String> {
    let metric = profile.sensitivity.iter().find_map(|s| s.metric.as_deref());
    let mut all: Vec<String> = metric
        .map(|metric| format!("Slowdown by {metric}, beside ÷ alone: 1 is no interference; ± is half the interval over rounds."))
        .into_iter()
        .collect();
    all.extend(profile.sensitivity.iter().filter_map(|s| {
        let why = s.skipped.as_ref()?;
        Some(format!("{}: not tried: {why}", s.resource))
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::golden;
    use crate::sample::profile::{bursty, substitute};

    #[test]
    fn a_profile_reads_as_kept() {
        golden("profile", &profile_text(&bursty(), Style::default()));
        golden(
            "profile-substitute",
            &profile_text(&substitute(), Style::default()),
        );
    }

    #[test]
    fn a_substitute_never_shows_a_rate_that_is_not_called_a_bound() {
        let text = profile_text(&substitute(), Style::default());
        assert!(text.contains("CPU time, as a substitute"));
        let rates: Vec<&str> = text.lines().filter(|l| l.contains("MB/s")).collect();
        assert!(rates.iter().all(|l| l.contains("at most")), "{rates:?}");
    }
}
