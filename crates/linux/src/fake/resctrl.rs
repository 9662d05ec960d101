//! Cache and memory-bandwidth allocation (`/sys/fs/resctrl`). Documentation/filesystems/resctrl.rst; the texts of
//! `info/last_cmd_status` as the kernel has them. No machine at hand has it: nothing here was seen, only read.
//!
//! Deviations:
//! - One L3 (12 ways, 12 MiB, domain 0) and one memory-bandwidth domain; no code/data prioritization, no L2, no
//!   pseudo-locking, no `shareable_bits` of other hardware.
//! - Monitoring groups can be made and removed; their counters are zero. RMIDs never run out before CLOSIDs do.
//! - A group's tasks are those written to it; children of a task do not follow it.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::cpuset::CpuSet;

use super::Answer;
use super::machine::Task;
use crate::root::{format_mask, parse_mask};

pub(super) const MOUNT: &str = "/sys/fs/resctrl";

const WAYS: u32 = 12;
const FULL: u32 = (1 << WAYS) - 1;
const CACHE: u64 = 12 << 20;
const LEAST_BANDWIDTH: u32 = 10;
const GRANULARITY: u32 = 10;

/// The path below the mount; `/` for the mount itself.
pub(super) fn below(path: &str) -> Option<String> {
    match path.strip_prefix(MOUNT)? {
        "" => Some("/".to_owned()),
        rest if rest.starts_with('/') => Some(rest.to_owned()),
        _ => None,
    }
}

#[derive(Clone, Debug)]
struct Control {
    mask: u32,
    bandwidth: u32,
    exclusive: bool,
    cpus: CpuSet,
    monitors: BTreeSet<String>,
}

/// The file system.
pub(crate) struct Resctrl {
    closids: u32,
    cpus: CpuSet,
    /// By name; the default group's is empty.
    groups: BTreeMap<String, Control>,
    /// Tasks that are not in the default group.
    tasks: BTreeMap<u32, String>,
    status: String,
}

const FILES: [(&str, u32); 6] = [
    ("cpus", 0o644),
    ("cpus_list", 0o644),
    ("mode", 0o644),
    ("schemata", 0o644),
    ("size", 0o444),
    ("tasks", 0o644),
];

