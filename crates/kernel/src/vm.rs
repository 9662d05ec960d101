//! The machine's memory as a whole: `/proc/meminfo`, the watermarks of `/proc/zoneinfo`, what was
//! read from disks (`/proc/vmstat`), and huge pages of this process. proc(5), mm/vmstat.c,
//! Documentation/admin-guide/sysctl/vm.rst (min_free_kbytes, watermark_scale_factor).

use quell_types::units::Bytes;

use crate::error::{Error, Result};
use crate::paging;
use crate::root::Files;

/// Path of the file that [`meminfo`] parses.
pub const MEMINFO: &str = "/proc/meminfo";
const ZONEINFO: &str = "/proc/zoneinfo";
/// Path of the file that [`paging()`] parses.
pub const VMSTAT: &str = "/proc/vmstat";

/// Bytes of memory and swap space of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// All that the kernel manages.
    pub total: Bytes,
    /// Free now, without what could be reclaimed.
    pub free: Bytes,
    /// What programs could have without swapping, by the kernel's estimate.
    pub available: Bytes,
    /// All swap space; 0 without any.
    pub swap_total: Bytes,
    /// Unused part of the swap space.
    pub swap_free: Bytes,
}

/// Parses the text of `/proc/meminfo`.
///
/// # Errors
/// [`Error::Malformed`].
pub fn meminfo(text: &str) -> Result<Meminfo> {
    let need = |key: &str| {
        amount(text, key)
            .ok_or_else(|| Error::malformed(MEMINFO, text, format!("a line `{key} N kB`")))
    };
    Ok(Meminfo {
        total: need("MemTotal:")?,
        free: need("MemFree:")?,
        available: need("MemAvailable:")?,
        swap_total: amount(text, "SwapTotal:").unwrap_or_default(),
        swap_free: amount(text, "SwapFree:").unwrap_or_default(),
    })
}

/// The present amounts of memory. `None` without `/proc/meminfo`.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn memory(files: &dyn Files) -> Result<Option<Meminfo>> {
    let text = files.optional(MEMINFO)?;
    text.map(|text| meminfo(&text)).transpose()
}

/// The amount after a key: `MemFree: 12 kB`, and in a node's own file `Node 0 MemFree: 12 kB`.
/// `None` where no line has the key, or it has another unit.
#[must_use]
pub fn amount(text: &str, key: &str) -> Option<Bytes> {
    let kib = text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip_while(|w| *w != key);
        words.next()?;
        Some((words.next()?, words.next()?))
    });
    let (number, _) = kib.filter(|(_, unit)| *unit == "kB")?;
    number.parse::<u64>().ok()?.checked_mul(1024).map(Bytes)
}

/// How much of this process's mapping that holds an address lies in transparent huge pages. `None`
/// where nothing is mapped.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn huge_pages(files: &dyn Files, address: u64) -> Result<Option<Bytes>> {
    let path = "/proc/self/smaps";
    let text = files.optional(path)?.unwrap_or_default();
    let mut all = paging::mappings(path, &text)?.into_iter();
    let found = all.find(|mapping| mapping.range.contains(&address));
    Ok(found.map(|mapping| mapping.huge))
}

/// The amounts of free memory at which the kernel acts, summed over all zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this, allocating tasks have to reclaim.
    pub min: Bytes,
    /// Below this, kswapd reclaims.
    pub low: Bytes,
    /// Above this, kswapd stops.
    pub high: Bytes,
}

/// The machine's watermarks. `None` without `/proc/zoneinfo`.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn watermarks(files: &dyn Files) -> Result<Option<Watermarks>> {
    let Some(text) = files.optional(ZONEINFO)? else {
        return Ok(None);
    };
    let page = rustix::param::page_size() as u64;
    let sum = |key: &str| {
        let pages = text.lines().filter_map(|line| {
            let rest = line.trim_start().strip_prefix(key)?;
            rest.strip_prefix(' ')?.trim().parse::<u64>().ok()
        });
        Bytes(pages.fold(0u64, u64::saturating_add).saturating_mul(page))
    };
    let found = Watermarks {
        min: sum("min"),
        low: sum("low"),
        high: sum("high"),
    };
    if found.min == Bytes(0) || found.low < found.min {
        return Err(Error::malformed(
            ZONEINFO,
            &text,
            "zones with lines `min`, `low` and `high`",
        ));
    }
    Ok(Some(found))
}

/// Pages that the machine read from disks since it was booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paging {
    /// Pages that were read from disks into the page cache. First reads and reading ahead are among
    /// them, pages from swap space are not.
    pub files: u64,
    /// Pages of files and from swap space that had been reclaimed and came back soon. Before Linux
    /// 5.9 only those of files.
    pub refaults: u64,
}

