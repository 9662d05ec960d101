//! Values over short windows of one measured span.
//!
//! The windows lie on a fixed grid from the span's begin. The clock is read at *samples*, which
//! seldom fall on a boundary. What then counts depends on the kind of value ([`Cut`]). In either
//! case a stall of five windows (the thread did not run) is entered for each of them. It counts
//! five times in a percentile.
//!
//! **How few accesses make a time per access.** A rate over a window in which nothing ran is zero.
//! A time per access has no value there. One from the few accesses around a stall depends on how
//! few they were: a stall of 3 ms behind a single access is "3 ms per access", behind a hundred it
//! is 30 µs.
//!
//! So an entry is made only after the load *ran* for half a window since the last entry, and made
//! [`FEWEST`] accesses. What is missing is taken from right after the stall. Nothing is left out or
//! counted twice: the times and accesses of all entries sum to those of the span. The span goes on
//! until the last entry can be made.
//!
//! Next to an ordinary pace *t*, a stall of *L* windows is then seen
//!
//! - only in windows that it touched, ⌊*L*⌋ to ⌊*L*⌋ + 1 of them, and
//! - in each as *t* (1 + *L*/*r*), where *r* is the part of a window that ran in the same entry,
//!   between ½ and 1. So it is seen by its length, and not by where in a window it began.
//!
//! A window in which memory was slow is different: the load ran, and it is entered as it was.
//!
//! The module is pure. The generators, on Linux and on the simulated machine, bring the times of
//! their samples.

/// The intended time between two samples of the clock, in nanoseconds.
pub const SAMPLE_NS: u64 = 10_000;
/// Twenty times as long is not due to memory: the CPU stood still.
const STALL_NS: u64 = 20 * SAMPLE_NS;
/// The most time that a gap between two samples shows the load to have run. The rest may be a
/// stall, or memory that has just become slower, which the next samples will show.
const RAN_NS: u64 = 2 * SAMPLE_NS;
/// The least units of work behind an entry made at a sample. With fewer, windows as short as the
/// time between two samples would show single accesses.
const FEWEST: u64 = 32;

/// How work between two samples is divided if a boundary lies between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// For rates: the work is taken as even, and the boundary divides it. Each entry stands for
    /// exactly one window, so their mean is work ÷ time, whatever stalls there were. A paced stream
    /// may catch up in the short rest of a window after a stall. That rest must not count as a
    /// whole window.
    Evenly,
    /// For times per access: an entry is made at the first sample after a boundary that has enough
    /// work behind it (see the module's header). It uses the time and accesses since the last
    /// entry. Divided evenly, a stalled window would have a fraction of an access, and a value that
    /// depends on the samples, not on memory.
    AtSample,
}

/// The longest batch, in steps. It ends the growth where a step costs next to nothing.
pub const LONGEST_BATCH: u64 = 1 << 16;

/// The steps until the next sample, after a batch of `steps` that took `elapsed` nanoseconds. It
/// shrinks at once as far as necessary, and at most doubles.
#[must_use]
pub fn next_batch(steps: u64, elapsed: u64) -> u64 {
    let fits = u128::from(steps) * u128::from(SAMPLE_NS) / u128::from(elapsed.max(1));
    let longest = (steps * 2).min(LONGEST_BATCH);
    u64::try_from(fits).unwrap_or(longest).clamp(1, longest)
}

/// The entry that one sample made ([`Cut::AtSample`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its begin, which is the end of the one before, in nanoseconds.
    pub from: u64,
    /// The number of windows that have this entry.
    pub windows: u64,
    /// How long the CPU stood still meanwhile, in nanoseconds.
    pub stalled: u64,
}

/// The windows of one span. All memory is allocated and touched when it is made.
#[derive(Clone, Debug)]
pub struct Windows {
    values: Vec<f64>,
    entered: usize,
    window: u64,
    cut: Cut,
    begin: u64,
    /// The end of the last entry: its time (for [`Cut::AtSample`]; else it is a boundary), and the
    /// work's counter.
    entered_time: u64,
    entered_units: u64,
    /// Time and work's counter at the last sample.
    last_time: u64,
    last_units: u64,
    /// Nanoseconds for which the CPU stood still since the last entry.
    stalled: u64,
    /// Nanoseconds for which the load certainly ran since the last entry.
    ran: u64,
}

