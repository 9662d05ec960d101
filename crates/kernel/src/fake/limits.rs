//! Controllers with values that are kept and checked, without an effect on running tasks: `cpu`,
//! `memory`, `pids`, `io`, `freezer`. Documentation/scheduler/sched-bwc.rst, cgroup-v2.rst ("CPU",
//! "Memory", "PID").
//!
//! Deviations:
//! - v1's `cpu.cfs_burst_us`, v1 limits on kernel memory or swap, and `io.max` are left out.
//! - `pids.max` refuses no birth: only tests fork inside the model.
//! - Clearing `cpu.idle` makes the weight 100, as the kernel does. `cpu.weight.nice` is left out.

use super::Answer;
use super::state::{Machine, parent};

/// A file that keeps a value.
#[derive(Debug)]
pub(crate) struct Knob {
    pub name: &'static str,
    pub controller: &'static str,
    pub unified: bool,
    pub at_root: bool,
    pub mode: u32,
    default: &'static str,
    /// Turns a written text into the kept one, or an error number.
    check: fn(&str) -> Answer<String>,
}

const fn knob(
    name: &'static str,
    controller: &'static str,
    unified: bool,
    at_root: bool,
    default: &'static str,
    check: fn(&str) -> Answer<String>,
) -> Knob {
    Knob {
        name,
        controller,
        unified,
        at_root,
        mode: 0o644,
        default,
        check,
    }
}

const fn shown(
    name: &'static str,
    controller: &'static str,
    unified: bool,
    default: &'static str,
) -> Knob {
    Knob {
        mode: 0o444,
        ..knob(name, controller, unified, !unified, default, refused)
    }
}

/// The files of all these controllers, in both versions.
pub(crate) static KNOBS: &[Knob] = &[
    knob("cpu.max", "cpu", true, false, "max 100000", kept),
    knob("cpu.max.burst", "cpu", true, false, "0", number),
    knob("cpu.weight", "cpu", true, false, "100", weight),
    knob("cpu.idle", "cpu", true, false, "0", flag),
    knob("memory.max", "memory", true, false, "max", bytes),
    knob("memory.high", "memory", true, false, "max", bytes),
    knob("memory.low", "memory", true, false, "0", bytes),
    knob("memory.min", "memory", true, false, "0", bytes),
    knob("memory.oom.group", "memory", true, false, "0", flag),
    knob("memory.swap.max", "memory", true, false, "max", bytes),
    Knob {
        mode: 0o200,
        ..knob("memory.reclaim", "memory", true, true, "", kept)
    },
    shown("memory.swap.current", "memory", true, "0"),
    shown("memory.current", "memory", true, "0"),
    Knob {
        at_root: true,
        ..shown("memory.stat", "memory", true, "")
    },
    shown("memory.events", "memory", true, ""),
    Knob {
        at_root: true,
        ..shown("io.stat", "io", true, "")
    },
    knob("pids.max", "pids", true, false, "max", most),
    shown("pids.current", "pids", true, "0"),
    shown("pids.events", "pids", true, "max 0"),
    knob("io.weight", "io", true, false, "default 100", io_weight),
    knob("cpu.cfs_period_us", "cpu", false, true, "100000", number),
    knob("cpu.cfs_quota_us", "cpu", false, true, "-1", signed),
    knob("cpu.shares", "cpu", false, true, "1024", shares),
    knob("cpu.idle", "cpu", false, true, "0", flag),
    knob("cpu.rt_period_us", "cpu", false, true, "1000000", number),
    knob("cpu.rt_runtime_us", "cpu", false, true, "0", signed),
    shown(
        "cpu.stat",
        "cpu",
        false,
        "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
    ),
    knob(
        "memory.limit_in_bytes",
        "memory",
        false,
        true,
        "9223372036854771712",
        v1_bytes,
    ),
    shown("memory.usage_in_bytes", "memory", false, "0"),
    shown("memory.failcnt", "memory", false, "0"),
    shown("memory.stat", "memory", false, ""),
    knob("memory.oom_control", "memory", false, true, "", flag),
    knob("memory.swappiness", "memory", false, true, "60", swappiness),
    // Written only through cgroup.event_control.
    Knob {
        mode: 0o000,
        ..knob("memory.pressure_level", "memory", false, true, "", kept)
    },
    knob("freezer.state", "freezer", false, false, "THAWED", freezer),
    Knob {
        mode: 0o444,
        ..knob(
            "freezer.self_freezing",
            "freezer",
            false,
            false,
            "0",
            refused,
        )
    },
    Knob {
        mode: 0o444,
        ..knob(
            "freezer.parent_freezing",
            "freezer",
            false,
            false,
            "0",
            refused,
        )
    },
];

