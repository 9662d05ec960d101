//! Cores, caches and memory in one integer time.
//!
//! Method: the earliest of all cores, DRAM channels and messages acts next; on a tie DRAM, then
//! messages, then cores, each in a fixed order. A core issues accesses in program order. A hit
//! costs the level's latency if the next access depends on it, else one cycle. A miss becomes a
//! request to DRAM after the lookups; the core goes on until an access depends on the answer or as
//! many misses are outstanding as it can have. Before an access that begins a unit of work it waits
//! for all misses; the unit before has ended then, and where the new one is not due the machine
//! says until when ([`Raised::Waits`]).
//!
//! Whoever runs programs on the cores ([`crate::os`]) puts them there, takes them away, and arms
//! the cores' counters; [`Machine::run`] returns as soon as a counter overflows or a program has
//! done what it was to do.
//!
//! With a TLB, an access whose page's translation is not at hand waits for the walk first,
//! dependent or not: one walk at a time. With a prefetcher, what misses the first level trains it,
//! and its fetches go through the second level and on through the memory as requests that nobody
//! waits for, unless an access wants the line before it is there; as many may be outstanding as
//! misses. Classes of service ([`CLASSES`]) carry fill masks and a throttle: so many picoseconds
//! from one request for a line to the next.
//!
//! Deviations from hardware: no instructions between accesses, no out-of-order window besides the
//! misses; a line counts as present in the caches from the moment it was asked for; a write that
//! misses reads its line first and is waited for as a read is; shared caches have no bandwidth
//! limit of their own; lines on their way to a full queue of DRAM wait without occupying anything;
//! a program taken off its core does not wait for its outstanding misses when it comes back.

mod program;
mod run;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quell_model::address::AddressMap;
use quell_model::cache::{Hierarchy, Level};
use quell_model::dram::{Completion, Config, Dram};
use quell_model::{Invalid, Picos};

use crate::access::LINE;
use crate::frames::Space;
use crate::pattern::Pattern;
use crate::prefetch::Prefetcher;
use crate::profile;
use crate::tlb::Tlb;
pub use program::{Counts, LEVELS, Program, Unit};

/// What the machine is made of.
#[derive(Clone, Debug)]
pub struct Description {
    /// A core's clock period in picoseconds.
    pub clock: Picos,
    /// Cache levels, nearest first, and what a dependent access that hits there takes, in cycles.
    pub levels: Vec<(Level, u32)>,
    /// Between a core and DRAM, there and back, beyond the lookups, in picoseconds.
    pub transit: Picos,
    /// Misses that a core can have outstanding.
    pub misses: u32,
    /// Where addresses lie in DRAM.
    pub map: AddressMap,
    /// The channels.
    pub dram: Config,
    /// Translation; without it costs nothing.
    pub tlb: Option<profile::TlbShape>,
    /// Each core's prefetcher, if it has one that is on.
    pub prefetcher: Option<profile::Prefetcher>,
}

impl Description {
    /// What a line of an open row takes that misses everywhere while nobody else asks for any.
    #[must_use]
    pub fn idle_latency(&self) -> Picos {
        let lookups = self.levels.last().map_or(0, |&(_, cycles)| cycles);
        let timing = &self.dram.timing;
        u64::from(lookups) * self.clock + self.transit + timing.cycles(timing.cl + timing.burst)
    }
}

/// What a core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CoreCounts {
    /// Accesses done.
    pub accesses: u64,
    /// Lines read from DRAM because an access asked for them.
    pub reads: u64,
    /// Lines read from DRAM by its prefetcher.
    pub prefetches: u64,
    /// Lines that its accesses pushed out to DRAM.
    pub writebacks: u64,
}

impl CoreCounts {
    /// Lines read from DRAM, for whatever reason.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.reads + self.prefetches
    }

    /// Lines moved, whatever the direction.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.lines() + self.writebacks
    }

    /// These and `more`.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            accesses: self.accesses + more.accesses,
            reads: self.reads + more.reads,
            prefetches: self.prefetches + more.prefetches,
            writebacks: self.writebacks + more.writebacks,
        }
    }

    /// What was counted since the same core's counters read `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            accesses: self.accesses - before.accesses,
            reads: self.reads - before.reads,
            prefetches: self.prefetches - before.prefetches,
            writebacks: self.writebacks - before.writebacks,
        }
    }
}

