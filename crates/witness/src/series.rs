//! An amount that the kernel counts, such as CPU time or bytes, against a limit: judged over the
//! last looks and over all the time.

use std::collections::VecDeque;

use quell_types::units::{Nanos, Share};

/// Looks that the sliding window spans.
const LOOKS: usize = 10;

/// What was counted at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    at: Nanos,
    used: u64,
}

/// The counts, from look to look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Where the long span begins.
    first: Option<Sample>,
    /// The last looks, the newest last.
    last: VecDeque<Sample>,
    /// Whether the last judgement was no.
    broken: bool,
}

/// More than a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub used: u64,
    pub allowed: u64,
    pub span: Nanos,
}

/// What a limit allows, with its tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Per second.
    pub rate: u64,
    /// As much more, of the rate.
    pub tolerance: Share,
    /// What may be used at once on top of that.
    pub once: u64,
}

impl Allowed {
    /// CPU time of a share. A quota may be drawn twice around the border of two periods, on as many
    /// CPUs as the share has.
    pub fn cpu_time(share: Share, period: Nanos, tolerance: Share) -> Self {
        let part = |time: u64, share: u64| {
            let product = u128::from(time) * u128::from(share);
            u64::try_from(product / u128::from(Share::WHOLE.0)).unwrap_or(u64::MAX)
        };
        Self {
            rate: part(1_000_000_000, share.0),
            tolerance,
            once: part(period.0, share.0.max(Share::WHOLE.0)),
        }
    }

    /// In a span, without what may be used at once.
    fn steady(&self, span: Nanos) -> u64 {
        let rate = u128::from(self.rate) * u128::from(Share::WHOLE.0 + self.tolerance.0);
        let product = rate * u128::from(span.0) / u128::from(Share::WHOLE.0);
        u64::try_from(product / 1_000_000_000).unwrap_or(u64::MAX)
    }
}

impl Series {
    /// Takes what was counted at a look. One at the same time as the last is left out. A count that
    /// went back begins anew: the cgroup was made again.
    pub fn add(&mut self, at: Nanos, used: u64) {
        match self.last.back() {
            Some(before) if at <= before.at => return,
            Some(before) if used < before.used => *self = Self::default(),
            _ => {}
        }
        let sample = Sample { at, used };
        self.first.get_or_insert(sample);
        if self.last.len() > LOOKS {
            self.last.pop_front();
        }
        self.last.push_back(sample);
    }

    /// Judges the last 1 to 10 looks and the whole time since the first one. After a breach the
    /// time begins anew, as soon as a look finds the group within its limit.
    pub fn judge(&mut self, allowed: Allowed) -> Option<Over> {
        let newest = *self.last.back()?;
        if self.broken {
            let before = self.last.iter().rev().nth(1);
            let within = before.is_none_or(|before| {
                let span = newest.at.since(before.at);
                newest.used - before.used <= allowed.steady(span)
            });
            if within {
                self.first = Some(newest);
                self.last = [newest].into();
            }
        }
        let since = |before: &Sample| {
            let (span, used) = (newest.at.since(before.at), newest.used - before.used);
            let allowed = allowed.steady(span).saturating_add(allowed.once);
            (used > allowed).then_some(Over {
                used,
                allowed,
                span,
            })
        };
        let looks = self.last.iter().rev().skip(1).chain(self.first.as_ref());
        let over = looks.into_iter().find_map(since);
        self.broken = over.is_some();
        over
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A fifth of a CPU, by a quota of 100 ms.
    fn allowed() -> Allowed {
        Allowed::cpu_time(Share::percent(20), Nanos::millis(100), Share::percent(5))
    }

    /// Looks once a second at a group that used these milliseconds of CPU time in each.
    fn looks(used: &[u64]) -> Vec<bool> {
        let mut series = Series::default();
        let mut sum = 0;
        let each = used.iter().enumerate().map(|(n, ms)| {
            sum += ms;
            series.add(Nanos::secs(n as u64), sum * 1_000_000);
            series.judge(allowed()).is_some()
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
    fn what_is_over_has_the_figures() {
        let mut series = Series::default();
        for (at, used) in [(0, 0), (1, 1_000)] {
            series.add(Nanos::secs(at), used * 1_000_000);
        }
        let expected = Over {
            used: 1_000_000_000,
            allowed: 310_000_000,
            span: Nanos::secs(1),
        };
        assert_eq!(series.judge(allowed()), Some(expected));
    }

    #[test]
    fn an_account_that_begins_anew_is_no_breach() {
        let mut series = Series::default();
        for (at, used) in [(0, 5_000), (1, 10), (2, 20)] {
            series.add(Nanos::secs(at), used * 1_000_000);
            assert_eq!(series.judge(allowed()), None);
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
                series.add(Nanos::millis(at as u64 * 100 + offset), used * 1_000_000);
                prop_assert_eq!(series.judge(allowed()), None);
                at += step;
            }
        }
    }
}
