//! The event loop: which part acts next, and what a core does when it acts.

use std::cmp::Reverse;

use quell_model::Picos;
use quell_model::dram::Accepted;

use crate::access::{Effect, LINE};
use crate::tlb::{Page, Tlb, Translated};

use super::smt::{PIECE, Uses};
use super::{Ahead, CORE_BITS, Kind, LEVELS, Machine, Message, Program, Raised, State};

impl Machine {
    /// Runs all that happens before `end`, or until a core has something to report.
    pub fn run(&mut self, end: Picos) -> Option<Raised> {
        for n in 0..self.cores.len() {
            self.acts[n] = self.cores[n].acts();
        }
        loop {
            let dram = self.dram.next_event().unwrap_or(Picos::MAX);
            let message = self
                .messages
                .peek()
                .map_or(Picos::MAX, |Reverse(message)| message.at);
            let (mut first, mut second) = ((Picos::MAX, 0), Picos::MAX);
            for (n, &at) in self.acts.iter().enumerate() {
                second = second.min(at.max(first.0));
                if at < first.0 {
                    first = (at, n);
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
                    self.acts[message.core] = self.cores[message.core].acts();
                    if message.kind == Kind::Return {
                        self.let_go_on(message.core, now);
                    }
                }
            } else {
                // No other part acts before this time.
                let limit = dram.min(message).min(second).min(end);
                let raised = self.act(first.1, limit);
                self.acts[first.1] = self.cores[first.1].acts();
                if raised.is_some() {
                    return raised;
                }
            }
        }
    }

    /// Lets memory act until `now`, and sends its lines to their cores. A refresh that was due in
    /// the meantime can bring reads forward. So lines come from here at any time, not only at
    /// memory's own events.
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
                let ahead = core.ahead.iter().position(|a| a.number == message.number);
                // No access waits for a prefetched line that is not wanted yet.
                if ahead.is_some_and(|place| !core.ahead.swap_remove(place).wanted) {
                    return;
                }
                core.flying -= 1;
                core.window.back(message.number);
                let ready = match core.state {
                    // Where threads share miss buffers, the longest waiting goes first.
                    State::Full => self.shared.is_none(),
                    State::Needs(number) => number == message.number,
                    State::Drains => core.flying == 0,
                    State::Idle | State::Ready => false,
                };
                if ready {
                    core.state = State::Ready;
                    let waited = now.saturating_sub(core.time);
                    if let Some(program) = &mut core.program {
                        program.counts.stalled += waited;
                        if core.own {
                            program.counts.own_stalled += waited;
                        }
                    }
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
                    // Tried again when DRAM has acted.
                    Err(_) => {
                        let at = self.dram.next_event().unwrap_or(now).max(now + 1);
                        self.messages.push(Reverse(Message { at, ..message }));
                    }
                }
            }
        }
    }

    /// Lets `core` act until `limit`, or until it waits, sends a message or reports something.
    fn act(&mut self, n: usize, limit: Picos) -> Option<Raised> {
        let taken = self.taken_by_others(n);
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
                if let Some(until) = program.begin_unit(core.time, core.since) {
                    core.state = State::Idle;
                    program.pending = Some(access);
                    let at = core.time;
                    return Some(Raised::Waits { core: n, at, until });
                }
                access.begins = false;
            }
            if access.compute > 0 {
                let room = core.window.room(program.counts.instructions);
                if let Some(oldest) = core.window.oldest().filter(|_| room == 0) {
                    core.state = State::Needs(oldest);
                    program.pending = Some(access);
                    return None;
                }
                let most = self.shared.as_ref().map_or(u32::MAX, |_| PIECE);
                let most = u32::try_from(room).map_or(most, |room| room.min(most));
                let cycles = access.compute.min(most);
                let instructions = u64::from(access.compute(cycles));
                program.counts.compute += u64::from(cycles);
                program.counts.instructions += instructions;
                let takes = u64::from(cycles) * self.clock;
                if let Some(shared) = &mut self.shared {
                    core.time += shared.delay(n, core.time, takes, Uses::computing(instructions));
                }
                core.time += takes;
                if core.time >= limit || access.compute > 0 {
                    program.pending = Some(access);
                    if core.time >= limit {
                        return None;
                    }
                    continue;
                }
            }
            let page = access.address >> program.space.shift();
            if page != core.page || program.walk > 0 {
                if page != core.page
                    && let Some(tlb) = self.tlbs.get_mut(core.tlb)
                {
                    let missing = translate(tlb, core.space, program, access.address);
                    program.walk += missing.cycles() * self.clock;
                    // An interrupt is precise: software walks when all earlier misses are back.
                    if self.software && missing.is_walk() && core.flying > 0 {
                        core.page = page;
                        core.state = State::Drains;
                        program.pending = Some(access);
                        return None;
                    }
                }
                core.page = page;
                let walk = std::mem::take(&mut program.walk);
                core.time += walk;
                if walk > 0 && core.time >= limit {
                    program.pending = Some(access);
                    return None;
                }
            }
            if core.window.room(program.counts.instructions) == 0
                && let Some(oldest) = core.window.oldest()
            {
                core.state = State::Needs(oldest);
                program.pending = Some(access);
                return None;
            }
            if core.flying + taken >= self.misses {
                core.state = State::Full;
                program.pending = Some(access);
                return None;
            }
            let Some(address) = program.space.physical(access.address) else {
                core.state = State::Idle;
                return None;
            };
            program.done += 1;
            program.counts.instructions += u64::from(access.instructions.unwrap_or(1));
            core.counts.accesses += 1;
            if access.effect != Effect::Use {
                let began = core.time;
                if let Some(shared) = &mut self.shared {
                    core.time += shared.delay(n, began, self.clock, Uses::accessing(&access));
                }
                core.time += self.clock;
                return self.rid(n, address, access.effect, began);
            }
            let level = self.caches.access(n, program.class, address, access.write);
            core.own = access.own;
            if let Some(shared) = &mut self.shared {
                let takes = if access.dependent {
                    self.latencies[level]
                } else {
                    self.clock
                };
                core.time += shared.delay(n, core.time, takes, Uses::accessing(&access));
            }
            for ports in &mut self.ports {
                let queued = ports.enter(n, level, core.time);
                program.counts.queued += queued;
                core.time += queued;
            }
            let looked_up = core.time + self.latencies[level];
            let began = core.time;
            core.time = if access.dependent {
                looked_up
            } else {
                core.time + self.clock
            };
            if level < memory {
                program.counts.hits[level.min(LEVELS - 1)] += 1;
                // Misses of the first level train the prefetcher.
                let quiet = level == 0 || core.prefetcher.is_none();
                if quiet && self.caches.writebacks().is_empty() {
                    if core.time < limit {
                        continue;
                    }
                    return None;
                }
            }
            let mut send = |kind, at, address| {
                self.numbers += 1;
                let number = self.numbers << CORE_BITS | n as u64;
                self.messages.push(Reverse(Message {
                    at,
                    kind,
                    core: n,
                    number,
                    address,
                }));
                number
            };
            let gap = self.gaps[usize::from(program.class)];
            let mut writebacks = self.caches.writebacks().len() as u64;
            for &line in self.caches.writebacks() {
                send(Kind::Write, looked_up, line);
                program.counts.request(&self.dram, line);
            }
            if level == memory {
                let at = leaves(&mut core.leaves, looked_up, gap);
                let number = send(Kind::Read, at, address);
                program.counts.request(&self.dram, address);
                core.counts.reads += 1;
                program.counts.misses += 1;
                program.counts.own_misses += u64::from(access.own);
                core.flying += 1;
                if !access.write {
                    core.window.send(number, program.counts.instructions);
                }
                if access.dependent {
                    core.state = State::Needs(number);
                }
            } else if level > 0
                && let Some(line) = core.ahead.iter_mut().find(|a| a.address == address & !63)
            {
                if !std::mem::replace(&mut line.wanted, true) {
                    core.flying += 1;
                    core.window.send(line.number, program.counts.instructions);
                }
                if access.dependent {
                    core.state = State::Needs(line.number);
                }
            }
            if level > 0
                && let Some(prefetcher) = &mut core.prefetcher
            {
                let room = self.misses.saturating_sub(count(core.ahead.len()));
                prefetcher.observe(address, room, &mut self.fetch);
                let nearest = 1.min(memory - 1);
                for line in self.fetch.drain(..) {
                    let found = self.caches.prefetch(nearest, n, program.class, line);
                    writebacks += self.caches.writebacks().len() as u64;
                    for &line in self.caches.writebacks() {
                        send(Kind::Write, looked_up, line);
                        program.counts.request(&self.dram, line);
                    }
                    if found == memory {
                        let at = leaves(&mut core.leaves, looked_up, gap);
                        let number = send(Kind::Read, at, line);
                        program.counts.request(&self.dram, line);
                        core.ahead.push(Ahead {
                            number,
                            address: line,
                            wanted: false,
                        });
                        core.counts.prefetches += 1;
                        program.counts.prefetches += 1;
                    }
                }
            }
            core.counts.writebacks += writebacks;
            program.counts.writebacks += writebacks;
            return core
                .overflows()
                .then_some(Raised::Overflow { core: n, at: began });
        }
    }
}

