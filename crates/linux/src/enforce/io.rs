//! Disks: `io.max`, `io.latency` and `io.weight` of cgroup v2 (cgroup-v2.rst, "IO Interface
//! Files").
//!
//! A limit and a target are set for every disk ([`disks`]).

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::disks::{Disk, disks};
use quell_kernel::error::{Error, Result};
use quell_plan::{DiskRates, Setting};
use quell_types::units::Nanos;

use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::Host;

/// The highest weight that the BFQ scheduler takes. `io.weight` takes ten times as much.
const BFQ_HIGHEST: u32 = 1_000;

/// Carries out limits, targets and weights of disks.
pub(crate) struct Io;

impl Enforcer for Io {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        if !is_own(set) {
            return Ok(None);
        }
        host.extend(group, &[Controller::Io])?;
        let (mut writer, cgroups, group) = host.of(group)?;
        self::set(&mut writer, cgroups, &group.cgroups, set)?;
        Ok(Some(Vec::new()))
    }
}

/// Whether a setting is about disks.
pub(super) const fn is_own(set: &Setting) -> bool {
    matches!(
        set,
        Setting::IoMax(_) | Setting::IoLatency { .. } | Setting::IoWeight { .. }
    )
}

/// Carries out a setting that [`is_own`].
pub(super) fn set(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    set: &Setting,
) -> Result<()> {
    match set {
        Setting::IoMax(rates) => limit(writer, cgroups, group_cgroups, rates),
        Setting::IoLatency { target: longest } => target(writer, cgroups, group_cgroups, *longest),
        Setting::IoWeight { weight } => weigh(writer, cgroups, group_cgroups, *weight),
        _ => Ok(()),
    }
}

/// The group's cgroup in the hierarchy of the io controller.
fn place(cgroups: &Cgroups, group_cgroups: &GroupCgroups) -> Result<CgroupDir> {
    let mut places = group_cgroups.dirs(cgroups, Controller::Io);
    match (places.next(), places.next()) {
        (Some(one), None) if one.hierarchy.version == Version::V2 => Ok(one.clone()),
        _ => Err(Error::refused_with(
            format!(
                "group {}: its disks are not set in one cgroup (v2)",
                group_cgroups.group
            ),
            "select it by one cgroup, or by its tasks",
        )),
    }
}

/// Limits what a group moves to and from each disk.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where the group is not in one cgroup.
pub fn limit(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    rates: &DiskRates,
) -> Result<()> {
    let place = place(cgroups, group_cgroups)?;
    let path = format!("{}/io.max", place.dir);
    let wanted = [
        ("rbps", rates.read.map(|r| r.0)),
        ("wbps", rates.write.map(|r| r.0)),
        ("riops", rates.read_iops),
        ("wiops", rates.write_iops),
    ];
    for Disk { number, .. } in disks(writer.files) {
        let text = writer.files.text(&path)?;
        let now = text.lines().find(|l| l.starts_with(&format!("{number} ")));
        let now = now.unwrap_or_default();
        let mut line = number;
        for (key, most) in wanted {
            // A stricter limit that is set already stays.
            let theirs = now
                .split(' ')
                .find_map(|w| w.strip_prefix(&format!("{key}=")));
            let theirs = theirs.and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
            if let Some(most) = most.filter(|most| *most < theirs) {
                line = format!("{line} {key}={most}");
            }
        }
        if line.contains(' ') {
            writer.set(&path, &line)?;
        }
    }
    Ok(())
}

/// Quell's cgroups from the top down to a group's. The kernel compares siblings, so each of these
/// cgroups needs what the group does.
fn ours(place: &CgroupDir) -> Vec<String> {
    let mut at = place.hierarchy.mount.clone();
    let below = place.dir.strip_prefix(&at).unwrap_or_default().to_owned();
    if !place.ours {
        return vec![place.dir.clone()];
    }
    let parts = below.split('/').filter(|p| !p.is_empty());
    parts
        .map(|part| {
            at = format!("{at}/{part}");
            at.clone()
        })
        .collect()
}

/// Sets the target of a group's mean request time. While its requests take longer, the kernel
/// throttles other cgroups.
///
/// # Errors
/// As [`limit`].
pub fn target(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    target: Nanos,
) -> Result<()> {
    let place = place(cgroups, group_cgroups)?;
    for dir in ours(&place) {
        let path = format!("{dir}/io.latency");
        for Disk { number, .. } in disks(writer.files) {
            // Of several groups in a slice, the strictest target counts.
            let now = writer.files.text(&path)?;
            let set = now
                .lines()
                .find_map(|l| l.strip_prefix(&format!("{number} target=")));
            let strictest = set.and_then(|t| t.trim().parse().ok()).unwrap_or(u64::MAX);
            let us = (target.0 / 1_000).min(strictest);
            writer.set(&path, &format!("{number} target={us}"))?;
        }
    }
    Ok(())
}

/// Sets a group's weight, for when several cgroups want the same disk.
///
/// # Errors
/// As [`limit`].
pub fn weigh(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    weight: u32,
) -> Result<()> {
    let place = place(cgroups, group_cgroups)?;
    for dir in ours(&place) {
        for (file, most) in [("io.bfq.weight", BFQ_HIGHEST), ("io.weight", u32::MAX)] {
            let path = format!("{dir}/{file}");
            let Some(now) = writer.files.optional(&path)? else {
                continue;
            };
            // Of several groups in a slice the highest weight counts. 100 is every cgroup's
            // default.
            let now = now.lines().next().and_then(|l| l.strip_prefix("default "));
            let now = now.and_then(|w| w.trim().parse().ok()).unwrap_or(100);
            let raised = if dir == place.dir || now == 100 {
                weight
            } else {
                weight.max(now)
            };
            writer.set(&path, &format!("default {}", raised.min(most)))?;
        }
    }
    Ok(())
}
