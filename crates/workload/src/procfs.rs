//! The few kernel files the generators read, each from a given root: `meminfo`, `stat` and `self/smaps`
//! (Documentation/filesystems/proc.rst), `cpuN/cache` (Documentation/ABI/testing/sysfs-devices-system-cpu). Missing is
//! `None`; malformed is an error.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use quell_types::cpuset::CpuId;
use quell_types::units::Bytes;

use crate::Error;

fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::kernel(format!("reading {}", path.display()))(e)),
    }
}

/// `AnonHugePages:  2048 kB` → bytes.
fn kilobytes(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip(1);
    let number: u64 = words.next()?.parse().ok()?;
    (words.next()? == "kB").then(|| number * 1024)
}

fn malformed(path: &Path, line: &str) -> Error {
    Error::refused(
        format!("reading {}", path.display()),
        format!("'{line}' is not 'name: number kB'"),
        "report this kernel's version together with the file",
    )
}

/// Memory the kernel believes could be taken without swapping (`MemAvailable`).
///
/// # Errors
/// When the file cannot be read, or the line is malformed.
pub fn available_memory(proc: &Path) -> Result<Option<Bytes>, Error> {
    meminfo(proc, "MemAvailable:")
}

/// Swap that nobody uses (`SwapFree`).
///
/// # Errors
/// When the file cannot be read, or the line is malformed.
pub fn free_swap(proc: &Path) -> Result<Option<Bytes>, Error> {
    meminfo(proc, "SwapFree:")
}

fn meminfo(proc: &Path, name: &str) -> Result<Option<Bytes>, Error> {
    let path = proc.join("meminfo");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    match text.lines().find(|l| l.starts_with(name)) {
        None => Ok(None),
        Some(line) => match kilobytes(line) {
            Some(bytes) => Ok(Some(Bytes(bytes))),
            None => Err(malformed(&path, line)),
        },
    }
}

/// How much of this process's mapping that contains `address` lies in transparent huge pages.
///
/// # Errors
/// When the file cannot be read, or its line is malformed.
pub fn huge_bytes(proc: &Path, address: u64) -> Result<Option<Bytes>, Error> {
    let path = proc.join("self/smaps");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    let mut inside = false;
    for line in text.lines() {
        if let Some((start, end)) = range(line) {
            inside = (start..end).contains(&address);
        } else if inside && line.starts_with("AnonHugePages:") {
            return match kilobytes(line) {
                Some(bytes) => Ok(Some(Bytes(bytes))),
                None => Err(malformed(&path, line)),
            };
        }
    }
    Ok(None)
}

/// Nanoseconds of a tick of the clocks in `/proc/stat` (`USER_HZ` is 100 on every architecture Quell runs on).
const TICK_NS: u64 = 10_000_000;

/// Whether there may be a hypervisor that takes CPUs away: the processor says so, or it has done so.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn guest(proc: &Path) -> Result<bool, Error> {
    let flags = read(&proc.join("cpuinfo"))?.unwrap_or_default();
    let told = flags
        .lines()
        .take_while(|l| !l.is_empty())
        .any(|l| l.starts_with("flags") && l.split_whitespace().any(|w| w == "hypervisor"));
    Ok(told || cpu_time(proc, "cpu", 7)?.is_some_and(|steal| steal > 0))
}

/// Whether the kernel keeps the time of interrupts apart (CONFIG_IRQ_TIME_ACCOUNTING). Without that, interrupt time
/// is what a tick finds interrupted, and a tick never finds itself: the figure stays at zero.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn interrupts_apart(proc: &Path) -> Result<bool, Error> {
    Ok(cpu_time(proc, "cpu", 5)?.is_some_and(|irq| irq > 0))
}

/// What the hypervisor took from a CPU since boot, in nanoseconds, on a clock of 10 ms.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn steal_ns(proc: &Path, cpu: CpuId) -> Result<Option<u64>, Error> {
    Ok(cpu_time(proc, &format!("cpu{cpu}"), 7)?.map(|ticks| ticks * TICK_NS))
}

/// A number of a CPU's line in `stat` (proc_stat(5)): 5 `irq`, 7 `steal`.
fn cpu_time(proc: &Path, name: &str, index: usize) -> Result<Option<u64>, Error> {
    let Some(text) = read(&proc.join("stat"))? else {
        return Ok(None);
    };
    let line = text.lines().find_map(|l| {
        let mut words = l.split_whitespace();
        (words.next() == Some(name)).then_some(words)
    });
    Ok(line.and_then(|mut words| words.nth(index)?.parse().ok()))
}