impl Machine {
    /// `core` has a line stored past the caches, written back or flushed at `began`. If the line
    /// goes to memory it holds one of the core's misses until the controller has taken it.
    /// Write-combining buffers are line-fill buffers.
    fn rid(&mut self, n: usize, address: u64, effect: Effect, began: Picos) -> Option<Raised> {
        let changed = match effect {
            Effect::Use => false,
            Effect::Past => {
                self.caches.flush(n, address);
                true
            }
            Effect::WriteBack => self.caches.write_back(n, address),
            Effect::Flush => self.caches.flush(n, address),
        };
        if !changed {
            return None;
        }
        let core = &mut self.cores[n];
        let class = core.program.as_ref().map_or(0, |program| program.class);
        let ready = began + self.latencies[self.caches.levels()];
        let at = leaves(&mut core.leaves, ready, self.gaps[usize::from(class)]);
        self.numbers += 1;
        self.messages.push(Reverse(Message {
            at,
            kind: Kind::Store,
            core: n,
            number: self.numbers << CORE_BITS | n as u64,
            address: address & !(LINE - 1),
        }));
        core.counts.writebacks += 1;
        if let Some(program) = &mut core.program {
            program.counts.writebacks += 1;
            program.counts.request(&self.dram, address);
        }
        core.flying += 1;
        core.overflows()
            .then_some(Raised::Overflow { core: n, at: began })
    }
}

/// Translates an access of `program`, whose address space has the number `space` in `tlb`.
#[inline]
fn translate(tlb: &mut Tlb, space: u16, program: &mut Program, address: u64) -> Translated {
    let kind = if program.space.is_large() {
        Page::Large
    } else {
        Page::Small
    };
    let translated = tlb.access(space, address, kind);
    program.counts.walks += u64::from(translated.is_walk());
    translated
}

/// When a request that is ready at `ready` leaves, at least `gap` after the one before.
fn leaves(next: &mut Picos, ready: Picos, gap: Picos) -> Picos {
    if gap == 0 {
        return ready;
    }
    let at = ready.max(*next);
    *next = at + gap;
    at
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
