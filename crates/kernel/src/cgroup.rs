//! Which cgroup hierarchies there are, where they are mounted, and where this process is in them.
//!
//! Documentation/admin-guide/cgroup-v1/cgroups.rst, cgroup-v2.rst; cgroups(7). A machine may run
//! v1, v2 or both at once ("hybrid"). Every controller is bound to exactly one hierarchy, except
//! `perf_event`, which is on v2 implicitly unless a v1 hierarchy has it.

use std::time::{Duration, Instant};

use quell_types::cpuset::CpuSet;

use crate::cgroup_tree::{self, tasks_in};
use crate::error::{Error, Result};
use crate::procfs::{self, Membership};
use crate::root::Files;

/// The controllers that Quell uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPUs and memory nodes.
    Cpuset,
    /// The CPU-time quota and weight.
    Cpu,
    /// Counting events per cgroup.
    PerfEvent,
    /// Stopping a cgroup whole (v1; in v2 every cgroup can be frozen).
    Freezer,
    /// Limits and protection of memory.
    Memory,
    /// Limits and accounts of disk traffic (v2).
    Io,
    /// Pressure stall information: how long tasks wait (v2, in every cgroup).
    Pressure,
}

impl Controller {
    /// The kernel's name, as in `cgroup.controllers`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpuset => "cpuset",
            Self::Cpu => "cpu",
            Self::PerfEvent => "perf_event",
            Self::Freezer => "freezer",
            Self::Memory => "memory",
            Self::Io => "io",
            Self::Pressure => "pressure",
        }
    }

    /// Whether it works in every v2 cgroup without being enabled in `cgroup.subtree_control`.
    #[must_use]
    pub const fn implicit_in_v2(self) -> bool {
        matches!(self, Self::PerfEvent | Self::Freezer | Self::Pressure)
    }
}

/// The two versions of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// One hierarchy per set of controllers. Threads move one by one (`tasks`).
    V1,
    /// One hierarchy for all controllers. Processes move whole.
    V2,
}

/// A hierarchy that is mounted, and its controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// v1 or v2, from the type of the mount.
    pub version: Version,
    /// Path of the mount point.
    pub mount: String,
    /// Which of its cgroups the mount shows at its top (`/` unless only a part is mounted).
    pub top: String,
    /// Names of the controllers that it offers (v1: also `name=…`).
    pub controllers: Vec<String>,
    /// The cgroup of this process, from the hierarchy's root.
    pub own: String,
}

impl Hierarchy {
    /// The directory of a cgroup given by its path from the hierarchy's root. `None` where the
    /// mount does not show it.
    #[must_use]
    pub fn dir(&self, path: &str) -> Option<String> {
        shown(&self.mount, &self.top, path)
    }

    /// The directory of this process's cgroup; the mount point where that is not visible.
    #[must_use]
    pub fn own_dir(&self) -> String {
        self.dir(&self.own).unwrap_or_else(|| self.mount.clone())
    }

    /// Whether a task's membership line belongs to this hierarchy.
    #[must_use]
    pub fn is_of(&self, membership: &Membership) -> bool {
        match self.version {
            Version::V2 => membership.hierarchy == 0,
            Version::V1 => {
                membership.hierarchy != 0
                    && membership
                        .controllers
                        .iter()
                        .any(|c| self.controllers.contains(c))
            }
        }
    }

    /// The directory that a task is in. `None` when the task ended or is outside of the mount.
    ///
    /// # Errors
    /// As [`procfs::memberships`].
    pub fn dir_of(&self, files: &dyn Files, tid: u32) -> Result<Option<String>> {
        let places = procfs::memberships(files, &tid.to_string())?;
        Ok(places
            .iter()
            .find(|m| self.is_of(m))
            .and_then(|m| self.dir(&m.path)))
    }
}

/// Where a mount that shows `top` shows a cgroup. `None` where it does not.
fn shown(mount: &str, top: &str, path: &str) -> Option<String> {
    let below = if top == "/" {
        path
    } else {
        let rest = path.strip_prefix(top)?;
        if !(rest.is_empty() || rest.starts_with('/')) {
            return None;
        }
        rest
    };
    if below.split('/').any(|part| part == "..") {
        return None;
    }
    Some(format!("{mount}{}", below.trim_end_matches('/')))
}

/// Whether there is a v2 cgroup with this path, as far as a mount shows it.
pub(crate) fn exists(files: &dyn Files, path: &str) -> bool {
    let all = mounts(files).unwrap_or_default().into_iter();
    all.filter(|mount| mount.kind == "cgroup2")
        .filter_map(|mount| shown(&mount.point, &mount.top, path))
        .any(|dir| files.exists(&dir))
}

