//! What the hardware threads of a core share besides caches and TLB: issue slots, first-level ports
//! and miss buffers.
//!
//! **Slots and ports.** Work of a thread wants so many of them per cycle. If all threads together
//! want more than there are, each gets an even share. What a thread does not want of its share goes
//! to the others (max-min fairness, as alternating from cycle to cycle does). Work then takes
//! longer in proportion. A thread that waits for memory wants nothing.
//!
//! **Miss buffers.** Whichever thread misses takes the next free one. If none is free, the thread
//! that has waited longest gets the next one.
//!
//! What is left out:
//!
//! - Execution units, queues and reorder buffers, which some processors divide in halves.
//! - A share is computed at the beginning of each piece of work, from what the other threads do
//!   then. A piece is one access, or computing of at most [`PIECE`] cycles.
//! - Interrupts and walks of the page table want neither slots nor ports.

use quell_model::Picos;

use super::{Machine, State};
use crate::access::Access;
use crate::profile::Smt;

/// Cycles of computing for which a share holds.
pub(super) const PIECE: u32 = 64;

/// Shares are counted in so many parts of a slot per cycle.
const PARTS: u64 = 1024;

/// Slots and ports: those that there are per cycle, or those that a piece of work uses in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Issue slots: instructions.
    pub issue: u64,
    /// First-level ports for loads.
    pub loads: u64,
    /// First-level ports for stores.
    pub stores: u64,
}

impl Uses {
    /// Those of so many instructions that access no memory.
    pub(super) fn computing(instructions: u64) -> Self {
        Self {
            issue: instructions,
            ..Self::default()
        }
    }

    /// Those of an access.
    pub(super) fn accessing(access: &Access) -> Self {
        Self {
            issue: u64::from(access.instructions.unwrap_or(1)),
            loads: u64::from(!access.write),
            stores: u64::from(access.write),
        }
    }

    fn each(self) -> [u64; 3] {
        [self.issue, self.loads, self.stores]
    }
}

/// What a thread wants per cycle, in [`PARTS`], as long as its present piece of work goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    parts: [u64; 3],
    until: Picos,
}

/// The hardware threads of all cores.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    clock: Picos,
    /// What a core has per cycle, in [`PARTS`].
    there: [u64; 3],
    /// By thread: its core's other threads.
    others: Vec<Vec<usize>>,
    wishes: Vec<Wish>,
}

impl Shared {
    /// `core_of`: the core of each hardware thread.
    pub(super) fn new(smt: &Smt, core_of: &[usize], clock: Picos) -> Self {
        let there = [smt.issue, smt.loads, smt.stores];
        let all = 0..core_of.len();
        let others = all.clone().map(|n| {
            let same = |other: &usize| *other != n && core_of[*other] == core_of[n];
            all.clone().filter(same).collect()
        });
        Self {
            clock: clock.max(1),
            there: there.map(|each| u64::from(each) * PARTS),
            others: others.collect(),
            wishes: vec![Wish::default(); core_of.len()],
        }
    }

    /// The other threads of the core of `thread`.
    pub(super) fn others(&self, thread: usize) -> &[usize] {
        &self.others[thread]
    }

    /// How much later than alone a piece of work of `thread` is done, that begins at `now` and
    /// takes `alone` picoseconds otherwise.
    pub(super) fn delay(&mut self, thread: usize, now: Picos, alone: Picos, uses: Uses) -> Picos {
        let cycles = (alone / self.clock).max(1);
        let own = uses.each().map(|each| each * PARTS / cycles);
        let mut took = alone;
        for (resource, own) in own.into_iter().enumerate() {
            let others = self.others[thread].iter().map(|other| self.wishes[*other]);
            let others = others.filter(|wish| wish.until >= now);
            let share = share(
                self.there[resource],
                own,
                others.map(|wish| wish.parts[resource]),
            );
            took = took.max((alone * own).checked_div(share).unwrap_or(alone));
        }
        self.wishes[thread] = Wish {
            parts: own,
            until: now + took,
        };
        took - alone
    }

    /// The thread stops at `now`, in the middle of a piece of work or not.
    pub(super) fn stop(&mut self, thread: usize, now: Picos) {
        let wish = &mut self.wishes[thread];
        wish.until = wish.until.min(now);
    }
}