/// Bytes of a page, to which limits in bytes are rounded down.
const PAGE: u64 = 4096;

fn refused(_: &str) -> Answer<String> {
    Err(libc::EACCES)
}

fn kept(text: &str) -> Answer<String> {
    Ok(text.to_owned())
}

fn number(text: &str) -> Answer<String> {
    let n: u64 = text.parse().map_err(|_| libc::EINVAL)?;
    Ok(n.to_string())
}

fn signed(text: &str) -> Answer<String> {
    let n: i64 = text.parse().map_err(|_| libc::EINVAL)?;
    Ok(n.max(-1).to_string())
}

fn shares(text: &str) -> Answer<String> {
    let n: u64 = text.parse().map_err(|_| libc::EINVAL)?;
    Ok(n.clamp(2, 262_144).to_string())
}

fn flag(text: &str) -> Answer<String> {
    match text.parse::<i64>() {
        Ok(n @ (0 | 1)) => Ok(n.to_string()),
        Ok(_) => Err(libc::ERANGE),
        Err(_) => Err(libc::EINVAL),
    }
}

fn weight(text: &str) -> Answer<String> {
    match text.parse::<i64>() {
        Ok(n @ 1..=10_000) => Ok(n.to_string()),
        Ok(_) => Err(libc::ERANGE),
        Err(_) => Err(libc::EINVAL),
    }
}

fn io_weight(text: &str) -> Answer<String> {
    let n = text.strip_prefix("default ").unwrap_or(text);
    match n.parse::<u64>() {
        Ok(n @ 1..=10_000) => Ok(format!("default {n}")),
        _ => Err(libc::EINVAL),
    }
}

fn most(text: &str) -> Answer<String> {
    match text.parse::<u32>() {
        _ if text == "max" => Ok(text.to_owned()),
        Ok(n) => Ok(n.to_string()),
        Err(_) => Err(libc::EINVAL),
    }
}

/// Bytes with K, M, G or T, rounded down to whole pages (memparse).
pub(super) fn parse_bytes(text: &str) -> Answer<u64> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        Some(b't' | b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let n: u64 = digits.parse().map_err(|_| libc::EINVAL)?;
    Ok((n << shift) / PAGE * PAGE)
}

fn bytes(text: &str) -> Answer<String> {
    match text {
        "max" => Ok(text.to_owned()),
        _ => parse_bytes(text).map(|n| n.to_string()),
    }
}

fn swappiness(text: &str) -> Answer<String> {
    match text.parse::<u64>() {
        Ok(n @ 0..=200) => Ok(n.to_string()),
        _ => Err(libc::EINVAL),
    }
}

fn v1_bytes(text: &str) -> Answer<String> {
    match text {
        "-1" => Ok("9223372036854771712".to_owned()),
        _ => parse_bytes(text).map(|n| n.to_string()),
    }
}

fn freezer(text: &str) -> Answer<String> {
    match text {
        "FROZEN" | "THAWED" => Ok(text.to_owned()),
        _ => Err(libc::EINVAL),
    }
}

/// The shortest and longest quota and period that the kernel takes, in microseconds.
const SHORTEST: i64 = 1_000;
const LONGEST: i64 = 1_000_000;

