//! What a result means, in sentences computed from it:
//! - how much the neighbour hurts,
//! - how much of that protection removes,
//! - what it costs the neighbour,
//! - what leaves a critical subject slower than no protection,
//! - what holds the promise,
//! - where Linux' own CPU-time quota does as well.
//!
//! An effect or a benefit is claimed only where the interval excludes chance.

use quell_plan::Promise;
use quell_policy::Role;
use quell_record::result::{CompareResult, ConfigurationResult, Figures, Subset, Timing};

use crate::frontier::{Data, Standing};
use crate::text::{count, list, number, percent, unit};
use crate::view::{Spread, View, median_kept, middle, tail_kept};

/// So many rounds with a shared cache are enough for a verdict on them alone.
const ENOUGH: u32 = 3;
/// A smaller loss is not worth a sentence, however certain.
const SMALL: f64 = 0.02;

/// The rounds that a verdict is about: those that shared a cache, if not all did and there are
/// enough of them.
#[must_use]
pub fn spoken_for(result: &CompareResult) -> Subset {
    let Some(unprotected) = View::new(result, Subset::All).and_then(|v| v.unprotected()) else {
        return Subset::All;
    };
    match unprotected.rounds_shared {
        Some(shared) if shared >= ENOUGH && shared < unprotected.rounds => Subset::Shared,
        _ => Subset::All,
    }
}

/// The verdict, sentence by sentence.
#[must_use]
pub fn verdict(result: &CompareResult) -> Vec<String> {
    let Some(view) = View::new(result, spoken_for(result)) else {
        return vec!["Nothing could be measured.".to_owned()];
    };
    let mut said = Vec::new();
    if let Some(why) = &result.interrupted {
        said.push(format!(
            "The experiment ended early, in round {}: {why}.",
            result.rounds
        ));
    }
    if result.timing == Timing::Emulated {
        said.push(
            "The machine is emulated: its times show in which direction something goes, not by how much."
                .to_owned(),
        );
    }
    said.extend(sharing(&view));
    let hurt = effect(&view, &mut said);
    if hurt {
        benefit(&view, &mut said);
        frontier(result, view.subset, &mut said);
    }
    said.extend(worse(&view));
    said.extend(not_held(result));
    if !result.failures.is_empty() {
        let cells = count(
            u32::try_from(result.failures.len()).unwrap_or(u32::MAX),
            "cell",
        );
        said.push(format!(
            "{cells} could not be measured, also not at a second attempt."
        ));
    }
    said
}

fn sharing(view: &View<'_>) -> Option<String> {
    let unprotected = view.unprotected()?;
    let name = &unprotected.name;
    match (unprotected.rounds_shared, unprotected.rounds) {
        (_, 0) => None,
        (None, _) => None,
        (Some(0), rounds) => Some(format!(
            "In none of {} of {name} did the subjects' CPUs share a cache, so this run says nothing about interference \
             in a shared cache.",
            count(rounds, "round")
        )),
        (Some(shared), rounds) if shared == rounds => None,
        (Some(shared), rounds) => Some(format!(
            "The subjects' CPUs shared a cache in {shared} of {} of {name}{}.",
            count(rounds, "round"),
            if view.subset == Subset::Shared {
                "; what follows is about such rounds"
            } else {
                ", too few to speak about alone; what follows is about all rounds"
            }
        )),
    }
}

