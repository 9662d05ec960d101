//! The processor's own registers (`/dev/cpu/N/msr`, msr(4)): masks, delays and associations that
//! were set behind the kernel's back. The numbers are Intel's (Software Developer's Manual, volume
//! 3B, "Intel Resource Director Technology").
//!
//! The kernel says which register belongs to which class only when resctrl is mounted with `debug`
//! (`ctrl_hw_id`). Otherwise the root's register is known, and another class's is the only one that
//! holds its mask. Where several hold it, the class is left out until its mask is unique.

use std::collections::{BTreeMap, BTreeSet};

use quell_record::ways::{Cache, Place, ROOT, Register, Snapshot};
use quell_types::cpuset::CpuSet;

use quell_kernel::cpuinfo::Cpuinfo;
use quell_kernel::error::Result;
use quell_kernel::msr::{self, ASSOCIATION, DELAYS, Devices};
use quell_kernel::resctrl::{Info, Resctrl, Values};
use quell_kernel::root::Files;

/// The mask registers of a cache: the CPUs that share them, the number of classes, the first
/// register, and the step between classes.
#[derive(Debug)]
struct Masks {
    place: Place,
    cpus: CpuSet,
    classes: u32,
    first: u32,
    step: u32,
}

/// The registers of all divided caches, opened for reading.
#[derive(Debug)]
pub struct Registers {
    devices: Devices,
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
        let cpus: CpuSet = caches.iter().flat_map(|c| c.cpus.iter()).collect();
        let Some(devices) = Devices::open_any(files, &cpus)? else {
            return Ok(None);
        };
        let masks = caches.iter().filter_map(|cache| {
            let resource = cache.place.resource.as_str();
            let level = match cache.place.counted().resource.as_str() {
                "L3" => 3,
                "L2" => 2,
                _ => return None,
            };
            let (first, _) = msr::of_level(level)?;
            let classes = info.resources.iter().find(|r| r.name == resource)?.classes;
            // With code and data separate they alternate, data first.
            let code_data = *resource != cache.place.counted().resource;
            Some(Masks {
                place: cache.place.clone(),
                cpus: cache.cpus.clone(),
                classes,
                first: first + u32::from(resource.ends_with("CODE")),
                step: if code_data { 2 } else { 1 },
            })
        });
        let percent = !resctrl.mib_s && info.bandwidth().is_some_and(|(_, b)| b.linear);
        Ok(Some(Self {
            masks: masks.collect(),
            devices,
            percent,
            numbers: BTreeMap::from([(ROOT.to_owned(), 0)]),
            differed: BTreeSet::new(),
        }))
    }

    /// The registers that differ from what the kernel reports. A difference that is new is
    /// confirmed by the kernel's files once more, since the kernel may have set something between
    /// the reading of its files and of these registers.
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
        let mut differ = BTreeMap::new();
        for masks in &self.masks {
            let read = |number: u32| {
                let register = masks.first + number * masks.step;
                self.devices.read(files, &masks.cpus, register)
            };
            let all: Option<Vec<u64>> = (0..masks.classes).map(read).collect::<Result<_>>()?;
            // All CPUs of the cache are offline.
            let Some(all) = all else { continue };
            let cpu = masks.cpus.first().unwrap_or_default();
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
                    let register = Register {
                        cpu,
                        number: masks.first + number * masks.step,
                        of: format!("the mask of class {name} in {}", masks.place),
                        class: Some(name.clone()),
                        kernel,
                        register: *register,
                    };
                    differ.insert(register, Some(masks.place.clone()));
                }
            }
        }
        self.delays(files, seen, &mut differ)?;
        self.associations(files, seen, &mut differ)?;
        let mut told = BTreeSet::new();
        for (register, place) in differ {
            if self.differed.contains(&register)
                || confirmed(files, resctrl, seen, &register, place.as_ref())?
            {
                told.insert(register);
            }
        }
        self.differed.clone_from(&told);
        Ok(told)
    }

    fn delays(
        &self,
        files: &dyn Files,
        seen: &Snapshot,
        differ: &mut BTreeMap<Register, Option<Place>>,
    ) -> Result<()> {
        if !self.percent {
            return Ok(());
        }
        for (name, class) in &seen.classes {
            let Some(number) = self.numbers.get(name) else {
                continue;
            };
            for (place, percent) in class.throttles.iter().filter(|(p, _)| p.resource == "MB") {
                // Memory bandwidth is allocated at the last-level cache of the same number.
                let masks = self.masks.iter().find(|m| m.place.id == place.id);
                let Some(cpus) = masks.map(|m| &m.cpus) else {
                    continue;
                };
                let (kernel, number) = (100u64.saturating_sub(*percent), DELAYS + number);
                let Some(register) = self.devices.read(files, cpus, number)? else {
                    continue;
                };
                if register != kernel {
                    let register = Register {
                        cpu: cpus.first().unwrap_or_default(),
                        number,
                        of: format!("the delay of class {name} in {place}"),
                        class: Some(name.clone()),
                        kernel,
                        register,
                    };
                    differ.insert(register, Some(place.clone()));
                }
            }
        }
        Ok(())
    }

    /// CPUs in a class that the kernel does not know. For known classes, only the kernel knows
    /// which one a CPU is in at this moment.
    fn associations(
        &self,
        files: &dyn Files,
        seen: &Snapshot,
        differ: &mut BTreeMap<Register, Option<Place>>,
    ) -> Result<()> {
        if seen.classes.keys().any(|c| !self.numbers.contains_key(c)) {
            return Ok(());
        }
        for cpu in self.devices.cpus() {
            let one = CpuSet::one(cpu);
            let Some(register) = self.devices.read(files, &one, ASSOCIATION)? else {
                continue;
            };
            let class = msr::class_in(register);
            if self.numbers.values().all(|known| *known != class) {
                let register = Register {
                    cpu,
                    number: ASSOCIATION,
                    of: format!("the class of CPU {cpu} (number {class}, which no class has)"),
                    class: None,
                    kernel: register & u64::from(u32::MAX),
                    register,
                };
                differ.insert(register, None);
            }
        }
        Ok(())
    }
}

/// Whether the kernel still reports what it did, so that only the register was changed. `place`:
/// that of a mask or a delay. An association is confirmed where no class was made meanwhile.
fn confirmed(
    files: &dyn Files,
    resctrl: &Resctrl,
    seen: &Snapshot,
    register: &Register,
    place: Option<&Place>,
) -> Result<bool> {
    let (Some(place), Some(class)) = (place, &register.class) else {
        let groups = resctrl.groups(files)?;
        let known = |name: &str| {
            seen.classes
                .contains_key(if name.is_empty() { ROOT } else { name })
        };
        return Ok(groups.iter().all(|g| known(&g.name)));
    };
    let group = match class.as_str() {
        ROOT => resctrl.default_group(),
        name => resctrl.group(name),
    };
    let now = group.schemata(files)?;
    let reported = match now.0.get(&place.resource) {
        Some(Values::Masks(masks)) => masks.get(&place.id).map(|m| m.0),
        Some(Values::Numbers(percent)) => {
            let percent = percent.get(&place.id);
            percent.map(|percent| 100u64.saturating_sub(*percent))
        }
        _ => None,
    };
    Ok(reported == Some(register.kernel))
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
