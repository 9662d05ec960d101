//! Cache and memory-bandwidth allocation (resctrl). Its behaviour was recorded from Linux 6.12 and
//! 7.2 on the lab's emulated processors. The same bodies run on it and on those kernels
//! (`tests/conformance/resctrl.rs`).
//!
//! Where the two kernels differ, so does the model. After 6.12 making groups and giving CPUs empty
//! the status first, and values are no longer padded. A new group may get a mask with holes, and a
//! directory in `info` is refused with ENODEV. The line is drawn at 7.0; it is not known which
//! kernel began.
//!
//! Deviations:
//! - There is one domain of each third level and of bandwidth, and one of the second level for each
//!   CPU pair. CPUs go offline only as domains of one resource (`Machine::resctrl_domain`).
//! - There are no counters to be assigned; counters are zero.
//! - Released monitoring ids can be used again at once, unless a test makes them wait
//!   (`Machine::limbo`).
//! - Monitor groups have CPUs, but those CPUs bring no tasks into them.

mod info;
pub(super) mod locked;
mod making;
mod schemata;
mod shape;

use std::collections::{BTreeMap, BTreeSet};

use quell_types::cpuset::CpuSet;

use super::Answer;
use super::task::Task;
use crate::root::{format_mask, parse_mask};
use locked::{Lock, Region};
pub use shape::Rdt;
use shape::{Domains, Resource, resources};

pub(super) const MOUNT: &str = "/sys/fs/resctrl";

/// The path below the mount; `/` for the mount itself. `None` for other paths.
pub(super) fn below(path: &str) -> Option<String> {
    match path.strip_prefix(MOUNT)? {
        "" => Some("/".to_owned()),
        rest if rest.starts_with('/') => Some(rest.to_owned()),
        _ => None,
    }
}

#[derive(Clone, Debug)]
struct Control {
    /// Values of each resource, by its name and domain.
    values: BTreeMap<String, Domains>,
    exclusive: bool,
    /// Set while the group is used for locking, and is no class of service.
    lock: Option<Lock>,
    cpus: CpuSet,
    monitors: BTreeMap<String, CpuSet>,
}

/// The groups of a task: its control group, and a monitor group in it.
type Home = (String, Option<String>);

/// The modelled resctrl, mounted or not.
pub(crate) struct Resctrl {
    rdt: Rdt,
    /// Whether the kernel empties the status at every command, and pads nothing.
    newer: bool,
    cpus: CpuSet,
    /// Its mount options. `None` while it is not mounted.
    options: Option<String>,
    resources: Vec<Resource>,
    /// By name; the name of the default group is empty.
    groups: BTreeMap<String, Control>,
    /// Tasks that are not in the default group.
    tasks: BTreeMap<u32, Home>,
    /// Locked regions, also those of removed groups.
    regions: Vec<Region>,
    /// Number of monitoring ids that wait for their lines to leave the cache.
    limbo: u32,
    threshold: u64,
    status: String,
}

const FILES: [&str; 6] = ["cpus", "cpus_list", "mode", "schemata", "size", "tasks"];
const MONITOR_FILES: [&str; 3] = ["cpus", "cpus_list", "tasks"];
const EVENTS: [&str; 3] = ["llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"];
const OPTIONS: [&str; 3] = ["cdp", "cdpl2", "mba_MBps"];

/// What a path below the mount refers to.
enum Place {
    Group(String),
    File(String, String),
    Info(String),
    /// The directory `mon_groups` of a group.
    Monitors(String),
    Monitor(String, String),
    MonitorFile(String, String, String),
    Data(String),
}

impl Resctrl {
    pub fn new(rdt: &Rdt, cpus: &CpuSet, release: (u32, u32)) -> Self {
        let mut new = Self {
            rdt: rdt.clone(),
            newer: release >= (7, 0),
            cpus: cpus.clone(),
            options: None,
            resources: Vec::new(),
            groups: BTreeMap::new(),
            tasks: BTreeMap::new(),
            regions: Vec::new(),
            limbo: 0,
            threshold: 65536,
            status: String::new(),
        };
        if rdt.mounted {
            let _ = new.mount("");
        }
        new
    }

