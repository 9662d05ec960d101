//! Files outside of the cgroup file systems: interrupts, the workqueue mask, pressure, sysctls, and
//! the machine's shape. Documentation/core-api/irq/irq-affinity.rst,
//! Documentation/accounting/psi.rst, sched-rt-group.rst.
//!
//! Deviations:
//! - An interrupt's effective affinity is its first allowed CPU. Interrupts have no directory of
//!   their handler.
//! - A pressure trigger is forgotten at once (the writer closes the file). So there is no second
//!   trigger on one descriptor, and no EBUSY.
//! - The shape is one package, one core per CPU, with a 32 KiB first and an 8 MiB last level.

use std::collections::BTreeMap;

use quell_types::cpuset::CpuSet;

use super::Answer;
use super::spec::{Spec, TOTAL};
use crate::root::parse_mask;
use crate::workqueue;

/// Text of a pressure file while no task waits.
pub(super) const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
                                   full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

struct Interrupt {
    cpus: CpuSet,
    fixed: i32,
}

pub(crate) struct Knobs {
    interrupts: BTreeMap<u32, Interrupt>,
    default: CpuSet,
    workqueues: CpuSet,
    /// Text of files that are fixed, or that keep what was written, by path.
    plain: BTreeMap<String, String>,
    /// Number of bits in a CPU mask.
    width: u32,
}

const DEFAULT: &str = "/proc/irq/default_smp_affinity";
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";
/// Sysctls of memory, with their values. [`Knobs::vm`] has their bounds.
const VM: [(&str, i64); 5] = [
    ("swappiness", 60),
    ("dirty_ratio", 20),
    ("dirty_background_ratio", 10),
    ("overcommit_memory", 0),
    ("min_free_kbytes", 67_584),
];
const PER_IRQ: [(&str, u32); 5] = [
    ("effective_affinity", 0o444),
    ("effective_affinity_list", 0o444),
    ("node", 0o444),
    ("smp_affinity", 0o644),
    ("smp_affinity_list", 0o644),
];

/// Checks a pressure trigger: `some|full STALL WINDOW` in microseconds, the window at most 10 s.
/// Before 6.4 the window was at least 500 ms, and only privileged writers could set it. Since then
/// unprivileged windows are whole multiples of 2 s.
pub(super) fn trigger(text: &str, release: (u32, u32), privileged: bool) -> Answer<()> {
    const LONGEST: u64 = 10_000_000;
    let old = release < (6, 4);
    if old && !privileged {
        return Err(libc::EPERM);
    }
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [kind @ ("some" | "full"), stall, window] = words[..] else {
        return Err(libc::EINVAL);
    };
    let _ = kind;
    let number = |t: &str| t.parse::<u64>().map_err(|_| libc::EINVAL);
    let (stall, window) = (number(stall)?, number(window)?);
    let fits = match (old, privileged) {
        (true, _) => window >= 500_000,
        (false, true) => true,
        (false, false) => window.is_multiple_of(2_000_000),
    };
    match fits && stall > 0 && window > 0 && window <= LONGEST && stall <= window {
        true => Ok(()),
        false => Err(libc::EINVAL),
    }
}

