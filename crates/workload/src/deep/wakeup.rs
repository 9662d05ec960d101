//! How late a thread wakes that sleeps until every next millisecond, on every CPU at once (the
//! method of cyclictest, rt-tests). It is measured as an ordinary thread with the kernel's default
//! timer slack (50 µs), and as a real-time thread.

use std::io;
use std::thread;

use quell_plan::deep::{Tail, Wakeup};
use quell_plan::inventory::Inventory;
use quell_types::cpuset::CpuId;

use super::{Block, Depth, Fifo, stolen};
use crate::{Error, affinity, clock, procfs};

const PERIOD_NS: u64 = 1_000_000;
/// Sleeps between two questions whether to stop.
const TURN: u32 = 500;

pub(super) fn all(
    machine: &Inventory,
    depth: &Depth,
    fifo: Fifo<'_>,
    block: &mut Block<'_, '_>,
) -> Result<Vec<Wakeup>, Error> {
    let cpus: Vec<CpuId> = machine.cpus.iter().map(|c| c.id).collect();
    let turns = depth.sleeps.div_ceil(TURN);
    let mut found = Vec::new();
    for (kind, real_time) in [false, true].into_iter().enumerate() {
        let ordinary = || Ok(());
        let become_it: Fifo<'_> = if real_time { fifo } else { &ordinary };
        let before = procfs::cpu_times(&procfs::live())?;
        let mut late: Vec<Vec<f64>> = vec![Vec::new(); cpus.len()];
        for turn in 0..turns {
            block.at(u32::try_from(kind).unwrap_or(0) * turns + turn, 2 * turns)?;
            let sleeps = TURN.min(depth.sleeps - turn * TURN);
            match together(&cpus, sleeps, become_it) {
                Ok(seen) => late
                    .iter_mut()
                    .zip(seen)
                    .for_each(|(all, seen)| all.extend(seen)),
                // Real-time scheduling is not allowed. `doctor` reports the reason elsewhere.
                Err(_) if real_time => return Ok(found),
                Err(e) => return Err(e),
            }
        }
        for (cpu, late) in cpus.iter().zip(&late) {
            if let Some(late_us) = Tail::of(late) {
                found.push(Wakeup {
                    cpu: *cpu,
                    fifo: real_time,
                    late_us,
                    steal: stolen(&before, |of| of == *cpu)?,
                });
            }
        }
    }
    Ok(found)
}

/// Microseconds of lateness, for so many sleeps on each CPU.
fn together(cpus: &[CpuId], sleeps: u32, become_it: Fifo<'_>) -> Result<Vec<Vec<f64>>, Error> {
    thread::scope(|scope| {
        let sleepers: Vec<_> = cpus
            .iter()
            .map(|cpu| scope.spawn(move || sleeper(*cpu, sleeps, become_it)))
            .collect();
        let died = |_| Error::refused("measuring wake-ups", "a thread died", "report this");
        sleepers
            .into_iter()
            .map(|s| s.join().map_err(died)?)
            .collect()
    })
}

fn sleeper(cpu: CpuId, sleeps: u32, become_it: Fifo<'_>) -> Result<Vec<f64>, Error> {
    let _pinned = affinity::pin_to(cpu)?;
    become_it().map_err(|e: io::Error| Error::kernel("real-time scheduling")(e))?;
    // Written before it starts: pages come at the first write.
    let mut late = vec![f64::NAN; sleeps as usize];
    let mut due = clock::now() + PERIOD_NS;
    for late in &mut late {
        clock::sleep_until(due);
        let now = clock::now();
        *late = now.saturating_sub(due) as f64 / 1e3;
        // After an oversleep the next one counts from there. A long stall is one late wake-up, not
        // a hundred.
        due = (due + PERIOD_NS).max(now);
    }
    Ok(late)
}
