//! What an experiment becomes on this machine, before anything runs: the chosen configurations, the
//! CPUs of each subject, and each configuration's plan or refusals.

use std::collections::BTreeMap;

use quell_plan::Plan;
use quell_plan::inventory::Inventory;
use quell_policy::experiment::{
    Configuration, Each, Experiment, Instance, Measure, Pin, Span as Wanted, Until,
};
use quell_policy::{CpusWanted, Policy, Role};
use quell_record::attribution::ACCOUNT_ENV;
use quell_record::backend::{Program, SubjectSpec};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::refusal::Refusal;
use quell_types::text::suggestion;
use quell_types::units::Nanos;

use crate::cell::{Extract, Member, Span};
use crate::compare::{CompareError, PlanFn};
use crate::place::{Cpus, Wish, place};

/// A configuration that is ready to be run, or refused.
pub(crate) struct Prepared<'e> {
    pub(crate) configuration: &'e Configuration,
    /// Its policy, with the subjects' CPUs filled in.
    pub(crate) policy: Policy,
    pub(crate) plan: Result<Plan, Vec<Refusal>>,
}

impl Prepared<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.configuration.name
    }
}

/// How a subject takes part in a cell.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Whether the cell lasts until it is done.
    decides: bool,
    /// Whether a command that ends before the cell does is started again.
    again: bool,
    /// Whether it runs alone in the cell.
    alone: bool,
}

/// The experiment on this machine.
pub(crate) struct Setup<'e> {
    pub(crate) experiment: &'e Experiment,
    pub(crate) instances: Vec<Instance<'e>>,
    /// The CPUs of every pinned instance, by its name.
    pub(crate) places: BTreeMap<String, CpuSet>,
    pub(crate) prepared: Vec<Prepared<'e>>,
    /// The two CPUs between which the canary probes for a shared cache. `None`: no canary.
    pub(crate) canary: Option<(CpuId, CpuId)>,
    pub(crate) span: Span,
}

impl<'e> Setup<'e> {
    pub(crate) fn new(
        experiment: &'e Experiment,
        machine: &Inventory,
        plan: &PlanFn<'_>,
        only: &[String],
        no_huge_pages: Option<&Refusal>,
    ) -> Result<Self, CompareError> {
        let refused = experiment.not_yet();
        if !refused.is_empty() {
            return Err(CompareError::NotYet(refused));
        }
        let instances = experiment.instances();
        let wishes: Vec<Wish> = instances.iter().filter_map(wish).collect();
        let places = place(&wishes, machine)?;
        let prepared = chosen(experiment, only)?
            .into_iter()
            .map(|configuration| {
                let mut policy = configuration.policy.clone();
                confine(&mut policy, configuration, &instances, &places);
                let huge = no_huge_pages.filter(|_| configuration.wants_huge_pages(&instances));
                let plan = match huge {
                    Some(refusal) => Err(vec![refusal.clone()]),
                    None => plan(&policy, machine),
                };
                Prepared {
                    configuration,
                    policy,
                    plan,
                }
            })
            .collect();
        let canary = experiment
            .measure
            .canary
            .and_then(|_| apart(&instances, &places));
        Ok(Self {
            experiment,
            instances,
            places,
            prepared,
            canary,
            span: span(&experiment.measure),
        })
    }

    /// The cells of one round: the index of the configuration, and of the subject that runs alone.
    pub(crate) fn cells(&self) -> Vec<(usize, Option<usize>)> {
        let mut cells = Vec::new();
        for (index, prepared) in self.prepared.iter().enumerate() {
            match (&prepared.plan, prepared.configuration.alone) {
                (Err(_), _) => {}
                (Ok(_), true) => {
                    let all = self.instances.iter().enumerate();
                    let here = all.filter(|(_, i)| prepared.configuration.has(i));
                    cells.extend(here.map(|(s, _)| (index, Some(s))));
                }
                (Ok(_), false) => cells.push((index, None)),
            }
        }
        cells
    }

