//! `quell bench ladder`: a victim's percentiles against a controlled rate of the aggressors beside
//! it. The rungs are the configurations of an ordinary experiment written from the options, so that
//! rounds interleave, intervals are over rounds, and a record can be kept; only the table is its
//! own.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use quell_policy::experiment::Experiment;
use quell_policy::workload::Workload;
use quell_types::cpuset::CpuSet;
use quell_types::units::{Nanos, Rate};

use crate::compare::{Wanted, carry_out, complete};
use crate::exit::{Exit, Result, failed, problems, usage};
use crate::machine;
use crate::target::{On, Target};

/// The rungs where none are given.
pub const RATES: &str = "0.5,1,2,4,8GB/s,max";
const VICTIM: &str = "victim";
const AGGRESSOR: &str = "aggressor";

/// `quell bench ladder`
#[derive(Debug, clap::Args)]
pub struct Ladder {
    /// Whose percentiles: KIND[:KEY=VALUE|WORD,…], keys as in an experiment's `run`
    #[arg(long, value_name = "GENERATOR", default_value = "latency:size=0.5 LLC")]
    pub victim: Workload,
    /// Whose rate: written as for --victim, a kind with a `rate`
    #[arg(
        long,
        value_name = "GENERATOR",
        default_value = "bandwidth:write,size=4 LLC"
    )]
    pub aggressor: Workload,
    /// The rungs: target rates of each aggressor in program bytes, a unit holds for the numbers
    /// before it; 0 is the victim alone (always measured), max is no target
    #[arg(long, value_name = "RATES", default_value = RATES)]
    pub rates: Rungs,
    /// The victim's CPU [default: chosen by the topology]
    #[arg(long, value_name = "CPU")]
    pub victim_cpu: Option<u32>,
    /// The aggressors' CPUs, one aggressor on each [default: one aggressor on one CPU]
    #[arg(long, value_name = "CPUS")]
    pub aggressor_cpus: Option<CpuSet>,
    /// Rounds: each measures every rung once, in an order of its own
    #[arg(long, default_value_t = 8)]
    pub rounds: u32,
    /// Load before measuring
    #[arg(long, default_value = "150ms")]
    pub warmup: Nanos,
    /// The measured span of a rung
    #[arg(long, default_value = "500ms")]
    pub duration: Nanos,
    /// Seed of the order of rungs and of the bootstrap
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a record (manifest, samples, report) into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write the experiment that the options come to, for `quell compare`, and run nothing
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Print the result as JSON, as `quell compare --json` does
    #[arg(long)]
    pub json: bool,
}

/// The target rates of a ladder, as given; `None` is no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rungs(Vec<Option<Rate>>);

impl FromStr for Rungs {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut rungs = Vec::new();
        // A number without a unit has that of the next number with one: from the end, it is known.
        let mut unit = None;
        for word in text.rsplit(',').map(str::trim) {
            if word == "max" {
                rungs.push(None);
                continue;
            }
            let digits = word.trim_end_matches(|c: char| !(c.is_ascii_digit() || c == '.'));
            if digits.len() < word.len() {
                unit = word.get(digits.len()..).map(str::trim);
            }
            let rate = match unit {
                Some(unit) => format!("{digits}{unit}").parse::<Rate>(),
                None if digits == "0" => Ok(Rate(0)),
                None => word.parse(),
            };
            // Nothing is the victim alone, which is measured anyway.
            match rate.map_err(|e| e.to_string())? {
                Rate(0) => {}
                rate if rungs.contains(&Some(rate)) => return Err(format!("{rate} stands twice")),
                rate => rungs.push(Some(rate)),
            }
        }
        rungs.reverse();
        if rungs.is_empty() {
            return Err("there is no rate but 0; write for example 1,2,4GB/s,max".to_owned());
        }
        Ok(Self(rungs))
    }
}

impl fmt::Display for Rungs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |rate: &Option<Rate>| rate.map_or_else(|| "max".to_owned(), |r| r.to_string());
        f.write_str(&self.0.iter().map(name).collect::<Vec<_>>().join(","))
    }
}

/// Runs the ladder, or writes it down.
pub fn run(args: &Ladder) -> Result {
    let text = written(args)?;
    let name = "ladder.toml";
    let experiment = Experiment::parse(&text, name).map_err(|all| problems(&all))?;
    if let Some(file) = &args.save {
        quell_files::put(file, &text).map_err(|e| failed(format!("{}: {e}", file.display())))?;
        return Ok(Exit::Done);
    }
    crate::status::settle()?;
    let wanted = Wanted {
        out: args.out.as_deref(),
        ..Wanted::whole(&experiment, &text, name)
    };
    let (backend, machine) = machine::linux()?;
    let comparison = carry_out(
        &wanted,
        &On::Linux,
        Target::Linux(Box::new(backend)),
        machine,
    )?;
    let result = &comparison.result;
    if args.json {
        println!("{}", serde_json::to_string_pretty(result).map_err(failed)?);
    } else {
        print!(
            "{}",
            quell_report::ladder_text(result, VICTIM, crate::terminal::style())
        );
    }
    complete(&comparison, None)?;
    Ok(Exit::Done)
}

/// A generator as an experiment's `run`.
fn table(workload: &Workload) -> Result<String> {
    let table = toml::Table::try_from(workload).map_err(failed)?;
    Ok(toml::Value::Table(table).to_string())
}

