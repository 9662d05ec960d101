//! Samples which classes may fill which ways, for `quell ways`: what resctrl reports, and what the
//! registers say. Nothing is changed.
//!
//! A sample reads each class's files, and `/proc` of the threads in classes other than the root's
//! and of their processes. On a machine where nothing is divided that is a handful of files.
//! Threads of processes that are wholly in the root's class are not read, except those of a watched
//! program.

pub mod registers;

use std::collections::{BTreeMap, BTreeSet};

use quell_plan::inventory::CacheKind;
use quell_record::ways::{Cache, Class, Figures, Mode, Place, ROOT, Snapshot, Thread};

use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::groups::membership;
use quell_kernel::resctrl::{self, Group, Info, Resctrl, Values};
use quell_kernel::root::Files;
use quell_kernel::{procfs, topology};
use registers::Registers;

/// Takes samples again and again.
#[derive(Debug)]
pub struct Looker {
    resctrl: Resctrl,
    caches: Vec<Cache>,
    registers: Option<Registers>,
    /// Processes whose threads are read whatever their class.
    watched: BTreeSet<u32>,
}

impl Looker {
    /// Finds what there is to sample. `registers` includes the processor's registers, where they
    /// can be read.
    ///
    /// # Errors
    /// Where resctrl is not mounted, naming what would help.
    pub fn new(files: &dyn Files, registers: bool) -> Result<Self> {
        let Some(resctrl) = Resctrl::find(files)? else {
            let why = "resctrl is not mounted, so nobody divides a cache through the kernel: where the processor can (`quell doctor`), \
                       mount -t resctrl resctrl /sys/fs/resctrl; elsewhere try it in a virtual machine (quell lab --profile icelake --with quell -- …)";
            return Err(Error::refused(why));
        };
        let info = resctrl.info(files)?;
        let caches = caches(files, &resctrl, &info)?;
        let registers = if registers {
            Registers::open(files, &resctrl, &info, &caches)?
        } else {
            None
        };
        Ok(Self {
            resctrl,
            caches,
            registers,
            watched: BTreeSet::new(),
        })
    }

    /// The caches that can be divided.
    #[must_use]
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// Whether registers are read, too.
    #[must_use]
    pub const fn sees_registers(&self) -> bool {
        self.registers.is_some()
    }

    /// Includes the threads of a process, and of its children, whatever their class.
    pub fn watch(&mut self, pid: u32) {
        self.watched.insert(pid);
    }

    /// Takes one sample.
    ///
    /// # Errors
    /// When files cannot be read that have to be there. What ends meanwhile is no error.
    pub fn sample(&mut self, files: &dyn Files) -> Result<Snapshot> {
        let mut seen = Snapshot::default();
        let mut classes: BTreeMap<u32, String> = BTreeMap::new();
        for group in self.resctrl.groups(files)? {
            let root = group.name.is_empty();
            let name = if root { ROOT } else { &group.name };
            if !root {
                let tasks = group.tasks(files)?.into_iter();
                classes.extend(tasks.map(|tid| (tid, name.to_owned())));
            }
            let Some(class) = class(files, &group, root)? else {
                continue;
            };
            seen.classes.insert(name.to_owned(), class);
        }
        self.threads(files, &classes, &mut seen)?;
        if let Some(registers) = &mut self.registers {
            seen.registers = registers.sample(files, &self.resctrl, &seen)?;
        }
        Ok(seen)
    }

