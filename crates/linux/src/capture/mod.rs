//! A captured machine: the kernel files that the probe reads, and what only trying reported. It is
//! one text that a person can read, compare and write by hand. It is replayed through the same
//! probe as the machine that Quell runs on.
//!
//! ```toml
//! schema = "quell.capture/1"
//! [tried]                       # what no file says
//! root     = true
//! counters = ["cpu/LONGEST_LAT_CACHE.MISS"]
//! [address-map]                 # if one was declared
//! origin   = "declared"
//! from     = "map.txt"
//! map      = "14 18\n15 19"
//! [files]                       # what is not listed is not there
//! "/sys/devices/system/cpu/online" = "0-3"
//! "/sys/devices/system/cpu/cpu{0-3}/topology/physical_package_id" = "0"
//! "/sys/devices/system/cpu/cpu{0-3}/topology/thread_siblings_list" = "{}"
//! "/proc/irq/{0-1}/smp_affinity_list" = { mode = 0o444 }
//! ```
//!
//! A list in braces stands for that many paths, and `{}` in the text for the number of the path. A
//! file is its text, or a table of `text`, `mode` and `error` (an errno's name). Directories are
//! what lies below them.
//!
//! A capture leaves out what describes the host rather than the machine:
//! - host name and serial numbers
//! - mounts other than cgroups and resctrl
//! - names of cgroups and of resctrl's groups
//! - figures that change from moment to moment

mod anonymous;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, PoisonError};

use quell_plan::inventory::{Inventory, Measured};
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskId;
use serde::{Deserialize, Serialize};

use anonymous::anonymous;
use quell_kernel::cgroup::Cgroups;
use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Files, Kernel, gone};

use crate::colours::Declared;
use crate::probe::{self, Live, Tried};

pub use crate::probe::Before;

/// Name and version of the format, as in [`Capture::schema`].
pub const SCHEMA: &str = "quell.capture/1";
/// The most bytes of paths and texts of one machine, each file by itself: forty files for each of
/// the CPUs that Linux knows take half of it.
const MOST_BYTES: usize = 48 << 20;

/// The description of a machine, perhaps of another one than Quell runs on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Capture {
    /// Always [`SCHEMA`]; [`Capture::parse`] refuses any other.
    pub schema: String,
    /// Where the capture comes from, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What the probe can only learn by trying.
    #[serde(default)]
    pub tried: Tried,
    /// Rates and counters measured on that machine. `None` where nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// The address map that was declared for that machine. `None` where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_map: Option<Declared>,
    /// The files, by path or by pattern with braces.
    #[serde(default, skip_serializing)]
    files: BTreeMap<String, Entry>,
}

/// One file as the text has it: a plain string, or a table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Entry {
    Text(String),
    Full(File),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Content without the last newline. `None` where it was not read.
    text: Option<String>,
    /// Permission bits, where the probe asked for them.
    mode: Option<u32>,
    /// Name or number of the errno with which reading fails.
    error: Option<String>,
}

/// The errors with which kernel files are read, except those that mean absence.
const ERRORS: [(&str, i32); 6] = [
    ("EACCES", libc::EACCES),
    ("EPERM", libc::EPERM),
    ("EIO", libc::EIO),
    ("EINVAL", libc::EINVAL),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("ENODATA", libc::ENODATA),
];

/// Captures the machine that Quell runs on.
///
/// # Errors
/// As the probe.
pub fn take(before: Before) -> Result<Capture> {
    let kernel = Kernel::new()?;
    let recorder = Recorder {
        kernel: &kernel,
        seen: Mutex::default(),
    };
    let cgroups = Cgroups::discover(&recorder)?;
    let address_map = before.address_map.clone();
    let probed = probe::probe(&recorder, &Live, &cgroups, before)?;
    let mut seen = recorder
        .seen
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    // Kernels before 6.1 have no such file. Without it a replayed capture would take the
    // architecture of the machine that replays it.
    seen.entry("/proc/sys/kernel/arch".to_owned())
        .or_default()
        .text = Some(probed.inventory.identity.architecture.clone());
    let host = rustix::system::uname();
    let seen = anonymous(seen, &host.nodename().to_string_lossy());
    Ok(Capture {
        schema: SCHEMA.to_owned(),
        note: None,
        tried: probed.tried,
        measured: probed.inventory.measured,
        address_map,
        files: folded(seen),
    })
}