    /// Its options as in `/proc/self/mountinfo`. `None` where it is not mounted.
    pub fn mounted(&self) -> Option<&str> {
        self.options.as_deref()
    }

    pub fn mount(&mut self, options: &str) -> Answer<()> {
        if self.options.is_some() {
            return Err(libc::EBUSY);
        }
        let wanted: Vec<&str> = options.split(',').filter(|o| !o.is_empty()).collect();
        let has = |option: &str| wanted.contains(&option);
        if wanted.iter().any(|o| !OPTIONS.contains(o)) || (has("cdpl2") && self.rdt.l2.is_none()) {
            return Err(libc::EINVAL);
        }
        self.resources = resources(
            &self.rdt,
            has("cdp"),
            has("cdpl2"),
            has("mba_MBps"),
            &self.cpus,
        );
        self.options = Some(wanted.join(","));
        let default = self.control(|r| r.all(), self.cpus.clone());
        self.groups = BTreeMap::from([(String::new(), default)]);
        self.status.clear();
        Ok(())
    }

    pub fn unmount(&mut self, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        self.options.take().ok_or(libc::EINVAL)?;
        for group in std::mem::take(&mut self.groups).into_keys() {
            self.unlock(&group, tasks);
        }
        self.tasks.clear();
        Ok(())
    }

    /// Puts a child into its parent's groups.
    pub fn born(&mut self, parent: u32, child: u32) {
        if let Some(home) = self.tasks.get(&parent).cloned() {
            self.tasks.insert(child, home);
        }
    }

    pub fn gone(&mut self, tid: u32) {
        self.tasks.remove(&tid);
    }

    /// Takes a domain offline or online. One that comes back has the values of a new one.
    pub fn set_domain(&mut self, resource: &str, domain: u32, online: bool) {
        let Some(resource) = self.resources.iter_mut().find(|r| r.name == resource) else {
            return;
        };
        resource.domains.retain(|d| *d != domain);
        if online {
            resource.domains.push(domain);
            resource.domains.sort_unstable();
        }
        for control in self.groups.values_mut() {
            if let Some(values) = control.values.get_mut(&resource.name) {
                values.remove(&domain);
                values.extend(online.then(|| (domain, resource.all())));
            }
        }
    }

    pub fn set_limbo(&mut self, ids: u32) {
        self.limbo = ids;
    }

    /// The text of `/proc/TID/cpu_resctrl_groups`.
    pub fn membership(&self, tid: u32) -> String {
        if self.options.is_none() {
            return "res:\nmon:\n".to_owned();
        }
        let (control, monitor) = self.home(tid);
        let control = if control.is_empty() {
            "/".to_owned()
        } else {
            control
        };
        format!("res:{control}\nmon:{}\n", monitor.unwrap_or_default())
    }

    fn home(&self, tid: u32) -> Home {
        self.tasks.get(&tid).cloned().unwrap_or_default()
    }

    fn control(&self, value: impl Fn(&Resource) -> u32, cpus: CpuSet) -> Control {
        let of = |r: &Resource| {
            let each = r.domains.iter().map(|d| (*d, value(r)));
            (r.name.clone(), each.collect())
        };
        Control {
            values: self.resources.iter().map(of).collect(),
            exclusive: false,
            lock: None,
            cpus,
            monitors: BTreeMap::new(),
        }
    }

    /// The groups that are classes of service.
    fn used(&self) -> impl Iterator<Item = (&String, &Control)> {
        self.groups.iter().filter(|(_, g)| g.lock.is_none())
    }

    /// Number of classes of service: the fewest of any resource.
    fn classes(&self) -> usize {
        let all = self.resources.iter().map(|r| r.classes as usize);
        all.min().unwrap_or(1)
    }

