//! Protections and limits of a cgroup's memory, the order in which the OOM killer chooses, and the
//! machine-wide settings.

use std::os::unix::fs::FileExt;

use quell_kernel::cgroup::{Controller, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::memory::{Memory, amount};
use quell_kernel::root::{Access, gone};
use quell_kernel::{oom, procfs, sharing, sysctl};
use quell_plan::Setting;
use quell_types::ids::REST;
use quell_types::journal::Undo;
use quell_types::task::TaskId;
use quell_types::units::Bytes;

use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::fault;
use crate::group_cgroups::{GroupCgroups, Layout};
use crate::host::{BOUND, Bound, Host};

/// Carries out settings of memory.
pub(crate) struct Accounts;

impl Enforcer for Accounts {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        match set {
            Setting::ProtectMemory { size } => {
                let memory = account(host, group)?;
                // A measured protection is set once it was measured.
                if let Some(size) = size {
                    protect(&mut host.writer()?, &memory, Bytes(0), *size, false)?;
                }
            }
            Setting::LimitMemory { most, kills } => {
                let memory = account(host, group)?;
                limit(&mut host.writer()?, &memory, *most, *kills)?;
            }
            Setting::BoundMemory { most } => around(host, *most)?,
            Setting::Swappiness { value } => {
                let memory = account(host, group)?;
                swappiness(&mut host.writer()?, &memory, *value)?;
            }
            Setting::Sysctls { values } => {
                for (name, value) in values {
                    sysctl(&mut host.writer()?, name, *value)?;
                }
            }
            _ => return Ok(None),
        }
        Ok(Some(Vec::new()))
    }
}

/// Enables the memory controller for a group and returns its memory files.
fn account(host: &mut Host, group: &str) -> Result<Memory> {
    host.extend(group, &[Controller::Memory])?;
    match host.memory_place(group)? {
        Some(place) => Ok(Memory::of(&place.hierarchy, &place.dir)),
        None => Err(Error::refused_with(
            format!("group {group}: no cgroup with the memory controller can be had"),
            "mount cgroup2 with it, or enable it in cgroup.subtree_control",
        )),
    }
}

/// Puts a limit around all groups that are gathered from now on, and around programs in no group.
fn around(host: &mut Host, most: Bytes) -> Result<()> {
    let (mut writer, cgroups, groups) = host.changes()?;
    let group_cgroups = GroupCgroups::internal(&mut writer, cgroups, "bound", &BOUND)?;
    let Some(place) = group_cgroups.dirs(cgroups, Controller::Memory).next() else {
        return Err(Error::refused("no hierarchy carries the memory controller"));
    };
    bound(&mut writer, &Memory::of(&place.hierarchy, &place.dir), most)?;
    let (above, layout) = (Some(&group_cgroups), Layout::default());
    let loose = GroupCgroups::create_as(&mut writer, cgroups, above, REST, &BOUND, layout)?;
    groups.bound = Some(Bound {
        cgroups: group_cgroups,
        loose,
    });
    Ok(())
}

/// Changes the cgroup's protection from `from` to `to`, and that of every ancestor by as much.
/// `memory.low` is a quarter more than `memory.min`. `steered`: a loop moves it again and again.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] on v1, which has no protection.
pub fn protect(
    writer: &mut JournaledWriter<'_>,
    memory: &Memory,
    from: Bytes,
    to: Bytes,
    steered: bool,
) -> Result<()> {
    if memory.version == Version::V1 {
        return Err(Error::refused_with(
            format!("{}: cgroup v1 cannot protect memory", memory.dir),
            "boot with the memory controller on cgroup v2 (cgroup_no_v1=memory)",
        ));
    }
    let low = |bytes: Bytes| Bytes(bytes.0.saturating_add(bytes.0 / 4));
    for (name, from, to) in [("memory.min", from, to), ("memory.low", low(from), low(to))] {
        for dir in memory.chain() {
            let path = format!("{dir}/{name}");
            let text = writer.files.text(&path)?;
            // No number: all memory is protected already.
            let Some(now) = amount(&path, &text)? else {
                continue;
            };
            let new = now.0.saturating_sub(from.0).saturating_add(to.0);
            if steered {
                writer.steer(&path, &text)?;
                writer.files.put(&path, &new.to_string())?;
            } else {
                writer.set(&path, &new.to_string())?;
            }
        }
    }
    Ok(())
}

