//! Values over short windows of one measured span. The windows lie on a fixed grid from the span's begin, and a look at the
//! clock seldom falls on a boundary; what then counts depends on what the value is ([`Cut`]). In either case a stall of
//! five windows (the thread did not run) is entered for each of them, and so counts five times in a percentile.

use quell_core::attribution::Account;

use crate::Error;
use crate::account::Sampler;

/// Looks at the clock are meant to be some 10 µs apart. Twenty times as long is no memory: the CPU stood still.
const STALL_NS: u64 = 200_000;

/// What becomes of work between two looks with a boundary between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// For rates: it went on evenly, and the boundary divides it. Every entry stands for exactly one window, so that their
    /// mean is work ÷ time, whatever stalls there were: a paced stream that catches up in the short rest of a window after
    /// a stall must not have that rest counted as a whole window.
    Evenly,
    /// For times per access: an entry is made at the first look after a boundary, from the time and accesses that really
    /// passed since the last entry. Divided evenly, a stalled window would have a fraction of an access and a value that
    /// tells of the looks, not of memory.
    AtLook,
}

/// The windows of one span. All memory is taken and touched when it is made.
#[derive(Debug)]
pub struct Windows<'s> {
    values: Vec<f64>,
    entered: usize,
    window: u64,
    cut: Cut,
    begin: u64,
    /// Where the last entry ends: the time (at looks; else it is a boundary), and the work's counter.
    entered_time: u64,
    entered_units: u64,
    /// The last look.
    last_time: u64,
    last_units: u64,
    sampler: Option<&'s mut Sampler>,
    /// How long the CPU stood still since the last entry.
    stalled: u64,
}

impl<'s> Windows<'s> {
    /// For a span of `duration` in windows of `window` nanoseconds (at least 1): `duration ÷ window` entries, rounded
    /// down, at least one.
    #[must_use]
    pub fn new(duration: u64, window: u64, cut: Cut) -> Self {
        let window = window.clamp(1, duration.max(1));
        let count = usize::try_from(duration / window)
            .unwrap_or(usize::MAX)
            .max(1);
        Self {
            // Written values, not zeroes: the kernel gives zeroed memory only at its first use, inside the span.
            values: vec![f64::NAN; count],
            entered: 0,
            window,
            cut,
            begin: 0,
            entered_time: 0,
            entered_units: 0,
            last_time: 0,
            last_units: 0,
            sampler: None,
            stalled: 0,
        }
    }

    /// Keeps an account of every unit, where that does not disturb the measurement. What it takes lies between units, which
    /// therefore end where the clocks are read, for rates as well ([`Cut::AtLook`]). Not for streams that keep a pace.
    #[must_use]
    pub fn accounted(mut self, sampler: &'s mut Sampler) -> Self {
        if sampler.prepare(self.values.len(), self.window) {
            self.sampler = Some(sampler);
            self.cut = Cut::AtLook;
        }
        self
    }

    /// Starts the grid, where the work's counter stands at `units`.
    pub fn begin(&mut self, now: u64, units: u64) {
        self.begin = now;
        self.entered_time = self.sampler.as_mut().map_or(now, |s| s.begin());
        self.entered_units = units;
        self.last_time = self.entered_time;
        self.stalled = 0;
        self.last_units = units;
        self.entered = 0;
    }

    /// A look at the clock: enters `value(units, nanoseconds)` for every window that has passed.
    pub fn look(&mut self, now: u64, units: u64, value: impl Fn(u64, u64) -> f64) {
        let gap = now.saturating_sub(self.last_time);
        if gap > STALL_NS {
            self.stalled += gap;
        }
        let mut after = now;
        let passed = usize::try_from(now.saturating_sub(self.begin) / self.window)
            .unwrap_or(usize::MAX)
            .min(self.values.len());
        match self.cut {
            Cut::Evenly => {
                while self.entered < passed {
                    let boundary = self.begin + (self.entered as u64 + 1) * self.window;
                    let at = self.at(boundary, now, units);
                    self.values[self.entered] = value(at - self.entered_units, self.window);
                    self.entered_units = at;
                    self.entered += 1;
                }
            }
            Cut::AtLook if passed > self.entered => {
                let from = self.entered_time;
                let entry = value(units - self.entered_units, now.saturating_sub(from).max(1));
                self.values[self.entered..passed].fill(entry);
                let windows = (passed - self.entered) as u64;
                let stalled = std::mem::take(&mut self.stalled);
                let next = |s: &mut &mut Sampler| s.end(from, now, windows, stalled);
                after = self.sampler.as_mut().map_or(now, next);
                self.entered = passed;
                self.entered_time = after;
                self.entered_units = units;
            }
            Cut::AtLook => {}
        }
        self.last_time = after;
        self.last_units = units;
    }

