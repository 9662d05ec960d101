//! `quell init`: a policy for a program that runs. On a terminal it asks; in a script the options
//! say everything.
//!
//! [`scan`] sees what runs, [`ask`] asks, [`choose`] decides and [`text`] writes, both on values.

mod ask;
mod choose;
pub mod group;
mod probe;
mod scan;
mod text;

use std::collections::BTreeSet;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use quell_kernel::left_out::{LeftOut, Why};
use quell_kernel::root::{Files, Kernel};
use quell_kernel::tasks::{Matcher, assign, present};
use quell_plan::inventory::Inventory;
use quell_types::task::TaskMatch;
use quell_types::units::Bytes;

use crate::exit::{Exit, Failure, Result, failed, problems, usage};
use crate::machine;
use crate::terminal::quoted;
use ask::{Answers, Stopped};
use choose::{Probed, Situation, Written};
use group::{Chosen, name_of, spelled};
use scan::{Candidate, Sample};

/// Programs that an error shows.
const BUSIEST: usize = 3;
/// The file that stands for standard output.
const STDOUT: &str = "-";

/// `quell init`
#[derive(Debug, clap::Args)]
pub struct Init {
    /// What to protect: KEY=VALUE[,KEY=VALUE…] as for `quell run`; repeat for more [default: asked
    /// on a terminal]
    #[arg(long, value_name = "MATCH")]
    pub critical: Vec<TaskMatch>,
    /// What may be slowed for it; repeat for more [default: everything else]
    #[arg(long, value_name = "MATCH", requires = "critical")]
    pub best_effort: Vec<TaskMatch>,
    /// Load CPUs and memory for about a minute to find out what hurts, without asking
    #[arg(long)]
    pub probe: bool,
    /// Never probe
    #[arg(long, conflicts_with = "probe")]
    pub no_probe: bool,
    /// The file to write; - is standard output
    #[arg(long, value_name = "FILE", default_value = "policy.toml")]
    pub out: PathBuf,
    /// Overwrite the file
    #[arg(long)]
    pub force: bool,
}

/// Writes a policy.
pub fn run(args: &Init) -> Result {
    free(&args.out, args.force)?;
    let terminal = std::io::stdin().is_terminal();
    let files = Kernel::new().map_err(failed)?;
    let (backend, machine) = machine::linux()?;
    drop(backend);
    let sample = Sample::take(&files).map_err(failed)?;
    let memory = Bytes(machine.nodes.iter().map(|n| n.memory.0).sum());
    let candidates = sample.candidates(machine.cpus.len(), memory);
    let answers = match (args.critical.is_empty(), terminal) {
        (false, _) => Answers {
            critical: args.critical.clone(),
            neighbours: args.best_effort.clone(),
        },
        (true, true) => ask::ask(
            &candidates,
            &mut std::io::stdin().lock(),
            &mut std::io::stderr(),
        )
        .map_err(stopped)?,
        (true, false) => {
            return Err(unnamed(
                "name what to protect with --critical MATCH",
                &candidates,
            ));
        }
    };
    let (critical, neighbours, unnamed_cpus) = groups(&files, &sample, &answers, &candidates)?;
    let mut machine = machine;
    let probed = probed(args, terminal, &mut machine, &critical)?;
    let file = args.out.display().to_string();
    let situation = Situation {
        machine: &machine,
        root: quell_kernel::is_root(),
        critical,
        neighbours,
        unnamed_cpus,
        probed,
        file: if file == STDOUT { "policy.toml" } else { &file },
    };
    let written = choose::write(&situation).map_err(|all| problems(&all))?;
    save(&written.text, &args.out, args.force)?;
    report(&situation, &written, &file);
    Ok(Exit::Done)
}

fn stopped(why: Stopped) -> Failure {
    match why {
        Stopped::Ended => usage(
            "stopped before everything was answered; nothing was written (in a script: quell init --critical MATCH)",
        ),
        Stopped::Failed(e) => failed(format!("the questions could not be asked: {e}")),
    }
}

/// Refuses a file that is there, before anything is asked.
fn free(out: &Path, force: bool) -> Result<()> {
    if out.as_os_str() == STDOUT || force || !out.exists() {
        return Ok(());
    }
    Err(there(out))
}

fn there(out: &Path) -> Failure {
    usage(format!(
        "{0}: the file exists and was left as it is; write another (--out FILE), or overwrite it (--force)",
        out.display()
    ))
}

/// The busiest programs, and the command line to type.
fn unnamed(why: &str, candidates: &[Candidate]) -> Failure {
    let what = match candidates {
        [] => "no program runs that could be named",
        _ => "the busiest programs are:",
    };
    let mut text = format!("{why}; {what}");
    for one in candidates.iter().take(BUSIEST) {
        text.push_str(&format!(
            "\n  {:.2} CPUs, {}: {} ({})",
            one.figures.cpus(),
            text::memory(one.figures.memory),
            one.name,
            spelled(&one.matching)
        ));
    }
    let option = |c: &Candidate| quoted(&spelled(&c.matching));
    let typed = match candidates {
        [] => "quell init --critical comm=NAME".to_owned(),
        [one] => format!("quell init --critical {}", option(one)),
        [one, other, ..] => format!(
            "quell init --critical {} --best-effort {}",
            option(one),
            option(other)
        ),
    };
    usage(format!("{text}\nfor example: {typed}"))
}

