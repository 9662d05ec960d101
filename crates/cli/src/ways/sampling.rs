//! Samples, one after the other: what has changed since the one before, and what ran meanwhile.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_engine::folder::Folder;
use quell_engine::sink::Sink;
use quell_kernel::root::{Files, Kernel};
use quell_kernel::switches::{Switches, Taken};
use quell_kernel::{rt, signals, topology};
use quell_linux::ways::Looker;
use quell_record::events::Event;
use quell_record::ways::{Change, Run, Snapshot, changes};
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags, poll};

use crate::exit::{Result, failed};

/// The most runs of threads that are kept in memory, about 30 MB. What is more counts as lost.
const MOST_RUNS: usize = 500_000;

/// What is sampled, and what was found so far.
pub struct Sampling {
    pub looker: Looker,
    /// Context switches, where they are recorded.
    pub switches: Option<Switches>,
    pub record: Option<Folder>,
    /// The changes so far, with their times.
    pub told: Vec<(Nanos, Change)>,
    /// The last sample.
    pub last: Snapshot,
    pub samples: u64,
    /// The longest time between the beginnings of two samples.
    pub apart: Nanos,
    /// When the last sample began.
    sampled: Option<Nanos>,
    /// How many runs of threads are kept, and how many records are missing.
    pub runs: usize,
    pub lost: u64,
    /// Caches that are known. `None` before the first sample.
    caches: Option<usize>,
    /// The beginning, on CLOCK_MONOTONIC.
    begun: Nanos,
}

/// Begins to record context switches.
///
/// # Errors
/// Why that is not possible, with the remedy.
pub fn switches(files: &Kernel) -> std::result::Result<Switches, String> {
    let files: &dyn Files = files;
    let cpus = topology::online(files).map_err(|e| e.to_string())?;
    Switches::open(&cpus).map_err(|e| {
        let remedy = match e.kind() {
            ErrorKind::PermissionDenied => "run as root, outside of any container",
            ErrorKind::NotFound | ErrorKind::Unsupported => "this kernel has no perf events",
            _ => "see perf_event_open(2)",
        };
        format!("context switches cannot be recorded: {e}; {remedy}")
    })
}

impl Sampling {
    pub fn new(looker: Looker, switches: Option<Switches>, record: Option<Folder>) -> Self {
        Self {
            looker,
            switches,
            record,
            told: Vec::new(),
            last: Snapshot::default(),
            samples: 0,
            apart: Nanos(0),
            sampled: None,
            runs: 0,
            lost: 0,
            caches: None,
            begun: rt::now(),
        }
    }

    /// The time since the beginning.
    pub fn now(&self) -> Nanos {
        rt::now().since(self.begun)
    }

    /// Takes a sample.
    pub fn sample(&mut self, files: &Kernel) -> Result<()> {
        let taken = self.switches.as_mut().map(Switches::take);
        let at = self.now();
        let before = self.sampled.replace(at).unwrap_or(at);
        self.apart = self.apart.max(at.since(before));
        let seen = self.looker.sample(files, taken.as_ref());
        let seen = seen.map_err(failed)?;
        let caches = self.looker.caches();
        if self.caches != Some(caches.len()) {
            self.caches = Some(caches.len());
            let machine = Change::Machine {
                caches: caches.to_vec(),
                registers: self.looker.registers_alone(),
            };
            self.put(at, machine);
        }
        for change in changes(&self.last, &seen) {
            self.put(at, change);
        }
        self.last = seen;
        self.samples += 1;
        if let Some(taken) = taken {
            self.ran(at, &taken);
        }
        Ok(())
    }

    /// Keeps what ran before `at`.
    fn ran(&mut self, at: Nanos, taken: &Taken) {
        let mut lost = taken.lost;
        for (cpu, all) in &taken.runs {
            let room = MOST_RUNS.saturating_sub(self.runs).min(all.len());
            lost += (all.len() - room) as u64;
            self.runs += room;
            let run = |run: &quell_kernel::switches::Run| Run {
                tid: run.task.tid,
                before_ns: at.since(run.from.since(self.begun)).0,
                ns: run.until.since(run.from).0,
            };
            let runs: Vec<Run> = all.iter().take(room).map(run).collect();
            if !runs.is_empty() {
                self.put(at, Change::Ran { cpu: *cpu, runs });
            }
        }
        if lost > 0 {
            self.lost += lost;
            self.put(at, Change::Lost { switches: lost });
        }
    }

    fn put(&mut self, at: Nanos, change: Change) {
        let event = Event::Ways {
            change: change.clone(),
        };
        self.record.put(at, &event);
        self.told.push((at, change));
    }

    /// Waits until then. Returns whether a signal asks to end.
    pub fn wait(&mut self, stops: &OwnedFd, until: Nanos) -> bool {
        loop {
            let switches = self.switches.iter().flat_map(Switches::descriptors);
            let all: Vec<BorrowedFd<'_>> = std::iter::once(stops.as_fd()).chain(switches).collect();
            let mut all: Vec<PollFd<'_>> = all
                .into_iter()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let timeout = rt::timespec(until.since(self.now()));
            let _ = poll(&mut all, Some(&timeout));
            let full = all.iter().skip(1).any(|fd| !fd.revents().is_empty());
            if signals::next_signal(stops).is_some() {
                return true;
            }
            let over = self.now() >= until;
            match &mut self.switches {
                Some(switches) if full && !over => switches.relieve(),
                _ => return false,
            }
        }
    }
}
