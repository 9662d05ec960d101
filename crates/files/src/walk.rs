//! Walking to a file through folders that nobody else can change.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};
use rustix::io::Errno;

/// The kernel's limit (`MAXSYMLINKS`).
const MOST_LINKS: u32 = 40;

/// A folder that was walked to, and the name of what is meant in it.
pub struct Place {
    pub dir: OwnedFd,
    pub name: OsString,
}

/// Walks to the folder of `path`, by the rule of this crate. With `make`, folders that are missing
/// are made.
///
/// # Errors
/// The kernel's. PermissionDenied for a folder or link of another user, with its name.
pub fn to(path: &Path, make: bool) -> io::Result<Place> {
    let mut left: VecDeque<OsString> = parts(path).collect();
    let Some(name) = left.pop_back().filter(|name| name != "..") else {
        let text = format!("'{}' names no file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    let dir = through(begin(path.is_absolute())?, left, make)?;
    Ok(Place { dir, name })
}

/// Opens the folder `path` itself, which is made where it is missing.
///
/// # Errors
/// As [`to`].
pub fn into(path: &Path) -> io::Result<OwnedFd> {
    through(begin(path.is_absolute())?, parts(path).collect(), true)
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const ANY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn begin(absolute: bool) -> io::Result<OwnedFd> {
    let path = if absolute { "/" } else { "." };
    let dir = open(path, FOLDER, Mode::empty())?;
    trust(&fstat(&dir)?, OsStr::new(path))?;
    Ok(dir)
}

fn through(mut dir: OwnedFd, mut left: VecDeque<OsString>, make: bool) -> io::Result<OwnedFd> {
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let next = match openat(&dir, &name, ANY, Mode::empty()) {
            Err(Errno::NOENT) if make => {
                match rustix::fs::mkdirat(&dir, &name, Mode::from(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(named(e.into(), &name)),
                }
                openat(&dir, &name, ANY, Mode::empty())
            }
            other => other,
        };
        let next = next.map_err(|e| named(e.into(), &name))?;
        let is = fstat(&next)?;
        trust(&is, &name)?;
        match FileType::from_raw_mode(is.st_mode) {
            FileType::Directory => dir = next,
            FileType::Symlink if links < MOST_LINKS => {
                links += 1;
                // Of the link that was judged: another may have its name by now.
                let target = readlinkat(&next, "", Vec::new())?.into_bytes();
                let target = PathBuf::from(OsString::from_vec(target));
                if target.is_absolute() {
                    dir = begin(true)?;
                }
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(part);
                }
            }
            FileType::Symlink => return Err(named(Errno::LOOP.into(), &name)),
            _ => return Err(named(Errno::NOTDIR.into(), &name)),
        }
    }
    Ok(dir)
}

/// An error with the part of the path that it is about.
fn named(error: io::Error, name: &OsStr) -> io::Error {
    io::Error::new(error.kind(), format!("'{}': {error}", name.display()))
}

/// Refuses what belongs to another user while Quell runs as root. Without root everything of the
/// others is trusted: Quell can do no more than they can.
pub fn trust(is: &Stat, name: &OsStr) -> io::Result<()> {
    let root = rustix::process::geteuid().is_root();
    if !root || is.st_uid == 0 || Some(is.st_uid) == caller() {
        return Ok(());
    }
    let text = format!(
        "'{}' belongs to user {}, who could lead root elsewhere; name a file in a folder of root's",
        name.display(),
        is.st_uid
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// The user who called sudo. Only root can say it to a process of root's.
fn caller() -> Option<u32> {
    std::env::var("SUDO_UID").ok()?.parse().ok()
}
