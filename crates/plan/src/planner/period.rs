//! The regulation period, where the policy leaves it open.
//!
//! Method: a neighbour draws its budget in a burst at the beginning of each period. Five things
//! bound how long the burst, and so the period, may be:
//! - A unit of work must meet many bursts. Else its time depends on when it began. So the period is
//!   at most a tenth of the shortest deadline.
//! - A burst that fits next to what the critical groups have in the last-level cache evicts little
//!   of it. A larger one evicts all, and refilling takes longer than the burst. Half of the cache
//!   is assumed to be theirs, where no part of it is.
//! - A wrong prediction costs a period. With `reclaim` the period is as short as stops allow.
//! - Each period costs the neighbour a stop: at most one hundredth of its time.
//! - Whatever waits for a lock that a stopped task holds notices a delay of more than 5 ms.
//!
//! Within these bounds a longer period is better, since a neighbour begins each burst with a cold
//! cache. Without a deadline it is not known what delay a critical group tolerates. The period is
//! then at most MemGuard's usual 1 ms.
//!
//! Stops may be too expensive for the deadline's tenth. The period is then the geometric mean of
//! the two demands, so that both are missed by the same factor, and at most a quarter of the
//! deadline. Both take precedence over the cache. Bandwidth alone bounds nothing: what the
//! neighbours may draw is the same in any period.

use quell_policy::Role;
use quell_types::units::{Bytes, Nanos, Rate, Share};

use super::draft::Draft;

/// The longest period without a deadline.
const USUAL: Nanos = Nanos::millis(1);

const SHORTEST: Nanos = Nanos::micros(100);

/// The longest period that is derived.
const LONGEST: Nanos = Nanos::millis(5);

/// The longest period that a policy may state.
const MOST: Nanos = Nanos::secs(1);

/// The least budget, in costs of a stop. What the kernel does between the group and the brake is
/// not part of the meter: some 6 µs of the 30 on a virtual machine.
const WAKE_UPS: u64 = 5;

/// The assumed cost of a wake-up where no stop was measured.
const WAKE_UP: Nanos = Nanos::micros(30);

/// The period is at most the deadline divided by this.
const PER_DEADLINE: u64 = 10;

/// But the deadline divided by this at most, whatever a stop costs.
const FEWEST_PER_DEADLINE: u64 = 4;

/// The shortest period, in costs of a stop: stops take at most one hundredth of the time.
const PER_STOP: u64 = 100;

/// The assumed cost of a stop where none was measured.
const STOP: Nanos = Nanos::micros(10);

/// What bounds the period on this machine, with this policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// The shortest deadline of a critical group, if there is one.
    deadline: Option<Nanos>,
    /// Whether budgets follow a predictor.
    reclaim: bool,
    /// How long the neighbours take to draw half of the last-level cache, and that half.
    room: Option<(Nanos, Bytes)>,
    /// The cost of a stop, where it was measured.
    stop: Option<Nanos>,
}

/// The period for neighbours that may draw `together`. Adds a note on how it was found, unless the
/// policy states it.
pub(super) fn period(draft: &Draft<'_>, together: Rate) -> (Nanos, Option<String>) {
    let keys = &draft.policy.regulator;
    if let Some(period) = keys.period {
        return (period, None);
    }
    let measured = draft.machine.measured.as_ref();
    let (period, why) = derive(&Bounds {
        deadline: deadline(draft),
        reclaim: keys.reclaim,
        room: room(draft, together),
        stop: measured.and_then(|m| m.stop_cost),
    });
    let note = format!("the regulation period is {period}: {why} (regulator.period overrides it)");
    (period, Some(note))
}

