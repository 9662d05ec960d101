//! One look at a resource: its built-in experiment, run the way `quell compare` runs it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_policy::experiment::Experiment;
use quell_record::demo::{CONFIGURATIONS, Found, Resource, found};

use crate::compare::{Wanted, carry_out};
use crate::exit::{Exit, Failure, Result, failed};
use crate::target::On;

use super::budget::{LEAST, Pass, cells};

/// What a look came to.
#[derive(Debug)]
pub enum Came {
    /// Figures.
    Found(Box<Found>),
    /// None, and why.
    Nothing(String),
    /// It was ended by a signal, with what was found until then.
    Interrupted(String, Option<Box<Found>>),
}

/// What a look is taken with.
#[derive(Clone, Copy, Debug)]
pub struct With<'a> {
    /// The directory of its record; absent: no record.
    pub out: Option<&'a Path>,
    /// Neighbours sleep.
    pub control: bool,
    /// No further round begins after this, once there are enough. Absent: all rounds begin.
    pub until: Option<Instant>,
}

/// Takes a look. Also: how long a cell took.
pub fn examine(resource: Resource, pass: Pass, with: With<'_>) -> Result<(Came, Duration)> {
    let name = resource.experiment();
    let text = text(resource, with.control)?;
    let experiment = Experiment::parse(&text, name).map_err(|all| {
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        failed(lines.join("\n"))
    })?;
    let all = CONFIGURATIONS.map(str::to_owned);
    let only = if pass.quell { &all[..] } else { &all[..2] };
    let wanted = Wanted {
        rounds: Some(pass.rounds),
        only,
        out: with.out,
        quiet: true,
        time: with.until.map(|until| (until, LEAST)),
        ..Wanted::whole(&experiment, &text, name)
    };
    crate::status::settle()?;
    let on = On::Linux;
    let measured = on.measured(experiment.seed, NonZeroUsize::MIN);
    let begun = Instant::now();
    let done = measured.and_then(|(target, machine)| carry_out(&wanted, &on, target, machine));
    let took = begun.elapsed();
    let cell = |rounds: u32| took / (cells(pass.quell) * rounds).max(1);
    let comparison = match done {
        Ok(comparison) => comparison,
        Err(failure) => return stopped(failure).map(|came| (came, cell(pass.rounds))),
    };
    let cell = cell(comparison.result.rounds);
    let record = comparison.folder.as_ref().and_then(|f| f.file_name());
    let record = record.map(|name| name.to_string_lossy().into_owned());
    let result = &comparison.result;
    let found = found(resource, result, record).map(Box::new);
    let came = match (&result.interrupted, found, result.failures.first()) {
        (Some(why), found, _) => Came::Interrupted(why.clone(), found),
        (None, Some(found), _) => Came::Found(found),
        (None, None, Some(failure)) => Came::Nothing(failure.error.clone()),
        (None, None, None) => Came::Nothing(refused(result)),
    };
    Ok((came, cell))
}

/// A failure of one look is no failure of the others, unless a signal asked for the end.
fn stopped(failure: Failure) -> Result<Came> {
    match failure.exit {
        Exit::Status(_) => Ok(Came::Interrupted(failure.text, None)),
        _ => Ok(Came::Nothing(failure.text)),
    }
}

/// Why no configuration has figures.
fn refused(result: &quell_record::result::CompareResult) -> String {
    let mut all = result.configurations.iter().flat_map(|c| &c.refused);
    all.next().map_or_else(
        || "its rounds have too few values".to_owned(),
        ToString::to_string,
    )
}

/// The experiment as written; for a control, best-effort subjects sleep instead.
fn text(resource: Resource, control: bool) -> Result<String> {
    let text = Experiment::builtin(resource.experiment())
        .ok_or_else(|| failed(format!("{} is not built in", resource.experiment())))?;
    if control {
        asleep(text).map_err(failed)
    } else {
        Ok(text.to_owned())
    }
}

/// The same experiment with best-effort subjects that sleep.
fn asleep(text: &str) -> std::result::Result<String, toml::de::Error> {
    let mut whole: toml::Table = text.parse()?;
    let subjects = whole.get_mut("subject").and_then(toml::Value::as_table_mut);
    for (_, subject) in subjects.into_iter().flatten() {
        let Some(subject) = subject.as_table_mut() else {
            continue;
        };
        if subject.get("role").and_then(toml::Value::as_str) == Some("best-effort") {
            subject.remove("run");
            subject.remove("primary");
            let sleep = ["sleep", "0.5"].map(toml::Value::from).to_vec();
            subject.insert("command".to_owned(), sleep.into());
        }
    }
    Ok(whole.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_policy::Role;

    #[test]
    fn every_resource_has_an_experiment_with_three_configurations() {
        for resource in Resource::ALL {
            let text = text(resource, false).unwrap();
            let experiment = Experiment::parse(&text, resource.name()).unwrap();
            assert_eq!(experiment.name, resource.experiment());
            let names: Vec<&str> = experiment
                .configurations()
                .iter()
                .map(|c| c.name.as_str())
                .collect();
            assert_eq!(names, CONFIGURATIONS);
            let critical = experiment.subjects.values();
            let critical = critical.filter(|s| s.role == Role::Critical).count();
            assert_eq!(critical, 1, "{}", resource.name());
        }
    }

    #[test]
    fn in_a_control_the_neighbours_sleep_and_nothing_else_changes() {
        for resource in Resource::ALL {
            let plain = Experiment::parse(&text(resource, false).unwrap(), "e").unwrap();
            let control = Experiment::parse(&text(resource, true).unwrap(), "e").unwrap();
            assert_eq!(plain.measure, control.measure);
            assert_eq!(plain.bounds, control.bounds);
            for (name, subject) in &control.subjects {
                if subject.role == Role::Critical {
                    assert_eq!(Some(subject), plain.subjects.get(name));
                } else {
                    let command = subject.command.as_deref().unwrap_or_default();
                    assert_eq!(command, ["sleep", "0.5"], "{}", resource.name());
                }
            }
        }
    }
}
