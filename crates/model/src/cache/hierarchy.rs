//! Several caches between cores and memory.
//!
//! Method:
//! - An access searches level by level. The line is filled into the levels nearer to the core than
//!   where it was found.
//! - A line that leaves one level goes to the next as that level's [`Inclusion`] says. A dirty line
//!   that leaves the last level is written to memory.
//! - An inclusive level remembers for each of its lines which cores have asked for it. The
//!   core-valid bits of Nehalem's last-level cache do the same: they are never cleared on a silent
//!   eviction. An evicted line is removed from those cores' caches, too.
//!
//! Deviations from hardware: there is no coherence. A line that one core writes and another reads
//! is right only in levels that both share. So give each core its own memory, or read-only memory
//! in common. Instruction fetches are not modelled.

use super::{Cache, Counts, Fill, Geometry, Place, Policy, Victim};
use crate::Invalid;

/// What a level holds with regard to the levels nearer to the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inclusion {
    /// Contains all their lines: a line that leaves here leaves there, too.
    Inclusive,
    /// Filled on the way in, but a line that leaves here may remain there.
    NonInclusive,
    /// Contains what they evicted: filled by evictions only, and a hit moves the line back.
    Exclusive,
}

/// One level of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The shape of each cache of this level.
    pub geometry: Geometry,
    /// Which line leaves a full set.
    pub policy: Policy,
    /// With regard to the levels nearer to the cores. It has no effect at the first level.
    pub inclusion: Inclusion,
    /// For each core, the cache of this level that it uses, numbered from 0 without gaps.
    pub cache_of: Vec<usize>,
}

/// One cache, and what its level knows of the lines in it.
#[derive(Clone, Debug)]
struct Node {
    cache: Cache,
    inclusion: Inclusion,
    /// Which cores asked for each line. Only for an inclusive level.
    askers: Option<Askers>,
}

/// By slot, the cores that asked for the line: a bit each, in as few bytes as that takes.
#[derive(Clone, Debug)]
struct Askers {
    bytes: Vec<u8>,
    width: usize,
}

impl Askers {
    fn new(slots: usize, cores: usize) -> Self {
        let width = cores.div_ceil(8);
        Self {
            bytes: vec![0; slots * width],
            width,
        }
    }

    #[inline]
    fn add(&mut self, slot: usize, core: usize) {
        self.bytes[slot * self.width + core / 8] |= 1 << (core % 8);
    }

    fn of(&self, slot: usize) -> u64 {
        let bytes = &self.bytes[slot * self.width..][..self.width];
        bytes
            .iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u64::from(byte))
    }

    /// Leaves only `core` at the slot. Returns the cores that were there.
    #[inline]
    fn replace(&mut self, slot: usize, core: usize) -> u64 {
        let before = self.of(slot);
        self.bytes[slot * self.width..][..self.width].fill(0);
        self.add(slot, core);
        before
    }
}

/// No processor has more levels.
const MOST_LEVELS: usize = 4;

/// Levels of caches, nearest to the cores first.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    /// All caches, level by level.
    nodes: Vec<Node>,
    /// By core: the index of its cache at each level.
    paths: Vec<[usize; MOST_LEVELS]>,
    levels: usize,
    /// Where each level's caches begin in `nodes`, and where the last level's end.
    begins: Vec<usize>,
    /// Whether some level is exclusive.
    exclusive: bool,
    writebacks: Vec<u64>,
}

impl Hierarchy {
    /// Empty caches for `requesters`, numbered from 0. Requesters own lines: groups, classes of
    /// service or cores.
    ///
    /// # Errors
    /// Names the level that is impossible.
    pub fn new(levels: &[Level], requesters: usize) -> Result<Self, Invalid> {
        let cores = levels.first().map_or(0, |level| level.cache_of.len());
        if !(1..=64).contains(&cores) {
            return Err(Invalid::new(
                "cache hierarchy",
                format!("{cores} cores at its first level: 1 to 64 are possible"),
            ));
        }
        if levels.len() > MOST_LEVELS {
            return Err(Invalid::new(
                "cache hierarchy",
                format!("{} levels: up to {MOST_LEVELS} are possible", levels.len()),
            ));
        }
        let line = levels[0].geometry.line;
        let (mut nodes, mut begins) = (Vec::new(), vec![0]);
        let mut paths = vec![[0; MOST_LEVELS]; cores];
        for (n, level) in (1..).zip(levels) {
            let wrong = |reason| Err(Invalid::new(format!("cache level {n}"), reason));
            if level.cache_of.len() != cores {
                return wrong(format!(
                    "tells the cache of {} cores, the first level of {cores}",
                    level.cache_of.len()
                ));
            }
            if level.geometry.line != line {
                return wrong(format!(
                    "lines of {} bytes, the first level has {line}: all must have the same",
                    level.geometry.line
                ));
            }
            let caches = level.cache_of.iter().max().map_or(0, |&last| last + 1);
            if let Some(unused) = (0..caches).find(|cache| !level.cache_of.contains(cache)) {
                return wrong(format!(
                    "no core uses cache {unused}: number the caches without gaps"
                ));
            }
            let cache = Cache::new(&level.geometry, level.policy, requesters)
                .map_err(|e| Invalid::new(format!("cache level {n}: {}", e.what), e.reason))?;
            let remembers = level.inclusion == Inclusion::Inclusive && n > 1;
            let node = Node {
                askers: remembers.then(|| Askers::new(cache.slots(), cores)),
                cache,
                inclusion: level.inclusion,
            };
            for (path, cache) in paths.iter_mut().zip(&level.cache_of) {
                path[n - 1] = nodes.len() + cache;
            }
            nodes.extend(vec![node; caches]);
            begins.push(nodes.len());
        }
        Ok(Self {
            exclusive: levels.iter().any(|l| l.inclusion == Inclusion::Exclusive),
            levels: levels.len(),
            nodes,
            paths,
            begins,
            writebacks: Vec::with_capacity(4 * levels.len()),
        })
    }

