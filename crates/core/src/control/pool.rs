//! The pool: what CPUs have given away of their budgets in the current period, which period that is, and how many of them
//! have nothing left. Shared by the regulators of all CPUs, and the only thing that they share.
//!
//! Method: MemGuard's global budget (Yun et al., RTAS 2013, section III-C), kept without locks. What must be seen
//! together lies in one word, changed by compare-and-exchange: a tag of the period, how many members have spent all they
//! may, and the lines to be had. So "everybody is out of budget and nothing is left" is one load of one word, exactly one
//! caller of [`Pool::spend`] learns it first, and a CPU that is late and still in the last period can neither take from
//! this one's lines nor lose any of its own in it unseen.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::{Lines, Nanos};

/// A regulation period, the same for all members of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// When it began.
    pub start: Nanos,
    /// It began before the last one was over, because all budgets were spent: what it grants is best effort.
    pub early: bool,
}

/// Two periods begin at least so long after one another, in powers of two nanoseconds: 16.4 µs.
const TICK: u32 = 14;

impl Period {
    const fn pack(self) -> u64 {
        self.start.0 << 1 | self.early as u64
    }

    const fn unpack(word: u64) -> Self {
        Self {
            start: Nanos(word >> 1),
            early: word & 1 == 1,
        }
    }

    /// What tells it from those of the two minutes around it.
    const fn tag(self) -> u64 {
        self.start.0 >> TICK & TAGS
    }

    /// The one that begins at `now`, before this one is over.
    #[must_use]
    pub fn early(self, now: Nanos) -> Self {
        let next = ((self.start.0 >> TICK) + 1) << TICK;
        Self {
            start: Nanos(now.0.max(next)),
            early: true,
        }
    }
}

/// What the regulators of several CPUs share. Every call names the period that the caller is in.
pub trait Pool {
    /// The current period.
    fn period(&self) -> Period;
    /// Begins the period `to` after `from`, unless somebody else was first. Returns the current one.
    fn renew(&self, from: Period, to: Period) -> Period;
    /// A member has `lines` to give away.
    fn give(&self, period: Period, lines: Lines);
    /// A member takes up to `want`. Whoever is counted as spent takes itself out of that count first ([`Pool::hold`]).
    fn take(&self, period: Period, want: Lines) -> Lines;
    /// A member has nothing left. `true`: it was the last, and the pool is empty.
    fn spend(&self, period: Period) -> bool;
    /// A member that was counted as spent is about to have something again.
    fn hold(&self, period: Period);
    /// Whether every member has spent what it had, and the pool is empty.
    fn all_spent(&self, period: Period) -> bool;
    /// Everybody may run freely until the period ends.
    fn set_free(&self, period: Period);
    /// Whether everybody may.
    fn is_free(&self, period: Period) -> bool;
}

const LINES_BITS: u32 = 30;
const COUNT_BITS: u32 = 10;
const LINES: u64 = (1 << LINES_BITS) - 1;
const COUNTS: u64 = (1 << COUNT_BITS) - 1;
const TAGS: u64 = (1 << (64 - LINES_BITS - COUNT_BITS)) - 1;

/// The most members whose being spent can be counted; with more, sharing what is left never begins.
pub const MOST_MEMBERS: u64 = COUNTS;

/// The word: tag of the period, members that are spent, lines to be had (2^30 lines = 68 GB; what goes beyond expires).
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    tag: u64,
    spent: u64,
    lines: u64,
}

impl State {
    const fn unpack(word: u64) -> Self {
        Self {
            tag: word >> (LINES_BITS + COUNT_BITS),
            spent: word >> LINES_BITS & COUNTS,
            lines: word & LINES,
        }
    }

    const fn pack(self) -> u64 {
        self.tag << (LINES_BITS + COUNT_BITS) | self.spent << LINES_BITS | self.lines
    }

    /// This state as a member sees it that is in `period`: an older one's is over, and leaves so many lines unused.
    /// `None`: the member is late.
    const fn seen_in(self, period: Period) -> Option<(Self, u64)> {
        let tag = period.tag();
        if tag == self.tag {
            return Some((self, 0));
        }
        // Tags wrap: the nearer way round tells which is the older.
        if tag.wrapping_sub(self.tag) & TAGS <= TAGS / 2 {
            let fresh = Self {
                tag,
                spent: 0,
                lines: 0,
            };
            return Some((fresh, self.lines));
        }
        None
    }
}

/// The pool of threads and of simulated cores alike. Fixed in size; nothing in it waits or allocates.
#[derive(Debug)]
pub struct SharedPool {
    members: u64,
    period: AtomicU64,
    state: AtomicU64,
    free: AtomicU64,
    expired: AtomicU64,
}

/// No period.
const NEVER: u64 = u64::MAX;

