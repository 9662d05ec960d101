//! Partitions of CPUs (cgroup v2): the kernel keeps all tasks outside off them.
//!
//! Documentation/admin-guide/cgroup-v2.rst ("Cpuset").
//!
//! `quell.slice` is no partition root itself, so a group's is a remote partition. Kernels since 6.7
//! offer that through `cpuset.cpus.exclusive`, set on the group and on every cgroup above it.

use quell_kernel::error::{Error, Result};
use quell_types::cpuset::CpuSet;

use crate::change::JournaledWriter;
use crate::group_cgroups::CgroupDir;
use crate::placement;

/// Makes a v2 cgroup a partition root. The inner error is the kernel's reason; everything is then
/// as before.
pub(super) fn make(
    writer: &mut JournaledWriter<'_>,
    place: &CgroupDir,
    cpus: &CpuSet,
) -> Result<std::result::Result<(), String>> {
    let file = format!("{}/cpuset.cpus.partition", place.dir);
    if !writer.files.exists(&file) {
        return Ok(Err("this kernel has no cpuset.cpus.partition".to_owned()));
    }
    if !writer
        .files
        .exists(&format!("{}/cpuset.cpus.exclusive", place.dir))
    {
        return Ok(Err(
            "this kernel has no cpuset.cpus.exclusive, which came with Linux 6.7".to_owned(),
        ));
    }
    let mark = writer.journal.mark();
    // Every other cgroup loses these CPUs.
    placement::keep(writer, &place.hierarchy, &place.hierarchy.mount)?;
    let tried = (|| -> Result<String> {
        for dir in ancestors(&place.hierarchy.mount, &place.dir) {
            let path = format!("{dir}/cpuset.cpus.exclusive");
            let have = writer.files.cpus(&path)?.unwrap_or_default();
            writer.set(&path, &have.union(cpus).to_string())?;
        }
        writer.set(&file, "root")?;
        writer.files.text(&file)
    })();
    let why = match tried {
        Ok(state) if state == "root" => return Ok(Ok(())),
        Ok(state) => state,
        // A refused value (EINVAL, ERANGE, EACCES) is an answer. Anything else is a failure.
        Err(e) if matches!(e.errno(), Some(libc::EINVAL | libc::ERANGE | libc::EACCES)) => {
            e.to_string()
        }
        Err(e) => return Err(e),
    };
    let undone = writer.journal.undo_to(writer.files, mark);
    if let Some(left) = undone.left.first() {
        return Err(Error::refused(format!(
            "{why}; and it could not be taken back: {left}"
        )));
    }
    Ok(Err(why))
}

/// Makes an ordinary cgroup of a partition root. It keeps its CPUs; others may have them, too.
/// Whether it was one.
///
/// # Errors
/// [`Error::File`].
pub(super) fn dissolve(writer: &mut JournaledWriter<'_>, place: &CgroupDir) -> Result<bool> {
    let file = format!("{}/cpuset.cpus.partition", place.dir);
    // On v1, and where it cannot be one, there is no such file.
    let state = writer.files.text(&file).unwrap_or_default();
    if !state.starts_with("root") {
        return Ok(false);
    }
    writer.set(&file, "member")?;
    let own = format!("{}/cpuset.cpus", place.dir);
    let cpus = writer.files.cpus(&own)?.unwrap_or_default();
    for dir in ancestors(&place.hierarchy.mount, &place.dir).iter().rev() {
        let path = format!("{dir}/cpuset.cpus.exclusive");
        let have = writer.files.cpus(&path)?.unwrap_or_default();
        writer.set(&path, &have.difference(&cpus).to_string())?;
    }
    Ok(true)
}

/// The directories from below `mount` down to `dir`, `dir` included.
fn ancestors(mount: &str, dir: &str) -> Vec<String> {
    let mut at = mount.to_owned();
    let below = dir.strip_prefix(mount).unwrap_or_default();
    let parts = below.split('/').filter(|p| !p.is_empty());
    parts
        .map(|part| {
            at = format!("{at}/{part}");
            at.clone()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_from_the_root_down() {
        assert_eq!(
            ancestors("/cg", "/cg/quell.slice/v"),
            ["/cg/quell.slice", "/cg/quell.slice/v"]
        );
    }
}
