//! Disks: `io.max`, `io.latency` and `io.weight` of cgroup v2. cgroup-v2.rst, "IO Interface Files".
//!
//! A limit and a target are set for every disk: each device in `/sys/block` with hardware behind it, so that what a device
//! mapper or a loop hands on is counted once.

use quell_kernel::cgroup::{Cgroups, Controller, Hierarchy, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::root::Files;
use quell_plan::DiskRates;
use quell_plan::inventory::{Availability, Lack};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::units::Nanos;

use crate::change::Hands;
use crate::home::{Home, Place};

/// The highest weight that the scheduler BFQ takes; the kernel's own takes ten times as much.
const BFQ_HIGHEST: u32 = 1_000;

/// A disk.
struct Disk {
    name: String,
    /// `MAJOR:MINOR`.
    number: String,
}

fn disks(files: &dyn Files) -> Vec<Disk> {
    let names = files.list("/sys/block").unwrap_or_default();
    let disks = names.into_iter().filter_map(|name| {
        let dir = format!("/sys/block/{name}");
        let number = files.text(&format!("{dir}/dev")).ok()?;
        files
            .exists(&format!("{dir}/device"))
            .then_some(Disk { name, number })
    });
    disks.collect()
}

/// What this machine can do of a mechanism.
#[must_use]
pub fn offered(files: &dyn Files, cgroups: &Cgroups, mechanism: Mechanism) -> Availability {
    let no = |why: String, remedy: Option<&str>| Availability::No {
        why,
        lack: Lack::Machine,
        remedy: remedy.map(str::to_owned),
    };
    let yes = |best, how: &str| Availability::Yes {
        best,
        how: how.to_owned(),
    };
    let Some(hierarchy) = cgroups
        .of(Controller::Io)
        .filter(|h| h.version == Version::V2)
    else {
        return no(
            "the io controller is not on cgroup v2".to_owned(),
            Some("boot with systemd.unified_cgroup_hierarchy=1"),
        );
    };
    let disks = disks(files);
    if disks.is_empty() {
        return no("no disk is to be seen in /sys/block".to_owned(), None);
    }
    let unbuilt = |name: &str, option: &str| {
        no(
            format!("this kernel has no {name} (it was built without {option})"),
            None,
        )
    };
    match (mechanism, shown(files, hierarchy, mechanism)) {
        (Mechanism::IoMax, Some(false)) => unbuilt("io.max", "BLK_DEV_THROTTLING"),
        (Mechanism::IoMax, _) => yes(Level::Enforced, "rates per disk (io.max)"),
        (Mechanism::IoLatency, Some(true)) => yes(
            Level::Regulated,
            "others are held back while requests take longer (io.latency)",
        ),
        (Mechanism::IoLatency, Some(false)) => unbuilt("io.latency", "BLK_CGROUP_IOLATENCY"),
        (Mechanism::IoLatency, None) => no(
            "whether this kernel has io.latency is seen when a cgroup has the io controller"
                .to_owned(),
            Some("enable it for one (echo +io > /sys/fs/cgroup/cgroup.subtree_control)"),
        ),
        _ => match disks.iter().find(|disk| !weighs(files, hierarchy, disk)) {
            None => yes(Level::Regulated, "the disks' scheduler shares them by it"),
            Some(disk) => no(
                format!("nothing shares the disk {} by weights", disk.name),
                Some(
                    "choose the scheduler bfq (/sys/block/*/queue/scheduler), or enable io.cost.qos",
                ),
            ),
        },
    }
}

/// Whether cgroups have a mechanism's file; absent where no cgroup was given the controller.
fn shown(files: &dyn Files, hierarchy: &Hierarchy, mechanism: Mechanism) -> Option<bool> {
    let name = mechanism.name().replace('-', ".");
    let mut below = files.folders(&hierarchy.mount).unwrap_or_default();
    below.retain(|c| files.exists(&format!("{}/{c}/io.pressure", hierarchy.mount)));
    let enabled = files.text(&format!("{}/cgroup.subtree_control", hierarchy.mount));
    let enabled = enabled.is_ok_and(|all| all.split_ascii_whitespace().any(|c| c == "io"));
    let one = below.first().filter(|_| enabled)?;
    Some(files.exists(&format!("{}/{one}/{name}", hierarchy.mount)))
}

/// Whether a disk is shared by weights: by its scheduler, or by the kernel's model of what a request costs.
fn weighs(files: &dyn Files, hierarchy: &Hierarchy, disk: &Disk) -> bool {
    let scheduler = files.text(&format!("/sys/block/{}/queue/scheduler", disk.name));
    let cost = files.text(&format!("{}/io.cost.qos", hierarchy.mount));
    let modelled = |line: &str| line.starts_with(&format!("{} enable=1", disk.number));
    scheduler.is_ok_and(|s| s.contains("[bfq]")) || cost.is_ok_and(|c| c.lines().any(modelled))
}

/// The group's cgroup in the hierarchy of disks.
fn place(cgroups: &Cgroups, home: &Home) -> Result<Place> {
    let mut places = home.dirs(cgroups, Controller::Io);
    match (places.next(), places.next()) {
        (Some(one), None) if one.hierarchy.version == Version::V2 => Ok(one.clone()),
        _ => Err(Error::refused_with(
            format!(
                "group {}: its disks are not set in one cgroup (v2)",
                home.group
            ),
            "select it by one cgroup, or by its tasks",
        )),
    }
}

/// Limits what a group moves to and from each disk. Returns what a person should know.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where the group is not in one cgroup.
pub fn limit(
    hands: &mut Hands<'_>,
    cgroups: &Cgroups,
    home: &Home,
    rates: &DiskRates,
) -> Result<Vec<String>> {
    let place = place(cgroups, home)?;
    let path = format!("{}/io.max", place.dir);
    let wanted = [
        ("rbps", rates.read.map(|r| r.0)),
        ("wbps", rates.write.map(|r| r.0)),
        ("riops", rates.read_iops),
        ("wiops", rates.write_iops),
    ];
    for Disk { number, .. } in disks(hands.files) {
        let text = hands.files.text(&path)?;
        let now = text.lines().find(|l| l.starts_with(&format!("{number} ")));
        let now = now.unwrap_or_default();
        let mut line = number;
        for (key, most) in wanted {
            // What somebody has limited further stays so.
            let theirs = now
                .split(' ')
                .find_map(|w| w.strip_prefix(&format!("{key}=")));
            let theirs = theirs.and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
            if let Some(most) = most.filter(|most| *most < theirs) {
                line = format!("{line} {key}={most}");
            }
        }
        if line.contains(' ') {
            hands.set(&path, &line)?;
        }
    }
    Ok(Vec::new())
}

/// Our cgroups from the top down to a group's: the kernel compares siblings, so that each of them needs what the group does.
fn ours(place: &Place) -> Vec<String> {
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

/// Has the kernel hold others back while the group's requests take longer than `target` at the mean.
///
/// # Errors
/// As [`limit`].
pub fn target(
    hands: &mut Hands<'_>,
    cgroups: &Cgroups,
    home: &Home,
    target: Nanos,
) -> Result<Vec<String>> {
    let place = place(cgroups, home)?;
    for dir in ours(&place) {
        let path = format!("{dir}/io.latency");
        for Disk { number, .. } in disks(hands.files) {
            // Of several groups in a slice, the strictest.
            let now = hands.files.text(&path)?;
            let set = now
                .lines()
                .find_map(|l| l.strip_prefix(&format!("{number} target=")));
            let strictest = set.and_then(|t| t.trim().parse().ok()).unwrap_or(u64::MAX);
            let us = (target.0 / 1_000).min(strictest);
            hands.set(&path, &format!("{number} target={us}"))?;
        }
    }
    Ok(Vec::new())
}

/// Gives the group a weight where several cgroups want the same disk.
///
/// # Errors
/// As [`limit`].
pub fn weigh(
    hands: &mut Hands<'_>,
    cgroups: &Cgroups,
    home: &Home,
    weight: u32,
) -> Result<Vec<String>> {
    let place = place(cgroups, home)?;
    for dir in ours(&place) {
        for (file, most) in [("io.bfq.weight", BFQ_HIGHEST), ("io.weight", u32::MAX)] {
            let path = format!("{dir}/{file}");
            let Some(now) = hands.files.optional(&path)? else {
                continue;
            };
            // Of several groups in a slice, the highest; 100 is what every cgroup has.
            let now = now.lines().next().and_then(|l| l.strip_prefix("default "));
            let now = now.and_then(|w| w.trim().parse().ok()).unwrap_or(100);
            let raised = if dir == place.dir || now == 100 {
                weight
            } else {
                weight.max(now)
            };
            hands.set(&path, &format!("default {}", raised.min(most)))?;
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;
    use std::fs;

    #[test]
    fn disks_are_what_has_hardware_behind_it() {
        let root = tempfile::tempdir().unwrap();
        for (name, number, device) in [("vda", "254:0", true), ("loop0", "7:0", false)] {
            let dir = root.path().join("sys/block").join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("dev"), format!("{number}\n")).unwrap();
            if device {
                fs::create_dir(dir.join("device")).unwrap();
            }
        }
        let found = disks(&Kernel::at(root.path()));
        let found: Vec<(&str, &str)> = found.iter().map(|d| (&*d.name, &*d.number)).collect();
        assert_eq!(found, [("vda", "254:0")]);
    }
}
