//! Which tasks belong to which group.
//!
//! Rules: the keys of one table must all hold, one table suffices. A child follows its closest matched ancestor unless
//! it is matched itself. A task that two groups match is an error. Kernel threads, ourselves, and those the caller
//! names (the watchdog) are never matched.

use std::collections::{BTreeMap, BTreeSet};

use quell_types::ids::GroupId;
use quell_types::task::TaskMatch;
use regex::Regex;

use crate::error::{Error, Result};
use crate::procfs::{self, Membership, Stat};
use crate::root::Files;

/// The shortest beginning of a container's id that is accepted.
const CONTAINER_ID: usize = 12;
/// `TASK_COMM_LEN` without the terminating zero.
const COMM: usize = 15;

/// A group's tables, ready to be compared.
#[derive(Debug)]
pub struct Matcher {
    group: GroupId,
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    keys: TaskMatch,
    /// `keys.exe` with its links followed: what the kernel tells of a process.
    exe: Option<String>,
    arg: Option<Regex>,
    user: Option<u32>,
}

impl Matcher {
    /// Prepares a group's tables: regular expressions are compiled, users looked up.
    ///
    /// # Errors
    /// [`Error::Refused`] for a wrong expression, an unknown user, a container id that is too short, a table without
    /// keys, and a table that joins a whole cgroup with keys that select single tasks.
    pub fn new(files: &dyn Files, group: &str, tables: &[TaskMatch]) -> Result<Self> {
        let tables = tables
            .iter()
            .map(|t| Table::new(files, group, t))
            .collect::<Result<_>>()?;
        Ok(Self {
            group: group.to_owned(),
            tables,
        })
    }