impl SharedPool {
    /// A pool of so many members, its first period beginning at `start`.
    #[must_use]
    pub fn new(members: usize, start: Nanos) -> Self {
        let first = Period {
            start,
            early: false,
        };
        let state = State {
            tag: first.tag(),
            spent: 0,
            lines: 0,
        };
        Self {
            members: members as u64,
            period: AtomicU64::new(first.pack()),
            state: AtomicU64::new(state.pack()),
            free: AtomicU64::new(NEVER),
            expired: AtomicU64::new(0),
        }
    }

    /// Lines that were given away and that nobody took, of periods that are over.
    #[must_use]
    pub fn expired(&self) -> Lines {
        Lines(self.expired.load(Ordering::Acquire))
    }

    /// What can be had now.
    #[must_use]
    pub fn left(&self) -> Lines {
        Lines(State::unpack(self.state.load(Ordering::Acquire)).lines)
    }

    /// Changes the word as a member sees it that is in `period`; what its change leaves of an older period, or the change
    /// itself says is too much, expires. `None`: the member is late, and nothing was changed.
    fn change(
        &self,
        period: Period,
        change: impl Fn(State) -> (State, u64),
    ) -> Option<(State, State)> {
        let mut word = self.state.load(Ordering::Acquire);
        loop {
            let (before, left) = State::unpack(word).seen_in(period)?;
            let (after, over) = change(before);
            match self.state.compare_exchange_weak(
                word,
                after.pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    if left + over > 0 {
                        self.expired.fetch_add(left + over, Ordering::AcqRel);
                    }
                    return Some((before, after));
                }
                Err(now) => word = now,
            }
        }
    }

    const fn spent_up(&self, state: State) -> bool {
        state.lines == 0 && state.spent == self.members
    }
}

impl Pool for SharedPool {
    fn period(&self) -> Period {
        Period::unpack(self.period.load(Ordering::Acquire))
    }

    fn renew(&self, from: Period, to: Period) -> Period {
        match self.period.compare_exchange(
            from.pack(),
            to.pack(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => to,
            Err(now) => Period::unpack(now),
        }
    }

    fn give(&self, period: Period, lines: Lines) {
        let given = self.change(period, |state| {
            let sum = state.lines.saturating_add(lines.0);
            let held = sum.min(LINES);
            let after = State {
                lines: held,
                ..state
            };
            (after, sum - held)
        });
        if given.is_none() {
            self.expired.fetch_add(lines.0, Ordering::AcqRel);
        }
    }

    fn take(&self, period: Period, want: Lines) -> Lines {
        let taken = self.change(period, |state| {
            let lines = state.lines - state.lines.min(want.0);
            (State { lines, ..state }, 0)
        });
        Lines(taken.map_or(0, |(before, after)| before.lines - after.lines))
    }

    fn spend(&self, period: Period) -> bool {
        let done = self.change(period, |state| {
            let spent = (state.spent + 1).min(COUNTS);
            (State { spent, ..state }, 0)
        });
        done.is_some_and(|(_, after)| self.spent_up(after))
    }

    fn hold(&self, period: Period) {
        self.change(period, |state| {
            let spent = state.spent.saturating_sub(1);
            (State { spent, ..state }, 0)
        });
    }

    fn all_spent(&self, period: Period) -> bool {
        let state = State::unpack(self.state.load(Ordering::Acquire));
        state.tag == period.tag() && self.spent_up(state)
    }

    fn set_free(&self, period: Period) {
        self.free.store(period.pack(), Ordering::Release);
    }

    fn is_free(&self, period: Period) -> bool {
        self.free.load(Ordering::Acquire) == period.pack()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LENGTH: u64 = 1_000_000;

    fn period(n: u64) -> Period {
        Period {
            start: Nanos(n * LENGTH),
            early: false,
        }
    }

    #[test]
    fn what_is_given_can_be_taken_once() {
        let pool = SharedPool::new(2, Nanos(0));
        pool.give(period(0), Lines(30));
        assert_eq!(pool.take(period(0), Lines(20)), Lines(20));
        assert_eq!(pool.take(period(0), Lines(20)), Lines(10));
        assert_eq!(pool.take(period(0), Lines(20)), Lines(0));
    }

    #[test]
    fn what_nobody_took_expires_with_its_period() {
        let pool = SharedPool::new(2, Nanos(0));
        pool.give(period(0), Lines(30));
        assert_eq!(pool.renew(period(0), period(1)), period(1));
        // Whoever is late gets nothing of the new period, and what it gives is of no use to anybody.
        pool.give(period(1), Lines(5));
        assert_eq!(pool.take(period(0), Lines(9)), Lines(0));
        pool.give(period(0), Lines(2));
        assert_eq!((pool.left(), pool.expired()), (Lines(5), Lines(32)));
    }

    #[test]
    fn one_of_two_who_would_begin_a_period_does() {
        let pool = SharedPool::new(2, Nanos(0));
        let early = period(0).early(Nanos(300_000));
        assert!(early.early);
        assert_eq!(pool.renew(period(0), early), early);
        assert_eq!(pool.renew(period(0), period(1)), early);
        assert_eq!(pool.period(), early);
    }

    #[test]
    fn periods_that_follow_at_once_are_still_told_apart() {
        let one = period(3).early(Nanos(3 * LENGTH + 1));
        let next = one.early(one.start);
        assert!(one.tag() != period(3).tag() && next.tag() != one.tag());
        assert!(next.start.0 - one.start.0 <= 1 << TICK);
    }

    #[test]
    fn all_are_spent_when_the_last_is_and_the_pool_is_empty() {
        let pool = SharedPool::new(2, Nanos(0));
        pool.give(period(0), Lines(10));
        assert!(!pool.spend(period(0)));
        assert!(!pool.spend(period(0)), "ten lines are left");
        pool.hold(period(0));
        assert_eq!(pool.take(period(0), Lines(10)), Lines(10));
        assert!(!pool.all_spent(period(0)));
        assert!(pool.spend(period(0)));
        assert!(pool.all_spent(period(0)));
        pool.renew(period(0), period(1));
        assert!(!pool.all_spent(period(1)), "nobody has begun it");
    }
}

/// Every interleaving of two or three CPUs, by loom: `RUSTFLAGS="--cfg loom" cargo test -p quell-core --release --lib control::pool`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const ONE: Period = Period {
        start: Nanos(0),
        early: false,
    };
    const TWO: Period = Period {
        start: Nanos(1_000_000),
        early: false,
    };

