//! Ways through the processor's registers (`/dev/cpu/N/msr`), where resctrl is not mounted. A class
//! belongs to CPUs, and whatever runs there fills its ways.
//!
//! Registers are written and recorded as files are ([`msr::path`]). A mask is one value for all
//! CPUs of its cache, a class one for each CPU. A value that does not read back is refused. Class 0
//! is that of all CPUs that have no other.

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::error::{Error, Result};
use quell_kernel::msr::{self, ASSOCIATION};
use quell_kernel::resctrl::{Resctrl, offer};
use quell_kernel::root::Files;
use quell_kernel::topology;
use quell_plan::{Promise, Setting};
use quell_record::backend::Observation;
use quell_record::standing::Cause;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Level;
use quell_types::partition::{CodeData, Mask, WayPartition};

use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::host::Host;

/// The caches of a level that can be divided, and what divides them.
#[derive(Clone, Debug)]
pub struct Caches {
    /// 2 or 3.
    pub level: u32,
    /// The CPUs of each cache.
    pub cpus: Vec<CpuSet>,
    /// The mask of all ways.
    pub whole: Mask,
    /// Number of classes, that of all other CPUs included.
    pub classes: u32,
    /// Whether the processor can give code and data masks of their own.
    pub code_data: bool,
}

/// The caches of this machine that are divided so.
///
/// # Errors
/// Files that cannot be read or make no sense.
pub fn caches(files: &dyn Files, offered: &[WayPartition]) -> Result<Vec<Caches>> {
    let machine = topology::read(files, None)?;
    let of_level = |ways: &WayPartition| {
        let caches = machine.caches.iter();
        let caches = caches.filter(|c| c.holds_data_at(ways.level));
        Caches {
            level: ways.level,
            cpus: caches.map(|c| c.cpus.clone()).collect(),
            whole: Mask::run(0, ways.bits),
            classes: ways.classes,
            code_data: ways.code_data != CodeData::Never,
        }
    };
    Ok(offered.iter().map(of_level).collect())
}

/// The value of a register that these CPUs share. `None` while all of them are offline.
fn read(files: &dyn Files, cpus: &CpuSet, number: u32) -> Result<Option<u64>> {
    let path = msr::path(cpus, number);
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let value = msr::value(&text).ok_or_else(|| Error::malformed(&path, &text, "a number"))?;
    Ok(Some(value))
}

/// The classes that no CPU has, and whose masks are all wide: those that can be used. Class 0 is
/// not among them.
///
/// # Errors
/// Registers that cannot be read.
pub fn free(files: &dyn Files, all: &[Caches]) -> Result<BTreeSet<u32>> {
    let most = all.iter().map(|c| c.classes).min().unwrap_or(0);
    let mut free: BTreeSet<u32> = (1..most).collect();
    for caches in all {
        let Some((first, _)) = msr::of_level(caches.level) else {
            continue;
        };
        for cpus in &caches.cpus {
            for number in free.clone() {
                let mask = read(files, cpus, first + number)?;
                if mask.is_some_and(|mask| mask != caches.whole.0) {
                    free.remove(&number);
                }
            }
            for cpu in cpus.iter() {
                if let Some(value) = read(files, &CpuSet::one(cpu), ASSOCIATION)? {
                    free.remove(&msr::class_in(value));
                }
            }
        }
    }
    Ok(free)
}

/// Writes a register, and reads it back.
fn set(writer: &mut JournaledWriter<'_>, cpus: &CpuSet, number: u32, value: u64) -> Result<()> {
    let path = msr::path(cpus, number);
    let text = format!("{value:#x}");
    let name = format!("register {number:#x} of CPU {}", cpus.brief());
    let files = writer.files;
    let failed = |e: Error| msr::unwritten(files, &name, &e);
    writer.set(&path, &text).map_err(failed)?;
    let now = files.text(&path).map_err(failed)?;
    if msr::same(number, &now, &text) {
        return Ok(());
    }
    Err(Error::refused_with(
        format!(
            "{name} reads {now} after {text} was written: the processor, or its hypervisor, does not keep it"
        ),
        "leave out mechanisms.registers, and mount resctrl",
    ))
}

/// Gives a class these ways of all caches of a level.
///
/// # Errors
/// [`Error::Refused`] where a register is not written, or does not read back.
pub fn allocate(
    writer: &mut JournaledWriter<'_>,
    caches: &Caches,
    class: u32,
    mask: Mask,
) -> Result<()> {
    let Some((first, _)) = msr::of_level(caches.level) else {
        return Err(Error::refused(format!(
            "L{} has no registers",
            caches.level
        )));
    };
    for cpus in &caches.cpus {
        set(writer, cpus, first + class, mask.0)?;
    }
    Ok(())
}

