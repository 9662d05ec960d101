//! What a workload is on the simulated machine: its accesses, its memory, and how accesses done
//! become metrics.

use std::fs::File;
use std::io::BufReader;

use quell_model::Picos;
use quell_policy::workload::{
    Access, Banks, CALL_RATE, Caches, Operation, Order, Pages, STREAM_SIZE, Size, Store, Workload,
    line_bytes,
};
use quell_record::backend::BackendError;
use quell_record::events::Declared;
use quell_types::units::{Bytes, LINE_BYTES, Nanos, Rate};

use super::units::{Job, PS};
use crate::frames::{Placement, Space};
use crate::pattern::{
    Churn, Frames, Lattice, ParallelLists, Pattern, Replay, Stage, Stores, Stream, Task, Times,
};

/// The same list in every run, as on Linux: configurations are compared, not permutations.
const SEED: u64 = 0x5eed;

/// Extra memory beyond the banks' share: a quarter of it, as on Linux, because frames are not
/// handed out evenly.
const SPARE: u64 = 4;

/// Core cycles to collide eight cells: those of a line of each distribution. Assumed: some 240
/// floating-point operations a cell, two a cycle.
const COLLIDE: u32 = 8 * 240 / 2;

/// The call's working set. Assumed: twice what its core has alone, so that it lives in the
/// last-level cache.
const CALL_SET: Size = Size::L2(2.0);

/// What is measured of a load of equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// Nanoseconds per access; also as a rate where that is reported.
    Time {
        /// Accesses of a step.
        accesses: u64,
        also_rate: bool,
    },
    /// Program bytes per second; also as the time of 64 of them where that is reported.
    Rate { also_time: bool },
    /// Accesses per second, and the time of one access.
    Accesses,
}

/// The size and target of a load of equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// Simulated accesses of a step.
    pub(super) accesses: u64,
    /// Program bytes of a step.
    pub(super) bytes: u64,
    pub(super) judged: Judged,
    /// `None`: as fast as the machine allows.
    pub(super) rate: Option<Rate>,
}

/// Whether a workload runs in equal steps or in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Steps(Steps),
    Units(Job),
    /// The call stage of a video call, and the most media that it sends.
    Call(Rate),
    /// The display stage of a video call.
    Display,
}

/// The CPU on which a workload is to run.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Place {
    pub(in super::super) caches: Caches,
    /// Picoseconds of a core cycle there.
    pub(in super::super) clock: Picos,
    /// After this time a line in the last-level cache is there.
    pub(in super::super) cached: Picos,
    /// After this time an idle memory answers.
    pub(in super::super) latency: Picos,
    /// When it was booted, on the clock that the engine sees.
    pub(in super::super) booted: Nanos,
}

/// A workload in terms of the simulated machine.
#[derive(Clone, Debug)]
pub(in super::super) struct Work {
    workload: Workload<Bytes>,
    /// Bytes of memory that it takes.
    pub(in super::super) memory: Bytes,
    pub(in super::super) placement: Placement,
    /// Whether touching its memory leaves it modified.
    pub(in super::super) writes: bool,
    /// The SCHED_FIFO priority of a real-time task; `None` for all else.
    pub(in super::super) priority: Option<u32>,
    /// What it declares of its units of work; `None` where it declares nothing.
    pub(in super::super) declared: Option<Declared>,
    pub(super) kind: Kind,
    /// Bytes of the working set at the end of its memory. 0 where it has none.
    set: Bytes,
    /// When the machine was booted, on the clock that the engine sees.
    booted: Nanos,
    times: Times,
    trace: Option<Replay>,
}

/// Why these generators do not exist here.
const COARSE_ONLY: &str = "its figures are for the coarse machine; use --on coarse";
const KERNEL_ONLY: &str = "the simulated machine has no page cache, no reclaim and no threads that wait for each other; use --on linux, or the lab (quell lab)";

fn refused(workload: &Workload<Bytes>, why: &dyn std::fmt::Display) -> BackendError {
    BackendError(format!("{}: {why}", workload.kind()))
}