/// The period with which a share of a CPU's time can be held. It is longer than `wanted` where the
/// budget would be worth less than [`WAKE_UPS`]. `None` where no period that a policy may state is
/// long enough.
pub(super) fn holding(draft: &Draft<'_>, share: Share, wanted: Nanos) -> Option<Nanos> {
    if draft.machine.simulated.is_some() {
        // A brake of the simulated machine starts without a delay.
        return Some(wanted);
    }
    let measured = draft.machine.measured.as_ref();
    let wake_up = measured.and_then(|m| m.stop_cost).unwrap_or(WAKE_UP);
    let budget = u128::from(wake_up.0.saturating_mul(WAKE_UPS));
    let least = (budget * u128::from(Share::WHOLE.0)).div_ceil(u128::from(share.0.max(1)));
    let least = Nanos(u64::try_from(least).unwrap_or(u64::MAX));
    if least <= wanted {
        return Some(wanted);
    }
    (least <= MOST).then(|| rounded_up(least).min(MOST))
}

/// The shortest deadline of a critical group.
pub(super) fn deadline(draft: &Draft<'_>) -> Option<Nanos> {
    let critical = draft.policy.with_role(Role::Critical);
    critical
        .filter_map(|(name, group)| draft.deadline_of(name, group.target.as_ref()?))
        .min()
}

fn room(draft: &Draft<'_>, together: Rate) -> Option<(Nanos, Bytes)> {
    let critical = draft.policy.with_role(Role::Critical);
    let half = critical
        .filter(|(_, group)| group.reserve.cache.is_none())
        .flat_map(|(name, _)| draft.division.of(name).cpus.iter())
        .filter_map(|cpu| draft.machine.llc(cpu))
        .map(|cache| Bytes(cache.size.0 / 2))
        .min()?;
    let takes = u128::from(half.0) * 1_000_000_000 / u128::from(together.0.max(1));
    Some((Nanos(u64::try_from(takes).unwrap_or(u64::MAX)), half))
}

fn derive(bounds: &Bounds) -> (Nanos, String) {
    let tenth = bounds.deadline.map(|d| Nanos(d.0 / PER_DEADLINE));
    let mut period = tenth.unwrap_or(USUAL);
    let mut why = match bounds.deadline {
        Some(deadline) => format!("a tenth of the deadline of {deadline}, rounded"),
        None => "the usual one, since no deadline is stated".to_owned(),
    };
    if LONGEST < period {
        period = LONGEST;
        why = "what waits for a lock of a stopped task waits for no longer".to_owned();
    }
    if let Some((takes, half)) = bounds.room
        && takes < period
    {
        period = takes;
        why = format!(
            "in that the neighbours draw no more than half of the last-level cache ({half}), and evict little of the other half"
        );
    }
    if bounds.reclaim {
        period = SHORTEST;
        why = "what the predictor gets wrong costs a period".to_owned();
    }
    period = usual_number(period);
    let stop = bounds.stop.unwrap_or(STOP);
    let dear = Nanos(stop.0.saturating_mul(PER_STOP));
    let dear = match bounds.deadline {
        Some(deadline) => between(dear, Nanos(deadline.0 / PER_DEADLINE)),
        None => dear,
    };
    if dear.min(LONGEST) > period {
        period = rounded_up(dear).min(LONGEST);
        if let Some(deadline) = bounds.deadline {
            period = period.min(Nanos(deadline.0 / FEWEST_PER_DEADLINE));
        }
        why = format!(
            "each period costs a neighbour a stop of {stop}, and more of them are too dear"
        );
    }
    (period.max(SHORTEST), why)
}

/// The geometric mean of what stops and the deadline ask for, where stops ask for more.
fn between(dear: Nanos, tenth: Nanos) -> Nanos {
    let both = u128::from(dear.0) * u128::from(tenth.0);
    dear.min(Nanos(u64::try_from(both.isqrt()).unwrap_or(u64::MAX)))
}

/// Rounds up to two digits and zeros, since a shortest period must not become shorter.
fn rounded_up(n: Nanos) -> Nanos {
    let mut unit = 1;
    while n.0.div_ceil(unit) >= 100 {
        unit *= 10;
    }
    Nanos(n.0.div_ceil(unit).saturating_mul(unit))
}

