//! The rates that this machine reaches, in program bytes. They replace what cannot be counted. With
//! the time meter a CPU's use is its running time × the *highest* rate that one CPU can reach. So a
//! rate that is too low would break caps.
//!
//! **Rate of an operation on a CPU**, by its own time: the best of [`ROUNDS`] runs of [`RUN_NS`]
//! per CPU, because a disturbance only slows. Up to [`MOST_CPUS`] CPUs spread over the set are
//! measured, one at a time. Operations and CPUs are interleaved, so a disturbance hits all alike.
//!
//! **Peak**: the best of these rates. In addition to the experiments' operations a copy with stores
//! past the caches is tried, since its program bytes cost the least traffic.
//!
//! **Sustainable**: the median of [`ROUNDS`] runs of [`TOGETHER_NS`] in which every CPU of the set
//! streams in the peak's way at once. It is the median, because the rate must hold, not be reached
//! once. It is at least the peak, which one CPU alone did reach.
//!
//! For the user the spread of every run is kept as well: of each CPU alone, and of each while all
//! run the same.
//!
//! **Buffers** are four times the last-level cache, in huge pages where possible. A thread gets at
//! most 512 MiB, and all threads together an eighth of the available memory. A buffer is taken and
//! touched on the CPU that streams through it.
//! - Where memory is short, fewer CPUs are measured alone.
//! - Where that does not help, buffers shrink into the last-level cache, and the result says so
//!   ([`Measured::within_cache`]). Part of the traffic then never reached memory, which may sustain
//!   less.
//! - It is refused only where buffers would fit the second-level caches, too. They would show
//!   nothing of what CPUs share.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use quell_plan::deep::{Runs, Streams};
use quell_plan::inventory::Measured;
use quell_policy::workload::{Operation, Pages};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::load::Driver;
use crate::resolved::Load;
use crate::stream::{Stream, Way};
use crate::{Error, affinity, clock, procfs};

/// How many runs each figure is made of.
pub const ROUNDS: usize = 4;
/// One run of one CPU alone, in nanoseconds.
pub const RUN_NS: u64 = 20_000_000;
/// One run of all CPUs together, in nanoseconds.
pub const TOGETHER_NS: u64 = 60_000_000;
/// The most CPUs that are measured alone.
pub const MOST_CPUS: usize = 4;

const LARGEST_BUFFER: u64 = 512 << 20;
/// How far ahead a common start is set: longer than a thread takes to wake.
const START_NS: u64 = 1_000_000;

/// Every way to stream that could be the fastest.
fn ways() -> impl Iterator<Item = Way> {
    let operations = Operation::ALL.into_iter().map(Way::Operation);
    operations.chain([Way::CopyNonTemporal])
}

/// The way to stream with this name.
pub(crate) fn way(name: &str) -> Option<Way> {
    ways().find(|way| way.name() == name)
}

/// A run that a worker is to make. It answers with program bytes per second, or `None` where the
/// processor does not have the way.
struct Run {
    way: Way,
    start: u64,
    duration: u64,
    /// Whether the rate is per second of CPU time. Then other programs on the CPU do not lower it.
    of_cpu_time: bool,
}

/// A thread on a CPU that streams through memory of its own when it is sent a run.
pub(crate) struct Worker {
    pub(crate) cpu: CpuId,
    tell: Sender<Run>,
    hear: Receiver<Result<Option<f64>, Error>>,
    begun: Receiver<Result<u32, Error>>,
}