/// The cgroup hierarchies of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// In the order of `/proc/self/mountinfo`, without second mounts.
    pub hierarchies: Vec<Hierarchy>,
}

impl Cgroups {
    /// Finds the mounts, and this process's cgroup in each.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`]. No hierarchy at all is no error: the list is empty.
    pub fn discover(files: &dyn Files) -> Result<Self> {
        let own = procfs::memberships(files, "self")?;
        let known = files.optional("/proc/cgroups")?.unwrap_or_default();
        let mut found: Vec<Hierarchy> = Vec::new();
        for mount in mounts(files)? {
            let version = match mount.kind.as_str() {
                "cgroup" => Version::V1,
                "cgroup2" => Version::V2,
                _ => continue,
            };
            let mut controllers = match version {
                Version::V1 => v1_controllers(&mount.options, &known),
                Version::V2 => v2_controllers(files, &mount.point)?,
            };
            controllers.sort_unstable();
            let mut hierarchy = Hierarchy {
                version,
                mount: mount.point,
                top: mount.top,
                controllers,
                own: String::new(),
            };
            // Of a hierarchy that is mounted twice, the first mount is used.
            if found
                .iter()
                .any(|h| h.version == version && h.controllers == hierarchy.controllers)
            {
                continue;
            }
            if let Some(place) = own.iter().find(|m| hierarchy.is_of(m)) {
                hierarchy.own.clone_from(&place.path);
                found.push(hierarchy);
            }
        }
        let perf_in_v1 = found
            .iter()
            .any(|h| h.version == Version::V1 && h.controllers.iter().any(|c| c == "perf_event"));
        if !perf_in_v1
            && enabled(&known, "perf_event")
            && let Some(v2) = found.iter_mut().find(|h| h.version == Version::V2)
        {
            v2.controllers.push("perf_event".to_owned());
        }
        Ok(Self { hierarchies: found })
    }

    /// The hierarchy that a controller is bound to. `None` where it is on none.
    #[must_use]
    pub fn of(&self, controller: Controller) -> Option<&Hierarchy> {
        let by_name = self
            .hierarchies
            .iter()
            .find(|h| h.controllers.iter().any(|c| c == controller.name()));
        // In v2 these two need no controller.
        let without = matches!(controller, Controller::Freezer | Controller::Pressure);
        by_name.or_else(|| self.v2().filter(|_| without))
    }

    /// The v2 hierarchy. `None` where it is not mounted.
    #[must_use]
    pub fn v2(&self) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.version == Version::V2)
    }

    /// The CPUs that this process's cpuset allows. `None` without a cpuset hierarchy.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn own_cpus(&self, files: &dyn Files) -> Result<Option<CpuSet>> {
        let Some(hierarchy) = self.of(Controller::Cpuset) else {
            return Ok(None);
        };
        effective_cpus(files, hierarchy, &hierarchy.own_dir())
    }
}

/// The mount point and all cgroups from it down to `dir`, the highest first.
#[must_use]
pub fn chain(mount: &str, dir: &str) -> Vec<String> {
    let mut at = mount.to_owned();
    let mut all = vec![at.clone()];
    let below = dir.strip_prefix(mount).unwrap_or_default();
    for part in below.split('/').filter(|part| !part.is_empty()) {
        at = format!("{at}/{part}");
        all.push(at.clone());
    }
    all
}

/// The CPUs that tasks of a cgroup may really use. `None` where no file says so.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn effective_cpus(
    files: &dyn Files,
    hierarchy: &Hierarchy,
    dir: &str,
) -> Result<Option<CpuSet>> {
    effective(files, hierarchy, dir, "cpus")
}

/// The memory nodes that tasks of a cgroup may really use. `None` where no file says so.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn effective_mems(
    files: &dyn Files,
    hierarchy: &Hierarchy,
    dir: &str,
) -> Result<Option<CpuSet>> {
    effective(files, hierarchy, dir, "mems")
}

fn effective(
    files: &dyn Files,
    hierarchy: &Hierarchy,
    dir: &str,
    what: &str,
) -> Result<Option<CpuSet>> {
    let names = match hierarchy.version {
        Version::V1 => [format!("cpuset.effective_{what}"), format!("cpuset.{what}")],
        Version::V2 => [format!("cpuset.{what}.effective"), format!("cpuset.{what}")],
    };
    // A v2 cgroup without the controller has its parent's CPUs and nodes.
    let mut at = dir;
    loop {
        for name in &names {
            if let Some(set) = files.cpus(&format!("{at}/{name}"))?
                && !set.is_empty()
            {
                return Ok(Some(set));
            }
        }
        match at.rsplit_once('/') {
            Some((above, _)) if hierarchy.version == Version::V2 && at != hierarchy.mount => {
                at = above;
            }
            _ => return Ok(None),
        }
    }
}