/// The experiment that the options come to.
fn written(args: &Ladder) -> Result<String> {
    let rateless = matches!(
        args.aggressor,
        Workload::Latency { .. }
            | Workload::ParallelLists { .. }
            | Workload::Trace { .. }
            | Workload::Recorded { .. }
    );
    if rateless || args.aggressor.rate().is_some() {
        return Err(usage(format!(
            "--aggressor: {}; use bandwidth, cache-churn, stores or lattice, and leave the rate to --rates",
            if rateless {
                format!("{} has no target rate", args.aggressor.kind())
            } else {
                "its rate is what the ladder varies".to_owned()
            }
        )));
    }
    let pins: Vec<Option<u32>> = match &args.aggressor_cpus {
        None => vec![None],
        Some(cpus) => cpus.iter().map(Some).collect(),
    };
    let name = |n: usize| match n {
        0 => AGGRESSOR.to_owned(),
        n => format!("{AGGRESSOR}-{}", n + 1),
    };
    let pin = |cpu: Option<u32>| cpu.map_or_else(|| "1".to_owned(), |cpu| format!("\"{cpu}\""));
    let mut text = format!(
        "# A victim's percentiles against the rate of the aggressors beside it: `quell bench ladder` writes and runs such\n\
         # experiments. The rate is asked for in program bytes, of each aggressor; what it achieves is in the result.\n\
         quell    = 1\n\
         name     = \"ladder\"\n\
         title    = \"{} beside {} at controlled rates\"\n\
         backends = [\"linux\"]\n\
         seed     = {}\n\n\
         [measure]\n\
         rounds   = {}\n\
         warmup   = \"{}\"\n\
         duration = \"{}\"\n\
         baseline = \"solo\"\n\
         canary   = \"shared-cache\"\n",
        args.victim.kind(),
        args.aggressor.kind(),
        args.seed,
        args.rounds,
        args.warmup,
        args.duration
    );
    let mut subject = |name: &str, role: &str, cpus: String, run: &Workload| -> Result<()> {
        let run = table(run)?;
        let _ = write!(
            text,
            "\n[subject.{name}]\nrole = \"{role}\"\ncpus = {cpus}\nrun  = {run}\n"
        );
        Ok(())
    };
    subject(VICTIM, "critical", pin(args.victim_cpu), &args.victim)?;
    for (n, cpu) in pins.iter().enumerate() {
        subject(&name(n), "best-effort", pin(*cpu), &args.aggressor)?;
    }
    text.push_str(
        "\n# Each by itself.\n[configuration.solo]\nalone = true\n\n\
         [configuration.at]\nname = \"at@{rate}\"\n[configuration.at.axis.rate]\n",
    );
    for rung in &args.rates.0 {
        match rung {
            None => text.push_str("max = {}\n"),
            Some(rate) => {
                let all: Vec<String> = (0..pins.len())
                    .map(|n| format!("subject.{}.run.rate = \"{rate}\"", name(n)))
                    .collect();
                let _ = writeln!(text, "\"{rate}\" = {{ {} }}", all.join(", "));
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn ladder(options: &[&str]) -> Ladder {
        let all = ["quell", "bench", "ladder"].iter().chain(options);
        let args = crate::args::Args::parse_from(all);
        match args.command {
            crate::args::Command::Bench(crate::generators::Bench {
                generator: crate::generators::Generator::Ladder(ladder),
            }) => ladder,
            other => panic!("not a ladder: {other:?}"),
        }
    }

    #[test]
    fn numbers_without_a_unit_have_that_of_the_next() {
        let read = |text: &str| text.parse::<Rungs>().map(|r| r.to_string());
        assert_eq!(read("0,1,2,4,8GB/s").unwrap(), "1GB/s,2GB/s,4GB/s,8GB/s");
        assert_eq!(
            read("0.5,1GB/s, 250MB/s,max").unwrap(),
            "500MB/s,1GB/s,250MB/s,max"
        );
        for (text, why) in [
            ("1,2", "a rate such as"),
            ("1GB/s,1,2XB/s", "a rate such as"),
            ("1,1GB/s", "twice"),
            ("0", "no rate but 0"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    /// Bless with `quell bench ladder --save experiments/ladder.toml`.
    #[test]
    fn the_built_in_experiment_is_what_the_options_default_to() {
        let text = written(&ladder(&[])).unwrap();
        assert_eq!(Some(text.as_str()), Experiment::builtin("ladder"));
        let experiment = Experiment::parse(&text, "ladder.toml").unwrap();
        assert_eq!(experiment.configurations().len(), 7);
    }

    #[test]
    fn every_aggressor_has_the_rate_of_its_rung() {
        let options = [
            "--aggressor",
            "stores:non-temporal,stride=8B",
            "--aggressor-cpus",
            "1,3",
            "--rates",
            "1GB/s,max",
        ];
        let text = written(&ladder(&options)).unwrap();
        let experiment = Experiment::parse(&text, "ladder.toml").unwrap();
        let instances = experiment.instances();
        let rates = |configuration: &str| -> Vec<Option<Rate>> {
            let configuration = experiment.configuration(configuration).unwrap();
            let run = |i| configuration.run(i).unwrap().rate();
            instances.iter().map(run).collect()
        };
        let one = Some(Rate(1_000_000_000));
        assert_eq!(rates("at@1GB/s"), [None, one, one]);
        assert_eq!(rates("at@max"), [None, None, None]);
    }

    #[test]
    fn an_aggressor_without_a_rate_to_control_is_refused() {
        for (aggressor, why) in [
            ("latency", "no target rate"),
            ("bandwidth:read,rate=1GB/s", "what the ladder varies"),
        ] {
            let said = written(&ladder(&["--aggressor", aggressor])).unwrap_err();
            assert!(format!("{said:?}").contains(why), "{said:?}");
        }
    }
}