impl Worker {
    /// Starts a worker that streams through so much memory. It ends with its owner.
    pub(crate) fn start<'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        cpu: CpuId,
        size: Bytes,
    ) -> Self {
        let (tell, told) = channel();
        let (say, hear) = channel();
        let (ready, begun) = channel();
        scope.spawn(move || work(cpu, size, &ready, &told, &say));
        Self {
            cpu,
            tell,
            hear,
            begun,
        }
    }

    /// Waits until its memory is touched. Returns the kernel's number of the thread.
    pub(crate) fn begun(&self) -> Result<u32, Error> {
        self.begun.recv().map_err(|_| self.lost())?
    }

    /// Starts a run of this worker alone, at once, per second of CPU time.
    fn alone(&self, way: Way) -> Result<(), Error> {
        self.send(Run {
            way,
            start: 0,
            duration: RUN_NS,
            of_cpu_time: true,
        })
    }

    pub(crate) fn tell(&self, way: Way, start: u64, duration: u64) -> Result<(), Error> {
        self.send(Run {
            way,
            start,
            duration,
            of_cpu_time: false,
        })
    }

    fn send(&self, run: Run) -> Result<(), Error> {
        self.tell.send(run).map_err(|_| self.lost())
    }

    pub(crate) fn hear(&self) -> Result<Option<f64>, Error> {
        self.hear.recv().map_err(|_| self.lost())?
    }

    fn lost(&self) -> Error {
        Error::refused(
            format!("measuring rates on CPU {}", self.cpu),
            "its thread died",
            "report this",
        )
    }
}

/// Measures the rates of `cpus`. `llc`: the size of their last-level cache. It takes two or three
/// seconds of full memory load on two CPUs, at most four on many. `now_unix_s` is recorded as the
/// time of measuring.
///
/// # Errors
/// When a CPU may not be used. Also when an eighth of the available memory does not hold twice the
/// second-level cache for each CPU.
pub fn rates(cpus: &CpuSet, llc: Bytes, now_unix_s: u64) -> io::Result<Measured> {
    let available = procfs::available_memory()?;
    let l2 = procfs::largest_l2(&cpus.iter().take(1).collect())?;
    let buffers = buffers(llc, l2, cpus.len(), available)?;
    let spread = cpus.spread(buffers.cpus_alone);
    Ok(thread::scope(|scope| -> Result<Measured, Error> {
        let each = buffers.each(cpus).into_iter();
        let workers: Vec<Worker> = each
            .map(|(cpu, size)| Worker::start(scope, cpu, size))
            .collect();
        for worker in &workers {
            worker.begun()?;
        }
        let alone = each_alone(workers.iter().filter(|w| spread.contains(&w.cpu)))?;
        let mut together = all_together(&workers, alone.keys().copied())?;
        let streams: Vec<Streams> = alone
            .into_iter()
            .map(|(way, alone)| Streams {
                operation: way.name(),
                alone,
                together: together.remove(&way).unwrap_or_default(),
            })
            .collect();
        let measured = Measured::of_streams(&streams, workers.len(), now_unix_s);
        let measured = measured.ok_or_else(|| {
            Error::refused("measuring rates", "no CPU was named", "name at least one")
        })?;
        Ok(Measured {
            within_cache: buffers.within_cache.then_some(buffers.alone),
            ..measured
        })
    })?)
}

/// The rates of every way on each of the workers, running alone.
fn each_alone<'a>(
    workers: impl Iterator<Item = &'a Worker> + Clone,
) -> Result<BTreeMap<Way, Runs>, Error> {
    let mut all: BTreeMap<Way, Runs> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for way in ways() {
            for worker in workers.clone() {
                worker.alone(way)?;
                if let Some(rate) = worker.hear()? {
                    let runs = all.entry(way).or_default().entry(worker.cpu);
                    runs.or_default().push(rate);
                }
            }
        }
    }
    Ok(all)
}

/// The rates of every way on each of the workers, all running at once.
fn all_together(
    workers: &[Worker],
    ways: impl Iterator<Item = Way> + Clone,
) -> Result<BTreeMap<Way, Runs>, Error> {
    let mut all: BTreeMap<Way, Runs> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for way in ways.clone() {
            let start = clock::now() + START_NS;
            for worker in workers {
                worker.tell(way, start, TOGETHER_NS)?;
            }
            for worker in workers {
                let rate = worker.hear()?.unwrap_or(0.0);
                let runs = all.entry(way).or_default().entry(worker.cpu);
                runs.or_default().push(rate);
            }
        }
    }
    Ok(all)
}

