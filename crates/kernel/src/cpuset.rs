//! Which kind of core partition this kernel can make. cgroup-v2.rst ("Cpuset").

use quell_plan::inventory::CpusetKind;

use crate::cgroup::{Cgroups, Controller, Version};
use crate::error::Result;
use crate::root::Files;

/// How a core partition would be made here.
///
/// # Errors
/// [`crate::error::Error::File`].
pub fn kind(files: &dyn Files, cgroups: &Cgroups) -> Result<CpusetKind> {
    let Some(hierarchy) = cgroups.of(Controller::Cpuset) else {
        return Ok(CpusetKind::AffinityOnly);
    };
    if hierarchy.version == Version::V1 {
        return Ok(CpusetKind::V1);
    }
    // Only cgroups below the root have the file, and only once the controller is enabled. Any of
    // them will do.
    let below = files.names(&hierarchy.mount)?;
    let has = below
        .iter()
        .any(|name| files.exists(&format!("{}/{name}/cpuset.cpus.exclusive", hierarchy.mount)));
    // Where no cgroup shows it yet, the kernel's version decides (remote partitions: 6.7).
    let release = files
        .optional("/proc/sys/kernel/osrelease")?
        .unwrap_or_default();
    let new = crate::topology::release_number(&release).is_some_and(|r| r >= (6, 7));
    Ok(if has || new {
        CpusetKind::V2Partition
    } else {
        CpusetKind::V2
    })
}