impl Work {
    /// # Errors
    /// For what the simulated machine does not have, and for parameters that make no sense.
    pub(in super::super) fn new(workload: &Workload, place: &Place) -> Result<Self, BackendError> {
        let workload = &workload.resolve(&place.caches);
        if let Some(fault) = workload.fault() {
            return Err(refused(
                workload,
                &format!("`{}`: {}; {}", fault.key, fault.why, fault.remedy),
            ));
        }
        let rate = workload.rate();
        let rated = |accesses, bytes| Steps {
            accesses,
            bytes,
            judged: Judged::Rate {
                also_time: matches!(workload, Workload::Bandwidth { .. }),
            },
            rate,
        };
        let visit = |operation| match operation {
            Access::Read => LINE_BYTES,
            Access::ReadWrite => 2 * LINE_BYTES,
        };
        let timed = |lists: u64, operation, also_rate| Steps {
            accesses: lists,
            bytes: lists * visit(operation),
            judged: Judged::Time {
                accesses: lists,
                also_rate,
            },
            rate: None,
        };
        let steps = |size, writes, steps| (size, writes, Kind::Steps(steps));
        let (mut trace, mut set) = (None, Bytes(0));
        let (memory, writes, kind) = match *workload {
            Workload::Latency {
                size, operation, ..
            } => {
                let writes = operation == Access::ReadWrite;
                steps(size, writes, timed(1, operation, false))
            }
            Workload::Bandwidth {
                operation, size, ..
            } => match operation {
                Operation::Read => steps(size, false, rated(1, LINE_BYTES)),
                Operation::Write | Operation::NonTemporal => {
                    steps(size, operation == Operation::Write, rated(1, LINE_BYTES))
                }
                Operation::Copy => steps(size, true, rated(2, 2 * LINE_BYTES)),
            },
            Workload::ParallelLists {
                lists,
                size,
                operation,
                ref banks,
                ..
            } => {
                let memory = banks.as_ref().map_or(size, |banks| with_share(size, banks));
                let writes = operation == Access::ReadWrite;
                steps(memory, writes, timed(u64::from(lists), operation, true))
            }
            Workload::CacheChurn { size, .. } => steps(size, true, rated(1, LINE_BYTES)),
            Workload::Lattice { size, .. } => steps(size, true, rated(1, LINE_BYTES)),
            Workload::Stores {
                operation,
                stride,
                size,
                ..
            } => {
                if stride > size {
                    let why = format!(
                        "stores every {stride} in {size}: the buffer ends before the second; give a smaller stride, or a larger size"
                    );
                    return Err(refused(workload, &why));
                }
                let accesses = Stores::new(size.0, stride.0, operation).accesses();
                let writes = operation != Store::NonTemporal;
                steps(size, writes, rated(accesses, line_bytes(stride)))
            }
            Workload::Trace { ref file } => {
                let opened = File::open(file).map_err(|e| {
                    refused(
                        workload,
                        &format!("{file}: {e}; import one with `quell trace import`"),
                    )
                })?;
                let replay = Replay::read(BufReader::new(opened), file);
                let replay = replay.map_err(|e| refused(workload, &e))?;
                let memory = Bytes(replay.bytes());
                trace = Some(replay);
                let judged = Judged::Accesses;
                steps(
                    memory,
                    false,
                    Steps {
                        judged,
                        ..rated(1, LINE_BYTES)
                    },
                )
            }
            Workload::Periodic {
                size,
                step,
                period,
                passes,
                deadline,
                ..
            } => {
                if passes != 1 {
                    let why = "`passes`: the simulated machine tells jobs apart and not the passes of a job; leave it out, or use --on linux";
                    return Err(refused(workload, &why));
                }
                let memory = Bytes(size.0.next_multiple_of(LINE_BYTES) + Task::own_bytes(size.0));
                let job = Job {
                    period,
                    deadline: deadline.unwrap_or(period),
                    bytes: pass_bytes(size, step),
                };
                (memory, false, Kind::Units(job))
            }
            Workload::FramesCall { rate, .. } => {
                as_published(workload, rate)?;
                set = CALL_SET.resolve(&place.caches);
                let memory = Bytes(STREAM_SIZE.resolve(&place.caches).0 + set.0);
                (memory, false, Kind::Call(rate))
            }
            Workload::FramesDisplay { .. } => {
                as_published(workload, CALL_RATE)?;
                let memory = STREAM_SIZE.resolve(&place.caches);
                (memory, false, Kind::Display)
            }
            Workload::Recorded { .. } => return Err(refused(workload, &COARSE_ONLY)),
            Workload::Detector(_)
            | Workload::AnonHog(_)
            | Workload::FileHog(_)
            | Workload::DirtyWriter(_)
            | Workload::Requests(_) => return Err(refused(workload, &KERNEL_ONLY)),
        };
        Ok(Self {
            workload: workload.clone(),
            memory,
            placement: match workload.pages() {
                Pages::Base | Pages::Given => Placement::Plain,
                Pages::Huge => Placement::Huge,
            },
            writes,
            priority: match *workload {
                Workload::Periodic { priority, .. } => priority,
                _ => None,
            },
            declared: declared(workload),
            kind,
            set,
            booted: place.booted,
            times: Times {
                clock: place.clock,
                cached: place.cached,
                memory: place.latency,
            },
            trace,
        })
    }

