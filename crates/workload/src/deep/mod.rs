//! The measurements of `quell doctor --deep` that only run programs and read the clock, one module
//! each. Their time is bounded: [`Depth`] has every number of rounds and every span.
//! `quell_plan::deep` evaluates them.

mod banks;
mod canary;
mod loaded;
mod locked;
mod pages;
mod sets;
mod steps;
mod throttled;
mod wakeup;

use std::collections::BTreeMap;
use std::io;

use quell_plan::deep::{CacheSteps, Deep};
use quell_plan::inventory::Inventory;
use quell_record::events::CpuTimes;
use quell_types::cpuset::CpuId;
use quell_types::units::Bytes;

use crate::latency::List;
use crate::{Error, clock, measure, procfs};

pub use banks::{Clock, address_map};
pub use canary::sharing;
pub use sets::cache_sets;
pub use throttled::{Class, curve as throttled};

/// The longest list in bytes, whatever the cache.
const LARGEST: u64 = 1 << 30;
/// The length of a separately timed piece of a walk, in nanoseconds.
const PIECE_NS: f64 = 500_000.0;
/// Accesses after which a list counts as warm: some 150 ms from memory.
const WARM: u64 = 1 << 20;

/// How many rounds and which spans each measurement gets; spans are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Whether these are the few rounds of a quick run.
    pub quick: bool,
    /// Rounds of the known cases of the cache probe.
    pub controls: u32,
    /// Loaded latency: rounds, and the span of a point in each.
    pub loaded: (u32, u64),
    /// Page sizes: rounds, and the span of a list in each.
    pub pages: (u32, u64),
    /// Latency curve: rounds per size, the span of each, and sizes per octave.
    pub steps: (u32, u64, u32),
    /// How many milliseconds the sleepers sleep, one by one.
    pub sleeps: u32,
    /// Bandwidth allocation: rounds, and the span of a step in each.
    pub throttled: (usize, u64),
}

impl Depth {
    /// All measurements in about a minute.
    pub const FULL: Self = Self {
        quick: false,
        controls: 40,
        loaded: (8, 120_000_000),
        pages: (7, 40_000_000),
        steps: (7, 10_000_000, 3),
        sleeps: 4_000,
        throttled: (3, 60_000_000),
    };
    /// All measurements in some seconds.
    pub const QUICK: Self = Self {
        quick: true,
        controls: 6,
        loaded: (2, 30_000_000),
        pages: (3, 10_000_000),
        steps: (3, 4_000_000, 2),
        sleeps: 300,
        throttled: (2, 30_000_000),
    };
}

/// Makes the calling thread a real-time one. The error says why that failed.
pub type Fifo<'a> = &'a (dyn Fn() -> io::Result<()> + Sync);

/// Called with what is being measured and the part done in percent. Returning false stops.
pub type Watch<'a> = &'a mut dyn FnMut(&str, u32) -> bool;

/// The progress of one block, which maps to a range of percent of the whole.
struct Block<'a, 'b> {
    label: &'static str,
    from: u32,
    to: u32,
    watch: &'a mut Watch<'b>,
}

impl Block<'_, '_> {
    /// Reports that `done` of `all` of this block are over.
    ///
    /// # Errors
    /// When the measurement is to stop.
    fn at(&mut self, done: u32, all: u32) -> Result<(), Error> {
        let percent = self.from + (self.to - self.from) * done.min(all) / all.max(1);
        if (self.watch)(self.label, percent) {
            Ok(())
        } else {
            Err(interrupted())
        }
    }
}

fn interrupted() -> Error {
    Error::Interrupted
}

