//! The caches: first levels per core, second levels per core or per few cores, third levels per
//! socket. Each has its own lock, which is held only for one lookup.
//!
//! A miss fills all levels on the way in. A modified line that leaves one level is written to the
//! next. Fills into the second and the third level obey the mask of the running class. A line of
//! the third level belongs to the monitoring id that ran when it was filled.
//!
//! Lines from memory and lines written back count as bandwidth. A line that comes in counts for the
//! monitoring id that asked, one that goes out for the id it belonged to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quell_model::cache::{Cache, Fill, Victim};
use quell_model::dram::{OpenRows, Row, RowCounts};
use serde::{Deserialize, Serialize};

use super::{Kind, Topology, lock};
use crate::Error;
use crate::profile::{LINE, Profile, Shape};

/// Lines that were asked of a last level, and that went on to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Traffic {
    /// Lines that were asked for.
    pub references: u64,
    /// Lines that were not there and came from memory.
    pub misses: u64,
    /// Lines that were written back to memory.
    pub writebacks: u64,
}

/// Lines that were read from or written back to a bank of memory, by what they found there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Bank {
    /// Lines with their row open.
    pub hits: u64,
    /// Lines with no row open.
    pub misses: u64,
    /// Lines with another row open.
    pub conflicts: u64,
}

/// Where a line was found after the first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// In the second level.
    Second,
    /// In the third level.
    Third,
    /// In memory, with the state of its bank. `None`: the profile has no banks.
    Memory(Option<Row>),
}

/// The fill masks of a cache, by class.
#[derive(Clone, Debug)]
pub struct Masks {
    /// As the registers hold them. With separate masks a class has its data mask at twice its
    /// number, and its code mask next to it. Else its one mask is at its number.
    pub registers: Vec<u64>,
    /// Whether code and data have separate masks.
    pub code_data: bool,
}

impl Masks {
    fn new(shape: &Shape) -> Self {
        let classes = shape.allocation.as_ref().map_or(1, |a| a.classes as usize);
        Self {
            registers: vec![shape.full(); classes],
            code_data: false,
        }
    }

    /// The ways that a class may fill. A class without a register uses that of the last class.
    #[inline]
    fn of(&self, class: usize, fetch: bool) -> u64 {
        let at = if self.code_data {
            2 * class + usize::from(fetch)
        } else {
            class
        };
        let last = self.registers.len() - 1;
        self.registers[at.min(last)]
    }
}

/// No line: a line's number is shorter than an address.
const NONE: u64 = u64::MAX;

/// A first-level cache.
#[derive(Debug)]
struct First {
    cache: Mutex<Cache>,
    /// Of the lines that share a set: the one that was used last, shifted left, its lowest bit set
    /// where it is known to be modified. Using it again changes nothing, so that most accesses end
    /// here.
    recent: Vec<AtomicU64>,
}

impl First {
    fn new(shape: &Shape) -> Result<Self, Error> {
        let cache = shape.cache(1)?;
        let sets = shape.size.0 / (u64::from(shape.ways) * LINE);
        // Lines that share a set then share an entry, whatever the number of sets is.
        let entries = 1u64 << sets.trailing_zeros();
        Ok(Self {
            cache: Mutex::new(cache),
            recent: (0..entries).map(|_| AtomicU64::new(NONE)).collect(),
        })
    }

    #[inline]
    fn recent(&self, line: u64) -> &AtomicU64 {
        // A power of two, and smaller than the address space.
        &self.recent[line as usize & (self.recent.len() - 1)]
    }

    /// Whether the line is there. If so, it is used.
    #[inline]
    fn lookup(&self, address: u64, write: bool) -> bool {
        let line = address / LINE;
        let recent = self.recent(line);
        let last = recent.load(Relaxed);
        if last == line << 1 | 1 || (last == line << 1 && !write) {
            return true;
        }
        self.search(address, write)
    }

    #[inline(never)]
    fn search(&self, address: u64, write: bool) -> bool {
        let mut cache = lock(&self.cache);
        let found = cache.lookup(address, write, 0).is_some();
        if found {
            let line = address / LINE;
            (self.recent(line)).store(line << 1 | u64::from(write), Relaxed);
        }
        found
    }

