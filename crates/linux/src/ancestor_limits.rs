//! Memory limits of cgroups above all groups of a plan: of a slice, a container, an experiment.
//! Whatever the machine has, the groups have what the tightest of these limits leaves. For the
//! controllers that limit is the machine.
//!
//! - Available below a limit is the unused part and what can be reclaimed there. It is estimated as
//!   the kernel does for the machine (`si_mem_available`, mm/show_mem.c).
//! - The kernel reclaims below a limit once it is reached, and has no watermarks there. The
//!   watermarks of a machine of that size stand in (`calculate_min_free_kbytes`, mm/page_alloc.c):
//!   a group that grows gets that much between two samples.
//! - cgroup v1 reports no pressure. The v2 cgroup above all groups does, where there is one.

use std::path::Path;

use quell_control::pressure::Machine;
use quell_kernel::cached_file::CachedFile;
use quell_kernel::cgroup::Version;
use quell_kernel::error::Result;
use quell_kernel::memory::{self, Memory, Stat};
use quell_kernel::psi::{self, Resource};
use quell_kernel::root::Files;
use quell_types::units::{Bytes, Share};

use crate::group_cgroups::CgroupDir;

/// The cgroups with limit files above all groups, the highest first.
#[derive(Debug, Default)]
pub struct Above {
    levels: Vec<Level>,
}

/// One cgroup with limits. A cgroup that was removed limits nothing.
#[derive(Debug)]
struct Level {
    memory: Memory,
    limits: Vec<CachedFile>,
    usage: CachedFile,
    stat: CachedFile,
    /// The limit of swap space (`memory.swap.max`) and its use (`memory.swap.current`).
    swap: Option<(CachedFile, CachedFile)>,
    pressure: Option<CachedFile>,
}

impl Above {
    /// Opens the files of all cgroups above all of `memory`, which lie in the hierarchy that has
    /// the controller. In v1 the lowest cgroup above all of `v2` reports the pressure.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`].
    pub fn open(files: &dyn Files, memory: &[CgroupDir], v2: &[CgroupDir]) -> Result<Self> {
        let beside = shared(v2).pop();
        let mut levels = Vec::new();
        for dir in shared(memory) {
            let Some(place) = memory.first() else {
                continue;
            };
            let memory = Memory::of(&place.hierarchy, &dir);
            let mut limits = Vec::new();
            for path in memory.limits() {
                limits.extend(CachedFile::open(files, &path)?);
            }
            let both = (
                CachedFile::open(files, &memory.usage())?,
                CachedFile::open(files, &memory.stat())?,
            );
            // The root cgroup of v2 has no such files.
            let ((Some(usage), Some(stat)), false) = (both, limits.is_empty()) else {
                continue;
            };
            let swap = (
                CachedFile::open(files, &format!("{dir}/memory.swap.max"))?,
                CachedFile::open(files, &format!("{dir}/memory.swap.current"))?,
            );
            let told = match memory.version() {
                Version::V2 => Some(&dir),
                Version::V1 => beside.as_ref(),
            };
            let pressure = told.map(|dir| CachedFile::open(files, &Resource::Memory.of(dir)));
            levels.push(Level {
                memory,
                limits,
                usage,
                stat,
                swap: swap.0.zip(swap.1),
                pressure: pressure.transpose()?.flatten(),
            });
        }
        Ok(Self { levels })
    }

    /// The machine as the groups have it: the tightest of these limits, or the machine itself.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`], [`quell_kernel::error::Error::Malformed`].
    pub fn machine(&mut self, files: &dyn Files, machine: Machine) -> Result<Machine> {
        let mut least = machine;
        for level in &mut self.levels {
            if let Some(own) = level.machine(files, &machine)?
                && own.available < least.available
            {
                least = own;
            }
        }
        Ok(least)
    }
}

