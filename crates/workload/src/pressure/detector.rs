//! The object detector. Frames arrive at a fixed rate. For each one an image is read through the
//! page cache. It is processed together with all the weights, which are a mapped file.
//!
//! Frames that arrive during the work on another one are dropped, as those of a camera are. The
//! result of a dropped frame comes with the next processed frame, and its time counts until then.
//! The first pass over each file is part of getting ready.

use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use quell_client::{Demand, Session};
use quell_policy::workload::{self, FRAME_MS};
use quell_record::measurement::Measurement;
use quell_types::units::{Bytes, Share};
use rustix::process::{Resource, getrlimit};

use super::files::{Cached, Map, forget_range, make, no_reading_ahead};
use super::machine::Machine;
use super::{ASK_NS, page, resident_mb};
use crate::generator::{Generator, Span};
use crate::memory::Granted;
use crate::periodic::room;
use crate::{Error, clock, procfs};

/// Bytes of the smallest image.
const SMALLEST: usize = 100_000;
const LARGEST: usize = 200_000;
/// Bytes that the arithmetic takes at a time.
const LINE: usize = 64;

/// The detector, with its files mapped and read.
#[derive(Debug)]
pub(crate) struct Detector {
    weights: Map,
    /// Bytes of each page that the arithmetic processes.
    per_page: usize,
    images: File,
    /// The weights and images again, mapped only to ask which pages are in memory. Never touched.
    shown: Map,
    /// Of each image its first byte in the file, and its length.
    index: Vec<(usize, usize)>,
    /// The index of the next image.
    turn: usize,
    image: Vec<u8>,
    seen: Vec<u8>,
    period: u64,
    /// When the last frame was done. Frames that arrived until then are dropped.
    done: u64,
    session: Session,
}

/// The values of one span, by metric.
#[derive(Debug)]
struct Record {
    ended_ns: Vec<u64>,
    frame_ms: Vec<f64>,
    dropped: Vec<f64>,
    cache_misses: Vec<f64>,
    major_faults: Vec<f64>,
    minor_faults: Vec<f64>,
    resident_mb: Vec<f64>,
}

impl Record {
    fn new(frames: usize) -> Self {
        let room = || room(frames);
        let mut ended_ns = vec![u64::MAX; frames];
        ended_ns.clear();
        Self {
            ended_ns,
            frame_ms: room(),
            dropped: room(),
            cache_misses: room(),
            major_faults: room(),
            minor_faults: room(),
            resident_mb: room(),
        }
    }

    fn into_metrics(self) -> (BTreeMap<String, Vec<f64>>, Vec<u64>) {
        let metrics = [
            (FRAME_MS, self.frame_ms),
            ("dropped", self.dropped),
            ("cache_misses", self.cache_misses),
            ("major_faults", self.major_faults),
            ("minor_faults", self.minor_faults),
            ("resident_mb", self.resident_mb),
        ]
        .map(|(name, values)| (name.to_owned(), values));
        (metrics.into(), self.ended_ns)
    }
}

/// Nanoseconds from one frame to the next.
pub(super) fn period(spec: &workload::Detector) -> u64 {
    1_000_000_000 / u64::from(spec.fps.max(1))
}

/// Page faults of the calling thread so far: those that waited for a disk, and all other ones.
fn faults() -> (f64, f64) {
    // SAFETY: a plain structure of numbers, filled by the kernel.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_majflt as f64, usage.ru_minflt as f64)
}

