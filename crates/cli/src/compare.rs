//! `quell compare`

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use quell_engine::compare::{CompareError, Comparison, Options, chosen, run as compare};
use quell_plan::inventory::Inventory;
use quell_policy::Policy;
use quell_policy::experiment::{Experiment, Subject};
use quell_policy::workload::Workload;
use quell_types::refusal::{Cause, Refusal, Remedy};

use crate::exit::{Exit, Failure, Result, failed, problems, usage};
use crate::lab_exec::{self, Bundle};
use crate::machine;
use crate::machine::unseen;
use crate::others::Others;
use crate::plan;
use crate::progress::Bar;
use crate::target::{On, Target};
use std::path::PathBuf;

/// `quell compare`
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// A built-in experiment by name (neighbour, webrtc, p4080-4core, …: a wrong name lists them),
    /// others by path
    pub experiment: String,
    /// The machine to run on: linux, a simulated one, sim (the experiment's, if it names one) or
    /// sim:PROFILE, or one of the lab, lab or lab:PROFILE, which is booted for the run [default:
    /// the experiment's first]
    #[arg(long, value_name = "BACKEND")]
    pub on: Option<On>,
    /// With --on lab: what machine, over what the experiment says: KEY=VALUE with kernel, profile,
    /// cpus, sockets, smt, memory, nodes, swap, swap-size, disk, disk-rate, lru, accelerator,
    /// append, with; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// The directory that gets the record's folder
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub out: PathBuf,
    /// Seed of the order of cells and of the bootstrap [default: the experiment's]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Rounds [default: the experiment's]
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Only these configurations, by name, by the part before @, or by a pattern (* ? {AXIS}); the
    /// baseline always comes along
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Go on with the record of an interrupted run: measure the cells that it lacks; seed, rounds
    /// and --only are the record's
    #[arg(long, value_name = "RECORD", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// On a simulated machine, so many cells at a time, each on a thread of its own; the result is
    /// the same for any number [default: the CPUs there are]
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub jobs: Option<NonZeroUsize>,
    /// Exit with 3 when an expectation of the experiment is not met, or a change goes another way
    /// than the published one
    #[arg(long)]
    pub check: bool,
}

/// How many cells at a time.
fn jobs(text: &str) -> std::result::Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "it is how many cells run at a time, 1 or more".to_owned())
}

/// Runs an experiment and prints its table.
pub fn run(args: &Compare) -> Result {
    let (text, name) = read(&args.experiment)?;
    let experiment = Experiment::parse(&text, &name).map_err(|all| problems(&all))?;
    chosen(&experiment, &args.only).map_err(|e| failure(e, &name))?;
    let on = machine_of(args.on.as_ref(), &experiment.backends)
        .map_err(|why| usage(format!("{name}: backends: {why}")))?;
    if !matches!(on, On::Lab(_)) {
        lab_exec::unasked(&args.lab)?;
    }
    let experiment = match &on {
        On::Lab(profile) => return in_the_lab(&experiment, profile.as_ref(), args),
        On::Linux => {
            if args.jobs.is_some() {
                return Err(usage(
                    "--jobs: cells that are measured on this machine would disturb each other, so they run one after the other; leave it out, or use --on sim",
                ));
            }
            real(&experiment, args)?;
            crate::status::settle()?;
            experiment
        }
        On::Sim(_) | On::Coarse(_) => simulated(experiment, args)?,
    };
    let wanted = Wanted {
        experiment: &experiment,
        text: &text,
        name: &name,
        seed: args.seed,
        rounds: args.rounds,
        only: &args.only,
        resume: args.resume.as_deref(),
        out: Some(&args.out),
        quiet: false,
        time: None,
    };
    let seed = args.seed.unwrap_or(experiment.seed);
    let jobs = args
        .jobs
        .or_else(|| std::thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN);
    let (target, machine) = on.measured(seed, jobs)?;
    let comparison = carry_out(&wanted, &on, target, machine)?;
    let result = &comparison.result;
    if args.json {
        println!("{}", serde_json::to_string_pretty(result).map_err(failed)?);
    } else {
        print!(
            "{}",
            quell_report::compare_text(result, crate::terminal::style())
        );
    }
    complete(&comparison, Some(&args.experiment))?;
    if args.check {
        for line in quell_report::published_faults(result) {
            eprintln!("quell: published: {line}");
        }
    }
    Ok(if args.check && !result.as_expected() {
        Exit::NotHeld
    } else {
        Exit::Done
    })
}