/// What a path names.
enum Place<'a> {
    Group(String),
    File(String, &'a str),
    Info(&'a str),
    /// `mon_groups` of a group, or one in it.
    Monitors(String, Option<&'a str>),
    Data(&'a str),
}

impl Resctrl {
    pub fn new(closids: u32, cpus: &CpuSet) -> Self {
        let default = Control {
            mask: FULL,
            bandwidth: 100,
            exclusive: false,
            cpus: cpus.clone(),
            monitors: BTreeSet::new(),
        };
        Self {
            closids,
            cpus: cpus.clone(),
            groups: BTreeMap::from([(String::new(), default)]),
            tasks: BTreeMap::new(),
            status: String::new(),
        }
    }

    fn info(&self, name: &str) -> Option<String> {
        Some(match name {
            "last_cmd_status" if self.status.is_empty() => "ok\n".to_owned(),
            "last_cmd_status" => self.status.clone(),
            "L3/cbm_mask" => format!("{FULL:x}\n"),
            "L3/min_cbm_bits" => "1\n".to_owned(),
            "L3/num_closids" | "MB/num_closids" => format!("{}\n", self.closids),
            "L3/shareable_bits" => "0\n".to_owned(),
            "L3/bit_usage" => self.usage(),
            "MB/bandwidth_gran" => format!("{GRANULARITY}\n"),
            "MB/delay_linear" => "1\n".to_owned(),
            "MB/min_bandwidth" => format!("{LEAST_BANDWIDTH}\n"),
            "L3_MON/mon_features" => "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n".to_owned(),
            "L3_MON/num_rmids" => format!("{}\n", 8 * self.closids),
            "L3_MON/max_threshold_occupancy" => "65536\n".to_owned(),
            _ => return None,
        })
    }

    const INFO: [&'static str; 13] = [
        "L3/bit_usage",
        "L3/cbm_mask",
        "L3/min_cbm_bits",
        "L3/num_closids",
        "L3/shareable_bits",
        "L3_MON/max_threshold_occupancy",
        "L3_MON/mon_features",
        "L3_MON/num_rmids",
        "MB/bandwidth_gran",
        "MB/delay_linear",
        "MB/min_bandwidth",
        "MB/num_closids",
        "last_cmd_status",
    ];

    /// `0=EESS00…`, highest way first: used exclusively, shared, or by nobody.
    fn usage(&self) -> String {
        let of = |way: u32| {
            let users = || self.groups.values().filter(|g| g.mask >> way & 1 == 1);
            match users().next() {
                None => '0',
                Some(_) if users().all(|g| g.exclusive) => 'E',
                Some(_) => 'S',
            }
        };
        format!("0={}\n", (0..WAYS).rev().map(of).collect::<String>())
    }

    fn place<'a>(&self, rest: &'a str) -> Answer<Place<'a>> {
        let rest = rest.trim_matches('/');
        if let Some(info) = rest.strip_prefix("info") {
            return Ok(Place::Info(info.trim_start_matches('/')));
        }
        let (first, more) = rest.split_once('/').unwrap_or((rest, ""));
        let (group, file) = match self.groups.contains_key(first) && !first.is_empty() {
            true => (first.to_owned(), more),
            false => (String::new(), rest),
        };
        if file.is_empty() {
            return Ok(Place::Group(group));
        }
        if let Some(inside) = file.strip_prefix("mon_groups") {
            let name = inside.trim_start_matches('/');
            return Ok(Place::Monitors(group, (!name.is_empty()).then_some(name)));
        }
        if let Some(inside) = file.strip_prefix("mon_data") {
            return Ok(Place::Data(inside.trim_start_matches('/')));
        }
        match FILES.iter().any(|(name, _)| *name == file) {
            true => Ok(Place::File(group, file)),
            false => Err(libc::ENOENT),
        }
    }

    pub fn read(&self, rest: &str, tasks: &BTreeMap<u32, Task>) -> Answer<String> {
        let (group, file) = match self.place(rest)? {
            Place::File(group, file) => (group, file),
            Place::Info(name) => {
                return match self.info(name) {
                    Some(text) => Ok(text),
                    None if ["", "L3", "MB", "L3_MON"].contains(&name) => Err(libc::EISDIR),
                    None => Err(libc::ENOENT),
                };
            }
            Place::Data(name) => {
                let leaf = name.strip_prefix("mon_L3_00/").unwrap_or_default();
                return match ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"].contains(&leaf)
                {
                    true => Ok("0\n".to_owned()),
                    false if leaf.is_empty() => Err(libc::EISDIR),
                    false => Err(libc::ENOENT),
                };
            }
            Place::Group(_) | Place::Monitors(..) => return Err(libc::EISDIR),
        };
        let control = &self.groups[&group];
        Ok(match file {
            "cpus" => format!("{}\n", format_mask(&control.cpus)),
            "cpus_list" => format!("{}\n", control.cpus),
            "mode" if control.exclusive => "exclusive\n".to_owned(),
            "mode" => "shareable\n".to_owned(),
            "schemata" => {
                format!(
                    "    MB:0={:>4}\n    L3:0={:03x}\n",
                    control.bandwidth, control.mask
                )
            }
            "size" => {
                let bytes = CACHE / u64::from(WAYS) * u64::from(control.mask.count_ones());
                format!("    MB:0={:>4}\n    L3:0={bytes}\n", control.bandwidth)
            }
            _ => {
                let of = |tid: &u32| self.tasks.get(tid).map_or("", String::as_str);
                let here = tasks
                    .iter()
                    .filter(|(tid, t)| !t.dead() && of(tid) == group);
                here.map(|(tid, _)| format!("{tid}\n")).collect()
            }
        })
    }

    pub fn list(&self, rest: &str) -> Answer<Vec<String>> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        match self.place(rest)? {
            Place::Group(group) => {
                names.extend(FILES.map(|(name, _)| name.to_owned()));
                names.extend(["mon_data", "mon_groups"].map(str::to_owned));
                if group.is_empty() {
                    names.insert("info".to_owned());
                    names.extend(self.groups.keys().filter(|n| !n.is_empty()).cloned());
                }
            }
            Place::Info(name) => {
                let dir = if name.is_empty() {
                    String::new()
                } else {
                    format!("{name}/")
                };
                let inside = Self::INFO
                    .iter()
                    .filter_map(|i| i.strip_prefix(dir.as_str()));
                names.extend(inside.map(|i| i.split('/').next().unwrap_or(i).to_owned()));
                if names.is_empty() {
                    return Err(self.info(name).map_or(libc::ENOENT, |_| libc::ENOTDIR));
                }
            }
            Place::Monitors(group, None) => {
                names.extend(self.groups[&group].monitors.iter().cloned());
            }
            Place::Monitors(group, Some(name)) if self.groups[&group].monitors.contains(name) => {
                names.extend(["cpus", "cpus_list", "mon_data", "tasks"].map(str::to_owned));
            }
            Place::Data("") => names.extend(["mon_L3_00".to_owned()]),
            Place::Data("mon_L3_00") => names
                .extend(["llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"].map(str::to_owned)),
            Place::File(..) => return Err(libc::ENOTDIR),
            _ => return Err(libc::ENOENT),
        }
        Ok(names.into_iter().collect())
    }

    fn fail<T>(&mut self, errno: i32, why: impl Into<String>) -> Answer<T> {
        self.status = why.into() + "\n";
        Err(errno)
    }

    pub fn mkdir(&mut self, rest: &str) -> Answer<()> {
        self.status.clear();
        let name = rest.trim_matches('/');
        if name.contains('\n') {
            return Err(libc::EINVAL);
        }
        if let Ok(Place::Monitors(group, Some(monitor))) = self.place(rest) {
            let monitor = monitor.to_owned();
            let Some(control) = self.groups.get_mut(&group) else {
                return Err(libc::ENOENT);
            };
            return match control.monitors.insert(monitor) {
                true => Ok(()),
                false => Err(libc::EEXIST),
            };
        }
        if self.place(rest).is_ok() {
            return Err(libc::EEXIST);
        }
        if name.contains('/') {
            // Only the top takes control groups.
            return Err(libc::EPERM);
        }
        if self.groups.len() >= self.closids as usize {
            return self.fail(libc::ENOSPC, "Out of CLOSIDs");
        }
        // A new group gets every way that nobody has for himself.
        let taken = self
            .groups
            .values()
            .filter(|g| g.exclusive)
            .fold(0, |m, g| m | g.mask);
        let free = lowest_run(FULL & !taken);
        if free == 0 {
            return self.fail(libc::ENOSPC, "No space on L3:0");
        }
        let control = Control {
            mask: free,
            bandwidth: 100,
            exclusive: false,
            cpus: CpuSet::new(),
            monitors: BTreeSet::new(),
        };
        self.groups.insert(name.to_owned(), control);
        Ok(())
    }

    pub fn rmdir(&mut self, rest: &str) -> Answer<()> {
        match self.place(rest)? {
            Place::Group(group) if !group.is_empty() => {
                // Its tasks and CPUs go to the default group.
                if let Some(gone) = self.groups.remove(&group)
                    && let Some(default) = self.groups.get_mut("")
                {
                    default.cpus = default.cpus.union(&gone.cpus);
                }
                self.tasks.retain(|_, g| *g != group);
                Ok(())
            }
            Place::Monitors(group, Some(name)) => {
                let name = name.to_owned();
                let found = self
                    .groups
                    .get_mut(&group)
                    .is_some_and(|g| g.monitors.remove(&name));
                if found { Ok(()) } else { Err(libc::ENOENT) }
            }
            Place::File(..) => Err(libc::ENOTDIR),
            _ => Err(libc::EPERM),
        }
    }

    pub fn write(&mut self, rest: &str, text: &str, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        let Place::File(group, file) = self.place(rest)? else {
            return Err(libc::EACCES);
        };
        let file = file.to_owned();
        self.status.clear();
        match file.as_str() {
            "schemata" => text
                .lines()
                .try_for_each(|line| self.schemata(&group, line)),
            "mode" => self.set_mode(&group, text.trim()),
            "tasks" => text
                .trim()
                .split(',')
                .try_for_each(|t| self.take(&group, t, tasks)),
            "cpus" => match parse_mask(text) {
                Some(cpus) => self.give(&group, &cpus),
                None => self.fail(libc::EINVAL, "Bad CPU list/mask"),
            },
            "cpus_list" => match text.trim().parse() {
                Ok(cpus) => self.give(&group, &cpus),
                Err(_) => self.fail(libc::EINVAL, "Bad CPU list/mask"),
            },
            _ => Err(libc::EACCES),
        }
    }

    fn take(&mut self, group: &str, text: &str, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        let Ok(pid) = text.trim().parse::<u32>() else {
            return self.fail(
                libc::EINVAL,
                format!("Task list parsing error pid {}", text.trim()),
            );
        };
        let pid = if pid == 0 { std::process::id() } else { pid };
        if !tasks.contains_key(&pid) {
            return self.fail(libc::ESRCH, format!("No task {pid}"));
        }
        match group.is_empty() {
            true => self.tasks.remove(&pid),
            false => self.tasks.insert(pid, group.to_owned()),
        };
        Ok(())
    }

    /// A CPU is in exactly one control group; those taken away go to the default group, which keeps what it has.
    fn give(&mut self, group: &str, cpus: &CpuSet) -> Answer<()> {
        if !cpus.is_subset(&self.cpus) {
            return self.fail(libc::EINVAL, "Can only assign online CPUs");
        }
        let before = self.groups[group].cpus.clone();
        let dropped = before.difference(cpus);
        if group.is_empty() && !dropped.is_empty() {
            return self.fail(libc::EINVAL, "Can't drop CPUs from default group");
        }
        for (name, other) in &mut self.groups {
            if name == group {
                other.cpus = cpus.clone();
            } else {
                other.cpus = other.cpus.difference(cpus);
                if name.is_empty() {
                    other.cpus = other.cpus.union(&dropped);
                }
            }
        }
        Ok(())
    }

    fn set_mode(&mut self, group: &str, mode: &str) -> Answer<()> {
        let exclusive = match mode {
            "shareable" => false,
            "exclusive" => true,
            "pseudo-locksetup" | "pseudo-locked" => return Err(libc::EINVAL),
            _ => return self.fail(libc::EINVAL, "Unknown or unsupported mode"),
        };
        let mine = self.groups[group].mask;
        let overlaps = self
            .groups
            .iter()
            .any(|(n, g)| n != group && g.mask & mine != 0);
        if exclusive && overlaps {
            return self.fail(libc::EINVAL, "Schemata overlaps");
        }
        if let Some(control) = self.groups.get_mut(group) {
            control.exclusive = exclusive;
        }
        Ok(())
    }

    fn schemata(&mut self, group: &str, line: &str) -> Answer<()> {
        let Some((resource, domains)) = line.split_once(':') else {
            return self.fail(libc::EINVAL, "Missing ':'");
        };
        let resource = resource.trim();
        if domains.trim().is_empty() {
            return self.fail(libc::EINVAL, format!("Missing '{resource}' value"));
        }
        if !["L3", "MB"].contains(&resource) {
            return self.fail(
                libc::EINVAL,
                format!("Unknown or unsupported resource name '{resource}'"),
            );
        }
        let mut seen = false;
        for part in domains.split(';') {
            let parsed = part
                .split_once('=')
                .and_then(|(d, v)| Some((d.trim().parse::<u32>().ok()?, v.trim())));
            let Some((domain, value)) = parsed else {
                return self.fail(libc::EINVAL, "Missing '=' or non-numeric domain");
            };
            if domain != 0 {
                return Err(libc::EINVAL);
            }
            if std::mem::replace(&mut seen, true) {
                return self.fail(libc::EINVAL, "Duplicate domain 0");
            }
            match resource {
                "L3" => self.set_mask(group, value)?,
                _ => self.set_bandwidth(group, value)?,
            }
        }
        Ok(())
    }

    fn set_bandwidth(&mut self, group: &str, value: &str) -> Answer<()> {
        let Ok(percent) = value.parse::<u32>() else {
            return self.fail(libc::EINVAL, format!("Invalid MB value {value}"));
        };
        if !(LEAST_BANDWIDTH..=100).contains(&percent) {
            let why = format!("MB value {percent} out of range [{LEAST_BANDWIDTH},100]");
            return self.fail(libc::EINVAL, why);
        }
        if let Some(control) = self.groups.get_mut(group) {
            control.bandwidth = percent.div_ceil(GRANULARITY) * GRANULARITY;
        }
        Ok(())
    }

    fn set_mask(&mut self, group: &str, value: &str) -> Answer<()> {
        let Ok(mask) = u32::from_str_radix(value.trim_start_matches("0x"), 16) else {
            return self.fail(
                libc::EINVAL,
                format!("Non-hex character in the mask {value}"),
            );
        };
        if mask == 0 || mask > FULL {
            return self.fail(libc::EINVAL, "Mask out of range");
        }
        if lowest_run(mask) != mask {
            return self.fail(
                libc::EINVAL,
                format!("Mask {mask:x} has non-consecutive 1-bits"),
            );
        }
        let mine = self.groups[group].exclusive;
        let others = || {
            self.groups
                .iter()
                .filter(|(n, _)| *n != group)
                .map(|(_, g)| g)
        };
        if others().any(|g| g.exclusive && g.mask & mask != 0) {
            return self.fail(libc::EINVAL, "Overlaps with exclusive group");
        }
        if mine && others().any(|g| g.mask & mask != 0) {
            return self.fail(libc::EINVAL, "Overlaps with other group");
        }
        if let Some(control) = self.groups.get_mut(group) {
            control.mask = mask;
        }
        Ok(())
    }
}

/// The lowest run of ones.
fn lowest_run(mask: u32) -> u32 {
    if mask == 0 {
        return 0;
    }
    let start = mask.trailing_zeros();
    let length = (mask >> start).trailing_ones();
    (u32::MAX >> (32 - length)) << start
}
