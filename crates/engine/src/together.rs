//! How many programs fare together that share a processor: figures over all of them, formed within
//! each round and then over rounds. Pure.
//!
//! - `avg_ipc` and `hm_weighted_ipc` count cycles on a CPU only, as the scheduling study does. The
//!   second is the harmonic mean of IPC ÷ IPC alone.
//! - All others charge waiting. Normalized progress is the time alone ÷ the time of a run. Its sum
//!   is `stp`, and its largest ÷ its smallest `unfairness`. `turnaround_s` is the mean time of a
//!   run, and `last_s` the longest.

use std::collections::BTreeMap;

use quell_plan::{Plan, Setting};
use quell_policy::experiment::{Configuration, Until};
use quell_policy::workload::{IPC, IPC_ALONE, PROGRESS, TURNAROUND_S};
use quell_record::result::Ratio;
use quell_types::options::SchedulerPolicy;
use quell_types::stats::{Interval, bootstrap, mean, median, ratios};

use crate::aggregate::{Rules, tidy};
use crate::collect::Collected;

/// One program's first run in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fared {
    /// Instructions per cycle on a CPU.
    pub ipc: f64,
    /// The same where it runs alone.
    pub ipc_alone: f64,
    /// Its time alone ÷ its time here.
    pub progress: f64,
    /// Seconds from its beginning to its end.
    pub turnaround_s: f64,
}

/// The figures, by name.
type Figures = BTreeMap<&'static str, f64>;

/// The figures of one round; `None` without programs.
fn of_round(all: &[Fared]) -> Option<Figures> {
    let each = |pick: fn(&Fared) -> f64| -> Vec<f64> { all.iter().map(pick).collect() };
    let most = |of: &[f64]| of.iter().copied().max_by(f64::total_cmp);
    let least = |of: &[f64]| of.iter().copied().min_by(f64::total_cmp);
    let (progress, took) = (each(|f| f.progress), each(|f| f.turnaround_s));
    let slowed: f64 = each(|f| f.ipc_alone / f.ipc).iter().sum();
    Some(BTreeMap::from([
        ("avg_ipc", mean(&each(|f| f.ipc))?),
        ("hm_weighted_ipc", all.len() as f64 / slowed),
        ("stp", progress.iter().sum()),
        ("unfairness", most(&progress)? / least(&progress)?),
        ("turnaround_s", mean(&took)?),
        ("last_s", most(&took)?),
    ]))
}

/// One configuration, round by round: what each program did. Rounds that were not measured are
/// empty.
pub(crate) type Rounds = Vec<Vec<Fared>>;

fn over(values: &[f64], rules: Rules) -> (Option<f64>, Option<Interval>) {
    let interval = bootstrap(values, median, rules.confidence, rules.seed);
    let interval = interval.map(|i| Interval::from([tidy(i.low), tidy(i.high)]));
    (median(values).map(tidy), interval)
}

/// The figures of a configuration over all its programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Together {
    /// By name.
    pub figures: BTreeMap<String, Ratio>,
    /// Other configuration → name → the figure here ÷ there. Of `unfairness` what is beyond 1.
    pub against: BTreeMap<String, BTreeMap<String, Ratio>>,
}

/// The figures over all rounds, and against other configurations of the same programs, round by
/// round.
pub(crate) fn together(
    rounds: &Rounds,
    others: &BTreeMap<String, Rounds>,
    rules: Rules,
) -> Option<Together> {
    let column = |of: &Rounds, name: &str| -> Vec<Option<f64>> {
        let figures = of.iter().map(|round| of_round(round));
        figures.map(|figures| figures?.get(name).copied()).collect()
    };
    let names = rounds.iter().find_map(|round| of_round(round))?;
    let mut all = Together::default();
    for name in names.into_keys() {
        let own = column(rounds, name);
        let values: Vec<f64> = own.iter().copied().flatten().collect();
        let (value, ci95) = over(&values, rules);
        all.figures.insert(name.to_owned(), Ratio { value, ci95 });
        for (other, theirs) in others {
            let beyond = if name == "unfairness" { 1.0 } else { 0.0 };
            let less = |of: &[Option<f64>]| -> Vec<Option<f64>> {
                of.iter()
                    .map(|value| value.map(|value| value - beyond))
                    .collect()
            };
            let quotients = ratios(&less(&own), &less(&column(theirs, name)));
            let (value, ci95) = over(&quotients, rules);
            let against = all.against.entry(other.clone()).or_default();
            against.insert(name.to_owned(), Ratio { value, ci95 });
        }
    }
    Some(all)
}

