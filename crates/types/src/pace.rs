//! A target rate: how many steps of a load are due when. It is pure. The generators, on Linux and
//! on the simulated machine, bring the time and wait.

use crate::units::Rate;

/// A target rate is spread over slots this long, in nanoseconds.
pub const SLOT_NS: u64 = 100_000;
/// Waits of up to this long spin: waking from a sleep would take about as long.
pub const SPIN_NS: u64 = 30_000;
/// A stream that is behind its target rate by more than this does not catch up with the rest. A
/// stall must not be followed by a burst of the same length.
const LONGEST_DEBT_NS: u64 = 100_000_000;

/// A target rate, spread over slots. What is due is computed from the beginning, so nothing drifts.
#[derive(Clone, Debug)]
pub struct Pace {
    rate: Rate,
    step_bytes: u64,
    begin: Option<u64>,
    done: u64,
}

impl Pace {
    /// A pace of `rate` program bytes per second, in steps of `step_bytes` (at least one).
    #[must_use]
    pub fn new(rate: Rate, step_bytes: u64) -> Self {
        Self {
            rate,
            step_bytes: step_bytes.max(1),
            begin: None,
            done: 0,
        }
    }

    fn steps_in(&self, nanoseconds: u64) -> u64 {
        let bytes = u128::from(self.rate.0) * u128::from(nanoseconds) / 1_000_000_000;
        u64::try_from(bytes / u128::from(self.step_bytes)).unwrap_or(u64::MAX)
    }

    /// Steps that should be done by the end of the current slot and are not. The first call begins
    /// the first slot.
    pub fn due(&mut self, now: u64) -> u64 {
        let begin = *self.begin.get_or_insert(now);
        let slots = (now - begin) / SLOT_NS + 1;
        let wanted = self.steps_in(slots * SLOT_NS);
        let forgiven = self.steps_in((slots * SLOT_NS).saturating_sub(LONGEST_DEBT_NS));
        self.done = self.done.max(forgiven);
        wanted.saturating_sub(self.done)
    }

    /// Counts `steps` more as done.
    pub fn done(&mut self, steps: u64) {
        self.done += steps;
    }

    /// When the next slot begins, on the caller's clock in nanoseconds.
    #[must_use]
    pub fn next_slot(&self, now: u64) -> u64 {
        let begin = self.begin.unwrap_or(now);
        begin + ((now - begin) / SLOT_NS + 1) * SLOT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_neither_drifts_nor_bursts_after_a_long_stall() {
        // 640 MB/s is 1000 lines per slot of 100 us.
        let mut pace = Pace::new(Rate(640_000_000), 64);
        assert_eq!(pace.due(5_000), 1_000);
        pace.done(1_000);
        assert_eq!(pace.due(5_000 + SLOT_NS - 1), 0);
        assert_eq!(pace.next_slot(5_000 + SLOT_NS - 1), 5_000 + SLOT_NS);
        // Late by three slots: all of them are due.
        assert_eq!(pace.due(5_000 + 3 * SLOT_NS + 7), 3_000);
        pace.done(3_000);
        // Late by ten seconds: a tenth of a second is due.
        assert_eq!(pace.due(10_000_000_000), 1_000_000);
    }
}
