//! The curves of `quell profile --sweep` as tables with bars, and the sentences about them.

use quell_record::demand::{Goal, Judged, Point, Sweep, Swept};
use quell_types::stats::Interval;

use crate::text::{Style, Table, TableCell, Tone, normalized, size, spread, unit};

/// Columns of a bar that stands for the speed alone.
const BAR: usize = 30;
/// Columns of the longest bar: a program may be a little faster than alone.
const LONGEST: usize = 36;

/// A sweep for a terminal. `name`: the program's.
pub(crate) fn text(sweep: &Sweep, name: &str, style: Style) -> String {
    let mut out = style.wrap("", "  ", &title(sweep));
    out.push_str(&table(sweep).render(style));
    for sentence in said(sweep) {
        out.push_str(&style.wrap("", "  ", &sentence));
    }
    if let Some(policy) = &sweep.policy {
        out.push_str(&format!("\n[group.{name}]\n{policy}\n"));
    }
    out
}

/// What was swept, and how.
pub(crate) fn title(sweep: &Sweep) -> String {
    format!(
        "Sweep of {}: {}; {}, {} rounds, ± is half the interval over rounds.",
        what(sweep),
        sweep.goal,
        sweep.metric,
        sweep.rounds
    )
}

/// What grows, as in "3 of 12 ways of L3".
fn what(sweep: &Sweep) -> String {
    let level = sweep.level.unwrap_or(0);
    match sweep.swept {
        Swept::Ways => format!("ways of L{level}"),
        Swept::Colours => format!("page colours of L{level}"),
        Swept::Budgets => "budgets of bandwidth".to_owned(),
    }
}

/// A size with its unit.
fn amount(sweep: &Sweep, point: &Point) -> String {
    let n = point.size;
    let s = if n == 1 { "" } else { "s" };
    let cache = point
        .cache
        .map_or_else(String::new, |bytes| format!(" ({})", size(bytes.0)));
    match sweep.swept {
        Swept::Ways => format!("{n} way{s}{cache}"),
        Swept::Colours => format!("{n} colour{s}{cache}"),
        Swept::Budgets if is_all(sweep, point) => "no limit".to_owned(),
        Swept::Budgets => point.label.clone(),
    }
}

fn is_all(sweep: &Sweep, point: &Point) -> bool {
    sweep.points.last().is_some_and(|all| all == point)
}

/// The curve, a size per row.
pub(crate) fn table(sweep: &Sweep) -> Table {
    let cached = sweep.swept != Swept::Budgets;
    let first = match sweep.swept {
        Swept::Ways => "ways",
        Swept::Colours => "colours",
        Swept::Budgets => "budget",
    };
    let value = match sweep.goal {
        Goal::Within { p99: true, .. } => format!("p99 {}", unit(&sweep.metric)),
        _ => unit(&sweep.metric).to_owned(),
    };
    let mut head = vec![first.to_owned()];
    head.extend(cached.then(|| "cache".to_owned()));
    head.extend([
        value,
        "of alone".to_owned(),
        "goal".to_owned(),
        String::new(),
    ]);
    let bar_at = head.len() - 1;
    let row = |point: &Point| {
        let mut row = vec![TableCell::new(point.label.as_str())];
        let cache = point.cache.map_or_else(String::new, |b| size(b.0));
        row.extend(cached.then(|| TableCell::new(cache)));
        row.push(TableCell::new(spread(point.value, point.ci95)));
        row.push(TableCell::new(normalized(point.kept, point.kept_ci95)));
        row.push(judged(point));
        row.push(TableCell::tone(bar(sweep, point), Tone::Faint));
        row
    };
    Table {
        head,
        rows: sweep.points.iter().map(row).collect(),
        left: vec![bar_at - 1, bar_at],
    }
}

fn judged(point: &Point) -> TableCell {
    match point.judged {
        _ if point.refused.is_some() => TableCell::tone("not tried", Tone::Faint),
        Judged::Holds => TableCell::tone("holds", Tone::Good),
        Judged::Misses => TableCell::tone("misses", Tone::Bad),
        Judged::Unclear => TableCell::new("unclear"),
    }
}