    /// Its accesses to the memory that it got.
    ///
    /// # Errors
    /// When too little of that memory lies in the wanted banks.
    pub(in super::super) fn pattern(&self, space: &Space) -> Result<Pattern, BackendError> {
        let of = &self.workload;
        Ok(match *of {
            Workload::Latency {
                size,
                order,
                operation,
                ..
            } => {
                let list = match order {
                    Order::Random => Pattern::latency(size.0, SEED),
                    Order::Sequential => Pattern::latency_in_order(size.0),
                };
                match operation {
                    Access::Read => list,
                    Access::ReadWrite => list.storing(),
                }
            }
            Workload::Bandwidth {
                operation, size, ..
            } => match operation {
                Operation::Read => Pattern::bandwidth(size.0, false),
                Operation::Write => Pattern::bandwidth(size.0, true),
                Operation::Copy => Pattern::Stream(Stream::copy(size.0, false)),
                Operation::NonTemporal => Pattern::Stream(Stream::past(size.0)),
            },
            Workload::ParallelLists {
                lists,
                size,
                operation,
                ref banks,
                ..
            } => {
                let count = usize::try_from(lists).unwrap_or(usize::MAX);
                let made = match banks {
                    None => ParallelLists::new(size.0, count, SEED),
                    Some(banks) => {
                        let at = |address| space.physical(address);
                        ParallelLists::in_banks(self.memory.0, size.0, count, SEED, banks, at)
                    }
                };
                let made = made.map_err(|why| refused(of, &why))?;
                Pattern::ParallelLists(match operation {
                    Access::Read => made,
                    Access::ReadWrite => made.storing(),
                })
            }
            Workload::CacheChurn {
                ref operations,
                size,
                order,
                ..
            } => Pattern::Churn(Churn::new(size.0, operations, order, SEED)),
            Workload::Stores {
                operation,
                stride,
                size,
                ..
            } => Pattern::Stores(Stores::new(size.0, stride.0, operation)),
            Workload::Lattice { size, .. } => Pattern::Lattice(Lattice::new(size.0, COLLIDE)),
            Workload::Trace { .. } => {
                let replay = self.trace.clone();
                Pattern::Replay(replay.ok_or_else(|| refused(of, &"it was not read"))?)
            }
            Workload::Periodic {
                size,
                step,
                period,
                phase,
                compute,
                ..
            } => {
                let task = Task::new(size.0, step.0, period.0 * PS, compute);
                Pattern::Task(match phase {
                    // So that the engine's clock is a multiple of the period, and the phase more.
                    Some(phase) => {
                        task.released_at((phase.0 + period.0 - self.booted.0 % period.0) * PS)
                    }
                    None => task,
                })
            }
            Workload::FramesCall { .. } => self.frames(Stage::Call, self.set),
            Workload::FramesDisplay { .. } => self.frames(Stage::Display, self.set),
            Workload::Recorded { .. } => return Err(refused(of, &COARSE_ONLY)),
            Workload::Detector(_)
            | Workload::AnonHog(_)
            | Workload::FileHog(_)
            | Workload::DirtyWriter(_)
            | Workload::Requests(_) => return Err(refused(of, &KERNEL_ONLY)),
        })
    }

    /// A stage over all its memory, the last `set` of which is its working set.
    fn frames(&self, stage: Stage, set: Bytes) -> Pattern {
        let buffers = self.memory.0 - set.0;
        Pattern::Frames(Frames::new(stage, buffers, set.0, self.times))
    }
}

/// What a workload declares of its units of work.
fn declared(workload: &Workload<Bytes>) -> Option<Declared> {
    let Workload::Periodic {
        size,
        step,
        declares: true,
        ..
    } = *workload
    else {
        return None;
    };
    Some(Declared {
        bytes_per_unit: pass_bytes(size, step),
        working_set: size.0,
    })
}

/// Program bytes of a pass: the lines that it touches.
fn pass_bytes(size: Bytes, step: Bytes) -> u64 {
    size.0.div_ceil(step.0.max(LINE_BYTES)) * LINE_BYTES
}

/// Only the media `rate` of a frame subject may differ from its usual value: its demand is the
/// published one.
fn as_published(workload: &Workload<Bytes>, rate: Rate) -> Result<(), BackendError> {
    let usual: Workload = workload
        .kind()
        .parse()
        .map_err(|e: quell_policy::workload::SpecError| refused(workload, &e))?;
    let llc = Bytes(0);
    let nothing = Caches {
        l1: llc,
        l2: llc,
        llc,
        seen: llc,
    };
    let mut usual = usual.resolve(&nothing);
    if let Workload::FramesCall { rate: of, .. } = &mut usual {
        *of = rate;
    }
    if usual == *workload {
        return Ok(());
    }
    let why = "on the simulated machine its demand is the published one: leave `frame`, `fps`, `ring` and `search` out, or use --on linux";
    Err(refused(workload, &why))
}

/// How much memory to take so that these banks' share of it is `size` and a quarter, as on Linux.
fn with_share(size: Bytes, banks: &Banks) -> Bytes {
    let (some, all) = banks.share();
    let fair = size.0 * all / some;
    Bytes(if some == all {
        fair
    } else {
        fair + fair / SPARE
    })
}
