//! Several caches between cores and memory.
//!
//! Method: an access looks its line up level by level. Where it is found, or from memory, it is filled into the levels
//! nearer to the core; who leaves one level goes to the next as that one's kind of [`Inclusion`] says; what leaves the last
//! level dirty is written to memory. An inclusive level remembers for each of its lines which cores have asked for
//! it (as the core-valid bits of Nehalem's last-level cache do: they are never cleared on a silent eviction) and takes an
//! evicted line from those cores' caches, too.
//!
//! Deviations from hardware: no coherence. A line written by one core and read by another is right only in levels that
//! both share, so give the cores memory of their own or read-only memory in common. Instruction fetches are not modelled.

use super::{Cache, Counts, Fill, Geometry, Policy, Victim};
use crate::Invalid;

/// What a level holds with regard to the levels nearer to the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inclusion {
    /// Everything that they hold: what leaves here leaves there, too.
    Inclusive,
    /// Filled on the way in, but what leaves here may stay there.
    NonInclusive,
    /// What they evicted: filled by evictions only, a hit moves the line back.
    Exclusive,
}

/// One level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The shape of each cache of this level.
    pub geometry: Geometry,
    /// Who leaves a full set.
    pub policy: Policy,
    /// With regard to the levels nearer to the cores; without effect at the first.
    pub inclusion: Inclusion,
    /// For each core, which cache of this level it uses, numbered from 0 without gaps.
    pub cache_of: Vec<usize>,
}

#[derive(Clone, Debug)]
struct State {
    caches: Vec<Cache>,
    inclusion: Inclusion,
    cache_of: Vec<usize>,
    /// Of inclusive levels, by cache and slot: the cores that asked for the line.
    askers: Vec<Vec<u64>>,
}

/// Levels of caches, nearest to the cores first.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    levels: Vec<State>,
    writebacks: Vec<u64>,
}