/// After so many more lines a core's counters overflow: read, written back, of both together.
/// Absent: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Armed {
    /// Lines read.
    pub read: Option<u64>,
    /// Lines written back.
    pub written: Option<u64>,
    /// Lines moved.
    pub moved: Option<u64>,
}

/// What a core tells whoever runs programs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// A counter reached what it was armed with. None of the core's overflows again before they are
    /// armed anew.
    Overflow {
        /// The core.
        core: usize,
        /// At the access that crossed it.
        at: Picos,
    },
    /// Its program has done all that it was to do; it waits until it is told more
    /// ([`Machine::go_on`]) or taken away.
    Finished {
        /// The core.
        core: usize,
        /// When.
        at: Picos,
    },
    /// Its program has ended a unit of work and the next is not due: the core stands still until
    /// the program is taken away and comes back.
    Waits {
        /// The core.
        core: usize,
        /// Since when.
        at: Picos,
        /// When the next unit is due.
        until: Picos,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No program, or one that has finished.
    Idle,
    /// Acts next at its time.
    Ready,
    /// Waits for the miss of this number.
    Needs(u64),
    /// Waits for any miss to come back.
    Full,
    /// Has nothing more to do, or a unit of work to begin, and waits for all misses to come back.
    Drains,
}

#[derive(Clone, Debug)]
struct Core {
    state: State,
    time: Picos,
    /// Since when its program has been going on.
    since: Picos,
    program: Option<Program>,
    flying: u32,
    /// Which TLB it uses.
    tlb: usize,
    /// The number of its program's address space in there.
    space: u16,
    /// The program that was on it last, by number.
    last: Option<u16>,
    /// The page it translated last, and where that is.
    page: u64,
    prefetcher: Option<Prefetcher>,
    /// What its prefetcher has asked for.
    ahead: Vec<Ahead>,
    /// When the next request of a throttled class may leave.
    leaves: Picos,
    counts: CoreCounts,
    /// What lines read, written back and both together are at which a counter overflows.
    armed: [u64; 3],
}

/// A line on its way that a prefetcher asked for.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// Of the request.
    number: u64,
    /// Of its first byte.
    address: u64,
    /// An access wants it, and the core waits for it as for a miss.
    wanted: bool,
}

/// A message under way. The order of the fields is that of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    at: Picos,
    kind: Kind,
    core: usize,
    number: u64,
    address: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A line comes back to a core.
    Return,
    /// A request reaches the controller.
    Read,
    /// A line reaches the controller.
    Write,
    /// A line that a core waits to be rid of does.
    Store,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    clock: Picos,
    /// By level, then memory: the time of the lookups.
    latencies: Vec<Picos>,
    transit: Picos,
    misses: u32,
    caches: Hierarchy,
    dram: Dram,
    /// One per core; hardware threads share it.
    tlbs: Vec<Tlb>,
    /// Entries outlive a change of tasks.
    tagged: bool,
    /// The last number given to an address space where they do not.
    spaces: u16,
    /// By class, what lies between two requests of a core for lines.
    gaps: Vec<Picos>,
    /// What lies between them on a core alone that is bound by memory.
    pace: Picos,
    /// Lines to prefetch.
    fetch: Vec<u64>,
    cores: Vec<Core>,
    /// When each core acts next, while the machine runs.
    acts: Vec<Picos>,
    messages: BinaryHeap<Reverse<Message>>,
    numbers: u64,
    done: Vec<Completion>,
}

/// Requests carry their core in the low bits of their number.
const CORE_BITS: u32 = 6;

/// Classes of service: the caches' requesters. More than any processor offers.
pub const CLASSES: usize = 256;