    /// Fills in a line that is not there. Returns the modified line that left.
    fn fill(&self, address: u64, write: bool) -> Option<Victim> {
        let mut cache = lock(&self.cache);
        let filled = cache.fill(address, write, 0);
        let line = address / LINE;
        (self.recent(line)).store(line << 1 | u64::from(write), Relaxed);
        match filled {
            Fill::Done { victim, .. } => victim.filter(|v| v.dirty),
            Fill::Bypassed => None,
        }
    }

    fn remove(&self, address: u64) -> Option<Victim> {
        let mut cache = lock(&self.cache);
        self.recent(address / LINE).store(NONE, Relaxed);
        cache.remove(address)
    }

    fn flush(&self) {
        let mut cache = lock(&self.cache);
        for entry in &self.recent {
            entry.store(NONE, Relaxed);
        }
        empty(&mut cache);
    }
}

/// Removes all lines, and returns them.
fn empty(cache: &mut Cache) -> Vec<Victim> {
    let lines: Vec<u64> = cache.lines().map(|(_, line)| line.address).collect();
    lines.into_iter().filter_map(|a| cache.remove(a)).collect()
}

/// The first level of a core.
#[derive(Debug)]
struct Firsts {
    data: First,
    code: First,
}

impl Firsts {
    #[inline]
    fn of(&self, kind: Kind) -> &First {
        match kind {
            Kind::Fetch => &self.code,
            Kind::Read | Kind::Write => &self.data,
        }
    }
}

/// A cache with ways that can be allocated.
#[derive(Debug)]
pub struct Shared {
    cache: Cache,
    pub masks: Masks,
    /// Percent of delay by class. Used in the third level only.
    pub delays: Vec<u64>,
    /// Traffic by monitoring id.
    pub ids: Vec<Traffic>,
    by_class: Vec<Traffic>,
}

impl Shared {
    fn new(shape: &Shape, ids: usize, classes: usize) -> Result<Self, Error> {
        Ok(Self {
            cache: shape.cache(ids)?,
            masks: Masks::new(shape),
            delays: vec![0; classes],
            ids: vec![Traffic::default(); ids],
            by_class: vec![Traffic::default(); classes],
        })
    }

    /// Bytes that belong to a monitoring id.
    pub fn occupancy(&self, id: usize) -> u64 {
        u8::try_from(id).map_or(0, |id| self.cache.counts(id).lines * LINE)
    }

    /// Takes a modified line from the level before. Returns the modified line that had to leave for
    /// it.
    fn take(&mut self, line: Victim, owner: u8) -> Option<Victim> {
        if self.cache.mark_dirty(line.address) {
            return None;
        }
        match self.cache.fill(line.address, true, owner) {
            Fill::Done { victim, .. } => victim.filter(|v| v.dirty),
            Fill::Bypassed => Some(Victim { owner, ..line }),
        }
    }

    /// Looks a line up, and fills it in if it is not there. Returns whether it was there, and the
    /// modified line that left.
    fn lookup(
        &mut self,
        address: u64,
        class: usize,
        kind: Kind,
        owner: u8,
    ) -> (bool, Option<Victim>) {
        if self.cache.lookup(address, false, owner).is_some() {
            return (true, None);
        }
        let mask = self.masks.of(class, kind == Kind::Fetch);
        // Registers hold only masks that were checked.
        let set = self.cache.set_fill_mask(owner, mask);
        debug_assert!(set.is_ok());
        match self.cache.fill(address, false, owner) {
            Fill::Done { victim, .. } => (false, victim.filter(|v| v.dirty)),
            Fill::Bypassed => (false, None),
        }
    }

    /// Counts an access and the lines it wrote back.
    fn account(&mut self, class: usize, id: u8, missed: bool, out: [Option<Victim>; 2]) {
        let last = self.by_class.len() - 1;
        for to in [
            &mut self.by_class[class.min(last)],
            &mut self.ids[usize::from(id)],
        ] {
            to.references += 1;
            to.misses += u64::from(missed);
        }
        for line in out.into_iter().flatten() {
            self.ids[usize::from(line.owner)].writebacks += 1;
            self.by_class[class.min(last)].writebacks += 1;
        }
    }
}

/// So many requests of a CPU beyond its core's caches are timed together.
const BATCH: u32 = 4096;

/// The requests of a CPU since a batch began, for delays. It is per CPU, because the threads of a
/// core may be in different classes.
#[derive(Debug)]
struct Pace {
    began: Instant,
    requests: u32,
}

