//! Registers of cache allocation behind `/dev/cpu/N/msr`, for one third level that all CPUs share.
//!
//! Deviations:
//! - resctrl does not write them, so a model has either resctrl mounted or registers in use.
//! - There are 16 ways and 16 classes, and neither delays nor a second level.

use std::collections::BTreeMap;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::{CodeData, Mask, WayPartition};

use super::Answer;
use crate::msr::{self, ASSOCIATION, L3_CONFIG, L3_MASKS};

const CLASSES: u32 = 16;
const WHOLE: u64 = 0xffff;

/// What a processor with these registers says that they divide.
#[must_use]
pub fn divided_by_registers() -> WayPartition {
    WayPartition {
        level: 3,
        bits: WHOLE.count_ones(),
        least: 1,
        classes: CLASSES,
        sparse: false,
        shareable: Mask(0),
        code_data: CodeData::OnceMounted {
            classes: CLASSES / 2,
        },
    }
}

/// The registers, and which CPUs are online.
pub(crate) struct Registers {
    online: CpuSet,
    associations: BTreeMap<CpuId, u64>,
    masks: Vec<u64>,
    config: u64,
    /// A register whose value no write changes, as some hypervisors have it.
    stuck: Option<u32>,
}

impl Registers {
    pub fn new(cpus: &CpuSet) -> Self {
        Self {
            online: cpus.clone(),
            associations: cpus.iter().map(|cpu| (cpu, 0)).collect(),
            masks: vec![WHOLE; CLASSES as usize],
            config: 0,
            stuck: None,
        }
    }

    /// Takes a CPU offline, or brings it back in class 0. The first CPU that comes back finds all
    /// masks wide.
    pub fn set_online(&mut self, cpu: CpuId, online: bool) {
        if !online {
            self.online = self.online.iter().filter(|c| *c != cpu).collect();
            return;
        }
        if self.online.is_empty() {
            self.masks.fill(WHOLE);
        }
        self.online.insert(cpu);
        self.associations.insert(cpu, 0);
    }

    pub fn stick(&mut self, number: u32) {
        self.stuck = Some(number);
    }

    fn first(&self, cpus: &CpuSet) -> Answer<CpuId> {
        let online = cpus.intersection(&self.online);
        online.first().ok_or(libc::ENODEV)
    }

    /// All values, by path.
    pub fn dump(&self) -> BTreeMap<String, String> {
        let paths = self.associations.keys().map(|cpu| (*cpu, ASSOCIATION));
        let masks = (0..CLASSES).map(|n| (0, L3_MASKS + n));
        let all = paths.chain(masks).chain([(0, L3_CONFIG)]);
        let path = |(cpu, number)| msr::path(&CpuSet::one(cpu), number);
        let all = all.map(path);
        all.filter_map(|path| Some((path.clone(), self.read(&path)?.ok()?)))
            .collect()
    }

    /// `None`: no path of a register.
    pub fn read(&self, path: &str) -> Option<Answer<String>> {
        let (cpus, number) = msr::parse(path)?;
        let value = self.first(&cpus).and_then(|cpu| match number {
            ASSOCIATION => self.associations.get(&cpu).copied().ok_or(libc::ENODEV),
            L3_CONFIG => Ok(self.config),
            _ => {
                let mask = number.checked_sub(L3_MASKS);
                let mask = mask.and_then(|n| self.masks.get(n as usize));
                mask.copied().ok_or(libc::EIO)
            }
        });
        Some(value.map(|value| format!("{value:#x}\n")))
    }

    /// `None`: no path of a register.
    pub fn write(&mut self, path: &str, text: &str) -> Option<Answer<()>> {
        let (cpus, number) = msr::parse(path)?;
        Some(self.set(&cpus, number, text))
    }

    fn set(&mut self, cpus: &CpuSet, number: u32, text: &str) -> Answer<()> {
        let cpu = self.first(cpus)?;
        let value = msr::value(text).ok_or(libc::EINVAL)?;
        if self.stuck == Some(number) {
            return Ok(());
        }
        match number {
            ASSOCIATION if msr::class_in(value) < CLASSES => {
                let id = self.associations.get(&cpu).copied().unwrap_or_default() & 0xffff_ffff;
                self.associations.insert(cpu, value >> 32 << 32 | id);
                Ok(())
            }
            L3_CONFIG if value <= 1 => {
                self.config = value;
                Ok(())
            }
            ASSOCIATION | L3_CONFIG => Err(libc::EIO),
            _ => {
                let mask = number.checked_sub(L3_MASKS);
                let mask = mask.and_then(|n| self.masks.get_mut(n as usize));
                let run = value >> value.trailing_zeros().min(63);
                let solid = value != 0 && value & !WHOLE == 0 && run & (run + 1) == 0;
                *mask.filter(|_| solid).ok_or(libc::EIO)? = value;
                Ok(())
            }
        }
    }
}
