//! The emulated processor, driven by the code that runs the guest: what `CPUID` and model-specific
//! registers report ([`registers`]), the caches that obey them ([`caches`]), the performance
//! counters ([`pmu`]). The registers are those of Intel's manual (SDM volume 3, chapters "Resource
//! Director Technology" and "Performance Monitoring").
//!
//! Every call names the CPU on which it happens. Each CPU calls from one thread at a time, and
//! different CPUs may call at once. A call waits only for another CPU's access to the same cache.
//!
//! Deviations from hardware:
//! - There is no prefetcher.
//! - Reads of page tables by the processor, and accesses of devices, are not seen.
//! - There is no coherence between cores: a line may be in two of them, modified in both.
//! - The third level does not remove evicted lines from nearer levels.
//! - A wrong value written to a register is dropped, where a processor would fault.

mod caches;
mod identity;
mod operand;
mod pmu;
mod registers;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::profile::{LINE, Profile};
pub use caches::{Bank, Traffic};
use caches::{Caches, Served};
pub use identity::Answer;
pub use operand::Operand;
use pmu::{Event, Pmu};

/// The register by which the guest says whether its loads, stores and lines are to be seen: 1 or 0.
/// Intel leaves the numbers around it to whoever emulates a processor.
pub const WATCH: u32 = 0x4000_00f0;

/// How many CPUs there are, and which of them share a core or socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Topology {
    /// How many sockets there are, each with its own third level.
    pub sockets: u32,
    /// How many cores each socket has.
    pub cores: u32,
    /// How many hardware threads each core has.
    pub threads: u32,
}

impl Topology {
    /// The number of hardware threads in all.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.sockets * self.cores * self.threads
    }
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A load of data.
    Read,
    /// A store of data.
    Write,
    /// A fetch of instructions.
    Fetch,
}

/// What the caller has to do after an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct After {
    /// Whether to interrupt this CPU: a counter overflowed.
    pub interrupt: bool,
    /// How long to delay this CPU, because its class is throttled.
    pub delay: Duration,
}

/// State of one CPU that only its own thread writes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cpu {
    core: usize,
    /// The line of the last data access, in the form that [`Machine::repeats`] uses.
    last: AtomicU64,
    /// The line of the last fetch.
    fetched: AtomicU64,
    /// `IA32_PQR_ASSOC`: the monitoring id is low, the class high.
    association: AtomicU64,
    /// Instructions in user and in kernel mode that the counters have not taken in yet. `stalls`:
    /// likewise the cycles beyond one per instruction.
    instructions: [AtomicU64; 2],
    stalls: [AtomicU64; 2],
    /// Loads and stores that the counters have not taken in yet, in kernel and in user mode.
    touched: [[AtomicU64; 2]; 2],
    /// At so many instructions and stalls together the counters have to take them in.
    due: AtomicU64,
    /// All data accesses so far. `fetches`: all fetches of a line.
    accesses: AtomicU64,
    fetches: AtomicU64,
    /// The value of `IA32_QM_EVTSEL`.
    select: AtomicU64,
    pmu: Mutex<Pmu>,
}

/// The emulated processor, shared by all CPUs' threads.
#[derive(Debug)]
pub struct Machine {
    profile: Profile,
    topology: Topology,
    cpus: Vec<Cpu>,
    caches: Caches,
    /// Register writes that a processor would have refused.
    refused: AtomicU64,
}

/// What happened, as JSON. The plugin writes it when the guest ends.
#[derive(Debug, Deserialize, Serialize)]
pub struct Report {
    /// Data accesses that reached the plugin, without repeats of a CPU's last line.
    pub accesses: u64,
    /// Fetches of a line, without such repeats.
    pub fetches: u64,
    /// Register writes that a processor would have refused.
    pub refused: u64,
    /// By socket, by class: what was asked of the last level and went to memory.
    pub classes: Vec<Vec<Traffic>>,
    /// By socket, by monitoring id, for those that had any traffic.
    pub ids: Vec<std::collections::BTreeMap<usize, Traffic>>,
    /// By bank of memory, the first rank of the first channel first. Empty where the profile has no
    /// banks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub banks: Vec<Bank>,
}

/// Adds without an atomic operation, since no other thread writes.
#[inline]
fn add(to: &AtomicU64, n: u64) -> u64 {
    let sum = to.load(Relaxed).wrapping_add(n);
    to.store(sum, Relaxed);
    sum
}

