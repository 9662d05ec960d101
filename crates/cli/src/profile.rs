//! `quell profile`: what a program asks of memory over time, kept as a file, and what follows from
//! it.

pub mod args;
pub mod probe;
mod sizes;
mod sweep;
mod written;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use quell_engine::compare::Progress;
use quell_kernel::pmu;
use quell_kernel::root::Kernel;
use quell_linux::profile::{Options, Wanted, sees_writes, watch};
use quell_plan::deep::Fingerprint;
use quell_plan::inventory::{Inventory, MeterKind};
use quell_policy::lab::Guest;
use quell_policy::workload::Workload;
use quell_record::backend::{Program, SubjectSpec};
use quell_record::demand::{
    BIN, Measuring, PROFILE_SCHEMA, Profile, Quantity, Sampler, Series, Sought, Subject, UnitTimes,
    Work, WorkingSet, assess, bins, phases, proposal,
};
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskMatch;
use quell_types::units::{LINE_BYTES, Nanos};

use crate::exit::{Exit, Result, failed, usage};
use crate::kept;
use crate::lab_exec::{self, Bundle};
use crate::machine;
use crate::progress::Bar;
use crate::target::{On, Target};
use args::Profile as Args;

/// Load before a generator is looked at.
const WARMUP: Nanos = Nanos::millis(200);
/// The same on a simulated machine.
const SIMULATED_WARMUP: Nanos = Nanos::millis(20);
/// How much work is told apart from what came before.
const WINDOW: Nanos = Nanos::millis(100);
/// The same on a simulated machine.
const SIMULATED_WINDOW: Nanos = Nanos::millis(10);
const SHORTEST: Nanos = Nanos::millis(100);
const LONGEST: Nanos = Nanos::secs(600);

/// Profiles, or shows a profile.
pub fn run(args: &Args) -> Result {
    if let Some(named) = &args.show {
        return show(&kept::stored(named)?, args);
    }
    let subject = subject(args)?;
    let span = span(args, &subject)?;
    if !matches!(args.on, On::Lab(_)) {
        lab_exec::unasked(&args.lab)?;
        sweep::check(args, &subject)?;
    }
    let mut profile = match &args.on {
        On::Lab(emulated) => return in_the_lab(args, emulated.as_ref()),
        On::Linux => on_linux(args, &subject, span)?,
        On::Sim(_) | On::Coarse(_) => on_sim(args, &subject, span)?,
    };
    if args.probe {
        profile.sensitivity = probe::probe(args, &subject)?;
    }
    profile.sweeps = sweep::sweeps(args, &subject)?;
    kept::keep(&profile, args.out.as_deref())?;
    show(&profile, args)
}

/// The same inside a machine of the lab.
fn in_the_lab(args: &Args, emulated: Option<&String>) -> Result {
    if args.pid.is_some() || !args.matching.is_empty() {
        return Err(usage(
            "what runs on this machine does not run in the lab: name a generator, or a command after --",
        ));
    }
    let mut bundle = Bundle::default();
    bundle.program(&args.command);
    bundle.back(args.out.as_ref());
    bundle.back(args.html.as_ref());
    bundle.profiles();
    lab_exec::call(&Guest::default(), emulated, &args.lab, bundle)
}

/// Whom the options name.
fn subject(args: &Args) -> Result<Subject> {
    let subject = match (&args.generator, args.pid, args.matching.as_slice()) {
        (Some(run), _, _) => Subject::Generator { run: run.clone() },
        (None, Some(pid), _) => Subject::Tasks {
            matching: vec![TaskMatch {
                pid: Some(pid),
                ..TaskMatch::default()
            }],
        },
        (None, None, [_, ..]) => Subject::Tasks {
            matching: args.matching.clone(),
        },
        (None, None, []) if !args.command.is_empty() => Subject::Command {
            command: args.command.clone(),
        },
        (None, None, []) => {
            return Err(usage(
                "name what to profile: a generator, --pid PID, --match MATCH, or a command after --",
            ));
        }
    };
    match (&subject, &args.on) {
        (Subject::Generator { run }, On::Linux | On::Lab(_)) if run.simulated_only() => {
            Err(usage(format!(
                "a {} is replayed on the simulated machine only; use --on sim, or name the program itself after --",
                run.kind()
            )))
        }
        (_, On::Coarse(_)) => Err(usage(
            "the coarse machine runs recorded programs, whose figures are known; use --on sim",
        )),
        (Subject::Command { .. } | Subject::Tasks { .. }, On::Sim(_)) => Err(usage(
            "no program of this machine can run on a simulated one; name a generator, or leave --on out",
        )),
        _ => Ok(subject),
    }
}

