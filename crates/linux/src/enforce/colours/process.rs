//! A process whose pages are moved, and when its turns are.

use quell_kernel::error::{Error, Result};
use quell_kernel::{paging, rt};
use quell_record::events::ColouredPages;
use quell_types::cpuset::CpuId;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos, Share};

use super::held::Held;
use super::{AGAIN, FEW, REST, vacate};
use crate::colours::hoard::{Command, Report};
use crate::colours::settle::{Counted, Settling, Turn, Wanted};
use crate::host::Host;

/// Frames that are released beyond those of a chunk. The settler cannot use the newest ones.
const BEYOND: u64 = 64;
/// The shortest time between two passes over the memory of a process.
pub(super) const PASS: Nanos = Nanos::secs(1);
/// The share of time that a process may be stopped that has just started, and how long this is so.
const STARTS: Share = Share::percent(50);
const START: Nanos = Nanos::secs(1);
/// The share of time that it may be stopped afterwards, while it is young: for [`YOUTH`], and on
/// until what it had got by then is right, but no longer than [`LONGEST_YOUTH`].
const YOUNG: Share = Share::percent(5);
const YOUTH: Nanos = Nanos::secs(10);
const LONGEST_YOUTH: Nanos = Nanos::secs(300);
/// The shortest time between two passes over its memory. Each pass that moves nothing doubles it,
/// up to [`PASS`].
const YOUNG_PASS: Nanos = Nanos::millis(50);
/// How long memory that neither grows nor shrinks by a hundredth is not gone through again.
const STILL: Nanos = Nanos::secs(10);
/// How long more than a hundredth of its pages may have other colours.
const LAG: Nanos = Nanos::secs(10);
/// How often in a row a settler may find too few frames, although they were released: other
/// programs on that CPU took them.
const MISSES: u32 = 20;

/// What a group wants.
pub(super) struct Wanting {
    pub wanted: Wanted,
    /// The CPU on which frames are released and looked for.
    pub cpu: Option<CpuId>,
    /// Whether pages leave colours that other groups reserve.
    pub out: bool,
    /// No frames are released for the group: it gets free ones while this much memory stays
    /// available.
    pub unheld: Option<Bytes>,
}

/// Whether at least 99 in a hundred pages have right frames.
fn settled(counted: Counted) -> bool {
    counted.wrong.saturating_mul(FEW) <= counted.right
}

/// What a turn came to.
#[derive(Default)]
pub(super) struct Came {
    /// Whether the hoard had too few frames.
    pub empty: bool,
    /// Where the pages lie, at the end of a pass.
    pub counted: Option<Counted>,
    /// Why pages of the process could not be moved.
    pub failed: Option<String>,
    /// What else the keeper reported.
    pub reports: Vec<Report>,
}

/// A process of a group.
pub(super) struct Process {
    pub comm: String,
    pub settling: Settling,
    /// When its next turn is.
    pub next: Nanos,
    /// When it started, if it may be stopped more than others at first.
    born: Option<Nanos>,
    /// Time that was spent in this pass without a stop.
    spent: Nanos,
    /// Pages moved before this pass.
    moved: u64,
    /// Passes in a row that moved nothing, and how much memory it had at the last one.
    idle: u32,
    had: Option<Bytes>,
    /// When its memory is gone through again, whatever its size.
    due: Nanos,
    /// Frames that were released for the settler that runs, and not used by it yet.
    stock: u64,
    /// How often in a row too few frames were found although enough had been released.
    missed: u32,
    pub reported: Option<ColouredPages>,
    /// Since when more than a hundredth of its pages have other colours.
    behind: Option<Nanos>,
}

impl Process {
    pub fn new(
        comm: &str,
        task: TaskId,
        group: &Wanting,
        born: Option<Nanos>,
        host: &Host,
    ) -> Result<Self> {
        Ok(Self {
            comm: comm.to_owned(),
            settling: Settling::new(task, &group.wanted, &host.tools.settler)?,
            next: Nanos(0),
            born,
            spent: Nanos(0),
            moved: 0,
            idle: 0,
            had: None,
            due: Nanos(0),
            stock: 0,
            missed: 0,
            reported: None,
            behind: Some(rt::now()),
        })
    }

    /// The share of time that it may be stopped: more at first, when it may have nothing to answer.
    fn share(&self, pace: Share, now: Nanos) -> Share {
        let age = self.born.map(|born| now.since(born));
        match age {
            Some(age) if age < START => pace.max(STARTS),
            _ if self.is_young(now) => pace.max(YOUNG),
            _ => pace,
        }
    }

    fn is_young(&self, now: Nanos) -> bool {
        self.born.is_some_and(|born| {
            let late = self.behind.is_some_and(|since| since < born.plus(YOUTH));
            now.since(born) < if late { LONGEST_YOUTH } else { YOUTH }
        })
    }