impl Detector {
    pub(crate) fn new(spec: &workload::Detector) -> Result<Self, Error> {
        let too_large =
            |_| Error::refused("weights", "they exceed the address space", "ask for less");
        let len =
            usize::try_from(spec.weights.0 / page() as u64 * page() as u64).map_err(too_large)?;
        if let Some(most) = getrlimit(Resource::As).current
            && spec.weights.0 > most
        {
            return Err(Error::refused(
                format!("mapping {} of weights", spec.weights),
                format!("the limit of the address space is {}", Bytes(most)),
                "raise it (ulimit -v), or ask for less",
            ));
        }
        let weights = Map::new(&make(spec.weights, Cached::Kept)?, len)?;
        let (index, bytes) = layout(spec.images);
        let images = make(Bytes(bytes as u64), Cached::Kept)?;
        // Images are files of their own, as it were: reading one brings nothing in of the next.
        no_reading_ahead(&images)?;
        for (from, len) in uncached(&index, spec.uncached) {
            let len = NonZeroU64::new(len.next_multiple_of(page()) as u64);
            forget_range(&images, *from, len)?;
        }
        let shown = Map::new(&images, bytes)?;
        let mut detector = Self {
            weights,
            per_page: usize::try_from(spec.per_page.0)
                .unwrap_or(page())
                .min(page()),
            images,
            shown,
            index,
            turn: 0,
            image: vec![0; LARGEST],
            seen: vec![0; LARGEST.div_ceil(page())],
            period: period(spec),
            done: 0,
            session: Session::open(),
        };
        detector.session.set_demand(Demand {
            bytes_per_unit: (len / page() * detector.per_page) as u64,
            working_set: spec.weights.0 + bytes as u64,
        });
        for _ in 0..detector.index.len().min(10) {
            detector.look()?;
        }
        Ok(detector)
    }

    /// Reads the next image and processes it with the weights.
    fn look(&mut self) -> Result<(), Error> {
        let (from, len) = self.index[self.turn];
        self.turn = (self.turn + 1) % self.index.len();
        let image = &mut self.image[..len];
        self.images
            .read_exact_at(image, from as u64)
            .map_err(Error::kernel("reading an image"))?;
        let lines = len / LINE;
        let mut sum = 0u32;
        for (n, page) in self.weights.bytes().chunks_exact(page()).enumerate() {
            for (i, weights) in page[..self.per_page].chunks_exact(LINE).enumerate() {
                let at = (n + i) % lines * LINE;
                let pixels = &image[at..at + LINE];
                for (w, x) in weights.iter().zip(pixels) {
                    sum = sum.wrapping_add(u32::from(*w) * u32::from(*x));
                }
            }
        }
        black_box(sum);
        Ok(())
    }