/// A worker: takes its memory on its CPU, reports that, and makes the runs it is sent until the
/// channel closes.
fn work(
    cpu: CpuId,
    size: Bytes,
    ready: &Sender<Result<u32, Error>>,
    told: &Receiver<Run>,
    say: &Sender<Result<Option<f64>, Error>>,
) {
    let taken = affinity::pin_to(cpu)
        .and_then(|pinned| Ok((pinned, Stream::new(Operation::Read, size, Pages::Huge)?)));
    let (_pinned, stream) = match taken {
        Ok(taken) => taken,
        Err(e) => {
            let _ = ready.send(Err(e));
            return;
        }
    };
    let mut driver = Driver::new(Load::Bandwidth(stream), None);
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    // The channel closes only when the measurement has failed elsewhere.
    let mut gone = ready.send(Ok(thread.cast_unsigned())).is_err();
    while !gone && let Ok(run) = told.recv() {
        gone = say.send(Ok(run_once(&mut driver, &run))).is_err();
    }
}

fn run_once(driver: &mut Driver, run: &Run) -> Option<f64> {
    let Load::Bandwidth(stream) = driver.load_mut() else {
        return None;
    };
    stream.change(run.way).ok()?;
    while clock::now() < run.start {
        std::hint::spin_loop();
    }
    let used = clock::of_this_thread();
    let span = driver.run(run.duration, None, || false);
    let used = clock::of_this_thread() - used;
    let time = if run.of_cpu_time {
        used.min(span.duration_ns)
    } else {
        span.duration_ns
    };
    let bytes = span.steps * driver.load().step_bytes();
    Some(bytes as f64 * 1e9 / time.max(1) as f64)
}

/// Known traffic: a pass over a buffer of four caches that reads or writes each line. Each line
/// crosses to or from memory once. Each call makes one pass on the calling thread, and returns the
/// number of lines.
///
/// # Errors
/// When the memory cannot be had.
pub fn known_traffic(write: bool, llc: Bytes) -> io::Result<Box<dyn FnMut() -> u64>> {
    let available = procfs::available_memory()?;
    let (size, _) = sizes(llc, 1, 1, available)?;
    let operation = if write {
        Operation::Write
    } else {
        Operation::Read
    };
    let mut stream = Stream::new(operation, size, Pages::Huge)?;
    let lines = size.0 / LINE_BYTES;
    Ok(Box::new(move || {
        stream.run(lines);
        lines
    }))
}

/// Which CPUs stream through buffers of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// How many CPUs also run alone. `alone`: the buffer of each of these.
    cpus_alone: usize,
    alone: Bytes,
    /// The buffer of each other CPU.
    others: Bytes,
    /// Whether the buffers do not reach beyond the last-level cache.
    within_cache: bool,
}

impl Buffers {
    /// The buffer of each of the CPUs.
    pub(crate) fn each(&self, cpus: &CpuSet) -> Vec<(CpuId, Bytes)> {
        let alone = cpus.spread(self.cpus_alone);
        let size = |cpu| match alone.contains(&cpu) {
            true => self.alone,
            false => self.others,
        };
        cpus.iter().map(|cpu| (cpu, size(cpu))).collect()
    }
}

