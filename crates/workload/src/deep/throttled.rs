//! What the percentages of bandwidth allocation mean on this machine ([`MbaCurve`] has the method).
//! Streams by the operation of the machine's peak run on one CPU each. The caller's [`Class`] takes
//! their threads into a class of service.

use std::collections::BTreeSet;
use std::io;
use std::thread;

use quell_plan::deep::MbaCurve;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::MbaBounds;
use quell_types::units::Bytes;

use super::Depth;
use crate::measure::{self, Worker};
use crate::stream::Way;
use crate::{Error, clock, procfs};

/// How far ahead a common start is set: longer than a thread takes to wake.
const START_NS: u64 = 1_000_000;

/// A class of service of the machine that has no other members.
pub trait Class {
    /// Moves these threads in, by the kernel's thread ids.
    ///
    /// # Errors
    /// When no class can be had.
    fn enter(&mut self, threads: &BTreeSet<u32>) -> io::Result<()>;

    /// Throttles each core to so many percent of its requests.
    ///
    /// # Errors
    /// When it cannot be set, or the measurement is to stop.
    fn set(&mut self, percent: u32) -> io::Result<()>;
}

/// Measures the curve of `cpus` by streams of `operation`. `llc`: the size of their last-level
/// cache.
///
/// # Errors
/// Those of `class`. Also when a CPU may not be used, or memory is short.
pub fn curve(
    bounds: &MbaBounds,
    cpus: &CpuSet,
    llc: Bytes,
    operation: &str,
    depth: &Depth,
    class: &mut dyn Class,
) -> io::Result<MbaCurve> {
    let way = measure::way(operation).ok_or_else(|| {
        Error::refused(
            format!("streams of '{operation}'"),
            "no such operation is known here",
            "run `quell doctor --deep` again",
        )
    })?;
    let available = procfs::available_memory()?;
    let l2 = procfs::largest_l2(&cpus.iter().take(1).collect())?;
    let buffers = measure::buffers(llc, l2, cpus.len(), available)?;
    let (rounds, span) = depth.throttled;
    thread::scope(|scope| {
        let each = buffers.each(cpus).into_iter();
        let workers: Vec<Worker> = each
            .map(|(cpu, size)| Worker::start(scope, cpu, size))
            .collect();
        let threads = workers.iter().map(Worker::begun);
        let threads: BTreeSet<u32> = threads.collect::<Result<_, _>>()?;
        class.enter(&threads)?;
        MbaCurve::measure(bounds, cpus, operation, rounds, &mut |percent, cpus| {
            class.set(percent)?;
            Ok(together(&workers, cpus, way, span)?)
        })
    })
}

/// What the workers on these CPUs reach together in a span, in program bytes per second.
fn together(workers: &[Worker], cpus: &[CpuId], way: Way, span: u64) -> Result<f64, Error> {
    let chosen = || workers.iter().filter(|w| cpus.contains(&w.cpu));
    let start = clock::now() + START_NS;
    for worker in chosen() {
        worker.tell(way, start, span)?;
    }
    chosen().try_fold(0.0, |sum, worker| Ok(sum + worker.hear()?.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity;
    use quell_types::partition::MbaUnit;

    /// A class that records the calls, and fails at one percentage.
    #[derive(Default)]
    struct Noted {
        threads: BTreeSet<u32>,
        set: Vec<u32>,
        fails: Option<u32>,
    }

    impl Class for Noted {
        fn enter(&mut self, threads: &BTreeSet<u32>) -> io::Result<()> {
            self.threads.clone_from(threads);
            Ok(())
        }

        fn set(&mut self, percent: u32) -> io::Result<()> {
            self.set.push(percent);
            if self.fails == Some(percent) {
                return Err(io::Error::other("no such step"));
            }
            Ok(())
        }
    }

    const BOUNDS: MbaBounds = MbaBounds {
        classes: 2,
        least: 50,
        step: 50,
        unit: MbaUnit::Percent,
    };
    const DEPTH: Depth = Depth {
        throttled: (2, 2_000_000),
        ..Depth::QUICK
    };

    #[test]
    fn every_cpu_streams_by_a_thread_of_its_own_under_every_step() {
        let cpus = affinity::allowed().unwrap();
        let mut class = Noted::default();
        let curve = curve(&BOUNDS, &cpus, Bytes(1 << 20), "read", &DEPTH, &mut class).unwrap();
        assert_eq!(class.threads.len(), cpus.len());
        assert!(!class.threads.contains(&std::process::id()));
        assert_eq!(class.set[..2], [50, 100]);
        assert_eq!(class.set.len(), 2 * curve.points.len());
        assert!(curve.points.iter().all(|p| p.mb_s.low > 0.0), "{curve:?}");
    }

    #[test]
    fn a_class_that_fails_ends_it() {
        let cpus = affinity::allowed().unwrap();
        let mut class = Noted {
            fails: Some(100),
            ..Noted::default()
        };
        let failed = curve(&BOUNDS, &cpus, Bytes(1 << 20), "read", &DEPTH, &mut class);
        assert_eq!(failed.unwrap_err().to_string(), "no such step");
        assert_eq!(class.set, [50, 100]);
        let unknown = curve(&BOUNDS, &cpus, Bytes(1 << 20), "sing", &DEPTH, &mut class);
        assert!(unknown.unwrap_err().to_string().contains("'sing'"));
    }
}