/// Parses the text of `/proc/vmstat`.
///
/// # Errors
/// [`Error::Malformed`].
pub fn paging(text: &str) -> Result<Paging> {
    let count = |key: &str| {
        text.lines().find_map(|line| {
            let rest = line.strip_prefix(key)?.strip_prefix(' ')?;
            rest.trim().parse::<u64>().ok()
        })
    };
    // In KiB, and of all that is read from disks.
    let read = count("pgpgin").ok_or_else(|| Error::malformed(VMSTAT, "", "a line `pgpgin N`"))?;
    let pages = read / (rustix::param::page_size() as u64 >> 10).max(1);
    let of = |key| count(key).unwrap_or_default();
    let apart = of("workingset_refault_file").saturating_add(of("workingset_refault_anon"));
    Ok(Paging {
        files: pages.saturating_sub(of("pswpin")),
        refaults: apart.saturating_add(of("workingset_refault")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn what_is_read_from_disks_is_told_from_swap() {
        let page = rustix::param::page_size() as u64 >> 10;
        let text = format!(
            "nr_free_pages 9\nworkingset_refault_anon 3\nworkingset_refault_file 40\n\
             pgpgin {}\npgpgout 7\npswpin 20\npswpout 1\n",
            100 * page
        );
        let found = paging(&text).unwrap();
        assert_eq!((found.files, found.refaults), (80, 43));
        let old = paging("workingset_refault 5\npgpgin 0\n").unwrap();
        assert_eq!((old.files, old.refaults), (0, 5));
        let error = paging("pgpgout 7\n").unwrap_err().to_string();
        assert!(error.contains("vmstat"), "{error}");
    }

    #[test]
    fn watermarks_are_summed_over_zones_and_memory_read_in_bytes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(watermarks(&kernel).unwrap(), None);
        // The beginning of a zone as Linux 6.18 prints it.
        let zone = |min: u64, low: u64, high: u64| {
            format!(
                "Node 0, zone   Normal\n  pages free     3\n        boost    0\n        min      {min}\n        low      {low}\n        high     {high}\n\
                 \x20       promo    9\n      nr_free_pages 3\n  pagesets\n    cpu: 0\n              count:    9\n              high:     1\n              low_min:  4\n"
            )
        };
        let put = |text: String| std::fs::write(dir.path().join("proc/zoneinfo"), text).unwrap();
        put(zone(21, 26, 31) + &zone(4253, 5316, 6379));
        let page = rustix::param::page_size() as u64;
        let found = watermarks(&kernel).unwrap().unwrap();
        assert_eq!(
            (found.min, found.low, found.high),
            (Bytes(4274 * page), Bytes(5342 * page), Bytes(6410 * page))
        );
        put("Node 0".into());
        assert!(
            watermarks(&kernel)
                .unwrap_err()
                .to_string()
                .contains("zoneinfo")
        );
        let text =
            "MemTotal:       100 kB\nMemFree: 7 kB\nMemAvailable:   60 kB\nSwapTotal: 0 kB\n";
        let found = meminfo(text).unwrap();
        assert_eq!(
            (found.total, found.available),
            (Bytes(102_400), Bytes(61_440))
        );
        assert!(meminfo("MemTotal: 1 kB").is_err());
    }

    #[test]
    fn amounts_are_in_bytes_and_what_is_none_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(memory(&kernel).unwrap(), None);
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let put = |text: &str| std::fs::write(dir.path().join("proc/meminfo"), text).unwrap();
        put("MemTotal: 9 kB\nMemFree: 2 kB\nMemAvailable:   1024 kB\nSwapFree: 1 kB\n");
        let found = memory(&kernel).unwrap().unwrap();
        assert_eq!(
            (found.available, found.swap_free, found.swap_total),
            (Bytes(1 << 20), Bytes(1 << 10), Bytes(0))
        );
        put("MemTotal: 9 kB\nMemFree: 2 kB\nMemAvailable: lots\n");
        let error = memory(&kernel).unwrap_err().to_string();
        assert!(
            error.contains("meminfo") && error.contains("MemAvailable:"),
            "{error}"
        );
        assert_eq!(
            amount("Node 0 MemTotal:  4 kB\n", "MemTotal:"),
            Some(Bytes(4096))
        );
        assert_eq!(amount("MemTotal: 4 MB", "MemTotal:"), None);
    }

    #[test]
    fn huge_pages_are_those_of_the_mapping_that_holds_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let text = "1000-2000 rw-p 0 00:00 0\nAnonHugePages:     0 kB\n\
                    200000-600000 rw-p 0 00:00 0\nRss: 4096 kB\nAnonHugePages:  2048 kB\nVmFlags: rd hg\n";
        std::fs::write(dir.path().join("proc/self/smaps"), text).unwrap();
        let at = |address| huge_pages(&kernel, address).unwrap();
        assert_eq!(at(0x40_0000), Some(Bytes(2 << 20)));
        assert_eq!((at(0x1800), at(0x2000)), (Some(Bytes(0)), None));
    }
}
