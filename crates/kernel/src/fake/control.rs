//! What only v2 has: `cgroup.subtree_control` and the rule that processes live in leaves, thread
//! mode, freezing, killing. Documentation/admin-guide/cgroup-v2.rst ("Top-down Constraint", "No
//! Internal Process Constraint", "Threads").
//!
//! Deviations:
//! - The controllers are those of [`LISTED`]; `hugetlb`, `rdma` and `misc` are left out.
//! - A frozen cgroup is frozen at once, and its tasks do not stop: nothing runs in the model
//!   anyway.

use super::Answer;
use super::state::{Kind, LISTED, Machine, parent};

/// Controllers that can work between threads.
const THREADED: [&str; 3] = ["cpuset", "cpu", "pids"];
/// Controllers that the kernel knows by name besides [`LISTED`]. They are never available here.
const KNOWN: [&str; 4] = ["hugetlb", "rdma", "misc", "perf_event"];

impl Machine {
    fn threaded(&self, tree: usize, group: &str) -> bool {
        self.trees[tree]
            .groups
            .get(group)
            .is_some_and(|g| g.kind == Kind::Threaded)
    }

    fn domain_controllers(&self, tree: usize, group: &str) -> bool {
        let enabled = &self.trees[tree].groups[group].enabled;
        enabled.iter().any(|c| !THREADED.contains(&c.as_str()))
    }

    /// Whether a cgroup is a domain with threaded children, or one with processes of its own and
    /// threaded controllers enabled below it.
    fn thread_root(&self, tree: usize, group: &str) -> bool {
        if self.threaded(tree, group) {
            return false;
        }
        let t = &self.trees[tree];
        t.children(group).iter().any(|c| self.threaded(tree, c))
            || (!self.threads_in(tree, group).is_empty()
                && t.groups[group]
                    .enabled
                    .iter()
                    .any(|c| THREADED.contains(&c.as_str())))
    }

    fn can_be_thread_root(&self, tree: usize, group: &str) -> bool {
        if group == "/" {
            return true;
        }
        let populated_domain = |c: &String| !self.threaded(tree, c) && self.populated(tree, c);
        !self.threaded(tree, group)
            && !self.trees[tree]
                .children(group)
                .iter()
                .any(populated_domain)
            && !self.domain_controllers(tree, group)
    }

    /// Whether a cgroup can hold processes as a domain.
    pub(super) fn valid_domain(&self, tree: usize, group: &str) -> bool {
        if self.threaded(tree, group) {
            return false;
        }
        let mut at = parent(group);
        while let Some(above) = at {
            if self.threaded(tree, above) || (above != "/" && self.thread_root(tree, above)) {
                return false;
            }
            at = parent(above);
        }
        true
    }

    /// The domain that a cgroup's threads belong to.
    pub(super) fn domain_of(&self, tree: usize, group: &str) -> String {
        let mut at = group;
        while self.threaded(tree, at) {
            at = parent(at).unwrap_or("/");
        }
        at.to_owned()
    }

    /// Checks whether a process may enter.
    pub(super) fn may_host(&self, tree: usize, group: &str) -> Answer<()> {
        let domain = self.domain_of(tree, group);
        if !self.valid_domain(tree, &domain) {
            return Err(libc::EOPNOTSUPP);
        }
        if self.threaded(tree, group) || self.can_be_thread_root(tree, group) {
            return Ok(());
        }
        match self.trees[tree].groups[group].enabled.is_empty() {
            true => Ok(()),
            false => Err(libc::EBUSY),
        }
    }

