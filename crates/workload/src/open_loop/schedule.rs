//! When requests are due: at equal intervals. Each time is computed from the beginning, so rounding
//! does not add up.

const SECOND: u64 = 1_000_000_000;

/// How many requests have their intended start in `[0, span)` at `rate` per second.
pub(super) fn requests(rate: u32, span: u64) -> u64 {
    let all = (u128::from(span) * u128::from(rate)).div_ceil(u128::from(SECOND));
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// The intended starts of a run, and which one is next.
#[derive(Debug)]
pub(super) struct Schedule {
    begin: u64,
    rate: u32,
    requests: u64,
    next: u64,
}

impl Schedule {
    /// `rate` requests per second for `span` nanoseconds from `begin` on.
    pub(super) fn new(begin: u64, rate: u32, span: u64) -> Self {
        Self {
            begin,
            rate,
            requests: requests(rate, span),
            next: 0,
        }
    }

    fn intended(&self, index: u64) -> u64 {
        let after = u128::from(index) * u128::from(SECOND) / u128::from(self.rate.max(1));
        self.begin
            .saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// When the next request is due. `None` after the last.
    pub(super) fn due(&self) -> Option<u64> {
        (self.next < self.requests).then(|| self.intended(self.next))
    }

    /// Takes the next request if it is due by `now`: its number and its intended start.
    pub(super) fn take(&mut self, now: u64) -> Option<(u64, u64)> {
        let due = self.due().filter(|due| *due <= now)?;
        self.next += 1;
        Some((self.next - 1, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_equal_and_do_not_drift() {
        // 3 per second: 333 333 333.3 ns each.
        let mut schedule = Schedule::new(1_000, 3, 2 * SECOND);
        let mut starts = Vec::new();
        while let Some((index, start)) = schedule.take(u64::MAX) {
            assert_eq!(index, starts.len() as u64);
            starts.push(start - 1_000);
        }
        let third = SECOND / 3;
        let expected = [0, third, 2 * third, SECOND, SECOND + third];
        assert_eq!(starts[..5], expected);
        assert_eq!(starts.len(), 6);
    }

    #[test]
    fn nothing_is_taken_early_and_all_that_was_missed_is_taken_late() {
        let mut schedule = Schedule::new(0, 1_000, SECOND / 100);
        assert_eq!(schedule.take(0), Some((0, 0)));
        assert_eq!(schedule.take(999_999), None);
        assert_eq!(schedule.due(), Some(1_000_000));
        // After a stop of 5 ms five requests are due, each with its own start.
        let missed: Vec<_> = std::iter::from_fn(|| schedule.take(5_000_000)).collect();
        assert_eq!(missed.len(), 5);
        assert_eq!(missed[4], (5, 5_000_000));
        while schedule.take(u64::MAX).is_some() {}
        assert_eq!(schedule.due(), None);
    }

    #[test]
    fn a_part_of_an_interval_has_a_request_at_its_beginning() {
        assert_eq!(requests(1_000, 0), 0);
        assert_eq!(requests(1_000, 1), 1);
        assert_eq!(requests(1_000, 1_000_000), 1);
        assert_eq!(requests(1_000, 1_000_001), 2);
        assert_eq!(requests(u32::MAX, u64::MAX), u64::MAX);
    }
}
