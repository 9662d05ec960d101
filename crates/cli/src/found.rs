//! Before anything is changed: does a process run that the critical groups match, and is each
//! process in one group? A run for a program that is not there would take CPUs from others and
//! protect nothing. `plan` and `run` refuse alike.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_kernel::identity::executes;
use quell_kernel::left_out::{LeftOut, Why};
use quell_kernel::procfs::{self, Stat};
use quell_kernel::reading::{self, Arguments};
use quell_kernel::root::{Files, Kernel};
use quell_kernel::signals::{next_signal, stop_signals};
use quell_kernel::tasks::{Assigned, Matcher};
use quell_policy::{Group, Policy, Role};
use quell_types::task::TaskMatch;
use quell_types::text::suggestion;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::exit::{Exit, Result, failed, usage};
use crate::preview::{assigned, refused};
use crate::terminal::say;

/// How often processes are looked for while a run waits.
const EVERY: Duration = Duration::from_millis(500);
/// Close names that are shown, at most.
const MOST: usize = 3;
/// A shorter name is part of too many.
const SHORTEST: usize = 3;

/// A critical group with match tables, which nothing is launched in.
struct Wanted<'p> {
    name: &'p str,
    tables: &'p [TaskMatch],
    matcher: Matcher,
}

/// Returns once a process runs for every critical group that only matches, and not all of it are
/// in two groups. Without `wait` they have to run now. Without root the processes of others cannot
/// be read: what that means is for the plan to say.
pub fn critical(policy: &Policy, wait: bool, quiet: bool) -> Result<()> {
    if !quell_kernel::is_root() {
        return Ok(());
    }
    let files = Kernel::new().map_err(failed)?;
    let mut wanted = Vec::new();
    for (name, group) in &policy.groups {
        let tables = group.matching.as_slice();
        if group.role == Role::Critical && !tables.is_empty() && group.command.is_none() {
            let matcher = Matcher::new(&files, name, tables).map_err(refused)?;
            wanted.push(Wanted {
                name,
                tables,
                matcher,
            });
        }
    }
    if wait && wanted.is_empty() {
        return Err(usage(
            "--wait: no critical group of this policy matches running processes: there is nothing to wait for",
        ));
    }
    let missing = missing(&files, &wanted)?;
    if missing.is_empty() {
        let assigned = assigned(&files, policy)?;
        if !wait || in_one(policy, &assigned).is_ok() {
            return in_one(policy, &assigned);
        }
    }
    // A number is given to a process when it starts: nobody can know it before.
    let never = |w: &&&Wanted<'_>| w.tables.iter().all(|table| table.pid.is_some());
    if !wait || missing.iter().any(|w| never(&w)) {
        return Err(refusal(&files, &missing, wait)?);
    }
    if !quiet {
        for one in &missing {
            say(&format!(
                "group {}: waiting for a process that matches {}",
                one.name,
                spelled(one.tables)
            ));
        }
        say("nothing is changed before that; Ctrl-C ends the wait");
    }
    until_found(&files, policy, &wanted)
}

/// Refuses a critical group whose only processes are of another group, too, or rather. The
/// protected program would be unprotected, which whoever wrote the policy has to know.
fn in_one(policy: &Policy, assigned: &Assigned) -> Result<()> {
    let critical = |(_, group): &(&String, &Group)| {
        group.role == Role::Critical && !group.matching.is_empty() && group.command.is_none()
    };
    for (name, group) in policy.groups.iter().filter(critical) {
        if assigned.of(name).is_empty() {
            let by_arg = group.matching.iter().any(|table| table.arg.is_some());
            let all = &assigned.left_out;
            let silent = |out: &&LeftOut| by_arg && out.why == Why::Silent;
            let own = all.iter().find(|out| out.fits(name));
            let why = own
                .or_else(|| all.iter().find(silent))
                .map(ToString::to_string);
            let why = why.unwrap_or_else(|| {
                "another group matches it by a fact (pid, user, exe, cgroup, unit, container)"
                    .to_owned()
            });
            return Err(usage(format!(
                "{why}; group {name} has no other process, and nothing was changed"
            )));
        }
    }
    Ok(())
}