/// Locks. A thread that panicked left nothing half done that would matter.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Machine {
    /// A machine with empty caches, everything allowed, and nothing counted.
    ///
    /// # Errors
    /// For impossible caches.
    pub fn new(profile: Profile, topology: Topology) -> Result<Self, Error> {
        let threads = topology.threads.max(1) as usize;
        let cpu = |n: usize| Cpu {
            core: n / threads,
            due: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(u64::MAX),
            fetched: AtomicU64::new(u64::MAX),
            pmu: Mutex::new(Pmu::new(profile.pmu.as_ref())),
            ..Cpu::default()
        };
        Ok(Self {
            cpus: (0..topology.cpus() as usize).map(cpu).collect(),
            caches: Caches::new(&profile, topology)?,
            profile,
            topology,
            refused: AtomicU64::new(0),
        })
    }

    /// Counts a data access. Whether the CPU's last one was to this line (and a store if this is
    /// one). Then the access changes nothing else. It compares virtual addresses, since a CPU's
    /// address space does not change without other accesses in between.
    #[inline]
    pub fn repeats(&self, cpu: usize, address: u64, write: bool, user: bool) -> bool {
        let cpu = &self.cpus[cpu];
        add(&cpu.touched[usize::from(user)][usize::from(write)], 1);
        let line = (address / LINE) << 1;
        let last = cpu.last.load(Relaxed);
        if last == line | 1 || (last == line && !write) {
            return true;
        }
        cpu.last.store(line | u64::from(write), Relaxed);
        false
    }

    /// Handles a data access to a physical address.
    #[inline]
    pub fn data(&self, cpu: usize, address: u64, write: bool, user: bool) -> After {
        add(&self.cpus[cpu].accesses, 1);
        let kind = if write { Kind::Write } else { Kind::Read };
        if self.caches.nearest(self.core(cpu), address, kind) {
            return After::default();
        }
        self.beyond(cpu, address, kind, user)
    }

    /// Handles the begin of a run of `instructions`. Its code is in `lines` lines from a physical
    /// address on.
    #[inline]
    pub fn run(&self, n: usize, address: u64, lines: u64, instructions: u64, user: bool) -> After {
        let cpu = &self.cpus[n];
        let mut after = After::default();
        let first = address / LINE;
        for line in first..first + lines {
            if cpu.fetched.load(Relaxed) == line {
                continue;
            }
            cpu.fetched.store(line, Relaxed);
            add(&cpu.fetches, 1);
            if !self.caches.nearest(self.core(n), line * LINE, Kind::Fetch) {
                let one = self.beyond(n, line * LINE, Kind::Fetch, user);
                after.interrupt |= one.interrupt;
                after.delay += one.delay;
            }
        }
        add(&cpu.instructions[usize::from(user)], instructions);
        let waiting = cpu.instructions.iter().chain(&cpu.stalls);
        if waiting.map(|n| n.load(Relaxed)).sum::<u64>() >= cpu.due.load(Relaxed) {
            after.interrupt |= self.settle(n);
        }
        after
    }

    #[inline]
    fn core(&self, cpu: usize) -> usize {
        self.cpus[cpu].core
    }

    /// Handles an access that the first level did not have.
    fn beyond(&self, n: usize, address: u64, kind: Kind, user: bool) -> After {
        let cpu = &self.cpus[n];
        let association = cpu.association.load(Relaxed);
        let (served, delay) = self.caches.beyond(
            n,
            self.core(n),
            address,
            kind,
            class(association),
            id(association),
        );
        let cycles = &self.profile.cycles;
        let stall = match served {
            Served::Second => cycles.l2,
            Served::Third => cycles.l3,
            Served::Memory(row) => match (&self.profile.dram, row) {
                (Some(dram), Some(row)) => dram.cycles(row),
                _ => cycles.memory,
            },
        };
        add(&cpu.stalls[usize::from(user)], u64::from(stall));
        // Without a third level, the events of the last level are those of the second.
        let last = self.profile.l3.is_none() || served != Served::Second;
        let interrupt = last && self.profile.pmu.is_some() && {
            let mut pmu = lock(&cpu.pmu);
            let reference = pmu.count(Event::References, user, 1);
            (matches!(served, Served::Memory(_)) && pmu.count(Event::Misses, user, 1)) | reference
        };
        After { interrupt, delay }
    }

    /// Lets the counters take in what they have not yet. Returns whether one overflowed.
    fn settle(&self, n: usize) -> bool {
        let cpu = &self.cpus[n];
        let mut pmu = lock(&cpu.pmu);
        let over = self.settle_into(n, &mut pmu);
        cpu.due.store(pmu.due(), Relaxed);
        over
    }

    fn settle_into(&self, n: usize, pmu: &mut Pmu) -> bool {
        let cpu = &self.cpus[n];
        let mut over = false;
        for user in [false, true] {
            let mode = usize::from(user);
            let instructions = cpu.instructions[mode].load(Relaxed);
            let cycles = instructions + cpu.stalls[mode].load(Relaxed);
            cpu.instructions[mode].store(0, Relaxed);
            cpu.stalls[mode].store(0, Relaxed);
            for (event, n) in [Event::Loads, Event::Stores]
                .into_iter()
                .zip(&cpu.touched[mode])
            {
                over |= pmu.count(event, user, n.load(Relaxed));
                n.store(0, Relaxed);
            }
            over |= pmu.count(Event::Instructions, user, instructions);
            over |= pmu.count(Event::Cycles, user, cycles);
        }
        over
    }

    /// What happened so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let all = |of: fn(&Cpu) -> &AtomicU64| self.cpus.iter().map(|c| of(c).load(Relaxed)).sum();
        let ids = self.caches.ids();
        Report {
            accesses: all(|c| &c.accesses),
            fetches: all(|c| &c.fetches),
            refused: self.refused.load(Relaxed),
            classes: self.caches.classes(),
            ids: (ids.into_iter())
                .map(|of| {
                    of.into_iter()
                        .enumerate()
                        .filter(|(_, t)| *t != Traffic::default())
                })
                .map(Iterator::collect)
                .collect(),
            banks: self.caches.banks(),
        }
    }
}

/// The class of service in an association.
fn class(association: u64) -> usize {
    (association >> 32) as usize
}

/// The monitoring id in an association.
fn id(association: u64) -> usize {
    (association & 0x3ff) as usize
}

#[cfg(test)]
mod tests;
