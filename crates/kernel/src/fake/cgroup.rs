//! Hierarchies of cgroups: directories, membership, and the files that exist whatever the
//! controllers. Documentation/admin-guide/cgroup-v1/cgroups.rst, cgroup-v2.rst ("Basic
//! Operations").
//!
//! Deviations:
//! - `notify_on_release`, `release_agent` and `cgroup.clone_children` are values without an effect.
//! - `cgroup.stat`, `cgroup.events` and the usage files have what the model knows. Counters of
//!   dying cgroups are left out.
//! - Removing a v2 cgroup with a zombie in it adds ` (deleted)` to the zombie's `/proc/PID/cgroup`,
//!   as in the kernel. The model also forgets which of several directories of that name it was.

use std::collections::BTreeSet;
use std::path::Path;

use super::Answer;
use super::limits::{self, Knob};
use super::state::{Group, Machine, parent};
use super::task::{PF_EXITING, PF_KTHREAD, PF_NO_SETAFFINITY, Task};

/// Splits a path into the cgroup and the file in it.
fn split(rest: &str) -> (&str, &str) {
    match rest.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((dir, name)) => (dir, name),
        None => ("/", rest),
    }
}

fn below(group: &str, top: &str) -> bool {
    Path::new(group).starts_with(top)
}

impl Machine {
    /// The index of the hierarchy that a path is in, and the path from its root (`/`, `/a/b`,
    /// `/a/tasks`).
    pub(crate) fn in_tree(&self, path: &str) -> Option<(usize, String)> {
        self.trees.iter().enumerate().find_map(|(i, tree)| {
            let rest = path.strip_prefix(tree.mount.as_str())?;
            match rest {
                "" => Some((i, "/".to_owned())),
                _ if rest.starts_with('/') => Some((i, rest.to_owned())),
                _ => None,
            }
        })
    }

    /// The threads directly in a cgroup, without dead ones.
    pub(crate) fn threads_in(&self, tree: usize, group: &str) -> Vec<u32> {
        let is = |t: &Task| !t.dead() && t.places[tree] == group;
        self.tasks
            .iter()
            .filter(|(_, t)| is(t))
            .map(|(tid, _)| *tid)
            .collect()
    }

    /// Whether a cgroup, or one below it, has a living task.
    pub(crate) fn populated(&self, tree: usize, group: &str) -> bool {
        self.tasks
            .values()
            .any(|t| !t.dead() && below(&t.places[tree], group))
    }

    /// The processes of a cgroup. For a thread root also those with threads below it.
    fn processes_in(&self, tree: usize, group: &str) -> Vec<u32> {
        let mut found: BTreeSet<u32> = BTreeSet::new();
        for task in self.tasks.values().filter(|t| !t.dead()) {
            let place = &task.places[tree];
            if place == group || (self.trees[tree].unified && self.domain_of(tree, place) == group)
            {
                found.insert(task.tgid);
            }
        }
        found.into_iter().collect()
    }

    /// The files of a cgroup with their modes.
    fn files(&self, tree: usize, group: &str) -> Vec<(String, u32)> {
        let t = &self.trees[tree];
        let root = group == "/";
        let mut files: Vec<(&str, u32)> = vec![("cgroup.procs", 0o644)];
        if t.unified {
            files.extend([
                ("cgroup.controllers", 0o444),
                ("cgroup.max.depth", 0o644),
                ("cgroup.max.descendants", 0o644),
                ("cgroup.stat", 0o444),
                ("cgroup.subtree_control", 0o644),
                ("cgroup.threads", 0o644),
                ("cpu.stat", 0o444),
                ("cpu.pressure", 0o644),
                ("io.pressure", 0o644),
                ("memory.pressure", 0o644),
            ]);
            if !root {
                files.extend([
                    ("cgroup.events", 0o444),
                    ("cgroup.freeze", 0o644),
                    ("cgroup.kill", 0o200),
                    ("cgroup.type", 0o644),
                ]);
            }
        } else {
            files.extend([
                ("tasks", 0o644),
                ("cgroup.clone_children", 0o644),
                ("notify_on_release", 0o644),
            ]);
            if root {
                files.extend([("cgroup.sane_behavior", 0o444), ("release_agent", 0o644)]);
            }
        }
        if t.css(group, "cpuset") {
            files.extend(super::cpuset::files(t.unified, root, self.release));
        }
        files.extend(self.knobs_of(tree, group).map(|k| (k.name, k.mode)));
        files.into_iter().map(|(n, m)| (n.to_owned(), m)).collect()
    }

