//! Room for brakes in a cgroup that Quell did not make: threaded children of it. cgroup-v2.rst,
//! "Threads".
//!
//! ```text
//! G           its owner's; becomes "domain threaded"
//! ├── work    threaded, cpu.idle = 1: all threads of G's programs
//! └── stop    threaded, the highest weight: the brakes
//! ```
//!
//! A domain with processes of its own can have only threaded children. A program that enters G
//! later lies in G itself, next to `work`, until [`GroupCgroups::gather`] moves it.

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::error::{Error, Result};
use quell_kernel::fair;
use quell_kernel::root::Files;

use crate::change::JournaledWriter;
use crate::group_cgroups::{CgroupDir, GroupCgroups, STOP, WORK};

/// Controllers that work between threads. A cgroup with threaded children can enable only these.
const BETWEEN_THREADS: [&str; 4] = ["cpu", "cpuset", "perf_event", "pids"];

/// Remedy that is offered where a brake in another owner's cgroup is refused.
pub const INSTEAD: &str =
    "write mechanisms.bandwidth = \"any\" to have the limit held by cpu.max there";

/// Refuses a cgroup that can have no brake in it. Changes nothing.
///
/// # Errors
/// [`Error::Refused`] with what is in the way; [`Error::File`].
pub fn check(files: &dyn Files, group: &str, dir: &str) -> Result<()> {
    let refused = |why: String| {
        Err(Error::refused_with(
            format!("group {group}: {why}"),
            INSTEAD,
        ))
    };
    // The root has no such file, and neither has a cgroup that is gone. Adopting those is refused
    // elsewhere.
    let Some(kind) = files.optional(&format!("{dir}/cgroup.type"))? else {
        return Ok(());
    };
    if !["domain", "domain threaded"].contains(&kind.trim()) {
        return refused(format!(
            "{dir} is '{}' (cgroup.type): it lies in the threaded cgroups of another program",
            kind.trim()
        ));
    }
    let below = files.folders(dir).unwrap_or_default();
    if !below.is_empty() {
        return refused(format!(
            "{dir} has child cgroups ({}), whose tasks a brake in it would not stop",
            below.join(", ")
        ));
    }
    let enabled = files.text(&format!("{dir}/cgroup.subtree_control"))?;
    let others: Vec<&str> = enabled
        .split_ascii_whitespace()
        .filter(|c| !BETWEEN_THREADS.contains(c))
        .collect();
    if !others.is_empty() {
        return refused(format!(
            "{dir} enables {} for its children (cgroup.subtree_control), which is not to be had between \
             threads",
            others.join(", ")
        ));
    }
    match fair::exempt(files, &[dir.to_owned()]) {
        Some(task) => refused(format!("{task}, which no limit holds")),
        None => Ok(()),
    }
}

/// Makes the children for tasks and brakes in the cgroup that a group stays in. [`check`] comes
/// first.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where another program makes such a child meanwhile.
pub fn divide(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &mut GroupCgroups,
) -> Result<()> {
    let cpu = cgroups.of(Controller::Cpu);
    let in_place = |p: &&mut CgroupDir| !p.ours && Some(&p.hierarchy) == cpu;
    for place in group_cgroups.places.iter_mut().filter(in_place) {
        writer.enable(&place.dir, Controller::Cpu.name())?;
        // What is left in them at the end goes back: programs to their cgroup, a brake to Quell's.
        for (child, heir) in [(WORK, place.dir.clone()), (STOP, place.hierarchy.own_dir())] {
            let child = format!("{}/{child}", place.dir);
            if !writer.make(&child, &heir)? {
                return Err(Error::refused_with(
                    format!("{child} was made by another program"),
                    INSTEAD,
                ));
            }
            writer.set(&format!("{child}/cgroup.type"), "threaded")?;
        }
        place.braked = true;
    }
    Ok(())
}

/// Why the brakes of a group do not hold it any more, where its cgroups were changed. `None` while
/// they do.
#[must_use]
pub fn lost(files: &dyn Files, group_cgroups: &GroupCgroups) -> Option<String> {
    let mut braked = group_cgroups.places.iter().filter(|p| p.braked);
    braked.find_map(|place| {
        let path = format!("{}/{WORK}/cpu.idle", place.dir);
        match files.optional(&path) {
            Ok(Some(text)) if text.trim() == "1" => None,
            Ok(Some(_)) => Some(format!("{path} was changed: its brakes stop it no longer")),
            Ok(None) => Some(format!(
                "{path} is gone (its cgroup was removed, or the cpu controller taken from \
                 {}/cgroup.subtree_control)",
                place.dir
            )),
            Err(e) => Some(e.to_string()),
        }
    })
}