    fn place(&self, rest: &str) -> Answer<Place> {
        if self.options.is_none() {
            return Err(libc::ENOENT);
        }
        let rest = rest.trim_matches('/');
        if rest == "info" || rest.starts_with("info/") {
            return Ok(Place::Info(
                rest["info".len()..].trim_start_matches('/').to_owned(),
            ));
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
            let inside = inside.trim_start_matches('/');
            let (name, file) = inside.split_once('/').unwrap_or((inside, ""));
            if name.is_empty() && self.rdt.rmids > 0 {
                return Ok(Place::Monitors(group));
            }
            if !self.groups[&group].monitors.contains_key(name) {
                return Err(libc::ENOENT);
            }
            return match file {
                "" => Ok(Place::Monitor(group, name.to_owned())),
                file if file.starts_with("mon_data") => Ok(data(file)),
                file if MONITOR_FILES.contains(&file) => {
                    Ok(Place::MonitorFile(group, name.to_owned(), file.to_owned()))
                }
                _ => Err(libc::ENOENT),
            };
        }
        if file.starts_with("mon_data") && self.rdt.rmids > 0 {
            return Ok(data(file));
        }
        match FILES.contains(&file) {
            true => Ok(Place::File(group, file.to_owned())),
            false => Err(libc::ENOENT),
        }
    }

    pub fn read(&self, rest: &str, tasks: &BTreeMap<u32, Task>) -> Answer<String> {
        let here = |is: &dyn Fn(&Home) -> bool| -> String {
            let alive = tasks.iter().filter(|(_, t)| !t.dead());
            let here = alive.filter(|(tid, _)| is(&self.home(**tid)));
            here.map(|(tid, _)| format!("{tid}\n")).collect()
        };
        let cpus = |file: &str, cpus: &CpuSet| match file {
            "cpus" => format!("{}\n", format_mask(cpus)),
            _ => format!("{cpus}\n"),
        };
        match self.place(rest)? {
            Place::Info(name) => self.info(&name).ok_or({
                match self.info_names(&name) {
                    Ok(_) => libc::EISDIR,
                    Err(_) => libc::ENOENT,
                }
            }),
            Place::Data(name) => {
                let leaf = name.strip_prefix("mon_L3_00/").unwrap_or_default();
                match EVENTS.contains(&leaf) {
                    true => Ok("0\n".to_owned()),
                    false if leaf.is_empty() => Err(libc::EISDIR),
                    false => Err(libc::ENOENT),
                }
            }
            Place::Group(_) | Place::Monitors(_) | Place::Monitor(..) => Err(libc::EISDIR),
            Place::File(group, file) if self.closed(&group, &file, false) => Err(libc::EACCES),
            // A monitor group's tasks are those of its control group, too.
            Place::File(group, file) if file == "tasks" => Ok(here(&|home| home.0 == group)),
            Place::File(group, file) => {
                let control = &self.groups[&group];
                let size = file == "size";
                if (size || file == "schemata")
                    && let Some(lines) = self.lines_of_lock(&group, control, size)
                {
                    return Ok(lines);
                }
                let own = self.region(&group);
                let domain = own.map(|r| self.cpus_of(&r.resource, r.domain));
                Ok(match file.as_str() {
                    "mode" if control.lock == Some(Lock::Setup) => "pseudo-locksetup\n".to_owned(),
                    "mode" if control.lock == Some(Lock::Held) => "pseudo-locked\n".to_owned(),
                    "mode" if control.exclusive => "exclusive\n".to_owned(),
                    "mode" => "shareable\n".to_owned(),
                    "schemata" => schemata::lines(&self.resources, control, self.newer),
                    "size" => schemata::sizes(&self.resources, control),
                    file => cpus(file, domain.as_ref().unwrap_or(&control.cpus)),
                })
            }
            Place::MonitorFile(group, name, file) => Ok(match file.as_str() {
                "tasks" => here(&|home| *home == (group.clone(), Some(name.clone()))),
                file => cpus(file, &self.groups[&group].monitors[&name]),
            }),
        }
    }

