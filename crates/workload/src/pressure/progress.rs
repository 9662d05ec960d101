//! What a hog gets done, window by window.

use std::collections::BTreeMap;

use quell_core::backend::Measurement;

use super::{ASK_NS, WINDOW_NS};
use crate::generator::Span;
use crate::periodic::room;
use crate::{Error, clock};

/// What was done in each window of a span.
#[derive(Debug)]
pub(super) struct Windows {
    begin: u64,
    counts: Vec<f64>,
}

impl Windows {
    fn new(begin: u64, duration: u64) -> Self {
        let windows = usize::try_from(duration.div_ceil(WINDOW_NS)).unwrap_or(usize::MAX);
        let mut counts = room(windows);
        counts.resize(windows.max(1), 0.0);
        Self { begin, counts }
    }

    /// The window of a moment; what comes after the last one belongs to it.
    fn at(&self, now: u64) -> usize {
        let at = now.saturating_sub(self.begin) / WINDOW_NS;
        usize::try_from(at)
            .unwrap_or(usize::MAX)
            .min(self.counts.len() - 1)
    }

    /// So much was done until now.
    pub(super) fn add(&mut self, now: u64, done: u64) {
        let at = self.at(now);
        self.counts[at] += done as f64;
    }

    /// Per second, times `unit`.
    fn rates(self, unit: f64) -> Vec<f64> {
        let seconds = WINDOW_NS as f64 / 1e9;
        self.counts.iter().map(|c| c * unit / seconds).collect()
    }
}

/// What does a bit of work and tells how much it was.
pub(super) trait Work {
    /// So many bytes at most, or a few milliseconds of it.
    fn some(&mut self) -> Result<u64, Error>;
}

/// Keeps work up, at a rate if there is one.
#[derive(Debug)]
pub(super) struct Hog<W> {
    work: W,
    /// Bytes per second.
    rate: Option<u64>,
}

impl<W: Work> Hog<W> {
    pub(super) fn new(work: W, rate: Option<u64>) -> Self {
        Self { work, rate }
    }

    #[cfg(test)]
    pub(super) fn work_mut(&mut self) -> &mut W {
        &mut self.work
    }

    /// Works until `until`; `None` when asked to end.
    pub(super) fn run(
        &mut self,
        until: u64,
        mut windows: Option<&mut Windows>,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>, Error> {
        let begin = clock::now();
        let mut ask = begin + ASK_NS;
        let mut done = 0;
        loop {
            let now = clock::now();
            if now >= until {
                return Ok(Some(done));
            }
            if now >= ask {
                if asked() {
                    return Ok(None);
                }
                ask = now + ASK_NS;
            }
            // Ahead of its rate it waits.
            let due = self.rate.map_or(0, |rate| {
                let ns = u128::from(done) * 1_000_000_000 / u128::from(rate.max(1));
                begin.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
            });
            if due > now {
                clock::sleep_until(due.min(until).min(ask));
                continue;
            }
            let some = self.work.some()?;
            done += some;
            if let Some(windows) = windows.as_deref_mut() {
                windows.add(clock::now(), some);
            }
        }
    }

    /// Warms up and measures a span.
    pub(super) fn span(
        &mut self,
        span: Span,
        metric: &str,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        span.check()?;
        let warm = clock::now() + span.warmup.0;
        if self.run(warm, None, asked)?.is_none() {
            return Ok(None);
        }
        let begin = clock::now();
        let mut windows = Windows::new(begin, span.duration.0);
        let done = self.run(begin + span.duration.0, Some(&mut windows), asked)?;
        Ok(done.map(|bytes| Measurement {
            metrics: BTreeMap::from([(metric.to_owned(), windows.rates(1e-6))]),
            window_ns: WINDOW_NS,
            bytes,
            duration_ns: clock::now() - begin,
            begun: None,
            memory_bytes: None,
            account: None,
        }))
    }
}
