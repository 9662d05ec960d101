//! Access to the kernel's files that tests and captured machines can replace: the trait [`Files`].
//! [`Kernel`] is the running kernel's. A process may read its own `/proc` entries directly.
//!
//! Paths are the kernel's own (`/sys/…`, `/proc/…`). The root is put in front here and nowhere
//! else. CPU affinity, scheduling policy, signals and mounts are no files. They belong to the same
//! trait, because an undo reverts or uses them together with files.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::task::{LockLimit, TaskId};
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::{Error, Result};
pub use crate::reader::Start;
use crate::{affinity, kcmp, limit, msr, pidfd, reader, trace};

/// What the kernel's file systems offer. Errors are the kernel's, with three exceptions: ENOSYS
/// where the root is no running kernel, EIO after a short write, InvalidInput for a zero byte in
/// mount options.
pub trait Files: Send + Sync {
    /// The whole content. Bytes that are not UTF-8 are replaced.
    fn read(&self, path: &str) -> io::Result<String>;
    /// The beginnings of files that are memory of programs: of the first one, and of those that
    /// follow as far as no program lets its readers wait.
    fn read_starts(&self, paths: &[String], most: usize) -> Vec<Start> {
        reader::one_by_one(paths, most, |path| self.read(path))
    }
    /// One `write(2)` of the text, as `echo` would send it. A newline is added where there is none.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    /// The names in a directory, sorted. Of a name that is not UTF-8 bytes are replaced
    /// ([`is_exact`]).
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// The names of the directories in a directory, sorted. [`Kernel`] leaves symbolic links out.
    /// The default body follows them, and leaves out directories that cannot be listed.
    fn folders(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = self.list(path)?;
        names.retain(|name| self.list(&format!("{path}/{name}")).is_ok());
        Ok(names)
    }
    /// Makes a directory, for example a cgroup.
    fn mkdir(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory (a cgroup: without tasks and children).
    fn rmdir(&self, path: &str) -> io::Result<()>;
    /// Whether a file or directory exists.
    fn exists(&self, path: &str) -> bool;
    /// The type and permission bits, as `st_mode` has them.
    fn mode(&self, path: &str) -> io::Result<u32>;
    /// What a path leads to, links followed. ENOSYS where the root is no running kernel.
    fn node(&self, _path: &str) -> io::Result<Node> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    /// The target of a symbolic link.
    fn link(&self, path: &str) -> io::Result<String>;
    /// The CPUs that a thread may run on (0: the caller).
    fn affinity(&self, tid: u32) -> io::Result<CpuSet>;
    /// Sets the CPUs that a thread may run on.
    fn set_affinity(&self, tid: u32, cpus: &CpuSet) -> io::Result<()>;
    /// The number of a thread's scheduling policy (sched(7)), without SCHED_RESET_ON_FORK. 0: the
    /// caller.
    fn scheduler(&self, tid: u32) -> io::Result<i32>;
    /// Sends a signal to the process with this number and start time. ESRCH when it has ended,
    /// also where its number was given to another process.
    fn signal(&self, task: TaskId, signal: i32) -> io::Result<()>;
    /// Mounts a file system of this kind, with nosuid, nodev and noexec. ENOSYS where that is not
    /// possible.
    fn mount(&self, _kind: &str, _path: &str, _options: &str) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    /// Unmounts what is mounted at a path. ENOSYS where that is not possible.
    fn unmount(&self, _path: &str) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    /// Makes a process that runs do a system call ([`trace::within`]). ENOSYS where the root is no
    /// running kernel.
    fn call_within(
        &self,
        _thread: trace::Thread,
        _call: &trace::Call,
        _otherwise: Option<trace::Call>,
        _meanwhile: &mut dyn FnMut(),
    ) -> io::Result<Duration> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    /// Sets how much memory a process may lock, if a limit is given. Returns what it was. ENOSYS
    /// where the root is no running kernel.
    fn lock_limit(&self, _pid: u32, _new: Option<LockLimit>) -> io::Result<LockLimit> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    /// Whether a task has the same memory as each of the others. `None`: it cannot be told. ENOSYS
    /// where the root is no running kernel, EBUSY where too many processes let it wait.
    fn same_memory(&self, _one: u32, _others: &[u32]) -> io::Result<Vec<Option<bool>>> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
    /// Opens the file, to be kept open and read or written again and again. The caller sets the
    /// offset. `None` where files have no descriptors.
    fn open(&self, _path: &str, _access: Access) -> io::Result<Option<fs::File>> {
        Ok(None)
    }
}

/// A file or directory, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of its file system (`st_dev`).
    pub device: u64,
    /// Its number there (`st_ino`).
    pub number: u64,
    /// The number of its names (`st_nlink`). 0: it was removed.
    pub links: u64,
    /// The user that it belongs to.
    pub owner: u32,
    /// The mount that it was found through, as mountinfo numbers them. 0 before Linux 5.8.
    pub mount: u64,
}