    pub fn list(&self, rest: &str) -> Answer<Vec<String>> {
        if self.options.is_none() {
            return if rest == "/" {
                Ok(Vec::new())
            } else {
                Err(libc::ENOENT)
            };
        }
        let mut names: BTreeSet<String> = BTreeSet::new();
        match self.place(rest)? {
            Place::Group(group) => {
                names.extend(FILES.map(str::to_owned));
                if self.rdt.rmids > 0 {
                    names.extend(["mon_data", "mon_groups"].map(str::to_owned));
                }
                if group.is_empty() {
                    names.insert("info".to_owned());
                    names.extend(self.groups.keys().filter(|n| !n.is_empty()).cloned());
                }
            }
            Place::Info(name) => names.extend(self.info_names(&name)?),
            Place::Monitors(group) => names.extend(self.groups[&group].monitors.keys().cloned()),
            Place::Monitor(..) => {
                names.extend(MONITOR_FILES.map(str::to_owned));
                names.insert("mon_data".to_owned());
            }
            Place::Data(name) if name.is_empty() => names.extend(["mon_L3_00".to_owned()]),
            Place::Data(name) if name == "mon_L3_00" => names.extend(EVENTS.map(str::to_owned)),
            Place::File(..) | Place::MonitorFile(..) | Place::Data(_) => return Err(libc::ENOTDIR),
        }
        Ok(names.into_iter().collect())
    }

    /// Whether a group that is no class of service refuses reading or writing a file, even for
    /// root.
    fn closed(&self, group: &str, file: &str, write: bool) -> bool {
        match (&self.groups[group].lock, file) {
            (Some(_), "tasks") | (Some(Lock::Setup), "cpus" | "cpus_list") => true,
            (Some(Lock::Held), "cpus" | "cpus_list") => write,
            _ => false,
        }
    }

    /// Adds a line to the status text.
    fn say(&mut self, why: impl AsRef<str>) {
        self.status.push_str(why.as_ref());
        self.status.push('\n');
    }

    fn fail<T>(&mut self, errno: i32, why: impl AsRef<str>) -> Answer<T> {
        self.say(why);
        Err(errno)
    }

    /// Empties the status at commands that did not do so up to some kernel.
    fn begin_lately(&mut self) {
        if self.newer {
            self.status.clear();
        }
    }

    pub fn write(&mut self, rest: &str, text: &str, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        match self.place(rest)? {
            Place::File(group, file) if self.closed(&group, &file, true) => Err(libc::EACCES),
            Place::File(group, file) => match file.as_str() {
                "schemata" => {
                    self.status.clear();
                    self.schemata(&group, text)
                }
                "mode" => {
                    self.status.clear();
                    self.set_mode(&group, text.trim())
                }
                "tasks" => self.take_all(&(group, None), text, tasks),
                "cpus" | "cpus_list" => {
                    let cpus = self.parsed(&file, text)?;
                    self.give(&group, &cpus)
                }
                _ => Err(libc::EACCES),
            },
            Place::MonitorFile(group, name, file) => match file.as_str() {
                "tasks" => self.take_all(&(group, Some(name)), text, tasks),
                _ => {
                    let cpus = self.parsed(&file, text)?;
                    if !cpus.is_subset(&self.groups[&group].cpus) {
                        return self.fail(
                            libc::EINVAL,
                            "Can only add CPUs to mongroup that belong to parent",
                        );
                    }
                    if let Some(control) = self.groups.get_mut(&group) {
                        control.monitors.insert(name, cpus);
                    }
                    Ok(())
                }
            },
            Place::Info(name) if name == "L3_MON/max_threshold_occupancy" => {
                // Rounded down to the unit of the counter.
                self.threshold = text.trim().parse::<u64>().map_err(|_| libc::EINVAL)? / 64 * 64;
                Ok(())
            }
            _ => Err(libc::EACCES),
        }
    }

    fn parsed(&mut self, file: &str, text: &str) -> Answer<CpuSet> {
        self.begin_lately();
        let cpus = match file {
            "cpus" => parse_mask(text),
            _ => text.trim().parse().ok(),
        };
        match cpus {
            Some(cpus) if cpus.is_subset(&self.cpus) => Ok(cpus),
            // Beyond the CPUs that the machine can have.
            Some(_) => self.fail(libc::ERANGE, "Bad CPU list/mask"),
            None => self.fail(libc::EINVAL, "Bad CPU list/mask"),
        }
    }