impl Knobs {
    pub fn new(spec: &Spec, cpus: &CpuSet) -> Self {
        let mut plain = BTreeMap::new();
        let mut put = |path: &str, text: String| {
            plain.insert(path.to_owned(), text + "\n");
        };
        let nodes: CpuSet = (0..spec.nodes).collect();
        put("/proc/sys/kernel/osrelease", spec.release.to_owned());
        put(
            "/proc/sys/kernel/random/boot_id",
            "5f0c3a2e-0000-4000-8000-000000000001".to_owned(),
        );
        put(RUNTIME, "950000".to_owned());
        put(PERIOD, "1000000".to_owned());
        put(
            "/proc/cpuinfo",
            format!(
                "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\nmodel name\t: Model of a CPU",
                if spec.rdt.as_ref().is_some_and(|rdt| rdt.locks) {
                    0x5c
                } else {
                    0x6a
                }
            ),
        );
        put(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nvision:x:1000:1000::/:/bin/sh".to_owned(),
        );
        for (name, value) in VM {
            plain.insert(format!("/proc/sys/vm/{name}"), format!("{value}\n"));
        }
        let kib = |bytes: u64| bytes >> 10;
        let meminfo = format!(
            "MemTotal:       {} kB\nMemFree:        {} kB\nMemAvailable:   {} kB\nSwapTotal:             0 kB\n\
             SwapFree:              0 kB\n",
            kib(TOTAL),
            kib(TOTAL / 2),
            kib(TOTAL / 4 * 3)
        );
        plain.insert("/proc/meminfo".to_owned(), meminfo);
        let zone = "Node 0, zone   Normal\n  pages free     1048576\n        min      16896\n        low      21120\n\
                    \x20       high     25344\n";
        plain.insert("/proc/zoneinfo".to_owned(), zone.to_owned());
        for name in ["cpu", "io", "memory"] {
            plain.insert(format!("/proc/pressure/{name}"), PRESSURE.to_owned());
        }
        let mut put = |path: String, text: String| {
            plain.insert(path, text + "\n");
        };
        for name in ["online", "possible", "present"] {
            put(format!("/sys/devices/system/cpu/{name}"), cpus.to_string());
            put(
                format!("/sys/devices/system/node/{name}"),
                nodes.to_string(),
            );
        }
        for cpu in cpus.iter() {
            let dir = format!("/sys/devices/system/cpu/cpu{cpu}");
            put(
                format!("{dir}/topology/thread_siblings_list"),
                cpu.to_string(),
            );
            put(
                format!("{dir}/topology/physical_package_id"),
                "0".to_owned(),
            );
            for (i, level, size, shared) in [
                (0, "1", "32K", cpu.to_string()),
                (3, "3", "8192K", cpus.to_string()),
            ] {
                let cache = format!("{dir}/cache/index{i}");
                put(format!("{cache}/level"), level.to_owned());
                put(
                    format!("{cache}/type"),
                    if i == 0 { "Data" } else { "Unified" }.to_owned(),
                );
                put(format!("{cache}/size"), size.to_owned());
                let number = if i == 0 { cpu } else { 0 };
                put(format!("{cache}/id"), number.to_string());
                put(format!("{cache}/shared_cpu_list"), shared);
            }
        }
        for node in nodes.iter() {
            let own: CpuSet = cpus
                .iter()
                .filter(|c| c % spec.nodes.max(1) == node)
                .collect();
            put(
                format!("/sys/devices/system/node/node{node}/cpulist"),
                own.to_string(),
            );
        }
        Self {
            interrupts: BTreeMap::new(),
            default: cpus.clone(),
            workqueues: cpus.clone(),
            plain,
            width: spec.cpus,
        }
    }

    pub fn interrupt(&mut self, number: u32, cpus: &CpuSet, fixed: i32) {
        let cpus = cpus.clone();
        self.interrupts.insert(number, Interrupt { cpus, fixed });
    }

    fn irq(&self, path: &str) -> Option<(u32, String)> {
        let (number, name) = path.strip_prefix("/proc/irq/")?.split_once('/')?;
        let number = number.parse().ok()?;
        self.interrupts.get(&number)?;
        Some((number, name.to_owned()))
    }

    /// A mask as the kernel prints it: all the bits that a CPU can have, in words of 32.
    fn mask(&self, cpus: &CpuSet) -> String {
        let mut words = Vec::new();
        for word in 0..self.width.div_ceil(32) {
            let bits = cpus
                .iter()
                .filter(|c| c / 32 == word)
                .fold(0u32, |b, c| b | 1 << (c % 32));
            let digits = (self.width - 32 * word).min(32).div_ceil(4) as usize;
            words.push(format!("{bits:0digits$x}"));
        }
        words.reverse();
        words.join(",") + "\n"
    }

    pub fn read(&self, path: &str) -> Answer<String> {
        match path {
            DEFAULT => return Ok(self.mask(&self.default)),
            workqueue::MASK => return Ok(self.mask(&self.workqueues)),
            _ => {}
        }
        if let Some((number, name)) = self.irq(path) {
            let cpus = &self.interrupts[&number].cpus;
            let first: CpuSet = cpus.iter().take(1).collect();
            return match name.as_str() {
                "smp_affinity" => Ok(self.mask(cpus)),
                "smp_affinity_list" => Ok(format!("{cpus}\n")),
                "effective_affinity" => Ok(self.mask(&first)),
                "effective_affinity_list" => Ok(format!("{first}\n")),
                "node" => Ok("0\n".to_owned()),
                _ => Err(libc::ENOENT),
            };
        }
        self.plain.get(path).cloned().ok_or(libc::ENOENT)
    }

