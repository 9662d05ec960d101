//! Context switches: which thread ran on which CPU from when to when. The kernel records every one
//! ([`TaskRecords`], layout in `include/uapi/linux/perf_event.h`).
//!
//! A switch is two records: that a thread leaves the CPU, and that another comes. Between the two
//! of one thread lies a run. After lost records a run begins with the next thread that comes.
//! Records have the numbers of this PID namespace. The idle task is thread 0, and has no runs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::text::steers;
use quell_types::units::Nanos;

use crate::perf::TaskRecords;
use crate::rt;

/// Room for the records of a CPU, 32 bytes each.
const ROOM: usize = 512 << 10;
/// The most runs of a CPU, and the most births and names, that are kept between two calls of
/// [`Switches::take`]. What is more counts as lost.
const MOST: usize = 100_000;

/// `enum perf_event_type`.
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SWITCH_CPU_WIDE: u32 = 15;
/// `PERF_RECORD_MISC_SWITCH_OUT`.
const MISC_OUT: u16 = 1 << 13;
const HEADER: usize = 8;
/// Process, thread and time, at the end of each record.
const TRAILER: usize = 16;

/// A thread, with its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// Number of its process.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
}

/// What the kernel has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Record {
    /// A thread runs from now on.
    In(Task, Nanos),
    /// The thread that ran runs no more.
    Out(Task, Nanos),
    /// A thread has another name.
    Named(Task, String),
    /// A thread was made by another one.
    Born(Task, u32),
    Ended(Task),
    /// So many records did not fit.
    Lost(u64),
}

/// A thread on a CPU, for a stretch of time on CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The thread that ran.
    pub task: Task,
    /// When it came.
    pub from: Nanos,
    /// When it left, or when the records were taken.
    pub until: Nanos,
}

/// What happened since the records were taken before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The runs on each CPU, in order of time.
    pub runs: BTreeMap<CpuId, Vec<Run>>,
    /// Threads that were made, each with the thread that made it.
    pub born: BTreeMap<Task, u32>,
    /// New names of threads.
    pub names: BTreeMap<u32, String>,
    /// Threads that have ended.
    pub ended: Vec<u32>,
    /// Records that are missing.
    pub lost: u64,
}

/// The thread on a CPU, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    /// It has run since this time, whichever it is: no record names it yet.
    Unnamed(Nanos),
    Thread(Task, Nanos),
    /// Idle, or unknown since records were lost.
    None,
}

/// One CPU.
#[derive(Debug)]
struct Cpu {
    number: CpuId,
    records: TaskRecords,
    running: Running,
}

/// The context switches of some CPUs, from the moment it is opened.
#[derive(Debug)]
pub struct Switches {
    cpus: Vec<Cpu>,
    /// What happened since it was taken.
    pending: Taken,
    /// Memory for the records of a CPU.
    bytes: Vec<u8>,
}

impl Switches {
    /// Begins to record.
    ///
    /// # Errors
    /// The kernel's, where it does not allow it: no right (CAP_PERFMON), no perf events.
    pub fn open(cpus: &CpuSet) -> io::Result<Self> {
        let mut all = Vec::new();
        for number in cpus.iter() {
            let records = match TaskRecords::open(number, ROOM) {
                Ok(records) => records,
                // It went offline.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(e) => return Err(e),
            };
            all.push(Cpu {
                number,
                records,
                running: Running::Unnamed(rt::now()),
            });
        }
        Ok(Self {
            cpus: all,
            pending: Taken::default(),
            bytes: Vec::new(),
        })
    }

    /// Reads the kernel's records, so that there is room for more. To be called when one of
    /// [`Self::descriptors`] is readable.
    pub fn relieve(&mut self) {
        for cpu in &mut self.cpus {
            self.bytes.clear();
            cpu.records.take(&mut self.bytes);
            for record in Records(&self.bytes) {
                self.pending.put(cpu.number, record, &mut cpu.running);
            }
        }
    }

    /// What happened since the last call. A thread that runs goes on with a new run.
    pub fn take(&mut self) -> Taken {
        self.relieve();
        let now = rt::now();
        for cpu in &mut self.cpus {
            self.pending.cut(cpu.number, now, &mut cpu.running);
        }
        std::mem::take(&mut self.pending)
    }

    /// They are readable when there is half as much as there is room for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.cpus.iter().map(|cpu| cpu.records.as_fd())
    }
}

