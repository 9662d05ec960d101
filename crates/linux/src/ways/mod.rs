//! Samples which classes may fill which ways, for `quell ways`: what resctrl reports, and what the
//! registers say. Nothing is changed.
//!
//! Where resctrl is not mounted, the registers alone are read ([`bare`]). Where it is, they are
//! compared with what the kernel reports ([`registers`]).

pub mod bare;
mod by_cpu;
mod class;
mod misses;
pub mod registers;
mod threads;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_record::ways::{Cache, Place, ROOT, Snapshot};

use bare::Bare;
use class::ClassFiles;
use misses::Misses;
use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::{Info, Resctrl};
use quell_kernel::root::Files;
use quell_kernel::switches::Taken;
use quell_kernel::topology;
use registers::Registers;
use threads::Threads;

/// The usual time between two searches.
const USUAL: Duration = Duration::from_secs(1);
/// The time between two searches is at least this multiple of the length of the last one.
const SPARING: u32 = 100;

/// When something costly was done last, and how long it took.
#[derive(Clone, Copy, Debug)]
struct Pace {
    begun: Instant,
    took: Duration,
}

impl Pace {
    /// It began then, and is done now.
    fn of(begun: Instant) -> Self {
        let took = begun.elapsed();
        Self { begun, took }
    }

    /// The time since it began.
    fn since(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether to do it again, which takes at most one part in [`SPARING`] of the time.
    fn due(&self, pause: Duration) -> bool {
        self.since() >= pause.max(self.took * SPARING)
    }
}

/// Where classes and masks are read from.
#[derive(Debug)]
enum Source {
    Kernel {
        resctrl: Resctrl,
        caches: Vec<Cache>,
        /// By the name of their directory.
        classes: BTreeMap<String, ClassFiles>,
        registers: Option<Registers>,
    },
    Registers(Bare),
}

/// Takes samples again and again.
#[derive(Debug)]
pub struct Looker {
    source: Source,
    threads: Threads,
    /// Counters of threads, where they are asked for.
    misses: Option<Misses>,
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
                    classes: BTreeMap::new(),
                    registers,
                }
            }
            None => Source::Registers(without_resctrl(files, registers)?),
        };
        Ok(Self {
            source,
            threads: Threads::default(),
            misses: None,
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

    /// Counts the misses of threads, too.
    pub fn count_misses(&mut self) {
        self.misses = Some(Misses::default());
    }

    /// Why misses are not counted although they are asked for.
    #[must_use]
    pub fn uncounted(&self) -> Option<String> {
        let refused = self.misses.as_ref()?.refused()?;
        Some(refused.to_string())
    }

    /// Takes one sample. `taken`: what ran since the one before, where context switches are
    /// recorded.
    ///
    /// # Errors
    /// When files cannot be read that have to be there. What ends meanwhile is no error.
    pub fn sample(&mut self, files: &dyn Files, taken: Option<&Taken>) -> Result<Snapshot> {
        let mut of_threads: BTreeMap<u32, String> = BTreeMap::new();
        let (resctrl, classes, registers) = match &mut self.source {
            Source::Registers(bare) => {
                let mut seen = bare.sample(files)?;
                self.threads.sample(files, &of_threads, taken, &mut seen)?;
                if let Some(misses) = &mut self.misses {
                    misses.sample(&mut seen);
                }
                return Ok(seen);
            }
            Source::Kernel {
                resctrl,
                classes,
                registers,
                ..
            } => (resctrl, classes, registers),
        };
        let mut seen = Snapshot::default();
        let groups = resctrl.groups(files)?;
        classes.retain(|name, _| groups.iter().any(|group| group.name == *name));
        for group in groups {
            let root = group.name.is_empty();
            let name = if root {
                ROOT.to_owned()
            } else {
                group.name.clone()
            };
            if !classes.contains_key(&group.name) {
                let opened = ClassFiles::open(files, group.clone())?;
                classes.insert(group.name.clone(), opened);
            }
            let Some(class) = classes.get_mut(&group.name) else {
                continue;
            };
            if !root {
                let tasks = class.tasks(files)?.into_iter();
                of_threads.extend(tasks.map(|tid| (tid, name.clone())));
            }
            if let Some(class) = class.sample(files)? {
                seen.classes.insert(name, class);
            }
        }
        self.threads.sample(files, &of_threads, taken, &mut seen)?;
        if let Some(misses) = &mut self.misses {
            misses.sample(&mut seen);
        }
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
