//! `quell profile --sweep`: with how many ways or colours, or with which budget, the program keeps
//! its speed. A sweep is an experiment written from the options, the size its axis. Nothing else
//! differs between its configurations, and nothing else runs.

use std::fmt::Write;
use std::num::NonZeroUsize;

use quell_plan::inventory::{Inventory, MeterKind};
use quell_record::demand::{Goal, Judged, Needed, Point, Subject, Sweep, Swept};
use quell_record::result::{CompareResult, ConfigurationResult, Figures, Timing};
use quell_types::cpuset::CpuSet;
use quell_types::stats::{Better, Interval};
use quell_types::units::{Bytes, LINE_BYTES, Nanos, Share};

use crate::exit::{Result, failed, usage};
use crate::target::On;

use super::args::Profile as Args;
use super::sizes::{Size, Sizes, elsewhere, sizes};
use super::written::{ALONE, Head, PROGRAM, head, measured, pinned, quoted};

/// The configuration in which the program has everything, in a group.
const ALL: &str = "all";
/// The family of the configurations in which it has a size.
const PART: &str = "part";
/// The share of its speed that is kept unless the options say otherwise.
const KEEP: Share = Share::percent(95);
/// With fewer rounds there is no interval, and no size could be said to hold.
const LEAST_ROUNDS: u32 = 2;
/// What an access to memory takes at most, for how long a simulated cache takes to fill.
const ACCESS_NS: u64 = 150;

/// Refuses what cannot be swept, before anything is measured.
pub fn check(args: &Args, subject: &Subject) -> Result<()> {
    if args.sweep.is_empty() {
        return Ok(());
    }
    if let Some(share) = args.keep.filter(|s| *s == Share(0) || *s >= Share::WHOLE) {
        return Err(usage(format!(
            "--keep {share}: a share of its speed alone, above 0% and below 100%"
        )));
    }
    if args.rounds.is_some_and(|n| n < LEAST_ROUNDS) {
        return Err(usage(format!(
            "--sweep: a single round has no spread, so no size could be said to hold; --rounds {LEAST_ROUNDS} or more"
        )));
    }
    if matches!(subject, Subject::Tasks { .. }) {
        return Err(usage(
            "--sweep: what runs already cannot be run again with each size; give a generator, or a command after --",
        ));
    }
    let divided: Vec<Swept> = args.sweep.iter().copied().filter(is_divided).collect();
    if divided.is_empty() {
        return Ok(());
    }
    let machine = args.on.found(args.seed)?;
    for swept in divided {
        of_machine(swept, subject, &machine, &cpus(args))?;
    }
    Ok(())
}

/// Whether a part of a cache is meant. Budgets are judged once the rates are measured.
const fn is_divided(swept: &Swept) -> bool {
    !matches!(swept, Swept::Budgets)
}

/// As many CPUs as the program is pinned to.
fn cpus(args: &Args) -> CpuSet {
    let named = args.cpus.clone();
    named.unwrap_or_else(|| CpuSet::from_iter([0]))
}

fn of_machine(
    swept: Swept,
    subject: &Subject,
    machine: &Inventory,
    cpus: &CpuSet,
) -> Result<Sizes> {
    let found = sizes(swept, machine, cpus).and_then(|sizes| match sizes.parts.is_empty() {
        true => Err("there is nothing to divide in two".to_owned()),
        false => Ok(sizes),
    });
    found.map_err(|why| {
        let what = match swept {
            Swept::Ways => "divide a cache by ways",
            Swept::Colours => "divide a cache by page colours",
            Swept::Budgets => "size budgets of bandwidth",
        };
        usage(format!(
            "--sweep {swept}: this machine cannot {what}: {why};\n{}",
            elsewhere(swept, subject)
        ))
    })
}

/// Every sweep that the options ask for.
pub fn sweeps(args: &Args, subject: &Subject) -> Result<Vec<Sweep>> {
    if args.sweep.is_empty() {
        return Ok(Vec::new());
    }
    if args.on == On::Linux {
        crate::status::settle()?;
    }
    let one = |swept: &Swept| sweep(args, subject, *swept);
    args.sweep.iter().map(one).collect()
}

fn sweep(args: &Args, subject: &Subject, swept: Swept) -> Result<Sweep> {
    let (_, machine) = args.on.measured(args.seed, NonZeroUsize::MIN)?;
    let sizes = of_machine(swept, subject, &machine, &cpus(args))?;
    let text = written(args, subject, &sizes, largest_cache(&machine))?;
    let name = format!("sweep-{swept}");
    let result = measured(args, &name, &text)?;
    let goal = match args.within {
        Some(limit) => Goal::Within { limit, p99: false },
        None => Goal::Keep {
            share: args.keep.unwrap_or(KEEP),
        },
    };
    found(swept, &sizes, goal, &result)
}