/// Rounds down to 1, 2 or 5 and zeros.
fn usual_number(n: Nanos) -> Nanos {
    let mut unit = 1;
    while n.0 / unit >= 10 {
        unit *= 10;
    }
    let digit = match n.0 / unit {
        5.. => 5,
        2.. => 2,
        digit => digit,
    };
    Nanos(digit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTHING: Bounds = Bounds {
        deadline: None,
        reclaim: false,
        room: None,
        stop: Some(Nanos::micros(1)),
    };

    fn length(bounds: Bounds) -> Nanos {
        derive(&bounds).0
    }

    #[test]
    fn without_anything_known_it_is_the_usual_one() {
        assert_eq!(length(NOTHING), Nanos::millis(1));
    }

    #[test]
    fn a_deadline_is_ten_periods() {
        let of = |millis| {
            length(Bounds {
                deadline: Some(Nanos::millis(millis)),
                ..NOTHING
            })
        };
        assert_eq!(
            [of(1), of(33), of(1000)],
            [Nanos::micros(100), Nanos::millis(2), Nanos::millis(5)]
        );
    }

    #[test]
    fn a_burst_fits_beside_half_of_the_cache() {
        let bounds = Bounds {
            room: Some((Nanos::micros(530), Bytes(4 << 20))),
            ..NOTHING
        };
        assert_eq!(length(bounds), Nanos::micros(500));
        let (_, why) = derive(&bounds);
        assert!(why.contains("4MiB"), "{why}");
    }

    #[test]
    fn a_dear_stop_makes_it_longer_as_far_as_the_deadline_allows() {
        let dear = Bounds {
            stop: Some(Nanos::micros(25)),
            room: Some((Nanos::micros(530), Bytes(4 << 20))),
            ..NOTHING
        };
        assert_eq!(length(dear), Nanos::micros(2500));
        let soon = Bounds {
            deadline: Some(Nanos::millis(10)),
            ..dear
        };
        // Between 1 ms, a tenth of the deadline, and 2.5 ms, a hundred stops: 1.58 ms.
        assert_eq!(length(soon), Nanos::micros(1600));
        let sooner = Bounds {
            deadline: Some(Nanos::millis(4)),
            stop: Some(Nanos::micros(39)),
            ..dear
        };
        // Between 0.4 and 3.9 ms: 1.25 ms. A quarter of 4 ms is the bound.
        assert_eq!(length(sooner), Nanos::millis(1));
    }

    #[test]
    fn with_a_predictor_it_is_as_short_as_stops_allow() {
        let of = |stop| {
            length(Bounds {
                reclaim: true,
                stop: Some(Nanos::micros(stop)),
                ..NOTHING
            })
        };
        assert_eq!(
            [of(1), of(2), of(25)],
            [SHORTEST, Nanos::micros(200), Nanos::micros(2500)]
        );
    }

    proptest! {
        /// The period is in bounds for any input. A unit meets several periods where one can be
        /// that short.
        #[test]
        fn it_is_always_a_period(
            deadline in prop::option::of(1u64..1 << 34),
            reclaim in any::<bool>(),
            room in prop::option::of(0u64..1 << 34),
            stop in prop::option::of(0u64..1 << 24),
        ) {
            let period = length(Bounds {
                deadline: deadline.map(Nanos),
                reclaim,
                room: room.map(|takes| (Nanos(takes), Bytes(1))),
                stop: stop.map(Nanos),
            });
            prop_assert!(period >= SHORTEST && period <= LONGEST);
            if deadline.is_none() {
                let stops = stop.unwrap_or(STOP.0) * PER_STOP;
                prop_assert!(period.0 >= stops.min(LONGEST.0));
            }
            if let Some(deadline) = deadline {
                prop_assert!(period == SHORTEST || period.0 <= deadline / FEWEST_PER_DEADLINE);
            }
        }
    }
}