/// All caches of the machine.
#[derive(Debug)]
pub struct Caches {
    first: Vec<Firsts>,
    second: Vec<Mutex<Shared>>,
    third: Vec<Mutex<Shared>>,
    /// How many cores share a second level, and how many a socket has.
    cores: [usize; 2],
    /// The banks of memory behind the last level. `None`: the profile has none.
    rows: Option<Mutex<OpenRows>>,
    paces: Vec<Mutex<Pace>>,
    /// The shortest time that a batch of any CPU ever took, in ns: that of a CPU without delay.
    fastest: AtomicU64,
    delayed: bool,
}

impl Caches {
    pub fn new(profile: &Profile, topology: Topology) -> Result<Self, Error> {
        let cores = (topology.sockets * topology.cores) as usize;
        let classes = profile.classes() as usize;
        let ids = profile.monitoring.as_ref().map_or(1, |m| m.rmids as usize);
        let shared = profile.l2.cores as usize;
        let second = topology.sockets as usize * (topology.cores as usize).div_ceil(shared);
        let first = || -> Result<_, Error> {
            Ok(Firsts {
                data: First::new(&profile.l1d)?,
                code: First::new(&profile.l1i)?,
            })
        };
        let pace = || Pace {
            began: Instant::now(),
            requests: 0,
        };
        let third = profile.l3.iter().cycle();
        let third = third.take(if profile.l3.is_some() {
            topology.sockets as usize
        } else {
            0
        });
        Ok(Self {
            first: (0..cores).map(|_| first()).collect::<Result<_, _>>()?,
            second: (0..second)
                .map(|_| Shared::new(&profile.l2, 1, classes).map(Mutex::new))
                .collect::<Result<_, _>>()?,
            third: third
                .map(|shape| Shared::new(shape, ids, classes).map(Mutex::new))
                .collect::<Result<_, _>>()?,
            cores: [shared, topology.cores as usize],
            rows: (profile.dram.as_ref())
                .map(|dram| dram.rows().map(Mutex::new))
                .transpose()?,
            paces: (0..topology.cpus()).map(|_| Mutex::new(pace())).collect(),
            fastest: AtomicU64::new(u64::MAX),
            delayed: profile.mba.is_some(),
        })
    }

    /// The second level of a core.
    pub fn second(&self, core: usize) -> &Mutex<Shared> {
        let [shared, socket] = self.cores;
        let of_socket = (core % socket) / shared;
        &self.second[core / socket * socket.div_ceil(shared) + of_socket]
    }

    /// The third level of a core. `None` where there is none.
    pub fn third(&self, core: usize) -> Option<&Mutex<Shared>> {
        self.third.get(core / self.cores[1])
    }

    /// Whether the core's own first level has the line.
    #[inline]
    pub fn nearest(&self, core: usize, address: u64, kind: Kind) -> bool {
        self.first[core]
            .of(kind)
            .lookup(address, kind == Kind::Write)
    }

    /// Searches the further levels for a line that the first level did not have, and fills it in.
    /// Returns where it was, and how long to delay the core.
    pub fn beyond(
        &self,
        cpu: usize,
        core: usize,
        address: u64,
        kind: Kind,
        class: usize,
        id: usize,
    ) -> (Served, Duration) {
        let first = self.first[core].of(kind);
        let left = first.fill(address, kind == Kind::Write);
        let (found, out) = {
            let mut second = lock(self.second(core));
            let pushed = left.and_then(|line| second.take(line, 0));
            let (found, victim) = second.lookup(address, class, kind, 0);
            let out = [pushed, victim];
            if self.third.is_empty() {
                second.account(class, 0, !found, out);
            }
            (found, out)
        };
        let Some(third) = self.third(core) else {
            let row = self.memory((!found).then_some(address), out);
            let served = if found {
                Served::Second
            } else {
                Served::Memory(row)
            };
            return (served, Duration::ZERO);
        };
        if found && out == [None; 2] {
            return (Served::Second, Duration::ZERO);
        }
        let mut third = lock(third);
        let last = third.ids.len() - 1;
        let id = u8::try_from(id.min(last)).unwrap_or(u8::MAX);
        let out = out.map(|line| line.and_then(|line| third.take(line, id)));
        for line in out.into_iter().flatten() {
            third.ids[usize::from(line.owner)].writebacks += 1;
        }
        if found {
            drop(third);
            self.memory(None, out);
            return (Served::Second, Duration::ZERO);
        }
        let (there, victim) = third.lookup(address, class, kind, id);
        third.account(class, id, !there, [victim, None]);
        let percent = third.delays.get(class).copied().unwrap_or(0);
        drop(third);
        let [first, second] = out;
        let row = self.memory((!there).then_some(address), [victim, first, second]);
        let delay = if self.delayed {
            self.pace(cpu, percent)
        } else {
            Duration::ZERO
        };
        let served = if there {
            Served::Third
        } else {
            Served::Memory(row)
        };
        (served, delay)
    }