impl Windows {
    /// For a span of `duration` in windows of `window` nanoseconds (at least 1). It has `duration ÷
    /// window` entries, rounded down, at least one.
    #[must_use]
    pub fn new(duration: u64, window: u64, cut: Cut) -> Self {
        let window = window.clamp(1, duration.max(1));
        let count = usize::try_from(duration / window)
            .unwrap_or(usize::MAX)
            .max(1);
        Self {
            // Written values, not zeroes: the kernel gives zeroed memory only at its first use,
            // inside the span.
            values: vec![f64::NAN; count],
            entered: 0,
            window,
            cut,
            begin: 0,
            entered_time: 0,
            entered_units: 0,
            last_time: 0,
            last_units: 0,
            stalled: 0,
            ran: 0,
        }
    }

    /// The same windows with another kind of cut.
    #[must_use]
    pub fn cut(self, cut: Cut) -> Self {
        Self { cut, ..self }
    }

    /// The number of windows in the span.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Starts the grid at `now`, where the work's counter reads `units`.
    pub fn begin(&mut self, now: u64, units: u64) {
        self.begin = now;
        self.entered_units = units;
        self.stalled = 0;
        self.ran = 0;
        self.last_units = units;
        self.entered = 0;
        self.rested(now);
    }

    /// Excludes the time since the last sample until `now` from all windows: the next entry begins
    /// at `now`.
    pub fn rested(&mut self, now: u64) {
        self.entered_time = now;
        self.last_time = now;
    }

