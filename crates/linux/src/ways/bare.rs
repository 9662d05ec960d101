//! Cache allocation by registers alone, where resctrl is not mounted. CPUs, not tasks, have classes
//! then. The processor itself says what can be divided (CPUID), and nothing counts occupancy.

use std::collections::BTreeMap;

use quell_record::ways::{Cache, Class, Place, ROOT, Snapshot};
use quell_types::cpuset::CpuSet;
use quell_types::partition::{Mask, MbaUnit, Partitions, WayPartition};

use quell_kernel::error::Result;
use quell_kernel::msr::{self, ASSOCIATION, DELAYS, Devices};
use quell_kernel::resctrl::processor;
use quell_kernel::root::Files;
use quell_kernel::topology;

use super::number;

/// The name of a class by its number, as `pqos` has it.
fn named(number: u32) -> String {
    match number {
        0 => ROOT.to_owned(),
        _ => format!("COS{number}"),
    }
}

/// One cache with mask registers.
#[derive(Debug)]
struct Divided {
    ways: WayPartition,
    id: u32,
    bytes: u64,
    cpus: CpuSet,
}

/// The mask registers of one kind of lines in a cache.
struct Kind {
    place: Place,
    /// The register of class 0, and the step between classes.
    first: u32,
    step: u32,
    classes: u32,
}

impl Divided {
    fn kinds(&self, first: u32, code_data: bool) -> Vec<Kind> {
        let level = self.ways.level;
        let kind = |suffix: &str, offset: u32, step: u32| Kind {
            place: Place::new(&format!("L{level}{suffix}"), self.id),
            first: first + offset,
            step,
            classes: self.ways.classes / step,
        };
        // With code and data separate they alternate, data first.
        match code_data {
            true => vec![kind("DATA", 0, 2), kind("CODE", 1, 2)],
            false => vec![kind("", 0, 1)],
        }
    }

    fn cache(&self, place: &Place) -> Cache {
        Cache {
            place: place.clone(),
            bits: self.ways.bits,
            bytes: self.bytes,
            cpus: self.cpus.clone(),
            least: self.ways.least,
            shareable: self.ways.shareable,
        }
    }
}

/// The registers of all caches that can be divided.
#[derive(Debug)]
pub struct Bare {
    devices: Devices,
    divided: Vec<Divided>,
    /// Classes that have delays in percent. 0 where delays are not linear, or there are none.
    delays: u32,
    /// All caches seen so far. Code and data may become separate meanwhile.
    pub caches: Vec<Cache>,
}

impl Bare {
    /// Opens the registers. `None` where the processor divides no cache.
    ///
    /// # Errors
    /// Where they cannot be read: no module `msr`, no right, a processor that refuses.
    pub fn open(files: &dyn Files) -> Result<Option<Self>> {
        match processor::by_registers(files) {
            Some(offered) => Self::of(files, &offered),
            None => Ok(None),
        }
    }

    /// The same with what the processor says.
    fn of(files: &dyn Files, offered: &Partitions) -> Result<Option<Self>> {
        let machine = topology::read(files, None)?;
        let mut divided = Vec::new();
        for ways in &offered.ways {
            let caches = machine.caches.iter();
            for (n, cache) in (0u32..).zip(caches.filter(|c| c.holds_data_at(ways.level))) {
                divided.push(Divided {
                    ways: ways.clone(),
                    id: number(files, cache)?.unwrap_or(n),
                    bytes: cache.size.0,
                    cpus: cache.cpus.clone(),
                });
            }
        }
        let all: CpuSet = divided.iter().flat_map(|d| d.cpus.iter()).collect();
        if all.is_empty() {
            return Ok(None);
        }
        let percent = offered.mba.as_ref().filter(|m| m.unit == MbaUnit::Percent);
        let mut bare = Self {
            devices: Devices::open(files, &all)?,
            divided,
            delays: percent.map_or(0, |m| m.classes),
            caches: Vec::new(),
        };
        // What a processor refuses to read is found before anything is watched.
        bare.sample(files)?;
        Ok(Some(bare))
    }

    /// Reads all registers. Classes that no CPU has and that have all ways are left out, except the
    /// root's.
    ///
    /// # Errors
    /// When the processor refuses. CPUs that are offline are no error.
    pub fn sample(&mut self, files: &dyn Files) -> Result<Snapshot> {
        let mut classes: BTreeMap<u32, Class> = BTreeMap::from([(0, Class::default())]);
        let mut narrowed: BTreeMap<u32, bool> = BTreeMap::new();
        for one in &self.divided {
            let Some((first, _)) = msr::of_level(one.ways.level) else {
                continue;
            };
            let code_data = self.devices.separate(files, &one.cpus, &one.ways)?;
            for kind in one.kinds(first, code_data) {
                if !self.caches.iter().any(|c| c.place == kind.place) {
                    self.caches.push(one.cache(&kind.place));
                }
                for number in 0..kind.classes {
                    let register = kind.first + number * kind.step;
                    let Some(mask) = self.devices.read(files, &one.cpus, register)? else {
                        break;
                    };
                    let whole = mask == Mask::run(0, one.ways.bits).0;
                    *narrowed.entry(number).or_default() |= !whole;
                    let class = classes.entry(number).or_default();
                    class.masks.insert(kind.place.clone(), Mask(mask));
                }
            }
            self.delays(files, one, &mut classes, &mut narrowed)?;
        }
        for cpu in self.devices.cpus() {
            let one = CpuSet::one(cpu);
            let read = self.devices.read(files, &one, ASSOCIATION)?;
            if let Some(number) = read.map(msr::class_in).filter(|number| *number != 0) {
                classes.entry(number).or_default().cpus.insert(cpu);
            }
        }
        let set = |number: &u32| narrowed.get(number).copied().unwrap_or_default();
        classes.retain(|number, class| *number == 0 || !class.cpus.is_empty() || set(number));
        Ok(Snapshot {
            classes: classes.into_iter().map(|(n, c)| (named(n), c)).collect(),
            ..Snapshot::default()
        })
    }

