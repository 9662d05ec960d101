//! The pool: what CPUs have given away of their budgets in the current period, which period that
//! is, and how many members have something left. It is all that the regulators of the CPUs share.
//!
//! Method: MemGuard's global budget (Yun et al., RTAS 2013, section III-C), kept without locks.
//! What must be seen together lies in one word, changed by compare-and-exchange: a tag of the
//! period, how many members have something left, and the lines in the pool. "All members are out of
//! budget and the pool is empty" is therefore one load of one word. A late CPU that is still in the
//! last period can neither take from the new period's lines nor lose its own in it unseen.
//!
//! Members come and go while other members run. A member that does so may be counted once too often
//! in that period, never once too little. Sharing may therefore begin later, never sooner.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU64, Ordering};

use quell_types::units::{Lines, Nanos};

/// A regulation period, the same for all members of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// When the period began.
    pub start: Nanos,
    /// The period began before the last one was over, because all budgets were spent. What it
    /// grants is best effort.
    pub early: bool,
}

/// The least distance between the starts of two periods, as a power of two of ns: 16.4 µs.
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

    /// Distinguishes the period from those of the two minutes before and after it.
    const fn tag(self) -> u64 {
        self.start.0 >> TICK & TAGS
    }

    /// The period that begins at `now`, before this one is over.
    #[must_use]
    pub fn early(self, now: Nanos) -> Self {
        let next = ((self.start.0 >> TICK) + 1) << TICK;
        Self {
            start: Nanos(now.0.max(next)),
            early: true,
        }
    }
}

/// What the regulators of several CPUs share. Each call names the period that the caller is in.
pub trait Pool {
    /// The current period of the pool.
    fn period(&self) -> Period;
    /// Begins the period `to` after `from`, unless another member has begun one already. Returns
    /// the current period.
    fn renew(&self, from: Period, to: Period) -> Period;
    /// Adds a member. It has something left in each period until it says otherwise.
    fn join(&self);
    /// Removes a member. `left` says whether it had something left in `period`.
    fn leave(&self, period: Period, left: bool);
    /// A member gives away `lines`. They can be taken until `period` ends.
    fn give(&self, period: Period, lines: Lines);
    /// A member takes up to `want`; returns what it got. A member that is counted as spent calls
    /// [`Pool::hold`] first.
    fn take(&self, period: Period, want: Lines) -> Lines;
    /// Whether there is anything to take.
    fn offers(&self, period: Period) -> bool;
    /// Counts a member as having nothing left.
    fn spend(&self, period: Period);
    /// Counts a member that was spent as having something again. To be called before it takes.
    fn hold(&self, period: Period);
    /// Whether all members have spent what they had, and the pool is empty.
    fn all_spent(&self, period: Period) -> bool;
    /// Lets all members run freely until `period` ends.
    fn set_free(&self, period: Period);
    /// Whether [`Pool::set_free`] was called for `period`.
    fn is_free(&self, period: Period) -> bool;
    /// A member whose budget is headroom ([`Pooling::headroom`](crate::config::Pooling::headroom))
    /// draws in `period`.
    fn work(&self, period: Period);
    /// The start of the last period for which [`Pool::work`] was called; zero before that.
    fn worked(&self) -> Nanos;
}

const LINES_BITS: u32 = 30;
const COUNT_BITS: u32 = 10;
const LINES: u64 = (1 << LINES_BITS) - 1;
const COUNTS: u64 = (1 << COUNT_BITS) - 1;
const TAGS: u64 = (1 << (64 - LINES_BITS - COUNT_BITS)) - 1;

/// From this many members on they are not counted: sharing what is left then never begins.
const TOO_MANY: u64 = COUNTS;

/// The word: tag of the period, members that have something left, lines in the pool. 2^30 lines are
/// 68 GB; lines beyond that expire.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    tag: u64,
    having: u64,
    lines: u64,
}

impl State {
    const fn unpack(word: u64) -> Self {
        Self {
            tag: word >> (LINES_BITS + COUNT_BITS),
            having: word >> LINES_BITS & COUNTS,
            lines: word & LINES,
        }
    }

    const fn pack(self) -> u64 {
        self.tag << (LINES_BITS + COUNT_BITS) | self.having << LINES_BITS | self.lines
    }

    /// Whether this state belongs to a period before that of `tag`. Tags wrap around: the shorter
    /// distance decides.
    const fn before(self, tag: u64) -> bool {
        tag != self.tag && tag.wrapping_sub(self.tag) & TAGS <= TAGS / 2
    }