/// Says how much the neighbour hurts. Returns whether it does.
fn effect(view: &View<'_>, said: &mut Vec<String>) -> bool {
    let (Some(unprotected), Some(baseline)) = (view.unprotected(), view.baseline()) else {
        return false;
    };
    let (Some(figures), Some(solo)) = (view.protected(unprotected), view.solo(baseline)) else {
        said.push(format!(
            "How much {} suffers could not be measured.",
            view.protected
        ));
        return false;
    };
    let Some(median) = median_kept(figures) else {
        return false;
    };
    let tail = tail_kept(figures);
    let unit = unit(view.metric());
    let from_to = |solo: Option<f64>, here: Option<f64>| match (solo, here) {
        (Some(solo), Some(here)) => format!(" ({} → {} {unit})", number(solo), number(here)),
        _ => String::new(),
    };
    let beside = view.pays.map_or_else(
        || "Together with the others".to_owned(),
        |pays| format!("Beside {pays}"),
    );
    let hurts = |spread: &Spread| loses(spread);
    if hurts(&median) || tail.as_ref().is_some_and(hurts) {
        let mut text = format!(
            "{beside}, {} keeps {} of its solo speed at the median{}",
            view.protected,
            percent(median.value),
            from_to(middle(solo), middle(figures))
        );
        if let Some(tail) = tail {
            text.push_str(&format!(
                " and {} at p99{}",
                percent(tail.value),
                from_to(solo.p99, figures.p99)
            ));
        }
        said.push(text + ".");
        return true;
    }
    if median.ci.is_none() && median.value < 1.0 - SMALL {
        said.push(format!(
            "{beside}, {} keeps {} of its solo speed at the median in the one round measured{}. Whether that is chance, and what \
             helps, only several rounds tell (--rounds).",
            view.protected,
            percent(median.value),
            from_to(middle(solo), middle(figures))
        ));
        return false;
    }
    let sure = match median.ci {
        Some(ci) => format!(" (interval {} to {})", percent(ci.low), percent(ci.high)),
        None => " (one round: no interval)".to_owned(),
    };
    said.push(format!(
        "{beside}, {} is not measurably slower: it keeps {} of its solo speed{sure}. There is nothing to take away here.",
        view.protected,
        percent(median.value)
    ));
    false
}

fn loses(spread: &Spread) -> bool {
    spread.value < 1.0 - SMALL && spread.ci.is_some_and(|ci| ci.high < 1.0)
}

/// Says what the best protection gives, what it costs, and what holds it.
fn benefit(view: &View<'_>, said: &mut Vec<String>) {
    let Some(none) = view.unprotected().and_then(|c| view.protected(c)) else {
        return;
    };
    let best = view
        .protecting()
        .filter_map(|c| {
            let figures = view.protected(c)?;
            Some((median_kept(figures)?.value, c, figures))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, best, figures)) = best else {
        said.push("No protecting configuration could be measured here.".to_owned());
        return;
    };
    let (Some(before), Some(after)) = (median_kept(none), median_kept(figures)) else {
        return;
    };
    let name = &best.name;
    let helps = |before: Spread, after: Spread| {
        after.value > before.value
            && before
                .ci
                .zip(after.ci)
                .is_some_and(|(a, b)| !a.overlaps(&b))
    };
    let (tail_before, tail_after) = (tail_kept(none), tail_kept(figures));
    let tail_helps = tail_before
        .zip(tail_after)
        .is_some_and(|(b, a)| helps(b, a));
    if !helps(before, after) && !tail_helps {
        said.push(format!(
            "Nothing tried here measurably helps {}: at best ({name}) it keeps {}, without {}.",
            view.protected,
            percent(after.value),
            percent(before.value)
        ));
        return;
    }
    let tail = tail_words(figures);
    let away = taken_away(before, after, if tail.is_empty() { "" } else { "," });
    let mut text = format!("With {name} it keeps {}{away}{tail}", percent(after.value));
    match (view.pays, view.kept(best)) {
        (Some(pays), Some(kept)) => {
            text.push_str(&format!("; {pays} keeps {} of its rate.", percent(kept)));
        }
        _ => text.push('.'),
    }
    said.push(text);
    said.push(holds(best, witness(view.result)));
}

/// Names what leaves a critical subject slower than no protection does, beyond chance.
fn worse(view: &View<'_>) -> Option<String> {
    let unprotected = view.unprotected()?;
    let of = |subject: &str| -> Option<String> {
        let kept = |c| median_kept(view.figures(c, subject)?);
        let none = kept(unprotected)?;
        let slower = view.protecting().filter_map(|c| {
            let here = kept(c)?;
            let sure = here.ci?.high < none.ci?.low && here.value < none.value - SMALL;
            sure.then(|| format!("{} ({})", c.name, percent(here.value)))
        });
        let slower: Vec<String> = slower.collect();
        let (without, all) = (percent(none.value), list(&slower));
        (!slower.is_empty()).then(|| format!("{subject} keeps {without} without, less with {all}"))
    };
    let critical = unprotected
        .subjects
        .iter()
        .filter(|s| s.role == Role::Critical);
    let told: Vec<String> = critical.filter_map(|s| of(&s.name)).collect();
    (!told.is_empty()).then(|| format!("Worse than no protection: {}.", told.join("; ")))
}

