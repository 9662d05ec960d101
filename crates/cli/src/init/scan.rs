//! What runs on this machine: programs, units and containers, with the CPU time and the memory that
//! they use.
//!
//! Two snapshots of `/proc` a second apart. Nothing is changed, and root is not needed: without it
//! the path of a program of another user cannot be read, and its name is used instead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quell_kernel::error::Result;
use quell_kernel::procfs::{self, Membership};
use quell_kernel::reading::{self, Arguments};
use quell_kernel::root::Files;
use quell_types::task::TaskMatch;
use quell_types::units::Bytes;

use crate::found::{manager, own_program};

use super::group::{Figures, ThreadUse};

/// Between the two snapshots.
pub const SPAN: Duration = Duration::from_secs(1);
/// The digits of a container's id.
const ID: usize = 64;
/// The digits that container engines print.
const SHORT_ID: usize = 12;
/// Programs that run other programs: the first argument that is no option says which.
const INTERPRETERS: [&str; 10] = [
    "python", "perl", "ruby", "node", "java", "php", "bash", "dash", "sh", "zsh",
];

/// A program, unit or container that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The name of its busiest process.
    pub name: String,
    /// How a policy names it.
    pub matching: TaskMatch,
    /// What it used.
    pub figures: Figures,
}

/// A process as it was in both snapshots.
#[derive(Debug)]
struct Process {
    comm: String,
    matching: TaskMatch,
    figures: Figures,
}

/// All processes but kernel threads and Quell itself.
#[derive(Debug)]
pub struct Sample {
    processes: BTreeMap<u32, Process>,
    /// Quell's own ancestors: its shell, and what started that.
    own: BTreeSet<u32>,
}

/// CPU time and page faults of a process so far.
#[derive(Clone, Debug, Default)]
struct Reading {
    /// Thread → nanoseconds that it ran, and that it waited for a CPU.
    threads: BTreeMap<u32, (u64, u64)>,
    major_faults: u64,
}

fn reading(files: &dyn Files, pid: u32, major_faults: u64) -> Result<Reading> {
    let mut threads = BTreeMap::new();
    for tid in procfs::threads(files, pid)? {
        if let Some(times) = procfs::schedstat(files, tid).ok().flatten() {
            threads.insert(tid, times);
        }
    }
    Ok(Reading {
        threads,
        major_faults,
    })
}

impl Sample {
    /// Watches what runs for [`SPAN`].
    ///
    /// # Errors
    /// As [`procfs::processes`].
    pub fn take(files: &dyn Files) -> Result<Self> {
        let begun = Instant::now();
        let mut before = BTreeMap::new();
        for stat in procfs::processes(files)? {
            if !stat.kernel_thread() {
                let read = reading(files, stat.id.pid, stat.major_faults)?;
                before.insert(stat.id, read);
            }
        }
        std::thread::sleep(SPAN);
        let span_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let own: BTreeSet<u32> = procfs::ancestry(files, std::process::id())?
            .into_iter()
            .collect();
        let own_units = units(&procfs::memberships(files, "self")?);
        let mut processes = BTreeMap::new();
        for stat in procfs::processes(files)? {
            let pid = stat.id.pid;
            if stat.kernel_thread() || stat.dead() || pid == std::process::id() {
                continue;
            }
            let now = reading(files, pid, stat.major_faults)?;
            let then = before.get(&stat.id).cloned().unwrap_or_default();
            let threads = now.threads.iter().map(|(tid, (ran, waited))| {
                let (ran_before, waited_before) = then.threads.get(tid).copied().unwrap_or((0, 0));
                ThreadUse {
                    ran_ns: *ran,
                    lately_ns: ran.saturating_sub(ran_before),
                    waited_ns: waited.saturating_sub(waited_before),
                }
            });
            let figures = Figures {
                processes: 1,
                threads: threads.collect(),
                memory: stat.resident,
                major_faults: now.major_faults.saturating_sub(then.major_faults),
                span_ns,
            };
            let places = procfs::memberships(files, &pid.to_string())?;
            let matching = place(&places, &own_units).unwrap_or_else(|| {
                let exe = own_program(files, pid);
                let arguments = reading::arguments(files, pid)
                    .map(Arguments::words)
                    .unwrap_or_default();
                program(&stat.comm, exe, &arguments)
            });
            processes.insert(
                pid,
                Process {
                    comm: stat.comm,
                    matching,
                    figures,
                },
            );
        }
        Ok(Self { processes, own })
    }

    /// What some processes used together.
    pub fn of(&self, pids: impl IntoIterator<Item = u32>) -> Figures {
        let all = pids.into_iter().filter_map(|pid| self.processes.get(&pid));
        all.fold(Figures::default(), |sum, p| sum.with(&p.figures))
    }

    /// CPUs that all processes but these used.
    pub fn without(&self, pids: &BTreeSet<u32>) -> f64 {
        let others = self.processes.iter().filter(|(pid, _)| !pids.contains(pid));
        others.map(|(_, p)| p.figures.cpus()).sum()
    }

