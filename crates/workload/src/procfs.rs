//! The few kernel files the generators read, each from a given root: `meminfo` and `self/smaps`
//! (Documentation/filesystems/proc.rst), `cpuN/cache` (Documentation/ABI/testing/sysfs-devices-system-cpu). Missing is
//! `None`; malformed is an error.

use std::fs;
use std::io;
use std::path::Path;

use quell_core::cpuset::CpuId;
use quell_core::units::Bytes;

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
    let path = proc.join("meminfo");
    let Some(text) = read(&path)? else {
        return Ok(None);
    };
    match text.lines().find(|l| l.starts_with("MemAvailable:")) {
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

/// `7f00-7f10 rw-p …` → the addresses.
fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
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
            "MemTotal: 9 kB\nMemAvailable:   1024 kB\n",
        );
        assert_eq!(available_memory(root.path()).unwrap(), Some(Bytes(1 << 20)));
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
}