    fn knobs_of(&self, tree: usize, group: &str) -> impl Iterator<Item = &'static Knob> {
        let (t, root) = (&self.trees[tree], group == "/");
        let group = group.to_owned();
        limits::KNOBS.iter().filter(move |k| {
            k.unified == t.unified && (k.at_root || !root) && t.css(&group, k.controller)
        })
    }

    fn has_file(&self, tree: usize, group: &str, name: &str) -> Answer<u32> {
        if !self.trees[tree].groups.contains_key(group) {
            return Err(libc::ENOENT);
        }
        self.files(tree, group)
            .into_iter()
            .find(|(n, _)| n == name)
            .map(|(_, m)| m)
            .ok_or(libc::ENOENT)
    }

    pub(crate) fn cgroup_mode(&self, tree: usize, rest: &str) -> Answer<u32> {
        if self.trees[tree].groups.contains_key(rest) {
            return Ok(0o40_755);
        }
        let (group, name) = split(rest);
        self.has_file(tree, group, name).map(|m| 0o100_000 | m)
    }

    pub(crate) fn cgroup_list(&self, tree: usize, rest: &str) -> Answer<Vec<String>> {
        if !self.trees[tree].groups.contains_key(rest) {
            self.cgroup_mode(tree, rest)?;
            return Err(libc::ENOTDIR);
        }
        let mut names: Vec<String> = self.files(tree, rest).into_iter().map(|(n, _)| n).collect();
        let last = |p: &String| p.rsplit('/').next().unwrap_or_default().to_owned();
        names.extend(self.trees[tree].children(rest).iter().map(last));
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn cgroup_read(&self, tree: usize, rest: &str) -> Answer<String> {
        let t = &self.trees[tree];
        if t.groups.contains_key(rest) {
            return Err(libc::EISDIR);
        }
        let (group, name) = split(rest);
        if self.has_file(tree, group, name)? & 0o400 == 0 {
            return Err(libc::EINVAL);
        }
        let lines = |ids: Vec<u32>| ids.iter().map(|i| format!("{i}\n")).collect::<String>();
        match name {
            "tasks" => return Ok(lines(self.threads_in(tree, group))),
            "cgroup.procs" if t.unified && !self.valid_domain(tree, group) => {
                return Err(libc::EOPNOTSUPP);
            }
            "cgroup.procs" => return Ok(lines(self.processes_in(tree, group))),
            "cgroup.threads" => return Ok(lines(self.threads_in(tree, group))),
            _ => {}
        }
        if name.ends_with(".pressure") && name != "cgroup.pressure" {
            return Ok(self.pressure(&format!("{}{rest}", t.mount)));
        }
        if let Some(text) = self.control_read(tree, group, name) {
            return Ok(text);
        }
        if let Some(text) = self.cpuset_read(tree, group, name) {
            return Ok(text);
        }
        self.limit_read(tree, group, name)
    }

    pub(crate) fn cgroup_write(&mut self, tree: usize, rest: &str, text: &str) -> Answer<()> {
        if self.trees[tree].groups.contains_key(rest) {
            return Err(libc::EISDIR);
        }
        let (group, name) = split(rest);
        if self.has_file(tree, group, name)? & 0o200 == 0 {
            return Err(libc::EACCES);
        }
        let text = text.trim();
        match name {
            "tasks" | "cgroup.threads" => return self.enter(tree, group, text, false),
            "cgroup.procs" => return self.enter(tree, group, text, true),
            _ => {}
        }
        if let Some(done) = self.control_write(tree, group, name, text) {
            return done;
        }
        if name.starts_with("cpuset.") && self.trees[tree].has("cpuset") {
            return self.cpuset_write(tree, group, name, text);
        }
        self.limit_write(tree, group, name, text)
    }

    /// Moves a task, or a whole process, into a cgroup.
    fn enter(&mut self, tree: usize, group: &str, text: &str, whole: bool) -> Answer<()> {
        let pid: u32 = text.parse().map_err(|_| libc::EINVAL)?;
        let pid = if pid == 0 { std::process::id() } else { pid };
        let task = self.tasks.get(&pid).ok_or(libc::ESRCH)?;
        // kthreadd starts the kernel's threads, and bound threads stay where they are.
        if pid == 2 || (task.flags & PF_KTHREAD != 0 && task.flags & PF_NO_SETAFFINITY != 0) {
            return Err(libc::EINVAL);
        }
        // A task that is about to end is left where it is, and that is no error.
        let stays = |t: &Task| t.dead() || t.flags & PF_EXITING != 0;
        let moving: Vec<u32> = match whole {
            true => {
                let of = task.tgid;
                let is = |t: &Task| t.tgid == of && !stays(t);
                self.tasks
                    .iter()
                    .filter(|(_, t)| is(t))
                    .map(|(i, _)| *i)
                    .collect()
            }
            false if stays(task) => Vec::new(),
            false => vec![pid],
        };
        let from = task.places[tree].clone();
        let unified = self.trees[tree].unified;
        if unified {
            self.may_host(tree, group)?;
            if !whole && self.domain_of(tree, group) != self.domain_of(tree, &from) {
                return Err(libc::EOPNOTSUPP);
            }
        }
        if moving.iter().all(|t| self.tasks[t].places[tree] == group) {
            return Ok(());
        }
        if !unified && self.trees[tree].has("cpuset") {
            let set = &self.trees[tree].groups[group].cpuset;
            if set.effective.is_empty() || set.effective_mems.is_empty() {
                return Err(libc::ENOSPC);
            }
        }
        // A v1 cgroup without real-time runtime of its own (CONFIG_RT_GROUP_SCHED) takes no
        // real-time task.
        let runtime = self.limit_read(tree, group, "cpu.rt_runtime_us");
        if runtime.is_ok_and(|r| r.trim() == "0") && moving.iter().any(|t| self.tasks[t].realtime) {
            return Err(libc::EINVAL);
        }
        for tid in &moving {
            self.task(*tid).places[tree] = group.to_owned();
            if self.trees[tree].has("cpuset") {
                self.refit(*tid);
            }
        }
        Ok(())
    }

    pub(crate) fn cgroup_mkdir(&mut self, tree: usize, rest: &str) -> Answer<()> {
        if self.cgroup_mode(tree, rest).is_ok() {
            return Err(libc::EEXIST);
        }
        let (above, name) = split(rest);
        if !self.trees[tree].groups.contains_key(above) {
            return Err(libc::ENOENT);
        }
        if name.contains('\n') {
            return Err(libc::EINVAL);
        }
        if name.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        self.room_below(tree, above)?;
        let mut group = Group::default();
        if !self.trees[tree].unified {
            group.cpuset.load_balance = true;
        }
        self.trees[tree].groups.insert(rest.to_owned(), group);
        self.cpusets_changed(tree);
        Ok(())
    }

    /// Checks `cgroup.max.depth` and `cgroup.max.descendants` of every cgroup above.
    fn room_below(&self, tree: usize, above: &str) -> Answer<()> {
        let t = &self.trees[tree];
        let mut at = Some(above);
        let mut depth = 0_usize;
        while let Some(group) = at {
            let limit = |name| {
                let text = t.groups[group].values.get(name)?;
                text.parse::<usize>().ok()
            };
            let descendants = t
                .groups
                .keys()
                .filter(|g| *g != group && below(g, group))
                .count();
            if limit("cgroup.max.descendants").is_some_and(|l| descendants >= l)
                || limit("cgroup.max.depth").is_some_and(|l| depth >= l)
            {
                return Err(libc::EAGAIN);
            }
            depth += 1;
            at = parent(group);
        }
        Ok(())
    }

    pub(crate) fn cgroup_rmdir(&mut self, tree: usize, rest: &str) -> Answer<()> {
        if rest == "/" {
            return Err(libc::EBUSY);
        }
        if !self.trees[tree].groups.contains_key(rest) {
            self.cgroup_mode(tree, rest)?;
            return Err(libc::ENOTDIR);
        }
        if self.populated(tree, rest) || !self.trees[tree].children(rest).is_empty() {
            return Err(libc::EBUSY);
        }
        self.cpuset_gone(tree, rest);
        self.trees[tree].groups.remove(rest);
        self.cpusets_changed(tree);
        Ok(())
    }

    /// The lines of `/proc/TID/cgroup`.
    pub(crate) fn memberships(&self, tid: u32) -> String {
        let Some(task) = self.tasks.get(&tid) else {
            return String::new();
        };
        let mut lines: Vec<(u32, String)> = Vec::new();
        for (tree, place) in self.trees.iter().zip(&task.places) {
            // A zombie has left its v1 cgroups.
            let shown = if task.dead() && !tree.unified {
                "/"
            } else {
                place
            };
            let deleted = if tree.groups.contains_key(shown) {
                ""
            } else {
                " (deleted)"
            };
            let names = if tree.unified {
                String::new()
            } else {
                tree.controllers.join(",")
            };
            lines.push((
                tree.number,
                format!("{}:{names}:{shown}{deleted}\n", tree.number),
            ));
        }
        lines.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        lines.into_iter().map(|(_, l)| l).collect()
    }
}