/// The same inside a machine of the lab.
fn in_the_lab(experiment: &Experiment, profile: Option<&String>, args: &Compare) -> Result {
    if args.resume.is_some() {
        return Err(usage(
            "--resume: a machine of the lab is booted anew, and a record is of one machine; run the experiment again",
        ));
    }
    real(experiment, args)?;
    let mut bundle = Bundle::default();
    if Experiment::builtin(&args.experiment).is_none() {
        bundle.file(Path::new(&args.experiment));
    }
    for subject in experiment.subjects.values() {
        // What only some configurations need is refused there, inside.
        if subject.only.is_empty() || lacking(subject).is_none() {
            bundle.program(subject.command.as_deref().unwrap_or_default());
        }
    }
    for configuration in experiment.configurations() {
        bundle.policy(&configuration.policy);
    }
    bundle.back(Some(&args.out));
    lab_exec::call(&experiment.lab, profile, &args.lab, bundle)
}

/// The program of a subject, if it is not installed.
fn lacking(subject: &Subject) -> Option<&str> {
    let program = subject.command.as_ref()?.first()?;
    machine::files_of(program)
        .is_empty()
        .then_some(program.as_str())
}

/// Refuses a configuration with a program of its own that is not installed. The other
/// configurations are run.
fn installed(experiment: &Experiment, configuration: &str) -> std::result::Result<(), Refusal> {
    let found = experiment.configuration(configuration);
    let Some(family) = found.map(|c| c.family.as_deref()) else {
        return Ok(());
    };
    let own = |s: &&Subject| !s.only.is_empty() && s.takes_part(configuration, family);
    let mut subjects = experiment.subjects.iter().filter(|(_, s)| own(s));
    let absent = subjects.find_map(|(name, s)| Some((name, lacking(s)?)));
    absent.map_or(Ok(()), |(name, program)| {
        Err(Refusal {
            key: format!("subject.{name}.command"),
            why: format!("{program} is not installed"),
            cause: Cause::Machine,
            remedies: vec![Remedy::from(
                "install it, or leave the configuration out (--only)",
            )],
        })
    })
}

/// The machine that is asked for, else the first that the experiment names. A bare `sim` is the
/// simulated machine that the experiment names, if it does.
fn machine_of(asked: Option<&On>, backends: &[String]) -> std::result::Result<On, String> {
    let named = match asked {
        None => backends.first(),
        Some(On::Sim(None)) => backends.iter().find(|b| b.starts_with("sim")),
        Some(On::Coarse(None)) => backends.iter().find(|b| b.starts_with("coarse")),
        Some(_) => None,
    };
    match (named, asked) {
        (Some(named), _) => named.parse(),
        (None, Some(on)) => Ok(on.clone()),
        (None, None) => Ok(On::Linux),
    }
}

/// Refuses what only a simulated machine can run.
fn real(experiment: &Experiment, args: &Compare) -> Result<()> {
    for (name, subject) in &experiment.subjects {
        if let Some(run) = subject.run.as_ref().filter(|run| run.simulated_only()) {
            return Err(usage(format!(
                "{}: subject '{name}' is a {}, which is replayed on the simulated machine only; use --on sim, or run the program itself by `command`",
                args.experiment,
                run.kind()
            )));
        }
    }
    Ok(())
}

