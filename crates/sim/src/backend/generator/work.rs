//! What a workload is on the simulated machine: its accesses, its memory, and what is made of how many were done.

use quell_core::backend::BackendError;
use quell_core::units::{Bytes, LINE_BYTES, Rate};
use quell_core::workload::{Access, Banks, Operation, Order, Pages, Store, Workload, line_bytes};

use crate::frames::{Placement, Space};
use crate::pattern::{Churn, ParallelLists, Pattern, Stores, Stream};

/// The same list in every run, as on Linux: what is compared is configurations, not permutations.
const SEED: u64 = 0x5eed;

/// The memory taken beyond the banks' share of it, in parts of the whole, as on Linux: frames are not handed out evenly.
const SPARE: u64 = 4;

/// What is measured of a load of equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// Nanoseconds per access; also as a rate, where it is reported.
    Time {
        /// Accesses of a step.
        accesses: u64,
        also_rate: bool,
    },
    /// Program bytes per second.
    Rate,
}

/// A load of equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// Simulated accesses of a step.
    pub(super) accesses: u64,
    /// Program bytes of a step.
    pub(super) bytes: u64,
    pub(super) judged: Judged,
    /// The target rate.
    pub(super) rate: Option<Rate>,
}

/// What a workload is on the simulated machine.
#[derive(Clone, Debug)]
pub(in super::super) struct Work {
    workload: Workload<Bytes>,
    /// The memory that it takes.
    pub(in super::super) memory: Bytes,
    pub(in super::super) placement: Placement,
    /// Touching its memory leaves it changed.
    pub(in super::super) writes: bool,
    pub(super) steps: Steps,
}

fn refused(workload: &Workload<Bytes>, why: &dyn std::fmt::Display) -> BackendError {
    BackendError(format!("{}: {why}", workload.kind()))
}

impl Work {
    /// # Errors
    /// For what the simulated machine does not have, and parameters that make no sense.
    pub(in super::super) fn new(workload: &Workload<Bytes>) -> Result<Self, BackendError> {
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
            judged: Judged::Rate,
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
        let (size, writes, steps) = match *workload {
            Workload::Latency {
                size, operation, ..
            } => (
                size,
                operation == Access::ReadWrite,
                timed(1, operation, false),
            ),
            Workload::Bandwidth {
                operation, size, ..
            } => match operation {
                Operation::Read => (size, false, rated(1, LINE_BYTES)),
                Operation::Write | Operation::NonTemporal => (size, true, rated(1, LINE_BYTES)),
                Operation::Copy => (size, true, rated(2, 2 * LINE_BYTES)),
            },
            Workload::ParallelLists {
                lists,
                size,
                operation,
                ref banks,
                ..
            } => (
                banks.as_ref().map_or(size, |banks| with_share(size, banks)),
                operation == Access::ReadWrite,
                timed(u64::from(lists), operation, true),
            ),
            Workload::CacheChurn { size, .. } => (size, true, rated(1, LINE_BYTES)),
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
                (
                    size,
                    operation != Store::NonTemporal,
                    rated(accesses, line_bytes(stride)),
                )
            }
            Workload::Periodic { .. }
            | Workload::FramesCall { .. }
            | Workload::FramesDisplay { .. } => {
                return Err(refused(
                    workload,
                    &"this generator is not yet on the simulated machine; use --on linux",
                ));
            }
        };
        Ok(Self {
            workload: workload.clone(),
            memory: size,
            placement: match workload.pages() {
                Pages::Base => Placement::Plain,
                Pages::Huge => Placement::Huge,
            },
            writes,
            steps,
        })
    }

    /// Its accesses to the memory it got.
    ///
    /// # Errors
    /// When too little of that memory lies where it is wanted.
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
            Workload::Periodic { .. }
            | Workload::FramesCall { .. }
            | Workload::FramesDisplay { .. } => return Err(refused(of, &"not yet")),
        })
    }
}

/// The memory in which the share of these banks is `size` and a quarter, as on Linux.
fn with_share(size: Bytes, banks: &Banks) -> Bytes {
    let (some, all) = banks.share();
    let fair = size.0 * all / some;
    Bytes(if some == all {
        fair
    } else {
        fair + fair / SPARE
    })
}