    pub(super) fn control_read(&self, tree: usize, group: &str, name: &str) -> Option<String> {
        let t = &self.trees[tree];
        if !t.unified {
            let kept = t.groups[group].values.get(name).cloned();
            return match name {
                "cgroup.clone_children" | "notify_on_release" => {
                    Some(format!("{}\n", kept.unwrap_or_else(|| "0".to_owned())))
                }
                "cgroup.sane_behavior" => Some("0\n".to_owned()),
                "release_agent" => Some(format!("{}\n", kept.unwrap_or_default())),
                _ => None,
            };
        }
        let listed = |has: &dyn Fn(&str) -> bool| {
            let names: Vec<&str> = LISTED.into_iter().filter(|c| has(c)).collect();
            match names.is_empty() {
                true => String::new(),
                false => format!("{}\n", names.join(" ")),
            }
        };
        let value = |default: &str| {
            let text = t.groups[group].values.get(name);
            format!("{}\n", text.map_or(default, String::as_str))
        };
        Some(match name {
            "cgroup.controllers" => listed(&|c| t.css(group, c)),
            "cgroup.subtree_control" => listed(&|c| t.groups[group].enabled.contains(c)),
            "cgroup.max.depth" | "cgroup.max.descendants" => value("max"),
            "cgroup.freeze" => value("0"),
            "cgroup.events" => format!(
                "populated {}\nfrozen {}\n",
                u8::from(self.populated(tree, group)),
                u8::from(self.frozen(tree, group))
            ),
            "cgroup.stat" => {
                let inside = format!("{}/", group.trim_end_matches('/'));
                let count = t
                    .groups
                    .keys()
                    .filter(|g| *g != "/" && g.starts_with(&inside))
                    .count();
                format!("nr_descendants {count}\nnr_dying_descendants 0\n")
            }
            "cgroup.type" => {
                let kind = if self.threaded(tree, group) {
                    "threaded"
                } else if !self.valid_domain(tree, group) {
                    "domain invalid"
                } else if self.thread_root(tree, group) {
                    "domain threaded"
                } else {
                    "domain"
                };
                format!("{kind}\n")
            }
            "cpu.stat" => "usage_usec 0\nuser_usec 0\nsystem_usec 0\nnice_usec 0\n".to_owned(),
            _ => return None,
        })
    }

    fn frozen(&self, tree: usize, group: &str) -> bool {
        let mut at = Some(group);
        while let Some(g) = at {
            let text = self.trees[tree].groups[g].values.get("cgroup.freeze");
            if text.is_some_and(|t| t == "1") {
                return true;
            }
            at = parent(g);
        }
        false
    }

    pub(super) fn control_write(
        &mut self,
        tree: usize,
        group: &str,
        name: &str,
        text: &str,
    ) -> Option<Answer<()>> {
        if !self.trees[tree].unified {
            let (key, answer) = match name {
                "cgroup.clone_children" | "notify_on_release" => (
                    if name == "notify_on_release" {
                        "notify_on_release"
                    } else {
                        "cgroup.clone_children"
                    },
                    text.parse::<u64>()
                        .map(|n| u8::from(n != 0).to_string())
                        .map_err(|_| libc::EINVAL),
                ),
                "release_agent" => ("release_agent", Ok(text.to_owned())),
                _ => return None,
            };
            return Some(answer.map(|value| self.keep(tree, group, key, value)));
        }
        Some(match name {
            "cgroup.subtree_control" => self.subtree_control(tree, group, text),
            "cgroup.type" => self.make_threaded(tree, group, text),
            "cgroup.freeze" => one_of(text, &["0", "1"])
                .map(|()| self.keep(tree, group, "cgroup.freeze", text.to_owned())),
            "cgroup.kill" => one_of(text, &["1"]).and_then(|()| self.kill(tree, group)),
            "cgroup.max.depth" => self.most(tree, group, "cgroup.max.depth", text),
            "cgroup.max.descendants" => self.most(tree, group, "cgroup.max.descendants", text),
            _ if name.ends_with(".pressure") => {
                super::knobs::trigger(text, self.release, self.resource)
            }
            _ => return None,
        })
    }

    fn most(&mut self, tree: usize, group: &str, key: &'static str, text: &str) -> Answer<()> {
        if text != "max" {
            match text.parse::<i64>() {
                Ok(n) if n < 0 => return Err(libc::ERANGE),
                Ok(_) => {}
                Err(_) => return Err(libc::EINVAL),
            }
        }
        self.keep(tree, group, key, text.to_owned());
        Ok(())
    }

    pub(super) fn keep(&mut self, tree: usize, group: &str, key: &'static str, value: String) {
        if let Some(group) = self.trees[tree].groups.get_mut(group) {
            group.values.insert(key, value);
        }
    }