    /// One access of `core` on behalf of `requester`. Returns the level that had the line, from 0.
    /// The number of levels means memory, from which the line has to be read.
    /// [`Hierarchy::writebacks`] has what the access pushed out to memory, until the next access.
    #[inline]
    pub fn access(&mut self, core: usize, requester: u8, address: u64, write: bool) -> usize {
        self.writebacks.clear();
        let cache = &mut self.nodes[self.paths[core][0]].cache;
        let place = cache.place_of(address);
        if cache.lookup_at(place, write, requester).is_some() {
            return 0;
        }
        self.look_beyond((0, place), core, requester, address, write)
    }

    /// Fetches a line ahead of its use into the levels from `nearest` on. Else it is like
    /// [`Hierarchy::access`]. A line that is already there is unchanged.
    pub fn prefetch(&mut self, nearest: usize, core: usize, requester: u8, address: u64) -> usize {
        self.writebacks.clear();
        let path = self.paths[core];
        let there = |&node: &usize| self.nodes[node].cache.slot_of(address).is_some();
        if let Some(level) = path[..=nearest].iter().position(there) {
            return level;
        }
        let place = self.nodes[path[nearest]].cache.place_of(address);
        self.look_beyond((nearest, place), core, requester, address, false)
    }

    /// An access that missed in the levels up to `nearest`, into which it is filled at `place`.
    fn look_beyond(
        &mut self,
        (nearest, place): (usize, Place),
        core: usize,
        requester: u8,
        address: u64,
        write: bool,
    ) -> usize {
        let path = self.paths[core];
        let mut places = [place; MOST_LEVELS];
        let mut found = self.levels;
        let mut dirty = write;
        for n in nearest + 1..self.levels.min(MOST_LEVELS) {
            let node = &mut self.nodes[path[n]];
            places[n] = node.cache.place_of(address);
            let Some(slot) = node.cache.lookup_at(places[n], false, requester) else {
                continue;
            };
            match node.inclusion {
                // A locked line remains in its level.
                Inclusion::Exclusive if node.cache.is_locked(address) => {}
                Inclusion::Exclusive => {
                    dirty |= node.cache.remove(address).is_some_and(|line| line.dirty);
                }
                Inclusion::Inclusive | Inclusion::NonInclusive => {
                    if let Some(askers) = &mut node.askers {
                        askers.add(slot, core);
                    }
                }
            }
            found = n;
            break;
        }
        for n in (nearest..found.min(MOST_LEVELS)).rev() {
            let node = &mut self.nodes[path[n]];
            if n > nearest && node.inclusion == Inclusion::Exclusive {
                continue;
            }
            let dirty_here = dirty && n == nearest;
            match node.cache.fill_at(places[n], dirty_here, requester) {
                Fill::Done { slot, victim } => {
                    let askers = node.askers.as_mut();
                    let others = askers.map_or(0, |askers| askers.replace(slot, core));
                    // Mostly it leaves no trace.
                    if let Some(victim) = victim
                        && (victim.dirty || others != 0 || self.exclusive)
                    {
                        self.leave(n, core, victim, others);
                    }
                }
                Fill::Bypassed => {
                    // What an inclusive level cannot hold, no nearer level may hold: the access
                    // bypasses all of them.
                    if n == nearest || node.inclusion == Inclusion::Inclusive {
                        if dirty {
                            let line = Victim {
                                address,
                                dirty,
                                owner: requester,
                            };
                            self.leave(n, core, line, 0);
                        }
                        break;
                    }
                }
            }
        }
        found
    }

