//! A program on the machine: its accesses, its memory, its units of work, and what it has done so
//! far.

use quell_model::Picos;

use crate::access::Access;
use crate::frames::Space;
use crate::pattern::{Late, Pattern};

/// Cache levels that are counted apart; what hits beyond counts with the last of them.
pub const LEVELS: usize = 4;

/// What a program has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Accesses done.
    pub accesses: u64,
    /// Core cycles computed between them.
    pub compute: u64,
    /// Accesses that found their line in a cache, by level.
    pub hits: [u64; LEVELS],
    /// Lines read from DRAM because an access asked for them.
    pub misses: u64,
    /// Lines read from DRAM by the prefetcher on its behalf.
    pub prefetches: u64,
    /// Page walks.
    pub walks: u64,
    /// Lines that its accesses pushed out to DRAM.
    pub writebacks: u64,
    /// Time on its core.
    pub active: Picos,
}

impl Counts {
    /// What stands in for instructions per cycle on a machine without instructions: accesses and
    /// cycles of computing, per cycle on the core of a clock period of `clock`. An access that hits
    /// without dependence is one in one cycle, as computing is; waiting lowers it.
    #[must_use]
    pub fn ipc(&self, clock: Picos) -> f64 {
        let cycles = self.active as f64 / clock.max(1) as f64;
        if cycles > 0.0 {
            (self.accesses + self.compute) as f64 / cycles
        } else {
            0.0
        }
    }
}

/// A unit of work that has ended. Times are since booting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// When it was to begin.
    pub due: Picos,
    /// When it began.
    pub began: Picos,
    /// When its last access was done.
    pub ended: Picos,
    /// Units before it that were due and never begun, since there was no time for them.
    pub skipped: u64,
}

/// The units of a program: which is open, when the next is due.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    open: Option<Unit>,
    next: Option<Picos>,
    pub(super) ended: Vec<Unit>,
}

impl Units {
    /// All work so far is done at `now` and the next unit wants to begin. It does, unless it is not
    /// due: then the time when it is.
    pub(super) fn begin(&mut self, now: Picos, period: Option<Picos>, late: Late) -> Option<Picos> {
        if let Some(open) = self.open.take() {
            self.ended.push(Unit { ended: now, ..open });
        }
        // Without a period each is due when the last has ended; the first one is due when the
        // program comes to it.
        let mut due = period.and(self.next).unwrap_or(now);
        if due > now {
            return Some(due);
        }
        let period = period.unwrap_or(0);
        let skipped = match late {
            Late::Skip => (now - due).checked_div(period).unwrap_or(0),
            Late::CatchUp => 0,
        };
        due += skipped * period;
        self.next = Some(due + period);
        self.open = Some(Unit {
            due,
            began: now,
            ended: now,
            skipped,
        });
        None
    }
}

/// What a core runs.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its accesses.
    pub pattern: Pattern,
    /// Its memory.
    pub space: Space,
    /// Its class of service: whose fill masks and throttle hold for it.
    pub class: u8,
    /// Its address space, by number.
    pub number: u16,
    /// Accesses done so far.
    pub done: u64,
    /// Where it stops: when so many are done and nothing is outstanding,
    /// [`super::Raised::Finished`].
    pub until: u64,
    pub(super) counts: Counts,
    pub(super) units: Units,
    /// An access that was taken from the pattern and waits for its unit, for computing to end, or
    /// for room.
    pub(super) pending: Option<Access>,
    /// What is left of computing before that access, while the program is off its core.
    pub(super) left: Picos,
}

impl Program {
    /// One that goes on for ever, of the class `class`, in address space 0.
    #[must_use]
    pub fn endless(pattern: Pattern, space: Space, class: u8) -> Self {
        Self {
            pattern,
            space,
            class,
            number: 0,
            done: 0,
            until: u64::MAX,
            counts: Counts::default(),
            units: Units::default(),
            pending: None,
            left: 0,
        }
    }

    /// What it has done until it was taken off its core last.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            accesses: self.done,
            ..self.counts
        }
    }

    /// Takes the units that have ended since the last time.
    pub fn take_units(&mut self) -> Vec<Unit> {
        std::mem::take(&mut self.units.ended)
    }
}
