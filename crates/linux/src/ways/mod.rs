//! Samples which classes may fill which ways, for `quell ways`: what resctrl reports, and what the
//! registers say. Nothing is changed.
//!
//! Where resctrl is not mounted, the registers alone are read ([`bare`]). Where it is, they are
//! compared with what the kernel reports ([`registers`]).

pub mod bare;
pub mod registers;
mod threads;

use std::collections::BTreeMap;

use quell_record::ways::{Cache, Class, Figures, Mode, Place, ROOT, Snapshot};

use bare::Bare;
use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::{self, Group, Info, Resctrl, Values};
use quell_kernel::root::Files;
use quell_kernel::topology;
use registers::Registers;
use threads::Threads;

/// Where classes and masks are read from.
#[derive(Debug)]
enum Source {
    Kernel {
        resctrl: Resctrl,
        caches: Vec<Cache>,
        registers: Option<Registers>,
    },
    Registers(Bare),
}

/// Takes samples again and again.
#[derive(Debug)]
pub struct Looker {
    source: Source,
    threads: Threads,
}

impl Looker {
    /// Finds what there is to sample. `registers` includes the processor's registers, where they
    /// can be read.
    ///
    /// # Errors
    /// Where resctrl is not mounted and the registers cannot be read, naming what would help.
    pub fn new(files: &dyn Files, registers: bool) -> Result<Self> {
        let source = match Resctrl::find(files)? {
            Some(resctrl) => {
                let info = resctrl.info(files)?;
                let caches = caches(files, &resctrl, &info)?;
                let registers = match registers {
                    true => Registers::open(files, &resctrl, &info, &caches)?,
                    false => None,
                };
                Source::Kernel {
                    resctrl,
                    caches,
                    registers,
                }
            }
            None => Source::Registers(without_resctrl(files, registers)?),
        };
        Ok(Self {
            source,
            threads: Threads::default(),
        })
    }

    /// The caches that can be divided. Another one may appear with a sample, where code and data
    /// become separate.
    #[must_use]
    pub fn caches(&self) -> &[Cache] {
        match &self.source {
            Source::Kernel { caches, .. } => caches,
            Source::Registers(bare) => &bare.caches,
        }
    }

    /// Whether registers are read, too.
    #[must_use]
    pub const fn sees_registers(&self) -> bool {
        match &self.source {
            Source::Kernel { registers, .. } => registers.is_some(),
            Source::Registers(_) => true,
        }
    }

    /// Whether registers are all there is, since resctrl is not mounted.
    #[must_use]
    pub const fn registers_alone(&self) -> bool {
        matches!(self.source, Source::Registers(_))
    }

    /// Includes the threads of a process, and of its children, whatever their class.
    pub fn watch(&mut self, pid: u32) {
        self.threads.watch(pid);
    }

    /// Takes one sample.
    ///
    /// # Errors
    /// When files cannot be read that have to be there. What ends meanwhile is no error.
    pub fn sample(&mut self, files: &dyn Files) -> Result<Snapshot> {
        let mut classes: BTreeMap<u32, String> = BTreeMap::new();
        let (resctrl, registers) = match &mut self.source {
            Source::Registers(bare) => {
                let mut seen = bare.sample(files)?;
                self.threads.sample(files, &classes, &mut seen)?;
                return Ok(seen);
            }
            Source::Kernel {
                resctrl, registers, ..
            } => (resctrl, registers),
        };
        let mut seen = Snapshot::default();
        for group in resctrl.groups(files)? {
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
        self.threads.sample(files, &classes, &mut seen)?;
        if let Some(registers) = registers {
            seen.registers = registers.sample(files, resctrl, &seen)?;
        }
        Ok(seen)
    }
}

/// The registers, where resctrl is not mounted.
fn without_resctrl(files: &dyn Files, wanted: bool) -> Result<Bare> {
    const MOUNT: &str = "mount -t resctrl resctrl /sys/fs/resctrl";
    const LAB: &str = "quell lab --profile icelake --with quell -- …";
    let found = match wanted {
        true => Bare::open(files),
        false => {
            return Err(Error::refused_with(
                "resctrl is not mounted, and --no-registers leaves the registers alone",
                format!("leave that option out, or {MOUNT}"),
            ));
        }
    };
    match found {
        Ok(Some(bare)) => Ok(bare),
        Ok(None) => Err(Error::refused_with(
            "resctrl is not mounted, and the processor does not report that it divides a cache (`quell doctor`)",
            format!("where it can, {MOUNT}; elsewhere try it in a virtual machine ({LAB})"),
        )),
        Err(why) => Err(Error::refused_with(
            format!("resctrl is not mounted, and {why}"),
            format!("or {MOUNT}; elsewhere try it in a virtual machine ({LAB})"),
        )),
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
                if cache.holds_data_at(ways.level) && number(files, cache)? == Some(id) {
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
