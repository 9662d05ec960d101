//! Settling: pages of a program that runs are moved to frames of the colours that it should have,
//! while its threads are stopped, in chunks. Each chunk is in the journal while it lasts.
//!
//! What can be moved is private memory without a file that the program may write. Pages that are
//! shared after a fork, or pinned for a device, are refused by the kernel and stay.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_control::settling::{Pace, Pacer, PageState, RightFrames, chunk};
use quell_kernel::cgroup::Cgroups;
use quell_kernel::error::{Error, Result};
use quell_kernel::pagemap::Page;
use quell_kernel::paging::{self, Mapping};
use quell_kernel::root::Files;
use quell_kernel::traceable::{self, Obstacle};
use quell_kernel::{rt, trace, uffd, vm};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::journal::Undo;
use quell_types::pages::{PageRun, SideArea, total};
use quell_types::partition::Colouring;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos, Share};

pub use super::settled::Settled;
use super::settler::{Answer, Ask, Job, Settler, SettlerCommand, Trouble, spare};
use super::threads;
pub use super::walk::Counted;
use super::walk::{WINDOW, Walk, entries, gap};
use crate::session::Session;
use crate::{fault, unsettle};

/// What is read at most in one turn: so many mappings or windows.
const WINDOWS: u32 = 256;
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