impl Machine {
    /// Idle and empty at time zero. Requesters of the caches are the [`CLASSES`] of service.
    ///
    /// # Errors
    /// For a description that cannot be.
    pub fn new(description: &Description) -> Result<Self, Invalid> {
        let levels: Vec<Level> = description
            .levels
            .iter()
            .map(|(level, _)| level.clone())
            .collect();
        let cores = levels.first().map_or(0, |level| level.cache_of.len());
        let cycles = |n: u32| u64::from(n) * description.clock;
        let mut latencies: Vec<Picos> = description
            .levels
            .iter()
            .map(|&(_, latency)| cycles(latency))
            .collect();
        latencies.push(latencies.last().copied().unwrap_or(0));
        let core = |n: usize| Core {
            state: State::Idle,
            time: 0,
            since: 0,
            program: None,
            flying: 0,
            tlb: levels[0].cache_of[n],
            space: 0,
            last: None,
            page: u64::MAX,
            prefetcher: description.prefetcher.as_ref().map(Prefetcher::new),
            ahead: Vec::new(),
            leaves: 0,
            counts: CoreCounts::default(),
            armed: [u64::MAX; 3],
        };
        let caches = Hierarchy::new(&levels, CLASSES)?;
        let tlbs = match &description.tlb {
            Some(shape) => vec![Tlb::new(shape)?; cores],
            None => Vec::new(),
        };
        Ok(Self {
            clock: description.clock.max(1),
            pace: pace(description, latencies.last().copied().unwrap_or(0)),
            latencies,
            transit: description.transit,
            misses: description.misses.max(1),
            caches,
            dram: Dram::new(description.map.clone(), &description.dram)?,
            tagged: description.tlb.as_ref().is_none_or(|tlb| tlb.tagged),
            tlbs,
            spaces: 0,
            gaps: vec![0; CLASSES],
            fetch: Vec::new(),
            cores: (0..cores).map(core).collect(),
            acts: vec![Picos::MAX; cores],
            messages: BinaryHeap::new(),
            numbers: 0,
            done: Vec::new(),
        })
    }

    /// How many cores it has.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The caches, to set masks and lock lines.
    pub fn caches_mut(&mut self) -> &mut Hierarchy {
        &mut self.caches
    }

    /// The caches.
    #[must_use]
    pub fn caches(&self) -> &Hierarchy {
        &self.caches
    }

    /// The memory.
    #[must_use]
    pub fn dram(&self) -> &Dram {
        &self.dram
    }

    /// Has `core` run `pattern` in `space` from `at` on, for ever, in the class of the core's
    /// number.
    pub fn start(&mut self, core: usize, pattern: Pattern, space: Space, at: Picos) {
        let program = Program::endless(pattern, space, u8::try_from(core).unwrap_or(0));
        self.switch(core, Some(program), at);
    }

    /// Puts `program` on `core`, where it goes on at `at`; returns the one that was there.
    pub fn switch(&mut self, core: usize, program: Option<Program>, at: Picos) -> Option<Program> {
        let (tagged, spaces) = (self.tagged, &mut self.spaces);
        let core = &mut self.cores[core];
        core.suspend(at);
        core.state = State::Idle;
        if let Some(program) = &program {
            core.state = State::Ready;
            core.page = u64::MAX;
            if tagged {
                core.space = program.number;
            } else if core.last != Some(program.number) {
                // Nothing that was translated before is ever found again.
                *spaces = spaces.wrapping_add(1);
                core.space = *spaces;
            }
            core.last = Some(program.number);
        }
        let before = std::mem::replace(&mut core.program, program);
        core.proceed(at);
        before
    }

    /// The program on `core`.
    #[must_use]
    pub fn program(&self, core: usize) -> Option<&Program> {
        self.cores[core].program.as_ref()
    }

    /// The same, to take its units.
    pub fn program_mut(&mut self, core: usize) -> Option<&mut Program> {
        self.cores[core].program.as_mut()
    }

    /// What the program on `core` has done by `now`.
    #[must_use]
    pub fn program_counts(&self, core: usize, now: Picos) -> Option<Counts> {
        let core = &self.cores[core];
        let mut counts = core.program.as_ref()?.counts();
        counts.active += now.saturating_sub(core.since);
        Some(counts)
    }

    /// Has the program on `core`, which has finished, do accesses until `until` are done, from `at`
    /// on.
    pub fn go_on(&mut self, core: usize, until: u64, at: Picos) {
        let core = &mut self.cores[core];
        if let Some(program) = &mut core.program {
            program.until = until;
            if core.state == State::Idle {
                core.state = State::Ready;
                core.time = core.time.max(at);
            }
        }
    }

    /// Keeps `core` busy with something else until `at`.
    pub fn delay(&mut self, core: usize, at: Picos) {
        let core = &mut self.cores[core];
        core.time = core.time.max(at);
    }

