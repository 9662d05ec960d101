//! A real-time task: released at a fixed interval, each job a pass over a buffer.

use crate::access::{Access, LINE};

/// Lines of its code that a job runs through: the loop, the calls that read the counter and sleep.
/// Assumed: 512 bytes.
const CODE: u64 = 8;
/// Lines of its stack that a job uses. Assumed: 256 bytes.
const STACK: u64 = 4;
/// Lines with the upper levels of its page tables, one of each.
const UPPER: u64 = 3;
/// Bytes of buffer that a line of the lowest level maps: eight entries of pages of 4 KiB.
const MAPPED: u64 = 8 << 12;

/// Its own lines, then one load every `step` bytes of the buffer, then the next job. The loads do
/// not depend on each other, as in the program on Linux.
///
/// Its own lines are code, stack and page tables. They lie behind the buffer. Each job reads them
/// once at its begin, one after the other.
///
/// Deviations:
/// - The page tables are read as if the task had lost its translations while it slept. The machine
///   has no caches of page-table entries, and its own walks do not read memory.
/// - Code goes through the first level of data.
#[derive(Clone, Debug)]
pub struct Task {
    bytes: u64,
    step: u64,
    /// Picoseconds between two releases.
    period: u64,
    /// When a job is released, in picoseconds since booting; below the period. `None`: the first
    /// job is released when the task comes to it.
    first: Option<u64>,
    /// Cycles of computing before each load.
    compute: u32,
    /// Which of its own lines comes next in this job. Then the loads begin.
    own: u64,
    at: u64,
}

impl Task {
    /// Passes over `bytes` in steps of `step` (at least one), every `period` picoseconds, with
    /// `compute` cycles before each load.
    #[must_use]
    pub fn new(bytes: u64, step: u64, period: u64, compute: u32) -> Self {
        Self {
            bytes: bytes.max(LINE),
            step: step.max(1),
            period: period.max(1),
            first: None,
            compute,
            own: 0,
            at: 0,
        }
    }

    /// The same with its jobs released `first` picoseconds after booting, and each period later.
    #[must_use]
    pub fn released_at(self, first: u64) -> Self {
        Self {
            first: Some(first % self.period),
            ..self
        }
    }

    /// Bytes of code, stack and page tables of a task with a buffer of `bytes`.
    #[must_use]
    pub fn own_bytes(bytes: u64) -> u64 {
        (CODE + STACK + UPPER + bytes.div_ceil(MAPPED)) * LINE
    }

    pub(super) fn period(&self) -> u64 {
        self.period
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.first
    }

    pub(super) fn next_access(&mut self) -> Access {
        let own = self.own;
        if own * LINE < Self::own_bytes(self.bytes) {
            self.own += 1;
            return Access {
                address: self.bytes.next_multiple_of(LINE) + own * LINE,
                dependent: true,
                begins: own == 0,
                own: true,
                ..Access::default()
            };
        }
        let address = self.at;
        self.at += self.step;
        if self.at >= self.bytes {
            (self.at, self.own) = (0, 0);
        }
        Access {
            address,
            compute: self.compute,
            ..Access::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_reads_its_own_lines_first_and_then_the_buffer() {
        let mut task = Task::new(4 << 10, 32, 1, 7);
        let own = Task::own_bytes(4 << 10) / LINE;
        assert_eq!(own, 16);
        for job in 0..2 {
            for n in 0..own {
                let access = task.next_access();
                assert_eq!(access.address, (4 << 10) + n * LINE, "job {job}");
                assert_eq!((access.begins, access.own), (n == 0, true));
                assert!(access.dependent && access.compute == 0);
            }
            for n in 0..128 {
                let access = task.next_access();
                assert_eq!((access.address, access.compute), (n * 32, 7));
                assert!(!access.own && !access.begins && !access.dependent);
            }
        }
    }
}
