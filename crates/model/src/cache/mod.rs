//! Set-associative caches with fill masks, locked lines and write-back. [`Hierarchy`] combines
//! them.
//!
//! Method:
//! - There is one tag per line. A set has one word each for valid, dirty and locked ways, and one
//!   for the policy.
//! - A line is searched in *all* ways of its set. A requester's fill mask restricts only which ways
//!   a miss may *fill*, as Intel's manual describes cache allocation (SDM volume 3, "Cache
//!   Allocation Technology": a mask limits allocation, hits occur anywhere).
//! - A locked line is hit like any other and never evicted. This is the effect of pseudo-locking,
//!   and of line locking on processors that have it.
//! - If mask and locks leave no way, the access bypasses the cache.
//!
//! Deviations from hardware:
//! - There is no timing and there are no miss registers. Both belong to the code that drives the
//!   cache.
//! - There is no coherence traffic.
//! - A line belongs to the requester that filled it until it is evicted, whichever requester hits
//!   it. AMD and Intel document occupancy monitoring that way, but some models retag on hits.
//! - Replacement policies of real last-level caches are undisclosed, see [`Policy`].

mod hierarchy;
mod policy;
mod stack;
mod tags;

pub use hierarchy::{Hierarchy, Inclusion, Level};
pub use policy::Policy;
pub use stack::{Stack, Traffic};

use quell_types::address::Functions;

use crate::Invalid;
use policy::Replacement;
use tags::Tags;

/// Which set a line belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Index {
    /// The line number modulo so many sets. For a power of two these are plain address bits.
    Sets(u64),
    /// Set and slice by XOR functions of the physical address (masks, least significant bit first;
    /// see [`quell_types::address`]). Without slices `slice` is empty.
    Functions {
        /// Masks of the set index within the slice.
        set: Vec<u64>,
        /// Masks of the slice.
        slice: Vec<u64>,
    },
}

/// The shape of one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Line size in bytes, a power of two from 8 to 4096.
    pub line: u64,
    /// Ways per set, 1 to 64.
    pub ways: u32,
    /// Which set a line belongs to.
    pub index: Index,
}

impl Geometry {
    /// A cache of `size` bytes with a plain set index.
    ///
    /// # Errors
    /// Where the size is no whole number of sets.
    pub fn plain(size: u64, ways: u32, line: u64) -> Result<Self, Invalid> {
        let set = line.checked_mul(u64::from(ways)).unwrap_or(0);
        if set == 0 || size == 0 || !size.is_multiple_of(set) {
            let reason = format!(
                "{size} bytes are not a whole number of sets of {ways} ways of {line} bytes"
            );
            return Err(Invalid::new("cache geometry", reason));
        }
        Ok(Self {
            line,
            ways,
            index: Index::Sets(size / set),
        })
    }

    /// How many sets there are in all slices together.
    #[must_use]
    pub fn sets(&self) -> u64 {
        match &self.index {
            Index::Sets(sets) => *sets,
            Index::Functions { set, slice } => u32::try_from(set.len() + slice.len())
                .ok()
                .and_then(|bits| 1u64.checked_shl(bits))
                .unwrap_or(u64::MAX),
        }
    }

    /// The capacity in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.sets()
            .saturating_mul(u64::from(self.ways))
            .saturating_mul(self.line)
    }

    fn check(&self) -> Result<(), Invalid> {
        let wrong = |reason| Err(Invalid::new("cache geometry", reason));
        if !self.line.is_power_of_two() || !(8..=4096).contains(&self.line) {
            return wrong(format!(
                "a line of {} bytes: use a power of two from 8 to 4096",
                self.line
            ));
        }
        if !(1..=64).contains(&self.ways) {
            return wrong(format!("{} ways: 1 to 64 are possible", self.ways));
        }
        if self.sets() == 0
            || self.sets().saturating_mul(u64::from(self.ways)) > u64::from(u32::MAX)
        {
            return wrong(format!(
                "{} sets of {} ways: at least one set and fewer than 2^32 lines are possible",
                self.sets(),
                self.ways
            ));
        }
        if let Index::Functions { set, slice } = &self.index
            && let Some(mask) = set
                .iter()
                .chain(slice)
                .find(|&&mask| mask & (self.line - 1) != 0 || mask == 0)
        {
            return wrong(format!(
                "index function {mask:#x} is zero or uses bits within the line of {} bytes",
                self.line
            ));
        }
        Ok(())
    }
}