fn tail_words(figures: &Figures) -> String {
    tail_kept(figures).map_or_else(String::new, |tail| {
        format!(" and {} at p99", percent(tail.value))
    })
}

/// The part of the slowdown (time per unit of work beyond solo) that is gone. `end` closes the
/// aside where more follows.
fn taken_away(before: Spread, after: Spread, end: &str) -> String {
    let slowdown = |spread: Spread| 1.0 / spread.value - 1.0;
    let part = 1.0 - slowdown(after) / slowdown(before);
    if loses(&before) && part.is_finite() && part > 0.0 {
        format!(
            " at the median, {} of the slowdown taken away{end}",
            percent(part.min(1.0))
        )
    } else {
        " at the median".to_owned()
    }
}

fn holds(best: &ConfigurationResult, witness_of: &str) -> String {
    let mechanisms: Vec<String> = best.mechanisms.iter().map(ToString::to_string).collect();
    let level = best.guarantee.unwrap_or_default();
    let witness = best.promises.iter().find_map(|p| p.held);
    format!(
        "What holds it: {}; level {level}{}.",
        list(&mechanisms),
        match witness {
            Some(true) => format!("; by {witness_of}, the limit held in every round"),
            Some(false) => format!("; but by {witness_of}, the limit did not hold"),
            None => String::new(),
        }
    )
}

fn frontier(result: &CompareResult, subset: Subset, said: &mut Vec<String>) {
    let Some(data) = Data::new(result, subset) else {
        return;
    };
    let Some(reference) = data.reference().map(|r| r.name.clone()) else {
        return;
    };
    if data.compared.is_empty() {
        return;
    }
    let words = [
        (Standing::Better, format!("better than {reference}")),
        (Standing::Same, format!("not to be told from {reference}")),
        (Standing::Worse, format!("worse than {reference}")),
        (
            Standing::Beyond,
            format!("beyond what {reference} was measured at"),
        ),
    ];
    let at = |p99: bool| -> String {
        let parts: Vec<String> = words
            .iter()
            .filter_map(|(standing, words)| {
                let names = data.standing(*standing, p99);
                (!names.is_empty()).then(|| format!("{} {words}", list(&names)))
            })
            .collect();
        parts.join("; ")
    };
    said.push(format!(
        "At the same rate kept, by the median: {}.",
        at(false)
    ));
    if data
        .series
        .iter()
        .flat_map(|s| &s.points)
        .any(|p| p.tail.is_some())
    {
        said.push(format!("At the same rate kept, by p99: {}.", at(true)));
    }
}

/// What shows whether a limit held.
fn witness(result: &CompareResult) -> &'static str {
    match result.timing {
        Timing::Real | Timing::Emulated => "the bytes the generator counted",
        Timing::Simulated => "the lines that were read from memory",
    }
}

