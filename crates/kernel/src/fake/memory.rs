//! Memory as cgroups account for it: charges, limits that reclaim or kill, `oom_score` and its
//! adjustment. cgroup-v2.rst ("Memory"), cgroup-v1/memory.rst, mm/oom_kill.c; error numbers seen on
//! Linux 6.18.
//!
//! Deviations:
//! - A process's anonymous memory moves with it to another cgroup. The kernel leaves the charge
//!   where it was made. Pages of files stay with the cgroup that touched them, as in the kernel.
//! - All pages of files are clean and can be dropped at once. There is no swap. Nothing is slowed
//!   down beyond `memory.high`; only the event is counted.
//! - The machine as a whole never runs short. `memory.min` and `memory.low` are values, because
//!   nothing reclaims.
//! - Pressure is what a test sets ([`Machine::stalled`]), and so is what a test has recorded
//!   ([`Machine::recorded`]).

use super::Answer;
use super::spec::TOTAL;
use super::state::{Ledger, Machine, parent};
use super::task::Task;

const PAGE: u64 = 4096;

impl Machine {
    /// Sets a process's anonymous memory, in bytes.
    pub fn grow(&mut self, pid: u32, anonymous: u64) {
        self.task(pid).anonymous = anonymous / PAGE * PAGE;
        self.over_limits(pid);
    }

    /// Makes a process read this many bytes of files for the first time.
    pub fn read_file(&mut self, pid: u32, bytes: u64) {
        if let Some(tree) = self.memory_tree() {
            let place = self.tasks[&pid].places[tree].clone();
            if let Some(group) = self.trees[tree].groups.get_mut(&place) {
                group.memory.file += bytes / PAGE * PAGE;
            }
        }
        self.over_limits(pid);
    }

    /// Sets the total time waited in a pressure file, in microseconds.
    pub fn stalled(&mut self, path: &str, some_us: u64) {
        self.stalls.insert(path.to_owned(), some_us);
    }

    /// Makes a file read this from now on, as it was recorded from a real kernel. Writing to it is
    /// as before.
    pub fn recorded(&mut self, path: &str, text: String) {
        self.recorded.insert(path.to_owned(), text);
    }

    pub(super) fn pressure(&self, path: &str) -> String {
        let some = self.stalls.get(path).copied().unwrap_or(0);
        super::knobs::PRESSURE.replacen("total=0", &format!("total={some}"), 1)
    }

    fn memory_tree(&self) -> Option<usize> {
        self.trees.iter().position(|t| t.has("memory"))
    }

    fn inside(&self, tree: usize, group: &str) -> Vec<String> {
        let below = format!("{}/", group.trim_end_matches('/'));
        let is = |g: &&String| *g == group || g.starts_with(&below);
        self.trees[tree].groups.keys().filter(is).cloned().collect()
    }

    fn anonymous(&self, tree: usize, group: &str) -> u64 {
        let inside = self.inside(tree, group);
        let own = |t: &&Task| !t.dead() && inside.contains(&t.places[tree]);
        self.leaders().filter(own).map(|t| t.anonymous).sum()
    }

    fn file(&self, tree: usize, group: &str) -> u64 {
        let inside = self.inside(tree, group);
        let of = |g: &String| self.trees[tree].groups[g].memory.file;
        inside.iter().map(of).sum()
    }

    fn used(&self, tree: usize, group: &str) -> u64 {
        self.anonymous(tree, group) + self.file(tree, group)
    }

    fn leaders(&self) -> impl Iterator<Item = &Task> {
        let leads = |(tid, t): &(&u32, &Task)| **tid == t.tgid;
        self.tasks.iter().filter(leads).map(|(_, t)| t)
    }

    /// Drops pages of files in and below a cgroup. Returns how many bytes.
    fn reclaim(&mut self, tree: usize, group: &str, wanted: u64) -> u64 {
        let mut left = wanted;
        for name in self.inside(tree, group) {
            let Some(g) = self.trees[tree].groups.get_mut(&name) else {
                continue;
            };
            let part = g.memory.file.min(left);
            g.memory.file -= part;
            left -= part;
        }
        wanted - left
    }

    fn over_limits(&mut self, pid: u32) {
        let Some(tree) = self.memory_tree() else {
            return;
        };
        let mut at = Some(self.tasks[&pid].places[tree].clone());
        while let Some(group) = at {
            self.hold_below(tree, &group, true);
            at = parent(&group).map(str::to_owned);
        }
    }

    /// Acts as the kernel on a cgroup that uses more than its limits. Events are counted when a
    /// task runs into a limit (`charging`), not when a limit is lowered.
    fn hold_below(&mut self, tree: usize, group: &str, charging: bool) {
        let unified = self.trees[tree].unified;
        let limit = |m: &Self, name| m.limit_of(tree, group, name);
        if unified && let Some(high) = limit(self, "memory.high") {
            let beyond = self.used(tree, group).saturating_sub(high);
            if beyond > 0 {
                self.reclaim(tree, group, beyond);
                self.count(tree, group, |m| m.high += u64::from(charging));
            }
        }
        let hard = match unified {
            true => "memory.max",
            false => "memory.limit_in_bytes",
        };
        let Some(most) = limit(self, hard) else {
            return;
        };
        while self.used(tree, group) > most {
            self.count(tree, group, |m| m.max += u64::from(charging));
            let beyond = self.used(tree, group) - most;
            if self.reclaim(tree, group, beyond) == beyond {
                return;
            }
            let inside = self.inside(tree, group);
            let is = |t: &&Task| {
                !t.dead() && inside.contains(&t.places[tree]) && t.oom_score_adj != -1000
            };
            let Some(pid) = self
                .leaders()
                .filter(is)
                .max_by_key(|t| self.score(t))
                .map(|t| t.tgid)
            else {
                return;
            };
            self.exit(pid);
            self.task(pid).anonymous = 0;
            self.count(tree, group, |m| m.kills += 1);
        }
    }