/// The experiment as it is measured on a simulated machine.
fn simulated(experiment: Experiment, args: &Compare) -> Result<Experiment> {
    let command = |(_, subject): &(&String, &Subject)| subject.command.is_some();
    if let Some((name, _)) = experiment.subjects.iter().find(command) {
        return Err(usage(format!(
            "{}: subject '{name}' is a command, and no program of this machine can run on a simulated one; give it a generator (`run`), or leave --on out",
            args.experiment
        )));
    }
    let passes =
        |s: &Subject| matches!(s.run, Some(Workload::Periodic { passes, .. }) if passes != 1);
    if let Some((name, _)) = experiment.subjects.iter().find(|(_, s)| passes(s)) {
        return Err(usage(format!(
            "{}: subject '{name}' has `passes`, and a simulated machine tells jobs apart, not the passes of a job; leave it out, or use --on linux",
            args.experiment
        )));
    }
    let real = |s: &Subject| s.run.as_ref().is_some_and(Workload::kernel_only);
    if let Some((name, _)) = experiment.subjects.iter().find(|(_, s)| real(s)) {
        return Err(usage(format!(
            "{}: subject '{name}' is about the kernel, which a simulated machine does not have; use --on linux, or the lab (quell lab)",
            args.experiment
        )));
    }
    Ok(experiment.simulated())
}

/// An experiment that is to be run, and how.
pub struct Wanted<'a> {
    /// What.
    pub experiment: &'a Experiment,
    /// The same as written, for the record.
    pub text: &'a str,
    /// What problems call it.
    pub name: &'a str,
    /// Instead of the experiment's.
    pub seed: Option<u64>,
    /// Instead of the experiment's.
    pub rounds: Option<u32>,
    /// Only these configurations.
    pub only: &'a [String],
    /// The record of an interrupted run to go on with.
    pub resume: Option<&'a Path>,
    /// Where the record goes.
    pub out: Option<&'a Path>,
    /// How old the measured rates are was said before.
    pub quiet: bool,
    /// No further round begins after this, once so many are over.
    pub time: Option<(Instant, u32)>,
}

impl<'a> Wanted<'a> {
    /// All of an experiment, as it is written.
    pub fn whole(experiment: &'a Experiment, text: &'a str, name: &'a str) -> Self {
        Self {
            experiment,
            text,
            name,
            seed: None,
            rounds: None,
            only: &[],
            resume: None,
            out: None,
            quiet: false,
            time: None,
        }
    }
}

/// Runs an experiment on the machine that `on` names, with a progress bar.
pub fn carry_out(
    wanted: &Wanted<'_>,
    on: &On,
    mut target: Target,
    mut machine: Inventory,
) -> Result<Comparison> {
    let real = *on == On::Linux;
    if real && !wanted.quiet {
        machine::tell_age(&machine);
    }
    if let Target::Linux(linux) = &mut target
        && wanted.experiment.wants_seen_cache()
    {
        machine = machine::with_seen_cache(linux, machine, false)?;
        if let Some(why) = unseen(&machine) {
            eprintln!("quell: note: {why}");
        }
    }
    let huge = (real && wanted.experiment.wants_huge_pages())
        .then(quell_workload::huge_pages)
        .and_then(|tried| tried.err());
    let options = Options {
        backend: &on.name(),
        timing: on.timing(),
        seed: wanted.seed,
        rounds: wanted.rounds,
        only: wanted.only,
        resume: wanted.resume,
        no_huge_pages: huge.map(|why| Refusal {
            key: "run.pages".to_owned(),
            why: why.to_string(),
            ..Refusal::default()
        }),
        out: wanted.out,
        now_unix_s: machine::unix_s(),
        command_line: &crate::terminal::command_line(),
        experiment_text: wanted.text,
        html: Some(&quell_report::html),
    };
    let mut bar = if real {
        Bar::new()
    } else {
        Bar::seeing_signals().map_err(|e| failed(format!("signals cannot be received: {e}")))?
    };
    bar = bar.within(wanted.time);
    let before = real.then(Others::now).flatten();
    let done = compare(
        wanted.experiment,
        target.machines(),
        &machine,
        &|policy: &Policy, machine: &Inventory| {
            if real {
                installed(wanted.experiment, &policy.name).map_err(|refusal| vec![refusal])?;
            }
            let solos = crate::kept::solos(policy, machine, on, &BTreeMap::new());
            quell_plan::planner::plan_beside(policy, machine, &solos)
        },
        &options,
        &mut bar,
    );
    drop(bar);
    let ended = target.end();
    let share = before.and_then(|before| Some(Others::now()?.since(before)));
    if let Some(share) = share.filter(|share| share.matters()) {
        eprintln!("quell: note: {share}");
    }
    let comparison = done.map_err(|e| failure(e, wanted.name))?;
    ended?;
    Ok(comparison)
}

