//! The working set of a critical group. It is its programs' own memory and the file pages that it
//! uses again and again, as far as they are in memory, and what of it was taken away. Every page
//! that comes back soon was part of it (the kernel's refault distance, mm/workingset.c).

use quell_types::units::{Bytes, Nanos};

use super::Critical;
use super::stall::Difference;

/// The page size by which refaults are counted. Where pages are larger the estimate is low, and
/// rises with the next sample.
const PAGE: u64 = 4096;
/// What is protected exceeds what was measured by an eighth: the kernel's lists are no exact
/// account.
const BEYOND: u64 = 8;
/// A change below this part of what is protected is not worth a write.
const WORTH: u64 = 32;
/// How long the working set has to be smaller until less is protected: longer than its programs'
/// phases.
const PATIENCE: Nanos = Nanos::secs(10);

/// The estimate of a working set, and the protection that follows it.
#[derive(Clone, Debug)]
pub struct WorkingSet {
    refaults: Difference,
    /// The largest estimate since `since`.
    most: Bytes,
    since: Nanos,
    protected: Bytes,
}

impl WorkingSet {
    /// An estimate that begins at `now`. Nothing is protected yet.
    #[must_use]
    pub fn new(now: Nanos) -> Self {
        Self {
            refaults: Difference::default(),
            most: Bytes(0),
            since: now,
            protected: Bytes(0),
        }
    }

    /// How much is protected now; whole pages.
    #[must_use]
    pub fn protected(&self) -> Bytes {
        self.protected
    }

    /// Takes a sample. `Some`: how much is to be protected from now on, where that changes.
    pub fn step(&mut self, now: Nanos, group: &Critical) -> Option<Bytes> {
        let back = self.refaults.of(group.refaults).saturating_mul(PAGE);
        let there = group.anonymous.0.saturating_add(group.file.0);
        let measured = there.min(group.usage.0.max(group.anonymous.0));
        // Part of what has just come back is in memory already. What had to go for it is not.
        let works_on = measured.saturating_add(back);
        self.most = self.most.max(Bytes(works_on));
        let wanted = works_on.saturating_add(works_on / BEYOND);
        if wanted > self.protected.0.saturating_add(self.protected.0 / WORTH) {
            self.begin(now, works_on);
            return self.protect(wanted);
        }
        if now.since(self.since) < PATIENCE {
            return None;
        }
        let wanted = self.most.0.saturating_add(self.most.0 / BEYOND);
        self.begin(now, works_on);
        if wanted.saturating_add(self.protected.0 / WORTH) < self.protected.0 {
            return self.protect(wanted);
        }
        None
    }

    fn begin(&mut self, now: Nanos, works_on: u64) {
        self.most = Bytes(works_on);
        self.since = now;
    }

    fn protect(&mut self, bytes: u64) -> Option<Bytes> {
        self.protected = Bytes(bytes / PAGE * PAGE);
        Some(self.protected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(mib: u64, refaults: u64) -> Critical {
        Critical {
            usage: Bytes(mib << 20),
            anonymous: Bytes(mib << 19),
            file: Bytes(mib << 19),
            refaults,
            ..Critical::default()
        }
    }

    #[test]
    fn protection_follows_what_is_there_and_what_comes_back() {
        let mut set = WorkingSet::new(Nanos(0));
        let ms = Nanos::millis;
        assert_eq!(set.step(ms(20), &group(800, 5)), Some(Bytes(900 << 20)));
        assert_eq!(set.step(ms(40), &group(801, 5)), None, "not worth a write");
        // A hundred MiB were taken, and half of them came back within the interval.
        let more = set.step(ms(60), &group(750, 5 + (100 << 8)));
        assert!(more.is_some_and(|m| m > Bytes(940 << 20)), "{more:?}");
    }

    #[test]
    fn it_is_slow_to_let_go() {
        let mut set = WorkingSet::new(Nanos(0));
        set.step(Nanos::millis(20), &group(800, 0));
        let mut changed = Vec::new();
        for i in 2..1_100 {
            let now = Nanos::millis(20 * i);
            changed.extend(set.step(now, &group(400, 0)).map(|to| (now, to)));
        }
        let (when, to) = changed[0];
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert!(when >= PATIENCE && to == Bytes(450 << 20), "{changed:?}");
    }
}