fn until_found(files: &Kernel, policy: &Policy, wanted: &[Wanted<'_>]) -> Result<()> {
    let signals = stop_signals().map_err(|e| failed(format!("signals cannot be received: {e}")))?;
    let every = Timespec::try_from(EVERY).unwrap_or_default();
    loop {
        let mut poll = [PollFd::new(&signals, PollFlags::IN)];
        // What interrupts the wait is seen at the next.
        let _ = rustix::event::poll(&mut poll, Some(&every));
        if let Some(signal) = next_signal(&signals) {
            let mut stopped = failed(format!(
                "stopped by signal {signal} while it waited; nothing was changed"
            ));
            stopped.exit = Exit::Status(128 + signal);
            return Err(stopped);
        }
        // Whoever has the name of another group, too, is not who is waited for.
        if missing(files, wanted)?.is_empty() && in_one(policy, &assigned(files, policy)?).is_ok() {
            return Ok(());
        }
    }
}

fn missing<'w, 'p>(files: &Kernel, wanted: &'w [Wanted<'p>]) -> Result<Vec<&'w Wanted<'p>>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let all = procfs::processes(files).map_err(failed)?;
    let callers = procfs::ancestry(files, std::process::id()).map_err(failed)?;
    let mut missing = Vec::new();
    for one in wanted {
        let found = one.matcher.matches_any(files, &all, &callers);
        if !found.map_err(failed)? {
            missing.push(one);
        }
    }
    Ok(missing)
}

/// A process that lets whoever reads its arguments wait.
fn silent(files: &Kernel, all: &[Stat]) -> Option<LeftOut> {
    let is = |stat: &&Stat| reading::arguments(files, stat.id.pid).ok() == Some(Arguments::Silent);
    all.iter()
        .find(is)
        .map(|stat| LeftOut::new(stat, Why::Silent))
}

fn refusal(files: &Kernel, missing: &[&Wanted<'_>], wait: bool) -> Result<crate::exit::Failure> {
    let all = procfs::processes(files).map_err(failed)?;
    let running = running(files, &all)?;
    let mut lines = Vec::new();
    for one in missing {
        lines.push(format!(
            "group {}: no running process matches {}; nothing was changed",
            one.name,
            spelled(one.tables)
        ));
        if let Some(name) = kernels(one.tables, &all) {
            lines.push(format!(
                "{name} is a thread of the kernel: those belong to no group"
            ));
        }
        if one.tables.iter().any(|table| table.arg.is_some()) {
            lines.extend(silent(files, &all).as_ref().map(LeftOut::to_string));
        }
        let close = closest(one.tables, &running);
        if !close.is_empty() {
            lines.push(format!("the closest that run: {}", close.join(", ")));
        }
    }
    lines.push(if wait {
        "give the number of a process that runs, or another key than pid to wait for".to_owned()
    } else {
        "start the program first, correct the match, or wait for it with `quell run --wait`"
            .to_owned()
    });
    Ok(usage(lines.join("\nquell: ")))
}

/// The kernel's thread that a table names by its number or name.
fn kernels<'t>(tables: &'t [TaskMatch], all: &'t [Stat]) -> Option<&'t str> {
    let mut threads = all.iter().filter(|stat| stat.kernel_thread());
    let named = |stat: &Stat, table: &TaskMatch| {
        table.pid == Some(stat.id.pid) || table.comm.as_deref() == Some(&stat.comm)
    };
    let found = threads.find(|stat| tables.iter().any(|table| named(stat, table)));
    found.map(|stat| stat.comm.as_str())
}

/// Match tables as the command line has them.
pub fn spelled(tables: &[TaskMatch]) -> String {
    let tables: Vec<String> = tables.iter().map(ToString::to_string).collect();
    tables.join(" or ")
}

/// A name of a running process, and the table that would match it by that name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    pid: u32,
    key: Key,
    /// What is compared.
    name: String,
    /// The table, as the command line has it.
    table: String,
}

