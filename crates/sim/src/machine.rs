//! Cores, caches and memory in one integer time.
//!
//! Method: the earliest of all cores, DRAM channels and messages acts next; on a tie DRAM, then messages, then cores, each in
//! a fixed order. A core issues accesses in program order. A hit costs the level's latency if the next access depends
//! on it, else one cycle. A miss becomes a request to DRAM after the lookups; the core goes on until an access depends
//! on the answer or as many misses are outstanding as it can have.
//!
//! Whoever runs programs on the cores ([`crate::os`]) puts them there and takes them away, stops cores, and arms their
//! counters; [`Machine::run`] returns as soon as a counter overflows or a program has done what it was to do.
//!
//! Deviations from hardware: no instructions between accesses, no out-of-order window besides the misses; a line counts as
//! present in the caches from the moment it was asked for; a write that misses reads its line first and is waited for as a
//! read is; shared caches have no bandwidth limit of their own; lines on their way to a full queue of DRAM wait without
//! occupying anything; a program taken off its core does not wait for its outstanding misses when it comes back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quell_model::address::AddressMap;
use quell_model::cache::{Hierarchy, Level};
use quell_model::dram::{Accepted, Completion, Config, Dram};
use quell_model::{Invalid, Picos};

use crate::frames::Space;
use crate::pattern::{Effect, LINE, Pattern};

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
}

/// What a core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CoreCounts {
    /// Accesses done.
    pub accesses: u64,
    /// Lines read from DRAM.
    pub reads: u64,
    /// Lines that its accesses pushed out to DRAM.
    pub writebacks: u64,
}

/// What a core runs.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its accesses.
    pub pattern: Pattern,
    /// Its memory.
    pub space: Space,
    /// Accesses done so far.
    pub done: u64,
    /// Where it stops: when so many are done and nothing is outstanding, [`Raised::Finished`].
    pub until: u64,
}

impl Program {
    /// One that goes on for ever.
    #[must_use]
    pub fn endless(pattern: Pattern, space: Space) -> Self {
        Self {
            pattern,
            space,
            done: 0,
            until: u64::MAX,
        }
    }
}

/// What a core tells whoever runs programs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The counter of lines read reached what it was armed with.
    Overflow {
        /// The core.
        core: usize,
        /// At the access that crossed it.
        at: Picos,
    },
    /// Its program has done all that it was to do; it waits until it is told more ([`Machine::go_on`]) or taken away.
    Finished {
        /// The core.
        core: usize,
        /// When.
        at: Picos,
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
    /// Has nothing more to do and waits for all misses to come back.
    Drains,
}

#[derive(Clone, Debug)]
struct Core {
    state: State,
    /// Stopped from outside: does not act, whatever its state.
    halted: bool,
    time: Picos,
    program: Option<Program>,
    flying: u32,
    counts: CoreCounts,
    /// Lines read at which the counter overflows.
    armed: u64,
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
    cores: Vec<Core>,
    messages: BinaryHeap<Reverse<Message>>,
    numbers: u64,
    done: Vec<Completion>,
}

/// Requests carry their core in the low bits of their number.
const CORE_BITS: u32 = 6;