    /// Accesses memory for a line that is read, and then for those that are written back. Returns
    /// what the first one found in its bank.
    fn memory<const N: usize>(&self, asked: Option<u64>, out: [Option<Victim>; N]) -> Option<Row> {
        let rows = self.rows.as_ref()?;
        if asked.is_none() && out.iter().all(Option::is_none) {
            return None;
        }
        let mut rows = lock(rows);
        let found = asked.map(|address| rows.access(address));
        for line in out.into_iter().flatten() {
            rows.access(line.address);
        }
        found
    }

    /// Counts a request. At the end of a batch, returns how much sooner it ended than a CPU delayed
    /// by `percent` would have. So a CPU that asks as fast as any ever did is slowed to the rate
    /// that `percent` leaves.
    fn pace(&self, cpu: usize, percent: u64) -> Duration {
        let mut pace = lock(&self.paces[cpu]);
        pace.requests += 1;
        if pace.requests < BATCH {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let took = nanos(now - pace.began);
        let fastest = self.fastest.fetch_min(took.max(1), Relaxed).min(took);
        let due = fastest * 100 / (100 - percent.min(99));
        let delay = Duration::from_nanos(due.saturating_sub(took));
        // The sleep does not count for the next batch.
        *pace = Pace {
            began: now + delay,
            requests: 0,
        };
        if percent == 0 { Duration::ZERO } else { delay }
    }

    /// Empties all caches that a core sees (`WBINVD`).
    pub fn flush(&self, core: usize) {
        let Firsts { data, code } = &self.first[core];
        data.flush();
        code.flush();
        empty(&mut lock(self.second(core)).cache);
        if let Some(third) = self.third(core) {
            let mut third = lock(third);
            let lines = empty(&mut third.cache);
            for line in lines.into_iter().filter(|line| line.dirty) {
                third.ids[usize::from(line.owner)].writebacks += 1;
                self.memory(None, [Some(line)]);
            }
        }
    }

    /// Removes a line from all caches. If any had it modified, it goes back to memory.
    pub fn remove(&self, address: u64) {
        let mut modified = false;
        for Firsts { data, code } in &self.first {
            for cache in [data, code] {
                modified |= cache.remove(address).is_some_and(|line| line.dirty);
            }
        }
        // Whose it was, and in which of the last caches.
        let mut of = (0, 0);
        for level in [&self.second, &self.third] {
            let is_last = level.as_ptr() == self.last().as_ptr();
            for (n, cache) in level.iter().enumerate() {
                if let Some(line) = lock(cache).cache.remove(address) {
                    modified |= line.dirty;
                    of = if is_last { (n, line.owner) } else { of };
                }
            }
        }
        if modified {
            let (at, owner) = of;
            lock(&self.last()[at]).ids[usize::from(owner)].writebacks += 1;
            let line = Victim {
                address,
                dirty: true,
                owner,
            };
            self.memory(None, [Some(line)]);
        }
    }

    fn last(&self) -> &[Mutex<Shared>] {
        if self.third.is_empty() {
            &self.second
        } else {
            &self.third
        }
    }

    /// The traffic by last-level cache, then by class.
    pub fn classes(&self) -> Vec<Vec<Traffic>> {
        let last = self.last().iter();
        last.map(|cache| lock(cache).by_class.clone()).collect()
    }

    /// What accesses found, by bank.
    pub fn banks(&self) -> Vec<Bank> {
        let bank = |of: &RowCounts| Bank {
            hits: of.hits,
            misses: of.misses,
            conflicts: of.conflicts,
        };
        let rows = self.rows.as_ref().map(|rows| lock(rows));
        rows.map_or(Vec::new(), |rows| rows.counts().iter().map(bank).collect())
    }

    /// The traffic by last-level cache, then by monitoring id.
    pub fn ids(&self) -> Vec<Vec<Traffic>> {
        let last = self.last().iter();
        last.map(|cache| lock(cache).ids.clone()).collect()
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
