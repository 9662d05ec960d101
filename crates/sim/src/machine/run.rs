//! The event loop: who acts next, and what a core does when it acts.

use std::cmp::Reverse;

use quell_model::Picos;
use quell_model::dram::Accepted;

use crate::pattern::{Effect, LINE};

use super::{CORE_BITS, Kind, LEVELS, Machine, Message, Raised, State};

impl Machine {
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
                self.advance(now);
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

    /// Memory does what it does until `now`, and lines set off for their cores. A refresh that was due in the meantime can bring reads
    /// forward, so that lines come from here at any time, not at memory's own events alone.
    fn advance(&mut self, now: Picos) {
        self.dram.advance(now, &mut self.done);
        for completion in self.done.drain(..) {
            let core = usize::try_from(completion.id & ((1 << CORE_BITS) - 1)).unwrap_or(0);
            self.messages.push(Reverse(Message {
                at: completion.at + self.transit,
                kind: Kind::Return,
                core,
                number: completion.id,
                address: 0,
            }));
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
                self.advance(now);
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
        let memory = self.caches.levels();
        let Some(program) = &mut core.program else {
            core.state = State::Idle;
            return None;
        };
        loop {
            let mut access = match program.pending.take() {
                Some(access) => access,
                None if program.done < program.until => program.pattern.next_access(),
                None if core.flying > 0 => {
                    core.state = State::Drains;
                    return None;
                }
                None => {
                    core.state = State::Idle;
                    let at = core.time;
                    return Some(Raised::Finished { core: n, at });
                }
            };
            if access.begins {
                if core.flying > 0 {
                    core.state = State::Drains;
                    program.pending = Some(access);
                    return None;
                }
                let (period, late) = (program.pattern.period(), program.pattern.late());
                if let Some(until) = program.units.begin(core.time, period, late) {
                    core.state = State::Idle;
                    program.pending = Some(access);
                    let at = core.time;
                    return Some(Raised::Waits { core: n, at, until });
                }
                access.begins = false;
            }
            if access.compute > 0 {
                program.counts.compute += u64::from(access.compute);
                core.time += u64::from(access.compute) * self.clock;
                access.compute = 0;
                if core.time >= limit {
                    program.pending = Some(access);
                    return None;
                }
            }
            if core.flying == self.misses {
                core.state = State::Full;
                program.pending = Some(access);
                return None;
            }
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
            let level = self.caches.access(n, program.class, address, access.write);
            let looked_up = core.time + self.latencies[level];
            let began = core.time;
            core.time = if access.dependent {
                looked_up
            } else {
                core.time + self.clock
            };
            if level < memory {
                program.counts.hits[level.min(LEVELS - 1)] += 1;
                if self.caches.writebacks().is_empty() {
                    if core.time < limit {
                        continue;
                    }
                    return None;
                }
            }
            let mut send = |kind, address| {
                self.numbers += 1;
                let number = self.numbers << CORE_BITS | n as u64;
                self.messages.push(Reverse(Message {
                    at: looked_up,
                    kind,
                    core: n,
                    number,
                    address,
                }));
                number
            };
            let writebacks = self.caches.writebacks();
            core.counts.writebacks += writebacks.len() as u64;
            program.counts.writebacks += writebacks.len() as u64;
            for &line in writebacks {
                send(Kind::Write, line);
            }
            if level == memory {
                let number = send(Kind::Read, address);
                core.counts.reads += 1;
                program.counts.misses += 1;
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
                number: self.numbers << CORE_BITS | n as u64,
                address: address & !(LINE - 1),
            }));
            let core = &mut self.cores[n];
            core.counts.writebacks += 1;
            if let Some(program) = &mut core.program {
                program.counts.writebacks += 1;
            }
            core.flying += 1;
        }
    }
}