impl Machine {
    /// Idle and empty at time zero. Requesters of the caches are the cores.
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
        let core = Core {
            state: State::Idle,
            halted: false,
            time: 0,
            program: None,
            flying: 0,
            counts: CoreCounts::default(),
            armed: u64::MAX,
        };
        Ok(Self {
            clock: description.clock.max(1),
            latencies,
            transit: description.transit,
            misses: description.misses.max(1),
            caches: Hierarchy::new(&levels, cores)?,
            dram: Dram::new(description.map.clone(), &description.dram)?,
            cores: vec![core; cores],
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

    /// Has `core` run `pattern` in `space` from `at` on, for ever.
    pub fn start(&mut self, core: usize, pattern: Pattern, space: Space, at: Picos) {
        self.switch(core, Some(Program::endless(pattern, space)), at);
    }

    /// Puts `program` on `core`, where it goes on at `at`; returns the one that was there.
    pub fn switch(&mut self, core: usize, program: Option<Program>, at: Picos) -> Option<Program> {
        let core = &mut self.cores[core];
        core.state = if program.is_some() {
            State::Ready
        } else {
            State::Idle
        };
        core.time = core.time.max(at);
        std::mem::replace(&mut core.program, program)
    }

    /// The program on `core`.
    #[must_use]
    pub fn program(&self, core: usize) -> Option<&Program> {
        self.cores[core].program.as_ref()
    }

    /// Has the program on `core`, which has finished, do accesses until `until` are done, from `at` on.
    pub fn go_on(&mut self, core: usize, until: u64, at: Picos) {
        let core = &mut self.cores[core];
        if let Some(program) = &mut core.program {
            program.until = until;
            core.state = State::Ready;
            core.time = core.time.max(at);
        }
    }

    /// Stops `core`; what it has asked for still arrives.
    pub fn halt(&mut self, core: usize) {
        self.cores[core].halted = true;
    }

    /// Lets `core` go on at `at`.
    pub fn resume(&mut self, core: usize, at: Picos) {
        let core = &mut self.cores[core];
        core.halted = false;
        core.time = core.time.max(at);
    }

    /// Keeps `core` busy with something else until `at`.
    pub fn delay(&mut self, core: usize, at: Picos) {
        let core = &mut self.cores[core];
        core.time = core.time.max(at);
    }

    /// Has the counter of `core` overflow after so many more lines read; `None`: never.
    pub fn arm(&mut self, core: usize, lines: Option<u64>) {
        let core = &mut self.cores[core];
        core.armed = lines.map_or(u64::MAX, |lines| core.counts.reads.saturating_add(lines));
    }

    /// Goes once through `program`'s memory, line by line, without time passing: as memory is touched before a program
    /// begins. Only caches notice.
    pub fn touch(&mut self, core: usize, space: &Space, bytes: u64, write: bool) {
        let requester = requester(core);
        for line in 0..bytes / LINE {
            if let Some(address) = space.physical(line * LINE) {
                self.caches.access(core, requester, address, write);
            }
        }
    }

    /// What `core` has done.
    #[must_use]
    pub fn counts(&self, core: usize) -> CoreCounts {
        self.cores[core].counts
    }

    /// Runs all that happens before `end`, or until a core has something to tell.
    pub fn run(&mut self, end: Picos) -> Option<Raised> {
        loop {
            let dram = self.dram.next_event().unwrap_or(Picos::MAX);
            let message = self
                .messages
                .peek()
                .map_or(Picos::MAX, |Reverse(message)| message.at);
            let (mut first, mut second) = ((Picos::MAX, usize::MAX), Picos::MAX);
            for (n, core) in self.cores.iter().enumerate() {
                if core.state == State::Ready && !core.halted {
                    if core.time < first.0 {
                        (second, first) = (first.0, (core.time, n));
                    } else {
                        second = second.min(core.time);
                    }
                }
            }
            let now = dram.min(message).min(first.0);
            if now >= end {
                return None;
            }
            if dram == now {
                self.dram.advance(now, &mut self.done);
                for completion in self.done.drain(..) {
                    let core = usize::try_from(completion.id & ((1 << CORE_BITS) - 1)).unwrap_or(0);
                    let at = completion.at + self.transit;
                    self.messages.push(Reverse(Message {
                        at,
                        kind: Kind::Return,
                        core,
                        number: completion.id,
                        address: 0,
                    }));
                }
            } else if message == now {
                if let Some(Reverse(message)) = self.messages.pop() {
                    self.deliver(message);
                }
            } else {
                // Nobody else acts before this.
                let limit = dram.min(message).min(second).min(end);
                let raised = self.act(first.1, limit);
                if raised.is_some() {
                    return raised;
                }
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let now = message.at;
        match message.kind {
            Kind::Return => {
                let core = &mut self.cores[message.core];
                core.flying -= 1;
                let ready = match core.state {
                    State::Full => true,
                    State::Needs(number) => number == message.number,
                    State::Drains => core.flying == 0,
                    State::Idle | State::Ready => false,
                };
                if ready {
                    core.state = State::Ready;
                    core.time = core.time.max(now);
                }
            }
            Kind::Read | Kind::Write | Kind::Store => {
                self.dram.advance(now, &mut self.done);
                match self.dram.enqueue(
                    message.number,
                    message.address,
                    message.kind != Kind::Read,
                    now,
                ) {
                    Ok(accepted)
                        if accepted == Accepted::Forwarded || message.kind == Kind::Store =>
                    {
                        let at = now + self.transit;
                        self.messages.push(Reverse(Message {
                            at,
                            kind: Kind::Return,
                            ..message
                        }));
                    }
                    Ok(_) => {}
                    // Tried again when DRAM has done something.
                    Err(_) => {
                        let at = self.dram.next_event().unwrap_or(now).max(now + 1);
                        self.messages.push(Reverse(Message { at, ..message }));
                    }
                }
            }
        }
    }

    /// `core` acts until `limit`, or until it waits, sends or tells something.
    fn act(&mut self, n: usize, limit: Picos) -> Option<Raised> {
        let core = &mut self.cores[n];
        let requester = requester(n);
        let memory = self.caches.levels();
        loop {
            let Some(program) = &mut core.program else {
                core.state = State::Idle;
                return None;
            };
            if program.done >= program.until {
                if core.flying > 0 {
                    core.state = State::Drains;
                    return None;
                }
                core.state = State::Idle;
                return Some(Raised::Finished {
                    core: n,
                    at: core.time,
                });
            }
            if core.flying == self.misses {
                core.state = State::Full;
                return None;
            }
            let access = program.pattern.next_access();
            let Some(address) = program.space.physical(access.address) else {
                core.state = State::Idle;
                return None;
            };
            program.done += 1;
            core.counts.accesses += 1;
            if access.effect != Effect::Use {
                let began = core.time;
                core.time += self.clock;
                self.rid(n, address, access.effect, began);
                return None;
            }
            let level = self.caches.access(n, requester, address, access.write);
            let looked_up = core.time + self.latencies[level];
            let began = core.time;
            core.time = if access.dependent {
                looked_up
            } else {
                core.time + self.clock
            };
            if level < memory && self.caches.writebacks().is_empty() {
                if core.time < limit {
                    continue;
                }
                return None;
            }
            let mut send = |kind, address| {
                self.numbers += 1;
                let number = self.numbers << CORE_BITS | u64::from(requester);
                self.messages.push(Reverse(Message {
                    at: looked_up,
                    kind,
                    core: n,
                    number,
                    address,
                }));
                number
            };
            core.counts.writebacks += self.caches.writebacks().len() as u64;
            for &line in self.caches.writebacks() {
                send(Kind::Write, line);
            }
            if level == memory {
                let number = send(Kind::Read, address);
                core.counts.reads += 1;
                core.flying += 1;
                if access.dependent {
                    core.state = State::Needs(number);
                }
                if core.counts.reads >= core.armed {
                    core.armed = u64::MAX;
                    return Some(Raised::Overflow { core: n, at: began });
                }
            }
            return None;
        }
    }
}

impl Machine {
    /// `core` has a line stored past the caches, written back or flushed at `at`. If it goes to memory it holds one of the
    /// core's misses until the controller has taken it: write-combining buffers are line-fill buffers.
    fn rid(&mut self, n: usize, address: u64, effect: Effect, at: Picos) {
        let changed = match effect {
            Effect::Use => false,
            Effect::Past => {
                self.caches.flush(n, address);
                true
            }
            Effect::WriteBack => self.caches.write_back(n, address),
            Effect::Flush => self.caches.flush(n, address),
        };
        if changed {
            self.numbers += 1;
            self.messages.push(Reverse(Message {
                at: at + self.latencies[self.caches.levels()],
                kind: Kind::Store,
                core: n,
                number: self.numbers << CORE_BITS | u64::from(requester(n)),
                address: address & !(LINE - 1),
            }));
            let core = &mut self.cores[n];
            core.counts.writebacks += 1;
            core.flying += 1;
        }
    }
}

fn requester(core: usize) -> u8 {
    u8::try_from(core).expect("invariant: at most 64 cores")
}