    /// Works on the frames that arrive from `begin` on and before `until`, one each period. If the
    /// last of them was dropped, it also works on the next one. Returns how many, or `None` when
    /// asked to end.
    fn run(
        &mut self,
        begin: u64,
        until: u64,
        mut record: Option<&mut Record>,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>, Error> {
        let period = usize::try_from(self.period).unwrap_or(usize::MAX);
        let mut frames = 0;
        // The first arrival that is not accounted for yet.
        let mut first = begin;
        while first < until {
            let mut arrived = first;
            while arrived <= self.done {
                arrived += self.period;
            }
            if !wait(arrived, asked) {
                return Ok(None);
            }
            let (from, len) = self.index[self.turn];
            let missing = self.shown.missing(from, len, &mut self.seen)?;
            let before = faults();
            self.look()?;
            self.done = clock::now();
            self.session.unit(Duration::from_nanos(self.done - arrived));
            frames += 1;
            if let Some(record) = record.as_deref_mut() {
                for at in (first..until.min(arrived + 1)).step_by(period) {
                    record.frame_ms.push((self.done - at) as f64 / 1e6);
                    record.dropped.push(f64::from(u8::from(at < arrived)));
                }
                if arrived < until {
                    let after = faults();
                    record.ended_ns.push(self.done - begin);
                    let pages = len.div_ceil(page()) as f64;
                    record.cache_misses.push(missing as f64 / pages);
                    record.major_faults.push(after.0 - before.0);
                    record.minor_faults.push(after.1 - before.1);
                    record.resident_mb.extend(resident_mb(None));
                }
            }
            first = arrived + self.period;
        }
        Ok(wait(until, asked).then_some(frames))
    }
}

/// Waits until this time. `false` when asked to end.
fn wait(until: u64, asked: &mut dyn FnMut() -> bool) -> bool {
    loop {
        if asked() {
            return false;
        }
        let now = clock::now();
        if now >= until {
            return true;
        }
        clock::sleep_until(until.min(now + ASK_NS));
    }
}

/// Where each image begins (at a page) and how long it is, and the file's length.
fn layout(images: u32) -> (Vec<(usize, usize)>, usize) {
    let mut at = 0;
    let index = (0..images as usize)
        .map(|i| {
            // Spread over the whole range, and the same in each run.
            let len = SMALLEST + i * 61_803 % (LARGEST - SMALLEST);
            let from = at;
            at += len.next_multiple_of(page());
            (from, len)
        })
        .collect();
    (index, at)
}

/// The images that are not cached before the run: so many of them, spread evenly.
fn uncached(index: &[(usize, usize)], share: Share) -> impl Iterator<Item = &(usize, usize)> {
    let until = move |n: usize| n as u64 * share.0 / Share::WHOLE.0;
    let of = index.iter().enumerate();
    of.filter(move |(n, _)| until(*n) < until(n + 1))
        .map(|(_, image)| image)
}

impl Generator for Detector {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        let frames = span.duration.0 / self.period + 2;
        let mut record = Record::new(usize::try_from(frames).unwrap_or(usize::MAX));
        let now = clock::now();
        let begin = now + span.warmup.0;
        // The span's first frame arrives as it begins, a whole period after the last one before it.
        let warm = (begin + 1).saturating_sub(self.period);
        if self.run(now, warm, None, asked)?.is_none() {
            return Ok(None);
        }
        let until = begin + span.duration.0;
        let kernel = procfs::live();
        let then = Machine::read(&kernel, clock::now());
        let frames = self.run(begin, until, Some(&mut record), asked)?;
        let of_machine = Machine::read(&kernel, clock::now()).since(&then);
        let (mut metrics, ended_ns) = record.into_metrics();
        metrics.extend(
            of_machine
                .into_iter()
                .map(|(name, value)| (name.to_owned(), vec![value])),
        );
        Ok(frames.map(|frames| Measurement {
            metrics,
            window_ns: self.period,
            bytes: frames * (self.weights.bytes().len() / page() * self.per_page) as u64,
            duration_ns: clock::now() - begin,
            begun: None,
            memory_bytes: None,
            ended_ns,
            account: None,
        }))
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.run(clock::now(), u64::MAX, None, asked).map(|_| ())
    }

