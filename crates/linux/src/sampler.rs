//! A thread that reads once a millisecond what a program uses: perf events of its threads, each
//! including the thread's children.
//!
//! CPU time is such an event, too (the task clock). It is exact to the moment it is read, also for
//! a thread that runs just then. Process clocks and `/proc/TID/schedstat` are old by up to a tick
//! (seen: single threads with four milliseconds in one). To read an event of a thread that runs on
//! another CPU, the kernel interrupts that CPU. The CPU time that reading takes is measured and
//! reported.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use quell_record::demand::BIN;
use quell_types::cpuset::CpuId;
use quell_types::units::Nanos;

use quell_kernel::perf::Event;
use quell_kernel::rt;

/// Real-time priority above ordinary work, so that readings are on time.
const PRIORITY: i32 = 40;

/// A reading that took longer (something else ran in between) does not belong to one moment, and is
/// left out.
const LONGEST: Nanos = Nanos::micros(200);

/// The counters of one thread, in two sums: CPU time and nothing, or lines that come in and lines
/// that are written back.
#[derive(Debug, Default)]
pub(crate) struct Source(pub(crate) [Vec<Event>; 2]);

/// Times and the two sums that were read then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    pub(crate) all: Vec<(Nanos, [u64; 2])>,
    /// The CPU time of the reading thread itself.
    pub(crate) cost: Nanos,
    /// Whether a counter was taken away for a time.
    pub(crate) gaps: bool,
}

/// The sampling thread, while it runs.
#[derive(Debug)]
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Readings>,
}

impl Sampler {
    /// Begins to read `sources`, on `cpu` if that is given.
    pub(crate) fn start(sources: Vec<Source>, cpu: Option<CpuId>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("quell-sampler".to_owned())
            .spawn(move || sample(&sources, cpu, &stopped))?;
        Ok(Self { stop, thread })
    }

    /// Ends it, after a last reading.
    pub(crate) fn end(self) -> Readings {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn sample(sources: &[Source], cpu: Option<CpuId>, stop: &AtomicBool) -> Readings {
    // Without one of these, readings come late, which is counted and reported.
    let _ = cpu.map(rt::pin);
    let _ = rt::fifo(PRIORITY);
    let mut readings = Readings::default();
    let mut next = rt::now();
    loop {
        let last = stop.load(Ordering::Relaxed);
        let now = rt::now();
        let mut sum = [0u64; 2];
        for Source(events) in sources {
            for (sum, events) in sum.iter_mut().zip(events) {
                for event in events {
                    let read = event.read().ok();
                    readings.gaps |= read.is_none_or(|r| !r.running);
                    *sum += read.map_or(0, |r| r.value);
                }
            }
        }
        // What a failed event has lost must not look like a step back.
        let before = readings.all.last().map_or([0; 2], |(_, sum)| *sum);
        let took = rt::now().since(now);
        if took <= LONGEST || last {
            let at = now.plus(Nanos(took.0 / 2));
            readings
                .all
                .push((at, [sum[0].max(before[0]), sum[1].max(before[1])]));
        }
        if last {
            break;
        }
        // Missed readings are not made up for.
        while next <= now {
            next = next.plus(BIN);
        }
        let until = rt::timespec(next);
        // A signal that wakes it early only adds a reading.
        let _ =
            rustix::thread::clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &until);
    }
    let cost = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    readings.cost = Nanos(part(cost.tv_sec) * 1_000_000_000 + part(cost.tv_nsec));
    readings
}

#[cfg(test)]
pub(crate) mod tests {
    use quell_kernel::perf::{
        EventCode, SW_MINOR_FAULTS, SW_TASK_CLOCK, Scope, TYPE_SOFTWARE, Wake,
    };

    use super::*;
    use std::time::{Duration, Instant};

    fn work(span: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < span {
            std::hint::spin_loop();
        }
    }

    /// Skips the test where it cannot be counted.
    pub(crate) fn of_this_thread(config: u64) -> Option<Source> {
        let code = EventCode {
            kind: TYPE_SOFTWARE,
            config,
        };
        // SAFETY: no argument, no memory touched.
        let own = unsafe { libc::gettid() };
        let scope = Scope::Thread(u32::try_from(own).unwrap());
        let event = Event::open(code, scope, Wake::Never);
        if let Err(e) = &event {
            quell_testing::skip(format_args!(
                "no software event of a thread is to be had here: {e}"
            ));
        }
        Some(Source([vec![event.ok()?], Vec::new()]))
    }

    #[test]
    fn the_clock_of_a_thread_never_runs_faster_than_time() {
        let Some(source) = of_this_thread(SW_TASK_CLOCK) else {
            return;
        };
        let sampler = Sampler::start(vec![source], None).unwrap();
        work(Duration::from_millis(100));
        let readings = sampler.end();
        let (first, last) = (readings.all[0], readings.all[readings.all.len() - 1]);
        assert!(last.1[0] - first.1[0] > 10_000_000, "{first:?} {last:?}");
        // Some readings are late on a busy machine, but not most.
        assert!(readings.all.len() > 10, "{}", readings.all.len());
        // The moment of a reading is known to within the longest time that one may take. A host
        // that takes the CPU away between the two reads makes one longer.
        let fast = readings.all.windows(2).filter(|pair| {
            let (time, used) = (pair[1].0.since(pair[0].0).0, pair[1].1[0] - pair[0].1[0]);
            used > time + LONGEST.0
        });
        let fast = fast.count();
        assert!(
            fast * 10 < readings.all.len(),
            "{fast} of {}",
            readings.all.len()
        );
        assert!(readings.cost.0 > 0 && !readings.gaps);
    }

    #[test]
    fn what_is_born_of_a_thread_counts_with_it() {
        let Some(source) = of_this_thread(SW_MINOR_FAULTS) else {
            return;
        };
        let sampler = Sampler::start(vec![source], None).unwrap();
        // The first reading comes when the sampling thread first runs.
        std::thread::sleep(Duration::from_millis(50));
        std::thread::spawn(|| std::hint::black_box(vec![1u8; 8 << 20]).len())
            .join()
            .unwrap();
        let readings = sampler.end();
        let (first, last) = (readings.all[0], readings.all[readings.all.len() - 1]);
        // Large pages are faulted in one by one, too.
        assert!(last.1[0] > first.1[0], "{first:?} {last:?}");
    }
}