    /// The members of one cell of this configuration.
    pub(crate) fn members(
        &self,
        configuration: &Configuration,
        alone: Option<usize>,
    ) -> Vec<Member> {
        let until_all = self.experiment.measure.until == Some(Until::AllOnce);
        let critical = self
            .instances
            .iter()
            .any(|i| i.subject.role == Role::Critical);
        self.instances
            .iter()
            .enumerate()
            .filter(|(index, _)| alone.is_none_or(|a| a == *index))
            .filter(|(_, instance)| configuration.has(instance))
            .map(|(_, instance)| {
                let decides = alone.is_some()
                    || until_all
                    || !critical
                    || instance.subject.role == Role::Critical;
                let again = instance.subject.command.is_some()
                    && alone.is_none()
                    && (until_all || !decides);
                let turn = Turn {
                    decides,
                    again,
                    alone: alone.is_some(),
                };
                self.member(configuration, instance, turn)
            })
            .collect()
    }

    fn member(&self, configuration: &Configuration, instance: &Instance<'_>, turn: Turn) -> Member {
        let subject = instance.subject;
        let program = match (configuration.run(instance), &subject.command) {
            (Some(run), _) => Program::Generator(run.clone()),
            (None, command) => Program::Command(command.clone().unwrap_or_default()),
        };
        let after = subject.start.as_ref().filter(|_| !turn.alone).map(|start| {
            let first = start.after.as_deref().unwrap_or(&instance.name);
            // Of several copies, the first one.
            let first = self
                .experiment
                .subjects
                .get(first)
                .filter(|s| s.copies > 1)
                .map_or_else(|| first.to_owned(), |_| format!("{first}.1"));
            (first, start.delay.unwrap_or(Nanos(0)))
        });
        let primary = subject.primary();
        Member {
            spec: SubjectSpec {
                name: instance.name.clone(),
                group: configuration.group(instance).to_owned(),
                program,
                cpus: self.places.get(&instance.name).cloned(),
                env: accounted(configuration, instance).into_iter().collect(),
                capture: true,
            },
            decides: turn.decides,
            after: after.filter(|(first, _)| *first != instance.name),
            again: turn.again,
            extracts: subject
                .metric
                .iter()
                .map(|(name, metric)| Extract {
                    name: name.clone(),
                    pattern: metric.pattern.clone(),
                    last_only: metric.each == Each::Run,
                    required: name == primary,
                })
                .collect(),
        }
    }
}

/// The variable that makes a critical generator account for its units. `None` for one with a rate,
/// which waits on purpose.
fn accounted(configuration: &Configuration, instance: &Instance<'_>) -> Option<(String, String)> {
    let run = configuration.run(instance)?;
    (instance.subject.role == Role::Critical && run.rate().is_none())
        .then(|| (ACCOUNT_ENV.to_owned(), "1".to_owned()))
}

fn wish(instance: &Instance<'_>) -> Option<Wish> {
    let cpus = match instance.subject.cpus.as_ref()? {
        Pin::Count(count) => Cpus::Count(*count),
        Pin::List(list) => Cpus::These(list.clone()),
        Pin::With(subject) => Cpus::With(subject.clone()),
        Pin::SiblingOf(subject) => Cpus::SiblingOf(subject.clone()),
    };
    Some(Wish {
        name: instance.name.clone(),
        group: instance.group.to_owned(),
        role: instance.subject.role,
        cpus,
    })
}

/// Confines a group to the CPUs of its subjects, if it is confined at all. What a configuration
/// takes or grants must not depend on how many other CPUs the machine has.
fn confine(
    policy: &mut Policy,
    configuration: &Configuration,
    instances: &[Instance<'_>],
    places: &BTreeMap<String, CpuSet>,
) {
    for (name, group) in &mut policy.groups {
        let members = instances.iter().filter(|i| configuration.group(i) == name);
        let members: Vec<_> = members.collect();
        let pinned: Option<Vec<&CpuSet>> = members.iter().map(|i| places.get(&i.name)).collect();
        let Some(pinned) = pinned.filter(|p| !p.is_empty()) else {
            continue;
        };
        let all = pinned.iter().fold(CpuSet::new(), |all, p| all.union(p));
        let here = match &group.cpus {
            Some(CpusWanted::Count(count)) => *count as usize == all.len(),
            Some(CpusWanted::Auto | CpusWanted::Remaining) => true,
            // A limit becomes budgets per CPU. Spread over CPUs on which nothing runs it would
            // grant less than it says.
            Some(CpusWanted::Any) | None => !group.limit.is_empty(),
            Some(CpusWanted::List(_)) => false,
        };
        if here {
            group.cpus = Some(CpusWanted::List(all));
        }
    }
}

/// The configurations asked for: by name, by family, or by a pattern. The baseline is always
/// included.
///
/// # Errors
/// [`CompareError::Unknown`].
pub fn chosen<'e>(
    experiment: &'e Experiment,
    only: &[String],
) -> Result<Vec<&'e Configuration>, CompareError> {
    let all = experiment.configurations();
    let family = |c: &'e Configuration| c.family.as_deref().unwrap_or(&c.name);
    let matches = |c: &'e Configuration, wanted: &str| family(c) == wanted || fits(&c.name, wanted);
    for name in only {
        if !all.iter().any(|c| matches(c, name)) {
            let known: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
            let families = all.iter().map(family);
            return Err(CompareError::Unknown {
                name: name.clone(),
                close: suggestion(name, known.iter().copied().chain(families))
                    .map_or_else(String::new, |close| format!(" (did you mean '{close}'?)")),
                known: known.join(", "),
            });
        }
    }
    Ok(all
        .iter()
        .filter(|c| {
            only.is_empty()
                || only.iter().any(|name| matches(c, name))
                || experiment.baseline() == Some(&c.name)
        })
        .collect())
}

