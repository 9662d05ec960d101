//! Files that are written.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, ftruncate, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::walk::{self, Place, trust};

const NEW: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const OLD: OFlags = OFlags::WRONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
const MODE: u32 = 0o666;

/// Makes a file that must not exist yet.
///
/// # Errors
/// AlreadyExists, PermissionDenied (a folder of another user), and the kernel's.
pub fn create(path: &Path) -> io::Result<File> {
    let place = walk::to(path, false)?;
    Ok(openat(&place.dir, &place.name, NEW, Mode::from(MODE))?.into())
}

/// Opens a file to be written from its beginning, made where it is missing. It stays the file that
/// it was, so that its owner and mode stay, too.
///
/// # Errors
/// PermissionDenied for a link, and for a file or folder of another user; the kernel's.
pub fn replace(path: &Path) -> io::Result<File> {
    let file = existing_or_new(path)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile {
        ftruncate(&file, 0)?;
    }
    Ok(file)
}

/// Replaces the text of a file, or makes it.
///
/// # Errors
/// As [`replace`].
pub fn put(path: &Path, text: &str) -> io::Result<()> {
    replace(path)?.write_all(text.as_bytes())
}

/// Opens a file to be written at its end, made where it is missing.
///
/// # Errors
/// As [`replace`].
pub fn append(path: &Path) -> io::Result<File> {
    let file = existing_or_new(path)?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

fn existing_or_new(path: &Path) -> io::Result<File> {
    // What it may do is what its user may, and /dev/stdout leads to what it has open.
    let devices = [Path::new("/dev"), Path::new("/dev/fd")];
    let device = path.parent().is_some_and(|dir| devices.contains(&dir));
    if !rustix::process::geteuid().is_root() || device {
        return OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
    }
    let Place { dir, name } = walk::to(path, false)?;
    match openat(&dir, &name, NEW, Mode::from(MODE)) {
        Err(Errno::EXIST) => {}
        new => return Ok(new?.into()),
    }
    let denied = |why: &str| {
        let text = format!("'{}' {why}; name another file", name.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    let file = match openat(&dir, &name, OLD, Mode::empty()) {
        Err(Errno::LOOP) => return denied("is a link, which is not followed when it is written"),
        file => file?,
    };
    let is = fstat(&file)?;
    trust(&is, &name)?;
    let regular = FileType::from_raw_mode(is.st_mode) == FileType::RegularFile;
    if regular && is.st_nlink > 1 {
        return denied("has several names, of which one may be elsewhere");
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file.into())
}

/// Writes a file as a whole or not at all: beside its place, and moved there.
///
/// # Errors
/// As [`replace`].
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let Place { dir, name } = walk::to(path, false)?;
    let mut beside = name.clone();
    beside.push(".new");
    // What an earlier attempt has left, or somebody has put there to be followed.
    let _ = unlinkat(&dir, &beside, AtFlags::empty());
    let mut file = File::from(openat(&dir, &beside, NEW, Mode::from(MODE))?);
    let written = file.write_all(content);
    let moved = written.and_then(|()| Ok(renameat(&dir, &beside, &dir, &name)?));
    moved.inspect_err(|_| {
        let _ = unlinkat(&dir, &beside, AtFlags::empty());
    })
}

/// Makes a folder and those above it, as far as they are missing. It is one of root's, or of who
/// called sudo, as all above it are.
///
/// # Errors
/// As [`replace`].
pub fn folder(path: &Path) -> io::Result<()> {
    walk::into(path).map(drop)
}

/// Checks that a path is a folder, and no link to one, through which root may write: one of root's,
/// or of who called sudo, as all above it are.
///
/// # Errors
/// PermissionDenied otherwise, and the kernel's.
pub fn own_folder(path: &Path) -> io::Result<()> {
    let Place { dir, name } = walk::to(path, false)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = openat(&dir, &name, flags, Mode::empty())?;
    trust(&fstat(&there)?, &name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    fn denied(done: io::Result<()>, why: &str) {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }

    #[test]
    fn a_file_is_made_replaced_and_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        put(&path, "first").unwrap();
        put(&path, "2nd").unwrap();
        append(&path).unwrap().write_all(b"!").unwrap();
        assert_eq!(text(&path), "2nd!");
        assert_eq!(
            create(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        create(&dir.path().join("b")).unwrap();
        write(&path, b"whole").unwrap();
        assert_eq!(text(&path), "whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        folder(&dir.path().join("c/d")).unwrap();
        folder(&dir.path().join("c/d")).unwrap();
        assert!(folder(&path.join("e")).is_err());
        put(Path::new("/dev/null"), "nothing").unwrap();
        put(Path::new("/dev/stderr"), "").unwrap();
        assert!(put(&dir.path().join("c"), "").is_err());
        assert!(put(Path::new("/"), "").is_err());
        assert!(put(&dir.path().join("c/.."), "").is_err());
    }

    #[test]
    fn what_root_writes_is_never_a_link_nor_a_second_name() {
        if !rustix::process::geteuid().is_root() {
            return quell_testing::skip("needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("target"), "theirs").unwrap();
        symlink("target", path("link")).unwrap();
        symlink("nowhere", path("dangling")).unwrap();
        denied(put(&path("link"), "x"), "is a link");
        denied(put(&path("dangling"), "x"), "is a link");
        fs::hard_link(path("target"), path("second")).unwrap();
        denied(put(&path("second"), "x"), "several names");
        assert_eq!(text(&path("target")), "theirs");
        // A whole file takes the place of a link, and what it leads to stays.
        write(&path("link"), b"ours").unwrap();
        assert_eq!(
            (text(&path("link")), text(&path("target"))),
            ("ours".into(), "theirs".into())
        );
        symlink("target", path("whole.new")).unwrap();
        write(&path("whole"), b"ours").unwrap();
        assert_eq!(text(&path("target")), "theirs");
        assert!(!path("nowhere").exists());
    }

    #[test]
    fn links_of_root_on_the_way_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        folder(&dir.path().join("real/deep")).unwrap();
        symlink("real", dir.path().join("way")).unwrap();
        symlink(dir.path().join("way/deep"), dir.path().join("far")).unwrap();
        put(&dir.path().join("way/deep/../a"), "x").unwrap();
        put(&dir.path().join("far/b"), "y").unwrap();
        assert_eq!(text(&dir.path().join("real/a")), "x");
        assert_eq!(text(&dir.path().join("real/deep/b")), "y");
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(put(&dir.path().join("loop/c"), "").is_err());
    }

    #[test]
    fn root_goes_through_no_folder_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            return quell_testing::skip("needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        let ours = theirs.join("ours");
        fs::create_dir(&ours).unwrap();
        chown(&theirs, Some(65_534), None).unwrap();
        for path in [theirs.join("a"), ours.join("a"), ours.join("../a")] {
            denied(put(&path, "x"), "belongs to user 65534");
            denied(create(&path).map(drop), "belongs to user 65534");
            denied(write(&path, b"x"), "belongs to user 65534");
        }
        denied(folder(&theirs.join("b/c")), "belongs to user 65534");
        denied(folder(&theirs), "belongs to user 65534");
        // A folder of all, as /tmp is: another user's file and link there are left alone.
        let all = dir.path().join("all");
        fs::create_dir(&all).unwrap();
        fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
        put(&all.join("a"), "x").unwrap();
        chown(all.join("a"), Some(65_534), None).unwrap();
        denied(put(&all.join("a"), "y"), "belongs to user 65534");
        symlink(dir.path(), all.join("way")).unwrap();
        std::os::unix::fs::lchown(all.join("way"), Some(65_534), None).unwrap();
        denied(put(&all.join("way/b"), "x"), "belongs to user 65534");
        assert!(!dir.path().join("b").exists());
    }
}