/// Puts CPUs into a class.
///
/// # Errors
/// As for [`allocate`].
pub fn classify(writer: &mut JournaledWriter<'_>, cpus: &CpuSet, class: u32) -> Result<()> {
    for cpu in cpus.iter() {
        set(
            writer,
            &CpuSet::one(cpu),
            ASSOCIATION,
            msr::with_class(class),
        )?;
    }
    Ok(())
}

/// What was found when the first step came, and what was given since.
struct Begun {
    caches: Vec<Caches>,
    free: BTreeSet<u32>,
    /// The class of each group that has one of its own.
    given: BTreeMap<String, u32>,
    /// What was reported of groups, each once.
    told: BTreeSet<(String, String)>,
}

/// Carries out ways through registers.
#[derive(Default)]
pub(crate) struct Registers {
    begun: Option<Begun>,
}

impl Enforcer for Registers {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Setting::WayRegisters { level, mask, cpus } = set else {
            return Ok(None);
        };
        let begun = match &mut self.begun {
            Some(begun) => begun,
            none => none.insert(begin(host)?),
        };
        let missing =
            || Error::refused_with(format!("no register divides L{level} here"), "plan again");
        let caches = begun.caches.iter().find(|c| c.level == *level);
        let caches = caches.cloned().ok_or_else(missing)?;
        let class = match begun.given.get(group) {
            Some(class) => *class,
            None if cpus.is_empty() => 0,
            None => {
                let none = || {
                    Error::refused_with(
                        format!(
                            "group {group} needs a class of its own, and other tools use all of them"
                        ),
                        "free one: pqos --iface=msr -R",
                    )
                };
                let class = begun.free.pop_first().ok_or_else(none)?;
                begun.given.insert(group.to_owned(), class);
                class
            }
        };
        let mut writer = host.writer()?;
        allocate(&mut writer, &caches, class, *mask)?;
        classify(&mut writer, cpus, class)?;
        Ok(Some(Vec::new()))
    }

    /// Reports which other program uses what a group has to itself. Changed values are found as
    /// drift.
    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let Some(begun) = &mut self.begun else {
            return;
        };
        // Registers that cannot be read now are read in a second.
        let now = begun.disputed(host).unwrap_or_default();
        for (group, by) in now.difference(&begun.told) {
            let cause = Cause::Shared { by: by.clone() };
            let such = |set: &Setting| matches!(set, Setting::WayRegisters { .. });
            seen.extend(host.worth(group, &such, Level::None, &cause));
        }
        begun.told = now;
    }

    fn release(&mut self, _: &mut Host) {
        self.begun = None;
    }
}

fn begin(host: &Host) -> Result<Begun> {
    let files: &dyn Files = &host.files;
    // All that was seen when this was planned may have changed.
    let caches = caches(files, &offer::by_registers(files)?)?;
    Ok(Begun {
        free: free(files, &caches)?,
        caches,
        given: BTreeMap::new(),
        told: BTreeSet::new(),
    })
}

impl Begun {
    /// The groups whose ways other programs use by now, and how.
    fn disputed(&self, host: &Host) -> Result<BTreeSet<(String, String)>> {
        let files: &dyn Files = &host.files;
        let mounted = Resctrl::find(files)?.map(|resctrl| {
            format!(
                "resctrl, mounted at {} since, which writes the same registers",
                resctrl.root
            )
        });
        let separate = self.separate(files)?;
        let mut found = BTreeSet::new();
        let promises = host.plan.iter().flat_map(|plan| &plan.promises);
        for held in promises {
            let Promise::ReserveWays { level, mask, .. } = &held.promise else {
                continue;
            };
            let by = mounted.as_ref().or(separate.as_ref());
            found.extend(by.map(|by| (held.group.clone(), by.clone())));
            let caches = self.caches.iter().filter(|c| c.level == *level);
            let strangers = caches.map(|caches| self.strangers(files, caches, *mask));
            for by in strangers.collect::<Result<Vec<_>>>()?.into_iter().flatten() {
                found.insert((held.group.clone(), by));
            }
        }
        Ok(found)
    }