    /// The work's counter at a boundary between the last look and this one.
    fn at(&self, boundary: u64, now: u64, units: u64) -> u64 {
        let done = units - self.last_units;
        let before = u128::from(boundary.saturating_sub(self.last_time));
        let passed = u128::from((now - self.last_time).max(1));
        let part = u128::from(done) * before / passed;
        self.last_units + u64::try_from(part).unwrap_or(done).min(done)
    }

    /// The window's length in nanoseconds.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.window
    }

    /// The account of the span, if one was kept.
    ///
    /// # Errors
    /// As [`Sampler::finish`].
    pub fn account(&mut self) -> Result<Option<Account>, Error> {
        self.sampler.as_mut().map(|s| s.finish()).transpose()
    }

    /// The entries made, in order of time.
    #[must_use]
    pub fn into_values(mut self) -> Vec<f64> {
        self.values.truncate(self.entered);
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(units: u64, ns: u64) -> f64 {
        units as f64 / ns as f64
    }

    #[test]
    fn what_a_boundary_cuts_belongs_to_the_window_it_was_done_in() {
        let mut windows = Windows::new(3_000, 1_000, Cut::Evenly);
        windows.begin(10_000, 7);
        windows.look(10_600, 13, rate);
        // 16 units in 500 ns, of which 400 lie before the boundary.
        windows.look(11_100, 29, rate);
        windows.look(12_000, 38, rate);
        windows.look(13_000, 48, rate);
        assert_eq!(windows.into_values(), [0.018, 0.013, 0.010]);
    }

    #[test]
    fn a_time_is_entered_at_the_first_look_after_a_boundary_from_what_really_passed() {
        let mut windows = Windows::new(3_000, 1_000, Cut::AtLook);
        windows.begin(10_000, 7);
        windows.look(10_600, 13, rate);
        windows.look(11_100, 29, rate);
        windows.look(12_000, 38, rate);
        windows.look(13_000, 48, rate);
        assert_eq!(
            windows.into_values(),
            [22.0 / 1_100.0, 9.0 / 900.0, 10.0 / 1_000.0]
        );
    }

    #[test]
    fn a_stall_over_several_windows_is_entered_for_each_of_them() {
        for cut in [Cut::Evenly, Cut::AtLook] {
            let mut windows = Windows::new(5_000, 1_000, cut);
            windows.begin(0, 0);
            windows.look(1_000, 100, rate);
            windows.look(5_000, 140, rate);
            assert_eq!(windows.into_values(), [0.1, 0.01, 0.01, 0.01, 0.01]);
        }
    }

    #[test]
    fn catching_up_right_before_a_boundary_does_not_outweigh_the_stall() {
        let mut windows = Windows::new(6_000, 1_000, Cut::Evenly);
        windows.begin(0, 0);
        windows.look(5_900, 0, rate);
        windows.look(6_000, 600, rate);
        assert_eq!(windows.into_values(), [0.0, 0.0, 0.0, 0.0, 0.0, 0.6]);
    }

    #[test]
    fn looks_after_the_span_enter_nothing() {
        let mut windows = Windows::new(1_000, 1_000, Cut::Evenly);
        windows.begin(0, 0);
        windows.look(1_500, 3, rate);
        windows.look(9_000, 9, rate);
        assert_eq!(windows.into_values(), [2.0 / 1_000.0]);
    }

    proptest! {
        #[test]
        fn the_mean_of_the_windows_is_work_over_time(
            // Looks up to three windows apart, with any work between them.
            steps in prop::collection::vec((1u64..=3_000, 0u64..5_000), 10..200),
        ) {
            let span: u64 = steps.iter().map(|(t, _)| t).sum();
            prop_assume!(span >= 1_000);
            let mut windows = Windows::new(span, 1_000, Cut::Evenly);
            windows.begin(5, 0);
            let (mut now, mut units) = (5, 0);
            for (time, work) in &steps {
                now += time;
                units += work;
                windows.look(now, units, rate);
            }
            let done = windows.entered_units as f64;
            let values = windows.into_values();
            prop_assert_eq!(values.len() as u64, span / 1_000);
            let sum: f64 = values.iter().sum();
            prop_assert!((sum * 1_000.0 - done).abs() < 1e-6 * done.max(1.0));
        }
    }
}