impl Collected<'_> {
    /// How recorded programs fared together; `None` where others run, too.
    pub(crate) fn together(&self, index: usize, seed: u64) -> Option<Together> {
        let experiment = self.setup.experiment;
        let prepared = self.setup.prepared.get(index)?;
        if experiment.measure.until != Some(Until::AllOnce) || prepared.configuration.alone {
            return None;
        }
        let taking_part = |of: &Configuration| -> Vec<usize> {
            let all = self.setup.instances.iter().enumerate();
            all.filter(|(_, i)| of.has(i))
                .map(|(index, _)| index)
                .collect()
        };
        let programs = taking_part(prepared.configuration);
        let fared = |configuration: usize, subject: usize, round: usize| {
            let taken = self.at(configuration, subject, round)?;
            let mean = |metric: &str| taken.metrics.get(metric).map(|round| round.mean);
            Some(Fared {
                ipc: mean(IPC)?,
                ipc_alone: mean(IPC_ALONE)?,
                progress: mean(PROGRESS)?,
                turnaround_s: mean(TURNAROUND_S)?,
            })
        };
        let rounds = |configuration: usize| -> Rounds {
            let rounds = 0..self.rounds as usize;
            let all = |round| {
                programs
                    .iter()
                    .map(move |s| fared(configuration, *s, round))
            };
            // A round that lacks a program has no figures over all of them.
            rounds
                .map(|round| all(round).collect::<Option<_>>().unwrap_or_default())
                .collect()
        };
        // What any policy is compared with: the kernel's, and chance.
        let control = |plan: &Plan| {
            plan.steps.iter().any(|step| {
                let Setting::Schedule(by) = &step.set else {
                    return false;
                };
                let of = [SchedulerPolicy::Linux, SchedulerPolicy::Random];
                of.contains(&by.policy)
            })
        };
        let others = self.setup.prepared.iter().enumerate().filter(|(other, p)| {
            *other != index
                && p.plan.as_ref().is_ok_and(control)
                && taking_part(p.configuration) == programs
        });
        let others = others.map(|(other, p)| (p.name().to_owned(), rounds(other)));
        let rules = Rules {
            better: None,
            confidence: experiment.measure.confidence,
            seed,
        };
        together(&rounds(index), &others.collect(), rules)
    }
}

#[cfg(test)]
mod tests {
    use quell_types::stats::Better;

    use super::*;

    const RULES: Rules = Rules {
        better: Some(Better::Higher),
        confidence: 0.95,
        seed: 1,
    };

    fn fared(ipc: f64, progress: f64) -> Fared {
        Fared {
            ipc,
            ipc_alone: 2.0,
            progress,
            turnaround_s: 10.0 / progress,
        }
    }

    #[test]
    fn figures_over_programs_are_those_of_their_definitions() {
        let rounds = vec![vec![fared(1.0, 0.5), fared(2.0, 0.25)], Vec::new()];
        let all = together(&rounds, &BTreeMap::new(), RULES).unwrap();
        let value = |name: &str| all.figures[name].value.unwrap();
        assert_eq!((value("avg_ipc"), value("stp")), (1.5, 0.75));
        assert_eq!(value("hm_weighted_ipc"), tidy(2.0 / 3.0));
        assert_eq!((value("unfairness"), value("last_s")), (2.0, 40.0));
        assert_eq!(value("turnaround_s"), 30.0);
        assert_eq!(together(&vec![Vec::new()], &BTreeMap::new(), RULES), None);
    }

    #[test]
    fn configurations_are_compared_round_by_round() {
        let rounds = vec![vec![fared(1.0, 0.5)], vec![fared(3.0, 0.5)]];
        let others = vec![vec![fared(0.5, 0.5)], vec![fared(1.5, 0.5)]];
        let others = BTreeMap::from([("linux".to_owned(), others)]);
        let all = together(&rounds, &others, RULES).unwrap();
        let ratio = &all.against["linux"]["avg_ipc"];
        assert_eq!(ratio.value, Some(2.0));
        assert_eq!(
            ratio.ci95.as_ref().map(|i| (i.low, i.high)),
            Some((2.0, 2.0))
        );
    }
}