    pub fn mode(&self, path: &str) -> Option<u32> {
        if let Some((number, name)) = self.irq(path) {
            let (_, mode) = PER_IRQ.iter().find(|(n, _)| *n == name)?;
            // Since 6.12 the file of an interrupt that cannot be moved is read-only.
            let offered = self.interrupts[&number].fixed != libc::EPERM;
            return Some(if offered { *mode } else { 0o444 });
        }
        match path {
            DEFAULT | workqueue::MASK | RUNTIME | PERIOD => Some(0o644),
            _ if path.starts_with("/proc/pressure/") => self.plain.get(path).map(|_| 0o666),
            _ if path.starts_with("/proc/sys/vm/") => self.plain.get(path).map(|_| 0o644),
            _ => self.plain.get(path).map(|_| 0o444),
        }
    }

    pub fn list(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let dir = format!("{path}/");
        let part = |p: &str| {
            let rest = p.strip_prefix(&dir)?;
            rest.split('/').next().map(str::to_owned)
        };
        names.extend(self.plain.keys().filter_map(|p| part(p)));
        names.extend([DEFAULT, workqueue::MASK].into_iter().filter_map(part));
        for number in self.interrupts.keys() {
            for (name, _) in PER_IRQ {
                names.extend(part(&format!("/proc/irq/{number}/{name}")));
            }
        }
        names
    }

    pub fn write(&mut self, path: &str, text: &str, cpus: &CpuSet) -> Answer<()> {
        let width = self.width;
        let masked = |text: &str| -> Answer<CpuSet> {
            let set = parse_mask(text).ok_or(libc::EINVAL)?;
            let beyond = set.iter().next_back().is_some_and(|c| c >= width);
            if beyond {
                Err(libc::EOVERFLOW)
            } else {
                Ok(set)
            }
        };
        let some = |set: CpuSet| {
            let none = set.intersection(cpus).is_empty();
            if none { Err(libc::EINVAL) } else { Ok(set) }
        };
        match path {
            DEFAULT => self.default = masked(text).and_then(some)?,
            workqueue::MASK => self.workqueues = masked(text).and_then(some)?.intersection(cpus),
            RUNTIME | PERIOD => return self.realtime(path, text),
            _ => {
                if let Some((number, name)) = self.irq(path) {
                    return self.route(number, &name, text, &masked, cpus);
                }
                return match self.plain.contains_key(path) {
                    true if path.starts_with("/proc/sys/vm/") => self.vm(path, text),
                    true => Err(libc::EACCES),
                    false => Err(libc::ENOENT),
                };
            }
        }
        Ok(())
    }

    /// Sends an interrupt to other CPUs. Whether it can be moved is checked before the value.
    fn route(
        &mut self,
        number: u32,
        name: &str,
        text: &str,
        masked: &dyn Fn(&str) -> Answer<CpuSet>,
        cpus: &CpuSet,
    ) -> Answer<()> {
        if !name.starts_with("smp_affinity") {
            return Err(libc::EACCES);
        }
        let Some(interrupt) = self.interrupts.get_mut(&number) else {
            return Err(libc::ENOENT);
        };
        if interrupt.fixed != 0 {
            return Err(interrupt.fixed);
        }
        let set = match name {
            "smp_affinity" => masked(text)?,
            _ => text.parse::<CpuSet>().map_err(|_| libc::EINVAL)?,
        };
        if !set.is_empty() && !set.is_subset(cpus) {
            return Err(libc::ERANGE);
        }
        if set.is_empty() {
            return Err(libc::EINVAL);
        }
        interrupt.cpus = set;
        Ok(())
    }

    fn vm(&mut self, path: &str, text: &str) -> Answer<()> {
        let value: i64 = text.trim().parse().map_err(|_| libc::EINVAL)?;
        let most = match path.rsplit('/').next() {
            Some("swappiness") => 200,
            Some("overcommit_memory") => 2,
            Some("min_free_kbytes") => i64::from(i32::MAX),
            _ => 100,
        };
        if !(0..=most).contains(&value) {
            return Err(libc::EINVAL);
        }
        self.plain.insert(path.to_owned(), format!("{value}\n"));
        Ok(())
    }

    /// Sets real-time throttling: -1 (off), or at most the period.
    fn realtime(&mut self, path: &str, text: &str) -> Answer<()> {
        let value: i64 = text.parse().map_err(|_| libc::EINVAL)?;
        let now = |p: &str| self.plain[p].trim().parse::<i64>().unwrap_or(0);
        let (runtime, period) = match path {
            RUNTIME => (value, now(PERIOD)),
            _ => (now(RUNTIME), value),
        };
        if period < 1 || runtime < -1 || runtime > period {
            return Err(libc::EINVAL);
        }
        self.plain.insert(path.to_owned(), format!("{value}\n"));
        Ok(())
    }
}
