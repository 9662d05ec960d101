//! The disks, and what this machine can do to share them: `io.max`, `io.latency` and `io.weight` of
//! cgroup v2 (cgroup-v2.rst, "IO Interface Files").

use quell_kernel::cgroup::{Cgroups, Controller, Hierarchy, Version};
use quell_kernel::disks::{Disk, disks};
use quell_kernel::root::Files;
use quell_plan::inventory::{Availability, Lack};
use quell_types::mechanism::{Level, Mechanism};

/// What this machine offers of an I/O mechanism.
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

/// Whether cgroups have a mechanism's file. `None` where no cgroup was given the controller.
fn shown(files: &dyn Files, hierarchy: &Hierarchy, mechanism: Mechanism) -> Option<bool> {
    let name = mechanism.name().replace('-', ".");
    let mut below = files.folders(&hierarchy.mount).unwrap_or_default();
    below.retain(|c| files.exists(&format!("{}/{c}/io.pressure", hierarchy.mount)));
    let enabled = files.text(&format!("{}/cgroup.subtree_control", hierarchy.mount));
    let enabled = enabled.is_ok_and(|all| all.split_ascii_whitespace().any(|c| c == "io"));
    let one = below.first().filter(|_| enabled)?;
    Some(files.exists(&format!("{}/{one}/{name}", hierarchy.mount)))
}

/// Whether a disk is shared by weights: by its scheduler, or by the kernel's cost model of
/// requests.
fn weighs(files: &dyn Files, hierarchy: &Hierarchy, disk: &Disk) -> bool {
    let scheduler = files.text(&format!("/sys/block/{}/queue/scheduler", disk.name));
    let cost = files.text(&format!("{}/io.cost.qos", hierarchy.mount));
    let modelled = |line: &str| line.starts_with(&format!("{} enable=1", disk.number));
    scheduler.is_ok_and(|s| s.contains("[bfq]")) || cost.is_ok_and(|c| c.lines().any(modelled))
}
