//! Which tasks belong to which group.
//!
//! Rules: the keys of one table must all hold, and one table is enough. A child follows its closest
//! matched ancestor unless it is matched itself. A table of facts counts more than one with claims.
//! A task that two groups match alike is in neither. Kernel threads, Quell itself, and processes
//! that the caller names (the watchdog) are never matched.
//!
//! `pid`, `user`, `exe`, `cgroup`, `unit` and `container` are facts: an unprivileged user cannot
//! bring them about for a program of the user's own. `comm` and `arg` are what a program says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quell_types::ids::GroupId;
use quell_types::task::{TaskId, TaskMatch};
use regex::Regex;

use crate::candidate::Candidate;
use crate::cgroup::Cgroups;
use crate::error::{Error, Result};
use crate::identity::{executes, is_container, is_managers, is_unit, number};
use crate::left_out::{LeftOut, Why};
use crate::procfs::{self, Membership, Stat};
use crate::reader;
use crate::reading::{self, Arguments};
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
    /// The processes that were meant by their numbers: a later one of a number is another.
    pins: BTreeMap<u32, TaskId>,
}

#[derive(Debug)]
struct Table {
    keys: TaskMatch,
    /// `keys.exe` with its links followed, as the kernel shows the program of a process.
    exe: Option<String>,
    arg: Option<Regex>,
    user: Option<u32>,
    /// The cgroups that a unit or container is looked for in.
    cgroups: Option<Cgroups>,
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
            pins: BTreeMap::new(),
        })
    }

    /// The same for these processes where tables name their numbers, and for no later ones.
    #[must_use]
    pub fn pinned(mut self, pins: &BTreeMap<u32, TaskId>) -> Self {
        self.pins.clone_from(pins);
        self
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
        let never = BTreeSet::new();
        let mut asked = Vec::new();
        for stat in processes.iter().filter(|s| eligible(s, &never)) {
            let candidate = Candidate::new(files, stat, None);
            if self.one_matches(&candidate, callers)? {
                return Ok(true);
            }
            if candidate.asked() {
                asked.push(stat);
            }
        }
        let pids: Vec<u32> = asked.iter().map(|stat| stat.id.pid).collect();
        let told = reading::arguments_of(files, &pids, &mut || {})?;
        for (stat, told) in asked.into_iter().zip(told) {
            if self.one_matches(&Candidate::new(files, stat, Some(told)), callers)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether one of its tables matches. Those who call Quell have its arguments in theirs.
    fn one_matches(&self, task: &Candidate<'_>, callers: &[u32]) -> Result<bool> {
        let calls = callers.contains(&task.stat.id.pid);
        for table in self.tables.iter().filter(|t| !calls || t.arg.is_none()) {
            if table.matches(task)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether one of its tables that go by this matches.
    fn matches(&self, task: &Candidate<'_>, by: By) -> Result<bool> {
        let id = task.stat.id;
        let later = |pid: u32| self.pins.get(&pid).is_some_and(|pin| *pin != id);
        for table in self.tables.iter().filter(|table| table.by() == by) {
            if !table.keys.pid.is_some_and(later) && table.matches(task)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What a table goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// What no program can say of itself.
    Fact,
    /// Among others, a name or an argument.
    Claim,
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
        let single =
            keys.pid.is_some() || keys.exe.is_some() || keys.comm.is_some() || keys.arg.is_some();
        let managed = keys.unit.is_some() || keys.container.is_some();
        if keys.in_place() && (single || keys.user.is_some() && !managed) {
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
            cgroups: match managed {
                true => Some(Cgroups::discover(files)?),
                false => None,
            },
        })
    }

    fn by(&self) -> By {
        match self.keys.comm.is_some() || self.keys.arg.is_some() {
            true => By::Claim,
            false => By::Fact,
        }
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
        if let Some(path) = &self.exe
            && !executes(task.files, pid, path)
        {
            return Ok(false);
        }
        if let Some(user) = self.user
            && !keys.in_place()
            && !procfs::users(task.files, pid)?.is_some_and(|all| is_of(all, user))
        {
            return Ok(false);
        }
        if let Some(arg) = &self.arg
            && !task.arguments().iter().any(|a| arg.is_match(a))
        {
            return Ok(false);
        }
        if keys.in_place() {
            let places = procfs::memberships(task.files, &pid.to_string())?;
            if !places.iter().any(|m| self.is_meant(task.files, m)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Table {
    /// Whether a cgroup is within what the table names, as its manager made it.
    fn is_meant(&self, files: &dyn Files, at: &Membership) -> bool {
        let user = self.user.unwrap_or(0);
        let is = |all| is_managers(files, all, &self.keys, user, at);
        in_cgroup(&self.keys, &at.path) && self.cgroups.as_ref().is_none_or(is)
    }

    /// The shortest beginning of a cgroup's path that is still meant: the cgroup as a whole, not
    /// the child that a task is in.
    fn topmost(&self, files: &dyn Files, at: &Membership) -> Option<String> {
        let ends = at.path.match_indices('/').skip(1).map(|(i, _)| i);
        let mut prefixes = ends.chain([at.path.len()]).map(|i| Membership {
            path: at.path[..i].to_owned(),
            ..at.clone()
        });
        prefixes
            .find(|at| self.is_meant(files, at))
            .map(|at| at.path)
    }
}

/// Whether a process is a user's: not one that an ordinary user has started with the rights of this
/// user (a program with the set-user-ID bit).
fn is_of(users: [u32; 3], user: u32) -> bool {
    users[1] == user && users.iter().all(|one| [0, user].contains(one))
}

/// Whether a cgroup's path is within what the table's cgroup, unit and container keys name.
fn in_cgroup(keys: &TaskMatch, path: &str) -> bool {
    let cgroup = keys
        .cgroup
        .as_deref()
        .is_none_or(|wanted| Path::new(path).starts_with(format!("/{}", wanted.trim_matches('/'))));
    let parts = || path.split('/');
    let (unit, container) = (&keys.unit, &keys.container);
    cgroup
        && unit
            .as_ref()
            .is_none_or(|unit| parts().any(|p| is_unit(p, unit)))
        && container
            .as_ref()
            .is_none_or(|id| parts().any(|p| is_container(p, id)))
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
    let in_place = tables.iter().filter(|table| table.in_place());
    let tables: Vec<Table> = in_place
        .map(|table| Table::new(files, "", table))
        .collect::<Result<_>>()?;
    let mut found = BTreeSet::new();
    for task in tasks {
        for at in procfs::memberships(files, &task.id.pid.to_string())? {
            found.extend(tables.iter().filter_map(|table| table.topmost(files, &at)));
        }
    }
    Ok(found)
}

fn user_id(files: &dyn Files, group: &str, name: &str) -> Result<u32> {
    number(files, name)?.ok_or_else(|| {
        Error::refused_with(
            format!("group {group}: there is no user '{name}' in /etc/passwd"),
            "give the user's number (id -u NAME)",
        )
    })
}

/// Which group matches a process by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// None does, or it has ended.
    None,
    /// This one.
    Group(GroupId),
    /// Two do.
    Two(LeftOut),
}

/// The group that matches a process by itself.
///
/// # Errors
/// [`Error::File`].
pub fn matched(files: &dyn Files, groups: &[Matcher], pid: u32) -> Result<Fit> {
    let Some(stat) = procfs::stat(files, pid)?.filter(|s| !s.kernel_thread() && !s.over()) else {
        return Ok(Fit::None);
    };
    let mut found = direct(files, groups, &stat, None)?;
    if found.is_none() {
        let told = reading::arguments(files, pid)?;
        found = direct(files, groups, &stat, Some(told))?;
    }
    Ok(match found {
        None | Some(Direct::None | Direct::Silent) => Fit::None,
        Some(Direct::One(group)) => Fit::Group(group.clone()),
        Some(Direct::Two(groups)) => Fit::Two(LeftOut::new(&stat, Why::Two(groups))),
    })
}

/// What matches a process by itself.
enum Direct<'g> {
    None,
    /// Nothing that could be read: it lets its readers wait.
    Silent,
    One(&'g GroupId),
    Two([GroupId; 2]),
}

/// What matches a process by itself: facts, else what it claims. Nobody who is known by a fact is
/// asked for arguments. Who was in a group by its arguments stays while they cannot be read. `None`
/// where it takes the arguments to tell.
fn direct<'g>(
    files: &dyn Files,
    groups: &'g [Matcher],
    stat: &Stat,
    told: Option<Arguments>,
) -> Result<Option<Direct<'g>>> {
    let candidate = Candidate::new(files, stat, told);
    let mut found: Vec<&GroupId> = Vec::new();
    for by in [By::Fact, By::Claim] {
        for group in groups {
            if group.matches(&candidate, by)? {
                found.push(&group.group);
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    let asked = candidate.asked();
    let told = candidate.told.filter(|_| asked);
    match &told {
        None if asked => return Ok(None),
        Some(Arguments::Told(_)) => {
            let one = found.first().copied().filter(|_| found.len() == 1);
            reading::remember(stat.id, one);
        }
        Some(Arguments::Silent | Arguments::NotAsked) if found.is_empty() => {
            let before = reading::remembered(stat.id);
            let names = groups.iter().map(|group| &group.group);
            found.extend(names.filter(|name| Some(*name) == before.as_ref()));
        }
        _ => {}
    }
    Ok(Some(match found[..] {
        [] if told == Some(Arguments::Silent) => Direct::Silent,
        [] => Direct::None,
        [group] => Direct::One(group),
        [one, other, ..] => Direct::Two([one.clone(), other.clone()]),
    }))
}

/// The processes of each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    groups: BTreeMap<GroupId, Vec<Stat>>,
    /// Those that are in none, and that a person should know of.
    pub left_out: Vec<LeftOut>,
}

impl Assigned {
    /// Those of a group.
    #[must_use]
    pub fn of(&self, group: &str) -> &[Stat] {
        self.groups.get(group).map_or(&[], Vec::as_slice)
    }

    /// Those of all groups.
    pub fn all(&self) -> impl Iterator<Item = &Stat> {
        self.groups.values().flatten()
    }

    /// Takes those of a group out.
    pub fn take(&mut self, group: &str) -> Vec<Stat> {
        self.groups.remove(group).unwrap_or_default()
    }
}

/// Refuses `pid` keys without such a process.
///
/// # Errors
/// [`Error::Refused`] with the group and the number; [`Error::File`].
pub fn present(files: &dyn Files, groups: &[Matcher], never: &BTreeSet<u32>) -> Result<()> {
    for group in groups {
        for pid in group.pids() {
            let Some(stat) = procfs::stat(files, pid)? else {
                return Err(pid_gone(files, group, pid)?);
            };
            if !eligible(&stat, never) {
                return Err(Error::refused(format!(
                    "group {}: process {pid} ({}) is a kernel thread, has ended, or is Quell itself",
                    group.group, stat.comm
                )));
            }
        }
    }
    Ok(())
}

fn eligible(stat: &Stat, never: &BTreeSet<u32>) -> bool {
    let pid = stat.id.pid;
    let ours = pid == std::process::id() || reader::is_reader(pid);
    !stat.kernel_thread() && !stat.dead() && !ours && !never.contains(&pid)
}

/// Finds the processes of every group. Calls `alive` now and then: whoever starts processes without
/// end makes it long.
///
/// # Errors
/// [`Error::File`].
pub fn assign(
    files: &dyn Files,
    groups: &[Matcher],
    never: &BTreeSet<u32>,
    alive: &mut dyn FnMut(),
) -> Result<Assigned> {
    /// Processes between two calls.
    const CALLED: usize = 64;
    let ourselves = std::process::id();
    let all = procfs::processes(files)?;
    let mut assigned = Assigned::default();
    // Of each process that is matched by itself: its group, or that it is in none.
    let mut known: BTreeMap<u32, Option<&GroupId>> = BTreeMap::new();
    let mut take = |stat: &Stat, found| match found {
        Direct::None => {}
        Direct::Silent => assigned.left_out.push(LeftOut::new(stat, Why::Silent)),
        Direct::One(group) => {
            known.insert(stat.id.pid, Some(group));
        }
        Direct::Two(groups) => {
            known.insert(stat.id.pid, None);
            assigned.left_out.push(LeftOut::new(stat, Why::Two(groups)));
        }
    };
    let mut asked = Vec::new();
    for (n, stat) in all.iter().filter(|s| eligible(s, never)).enumerate() {
        if n % CALLED == 0 {
            alive();
        }
        match direct(files, groups, stat, None)? {
            Some(found) => take(stat, found),
            None => asked.push(stat),
        }
    }
    let pids: Vec<u32> = asked.iter().map(|stat| stat.id.pid).collect();
    let told = reading::arguments_of(files, &pids, alive)?;
    for (stat, told) in asked.into_iter().zip(told) {
        if let Some(found) = direct(files, groups, stat, Some(told))? {
            take(stat, found);
        }
    }
    reading::forget_others(&all);
    let parents: BTreeMap<u32, u32> = all.iter().map(|s| (s.id.pid, s.parent)).collect();
    for stat in all.iter().filter(|s| eligible(s, never)) {
        let mut at = stat.id.pid;
        // At most as many steps as there are processes: /proc is no snapshot, and may show a loop.
        for _ in 0..=parents.len() {
            if let Some(group) = known.get(&at) {
                if let Some(group) = group {
                    let of = assigned.groups.entry((*group).clone()).or_default();
                    of.push(stat.clone());
                }
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