    /// Takes a sample of the clock: enters `value(units, nanoseconds)` for each window that has
    /// passed.
    pub fn sample(
        &mut self,
        now: u64,
        units: u64,
        value: impl Fn(u64, u64) -> f64,
    ) -> Option<Entered> {
        let gap = now.saturating_sub(self.last_time);
        if gap > STALL_NS {
            self.stalled += gap;
        }
        self.ran += gap.min(RAN_NS);
        let mut done = None;
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
            Cut::AtSample if passed > self.entered && self.enough(units) => {
                let from = self.entered_time;
                let entry = value(units - self.entered_units, now.saturating_sub(from).max(1));
                self.values[self.entered..passed].fill(entry);
                done = Some(Entered {
                    from,
                    windows: (passed - self.entered) as u64,
                    stalled: std::mem::take(&mut self.stalled),
                });
                self.entered = passed;
                self.entered_time = now;
                self.entered_units = units;
                self.ran = 0;
            }
            Cut::AtSample => {}
        }
        self.last_time = now;
        self.last_units = units;
        done
    }

    /// Whether the work since the last entry is enough for a value.
    fn enough(&self, units: u64) -> bool {
        self.ran >= self.window / 2 && units - self.entered_units >= FEWEST
    }

    /// Whether windows are still to be entered. A span is not over before that.
    #[must_use]
    pub fn open(&self) -> bool {
        self.entered < self.values.len()
    }

    /// The work's counter at a boundary between the last sample and this one, interpolated.
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

    fn per_access(units: u64, ns: u64) -> f64 {
        ns as f64 / units as f64
    }

    /// What an entry was made of, and for how many windows.
    struct Entry {
        ns: u64,
        accesses: u64,
        stalls: u64,
        windows: u64,
    }

    /// A load of one access every so often, in the batches of a generator.
    struct Simulated<'w> {
        windows: &'w mut Windows,
        access_ns: u64,
        batch: u64,
        now: u64,
        accesses: u64,
        /// Stalls since the last entry.
        stalls: u64,
        entries: Vec<Entry>,
    }

    impl<'w> Simulated<'w> {
        fn begin(windows: &'w mut Windows, access_ns: u64) -> Self {
            windows.begin(0, 0);
            Self {
                windows,
                access_ns,
                batch: SAMPLE_NS / access_ns,
                now: 0,
                accesses: 0,
                stalls: 0,
                entries: Vec::new(),
            }
        }

        fn sample(&mut self) {
            let seen = std::cell::Cell::new(None);
            let entered = self.windows.entered;
            self.windows.sample(self.now, self.accesses, |units, ns| {
                seen.set(Some((ns, units)));
                per_access(units, ns)
            });
            if let Some((ns, accesses)) = seen.get() {
                self.entries.push(Entry {
                    ns,
                    accesses,
                    stalls: std::mem::take(&mut self.stalls),
                    windows: (self.windows.entered - entered) as u64,
                });
            }
        }

        fn run(&mut self, ns: u64) {
            let end = self.now + ns;
            while self.now < end {
                let fits = (end - self.now).div_ceil(self.access_ns);
                let batch = self.batch.min(fits);
                self.now += batch * self.access_ns;
                self.accesses += batch;
                self.batch = next_batch(batch, batch * self.access_ns);
                self.sample();
            }
        }

        /// One access that takes as long as it should.
        fn access(&mut self) {
            self.run(self.access_ns);
        }

        /// One access behind a stall.
        fn stall(&mut self, ns: u64) {
            self.now += ns;
            self.accesses += 1;
            self.stalls += 1;
            self.batch = next_batch(1, ns);
            self.sample();
        }
    }

    #[test]
    fn what_a_boundary_cuts_belongs_to_the_window_it_was_done_in() {
        let mut windows = Windows::new(3_000, 1_000, Cut::Evenly);
        windows.begin(10_000, 7);
        windows.sample(10_600, 13, rate);
        // 16 units in 500 ns, of which 400 lie before the boundary.
        windows.sample(11_100, 29, rate);
        windows.sample(12_000, 38, rate);
        windows.sample(13_000, 48, rate);
        assert_eq!(windows.into_values(), [0.018, 0.013, 0.010]);
    }

    #[test]
    fn a_time_is_entered_at_the_first_sample_after_a_boundary() {
        let mut windows = Windows::new(60_000, 20_000, Cut::AtSample);
        windows.begin(10_000, 7);
        windows.sample(22_000, 107, per_access);
        windows.sample(32_000, 207, per_access);
        windows.sample(50_000, 367, per_access);
        windows.sample(70_000, 567, per_access);
        assert_eq!(
            windows.into_values(),
            [22_000.0 / 200.0, 18_000.0 / 160.0, 20_000.0 / 200.0]
        );
    }

    #[test]
    fn a_stall_over_several_windows_is_entered_for_each_of_them() {
        for cut in [Cut::Evenly, Cut::AtSample] {
            let mut windows = Windows::new(50_000, 10_000, cut);
            windows.begin(0, 0);
            windows.sample(10_000, 100, rate);
            windows.sample(50_000, 140, rate);
            assert_eq!(windows.into_values(), [0.01, 0.001, 0.001, 0.001, 0.001]);
        }
    }

    #[test]
    fn two_stalls_with_an_access_between_them_are_one_stall() {
        const MS: u64 = 1_000_000;
        let mut windows = Windows::new(10 * MS, MS, Cut::AtSample);
        let mut load = Simulated::begin(&mut windows, 100);
        load.run(MS);
        load.stall(4 * MS);
        load.access();
        load.stall(3 * MS);
        load.run(2 * MS);
        let values = windows.into_values();
        // Eight windows of time until half a window had run, by the samples: not 4 and 3 ms for the
        // one access between.
        let stalled = values[1];
        assert!((1_500.0..=1_650.0).contains(&stalled), "{values:?}");
        assert_eq!(values[1..8], [stalled; 7], "{values:?}");
        assert_eq!((values[0], values[8]), (100.0, 100.0), "{values:?}");
    }

    #[test]
    fn a_window_in_which_memory_was_slow_is_entered_as_it_was() {
        const MS: u64 = 1_000_000;
        let mut windows = Windows::new(5 * MS, MS, Cut::AtSample);
        let mut load = Simulated::begin(&mut windows, 10);
        load.run(2 * MS);
        load.access_ns = 300;
        load.run(2 * MS);
        load.access_ns = 10;
        load.run(MS);
        let values = windows.into_values();
        assert_eq!(values[..2], [10.0, 10.0]);
        assert!(
            values[2..4].iter().all(|v| (*v - 300.0).abs() < 3.0),
            "{values:?}"
        );
        assert!((values[4] - 10.0).abs() < 0.5, "{values:?}");
    }

    #[test]
    fn windows_shorter_than_a_sample_do_not_tell_of_single_accesses() {
        let mut windows = Windows::new(10_000, 1_000, Cut::AtSample);
        windows.begin(0, 0);
        windows.sample(2_000, FEWEST - 1, per_access);
        windows.sample(3_000, FEWEST, per_access);
        windows.sample(10_000, 2 * FEWEST, per_access);
        let values = windows.into_values();
        assert_eq!(values[..3], [3_000.0 / FEWEST as f64; 3]);
        assert_eq!(values[3..], [7_000.0 / FEWEST as f64; 7]);
    }

    #[test]
    fn a_span_that_ends_in_a_stall_is_open_until_enough_ran() {
        const MS: u64 = 1_000_000;
        let mut windows = Windows::new(3 * MS, MS, Cut::AtSample);
        let mut load = Simulated::begin(&mut windows, 100);
        load.run(MS);
        load.stall(2 * MS);
        assert!(load.windows.open());
        load.run(MS / 2);
        assert!(!load.windows.open());
        let values = windows.into_values();
        // Five half windows of time for one that ran.
        assert!((500.0..=530.0).contains(&values[1]), "{values:?}");
        assert_eq!((values[0], values[2]), (100.0, values[1]));
    }

    #[test]
    fn catching_up_before_a_boundary_does_not_outweigh_the_stall() {
        let mut windows = Windows::new(6_000, 1_000, Cut::Evenly);
        windows.begin(0, 0);
        windows.sample(5_900, 0, rate);
        windows.sample(6_000, 600, rate);
        assert_eq!(windows.into_values(), [0.0, 0.0, 0.0, 0.0, 0.0, 0.6]);
    }

    #[test]
    fn samples_after_the_span_enter_nothing() {
        let mut windows = Windows::new(1_000, 1_000, Cut::Evenly);
        windows.begin(0, 0);
        windows.sample(1_500, 3, rate);
        windows.sample(9_000, 9, rate);
        assert_eq!(windows.into_values(), [2.0 / 1_000.0]);
    }

    proptest! {
        #[test]
        fn the_mean_of_the_windows_is_work_over_time(
            // Looks at most three windows after one another, with any work between them.
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
                windows.sample(now, units, rate);
            }
            let done = windows.entered_units as f64;
            let values = windows.into_values();
            prop_assert_eq!(values.len() as u64, span / 1_000);
            let sum: f64 = values.iter().sum();
            prop_assert!((sum * 1_000.0 - done).abs() < 1e-6 * done.max(1.0));
        }

        #[test]
        fn entries_conserve_time_and_work_and_none_is_of_too_little(
            access_ns in 5u64..5_000,
            // Running and stalled, in microseconds: often right behind one another.
            parts in prop::collection::vec((0u64..3_000, 0u64..6_000), 1..40),
            window in prop::sample::select(vec![100_000u64, 1_000_000, 5_000_000]),
        ) {
            let span: u64 = parts.iter().map(|(r, s)| (r + s) * 1_000).sum();
            prop_assume!(span >= window);
            let mut windows = Windows::new(span, window, Cut::AtSample);
            let mut load = Simulated::begin(&mut windows, access_ns);
            for (ran, stalled) in &parts {
                load.run(ran * 1_000);
                load.stall(stalled * 1_000);
            }
            while load.windows.open() {
                load.run(SAMPLE_NS);
            }
            let (now, accesses, entries) = (load.now, load.accesses, load.entries);
            let (time, units) = (windows.entered_time, windows.entered_units);
            let sum = |of: fn(&Entry) -> u64| entries.iter().map(of).sum::<u64>();
            // All that was done until the last entry, which is the end unless the span is no
            // multiple of a window.
            prop_assert_eq!((sum(|e| e.ns), sum(|e| e.accesses)), (time, units));
            prop_assert_eq!(sum(|e| e.windows), span / window);
            prop_assert!(now - time <= window + 6_000_000 && accesses >= units);
            for e in &entries {
                prop_assert!(e.accesses >= FEWEST);
                // What ran, without what a gap with a stall in it shows at most.
                let ran = (e.accesses - e.stalls) * access_ns;
                prop_assert!(ran + e.stalls * RAN_NS >= window / 2, "{} of {}", ran, window);
                prop_assert!(e.windows * window <= e.ns + window);
            }
        }

        #[test]
        fn a_stall_shows_in_the_windows_it_touched_and_by_its_length(
            begin in 0u64..2_000,
            length in 500u64..9_000,
        ) {
            const MS: u64 = 1_000_000;
            let (begin, length) = (begin * 1_000, length * 1_000);
            let mut windows = Windows::new(20 * MS, MS, Cut::AtSample);
            let mut load = Simulated::begin(&mut windows, 100);
            load.run(begin);
            load.stall(length);
            while load.windows.open() {
                load.run(SAMPLE_NS);
            }
            let values = windows.into_values();
            let shown: Vec<usize> = (0..values.len()).filter(|i| values[*i] > 110.0).collect();
            let touched = (begin / MS) as usize..=((begin + length) / MS) as usize;
            prop_assert!(shown.iter().all(|i| touched.contains(i)), "{shown:?} of {touched:?}");
            let least = (length / MS) as usize;
            prop_assert!((least.max(1)..=least + 1).contains(&shown.len()), "{shown:?}");
            for i in shown {
                let factor = values[i] / 100.0 - 1.0;
                let length = length as f64 / MS as f64;
                prop_assert!((0.95 * length..=2.1 * length).contains(&factor), "{factor}");
            }
        }
    }
}
