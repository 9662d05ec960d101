//! Classes of service: which ways each may fill, what is locked for it, and how it is throttled.
//! There is one class per group; 0 is the rest's.

use std::collections::BTreeMap;

use quell_model::Invalid;
use quell_model::cache::Level;
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;

use super::{Os, TaskId};
use crate::access::LINE;
use crate::machine::CLASSES;

#[derive(Debug)]
pub(super) struct Classes {
    names: BTreeMap<String, u8>,
    /// By level (from 0): the ways of a cache, and for each core the cache that it uses.
    shapes: Vec<(u32, Vec<usize>)>,
    /// Masks as asked for, by class, level and cache.
    asked: BTreeMap<(u8, usize, usize), u64>,
    /// Ways that hold locked lines, by level and cache.
    reserved: BTreeMap<(usize, usize), u64>,
}

impl Classes {
    pub(super) fn new(levels: &[(Level, u32)]) -> Self {
        let shape = |(level, _): &(Level, u32)| (level.geometry.ways, level.cache_of.clone());
        Self {
            names: BTreeMap::from([(REST.to_owned(), 0)]),
            shapes: levels.iter().map(shape).collect(),
            asked: BTreeMap::new(),
            reserved: BTreeMap::new(),
        }
    }
}

fn invalid(reason: String) -> Invalid {
    let what = "class of service".to_owned();
    Invalid { what, reason }
}

fn all(ways: u32) -> u64 {
    u64::MAX >> (64 - ways.clamp(1, 64))
}

impl Os {
    /// The class of a group. A group without one gets a new one.
    ///
    /// # Errors
    /// When no class is left.
    pub fn class(&mut self, group: &str) -> Result<u8, Invalid> {
        if let Some(class) = self.classes.names.get(group) {
            return Ok(*class);
        }
        let class = u8::try_from(self.classes.names.len())
            .map_err(|_| invalid(format!("group {group}: all {CLASSES} are taken")))?;
        self.classes.names.insert(group.to_owned(), class);
        Ok(class)
    }

    /// Restricts the ways that `class` fills in the caches of `level` (1, 2, …) from now on; where
    /// `cpus` is not empty, in those of these CPUs only. The class still hits in all ways. It never
    /// fills ways that hold locked lines. Where that leaves none, it fills all ways that are not
    /// locked.
    ///
    /// # Errors
    /// For levels and ways that do not exist, and for an empty mask.
    pub fn set_ways(
        &mut self,
        class: u8,
        level: u32,
        mask: u64,
        cpus: &CpuSet,
    ) -> Result<(), Invalid> {
        let (level, ways) = self.level(level)?;
        if mask == 0 || mask & !all(ways) != 0 {
            let reason =
                format!("ways {mask:#x} of {ways}: name at least one, each within the cache");
            return Err(invalid(reason));
        }
        let caches = self.classes.shapes[level].1.iter();
        let chosen = (0..)
            .zip(caches)
            .filter(|(core, _)| cpus.is_empty() || cpus.contains(*core));
        let asked = chosen.map(|(_, cache)| ((class, level, *cache), mask));
        self.classes.asked.extend(asked);
        self.fill(class, level)
    }

    /// Locks the first `bytes` of a task's memory into the ways `mask` of its core's cache of
    /// `level` (1, 2, …). No other task fills these ways from now on. Their lines remain until the
    /// task ends.
    ///
    /// # Errors
    /// Where they do not hold so much, or no way is left for all other tasks.
    pub fn lock(&mut self, id: TaskId, level: u32, mask: u64, bytes: u64) -> Result<(), Invalid> {
        let (level, ways) = self.level(level)?;
        let Some(task) = self.tasks.get_mut(&id) else {
            return Ok(());
        };
        let cache_of = &self.classes.shapes[level].1;
        let (core, cache) = (task.core, cache_of[task.core]);
        let reserved = self.classes.reserved.entry((level, cache)).or_default();
        if mask & !all(ways) != 0 || all(ways) & !(*reserved | mask) == 0 {
            let reason =
                format!("locking ways {mask:#x} of {ways}: some way must be left to others");
            return Err(invalid(reason));
        }
        *reserved |= mask;
        let program = task.program.as_ref().or_else(|| self.machine.program(core));
        if let Some(space) = program.map(|program| program.space.clone()) {
            task.locked = Some((bytes, level));
            self.machine
                .lock(core, task.class, &space, bytes, (level, mask))?;
        }
        (0..=u8::MAX).try_for_each(|class| self.fill(class, level))
    }

    /// Throttles the memory requests of the cores that run `class`, in percent of what a core alone
    /// can draw.
    pub fn set_mba(&mut self, class: u8, percent: u32) {
        self.machine.throttle(class, percent);
    }

    /// Bytes that the tasks of a class have read from memory: misses of the last level, prefetched
    /// lines included.
    #[must_use]
    pub fn drawn_by(&self, class: u8) -> u64 {
        let last = self.classes.shapes.len().saturating_sub(1);
        self.machine.caches().counts(last, class).misses * LINE
    }

    /// Bytes that a class has in all caches of `level` (1, 2, …) together.
    #[must_use]
    pub fn held_by(&self, class: u8, level: u32) -> u64 {
        let found = self.level(level).ok();
        found.map_or(0, |(level, _)| {
            self.machine.caches().counts(level, class).lines * LINE
        })
    }

    fn level(&self, level: u32) -> Result<(usize, u32), Invalid> {
        let index = usize::try_from(level).ok().and_then(|n| n.checked_sub(1));
        let found = index.and_then(|n| Some((n, self.classes.shapes.get(n)?.0)));
        found.ok_or_else(|| {
            let most = self.classes.shapes.len();
            invalid(format!("cache level {level}: there are 1 to {most}"))
        })
    }

    /// Sets the fill masks of a level as asked for, without the reserved ways.
    fn fill(&mut self, class: u8, level: usize) -> Result<(), Invalid> {
        let classes = &self.classes;
        let (ways, cache_of) = &classes.shapes[level];
        for (core, cache) in cache_of.iter().enumerate() {
            let asked = classes.asked.get(&(class, level, *cache));
            let asked = asked.copied().unwrap_or(all(*ways));
            let reserved = classes.reserved.get(&(level, *cache)).copied().unwrap_or(0);
            let left = match asked & !reserved {
                0 => all(*ways) & !reserved,
                some => some,
            };
            let cache = self.machine.caches_mut().cache_mut(level, core);
            cache.set_fill_mask(class, left)?;
        }
        Ok(())
    }
}