fn span(args: &Args, subject: &Subject) -> Result<Nanos> {
    let usual = match (&args.on, subject) {
        (On::Sim(_) | On::Coarse(_), _) => Nanos::secs(1),
        (On::Linux | On::Lab(_), Subject::Command { .. }) => LONGEST,
        (On::Linux | On::Lab(_), _) => Nanos::secs(5),
    };
    let span = args.span.unwrap_or(usual);
    if !(SHORTEST..=LONGEST).contains(&span) {
        return Err(usage(format!(
            "--for {span}: a profile is over {SHORTEST} to {LONGEST}"
        )));
    }
    Ok(span)
}

/// What was found out of a program, whatever the machine.
struct Found<'a> {
    counters: Vec<(Quantity, Vec<(Nanos, u64)>)>,
    measuring: Measuring,
    work: Vec<(Nanos, Work)>,
    working_set: Option<WorkingSet>,
    units_ns: Vec<u64>,
    /// CPU time that looking took.
    cost: Option<Nanos>,
    machine: &'a Inventory,
    fingerprint: Fingerprint,
}

fn profile(args: &Args, subject: &Subject, found: Found<'_>) -> Result<Profile> {
    let short = || {
        failed(
            "the program ended within a millisecond, too early for a profile; give it more to do",
        )
    };
    let times = found.counters.first().map(|(_, readings)| readings.len());
    let mut unread = 0;
    let series = found.counters.into_iter().map(|(quantity, readings)| {
        let binned = bins(&readings, BIN);
        unread = binned.unread;
        Series::of(quantity, binned.per_bin, BIN.0)
    });
    let series: Vec<Series> = series.collect::<Option<_>>().ok_or_else(short)?;
    let (total, burst) = assess(&series).ok_or_else(short)?;
    let span_ns = series.first().map_or(0, |s| s.per_bin.len() as u64) * BIN.0;
    let quantity = series.first().map_or(Quantity::Read, |s| s.quantity);
    let measured = found.machine.measured.as_ref();
    let window = match args.on {
        On::Sim(_) | On::Coarse(_) => SIMULATED_WINDOW,
        On::Linux | On::Lab(_) => WINDOW,
    };
    Ok(Profile {
        schema: PROFILE_SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_unix_s: machine::unix_s(),
        name: subject.name(),
        subject: subject.clone(),
        program: kept::content(subject),
        backend: args.on.name(),
        timing: args.on.timing(),
        machine: found.fingerprint,
        measuring: found.measuring,
        span_ns,
        bin_ns: BIN.0,
        proposal: proposal(&Sought {
            subject,
            quantity,
            total: &total,
            burst: burst.as_ref(),
            sustainable: measured.map(|m| m.sustainable),
            machine: found.machine,
            root: args.on != On::Linux || quell_kernel::is_root(),
        }),
        series,
        total,
        burst,
        phases: phases(&found.work, window),
        working_set: found.working_set,
        units: UnitTimes::of(found.units_ns),
        sampler: found.cost.map(|cost| Sampler {
            readings: times.unwrap_or(0) as u64,
            unread_bins: unread,
            cpu_share: cost.0 as f64 / span_ns.max(1) as f64,
        }),
        sensitivity: Vec::new(),
        sweeps: Vec::new(),
    })
}

fn on_sim(args: &Args, subject: &Subject, span: Nanos) -> Result<Profile> {
    let Subject::Generator { run } = subject else {
        return Err(usage("only generators run on a simulated machine"));
    };
    let (target, machine) = args.on.measured(args.seed, NonZeroUsize::MIN)?;
    let Target::Sims(mut sims) = target else {
        return Err(failed("there is no simulated machine to run on"));
    };
    let Some(sim) = sims.first_mut() else {
        return Err(failed("there is no simulated machine to run on"));
    };
    let spec = SubjectSpec {
        name: subject.name(),
        group: subject.name(),
        program: Program::Generator(run.clone()),
        cpus: args.cpus.clone(),
        env: BTreeMap::new(),
        capture: true,
    };
    let mut bar = Bar::new();
    let watched = quell_engine::profile::watch(sim, &spec, SIMULATED_WARMUP, span, &mut bar);
    let watched = watched.map_err(failed)?;
    drop(bar);
    let found = Found {
        counters: vec![
            (Quantity::Read, watched.counter(|d| d.read)),
            (Quantity::Written, watched.counter(|d| d.written)),
        ],
        measuring: Measuring::Simulated,
        work: watched.counter(|d| d.work),
        working_set: watched.working_set,
        units_ns: watched.units_ns,
        cost: None,
        fingerprint: machine.fingerprint(None),
        machine: &machine,
    };
    profile(args, subject, found)
}

