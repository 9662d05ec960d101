//! Whom the kernel kills when memory runs out: `oom_score`, `oom_score_adj`.
//! proc_pid_oom_score_adj(5), mm/oom_kill.c.

use std::io::Write;
use std::sync::OnceLock;

use crate::error::Result;
use crate::root::Files;

const OWN: &str = "/proc/self/oom_score_adj";

/// Never to be killed for memory.
pub const IMMUNE: i32 = -1000;

/// How bad the kernel finds a process, 0 to about 2000; `None` where it has ended.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn score(files: &dyn Files, pid: u32) -> Result<Option<u32>> {
    files.parsed(&format!("/proc/{pid}/oom_score"), "a score")
}

/// What is added to that, -1000 to 1000.
///
/// # Errors
/// [`crate::error::Error::File`], [`crate::error::Error::Malformed`].
pub fn adjustment(files: &dyn Files, pid: u32) -> Result<Option<i32>> {
    files.parsed(&path(pid), "a number from -1000 to 1000")
}

/// Whether we may make a program immune; why not. Tried on ourselves, and taken back at once.
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

/// What was added to our own score before [`shelter`].
static BEFORE: OnceLock<String> = OnceLock::new();

/// We are not killed for memory while we hold something: what we steer would be without anybody.
/// What we start is not to inherit it ([`unsheltered`]). Nothing happens where it is not allowed.
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

/// In a child before it becomes a program: its score is what ours was. Allocates nothing.
///
/// # Errors
/// What the kernel says.
pub fn unsheltered() -> std::io::Result<()> {
    let Some(before) = BEFORE.get() else {
        return Ok(());
    };
    std::fs::OpenOptions::new()
        .write(true)
        .open(OWN)?
        .write_all(before.as_bytes())
}

/// The file of a process.
#[must_use]
pub fn path(pid: u32) -> String {
    format!("/proc/{pid}/oom_score_adj")
}
