//! What an Intel processor itself reports of cache and bandwidth allocation, for machines where
//! resctrl is not mounted (CPUID leaf 0x10, Intel SDM vol. 3B, "Enumeration and detection support
//! of cache allocation technology").
//!
//! The kernel knows of errata that the processor does not report. Once resctrl is mounted, only
//! `info` counts.

use quell_types::partition::{CodeData, Mask, MbaBounds, MbaUnit, Partitions, WayPartition};

use crate::arch::{Registers, cpuid};
use crate::cpuinfo::Cpuinfo;
use crate::root::Files;

/// What could be divided, as far as the kernel believes the processor (`flags` in `/proc/cpuinfo`).
/// `None` where nothing could.
#[must_use]
pub fn partitions(files: &dyn Files) -> Option<Partitions> {
    let processor = Cpuinfo::read(files).ok()?;
    let found = decode(&cpuid, &|flag| processor.has(flag))?;
    (!found.is_empty()).then_some(found)
}

/// What the registers offer by themselves. Each resource has as many classes as the processor has
/// for it, not as many as all resources have.
#[must_use]
pub fn by_registers(files: &dyn Files) -> Option<Partitions> {
    let processor = Cpuinfo::read(files).ok()?;
    let found = each(&cpuid, &|flag| processor.has(flag))?;
    (!found.is_empty()).then_some(found)
}

fn each(cpuid: &dyn Fn(u32, u32) -> Registers, has: &dyn Fn(&str) -> bool) -> Option<Partitions> {
    const ALLOCATION: u32 = 0x10;
    let [last, b, c, d] = cpuid(0, 0);
    let intel = [b, d, c].map(u32::to_le_bytes).concat() == b"GenuineIntel";
    if !intel || last < ALLOCATION {
        return None;
    }
    let mut found = Partitions::default();
    for (level, part, flag) in [(2, 2, "cat_l2"), (3, 1, "cat_l3")] {
        if !has(flag) {
            continue;
        }
        let [a, b, c, d] = cpuid(ALLOCATION, part);
        found.ways.push(WayPartition {
            level,
            bits: (a & 0x1f) + 1,
            // All processors with this leaf accept one way. Haswell, which has no such leaf, needs
            // two.
            least: 1,
            classes: (d & 0xffff) + 1,
            sparse: c & 1 << 3 != 0,
            shareable: Mask(u64::from(b)),
            code_data: match c & 1 << 2 {
                0 => CodeData::Never,
                _ => CodeData::OnceMounted {
                    classes: (d & 0xffff).div_ceil(2),
                },
            },
        });
    }
    if has("mba") {
        let [a, _, c, d] = cpuid(ALLOCATION, 3);
        let least = 100u32.saturating_sub((a & 0xfff) + 1);
        // Delays that are not linear come in steps that no leaf reports.
        found.mba = (c & 1 << 2 != 0).then_some(MbaBounds {
            classes: (d & 0xffff) + 1,
            least,
            step: least,
            unit: MbaUnit::Percent,
        });
    }
    Some(found)
}

fn decode(cpuid: &dyn Fn(u32, u32) -> Registers, has: &dyn Fn(&str) -> bool) -> Option<Partitions> {
    let mut found = each(cpuid, has)?;
    // A group has one class of service for all resources.
    let all = found.ways.iter().map(|w| w.classes);
    let classes = all.chain(found.mba.iter().map(|m| m.classes)).min()?;
    for ways in &mut found.ways {
        ways.classes = classes;
        if let CodeData::OnceMounted { classes: then } = &mut ways.code_data {
            *then = classes.min(*then);
        }
    }
    found.mba.iter_mut().for_each(|m| m.classes = classes);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &[u8]) -> u32 {
        u32::from_le_bytes(text.try_into().unwrap())
    }

    #[test]
    fn leaves_say_what_can_be_divided() {
        let cpuid = |leaf: u32, part: u32| match (leaf, part) {
            (0, _) => [0x16, word(b"Genu"), word(b"ntel"), word(b"ineI")],
            (0x10, 1) => [10, 0x600, 1 << 2 | 1 << 3, 11],
            (0x10, 3) => [89, 0, 1 << 2, 7],
            _ => [0; 4],
        };
        let found = decode(&cpuid, &|flag| ["cat_l3", "mba"].contains(&flag)).unwrap();
        let ways = &found.ways[0];
        assert_eq!((ways.level, ways.bits, ways.classes), (3, 11, 8));
        assert!(ways.sparse && ways.shareable.0 == 0x600 && found.ways.len() == 1);
        // Of twelve classes six are left where code and data are separate.
        let code_data = CodeData::OnceMounted { classes: 6 };
        assert_eq!(ways.code_data, code_data);
        let mba = found.mba.unwrap();
        assert_eq!((mba.least, mba.step, mba.classes), (10, 10, 8));
        // A feature that the kernel does not believe is left out.
        assert_eq!(decode(&cpuid, &|_| false), None);
        assert_eq!(decode(&|_, _| [0; 4], &|_| true), None);
    }
}