/// Measures everything except what needs hardware counters. What cannot be measured here is named
/// in `skipped`.
///
/// # Errors
/// When `watch` returns false, or `/proc/stat` is malformed.
pub fn measure(
    machine: &Inventory,
    depth: &Depth,
    fifo: Fifo<'_>,
    mut watch: Watch<'_>,
) -> io::Result<Deep> {
    let begin = clock::now();
    let times = procfs::cpu_times(&procfs::live())?;
    let mut deep = Deep {
        quick: depth.quick,
        ..Deep::default()
    };
    let mut skipped = BTreeMap::new();
    let mut block =
        |label: &'static str,
         from,
         to,
         run: &mut dyn FnMut(&mut Block<'_, '_>) -> Result<(), Error>| {
            let mut progress = Block {
                label,
                from,
                to,
                watch: &mut watch,
            };
            match progress.at(0, 1).and_then(|()| run(&mut progress)) {
                Err(Error::Interrupted) => Err(interrupted()),
                Err(why) => {
                    skipped.insert(label.to_owned(), why.to_string());
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        };
    block("sharing", 0, 15, &mut |b| {
        deep.sharing = Some(canary::sharing_of(machine, depth.controls, b)?);
        Ok(())
    })?;
    block("caches", 15, 40, &mut |b| {
        deep.caches = Some(steps::curve(machine, depth, b)?);
        Ok(())
    })?;
    block("pages", 40, 60, &mut |b| {
        deep.pages = pages::cost(machine, depth, b)?;
        Ok(())
    })?;
    block("loaded latency", 60, 85, &mut |b| {
        deep.loaded = Some(loaded::curve(machine, depth, b)?);
        Ok(())
    })?;
    block("wake-ups", 85, 100, &mut |b| {
        deep.wakeups = wakeup::all(machine, depth, fifo, b)?;
        Ok(())
    })?;
    deep.skipped = skipped;
    deep.steal = stolen(&times, |_| true)?;
    deep.took_s = (clock::now() - begin) as f64 / 1e9;
    Ok(deep)
}

/// Latency against size alone: how much of the caches is available.
///
/// # Errors
/// When `watch` returns false, or the memory cannot be had.
pub fn cache_steps(
    machine: &Inventory,
    depth: &Depth,
    mut watch: Watch<'_>,
) -> io::Result<CacheSteps> {
    let mut block = Block {
        label: "caches",
        from: 0,
        to: 100,
        watch: &mut watch,
    };
    Ok(steps::curve(machine, depth, &mut block)?)
}

/// CPU time stolen since `before` from the CPUs that `of` selects.
fn stolen(before: &[CpuTimes], of: impl Fn(CpuId) -> bool) -> Result<Option<f64>, Error> {
    let now = procfs::cpu_times(&procfs::live())?;
    Ok(CpuTimes::stolen(before, &now, of))
}

/// The last-level cache of a CPU, as generators take its size.
fn llc(machine: &Inventory, cpu: CpuId) -> Bytes {
    machine.data_caches(cpu).llc
}

/// The first CPU, on which lists are walked.
fn first(machine: &Inventory) -> Result<CpuId, Error> {
    machine
        .cpus
        .first()
        .map(|c| c.id)
        .ok_or_else(|| Error::refused("measuring", "there is no CPU", "report this"))
}

/// The size of a list far beyond the cache: four caches, at most a gibibyte, and at most an eighth
/// of the available memory.
fn beyond(llc: Bytes) -> Result<Bytes, Error> {
    let available = procfs::available_memory()?;
    let (size, _) = measure::sizes(llc, 1, 1, available)?;
    let wanted = (4 * llc.0).clamp(size.0, LARGEST);
    let whole = available.map_or(size.0, |a| a.0 / 8);
    Ok(Bytes(wanted.min(whole.max(size.0)) & !0x1f_ffff))
}

/// Nanoseconds of CPU time per access of a list, over pieces of about [`PIECE_NS`], for `span` of
/// real time. Other programs on the same CPU do not count, but their use of the caches does.
fn latencies(list: &mut List, span: u64) -> Vec<f64> {
    let timed = |list: &mut List, accesses: u64| {
        let begin = clock::of_this_thread();
        list.walk(accesses);
        (clock::of_this_thread() - begin) as f64 / accesses as f64
    };
    let end = clock::now() + span;
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a positive number of accesses, at most a million"
    )]
    let piece = (PIECE_NS / timed(list, 1_000).max(0.1)).clamp(1_000.0, 1e6) as u64;
    let mut all = Vec::new();
    while all.is_empty() || clock::now() < end {
        all.push(timed(list, piece));
    }
    all
}

/// The median of [`latencies`].
fn latency(list: &mut List, span: u64) -> Option<f64> {
    quell_types::stats::median(&latencies(list, span))
}

/// Walks a list once, or so far that the caches hold what they would in the long run.
fn warm(list: &mut List) {
    list.walk(u64::from(list.nodes()).min(WARM));
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_policy::workload::{Access, Order, Pages};

    #[test]
    fn a_list_in_the_first_cache_is_no_slower_than_one_beyond_all() {
        let time = |size| {
            let mut list =
                List::new(Bytes(size), Order::Random, Pages::Huge, Access::Read).unwrap();
            warm(&mut list);
            latency(&mut list, 5_000_000).unwrap()
        };
        let (near, far) = (time(8 << 10), time(64 << 20));
        assert!(near > 0.0 && near < far, "{near} {far}");
    }

    #[test]
    fn a_measurement_that_is_told_to_stop_stops() {
        let mut told = 0;
        let stop = &mut |_: &str, _: u32| {
            told += 1;
            false
        };
        let mut block = Block {
            label: "anything",
            from: 10,
            to: 20,
            watch: &mut (stop as Watch<'_>),
        };
        assert!(matches!(block.at(1, 2), Err(Error::Interrupted)));
        assert_eq!(told, 1);
    }
}