fn on_linux(args: &Args, subject: &Subject, span: Nanos) -> Result<Profile> {
    let machine = {
        let (_, machine) = machine::linux()?;
        machine
    };
    let files = Kernel::new().map_err(failed)?;
    let (counting, measuring) = meter(&files, &machine);
    let name = subject.name();
    let all = machine.cpu_set();
    let (generator, cpus);
    let wanted = match subject {
        Subject::Generator { run } => {
            cpus = args.cpus.clone().or_else(last_cpu).unwrap_or_default();
            generator = served(run, &cpus, &machine);
            Wanted::Generator(&generator, WARMUP)
        }
        Subject::Command { command } => {
            cpus = args.cpus.clone().unwrap_or_default();
            Wanted::Command(command)
        }
        Subject::Tasks { matching } => {
            cpus = CpuSet::default();
            Wanted::Tasks(matching)
        }
    };
    if !cpus.is_subset(&all) {
        return Err(usage(format!(
            "--cpus {cpus}: this machine lets us use {all}"
        )));
    }
    let options = Options {
        name: &name,
        wanted,
        cpus,
        all,
        span,
        counting: &counting,
    };
    let mut bar = Bar::new();
    bar.begin(100);
    let watched = watch(
        &files,
        &options,
        &mut |line| eprintln!("{line}"),
        &mut |percent| bar.done(percent, 100),
    );
    drop(bar);
    let watched = watched.map_err(failed)?;
    for note in &watched.notes {
        eprintln!("quell: note: {note}");
    }
    let counter = |n: usize| {
        let each = if counting.is_empty() { 1 } else { LINE_BYTES };
        let all = watched.readings.iter();
        all.map(|(at, sums)| (*at, sums[n] * each)).collect()
    };
    let counters = match &measuring {
        Measuring::CpuTime { .. } => vec![(Quantity::CpuTime, counter(0))],
        Measuring::Events {
            fills_only: true, ..
        } => vec![(Quantity::Read, counter(0))],
        Measuring::Events { .. } | Measuring::Simulated => {
            vec![
                (Quantity::Read, counter(0)),
                (Quantity::Written, counter(1)),
            ]
        }
    };
    let found = Found {
        counters,
        measuring,
        work: watched.work,
        working_set: watched.working_set,
        units_ns: watched.units_ns,
        cost: Some(watched.cost),
        fingerprint: machine::fingerprint(&machine),
        machine: &machine,
    };
    profile(args, subject, found)
}

/// The events that the machine was found to count right, or why it is CPU time.
fn meter(files: &Kernel, machine: &Inventory) -> (Vec<pmu::Counting>, Measuring) {
    let found = match &machine.means.meter {
        MeterKind::Hardware { events, .. } => events.as_slice(),
        MeterKind::Time | MeterKind::None { .. } => &[],
    };
    let mut counts = |pmu: &pmu::Pmu, event: &pmu::Named| {
        let name = pmu.event(event);
        found
            .contains(&name)
            .then_some(())
            .ok_or_else(|| "was not found to count right (`quell doctor --deep` looks)".to_owned())
    };
    match pmu::counting(files, &machine.identity.vendor, &mut counts) {
        Ok(counting) => {
            let measuring = Measuring::Events {
                events: counting.iter().flat_map(pmu::Counting::names).collect(),
                fills_only: !sees_writes(&counting, &machine.cpu_set()),
            };
            (counting, measuring)
        }
        Err(why) => {
            let bound = machine.measured.as_ref().map(|m| m.peak_cpu);
            (Vec::new(), Measuring::CpuTime { why, bound })
        }
    }
}

fn last_cpu() -> Option<CpuSet> {
    let allowed = quell_workload::affinity::allowed().ok()?;
    allowed.iter().last().map(|cpu| [cpu].into_iter().collect())
}

fn served(run: &Workload, cpus: &CpuSet, machine: &Inventory) -> Vec<String> {
    let first = cpus.first().unwrap_or(0);
    machine::generator(run, &machine.data_caches(first))
}

fn show(profile: &Profile, args: &Args) -> Result {
    if let Some(path) = &args.html {
        quell_files::put(path, &quell_report::profile_html(profile)).map_err(|e| {
            failed(format!(
                "the page could not be written to {}: {e}; name a writable file with --html",
                path.display()
            ))
        })?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(profile).map_err(failed)?);
    } else {
        print!(
            "{}",
            quell_report::profile_text(profile, crate::terminal::style())
        );
    }
    Ok(Exit::Done)
}