/// The key of a table that a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Comm,
    Exe,
    Arg,
    Unit,
    Cgroup,
}

/// The names of all programs but our own and those that called it.
fn running(files: &Kernel, all: &[Stat]) -> Result<Vec<Name>> {
    let callers = procfs::ancestry(files, std::process::id()).map_err(failed)?;
    let programs = all
        .iter()
        .filter(|s| !s.kernel_thread() && !s.dead() && !callers.contains(&s.id.pid));
    Ok(programs.flat_map(|stat| names(files, stat)).collect())
}

/// A process that ends meanwhile has no names; this is for a hint, not for a decision.
fn names(files: &dyn Files, stat: &Stat) -> Vec<Name> {
    let pid = stat.id.pid;
    let mut names = Vec::new();
    let mut put = |key, name: &str, table: TaskMatch| {
        names.push(Name {
            pid,
            key,
            name: name.to_owned(),
            table: table.to_string(),
        });
    };
    let comm = Some(stat.comm.clone());
    put(
        Key::Comm,
        &stat.comm,
        TaskMatch {
            comm,
            ..TaskMatch::default()
        },
    );
    if let Some(exe) = own_program(files, pid) {
        let table = TaskMatch {
            exe: Some(exe.clone()),
            ..TaskMatch::default()
        };
        put(Key::Exe, base(&exe), table);
    }
    // The script of an interpreter.
    let arguments = reading::arguments(files, pid)
        .map(Arguments::words)
        .unwrap_or_default();
    if let Some(script) = arguments.get(1).filter(|a| !a.starts_with('-')) {
        let name = base(script);
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !name.is_empty() && name.chars().all(plain) {
            let arg = Some(name.replace('.', "[.]"));
            put(
                Key::Arg,
                name,
                TaskMatch {
                    arg,
                    ..TaskMatch::default()
                },
            );
        }
    }
    for place in procfs::memberships(files, &pid.to_string()).unwrap_or_default() {
        if let Some(unit) = place.path.split('/').rfind(|p| p.ends_with(".service")) {
            let table = TaskMatch {
                unit: Some(unit.to_owned()),
                user: manager(&place.path),
                ..TaskMatch::default()
            };
            put(Key::Unit, unit, table);
        }
        if place.path.len() > 1 {
            let table = TaskMatch {
                cgroup: Some(place.path.clone()),
                ..TaskMatch::default()
            };
            put(Key::Cgroup, &place.path, table);
        }
    }
    names
}

/// The program of a process, where it can be named by its path.
pub fn own_program(files: &dyn Files, pid: u32) -> Option<String> {
    procfs::executable(files, pid).filter(|path| executes(files, pid, path))
}

/// The user whose manager has made what is below in a cgroup's path. `None`: root's.
pub fn manager(path: &str) -> Option<String> {
    let user = |part: &str| {
        part.strip_prefix("user@")?
            .strip_suffix(".service")
            .map(str::to_owned)
    };
    path.split('/').find_map(user)
}

