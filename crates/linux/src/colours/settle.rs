//! Settling: pages of a program that runs are moved to frames of the colours that it should have,
//! while its threads are stopped, in chunks. Each chunk is in the journal while it lasts.
//!
//! What can be moved is private memory without a file that the program may write. Pages that are
//! shared after a fork, or pinned for a device, are refused by the kernel and stay.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_control::settling::{MOST_PAGES, Pace, Pacer, PageState, RightFrames, chunk};
use quell_kernel::cgroup::Cgroups;
use quell_kernel::error::{Error, Result};
use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::paging::{self, Mapping};
use quell_kernel::root::Files;
use quell_kernel::traceable::{self, Obstacle};
use quell_kernel::{procfs, rt, trace, uffd, vm};
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;
use quell_types::pages::{PageRun, SideArea, total};
use quell_types::partition::Colouring;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos, Share};

use super::settler::{Answer, Ask, Job, Settler, SettlerCommand, Trouble};
use crate::session::Session;
use crate::{fault, unsettle};

/// Pages of a mapping that are read at once.
const WINDOW: u64 = 4096;
/// Chunks in a row that may fail because threads do not stop.
const TRIES: u32 = 50;
/// Settlers that may die in a row.
const DEATHS: u32 = 5;
/// Passes over the memory: a program that runs makes new wrong pages meanwhile.
const PASSES: u32 = 8;
/// The part of the machine's memory that stays available.
const RESERVE: u64 = 10;
/// The longest sleep between two heartbeats.
const BREATH: Duration = Duration::from_millis(20);

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How frames have colours.
    pub colouring: Colouring,
    /// The colours that the pages shall have.
    pub colours: CpuSet,
    /// The longest stop that is aimed at.
    pub longest: Nanos,
    /// The share of time that the program may be stopped.
    pub pace: Share,
    /// The most memory that is held to find frames.
    pub hold: Bytes,
}

/// How it came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// How long all threads were stopped, each time.
    pub stops: Vec<Nanos>,
    /// Pages that were moved. One that was moved twice counts twice.
    pub moved: u64,
    /// Pages that the kernel refused to move.
    pub refused: u64,
    /// Chunks that were not begun because a thread did not stop in time, or none could do a call.
    pub busy: u64,
    /// The most memory that was held to find frames.
    pub held: Bytes,
    /// Why the kernel does not move some pages at all.
    pub kept: Option<String>,
    /// Why it ended before all pages were tried. `None`: it did not.
    pub ended: Option<String>,
}

/// Whether pages of this process can be moved here.
///
/// # Errors
/// [`Error::Refused`] with the reason and a remedy; [`Error::File`].
pub fn possible(files: &dyn Files, pid: u32) -> Result<()> {
    let refused = |why: String, remedy: &str| {
        Err(Error::refused_with(
            format!("the pages of process {pid} cannot be moved: {why}"),
            remedy,
        ))
    };
    if !trace::is_built() {
        return refused(
            "no thread can be made to do a call on this architecture".to_owned(),
            "use x86-64",
        );
    }
    if let Err(why) = uffd::support() {
        return refused(
            why,
            "use Linux 6.8 or newer with CONFIG_USERFAULTFD, as root",
        );
    }
    if pid == std::process::id() {
        return refused("it is this process".to_owned(), "name another one");
    }
    match traceable::obstacle(files, pid)? {
        None => {}
        Some(obstacle @ Obstacle::Ended) => {
            return refused(obstacle.to_string(), "name a process that runs");
        }
        Some(obstacle @ Obstacle::Stopped) => {
            return refused(obstacle.to_string(), "let it run on (kill -CONT)");
        }
        Some(obstacle @ Obstacle::Traced { .. }) => {
            return refused(obstacle.to_string(), "end the tracer (gdb, strace)");
        }
        Some(obstacle @ Obstacle::Filtered) => {
            return refused(obstacle.to_string(), "start the program without the filter");
        }
    }
    if !unsettle::descriptors(files, pid).is_empty() {
        return refused(
            "it supplies missing pages itself (userfaultfd)".to_owned(),
            "settle it when it does not (a migration, a restore)",
        );
    }
    const CAP_SYS_PTRACE: u32 = 19;
    let all = files.parsed::<u32>("/proc/sys/vm/unprivileged_userfaultfd", "0 or 1")?;
    if all != Some(1) && !procfs::is_capable(files, pid, CAP_SYS_PTRACE)? {
        return refused(
            "it may not use userfaultfd (CAP_SYS_PTRACE is missing)".to_owned(),
            "set vm.unprivileged_userfaultfd to 1 while it is settled",
        );
    }
    Ok(())
}

/// What the moving of pages is recorded in, and what ends it.
pub struct Hold<'a> {
    /// The kernel's files.
    pub files: &'a dyn Files,
    /// Where a new watchdog goes, if one dies.
    pub cgroups: &'a Cgroups,
    /// The hold on the machine, with the journal.
    pub session: &'a mut Session,
    /// Asked every few milliseconds: whether to end.
    pub ends: &'a mut dyn FnMut() -> bool,
}