/// The most bytes of a file that are read. The longest are the maps of a process, which may have
/// 65,530 lines (`vm.max_map_count`) of as long names as it likes.
const MOST: usize = 64 << 20;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Opened for reading only.
    Read,
    /// Opened for writing only.
    Write,
}

/// Whether an error means that a thing does not exist (any more): a missing file, a task that
/// ended, a device that was removed.
#[must_use]
pub fn gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::ENOTDIR)
    )
}

/// Whether a name or path that was read is what it says. One with U+FFFD may be of other bytes,
/// which were replaced, and then leads nowhere or to another file.
#[must_use]
pub fn is_exact(name: &str) -> bool {
    !name.contains(char::REPLACEMENT_CHARACTER)
}

/// The same operations with the crate's error, which names action and path. `optional`, `parsed`
/// and `cpus` give `None` for a missing file.
impl dyn Files + '_ {
    /// The content of a file that has to exist, trimmed.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read.
    pub fn text(&self, path: &str) -> Result<String> {
        self.read(path)
            .map(|t| t.trim().to_owned())
            .map_err(|e| Error::file("read", path, None, e))
    }

    /// The content of a file that may be missing, trimmed. `None` where it is missing.
    ///
    /// # Errors
    /// [`Error::File`] when it is there and cannot be read.
    pub fn optional(&self, path: &str) -> Result<Option<String>> {
        match self.read(path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(e) if gone(&e) => Ok(None),
            Err(e) => Err(Error::file("read", path, None, e)),
        }
    }

    /// The parsed content of a file that may be missing. `wanted` describes it for the error.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read, [`Error::Malformed`] when it cannot be parsed.
    pub fn parsed<T: FromStr>(&self, path: &str, wanted: &str) -> Result<Option<T>> {
        let Some(text) = self.optional(path)? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Error::malformed(path, &text, wanted)),
        }
    }

    /// A CPU (or node) list from a file that may be missing.
    ///
    /// # Errors
    /// As for `parsed`.
    pub fn cpus(&self, path: &str) -> Result<Option<CpuSet>> {
        self.parsed(path, "a CPU list such as 0,2-3")
    }

    /// Writes a file, with an error that names path and text.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn put(&self, path: &str, text: &str) -> Result<()> {
        self.write(path, text)
            .map_err(|e| Error::file("write", path, Some(text), e))
    }

    /// The names in a directory. Empty where it is missing.
    ///
    /// # Errors
    /// [`Error::File`] when it is there and cannot be listed.
    pub fn names(&self, path: &str) -> Result<Vec<String>> {
        present(path, self.list(path))
    }

    /// The names of the directories in a directory. Empty where it is missing.
    ///
    /// # Errors
    /// [`Error::File`] when it is there and cannot be listed.
    pub fn directories(&self, path: &str) -> Result<Vec<String>> {
        present(path, self.folders(path))
    }
}

/// What was listed. Empty where the directory is missing.
fn present(path: &str, listed: io::Result<Vec<String>>) -> Result<Vec<String>> {
    match listed {
        Err(e) if gone(&e) => Ok(Vec::new()),
        listed => listed.map_err(|e| Error::file("list", path, None, e)),
    }
}

/// The real kernel, or a directory that looks like one.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

/// `statfs(2)` magic numbers of procfs and sysfs (linux/magic.h).
const PROC_MAGIC: i64 = 0x9fa0;
const SYSFS_MAGIC: i64 = 0x6265_6572;

