//! A stage's account of its work, and the loop that drives it. The loop does what is due, then
//! sleeps until something is due again or arrives.

use std::collections::BTreeMap;

use quell_record::measurement::Measurement;

use crate::generator::Span;
use crate::periodic::room;
use crate::{Error, clock};

/// How often a stage asks whether to end.
const ASK_NS: u64 = 5_000_000;
const SECOND: u64 = 1_000_000_000;
/// Memory is touched before a span for so many samples of one kind.
const SAMPLES: usize = 1 << 16;

/// What has been done so far, and the values of the present span.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Program bytes loaded and stored so far.
    pub(super) bytes: u64,
    /// How many frames are finished.
    pub(super) frames: u64,
    /// Bytes of media that came back.
    pub(super) media: u64,
    /// Packets that were lost, or came back too late for their frame.
    pub(super) wasted: u64,
    record: Option<Record>,
}

/// A counter over the windows of a span. What was added between two readings is spread evenly over
/// the time between them. So the mean over the windows is exactly what was done per time, however
/// late a reading comes.
#[derive(Debug)]
struct Series {
    values: Vec<f64>,
    window: u64,
    begin: u64,
    last: u64,
    count: u64,
}

impl Series {
    /// For `duration` nanoseconds, in windows of `window` nanoseconds, at least one.
    fn new(duration: u64, window: u64) -> Self {
        let window = window.clamp(1, duration.max(1));
        let count = usize::try_from(duration / window).unwrap_or(usize::MAX);
        let mut values = room(count.max(1));
        values.resize(count.max(1), 0.0);
        Self {
            values,
            window,
            begin: 0,
            last: 0,
            count: 0,
        }
    }

    fn begin(&mut self, now: u64, count: u64) {
        (self.begin, self.last, self.count) = (now, now, count);
    }

    fn look(&mut self, now: u64, count: u64) {
        if now <= self.last {
            return;
        }
        let each = (count - self.count) as f64 / (now - self.last) as f64;
        let (from, to) = (self.last - self.begin, now - self.begin);
        let mut at = from;
        while at < to {
            let place = at / self.window;
            let end = ((place + 1) * self.window).min(to);
            let Some(value) = usize::try_from(place)
                .ok()
                .and_then(|p| self.values.get_mut(p))
            else {
                break;
            };
            *value += each * (end - at) as f64;
            at = end;
        }
        (self.last, self.count) = (now, count);
    }

    /// What was done per second in each window, in units of `unit`.
    fn into_rates(self, unit: f64) -> Vec<f64> {
        let scale = 1e9 / self.window as f64 / unit;
        self.values.into_iter().map(|v| v * scale).collect()
    }
}

#[derive(Debug)]
struct Record {
    begin: u64,
    bytes: u64,
    demand: Series,
    frames: Series,
    media: Series,
    wasted: Series,
    samples: BTreeMap<&'static str, Vec<f64>>,
}

impl Work {
    /// Adds program bytes that were loaded and stored.
    pub(super) fn did(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(record) = &mut self.record {
            record.demand.look(clock::now(), self.bytes);
        }
    }

    /// Adds a value of something that is measured now and then.
    pub(super) fn sample(&mut self, name: &'static str, value: f64) {
        if let Some(samples) = self.record.as_mut().and_then(|r| r.samples.get_mut(name)) {
            samples.push(value);
        }
    }

    fn look(&mut self, now: u64) {
        if let Some(record) = &mut self.record {
            record.demand.look(now, self.bytes);
            record.frames.look(now, self.frames);
            record.media.look(now, self.media);
            record.wasted.look(now, self.wasted);
        }
    }

    fn begin(&mut self, span: Span, names: &[&'static str]) {
        let seconds = ((span.duration.0 + SECOND / 2) / SECOND).max(1);
        let per_second = || Series::new(span.duration.0, span.duration.0 / seconds);
        let mut record = Record {
            begin: 0,
            bytes: self.bytes,
            demand: Series::new(span.duration.0, span.window.0),
            frames: per_second(),
            media: per_second(),
            wasted: per_second(),
            samples: names.iter().map(|name| (*name, room(SAMPLES))).collect(),
        };
        record.begin = clock::now();
        record.demand.begin(record.begin, self.bytes);
        record.frames.begin(record.begin, self.frames);
        record.media.begin(record.begin, self.media);
        record.wasted.begin(record.begin, self.wasted);
        self.record = Some(record);
    }

    fn end(&mut self) -> Option<Measurement> {
        let record = self.record.take()?;
        let window_ns = record.demand.window;
        let mut metrics: BTreeMap<String, Vec<f64>> = record
            .samples
            .into_iter()
            .map(|(name, values)| (name.to_owned(), values))
            .collect();
        for (name, series, unit) in [
            ("bandwidth_mb_s", record.demand, 1e6),
            ("frames_per_s", record.frames, 1.0),
            ("media_kb_s", record.media, 1e3),
            ("wasted_packets", record.wasted, 1.0),
        ] {
            metrics.insert(name.to_owned(), series.into_rates(unit));
        }
        // What did not happen has no values. Without a call stage, the frames of a display have no
        // age.
        metrics.retain(|_, values| !values.is_empty());
        Some(Measurement {
            metrics,
            window_ns,
            bytes: self.bytes - record.bytes,
            duration_ns: clock::now() - record.begin,
            begun: None,
            memory_bytes: None,
            ended_ns: Vec::new(),
            account: None,
        })
    }
}

/// A stage of the call, driven by [`run`].
pub(super) trait Stage {
    /// The metric names of its samples.
    const SAMPLES: &'static [&'static str];