impl Hold<'_> {
    /// Sleeps. Returns whether it shall go on.
    fn pause(&mut self, rest: Nanos) -> Result<bool> {
        let until = rt::now().plus(rest);
        loop {
            let now = rt::now();
            self.session.beat(self.files, self.cgroups, now)?;
            if (self.ends)() {
                return Ok(false);
            }
            let left = Duration::from_nanos(until.since(now).0);
            if left.is_zero() {
                return Ok(true);
            }
            std::thread::sleep(left.min(BREATH));
        }
    }
}

/// Moves the pages of a process that have wrong colours, until none is left that can be moved.
///
/// # Errors
/// As [`possible`]; what the session, its journal and the settler say.
pub fn settle(
    hold: &mut Hold<'_>,
    task: TaskId,
    wanted: &Wanted,
    command: &SettlerCommand,
) -> Result<Settled> {
    possible(hold.files, task.pid)?;
    let none = || Error::refused("there are no such colours");
    let right = RightFrames::new(&wanted.colouring, &wanted.colours).ok_or_else(none)?;
    let mut settling = Settling {
        task,
        page: wanted.colouring.page.0,
        longest: wanted.longest,
        pacer: Pacer::new(Pace {
            longest: wanted.longest,
            share: wanted.pace,
        }),
        job: Job {
            task,
            colouring: wanted.colouring.clone(),
            colours: wanted.colours.clone(),
            hold: wanted.hold,
        },
        right,
        command,
        settler: None,
        failures: 0,
        died: 0,
        refused: BTreeSet::new(),
        done: Settled::default(),
    };
    for _ in 0..PASSES {
        let before = settling.done.moved;
        settling.pass(hold)?;
        if settling.done.ended.is_some() || settling.done.moved == before {
            break;
        }
    }
    settling.done.refused = settling.refused.len() as u64;
    Ok(settling.done)
}

struct Settling<'a> {
    task: TaskId,
    page: u64,
    longest: Nanos,
    right: RightFrames,
    pacer: Pacer,
    job: Job,
    command: &'a SettlerCommand,
    settler: Option<Settler>,
    /// Chunks that failed in a row.
    failures: u32,
    /// Settlers that died in a row.
    died: u32,
    /// Pages that the kernel refused to move, by number.
    refused: BTreeSet<u64>,
    done: Settled,
}