/// Limits the cgroup as if it were a machine of `most` bytes. Beyond that the kernel reclaims in
/// it. Where nothing can be reclaimed, it kills in it.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where cgroups below would not count (v1 before Linux 5.11).
pub fn bound(writer: &mut JournaledWriter<'_>, memory: &Memory, most: Bytes) -> Result<()> {
    let counts = writer
        .files
        .optional(&format!("{}/memory.use_hierarchy", memory.dir))?;
    if counts.is_some_and(|text| text.trim() == "0") {
        return Err(Error::refused_with(
            format!(
                "{}: this kernel does not count what is in cgroups below it",
                memory.dir
            ),
            "write 1 to memory.use_hierarchy of the cgroup above it, or use a kernel since 5.11",
        ));
    }
    let path = memory.file("memory.max", "memory.limit_in_bytes");
    writer.set(&path, &most.0.to_string())?;
    Ok(())
}

/// Limits the cgroup for good. With `kills`, the kernel allows no more than `most` and may kill in
/// the cgroup. Without it (v2 only), the kernel only slows the cgroup down. Reclaiming the excess
/// takes its time; heartbeats go on meanwhile.
///
/// # Errors
/// [`Error::File`] (EBUSY on v1, where not as much can be reclaimed); [`Error::Refused`] where the
/// version cannot.
pub fn limit(
    writer: &mut JournaledWriter<'_>,
    memory: &Memory,
    most: Bytes,
    kills: bool,
) -> Result<()> {
    match (memory.version, kills) {
        (Version::V2, true) => {
            // A group that grows slowly is slowed down before it is killed.
            let high = Bytes(most.0 - most.0 / 16);
            writer.set_slowly(&format!("{}/memory.high", memory.dir), &high.0.to_string())?;
            writer.set_slowly(&format!("{}/memory.max", memory.dir), &most.0.to_string())?;
        }
        (Version::V2, false) => {
            writer.set_slowly(&format!("{}/memory.high", memory.dir), &most.0.to_string())?;
        }
        (Version::V1, true) => {
            writer.set_slowly(&memory.steered(), &most.0.to_string())?;
        }
        (Version::V1, false) => {
            return Err(Error::refused_with(
                format!(
                    "{}: a limit of cgroup v1 kills who exceeds it with nothing to reclaim",
                    memory.dir
                ),
                "add \"kill\" to the group's `allow`",
            ));
        }
    }
    Ok(())
}

/// Sets how readily the kernel swaps out the cgroup's memory instead of dropping pages of files.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] on v2, which has no such file.
pub fn swappiness(writer: &mut JournaledWriter<'_>, memory: &Memory, value: u32) -> Result<()> {
    if memory.version == Version::V2 {
        return Err(Error::refused_with(
            format!("{}: cgroup v2 has no memory.swappiness", memory.dir),
            "set the machine's (vm.swappiness), or memory.swap.max of the cgroup",
        ));
    }
    let path = format!("{}/memory.swappiness", memory.dir);
    writer.set(&path, &value.to_string())?;
    Ok(())
}

/// Keeps the kernel from swapping out more of the cgroup's memory than it has. On v2 what is
/// swapped out stays so until it is used again. On v1 more is swapped out only where nothing else
/// is left.
///
/// # Errors
/// [`Error::File`]. A kernel without swap accounting has no such file on v2; then nothing is done.
pub fn keep_unswapped(writer: &mut JournaledWriter<'_>, memory: &Memory) -> Result<()> {
    if memory.version == Version::V1 {
        return swappiness(writer, memory, 0);
    }
    let now = format!("{}/memory.swap.current", memory.dir);
    if let Some(now) = writer.files.optional(&now)? {
        let most = format!("{}/memory.swap.max", memory.dir);
        writer.set(&most, now.trim())?;
    }
    Ok(())
}