/// Whether a name fits a pattern. `*` stands for any text, `?` for one character. `{AXIS}`, as in
/// the experiment's own `name`, stands for any value.
fn fits(name: &str, pattern: &str) -> bool {
    let mut wanted = pattern.chars();
    match wanted.next() {
        None => name.is_empty(),
        Some(first) => {
            let rest = match first {
                '{' => pattern.split_once('}').map(|(_, rest)| rest),
                '*' => Some(wanted.as_str()),
                _ => None,
            };
            if let Some(rest) = rest {
                let mut tails = name.char_indices().map(|(at, _)| &name[at..]);
                return tails.any(|tail| fits(tail, rest)) || fits("", rest);
            }
            let mut given = name.chars();
            given.next().is_some_and(|c| first == '?' || c == first)
                && fits(given.as_str(), wanted.as_str())
        }
    }
}

/// The first CPU of the first subject, and that of the first subject that runs on another CPU.
fn apart(instances: &[Instance<'_>], places: &BTreeMap<String, CpuSet>) -> Option<(CpuId, CpuId)> {
    let mut firsts = instances
        .iter()
        .filter_map(|i| places.get(&i.name).and_then(CpuSet::first));
    let first = firsts.next()?;
    firsts
        .find(|other| *other != first)
        .map(|other| (first, other))
}

fn span(measure: &Measure) -> Span {
    let duration = match measure.span() {
        Wanted::Duration(duration) => duration,
        Wanted::Units(_) | Wanted::Until(_) => Nanos::secs(1),
    };
    Span {
        warmup: measure.warmup,
        duration,
        runs: measure.until == Some(Until::AllOnce),
        longest: measure.longest,
    }
}

#[cfg(test)]
mod tests {
    use quell_policy::workload::Workload;
    use quell_types::units::Rate;

    use super::*;

    #[test]
    fn names_are_chosen_by_patterns() {
        let name = "regulated@10%";
        for pattern in [
            "regulated@10%",
            "regulated@*",
            "*10%",
            "*",
            "reg*@1?%",
            "regulated@{cap}",
        ] {
            assert!(fits(name, pattern), "{pattern}");
        }
        for pattern in ["regulated", "regulated@", "regulated@?", "{cap}@", "x*", ""] {
            assert!(!fits(name, pattern), "{pattern}");
        }
        assert!(fits("", "*") && fits("", ""));
    }

    #[test]
    fn a_critical_generator_without_a_rate_accounts_for_its_units() {
        let text = Experiment::builtin("neighbour").unwrap();
        let mut experiment = Experiment::parse(text, "neighbour.toml").unwrap();
        let all = |experiment: &Experiment| {
            let configuration = &experiment.configurations[0];
            let instances = experiment.instances();
            let each = instances.iter().map(|i| accounted(configuration, i));
            instances
                .iter()
                .map(|i| i.name.clone())
                .zip(each)
                .collect::<BTreeMap<_, _>>()
        };
        let asked = Some(("QUELL_ACCOUNT".to_owned(), "1".to_owned()));
        assert_eq!(all(&experiment)["victim"], asked);
        assert_eq!(all(&experiment)["neighbour"], None);
        let victim = experiment.subjects.get_mut("victim").unwrap();
        let run: Workload = "bandwidth:read".parse().unwrap();
        victim.run = Some(run.at(Some(Rate(1_000_000_000))));
        assert_eq!(all(&experiment)["victim"], None);
    }
}
