//! The loop that keeps a load up. Nothing here allocates.
//!
//! - It runs batches, and reads the clock about every ten microseconds. A reading takes some 30 ns,
//!   which does not show in a batch of that length.
//! - It keeps a target rate where one is given.
//! - It fills windows while measuring.
//! - It asks once a millisecond whether to end.

use crate::account::Sampler;
use quell_types::pace::{Pace, SPIN_NS};
use quell_types::units::Rate;
use quell_types::windows::next_batch;

use crate::clock;
use crate::kernels;
use crate::resolved::Load;
use crate::windows::Windows;

/// How often the loop asks whether to end, in nanoseconds.
const ASK_NS: u64 = 1_000_000;
/// What one call of [`Driver::run`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// How many steps were done.
    pub steps: u64,
    /// How long it really took, in nanoseconds.
    pub duration_ns: u64,
    /// Whether it ended because it was asked to.
    pub interrupted: bool,
}

/// A load and the state of its loop.
#[derive(Debug)]
pub struct Driver {
    load: Load,
    batch: u64,
    pace: Option<Pace>,
    /// Reads the kernel's account of each window. `None`: no account is kept.
    pub(crate) sampler: Option<Sampler>,
}

impl Driver {
    /// Drives `load`, at `rate` program bytes per second if given.
    #[must_use]
    pub fn new(load: Load, rate: Option<Rate>) -> Self {
        let pace = rate.map(|rate| Pace::new(rate, load.step_bytes()));
        Self {
            load,
            batch: 64,
            pace,
            sampler: None,
        }
    }

    /// Changes the rate. `None`: as fast as it can.
    pub(crate) fn pace(&mut self, rate: Option<Rate>) {
        self.pace = rate.map(|rate| Pace::new(rate, self.load.step_bytes()));
    }

    /// The load that is kept up.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// The load, to change what it does.
    pub(crate) fn load_mut(&mut self) -> &mut Load {
        &mut self.load
    }

    /// Runs for `duration` nanoseconds and until every window has a value, or until `asked` returns
    /// true.
    pub fn run(
        &mut self,
        duration: u64,
        mut windows: Option<&mut Windows<'_>>,
        mut asked: impl FnMut() -> bool,
    ) -> Span {
        let begin = clock::now();
        let end = begin.saturating_add(duration);
        let mut now = begin;
        let mut ask = begin.saturating_add(ASK_NS);
        let mut steps = 0;
        let mut interrupted = false;
        if let Some(windows) = windows.as_deref_mut() {
            windows.begin(begin, 0);
        }
        while (now < end || windows.as_deref().is_some_and(Windows::open)) && !interrupted {
            let due = match &mut self.pace {
                None => self.batch,
                Some(pace) => pace.due(now).min(self.batch),
            };
            let before = now;
            if due > 0 {
                self.load.run(due);
                steps += due;
                now = clock::now();
                self.batch = next_batch(due, now - before);
                if let Some(pace) = &mut self.pace {
                    pace.done(due);
                }
            } else if let Some(pace) = &self.pace {
                wait(now, pace.next_slot(now).min(end));
                now = clock::now();
            }
            if let Some(windows) = windows.as_deref_mut() {
                windows.look(now, steps, |s, ns| self.load.value(s, ns));
            }
            if now >= ask {
                interrupted = asked();
                ask = now + ASK_NS;
            }
        }
        kernels::settle();
        Span {
            steps,
            duration_ns: now - begin,
            interrupted,
        }
    }
}

fn wait(now: u64, until: u64) {
    if until.saturating_sub(now) > SPIN_NS {
        clock::sleep_until(until);
    } else {
        while clock::now() < until {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResolvedWorkload;
    use crate::noise::{expect, in_one_of_ten};
    use quell_policy::workload::{Access, Operation, Order, Pages};
    use quell_types::units::Bytes;
    use quell_types::windows::{Cut, LONGEST_BATCH};

    fn write_stream(rate: Option<Rate>) -> Driver {
        let workload = ResolvedWorkload::Bandwidth {
            operation: Operation::Write,
            size: Bytes(1 << 20),
            pages: Pages::Base,
            rate,
        };
        Driver::new(Load::new(&workload).unwrap(), rate)
    }

    #[test]
    fn a_batch_shrinks_at_once_and_grows_by_doubling() {
        assert_eq!(next_batch(2_000, 10_000), 2_000);
        // From 5 to 500 ns per access: the next batch already takes 10 us again.
        assert_eq!(next_batch(2_000, 1_000_000), 20);
        assert_eq!(next_batch(20, 100), 40);
        assert_eq!(next_batch(1, 50_000_000), 1);
        assert_eq!(next_batch(LONGEST_BATCH, 1), LONGEST_BATCH);
    }

    #[test]
    fn a_target_rate_well_below_the_peak_is_met() {
        in_one_of_ten(a_target_rate_is_met);
    }

    fn a_target_rate_is_met() -> Result<(), String> {
        let peak = write_stream(None).run(20_000_000, None, || false);
        let peak = peak.steps as f64 * 64e9 / peak.duration_ns as f64;
        let target = peak / 20.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive rate"
        )]
        let mut paced = write_stream(Some(Rate(target as u64)));
        let span = paced.run(100_000_000, None, || false);
        let ratio = span.steps as f64 * 64e9 / span.duration_ns as f64 / target;
        // At most the slot done in advance is above the rate. It is below only while the machine
        // does not let it run.
        let met = (0.5..=1.01).contains(&ratio);
        expect(met, || format!("{ratio} of the target"))
    }

    #[test]
    fn the_windows_of_a_span_account_for_its_bytes() {
        let mut driver = write_stream(None);
        let mut windows = Windows::new(50_000_000, 1_000_000, Cut::Evenly);
        let span = driver.run(50_000_000, Some(&mut windows), || false);
        let values = windows.into_values();
        assert_eq!(values.len(), 50);
        assert!(!span.interrupted && span.duration_ns >= 50_000_000);
        // All bytes except those after the last boundary: the part of the last batch beyond it.
        let bytes = (span.steps * driver.load().step_bytes()) as f64;
        let in_windows = values.iter().sum::<f64>() * 1e3;
        let late = span.duration_ns as f64 / 50e6 - 1.0;
        assert!(in_windows <= bytes + 1.0, "{in_windows} of {bytes}");
        // A stall at the end, longer than a hundredth of the span, hides what follows it.
        assert!(
            late > 0.01 || in_windows >= 0.98 * bytes,
            "{in_windows} of {bytes}"
        );
    }

    #[test]
    fn a_request_to_end_is_noticed_in_the_middle() {
        let mut asked = 0;
        let workload = ResolvedWorkload::Latency {
            size: Bytes(1 << 16),
            order: Order::Random,
            pages: Pages::Base,
            operation: Access::Read,
        };
        let mut driver = Driver::new(Load::new(&workload).unwrap(), None);
        let span = driver.run(u64::MAX, None, || {
            asked += 1;
            asked == 3
        });
        assert!(span.interrupted);
        assert_eq!(asked, 3);
    }
}
