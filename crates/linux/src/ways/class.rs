//! The files of a class below resctrl, which stay open between samples.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_record::ways::{Class, Figures, Mode, Place};
use quell_types::cpuset::CpuSet;

use quell_kernel::cached_file::CachedFile;
use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::{self, Group, Reading, Schemata, Values};
use quell_kernel::root::Files;

/// How often the files are opened anew: counters come and go with CPUs, and files of a class that
/// is set up for pseudo-locking are closed.
const RENEWED: Duration = Duration::from_secs(1);

/// What is counted at a place.
#[derive(Debug)]
struct Counters {
    place: Place,
    occupancy: Option<CachedFile>,
    traffic: Option<CachedFile>,
}

/// A class with its open files.
#[derive(Debug)]
pub struct ClassFiles {
    group: Group,
    schemata: Option<CachedFile>,
    tasks: Option<CachedFile>,
    mode: Option<CachedFile>,
    cpus: Option<CachedFile>,
    counters: Vec<Counters>,
    /// When the files were opened.
    renewed: Instant,
}

impl ClassFiles {
    /// Opens the files of a group.
    ///
    /// # Errors
    /// Where they cannot be opened although they are there.
    pub fn open(files: &dyn Files, group: Group) -> Result<Self> {
        let open = |name: &str| match CachedFile::open(files, &group.file(name)) {
            Err(e) if closed(&e) => Ok(None),
            other => other,
        };
        Ok(Self {
            schemata: open("schemata")?,
            tasks: open("tasks")?,
            mode: open("mode")?,
            // The root's CPUs are all that no other class has.
            cpus: if group.name.is_empty() {
                None
            } else {
                open("cpus_list")?
            },
            counters: counters(files, &group)?,
            renewed: Instant::now(),
            group,
        })
    }

    /// Its threads. Empty for one that is gone, or that is set up for pseudo-locking.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn tasks(&mut self, files: &dyn Files) -> Result<Vec<u32>> {
        let text = text(&mut self.tasks, files)?.unwrap_or_default();
        let numbers = text.split_ascii_whitespace().filter_map(|t| t.parse().ok());
        // 0 stands for a task of another PID namespace, which has no number here.
        Ok(numbers.filter(|tid| *tid != 0).collect())
    }

    /// Settings and counts. `None` where it is gone.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn sample(&mut self, files: &dyn Files) -> Result<Option<Class>> {
        if self.renewed.elapsed() >= RENEWED {
            *self = Self::open(files, self.group.clone())?;
        }
        let schemata = Schemata::parse(text(&mut self.schemata, files)?.unwrap_or_default());
        if schemata.0.is_empty() {
            return Ok(None);
        }
        let mode = text(&mut self.mode, files)?.map(resctrl::Mode::from);
        let mut class = Class {
            mode: match mode {
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
        let path = self.group.file("cpus_list");
        if let Some(list) = text(&mut self.cpus, files)? {
            let wrong = |_| Error::malformed(&path, list, "a CPU list such as 0,2-3");
            class.cpus = match list.is_empty() {
                true => CpuSet::new(),
                false => list.parse().map_err(wrong)?,
            };
        }
        class.figures = self.figures(files)?;
        Ok(Some(class))
    }

    fn figures(&mut self, files: &dyn Files) -> Result<BTreeMap<Place, Figures>> {
        let mut all = BTreeMap::new();
        for one in &mut self.counters {
            let figures = Figures {
                occupancy: counted(&mut one.occupancy, files)?,
                traffic: counted(&mut one.traffic, files)?,
            };
            if figures != Figures::default() {
                all.insert(one.place.clone(), figures);
            }
        }
        Ok(all)
    }
}

/// The counters of a group. Parts of a cache that are counted by themselves the kernel sums up.
fn counters(files: &dyn Files, group: &Group) -> Result<Vec<Counters>> {
    let mut all = Vec::new();
    for domain in group.domains(files)? {
        let open = |event: &str| CachedFile::open(files, &format!("{}/{event}", domain.dir));
        all.push(Counters {
            place: Place::new(&domain.of, domain.number),
            occupancy: open("llc_occupancy")?,
            traffic: open("mbm_total_bytes")?,
        });
    }
    Ok(all)
}

fn counted(file: &mut Option<CachedFile>, files: &dyn Files) -> Result<Option<u64>> {
    Ok(text(file, files)?.and_then(|text| Reading::parse(text).count()))
}

/// The errors of files that a group for pseudo-locking has closed.
fn closed(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EACCES))
}

/// The text of a file. `None` where it is gone, or closed.
fn text<'f>(file: &'f mut Option<CachedFile>, files: &dyn Files) -> Result<Option<&'f str>> {
    match file {
        None => Ok(None),
        Some(file) => match file.text(files) {
            Err(e) if closed(&e) => Ok(None),
            other => other,
        },
    }
}
