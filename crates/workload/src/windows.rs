//! Values over short windows of one measured span. The windows lie on a fixed grid from the span's begin; a value is
//! entered at the first look at the clock after a boundary, from the time and work that really passed since the last
//! entry. Where one look finds several boundaries passed (the thread did not run), the value is entered for each of
//! them: every entry stands for the same time, so the equally weighted mean of a rate is bytes ÷ time, and a stall
//! of five windows counts five times in a percentile.

/// The windows of one span. All memory is taken and touched when it is made.
#[derive(Debug)]
pub struct Windows {
    values: Vec<f64>,
    entered: usize,
    window: u64,
    begin: u64,
    last_time: u64,
    last_units: u64,
}

impl Windows {
    /// For a span of `duration` in windows of `window` nanoseconds (at least 1): `duration ÷ window` entries, rounded
    /// down, at least one.
    #[must_use]
    pub fn new(duration: u64, window: u64) -> Self {
        let window = window.clamp(1, duration.max(1));
        let count = usize::try_from(duration / window)
            .unwrap_or(usize::MAX)
            .max(1);
        Self {
            // Written values, not zeroes: the kernel gives zeroed memory only at its first use, inside the span.
            values: vec![f64::NAN; count],
            entered: 0,
            window,
            begin: 0,
            last_time: 0,
            last_units: 0,
        }
    }

    /// Starts the grid, where the work's counter stands at `units`.
    pub fn begin(&mut self, now: u64, units: u64) {
        self.begin = now;
        self.last_time = now;
        self.last_units = units;
        self.entered = 0;
    }

    /// A look at the clock: enters `value(units, nanoseconds)` for every boundary passed since the last.
    pub fn look(&mut self, now: u64, units: u64, value: impl Fn(u64, u64) -> f64) {
        let passed = usize::try_from(now.saturating_sub(self.begin) / self.window)
            .unwrap_or(usize::MAX)
            .min(self.values.len());
        if passed <= self.entered {
            return;
        }
        let entry = value(units - self.last_units, now - self.last_time);
        self.values[self.entered..passed].fill(entry);
        self.entered = passed;
        self.last_time = now;
        self.last_units = units;
    }

    /// The window's length in nanoseconds.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.window
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
    fn a_value_is_entered_at_the_first_look_after_a_boundary_from_the_real_time() {
        let mut windows = Windows::new(3_000, 1_000);
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
        let mut windows = Windows::new(5_000, 1_000);
        windows.begin(0, 0);
        windows.look(1_000, 100, rate);
        windows.look(5_000, 140, rate);
        assert_eq!(windows.into_values(), [0.1, 0.01, 0.01, 0.01, 0.01]);
    }

    #[test]
    fn looks_after_the_span_enter_nothing() {
        let mut windows = Windows::new(1_000, 1_000);
        windows.begin(0, 0);
        windows.look(1_500, 3, rate);
        windows.look(9_000, 9, rate);
        assert_eq!(windows.into_values(), [3.0 / 1_500.0]);
    }

    proptest! {
        #[test]
        fn the_mean_of_the_windows_is_work_over_time(
            // Looks are at most a hundredth of a window apart, so every entry covers a window within 1 %.
            steps in prop::collection::vec((1u64..=10, 0u64..50), 1_000..4_000),
        ) {
            let span: u64 = steps.iter().map(|(t, _)| t).sum();
            let mut windows = Windows::new(span, 1_000);
            windows.begin(5, 0);
            let (mut now, mut units) = (5, 0);
            for (time, work) in &steps {
                now += time;
                units += work;
                windows.look(now, units, rate);
            }
            let exact = windows.last_units as f64 / (windows.last_time - 5) as f64;
            let values = windows.into_values();
            prop_assert_eq!(values.len() as u64, span / 1_000);
            let mean: f64 = values.iter().sum::<f64>() / values.len() as f64;
            prop_assert!((mean / exact - 1.0).abs() < 0.021, "{} against {}", mean, exact);
        }
    }
}