/// Sets the adjustment of a process's OOM score, journaled. `dir` is the cgroup in which its
/// children will be found. Returns whether something was changed: nothing is where the process has
/// that adjustment already, or has ended.
///
/// # Errors
/// [`Error::File`]: EACCES where it may not be lowered (CAP_SYS_RESOURCE).
pub fn oom_score(
    writer: &mut JournaledWriter<'_>,
    task: TaskId,
    new: i32,
    dir: &str,
) -> Result<bool> {
    let Some(old) = oom::adjustment(writer.files, task.pid)?.filter(|old| *old != new) else {
        return Ok(false);
    };
    // The file first, the start time second: an open file of a process that has ended never refers
    // to another process.
    let file = match writer.files.open(&oom::path(task.pid), Access::Write) {
        Ok(file) => file,
        Err(e) if gone(&e) => return Ok(false),
        Err(e) => return Err(Error::file("open", &oom::path(task.pid), None, e)),
    };
    if !procfs::alive(writer.files, task) {
        return Ok(false);
    }
    let mark = writer.journal.mark();
    // A process may change its value again and again.
    let is = |e: &Undo| matches!(e, Undo::OomScore { task: of, new: to, .. } if (*of, *to) == (task, new));
    if !writer.journal.entries().iter().any(is) {
        writer.journal.record(&Undo::OomScore {
            task,
            old,
            new,
            dir: dir.to_owned(),
        })?;
    }
    let text = new.to_string();
    let written = match &file {
        Some(file) => file.write_at(text.as_bytes(), 0).map(drop),
        None => writer.files.write(&oom::path(task.pid), &text),
    };
    match written {
        Ok(()) => {
            fault::boundary();
            Ok(true)
        }
        Err(e) => {
            writer.journal.retract(mark)?;
            if gone(&e) {
                return Ok(false);
            }
            Err(Error::file("write", &oom::path(task.pid), Some(&text), e))
        }
    }
}

/// Makes a process immune from the OOM killer, journaled, unless another process shares its memory:
/// the kernel would make that one immune as well. `dir` as for [`oom_score`]. Returns why it was
/// not made immune. `None` also where it is already, or has ended.
///
/// # Errors
/// As [`oom_score`].
pub fn immunise(
    writer: &mut JournaledWriter<'_>,
    task: TaskId,
    dir: &str,
) -> Result<Option<String>> {
    let files = writer.files;
    let now = oom::adjustment(files, task.pid)?;
    let Some(old) = now.filter(|now| *now != oom::IMMUNE) else {
        return Ok(None);
    };
    if let Some((_, why)) = sharing::obstacle(files, task.pid) {
        return Ok(Some(why));
    }
    if !oom_score(writer, task, oom::IMMUNE, dir)? {
        return Ok(None);
    }
    // It may have been joined meanwhile.
    let Some((by, why)) = sharing::obstacle(files, task.pid) else {
        return Ok(None);
    };
    // The kernel writes it to both, unless one has left the memory since. The entry stays: a child
    // that was born meanwhile has the value.
    for pid in [Some(task.pid), by].into_iter().flatten() {
        let path = oom::path(pid);
        match files.write(&path, &old.to_string()) {
            Err(e) if !gone(&e) => {
                return Err(Error::file("write", &path, Some(&old.to_string()), e));
            }
            _ => {}
        }
    }
    fault::boundary();
    Ok(Some(why))
}

/// Changes a machine-wide setting of memory management, journaled. Returns whether it had another
/// value before. A ratio stays as it is where a number of bytes is active in its place. Writing the
/// ratio would clear the bytes, and restoring it would leave neither.
///
/// # Errors
/// [`Error::File`]: EINVAL for a value that the kernel refuses.
pub fn sysctl(writer: &mut JournaledWriter<'_>, name: &str, value: i64) -> Result<bool> {
    if let Some(kind) = name.strip_suffix("_ratio") {
        let bytes: Option<u64> = writer
            .files
            .parsed(&sysctl::path(&format!("{kind}_bytes")), "a number")?;
        if bytes.is_some_and(|bytes| bytes > 0) {
            return Ok(false);
        }
    }
    writer.set(&sysctl::path(name), &value.to_string())
}