impl Capture {
    /// Reads the text of a capture.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let capture: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        if capture.schema != SCHEMA {
            return Err(format!(
                "its schema is '{}', and this program reads '{SCHEMA}'",
                capture.schema
            ));
        }
        capture.machine()?;
        Ok(capture)
    }

    /// The captured machine, through the same probe as the machine that Quell runs on.
    ///
    /// # Errors
    /// As the probe.
    pub fn inventory(&self) -> Result<Inventory> {
        let files = self.machine().map_err(Error::refused)?;
        let cgroups = Cgroups::discover(&files)?;
        let before = Before {
            measured: self.measured.clone(),
            address_map: self.address_map.clone(),
            ..Before::default()
        };
        let probed = probe::probe(&files, &self.tried, &cgroups, before)?;
        Ok(probed.inventory)
    }

    fn machine(&self) -> std::result::Result<Machine, String> {
        let mut files = BTreeMap::new();
        let mut room = MOST_BYTES;
        for (pattern, entry) in &self.files {
            let text = match entry {
                Entry::Text(text) => text.len(),
                Entry::Full(file) => file.text.as_ref().map_or(0, String::len),
            };
            let takes = times(pattern)?.saturating_mul(pattern.len() + text);
            room = room.checked_sub(takes).ok_or_else(|| {
                format!("files.\"{pattern}\": more than {MOST_BYTES} bytes of files; shorten the lists in braces")
            })?;
            for (path, number) in expand(pattern)? {
                let mut file = match entry.clone() {
                    Entry::Text(text) => File {
                        text: Some(text),
                        ..File::default()
                    },
                    Entry::Full(file) => file,
                };
                if let (Some(number), Some(text)) = (number, file.text.as_mut()) {
                    *text = text.replace("{}", &number);
                }
                if let Some(error) = &file.error
                    && errno(error).is_none()
                {
                    return Err(format!("files.\"{pattern}\": unknown error '{error}'"));
                }
                if files.insert(path.clone(), file).is_some() {
                    return Err(format!("files.\"{pattern}\": {path} is given twice"));
                }
            }
        }
        Ok(Machine { files })
    }
}

/// The text of the capture. Every file begins on its own line, so that two captures can be compared
/// with `diff`.
impl std::fmt::Display for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&toml::to_string(self).map_err(|_| std::fmt::Error)?)?;
        f.write_str("\n[files]\n")?;
        for (path, entry) in &self.files {
            let value = match entry {
                Entry::Text(text) => quoted(text),
                Entry::Full(file) => {
                    let mut keys = Vec::new();
                    if let Some(text) = &file.text {
                        keys.push(format!("text = {}", quoted(text)));
                    }
                    if let Some(mode) = file.mode {
                        keys.push(format!("mode = 0o{mode:03o}"));
                    }
                    if let Some(error) = &file.error {
                        keys.push(format!("error = {}", quoted(error)));
                    }
                    format!("{{ {} }}", keys.join(", "))
                }
            };
            writeln!(f, "{} = {value}", key(path))?;
        }
        Ok(())
    }
}

/// A key: a string on one line, whatever is in it.
fn key(path: &str) -> String {
    let mut out = String::from("\"");
    for c in path.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A TOML string. Several lines are written as they are, where that is possible.
fn quoted(text: &str) -> String {
    let plain = |c: char| c == '\n' || c == '\t' || !c.is_control();
    if text.contains('\n') && !text.contains("'''") && text.chars().all(plain) {
        return format!("'''\n{text}'''");
    }
    toml::Value::String(text.to_owned()).to_string()
}

fn errno(name: &str) -> Option<i32> {
    ERRORS
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, number)| *number)
        .or_else(|| name.parse().ok())
}

/// How many paths a pattern stands for.
fn times(pattern: &str) -> std::result::Result<usize, String> {
    let Some((_, rest)) = pattern.split_once('{') else {
        return Ok(1);
    };
    let (list, after) = listed(pattern, rest)?;
    Ok(list.len().saturating_mul(times(after)?))
}

/// The list that a brace holds, and what follows it.
fn listed<'a>(pattern: &str, rest: &'a str) -> std::result::Result<(CpuSet, &'a str), String> {
    let wrong = || format!("files.\"{pattern}\": braces hold a list such as {{0,2-3}}");
    let (list, after) = rest.split_once('}').ok_or_else(wrong)?;
    Ok((list.parse().map_err(|_| wrong())?, after))
}

/// `cpu{0-1}/x` → `cpu0/x` with 0, `cpu1/x` with 1. Several braces give every combination, with the
/// number of the first.
fn expand(pattern: &str) -> std::result::Result<Vec<(String, Option<String>)>, String> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return Ok(vec![(pattern.to_owned(), None)]);
    };
    let (list, after) = listed(pattern, rest)?;
    let mut all = Vec::new();
    for number in list.iter() {
        for (tail, _) in expand(after)? {
            all.push((format!("{before}{number}{tail}"), Some(number.to_string())));
        }
    }
    Ok(all)
}