/// Whether a cgroup, or one below it, has any task.
///
/// # Errors
/// [`Error::File`].
pub fn populated(files: &dyn Files, dir: &str) -> Result<bool> {
    // v2 reports it; v1 has to be walked.
    if let Some(events) = files.optional(&format!("{dir}/cgroup.events"))? {
        return Ok(events.lines().any(|l| l == "populated 1"));
    }
    if !tasks_in(files, dir)
        .map_err(|e| Error::file("read", dir, None, e))?
        .is_empty()
    {
        return Ok(true);
    }
    Ok(!cgroup_tree::tasks(files, dir).is_empty())
}

/// Sends SIGKILL to every process in a cgroup that Quell made and below it, including children born
/// meanwhile. `cgroup.kill` does it at once (v2, Linux 5.14). Otherwise processes are killed one by
/// one until none is left or `patience` is over. Returns whether the cgroup is empty.
///
/// # Errors
/// [`Error::File`].
pub fn kill(files: &dyn Files, dir: &str, patience: Duration) -> Result<bool> {
    let switch = format!("{dir}/cgroup.kill");
    let at_once = files.exists(&switch);
    if at_once {
        files.put(&switch, "1")?;
    }
    let started = Instant::now();
    while populated(files, dir)? {
        if started.elapsed() > patience {
            return Ok(false);
        }
        if !at_once {
            kill_listed(files, dir);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

fn kill_listed(files: &dyn Files, dir: &str) {
    cgroup_tree::processes(files, dir, |pid| {
        let pid = i32::try_from(pid).ok();
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
}

/// One line of `/proc/self/mountinfo`.
pub struct Mount {
    top: String,
    /// Path of the mount point.
    pub point: String,
    /// Type of the file system, such as `cgroup2`.
    pub kind: String,
    /// The file system's own options, as the kernel reports them.
    pub options: String,
}

/// All mounts, in the order of `/proc/self/mountinfo`.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn mounts(files: &dyn Files) -> Result<Vec<Mount>> {
    let path = "/proc/self/mountinfo";
    let text = files.text(path)?;
    let wrong = |line| Error::malformed(path, line, "a mount, see proc_pid_mountinfo(5)");
    text.lines()
        .map(|line| parse_mount(line).ok_or_else(|| wrong(line)))
        .collect()
}

/// Parses `36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (top, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let kind = after.next()?;
    let _source = after.next()?;
    Some(Mount {
        top: unescape(top),
        point: unescape(point),
        kind: kind.to_owned(),
        options: after.next().unwrap_or_default().to_owned(),
    })
}

/// Replaces octal escapes: mountinfo writes space, tab, newline and backslash as three octal
/// digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'\\'
            && let Some(digits) = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok())
            && let Ok(byte) = u8::from_str_radix(digits, 8)
        {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The controllers among the mount options. `/proc/cgroups` lists which words are controllers.
fn v1_controllers(options: &str, known: &str) -> Vec<String> {
    options
        .split(',')
        .filter(|o| {
            o.starts_with("name=")
                || known
                    .lines()
                    .any(|l| l.split_ascii_whitespace().next() == Some(o))
        })
        .map(str::to_owned)
        .collect()
}

fn v2_controllers(files: &dyn Files, mount: &str) -> Result<Vec<String>> {
    let text = files
        .optional(&format!("{mount}/cgroup.controllers"))?
        .unwrap_or_default();
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Whether a controller is switched on. The last column of `/proc/cgroups` is 0 for a controller
/// switched off on the kernel's command line. Kernels without v1 have no such file; there the
/// controller is taken to be on.
fn enabled(known: &str, controller: &str) -> bool {
    known.is_empty()
        || known.lines().any(|l| {
            let mut fields = l.split_ascii_whitespace();
            fields.next() == Some(controller) && fields.next_back() == Some("1")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn machine(
        mountinfo: &str,
        own: &str,
        v2: Option<(&str, &str)>,
    ) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        std::fs::write(root.join("proc/self/mountinfo"), mountinfo).unwrap();
        std::fs::write(root.join("proc/self/cgroup"), own).unwrap();
        std::fs::write(
            root.join("proc/cgroups"),
            "#subsys_name hierarchy num enabled\ncpuset 3 1 1\ncpu 1 1 1\ncpuacct 1 1 1\nperf_event 0 1 1\n",
        )
        .unwrap();
        if let Some((mount, controllers)) = v2 {
            std::fs::create_dir_all(root.join(mount)).unwrap();
            std::fs::write(root.join(mount).join("cgroup.controllers"), controllers).unwrap();
        }
        let kernel = Kernel::at(root);
        (dir, kernel)
    }

    #[test]
    fn a_chain_begins_at_the_mount_point() {
        assert_eq!(chain("/m", "/m/a/b"), ["/m", "/m/a", "/m/a/b"]);
        assert_eq!(chain("/m", "/m"), ["/m"]);
    }

    #[test]
    fn a_v2_cgroup_without_the_controller_has_what_its_parent_has() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        std::fs::create_dir_all(dir.path().join("cg/user/x/y")).unwrap();
        std::fs::write(dir.path().join("cg/cpuset.cpus.effective"), "0-3").unwrap();
        std::fs::write(dir.path().join("cg/user/cpuset.cpus.effective"), "0-1").unwrap();
        let hierarchy = |version| Hierarchy {
            version,
            mount: "/cg".into(),
            top: "/".into(),
            controllers: Vec::new(),
            own: "/".into(),
        };
        let of = |version, dir: &str| {
            let found = effective_cpus(&kernel, &hierarchy(version), dir).unwrap();
            found.map(|set| set.to_string())
        };
        assert_eq!(of(Version::V2, "/cg/user/x/y").as_deref(), Some("0-1"));
        assert_eq!(of(Version::V2, "/cg/other").as_deref(), Some("0-3"));
        assert_eq!(of(Version::V1, "/cg/user/x"), None, "an empty v1 cpuset");
    }

    #[test]
    fn a_hybrid_machine_has_perf_events_on_v2() {
        let (_dir, kernel) = machine(
            "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
             34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "3:cpuset:/jobs\n1:cpu,cpuacct:/\n0::/\n",
            Some(("sys/fs/cgroup/unified", "")),
        );
        let cgroups = Cgroups::discover(&kernel).unwrap();
        let cpuset = cgroups.of(Controller::Cpuset).unwrap();
        assert_eq!(
            (cpuset.version, cpuset.own_dir().as_str()),
            (Version::V1, "/sys/fs/cgroup/cpuset/jobs")
        );
        assert_eq!(
            cgroups.of(Controller::Cpu).unwrap().mount,
            "/sys/fs/cgroup/cpu"
        );
        let perf = cgroups.of(Controller::PerfEvent).unwrap();
        assert_eq!(
            (perf.version, perf.mount.as_str()),
            (Version::V2, "/sys/fs/cgroup/unified")
        );
        assert_eq!(
            cgroups.of(Controller::Freezer).unwrap().version,
            Version::V2
        );
    }

    #[test]
    fn a_pure_v2_machine_has_everything_in_one_place() {
        let (_dir, kernel) = machine(
            "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
            "0::/user.slice/session-1.scope\n",
            Some(("sys/fs/cgroup", "cpuset cpu io memory pids\n")),
        );
        let cgroups = Cgroups::discover(&kernel).unwrap();
        for controller in [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent] {
            assert_eq!(
                cgroups.of(controller).unwrap().own_dir(),
                "/sys/fs/cgroup/user.slice/session-1.scope"
            );
        }
    }

    #[test]
    fn a_container_sees_only_its_part() {
        let hierarchy = Hierarchy {
            version: Version::V1,
            mount: "/sys/fs/cgroup/cpu".into(),
            top: "/docker/abc".into(),
            controllers: vec!["cpu".into()],
            own: "/docker/abc".into(),
        };
        assert_eq!(hierarchy.own_dir(), "/sys/fs/cgroup/cpu");
        assert_eq!(
            hierarchy.dir("/docker/abc/x").as_deref(),
            Some("/sys/fs/cgroup/cpu/x")
        );
        assert_eq!(hierarchy.dir("/docker/abcd"), None);
        assert_eq!(hierarchy.dir("/docker/abc/../def"), None);
    }

    #[test]
    fn no_cgroups_at_all_is_no_error() {
        let (_dir, kernel) = machine("27 1 254:0 / / rw - ext4 /dev/vda rw\n", "", None);
        assert_eq!(Cgroups::discover(&kernel).unwrap(), Cgroups::default());
        let (_dir, kernel) = machine("nonsense\n", "", None);
        assert!(
            Cgroups::discover(&kernel)
                .unwrap_err()
                .to_string()
                .contains("mountinfo")
        );
    }

    #[test]
    fn escaped_mount_points_are_read() {
        assert_eq!(unescape("/mnt/a\\040b\\134"), "/mnt/a b\\");
    }
}