/// Interrupts that a CPU has served since boot, of all kinds.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn interrupts(proc: &Path, cpu: CpuId) -> Result<Option<u64>, Error> {
    let Some(text) = read(&proc.join("interrupts"))? else {
        return Ok(None);
    };
    let mut lines = text.lines();
    let head: Vec<&str> = lines
        .next()
        .map(|l| l.split_whitespace().collect())
        .unwrap_or_default();
    let name = format!("CPU{cpu}");
    let Some(column) = head.iter().position(|c| *c == name) else {
        return Ok(None);
    };
    let served = lines.filter_map(|line| {
        let numbers: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map_while(|w| w.parse().ok())
            .collect();
        // ERR and MIS have one number for all CPUs.
        numbers
            .get(column)
            .copied()
            .filter(|_| numbers.len() >= head.len())
    });
    Ok(Some(served.sum()))
}

/// `7f00-7f10 rw-p …` → the addresses.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

/// A second-level cache where the kernel does not tell its size.
const USUAL_L2: Bytes = Bytes(2 << 20);

/// The largest second-level cache of any of these CPUs, a usual size where the kernel tells none.
///
/// # Errors
/// As [`second_level_cache`].
pub(crate) fn largest_l2(cpus: impl IntoIterator<Item = CpuId>) -> Result<Bytes, Error> {
    let mut largest = None;
    for cpu in cpus {
        let size = second_level_cache(Path::new("/sys/devices/system/cpu"), cpu)?;
        largest = largest.max(Some(size.unwrap_or(USUAL_L2)));
    }
    Ok(largest.unwrap_or(USUAL_L2))
}

/// The size of a CPU's second-level cache; `cpus` is `/sys/devices/system/cpu`.
///
/// # Errors
/// When a file of the cache is there and cannot be read, or its size is malformed.
pub fn second_level_cache(cpus: &Path, cpu: CpuId) -> Result<Option<Bytes>, Error> {
    for index in 0..16 {
        let folder = cpus.join(format!("cpu{cpu}/cache/index{index}"));
        let Some(level) = read(&folder.join("level"))? else {
            return Ok(None);
        };
        if level.trim() != "2" {
            continue;
        }
        let path = folder.join("size");
        return match read(&path)? {
            None => Ok(None),
            Some(size) => match size.trim().strip_suffix('K').map(str::parse::<u64>) {
                Some(Ok(kib)) => Ok(Some(Bytes(kib << 10))),
                _ => Err(Error::refused(
                    format!("reading {}", path.display()),
                    format!("'{}' is not a size such as 1280K", size.trim()),
                    "report this kernel's version together with the file",
                )),
            },
        };
    }
    Ok(None)
}

/// Time of one CPU, in ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// All of it.
    pub all: u64,
    /// What the hypervisor gave to others while the CPU had something to run.
    pub steal: u64,
}

impl CpuTime {
    /// The part stolen since `before`, 0 to 1; `None` where no tick has passed.
    #[must_use]
    pub fn stolen_since(self, before: Self) -> Option<f64> {
        let all = self.all.saturating_sub(before.all);
        (all > 0).then(|| self.steal.saturating_sub(before.steal) as f64 / all as f64)
    }
}

