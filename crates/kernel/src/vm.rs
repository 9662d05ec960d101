//! The machine's memory as a whole: `/proc/meminfo`, the watermarks of `/proc/zoneinfo`, refaults and scans of
//! `/proc/vmstat`. proc(5), Documentation/admin-guide/sysctl/vm.rst (min_free_kbytes, watermark_scale_factor).

use quell_types::units::Bytes;

use crate::error::{Error, Result};
use crate::root::Files;

/// `/proc/meminfo`.
pub const MEMINFO: &str = "/proc/meminfo";
const ZONEINFO: &str = "/proc/zoneinfo";

/// How much memory there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    /// All that the kernel manages.
    pub total: Bytes,
    /// Free, not counting what could be.
    pub free: Bytes,
    /// What programs could have without swapping, by the kernel's estimate.
    pub available: Bytes,
    /// Swap space.
    pub swap_total: Bytes,
    /// Of that, unused.
    pub swap_free: Bytes,
}

/// Reads `/proc/meminfo`'s text.
///
/// # Errors
/// [`Error::Malformed`].
pub fn meminfo(text: &str) -> Result<Meminfo> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024).map(Bytes)
    };
    let need = |key: &str| {
        value(key).ok_or_else(|| Error::malformed(MEMINFO, text, format!("a line `{key} N kB`")))
    };
    Ok(Meminfo {
        total: need("MemTotal:")?,
        free: need("MemFree:")?,
        available: need("MemAvailable:")?,
        swap_total: value("SwapTotal:").unwrap_or_default(),
        swap_free: value("SwapFree:").unwrap_or_default(),
    })
}

/// Where the kernel begins to act, summed over all zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below, whoever allocates has to reclaim.
    pub min: Bytes,
    /// Below, kswapd reclaims.
    pub low: Bytes,
    /// Above, it stops.
    pub high: Bytes,
}

/// The watermarks; `None` without `/proc/zoneinfo`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

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
}
