//! Which process the kernel kills when memory runs out: `oom_score`, `oom_score_adj`.
//! proc_pid_oom_score_adj(5), mm/oom_kill.c.

use std::io::Write;
use std::sync::OnceLock;

use crate::error::Result;
use crate::root::Files;

const OWN: &str = "/proc/self/oom_score_adj";

/// The adjustment of a process that is never killed for memory.
pub const IMMUNE: i32 = -1000;

/// The score by which the OOM killer chooses a process, 0 to about 2000. `None` where the process
/// has ended.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn score(files: &dyn Files, pid: u32) -> Result<Option<u32>> {
    files.parsed(&format!("/proc/{pid}/oom_score"), "a score")
}

/// The adjustment of the score, -1000 to 1000. `None` where the process has ended.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn adjustment(files: &dyn Files, pid: u32) -> Result<Option<i32>> {
    files.parsed(&path(pid), "a number from -1000 to 1000")
}

/// Whether this process may make a program immune. It is tried on this process, and reverted at
/// once.
///
/// # Errors
/// The reason in words.
pub fn may_be_immune() -> std::result::Result<(), String> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let refused = |e: std::io::Error| {
        format!("oom_score_adj may not be lowered ({e}): it needs CAP_SYS_RESOURCE")
    };
    let now = std::fs::read_to_string(OWN).map_err(refused)?;
    std::fs::write(OWN, IMMUNE.to_string()).map_err(refused)?;
    std::fs::write(OWN, now.trim()).map_err(refused)
}

/// The adjustment of this process before [`shelter`].
static BEFORE: OnceLock<String> = OnceLock::new();

/// Makes this process immune while it holds the machine, because nothing else controls what it
/// steers. Programs that it starts must not inherit that ([`unsheltered`]). Does nothing where it
/// is not allowed.
pub fn shelter() {
    if BEFORE.get().is_some() {
        return;
    }
    if let Ok(before) = std::fs::read_to_string(OWN)
        && std::fs::write(OWN, IMMUNE.to_string()).is_ok()
    {
        let _ = BEFORE.set(before.trim().to_owned());
    }
}

/// Restores the earlier adjustment in a child, before that executes a program. Allocates nothing.
///
/// # Errors
/// The kernel's error of the write.
pub fn unsheltered() -> std::io::Result<()> {
    let Some(before) = BEFORE.get() else {
        return Ok(());
    };
    std::fs::OpenOptions::new()
        .write(true)
        .open(OWN)?
        .write_all(before.as_bytes())
}

/// Path of a process's `oom_score_adj`.
#[must_use]
pub fn path(pid: u32) -> String {
    format!("/proc/{pid}/oom_score_adj")
}
