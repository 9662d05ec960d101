//! `quell ways`: who may fill which ways of which cache, over time, whoever has set it. Nothing is
//! changed.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

use quell_engine::folder::Folder;
use quell_engine::sink::Sink;
use quell_kernel::root::Kernel;
use quell_kernel::tasks::{Matcher, assign};
use quell_kernel::{procfs, rt, self_usage, signals};
use quell_linux::ways::Looker;
use quell_record::events::{Event, MANIFEST_SCHEMA, Phase};
use quell_record::ways::{Change, Snapshot, Timeline, changes, findings};
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags, poll};

use crate::exit::{Exit, Result, failed, usage};
use crate::machine;

mod propose;

/// `quell ways`
#[derive(Debug, clap::Args)]
pub struct Ways {
    /// Look for so long [default: 10s; until the command ends, if there is one]
    #[arg(long = "for", value_name = "TIME")]
    pub span: Option<Nanos>,
    /// Look so often
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub every: Nanos,
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
    for pid in running(&files, args)? {
        looker.watch(pid);
    }
    let stops = signals::stop_signals().map_err(failed)?;
    let begun = machine::unix_s();
    let mut record = match &args.out {
        Some(dir) => Some(Folder::begin(dir, "ways", begun, Nanos(0)).map_err(failed)?),
        None => None,
    };
    let clock = Instant::now();
    let now = || Nanos(u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut all = Changes::default();
    let registers = looker.registers_alone();
    let mut caches = None;
    // Before the command: what is set already is there from the first moment on.
    let mut before = Snapshot::default();
    let mut child = start(&args.command, &mut looker)?;
    let end = args.span.or((child.is_none()).then_some(USUAL));
    let (mut status, mut looks) = (None, 0u64);
    let spent = || self_usage::own(&files).map(|own| own.cpu).map_err(failed);
    let before_all = spent()?;
    let mut next = Nanos(0);
    loop {
        let at = now();
        let seen = looker.sample(&files).map_err(failed)?;
        if caches != Some(looker.caches().len()) {
            caches = Some(looker.caches().len());
            let caches = looker.caches().to_vec();
            all.put(at, Change::Machine { caches, registers }, &mut record);
        }
        for change in changes(&before, &seen) {
            all.put(at, change, &mut record);
        }
        before = seen;
        looks += 1;
        next = next.plus(args.every).max(now());
        let over = |at: Nanos| end.is_some_and(|end| at >= end);
        let wait = next.min(end.unwrap_or(next)).since(now());
        let stopped = waited(&stops, wait);
        if let Some(child) = &mut child {
            status = child.try_wait().map_err(failed)?;
        }
        if stopped || status.is_some() || over(now()) {
            break;
        }
    }
    let end = now();
    if let (Some(child), None) = (&mut child, status) {
        // Its time is over, or a signal asks to end: the command ends, too.
        let _ = child.kill();
        status = Some(child.wait().map_err(failed)?);
    }
    eprintln!(
        "quell: {looks} samples in {:.1} s, {:.2} ms of CPU time each",
        end.as_secs_f64(),
        spent()?.since(before_all).0 as f64 / 1e6 / looks.max(1) as f64
    );
    if let Some(folder) = record.take() {
        eprintln!("quell: the record is in {}", keep(folder, end, begun)?);
    }
    if args.propose {
        let policy = propose::policy(&before).ok_or_else(|| {
            failed("no program is in a class of its own: there is nothing to propose")
        })?;
        print!("{policy}");
        return Ok(Exit::Done);
    }
    let told = || all.told.iter().map(|(at, change)| (at.0, change));
    if args.json {
        let found = findings(&Timeline::of(told(), end.0));
        println!("{}", serde_json::to_string_pretty(&found).map_err(failed)?);
    } else {
        print!(
            "{}",
            quell_report::ways_text(told(), end.0, crate::terminal::style())
        );
    }
    Ok(match status {
        Some(status) => Exit::Status(quell_linux::shell_status(status)),
        None => Exit::Done,
    })
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

/// What was told, here and in the record.
#[derive(Default)]
struct Changes {
    told: Vec<(Nanos, Change)>,
}

impl Changes {
    fn put(&mut self, at: Nanos, change: Change, record: &mut Option<Folder>) {
        let event = Event::Ways {
            change: change.clone(),
        };
        record.put(at, &event);
        self.told.push((at, change));
    }
}

/// The processes that the options name. All of them run, or the first that does not is an error.
fn running(files: &Kernel, args: &Ways) -> Result<Vec<u32>> {
    let mut pids = args.pid.clone();
    for pid in &pids {
        if procfs::stat(files, *pid).map_err(failed)?.is_none() {
            return Err(usage(format!("--pid {pid}: no such process")));
        }
    }
    if args.matching.is_empty() {
        return Ok(pids);
    }
    let matcher = Matcher::new(files, "watched", &args.matching).map_err(failed)?;
    let found = assign(files, &[matcher], &BTreeSet::new()).map_err(failed)?;
    let found: Vec<u32> = found.into_values().flatten().map(|s| s.id.pid).collect();
    if found.is_empty() {
        return Err(usage("--match: no process matches"));
    }
    pids.extend(found);
    Ok(pids)
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

/// Waits; whether somebody wants us to end.
fn waited(stops: &std::os::fd::OwnedFd, wait: Nanos) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(stops.as_fd(), PollFlags::IN)];
    let timeout = rt::timespec(wait);
    let _ = poll(&mut fds, Some(&timeout));
    signals::next_signal(stops).is_some()
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