/// The groups of the policy with what their processes used, and the CPUs that all others used.
fn groups(
    files: &dyn Files,
    sample: &Sample,
    answers: &Answers,
    candidates: &[Candidate],
) -> Result<(Chosen, Vec<Chosen>, f64)> {
    let mut tables: Vec<Vec<TaskMatch>> = vec![answers.critical.clone()];
    // A cgroup that is changed in place has another weight than tasks that are moved: each is a
    // group of its own.
    let (in_place, tasks): (Vec<TaskMatch>, Vec<TaskMatch>) = answers
        .neighbours
        .iter()
        .cloned()
        .partition(TaskMatch::in_place);
    tables.extend(Some(tasks).filter(|t| !t.is_empty()));
    tables.extend(in_place.into_iter().map(|t| vec![t]));
    let mut names: Vec<String> = Vec::new();
    for table in &tables {
        names.push(name_of(table, &names));
    }
    let matchers: Vec<Matcher> = names
        .iter()
        .zip(&tables)
        .map(|(name, tables)| Matcher::new(files, name, tables))
        .collect::<quell_kernel::error::Result<_>>()
        .map_err(usage)?;
    present(files, &matchers, &BTreeSet::new()).map_err(usage)?;
    let assigned = assign(files, &matchers, &BTreeSet::new(), &mut || {}).map_err(usage)?;
    let only = names
        .first()
        .is_some_and(|critical| assigned.of(critical).is_empty());
    let two = |out: &&LeftOut| only && matches!(out.why, Why::Two(_));
    if let Some(two) = assigned.left_out.iter().find(two) {
        return Err(usage(two));
    }
    let members = assigned.all().map(|s| s.id.pid).collect();
    let unnamed_cpus = sample.without(&members);
    let mut all = names.into_iter().zip(tables).map(|(name, matching)| {
        let figures = sample.of(assigned.of(&name).iter().map(|s| s.id.pid));
        Chosen {
            name,
            matching,
            figures,
        }
    });
    let critical = all
        .next()
        .ok_or_else(|| failed("there is no critical group"))?;
    let neighbours: Vec<Chosen> = all.collect();
    if critical.figures.processes == 0 {
        let tables: Vec<String> = critical.matching.iter().map(spelled).collect();
        let why = format!(
            "no process that runs matches --critical {}, so nothing is known of it",
            tables.join(" or ")
        );
        return Err(unnamed(&why, candidates));
    }
    for empty in neighbours.iter().filter(|n| n.figures.processes == 0) {
        eprintln!(
            "quell: note: no process matches group {} now; one that starts later is followed",
            empty.name
        );
    }
    Ok((critical, neighbours, unnamed_cpus))
}

/// What memory traffic does to the program, where it may be found out. The machine is then the
/// measured one.
fn probed(
    args: &Init,
    terminal: bool,
    machine: &mut Inventory,
    critical: &Chosen,
) -> Result<Probed> {
    let cost = probe::Cost::of(machine);
    if args.no_probe {
        return Ok(Probed::No("Nothing was probed (--no-probe).".to_owned()));
    }
    if !args.probe {
        if !terminal {
            eprintln!("quell: note: nothing was probed; --probe does it: {cost}");
            return Ok(Probed::No(
                "Nothing was probed: --probe was not given.".to_owned(),
            ));
        }
        let question =
            format!("A probe finds out what memory traffic does to it: {cost}. Probe now?");
        let mut input = std::io::stdin().lock();
        if !ask::yes(&question, &mut input, &mut std::io::stderr()).map_err(stopped)? {
            return Ok(Probed::No("The probe was declined.".to_owned()));
        }
    }
    eprintln!("quell: probing: {cost}");
    let (probed, measured) = probe::probe(machine, critical)?;
    *machine = measured;
    Ok(probed)
}

fn save(text: &str, out: &Path, force: bool) -> Result<()> {
    let wrong = |e: std::io::Error| {
        failed(format!(
            "{}: the policy could not be written: {e}; name another file with --out",
            out.display()
        ))
    };
    if out.as_os_str() == STDOUT {
        return std::io::stdout().write_all(text.as_bytes()).map_err(wrong);
    }
    if force {
        return quell_files::put(out, text).map_err(wrong);
    }
    let mut file = match quell_files::create(out) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(there(out)),
        opened => opened.map_err(wrong)?,
    };
    file.write_all(text.as_bytes()).map_err(wrong)
}

/// What was written, and what to type next.
fn report(situation: &Situation<'_>, written: &Written, file: &str) {
    if !written.acts() {
        let why = if situation.root {
            "nothing that it could do can be had on this machine (`quell doctor` says why)"
        } else {
            "what can be had is seen as root only: `sudo quell init` chooses from that"
        };
        eprintln!("quell: note: as planned here the policy changes nothing: {why}");
    }
    if file == STDOUT {
        return;
    }
    let file = quoted(file);
    println!(
        "{file}: {}\nSee what it does, then do it:\n  quell plan {file}\n  sudo quell run {file}",
        summary(situation, written)
    );
}

fn summary(situation: &Situation<'_>, written: &Written) -> String {
    let mut means = Vec::new();
    if !situation.neighbours.is_empty() {
        means.push("a low weight for its neighbours".to_owned());
    }
    if written.setup.high {
        means.push("a high weight of its own".to_owned());
    }
    if let Some(cores) = written.setup.cores {
        let s = if cores.count == 1 { "" } else { "s" };
        means.push(format!("{} CPU{s} of its own", cores.count));
    }
    if let Some(limit) = written.setup.limit {
        means.push(format!("a limit of {limit} for its neighbours"));
    }
    if written.setup.memory {
        means.push("memory that is kept".to_owned());
    }
    if means.is_empty() {
        means.push("nothing that is enough and safe, the file says why".to_owned());
    }
    format!(
        "protects {} by {}",
        situation.critical.name,
        means.join(", ")
    )
}

#[cfg(test)]
mod tests;
