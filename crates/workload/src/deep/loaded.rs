//! Loaded latency, as Intel's Memory Latency Checker draws it. A random list far beyond the caches
//! is walked on one CPU. All other CPUs write at a held rate.
//!
//! The points come in random order in every round, so a disturbance hits all alike. The rates are
//! parts of what the writers reach unhindered, which is measured first.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use quell_plan::deep::{Loaded, LoadedPoint, Spread, Tail, knee};
use quell_plan::inventory::Inventory;
use quell_policy::workload::{Access, Operation, Order, Pages};
use quell_types::cpuset::CpuId;
use quell_types::rng::Rng;
use quell_types::stats::median;
use quell_types::units::{Bytes, Rate};

use super::{Block, Depth, first, latencies, llc, warm};
use crate::load::Driver;
use crate::resolved::{Load, ResolvedWorkload};
use crate::{Error, affinity, clock, measure, procfs};

/// Parts of the writers' full rate. Idle and full are measured in addition.
const PARTS: [f64; 6] = [0.15, 0.3, 0.45, 0.6, 0.75, 0.9];
/// The writers run for so long before the list is measured, and after.
const LEAD_NS: u64 = 15_000_000;
/// How far ahead a common start is set.
const START_NS: u64 = 2_000_000;
const SEED: u64 = 0x10ad;

/// What the writers do during a point.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Idle,
    At(f64),
    Full,
}

/// One CPU's part of a run. Writers answer with their rate, the list with its pieces.
struct Part {
    rate: Option<Rate>,
    start: u64,
    duration: u64,
}

struct Hand {
    tell: Sender<Part>,
    hear: Receiver<Result<Vec<f64>, Error>>,
}

impl Hand {
    fn hear(&self) -> Result<Vec<f64>, Error> {
        self.hear.recv().map_err(|_| lost())?
    }

    fn tell(&self, part: Part) -> Result<(), Error> {
        self.tell.send(part).map_err(|_| lost())
    }
}

fn lost() -> Error {
    Error::refused(
        "measuring latency under load",
        "a thread died",
        "report this",
    )
}

pub(super) fn curve(
    machine: &Inventory,
    depth: &Depth,
    block: &mut Block<'_, '_>,
) -> Result<Loaded, Error> {
    let cpu = first(machine)?;
    let others: Vec<CpuId> = machine
        .cpus
        .iter()
        .map(|c| c.id)
        .filter(|c| *c != cpu)
        .collect();
    if others.is_empty() {
        return Err(Error::refused(
            "latency under load",
            "there is one CPU only, so nobody else can load memory",
            "measure on a machine with two or more",
        ));
    }
    let available = procfs::available_memory()?;
    let (list, buffer) = measure::sizes(llc(machine, cpu), machine.cpus.len(), 2, available)?;
    let walk = ResolvedWorkload::Latency {
        size: list,
        order: Order::Random,
        pages: Pages::Huge,
        operation: Access::Read,
    };
    let write = ResolvedWorkload::Bandwidth {
        operation: Operation::Write,
        size: buffer,
        pages: Pages::Huge,
        rate: None,
    };
    thread::scope(|scope| {
        let mut hands = Vec::new();
        for (at, workload) in
            std::iter::once((cpu, &walk)).chain(others.iter().map(|o| (*o, &write)))
        {
            let (tell, told) = channel();
            let (say, hear) = channel();
            scope.spawn(move || work(at, workload, &told, &say));
            hands.push(Hand { tell, hear });
        }
        for hand in &hands {
            hand.hear()?;
        }
        run(&hands, cpu, list, depth, block)
    })
}

