//! `quell profile --probe`: how much slower the program gets beside a neighbour, one resource at a
//! time. Each resource is an ordinary experiment written from the options, the pressure its axis,
//! and run as `quell compare` runs any: rounds interleave, intervals are over rounds, every cell is
//! undone.

use std::fmt::Write;
use std::num::NonZeroUsize;

use quell_plan::inventory::Inventory;
use quell_policy::workload::{BANDWIDTH_MB_S, Workload};
use quell_record::demand::{Pressed, Sensitivity, Subject};
use quell_record::result::CompareResult;
use quell_types::stats::Interval;
use quell_types::units::{Nanos, Rate};

use crate::exit::{Result, failed};
use crate::target::On;

use super::args::Profile as Args;
use super::written::{ALONE, Head, PROGRAM, head, measured, pinned, quoted, table};

const NEIGHBOUR: &str = "neighbour";
/// Load before a span on a simulated machine.
const SIMULATED_WARMUP: Nanos = Nanos::millis(5);
/// A neighbour's rate, in percent of what one CPU alone was measured to reach with that operation.
const RATES: [f64; 5] = [10.0, 30.0, 50.0, 70.0, 90.0];
/// The size of a neighbour's list, in last-level caches.
const SIZES: [&str; 3] = ["0.25LLC", "0.5LLC", "1LLC"];