/// The last part of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What a user who wrote these tables may have meant: names that contain a wanted one or are
/// contained in it, and names that differ by a few letters. Equal names of another key come first.
fn closest(tables: &[TaskMatch], running: &[Name]) -> Vec<String> {
    let mut found: Vec<&Name> = Vec::new();
    for (key, word) in tables.iter().flat_map(words) {
        // Names of the same key first: of equally close ones these are what was meant.
        let comparable = |name: &&Name| {
            let whole = |key| matches!(key, Key::Unit | Key::Cgroup);
            if whole(key) || whole(name.key) {
                name.key == key
            } else {
                true
            }
        };
        let mut candidates: Vec<&Name> = running.iter().filter(comparable).collect();
        candidates.sort_by_key(|name| name.key != key);
        let equal = |name: &&&Name| name.name.eq_ignore_ascii_case(word);
        let within = |name: &&&Name| {
            let (a, b) = (name.name.to_lowercase(), word.to_lowercase());
            let long = a.len().min(b.len()) >= SHORTEST;
            long && (a.contains(&b) || b.contains(&a))
        };
        found.extend(candidates.iter().filter(equal).copied());
        if let Some(close) = suggestion(word, candidates.iter().map(|name| name.name.as_str())) {
            found.extend(candidates.iter().filter(|name| name.name == close).copied());
        }
        found.extend(candidates.iter().filter(within).copied());
    }
    let (mut pids, mut tables) = (BTreeSet::new(), BTreeSet::new());
    found.retain(|name| pids.insert(name.pid) && tables.insert(name.table.as_str()));
    let shown = found.iter().take(MOST);
    shown
        .map(|name| format!("{} (process {})", name.table, name.pid))
        .collect()
}

/// The words of a table that names can be compared with.
fn words(table: &TaskMatch) -> impl Iterator<Item = (Key, &str)> {
    let all = [
        (Key::Exe, table.exe.as_deref().map(base)),
        (Key::Comm, table.comm.as_deref()),
        (Key::Arg, table.arg.as_deref()),
        (Key::Unit, table.unit.as_deref()),
        (Key::Cgroup, table.cgroup.as_deref()),
    ];
    all.into_iter().filter_map(|(key, text)| Some((key, text?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pid: u32, key: Key, name: &str, table: &str) -> Name {
        Name {
            pid,
            key,
            name: name.to_owned(),
            table: table.to_owned(),
        }
    }

    fn machine() -> Vec<Name> {
        vec![
            name(1, Key::Comm, "systemd", "comm=systemd"),
            name(7, Key::Comm, "redis-server", "comm=redis-server"),
            name(
                7,
                Key::Exe,
                "redis-check-rdb",
                "exe=/usr/bin/redis-check-rdb",
            ),
            name(8, Key::Comm, "python3", "comm=python3"),
            name(8, Key::Exe, "python3.11", "exe=/usr/bin/python3.11"),
            name(8, Key::Arg, "detect.py", "arg=detect[.]py"),
            name(8, Key::Unit, "detector.service", "unit=detector.service"),
            name(9, Key::Comm, "redis-server", "comm=redis-server"),
        ]
    }

    fn close(table: &str) -> Vec<String> {
        closest(&[table.parse().unwrap()], &machine())
    }

    #[test]
    fn a_mistyped_name_and_a_part_of_one_are_close() {
        let redis = ["comm=redis-server (process 7)"];
        assert_eq!(close("comm=redis-sever"), redis);
        assert_eq!(close("comm=redis"), redis);
        // The name is right, the path is not; the kernel shows the file behind a link.
        assert_eq!(close("exe=/opt/redis-server"), redis);
        assert_eq!(
            close("exe=/opt/redis-check-rdb"),
            ["exe=/usr/bin/redis-check-rdb (process 7)"]
        );
    }

    #[test]
    fn a_script_is_named_by_its_argument() {
        assert_eq!(close("comm=detect.py"), ["arg=detect[.]py (process 8)"]);
        assert_eq!(
            close("unit=detector"),
            ["unit=detector.service (process 8)"]
        );
    }

    #[test]
    fn what_is_not_close_is_not_named() {
        assert_eq!(close("comm=postgres"), Vec::<String>::new());
        assert_eq!(close("comm=d"), Vec::<String>::new());
        assert_eq!(close("pid=4711"), Vec::<String>::new());
        assert_eq!(close("user=vision"), Vec::<String>::new());
    }
}