/// The buffers of a measurement of rates on `cpus` CPUs. With less memory they are fewer and
/// smaller.
pub(crate) fn buffers(
    llc: Bytes,
    l2: Bytes,
    cpus: usize,
    available: Option<Bytes>,
) -> Result<Buffers, Error> {
    let most = cpus.min(MOST_CPUS);
    if let Ok((alone, others)) = sizes(llc, cpus, most, available) {
        return Ok(Buffers {
            cpus_alone: most,
            alone,
            others,
            within_cache: false,
        });
    }
    let whole = available.map_or(u64::MAX, |a| a.0 / 8);
    let enough = (2 * llc.0).min(LARGEST_BUFFER);
    // Fewer CPUs with large enough buffers. All other CPUs only run together with them, in buffers
    // beyond their own caches.
    for fewer in (1..most).rev() {
        let rest = whole.saturating_sub(fewer as u64 * enough) / (cpus - fewer) as u64;
        if rest >= 2 * l2.0 {
            return Ok(Buffers {
                cpus_alone: fewer,
                alone: Bytes(enough & !4095),
                others: Bytes(rest.min(enough) & !4095),
                within_cache: false,
            });
        }
    }
    let each = whole / cpus.max(1) as u64;
    if each < 2 * l2.0 {
        return Err(Error::refused(
            format!("measuring rates on {cpus} CPUs with second-level caches of {l2}"),
            format!(
                "an eighth of the available memory is {}, too little for a buffer of twice that cache for each",
                Bytes(whole)
            ),
            "free memory and try again",
        ));
    }
    let each = Bytes(each & !4095);
    Ok(Buffers {
        cpus_alone: most,
        alone: each,
        others: each,
        within_cache: true,
    })
}