    fn granted(&self) -> Granted {
        Granted::Base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_types::units::Nanos;

    fn detector(fps: u32, mib: u64) -> Detector {
        Detector::new(&workload::Detector {
            weights: Bytes(mib << 20),
            images: 4,
            fps,
            ..workload::Detector::default()
        })
        .unwrap()
    }

    fn measure(detector: &mut Detector) -> BTreeMap<String, Vec<f64>> {
        span(detector).metrics
    }

    fn span(detector: &mut Detector) -> Measurement {
        let span = Span {
            warmup: Nanos(0),
            duration: Nanos::millis(500),
            window: Nanos::millis(1),
        };
        detector.span(span, &mut || false).unwrap().unwrap()
    }

    #[test]
    fn a_share_of_the_images_is_read_for_the_first_time() {
        let index: Vec<_> = (0..1000).map(|n| (n, 1)).collect();
        let count = |percent| uncached(&index, Share::percent(percent)).count();
        assert_eq!((count(0), count(9), count(100)), (0, 90, 1000));
        let early = uncached(&index, Share::percent(9)).filter(|i| i.0 < 100);
        assert_eq!(early.count(), 9, "spread evenly");
        // Ten images are read before the span: the files have to be ready.
        let detector = Detector::new(&workload::Detector {
            weights: Bytes(1 << 20),
            images: 30,
            uncached: Share::percent(50),
            ..workload::Detector::default()
        });
        let metrics = measure(&mut detector.unwrap());
        let missed = metrics["cache_misses"].iter().filter(|m| **m > 0.5).count();
        assert!((4..=6).contains(&missed), "{:?}", metrics["cache_misses"]);
        assert_eq!(metrics["page_ins"].len(), 1, "{metrics:?}");
    }

    /// A dropped frame waited for the same end as the next one, and arrived a period earlier.
    fn as_a_viewer_sees_it(metrics: &BTreeMap<String, Vec<f64>>, period_ms: f64) {
        let (frames, dropped) = (&metrics[FRAME_MS], &metrics["dropped"]);
        assert_eq!(frames.len(), dropped.len());
        for (at, two) in frames.windows(2).enumerate() {
            if dropped[at] == 1.0 {
                let more = two[0] - two[1];
                assert!((more - period_ms).abs() < 1e-3, "{at}: {frames:?}");
            }
        }
    }

    #[test]
    fn every_arrival_has_a_value_and_evicted_pages_are_missed() {
        let mut detector = detector(20, 1);
        let measured = span(&mut detector);
        let length = measured.duration_ns;
        let (metrics, ended) = (measured.metrics, measured.ended_ns);
        assert_eq!(metrics["resident_mb"].len(), ended.len());
        assert!(ended.is_sorted() && ended[0] > 0, "{ended:?}");
        assert!(ended.iter().all(|at| *at <= length), "{ended:?}");
        as_a_viewer_sees_it(&metrics, 50.0);
        assert_eq!(metrics["dropped"].len(), 10);
        let looked_at = metrics["dropped"].iter().filter(|d| **d == 0.0).count();
        assert_eq!(metrics["cache_misses"].len(), looked_at);
        // The kernel may drop a page of a file on its own.
        let again = metrics["cache_misses"].iter().filter(|m| **m > 0.0).count();
        assert!(again <= 1, "{metrics:?}");
        assert!(metrics["resident_mb"][0] > 1.0);
        super::super::files::forget(&detector.images).unwrap();
        let metrics = measure(&mut detector);
        // All four images, each once: nothing is read ahead of the one before.
        let missed: Vec<f64> = metrics["cache_misses"].iter().copied().take(4).collect();
        assert!(missed.iter().all(|m| *m == 1.0), "{missed:?}");
    }

    #[test]
    fn a_frame_beyond_its_period_costs_those_that_arrive_meanwhile() {
        let mut small = detector(240, 16);
        let pass = |_| {
            let begin = clock::now();
            small.look().unwrap();
            clock::now() - begin
        };
        let pass = (0..3).map(pass).min().unwrap();
        // Weights that take some four periods.
        let mib = (16 * 4 * small.period).div_ceil(pass).clamp(16, 1024);
        let metrics = measure(&mut detector(240, mib));
        as_a_viewer_sees_it(&metrics, small.period as f64 / 1e6);
        let dropped: f64 = metrics["dropped"].iter().sum();
        assert!(
            dropped > metrics["dropped"].len() as f64 / 2.0,
            "{metrics:?}"
        );
    }

    #[test]
    fn what_arrives_while_the_warm_up_is_worked_on_still_counts() {
        let mut detector = detector(20, 1);
        detector.done = clock::now() + 320_000_000;
        let metrics = measure(&mut detector);
        as_a_viewer_sees_it(&metrics, 50.0);
        assert_eq!(metrics["dropped"].len(), 10);
        assert!(metrics["dropped"][..6].iter().all(|d| *d == 1.0));
        assert!(metrics[FRAME_MS][0] > 320.0, "{:?}", metrics[FRAME_MS]);
    }

    #[test]
    fn a_span_that_ends_in_a_stall_has_values_for_all_that_arrived() {
        let mut detector = detector(20, 1);
        detector.done = clock::now() + 700_000_000;
        let metrics = measure(&mut detector);
        as_a_viewer_sees_it(&metrics, 50.0);
        assert_eq!(metrics["dropped"], [1.0; 10]);
        assert!(metrics[FRAME_MS][9] > 249.0 && metrics["cache_misses"].is_empty());
    }

    #[test]
    fn images_are_in_a_row_on_pages_and_have_published_sizes() {
        let (index, bytes) = layout(1000);
        let mut end = 0;
        for (from, len) in index {
            assert_eq!((from, from % page()), (end, 0));
            assert!((SMALLEST..LARGEST).contains(&len));
            end = from + len.next_multiple_of(page());
        }
        assert_eq!(end, bytes);
    }
}