    /// Delays of memory bandwidth, which are set at the last level.
    fn delays(
        &self,
        files: &dyn Files,
        one: &Divided,
        classes: &mut BTreeMap<u32, Class>,
        narrowed: &mut BTreeMap<u32, bool>,
    ) -> Result<()> {
        if one.ways.level != 3 {
            return Ok(());
        }
        for number in 0..self.delays {
            let Some(delay) = self.devices.read(files, &one.cpus, DELAYS + number)? else {
                break;
            };
            *narrowed.entry(number).or_default() |= delay != 0;
            let class = classes.entry(number).or_default();
            let percent = 100u64.saturating_sub(delay);
            class.throttles.insert(Place::new("MB", one.id), percent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Rdt, Spec, divided_by_registers};

    use super::*;

    fn fake() -> Fake {
        Fake::new(&Spec {
            rdt: Some(Rdt {
                mounted: false,
                ..Rdt::icelake()
            }),
            registers: true,
            ..Spec::new(Flavour::V2)
        })
    }

    fn offered() -> Partitions {
        Partitions {
            ways: vec![divided_by_registers()],
            ..Partitions::default()
        }
    }

    fn set(fake: &Fake, cpus: &str, register: u32, value: u64) {
        let path = msr::path(&cpus.parse().unwrap(), register);
        (fake as &dyn Files)
            .put(&path, &format!("{value:#x}"))
            .unwrap();
    }

    #[test]
    fn classes_masks_and_cpus_are_those_of_the_registers() {
        let fake = fake();
        let mut bare = Bare::of(&fake, &offered()).unwrap().unwrap();
        let seen = bare.sample(&fake).unwrap();
        assert_eq!(seen.classes.keys().collect::<Vec<_>>(), [ROOT]);
        set(&fake, "0", 0xc93, 0xf);
        set(&fake, "1", ASSOCIATION, 3 << 32 | 7);
        set(&fake, "0", 0xc95, 0xf0);
        let seen = bare.sample(&fake).unwrap();
        let place = Place::new("L3", 0);
        let masks = |name: &str| seen.classes[name].masks[&place].0;
        assert_eq!(
            (masks(ROOT), masks("COS3"), masks("COS5")),
            (0xffff, 0xf, 0xf0)
        );
        assert_eq!(seen.classes["COS3"].cpus.to_string(), "1");
        assert!(seen.classes["COS5"].cpus.is_empty() && seen.classes.len() == 3);
    }

    #[test]
    fn code_and_data_that_become_separate_are_two_more_caches() {
        let fake = fake();
        let mut bare = Bare::of(&fake, &offered()).unwrap().unwrap();
        assert_eq!(bare.caches.len(), 1);
        set(&fake, "0", 0xc81, 1);
        set(&fake, "0", 0xc92, 0xf);
        set(&fake, "0", 0xc93, 0xf0);
        let seen = bare.sample(&fake).unwrap();
        let masks = &seen.classes["COS1"].masks;
        assert_eq!(masks[&Place::new("L3DATA", 0)].0, 0xf);
        assert_eq!(masks[&Place::new("L3CODE", 0)].0, 0xf0);
        assert_eq!((masks.len(), bare.caches.len()), (2, 3));
    }

    #[test]
    fn cpus_that_go_offline_are_left_out_and_come_back() {
        let fake = fake();
        let mut bare = Bare::of(&fake, &offered()).unwrap().unwrap();
        set(&fake, "0", 0xc91, 0xf);
        set(&fake, "0", ASSOCIATION, 1 << 32);
        set(&fake, "1", ASSOCIATION, 1 << 32);
        let cpus = |bare: &mut Bare| {
            let seen = bare.sample(&fake).unwrap();
            seen.classes["COS1"].cpus.to_string()
        };
        assert_eq!(cpus(&mut bare), "0-1");
        fake.with(|m| m.registers_online(0, false));
        // The mask is read through another CPU.
        assert_eq!(cpus(&mut bare), "1");
        // The kernel puts a CPU that comes back into class 0.
        fake.with(|m| m.registers_online(0, true));
        assert_eq!(cpus(&mut bare), "1");
        for cpu in 0..4 {
            fake.with(|m| m.registers_online(cpu, false));
        }
        let seen = bare.sample(&fake).unwrap();
        assert!(seen.classes[ROOT].masks.is_empty() && seen.classes.len() == 1);
    }

    #[test]
    fn a_machine_without_the_module_is_refused_with_the_remedy() {
        let none = Fake::new(&Spec::new(Flavour::V2));
        let error = Bare::of(&none, &offered()).unwrap_err().to_string();
        assert!(error.contains("/dev/cpu/0/msr is missing"), "{error}");
        assert!(error.ends_with("modprobe msr"), "{error}");
    }
}
