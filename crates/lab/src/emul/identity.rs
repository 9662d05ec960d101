//! What `CPUID` reports in addition to the processor model that QEMU emulates: caches (leaf 4),
//! counters (0xA), monitoring (0xF) and allocation (0x10).

use super::{Machine, pmu};
use crate::profile::{Allocation, LINE, Shape};

/// An answer to `CPUID`, relative to the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// EAX, EBX, ECX, EDX replace those of the model.
    Instead([u32; 4]),
    /// These bits are added to those of the model.
    Beside([u32; 4]),
}

/// The unit of occupancy and traffic, in bytes.
pub(super) const UNIT: u32 = LINE as u32;
/// Counters of traffic are 24 bits wide, plus so many more.
const WIDER: u32 = 20;

/// How many bits distinguish `n` values.
fn width(n: u32) -> u32 {
    n.next_power_of_two().trailing_zeros()
}

impl Machine {
    /// The answer to a leaf and sub-leaf. `None` where it is that of the model.
    #[must_use]
    pub fn cpuid(&self, leaf: u32, sub: u32) -> Option<Answer> {
        let profile = &self.profile;
        let l3 = profile.l3.as_ref();
        let l3_allocation = l3.and_then(|s| s.allocation.as_ref());
        let allocates =
            l3_allocation.is_some() || profile.l2.allocation.is_some() || profile.mba.is_some();
        let monitors = profile.monitoring.as_ref();
        match (leaf, sub) {
            (4, _) => Some(Answer::Instead(self.cache_leaf(sub))),
            (7, 0) => {
                let ebx = u32::from(monitors.is_some()) << 12 | u32::from(allocates) << 15;
                Some(Answer::Beside([0, ebx, 0, 0]))
            }
            (0xa, _) => {
                let pmu = profile.pmu.as_ref()?;
                // Seven events could be reported. Those of branches cannot be counted.
                let eax = 2 | pmu.general << 8 | pmu::WIDTH << 16 | 7 << 24;
                Some(Answer::Instead([eax, 0b110_0000, 0, 3 | pmu::WIDTH << 5]))
            }
            (0xf, 0) => {
                let last = monitors?.rmids - 1;
                Some(Answer::Instead([0, last, 0, 1 << 1]))
            }
            (0xf, 1) => Some(Answer::Instead([WIDER, UNIT, monitors?.rmids - 1, 0b111])),
            (0xf, _) => monitors.map(|_| Answer::Instead([0; 4])),
            (0x10, 0) if allocates => {
                let ebx = u32::from(l3_allocation.is_some()) << 1
                    | u32::from(profile.l2.allocation.is_some()) << 2
                    | u32::from(profile.mba.is_some()) << 3;
                Some(Answer::Instead([0, ebx, 0, 0]))
            }
            (0x10, 1) if l3_allocation.is_some() => {
                let shape = l3?;
                Some(Answer::Instead(allocation_leaf(shape, l3_allocation?)))
            }
            (0x10, 2) if profile.l2.allocation.is_some() => {
                let allocation = profile.l2.allocation.as_ref()?;
                Some(Answer::Instead(allocation_leaf(&profile.l2, allocation)))
            }
            (0x10, 3) if profile.mba.is_some() => {
                let mba = profile.mba.as_ref()?;
                Some(Answer::Instead([
                    mba.longest - 1,
                    0,
                    1 << 2,
                    mba.classes - 1,
                ]))
            }
            (0x10, _) if allocates => Some(Answer::Instead([0; 4])),
            _ => None,
        }
    }

    fn cache_leaf(&self, sub: u32) -> [u32; 4] {
        const DATA: u32 = 1;
        const CODE: u32 = 2;
        const UNIFIED: u32 = 3;
        let profile = &self.profile;
        let (threads, cores) = (width(self.topology.threads), width(self.topology.cores));
        let shared = width(profile.l2.cores).min(cores);
        let (shape, kind, level, sharers) = match sub {
            0 => (&profile.l1d, DATA, 1, threads),
            1 => (&profile.l1i, CODE, 1, threads),
            2 => (&profile.l2, UNIFIED, 2, threads + shared),
            3 => match &profile.l3 {
                Some(l3) => (l3, UNIFIED, 3, threads + cores),
                None => return [0; 4],
            },
            _ => return [0; 4],
        };
        // Bit 8: self initializing.
        let eax =
            kind | level << 5 | 1 << 8 | ((1 << sharers) - 1) << 14 | ((1 << cores) - 1) << 26;
        let sets = shape.size.0 / LINE / u64::from(shape.ways);
        let sets = u32::try_from(sets).unwrap_or(u32::MAX);
        [eax, (UNIT - 1) | (shape.ways - 1) << 22, sets - 1, 0]
    }
}

fn allocation_leaf(shape: &Shape, allocation: &Allocation) -> [u32; 4] {
    let ecx = u32::from(allocation.cdp) << 2 | u32::from(allocation.sparse) << 3;
    [
        shape.ways - 1,
        allocation.shareable,
        ecx,
        allocation.classes - 1,
    ]
}