impl Kernel {
    /// The running kernel. `/proc` and `/sys` have to be procfs and sysfs.
    ///
    /// # Errors
    /// [`Error::Refused`] when one has another type, [`Error::File`] when it cannot be inspected.
    pub fn new() -> Result<Self> {
        for (path, magic, name) in [
            ("/proc", PROC_MAGIC, "proc"),
            ("/sys", SYSFS_MAGIC, "sysfs"),
        ] {
            let found = rustix::fs::statfs(path)
                .map_err(|e| Error::file("inspect", path, None, e.into()))?;
            // The field's width differs between architectures. Both magic numbers are positive and
            // fit every width.
            #[allow(
                clippy::unnecessary_cast,
                clippy::useless_conversion,
                reason = "width differs by architecture"
            )]
            let found = found.f_type as i64;
            if found != magic {
                return Err(Error::refused_with(
                    format!("{path} is not a {name} file system (it reports type {found:#x})"),
                    format!("mount -t {name} {name} {path}"),
                ));
            }
        }
        Ok(Self {
            root: PathBuf::from("/"),
        })
    }

    /// Files below `root`, taken for the kernel's without a check: captured machines, tests.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether the root is `/`, so that this is the running kernel and not a captured one.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The register that a path stands for. Elsewhere than on the running kernel it is a plain
    /// file.
    fn register(&self, path: &str) -> Option<(CpuSet, u32)> {
        msr::parse(path).filter(|_| self.is_live())
    }

    fn need_live(&self) -> io::Result<()> {
        if self.is_live() {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOSYS))
        }
    }
}

/// All bytes of a file. The kernel's files say nothing of their sizes, so that none is asked for:
/// two system calls of six less.
/// EFBIG beyond [`MOST`].
fn whole(file: &mut fs::File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if length > MOST {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

impl Files for Kernel {
    fn read(&self, path: &str) -> io::Result<String> {
        if let Some((cpus, number)) = self.register(path) {
            let open = |cpu| fs::File::open(format!("/dev/cpu/{cpu}/msr"));
            return msr::read_file(&cpus, number, open);
        }
        let bytes = whole(&mut fs::File::open(self.path(path))?)?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        })
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        if let Some((cpus, number)) = self.register(path) {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true);
            let open = |cpu| options.open(format!("/dev/cpu/{cpu}/msr"));
            return msr::write_file(&cpus, number, text, open);
        }
        // Kernel files take one write each. The newline prevents a write of zero bytes, which would
        // be none.
        let mut bytes = text.as_bytes().to_vec();
        if bytes.last() != Some(&b'\n') {
            bytes.push(b'\n');
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).truncate(!self.is_live());
        let mut file = options.open(self.path(path))?;
        let written = file.write(&bytes)?;
        if written == bytes.len() {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EIO))
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn folders(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path))? {
            let entry = entry?;
            // The type comes with the name, without another system call.
            if entry.file_type()?.is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.path(path))
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.path(path))
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        Ok(fs::metadata(self.path(path))?.permissions().mode())
    }

    fn node(&self, path: &str) -> io::Result<Node> {
        self.need_live()?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let is = statx(CWD, self.path(path), AtFlags::empty(), wanted)?;
        Ok(Node {
            device: makedev(is.stx_dev_major, is.stx_dev_minor),
            number: is.stx_ino,
            links: is.stx_nlink.into(),
            owner: is.stx_uid,
            mount: is.stx_mnt_id,
        })
    }

    fn read_starts(&self, paths: &[String], most: usize) -> Vec<Start> {
        match self.is_live() {
            true => reader::by_child(paths, most),
            false => reader::one_by_one(paths, most, |path| self.read(path)),
        }
    }

    fn link(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(self.path(path))?
            .to_string_lossy()
            .into_owned())
    }

    fn affinity(&self, tid: u32) -> io::Result<CpuSet> {
        self.need_live()?;
        affinity::of(tid)
    }

    fn scheduler(&self, tid: u32) -> io::Result<i32> {
        self.need_live()?;
        // SAFETY: no pointers.
        let policy = unsafe { libc::sched_getscheduler(affinity::pid(tid)?) };
        if policy < 0 {
            return Err(io::Error::last_os_error());
        }
        // A flag next to the policy, set where children do not inherit it.
        Ok(policy & !libc::SCHED_RESET_ON_FORK)
    }

    fn set_affinity(&self, tid: u32, cpus: &CpuSet) -> io::Result<()> {
        self.need_live()?;
        affinity::set(tid, cpus)
    }

    fn signal(&self, task: TaskId, signal: i32) -> io::Result<()> {
        self.need_live()?;
        pidfd::signal(task, signal, || {
            self.read(&format!("/proc/{}/stat", task.pid))
        })
    }

    fn mount(&self, kind: &str, path: &str, options: &str) -> io::Result<()> {
        self.need_live()?;
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount(kind, path, kind, flags, options.as_c_str()).map_err(io::Error::from)
    }

    fn unmount(&self, path: &str) -> io::Result<()> {
        self.need_live()?;
        rustix::mount::unmount(path, UnmountFlags::empty()).map_err(io::Error::from)
    }

    fn call_within(
        &self,
        thread: trace::Thread,
        call: &trace::Call,
        otherwise: Option<trace::Call>,
        meanwhile: &mut dyn FnMut(),
    ) -> io::Result<Duration> {
        self.need_live()?;
        let stat = || self.read(&format!("/proc/{}/stat", thread.of.pid));
        trace::within(thread, call, otherwise, stat, meanwhile)
    }

    fn lock_limit(&self, pid: u32, new: Option<LockLimit>) -> io::Result<LockLimit> {
        self.need_live()?;
        limit::locked_memory(pid, new)
    }

    fn same_memory(&self, one: u32, others: &[u32]) -> io::Result<Vec<Option<bool>>> {
        self.need_live()?;
        kcmp::compare(one, others)
    }

    fn open(&self, path: &str, access: Access) -> io::Result<Option<fs::File>> {
        let mut options = fs::OpenOptions::new();
        match access {
            Access::Read => options.read(true),
            Access::Write => options.write(true),
        };
        options.open(self.path(path)).map(Some)
    }
}