fn largest_cache(machine: &Inventory) -> Bytes {
    machine
        .caches
        .iter()
        .map(|c| c.size)
        .max()
        .unwrap_or_default()
}

/// The experiment: the program alone, with everything in a group, and with each size.
fn written(args: &Args, subject: &Subject, sizes: &Sizes, cache: Bytes) -> Result<String> {
    // A list has gone through its cache once, each access a miss.
    let fills = Nanos(cache.0 / LINE_BYTES * ACCESS_NS);
    let mut text = head(
        args,
        subject,
        &Head {
            name: "sweep",
            cpus: &pinned(args),
            simulated_warmup: Nanos::millis(5).plus(fills),
        },
    )?;
    let _ = write!(
        text,
        "[configuration.{ALONE}]\nalone = true\n\n[configuration.{ALL}]\n\n\
         [configuration.{PART}]\nname = \"{PART}@{{size}}\"\n[configuration.{PART}.axis.size]\n"
    );
    for size in &sizes.parts {
        let _ = writeln!(text, "{} = {{ {} }}", quoted(&size.label), size.keys);
    }
    Ok(text)
}

/// What the experiment found.
fn found(swept: Swept, sizes: &Sizes, goal: Goal, result: &CompareResult) -> Result<Sweep> {
    let configuration = |name: &str| result.configuration(name);
    let alone = configuration(ALONE).and_then(|c| c.subject(PROGRAM));
    let Some(alone) = alone else {
        return Err(failed("the program was not measured alone"));
    };
    let named = |size: &Size| configuration(&format!("{PART}@{}", size.label));
    let parts = sizes.parts.iter().map(|size| (size, named(size)));
    let all: Vec<Tried<'_>> = parts
        .chain([(&sizes.whole, configuration(ALL))])
        .map(|(size, configuration)| Tried::new(size, configuration))
        .collect();
    let parts = &all[..all.len() - 1];
    if let (true, Some(why)) = (
        parts.iter().all(|t| t.figures.is_none()),
        parts.iter().find_map(|t| t.refused.clone()),
    ) {
        return Err(usage(format!(
            "--sweep {swept}: this machine can give no size: {why}"
        )));
    }
    let goal = match goal {
        Goal::Within { limit, .. } => {
            if alone.better != Better::Lower || per_ns(&alone.metric).is_none() {
                return Err(usage(format!(
                    "--within {limit}: the program is judged by {}, which is no time; use --keep",
                    alone.metric
                )));
            }
            let mut tried = all.iter().filter_map(|t| t.figures);
            let p99 = tried.all(|f| f.p99_ci95.is_some());
            Goal::Within { limit, p99 }
        }
        Goal::Keep { .. } => goal,
    };
    let points: Vec<Point> = all.iter().map(|t| t.point(goal, &alone.metric)).collect();
    let needed = Needed::of(&points);
    let enough = points.iter().find(|p| Some(p.size) == needed.enough);
    let policy = enough
        .filter(|p| p.label != sizes.whole.label)
        .map(|p| swept.reserve(&p.label));
    Ok(Sweep {
        swept,
        level: sizes.level,
        goal,
        metric: alone.metric.clone(),
        rounds: result.rounds,
        confidence: result.confidence,
        needed,
        policy,
        cautions: cautions(swept, &points, result),
        points,
    })
}

/// How many of a metric's units one nanosecond is. `None` where less of it is better and it is no
/// time.
fn per_ns(metric: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 4] = [("_ns", 1.0), ("_us", 1e-3), ("_ms", 1e-6), ("_s", 1e-9)];
    let unit = UNITS.iter().find(|(end, _)| metric.ends_with(end));
    unit.map(|(_, per_ns)| *per_ns)
}

/// A size, and what came of it.
struct Tried<'a> {
    size: &'a Size,
    figures: Option<&'a Figures>,
    refused: Option<String>,
}

impl<'a> Tried<'a> {
    fn new(size: &'a Size, configuration: Option<&'a ConfigurationResult>) -> Self {
        let subject = configuration.and_then(|c| c.subject(PROGRAM));
        let refused = configuration.and_then(|c| c.refused.first());
        Self {
            size,
            figures: subject.map(|s| &s.figures),
            refused: refused.map(ToString::to_string),
        }
    }

