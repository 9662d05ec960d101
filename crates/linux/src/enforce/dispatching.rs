//! What every dispatcher needs: a freezer for each cgroup that it stops, its own cgroups, and the
//! permission to go on.

use std::sync::Arc;

use quell_kernel::cgroup::{Controller, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::Files;
use quell_kernel::{fair, rt};
use quell_types::cpuset::{CpuId, CpuSet};

use super::cores;
use super::freezer::Freezer;
use crate::brake::Permit;
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::Host;

/// The cgroup of a group that can be frozen, and its freezer. Refuses a group with a task that the
/// dispatcher cannot preempt, and one that another program has frozen.
pub(super) fn freezable<'a>(
    files: &dyn Files,
    group: &str,
    group_cgroups: &'a GroupCgroups,
) -> Result<(&'a CgroupDir, Freezer)> {
    if let Some(task) = fair::above(files, &group_cgroups.tasks_dirs(), rt::DISPATCHER_PRIORITY) {
        return Err(Error::refused_with(
            format!(
                "group {group}: {task}, which the dispatcher (priority {}) cannot preempt",
                rt::DISPATCHER_PRIORITY
            ),
            format!(
                "give it a lower priority (chrt), or leave its process out of the group: {}",
                task.task
            ),
        ));
    }
    let all = group_cgroups
        .places
        .iter()
        .filter_map(|p| Some((p, Freezer::of(files, p)?)));
    // v1's where there are both: v2's takes the lock of all cgroups, for which it may wait long.
    let Some((place, freezer)) = all.min_by_key(|(p, _)| p.hierarchy.version == Version::V2) else {
        return Err(Error::refused_with(
            format!("group {group}: no cgroup of it can be frozen"),
            "mount cgroup2, or the freezer controller of cgroup v1",
        ));
    };
    if freezer.frozen(files)? {
        return Err(Error::refused_with(
            format!(
                "group {group}: another program has frozen it ({})",
                freezer.path()
            ),
            "thaw it first",
        ));
    }
    Ok((place, freezer))
}

/// The files by which a dispatcher of these CPUs enters its cgroups. `group` is one that it
/// switches.
pub(super) fn procs_files(host: &mut Host, group: &str, cpus: &CpuSet) -> Result<Vec<String>> {
    let (mut writer, cgroups, group) = host.of(group)?;
    let mut all = cores::procs_files(&mut writer, cgroups, &group.cgroups, false, cpus)?;
    // With CONFIG_RT_GROUP_SCHED only the root cgroup has real-time runtime at first.
    let rationed = cgroups.of(Controller::Cpu).map(|h| h.mount.as_str());
    let rationed = rationed.filter(|m| writer.files.exists(&format!("{m}/cpu.rt_runtime_us")));
    all.extend(rationed.map(|mount| format!("{mount}/cgroup.procs")));
    Ok(all)
}

/// Permits a dispatcher to go on for as long as the run is held.
pub(super) fn permit(host: &mut Host) -> Result<Permit> {
    let lease = Arc::clone(host.session()?.0.lease());
    Ok(Arc::new(move |now| lease.is_held(now)))
}

/// The refusal where a dispatcher could not be started.
pub(super) fn no_dispatcher(of: &str, cpu: CpuId, why: &std::io::Error) -> Error {
    Error::refused_with(
        format!("the {of} of CPU {cpu} have no dispatcher: {why}"),
        "it needs real-time priority (CAP_SYS_NICE, kernel.sched_rt_runtime_us above 0), and its CPU in Quell's cpuset",
    )
}
