//! Pages of a process's address space, as plain data.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpuset::{CpuId, CpuSet};
use crate::task::TaskId;

/// Neighbouring pages.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub struct PageRun {
    /// The first page: its address divided by the page size.
    pub first: u64,
    /// How many pages, at least one.
    pub pages: u64,
}

impl PageRun {
    /// The page after the last one.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.first.saturating_add(self.pages)
    }
}

/// Pages of all runs together.
#[must_use]
pub fn total(runs: &[PageRun]) -> u64 {
    runs.iter().map(|run| run.pages).sum()
}

/// Where pages of a process are while they are away from their addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SideArea {
    /// The process, with its start time.
    pub task: TaskId,
    /// Address of the side area. Its first page has the token. The pages of the runs follow, in
    /// order, without gaps.
    pub at: u64,
    /// What the side area begins with, so that it can be recognized.
    pub token: u64,
    /// Size of a page in bytes.
    pub page: u64,
    /// The pages that are moved, all of one mapping, ascending.
    pub runs: Vec<PageRun>,
    /// The thread that is to do the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Caller>,
    /// Threads that sleep, and are stopped on the CPU of that thread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sleepers: Vec<Sleepers>,
}

/// A thread that is kept on one CPU while it does calls, so that no other CPU has to be woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Caller {
    /// Its number.
    pub tid: u32,
    /// The CPUs that it had, and gets back.
    pub cpus: CpuSet,
    /// The CPU that it is kept on: one of them.
    pub on: CpuId,
}

/// Threads that sleep, and are kept on one CPU while they are stopped, so that no other CPU has to
/// be woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Sleepers {
    /// Their numbers.
    pub tids: Vec<u32>,
    /// The CPUs that each of them had, and gets back.
    pub cpus: CpuSet,
}

/// A part of a run, and where it is in the side area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its pages.
    pub run: PageRun,
    /// The page of the side area that its first page is moved to. The first page is not counted.
    pub slot: u64,
}

impl Piece {
    /// What follows its first `pages` pages.
    #[must_use]
    pub const fn after(self, pages: u64) -> Self {
        Self {
            run: PageRun {
                first: self.run.first + pages,
                pages: self.run.pages.saturating_sub(pages),
            },
            slot: self.slot + pages,
        }
    }

    /// Its first `pages` pages.
    #[must_use]
    pub const fn first(self, pages: u64) -> Self {
        Self {
            run: PageRun {
                first: self.run.first,
                pages,
            },
            slot: self.slot,
        }
    }
}

impl SideArea {
    /// Bytes of the side area.
    #[must_use]
    pub fn length(&self) -> u64 {
        total(&self.runs)
            .saturating_add(1)
            .saturating_mul(self.page)
    }

    /// The address of a page of the side area. The first page is not counted.
    #[must_use]
    pub const fn slot(&self, slot: u64) -> u64 {
        self.at
            .saturating_add(slot.saturating_add(1).saturating_mul(self.page))
    }

    /// The addresses in the side area that pages are moved to.
    #[must_use]
    pub fn slots(&self) -> Range<u64> {
        self.slot(0)..self.at.saturating_add(self.length())
    }

    /// The addresses from the first page that is moved to the last one.
    #[must_use]
    pub fn area(&self) -> Range<u64> {
        let first = self.runs.first().map_or(0, |run| run.first);
        let end = self.runs.last().map_or(0, |run| run.end());
        first.saturating_mul(self.page)..end.saturating_mul(self.page)
    }

    /// The threads that are kept on one CPU, each with the CPUs that it had.
    pub fn kept(&self) -> impl Iterator<Item = (u32, &CpuSet)> {
        let caller = self.caller.iter().map(|caller| (caller.tid, &caller.cpus));
        caller.chain(self.sleepers())
    }

    /// The threads that sleep, each with the CPUs that it had.
    pub fn sleepers(&self) -> impl Iterator<Item = (u32, &CpuSet)> {
        let each = self.sleepers.iter();
        each.flat_map(|same| same.tids.iter().map(|tid| (*tid, &same.cpus)))
    }

    /// The runs, with their places in the side area.
    #[must_use]
    pub fn pieces(&self) -> Vec<Piece> {
        let mut slot = 0;
        let piece = |run: &PageRun| {
            let piece = Piece { run: *run, slot };
            slot += run.pages;
            piece
        };
        self.runs.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_area_holds_its_runs_one_after_the_other() {
        let run = |first, pages| PageRun { first, pages };
        let side = SideArea {
            task: TaskId { pid: 7, start: 5 },
            at: 0x10_0000,
            token: 1,
            page: 4096,
            runs: vec![run(16, 3), run(32, 1)],
            caller: None,
            sleepers: Vec::new(),
        };
        assert_eq!(side.length(), 5 * 4096);
        assert_eq!(side.slots(), 0x10_1000..0x10_5000);
        assert_eq!(side.area(), 0x1_0000..0x2_1000);
        let pieces = side.pieces();
        assert_eq!(
            pieces[1],
            Piece {
                run: run(32, 1),
                slot: 3
            }
        );
        assert_eq!(
            pieces[0].after(2),
            Piece {
                run: run(18, 1),
                slot: 2
            }
        );
        assert_eq!(pieces[0].first(2).run, run(16, 2));
        assert_eq!(side.slot(pieces[1].slot), 0x10_4000);
    }
}
