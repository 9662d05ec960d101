//! Cores, caches and memory in one integer time.
//!
//! **Events.** The earliest of all cores, DRAM channels and messages acts next. On a tie DRAM goes
//! first, then messages, then cores, each in a fixed order.
//!
//! **Cores.**
//! - A core issues accesses in program order.
//! - A hit costs the level's latency if the next access depends on it, else one cycle.
//! - A miss becomes a request to DRAM after the lookups. The core continues until an access depends
//!   on the answer, or until all misses that it can have are outstanding. Where its window is known
//!   it also waits for the oldest miss when so many instructions have followed.
//! - Before an access that begins a unit of work, the core waits for all misses. The previous unit
//!   has ended then. If the new one is not due, the machine reports until when ([`Raised::Waits`]).
//!
//! **Programs.** The operating system ([`crate::os`]) puts programs on cores, takes them off, and
//! arms the cores' counters. [`Machine::run`] returns as soon as a counter overflows or a program
//! has done its work.
//!
//! **TLB.** An access without a translation waits for the walk first, dependent or not. A core does
//! one walk at a time. Where software walks, the core first waits for all misses.
//!
//! **Prefetcher.** Misses of the first level train it. Its fetches go through the second level and
//! on to memory as requests that delay no access, unless one wants the line before it arrives. As
//! many may be outstanding as misses.
//!
//! **Hardware threads** are cores here that have caches in common. Where the profile says so, they
//! also share issue slots, first-level ports and miss buffers (`smt.rs`).
//!
//! **Classes of service** ([`CLASSES`]) have fill masks and a throttle: so many picoseconds from
//! one request for a line to the next.
//!
//! **Ports.** An access that comes to a cache with a port occupies it for some cycles, a miss
//! twice. Its core does nothing while it waits for the port.
//!
//! Deviations from hardware:
//! - Instructions between accesses are cycles of computing. Without a window in the profile nothing
//!   but the misses limits how far a core runs ahead.
//! - A line counts as present in the caches from the moment it was asked for.
//! - A write that misses reads its line first and is waited for as a read is.
//! - A cache has no bandwidth limit unless the profile names one. Write-backs from a nearer level
//!   do not occupy the port.
//! - Lines on their way to a full queue of DRAM wait without occupying anything.
//! - A program taken off its core does not wait for its outstanding misses when it comes back.

mod cores;
mod limits;
mod program;
mod run;
mod smt;

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
use limits::{Ports, Window};
pub use program::{Counts, LEVELS, Met, Program, Unit};
use smt::Shared;

/// What a [`Machine`] is built from.
#[derive(Clone, Debug)]
pub struct Description {
    /// Picoseconds of a core cycle.
    pub clock: Picos,
    /// Cache levels, nearest first, each with the cycles of a dependent access that hits there.
    pub levels: Vec<(Level, u32)>,
    /// Picoseconds between a core and DRAM, there and back, beyond the lookups.
    pub transit: Picos,
    /// By level: cycles that an access occupies its cache. 0: it has no limit.
    pub ports: Vec<u32>,
    /// How many misses a core can have outstanding.
    pub misses: u32,
    /// How many instructions a core has in flight behind its oldest miss. `None`: no limit.
    pub window: Option<u32>,
    /// Where a physical address lies in DRAM.
    pub map: AddressMap,
    /// The timing and queues of every DRAM channel.
    pub dram: Config,
    /// The TLB of each core. `None`: translation costs nothing.
    pub tlb: Option<profile::TlbShape>,
    /// The prefetcher of each core. `None`: it has none, or it is off.
    pub prefetcher: Option<profile::Prefetcher>,
    /// What hardware threads share besides caches and TLB. `None`: each has its own.
    pub smt: Option<profile::Smt>,
}

impl Description {
    /// Picoseconds of a dependent access that hits in the last level.
    #[must_use]
    pub fn cached_latency(&self) -> Picos {
        let lookups = self.levels.last().map_or(0, |&(_, cycles)| cycles);
        u64::from(lookups) * self.clock
    }

    /// Picoseconds for a line of an open row that misses every cache, on an otherwise idle machine.
    #[must_use]
    pub fn idle_latency(&self) -> Picos {
        let timing = &self.dram.timing;
        self.cached_latency() + self.transit + timing.cycles(timing.cl + timing.burst)
    }
}

/// What a core has done since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CoreCounts {
    /// How many accesses were done.
    pub accesses: u64,
    /// Lines read from DRAM because an access asked for them.
    pub reads: u64,
    /// Lines read from DRAM by the core's prefetcher.
    pub prefetches: u64,
    /// Lines that its accesses pushed out to DRAM.
    pub writebacks: u64,
}