impl Level {
    /// The machine as it is below this limit. `None` where it limits nothing.
    fn machine(&mut self, files: &dyn Files, machine: &Machine) -> Result<Option<Machine>> {
        let mut total = machine.total;
        for limit in &mut self.limits {
            total = total.min(bytes(limit, files)?.unwrap_or(total));
        }
        if total >= machine.total {
            return Ok(None);
        }
        let Some(used) = bytes(&mut self.usage, files)? else {
            return Ok(None);
        };
        let stat = match self.stat.text(files)? {
            Some(text) => self.memory.parse_stat(text)?,
            None => Stat::default(),
        };
        let (low, high) = watermarks(total);
        let mut swap_free = machine.swap_free;
        if let Some((limit, current)) = &mut self.swap
            && let Some(limit) = bytes(limit, files)?
        {
            let used = bytes(current, files)?.unwrap_or_default();
            swap_free = swap_free.min(Bytes(limit.0.saturating_sub(used.0)));
        }
        let files_there = stat.active_file.0.saturating_add(stat.inactive_file.0);
        let reclaimable = files_there - (files_there / 2).min(low.0);
        let available = total.0.saturating_sub(used.0).saturating_add(reclaimable);
        Ok(Some(Machine {
            total,
            available: Bytes(available).min(machine.available).min(total),
            swap_free,
            // Memory of zram devices is not counted against a limit.
            compressed: Bytes(0),
            compressed_takes: Bytes(0),
            low: low.min(machine.low),
            high: high.min(machine.high),
            average: match &mut self.pressure {
                Some(kept) => average(kept, files)?.or(machine.average),
                None => machine.average,
            },
        }))
    }
}

/// The share of the last ten seconds in which some task waited, from a pressure file. `None` where
/// the file is gone.
///
/// # Errors
/// [`quell_kernel::error::Error::File`], [`quell_kernel::error::Error::Malformed`].
pub fn average(kept: &mut CachedFile, files: &dyn Files) -> Result<Option<Share>> {
    let path = kept.path().to_owned();
    let psi = kept.text(files)?.map(|text| psi::parse(&path, text));
    Ok(psi
        .transpose()?
        .and_then(|psi| psi.some)
        .map(|line| line.avg10))
}

/// The amount in a file. `None` where it is unlimited, or the cgroup is gone.
fn bytes(kept: &mut CachedFile, files: &dyn Files) -> Result<Option<Bytes>> {
    let path = kept.path().to_owned();
    match kept.text(files)? {
        Some(text) => memory::amount(&path, text),
        None => Ok(None),
    }
}

/// The watermarks `low` and `high` of a machine of `total` bytes.
fn watermarks(total: Bytes) -> (Bytes, Bytes) {
    let min = ((total.0 >> 10) * 16).isqrt().clamp(128, 256 << 10) << 10;
    (Bytes(min + min / 4), Bytes(min + min / 2))
}