    /// Moves tasks one after the other. Those before a refused one stay moved.
    fn take_all(&mut self, to: &Home, text: &str, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        self.status.clear();
        let text = text.trim();
        if text.is_empty() {
            return Ok(());
        }
        text.split(',')
            .try_for_each(|t| self.take(to, t.trim(), tasks))
    }

    fn take(&mut self, to: &Home, text: &str, tasks: &BTreeMap<u32, Task>) -> Answer<()> {
        let Ok(pid) = text.parse::<i64>() else {
            return self.fail(libc::EINVAL, format!("Task list parsing error pid {text}"));
        };
        let Ok(pid) = u32::try_from(pid) else {
            return self.fail(libc::EINVAL, format!("Invalid pid {pid}"));
        };
        let pid = if pid == 0 { std::process::id() } else { pid };
        let refused = if !tasks.contains_key(&pid) {
            self.say(format!("No task {pid}"));
            Some(libc::ESRCH)
        } else if to.1.is_some() && self.home(pid).0 != to.0 {
            self.say("Can't move task to different control group");
            Some(libc::EINVAL)
        } else {
            None
        };
        if let Some(errno) = refused {
            return self.fail(errno, format!("Error while processing task {pid}"));
        }
        match *to == Home::default() {
            true => self.tasks.remove(&pid),
            false => self.tasks.insert(pid, to.clone()),
        };
        Ok(())
    }

    /// Gives CPUs to a group. A CPU is in exactly one control group. CPUs that are taken away go to
    /// the default group, which keeps its own.
    fn give(&mut self, group: &str, cpus: &CpuSet) -> Answer<()> {
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
            let cpus = other.cpus.clone();
            for inside in other.monitors.values_mut() {
                *inside = inside.intersection(&cpus);
            }
        }
        Ok(())
    }

    fn set_mode(&mut self, group: &str, mode: &str) -> Answer<()> {
        let lock = self.groups[group].lock.clone();
        let exclusive = match mode {
            "pseudo-locked" if lock == Some(Lock::Held) => return Ok(()),
            "pseudo-locksetup" if lock == Some(Lock::Setup) => return Ok(()),
            _ if lock == Some(Lock::Held) => {
                return self.fail(libc::EINVAL, "Cannot change pseudo-locked group");
            }
            "shareable" => false,
            "exclusive" => true,
            "pseudo-locksetup" => {
                self.set_up(group)?;
                if let Some(control) = self.groups.get_mut(group) {
                    (control.lock, control.exclusive) = (Some(Lock::Setup), false);
                }
                return Ok(());
            }
            _ => return self.fail(libc::EINVAL, "Unknown or unsupported mode"),
        };
        if exclusive && !self.groups[group].exclusive {
            let own = &self.groups[group].values;
            let caches = self.resources.iter().filter(|r| r.bits.is_some());
            let overlaps = caches
                .flat_map(|r| r.domains.iter().map(move |d| (r, *d)))
                .any(|(r, d)| self.overlaps(group, r, d, own[&r.name][&d], false));
            if overlaps {
                return self.fail(libc::EINVAL, "Schemata overlaps");
            }
        }
        if let Some(control) = self.groups.get_mut(group) {
            (control.lock, control.exclusive) = (None, exclusive);
        }
        Ok(())
    }

    /// Whether other groups or devices have some of these ways, for code or for data. `exclusive`:
    /// only exclusive groups count.
    fn overlaps(
        &self,
        group: &str,
        resource: &Resource,
        domain: u32,
        mask: u32,
        exclusive: bool,
    ) -> bool {
        if !exclusive && mask & resource.shareable != 0 {
            return true;
        }
        let others = self.used().filter(|(n, _)| *n != group);
        others
            .filter(|(_, g)| !exclusive || g.exclusive)
            .any(|(_, g)| {
                let mut peers = resource.peers(&self.resources);
                peers.any(|peer| g.values[&peer.name][&domain] & mask != 0)
            })
    }
}

fn data(file: &str) -> Place {
    Place::Data(file["mon_data".len()..].trim_start_matches('/').to_owned())
}