    /// Programs, units and containers, those first that use most of the machine's CPUs and memory.
    pub fn candidates(&self, cpus: usize, memory: Bytes) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut largest: Vec<f64> = Vec::new();
        for (pid, process) in &self.processes {
            if self.own.contains(pid) {
                continue;
            }
            let weight = process.figures.share(cpus, memory);
            let known = found.iter().position(|c| c.matching == process.matching);
            let Some(at) = known else {
                found.push(Candidate {
                    name: process.comm.clone(),
                    matching: process.matching.clone(),
                    figures: process.figures.clone(),
                });
                largest.push(weight);
                continue;
            };
            let (one, most) = (&mut found[at], &mut largest[at]);
            one.figures = one.figures.with(&process.figures);
            if weight > *most {
                one.name.clone_from(&process.comm);
                *most = weight;
            }
        }
        found.sort_by(|a, b| {
            let share = |c: &Candidate| c.figures.share(cpus, memory);
            share(b)
                .total_cmp(&share(a))
                .then_with(|| a.name.cmp(&b.name))
        });
        found
    }
}

/// The units among a process's cgroups; those of a whole user session are none.
fn units(places: &[Membership]) -> BTreeSet<String> {
    let parts = places.iter().flat_map(|m| m.path.split('/'));
    let unit = |part: &&str| part.ends_with(".service") && !part.starts_with("user@");
    parts.filter(unit).map(str::to_owned).collect()
}

/// The container or unit that a process is in. `own`: the units of Quell's own process, which hold
/// the user's shell, too.
fn place(places: &[Membership], own: &BTreeSet<String>) -> Option<TaskMatch> {
    let parts = |m: &Membership| m.path.split('/').find_map(container);
    let within = places
        .iter()
        .find_map(|m| Some((parts(m)?, manager(&m.path))));
    if let Some((id, user)) = within {
        return Some(TaskMatch {
            container: Some(id),
            user,
            ..TaskMatch::default()
        });
    }
    let innermost = |m: &Membership| {
        let parts = m.path.rsplit('/');
        let mut units = parts.filter(|p| p.ends_with(".service"));
        units.next().map(|unit| (unit.to_owned(), manager(&m.path)))
    };
    let (unit, user) = places.iter().find_map(innermost)?;
    (!unit.starts_with("user@") && !own.contains(&unit)).then(|| TaskMatch {
        unit: Some(unit),
        user,
        ..TaskMatch::default()
    })
}

/// The beginning of a container's id, from the name of its cgroup.
fn container(part: &str) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let id = part
        .split(['-', ':'])
        .find(|p| p.len() == ID && p.bytes().all(|b| b.is_ascii_hexdigit()))?;
    Some(id[..SHORT_ID].to_owned())
}

/// How a policy names a program by itself.
fn program(comm: &str, exe: Option<String>, arguments: &[String]) -> TaskMatch {
    let mut found = TaskMatch::default();
    let file = exe.as_deref().map(|e| e.rsplit('/').next().unwrap_or(e));
    // One file may be several programs, which differ by the name that they were started under.
    if file.is_none_or(|file| !file.starts_with(comm)) {
        found.comm = Some(comm.to_owned());
    }
    let interprets = |file: &str| {
        let name = file.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        INTERPRETERS.contains(&name)
    };
    if file.is_some_and(interprets) && !arguments.iter().any(|a| a == "-c" || a == "-e") {
        let script = arguments.iter().skip(1).find(|a| !a.starts_with('-'));
        found.arg = script.map(|s| escaped(s.rsplit('/').next().unwrap_or(s)));
    }
    found.exe = exe;
    found
}

/// A regular expression that matches this text.
fn escaped(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c.is_whitespace();
    text.chars().fold(String::new(), |mut out, c| {
        if !plain(c) && c.is_ascii() && c != '-' && c != '/' {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(path: &str) -> Membership {
        Membership {
            hierarchy: 0,
            controllers: Vec::new(),
            path: path.to_owned(),
        }
    }

    #[test]
    fn a_place_is_a_container_or_a_unit_of_its_own() {
        let id = "4c01db0b339c".to_owned() + &"0".repeat(52);
        let at = |path: &str| place(&[membership(path)], &BTreeSet::from(["ssh.service".into()]));
        let docker = at(&format!("/system.slice/docker-{id}.scope/init")).unwrap();
        assert_eq!(docker.container.as_deref(), Some("4c01db0b339c"));
        let unit = at("/system.slice/redis-server.service").unwrap();
        assert_eq!(unit.unit.as_deref(), Some("redis-server.service"));
        // A session, a whole user, and the unit that the shell is in are no programs.
        for path in [
            "/user.slice/user-1000.slice/session-3.scope",
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
            "/system.slice/ssh.service",
            "/",
        ] {
            assert_eq!(at(path), None, "{path}");
        }
    }

    #[test]
    fn a_program_is_named_by_its_file_and_what_tells_it_from_others() {
        let args = |all: &[&str]| all.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
        let redis = program(
            "redis-server",
            Some("/usr/bin/redis-check-rdb".into()),
            &args(&["redis-server *:6379"]),
        );
        assert_eq!(redis.comm.as_deref(), Some("redis-server"));
        assert_eq!(redis.exe.as_deref(), Some("/usr/bin/redis-check-rdb"));
        let python = program(
            "python3",
            Some("/usr/bin/python3.11".into()),
            &args(&["python3", "-u", "/opt/detect.py"]),
        );
        assert_eq!(python.arg.as_deref(), Some("detect\\.py"));
        assert_eq!(python.comm, None);
        let hidden = program("nginx", None, &[]);
        assert_eq!((hidden.exe, hidden.comm.as_deref()), (None, Some("nginx")));
    }
}
