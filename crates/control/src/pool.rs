//! The pool: what CPUs have given away of their budgets in the current period, which period that
//! is, and how many of them have nothing left. Shared by the regulators of all CPUs, and the only
//! thing that they share.
//!
//! Method: MemGuard's global budget (Yun et al., RTAS 2013, section III-C), kept without locks.
//! What must be seen together lies in one word, changed by compare-and-exchange: a tag of the
//! period, how many members have something left, and the lines to be had. So "everybody is out of
//! budget and nothing is left" is one load of one word, and a CPU that is late and still in the
//! last period can neither take from this one's lines nor lose any of its own in it unseen.
//!
//! Members come and go while the others run. Whoever does so may be counted once too often in the
//! period in which it does, never once too little: sharing may begin later for it, not sooner.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU64, Ordering};

use quell_types::units::{Lines, Nanos};

/// A regulation period, the same for all members of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// When it began.
    pub start: Nanos,
    /// It began before the last one was over, because all budgets were spent: what it grants is
    /// best effort.
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
    /// Begins the period `to` after `from`, unless somebody else was first. Returns the current
    /// one.
    fn renew(&self, from: Period, to: Period) -> Period;
    /// A member more, with something left in every period until it says otherwise.
    fn join(&self);
    /// A member less, which had something `left` in `period` or had not.
    fn leave(&self, period: Period, left: bool);
    /// A member has `lines` to give away.
    fn give(&self, period: Period, lines: Lines);
    /// A member takes up to `want`. Whoever is counted as spent takes itself out of that count
    /// first ([`Pool::hold`]).
    fn take(&self, period: Period, want: Lines) -> Lines;
    /// Whether there is anything to take.
    fn offers(&self, period: Period) -> bool;
    /// A member has nothing left.
    fn spend(&self, period: Period);
    /// A member that was counted as spent is about to have something again.
    fn hold(&self, period: Period);
    /// Whether every member has spent what it had, and the pool is empty.
    fn all_spent(&self, period: Period) -> bool;
    /// Everybody may run freely until the period ends.
    fn set_free(&self, period: Period);
    /// Whether everybody may.
    fn is_free(&self, period: Period) -> bool;
    /// A member whose budget is headroom ([`Pooling::headroom`](crate::config::Pooling::headroom))
    /// draws in `period`.
    fn work(&self, period: Period);
    /// The start of the last period in which one did; zero if none has.
    fn worked(&self) -> Nanos;
}

const LINES_BITS: u32 = 30;
const COUNT_BITS: u32 = 10;
const LINES: u64 = (1 << LINES_BITS) - 1;
const COUNTS: u64 = (1 << COUNT_BITS) - 1;
const TAGS: u64 = (1 << (64 - LINES_BITS - COUNT_BITS)) - 1;

/// So many members, or more, cannot be counted: then sharing what is left never begins.
const TOO_MANY: u64 = COUNTS;

/// The word: tag of the period, members that have something left, lines to be had (2^30 lines = 68
/// GB; what goes beyond expires).
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

    /// Whether it is of a period before that of `tag`. Tags wrap: the nearer way round tells which
    /// is the older.
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

/// The pool of threads and of simulated cores alike. Fixed in size; nothing in it waits or
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

/// No period.
const NEVER: u64 = u64::MAX;

impl SharedPool {
    /// A pool without members, its first period beginning at `start`.
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

    /// The word as a member sees it that is in `period`: an older one's is over, and leaves so many
    /// lines unused. `None`: the member is late.
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

    /// Changes the word as a member sees it that is in `period`; what its change leaves of an older
    /// period, or the change itself says is too much, expires. `None`: the member is late, and
    /// nothing was changed.
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

    /// Counted among the members first: whoever begins the state of a period meanwhile counts it.
    /// In a state that was there already it is counted here.
    fn join(&self) {
        self.members.fetch_add(1, Ordering::AcqRel);
        loop {
            let period = self.period();
            let word = self.state.load(Ordering::Acquire);
            // Late by a moment: a newer period has just begun.
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

    /// Taken out of the state first, and of the members then.
    fn leave(&self, period: Period, left: bool) {
        let tag = period.tag();
        let mut word = self.state.load(Ordering::Acquire);
        loop {
            let state = State::unpack(word);
            // Whoever has not begun a period that others have is counted in it.
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

    // One that is late tells of an older period: what others told since must not be lost.
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

    /// Of two who are spent at the same time the last, at least, sees that all are, and nobody
    /// while lines are to be had or held.
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

    /// One leaves while the other spends all it has and the next period begins: it is never waited
    /// for afterwards for longer than a period, and the other is never taken for spent while it is
    /// not.
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

    /// One joins while the other begins the next period and spends what it has in it.
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

    /// A CPU that gave everything away and wakes is never taken for spent while it holds what it
    /// took back.
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

    /// One of two who would begin the next period at different times does; both are then in the
    /// same.
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