    /// Nothing is taken twice and nothing is lost, also across the end of a period.
    #[test]
    fn donations_are_conserved() {
        loom::model(|| {
            let pool = Arc::new(SharedPool::new(2, Nanos(0)));
            pool.give(ONE, Lines(10));
            let other = Arc::clone(&pool);
            let late = thread::spawn(move || other.take(ONE, Lines(7)).0);
            pool.renew(ONE, TWO);
            pool.give(TWO, Lines(4));
            let taken = pool.take(TWO, Lines(3)).0;
            let late = late.join().unwrap();
            assert_eq!(taken, 3);
            assert_eq!(
                14,
                taken + late + pool.left().0 + pool.expired().0,
                "late: {late}"
            );
        });
    }

    /// Of two who are spent at the same time exactly one learns that it was the last, and never while lines are to be had
    /// or held.
    #[test]
    fn one_learns_that_all_are_spent() {
        loom::model(|| {
            let pool = Arc::new(SharedPool::new(2, Nanos(0)));
            pool.give(ONE, Lines(5));
            let run = |pool: Arc<SharedPool>| {
                let mut held = 0;
                loop {
                    let got = pool.take(ONE, Lines(3)).0;
                    held += got;
                    if got == 0 {
                        return (held, pool.spend(ONE));
                    }
                }
            };
            let other = Arc::clone(&pool);
            let there = thread::spawn(move || run(other));
            let here = run(Arc::clone(&pool));
            let there = there.join().unwrap();
            assert_eq!(here.0 + there.0, 5);
            assert!(here.1 != there.1, "exactly one");
        });
    }

    /// A CPU that gave everything away and wakes is never taken for spent while it holds what it took back.
    #[test]
    fn who_holds_lines_is_not_spent() {
        loom::model(|| {
            let pool = Arc::new(SharedPool::new(2, Nanos(0)));
            pool.give(ONE, Lines(2));
            pool.spend(ONE);
            let other = Arc::clone(&pool);
            let greedy = thread::spawn(move || {
                let got = other.take(ONE, Lines(1)).0;
                (got, other.spend(ONE))
            });
            pool.hold(ONE);
            let got = pool.take(ONE, Lines(2)).0;
            let early = pool.all_spent(ONE);
            assert!(got == 0 || !early, "it holds {got}");
            pool.spend(ONE);
            let (taken, _) = greedy.join().unwrap();
            assert_eq!(taken + got + pool.left().0, 2);
        });
    }

    /// One of two who would begin the next period at different times does; both are then in the same.
    #[test]
    fn one_period_begins() {
        loom::model(|| {
            let pool = Arc::new(SharedPool::new(2, Nanos(0)));
            let other = Arc::clone(&pool);
            let there = thread::spawn(move || other.renew(ONE, ONE.early(Nanos(300_000))));
            let here = pool.renew(ONE, TWO);
            assert_eq!(here, there.join().unwrap());
        });
    }
}