impl Taken {
    /// Adds a record of a CPU, on which `running` ran until then.
    fn put(&mut self, cpu: CpuId, record: Record, running: &mut Running) {
        match record {
            Record::In(task, at) => *running = Running::Thread(task, at),
            Record::Out(task, at) => match std::mem::replace(running, Running::None) {
                // A thread that has ended has no number any more when it leaves.
                Running::Thread(task, from) => self.run(cpu, task, from, at),
                Running::Unnamed(from) => self.run(cpu, task, from, at),
                Running::None => {}
            },
            Record::Lost(count) => {
                self.lost += count;
                *running = Running::None;
            }
            Record::Ended(task) if self.ended.len() < MOST => self.ended.push(task.tid),
            Record::Born(task, parent) if self.born.len() < MOST => {
                self.born.insert(task, parent);
            }
            Record::Named(task, name) if self.names.len() < MOST => {
                self.names.insert(task.tid, name);
            }
            Record::Ended(_) | Record::Born(..) | Record::Named(..) => self.lost += 1,
        }
    }

    /// Ends the run that goes on, and begins it anew.
    fn cut(&mut self, cpu: CpuId, now: Nanos, running: &mut Running) {
        if let Running::Thread(task, from) = running {
            self.run(cpu, *task, *from, now);
            *from = now.max(*from);
        }
    }

    fn run(&mut self, cpu: CpuId, task: Task, from: Nanos, until: Nanos) {
        // What is ending has no number any more.
        if task.tid == 0 || task.tid == u32::MAX || from >= until {
            return;
        }
        let runs = self.runs.entry(cpu).or_default();
        match runs.len() < MOST {
            true => runs.push(Run { task, from, until }),
            false => self.lost += 1,
        }
    }
}

/// Reads records from bytes, and ends where they make no sense. Kinds that are not needed are left
/// out.
struct Records<'b>(&'b [u8]);

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            let size = usize::from(u16_at(self.0, 6)?);
            if size < HEADER || size > self.0.len() {
                return None;
            }
            let (record, rest) = self.0.split_at(size);
            self.0 = rest;
            if let Some(record) = decode(record) {
                return Some(record);
            }
        }
    }
}