/// What is kept, as `=` to the lower end of its interval and `-` to the upper one. `|` is the goal.
fn bar(sweep: &Sweep, point: &Point) -> String {
    let Some(kept) = point.kept else {
        return String::new();
    };
    let here = Interval::from([kept, kept]);
    let ends = point.kept_ci95.unwrap_or(here);
    let (low, high) = (column(ends.low), column(ends.high));
    let goal = match sweep.goal {
        Goal::Keep { share } => Some(column(share.as_f64())),
        Goal::Within { .. } => None,
    };
    let end = high.max(goal.map_or(0, |g| g + 1));
    let drawn = (0..end).map(|at| match at {
        _ if Some(at) == goal => '|',
        _ if at < low => '=',
        _ if at < high => '-',
        _ => ' ',
    });
    drawn.collect()
}

/// The column of a share of the speed alone.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to a few columns"
)]
fn column(share: f64) -> usize {
    (share * BAR as f64).round().clamp(0.0, LONGEST as f64) as usize
}

/// What follows from the curve.
pub(crate) fn said(sweep: &Sweep) -> Vec<String> {
    let mut all = vec![answer(sweep)];
    if sweep.held_below_a_miss() {
        all.push(
            "A smaller size held although a larger one missed: the curve does not rise everywhere."
                .to_owned(),
        );
    }
    all.extend(sweep.cautions.iter().cloned());
    all
}

fn answer(sweep: &Sweep) -> String {
    let needed = sweep.needed;
    let too_small = needed.too_small.and_then(|n| sweep.point(n));
    let misses = too_small.map_or_else(String::new, |p| {
        format!(" Too small: {}.", amount(sweep, p))
    });
    let Some(enough) = needed.enough.and_then(|n| sweep.point(n)) else {
        return format!(
            "No size is sure to {}, not even all of it.{misses} The spread over rounds is too wide: \
             repeat it on a quieter machine, or with more rounds (--rounds).",
            sweep.goal
        );
    };
    let least = sweep.least().filter(|_| !needed.exact);
    let everything = is_all(sweep, enough);
    let enough = amount(sweep, enough);
    match least {
        Some(least) => format!(
            "Enough: between {} and {enough}. From {enough} on every size keeps the goal.{misses} \
             The spread over rounds does not decide in between; more rounds may (--rounds).",
            amount(sweep, least)
        ),
        None if everything => format!("Enough: everything, {enough}.{misses}"),
        None if too_small.is_none() => {
            format!("Enough: {enough}, the smallest size that was tried. Less may do, too.")
        }
        None => format!("Enough: {enough}, and every larger size.{misses}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::golden;
    use crate::sample::sweep::{by_budgets, by_ways, unclear};

    #[test]
    fn a_sweep_reads_as_a_curve_and_an_answer() {
        let all = [by_ways(), by_budgets(), unclear()];
        let texts = all.map(|s| text(&s, "detector", Style::default()));
        golden("sweep", &texts.join("\n"));
    }

    #[test]
    fn a_bar_ends_where_the_interval_does() {
        let sweep = by_ways();
        let bars: Vec<String> = sweep.points.iter().map(|p| bar(&sweep, p)).collect();
        assert_eq!(bars[0].matches('=').count(), column(0.30));
        assert!(bars[0].ends_with('|'), "{}", bars[0]);
        let wild = Point {
            kept: Some(f64::NAN),
            kept_ci95: Some([-1.0, 9.0].into()),
            ..sweep.points[0].clone()
        };
        assert!(bar(&sweep, &wild).len() <= LONGEST);
    }

    #[test]
    fn every_answer_is_as_sure_as_the_curve() {
        let with = |letters: &str| {
            let judged = |letter| match letter {
                'h' => Judged::Holds,
                'm' => Judged::Misses,
                _ => Judged::Unclear,
            };
            let mut sweep = by_ways();
            for (point, letter) in sweep.points.iter_mut().zip(letters.chars()) {
                point.judged = judged(letter);
            }
            sweep.needed = quell_record::demand::Needed::of(&sweep.points);
            answer(&sweep)
        };
        assert!(with("mmhhh").starts_with("Enough: 3 ways (3MiB), and every larger"));
        assert!(with("hhhhh").contains("the smallest size that was tried"));
        assert!(with("m?hhh").contains("between 2 ways (2MiB) and 3 ways"));
        assert!(with("mmmmh").ends_with("everything, 5 ways (5MiB). Too small: 4 ways (4MiB)."));
        assert!(with("mmmm?").starts_with("No size is sure"));
    }
}
