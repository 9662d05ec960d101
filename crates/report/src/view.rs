//! Which parts of a result are shown, and under which names: the protected subject, the paying one,
//! the unprotected configuration, and a subject's main figures.

use quell_policy::Role;
use quell_record::events::{Event, Record};
use quell_record::result::{CompareResult, ConfigurationResult, Figures, Subset};
use quell_types::mechanism::Mechanism;
use quell_types::stats::Better;
use quell_types::stats::Interval;

/// A figure with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) value: f64,
    pub(crate) ci: Option<Interval>,
}

/// The stretch of a record in which one configuration was held for the first time. A run has only
/// one: all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell<'r> {
    /// The configuration. `None` where nothing was compared.
    pub(crate) configuration: Option<&'r str>,
    /// Its begin in nanoseconds on the record's clock.
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    last: bool,
}

impl Cell<'_> {
    /// Whether a moment lies in it. What begins the next cell belongs to that.
    pub(crate) fn has(&self, at_ns: u64) -> bool {
        at_ns >= self.from_ns && (at_ns < self.until_ns || self.last)
    }

    pub(crate) fn is_of(&self, configuration: &str) -> bool {
        self.configuration == Some(configuration)
    }
}

/// The cells of the first round.
pub(crate) fn cells(record: &Record) -> Vec<Cell<'_>> {
    let end = record.events.last().map_or(0, |e| e.at_ns);
    if record.result.is_none() {
        return vec![Cell {
            configuration: None,
            from_ns: 0,
            until_ns: end,
            last: true,
        }];
    }
    let begins = record.events.iter().filter_map(|e| match &e.event {
        Event::Cell {
            round,
            configuration,
            ..
        } => Some((e.at_ns, *round, configuration.as_str())),
        _ => None,
    });
    let begins: Vec<(u64, u32, &str)> = begins.collect();
    let nexts = begins.iter().skip(1).map(|next| Some(next.0));
    let both = begins.iter().zip(nexts.chain([None]));
    both.filter(|((_, round, _), _)| *round == 0)
        .map(|((from_ns, _, configuration), next)| Cell {
            configuration: Some(configuration),
            from_ns: *from_ns,
            until_ns: next.unwrap_or(end),
            last: next.is_none(),
        })
        .collect()
}

/// A result over a subset of its rounds.
#[derive(Clone, Copy)]
pub(crate) struct View<'r> {
    pub(crate) result: &'r CompareResult,
    pub(crate) subset: Subset,
    pub(crate) protected: &'r str,
    pub(crate) pays: Option<&'r str>,
}

impl<'r> View<'r> {
    /// `None` for a result without subjects.
    pub(crate) fn new(result: &'r CompareResult, subset: Subset) -> Option<Self> {
        let subjects = &result
            .configurations
            .iter()
            .find(|c| !c.subjects.is_empty())?
            .subjects;
        let (protected, pays) = match &result.frontier {
            Some(frontier) => (frontier.protected.as_str(), Some(frontier.pays.as_str())),
            None => {
                let protected = subjects
                    .iter()
                    .find(|s| s.role == Role::Critical)
                    .or(subjects.first())?;
                let pays = subjects
                    .iter()
                    .find(|s| s.name != protected.name && s.role == Role::BestEffort);
                (protected.name.as_str(), pays.map(|s| s.name.as_str()))
            }
        };
        Some(Self {
            result,
            subset,
            protected,
            pays,
        })
    }

    pub(crate) fn is_baseline(&self, configuration: &ConfigurationResult) -> bool {
        self.result.baseline.as_ref() == Some(&configuration.name)
    }

    /// The subject's figures over this view's rounds.
    pub(crate) fn figures<'c>(
        &self,
        configuration: &'c ConfigurationResult,
        subject: &str,
    ) -> Option<&'c Figures> {
        configuration.subject(subject)?.over(self.subset)
    }

    /// The protected subject by itself, over all rounds: alone it shares nothing.
    pub(crate) fn solo<'c>(&self, baseline: &'c ConfigurationResult) -> Option<&'c Figures> {
        Some(&baseline.subject(self.protected)?.figures)
    }

    pub(crate) fn protected<'c>(
        &self,
        configuration: &'c ConfigurationResult,
    ) -> Option<&'c Figures> {
        self.figures(configuration, self.protected)
    }

    /// The part of its solo rate that the paying subject keeps.
    pub(crate) fn kept(&self, configuration: &ConfigurationResult) -> Option<f64> {
        self.figures(configuration, self.pays?)?.normalized
    }

    /// Where that part lies, over the rounds.
    pub(crate) fn kept_within(&self, configuration: &ConfigurationResult) -> Option<Interval> {
        self.figures(configuration, self.pays?)?.normalized_ci95
    }

    /// The protected subject's metric.
    pub(crate) fn metric(&self) -> &'r str {
        self.result
            .configurations
            .iter()
            .find_map(|c| c.subject(self.protected))
            .map_or("", |s| s.metric.as_str())
    }

    /// The good direction of the protected subject's metric.
    pub(crate) fn better(&self) -> Option<Better> {
        let of = |c: &ConfigurationResult| c.subject(self.protected).map(|s| s.better);
        self.result.configurations.iter().find_map(of)
    }

    /// The configuration in which both run and nothing is done.
    pub(crate) fn unprotected(&self) -> Option<&'r ConfigurationResult> {
        self.result
            .configurations
            .iter()
            .find(|c| c.mechanisms.is_empty() && c.refused.is_empty() && !self.is_baseline(c))
    }

    pub(crate) fn baseline(&self) -> Option<&'r ConfigurationResult> {
        self.result.configuration(self.result.baseline.as_deref()?)
    }

    /// Configurations that protect by what Quell adds, not by Linux' own CPU-time quota.
    pub(crate) fn protecting(&self) -> impl Iterator<Item = &'r ConfigurationResult> {
        let baseline = self.result.baseline.clone();
        self.result.configurations.iter().filter(move |c| {
            !c.mechanisms.is_empty()
                && !c.mechanisms.contains(&Mechanism::CpuMax)
                && Some(&c.name) != baseline.as_ref()
        })
    }
}

/// Solo speed kept at the median: of the windows where there are any, else of the runs.
pub(crate) fn median_kept(figures: &Figures) -> Option<Spread> {
    match figures.normalized_p50 {
        Some(value) => Some(Spread {
            value,
            ci: figures.normalized_p50_ci95,
        }),
        None => figures.normalized.map(|value| Spread {
            value,
            ci: figures.normalized_ci95,
        }),
    }
}

/// Solo speed kept at the 99th percentile.
pub(crate) fn tail_kept(figures: &Figures) -> Option<Spread> {
    figures.normalized_p99.map(|value| Spread {
        value,
        ci: figures.normalized_p99_ci95,
    })
}

/// The value at the median: of the windows where there are any, else of the runs.
pub(crate) fn middle(figures: &Figures) -> Option<f64> {
    figures.p50.or(figures.value)
}