/// One resource: who presses on it, and how hard.
struct Press {
    resource: &'static str,
    neighbour: &'static str,
    /// What is varied of the neighbour, and the values; none: it is as it is.
    axis: Option<(&'static str, Vec<String>)>,
    /// What to say of each pressure.
    labels: Vec<String>,
    /// Where the program and its neighbour run; absent: on CPUs of their own.
    pins: Option<(u32, u32)>,
    skipped: Option<String>,
}

/// What the program suffers from each resource.
pub fn probe(args: &Args, subject: &Subject) -> Result<Vec<Sensitivity>> {
    if args.on == On::Linux {
        crate::status::settle()?;
    }
    let (_, machine) = args.on.measured(args.seed, NonZeroUsize::MIN)?;
    let mut all = Vec::new();
    for press in presses(&machine, args.cpus.as_ref().and_then(|c| c.first())) {
        let mut found = Sensitivity {
            resource: press.resource.to_owned(),
            neighbour: press.neighbour.to_owned(),
            metric: None,
            pressed: Vec::new(),
            skipped: press.skipped.clone(),
        };
        if found.skipped.is_none() {
            let result = pressed(args, subject, &press)?;
            found.metric = metric(&result);
            found.pressed = slowdowns(&result, &press);
        }
        all.push(found);
    }
    Ok(all)
}

/// Cells of a round that [`probe`] measures on a machine, its rates measured or not yet.
pub fn cells(machine: &Inventory) -> u32 {
    let cells = |press: &Press| match press.resource {
        "reads" | "writes" if machine.measured.is_none() && machine.cpus.len() > 1 => {
            1 + RATES.len()
        }
        _ if press.skipped.is_some() => 0,
        _ => 1 + press.labels.len(),
    };
    let all: usize = presses(machine, None).iter().map(cells).sum();
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// The resources of a machine. `on`: where the program is to run.
fn presses(machine: &Inventory, on: Option<u32>) -> Vec<Press> {
    let alone = (machine.cpus.len() < 2)
        .then(|| "there is one CPU only, which a neighbour would have to share".to_owned());
    let stream = |resource, neighbour, operation: &str| {
        let measured = machine.measured.as_ref();
        let full = measured.and_then(|m| m.by_operation.get(operation));
        let at = |full: &Rate, percent: f64| Rate::measured(full.0 as f64 * percent / 100.0);
        let rates: Vec<Rate> =
            full.map_or_else(Vec::new, |full| RATES.map(|p| at(full, p)).to_vec());
        let label =
            |(rate, percent): (&Rate, f64)| format!("{rate}, {percent:.0} % of {operation}s");
        let none = || format!("the rate of a {operation} stream was not measured");
        Press {
            resource,
            neighbour,
            labels: rates.iter().zip(RATES).map(label).collect(),
            skipped: alone.clone().or_else(|| full.is_none().then(none)),
            axis: Some(("rate", rates.iter().map(ToString::to_string).collect())),
            pins: None,
        }
    };
    let sibling = machine.cpus.iter().find_map(|cpu| {
        let other = cpu.siblings.iter().find(|other| *other != cpu.id)?;
        on.is_none_or(|on| on == cpu.id).then_some((cpu.id, other))
    });
    vec![
        Press {
            resource: "cache",
            neighbour: "latency:random",
            labels: SIZES.map(str::to_owned).to_vec(),
            axis: Some(("size", SIZES.map(str::to_owned).to_vec())),
            pins: None,
            skipped: alone.clone(),
        },
        stream("reads", "bandwidth:read", "read"),
        stream("writes", "bandwidth:write", "write"),
        Press {
            resource: "sibling",
            neighbour: "cache-churn:size=1 L1",
            axis: None,
            labels: vec!["on the other thread of its core".to_owned()],
            pins: sibling,
            skipped: sibling.is_none().then(|| {
                "no CPU here has a sibling thread that the program could run beside".to_owned()
            }),
        },
    ]
}

fn pressed(args: &Args, subject: &Subject, press: &Press) -> Result<CompareResult> {
    measured(args, "probe", &written(args, subject, press)?)
}

/// The experiment: the program alone, and beside the neighbour at each pressure.
fn written(args: &Args, subject: &Subject, press: &Press) -> Result<String> {
    let neighbour: Workload = press
        .neighbour
        .parse()
        .map_err(|e| failed(format!("{}: {e}", press.neighbour)))?;
    let (own, others) = match (press.pins, &args.cpus) {
        (Some((own, others)), _) => (format!("\"{own}\""), format!("\"{others}\"")),
        (None, _) => (pinned(args), "1".to_owned()),
    };
    let mut text = head(
        args,
        subject,
        &Head {
            name: "probe",
            cpus: &own,
            simulated_warmup: SIMULATED_WARMUP,
        },
    )?;
    let _ = write!(
        text,
        "[subject.{NEIGHBOUR}]\nrole = \"best-effort\"\ncpus = {others}\nrun  = {}\n\n\
         [configuration.{ALONE}]\nalone = true\n\n[configuration.beside]\n",
        table(&neighbour)?
    );
    if let Some((key, values)) = &press.axis {
        text.push_str("name = \"beside@{pressure}\"\n[configuration.beside.axis.pressure]\n");
        for value in values {
            let value = quoted(value);
            let _ = writeln!(
                text,
                "{value} = {{ subject.{NEIGHBOUR}.run.{key} = {value} }}"
            );
        }
    }
    Ok(text)
}

fn metric(result: &CompareResult) -> Option<String> {
    let mut all = result.configurations.iter();
    all.find_map(|c| c.subject(PROGRAM))
        .map(|s| s.metric.clone())
}

/// The configurations but the baseline, in the order they were written in.
fn slowdowns(result: &CompareResult, press: &Press) -> Vec<Pressed> {
    let beside = result.configurations.iter().filter(|c| c.name != ALONE);
    let all = beside
        .zip(&press.labels)
        .filter_map(|(configuration, label)| {
            let figures = &configuration.subject(PROGRAM)?.figures;
            let neighbour = configuration.subject(NEIGHBOUR);
            let reached = neighbour.filter(|n| n.metric == BANDWIDTH_MB_S);
            Some(Pressed {
                pressure: label.clone(),
                reached_mb_s: reached.and_then(|n| n.figures.value),
                slowdown: figures.normalized.filter(|n| *n > 0.0).map(|n| 1.0 / n)?,
                ci95: figures
                    .normalized_ci95
                    .filter(|ci| ci.low > 0.0)
                    .map(|ci| Interval::from([1.0 / ci.high, 1.0 / ci.low])),
            })
        });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use quell_plan::inventory::Measured;
    use quell_policy::experiment::Experiment;
    use quell_record::backend::{Backend, Probe};
    use quell_sim::Sim;
    use quell_sim::board::Board;
    use quell_sim::profile::Profile;

    fn args(options: &[&str]) -> Args {
        let all = ["quell", "profile"].iter().chain(options);
        match crate::args::Args::parse_from(all).command {
            crate::args::Command::Profile(args) => args,
            other => panic!("not a profile: {other:?}"),
        }
    }

    fn machine(profile: &str) -> Inventory {
        let board = Board::of(Profile::built_in(profile).unwrap()).unwrap();
        let mut machine = Sim::new(board, 1).unwrap().inventory(Probe::Fast).unwrap();
        let rates = [
            ("read", Rate(8_300_000_000)),
            ("write", Rate(3_900_000_000)),
        ];
        machine.measured = Some(Measured {
            peak_cpu: rates[0].1,
            peak_operation: "read".to_owned(),
            by_operation: rates.map(|(name, rate)| (name.to_owned(), rate)).into(),
            sustainable: rates[0].1,
            cpus: 4,
            stop_cost: None,
            operations: Vec::new(),
            counters: std::collections::BTreeMap::new(),
            mba: None,
            within_cache: None,
            rest: None,
            cache_steps: None,
            at_unix_s: 0,
            deep: None,
            assumed: false,
        });
        machine
    }

    #[test]
    fn every_press_is_an_experiment_that_we_read() {
        let args = args(&["--probe", "--", "./job", "a \"b\""]);
        let subjects = [
            super::super::subject(&args).unwrap(),
            Subject::Generator {
                run: "frames-call".parse().unwrap(),
            },
        ];
        for (subject, press) in subjects.iter().flat_map(|s| {
            presses(&machine("xeon-e5645"), None)
                .into_iter()
                .map(move |p| (s, p))
        }) {
            assert_eq!(press.skipped, None, "{}", press.resource);
            let text = written(&args, subject, &press).unwrap();
            let experiment =
                Experiment::parse(&text, "probe.toml").unwrap_or_else(|e| panic!("{e:?}\n{text}"));
            assert_eq!(
                experiment.configurations().len(),
                1 + press.labels.len(),
                "{text}"
            );
            assert!(experiment.not_yet().is_empty(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_pressed_on_is_skipped_with_the_reason() {
        let skipped = |machine: &Inventory, on| -> Vec<String> {
            let all = presses(machine, on).into_iter();
            all.filter_map(|p| Some(format!("{}: {}", p.resource, p.skipped?)))
                .collect()
        };
        let mut four = machine("xeon-w3530");
        assert_eq!(
            skipped(&four, None),
            ["sibling: no CPU here has a sibling thread that the program could run beside"]
        );
        four.measured = None;
        assert!(skipped(&four, None)[0].contains("reads: the rate of a read stream"));
        four.cpus.truncate(1);
        assert!(skipped(&four, None)[0].contains("cache: there is one CPU only"));
        assert!(skipped(&machine("xeon-e5645"), Some(99)).len() == 1);
    }
}
