//! The processor's own registers (`/dev/cpu/N/msr`, msr(4)): masks, delays and associations that
//! were set behind the kernel's back. The numbers are Intel's (Software Developer's Manual, volume
//! 3B, "Intel Resource Director Technology").
//!
//! The kernel says which register belongs to which class only when resctrl is mounted with `debug`
//! (`ctrl_hw_id`). Otherwise the root's register is known, and another class's is the only one that
//! holds its mask. Where several hold it, the class is left out until its mask is unique.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use quell_record::ways::{Cache, Place, ROOT, Register, Snapshot};
use quell_types::cpuset::CpuId;

use quell_kernel::cpuinfo::Cpuinfo;
use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::{Info, Resctrl};
use quell_kernel::root::{Access, Files, gone};

const ASSOCIATION: u32 = 0xc8f;
const L3_MASKS: u32 = 0xc90;
const L2_MASKS: u32 = 0xd10;
const DELAYS: u32 = 0xd50;

/// The mask registers of a cache: the CPU to read them on, the number of classes, the first
/// register, and the step between classes.
#[derive(Debug)]
struct Masks {
    place: Place,
    cpu: CpuId,
    classes: u32,
    first: u32,
    step: u32,
}

/// The registers of all divided caches, opened for reading.
#[derive(Debug)]
pub struct Registers {
    files: BTreeMap<CpuId, File>,
    masks: Vec<Masks>,
    /// Whether delays of memory bandwidth are 100 minus the percentage.
    percent: bool,
    /// The number of each class, as far as it is known.
    numbers: BTreeMap<String, u32>,
    /// Registers that differed in the last sample.
    differed: BTreeSet<Register>,
}

impl Registers {
    /// Opens the registers. `None` where there are none (no `msr` module, no Intel processor).
    ///
    /// # Errors
    /// When they are there and may not be read.
    pub fn open(
        files: &dyn Files,
        resctrl: &Resctrl,
        info: &Info,
        caches: &[Cache],
    ) -> Result<Option<Self>> {
        if !Cpuinfo::read(files)?.is_intel() {
            return Ok(None);
        }
        let mut open = BTreeMap::new();
        for cpu in caches.iter().flat_map(|c| c.cpus.iter()) {
            let path = format!("/dev/cpu/{cpu}/msr");
            match files.open(&path, Access::Read) {
                Ok(Some(file)) => {
                    open.insert(cpu, file);
                }
                Ok(None) => return Ok(None),
                Err(e) if gone(&e) || e.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
                Err(e) => return Err(Error::file("open", &path, None, e)),
            }
        }
        let masks = caches.iter().filter_map(|cache| {
            let resource = cache.place.resource.as_str();
            let first = match cache.place.counted().resource.as_str() {
                "L3" => L3_MASKS,
                "L2" => L2_MASKS,
                _ => return None,
            };
            let classes = info.resources.iter().find(|r| r.name == resource)?.classes;
            // With code and data separate they alternate, data first.
            let code_data = *resource != cache.place.counted().resource;
            Some(Masks {
                place: cache.place.clone(),
                cpu: cache.cpus.first()?,
                classes,
                first: first + u32::from(resource.ends_with("CODE")),
                step: if code_data { 2 } else { 1 },
            })
        });
        let percent = !resctrl.mib_s && info.bandwidth().is_some_and(|(_, b)| b.linear);
        Ok(Some(Self {
            masks: masks.collect(),
            files: open,
            percent,
            numbers: BTreeMap::from([(ROOT.to_owned(), 0)]),
            differed: BTreeSet::new(),
        }))
    }