    fn point(&self, goal: Goal, metric: &str) -> Point {
        let of = |pick: fn(&Figures) -> Option<f64>| self.figures.and_then(pick);
        let between = |pick: fn(&Figures) -> Option<Interval>| self.figures.and_then(pick);
        let (value, ci95) = match goal {
            Goal::Within { p99: true, .. } => (of(|f| f.p99), between(|f| f.p99_ci95)),
            _ => (of(|f| f.value), between(|f| f.ci95)),
        };
        let kept_ci95 = between(|f| f.normalized_ci95);
        let judged = match goal {
            Goal::Keep { share } => Judged::at_least(kept_ci95, share.as_f64()),
            Goal::Within { limit, .. } => {
                let per_ns = per_ns(metric).unwrap_or(1.0);
                Judged::at_most(ci95, limit.0 as f64 * per_ns)
            }
        };
        Point {
            label: self.size.label.clone(),
            size: self.size.size,
            cache: self.size.cache,
            value,
            ci95,
            kept: of(|f| f.normalized),
            kept_ci95,
            judged,
            refused: self.refused.clone(),
        }
    }
}

/// What to know before relying on the curve.
fn cautions(swept: Swept, points: &[Point], result: &CompareResult) -> Vec<String> {
    let mut all = Vec::new();
    if result.timing == Timing::Emulated {
        all.push(
            "The machine is emulated: its times mean nothing, and so does this curve.".to_owned(),
        );
    }
    let counted = matches!(result.machine.means.meter, MeterKind::Hardware { .. });
    if swept == Swept::Budgets && !counted {
        all.push(
            "No counter counts here, so a budget is CPU time at the highest rate of one CPU. It is \
             an upper bound: a program that stays in its caches needs as much as one that streams."
                .to_owned(),
        );
    }
    let lost = |c: &&ConfigurationResult| {
        let mut promises = c.promises.iter();
        promises.any(|p| p.held == Some(false) || p.was_lost())
    };
    let lost: Vec<&str> = result
        .configurations
        .iter()
        .filter(lost)
        .map(ConfigurationResult::label)
        .collect();
    if !lost.is_empty() {
        all.push(format!(
            "Not held in every round, so the program had more at times: {}.",
            lost.join(", ")
        ));
    }
    let refused = points.iter().filter(|p| p.refused.is_some());
    let refused: Vec<&str> = refused.map(|p| p.label.as_str()).collect();
    if !refused.is_empty() {
        all.push(format!("Not tried, see above: {}.", refused.join(", ")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
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

    fn machine(profile: &str, probe: Probe) -> Inventory {
        let board = Board::of(Profile::built_in(profile).unwrap()).unwrap();
        Sim::new(board, 1).unwrap().inventory(probe).unwrap()
    }

    #[test]
    fn every_sweep_is_an_experiment_that_we_read() {
        for (swept, profile) in [
            (Swept::Ways, "icelake-sp"),
            (Swept::Ways, "p4080"),
            (Swept::Colours, "xeon-w3530"),
            (Swept::Budgets, "apollolake"),
        ] {
            // Budgets are of measured rates.
            let probe = match swept {
                Swept::Budgets => Probe::Deep,
                _ => Probe::Fast,
            };
            let machine = machine(profile, probe);
            for line in [
                vec!["--sweep", "ways", "latency:size=1MiB"],
                vec!["--sweep", "ways", "--cpus", "0", "--", "./job", "a \"b\""],
            ] {
                let args = args(&line);
                let subject = super::super::subject(&args).unwrap();
                let sizes = of_machine(swept, &subject, &machine, &cpus(&args)).unwrap();
                let text = written(&args, &subject, &sizes, largest_cache(&machine)).unwrap();
                let experiment = Experiment::parse(&text, "sweep.toml")
                    .unwrap_or_else(|e| panic!("{e:?}\n{text}"));
                let count = experiment.configurations().len();
                assert_eq!(count, 2 + sizes.parts.len(), "{text}");
                for configuration in experiment.configurations().iter().skip(2) {
                    let plan = quell_plan::planner::plan(&configuration.policy, &machine);
                    assert!(plan.is_ok(), "{profile}: {plan:?}\n{text}");
                }
            }
        }
    }

    #[test]
    fn a_bound_is_in_the_unit_of_the_metric() {
        assert_eq!(per_ns("latency_us"), Some(1e-3));
        assert_eq!(per_ns("run_time_s"), Some(1e-9));
        assert_eq!(per_ns("cycles"), None);
        assert_eq!(per_ns("llc_misses"), None);
    }

    #[test]
    fn a_sweep_that_could_say_nothing_is_refused() {
        let refused = |line: &[&str]| {
            let args = args(line);
            let subject = super::super::subject(&args).unwrap();
            check(&args, &subject).map_err(|e| e.text).unwrap_err()
        };
        let sweep = ["--sweep", "ways", "--on", "sim", "latency"];
        let with = |more: &[&'static str]| [&sweep[..], more].concat();
        assert!(refused(&with(&["--keep", "100%"])).contains("below 100%"));
        assert!(refused(&with(&["--rounds", "1"])).contains("no spread"));
        assert!(refused(&sweep).contains("xeon-w3530 does not have it"));
        assert!(refused(&sweep).contains("--on sim:"));
    }
}
