//! Swap space in compressed memory (zram). Documentation/admin-guide/blockdev/zram.rst.
//!
//! A page that does not compress takes all of its size there. So swapping it out frees nothing.

use quell_types::units::Bytes;

use crate::cached_file::CachedFile;
use crate::error::{Error, Result};
use crate::root::Files;

const SWAPS: &str = "/proc/swaps";

/// What lies in compressed swap space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compressed {
    /// What was swapped out, before compression.
    pub stored: Bytes,
    /// The memory that it takes.
    pub takes: Bytes,
}

/// The zram devices that the machine swaps to. Their files stay open.
#[derive(Debug, Default)]
pub struct Devices(Vec<CachedFile>);

impl Devices {
    /// Those that are in use now.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub fn open(files: &dyn Files) -> Result<Self> {
        let swaps = files.optional(SWAPS)?.unwrap_or_default();
        let mut all = Vec::new();
        for device in devices(&swaps) {
            let path = format!("/sys/block/{device}/mm_stat");
            all.extend(CachedFile::open(files, &path)?);
        }
        Ok(Self(all))
    }

    /// What lies in all of them.
    ///
    /// # Errors
    /// If a file cannot be read, or its text is not the kernel's.
    pub fn read(&mut self, files: &dyn Files) -> Result<Compressed> {
        let mut sum = Compressed::default();
        for kept in &mut self.0 {
            let Some(found) = kept.text(files)?.map(mm_stat) else {
                continue;
            };
            let needed = "original size, compressed size and memory used, in bytes";
            let found = found.ok_or_else(|| Error::malformed(kept.path(), "", needed))?;
            sum.stored.0 = sum.stored.0.saturating_add(found.stored.0);
            sum.takes.0 = sum.takes.0.saturating_add(found.takes.0);
        }
        Ok(sum)
    }
}

/// The names of zram devices in the text of `/proc/swaps`.
fn devices(swaps: &str) -> impl Iterator<Item = &str> {
    let first = swaps
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    first.filter_map(|path| {
        let name = path.rsplit('/').next()?;
        let number = name.strip_prefix("zram")?;
        number.parse::<u32>().is_ok().then_some(name)
    })
}

/// The text of `mm_stat`: `orig_data_size`, `compr_data_size`, `mem_used_total`, and others.
#[must_use]
pub fn mm_stat(text: &str) -> Option<Compressed> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let stored = numbers.next()?.ok()?;
    let takes = numbers.nth(1)?.ok()?;
    Some(Compressed {
        stored: Bytes(stored),
        takes: Bytes(takes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_fields() {
        // Of Linux 6.12, after 8 MiB of noise were swapped out.
        let text =
            " 8388608  8388608  8486912        0  8486912        0        0     2048     2048\n";
        let found = mm_stat(text).unwrap();
        assert_eq!(found.stored, Bytes(8 << 20));
        assert_eq!(found.takes, Bytes(8_486_912));
        assert_eq!(mm_stat(""), None);
        assert_eq!(mm_stat("1 2"), None);
        assert_eq!(mm_stat("1 2 x"), None);
    }

    #[test]
    fn only_compressed_swap_space_counts() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                     /dev/zram0                              partition\t1048572\t\t0\t\t100\n\
                     /swapfile                               file\t\t1048572\t\t0\t\t-2\n";
        assert_eq!(devices(swaps).collect::<Vec<_>>(), ["zram0"]);
        assert_eq!(devices("").count(), 0);
    }
}
