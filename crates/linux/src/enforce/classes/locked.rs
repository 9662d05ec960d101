//! Memory locked in a cache: one region for each group that reserves one, handed to a program
//! launched in the group.
//!
//! The kernel's memory is a device that a program maps. The program inherits the descriptor. The
//! environment names it, with the region's size and the CPUs of its cache (`quell_client::locked`).
//! Every mapping empties the region, so only one program has it at a time. The first one launched
//! has it, and when that has ended the next.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use quell_client::locked::{BYTES_VARIABLE, CPUS_VARIABLE, FD_VARIABLE};
use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::lock::{For, PATIENCE};
use quell_kernel::resctrl::locked::Region;
use quell_kernel::resctrl::{Schemata, locked};
use quell_kernel::root::Files;
use quell_kernel::topology;
use quell_record::backend::SubjectId;
use quell_record::standing::Cause;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;
use quell_types::units::Bytes;

use super::residency::Residency;
use super::{Own, Parts};
use crate::enforce::{Launch, cache};
use crate::host::Host;

/// One of this many locked lines may be gone while the promise still holds. The kernel's own
/// accesses while it locks cost some lines.
const TOLERATED: u64 = 8;

/// The locked region of a group.
pub(super) struct Locked {
    region: Region,
    /// The program that the region was handed to last.
    given: Option<SubjectId>,
    /// Counts lines that left. `None` where nothing can count them.
    stays: Option<Residency>,
}

impl Locked {
    /// Why the promise does not hold now. `None` while it holds, or where that is not known.
    pub fn broken(&self, files: &dyn Files) -> Option<Cause> {
        let dir = &self.region.group.dir;
        if locked::region_at(files, dir).is_none() {
            return Some(Cause::Removed { what: dir.clone() });
        }
        let (lines, missed) = self
            .stays
            .as_ref()
            .and_then(|s| Some((s.lines(), s.missed()?)))?;
        (missed > lines / TOLERATED).then_some(Cause::Evicted)
    }

    /// Hands the region to a program, unless the last program that got it still runs.
    pub fn hand_to(&mut self, program: &mut Launch<'_>) -> Result<()> {
        let running = |id| program.subjects.iter().any(|s| s.id == id && !s.ended());
        if self.given.is_some_and(running) {
            return Ok(());
        }
        self.given = Some(program.id);
        let device = open(&self.region)?;
        let env = [
            (FD_VARIABLE, device.as_raw_fd().to_string()),
            (BYTES_VARIABLE, self.region.bytes.to_string()),
            (CPUS_VARIABLE, self.region.cpus.to_string()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value));
        program.env.extend(env);
        program.files.push(device);
        Ok(())
    }

    pub fn is_of(&self, name: &str) -> bool {
        self.region.group.name == name
    }
}

impl Parts {
    /// Locks memory for a group in the cache of its CPUs. All groups have left these ways before.
    pub(super) fn lock(
        &mut self,
        host: &mut Host,
        name: &str,
        level: u32,
        mask: Mask,
        size: Bytes,
    ) -> Result<Vec<String>> {
        let group = host.groups.one(name)?;
        let cpu = group.cpus.first().unwrap_or(0);
        let matched = !group.matching.is_empty();
        let cache = topology::cache_number(&host.files, cpu, level)?;
        let own = Own {
            group: name,
            level,
            mask,
            shared: false,
            caches_of: CpuSet::one(cpu),
        };
        let foreign = self.foreign(&host.files)?;
        foreign.keep_off(&host.files, &self.resctrl, &own)?;
        let resource = self.way_names(level).next();
        let resource = resource
            .ok_or_else(|| Error::refused(format!("resctrl has no ways of L{level} here")))?;
        let what = Schemata::masks(resource, [cache], mask);
        let region = {
            let _lock = self.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
            cache::lock_memory(
                &mut host.writer()?,
                &self.resctrl,
                &format!("quell-{name}"),
                &what,
            )?
        };
        if region.bytes < size.0 {
            return Err(Error::refused(format!(
                "the kernel has locked {} of the {size} of group {name}",
                Bytes(region.bytes)
            )));
        }
        let (stays, said) = stays(host, name, &region, level)?;
        let mut notes = vec![said];
        if matched {
            notes.push(format!(
                "group {name}: programs that run already are not handed what is locked; as root they can map {} themselves, \
                 on CPUs {} only",
                region.device(),
                region.cpus
            ));
        }
        let new = Locked {
            region,
            given: None,
            stays,
        };
        self.locks.insert(name.to_owned(), new);
        Ok(notes)
    }
}

/// Checks whether the kernel has locked what it says. Returns the counter, and a sentence for a
/// person.
fn stays(
    host: &mut Host,
    name: &str,
    region: &Region,
    level: u32,
) -> Result<(Option<Residency>, String)> {
    let group = host.groups.one(name)?.cpus.clone();
    let caches = &host.inventory()?.caches;
    let cache = caches
        .iter()
        .filter(|c| c.level == level)
        .map(|c| c.size)
        .max();
    let device = open(region)?;
    let (cpus, size) = (&region.cpus, cache.unwrap_or_default());
    let looked = Residency::measure(&device, region.bytes, cpus, &group, size, &mut host.heart());
    let looked = looked.map_err(|e| Error::file("map", &region.device(), None, e))?;
    let Some((stays, missed)) = looked else {
        let told = format!(
            "group {name}: no counter tells here whether the locked lines stay: that they do is the kernel's word alone"
        );
        return Ok((None, told));
    };
    let lines = stays.lines();
    if missed > lines / TOLERATED {
        return Err(Error::refused_with(
            format!(
                "the kernel says that it has locked memory of group {name}, and {missed} of {lines} lines were gone after \
                 others had used the cache: this kernel fills the memory into ways that others fill, too (as Linux 7.2 does)"
            ),
            "reserve ways of its own instead (cache = { ways = … }), or use a kernel that locks (6.12 does)",
        ));
    }
    let stay = lines - missed;
    let told = format!(
        "group {name}: {stay} of {lines} locked lines stayed while others used the whole cache"
    );
    Ok((Some(stays), told))
}

/// Opens the device. Where no device manager creates it in `/dev`, it is made for the moment.
fn open(region: &Region) -> Result<File> {
    let path = region.device();
    let failed = |action, e| Error::file(action, &path, None, e);
    let device = || {
        let mut how = File::options();
        how.read(true).write(true).custom_flags(libc::O_CLOEXEC);
        how.open(&path)
    };
    match device() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        done => return done.map_err(|e| failed("open", e)),
    }
    let told = format!("/sys/class/pseudo_lock/{}/dev", region.group.name);
    let text = std::fs::read_to_string(&told).map_err(|e| Error::file("read", &told, None, e))?;
    let numbers = text.trim().split_once(':');
    let numbers =
        numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) =
        numbers.ok_or_else(|| Error::malformed(&told, &text, "two numbers such as 240:0"))?;
    if let Some(dir) = Path::new(&path).parent() {
        std::fs::create_dir_all(dir).map_err(|e| failed("make", e))?;
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from(0o600),
        rustix::fs::makedev(major, minor),
    )
    .map_err(|e| failed("make", e.into()))?;
    let opened = device().map_err(|e| failed("open", e));
    let _ = std::fs::remove_file(&path);
    opened
}
