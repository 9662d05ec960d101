//! What `--probe` and `--sweep` have in common: an experiment with the program as its critical
//! subject, written from the options and run as `quell compare` runs any.

use std::num::NonZeroUsize;

use quell_policy::experiment::Experiment;
use quell_policy::workload::Workload;
use quell_record::demand::Subject;
use quell_record::result::CompareResult;
use quell_types::units::Nanos;

use crate::compare::{Wanted, carry_out, complete};
use crate::exit::{Result, failed, problems};
use crate::target::On;

use super::args::Profile as Args;

/// The subject that is profiled, and its group.
pub const PROGRAM: &str = "program";
/// The configuration in which the program runs alone, under no policy.
pub const ALONE: &str = "solo";

/// Rounds where times are measured.
const ROUNDS: u32 = 5;
/// Rounds on a simulated machine, which nothing disturbs.
const SIMULATED_ROUNDS: u32 = 2;

/// What differs between the experiments.
pub struct Head<'a> {
    /// The experiment's name.
    pub name: &'a str,
    /// The program's CPUs, as an experiment has them.
    pub cpus: &'a str,
    /// Load before a span on a simulated machine.
    pub simulated_warmup: Nanos,
}

/// Text in TOML.
pub fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A generator in TOML.
pub fn table(run: &Workload) -> Result<String> {
    let table = toml::Table::try_from(run).map_err(failed)?;
    Ok(toml::Value::Table(table).to_string())
}

/// The CPUs that the options name, else one.
pub fn pinned(args: &Args) -> String {
    let named = args.cpus.as_ref();
    named.map_or_else(|| "1".to_owned(), |cpus| format!("\"{cpus}\""))
}

/// The experiment as far as its program, without other subjects and configurations.
pub fn head(args: &Args, subject: &Subject, head: &Head<'_>) -> Result<String> {
    let (run, frames) = match subject {
        Subject::Generator { run } => {
            let frames = matches!(
                run,
                Workload::FramesCall { .. } | Workload::FramesDisplay { .. }
            );
            (format!("run  = {}", table(run)?), frames)
        }
        Subject::Command { command } => {
            let words: Vec<String> = command.iter().map(|w| quoted(w)).collect();
            (format!("command = [{}]", words.join(", ")), false)
        }
        Subject::Tasks { .. } => {
            return Err(failed(
                "what runs already cannot be run again and again; give a generator or a command",
            ));
        }
    };
    let fewer = args.rounds.unwrap_or(SIMULATED_ROUNDS);
    let warmup = head.simulated_warmup;
    let span = match subject {
        Subject::Command { .. } => "until    = \"exit\"".to_owned(),
        _ => {
            // Three frames; of everything else a millisecond is like another.
            let simulated = if frames { "100ms" } else { "20ms" };
            format!(
                "duration = \"500ms\"\nsimulated = {{ rounds = {fewer}, warmup = \"{warmup}\", duration = \"{simulated}\" }}"
            )
        }
    };
    let rounds = args.rounds.unwrap_or(ROUNDS);
    let (name, cpus, seed) = (head.name, head.cpus, args.seed);
    Ok(format!(
        "quell    = 1\nname     = \"{name}\"\nbackends = [\"linux\"]\nseed     = {seed}\n\n\
         [measure]\nrounds   = {rounds}\nwarmup   = \"150ms\"\n{span}\nbaseline = \"{ALONE}\"\n\n\
         [subject.{PROGRAM}]\nrole = \"critical\"\ncpus = {cpus}\n{run}\n\n"
    ))
}

/// Runs the experiment. `name`: what its problems are called by.
pub fn measured(args: &Args, name: &str, text: &str) -> Result<CompareResult> {
    let name = format!("{name}.toml");
    let mut experiment = Experiment::parse(text, &name).map_err(|all| problems(&all))?;
    if args.on != On::Linux {
        experiment = experiment.simulated();
    }
    let jobs = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (target, machine) = args.on.measured(args.seed, jobs)?;
    let wanted = Wanted::whole(&experiment, text, &name);
    let comparison = carry_out(&wanted, &args.on, target, machine)?;
    complete(&comparison, None)?;
    Ok(comparison.result)
}