    /// `victim` left level `n` below `core`. `askers` are the cores from which an inclusive level
    /// must remove it, too.
    fn leave(&mut self, mut n: usize, core: usize, mut victim: Victim, mut askers: u64) {
        loop {
            while askers != 0 {
                let asker = askers.trailing_zeros() as usize;
                askers &= askers - 1;
                for &node in &self.paths[asker][..n] {
                    let copy = self.nodes[node].cache.remove(victim.address);
                    victim.dirty |= copy.is_some_and(|copy| copy.dirty);
                }
            }
            n += 1;
            if n == self.levels {
                if victim.dirty {
                    self.writebacks.push(victim.address);
                }
                return;
            }
            let node = &mut self.nodes[self.paths[core][n]];
            if !victim.dirty && node.inclusion != Inclusion::Exclusive {
                return;
            }
            if node.cache.slot_of(victim.address).is_some() {
                if victim.dirty {
                    node.cache.mark_dirty(victim.address);
                }
                return;
            }
            match node.cache.fill(victim.address, victim.dirty, victim.owner) {
                Fill::Done { slot, victim: next } => {
                    if let Some(of) = &mut node.askers {
                        askers = of.replace(slot, core);
                    }
                    let Some(next) = next else { return };
                    victim = next;
                }
                Fill::Bypassed => {}
            }
        }
    }

    /// Removes the line of `address` from all caches that `core` sees, locked or not. Returns
    /// whether any had it modified. It is for flushes and stores past the caches. Caches that only
    /// other cores see are not affected: programs have memory of their own.
    pub fn flush(&mut self, core: usize, address: u64) -> bool {
        self.writebacks.clear();
        let own = self.paths[core][..self.levels].iter();
        own.fold(false, |dirty, &node| {
            let line = self.nodes[node].cache.remove(address);
            dirty | line.is_some_and(|line| line.dirty)
        })
    }

    /// Marks the line of `address` as clean in all caches that `core` sees, as it is written back.
    /// Returns whether any had it modified.
    pub fn write_back(&mut self, core: usize, address: u64) -> bool {
        self.writebacks.clear();
        let own = self.paths[core][..self.levels].iter();
        own.fold(false, |dirty, &node| {
            dirty | self.nodes[node].cache.clean(address)
        })
    }

    /// What the last access pushed out to memory: addresses of lines, at most one per level.
    #[must_use]
    pub fn writebacks(&self) -> &[u64] {
        &self.writebacks
    }

    /// How many levels there are.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels
    }

    /// The cache of `core` at `level`.
    #[must_use]
    pub fn cache(&self, level: usize, core: usize) -> &Cache {
        &self.nodes[self.paths[core][..self.levels][level]].cache
    }

    /// The same, mutable, to set masks. To lock lines use [`Hierarchy::lock`].
    pub fn cache_mut(&mut self, level: usize, core: usize) -> &mut Cache {
        &mut self.nodes[self.paths[core][..self.levels][level]].cache
    }

    /// Locks a line into `ways` of `core`'s cache at `level` ([`Cache::lock`]). The line that
    /// leaves for it does so as usual ([`Hierarchy::writebacks`]).
    ///
    /// # Errors
    /// Where all of `ways` in its set are locked already.
    pub fn lock(
        &mut self,
        level: usize,
        core: usize,
        address: u64,
        ways: u64,
        requester: u8,
    ) -> Result<(), Invalid> {
        self.writebacks.clear();
        let node = &mut self.nodes[self.paths[core][..self.levels][level]];
        let before = node.cache.slot_of(address);
        let victim = node.cache.lock(address, ways, requester)?;
        let mut others = 0;
        if let Some((slot, askers)) = node.cache.slot_of(address).zip(node.askers.as_mut()) {
            let own = before.map_or(0, |slot| askers.of(slot));
            others = askers.replace(slot, core);
            (0..64)
                .filter(|core| own >> core & 1 == 1)
                .for_each(|core| askers.add(slot, core));
        }
        if let Some(victim) = victim {
            self.leave(level, core, victim, others);
        }
        Ok(())
    }

    /// The counts of `requester` at `level`, for all caches of the level together.
    #[must_use]
    pub fn counts(&self, level: usize, requester: u8) -> Counts {
        self.nodes[self.begins[level]..self.begins[level + 1]]
            .iter()
            .fold(Counts::default(), |sum, node| {
                let c = node.cache.counts(requester);
                Counts {
                    hits: sum.hits + c.hits,
                    misses: sum.misses + c.misses,
                    fills: sum.fills + c.fills,
                    bypasses: sum.bypasses + c.bypasses,
                    evictions: sum.evictions + c.evictions,
                    writebacks: sum.writebacks + c.writebacks,
                    lines: sum.lines + c.lines,
                }
            })
    }
}