impl CoreCounts {
    /// Lines read from DRAM, by accesses and by the prefetcher.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.reads + self.prefetches
    }

    /// Lines moved in both directions.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.lines() + self.writebacks
    }

    /// The sums of both, field by field.
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

/// After how many more lines a core's counters overflow. `None`: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Armed {
    /// Lines read from DRAM, prefetched ones included.
    pub read: Option<u64>,
    /// Lines written back to DRAM.
    pub written: Option<u64>,
    /// Lines moved in both directions together.
    pub moved: Option<u64>,
}

/// What a core reports to the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// A counter reached its armed value. No counter of this core overflows again before they are
    /// armed anew.
    Overflow {
        /// The core's index, from 0.
        core: usize,
        /// When the access that crossed the value happened.
        at: Picos,
    },
    /// Its program has done all its work. It waits until it gets more ([`Machine::go_on`]) or is
    /// taken off.
    Finished {
        /// The core's index, from 0.
        core: usize,
        /// When its last access was done.
        at: Picos,
    },
    /// Its program has ended a unit of work, and the next is not due. The core stands still until
    /// the program is taken off and put back.
    Waits {
        /// The core's index, from 0.
        core: usize,
        /// When the unit ended.
        at: Picos,
        /// When the next unit is due.
        until: Picos,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Has no program, or one that has finished.
    Idle,
    /// Acts next at its `time`.
    Ready,
    /// Waits for the miss with this number.
    Needs(u64),
    /// Waits for any of its misses to come back.
    Full,
    /// Waits for all misses to come back, because its work is done or a unit of work is to begin.
    Drains,
}

#[derive(Clone, Debug)]
struct Core {
    state: State,
    time: Picos,
    /// Since when its program has been running.
    since: Picos,
    program: Option<Program>,
    flying: u32,
    window: Window,
    /// Whether the line that it waits for is of its program's code, stack or page tables.
    own: bool,
    /// The index of its TLB.
    tlb: usize,
    /// The number of its program's address space in that TLB.
    space: u16,
    /// The number of the program that ran on it last.
    last: Option<u16>,
    /// The page that it translated last.
    page: u64,
    prefetcher: Option<Prefetcher>,
    /// Lines on their way that its prefetcher has asked for.
    ahead: Vec<Ahead>,
    /// When the next request of a throttled class may leave.
    leaves: Picos,
    counts: CoreCounts,
    /// At which counts of lines read, written back, and both together a counter overflows.
    armed: [u64; 3],
}

/// A line on its way that a prefetcher asked for.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// The number of the request.
    number: u64,
    /// The address of the line's first byte.
    address: u64,
    /// Whether an access wants it, so that the core waits for it as for a miss.
    wanted: bool,
}

/// A message under way. The order of the fields is the order of events.
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
    /// A request reaches the memory controller.
    Read,
    /// A line reaches the memory controller.
    Write,
    /// A line reaches the controller; only then does it free its miss of the core.
    Store,
}

/// Cores, caches and memory at one moment of simulated time.
#[derive(Clone, Debug)]
pub struct Machine {
    clock: Picos,
    /// By level, then memory: picoseconds of the lookups.
    latencies: Vec<Picos>,
    transit: Picos,
    misses: u32,
    caches: Hierarchy,
    /// Those of the levels that have any.
    ports: Vec<Ports>,
    dram: Dram,
    /// One per core. Hardware threads share it.
    tlbs: Vec<Tlb>,
    /// Whether TLB entries outlive a change of tasks.
    tagged: bool,
    /// Whether software walks when the TLB misses.
    software: bool,
    /// Without tags: the last number given to an address space.
    spaces: u16,
    /// By class: picoseconds between two requests of a core for lines.
    gaps: Vec<Picos>,
    /// The same for a single core that is bound by memory and not throttled.
    pace: Picos,
    /// What hardware threads share, where that is modelled.
    shared: Option<Shared>,
    /// Scratch space: lines to prefetch.
    fetch: Vec<u64>,
    cores: Vec<Core>,
    /// When each core acts next, while the machine runs.
    acts: Vec<Picos>,
    messages: BinaryHeap<Reverse<Message>>,
    numbers: u64,
    done: Vec<Completion>,
}

/// Requests have their core in the low bits of their number.
const CORE_BITS: u32 = 6;

/// How many classes of service there are, more than any processor offers. They are the requesters
/// of the caches.
pub const CLASSES: usize = 256;