impl Settling<'_> {
    /// Goes through all memory once.
    fn pass(&mut self, hold: &mut Hold<'_>) -> Result<()> {
        let all = paging::mappings_of(hold.files, self.task.pid)?;
        let movable = |m: &&Mapping| m.anonymous && !m.executable && m.resident > Bytes(0);
        for mapping in all.iter().filter(movable) {
            let end = mapping.range.end / self.page;
            let mut at = mapping.range.start / self.page;
            while at < end {
                let states = self.states(hold.files, at, end)?;
                // Going through a large mapping takes long.
                let _ = hold.session.still_held();
                let Some(chunk) = chunk(at, &states, self.pacer.pages()) else {
                    at += WINDOW;
                    continue;
                };
                let handled = self.chunk(hold, &all, mapping, chunk.runs)?;
                if self.done.ended.is_some() {
                    return Ok(());
                }
                // What there was no time for is tried again.
                at = if handled { chunk.next } else { at };
            }
        }
        Ok(())
    }

    /// What the pages from `first` on are to settling.
    fn states(&self, files: &dyn Files, first: u64, end: u64) -> Result<Vec<PageState>> {
        let pages = usize::try_from(WINDOW.min(end - first)).unwrap_or(0);
        let mut entries = vec![Page::default(); pages];
        let read = match Pagemap::open(files, &self.task.pid.to_string()) {
            Ok(pagemap) => pagemap.read(first, &mut entries)?,
            // It has ended.
            Err(_) if !procfs::alive(files, self.task) => 0,
            Err(e) => return Err(e),
        };
        let state = |(page, entry): (u64, &Page)| {
            // The page of zeroes, which many mappings have, is never exclusive.
            let own = entry.is_present() && entry.is_exclusive() && !entry.is_of_file();
            if !own || entry.frame() == 0 || self.refused.contains(&page) {
                return PageState::Fixed;
            }
            match self.right.has(entry.frame()) {
                true => PageState::Right,
                false => PageState::Wrong,
            }
        };
        Ok((first..).zip(&entries[..read]).map(state).collect())
    }

    /// Moves one chunk, and lets the program run for as long as its pace asks for. Returns whether
    /// all of the chunk was handled.
    fn chunk(
        &mut self,
        hold: &mut Hold<'_>,
        all: &[Mapping],
        mapping: &Mapping,
        runs: Vec<PageRun>,
    ) -> Result<bool> {
        if let Some(why) = self.obstacle(hold.files)? {
            self.done.ended = Some(why);
            return Ok(false);
        }
        let mut side = SideArea {
            task: self.task,
            at: 0,
            token: rt::now().0 ^ self.task.start.rotate_left(32) | 1,
            page: self.page,
            runs,
        };
        let Some(at) = gap(all, side.length()) else {
            self.done.ended =
                Some("there is no room for a side area among its mappings".to_owned());
            return Ok(false);
        };
        side.at = at;
        let entry = Undo::Settle { side: side.clone() };
        hold.session.journal().record(&entry)?;
        let answer = self.ask(hold.session, &side, mapping)?;
        fault::boundary();
        let answer = match answer {
            Some(answer) if !matches!(answer.trouble, Some(Trouble::Away(_))) => answer,
            // The settler has died, or could not put pages back.
            _ => {
                let session = &*hold.session;
                let alive = || {
                    let _ = session.still_held();
                };
                unsettle::finish(hold.files, &side, &alive).map_err(Error::refused)?;
                self.settler = None;
                self.died += 1;
                Answer {
                    trouble: Some(Trouble::Busy),
                    ..Answer::default()
                }
            }
        };
        hold.session.journal().retract_last(&entry)?;
        self.account(hold, &side, answer)
    }

    /// What keeps the program from being settled any more.
    fn obstacle(&self, files: &dyn Files) -> Result<Option<String>> {
        if let Some(obstacle) = traceable::obstacle(files, self.task.pid)? {
            return Ok(Some(obstacle.to_string()));
        }
        let memory = vm::memory(files)?;
        let short = memory.filter(|memory| memory.available.0 < memory.total.0 / RESERVE);
        Ok(short.map(|memory| {
            format!(
                "only {} of memory are available, and frames are found by holding memory",
                memory.available
            )
        }))
    }

    fn ask(
        &mut self,
        session: &Session,
        side: &SideArea,
        mapping: &Mapping,
    ) -> Result<Option<Answer>> {
        let settler = match &mut self.settler {
            Some(settler) => settler,
            none => none.insert(Settler::start(self.command, &self.job)?),
        };
        let ask = Ask {
            side: side.clone(),
            locked: mapping.locked,
            longest: self.longest,
        };
        let answer = settler.ask(&ask, &mut || {
            let _ = session.still_held();
        });
        answer.map_err(|e| Error::refused(format!("the settler: {e}")))
    }

    /// Takes note of an answer, and waits. Returns whether all of the chunk was handled.
    fn account(&mut self, hold: &mut Hold<'_>, side: &SideArea, answer: Answer) -> Result<bool> {
        if answer.lasted > Nanos(0) {
            self.done.stops.push(answer.lasted);
        }
        self.done.moved += answer.moved;
        self.done.held = self.done.held.max(answer.held);
        self.refused.extend(&answer.refused);
        let handled = answer.moved + answer.refused.len() as u64;
        let mut all = handled >= total(&side.runs);
        let mut rest = self.pacer.after(handled, answer.lasted);
        let busy = match answer.trouble {
            None => false,
            Some(Trouble::Busy) => {
                self.done.busy += 1;
                rest = rest.max(Nanos::millis(10));
                true
            }
            Some(Trouble::Kept(why)) => {
                self.refused
                    .extend(side.runs.iter().flat_map(|run| run.first..run.end()));
                self.done.kept = Some(why);
                all = true;
                false
            }
            Some(Trouble::NoFrames) => {
                self.done.ended = Some(format!(
                    "too few frames of these colours were found among {} of free memory; allow more (--hold), or free memory",
                    answer.held
                ));
                true
            }
            Some(Trouble::Gone) => {
                self.done.ended = Some("the process has ended".to_owned());
                true
            }
            Some(Trouble::Refused(why) | Trouble::Away(why)) => {
                self.done.ended = Some(why);
                true
            }
        };
        if answer.last {
            self.settler = None;
        }
        (self.failures, self.died) = match busy {
            true => (self.failures + 1, self.died),
            false => (0, 0),
        };
        if (self.failures > TRIES || self.died > DEATHS) && self.done.ended.is_none() {
            self.done.ended = Some(match self.died {
                0 => format!(
                    "its threads did not stop within {} in {TRIES} tries: the machine is busy, or one waits for a disk; allow longer stops",
                    self.longest
                ),
                died => format!("the process that moves pages died {died} times"),
            });
        }
        if !hold.pause(rest)? && self.done.ended.is_none() {
            self.done.ended = Some("it was asked to end".to_owned());
        }
        Ok(all && !busy)
    }
}

/// An address for a side area: in the middle of the largest gap between two mappings. `None` where
/// no gap is twice as long as the area.
fn gap(all: &[Mapping], length: u64) -> Option<u64> {
    /// What one table of page-table entries maps: so that as few tables as possible are needed.
    const ALIGNMENT: u64 = 2 << 20;
    let least = length.max(MOST_PAGES).saturating_mul(2) + 4 * ALIGNMENT;
    let between = all
        .windows(2)
        .map(|pair| pair[0].range.end..pair[1].range.start);
    // Beyond half of the addresses lies the kernel.
    let own = between.filter(|gap| gap.end >> 63 == 0 && gap.start < gap.end);
    let largest = own.max_by_key(|gap| gap.end - gap.start)?;
    let size = largest.end - largest.start;
    (size >= least).then(|| (largest.start + size / 2) / ALIGNMENT * ALIGNMENT)
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
