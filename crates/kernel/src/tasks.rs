//! Which tasks belong to which group.
//!
//! Rules: the keys of one table must all hold, and one table is enough. A child follows its closest
//! matched ancestor unless it is matched itself. A task that two groups match is an error. Kernel
//! threads, Quell itself, and processes that the caller names (the watchdog) are never matched.

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

/// The match tables of a group, ready to be compared.
#[derive(Debug)]
pub struct Matcher {
    group: GroupId,
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    keys: TaskMatch,
    /// `keys.exe` with its links followed, as the kernel shows the program of a process.
    exe: Option<String>,
    arg: Option<Regex>,
    user: Option<u32>,
}

impl Matcher {
    /// Prepares a group's tables: regular expressions are compiled, and users are looked up.
    ///
    /// # Errors
    /// [`Error::Refused`] for a wrong expression, an unknown user, a container id that is too
    /// short, and a table without keys. Also for a table that joins a whole cgroup with keys that
    /// select single tasks.
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

    /// The name of the group that the tables are of.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The process ids that the tables name. Each has to exist.
    fn pids(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().filter_map(|t| t.keys.pid)
    }

    /// Whether any of these processes matches by itself. `callers` are the ancestors of this
    /// process, and keys for arguments do not apply to them. The user wrote the expression there
    /// (`sudo quell run --critical arg=…`), so it is among their arguments.
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

/// A path with every symbolic link on it followed, as far as it exists. (In Debian `redis-server`
/// is a link to another name, and `/bin` to `/usr/bin`.)
fn resolved(files: &dyn Files, path: &str) -> String {
    /// The kernel's limit (`MAXSYMLINKS`).
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

    /// Whether all keys match. Cheap keys come first.
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
        .is_none_or(|unit| parts().any(|p| p == unit || unescaped(p) == unescaped(unit)));
    let container = keys
        .container
        .as_deref()
        .is_none_or(|id| parts().any(|p| is_container(p, id)));
    cgroup && unit && container
}

/// A unit's name without systemd's escapes (`\x2d` for `-`): people write both.
fn unescaped(unit: &str) -> String {
    let mut pieces = unit.split("\\x");
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..2).and_then(|d| u8::from_str_radix(d, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(byte) => {
                whole.push(char::from(byte));
                whole.push_str(&piece[2..]);
            }
            None => {
                whole.push_str("\\x");
                whole.push_str(piece);
            }
        }
    }
    whole
}

/// Whether a part of a path names a container: `<id>`, `docker-<id>.scope`,
/// `cri-containerd-<id>.scope`, `libpod-<id>`. Its monitor (`libpod-conmon-<id>.scope`) is none.
fn is_container(part: &str, id: &str) -> bool {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let mut pieces = part.split(['-', ':']);
    pieces.clone().all(|p| p != "conmon") && pieces.any(|p| p.starts_with(id))
}

/// The cgroups (as paths from the hierarchy's root) that the in-place tables of a group name, as
/// far as tasks live there.
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

/// The shortest beginning of `path` that the table still matches: the cgroup as a whole, not the
/// child that a task is in.
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

/// The processes of each group, by the group's name.
pub type Assigned = BTreeMap<GroupId, Vec<Stat>>;

/// The group that matches a process by itself. `None` where none does.
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
                // Quell places the programs that it started itself. They do not follow its own
                // group.
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
#[path = "tasks_tests.rs"]
mod tests;