    fn one_more(self) -> Self {
        let having = (self.having + 1).min(TOO_MANY);
        Self { having, ..self }
    }

    fn one_less(self) -> Self {
        let having = match self.having {
            TOO_MANY => TOO_MANY,
            some => some.saturating_sub(1),
        };
        Self { having, ..self }
    }
}

/// The pool, for threads and simulated cores alike. Its size is fixed; nothing in it waits or
/// allocates.
#[derive(Debug)]
pub struct SharedPool {
    members: AtomicU64,
    period: AtomicU64,
    state: AtomicU64,
    free: AtomicU64,
    worked: AtomicU64,
    expired: AtomicU64,
}

/// Stands for "no period" in `free`.
const NEVER: u64 = u64::MAX;

impl SharedPool {
    /// A pool without members. Its first period begins at `start`.
    #[must_use]
    pub fn new(start: Nanos) -> Self {
        let first = Period {
            start,
            early: false,
        };
        let state = State {
            tag: first.tag(),
            having: 0,
            lines: 0,
        };
        Self {
            members: AtomicU64::new(0),
            period: AtomicU64::new(first.pack()),
            state: AtomicU64::new(state.pack()),
            free: AtomicU64::new(NEVER),
            worked: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }

    /// Lines given away that no member took, of periods that are over.
    #[must_use]
    pub fn expired(&self) -> Lines {
        Lines(self.expired.load(Ordering::Acquire))
    }

    /// Lines that can be taken now.
    #[must_use]
    pub fn left(&self) -> Lines {
        Lines(State::unpack(self.state.load(Ordering::Acquire)).lines)
    }

    /// The word as a member in `period` sees it. If the word is of an older period, that one is
    /// over: the member sees a fresh state, and the second value is the lines left unused. `None`:
    /// the member is late.
    fn seen_in(&self, period: Period, word: u64) -> Option<(State, u64)> {
        let (state, tag) = (State::unpack(word), period.tag());
        if state.tag == tag {
            return Some((state, 0));
        }
        let fresh = || State {
            tag,
            having: self.members.load(Ordering::Acquire).min(TOO_MANY),
            lines: 0,
        };
        state.before(tag).then(|| (fresh(), state.lines))
    }

    /// Changes the word as a member in `period` sees it. Lines left of an older period expire, as
    /// do those that `change` returns as too many. `None`: the member is late, and nothing was
    /// changed.
    fn change(
        &self,
        period: Period,
        change: impl Fn(State) -> (State, u64),
    ) -> Option<(State, State)> {
        let mut word = self.state.load(Ordering::Acquire);
        loop {
            let (before, left) = self.seen_in(period, word)?;
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

    /// Adds to the members first. A member that begins the state of a period meanwhile then counts
    /// the new one. In a state that already exists the new member is counted here.
    fn join(&self) {
        self.members.fetch_add(1, Ordering::AcqRel);
        loop {
            let period = self.period();
            let word = self.state.load(Ordering::Acquire);
            // A newer period has just begun.
            let Some((state, left)) = self.seen_in(period, word) else {
                continue;
            };
            let begun = State::unpack(word).tag == period.tag();
            let state = if begun { state.one_more() } else { state };
            let set = self.state.compare_exchange(
                word,
                state.pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if set.is_ok() {
                self.expired.fetch_add(left, Ordering::AcqRel);
                return;
            }
        }
    }

    /// Removes it from the state first, then from the members.
    fn leave(&self, period: Period, left: bool) {
        let tag = period.tag();
        let mut word = self.state.load(Ordering::Acquire);
        loop {
            let state = State::unpack(word);
            // A member that has not begun the current period yet is still counted in it.
            let counted = if state.tag == tag {
                left
            } else {
                !state.before(tag)
            };
            if !counted {
                break;
            }
            let less = state.one_less().pack();
            match self
                .state
                .compare_exchange_weak(word, less, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.members.fetch_sub(1, Ordering::AcqRel);
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

    fn offers(&self, period: Period) -> bool {
        let state = State::unpack(self.state.load(Ordering::Acquire));
        state.tag == period.tag() && state.lines > 0
    }

    fn spend(&self, period: Period) {
        self.change(period, |state| (state.one_less(), 0));
    }

    fn hold(&self, period: Period) {
        self.change(period, |state| (state.one_more(), 0));
    }

    fn all_spent(&self, period: Period) -> bool {
        let state = State::unpack(self.state.load(Ordering::Acquire));
        state.tag == period.tag() && state.lines == 0 && state.having == 0
    }

    fn set_free(&self, period: Period) {
        self.free.store(period.pack(), Ordering::Release);
    }

    fn is_free(&self, period: Period) -> bool {
        self.free.load(Ordering::Acquire) == period.pack()
    }

    // `max`, since a late member reports an older period, which must not replace a newer one.
    fn work(&self, period: Period) {
        self.worked.fetch_max(period.start.0, Ordering::AcqRel);
    }

    fn worked(&self) -> Nanos {
        Nanos(self.worked.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pool_tests.rs"]
mod tests;

/// Every interleaving of two or three CPUs, by loom: `RUSTFLAGS="--cfg loom" cargo test -p
/// quell-control --release --lib pool`.
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

    fn pool(members: usize) -> Arc<SharedPool> {
        let pool = Arc::new(SharedPool::new(Nanos(0)));
        (0..members).for_each(|_| pool.join());
        pool
    }

    /// Nothing is taken twice and nothing is lost, also across the end of a period.
    #[test]
    fn donations_are_conserved() {
        loom::model(|| {
            let pool = pool(2);
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

    /// If two members are spent at the same time, at least the last sees that all are. Neither sees
    /// it while lines can be taken or are held.
    #[test]
    fn somebody_learns_that_all_are_spent() {
        loom::model(|| {
            let pool = pool(2);
            pool.give(ONE, Lines(5));
            let run = |pool: Arc<SharedPool>| {
                let mut held = 0;
                loop {
                    let got = pool.take(ONE, Lines(3)).0;
                    held += got;
                    if got == 0 {
                        pool.spend(ONE);
                        return (held, pool.all_spent(ONE));
                    }
                }
            };
            let other = Arc::clone(&pool);
            let there = thread::spawn(move || run(other));
            let here = run(Arc::clone(&pool));
            let there = there.join().unwrap();
            assert_eq!(here.0 + there.0, 5);
            assert!(here.1 || there.1);
        });
    }

    /// One member leaves while the other spends all it has and the next period begins. The one that
    /// left is waited for at most until that period ends. The other never counts as spent while it
    /// is not.
    #[test]
    fn who_leaves_is_counted_no_longer() {
        loom::model(|| {
            let pool = pool(2);
            let other = Arc::clone(&pool);
            let leaves = thread::spawn(move || {
                other.spend(ONE);
                other.leave(ONE, false);
            });
            assert!(!pool.all_spent(ONE), "it has not spent anything");
            pool.renew(ONE, TWO);
            pool.give(TWO, Lines(1));
            assert!(!pool.all_spent(TWO));
            pool.take(TWO, Lines(1));
            assert!(!pool.all_spent(TWO), "it has not spent anything");
            leaves.join().unwrap();
            let three = TWO.early(Nanos(1_500_000));
            pool.renew(TWO, three);
            pool.spend(three);
            assert!(pool.all_spent(three));
        });
    }

    /// One member joins while the other begins the next period and spends what it has in it.
    #[test]
    fn who_joins_is_waited_for() {
        loom::model(|| {
            let pool = pool(1);
            let other = Arc::clone(&pool);
            let joins = thread::spawn(move || {
                other.join();
                let in_two = other.period() == TWO;
                in_two && other.all_spent(TWO)
            });
            pool.renew(ONE, TWO);
            pool.spend(TWO);
            assert!(!joins.join().unwrap(), "it has not spent anything");
            assert!(!pool.all_spent(TWO));
        });
    }

    /// A CPU that gave everything away and wakes never counts as spent while it holds what it took
    /// back.
    #[test]
    fn who_holds_lines_is_not_spent() {
        loom::model(|| {
            let pool = pool(2);
            pool.give(ONE, Lines(2));
            pool.spend(ONE);
            let other = Arc::clone(&pool);
            let greedy = thread::spawn(move || {
                let got = other.take(ONE, Lines(1)).0;
                other.spend(ONE);
                got
            });
            pool.hold(ONE);
            let got = pool.take(ONE, Lines(2)).0;
            let early = pool.all_spent(ONE);
            assert!(got == 0 || !early, "it holds {got}");
            pool.spend(ONE);
            let taken = greedy.join().unwrap();
            assert_eq!(taken + got + pool.left().0, 2);
        });
    }

    /// Two members try to begin the next period at different times. One succeeds, and both are in
    /// that period.
    #[test]
    fn one_period_begins() {
        loom::model(|| {
            let pool = pool(2);
            let other = Arc::clone(&pool);
            let there = thread::spawn(move || other.renew(ONE, ONE.early(Nanos(300_000))));
            let here = pool.renew(ONE, TWO);
            assert_eq!(here, there.join().unwrap());
        });
    }
}