    /// The group's name.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The process numbers the tables name: each has to exist.
    fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().filter_map(|t| t.keys.pid)
    }

    /// Whether a process of these matches by itself. `callers` are the ancestors of this process: an expression for arguments
    /// is among theirs, because the user wrote it there (`sudo quell run --critical arg=…`), so that they do not count for it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn matches_any(
        &self,
        files: &dyn Files,
        processes: &[Stat],
        callers: &[u32],
    ) -> Result<bool> {
        let ourselves = std::process::id();
        let programs = processes
            .iter()
            .filter(|s| !s.kernel_thread() && !s.dead() && s.id.pid != ourselves);
        for stat in programs {
            let calls = callers.contains(&stat.id.pid);
            let candidate = Candidate { files, stat };
            for table in self.tables.iter().filter(|t| !calls || t.arg.is_none()) {
                if table.matches(&candidate)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn matches(&self, task: &Candidate<'_>) -> Result<bool> {
        for table in &self.tables {
            if table.matches(task)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A path with every symbolic link on it followed (`redis-server` is one to another name in Debian, `/bin` to
/// `/usr/bin`), as far as it exists.
fn resolved(files: &dyn Files, path: &str) -> String {
    /// As the kernel counts them (`MAXSYMLINKS`).
    const MOST_LINKS: u32 = 40;
    let parts = |path: &str| path.split('/').rev().map(str::to_owned).collect::<Vec<_>>();
    let mut left = parts(path);
    let mut done = String::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        match part.as_str() {
            "" | "." => {}
            ".." => done.truncate(done.rfind('/').unwrap_or(0)),
            name => {
                let at = format!("{done}/{name}");
                match files.link(&at) {
                    Ok(target) if links < MOST_LINKS => {
                        links += 1;
                        if target.starts_with('/') {
                            done.clear();
                        }
                        left.extend(parts(&target));
                    }
                    _ => done = at,
                }
            }
        }
    }
    done
}

impl Table {
    fn new(files: &dyn Files, group: &str, keys: &TaskMatch) -> Result<Self> {
        if *keys == TaskMatch::default() {
            return Err(Error::refused(format!(
                "group {group}: a match table without keys would match everything"
            )));
        }
        let single = keys.pid.is_some()
            || keys.exe.is_some()
            || keys.comm.is_some()
            || keys.arg.is_some()
            || keys.user.is_some();
        if keys.in_place() && single {
            return Err(Error::refused_with(
                format!(
                    "group {group}: a cgroup, unit or container is taken whole and changed in place; it cannot be \
                         narrowed to single tasks of it"
                ),
                "use two tables, or name the tasks without the cgroup",
            ));
        }
        let arg = match &keys.arg {
            Some(text) => Some(Regex::new(text).map_err(|e| {
                Error::refused(format!(
                    "group {group}: arg '{text}' is not a regular expression: {e}"
                ))
            })?),
            None => None,
        };
        let user = match &keys.user {
            Some(name) => Some(user_id(files, group, name)?),
            None => None,
        };
        if let Some(id) = &keys.container
            && id.len() < CONTAINER_ID
        {
            return Err(Error::refused(format!(
                "group {group}: container '{id}' is too short; give at least {CONTAINER_ID} characters of its id"
            )));
        }
        Ok(Self {
            keys: keys.clone(),
            exe: keys.exe.as_ref().map(|exe| resolved(files, exe)),
            arg,
            user,
        })
    }

    /// Cheap keys first.
    fn matches(&self, task: &Candidate<'_>) -> Result<bool> {
        let keys = &self.keys;
        let pid = task.stat.id.pid;
        let comm = |name: &str| {
            name.as_bytes()
                .iter()
                .take(COMM)
                .eq(task.stat.comm.as_bytes())
        };
        if keys.pid.is_some_and(|p| p != pid) || keys.comm.as_deref().is_some_and(|c| !comm(c)) {
            return Ok(false);
        }
        if let (Some(literal), Some(resolved)) = (&keys.exe, &self.exe) {
            // In another mount namespace the path as written may be the true one.
            let runs = procfs::executable(task.files, pid);
            if !runs.is_some_and(|path| path == *resolved || path == *literal) {
                return Ok(false);
            }
        }
        if let Some(user) = self.user
            && procfs::effective_user(task.files, pid)? != Some(user)
        {
            return Ok(false);
        }
        if let Some(arg) = &self.arg
            && !procfs::arguments(task.files, pid)?
                .iter()
                .any(|a| arg.is_match(a))
        {
            return Ok(false);
        }
        if keys.in_place() {
            let places = procfs::memberships(task.files, &pid.to_string())?;
            if !places.iter().any(|m| in_cgroup(keys, &m.path)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a cgroup's path is within what the table's cgroup, unit and container keys name.
fn in_cgroup(keys: &TaskMatch, path: &str) -> bool {
    let cgroup = keys.cgroup.as_deref().is_none_or(|wanted| {
        let wanted = format!("/{}", wanted.trim_matches('/'));
        path == wanted
            || path
                .strip_prefix(&wanted)
                .is_some_and(|rest| rest.starts_with('/'))
    });
    let parts = || path.split('/');
    let unit = keys
        .unit
        .as_deref()
        .is_none_or(|unit| parts().any(|p| p == unit));
    let container = keys
        .container
        .as_deref()
        .is_none_or(|id| parts().any(|p| is_container(p, id)));
    cgroup && unit && container
}

/// `<id>`, `docker-<id>.scope`, `cri-containerd-<id>.scope`, `libpod-<id>`.
fn is_container(part: &str, id: &str) -> bool {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    part.split(['-', ':']).any(|p| p.starts_with(id))
}

/// The cgroups (as paths from the hierarchy's root) that the in-place tables of a group name, as far as tasks live there.
///
/// # Errors
/// As [`procfs::memberships`].
pub fn cgroups_of(
    files: &dyn Files,
    tables: &[TaskMatch],
    tasks: &[Stat],
) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for task in tasks {
        for Membership { path, .. } in procfs::memberships(files, &task.id.pid.to_string())? {
            for keys in tables
                .iter()
                .filter(|k| k.in_place() && in_cgroup(k, &path))
            {
                found.insert(topmost(keys, &path));
            }
        }
    }
    Ok(found)
}

/// The shortest beginning of `path` that the table still matches: the cgroup as a whole, not the child a task is in.
fn topmost(keys: &TaskMatch, path: &str) -> String {
    path.char_indices()
        .skip(1)
        .filter(|(_, c)| *c == '/')
        .map(|(i, _)| &path[..i])
        .find(|prefix| in_cgroup(keys, prefix))
        .unwrap_or(path)
        .to_owned()
}

fn user_id(files: &dyn Files, group: &str, name: &str) -> Result<u32> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let users = files.optional("/etc/passwd")?.unwrap_or_default();
    users
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
        })
        .ok_or_else(|| {
            Error::refused_with(
                format!("group {group}: there is no user '{name}' in /etc/passwd"),
                "give the user's number (id -u NAME)",
            )
        })
}

struct Candidate<'a> {
    files: &'a dyn Files,
    stat: &'a Stat,
}

/// Who is in which group.
pub type Assigned = BTreeMap<GroupId, Vec<Stat>>;

/// The group that matches a process by itself.
///
/// # Errors
/// [`Error::Refused`] for a process in two groups; [`Error::File`].
pub fn matched(files: &dyn Files, groups: &[Matcher], pid: u32) -> Result<Option<GroupId>> {
    let Some(stat) = procfs::stat(files, pid)?.filter(|s| !s.kernel_thread() && !s.dead()) else {
        return Ok(None);
    };
    let candidate = Candidate { files, stat: &stat };
    let mut found: Option<&Matcher> = None;
    for group in groups {
        if !group.matches(&candidate)? {
            continue;
        }
        if let Some(other) = found.replace(group) {
            return Err(in_two(&stat, other, group));
        }
    }
    Ok(found.map(|group| group.group.clone()))
}

fn in_two(stat: &Stat, one: &Matcher, other: &Matcher) -> Error {
    Error::refused_with(
        format!(
            "process {} ({}) is matched by two groups, {} and {}",
            stat.id.pid, stat.comm, one.group, other.group
        ),
        "make one of their match tables narrower",
    )
}

/// Finds the processes of every group. Groups without any are in the result, empty.
///
/// # Errors
/// [`Error::Refused`] for a task in two groups, and for a `pid` that is gone; [`Error::File`].
pub fn assign(files: &dyn Files, groups: &[Matcher], never: &BTreeSet<u32>) -> Result<Assigned> {
    let ourselves = std::process::id();
    let all = procfs::processes(files)?;
    let eligible = |s: &Stat| {
        !s.kernel_thread() && !s.dead() && s.id.pid != ourselves && !never.contains(&s.id.pid)
    };
    for group in groups {
        for pid in group.pids() {
            let Some(stat) = all.iter().find(|s| s.id.pid == pid) else {
                return Err(pid_gone(files, group, pid)?);
            };
            if !eligible(stat) {
                return Err(Error::refused(format!(
                    "group {}: process {pid} ({}) is a kernel thread, has ended, or is Quell itself",
                    group.group, stat.comm
                )));
            }
        }
    }
    let mut direct: BTreeMap<u32, usize> = BTreeMap::new();
    for stat in all.iter().filter(|s| eligible(s)) {
        let candidate = Candidate { files, stat };
        for (i, group) in groups.iter().enumerate() {
            if !group.matches(&candidate)? {
                continue;
            }
            if let Some(other) = direct.insert(stat.id.pid, i) {
                return Err(in_two(stat, &groups[other], group));
            }
        }
    }
    let parents: BTreeMap<u32, u32> = all.iter().map(|s| (s.id.pid, s.parent)).collect();
    let mut assigned: Assigned = groups
        .iter()
        .map(|g| (g.group.clone(), Vec::new()))
        .collect();
    for stat in all.iter().filter(|s| eligible(s)) {
        let mut at = stat.id.pid;
        // At most as many steps as there are processes: /proc is no snapshot, and may show a loop.
        for _ in 0..=parents.len() {
            if let Some(i) = direct.get(&at) {
                assigned
                    .entry(groups[*i].group.clone())
                    .or_default()
                    .push(stat.clone());
                break;
            }
            match parents.get(&at) {
                // What we started is placed by us, not by its parent's group.
                Some(parent) if *parent != ourselves && *parent != 0 => at = *parent,
                _ => break,
            }
        }
    }
    Ok(assigned)
}

fn pid_gone(files: &dyn Files, group: &Matcher, pid: u32) -> Result<Error> {
    Ok(match procfs::process_of(files, pid)? {
        Some(process) if process != pid => Error::refused_with(
            format!(
                "group {}: {pid} is a thread of process {process}",
                group.group
            ),
            format!("give pid = {process}: a process is taken whole"),
        ),
        _ => Error::refused(format!(
            "group {}: there is no process {pid} (any more)",
            group.group
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;
    use std::path::Path;

    fn process(root: &Path, pid: u32, parent: u32, comm: &str, args: &str, cgroup: &str) {
        let dir = root.join(format!("proc/{pid}"));
        std::fs::create_dir_all(&dir).unwrap();
        let stat =
            format!("{pid} ({comm}) S {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid}00 0 0");
        std::fs::write(dir.join("stat"), stat).unwrap();
        std::fs::write(dir.join("cmdline"), args.replace(' ', "\0") + "\0").unwrap();
        std::fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        std::fs::write(
            dir.join("status"),
            format!("Tgid:\t{pid}\nUid:\t0\t{}\t0\t0\n", 1000),
        )
        .unwrap();
    }

    fn machine() -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let base = 4_000_000;
        process(root, base + 1, 1, "init", "init", "/");
        process(root, base + 10, base + 1, "shell", "bash", "/user.slice");
        process(
            root,
            base + 11,
            base + 10,
            "python3",
            "python3 detect.py",
            "/user.slice",
        );
        process(
            root,
            base + 12,
            base + 11,
            "helper",
            "helper",
            "/user.slice",
        );
        process(
            root,
            base + 20,
            base + 1,
            "dockerd",
            "x",
            "/system.slice/docker-0123456789abcdef.scope/inner",
        );
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::write(
            root.join("etc/passwd"),
            "root:x:0:0::/:\nvision:x:1000:1000::/:\n",
        )
        .unwrap();
        let kernel = Kernel::at(root);
        (dir, kernel)
    }

    fn found(
        kernel: &Kernel,
        groups: &[(&str, &[TaskMatch])],
    ) -> Result<BTreeMap<String, Vec<u32>>> {
        let matchers: Vec<Matcher> = groups
            .iter()
            .map(|(name, tables)| Matcher::new(kernel, name, tables))
            .collect::<Result<_>>()?;
        let assigned = assign(kernel, &matchers, &BTreeSet::new())?;
        Ok(assigned
            .into_iter()
            .map(|(name, tasks)| (name, tasks.iter().map(|t| t.id.pid - 4_000_000).collect()))
            .collect())
    }

    fn by(f: impl FnOnce(&mut TaskMatch)) -> TaskMatch {
        let mut keys = TaskMatch::default();
        f(&mut keys);
        keys
    }

    #[test]
    fn children_follow_their_parent_unless_matched_themselves() {
        let (_dir, kernel) = machine();
        let shell = by(|m| m.comm = Some("shell".into()));
        let detect = by(|m| {
            m.arg = Some("detect\\.py$".into());
            m.user = Some("vision".into());
        });
        let groups = found(&kernel, &[("a", &[shell]), ("b", &[detect])]).unwrap();
        assert_eq!(groups["a"], [10]);
        assert_eq!(groups["b"], [11, 12]);
    }

    #[test]
    fn a_task_in_two_groups_is_an_error_that_names_both_and_it() {
        let (_dir, kernel) = machine();
        let one = by(|m| m.comm = Some("python3".into()));
        let two = by(|m| m.pid = Some(4_000_011));
        let error = found(&kernel, &[("a", &[one]), ("b", &[two])])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("process 4000011 (python3) is matched by two groups, a and b"),
            "{error}"
        );
    }

    #[test]
    fn a_pid_that_is_gone_is_an_error_and_no_match_is_not() {
        let (_dir, kernel) = machine();
        let gone = by(|m| m.pid = Some(4_000_099));
        let error = found(&kernel, &[("a", &[gone])]).unwrap_err().to_string();
        assert_eq!(error, "group a: there is no process 4000099 (any more)");
        let nobody = by(|m| m.exe = Some("/no/such".into()));
        assert!(found(&kernel, &[("a", &[nobody])]).unwrap()["a"].is_empty());
    }

    #[test]
    fn the_arguments_of_a_caller_are_no_match() {
        let (_dir, kernel) = machine();
        let all = procfs::processes(&kernel).unwrap();
        let found = |keys: TaskMatch, callers: &[u32]| {
            let matcher = Matcher::new(&kernel, "g", &[keys]).unwrap();
            matcher.matches_any(&kernel, &all, callers).unwrap()
        };
        let arg = || by(|m| m.arg = Some("detect".into()));
        assert!(found(arg(), &[4_000_010]));
        assert!(!found(arg(), &[4_000_010, 4_000_011]));
        assert!(found(by(|m| m.comm = Some("python3".into())), &[4_000_011]));
        assert!(!found(by(|m| m.comm = Some("gone".into())), &[]));
    }

    #[test]
    fn an_executable_is_known_by_any_of_its_names() {
        let (dir, kernel) = machine();
        let link = |target: &str, name: &str| {
            let at = dir.path().join(name);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, at).unwrap();
        };
        link("usr/bin", "bin");
        link("redis-check-rdb", "usr/bin/redis-server");
        link("/usr/bin/../bin/redis-server", "opt/server");
        link("round", "usr/bin/round");
        let of = |path| resolved(&kernel, path);
        assert_eq!(of("/bin/redis-server"), "/usr/bin/redis-check-rdb");
        assert_eq!(of("/opt/server"), "/usr/bin/redis-check-rdb");
        assert_eq!(of("/usr/bin/gone"), "/usr/bin/gone");
        assert_eq!(of("/bin/round"), "/usr/bin/round", "no way out of a circle");
    }

    #[test]
    fn a_container_is_found_by_the_beginning_of_its_id_and_taken_whole() {
        let (_dir, kernel) = machine();
        let tables = [by(|m| m.container = Some("0123456789ab".into()))];
        assert_eq!(found(&kernel, &[("c", &tables)]).unwrap()["c"], [20]);
        let matcher = Matcher::new(&kernel, "c", &tables).unwrap();
        let tasks = assign(&kernel, &[matcher], &BTreeSet::new())
            .unwrap()
            .remove("c")
            .unwrap();
        let dirs = cgroups_of(&kernel, &tables, &tasks).unwrap();
        assert_eq!(
            dirs.into_iter().collect::<Vec<_>>(),
            ["/system.slice/docker-0123456789abcdef.scope"]
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let (_dir, kernel) = machine();
        let refused =
            |keys: TaskMatch| Matcher::new(&kernel, "g", &[keys]).unwrap_err().to_string();
        assert!(refused(TaskMatch::default()).contains("match everything"));
        assert!(refused(by(|m| m.arg = Some("(".into()))).contains("not a regular expression"));
        assert!(refused(by(|m| m.user = Some("nobody-here".into()))).contains("no user"));
        assert!(refused(by(|m| m.container = Some("0123".into()))).contains("too short"));
        let mixed = by(|m| {
            m.unit = Some("x.service".into());
            m.comm = Some("x".into());
        });
        assert!(refused(mixed).contains("changed in place"));
    }

    #[test]
    fn a_long_command_is_compared_by_its_first_15_bytes() {
        let (dir, kernel) = machine();
        process(dir.path(), 4_000_030, 1, "a-very-long-com", "x", "/");
        let keys = by(|m| m.comm = Some("a-very-long-command".into()));
        assert_eq!(found(&kernel, &[("g", &[keys])]).unwrap()["g"], [30]);
    }
}