/// Says where the record is; an error when the result is not whole. `experiment`: what `quell
/// compare` calls it, if it can go on with it.
pub fn complete(comparison: &Comparison, experiment: Option<&str>) -> Result<()> {
    let result = &comparison.result;
    if let Some(folder) = &comparison.folder {
        eprintln!("quell: the record is in {}", folder.display());
    }
    if let Some(why) = &result.interrupted {
        // What the lab boots next is another machine, on which nothing can go on.
        let again = crate::guest::guest().is_none();
        let record = comparison.folder.as_ref().zip(experiment.filter(|_| again));
        let go_on = record.map_or_else(String::new, |(folder, experiment)| {
            let folder = folder.display();
            format!("; go on with `quell compare {experiment} --resume {folder}`")
        });
        return Err(failed(format!(
            "interrupted ({why}): the result is partial{go_on}"
        )));
    }
    if !result.failures.is_empty() {
        return Err(failed(format!(
            "the result lacks cells that failed twice, for the reasons above: {}",
            result.failures.len()
        )));
    }
    Ok(())
}

fn failure(error: CompareError, experiment: &str) -> Failure {
    match error {
        CompareError::NotYet(all) => plan::refused(&all, Some(Path::new(experiment)), true),
        CompareError::Unknown { .. } | CompareError::Resume(_) | CompareError::Place(_) => {
            usage(error)
        }
        CompareError::Folder(_) | CompareError::Read(_) | CompareError::NotUndone { .. } => {
            failed(error)
        }
    }
}

fn read(name: &str) -> Result<(String, String)> {
    if let Some(text) = Experiment::builtin(name) {
        return Ok((text.to_owned(), format!("{name}.toml")));
    }
    match quell_files::text(Path::new(name), quell_files::MOST_TEXT) {
        Ok(text) => Ok((text, name.to_owned())),
        Err(e) => {
            let known: Vec<&str> = Experiment::builtins().collect();
            Err(usage(format!(
                "{name}: neither a built-in experiment ({}) nor a file: {e}",
                known.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_sim_is_the_machine_that_the_experiment_names() {
        let both = ["linux".to_owned(), "sim:p4080".to_owned()];
        let on = |asked: Option<&str>, backends: &[String]| {
            let asked = asked.map(|text| text.parse::<On>().unwrap());
            machine_of(asked.as_ref(), backends).map(|on| on.name())
        };
        for (asked, is) in [
            (None, "linux"),
            (Some("sim"), "sim:p4080"),
            (Some("sim:apollolake"), "sim:apollolake"),
            (Some("linux"), "linux"),
        ] {
            assert_eq!(on(asked, &both).as_deref(), Ok(is), "{asked:?}");
        }
        assert_eq!(on(Some("sim"), &both[..1]).as_deref(), Ok("sim:xeon-w3530"));
        assert!(on(None, &["sim:p4081".to_owned()]).is_err());
    }
}