/// Puts paths with the same content in one line, where they differ only by the number of a CPU or
/// an interrupt.
fn folded(seen: BTreeMap<String, File>) -> BTreeMap<String, Entry> {
    let mut groups: BTreeMap<(String, String, File), CpuSet> = BTreeMap::new();
    let mut files = BTreeMap::new();
    let entry = |file: File| match file {
        File {
            text: Some(text),
            mode: None,
            error: None,
        } => Entry::Text(text),
        file => Entry::Full(file),
    };
    for (path, mut file) in seen {
        let numbered = ["/sys/devices/system/cpu/cpu", "/proc/irq/"]
            .iter()
            .find_map(|before| {
                let rest = path.strip_prefix(before)?;
                let (number, after) = rest.split_once('/')?;
                Some((*before, number.parse::<u32>().ok()?, after))
            });
        match numbered {
            Some((before, number, after)) => {
                if after.ends_with("_list") && file.text.as_deref() == Some(&number.to_string()) {
                    file.text = Some("{}".to_owned());
                }
                groups
                    .entry((before.to_owned(), after.to_owned(), file))
                    .or_default()
                    .insert(number);
            }
            None => {
                files.insert(path, entry(file));
            }
        }
    }
    for ((before, after, file), numbers) in groups {
        files.insert(format!("{before}{{{numbers}}}/{after}"), entry(file));
    }
    files
}

/// The files of a captured machine: read only.
#[derive(Debug)]
struct Machine {
    files: BTreeMap<String, File>,
}

fn missing() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

impl Machine {
    /// Names of what lies directly below `path`. Empty where nothing does.
    fn below(&self, path: &str) -> BTreeSet<String> {
        let dir = format!("{}/", path.trim_end_matches('/'));
        self.files
            .range(dir.clone()..)
            .map_while(|(p, _)| p.strip_prefix(&dir))
            .map(|rest| rest.split('/').next().unwrap_or(rest).to_owned())
            .collect()
    }
}

impl Files for Machine {
    fn read(&self, path: &str) -> io::Result<String> {
        let file = self.files.get(path).ok_or_else(missing)?;
        if let Some(number) = file.error.as_deref().and_then(errno) {
            return Err(io::Error::from_raw_os_error(number));
        }
        Ok(format!("{}\n", file.text.as_deref().unwrap_or_default()))
    }

    fn write(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EROFS))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = self.below(path);
        if names.is_empty() {
            return Err(missing());
        }
        Ok(names.into_iter().collect())
    }

    fn mkdir(&self, _: &str) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EROFS))
    }

    fn rmdir(&self, _: &str) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EROFS))
    }

    fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path) || !self.below(path).is_empty()
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        let file = self.files.get(path).ok_or_else(missing)?;
        Ok(file.mode.unwrap_or(0o644))
    }

    fn link(&self, _: &str) -> io::Result<String> {
        Err(missing())
    }

    fn affinity(&self, _: u32) -> io::Result<CpuSet> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }

    fn scheduler(&self, _: u32) -> io::Result<i32> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }

    fn set_affinity(&self, _: u32, _: &CpuSet) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }

    fn signal(&self, _: TaskId, _: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}

/// The kernel, with a record of every file that was found there.
struct Recorder<'a> {
    kernel: &'a Kernel,
    seen: Mutex<BTreeMap<String, File>>,
}

impl Recorder<'_> {
    fn note(&self, path: &str, what: impl FnOnce(&mut File)) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        what(seen.entry(path.to_owned()).or_default());
    }
}

impl Files for Recorder<'_> {
    fn read(&self, path: &str) -> io::Result<String> {
        let answer = self.kernel.read(path);
        match &answer {
            Ok(text) => self.note(path, |f| {
                f.text = Some(text.strip_suffix('\n').unwrap_or(text).to_owned());
            }),
            Err(e) if gone(e) => {}
            Err(e) => self.note(path, |f| {
                let number = e.raw_os_error().unwrap_or(libc::EIO);
                let name = ERRORS.iter().find(|(_, n)| *n == number);
                f.error = Some(name.map_or(number.to_string(), |(name, _)| (*name).to_owned()));
            }),
        }
        answer
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.kernel.write(path, text)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.kernel.list(path)
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.kernel.mkdir(path)
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.kernel.rmdir(path)
    }

    fn exists(&self, path: &str) -> bool {
        let there = self.kernel.exists(path);
        // A directory is in the capture by what lies below it.
        if there && self.kernel.list(path).is_err() {
            self.note(path, |_| {});
        }
        there
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        let mode = self.kernel.mode(path)?;
        self.note(path, |f| f.mode = Some(mode & 0o777));
        Ok(mode)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.kernel.link(path)
    }

    fn affinity(&self, tid: u32) -> io::Result<CpuSet> {
        self.kernel.affinity(tid)
    }

    fn scheduler(&self, tid: u32) -> io::Result<i32> {
        self.kernel.scheduler(tid)
    }

    fn set_affinity(&self, tid: u32, cpus: &CpuSet) -> io::Result<()> {
        self.kernel.set_affinity(tid, cpus)
    }

    fn signal(&self, task: TaskId, signal: i32) -> io::Result<()> {
        self.kernel.signal(task, signal)
    }
}

#[cfg(test)]
mod tests;