/// One record. `None` for kinds that are not needed.
fn decode(record: &[u8]) -> Option<Record> {
    let body = record.len().checked_sub(TRAILER)?;
    let task = |pid: usize, tid: usize| {
        Some(Task {
            pid: u32_at(record, pid)?,
            tid: u32_at(record, tid)?,
        })
    };
    let current = task(body, body + 4)?;
    let at = Nanos(u64_at(record, body + 8)?);
    Some(match u32_at(record, 0)? {
        SWITCH_CPU_WIDE if u16_at(record, 4)? & MISC_OUT != 0 => Record::Out(current, at),
        SWITCH_CPU_WIDE => Record::In(current, at),
        COMM => {
            let name = record.get(HEADER + 8..body)?;
            let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
            let name = String::from_utf8_lossy(&name[..end]);
            // Chosen by the process: on a terminal it is text and nothing else.
            let name = name.replace(steers, "?");
            Record::Named(task(HEADER, HEADER + 4)?, name)
        }
        // Process, its parent, thread, its parent.
        FORK => Record::Born(task(HEADER, HEADER + 8)?, u32_at(record, HEADER + 12)?),
        EXIT => Record::Ended(task(HEADER, HEADER + 8)?),
        LOST => Record::Lost(u64_at(record, HEADER + 8)?),
        _ => return None,
    })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Task = Task { pid: 5, tid: 6 };
    const B: Task = Task { pid: 7, tid: 7 };
    const IDLE: Task = Task { pid: 0, tid: 0 };

    /// A record with this body, of this task at this time.
    fn record(kind: u32, misc: u16, body: &[u8], current: Task, at: u64) -> Vec<u8> {
        let size = u16::try_from(HEADER + body.len() + TRAILER).unwrap();
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend(body);
        bytes.extend(current.pid.to_ne_bytes());
        bytes.extend(current.tid.to_ne_bytes());
        bytes.extend(at.to_ne_bytes());
        bytes
    }

    fn switch(from: Task, to: Task, at: u64) -> Vec<u8> {
        let mut both = record(SWITCH_CPU_WIDE, MISC_OUT, &[0; 8], from, at);
        both.extend(record(SWITCH_CPU_WIDE, 0, &[0; 8], to, at + 1));
        both
    }

    fn lost(count: u64) -> Vec<u8> {
        let body = [0u64.to_ne_bytes(), count.to_ne_bytes()].concat();
        record(LOST, 0, &body, IDLE, 0)
    }

    fn run(task: Task, from: u64, until: u64) -> Run {
        Run {
            task,
            from: Nanos(from),
            until: Nanos(until),
        }
    }

    /// What these records come to on CPU 0, where `running` ran, up to `now`.
    fn taken(records: &[Vec<u8>], running: &mut Running, now: u64) -> Taken {
        let mut taken = Taken::default();
        for record in Records(&records.concat()) {
            taken.put(0, record, running);
        }
        taken.cut(0, Nanos(now), running);
        taken
    }

    #[test]
    fn runs_lie_between_coming_and_leaving() {
        let mut running = Running::Unnamed(Nanos(10));
        let records = [switch(A, B, 20), switch(B, IDLE, 30), switch(IDLE, A, 50)];
        let first = taken(&records, &mut running, 60);
        assert_eq!(
            first.runs[&0],
            [run(A, 10, 20), run(B, 21, 30), run(A, 51, 60)]
        );
        // It runs all the while until the next time.
        let second = taken(&[], &mut running, 70);
        assert_eq!(second.runs[&0], [run(A, 60, 70)]);
        assert_eq!(second.lost, 0);
    }

    #[test]
    fn lost_records_are_counted_and_leave_a_gap() {
        let mut running = Running::Thread(A, Nanos(0));
        let records = [lost(3), switch(B, A, 20), switch(A, IDLE, 40), lost(4)];
        let taken = taken(&records, &mut running, 60);
        assert_eq!((&taken.runs[&0], taken.lost), (&vec![run(A, 21, 40)], 7));
    }

    #[test]
    fn what_memory_does_not_hold_counts_as_lost() {
        let mut taken = Taken::default();
        for at in 0..MOST as u64 + 5 {
            let mut running = Running::Thread(A, Nanos(at));
            taken.put(0, Record::Out(A, Nanos(at + 1)), &mut running);
            taken.put(0, Record::Ended(A), &mut running);
        }
        assert_eq!((taken.runs[&0].len(), taken.lost), (MOST, 10));
    }

    #[test]
    fn births_names_and_ends_are_known() {
        let numbers = |all: [u32; 4]| all.map(u32::to_ne_bytes).concat();
        let mut fork = numbers([8, 5, 9, 6]);
        fork.extend([0; 8]);
        let mut name = numbers([8, 9, 0, 0]);
        name[8..11].copy_from_slice(b"l\x1bs");
        let records = [
            record(FORK, 0, &fork, A, 1),
            record(COMM, 0, &name, A, 2),
            record(99, 0, &name, A, 2),
            record(EXIT, 0, &fork, A, 3),
        ];
        let taken = taken(&records, &mut Running::None, 4);
        assert_eq!(taken.born, [(Task { pid: 8, tid: 9 }, 6)].into());
        assert_eq!(taken.names, [(9, "l?s".to_owned())].into());
        assert_eq!(taken.ended, [9]);
    }

    #[test]
    fn damaged_records_end_the_reading_of_them() {
        let bytes = [switch(A, B, 20), lost(1), switch(B, A, 30)].concat();
        for at in 0..bytes.len() {
            assert!(Records(&bytes[..at]).count() <= 5);
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            assert!(Records(&damaged).count() <= 5);
        }
    }

    #[test]
    fn a_thread_that_sleeps_and_runs_is_recorded_here() {
        let cpu = rt::current_cpu();
        let mut switches = match Switches::open(&CpuSet::one(cpu)) {
            Ok(switches) => switches,
            Err(e) => {
                return quell_testing::skip(format_args!("switches cannot be recorded here: {e}"));
            }
        };
        // A birth is recorded where the maker runs. A thread inherits its CPU.
        rt::pin(cpu).unwrap();
        let own = std::thread::spawn(move || {
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            rustix::thread::gettid().as_raw_nonzero().get()
        });
        let tid = own.join().unwrap().unsigned_abs();
        let taken = switches.take();
        let all = taken.runs.values().flatten();
        let own: Vec<&Run> = all.filter(|run| run.task.tid == tid).collect();
        assert!(own.len() >= 15, "{own:?}, lost {}", taken.lost);
        assert!(own.iter().all(|run| run.task.pid == std::process::id()));
        assert!(own.windows(2).all(|pair| pair[0].until <= pair[1].from));
        assert!(taken.born.keys().any(|task| task.tid == tid));
        assert!(taken.ended.contains(&tid));
    }
}