impl Machine {
    /// Miss buffers of the core of `thread` that its other threads have.
    pub(super) fn taken_by_others(&self, thread: usize) -> u32 {
        let others = self.shared.iter().flat_map(|s| s.others(thread));
        others.map(|other| self.cores[*other].flying).sum()
    }

    /// Lets the threads that wait for a miss buffer of the core of `thread` try again from `now`
    /// on, the longest waiting first.
    pub(super) fn let_go_on(&mut self, thread: usize, now: Picos) {
        let Some(shared) = &self.shared else {
            return;
        };
        let all = shared.others(thread).iter().copied().chain([thread]);
        let mut waiting: Vec<usize> = all
            .filter(|n| self.cores[*n].state == State::Full)
            .collect();
        waiting.sort_by_key(|n| (self.cores[*n].time, *n));
        for (at, n) in (now..).zip(waiting) {
            let core = &mut self.cores[n];
            core.state = State::Ready;
            core.time = core.time.max(at);
            self.acts[n] = core.acts();
        }
    }

    /// The program of `thread` leaves it at `now`: the other threads have more.
    pub(super) fn leave(&mut self, thread: usize, now: Picos) {
        if let Some(shared) = &mut self.shared {
            shared.stop(thread, now);
            self.let_go_on(thread, now);
        }
    }
}

/// What a thread that wants `own` of `there` gets, next to threads that want `others`: all of it,
/// or as much as those that want more than their even share.
fn share(there: u64, own: u64, others: impl Iterator<Item = u64> + Clone) -> u64 {
    // Threads that want less than an even share of what is left take that and leave the rest.
    let (mut left, mut threads) = (there, 1 + others.clone().count() as u64);
    let mut even = left / threads;
    loop {
        let less = others.clone().filter(|wish| *wish <= even);
        let (taken, less) = less.fold((0, 0), |(sum, n), wish| (sum + wish, n + 1));
        left = there - taken;
        let before = threads;
        threads = 1 + others.clone().count() as u64 - less;
        even = left / threads;
        if threads == before || own <= even {
            return own.min(even);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of(there: u64, own: u64, others: &[u64]) -> u64 {
        share(there, own, others.iter().copied())
    }

    #[test]
    fn what_one_leaves_the_other_gets() {
        assert_eq!(share_of(4, 3, &[]), 3);
        assert_eq!(share_of(4, 6, &[]), 4);
        assert_eq!(share_of(4, 4, &[4]), 2);
        assert_eq!(share_of(4, 4, &[1]), 3);
        assert_eq!(share_of(4, 1, &[4]), 1);
        assert_eq!(share_of(12, 9, &[2, 9]), 5);
        assert_eq!(share_of(12, 9, &[2, 3]), 7);
        assert_eq!(share_of(12, 5, &[0, 12]), 5);
    }

    fn pair() -> Shared {
        let smt = Smt {
            issue: 4,
            loads: 1,
            stores: 1,
            source: String::new(),
            assumed: Default::default(),
        };
        Shared::new(&smt, &[0, 1, 0, 1], 100)
    }

    #[test]
    fn work_takes_longer_only_while_the_other_works() {
        let mut shared = pair();
        let load = Uses {
            issue: 1,
            loads: 1,
            stores: 0,
        };
        assert_eq!(shared.delay(0, 0, 100, load), 0);
        assert_eq!(shared.delay(1, 0, 100, load), 0, "on another core");
        assert_eq!(shared.delay(2, 0, 100, load), 100, "one port for two");
        assert_eq!(shared.delay(0, 500, 100, load), 0, "the other waits");
        shared.stop(0, 550);
        assert_eq!(shared.delay(2, 560, 100, load), 0, "the other has stopped");
    }

    #[test]
    fn computing_takes_what_loads_leave_of_the_slots() {
        let mut shared = pair();
        let computes = Uses {
            issue: 256,
            ..Uses::default()
        };
        let load = Uses {
            issue: 1,
            loads: 1,
            stores: 0,
        };
        shared.delay(0, 0, 6_400, computes);
        assert_eq!(shared.delay(2, 0, 100, load), 0, "it wants less than half");
        // Three slots of four are left.
        assert_eq!(shared.delay(0, 50, 6_400, computes), 6_400 / 3);
        assert_eq!(shared.delay(2, 50, 6_400, computes), 6_400);
    }
}