/// The buffers of threads that also run alone, and of all other threads.
pub(crate) fn sizes(
    llc: Bytes,
    cpus: usize,
    alone: usize,
    available: Option<Bytes>,
) -> Result<(Bytes, Bytes), Error> {
    let wanted = (4 * llc.0).clamp(1 << 20, LARGEST_BUFFER);
    let whole = available.map_or(u64::MAX, |a| a.0 / 8);
    let first = wanted.min(whole / alone.max(1) as u64);
    if first < 2 * llc.0 && first < LARGEST_BUFFER {
        return Err(Error::refused(
            format!("measuring rates with a last-level cache of {llc}"),
            format!(
                "an eighth of the available memory is {}, too little for {alone} buffers of twice that cache",
                Bytes(whole)
            ),
            "free memory and try again",
        ));
    }
    let others = cpus.saturating_sub(alone).max(1) as u64;
    let rest = whole.saturating_sub(first * alone as u64) / others;
    Ok((
        Bytes(first & !4095),
        Bytes(first.min(rest).max(1 << 20) & !4095),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buffers_are_four_caches_within_the_stated_bounds() {
        let mib = |n: u64| Bytes(n << 20);
        let sizes =
            |llc, cpus, alone, available| sizes(mib(llc), cpus, alone, Some(mib(available)));
        assert_eq!(sizes(48, 2, 2, 23_000).unwrap(), (mib(192), mib(192)));
        // A large cache: 512 MiB. Many CPUs share an eighth of memory.
        assert_eq!(sizes(256, 64, 4, 64_000).unwrap().0, mib(512));
        let others = sizes(256, 64, 4, 64_000).unwrap().1;
        assert!(4 * (512 << 20) + 60 * others.0 <= 8_000 << 20, "{others}");
        let text = sizes(48, 2, 2, 1_000).unwrap_err().to_string();
        assert!(text.contains("125MiB"), "{text}");
    }

    #[test]
    fn where_memory_is_short_buffers_shrink_and_are_then_refused() {
        let mib = |n: u64| Bytes(n << 20);
        let of = |cpus, available| buffers(mib(48), mib(1), cpus, Some(mib(available)));
        let told = |cpus, available| {
            let b = of(cpus, available).unwrap();
            (b.cpus_alone, b.alone, b.others, b.within_cache)
        };
        assert_eq!(told(2, 23_000), (2, mib(192), mib(192), false));
        // 125 MiB do not hold 96 MiB for both CPUs. They hold that for one, and 29 for the other
        // while both run.
        assert_eq!(told(2, 1_000), (1, mib(96), mib(29), false));
        // 62 MiB: within the cache, and the result says so.
        assert_eq!(told(2, 496), (2, mib(31), mib(31), true));
        let text = of(2, 24).unwrap_err().to_string();
        assert!(
            text.contains("an eighth of the available memory is 3MiB"),
            "{text}"
        );
        assert!(text.contains("second-level caches of 1MiB"), "{text}");
        assert!(of(64, 900).is_err() && of(64, 1_100).unwrap().within_cache);
    }

    proptest! {
        #[test]
        fn buffers_stay_within_an_eighth_and_beyond_private_caches(
            llc in 1u64..600, l2 in 1u64..4, cpus in 1usize..200, available in 1u64..100_000,
        ) {
            let mib = |n: u64| Bytes(n << 20);
            let Ok(b) = buffers(mib(llc), mib(l2), cpus, Some(mib(available))) else {
                prop_assert!((available << 20) / 8 / (cpus as u64) < (2 * l2) << 20);
                return Ok(());
            };
            prop_assert!((1..=MOST_CPUS.min(cpus)).contains(&b.cpus_alone));
            let all = b.alone.0 * b.cpus_alone as u64 + b.others.0 * (cpus - b.cpus_alone) as u64;
            // A thread has at least a MiB.
            prop_assert!(all <= (available << 20) / 8 + ((cpus as u64) << 20));
            let enough = (2 * (llc << 20)).min(LARGEST_BUFFER);
            prop_assert!(b.within_cache || b.alone.0 >= enough);
            prop_assert!(!b.within_cache || b.alone.0 >= (2 * l2) << 20);
        }
    }

    #[test]
    fn a_program_on_the_same_cpu_does_not_lower_the_rates_of_a_cpu() {
        let cpu: CpuSet = affinity::allowed().unwrap().iter().take(1).collect();
        let peak = || rates(&cpu, Bytes(1 << 20), 0).unwrap().peak_cpu.0 as f64;
        let ended = std::sync::atomic::AtomicBool::new(false);
        let ended = &ended;
        let beside = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let _pinned = affinity::pin_to(cpu.first().unwrap());
                    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let beside = peak();
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            beside
        });
        let alone = peak();
        // By the clock it would be a quarter.
        assert!(beside > alone * 0.6, "{beside} next to {alone}");
    }

    #[test]
    fn the_peak_is_the_best_operation_and_no_slower_with_all() {
        let cpus = affinity::allowed().unwrap();
        // A small cache, so that the test needs no large machine. The rules are the same.
        let measured = rates(&cpus, Bytes(1 << 20), 1_700_000_000).unwrap();
        assert_eq!(
            measured.by_operation[&measured.peak_operation],
            measured.peak_cpu
        );
        assert!(
            measured
                .by_operation
                .values()
                .all(|r| *r <= measured.peak_cpu && r.0 > 0)
        );
        assert!(measured.sustainable >= measured.peak_cpu);
        assert_eq!(measured.operations.len(), measured.by_operation.len());
        for operation in &measured.operations {
            assert_eq!(operation.loaded.len(), cpus.len());
            let best = measured.by_operation[&operation.operation].0 as f64 / 1e6;
            let alone = operation.alone.iter().map(|c| c.mb_s.high);
            assert!(alone.fold(0.0, f64::max) <= best + 1.0, "{operation:?}");
        }
        for operation in [Operation::Read, Operation::Write, Operation::Copy] {
            assert!(measured.by_operation.contains_key(operation.name()));
        }
        assert_eq!(
            (measured.cpus as usize, measured.at_unix_s),
            (cpus.len(), 1_700_000_000)
        );
    }

    #[test]
    fn known_traffic_is_a_pass_over_four_caches() {
        for write in [false, true] {
            let mut pass = known_traffic(write, Bytes(1 << 20)).unwrap();
            assert_eq!((pass(), pass()), (1 << 16, 1 << 16));
        }
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        let text = rates(&[8191].into_iter().collect(), Bytes(1 << 20), 0)
            .unwrap_err()
            .to_string();
        assert!(text.contains("8191"), "{text}");
        assert!(rates(&CpuSet::new(), Bytes(1 << 20), 0).is_err());
    }
}
