//! What a limited group drew of CPU time, by the kernel's own account.

use std::collections::VecDeque;

use quell_types::units::{Nanos, Share};

use quell_types::witness::Fault;

/// Looks that the sliding window spans.
const LOOKS: usize = 10;

/// The account of a group at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The caller's clock.
    pub at: Nanos,
    /// CPU time used so far.
    pub used: Nanos,
}

/// The accounts of a group, from look to look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Where the long span begins.
    first: Option<Sample>,
    /// The last looks, the newest last.
    last: VecDeque<Sample>,
    /// Whether the last judgement was no.
    broken: bool,
}

/// CPU time that a group may use in a span, with the tolerance: 5 %, and one period's time. A quota
/// may be drawn twice around the border of two periods, on as many CPUs as the share has.
fn allowed(share: Share, period: Nanos, span: Nanos) -> Nanos {
    let part = |time: u64, share: u64| {
        let product = u128::from(time) * u128::from(share);
        u64::try_from(product / u128::from(Share::WHOLE.0)).unwrap_or(u64::MAX)
    };
    let steady = part(span.0, share.0);
    let once = part(period.0, share.0.max(Share::WHOLE.0));
    let sum = steady.saturating_add(steady / 20);
    Nanos(sum.saturating_add(once))
}

impl Series {
    /// Takes the account of a look. One at the same time as the last is left out. An account that
    /// went back begins anew: the cgroup was made again.
    pub fn add(&mut self, sample: Sample) {
        match self.last.back() {
            Some(before) if sample.at <= before.at => return,
            Some(before) if sample.used < before.used => *self = Self::default(),
            _ => {}
        }
        self.first.get_or_insert(sample);
        if self.last.len() > LOOKS {
            self.last.pop_front();
        }
        self.last.push_back(sample);
    }

    /// Judges the last 1 to 10 looks and the whole time since the first one. After a breach the
    /// time begins anew, as soon as a look finds the group within its share.
    pub fn judge(&mut self, share: Share, period: Nanos) -> Option<Fault> {
        let newest = *self.last.back()?;
        if self.broken {
            let before = self.last.iter().rev().nth(1);
            let within = before.is_none_or(|before| {
                let span = newest.at.since(before.at);
                newest.used.since(before.used) <= allowed(share, Nanos(0), span)
            });
            if within {
                self.first = Some(newest);
                self.last = [newest].into();
            }
        }
        let since = |before: &Sample| {
            let (span, drawn) = (newest.at.since(before.at), newest.used.since(before.used));
            let allowed = allowed(share, period, span);
            (drawn > allowed).then_some(Fault::Exceeded {
                drawn,
                allowed,
                span,
            })
        };
        let looks = self.last.iter().rev().skip(1).chain(self.first.as_ref());
        let fault = looks.into_iter().find_map(since);
        self.broken = fault.is_some();
        fault
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHARE: Share = Share::percent(20);
    const PERIOD: Nanos = Nanos::millis(100);

    /// Looks once a second at a group that used these milliseconds of CPU time in each.
    fn looks(used: &[u64]) -> Vec<bool> {
        let mut series = Series::default();
        let mut sum = 0;
        let each = used.iter().enumerate().map(|(n, ms)| {
            sum += ms;
            series.add(Sample {
                at: Nanos::secs(n as u64),
                used: Nanos::millis(sum),
            });
            series.judge(SHARE, PERIOD).is_some()
        });
        each.collect()
    }

    #[test]
    fn a_lifted_limit_is_seen_at_the_next_look() {
        let mut used = vec![200; 20];
        used.extend([1_000, 1_000]);
        let seen = looks(&used);
        assert!(seen[..20].iter().all(|broken| !broken), "{seen:?}");
        assert_eq!(seen[20..], [true, true]);
    }

    #[test]
    fn a_little_too_much_is_seen_over_time() {
        // 22 % for 20 %: beyond 5 %, but within one period for a while.
        let seen = looks(&[220; 40]);
        assert!(!seen[5] && seen[39], "{seen:?}");
    }

    #[test]
    fn a_group_that_is_held_again_holds_at_the_next_look() {
        let seen = looks(&[0, 200, 900, 900, 200, 200, 200]);
        assert_eq!(seen, [false, false, true, true, false, false, false]);
    }

    #[test]
    fn a_steady_excess_does_not_flap() {
        let seen = looks(&[300; 20]);
        let first = seen.iter().position(|broken| *broken).unwrap();
        assert!(first <= 3 && seen[first..].iter().all(|broken| *broken));
    }

    #[test]
    fn the_fault_has_the_figures() {
        let mut series = Series::default();
        for (at, used) in [(0, 0), (1, 1_000)] {
            series.add(Sample {
                at: Nanos::secs(at),
                used: Nanos::millis(used),
            });
        }
        let expected = Fault::Exceeded {
            drawn: Nanos::secs(1),
            allowed: Nanos::millis(310),
            span: Nanos::secs(1),
        };
        assert_eq!(series.judge(SHARE, PERIOD), Some(expected));
    }

    #[test]
    fn an_account_that_begins_anew_is_no_breach() {
        let mut series = Series::default();
        for (at, used) in [(0, 5_000), (1, 10), (2, 20)] {
            series.add(Sample {
                at: Nanos::secs(at),
                used: Nanos::millis(used),
            });
            assert_eq!(series.judge(SHARE, PERIOD), None);
        }
    }

    proptest! {
        /// The kernel's quota: a group that draws at most its quota in each period is never told.
        #[test]
        fn a_group_below_its_quota_is_never_reported(
            draws in prop::collection::vec(0_u64..=20, 1..400),
            steps in prop::collection::vec(1_usize..30, 1..60),
            offset in 0_u64..100,
        ) {
            let mut series = Series::default();
            let mut at = 0;
            for step in steps {
                let used: u64 = draws.iter().take(at).sum();
                let sample = Sample {
                    at: Nanos::millis(at as u64 * 100 + offset),
                    used: Nanos::millis(used),
                };
                series.add(sample);
                prop_assert_eq!(series.judge(SHARE, PERIOD), None);
                at += step;
            }
        }
    }
}
