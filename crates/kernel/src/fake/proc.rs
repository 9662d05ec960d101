//! Processes as `/proc` shows them. proc_pid_stat(5), proc_pid_status(5), proc_pid_cgroup(5).
//!
//! Deviations:
//! - Fields of `stat` that the model does not have are 0. `status` has only a handful of lines.
//! - A process's directory has only `stat status comm cmdline cgroup task exe io oom_score
//!   oom_score_adj`, and `fd` where it has a device open.

use super::Answer;
use super::spec::Flavour;
use super::state::LISTED;
use super::state::Machine;
use super::task::PF_KTHREAD;

const FILES: [&str; 9] = [
    "cgroup",
    "cmdline",
    "comm",
    "exe",
    "io",
    "oom_score",
    "oom_score_adj",
    "stat",
    "status",
];

/// The task of a path `/proc/TID/oom_score_adj`. `None` for other paths.
pub(super) fn adjusted(path: &str) -> Option<u32> {
    place(path)
        .filter(|(_, rest)| *rest == "oom_score_adj")
        .map(|(tid, _)| tid)
}

/// Splits `/proc/TID/rest` or `/proc/TID/task/TID/rest` into task and rest.
fn place(path: &str) -> Option<(u32, &str)> {
    let rest = path.strip_prefix("/proc/")?;
    let (tid, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let tid: u32 = tid.parse().ok()?;
    match rest.strip_prefix("task/") {
        Some(below) => {
            let (tid, rest) = below.split_once('/').unwrap_or((below, ""));
            Some((tid.parse().ok()?, rest))
        }
        None => Some((tid, rest)),
    }
}

/// The thread of a path `/proc/TID/cpu_resctrl_groups`. `None` for other paths.
pub(super) fn divided(path: &str) -> Option<u32> {
    match place(path)? {
        (tid, "cpu_resctrl_groups") => Some(tid),
        _ => None,
    }
}

impl Machine {
    pub(super) fn proc_list(&self, path: &str) -> Vec<String> {
        if path == "/proc" {
            let leaders = self.tasks.iter().filter(|(tid, t)| **tid == t.tgid);
            let mut names: Vec<String> = leaders.map(|(tid, _)| tid.to_string()).collect();
            names.extend(["cgroups".to_owned(), "self".to_owned()]);
            return names;
        }
        let Some((tid, rest)) = place(path) else {
            return Vec::new();
        };
        let Some(task) = self.tasks.get(&tid) else {
            return Vec::new();
        };
        match rest {
            "" => {
                let mut names: Vec<String> = FILES.map(str::to_owned).to_vec();
                if tid == task.tgid && !path.contains("/task/") {
                    names.push("task".to_owned());
                }
                if !task.open.is_empty() {
                    names.push("fd".to_owned());
                }
                if tid == std::process::id() {
                    names.push("mountinfo".to_owned());
                }
                names
            }
            "fd" => (0..task.open.len()).map(|n| (n + 3).to_string()).collect(),
            "task" => {
                let same = self.tasks.iter().filter(|(_, t)| t.tgid == task.tgid);
                same.map(|(tid, _)| tid.to_string()).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn proc_read(&self, path: &str) -> Answer<String> {
        if path == "/proc/cgroups" {
            return Ok(self.controllers());
        }
        let (tid, rest) = place(path).ok_or(libc::ENOENT)?;
        let task = self.tasks.get(&tid).ok_or(libc::ENOENT)?;
        let threads = self.tasks.values().filter(|t| t.tgid == task.tgid).count();
        match rest {
            "" | "task" => Err(libc::EISDIR),
            "stat" => {
                let zeros = |n: usize| "0 ".repeat(n);
                Ok(format!(
                    "{tid} ({}) {} {} 0 0 0 -1 {} {}20 0 {threads} 0 {} 0 {} {}{} 0 0\n",
                    task.comm,
                    task.state,
                    task.parent,
                    task.flags | 0x0040_0000,
                    zeros(8),
                    task.start,
                    task.anonymous / 4096,
                    zeros(14),
                    task.allowed.first().unwrap_or(0),
                ))
            }
            "status" => {
                let kernel = u8::from(task.flags & PF_KTHREAD != 0);
                let u = task.user;
                Ok(format!(
                    "Name:\t{}\nState:\t{}\nTgid:\t{}\nPid:\t{tid}\nPPid:\t{}\nUid:\t{u}\t{u}\t{u}\t{u}\n\
                     Kthread:\t{kernel}\nThreads:\t{threads}\nCpus_allowed_list:\t{}\n",
                    task.comm, task.state, task.tgid, task.parent, task.allowed
                ))
            }
            "oom_score" => Ok(format!("{}\n", self.score(task))),
            "oom_score_adj" => Ok(format!("{}\n", task.oom_score_adj)),
            "io" => Ok(
                "rchar: 0\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: 0\nwrite_bytes: 0\n\
                        cancelled_write_bytes: 0\n"
                    .to_owned(),
            ),
            "comm" => Ok(format!("{}\n", task.comm)),
            "cmdline" => Ok(task.args.iter().map(|a| format!("{a}\0")).collect()),
            "cgroup" => Ok(self.memberships(tid)),
            "mountinfo" => Ok(self.mounts()),
            _ => Err(libc::ENOENT),
        }
    }

    pub(super) fn proc_link(&self, path: &str) -> Answer<String> {
        let (tid, rest) = place(path).ok_or(libc::EINVAL)?;
        let task = self.tasks.get(&tid).ok_or(libc::ENOENT)?;
        match rest {
            // Kernel threads and zombies run no program.
            "exe" if task.dead() || task.flags & PF_KTHREAD != 0 => Err(libc::ENOENT),
            "exe" => Ok(format!("/usr/bin/{}", task.comm)),
            rest => {
                let fd = rest.strip_prefix("fd/").ok_or(libc::EINVAL)?;
                let at: Option<usize> = fd.parse().ok();
                let open = at.and_then(|at| task.open.get(at.checked_sub(3)?));
                open.cloned().ok_or(libc::ENOENT)
            }
        }
    }

    fn mounts(&self) -> String {
        let mut lines = String::from("21 1 8:1 / / rw,relatime - ext4 /dev/vda1 rw\n");
        for (i, tree) in self.trees.iter().enumerate() {
            let (kind, options) = match tree.unified {
                true => ("cgroup2", "rw,nsdelegate".to_owned()),
                false => ("cgroup", format!("rw,{}", tree.controllers.join(","))),
            };
            lines.push_str(&format!(
                "{} 21 0:{} / {} rw,nosuid,relatime shared:9 - {kind} {kind} {options}\n",
                30 + i,
                40 + i,
                tree.mount
            ));
        }
        if let Some(options) = self.resctrl.as_ref().and_then(|r| r.mounted()) {
            let comma = if options.is_empty() { "" } else { "," };
            lines.push_str(&format!(
                "60 21 0:60 / {} rw,relatime - resctrl resctrl rw{comma}{options}\n",
                super::resctrl::MOUNT
            ));
        }
        lines
    }

    fn controllers(&self) -> String {
        let mut text = String::from("#subsys_name\thierarchy\tnum_cgroups\tenabled\n");
        for name in LISTED.into_iter().chain(["freezer", "perf_event"]) {
            let tree = self.trees.iter().find(|t| t.has(name));
            let name = if name == "io" { "blkio" } else { name };
            let (number, count) = match (tree, self.flavour) {
                (Some(tree), Flavour::V1) => (tree.number, tree.groups.len()),
                _ => (0, self.trees[0].groups.len()),
            };
            text.push_str(&format!("{name}\t{number}\t{count}\t1\n"));
        }
        text
    }
}