/// The directories above all of these cgroups, from the mount point down.
fn shared(places: &[CgroupDir]) -> Vec<String> {
    let Some(first) = places.first() else {
        return Vec::new();
    };
    let mut dir = first.hierarchy.mount.clone();
    let mut all = Vec::new();
    let below = first.dir.strip_prefix(&dir).unwrap_or_default().to_owned();
    for part in below.split('/') {
        if !part.is_empty() {
            dir = format!("{dir}/{part}");
        }
        // A group's own limit does not count.
        let above = |p: &CgroupDir| p.dir != dir && Path::new(&p.dir).starts_with(&dir);
        if !places.iter().all(above) {
            break;
        }
        all.push(dir.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use quell_kernel::cgroup::{Cgroups, Controller};
    use quell_kernel::fake::{Fake, Flavour, Spec};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 8 GiB, and two groups in a slice of a slice.
    fn groups(flavour: Flavour) -> (Fake, String, Vec<CgroupDir>) {
        let fake = Fake::new(&Spec::new(flavour));
        let cgroups = Cgroups::discover(&fake).unwrap();
        let hierarchy = cgroups.of(Controller::Memory).unwrap().clone();
        let slice = format!("{}/outer.slice/inner.slice", hierarchy.mount);
        let place = |name: &str| CgroupDir {
            hierarchy: hierarchy.clone(),
            dir: format!("{slice}/{name}"),
            ours: true,
            braked: false,
        };
        let places = vec![place("app"), place("hog")];
        for above in [
            hierarchy.mount.clone(),
            format!("{}/outer.slice", hierarchy.mount),
            slice.clone(),
        ] {
            if above != hierarchy.mount {
                fake.mkdir(&above).unwrap();
            }
            if hierarchy.version == Version::V2 {
                fake.write(&format!("{above}/cgroup.subtree_control"), "+memory")
                    .unwrap();
            }
        }
        for place in &places {
            fake.mkdir(&place.dir).unwrap();
        }
        (fake, slice, places)
    }

    fn limit(fake: &Fake, places: &[CgroupDir], dir: &str, mib: u64) {
        let memory = Memory::of(&places[0].hierarchy, dir);
        fake.write(&memory.limits()[0], &(mib * MIB).to_string())
            .unwrap();
    }

    const MACHINE: Machine = Machine {
        total: Bytes(8 << 30),
        available: Bytes(6 << 30),
        swap_free: Bytes(0),
        compressed: Bytes(0),
        compressed_takes: Bytes(0),
        low: Bytes(64 << 20),
        high: Bytes(80 << 20),
        average: None,
    };

    #[test]
    fn the_tightest_limit_above_all_groups_is_the_machine() {
        for flavour in [Flavour::V1, Flavour::V2] {
            let (fake, slice, places) = groups(flavour);
            let mut above = Above::open(&fake, &places, &[]).unwrap();
            let mut look = || above.machine(&fake, MACHINE).unwrap();
            assert_eq!(look(), MACHINE, "nothing is limited");
            let outer = slice.rsplit_once('/').unwrap().0.to_owned();
            limit(&fake, &places, &outer, 1024);
            limit(&fake, &places, &slice, 400);
            // The limit of one group does not count for another.
            limit(&fake, &places, &places[1].dir, 100);
            let now = look();
            assert_eq!(
                (now.total, now.available),
                (Bytes(400 * MIB), Bytes(400 * MIB))
            );
            assert!(now.low < now.high && now.high < Bytes(5 * MIB), "{now:?}");
            // File pages can be reclaimed, but for a little. Anonymous memory cannot.
            let app = fake.with(|m| m.spawn("app"));
            fake.write(&format!("{}/cgroup.procs", places[0].dir), &app.to_string())
                .unwrap();
            fake.with(|m| {
                m.grow(app, 150 * MIB);
                m.read_file(app, 200 * MIB);
            });
            let now = look();
            assert_eq!(now.available, Bytes(250 * MIB - now.low.0));
            // Other programs in the outer slice leave even less there.
            let other = fake.with(|m| m.spawn("other"));
            let beside = format!("{outer}/beside.slice");
            fake.mkdir(&beside).unwrap();
            fake.write(&format!("{beside}/cgroup.procs"), &other.to_string())
                .unwrap();
            fake.with(|m| m.grow(other, 800 * MIB));
            let now = look();
            assert_eq!(now.total, Bytes(1024 * MIB), "{flavour:?}");
            assert!(now.available < Bytes(100 * MIB), "{now:?}");
        }
    }

    #[test]
    fn where_v1_tells_of_no_pressure_v2_does() {
        let (fake, slice, places) = groups(Flavour::V1);
        limit(&fake, &places, &slice, 400);
        let cgroups = Cgroups::discover(&fake).unwrap();
        let Some(v2) = cgroups.v2().cloned() else {
            return;
        };
        let dir = format!("{}/nest", v2.mount);
        fake.mkdir(&dir).unwrap();
        let inside = CgroupDir {
            dir: format!("{dir}/app"),
            hierarchy: v2,
            ours: true,
            braked: false,
        };
        fake.mkdir(&inside.dir).unwrap();
        let machine = Machine {
            average: Some(Share::percent(99)),
            ..MACHINE
        };
        let mut alone = Above::open(&fake, &places, &[]).unwrap();
        assert_eq!(
            alone.machine(&fake, machine).unwrap().average,
            machine.average
        );
        let mut told = Above::open(&fake, &places, &[inside]).unwrap();
        assert_eq!(
            told.machine(&fake, machine).unwrap().average,
            Some(Share(0))
        );
    }

    #[test]
    fn marks_are_those_of_a_machine_of_that_size() {
        // Linux 6.12 on a machine of 512 MiB has min_free_kbytes 2744, of 461 MiB that are managed.
        let (low, high) = watermarks(Bytes(461 << 20));
        assert!((2700 << 10..2800 << 10).contains(&(low.0 / 5 * 4)), "{low}");
        assert!(high > low);
    }
}
