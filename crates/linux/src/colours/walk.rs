//! One pass over the memory of a process whose pages are moved: where it is, and what was counted.

use std::ops::Range;

use quell_control::settling::{MOST_PAGES, PageState, RightFrames};
use quell_kernel::error::Result;
use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::paging::Mapping;
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_types::task::TaskId;

use super::sieve::PagesOf;

/// Pages of a mapping that are read at once.
pub(super) const WINDOW: u64 = 4096;

/// Pages of a process that can be moved, by whether they have a right frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Those that have one.
    pub right: u64,
    /// Those that have not, before anything was moved.
    pub wrong: u64,
}

/// One pass over the memory of a process.
pub(super) struct Walk {
    pub all: Vec<Mapping>,
    /// Number of the mapping, and of the next page in it. `None`: its first.
    pub mapping: usize,
    pub page: Option<u64>,
    pub counted: Counted,
    /// Right pages of this mapping by their colour. `None`: none of its pages was moved yet.
    pub had: Option<PagesOf>,
}

impl Walk {
    pub(super) fn new(all: Vec<Mapping>) -> Self {
        Self {
            all,
            mapping: 0,
            page: None,
            counted: Counted::default(),
            had: None,
        }
    }

    /// Goes on to the next mapping.
    pub(super) fn skip(&mut self) {
        (self.mapping, self.page, self.had) = (self.mapping + 1, None, None);
    }

    /// Counts the pages of this mapping by their colour, unless that was done. A mapping without
    /// wrong pages is not read once more for it.
    pub(super) fn count_colours(
        &mut self,
        files: &dyn Files,
        task: TaskId,
        right: &RightFrames,
        pages: Range<u64>,
    ) -> Result<()> {
        let mut at = if self.had.is_none() {
            pages.start
        } else {
            pages.end
        };
        while at < pages.end {
            let next = pages.end.min(at + WINDOW);
            self.note(right, &entries(files, task, at..next)?, 1);
            at = next;
        }
        Ok(())
    }

    /// Adds pages to those of their colour, or takes them away.
    pub(super) fn note(&mut self, right: &RightFrames, pages: &[Page], by: i64) {
        let all = self.had.get_or_insert_default();
        let there = pages.iter().filter(|page| page.is_present());
        for colour in there.filter_map(|page| right.colour(page.frame())) {
            let had = all.entry(colour).or_default();
            *had = had.saturating_add_signed(by);
        }
    }

    /// Counts pages by whether they are right.
    pub(super) fn count(&mut self, states: &[PageState]) {
        let of = |wanted| states.iter().filter(|state| **state == wanted).count() as u64;
        self.counted.right += of(PageState::Right);
        self.counted.wrong += of(PageState::Wrong);
    }
}

/// What `pagemap` says of pages. Nothing where the process has ended.
pub(super) fn entries(files: &dyn Files, task: TaskId, pages: Range<u64>) -> Result<Vec<Page>> {
    let length = usize::try_from(pages.end - pages.start).unwrap_or(0);
    let mut entries = vec![Page::default(); length];
    let read = match Pagemap::open(files, &task.pid.to_string()) {
        Ok(pagemap) => pagemap.read(pages.start, &mut entries)?,
        Err(_) if !procfs::alive(files, task) => 0,
        Err(e) => return Err(e),
    };
    entries.truncate(read);
    Ok(entries)
}

/// An address for a side area: in the middle half of the largest gap between two mappings, by this
/// number. An area that another settler left does not keep this one from another place. `None`
/// where no gap is large enough.
pub(super) fn gap(all: &[Mapping], length: u64, number: u64) -> Option<u64> {
    /// What one table of page-table entries maps: so that as few tables as possible are needed.
    const ALIGNMENT: u64 = 2 << 20;
    let least = length.max(MOST_PAGES).saturating_mul(4) + 8 * ALIGNMENT;
    let between = all
        .windows(2)
        .map(|pair| pair[0].range.end..pair[1].range.start);
    // Beyond half of the addresses lies the kernel.
    let own = between.filter(|gap| gap.end >> 63 == 0 && gap.start < gap.end);
    let largest = own.max_by_key(|gap| gap.end - gap.start)?;
    let size = largest.end - largest.start;
    let places = size / 2 / ALIGNMENT;
    (size >= least).then(|| ((largest.start + size / 4) / ALIGNMENT + number % places) * ALIGNMENT)
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
