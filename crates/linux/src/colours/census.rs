//! What all page frames of some colours are used for (`/proc/kpageflags`): by how much a hoard
//! keeps programs out of these colours.

use std::collections::BTreeMap;

use quell_control::settling::RightFrames;
use quell_kernel::error::Result;
use quell_kernel::node_memory;
use quell_kernel::pagemap::{Flags, PageFlags, Usage};
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Colouring;
use quell_types::units::Bytes;

/// Frames whose flags are read at once: 512 KiB of them.
const AT_ONCE: u64 = 1 << 16;

/// The page frames of some colours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// The size of a page.
    pub page: Bytes,
    /// The number of frames of each use. What is never handed out is left out.
    pub frames: BTreeMap<Usage, u64>,
}

impl Census {
    /// The memory of one use.
    #[must_use]
    pub fn bytes(&self, usage: Usage) -> Bytes {
        let frames = self.frames.get(&usage).copied().unwrap_or(0);
        Bytes(frames.saturating_mul(self.page.0))
    }

    /// All memory with these colours.
    #[must_use]
    pub fn total(&self) -> Bytes {
        let frames = self
            .frames
            .values()
            .fold(0u64, |sum, n| sum.saturating_add(*n));
        Bytes(frames.saturating_mul(self.page.0))
    }
}

/// Counts the frames of some colours. `None` where there are no such colours, or the kernel does
/// not show what frames are used for. It reads 2 MiB for each GiB of memory, and calls `beat` after
/// each 512 KiB of these.
///
/// # Errors
/// [`quell_kernel::error::Error::File`], [`quell_kernel::error::Error::Malformed`].
pub fn of(
    files: &dyn Files,
    colouring: &Colouring,
    colours: &CpuSet,
    beat: &mut dyn FnMut(),
) -> Result<Option<Census>> {
    let Some(flags) = PageFlags::open(files)? else {
        return Ok(None);
    };
    let Some(wanted) = RightFrames::new(colouring, colours) else {
        return Ok(None);
    };
    let page = colouring.page.0.max(1);
    let mut frames = BTreeMap::new();
    let mut room = Vec::new();
    for ranges in node_memory::ranges(files, page)?.values() {
        for range in ranges.iter() {
            let (mut first, end) = (range.start / page, range.end / page);
            while first < end {
                let count = usize::try_from((end - first).min(AT_ONCE)).unwrap_or(0);
                room.clear();
                room.resize(count, Flags::default());
                let read = flags.read(first, &mut room)?;
                for (frame, flags) in (first..).zip(&room[..read]) {
                    if wanted.has(frame) && flags.usage() != Usage::Never {
                        *frames.entry(flags.usage()).or_insert(0) += 1;
                    }
                }
                if read == 0 {
                    break;
                }
                first += read as u64;
                beat();
            }
        }
    }
    Ok(Some(Census {
        page: colouring.page,
        frames,
    }))
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    #[test]
    fn frames_of_colours_are_counted_by_their_use() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let colouring = Colouring::of_pages([1 << 12], 0);
        let odd: CpuSet = "1".parse().unwrap();
        assert_eq!(of(&kernel, &colouring, &odd, &mut || {}).unwrap(), None);
        // Frames 2 to 9, of which the last two have no flags any more.
        let zones = "Node 0, zone Normal\n  spanned  8\n  start_pfn:  2\n";
        std::fs::write(dir.path().join("proc/zoneinfo"), zones).unwrap();
        let (free, program, file, none) = (1u64 << 10, 1u64 << 12, 1u64 << 5, 1u64 << 20);
        let flags = [free, free, program, free, program, program, file, none];
        let bytes: Vec<u8> = flags.iter().flat_map(|f| f.to_ne_bytes()).collect();
        std::fs::write(dir.path().join("proc/kpageflags"), bytes).unwrap();
        let found = of(&kernel, &colouring, &odd, &mut || {}).unwrap().unwrap();
        let expected = [(Usage::Free, 1), (Usage::Programs, 1)];
        assert_eq!(found.frames, expected.into_iter().collect());
        assert_eq!(found.total(), Bytes(8192));
        assert_eq!(found.bytes(Usage::Programs), Bytes(4096));
        let even = "0".parse().unwrap();
        let found = of(&kernel, &colouring, &even, &mut || {}).unwrap().unwrap();
        assert_eq!(found.bytes(Usage::Programs), Bytes(8192));
        assert_eq!(found.bytes(Usage::Files), Bytes(4096));
    }
}
