//! `quell colours hoard`

use std::thread::JoinHandle;

use quell_kernel::root::Kernel;
use quell_kernel::vm;
use quell_linux::backend::Linux;
use quell_linux::colours::hoard::{Report, Rules, What};
use quell_linux::colours::owners::{self, Asked};
use quell_record::backend::{Backend as _, Observation, Seen};
use quell_record::events::Event;
use quell_record::owners::FrameOwners;
use quell_report::owners_text;
use quell_types::cpuset::CpuSet;
use quell_types::units::{Bytes, Nanos};

use super::known;
use crate::exit::{Exit, Result, failed, usage};
use crate::machine;

/// `quell colours hoard`
#[derive(Debug, clap::Args)]
pub struct Hoard {
    /// The colours whose page frames no other program gets, such as 0-3
    #[arg(value_name = "LIST")]
    colours: CpuSet,
    /// Memory that stays for other programs [default: an eighth of this machine's]
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Bytes>,
    /// Keep at most so much; it takes more to find it [default: all that is free but the reserve]
    #[arg(long, value_name = "SIZE")]
    limit: Option<Bytes>,
    /// End after so long [default: at a signal]
    #[arg(long = "for", value_name = "TIME")]
    span: Option<Nanos>,
    /// The address map: a file, or the name of a published one [default: the declared one]
    #[arg(long, value_name = "FILE|NAME")]
    map: Option<String>,
    /// Colours of cache sets instead of DRAM banks
    #[arg(long)]
    sets: bool,
    /// Print what is held at the end, and which programs have other such frames, as JSON
    #[arg(long)]
    json: bool,
}

/// How often the keeper's reports are read.
const EVERY: Nanos = Nanos::millis(200);

/// Holds the frames until the time is over, or a signal comes. The status says whether less was
/// held at the end than once.
pub fn run(args: &Hoard) -> Result {
    let rules = rules(args)?;
    if let Some(why) = rules.refusal() {
        return Err(usage(why));
    }
    let (mut backend, _) = machine::linux()?;
    for note in backend.hoard(&rules).map_err(failed)? {
        eprintln!("quell: note: {note}");
    }
    let held = hold(&mut backend, &rules, args);
    let undone = backend.end().map_err(failed)?;
    for left in undone.left {
        eprintln!("quell: note: {left}");
    }
    held
}

fn rules(args: &Hoard) -> Result<Rules> {
    let files = Kernel::new().map_err(failed)?;
    let (map, _) = known(args.map.as_deref(), &files)?;
    let (colouring, what) = match args.sets {
        true => (map.sets, "cache sets"),
        false => (map.banks, "DRAM banks"),
    };
    let none = || failed(format!("this map leaves pages no colours of {what}"));
    let memory = vm::memory(&files).map_err(failed)?.unwrap_or_default();
    Ok(Rules {
        colouring: colouring.ok_or_else(none)?,
        colours: args.colours.clone(),
        limit: args.limit.unwrap_or(memory.total),
        reserve: args.reserve.unwrap_or(Bytes(memory.total.0 / 8)),
    })
}

/// Begins to count which programs have frames of these colours. On a large machine that takes
/// longer than the heartbeat may pause, so a thread does it.
fn count(backend: &Linux, rules: &Rules, kept: Bytes) -> JoinHandle<Result<FrameOwners>> {
    let mut asked = Asked::new(rules.colouring.clone(), rules.colours.clone());
    asked.keeper = backend.hoard_keeper().map(|pid| (pid, kept));
    std::thread::spawn(move || {
        let files = Kernel::new().map_err(failed)?;
        owners::of(&files, &asked, &mut || {}).map_err(failed)
    })
}

/// Waits until they are counted.
fn counted(backend: &mut Linux, counting: JoinHandle<Result<FrameOwners>>) -> Result<FrameOwners> {
    while !counting.is_finished() {
        let until = backend.now().plus(Nanos::millis(10));
        let mut seen = Observation::new();
        backend.wait(until, &mut seen).map_err(failed)?;
    }
    counting
        .join()
        .map_err(|_| failed("frames in other programs were not counted"))?
}

fn hold(backend: &mut Linux, rules: &Rules, args: &Hoard) -> Result {
    let end = args.span.map(|span| backend.now().plus(span));
    let mut last: Option<Report> = None;
    let mut lost = false;
    let mut counting = None;
    loop {
        let mut seen = Observation::new();
        let until = backend.now().plus(EVERY);
        backend.wait(until, &mut seen).map_err(failed)?;
        for report in backend.hoarded().map_err(failed)? {
            eprintln!("quell: {}", report.words());
            if matches!(report.what, What::Sieved { .. }) {
                counting = Some(count(backend, rules, report.kept));
            }
            lost |= report.is_loss();
            last = Some(report);
        }
        if let Some(done) = counting.take_if(|counting| counting.is_finished()) {
            eprint!("{}", owners_text(&counted(backend, done)?));
        }
        let mut over = end.is_some_and(|end| backend.now() >= end);
        for one in seen {
            match one {
                Seen::Stop(_) => over = true,
                Seen::Revoked(why) => return Err(failed(why)),
                Seen::Event(Event::Finding { what, .. }) => eprintln!("quell: {what}"),
                _ => {}
            }
        }
        if over {
            let kept = last.map_or(Bytes(0), |report| report.kept);
            let counting = count(backend, rules, kept);
            let owners = counted(backend, counting)?;
            if args.json {
                println!("{}", serde_json::to_string_pretty(&owners).map_err(failed)?);
            } else {
                println!("held {kept} at the end");
                print!("{}", owners_text(&owners));
            }
            return Ok(match lost {
                true => Exit::NotHeld,
                false => Exit::Done,
            });
        }
    }
}
