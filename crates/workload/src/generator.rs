//! The interface of load generators: measure one span, or make load until asked to stop. [`Driver`]
//! implements it for loads whose steps are all alike. Other generators keep time by themselves.

use quell_policy::workload::MISSES_PER_ACCESS;
use quell_record::measurement::Measurement;
use quell_types::units::Nanos;

use crate::Error;
use crate::account::Sampler;
use crate::counted::Counted;
use crate::load::Driver;
use crate::memory::Granted;
use crate::resolved::Placed;
use crate::windows::Windows;

/// More windows or samples than this in one span are refused: their memory would disturb what is
/// measured.
pub(crate) const MOST_WINDOWS: u64 = 16 << 20;

/// A warm-up, and the measured span after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Load before the measured span begins.
    pub(crate) warmup: Nanos,
    /// The length of the measured span.
    pub(crate) duration: Nanos,
    /// The length of each window that is asked for. Generators that measure units ignore it.
    pub(crate) window: Nanos,
}

impl Span {
    /// # Errors
    /// Where duration or window is zero, or there are more than [`MOST_WINDOWS`] windows. A window
    /// longer than the span is shortened to the span later.
    pub(crate) fn check(self) -> Result<(), Error> {
        let (duration, window) = (self.duration, self.window);
        if duration.0 == 0 || window.0 == 0 || duration.0 / window.0 > MOST_WINDOWS {
            return Err(Error::refused(
                format!("measuring {duration} in windows of {window}"),
                format!("a span has between 1 and {MOST_WINDOWS} windows"),
                "ask for another duration or window",
            ));
        }
        Ok(())
    }
}

/// A generator that has taken and touched its memory.
pub(crate) trait Generator {
    /// Warms up and measures one span. `asked` is called between steps; true: stop now, and the
    /// result is `None`.
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error>;

    /// Makes load until `asked` returns true.
    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error>;

    /// The pages that its memory lies in.
    fn granted(&self) -> Granted;

    /// How many of its lines lie in the wanted DRAM banks. `None` where no banks were chosen.
    fn placed(&self) -> Option<Placed> {
        None
    }

    /// Lets a sampler attribute the time of each window or unit (CPU, waiting, faults). Ignored by
    /// generators that cannot read the kernel's clocks in between.
    fn account(&mut self, _: Sampler) {}
}

impl Generator for Driver {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        span.check()?;
        // Taken out, because the windows borrow it while the load runs.
        let mut sampler = self.sampler.take();
        let measured = measure(self, span, sampler.as_mut(), asked);
        self.sampler = sampler;
        measured
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.run(u64::MAX, None, asked);
        Ok(())
    }

    fn granted(&self) -> Granted {
        self.load().granted()
    }

    fn placed(&self) -> Option<Placed> {
        self.load().placed()
    }

    fn account(&mut self, sampler: Sampler) {
        self.sampler = Some(sampler);
    }
}

/// Measures one span of a load of equal steps.
fn measure(
    driver: &mut Driver,
    span: Span,
    sampler: Option<&mut Sampler>,
    mut asked: &mut dyn FnMut() -> bool,
) -> Result<Option<Measurement>, Error> {
    let mut windows = Windows::new(span.duration.0, span.window.0, driver.load().cut());
    if let Some(sampler) = sampler {
        windows = windows.accounted(sampler);
    }
    if span.warmup.0 > 0 && driver.run(span.warmup.0, None, &mut asked).interrupted {
        return Ok(None);
    }
    let walks = driver.load().accesses();
    let counter = walks.and_then(|_| Counted::misses());
    let before = counter.as_ref().and_then(Counted::read);
    let done = driver.run(span.duration.0, Some(&mut windows), &mut asked);
    if done.interrupted {
        return Ok(None);
    }
    let after = counter.as_ref().and_then(Counted::read);
    let missed = walks.zip(before.zip(after)).map(|(each, (before, after))| {
        let accesses = (done.steps * each).max(1);
        (
            MISSES_PER_ACCESS,
            vec![(after - before) as f64 / accesses as f64],
        )
    });
    let account = windows.account()?;
    let window_ns = windows.length();
    let values = windows.into_values();
    let derived = driver.load().derived(&values);
    let primary = (driver.load().metric(), values);
    Ok(Some(Measurement {
        window_ns,
        metrics: [primary]
            .into_iter()
            .chain(derived)
            .chain(missed)
            .map(|(name, values)| (name.to_owned(), values))
            .collect(),
        bytes: done.steps * driver.load().step_bytes(),
        duration_ns: done.duration_ns,
        begun: None,
        memory_bytes: None,
        ended_ns: Vec::new(),
        account,
    }))
}
