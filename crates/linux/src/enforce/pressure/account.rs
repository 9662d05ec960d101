//! The memory of one group, read from files that are kept open.

use quell_kernel::cached_file::CachedFile;
use quell_kernel::cgroup::Version;
use quell_kernel::error::{Error, Result};
use quell_kernel::memory::{self, Memory};
use quell_kernel::psi::{self, Resource, Totals};
use quell_kernel::root::Files;
use quell_types::units::Bytes;

use crate::group_cgroups::{CgroupDir, GroupCgroups};

/// The files of one group. A file that is gone reads as nothing.
pub struct Account {
    pub memory: Option<Memory>,
    pub usage: Option<CachedFile>,
    pub stat: Option<CachedFile>,
    pub memory_stall: Option<CachedFile>,
    pub io_stall: Option<CachedFile>,
    /// The protection that Quell has set.
    pub protected: Bytes,
}

impl Account {
    pub fn open(
        files: &dyn Files,
        group: &str,
        group_cgroups: &GroupCgroups,
        memory: Option<&CgroupDir>,
    ) -> Result<Self> {
        let v2 = v2_place(group_cgroups);
        let stall = |resource: Resource| match v2 {
            Some(place) => CachedFile::open(files, &resource.of(&place.dir)),
            None => Ok(None),
        };
        let memory = memory.map(|place| Memory::of(&place.hierarchy, &place.dir));
        if let Some(memory) = memory.as_ref().filter(|m| !memory::has(files, m)) {
            return Err(Error::refused_with(
                format!("group {group}: {} is missing", memory.usage()),
                "enable memory in the parents' cgroup.subtree_control",
            ));
        }
        let kept = |path: Option<String>| path.map_or(Ok(None), |p| CachedFile::open(files, &p));
        Ok(Self {
            usage: kept(memory.as_ref().map(Memory::usage))?,
            stat: kept(memory.as_ref().map(Memory::stat))?,
            memory_stall: stall(Resource::Memory)?,
            io_stall: stall(Resource::Io)?,
            memory,
            protected: Bytes(0),
        })
    }

    /// A group without pressure reports must not be taken for calm. Fails if its cgroup still
    /// exists.
    pub fn check_reported(&self, files: &dyn Files) -> Result<()> {
        let path = self.memory_stall.as_ref().map_or("", CachedFile::path);
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        if dir.is_empty() || !files.exists(&format!("{dir}/cgroup.procs")) {
            return Ok(());
        }
        Err(Error::refused_with(
            format!(
                "{path} is gone: how long the critical group waits for memory is not told any more"
            ),
            format!("write 1 to {dir}/cgroup.pressure"),
        ))
    }

    pub fn usage(&mut self, files: &dyn Files) -> Result<Bytes> {
        let Some(kept) = self.usage.as_mut() else {
            return Ok(Bytes(0));
        };
        let Some(number) = kept.text(files)?.map(str::parse) else {
            return Ok(Bytes(0));
        };
        number
            .map(Bytes)
            .map_err(|_| Error::malformed(kept.path(), "", "a number of bytes"))
    }

    pub fn stat(&mut self, files: &dyn Files) -> Result<memory::Stat> {
        let (Some(kept), Some(memory)) = (self.stat.as_mut(), self.memory.as_ref()) else {
            return Ok(memory::Stat::default());
        };
        match kept.text(files)? {
            Some(text) => memory.parse_stat(text),
            None => Ok(memory::Stat::default()),
        }
    }
}

/// The total times waited, from a pressure file. `None` where the file is gone.
pub fn waited(kept: Option<&mut CachedFile>, files: &dyn Files) -> Result<Option<Totals>> {
    let Some(kept) = kept else {
        return Ok(None);
    };
    let totals = kept.text(files)?.map(|text| psi::totals("", text));
    match totals {
        None => Ok(None),
        Some(Ok(totals)) => Ok(Some(totals)),
        Some(Err(_)) => Err(Error::malformed(kept.path(), "", "a line `some … total=…`")),
    }
}

/// The group's v2 cgroup, whatever its controllers: it reports pressure, and can be frozen.
pub fn v2_place(group_cgroups: &GroupCgroups) -> Option<&CgroupDir> {
    let is = |p: &&CgroupDir| p.hierarchy.version == Version::V2;
    group_cgroups.places.iter().find(is)
}