    /// Has the counters of `core` overflow as told from now on.
    pub fn arm(&mut self, core: usize, armed: Armed) {
        let core = &mut self.cores[core];
        let after = [armed.read, armed.written, armed.moved].into_iter();
        let at = after.zip(core.counted()).map(|(lines, now)| {
            let lines = lines.map(|lines| now.saturating_add(lines.max(1)));
            lines.unwrap_or(u64::MAX)
        });
        core.armed
            .iter_mut()
            .zip(at)
            .for_each(|(old, new)| *old = new);
    }

    /// Goes once through a program's memory for `class`, line by line, without time passing: as
    /// memory is touched before a program begins. Only caches notice.
    pub fn touch(&mut self, core: usize, class: u8, space: &Space, bytes: u64, write: bool) {
        for line in 0..bytes / LINE {
            if let Some(address) = space.physical(line * LINE) {
                self.caches.access(core, class, address, write);
            }
        }
    }

    /// Locks the first `bytes` of a program's memory into `ways` of `core`'s cache at `level`
    /// (from 0) for `class`, without time passing.
    ///
    /// # Errors
    /// Where these ways do not hold so much; what was locked until then stays.
    pub fn lock(
        &mut self,
        core: usize,
        class: u8,
        space: &Space,
        bytes: u64,
        (level, ways): (usize, u64),
    ) -> Result<(), Invalid> {
        for line in 0..bytes.div_ceil(LINE) {
            if let Some(address) = space.physical(line * LINE) {
                self.caches.lock(level, core, address, ways, class)?;
            }
        }
        Ok(())
    }

    /// Unlocks what [`Machine::lock`] locked.
    pub fn unlock(&mut self, core: usize, space: &Space, bytes: u64, level: usize) {
        for line in 0..bytes.div_ceil(LINE) {
            if let Some(address) = space.physical(line * LINE) {
                self.caches.cache_mut(level, core).unlock(address);
            }
        }
    }

    /// Throttles the cores that run `class` to `percent` (1 to 100) of the rate at which a core
    /// alone can at most read lines: from one request to the next at least 100 ÷ `percent` times
    /// what lies between them there. Slower ones are left alone, and write-backs are not counted.
    /// 100 throttles nobody.
    pub fn throttle(&mut self, class: u8, percent: u32) {
        let gap = self.pace * 100 / u64::from(percent.clamp(1, 100));
        self.gaps[usize::from(class)] = if percent >= 100 { 0 } else { gap };
    }

    /// What `core` has done.
    #[must_use]
    pub fn counts(&self, core: usize) -> CoreCounts {
        self.cores[core].counts
    }
}

/// What lies at least between two lines that a core alone reads: the time of the bus for one, or
/// with all its misses outstanding its part of the time that one takes. `lookups`: of all caches.
fn pace(description: &Description, lookups: Picos) -> Picos {
    let timing = &description.dram.timing;
    let bus = timing.cycles(timing.burst) / u64::from(description.map.channels().max(1));
    let dram = timing.cycles(timing.rcd + timing.cl + timing.burst);
    let alone = lookups + description.transit + dram;
    bus.max(alone / u64::from(description.misses.max(1)))
}

impl Core {
    /// Lines read, written back, and both together.
    fn counted(&self) -> [u64; 3] {
        let counts = &self.counts;
        [counts.lines(), counts.writebacks, counts.moved()]
    }

    /// Whether a counter has overflowed since it was armed; then none does again.
    fn overflows(&mut self) -> bool {
        let over = self
            .counted()
            .iter()
            .zip(&self.armed)
            .any(|(now, at)| now >= at);
        if over {
            self.armed = [u64::MAX; 3];
        }
        over
    }

    /// When it acts next if nothing comes to it: never, where it waits.
    fn acts(&self) -> Picos {
        if self.state == State::Ready {
            self.time
        } else {
            Picos::MAX
        }
    }

    /// What its program computes stops at `at`, and the time it has been active is told.
    fn suspend(&mut self, at: Picos) {
        if let Some(program) = &mut self.program {
            program.counts.active += at.saturating_sub(self.since);
            if program.pending.is_some() && self.time > at {
                program.left = self.time - at;
                self.time = at;
            }
        }
    }

    /// Its program goes on at `at`.
    fn proceed(&mut self, at: Picos) {
        self.time = self.time.max(at);
        self.since = self.time;
        if let Some(program) = &mut self.program {
            self.time += std::mem::take(&mut program.left);
        }
    }
}