/// The time of every CPU (`/proc/stat`), and of all of them together under `None`. Empty where there is no such file, or
/// the kernel does not tell what was stolen.
///
/// # Errors
/// When the file cannot be read, or a line is malformed.
pub fn cpu_times(proc: &Path) -> Result<BTreeMap<Option<CpuId>, CpuTime>, Error> {
    let path = proc.join("stat");
    let mut found = BTreeMap::new();
    for line in read(&path)?.unwrap_or_default().lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next().and_then(|w| w.strip_prefix("cpu")) else {
            continue;
        };
        let wrong = || {
            Error::refused(
                format!("reading {}", path.display()),
                format!("'{line}' is not a CPU and its ticks"),
                "report this kernel's version together with the file",
            )
        };
        let cpu = match name {
            "" => None,
            number => Some(number.parse().map_err(|_| wrong())?),
        };
        // user nice system idle iowait irq softirq steal; guests' time, which follows, is in user already.
        let ticks: Vec<u64> = words
            .take(8)
            .map(|w| w.parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        if let [.., steal] = ticks[..]
            && ticks.len() == 8
        {
            let all = ticks.iter().sum();
            found.insert(cpu, CpuTime { all, steal });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(available_memory(root.path()).unwrap(), None);
        file(
            root.path(),
            "meminfo",
            "MemTotal: 9 kB\nMemAvailable:   1024 kB\nSwapFree: 1 kB\n",
        );
        assert_eq!(available_memory(root.path()).unwrap(), Some(Bytes(1 << 20)));
        assert_eq!(free_swap(root.path()).unwrap(), Some(Bytes(1 << 10)));
        file(root.path(), "meminfo", "MemAvailable: lots\n");
        let text = available_memory(root.path()).unwrap_err().to_string();
        assert!(
            text.contains("meminfo") && text.contains("MemAvailable: lots"),
            "{text}"
        );
    }

    #[test]
    fn huge_pages_are_those_of_the_mapping_that_holds_the_address() {
        let root = tempfile::tempdir().unwrap();
        file(
            root.path(),
            "self/smaps",
            "1000-2000 rw-p 0 00:00 0\nAnonHugePages:     0 kB\n\
             200000-600000 rw-p 0 00:00 0\nRss: 4096 kB\nAnonHugePages:  2048 kB\nVmFlags: rd hg\n",
        );
        assert_eq!(
            huge_bytes(root.path(), 0x40_0000).unwrap(),
            Some(Bytes(2 << 20))
        );
        assert_eq!(huge_bytes(root.path(), 0x1800).unwrap(), Some(Bytes(0)));
        assert_eq!(huge_bytes(root.path(), 0x2000).unwrap(), None);
    }

    #[test]
    fn interrupts_are_summed_over_the_column_of_the_cpu() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(interrupts(root.path(), 0).unwrap(), None);
        // CPU 1 is offline.
        file(
            root.path(),
            "interrupts",
            "           CPU0       CPU2\n  4:       7    1000 IO-APIC 4-edge ttyS0\nLOC:  50  60 Local timer interrupts\n\
             ERR:          9\n",
        );
        assert_eq!(interrupts(root.path(), 0).unwrap(), Some(57));
        assert_eq!(interrupts(root.path(), 2).unwrap(), Some(1060));
        assert_eq!(interrupts(root.path(), 1).unwrap(), None);
    }

    #[test]
    fn steal_and_interrupt_time_come_from_the_line_of_the_cpu() {
        let root = tempfile::tempdir().unwrap();
        assert!(!guest(root.path()).unwrap());
        file(
            root.path(),
            "stat",
            "cpu  9 9 9 9 9 0 3 50 0 0\ncpu0 4 4 4 4 4 0 1 20 0 0\ncpu1 5 5 5 5 5 0 2 30 0 0\nintr 7\n",
        );
        assert!(guest(root.path()).unwrap());
        assert!(!interrupts_apart(root.path()).unwrap());
        assert_eq!(steal_ns(root.path(), 1).unwrap(), Some(300_000_000));
        assert_eq!(steal_ns(root.path(), 7).unwrap(), None);
    }

    #[test]
    fn the_second_level_cache_is_found_among_the_others() {
        let root = tempfile::tempdir().unwrap();
        for (index, level, size) in [(0, "1", "48K"), (1, "1", "32K"), (2, "2", "1280K")] {
            file(
                root.path(),
                &format!("cpu3/cache/index{index}/level"),
                level,
            );
            file(root.path(), &format!("cpu3/cache/index{index}/size"), size);
        }
        let read = |cpu| second_level_cache(root.path(), cpu);
        assert_eq!(read(3).unwrap(), Some(Bytes(1280 << 10)));
        assert_eq!(read(4).unwrap(), None);
        file(root.path(), "cpu3/cache/index2/size", "big");
        assert!(read(3).unwrap_err().to_string().contains("'big'"));
    }

    #[test]
    fn stolen_time_is_a_part_of_all_time() {
        let root = tempfile::tempdir().unwrap();
        assert!(cpu_times(root.path()).unwrap().is_empty());
        file(
            root.path(),
            "stat",
            "cpu  10 0 5 80 0 0 1 4 9 0\ncpu3 10 0 5 80 0 0 1 4 9 0\nintr 5 6\n",
        );
        let before = cpu_times(root.path()).unwrap();
        assert_eq!(before[&Some(3)], CpuTime { all: 100, steal: 4 });
        let after = CpuTime {
            all: 200,
            steal: 29,
        };
        assert_eq!(after.stolen_since(before[&None]), Some(0.25));
        assert_eq!(after.stolen_since(after), None);
        file(root.path(), "stat", "cpu 10 0 5 80\n");
        assert!(cpu_times(root.path()).unwrap().is_empty(), "an old kernel");
        file(root.path(), "stat", "cpux 1 2 3\n");
        assert!(
            cpu_times(root.path())
                .unwrap_err()
                .to_string()
                .contains("cpux")
        );
    }
}