/// Limits that the independent witness contradicts.
fn not_held(result: &CompareResult) -> Option<String> {
    let broken: Vec<String> = result
        .configurations
        .iter()
        .filter(|c| {
            c.promises.iter().any(|p| {
                p.held == Some(false) && matches!(p.promise, Promise::LimitBandwidth { .. })
            })
        })
        .map(|c| c.name.clone())
        .collect();
    (!broken.is_empty()).then(|| {
        format!(
            "By {}, the bandwidth limit did not hold under {}.",
            witness(result),
            list(&broken)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn said(result: &CompareResult) -> String {
        verdict(result).join("\n")
    }

    /// Gives every configuration's victim these figures.
    fn flat(result: &mut CompareResult, names: &[&str], value: f64, spread: f64) {
        for configuration in &mut result.configurations {
            if !names.iter().any(|n| configuration.name.starts_with(n)) {
                continue;
            }
            if let Some(victim) = configuration.subjects.first_mut() {
                let ci = Some([value - spread, value + spread].into());
                let f = &mut victim.figures;
                (f.normalized_p50, f.normalized_p50_ci95) = (Some(value), ci);
                (f.normalized_p99, f.normalized_p99_ci95) = (Some(value), ci);
            }
        }
    }

    #[test]
    fn it_says_what_hurts_what_helps_the_cost_and_the_mechanism() {
        let text = said(&sample::result());
        assert_eq!(
            text,
            "Beside neighbour, victim keeps 9.1 % of its solo speed at the median (15.3 → 168 ns) and 79 % at p99 (150 → \
             189 ns).\n\
             With regulated@10% it keeps 92 % at the median, 99 % of the slowdown taken away, and 101 % at p99; \
             neighbour keeps 5.0 % of its rate.\n\
             What holds it: cores and bandwidth; level estimated; by the bytes the generator counted, the limit held in \
             every round.\n\
             At the same rate kept, by the median: regulated@20% better than cpu-max; regulated@30% not to be told from \
             cpu-max; regulated@10% beyond what cpu-max was measured at.\n\
             At the same rate kept, by p99: regulated@20% better than cpu-max; regulated@30% not to be told from cpu-max; \
             regulated@10% beyond what cpu-max was measured at."
        );
    }

    #[test]
    fn without_an_effect_there_is_nothing_to_take_away() {
        let mut result = sample::result();
        flat(&mut result, &["none"], 0.99, 0.03);
        let text = said(&result);
        assert!(text.contains("is not measurably slower: it keeps 99 % of its solo speed"));
        assert!(text.contains("There is nothing to take away here."));
        assert!(!text.contains("With regulated"));
        let (_, worse) = text.split_once("Worse than no protection: ").unwrap();
        assert_eq!(
            worse,
            "victim keeps 99 % without, less with cores (9.2 %), regulated@10% (92 %), regulated@20% (64 %) and \
             regulated@30% (16 %)."
        );
        // Where both may be chance, nothing is said of it.
        flat(&mut result, &["none"], 0.99, 0.95);
        assert!(!said(&result).contains("Worse"));
    }

    #[test]
    fn without_a_benefit_none_is_claimed() {
        let mut result = sample::result();
        flat(&mut result, &["none", "cores", "regulated"], 0.5, 0.1);
        let text = said(&result);
        assert!(text.contains("Nothing tried here measurably helps victim: at best"));
        assert!(!text.contains("taken away"));
    }

    #[test]
    fn one_round_proves_nothing() {
        let mut result = sample::result();
        for subject in sample::subjects(&mut result) {
            let f = &mut subject.figures;
            (f.normalized_p50_ci95, f.normalized_p99_ci95) = (None, None);
        }
        let text = said(&result);
        assert!(
            text.contains("keeps 9.1 % of its solo speed at the median in the one round"),
            "{text}"
        );
        assert!(!text.contains("nothing to take away") && !text.contains("measurably"));
        flat(&mut result, &["none"], 0.99, 0.0);
        for subject in sample::subjects(&mut result) {
            let f = &mut subject.figures;
            (f.normalized_p50_ci95, f.normalized_p99_ci95) = (None, None);
        }
        assert!(said(&result).contains("(one round: no interval)"));
    }

    #[test]
    fn without_a_shared_cache_it_says_so_first() {
        let mut result = sample::result();
        for configuration in &mut result.configurations {
            configuration.rounds_shared = Some(0);
        }
        let first = verdict(&result).remove(0);
        assert!(
            first.starts_with("In none of 15 rounds of none did the subjects' CPUs share a cache")
        );
    }

    #[test]
    fn a_verdict_rests_on_rounds_that_shared_a_cache_if_enough() {
        let mut result = sample::result();
        result.configurations[1].rounds_shared = Some(9);
        let none = &mut result.configurations[1].subjects[0];
        none.shared.as_mut().unwrap().normalized_p50 = Some(0.05);
        assert_eq!(spoken_for(&result), Subset::Shared);
        let text = said(&result);
        assert!(text.contains("in 9 of 15 rounds of none; what follows is about such rounds"));
        assert!(text.contains("victim keeps 5.0 % of its solo speed"));
        result.configurations[1].rounds_shared = Some(2);
        assert_eq!(spoken_for(&result), Subset::All);
        assert!(said(&result).contains("too few to speak about alone"));
    }

    #[test]
    fn a_limit_that_did_not_hold_is_said_even_if_the_victim_gained() {
        let mut result = sample::result();
        result.configurations[6].promises[0].held = Some(false);
        assert!(said(&result).contains("did not hold under regulated@20%."));
    }

    #[test]
    fn an_early_end_is_said() {
        let mut result = sample::result();
        result.interrupted = Some("stopped by signal 2".into());
        assert!(
            said(&result)
                .starts_with("The experiment ended early, in round 15: stopped by signal 2.")
        );
    }
}
