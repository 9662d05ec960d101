//! Whom to blame: who grows, whose pages come back, who uses the disks, who is large. `oom_score`
//! alone is size, and misses who streams through files without owning a byte (pressure.md, 7).

use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};

use super::stall::Difference;
use super::{Neighbour, Process};

/// The page by which refaults are counted.
const PAGE: u64 = 4096;
/// Bytes of size that weigh as much as a byte per second of growth: who is merely large is to blame
/// for little.
const SIZE: u64 = 16;
/// Weight of the newest interval in the averages: one part of so many.
const NEWEST: u64 = 4;
/// So many processes are known from one look to the next; who comes later is judged by its size.
const MOST: usize = 1024;

/// One neighbour's account.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    usage: Difference,
    refaults: Difference,
    io: Difference,
    /// Bytes per second, averaged.
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

    /// Takes a look in, `span` after the last.
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

    /// How much a neighbour is to blame, in bytes per second. Nobody in it, nobody to blame.
    pub fn of(&self, neighbour: usize, look: &Neighbour) -> u64 {
        if !look.populated {
            return 0;
        }
        let rate = self.accounts.get(neighbour).map_or(0, |a| a.rate);
        rate.saturating_add(look.usage.0 / SIZE)
    }

    /// The one most to blame of those that `may` be chosen.
    pub fn worst(&self, looks: &[Neighbour], may: impl Fn(usize) -> bool) -> Option<usize> {
        let chosen = (0..looks.len()).filter(|i| may(*i) && looks[*i].populated);
        chosen.max_by_key(|i| (self.of(*i, &looks[*i]), std::cmp::Reverse(*i)))
    }
}

/// What a process had at the last look.
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
    /// Filled while the next look is taken in.
    next: Vec<Known>,
}

impl Suspects {
    pub fn new() -> Self {
        Self {
            known: Vec::with_capacity(MOST),
            next: Vec::with_capacity(MOST),
        }
    }

    /// Takes a look in; growth is averaged from one to the next.
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

    /// The process of a neighbour most to blame: its part of what grew, and of what is there, and
    /// the kernel's own score, each against the largest.
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
        // Without a history the larger one.
        assert_eq!(Suspects::new().worst(0, &now).unwrap().pid, 10);
    }
}
