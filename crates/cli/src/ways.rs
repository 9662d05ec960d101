//! `quell ways`: who may fill which ways of which cache, over time, whoever has set it. Nothing is
//! changed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use quell_engine::folder::Folder;
use quell_engine::sink::Sink;
use quell_kernel::root::Kernel;
use quell_kernel::{self_usage, signals};
use quell_linux::ways::Looker;
use quell_record::events::{Event, MANIFEST_SCHEMA, Phase};
use quell_record::ways::{Timeline, findings};
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;

use crate::exit::{Exit, Result, failed, usage};
use crate::machine;

mod propose;
mod sampling;

use sampling::Sampling;

/// `quell ways`
#[derive(Debug, clap::Args)]
pub struct Ways {
    /// Look for so long [default: 10s; until the command ends, if there is one]
    #[arg(long = "for", value_name = "TIME")]
    pub span: Option<Nanos>,
    /// Look so often
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub every: Nanos,
    /// Record every context switch: which thread ran on which CPU, from when to when
    #[arg(long)]
    pub switches: bool,
    /// Count what each thread misses in the last-level cache
    #[arg(long)]
    pub misses: bool,
    /// Do not read the processor's registers (/dev/cpu/N/msr)
    #[arg(long)]
    pub no_registers: bool,
    /// Write a record into this directory, for `quell report` and `quell export`
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
    /// Print a policy made from the masks at the end, in place of what was found
    #[arg(long, conflicts_with = "json")]
    pub propose: bool,
    /// A process to look at, with its children, whatever its class; repeat for more
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Processes to look at: KEY=VALUE[,KEY=VALUE…] as for `quell run --critical`; repeat for more
    #[arg(long = "match", value_name = "MATCH")]
    pub matching: Vec<TaskMatch>,
    /// A command to start and to look at, whatever its class; its status is passed through
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// How long it samples without a command.
const USUAL: Nanos = Nanos::secs(10);
const SHORTEST: Nanos = Nanos::millis(10);

/// Samples, and reports.
pub fn run(args: &Ways) -> Result {
    if args.every < SHORTEST {
        return Err(usage(format!(
            "--every {}: each sample reads files of every class; {SHORTEST} or more",
            args.every
        )));
    }
    let files = Kernel::new().map_err(failed)?;
    let mut looker = Looker::new(&files, !args.no_registers).map_err(failed)?;
    notes(args, &looker);
    if args.misses {
        looker.count_misses();
    }
    for pid in machine::running(&files, "--pid ", &args.pid, &args.matching)? {
        looker.watch(pid);
    }
    let stops = signals::stop_signals().map_err(failed)?;
    let begun = machine::unix_s();
    let record = match &args.out {
        Some(dir) => Some(Folder::begin(dir, "ways", begun, Nanos(0)).map_err(failed)?),
        None => None,
    };
    // Before the command: what is set already is there from the first moment on.
    let switches = match args.switches {
        true => told(sampling::switches(&files)),
        false => None,
    };
    let mut child = start(&args.command, &mut looker)?;
    let mut sampling = Sampling::new(looker, switches, record);
    let spent = || self_usage::own(&files).map(|own| own.cpu).map_err(failed);
    let before = spent()?;
    let mut status = sample(args, &files, &mut sampling, &stops, &mut child)?;
    let end = sampling.now();
    if let (Some(child), None) = (&mut child, status) {
        // Its time is over, or a signal asks to end: the command ends, too.
        let _ = child.kill();
        status = Some(child.wait().map_err(failed)?);
    }
    eprintln!(
        "quell: {} samples in {:.1} s, at most {:.3} s apart, {:.2} ms of CPU time each",
        sampling.samples,
        end.as_secs_f64(),
        sampling.apart.as_secs_f64(),
        spent()?.since(before).0 as f64 / 1e6 / sampling.samples.max(1) as f64
    );
    if sampling.switches.is_some() {
        eprintln!(
            "quell: {} runs of threads are kept, {} context switches are missing",
            sampling.runs, sampling.lost
        );
    }
    if let Some(why) = sampling.looker.uncounted() {
        eprintln!("quell: note: misses of threads cannot be counted here: {why}");
    }
    if let Some(folder) = sampling.record.take() {
        eprintln!("quell: the record is in {}", keep(folder, end, begun)?);
    }
    report(args, &sampling, end)?;
    Ok(match status {
        Some(status) => Exit::Status(quell_linux::shell_status(status)),
        None => Exit::Done,
    })
}

/// Samples until the time is over, the command ends, or a signal comes. Returns how the command
/// ended.
fn sample(
    args: &Ways,
    files: &Kernel,
    sampling: &mut Sampling,
    stops: &OwnedFd,
    child: &mut Option<Child>,
) -> Result<Option<ExitStatus>> {
    let end = args.span.or((child.is_none()).then_some(USUAL));
    let mut next = Nanos(0);
    loop {
        sampling.sample(files)?;
        next = next.plus(args.every).max(sampling.now());
        let stopped = sampling.wait(stops, next.min(end.unwrap_or(next)));
        let status = match child {
            Some(child) => child.try_wait().map_err(failed)?,
            None => None,
        };
        let over = end.is_some_and(|end| sampling.now() >= end);
        if stopped || over || status.is_some() {
            // What ran since the last sample.
            if sampling.switches.is_some() {
                sampling.sample(files)?;
            }
            return Ok(status);
        }
    }
}

/// Prints what was asked for: findings, a picture, or a policy.
fn report(args: &Ways, sampling: &Sampling, end: Nanos) -> Result<()> {
    if args.propose {
        let policy = propose::policy(&sampling.last).ok_or_else(|| {
            failed("no program is in a class of its own: there is nothing to propose")
        })?;
        print!("{policy}");
        return Ok(());
    }
    let told = || sampling.told.iter().map(|(at, change)| (at.0, change));
    if args.json {
        let found = findings(&Timeline::of(told(), end.0));
        println!("{}", serde_json::to_string_pretty(&found).map_err(failed)?);
    } else {
        print!(
            "{}",
            quell_report::ways_text(told(), end.0, crate::terminal::style())
        );
    }
    Ok(())
}

/// What is there, or a note why it is not.
fn told<T>(tried: std::result::Result<T, String>) -> Option<T> {
    tried
        .inspect_err(|why| eprintln!("quell: note: {why}: threads are sampled"))
        .ok()
}

/// Says what is not seen here.
fn notes(args: &Ways, looker: &Looker) {
    if looker.registers_alone() {
        eprintln!(
            "quell: note: resctrl is not mounted: CPUs have classes, as their registers say, and nothing counts what a class has of a cache"
        );
    }
    if !args.no_registers && !looker.sees_registers() {
        eprintln!(
            "quell: note: the processor's registers cannot be read here (on Intel: modprobe msr): what is set behind the kernel's back is not seen"
        );
    }
}

fn start(command: &[String], looker: &mut Looker) -> Result<Option<Child>> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(None);
    };
    let child = Command::new(program).args(arguments).spawn().map_err(|e| {
        failed(format!(
            "{program}: {e}; name a program, with its path if it is not in $PATH"
        ))
    })?;
    looker.watch(child.id());
    Ok(Some(child))
}

/// Completes the record, its page included.
fn keep(mut folder: Folder, end: Nanos, begun_unix_s: u64) -> Result<String> {
    folder.put(end, &Event::Phase { name: Phase::End });
    let manifest = serde_json::json!({
        "schema": MANIFEST_SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "created_unix_s": begun_unix_s,
        "command_line": crate::terminal::command_line(),
        "watched": "ways",
    });
    let manifest = serde_json::to_string_pretty(&manifest).map_err(failed)?;
    folder.write("manifest.json", &manifest).map_err(failed)?;
    folder.close().map_err(failed)?;
    let record = quell_engine::read::read(folder.path()).map_err(failed)?;
    let page = quell_report::html(&record);
    folder.write("report.html", &page).map_err(failed)?;
    Ok(folder.finish().map_err(failed)?.display().to_string())
}
