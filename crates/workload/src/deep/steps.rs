//! Latency against size, as `lat_mem_rd` (lmbench) measures it. The list is random and in huge
//! pages, so neither prefetching nor address translation blurs the steps.

use quell_plan::deep::{CacheSteps, SizePoint, Spread, levels};
use quell_plan::inventory::{CacheKind, Inventory};
use quell_policy::workload::{Access, Order, Pages};
use quell_types::units::Bytes;

use super::{Block, Depth, beyond, first, latency, llc, warm};
use crate::latency::List;
use crate::{Error, affinity};

/// Small enough to lie an octave within every first-level cache.
const SMALLEST: Bytes = Bytes(8 << 10);

pub(super) fn curve(
    machine: &Inventory,
    depth: &Depth,
    block: &mut Block<'_, '_>,
) -> Result<CacheSteps, Error> {
    let cpu = first(machine)?;
    let _pinned = affinity::pin_to(cpu)?;
    let (rounds, span, per_octave) = depth.steps;
    let sizes = sizes(beyond(llc(machine, cpu))?, per_octave);
    let all = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    let mut points = Vec::new();
    for (i, size) in (0..).zip(sizes) {
        block.at(i, all)?;
        let mut list = List::new(size, Order::Random, Pages::Huge, Access::Read)?;
        warm(&mut list);
        let values: Vec<f64> = (0..rounds)
            .filter_map(|_| latency(&mut list, span))
            .collect();
        if let Some(latency_ns) = Spread::of(&values) {
            points.push(SizePoint { size, latency_ns });
        }
    }
    let mut claimed: Vec<(u32, Bytes)> = machine
        .caches
        .iter()
        .filter(|c| c.kind != CacheKind::Instruction && c.cpus.contains(cpu))
        .map(|c| (c.level, c.size))
        .collect();
    claimed.sort_unstable_by_key(|(level, _)| *level);
    let medians: Vec<(Bytes, f64)> = points.iter().map(|p| (p.size, p.latency_ns.p50)).collect();
    Ok(CacheSteps {
        cpu,
        levels: levels(&medians, &claimed),
        memory_ns: medians.last().map_or(0.0, |(_, ns)| *ns),
        points,
    })
}

/// Sizes from the smallest to `largest`, so many per octave, in whole lines.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "sizes of memory: positive, far below 2^53"
)]
fn sizes(largest: Bytes, per_octave: u32) -> Vec<Bytes> {
    let step =
        |i: u32| (SMALLEST.0 as f64 * 2f64.powf(f64::from(i) / f64::from(per_octave))) as u64 & !63;
    let mut all: Vec<Bytes> = (0..)
        .map(step)
        .take_while(|size| *size < largest.0)
        .map(Bytes)
        .collect();
    all.push(largest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rise_to_the_largest_so_many_to_the_octave() {
        let all = sizes(Bytes(1 << 20), 2);
        assert_eq!(
            (all[0], all[2], *all.last().unwrap()),
            (SMALLEST, Bytes(16 << 10), Bytes(1 << 20))
        );
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(all.len(), 15);
    }
}
