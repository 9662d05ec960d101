use super::*;

const LENGTH: u64 = 1_000_000;

fn period(n: u64) -> Period {
    Period {
        start: Nanos(n * LENGTH),
        early: false,
    }
}

fn pool() -> SharedPool {
    let pool = SharedPool::new(Nanos(0));
    pool.join();
    pool.join();
    pool
}

#[test]
fn what_is_given_can_be_taken_once() {
    let pool = pool();
    pool.give(period(0), Lines(30));
    assert_eq!(pool.take(period(0), Lines(20)), Lines(20));
    assert_eq!(pool.take(period(0), Lines(20)), Lines(10));
    assert_eq!(pool.take(period(0), Lines(20)), Lines(0));
}

#[test]
fn what_nobody_took_expires_with_its_period() {
    let pool = pool();
    pool.give(period(0), Lines(30));
    assert_eq!(pool.renew(period(0), period(1)), period(1));
    // A late member gets nothing of the new period, and what it gives is of no use.
    pool.give(period(1), Lines(5));
    assert_eq!(pool.take(period(0), Lines(9)), Lines(0));
    pool.give(period(0), Lines(2));
    assert_eq!((pool.left(), pool.expired()), (Lines(5), Lines(32)));
}

#[test]
fn one_of_two_who_would_begin_a_period_does() {
    let pool = pool();
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
    let pool = pool();
    pool.give(period(0), Lines(10));
    pool.spend(period(0));
    pool.spend(period(0));
    assert!(!pool.all_spent(period(0)), "ten lines are left");
    pool.hold(period(0));
    assert_eq!(pool.take(period(0), Lines(10)), Lines(10));
    assert!(!pool.all_spent(period(0)));
    pool.spend(period(0));
    assert!(pool.all_spent(period(0)));
    pool.renew(period(0), period(1));
    assert!(!pool.all_spent(period(1)), "no CPU has begun it");
}

#[test]
fn nobody_waits_for_a_member_that_left() {
    for (left, begun) in [(true, true), (false, true), (true, false)] {
        let pool = pool();
        pool.spend(period(0));
        if !left {
            pool.spend(period(0));
        }
        if begun {
            pool.leave(period(0), left);
            assert!(pool.all_spent(period(0)), "left with something: {left}");
        }
        pool.renew(period(0), period(1));
        pool.give(period(1), Lines(1));
        pool.take(period(1), Lines(1));
        if !begun {
            // It was late, and is counted in the period that other members have begun.
            pool.leave(period(0), left);
        }
        assert!(!pool.all_spent(period(1)));
        pool.spend(period(1));
        assert!(pool.all_spent(period(1)), "left with something: {left}");
    }
}

#[test]
fn a_member_that_joins_is_waited_for() {
    let pool = pool();
    pool.spend(period(0));
    pool.spend(period(0));
    pool.join();
    assert!(!pool.all_spent(period(0)));
    pool.spend(period(0));
    assert!(pool.all_spent(period(0)));
    pool.renew(period(0), period(1));
    for _ in 0..3 {
        assert!(!pool.all_spent(period(1)));
        pool.spend(period(1));
    }
    assert!(pool.all_spent(period(1)));
}