    /// What another program did where code and data have separate masks by now.
    fn separate(&self, files: &dyn Files) -> Result<Option<String>> {
        for caches in self.caches.iter().filter(|c| c.code_data) {
            let Some((_, config)) = msr::of_level(caches.level) else {
                continue;
            };
            for cpus in &caches.cpus {
                if read(files, cpus, config)?.is_some_and(|value| value & 1 == 1) {
                    let level = caches.level;
                    return Ok(Some(format!(
                        "a program that gave code and data masks of their own in L{level} since"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// CPUs that another program has put into a class which may fill some of these ways.
    fn strangers(&self, files: &dyn Files, caches: &Caches, mask: Mask) -> Result<Vec<String>> {
        let Some((first, _)) = msr::of_level(caches.level) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for cpus in &caches.cpus {
            for cpu in cpus.iter() {
                let class = read(files, &CpuSet::one(cpu), ASSOCIATION)?.map_or(0, msr::class_in);
                if class == 0 || self.given.values().any(|ours| *ours == class) {
                    continue;
                }
                let theirs = read(files, cpus, first + class)?.unwrap_or(0);
                let common = Mask(theirs & mask.0);
                if !common.is_empty() {
                    found.push(format!(
                        "class {class} of CPU {cpu}, which has {common} of L{}",
                        caches.level
                    ));
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Spec, divided_by_registers};
    use quell_types::task::TaskId;

    use super::*;
    use crate::journal::{Header, Journal, VERSION};

    fn machine() -> (Fake, Vec<Caches>) {
        let fake = Fake::new(&Spec {
            registers: true,
            ..Spec::new(Flavour::V2)
        });
        let offered = divided_by_registers();
        let caches = caches(&fake, &[offered]).unwrap();
        (fake, caches)
    }

    fn journal(dir: &std::path::Path) -> Journal {
        let header = Header {
            version: VERSION,
            boot: "b00t".into(),
            run: "r1".into(),
            main: TaskId { pid: 1, start: 2 },
        };
        Journal::create(dir, header).unwrap()
    }

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn registers_are_written_recorded_and_restored() {
        let (fake, caches) = machine();
        let dir = tempfile::tempdir().unwrap();
        let mut journal = journal(dir.path());
        let before = fake.dump();
        assert_eq!(free(&fake, &caches).unwrap().first(), Some(&1));
        let mut writer = JournaledWriter::new(&fake, &mut journal);
        allocate(&mut writer, &caches[0], 1, Mask(0xf)).unwrap();
        classify(&mut writer, &cpus("2-3"), 1).unwrap();
        allocate(&mut writer, &caches[0], 0, Mask(0xfff0)).unwrap();
        let is = |list: &str, number| read(&fake, &cpus(list), number).unwrap().unwrap();
        assert_eq!((is("0-3", 0xc91), is("0", 0xc90)), (0xf, 0xfff0));
        assert_eq!(is("3", ASSOCIATION), 1 << 32);
        assert!(!free(&fake, &caches).unwrap().contains(&1));
        let undone = journal.undo_all(&fake);
        assert_eq!((undone.restored, undone.left.len()), (4, 0));
        assert_eq!(fake.dump(), before);
    }

    #[test]
    fn a_register_that_does_not_keep_its_value_is_refused() {
        let (fake, caches) = machine();
        let dir = tempfile::tempdir().unwrap();
        let mut journal = journal(dir.path());
        let before = fake.dump();
        fake.with(|m| m.register_stuck(0xc91));
        let mut writer = JournaledWriter::new(&fake, &mut journal);
        let error = allocate(&mut writer, &caches[0], 1, Mask(0xf)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("reads 0xffff after 0xf was written"),
            "{error}"
        );
        // The processor refuses a mask with holes.
        let error = allocate(&mut writer, &caches[0], 2, Mask(0b101)).unwrap_err();
        assert!(error.to_string().contains("refuses the value"), "{error}");
        let undone = journal.undo_all(&fake);
        assert!(undone.left.is_empty(), "{undone:?}");
        assert_eq!(fake.dump(), before);
    }

    #[test]
    fn code_and_data_that_become_separate_are_noticed() {
        let (fake, caches) = machine();
        let begun = Begun {
            caches,
            free: BTreeSet::new(),
            given: BTreeMap::new(),
            told: BTreeSet::new(),
        };
        assert_eq!(begun.separate(&fake).unwrap(), None);
        (&fake as &dyn Files)
            .put(&msr::path(&cpus("0"), msr::L3_CONFIG), "0x1")
            .unwrap();
        let by = begun.separate(&fake).unwrap().unwrap();
        assert!(by.contains("masks of their own in L3"), "{by}");
    }

    #[test]
    fn registers_of_offline_cpus_are_restored_once_they_are_back() {
        let (fake, caches) = machine();
        let dir = tempfile::tempdir().unwrap();
        let mut journal = journal(dir.path());
        let before = fake.dump();
        let mut writer = JournaledWriter::new(&fake, &mut journal);
        allocate(&mut writer, &caches[0], 1, Mask(0xf)).unwrap();
        classify(&mut writer, &cpus("3"), 1).unwrap();
        fake.with(|m| m.registers_online(0, false));
        fake.with(|m| m.registers_online(3, false));
        let undone = journal.undo_all(&fake);
        // The mask is restored through another CPU of the cache.
        assert_eq!(undone.restored, 1);
        assert!(undone.left[0].contains("offline"), "{undone:?}");
        fake.with(|m| m.registers_online(0, true));
        fake.with(|m| m.registers_online(3, true));
        let undone = journal.undo_all(&fake);
        assert!(undone.left.is_empty(), "{undone:?}");
        assert_eq!(fake.dump(), before);
    }
}