/// The index in the form that is fast to evaluate.
#[derive(Clone, Debug)]
enum SetIndex {
    Mask { shift: u32, mask: u64 },
    Modulo { shift: u32, sets: u64 },
    Functions(Functions),
}

/// A line that had to leave the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The address of its first byte.
    pub address: u64,
    /// Whether it was written to since it was filled.
    pub dirty: bool,
    /// The requester that filled it.
    pub owner: u8,
}

/// Where an address is searched and filled in a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    set: usize,
    line: u64,
}

/// The outcome of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The line is in the cache.
    Done {
        /// The number of its slot, below [`Cache::slots`].
        slot: usize,
        /// The line that had the slot before. `None` if the slot was free.
        victim: Option<Victim>,
    },
    /// Mask and locked lines leave no way. Nothing changed.
    Bypassed,
}

/// Counts of one requester. All but `lines` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lookups that found the line.
    pub hits: u64,
    /// Lookups that did not find the line.
    pub misses: u64,
    /// Lines that were filled in.
    pub fills: u64,
    /// Fills for which mask and locks left no way.
    pub bypasses: u64,
    /// Lines of this requester that were evicted, by any requester.
    pub evictions: u64,
    /// How many of the evicted lines were dirty.
    pub writebacks: u64,
    /// Lines of this requester now in the cache: its occupancy.
    pub lines: u64,
}

/// What is known of a set apart from its tags. It never crosses a line of the host's cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Set {
    valid: u64,
    dirty: u64,
    locked: u64,
    /// The word of the replacement policy.
    order: u64,
}

/// One set-associative cache with its contents.
#[derive(Clone, Debug)]
pub struct Cache {
    index: SetIndex,
    line_shift: u32,
    ways: usize,
    /// Slots from one set to the next.
    row: usize,
    tags: Tags,
    owners: Vec<u8>,
    sets: Vec<Set>,
    replacement: Replacement,
    masks: Vec<u64>,
    counts: Vec<Counts>,
}

impl Cache {
    /// An empty cache that `requesters` (1 to 256, numbered from 0) fill without restriction.
    ///
    /// # Errors
    /// For impossible shapes.
    pub fn new(geometry: &Geometry, policy: Policy, requesters: usize) -> Result<Self, Invalid> {
        geometry.check()?;
        if !(1..=256).contains(&requesters) {
            return Err(Invalid::new(
                "cache",
                format!("{requesters} requesters: 1 to 256 are possible"),
            ));
        }
        let line_shift = geometry.line.trailing_zeros();
        let index = match &geometry.index {
            Index::Sets(sets) if sets.is_power_of_two() => SetIndex::Mask {
                shift: line_shift,
                mask: sets - 1,
            },
            Index::Sets(sets) => SetIndex::Modulo {
                shift: line_shift,
                sets: *sets,
            },
            Index::Functions { set, slice } => {
                SetIndex::Functions(Functions::new(set.iter().chain(slice).copied().collect()))
            }
        };
        let ways = geometry.ways as usize;
        let sets =
            usize::try_from(geometry.sets()).expect("invariant: checked to be fewer than 2^32");
        let all = u64::MAX >> (64 - geometry.ways);
        let tags = Tags::new(sets, ways);
        let set = Set {
            order: Replacement::first(policy),
            ..Set::default()
        };
        Ok(Self {
            index,
            line_shift,
            ways,
            row: Tags::row(ways),
            owners: vec![0; tags.len()],
            tags,
            sets: vec![set; sets],
            replacement: Replacement::new(policy, sets, ways),
            masks: vec![all; requesters],
            counts: vec![Counts::default(); requesters],
        })
    }

