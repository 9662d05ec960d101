//! What a hog gets done, window by window.

use std::collections::BTreeMap;

use quell_record::measurement::Measurement;

use super::{ASK_NS, window};
use crate::generator::Span;
use crate::periodic::room;
use crate::{Error, clock};

/// What was done in each window of a span.
#[derive(Debug)]
pub(super) struct Windows {
    begin: u64,
    length: u64,
    counts: Vec<f64>,
}

impl Windows {
    fn new(begin: u64, duration: u64) -> Self {
        let length = window(duration);
        let windows = usize::try_from(duration / length).unwrap_or(usize::MAX);
        let mut counts = room(windows);
        counts.resize(windows, 0.0);
        Self {
            begin,
            length,
            counts,
        }
    }

    /// Adds what was done until now.
    pub(super) fn add(&mut self, now: u64, done: u64) {
        let at = now.saturating_sub(self.begin) / self.length;
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(count) = self.counts.get_mut(at) {
            *count += done as f64;
        }
    }

    /// What was done per second in each window, times `unit`.
    fn rates(self, unit: f64) -> Vec<f64> {
        let seconds = self.length as f64 / 1e9;
        self.counts.iter().map(|c| c * unit / seconds).collect()
    }
}

/// Does a bit of work and returns how much it was.
pub(super) trait Work {
    /// Does so many bytes at most, or a few milliseconds of work.
    fn some(&mut self) -> Result<u64, Error>;
}

/// Repeats work, at a rate if there is one.
#[derive(Debug)]
pub(super) struct Hog<W> {
    work: W,
    /// Bytes per second. `None`: as fast as it can.
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

    /// Works until `until`. `None` when asked to end.
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
            // Waits where it is ahead of its rate.
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
        let warm = clock::now() + span.warmup.0;
        if self.run(warm, None, asked)?.is_none() {
            return Ok(None);
        }
        let begin = clock::now();
        let mut windows = Windows::new(begin, span.duration.0);
        let done = self.run(begin + span.duration.0, Some(&mut windows), asked)?;
        Ok(done.map(|bytes| Measurement {
            metrics: BTreeMap::from([(metric.to_owned(), windows.rates(1e-6))]),
            window_ns: window(span.duration.0),
            bytes,
            duration_ns: clock::now() - begin,
            begun: None,
            memory_bytes: None,
            ended_ns: Vec::new(),
            account: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_and_what_follows_the_last_is_in_none() {
        let mut windows = Windows::new(1_000, 250_000_000);
        for (at_ms, done) in [(50, 1), (150, 2), (240, 4), (900, 8)] {
            windows.add(1_000 + at_ms * 1_000_000, done);
        }
        assert_eq!(windows.rates(1.0), [10.0, 20.0]);
        let mut short = Windows::new(0, 50_000_000);
        short.add(10_000_000, 1);
        assert_eq!(short.rates(1.0), [20.0]);
    }
}