    /// The account of its work.
    fn work(&mut self) -> &mut Work;

    /// Does what is due. Returns when something is due again.
    fn turn(&mut self, now: u64) -> Result<u64, Error>;

    /// Sleeps until this time, or until something arrives.
    fn wait(&self, until: u64) -> Result<(), Error>;

    /// Forgets what was due while the stage did not run.
    fn resume(&mut self, now: u64);
}

/// Runs a stage until `until`. `false` when asked to end.
fn run(stage: &mut impl Stage, until: u64, asked: &mut dyn FnMut() -> bool) -> Result<bool, Error> {
    let mut ask = 0;
    loop {
        let now = clock::now();
        stage.work().look(now);
        if now >= until {
            return Ok(true);
        }
        if now >= ask {
            if asked() {
                return Ok(false);
            }
            ask = now + ASK_NS;
        }
        let next = stage.turn(now)?;
        stage.wait(next.min(until).min(ask))?;
    }
}

/// Measures a span of a stage.
pub(super) fn span<S: Stage>(
    stage: &mut S,
    span: Span,
    asked: &mut dyn FnMut() -> bool,
) -> Result<Option<Measurement>, Error> {
    span.check()?;
    stage.resume(clock::now());
    if !run(stage, clock::now() + span.warmup.0, asked)? {
        return Ok(None);
    }
    stage.work().begin(span, S::SAMPLES);
    let done = run(stage, clock::now() + span.duration.0, asked)?;
    let measured = stage.work().end();
    Ok(measured.filter(|_| done))
}

/// Keeps a stage running until asked to end.
pub(super) fn hold(stage: &mut impl Stage, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
    stage.resume(clock::now());
    run(stage, u64::MAX, asked).map(|_| ())
}

/// Sleeps until `until`, or until there is something to read.
pub(super) fn poll(fds: &mut [rustix::event::PollFd<'_>], until: u64) -> Result<(), Error> {
    let left = until.saturating_sub(clock::now());
    let timeout = rustix::event::Timespec {
        tv_sec: i64::try_from(left / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(left % SECOND).unwrap_or(0),
    };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::kernel("waiting for the other stage")(e)),
    }
}

/// Converts nanoseconds to milliseconds.
pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn work_between_two_samples_is_spread_over_their_time() {
        let mut series = Series::new(4_000, 1_000);
        series.begin(500, 10);
        series.look(1_000, 60);
        series.look(3_000, 260);
        series.look(9_000, 260);
        // 100 per window from 500 on, for two and a half windows. Then nothing.
        assert_eq!(series.into_rates(1e6), [100.0, 100.0, 50.0, 0.0]);
    }

    proptest! {
        #[test]
        fn the_mean_is_what_was_done_per_time_whatever_the_looks(
            steps in prop::collection::vec((0u64..5_000, 0u64..1_000), 1..200),
        ) {
            let span = steps.iter().map(|(time, _)| time).sum::<u64>() / 1_000 * 1_000;
            prop_assume!(span > 0);
            let mut series = Series::new(span, 1_000);
            series.begin(7, 0);
            let (mut now, mut count, mut inside) = (7, 0, 0.0);
            for (time, work) in steps {
                let within = (span + 7).saturating_sub(now).min(time);
                inside += if time > 0 { work as f64 * within as f64 / time as f64 } else { 0.0 };
                now += time;
                // A counter only moves while time passes.
                count += if time > 0 { work } else { 0 };
                series.look(now, count);
            }
            let rates = series.into_rates(1e9);
            let sum = rates.iter().sum::<f64>() * 1_000.0;
            prop_assert!((sum - inside).abs() <= 1e-6 * inside.max(1.0), "{} {}", sum, inside);
        }
    }
}