    fn count(&mut self, tree: usize, group: &str, f: impl FnOnce(&mut Ledger)) {
        if let Some(group) = self.trees[tree].groups.get_mut(group) {
            f(&mut group.memory);
        }
    }

    fn limit_of(&self, tree: usize, group: &str, name: &str) -> Option<u64> {
        let text = self.value(tree, group, name)?;
        text.parse().ok().filter(|n| *n < TOTAL * 1024)
    }

    /// The files of a cgroup's memory that are more than a kept value.
    pub(super) fn memory_read(&self, tree: usize, group: &str, name: &str) -> Option<String> {
        let ledger = self.trees[tree].groups.get(group)?.memory;
        Some(match name {
            "memory.current" | "memory.usage_in_bytes" => self.used(tree, group).to_string(),
            "memory.stat" => {
                let (anon, file) = (self.anonymous(tree, group), self.file(tree, group));
                let keys: &[(&str, u64)] = match self.trees[tree].unified {
                    true => &[
                        ("anon", anon),
                        ("file", file),
                        ("shmem", 0),
                        ("file_mapped", 0),
                        ("inactive_anon", 0),
                        ("active_anon", anon),
                        ("inactive_file", file),
                        ("active_file", 0),
                        ("unevictable", 0),
                        ("workingset_refault_anon", 0),
                        ("workingset_refault_file", 0),
                    ],
                    false => &[
                        ("total_cache", file),
                        ("total_rss", anon),
                        ("total_shmem", 0),
                        ("total_mapped_file", 0),
                        ("total_workingset_refault_anon", 0),
                        ("total_workingset_refault_file", 0),
                        ("total_inactive_file", file),
                        ("total_active_file", 0),
                        ("total_unevictable", 0),
                    ],
                };
                let lines: Vec<String> = keys.iter().map(|(k, v)| format!("{k} {v}")).collect();
                lines.join("\n")
            }
            "memory.events" => format!(
                "low 0\nhigh {}\nmax {}\noom {}\noom_kill {}\noom_group_kill 0",
                ledger.high, ledger.max, ledger.kills, ledger.kills
            ),
            "memory.oom_control" => {
                let kept = self.trees[tree].groups[group].values.get(name);
                let disabled = kept.map_or("0", String::as_str);
                format!(
                    "oom_kill_disable {disabled}\nunder_oom 0\noom_kill {}",
                    ledger.kills
                )
            }
            _ => return None,
        })
    }

    /// `memory.reclaim`: reclaims this much, or EAGAIN once there is no more.
    pub(super) fn reclaim_written(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        let first = text.split_ascii_whitespace().next().unwrap_or_default();
        let wanted = super::limits::parse_bytes(first)?;
        match self.reclaim(tree, group, wanted) == wanted {
            true => Ok(()),
            false => Err(libc::EAGAIN),
        }
    }

    /// Acts on a written limit. v1 refuses one that cannot be reached; v2 reclaims, and kills.
    pub(super) fn limit_written(
        &mut self,
        tree: usize,
        group: &str,
        name: &str,
        before: &str,
    ) -> Answer<()> {
        match name {
            "memory.high" | "memory.max" => self.hold_below(tree, group, false),
            "memory.limit_in_bytes" => {
                let most = self.limit_of(tree, group, name).unwrap_or(u64::MAX);
                let beyond = self.used(tree, group).saturating_sub(most);
                if self.reclaim(tree, group, beyond) < beyond {
                    self.keep(tree, group, "memory.limit_in_bytes", before.to_owned());
                    return Err(libc::EBUSY);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// `oom_score`, which is shown as `(1000 + thousandths of memory + adjustment) * 2 / 3`.
    pub(super) fn score(&self, task: &Task) -> i64 {
        if task.oom_score_adj == -1000 {
            return 0;
        }
        let part = i64::try_from(task.anonymous * 1000 / TOTAL).unwrap_or(0);
        ((1000 + part + i64::from(task.oom_score_adj)) * 2 / 3).max(0)
    }

    /// Sets the adjustment of the whole process. Without CAP_SYS_RESOURCE it goes no lower than a
    /// process with it has ever set: 0.
    pub(super) fn adjust_score(&mut self, tid: u32, text: &str) -> Answer<()> {
        let value: i32 = text.trim().parse().map_err(|_| libc::EINVAL)?;
        if !(-1000..=1000).contains(&value) {
            return Err(libc::EINVAL);
        }
        if value < 0 && !self.resource {
            return Err(libc::EACCES);
        }
        let of = self.tasks.get(&tid).ok_or(libc::ENOENT)?.tgid;
        for task in self.tasks.values_mut().filter(|t| t.tgid == of) {
            task.oom_score_adj = value;
        }
        Ok(())
    }
}