/// Whether pages of programs can be moved on this machine. The error is the reason.
///
/// # Errors
/// The reason in words.
pub fn movable() -> std::result::Result<(), String> {
    match trace::is_built() {
        true => uffd::support(),
        false => Err("no thread can be made to do a call on this architecture".to_owned()),
    }
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
        Some(obstacle @ Obstacle::Strict) => {
            return refused(obstacle.to_string(), "start the program without that");
        }
    }
    if !uffd::may_open(files, pid)? {
        return refused(
            "it may not open a userfaultfd, and nobody opens one for it".to_owned(),
            "set vm.unprivileged_userfaultfd to 1 while it is settled, or start it with CAP_SYS_PTRACE",
        );
    }
    if !unsettle::descriptors(files, pid).is_empty() {
        return refused(
            "it supplies missing pages itself (userfaultfd)".to_owned(),
            "settle it when it does not (a migration, a restore)",
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
    let mut settling = Settling::new(task, wanted, command)?;
    for _ in 0..PASSES {
        let before = settling.done.moved;
        while settling.done.ended.is_none() {
            match settling.turn(hold.files, hold.session, None, &mut |_, _| Ok(()))? {
                Turn::Rest(rest) => {
                    if !hold.pause(rest)? {
                        settling.end("it was asked to end");
                    }
                }
                Turn::NoFrames(held) => settling.end(&format!(
                    "too few frames of these colours were found among {held} of free memory; allow more (--hold), or free memory"
                )),
                Turn::Through(_) => break,
            }
        }
        if settling.done.ended.is_some() || settling.done.moved == before {
            break;
        }
    }
    settling.done.refused = settling.refused.len() as u64;
    Ok(settling.done)
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There is more to do, once the program has run for so long.
    Rest(Nanos),
    /// Too few frames were found in so much memory, which is free again.
    NoFrames(Bytes),
    /// All memory was gone through.
    Through(Counted),
}

/// Provides so many frames before they are looked for, and so many more where there are some.
pub type Provide<'a> = &'a mut dyn FnMut(u64, u64) -> Result<()>;

/// Moves the pages of one process, chunk by chunk.
pub struct Settling {
    task: TaskId,
    page: u64,
    longest: Nanos,
    right: RightFrames,
    pacer: Pacer,
    job: Job,
    command: SettlerCommand,
    settler: Option<Settler>,
    walk: Option<Walk>,
    /// Chunks that failed in a row.
    failures: u32,
    /// Settlers that died in a row.
    died: u32,
    /// Pages that the kernel refused to move, by number.
    refused: BTreeSet<u64>,
    done: Settled,
}

impl Settling {
    /// Moves nothing yet.
    ///
    /// # Errors
    /// [`Error::Refused`] where there are no such colours.
    pub fn new(task: TaskId, wanted: &Wanted, command: &SettlerCommand) -> Result<Self> {
        let none = || Error::refused("there are no such colours");
        let right = RightFrames::new(&wanted.colouring, &wanted.colours).ok_or_else(none)?;
        Ok(Self {
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
            command: command.clone(),
            settler: None,
            walk: None,
            failures: 0,
            died: 0,
            refused: BTreeSet::new(),
            done: Settled::default(),
        })
    }

    /// How it came out so far.
    #[must_use]
    pub const fn done(&self) -> &Settled {
        &self.done
    }

    /// The process.
    #[must_use]
    pub const fn task(&self) -> TaskId {
        self.task
    }

    /// Whether the next turn begins a pass over its memory.
    #[must_use]
    pub const fn is_between(&self) -> bool {
        self.walk.is_none()
    }

    /// Changes the share of time that the program may be stopped.
    pub fn pace(&mut self, share: Share) {
        self.pacer.pace(share);
    }

    /// Tries again what failed before: pages that are shared after a fork may be its own by now.
    pub fn forget(&mut self) {
        self.refused.clear();
        self.done.ended = None;
        (self.failures, self.died) = (0, 0);
    }

    /// Process id of the settler, while there is one.
    #[must_use]
    pub fn settler(&self) -> Option<u32> {
        self.settler.as_ref().map(Settler::pid)
    }

    fn end(&mut self, why: &str) {
        self.done.ended.get_or_insert_with(|| why.to_owned());
    }

    /// Goes on through the memory until a chunk was tried. `cpu` is where `provide` makes frames
    /// free, and where they are looked for.
    ///
    /// # Errors
    /// What the journal and the settler say.
    pub fn turn(
        &mut self,
        files: &dyn Files,
        session: &mut Session,
        cpu: Option<CpuId>,
        provide: Provide<'_>,
    ) -> Result<Turn> {
        let mut walk = match self.walk.take() {
            Some(walk) => walk,
            None => Walk::new(paging::mappings_of(files, self.task.pid)?),
        };
        for _ in 0..WINDOWS {
            let Some(mapping) = walk.all.get(walk.mapping).cloned() else {
                self.settler = None;
                return Ok(Turn::Through(walk.counted));
            };
            let end = mapping.range.end / self.page;
            let at = walk.page.unwrap_or(mapping.range.start / self.page);
            let movable = mapping.anonymous && !mapping.executable && mapping.resident > Bytes(0);
            if !movable || at >= end {
                walk.skip();
                continue;
            }
            let window = entries(files, self.task, at..end.min(at + WINDOW))?;
            let states = self.states(at, &window);
            // Going through a large mapping takes long.
            let _ = session.still_held();
            let Some(chunk) = chunk(at, &states, self.pacer.pages()) else {
                walk.count(&states);
                walk.page = Some(at + WINDOW);
                continue;
            };
            let considered = usize::try_from(chunk.next - at).unwrap_or(usize::MAX);
            let pages = mapping.range.start / self.page..end;
            walk.count_colours(files, self.task, &self.right, pages)?;
            // Right pages between wrong ones get other frames, too.
            walk.note(&self.right, &chunk.of(at, &window), -1);
            let runs = chunk.runs.clone();
            let place = Place {
                mapping: &mapping,
                walk: &walk,
                cpu,
            };
            let (turn, handled) = self.chunk(files, session, &place, chunk.runs, provide)?;
            for run in runs {
                let moved = entries(files, self.task, run.first..run.end())?;
                walk.note(&self.right, &moved, 1);
            }
            if handled {
                walk.count(states.get(..considered).unwrap_or(&states));
            }
            // What there was no time for is tried again.
            walk.page = Some(if handled { chunk.next } else { at });
            self.walk = Some(walk);
            return Ok(turn);
        }
        self.walk = Some(walk);
        Ok(Turn::Rest(Nanos(0)))
    }

    /// What pages are to settling. The first one has the number `first`.
    fn states(&self, first: u64, entries: &[Page]) -> Vec<PageState> {
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
        (first..).zip(entries).map(state).collect()
    }

    /// Moves one chunk. Returns whether all of it was handled.
    fn chunk(
        &mut self,
        files: &dyn Files,
        session: &mut Session,
        place: &Place<'_>,
        runs: Vec<PageRun>,
        provide: Provide<'_>,
    ) -> Result<(Turn, bool)> {
        if let Some(why) = self.obstacle(files)? {
            self.end(&why);
            return Ok((Turn::Rest(Nanos(0)), false));
        }
        let mut side = SideArea {
            task: self.task,
            at: 0,
            token: rt::now().0 ^ self.task.start.rotate_left(32) | 1,
            page: self.page,
            runs,
            caller: threads::caller(files, self.task, self.settler()),
            sleepers: Vec::new(),
        };
        if let Some(caller) = &side.caller {
            side.sleepers = threads::sleepers(files, self.task, caller);
        }
        let Some(at) = gap(&place.walk.all, side.length(), side.token) else {
            self.end("there is no room for a side area among its mappings");
            return Ok((Turn::Rest(Nanos(0)), false));
        };
        side.at = at;
        provide(total(&side.runs), spare(&self.job.colours))?;
        let entry = Undo::Settle { side: side.clone() };
        session.journal().record(&entry)?;
        let answer = self.ask(session, &side, place)?;
        fault::boundary();
        let answer = match answer {
            Some(answer) if !matches!(answer.trouble, Some(Trouble::Away(_))) => answer,
            // The settler has died, or could not put pages back.
            _ => {
                let held = &*session;
                let alive = || {
                    let _ = held.still_held();
                };
                unsettle::finish(files, &side, &alive).map_err(Error::refused)?;
                self.settler = None;
                self.died += 1;
                Answer {
                    trouble: Some(Trouble::Busy),
                    ..Answer::default()
                }
            }
        };
        session.journal().retract_last(&entry)?;
        Ok(self.account(&side, answer))
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
        place: &Place<'_>,
    ) -> Result<Option<Answer>> {
        let settler = match &mut self.settler {
            Some(settler) => settler,
            none => none.insert(Settler::start(&self.command, &self.job)?),
        };
        let ask = Ask {
            side: side.clone(),
            locked: place.mapping.locked,
            longest: self.longest,
            cpu: place.cpu,
            had: place.walk.had.clone().unwrap_or_default(),
        };
        let answer = settler.ask(&ask, &mut || {
            let _ = session.still_held();
        });
        answer.map_err(|e| Error::refused(format!("the settler: {e}")))
    }

    /// Takes note of an answer. Returns whether all of the chunk was handled.
    fn account(&mut self, side: &SideArea, answer: Answer) -> (Turn, bool) {
        if answer.lasted > Nanos(0) {
            self.done.stops.push(answer.lasted);
        }
        self.done.moved += answer.moved;
        self.done.held = self.done.held.max(answer.held);
        self.refused.extend(&answer.refused);
        let handled = answer.moved + answer.refused.len() as u64;
        let mut all = handled >= total(&side.runs);
        let mut rest = self.pacer.after(handled, answer.lasted, answer.moving);
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
                self.settler = None;
                return (Turn::NoFrames(answer.held), false);
            }
            Some(Trouble::Gone) => {
                self.end("the process has ended");
                true
            }
            Some(Trouble::Refused(why) | Trouble::Away(why)) => {
                self.end(&why);
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
        (Turn::Rest(rest), all && !busy)
    }
}

/// Where a chunk lies.
struct Place<'a> {
    mapping: &'a Mapping,
    walk: &'a Walk,
    /// The CPU on which frames are looked for.
    cpu: Option<CpuId>,
}
