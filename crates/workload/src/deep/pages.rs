//! What address translation costs: the same random list in pages of 4 KiB and of 2 MiB. Sizes range
//! from within the second translation cache to far beyond it. Every round measures both.

use quell_plan::deep::{PageCost, Spread};
use quell_plan::inventory::Inventory;
use quell_policy::workload::{Access, Order, Pages};
use quell_types::units::Bytes;

use super::{Block, Depth, beyond, first, latency, llc, warm};
use crate::latency::List;
use crate::memory::Granted;
use crate::{Error, affinity};

/// In addition to the list far beyond the cache. A second translation cache of 1024 to 3072 entries
/// reaches 4 to 12 MiB.
const SIZES: [Bytes; 4] = [
    Bytes(256 << 10),
    Bytes(2 << 20),
    Bytes(16 << 20),
    Bytes(64 << 20),
];

pub(super) fn cost(
    machine: &Inventory,
    depth: &Depth,
    block: &mut Block<'_, '_>,
) -> Result<Vec<PageCost>, Error> {
    let cpu = first(machine)?;
    let _pinned = affinity::pin_to(cpu)?;
    let largest = beyond(llc(machine, cpu))?;
    let mut sizes: Vec<Bytes> = SIZES.into_iter().filter(|s| *s < largest).collect();
    sizes.push(largest);
    let (rounds, span) = depth.pages;
    let steps = u32::try_from(sizes.len()).unwrap_or(u32::MAX) * rounds;
    let mut done = 0;
    let mut found = Vec::new();
    for size in sizes {
        let list = |pages| List::new(size, Order::Random, pages, Access::Read);
        let (mut base, mut huge) = (list(Pages::Base)?, list(Pages::Huge)?);
        if let Granted::Mixed { .. } = huge.granted() {
            return Err(Error::refused(
                "taking pages of 2 MiB",
                huge.granted().complaint().unwrap_or_default(),
                "set it to madvise or always, or free memory",
            ));
        }
        let (mut base_ns, mut huge_ns, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            block.at(done, steps)?;
            done += 1;
            // Each list has the caches to itself: warming drives out the other one.
            warm(&mut base);
            let Some(b) = latency(&mut base, span) else {
                continue;
            };
            warm(&mut huge);
            let Some(h) = latency(&mut huge, span) else {
                continue;
            };
            base_ns.push(b);
            huge_ns.push(h);
            ratios.push(b / h);
        }
        if let (Some(base_ns), Some(huge_ns), Some(ratio)) = (
            Spread::of(&base_ns),
            Spread::of(&huge_ns),
            Spread::of(&ratios),
        ) {
            found.push(PageCost {
                size,
                base_ns,
                huge_ns,
                ratio,
            });
        }
    }
    Ok(found)
}