impl Hierarchy {
    /// Empty caches for `requesters` (the owners of lines: groups, classes of service or cores), numbered from 0.
    ///
    /// # Errors
    /// Names the level that cannot be.
    pub fn new(levels: &[Level], requesters: usize) -> Result<Self, Invalid> {
        let cores = levels.first().map_or(0, |level| level.cache_of.len());
        if !(1..=64).contains(&cores) {
            return Err(Invalid::new(
                "cache hierarchy",
                format!("{cores} cores at its first level: 1 to 64 are possible"),
            ));
        }
        let line = levels[0].geometry.line;
        let mut states = Vec::with_capacity(levels.len());
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
            let slots = if level.inclusion == Inclusion::Inclusive && n > 1 {
                cache.slots()
            } else {
                0
            };
            states.push(State {
                caches: vec![cache; caches],
                inclusion: level.inclusion,
                cache_of: level.cache_of.clone(),
                askers: vec![vec![0; slots]; caches],
            });
        }
        Ok(Self {
            levels: states,
            writebacks: Vec::with_capacity(4 * levels.len()),
        })
    }

    /// One access of `core` on behalf of `requester`. Returns the level that had the line, from 0; the number of levels
    /// means memory, from which the line has to be read. What the access pushed out to memory is in
    /// [`Hierarchy::writebacks`] until the next one.
    #[inline]
    pub fn access(&mut self, core: usize, requester: u8, address: u64, write: bool) -> usize {
        self.writebacks.clear();
        let first = &mut self.levels[0];
        if first.caches[first.cache_of[core]]
            .lookup(address, write, requester)
            .is_some()
        {
            return 0;
        }
        self.look_beyond(0, core, requester, address, write)
    }

    /// Fetches a line ahead of its use into the levels from `nearest` on; else as [`Hierarchy::access`]. A line that is there is left as it is.
    pub fn prefetch(&mut self, nearest: usize, core: usize, requester: u8, address: u64) -> usize {
        self.writebacks.clear();
        let there = |level: &State| {
            level.caches[level.cache_of[core]]
                .slot_of(address)
                .is_some()
        };
        if let Some(level) = self.levels[..=nearest].iter().position(there) {
            return level;
        }
        self.look_beyond(nearest, core, requester, address, false)
    }

    /// An access that missed in the levels up to `nearest`, into which it is filled.
    fn look_beyond(
        &mut self,
        nearest: usize,
        core: usize,
        requester: u8,
        address: u64,
        write: bool,
    ) -> usize {
        let memory = self.levels.len();
        let mut found = memory;
        let mut dirty = write;
        for (n, level) in self.levels.iter_mut().enumerate().skip(nearest + 1) {
            let which = level.cache_of[core];
            let Some(slot) = level.caches[which].lookup(address, false, requester) else {
                continue;
            };
            match level.inclusion {
                // A locked line stays where it is locked.
                Inclusion::Exclusive if level.caches[which].is_locked(address) => {}
                Inclusion::Exclusive => {
                    dirty |= level.caches[which]
                        .remove(address)
                        .is_some_and(|line| line.dirty)
                }
                Inclusion::Inclusive => level.askers[which][slot] |= 1 << core,
                Inclusion::NonInclusive => {}
            }
            found = n;
            break;
        }
        for n in (nearest..found).rev() {
            if n > nearest && self.levels[n].inclusion == Inclusion::Exclusive {
                continue;
            }
            let level = &mut self.levels[n];
            let which = level.cache_of[core];
            match level.caches[which].fill(address, dirty && n == nearest, requester) {
                Fill::Done { slot, victim } => {
                    let others = if level.askers[which].is_empty() {
                        0
                    } else {
                        std::mem::replace(&mut level.askers[which][slot], 1 << core)
                    };
                    if let Some(victim) = victim {
                        self.leave(n, core, victim, others);
                    }
                }
                Fill::Bypassed => {
                    // What an inclusive level cannot hold nobody nearer may hold: the access goes past all of them.
                    if n == nearest || level.inclusion == Inclusion::Inclusive {
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

    /// `victim` left level `n` below `core`; `askers` are the cores from which an inclusive level must take it, too.
    fn leave(&mut self, mut n: usize, core: usize, mut victim: Victim, mut askers: u64) {
        loop {
            while askers != 0 {
                let asker = askers.trailing_zeros() as usize;
                askers &= askers - 1;
                for level in &mut self.levels[..n] {
                    let copy = level.caches[level.cache_of[asker]].remove(victim.address);
                    victim.dirty |= copy.is_some_and(|copy| copy.dirty);
                }
            }
            n += 1;
            let Some(level) = self.levels.get_mut(n) else {
                if victim.dirty {
                    self.writebacks.push(victim.address);
                }
                return;
            };
            let exclusive = level.inclusion == Inclusion::Exclusive;
            if !victim.dirty && !exclusive {
                return;
            }
            let which = level.cache_of[core];
            let cache = &mut level.caches[which];
            if cache.slot_of(victim.address).is_some() {
                if victim.dirty {
                    cache.mark_dirty(victim.address);
                }
                return;
            }
            match cache.fill(victim.address, victim.dirty, victim.owner) {
                Fill::Done { slot, victim: next } => {
                    if !level.askers[which].is_empty() {
                        askers = std::mem::replace(&mut level.askers[which][slot], 1 << core);
                    }
                    let Some(next) = next else { return };
                    victim = next;
                }
                Fill::Bypassed => {}
            }
        }
    }

    /// Takes the line of `address` out of all caches that `core` sees, locked or not; whether any had it changed. For flushes and
    /// stores past the caches. (What other cores alone see they do not share with it: programs have memory of their own.)
    pub fn flush(&mut self, core: usize, address: u64) -> bool {
        self.writebacks.clear();
        let own = self.levels.iter_mut();
        let lines = own.filter_map(|level| level.caches[level.cache_of[core]].remove(address));
        lines.fold(false, |dirty, line| dirty | line.dirty)
    }

    /// Has the line of `address` unchanged from now on in all caches that `core` sees, as it is written back; whether any had it
    /// changed.
    pub fn write_back(&mut self, core: usize, address: u64) -> bool {
        self.writebacks.clear();
        let own = self.levels.iter_mut();
        let were = own.map(|level| level.caches[level.cache_of[core]].clean(address));
        were.fold(false, |dirty, was| dirty | was)
    }

    /// What the last access pushed out to memory: addresses of lines, at most one per level.
    #[must_use]
    pub fn writebacks(&self) -> &[u64] {
        &self.writebacks
    }

    /// Number of levels.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The cache of `core` at `level`.
    #[must_use]
    pub fn cache(&self, level: usize, core: usize) -> &Cache {
        let level = &self.levels[level];
        &level.caches[level.cache_of[core]]
    }

    /// The same, to set masks. (To lock lines use [`Hierarchy::lock`].)
    pub fn cache_mut(&mut self, level: usize, core: usize) -> &mut Cache {
        let level = &mut self.levels[level];
        &mut level.caches[level.cache_of[core]]
    }

    /// Locks a line into `ways` of `core`'s cache at `level` ([`Cache::lock`]); what leaves for it leaves as ever
    /// ([`Hierarchy::writebacks`]).
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
        let state = &mut self.levels[level];
        let which = state.cache_of[core];
        let before = state.caches[which].slot_of(address).map_or(0, |slot| {
            state.askers[which].get(slot).copied().unwrap_or(0)
        });
        let victim = state.caches[which].lock(address, ways, requester)?;
        let slot = state.caches[which].slot_of(address);
        let askers = match slot.and_then(|slot| state.askers[which].get_mut(slot)) {
            Some(askers) => std::mem::replace(askers, before | 1 << core),
            None => 0,
        };
        if let Some(victim) = victim {
            self.leave(level, core, victim, askers);
        }
        Ok(())
    }

    /// The counts of `requester` at `level`, all caches of the level together.
    #[must_use]
    pub fn counts(&self, level: usize, requester: u8) -> Counts {
        self.levels[level]
            .caches
            .iter()
            .fold(Counts::default(), |sum, cache| {
                let c = cache.counts(requester);
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