impl Machine {
    /// An idle and empty machine at time zero.
    ///
    /// # Errors
    /// For a description of an impossible machine.
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
            window: Window::new(description.window),
            own: false,
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
        let ports = description.ports.iter().zip(&levels).enumerate();
        let ports = ports.filter(|(_, (time, _))| **time > 0);
        let ports = ports.map(|(number, (time, level))| Ports::new(number, level, cycles(*time)));
        let ports = ports.collect();
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
            ports,
            dram: Dram::new(description.map.clone(), &description.dram)?,
            tagged: description.tlb.as_ref().is_none_or(|tlb| tlb.tagged),
            software: description.tlb.as_ref().is_some_and(|tlb| tlb.software),
            tlbs,
            spaces: 0,
            gaps: vec![0; CLASSES],
            shared: description
                .smt
                .as_ref()
                .map(|smt| Shared::new(smt, &levels[0].cache_of, description.clock)),
            fetch: Vec::new(),
            cores: (0..cores).map(core).collect(),
            acts: vec![Picos::MAX; cores],
            messages: BinaryHeap::new(),
            numbers: 0,
            done: Vec::new(),
        })
    }

    /// How many cores it has: one per hardware thread.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The caches, to set masks and lock lines.
    pub fn caches_mut(&mut self) -> &mut Hierarchy {
        &mut self.caches
    }

    /// The caches, to read their state.
    #[must_use]
    pub fn caches(&self) -> &Hierarchy {
        &self.caches
    }

    /// The memory, to read its counts.
    #[must_use]
    pub fn dram(&self) -> &Dram {
        &self.dram
    }

    /// Runs `pattern` in `space` on `core` from `at` on, without end, in the class of the core's
    /// number.
    pub fn start(&mut self, core: usize, pattern: Pattern, space: Space, at: Picos) {
        let program = Program::endless(pattern, space, u8::try_from(core).unwrap_or(0));
        self.switch(core, Some(program), at);
    }

    /// Puts `program` on `core`, to run from `at` on. Returns the program that was there.
    pub fn switch(&mut self, core: usize, program: Option<Program>, at: Picos) -> Option<Program> {
        self.leave(core, at);
        let (tagged, spaces) = (self.tagged, &mut self.spaces);
        let core = &mut self.cores[core];
        core.suspend(at);
        core.state = State::Idle;
        core.window.clear();
        if let Some(program) = &program {
            core.state = State::Ready;
            core.page = u64::MAX;
            if tagged {
                core.space = program.number;
            } else if core.last != Some(program.number) {
                // No earlier translation is found again under a new number.
                *spaces = spaces.wrapping_add(1);
                core.space = *spaces;
            }
            core.last = Some(program.number);
        }
        let before = std::mem::replace(&mut core.program, program);
        core.proceed(at);
        before
    }

    /// The program on `core`. `None` where there is none.
    #[must_use]
    pub fn program(&self, core: usize) -> Option<&Program> {
        self.cores[core].program.as_ref()
    }

    /// The same, mutable, to take its units.
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

    /// Has the program on `core`, which has finished, do accesses from `at` on until `until` are
    /// done.
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

    /// Keeps `core` busy with other work until `at`.
    pub fn delay(&mut self, core: usize, at: Picos) {
        let core = &mut self.cores[core];
        core.time = core.time.max(at);
    }

    /// Arms the counters of `core` to overflow after so many more lines.
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

    /// Touches a program's memory once for `class`, line by line, without time passing, as before a
    /// program begins. Only the caches change.
    pub fn touch(&mut self, core: usize, class: u8, space: &Space, bytes: u64, write: bool) {
        for line in 0..bytes / LINE {
            if let Some(address) = space.physical(line * LINE) {
                self.caches.access(core, class, address, write);
            }
        }
    }

    /// Locks the first `bytes` of a program's memory into `ways` of `core`'s cache at `level` (from
    /// 0) for `class`, without time passing.
    ///
    /// # Errors
    /// Where these ways do not hold so much. What was locked until then remains locked.
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

    /// Throttles the cores that run `class` to `percent` (1 to 100) of the highest rate at which a
    /// core alone can read lines. The time between requests is at least 100 ÷ `percent` times that
    /// of this rate. A slower core is not affected. Write-backs are not counted. 100 throttles
    /// nothing.
    pub fn throttle(&mut self, class: u8, percent: u32) {
        let gap = self.pace * 100 / u64::from(percent.clamp(1, 100));
        self.gaps[usize::from(class)] = if percent >= 100 { 0 } else { gap };
    }

    /// What `core` has done since the machine began.
    #[must_use]
    pub fn counts(&self, core: usize) -> CoreCounts {
        self.cores[core].counts
    }
}

/// The least time between two lines that a core alone reads. It is the bus time of a line, or the
/// latency of a line divided by the misses that can be outstanding. `lookups`: the time of all
/// lookups.
fn pace(description: &Description, lookups: Picos) -> Picos {
    let timing = &description.dram.timing;
    let bus = timing.cycles(timing.burst) / u64::from(description.map.channels().max(1));
    let dram = timing.cycles(timing.rcd + timing.cl + timing.burst);
    let alone = lookups + description.transit + dram;
    bus.max(alone / u64::from(description.misses.max(1)))
}