    /// The set of `address`. The sets of the slices follow one another.
    #[inline]
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number of sets was checked to fit"
    )]
    pub fn set_of(&self, address: u64) -> usize {
        match &self.index {
            SetIndex::Mask { shift, mask } => (address >> shift & mask) as usize,
            SetIndex::Modulo { shift, sets } => ((address >> shift) % sets) as usize,
            SetIndex::Functions(functions) => functions.of(address) as usize,
        }
    }

    #[inline]
    fn find(&self, set: usize, line: u64) -> Option<usize> {
        self.tags.find(set * self.row, self.row, line)
    }

    /// The set and line number of `address`.
    #[inline]
    pub(crate) fn place_of(&self, address: u64) -> Place {
        Place {
            set: self.set_of(address),
            line: address >> self.line_shift,
        }
    }

    /// Looks `address` up for `requester`. On a hit the line becomes the most recently used, dirty
    /// if `write`, and its slot is returned. A miss is counted and changes nothing.
    #[inline]
    pub fn lookup(&mut self, address: u64, write: bool, requester: u8) -> Option<usize> {
        self.lookup_at(self.place_of(address), write, requester)
    }

    #[inline]
    pub(crate) fn lookup_at(
        &mut self,
        Place { set, line }: Place,
        write: bool,
        requester: u8,
    ) -> Option<usize> {
        let found = self.find(set, line);
        let counts = &mut self.counts[usize::from(requester)];
        let Some(way) = found else {
            counts.misses += 1;
            return None;
        };
        counts.hits += 1;
        let state = &mut self.sets[set];
        state.dirty |= u64::from(write) << way;
        self.replacement.touch(&mut state.order, set, way);
        Some(set * self.row + way)
    }

    /// Fills the line of `address`, which must not be in the cache, for `requester`. It takes a
    /// free way that the mask allows, or else replaces the victim among the allowed ways that are
    /// not locked.
    pub fn fill(&mut self, address: u64, dirty: bool, requester: u8) -> Fill {
        self.fill_at(self.place_of(address), dirty, requester)
    }

    #[inline(always)]
    pub(crate) fn fill_at(
        &mut self,
        Place { set, line }: Place,
        dirty: bool,
        requester: u8,
    ) -> Fill {
        let state = &mut self.sets[set];
        let allowed = self.masks[usize::from(requester)] & !state.locked;
        if allowed == 0 {
            self.counts[usize::from(requester)].bypasses += 1;
            return Fill::Bypassed;
        }
        let free = allowed & !state.valid;
        let way = if free == 0 {
            self.replacement.replace(&mut state.order, set, allowed)
        } else {
            let way = free.trailing_zeros() as usize;
            self.replacement.filled(&mut state.order, set, way);
            way
        };
        let (slot, bit) = (set * self.row + way, 1u64 << way);
        let gone = if free == 0 { self.tags.get(slot) } else { None };
        let victim = gone.map(|line| Victim {
            address: line << self.line_shift,
            dirty: state.dirty & bit != 0,
            owner: self.owners[slot],
        });
        state.valid |= bit;
        state.dirty = state.dirty & !bit | u64::from(dirty) << way;
        self.tags.set(slot, line);
        self.owners[slot] = requester;
        if let Some(victim) = victim {
            let counts = &mut self.counts[usize::from(victim.owner)];
            counts.lines -= 1;
            counts.evictions += 1;
            counts.writebacks += u64::from(victim.dirty);
        }
        let counts = &mut self.counts[usize::from(requester)];
        counts.fills += 1;
        counts.lines += 1;
        Fill::Done { slot, victim }
    }

    /// [`Cache::lookup`], and on a miss [`Cache::fill`]: a single cache. Returns whether it hit,
    /// and the line that left.
    #[inline]
    pub fn access(&mut self, address: u64, write: bool, requester: u8) -> (bool, Option<Victim>) {
        if self.lookup(address, write, requester).is_some() {
            return (true, None);
        }
        match self.fill(address, write, requester) {
            Fill::Done { victim, .. } => (false, victim),
            Fill::Bypassed => (false, None),
        }
    }

    /// Marks the line of `address` dirty without counting as use. False if it is not in the cache.
    pub fn mark_dirty(&mut self, address: u64) -> bool {
        let set = self.set_of(address);
        let way = self.find(set, address >> self.line_shift);
        if let Some(way) = way {
            self.sets[set].dirty |= 1 << way;
        }
        way.is_some()
    }

    /// Marks the line of `address` clean, as it has been written back. Returns whether it was
    /// dirty.
    pub fn clean(&mut self, address: u64) -> bool {
        let set = self.set_of(address);
        let Some(way) = self.find(set, address >> self.line_shift) else {
            return false;
        };
        let state = &mut self.sets[set];
        let dirty = state.dirty >> way & 1 == 1;
        state.dirty &= !(1 << way);
        dirty
    }

    /// Removes the line of `address`, locked or not. Returns what it was.
    pub fn remove(&mut self, address: u64) -> Option<Victim> {
        let set = self.set_of(address);
        let line = address >> self.line_shift;
        let way = self.find(set, line)?;
        let (slot, bit) = (set * self.row + way, 1u64 << way);
        let state = &mut self.sets[set];
        let victim = Victim {
            address: line << self.line_shift,
            dirty: state.dirty & bit != 0,
            owner: self.owners[slot],
        };
        state.valid &= !bit;
        state.dirty &= !bit;
        state.locked &= !bit;
        self.tags.clear(slot);
        self.counts[usize::from(victim.owner)].lines -= 1;
        Some(victim)
    }

    /// Restricts the ways that `requester` may fill from now on. Lines in the cache remain, and
    /// hits are not restricted. An empty mask makes all its misses bypass the cache.
    ///
    /// # Errors
    /// For ways that the cache does not have.
    pub fn set_fill_mask(&mut self, requester: u8, mask: u64) -> Result<(), Invalid> {
        if self.ways < 64 && mask >> self.ways != 0 {
            return Err(Invalid::new(
                "fill mask",
                format!("{mask:#x} names ways beyond the cache's {}", self.ways),
            ));
        }
        self.masks[usize::from(requester)] = mask;
        Ok(())
    }

    /// Locks the line of `address` into one of `ways`, and fills it for `requester` if need be,
    /// whatever its fill mask. Returns the line that had to leave.
    ///
    /// # Errors
    /// Where all of `ways` in its set are locked already.
    pub fn lock(
        &mut self,
        address: u64,
        ways: u64,
        requester: u8,
    ) -> Result<Option<Victim>, Invalid> {
        let set = self.set_of(address);
        let line = address >> self.line_shift;
        let mut gone = None;
        let present = self.find(set, line);
        let way = match present {
            Some(way) if ways >> way & 1 == 1 => way,
            _ => {
                if ways & (u64::MAX >> (64 - self.ways)) & !self.sets[set].locked == 0 {
                    let reason = format!(
                        "ways {ways:#x} of set {set} are all locked: lock fewer lines or allow more ways"
                    );
                    return Err(Invalid::new(format!("locking {address:#x}"), reason));
                }
                let dirty = present
                    .and_then(|_| self.remove(address))
                    .is_some_and(|line| line.dirty);
                let mask = std::mem::replace(
                    &mut self.masks[usize::from(requester)],
                    ways & (u64::MAX >> (64 - self.ways)),
                );
                let filled = self.fill(address, dirty, requester);
                self.masks[usize::from(requester)] = mask;
                let Fill::Done { slot, victim } = filled else {
                    return Ok(None);
                };
                gone = victim;
                slot - set * self.row
            }
        };
        self.sets[set].locked |= 1 << way;
        Ok(gone)
    }

    /// Unlocks the line of `address`. False if it was not locked.
    pub fn unlock(&mut self, address: u64) -> bool {
        let set = self.set_of(address);
        let bit = self
            .find(set, address >> self.line_shift)
            .map_or(0, |way| 1u64 << way);
        let was = self.sets[set].locked & bit != 0;
        self.sets[set].locked &= !bit;
        was
    }

    /// The slot of `address`, without counting as use.
    #[must_use]
    pub fn slot_of(&self, address: u64) -> Option<usize> {
        let set = self.set_of(address);
        self.find(set, address >> self.line_shift)
            .map(|way| set * self.row + way)
    }

    /// Whether the line of `address` is in the cache and locked.
    #[must_use]
    pub fn is_locked(&self, address: u64) -> bool {
        let set = self.set_of(address);
        self.find(set, address >> self.line_shift)
            .is_some_and(|way| self.sets[set].locked >> way & 1 == 1)
    }

    /// All lines in the cache, each with its slot.
    pub fn lines(&self) -> impl Iterator<Item = (usize, Victim)> + '_ {
        (0..self.tags.len()).filter_map(|slot| {
            let line = Victim {
                address: self.tags.get(slot)? << self.line_shift,
                dirty: self.sets[slot / self.row].dirty >> (slot % self.row) & 1 == 1,
                owner: self.owners[slot],
            };
            Some((slot, line))
        })
    }

    /// Slot numbers are below this. Each set begins at a multiple of eight, so some numbers may
    /// stand for no way.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.tags.len()
    }

    /// The counts of `requester`.
    #[must_use]
    pub fn counts(&self, requester: u8) -> Counts {
        self.counts[usize::from(requester)]
    }
}