fn run(
    hands: &[Hand],
    cpu: CpuId,
    list: Bytes,
    depth: &Depth,
    block: &mut Block<'_, '_>,
) -> Result<Loaded, Error> {
    let (rounds, span) = depth.loaded;
    let writers = hands.len() - 1;
    let full: Vec<f64> = (0..3)
        .map(|_| one(hands, Asked::Full, 0.0, span).map(|(rate, _)| rate))
        .collect::<Result<_, _>>()?;
    let full = median(&full).unwrap_or(0.0);
    let mut loads = vec![Asked::Idle];
    loads.extend(PARTS.map(Asked::At));
    loads.push(Asked::Full);
    let mut rates = vec![Vec::new(); loads.len()];
    let mut windows = vec![Vec::new(); loads.len()];
    let mut medians = vec![Vec::new(); loads.len()];
    let mut order: Vec<usize> = (0..loads.len()).collect();
    let mut rng = Rng::new(SEED);
    for round in 0..rounds {
        block.at(round, rounds)?;
        rng.shuffle(&mut order);
        for i in &order {
            let (rate, seen) = one(hands, loads[*i], full, span)?;
            rates[*i].push(rate);
            medians[*i].extend(median(&seen));
            windows[*i].extend(seen);
        }
    }
    let mut points = Vec::new();
    for (i, load) in loads.iter().enumerate() {
        let figures = (
            Spread::of(&rates[i]),
            Tail::of(&windows[i]),
            Spread::of(&medians[i]),
        );
        if let (Some(mb_s), Some(latency_ns), Some(rounds)) = figures {
            points.push(LoadedPoint {
                wanted_mb_s: match load {
                    Asked::Idle => Some(0.0),
                    Asked::At(part) => Some((full * part).round()),
                    Asked::Full => None,
                },
                mb_s,
                latency_ns,
                rounds,
            });
        }
    }
    let curve: Vec<(f64, f64)> = points.iter().map(|p| (p.mb_s.p50, p.rounds.p50)).collect();
    Ok(Loaded {
        cpu,
        list,
        writers: u32::try_from(writers).unwrap_or(u32::MAX),
        knee: knee(&curve),
        points,
    })
}

/// Measures one point once: what the writers reached together in 10^6 bytes per second, and the
/// list's pieces.
fn one(hands: &[Hand], load: Asked, full_mb_s: f64, span: u64) -> Result<(f64, Vec<f64>), Error> {
    let (list, writers) = hands.split_first().ok_or_else(lost)?;
    let start = clock::now() + START_NS;
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a measured rate: positive, far below 2^53"
    )]
    let each = |part: f64| Rate((full_mb_s * part * 1e6 / writers.len() as f64).max(1e6) as u64);
    if load != Asked::Idle {
        for writer in writers {
            writer.tell(Part {
                rate: match load {
                    Asked::At(part) => Some(each(part)),
                    Asked::Idle | Asked::Full => None,
                },
                start,
                duration: span + 2 * LEAD_NS,
            })?;
        }
    }
    list.tell(Part {
        rate: None,
        start: start + LEAD_NS,
        duration: span,
    })?;
    let mut rate = 0.0;
    if load != Asked::Idle {
        for writer in writers {
            rate += writer.hear()?.iter().sum::<f64>();
        }
    }
    Ok((rate, list.hear()?))
}

/// Takes memory on its CPU, reports that, and does its parts until the channel closes.
fn work(
    cpu: CpuId,
    workload: &ResolvedWorkload,
    told: &Receiver<Part>,
    say: &Sender<Result<Vec<f64>, Error>>,
) {
    let ready = affinity::pin_to(cpu).and_then(|pinned| Ok((pinned, Load::driver(workload)?)));
    let (_pinned, mut driver) = match ready {
        Ok(ready) => ready,
        Err(e) => {
            let _ = say.send(Err(e));
            return;
        }
    };
    if let Load::Latency(list) = driver.load_mut() {
        warm(list);
    }
    // The channel closes only when the measurement has failed elsewhere.
    let mut gone = say.send(Ok(Vec::new())).is_err();
    while !gone && let Ok(part) = told.recv() {
        gone = say.send(Ok(do_part(&mut driver, &part))).is_err();
    }
}

fn do_part(driver: &mut Driver, part: &Part) -> Vec<f64> {
    driver.pace(part.rate);
    clock::sleep_until(part.start);
    if let Load::Latency(list) = driver.load_mut() {
        return latencies(list, part.duration);
    }
    let span = driver.run(part.duration, None, || false);
    let bytes = span.steps * driver.load().step_bytes();
    vec![bytes as f64 * 1e3 / span.duration_ns.max(1) as f64]
}
