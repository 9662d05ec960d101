//! Groups configurations that no measurement distinguishes. They follow each other in the
//! experiment and are at the same level. The intervals of the protected subject have a common
//! value, and so have those of what the paying one keeps.

use quell_record::result::{ConfigurationResult, PromiseResult};
use quell_types::mechanism::Level;
use quell_types::stats::Interval;

use crate::view::{View, median_kept, tail_kept};

/// What configurations must have in common to be one row.
struct Common {
    level: Level,
    median: Interval,
    tail: Option<Interval>,
    kept: Option<Interval>,
}

impl Common {
    /// `None` for a configuration that always has a row of its own: a baseline of comparisons, one
    /// that was refused or not measured in several rounds, and one that lost a promise.
    fn of(view: &View<'_>, configuration: &ConfigurationResult) -> Option<Self> {
        let unprotected = view.unprotected().map(|c| &c.name);
        let broken = |p: &PromiseResult| p.was_lost() || p.held == Some(false);
        if view.is_baseline(configuration)
            || unprotected == Some(&configuration.name)
            || !configuration.refused.is_empty()
            || configuration.promises.iter().any(broken)
        {
            return None;
        }
        let figures = view.protected(configuration)?;
        Some(Self {
            level: configuration.guarantee.unwrap_or_default(),
            median: median_kept(figures)?.ci?,
            tail: tail_kept(figures).and_then(|tail| tail.ci),
            kept: view.kept_within(configuration),
        })
    }

    /// What both have in common. `None` where the level differs or two intervals do not overlap.
    fn and(&self, other: &Self) -> Option<Self> {
        let tail = either(self.tail.as_ref(), other.tail.as_ref())?;
        let kept = either(self.kept.as_ref(), other.kept.as_ref())?;
        let median = both(&self.median, &other.median)?;
        (self.level == other.level).then_some(Self {
            level: self.level,
            median,
            tail,
            kept,
        })
    }
}

/// What two intervals have in common, where there are any.
fn either(a: Option<&Interval>, b: Option<&Interval>) -> Option<Option<Interval>> {
    match (a, b) {
        (Some(a), Some(b)) => both(a, b).map(Some),
        (None, None) => Some(None),
        _ => None,
    }
}

fn both(a: &Interval, b: &Interval) -> Option<Interval> {
    a.overlaps(b)
        .then(|| [a.low.max(b.low), a.high.min(b.high)].into())
}

/// All configurations in their order, grouped where no measurement distinguishes them.
pub(crate) fn alike<'r>(view: &View<'r>) -> Vec<Vec<&'r ConfigurationResult>> {
    let mut all: Vec<(Vec<&ConfigurationResult>, Option<Common>)> = Vec::new();
    for configuration in &view.result.configurations {
        let own = Common::of(view, configuration);
        let last = all.last_mut();
        let joined = last.and_then(|(members, common)| {
            Some((members, common.as_ref()?.and(own.as_ref()?)?, common))
        });
        match joined {
            Some((members, narrower, common)) => {
                members.push(configuration);
                *common = Some(narrower);
            }
            None => all.push((vec![configuration], own)),
        }
    }
    all.into_iter().map(|(members, _)| members).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use quell_record::result::{CompareResult, Subset};

    fn groups(result: &CompareResult) -> Vec<Vec<&str>> {
        let view = View::new(result, Subset::All).unwrap();
        let names = |group: Vec<&'_ ConfigurationResult>| -> Vec<String> {
            group.iter().map(|c| c.name.clone()).collect()
        };
        let all: Vec<Vec<String>> = alike(&view).into_iter().map(names).collect();
        let known = |name: String| result.configuration(&name).unwrap().name.as_str();
        all.into_iter()
            .map(|g| g.into_iter().map(known).collect())
            .collect()
    }

    /// Gives every configuration's victim the same figures.
    fn flat(result: &mut CompareResult) {
        for subject in sample::subjects(result).filter(|s| s.name == "victim") {
            let f = &mut subject.figures;
            (f.normalized_p50, f.normalized_p99) = (Some(0.98), Some(1.0));
            f.normalized_p50_ci95 = Some([0.9, 1.06].into());
            f.normalized_p99_ci95 = Some([0.8, 1.2].into());
        }
    }

    /// Lets every neighbour keep the same.
    fn cheap(result: &mut CompareResult) {
        for subject in sample::subjects(result).filter(|s| s.name != "victim") {
            subject.figures.normalized_ci95 = Some([0.2, 0.3].into());
        }
    }

    #[test]
    fn what_differs_stands_alone() {
        let result = sample::result();
        assert!(groups(&result).iter().all(|g| g.len() == 1));
    }

    #[test]
    fn what_overlaps_at_one_level_is_one_row() {
        let mut result = sample::result();
        flat(&mut result);
        let (all, apart) = (result.configurations.len(), groups(&result).len());
        assert!(
            apart > all / 2,
            "what neighbours keep tells them apart: {apart} of {all}"
        );
        cheap(&mut result);
        let expected: [&[&str]; 5] = [
            &["solo"],
            &["none"],
            &["cores", "cpu-max@10%", "cpu-max@30%"],
            &["regulated@10%", "regulated@20%", "regulated@30%"],
            &["regulated@70%"],
        ];
        assert_eq!(groups(&result), expected);
    }

    #[test]
    fn a_lost_promise_is_never_folded_away() {
        let mut result = sample::result();
        flat(&mut result);
        result.configurations[6].promises[0].held = Some(false);
        let alone = groups(&result).into_iter().filter(|g| g.len() == 1);
        assert!(alone.flatten().any(|name| name == "regulated@20%"));
    }

    #[test]
    fn a_chain_of_overlaps_is_not_one_row() {
        let mut result = sample::result();
        flat(&mut result);
        cheap(&mut result);
        for (place, low) in [(5, 0.8), (6, 0.9), (7, 1.0)] {
            let f = &mut result.configurations[place].subjects[0].figures;
            f.normalized_p50_ci95 = Some([low, low + 0.15].into());
        }
        let all = groups(&result);
        assert!(
            all.contains(&vec!["regulated@10%", "regulated@20%"]),
            "{all:?}"
        );
        assert!(all.contains(&vec!["regulated@30%"]), "{all:?}");
    }
}
