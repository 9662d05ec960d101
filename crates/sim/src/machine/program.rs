//! A program on the machine: its accesses, its memory, its units of work, and its counts.

use quell_model::Picos;
use quell_model::dram::Dram;

use crate::access::Access;
use crate::frames::Space;
use crate::pattern::{Late, Pattern};

/// How many cache levels are counted separately. Hits beyond count with the last of them.
pub const LEVELS: usize = 4;

/// How many memory channels are counted separately.
pub const CHANNELS: usize = 8;

/// What a program has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// How many accesses were done.
    pub accesses: u64,
    /// Instructions executed: those of computing, and those that access.
    pub instructions: u64,
    /// Core cycles computed between accesses.
    pub compute: u64,
    /// Accesses that found their line in a cache, by level.
    pub hits: [u64; LEVELS],
    /// Lines read from DRAM because an access asked for them.
    pub misses: u64,
    /// Lines read from DRAM by the prefetcher for this program.
    pub prefetches: u64,
    /// How often the TLB missed.
    pub walks: u64,
    /// Requests to each memory channel: lines read and lines written back. Those of further
    /// channels count with the last.
    pub channels: [u64; CHANNELS],
    /// Lines that its accesses pushed out to DRAM.
    pub writebacks: u64,
    /// Picoseconds on its core.
    pub active: Picos,
    /// Of the misses, those of its code, stack and page tables.
    pub own_misses: u64,
    /// Picoseconds that its core waited for lines from memory.
    pub stalled: Picos,
    /// Of these, the time for its code, stack and page tables.
    pub own_stalled: Picos,
    /// Picoseconds that its accesses waited for the port of a cache.
    pub queued: Picos,
}

impl Counts {
    /// Counts a request for the line of `address`.
    #[inline]
    pub(super) fn request(&mut self, dram: &Dram, address: u64) {
        let channel = dram.map().channel(address);
        let channel = usize::try_from(channel).unwrap_or(CHANNELS);
        self.channels[channel.min(CHANNELS - 1)] += 1;
    }

    /// Instructions per core cycle of `clock` picoseconds. Programs that do not say how many
    /// instructions they have execute one per access, and one per cycle computed.
    #[must_use]
    pub fn ipc(&self, clock: Picos) -> f64 {
        let cycles = self.active as f64 / clock.max(1) as f64;
        if cycles > 0.0 {
            self.instructions as f64 / cycles
        } else {
            0.0
        }
    }
}

/// A unit of work that has ended. Times are picoseconds since booting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// When it was to begin.
    pub due: Picos,
    /// When its first access was ready to be issued.
    pub began: Picos,
    /// When its last access was done.
    pub ended: Picos,
    /// How many due units before it never began, because there was no time for them.
    pub skipped: u64,
    /// What the program met within it.
    pub met: Met,
}

/// What a program met within a unit of work. Times in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Time on its core. The rest of the unit went to other programs and to the kernel.
    pub active: Picos,
    /// Time that its core waited for lines from memory.
    pub stalled: Picos,
    /// Of this, the time for its code, stack and page tables.
    pub own_stalled: Picos,
    /// Time that its accesses waited for the port of a cache.
    pub queued: Picos,
    /// Lines read from DRAM because an access asked for them.
    pub misses: u64,
    /// Of these, the lines of its code, stack and page tables.
    pub own_misses: u64,
}

impl Met {
    /// From what the program has done so far, on its core since `since`.
    fn so_far(counts: &Counts, since: Picos, now: Picos) -> Self {
        Self {
            active: counts.active + now.saturating_sub(since),
            stalled: counts.stalled,
            own_stalled: counts.own_stalled,
            queued: counts.queued,
            misses: counts.misses,
            own_misses: counts.own_misses,
        }
    }

    /// What was met since `before`.
    fn since(self, before: Self) -> Self {
        Self {
            active: self.active - before.active,
            stalled: self.stalled - before.stalled,
            own_stalled: self.own_stalled - before.own_stalled,
            queued: self.queued - before.queued,
            misses: self.misses - before.misses,
            own_misses: self.own_misses - before.own_misses,
        }
    }
}

/// The units of a program: which one is open, and when the next is due.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    /// The open unit. What it met is what the program had met before it.
    open: Option<Unit>,
    next: Option<Picos>,
    pub(super) ended: Vec<Unit>,
}

impl Units {
    /// Ends the open unit at `now` and begins the next one. If that is not due, returns when it is.
    /// `met`: what the program has met so far.
    fn begin(&mut self, now: Picos, met: Met, period: Option<Picos>, late: Late) -> Option<Picos> {
        if let Some(open) = self.open.take() {
            self.ended.push(Unit {
                ended: now,
                met: met.since(open.met),
                ..open
            });
        }
        // Without a period each unit is due when the last has ended. The first unit is due when the
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
            met,
        });
        None
    }
}

/// A program that a core can run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The accesses that it makes.
    pub pattern: Pattern,
    /// The memory that it accesses.
    pub space: Space,
    /// Its class of service, which has fill masks and a throttle.
    pub class: u8,
    /// The number of its address space.
    pub number: u16,
    /// How many accesses were done so far.
    pub done: u64,
    /// At how many accesses it stops. When none is outstanding then, it raises
    /// [`super::Raised::Finished`].
    pub until: u64,
    pub(super) counts: Counts,
    pub(super) units: Units,
    /// An access that was taken from the pattern and waits: for its unit, for computing to end, or
    /// for room.
    pub(super) pending: Option<Access>,
    /// Picoseconds of computing left before that access, while the program is off its core.
    pub(super) left: Picos,
    /// The walk by software that begins when its misses have come back.
    pub(super) walk: Picos,
}

impl Program {
    /// A program without end in class `class` and address space 0.
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
            walk: 0,
        }
    }

    /// What it has done until it was last taken off its core.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            accesses: self.done,
            ..self.counts
        }
    }

    /// Ends its unit of work at `now` and begins the next one. If that is not due, returns when it
    /// is. The program has been on its core since `since`.
    pub(super) fn begin_unit(&mut self, now: Picos, since: Picos) -> Option<Picos> {
        let met = Met::so_far(&self.counts, since, now);
        if self.units.next.is_none()
            && let (Some(first), Some(period)) = (self.pattern.first(), self.pattern.period())
        {
            let periods = now.saturating_sub(first).div_ceil(period);
            self.units.next = Some(first + periods * period);
        }
        let (period, late) = (self.pattern.period(), self.pattern.late());
        self.units.begin(now, met, period, late)
    }

    /// Takes the units that have ended since the last call.
    pub fn take_units(&mut self) -> Vec<Unit> {
        std::mem::take(&mut self.units.ended)
    }
}