impl Machine {
    fn knob(&self, tree: usize, name: &str) -> Option<&'static Knob> {
        let unified = self.trees[tree].unified;
        let here = |k: &&Knob| {
            k.name == name && k.unified == unified && self.trees[tree].has(k.controller)
        };
        KNOBS.iter().find(here)
    }

    pub(super) fn value(&self, tree: usize, group: &str, name: &str) -> Option<String> {
        let knob = self.knob(tree, name)?;
        let text = self.trees[tree].groups.get(group)?.values.get(name);
        Some(match text {
            Some(text) => text.clone(),
            // All real-time runtime belongs to the root until it is handed out.
            None if group == "/" && name == "cpu.rt_runtime_us" => "950000".to_owned(),
            None => knob.default.to_owned(),
        })
    }

    pub(super) fn limit_read(&self, tree: usize, group: &str, name: &str) -> Answer<String> {
        let mut text = self.value(tree, group, name).ok_or(libc::ENOENT)?;
        if let Some(told) = self.memory_read(tree, group, name) {
            text = told;
        }
        match name {
            "cpu.weight" if self.value(tree, group, "cpu.idle").as_deref() == Some("1") => {
                text = "1".to_owned();
            }
            "pids.current" => {
                let inside = format!("{}/", group.trim_end_matches('/'));
                let is = |p: &String| p == group || p.starts_with(&inside);
                let count = self.tasks.values().filter(|t| is(&t.places[tree])).count();
                text = count.to_string();
            }
            "freezer.state" if self.freezing(tree, group) => text = "FROZEN".to_owned(),
            "freezer.self_freezing" => {
                let own = self.value(tree, group, "freezer.state").as_deref() == Some("FROZEN");
                text = u8::from(own).to_string();
            }
            "freezer.parent_freezing" => {
                let above = parent(group).is_some_and(|p| self.freezing(tree, p));
                text = u8::from(above).to_string();
            }
            _ => {}
        }
        Ok(format!("{text}\n"))
    }

    fn freezing(&self, tree: usize, group: &str) -> bool {
        let mut at = Some(group);
        while let Some(g) = at.filter(|g| *g != "/") {
            if self.value(tree, g, "freezer.state").as_deref() == Some("FROZEN") {
                return true;
            }
            at = parent(g);
        }
        false
    }

    pub(super) fn limit_write(
        &mut self,
        tree: usize,
        group: &str,
        name: &str,
        text: &str,
    ) -> Answer<()> {
        let knob = self.knob(tree, name).ok_or(libc::ENOENT)?;
        let mut value = (knob.check)(text)?;
        let before = self.value(tree, group, name).unwrap_or_default();
        match name {
            "memory.reclaim" => return self.reclaim_written(tree, group, text),
            "memory.limit_in_bytes" if group == "/" => return Err(libc::EINVAL),
            "cpu.max" => value = self.v2_quota(tree, group, text)?,
            "cpu.cfs_quota_us" | "cpu.cfs_period_us" => self.v1_quota(tree, group, name, &value)?,
            "cpu.weight" if self.value(tree, group, "cpu.idle").as_deref() == Some("1") => {
                return Err(libc::EINVAL);
            }
            "cpu.idle" if self.trees[tree].unified => {
                self.keep(tree, group, "cpu.weight", "100".to_owned());
            }
            _ => {}
        }
        self.keep(tree, group, knob.name, value);
        self.limit_written(tree, group, name, &before)
    }

    /// Parses `max` or `QUOTA`, with a period or with the present one.
    fn v2_quota(&self, tree: usize, group: &str, text: &str) -> Answer<String> {
        let now = self.value(tree, group, "cpu.max").unwrap_or_default();
        let mut words = text.split_ascii_whitespace();
        let quota = words.next().ok_or(libc::EINVAL)?;
        let period = words
            .next()
            .or_else(|| now.split(' ').nth(1))
            .unwrap_or("100000");
        let us: i64 = period.parse().map_err(|_| libc::EINVAL)?;
        if !(SHORTEST..=LONGEST).contains(&us) {
            return Err(libc::EINVAL);
        }
        match quota.parse::<i64>() {
            _ if quota == "max" => {}
            Ok(q) if q >= SHORTEST => {}
            _ => return Err(libc::EINVAL),
        }
        Ok(format!("{quota} {us}"))
    }

    /// Checks a v1 quota: a child's share is at most its parent's.
    fn v1_quota(&self, tree: usize, group: &str, name: &str, value: &str) -> Answer<()> {
        if group == "/" {
            return Err(libc::EINVAL);
        }
        let of = |g: &str| -> (i64, i64) {
            let read = |n: &str| match g == group && n == name {
                true => value.to_owned(),
                false => self.value(tree, g, n).unwrap_or_default(),
            };
            let part = |n| read(n).parse().unwrap_or(-1);
            (part("cpu.cfs_quota_us"), part("cpu.cfs_period_us"))
        };
        let (quota, period) = of(group);
        if !(SHORTEST..=LONGEST).contains(&period) || (quota != -1 && quota < SHORTEST) {
            return Err(libc::EINVAL);
        }
        // The least share above each cgroup bounds it.
        for g in self.trees[tree].groups.keys() {
            let (quota, period) = of(g);
            let mut at = parent(g);
            while let Some(above) = at {
                let (most, per) = of(above);
                if quota > 0 && most > 0 && quota * per > most * period {
                    return Err(libc::EINVAL);
                }
                at = parent(above);
            }
        }
        Ok(())
    }
}
