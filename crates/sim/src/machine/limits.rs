//! What limits a core beyond its misses: how far it runs ahead of a miss, and the ports of caches.

use std::collections::VecDeque;

use quell_model::Picos;
use quell_model::cache::Level;

/// The reads of a core that have not come back, in program order, each with its number and the
/// instructions before it. A core retires in order. So it has at most so many instructions in
/// flight behind the oldest of them.
#[derive(Clone, Debug)]
pub(super) struct Window {
    most: u64,
    reads: VecDeque<(u64, u64)>,
}

impl Window {
    /// Of `most` instructions. `None`: without limit.
    pub(super) fn new(most: Option<u32>) -> Self {
        Self {
            most: most.map_or(u64::MAX, u64::from),
            reads: VecDeque::new(),
        }
    }

    /// How many more instructions fit behind the oldest read, after `instructions`.
    #[inline]
    pub(super) fn room(&self, instructions: u64) -> u64 {
        self.reads.front().map_or(u64::MAX, |(_, before)| {
            self.most.saturating_sub(instructions - before)
        })
    }

    /// The number of the oldest read.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.reads.front().map(|(number, _)| *number)
    }

    /// A read goes out after `instructions`.
    pub(super) fn send(&mut self, number: u64, instructions: u64) {
        if self.most < u64::MAX {
            self.reads.push_back((number, instructions));
        }
    }

    /// A read has come back.
    pub(super) fn back(&mut self, number: u64) {
        self.reads.retain(|(read, _)| *read != number);
    }

    /// Another program runs, which waits for none of them.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
    }
}

/// The ports of the caches of a level: an access occupies its cache for some time, whichever core
/// it comes from.
#[derive(Clone, Debug)]
pub(super) struct Ports {
    /// The level, from 0.
    level: usize,
    /// Picoseconds that an access or a fill occupies a cache.
    time: Picos,
    /// By core: its cache.
    cache_of: Vec<usize>,
    /// By cache: from when on its port is free.
    free: Vec<Picos>,
}

impl Ports {
    /// Of the caches of `level`, whose number from 0 is `number`.
    pub(super) fn new(number: usize, level: &Level, time: Picos) -> Self {
        let caches = level.cache_of.iter().max().map_or(0, |most| most + 1);
        Self {
            level: number,
            time,
            cache_of: level.cache_of.clone(),
            free: vec![0; caches],
        }
    }

    /// An access of `core` at `now` that found its line in the level `found`. Returns how long it
    /// waits for the port. A miss also fills the cache, and so occupies the port twice.
    #[inline]
    pub(super) fn enter(&mut self, core: usize, found: usize, now: Picos) -> Picos {
        if found < self.level {
            return 0;
        }
        let free = &mut self.free[self.cache_of[core]];
        let begin = now.max(*free);
        let times = if found > self.level { 2 } else { 1 };
        *free = begin + times * self.time;
        begin - now
    }
}

#[cfg(test)]
mod tests {
    use quell_model::cache::{Geometry, Inclusion, Policy};

    use super::*;

    #[test]
    fn a_core_runs_ahead_of_its_oldest_read() {
        let mut window = Window::new(Some(10));
        assert_eq!(window.room(100), u64::MAX);
        window.send(1, 100);
        window.send(2, 104);
        assert_eq!((window.room(104), window.oldest()), (6, Some(1)));
        window.back(1);
        assert_eq!((window.room(104), window.oldest()), (10, Some(2)));
        assert_eq!(window.room(120), 0);
        let mut endless = Window::new(None);
        endless.send(1, 0);
        assert_eq!(endless.room(1 << 40), u64::MAX);
    }

    #[test]
    fn cores_of_a_cache_share_its_port() {
        let level = Level {
            geometry: Geometry::plain(1 << 20, 16, 64).unwrap(),
            policy: Policy::Lru,
            inclusion: Inclusion::NonInclusive,
            cache_of: vec![0, 0, 1],
        };
        let mut ports = Ports::new(1, &level, 100);
        assert_eq!(ports.enter(0, 0, 1_000), 0, "a hit before it");
        assert_eq!(ports.enter(0, 1, 1_000), 0);
        assert_eq!(ports.enter(1, 2, 1_010), 90, "the other core");
        assert_eq!(ports.enter(0, 1, 1_110), 190, "lookup and fill");
        assert_eq!(ports.enter(2, 1, 1_110), 0, "another cache");
    }
}
