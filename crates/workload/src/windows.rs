//! The windows of a span ([`quell_types::windows`]), with the account of each unit where one is
//! kept.

use quell_record::attribution::Account;
use quell_types::windows::Cut;

use crate::Error;
use crate::account::Sampler;

/// The windows of one span. All memory is taken and touched when it is made.
#[derive(Debug)]
pub struct Windows<'s> {
    windows: quell_types::windows::Windows,
    sampler: Option<&'s mut Sampler>,
}

impl<'s> Windows<'s> {
    /// Makes the windows, see [`quell_types::windows::Windows::new`].
    #[must_use]
    pub fn new(duration: u64, window: u64, cut: Cut) -> Self {
        Self {
            windows: quell_types::windows::Windows::new(duration, window, cut),
            sampler: None,
        }
    }

    /// Accounts for every unit, where that does not disturb the measurement. The readings happen
    /// between units. So units end where the clocks are read, for rates as well
    /// ([`Cut::AtSample`]).
    /// It is not for streams that keep a pace.
    #[must_use]
    pub fn accounted(mut self, sampler: &'s mut Sampler) -> Self {
        if sampler.prepare(self.windows.count(), self.windows.length()) {
            self.sampler = Some(sampler);
            self.windows = self.windows.cut(Cut::AtSample);
        }
        self
    }

    /// Starts the grid. `units`: the value of the work's counter now.
    pub fn begin(&mut self, now: u64, units: u64) {
        self.windows.begin(now, units);
        if let Some(sampler) = &mut self.sampler {
            self.windows.rested(sampler.begin());
        }
    }

    /// Takes in a reading of the clock: enters `value(units, nanoseconds)` for every window that
    /// has passed.
    pub fn look(&mut self, now: u64, units: u64, value: impl Fn(u64, u64) -> f64) {
        let entered = self.windows.sample(now, units, value);
        if let (Some(entered), Some(sampler)) = (entered, &mut self.sampler) {
            let after = sampler.end(entered.from, now, entered.windows, entered.stalled);
            self.windows.rested(after);
        }
    }

    /// Whether windows are still open. A span is not over before they are entered.
    #[must_use]
    pub fn open(&self) -> bool {
        self.windows.open()
    }

    /// The window's length in nanoseconds.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.windows.length()
    }

    /// The account of the span. `None` where none was kept.
    ///
    /// # Errors
    /// Those of [`Sampler::finish`].
    pub fn account(&mut self) -> Result<Option<Account>, Error> {
        self.sampler.as_mut().map(|s| s.finish()).transpose()
    }

    /// The values of all windows, in order of time.
    #[must_use]
    pub fn into_values(self) -> Vec<f64> {
        self.windows.into_values()
    }
}