/// Parses a CPU mask as `smp_affinity` and `workqueue/cpumask` print it: 32-bit hexadecimal words,
/// the highest first, separated by commas (`%*pb`, Documentation/core-api/printk-formats.rst).
/// `None` where the text is no mask.
#[must_use]
pub fn parse_mask(text: &str) -> Option<CpuSet> {
    let words: Vec<&str> = text.trim().split(',').collect();
    let mut set = CpuSet::new();
    for (i, word) in words.iter().rev().enumerate() {
        if word.is_empty() || word.len() > 8 {
            return None;
        }
        let bits = u32::from_str_radix(word, 16).ok()?;
        let base = CpuId::try_from(i).ok()?.checked_mul(32)?;
        for bit in (0..32).filter(|bit| bits & (1 << bit) != 0) {
            set.insert(base + bit);
        }
    }
    Some(set)
}

/// Formats a CPU mask as the kernel reads it.
#[must_use]
pub fn format_mask(cpus: &CpuSet) -> String {
    let highest = cpus.iter().next_back().unwrap_or(0) / 32;
    let words: Vec<String> = (0..=highest)
        .rev()
        .map(|word| {
            let bits = cpus
                .iter()
                .filter(|c| c / 32 == word)
                .fold(0u32, |bits, c| bits | 1 << (c % 32));
            if word == highest {
                format!("{bits:x}")
            } else {
                format!("{bits:08x}")
            }
        })
        .collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_read_and_write_as_the_kernel_does() {
        assert_eq!(parse_mask("3").map(|s| s.to_string()), Some("0-1".into()));
        assert_eq!(
            parse_mask("00000001,00000000").map(|s| s.to_string()),
            Some("32".into())
        );
        assert_eq!(parse_mask("0-1"), None);
        let set: CpuSet = "0,31-33".parse().unwrap();
        assert_eq!(format_mask(&set), "3,80000001");
        assert_eq!(parse_mask(&format_mask(&set)), Some(set));
        assert_eq!(format_mask(&CpuSet::new()), "0");
    }

    #[test]
    fn a_missing_file_is_none_and_a_malformed_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sys")).unwrap();
        fs::write(dir.path().join("sys/list"), "0,x\n").unwrap();
        let kernel = Kernel::at(dir.path());
        let files: &dyn Files = &kernel;
        assert!(files.cpus("/sys/none").unwrap().is_none());
        let error = files.cpus("/sys/list").unwrap_err().to_string();
        assert_eq!(
            error,
            "/sys/list reads '0,x', which is not a CPU list such as 0,2-3"
        );
    }

    #[test]
    fn the_callers_own_affinity_can_be_read() {
        let Ok(kernel) = Kernel::new() else {
            return quell_testing::skip("no /proc or /sys here");
        };
        assert!(!kernel.affinity(0).unwrap().is_empty());
        assert!(Kernel::at("/nowhere").affinity(0).is_err());
    }
}