    fn kill(&mut self, tree: usize, group: &str) -> Answer<()> {
        if self.threaded(tree, group) {
            return Err(libc::EOPNOTSUPP);
        }
        let inside = format!("{}/", group.trim_end_matches('/'));
        let mut dead: Vec<u32> = self
            .tasks
            .values()
            .filter(|t| t.places[tree] == group || t.places[tree].starts_with(&inside))
            .map(|t| t.tgid)
            .collect();
        dead.dedup();
        for pid in dead {
            self.exit(pid);
        }
        Ok(())
    }

    fn subtree_control(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        let (mut enable, mut disable) = (Vec::new(), Vec::new());
        for word in text.split_ascii_whitespace() {
            let (list, other, name) = match word.split_at_checked(1) {
                Some(("+", name)) => (&mut enable, &mut disable, name),
                Some(("-", name)) => (&mut disable, &mut enable, name),
                _ => return Err(libc::EINVAL),
            };
            if !LISTED.contains(&name) && !KNOWN.contains(&name) {
                return Err(libc::EINVAL);
            }
            other.retain(|c: &String| c != name);
            list.push(name.to_owned());
        }
        let t = &self.trees[tree];
        let enabled = &t.groups[group].enabled;
        enable.retain(|c| !enabled.contains(c));
        disable.retain(|c| enabled.contains(c));
        if enable.iter().any(|c| !t.css(group, c)) {
            return Err(libc::ENOENT);
        }
        let used = |c: &String| {
            let children = t.children(group);
            children
                .iter()
                .any(|child| t.groups[child].enabled.contains(c))
        };
        if disable.iter().any(used) {
            return Err(libc::EBUSY);
        }
        self.may_enable(tree, group, &enable)?;
        if disable.iter().any(|c| c == "cpuset") {
            for child in self.trees[tree].children(group) {
                self.cpuset_gone(tree, &child);
            }
        }
        let Some(g) = self.trees[tree].groups.get_mut(group) else {
            return Err(libc::ENODEV);
        };
        g.enabled.extend(enable);
        g.enabled.retain(|c| !disable.contains(c));
        // A controller's values are forgotten when it is disabled.
        for child in self.trees[tree].children(group) {
            let Some(g) = self.trees[tree].groups.get_mut(&child) else {
                continue;
            };
            for controller in &disable {
                g.values
                    .retain(|k, _| !k.starts_with(&format!("{controller}.")));
                if controller == "cpuset" {
                    g.cpuset = super::state::Cpuset::default();
                }
            }
        }
        self.cpusets_changed(tree);
        Ok(())
    }

    fn may_enable(&self, tree: usize, group: &str, enable: &[String]) -> Answer<()> {
        if enable.is_empty() {
            return Ok(());
        }
        if !self.valid_domain(tree, &self.domain_of(tree, group)) {
            return Err(libc::EOPNOTSUPP);
        }
        if group == "/" {
            return Ok(());
        }
        if enable.iter().any(|c| !THREADED.contains(&c.as_str())) {
            if self.thread_root(tree, group) || self.threaded(tree, group) {
                return Err(libc::EOPNOTSUPP);
            }
        } else if self.can_be_thread_root(tree, group) || self.threaded(tree, group) {
            return Ok(());
        }
        match self.threads_in(tree, group).is_empty() {
            true => Ok(()),
            false => Err(libc::EBUSY),
        }
    }

    fn make_threaded(&mut self, tree: usize, group: &str, text: &str) -> Answer<()> {
        if text != "threaded" {
            return Err(libc::EINVAL);
        }
        if self.threaded(tree, group) {
            return Ok(());
        }
        let above = parent(group).unwrap_or("/").to_owned();
        let domain = self.domain_of(tree, &above);
        if !self.threads_in(tree, group).is_empty()
            || self.domain_controllers(tree, group)
            || !self.valid_domain(tree, &domain)
            || !(self.threaded(tree, &above) || self.can_be_thread_root(tree, &above))
        {
            return Err(libc::EOPNOTSUPP);
        }
        if let Some(group) = self.trees[tree].groups.get_mut(group) {
            group.kind = Kind::Threaded;
        }
        Ok(())
    }
}

/// Accepts one of a few numbers. Other numbers are out of range, other texts invalid.
fn one_of(text: &str, allowed: &[&str]) -> Answer<()> {
    match text.parse::<i64>() {
        _ if allowed.contains(&text) => Ok(()),
        Ok(_) => Err(libc::ERANGE),
        Err(_) => Err(libc::EINVAL),
    }
}
