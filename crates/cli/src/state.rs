//! Where Quell keeps what it has found out.

use std::path::{Path, PathBuf};

/// Where what was found out is kept.
pub fn state_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("QUELL_STATE_DIR") {
        return Some(PathBuf::from(dir));
    }
    if quell_kernel::is_root() {
        return Some(PathBuf::from("/var/lib/quell"));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    cache.map(|dir| dir.join("quell"))
}

/// Writes a file as a whole or not at all, its directory included.
pub fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        quell_files::folder(dir)?;
    }
    quell_files::write(path, text.as_bytes())
}