    /// Decides when the next pass begins. Returns where the pages lie.
    fn through(&mut self, counted: Counted) -> Counted {
        let now = rt::now();
        let moved = self.settling.done().moved - self.moved;
        // What was wrong when the pass began, and was moved in it.
        let counted = Counted {
            right: counted.right + moved.min(counted.wrong),
            wrong: counted.wrong - moved.min(counted.wrong),
        };
        self.idle = if moved > 0 { 0 } else { self.idle + 1 };
        let rest = match self.idle {
            idle if self.is_young(now) => Nanos(YOUNG_PASS.0 << idle.min(8)).min(PASS),
            0 => PASS,
            _ => PASS.max(Nanos(self.spent.0.saturating_mul(REST))),
        };
        self.next = now.plus(rest);
        let still = self.idle > 0 && settled(counted);
        self.due = if still { now.plus(STILL) } else { Nanos(0) };
        self.moved = self.settling.done().moved;
        self.spent = Nanos(0);
        counted
    }

    /// Takes note of where its pages lie, if a pass has just told. Returns whether at least 99 in a
    /// hundred of them have its colours.
    pub fn note(&mut self, counted: Option<Counted>) -> bool {
        let Some(counted) = counted else { return false };
        self.behind = match settled(counted) {
            true => None,
            false => Some(self.behind.unwrap_or_else(rt::now)),
        };
        settled(counted)
    }

    /// Whether its pages have had other colours for so long that nothing can be promised of them.
    pub fn is_behind(&self) -> bool {
        self.behind
            .is_some_and(|since| rt::now() >= since.plus(LAG))
    }

    pub fn pages(&self, counted: Counted, held: Bytes) -> ColouredPages {
        let done = self.settling.done();
        let [p99, longest] = done.stopped([99, 100]);
        ColouredPages {
            right: counted.right,
            wrong: counted.wrong,
            moved: done.moved,
            stops: done.stops.len() as u64,
            p99_ns: p99.0,
            longest_ns: longest.0,
            held_bytes: held.0,
        }
    }

    /// Whether a pass would find nothing new, by the size of its memory. Pages change their frames
    /// without that, too (a fork, compaction), so there is one every [`STILL`] at least.
    fn is_still(&mut self, host: &Host) -> Result<bool> {
        let has = paging::anonymous(&host.files, self.settling.task().pid)?;
        let near = |(had, has): (Bytes, Bytes)| had.0.abs_diff(has.0).saturating_mul(FEW) < had.0;
        if rt::now() < self.due && self.had.zip(has).is_some_and(near) {
            return Ok(true);
        }
        self.had = has;
        Ok(false)
    }

    /// Moves a chunk.
    pub fn turn(
        &mut self,
        host: &mut Host,
        mut held: Option<&mut Held>,
        group: &Wanting,
    ) -> Result<Came> {
        let begun = rt::now();
        if self.settling.is_between() && self.is_still(host)? {
            self.next = begun.plus(PASS);
            return Ok(Came::default());
        }
        if let Some(failed) = vacate::lack(host, group)? {
            return Ok(Came {
                failed: Some(failed),
                ..Came::default()
            });
        }
        let share = self.share(group.wanted.pace, begun);
        self.settling.pace(share);
        let mut heart = host.heart();
        let (mut came, mut stock) = (Came::default(), self.stock);
        let done = self.settling.done();
        let (moved, stops) = (done.moved, done.stops.len());
        let mut broken = None;
        let mut provide = |pages: u64, more: u64| {
            let wanted = pages.saturating_add(more).saturating_add(BEYOND);
            let held = held.as_deref_mut().filter(|_| group.unheld.is_none());
            if let Some(held) = held.filter(|_| stock < wanted) {
                let colours = &group.wanted.colours;
                match held.provide(wanted - stock, group.cpu, colours, &mut heart) {
                    Ok((released, others)) => {
                        stock += released;
                        came.empty |= stock < pages;
                        came.reports.extend(others);
                    }
                    Err(e) => broken = Some(e),
                }
            }
            match broken {
                None => Ok(()),
                Some(_) => Err(Error::refused("no frames are held")),
            }
        };
        let Some(session) = host.session.as_mut() else {
            return Ok(came);
        };
        let turn = self
            .settling
            .turn(&host.files, session, group.cpu, &mut provide);
        if let Some(e) = broken {
            return Err(e);
        }
        // What fails here is about this process. It may be about to end.
        let turn = turn.unwrap_or_else(|e| {
            came.failed = Some(e.to_string());
            Turn::Rest(YOUNG_PASS)
        });
        host.brakes.extend(self.settling.settler());
        let (end, done) = (rt::now(), self.settling.done());
        self.stock = match self.settling.settler() {
            Some(_) => stock.saturating_sub(done.moved - moved),
            None => 0,
        };
        if done.stops.len() == stops {
            self.spent = Nanos(self.spent.0 + end.since(begun).0);
        }
        self.next = end;
        match turn {
            Turn::Rest(rest) => self.next = end.plus(rest),
            Turn::NoFrames(_) if self.missed < MISSES && !came.empty => self.missed += 1,
            Turn::NoFrames(_) => {
                self.next = end.plus(AGAIN);
                (self.missed, came.empty) = (0, !group.out);
            }
            Turn::Through(found) => {
                self.missed = 0;
                match held {
                    Some(held) if done.moved > self.moved && group.out => held.freed = true,
                    Some(held) if done.moved > self.moved => {
                        // What it left over, other programs would get.
                        let (pages, cpu) = (stock.saturating_add(BEYOND), group.cpu);
                        held.hoard.ask(&Command::Retake { pages, cpu })?;
                    }
                    _ => {}
                }
                came.counted = Some(self.through(found));
            }
        }
        Ok(came)
    }
}
