//! Which neighbour, and which process, is to blame. It counts growth, pages that come back, use of
//! the disks, and size. `oom_score` alone is size: it misses a program that streams through files
//! and has hardly any memory of its own.

use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};

use super::stall::Difference;
use super::{Neighbour, Process};

/// The page size by which refaults are counted.
const PAGE: u64 = 4096;
/// Bytes of size that weigh as much as one byte per second of growth. A group that is merely large
/// is to blame for little.
const SIZE: u64 = 16;
/// Weight of the newest interval in the averages, as a divisor.
const NEWEST: u64 = 4;
/// The most processes that are remembered from one sample to the next. Later ones are judged by
/// size.
const MOST: usize = 1024;

/// The sums and the averaged rate of one neighbour.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    usage: Difference,
    refaults: Difference,
    io: Difference,
    /// Growth, pages that came back and half of the disk traffic: bytes per second, averaged.
    rate: u64,
}

/// How much each neighbour is to blame.
#[derive(Clone, Debug)]
pub(super) struct Blame {
    accounts: Vec<Account>,
}

impl Blame {
    pub fn new(neighbours: usize) -> Self {
        Self {
            accounts: vec![Account::default(); neighbours],
        }
    }

    /// Takes a sample, `span` after the last one.
    pub fn see(&mut self, neighbours: &[Neighbour], span: Nanos) {
        for (account, neighbour) in self.accounts.iter_mut().zip(neighbours) {
            let grown = account.usage.of(neighbour.usage.0);
            let back = account.refaults.of(neighbour.refaults).saturating_mul(PAGE);
            let moved = account.io.of(neighbour.io);
            let bytes = grown.saturating_add(back).saturating_add(moved / 2);
            let rate = u128::from(bytes) * 1_000_000_000 / u128::from(span.0.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            account.rate = account.rate - account.rate / NEWEST + rate / NEWEST;
        }
    }

    /// How much a neighbour is to blame, in bytes per second. Zero where no process is in it.
    pub fn of(&self, neighbour: usize, sample: &Neighbour) -> u64 {
        if !sample.populated {
            return 0;
        }
        let rate = self.accounts.get(neighbour).map_or(0, |a| a.rate);
        rate.saturating_add(sample.usage.0 / SIZE)
    }

    /// The neighbour most to blame of those that `may` be chosen.
    pub fn worst(&self, samples: &[Neighbour], may: impl Fn(usize) -> bool) -> Option<usize> {
        let chosen = (0..samples.len()).filter(|i| may(*i) && samples[*i].populated);
        chosen.max_by_key(|i| (self.of(*i, &samples[*i]), std::cmp::Reverse(*i)))
    }
}

/// What a process had at the last sample.
#[derive(Clone, Copy, Debug)]
struct Known {
    task: TaskId,
    resident: Bytes,
    io: u64,
    major_faults: u64,
    grown: u64,
}

/// Which process of a neighbour is to blame.
#[derive(Clone, Debug)]
pub(super) struct Suspects {
    known: Vec<Known>,
    /// Filled while the next sample is taken in.
    next: Vec<Known>,
}

impl Suspects {
    pub fn new() -> Self {
        Self {
            known: Vec::with_capacity(MOST),
            next: Vec::with_capacity(MOST),
        }
    }

    /// Takes a sample. Growth is averaged over samples.
    pub fn see(&mut self, processes: &[Process]) {
        self.next.clear();
        for process in processes.iter().take(MOST) {
            let before = self.known.iter().find(|k| k.task == process.task);
            let grown = before.map_or(0, |k| {
                let bytes = process.resident.0.saturating_sub(k.resident.0)
                    + process.io.saturating_sub(k.io) / 2
                    + process.major_faults.saturating_sub(k.major_faults) * PAGE;
                k.grown - k.grown / NEWEST + bytes / NEWEST
            });
            self.next.push(Known {
                task: process.task,
                resident: process.resident,
                io: process.io,
                major_faults: process.major_faults,
                grown,
            });
        }
        std::mem::swap(&mut self.known, &mut self.next);
    }

    /// The process of a neighbour that is most to blame. Growth, size and the kernel's own score
    /// count alike, each relative to the largest of the neighbour.
    pub fn worst(&self, neighbour: usize, processes: &[Process]) -> Option<TaskId> {
        let grown = |p: &Process| {
            let known = self.known.iter().find(|k| k.task == p.task);
            known.map_or(0, |k| k.grown)
        };
        let of = || processes.iter().filter(|p| p.neighbour == neighbour);
        let most = |f: &dyn Fn(&Process) -> u64| of().map(f).max().unwrap_or(0).max(1);
        let parts: [&dyn Fn(&Process) -> u64; 3] =
            [&grown, &|p: &Process| p.resident.0, &|p: &Process| {
                u64::from(p.oom_score)
            }];
        let largest = parts.map(|f| most(f));
        let score = |p: &Process| -> u128 {
            let part = |i: usize| u128::from(parts[i](p)) * 1_000 / u128::from(largest[i]);
            part(0) + part(1) + part(2)
        };
        of().max_by_key(|p| (score(p), std::cmp::Reverse(p.task)))
            .map(|p| p.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, oom_score: u32, mib: u64, io: u64) -> Process {
        Process {
            task: TaskId { pid, start: 1 },
            neighbour: 0,
            oom_score,
            resident: Bytes(mib << 20),
            io,
            major_faults: 0,
        }
    }

    #[test]
    fn a_file_streamer_is_blamed_before_a_large_process() {
        let quiet = |usage: u64, io| Neighbour {
            usage: Bytes(usage << 20),
            io,
            populated: true,
            ..Neighbour::default()
        };
        let mut blame = Blame::new(2);
        for i in 0..10 {
            blame.see(
                &[quiet(1000, 0), quiet(50, i * (20 << 20))],
                Nanos::millis(20),
            );
        }
        let now = [quiet(1000, 0), quiet(50, 200 << 20)];
        assert_eq!(blame.worst(&now, |_| true), Some(1));
        assert_eq!(
            blame.worst(&now, |i| i == 0),
            Some(0),
            "of those that may be"
        );
    }

    #[test]
    fn who_grows_is_found_among_processes() {
        let mut suspects = Suspects::new();
        for i in 0..8 {
            suspects.see(&[process(10, 700, 400, 0), process(11, 690, 40 * i, 0)]);
        }
        let now = [process(10, 700, 400, 0), process(11, 690, 320, 0)];
        assert_eq!(suspects.worst(0, &now).unwrap().pid, 11);
        assert_eq!(suspects.worst(1, &now), None, "of that neighbour");
        // Without a history it is the larger one.
        assert_eq!(Suspects::new().worst(0, &now).unwrap().pid, 10);
    }
}