    fn threads(
        &mut self,
        files: &dyn Files,
        classes: &BTreeMap<u32, String>,
        seen: &mut Snapshot,
    ) -> Result<()> {
        let mut processes = self.watched.clone();
        for tid in classes.keys() {
            processes.extend(procfs::process_of(files, *tid)?);
        }
        for pid in processes {
            for tid in procfs::threads(files, pid)? {
                let Some(stat) = procfs::stat(files, tid)?.filter(|stat| !stat.dead()) else {
                    continue;
                };
                if self.watched.contains(&pid) {
                    let path = format!("/proc/{pid}/task/{tid}/children");
                    let children = files.optional(&path)?.unwrap_or_default();
                    let children = children.split_ascii_whitespace();
                    self.watched
                        .extend(children.filter_map(|c| c.parse::<u32>().ok()));
                }
                let class = match classes.get(&tid) {
                    Some(class) => class.clone(),
                    // In the root's class, or born since the classes were listed.
                    None => match membership(files, tid)?.map(|m| m.control) {
                        Some(class) if !class.is_empty() => class,
                        _ => ROOT.to_owned(),
                    },
                };
                let thread = Thread {
                    pid,
                    name: stat.comm,
                    class,
                    cpu: stat.last_cpu,
                };
                seen.threads.insert(tid, thread);
            }
        }
        Ok(())
    }
}

/// Reads a class. `None` where it is gone.
fn class(files: &dyn Files, group: &Group, root: bool) -> Result<Option<Class>> {
    let schemata = group.schemata(files)?;
    if schemata.0.is_empty() {
        return Ok(None);
    }
    let mut class = Class {
        mode: match group.mode(files)? {
            Some(resctrl::Mode::Exclusive) => Mode::Exclusive,
            Some(resctrl::Mode::PseudoLockSetup) => Mode::PseudoLocksetup,
            Some(resctrl::Mode::PseudoLocked) => Mode::PseudoLocked,
            _ => Mode::Shareable,
        },
        ..Class::default()
    };
    for (resource, values) in &schemata.0 {
        match values {
            Values::Masks(masks) => {
                let masks = masks.iter().map(|(id, m)| (Place::new(resource, *id), *m));
                class.masks.extend(masks);
            }
            Values::Numbers(numbers) => {
                let numbers = numbers.iter();
                let numbers = numbers.map(|(id, n)| (Place::new(resource, *id), *n));
                class.throttles.extend(numbers);
            }
            Values::Other(_) => {}
        }
    }
    // The root's CPUs are all that no other class has.
    if !root {
        class.cpus = group.cpus(files)?;
    }
    for data in group.data(files)? {
        let count = |event: &str| data.events.get(event).and_then(resctrl::Reading::count);
        let figures = Figures {
            occupancy: count("llc_occupancy"),
            traffic: count("mbm_total_bytes"),
        };
        // The kernel sums up parts of a cache that are counted by themselves.
        if data.part.is_none() && figures != Figures::default() {
            class
                .figures
                .insert(Place::new(&data.of, data.domain), figures);
        }
    }
    Ok(Some(class))
}

/// The caches whose ways can be divided, one entry per resource.
fn caches(files: &dyn Files, resctrl: &Resctrl, info: &Info) -> Result<Vec<Cache>> {
    let machine = topology::read(files, None)?;
    let schemata = resctrl.default_group().schemata(files)?;
    let mut found = Vec::new();
    for (resource, ways) in info.all_ways() {
        for id in schemata.domains(&resource.name) {
            let mut same = Vec::new();
            for cache in &machine.caches {
                if cache.level == ways.level
                    && cache.kind != CacheKind::Instruction
                    && number(files, cache)? == Some(id)
                {
                    same.push(cache);
                }
            }
            let Some(cache) = same.first() else {
                continue;
            };
            found.push(Cache {
                place: Place::new(&resource.name, id),
                bits: 64 - ways.all.0.leading_zeros(),
                bytes: cache.size.0,
                cpus: cache.cpus.clone(),
                least: ways.least,
                shareable: ways.shareable,
            });
        }
    }
    Ok(found)
}

/// The kernel's number of a cache.
fn number(files: &dyn Files, cache: &quell_plan::inventory::Cache) -> Result<Option<u32>> {
    let Some(cpu) = cache.cpus.first() else {
        return Ok(None);
    };
    let dir = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    for index in files.names(&dir)? {
        let level: Option<u32> = files.parsed(&format!("{dir}/{index}/level"), "a level")?;
        let kind = files.optional(&format!("{dir}/{index}/type"))?;
        if level == Some(cache.level) && kind.as_deref() != Some("Instruction") {
            return files.parsed(&format!("{dir}/{index}/id"), "a number");
        }
    }
    Ok(None)
}
