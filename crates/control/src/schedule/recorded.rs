//! `linux-recorded`: a schedule that a real kernel made, replayed. The processes of the recording
//! never slept, so its choices do not depend on what they computed.
//!
//! `experiments/smt/linux-recorded.txt` is Linux 7.2 on six cores of two threads with 24 processes,
//! in time that counts instructions (`scripts/recorded.py`). A seed decides which member takes the
//! place of which process, and where in the recording a replay begins. It goes on from the
//! beginning after the end.
//!
//! Where there are fewer members than processes, the hardware threads of the missing ones stay
//! idle. More members are refused.

use std::sync::LazyLock;

use quell_types::rng::Rng;
use quell_types::units::Nanos;

use super::{Cores, Member, Scheduler, Seat, TooMany};

const TEXT: &str = include_str!("../../../../experiments/smt/linux-recorded.txt");
/// The recording, or an empty one where the text is damaged. A test reads it.
static KERNEL: LazyLock<Recording> = LazyLock::new(|| Recording::read(TEXT).unwrap_or_default());
/// The unit of lengths in the text.
const UNIT: Nanos = Nanos::micros(100);

/// A process ran on a CPU until this time. `None`: no process of the recording did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    process: Option<usize>,
    until: Nanos,
}

/// Which process ran on which CPU when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The runs of each CPU, in order of time.
    cpus: Vec<Vec<Run>>,
    processes: usize,
}

impl Recording {
    /// Reads a recording: a line for each CPU, `cpu 0: 3x40 -x2 7x41`. A run is a process' number
    /// from 0 (`-`: none of them) and its length in tenths of a millisecond. `#` begins a comment.
    ///
    /// # Errors
    /// The number of the first line that is not so, from 1.
    pub fn read(text: &str) -> Result<Self, usize> {
        let mut all = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                all.line(line).ok_or(at + 1)?;
            }
        }
        Ok(all)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (cpu, runs) = line.strip_prefix("cpu ")?.split_once(':')?;
        if cpu.parse::<usize>().ok()? != self.cpus.len() {
            return None;
        }
        let mut until = Nanos(0);
        let mut all = Vec::new();
        for word in runs.split_whitespace() {
            let (process, length) = word.split_once('x')?;
            let process = match process {
                "-" => None,
                number => Some(usize::from(number.parse::<u8>().ok()?)),
            };
            let length = UNIT.0 * u64::from(length.parse::<u32>().ok()?);
            until = Nanos(until.0.checked_add(length)?);
            self.processes = self.processes.max(process.map_or(0, |p| p + 1));
            all.push(Run { process, until });
        }
        self.cpus.push(all);
        Some(())
    }

    /// How long all CPUs were recorded.
    #[must_use]
    pub fn length(&self) -> Nanos {
        let ends = self.cpus.iter().map(|runs| runs.last());
        ends.map(|run| run.map_or(Nanos(0), |run| run.until))
            .min()
            .unwrap_or(Nanos(0))
    }

    /// How many processes ran.
    #[must_use]
    pub const fn processes(&self) -> usize {
        self.processes
    }

    /// How many CPUs were recorded. Two neighbours share a core.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// The process that ran on a CPU at a time.
    #[must_use]
    pub fn at(&self, cpu: usize, time: Nanos) -> Option<usize> {
        let runs = self.cpus.get(cpu)?;
        let next = runs.partition_point(|run| run.until <= time);
        runs.get(next)?.process
    }
}

/// The recording of a kernel.
#[must_use]
pub fn kernel() -> &'static Recording {
    &KERNEL
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Recorded {
    recording: &'static Recording,
    /// The member that takes the place of each process.
    members: Vec<usize>,
    now: Nanos,
    slice: Nanos,
}

impl Recorded {
    /// A decision holds for `slice`. The same seed gives the same schedules.
    #[must_use]
    pub fn new(recording: &'static Recording, slice: Nanos, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let slices = (recording.length().0 / slice.0.max(1)).max(1);
        let first = u64::from(rng.below(u32::try_from(slices).unwrap_or(u32::MAX)));
        let mut members: Vec<usize> = (0..recording.processes()).collect();
        rng.shuffle(&mut members);
        Self {
            recording,
            members,
            now: Nanos(first * slice.0),
            slice,
        }
    }
}

impl Scheduler for Recorded {
    fn name(&self) -> &'static str {
        "linux-recorded"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let (there, most) = (members.len(), self.recording.processes());
        if there > most || cores.seats() != self.recording.cpus() {
            return Err(TooMany { there, most });
        }
        // What ran in the middle of the slice stands for all of it.
        let middle = Nanos(self.now.0 + self.slice.0 / 2);
        self.now = self.now.plus(self.slice);
        if self.now.plus(self.slice) > self.recording.length() {
            self.now = Nanos(0);
        }
        let seats = 0..cores.seats();
        let seat = |cpu: usize| {
            let member = self.members[self.recording.at(cpu, middle)?];
            (member < there).then_some(Seat {
                core: cpu / cores.threads,
                thread: cpu % cores.threads,
                member,
            })
        };
        Ok(seats.filter_map(seat).collect())
    }
}