    /// The registers that differ from what the kernel reported, both in this sample and in the last
    /// one. What the kernel sets between the reading of its files and of these registers is in its
    /// files the next time.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn sample(
        &mut self,
        files: &dyn Files,
        resctrl: &Resctrl,
        seen: &Snapshot,
    ) -> Result<BTreeSet<Register>> {
        self.numbers
            .retain(|class, _| seen.classes.contains_key(class));
        for class in seen.classes.keys().filter(|c| *c != ROOT) {
            let path = resctrl.group(class).file("ctrl_hw_id");
            let told: Option<u32> = files.parsed(&path, "the number of a class")?;
            self.numbers.extend(told.map(|n| (class.clone(), n)));
        }
        let mut differ = BTreeSet::new();
        for masks in &self.masks {
            let read =
                |number: u32| read(&self.files, masks.cpu, masks.first + number * masks.step);
            let all: Vec<u64> = (0..masks.classes).map(read).collect::<Result<_>>()?;
            learn(&mut self.numbers, seen, &masks.place, &all);
            for (name, class) in &seen.classes {
                let Some(number) = self.numbers.get(name) else {
                    continue;
                };
                let kernel = class.masks.get(&masks.place).map(|mask| mask.0);
                let register = usize::try_from(*number).ok().and_then(|n| all.get(n));
                if let (Some(kernel), Some(register)) = (kernel, register)
                    && kernel != *register
                {
                    differ.insert(Register {
                        cpu: masks.cpu,
                        number: masks.first + number * masks.step,
                        of: format!("the mask of class {name} in {}", masks.place),
                        kernel,
                        register: *register,
                    });
                }
            }
        }
        self.delays(seen, &mut differ)?;
        self.associations(seen, &mut differ)?;
        let told = differ.intersection(&self.differed).cloned().collect();
        self.differed = differ;
        Ok(told)
    }

    fn delays(&self, seen: &Snapshot, differ: &mut BTreeSet<Register>) -> Result<()> {
        if !self.percent {
            return Ok(());
        }
        for (name, class) in &seen.classes {
            let Some(number) = self.numbers.get(name) else {
                continue;
            };
            for (place, percent) in class.throttles.iter().filter(|(p, _)| p.resource == "MB") {
                // Memory bandwidth is allocated at the last-level cache of the same number.
                let cpu = self.masks.iter().find(|m| m.place.id == place.id);
                let Some(cpu) = cpu.map(|m| m.cpu) else {
                    continue;
                };
                let (kernel, number) = (100u64.saturating_sub(*percent), DELAYS + number);
                let register = read(&self.files, cpu, number)?;
                if register != kernel {
                    differ.insert(Register {
                        cpu,
                        number,
                        of: format!("the delay of class {name} in {place}"),
                        kernel,
                        register,
                    });
                }
            }
        }
        Ok(())
    }

    /// CPUs in a class that the kernel does not know. For known classes, only the kernel knows
    /// which one a CPU is in at this moment.
    fn associations(&self, seen: &Snapshot, differ: &mut BTreeSet<Register>) -> Result<()> {
        if seen.classes.keys().any(|c| !self.numbers.contains_key(c)) {
            return Ok(());
        }
        for cpu in self.files.keys() {
            let register = read(&self.files, *cpu, ASSOCIATION)?;
            let class = u32::try_from(register >> 32).unwrap_or(u32::MAX);
            if self.numbers.values().all(|known| *known != class) {
                differ.insert(Register {
                    cpu: *cpu,
                    number: ASSOCIATION,
                    of: format!("the class of CPU {cpu} (number {class}, which no class has)"),
                    kernel: register & u64::from(u32::MAX),
                    register,
                });
            }
        }
        Ok(())
    }
}

/// Learns the numbers of classes whose mask is in one register only.
fn learn(numbers: &mut BTreeMap<String, u32>, seen: &Snapshot, place: &Place, all: &[u64]) {
    for (name, class) in &seen.classes {
        if numbers.contains_key(name) {
            continue;
        }
        let alike = seen.classes.values();
        let alike = alike.filter(|c| c.masks.get(place) == class.masks.get(place));
        let Some(mask) = class.masks.get(place).filter(|_| alike.count() == 1) else {
            continue;
        };
        let holds = (0u32..).zip(all).skip(1);
        let mut holds = holds.filter(|(n, m)| **m == mask.0 && numbers.values().all(|k| k != n));
        if let (Some((number, _)), None) = (holds.next(), holds.next()) {
            numbers.insert(name.clone(), number);
        }
    }
}

fn read(files: &BTreeMap<CpuId, File>, cpu: CpuId, number: u32) -> Result<u64> {
    let mut bytes = [0; 8];
    let path = || format!("/dev/cpu/{cpu}/msr");
    let file = files.get(&cpu).ok_or_else(|| {
        Error::file(
            "open",
            &path(),
            None,
            io::Error::from(io::ErrorKind::NotFound),
        )
    })?;
    file.read_exact_at(&mut bytes, u64::from(number))
        .map_err(|e| Error::file("read", &path(), None, e))?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use quell_record::ways::Class;
    use quell_types::partition::Mask;

    use super::*;

    #[test]
    fn a_class_is_known_by_its_mask_while_that_is_one_of_a_kind() {
        let place = Place::new("L3", 0);
        let mut seen = Snapshot::default();
        for (name, mask) in [(ROOT, 0xffff), ("a", 0x000f), ("b", 0x00f0)] {
            let mut class = Class::default();
            class.masks.insert(place.clone(), Mask(mask));
            seen.classes.insert(name.to_owned(), class);
        }
        let known = |registers: &[u64]| {
            let mut numbers = BTreeMap::from([(ROOT.to_owned(), 0)]);
            learn(&mut numbers, &seen, &place, registers);
            let of = |name: &str| numbers.get(name).copied();
            (of("a"), of("b"))
        };
        assert_eq!(known(&[0xffff, 0x00f0, 0x000f, 0xffff]), (Some(2), Some(1)));
        // A mask that was written behind the kernel's back belongs to no class. Nor does a mask
        // that two registers hold.
        assert_eq!(known(&[0xffff, 0x0ff0, 0x000f, 0xffff]), (Some(2), None));
        assert_eq!(known(&[0xffff, 0x000f, 0x000f, 0x00f0]), (None, Some(3)));
    }
}
