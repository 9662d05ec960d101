//! A workload with its sizes in bytes, and the generator built from it.

use quell_policy::workload::{BANDWIDTH_MB_S, LATENCY_NS, Workload, ns_per_line};
use quell_types::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::churn::Churn;
use crate::latency::List;
use crate::lattice::Lattice;
use crate::load::Driver;
use crate::memory::Granted;
use crate::parallel::Lists;
use crate::stores::Stores;
use crate::stream::Stream;
use quell_types::windows::Cut;

/// A generator and its parameters, independent of the machine. A runner hands it to a child.
pub type ResolvedWorkload = Workload<Bytes>;

/// The load that a workload makes, in steps. A step is an access, an access in each list, a line,
/// or a line of each array.
#[derive(Debug)]
pub enum Load {
    /// Walks one list; a step is an access.
    Latency(List),
    /// Streams over a buffer; a step is a line.
    Bandwidth(Stream),
    /// Walks lists in turn; a step is an access in each.
    ParallelLists(Lists),
    /// Churns lines through a cache; a step is a line.
    CacheChurn(Churn),
    /// Stores at a stride; a step is a line that is visited.
    Stores(Stores),
    /// A lattice-Boltzmann stream; a step is a line of each array.
    Lattice(Lattice),
}

/// How lines in chosen banks were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// How many lines lie in a wanted bank.
    pub lines: u64,
    /// How many lines had their physical address checked.
    pub of: u64,
}

impl Load {
    /// Takes and touches its memory, on the calling thread's CPU and memory node.
    ///
    /// # Errors
    /// When the memory cannot be had, the processor lacks the operation, or the workload is not
    /// made of steps.
    pub fn new(workload: &ResolvedWorkload) -> Result<Self, Error> {
        match *workload {
            ResolvedWorkload::Latency {
                size,
                order,
                pages,
                operation,
            } => List::new(size, order, pages, operation).map(Self::Latency),
            ResolvedWorkload::Bandwidth {
                operation,
                size,
                pages,
                ..
            } => Stream::new(operation, size, pages).map(Self::Bandwidth),
            ResolvedWorkload::ParallelLists {
                lists,
                size,
                pages,
                operation,
                ref banks,
            } => Lists::new(lists, size, pages, operation, banks.as_ref()).map(Self::ParallelLists),
            ResolvedWorkload::CacheChurn {
                ref operations,
                size,
                order,
                pages,
                ..
            } => Churn::new(operations, size, order, pages).map(Self::CacheChurn),
            ResolvedWorkload::Stores {
                operation,
                stride,
                size,
                pages,
                ..
            } => Stores::new(operation, stride, size, pages).map(Self::Stores),
            ResolvedWorkload::Lattice { size, pages, .. } => {
                Lattice::new(size, pages).map(Self::Lattice)
            }
            ResolvedWorkload::Trace { .. }
            | ResolvedWorkload::Recorded { .. }
            | ResolvedWorkload::Periodic { .. }
            | ResolvedWorkload::FramesCall { .. }
            | ResolvedWorkload::FramesDisplay { .. }
            | ResolvedWorkload::Detector(_)
            | ResolvedWorkload::AnonHog(_)
            | ResolvedWorkload::FileHog(_)
            | ResolvedWorkload::DirtyWriter(_)
            | ResolvedWorkload::Requests(_) => Err(Error::refused(
                format!("'{}' as a load of equal steps", workload.kind()),
                "it keeps time by itself",
                "use latency or bandwidth",
            )),
        }
    }

    /// The generator that keeps up this load, at the workload's target rate.
    pub(crate) fn driver(workload: &ResolvedWorkload) -> Result<Driver, Error> {
        Ok(Driver::new(Self::new(workload)?, workload.rate()))
    }

    /// Does exactly `steps` steps.
    pub fn run(&mut self, steps: u64) {
        match self {
            Self::Latency(list) => list.walk(steps),
            Self::Bandwidth(stream) => stream.run(steps),
            Self::ParallelLists(lists) => lists.walk(steps),
            Self::CacheChurn(churn) => churn.run(steps),
            Self::Stores(stores) => stores.run(steps),
            Self::Lattice(lattice) => lattice.run(steps),
        }
    }

    /// Program bytes of one step. A list walk counts the lines that each access touches, a churn
    /// its line.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        match self {
            Self::Latency(list) => list.step_bytes(),
            Self::Bandwidth(stream) => stream.step_bytes(),
            Self::ParallelLists(lists) => lists.step_bytes(),
            Self::CacheChurn(churn) => churn.step_bytes(),
            Self::Stores(stores) => stores.step_bytes(),
            Self::Lattice(lattice) => lattice.step_bytes(),
        }
    }

    /// The metric of [`Self::value`].
    pub(crate) fn metric(&self) -> &'static str {
        match self.accesses() {
            Some(_) => LATENCY_NS,
            None => BANDWIDTH_MB_S,
        }
    }

    /// How many accesses of a step the metric is the time of. `None` where the metric is a rate.
    pub(crate) fn accesses(&self) -> Option<u64> {
        match self {
            Self::Latency(_) => Some(1),
            Self::ParallelLists(lists) => Some(lists.count()),
            Self::Bandwidth(_) | Self::CacheChurn(_) | Self::Stores(_) | Self::Lattice(_) => None,
        }
    }

    /// How its windows are cut.
    pub(crate) fn cut(&self) -> Cut {
        match self.accesses() {
            Some(_) => Cut::AtSample,
            None => Cut::Evenly,
        }
    }

    /// The primary metric over a span: nanoseconds per access, or 10^6 program bytes per second.
    #[must_use]
    pub fn value(&self, steps: u64, nanoseconds: u64) -> f64 {
        match self.accesses() {
            // Without an access in the span, the one under way took at least that long.
            Some(each) => nanoseconds as f64 / (steps * each).max(1) as f64,
            None => (steps * self.step_bytes()) as f64 * 1e3 / nanoseconds.max(1) as f64,
        }
    }

    /// A second metric, computed from the primary metric's windows.
    pub(crate) fn derived(&self, values: &[f64]) -> Option<(&'static str, Vec<f64>)> {
        match self {
            Self::ParallelLists(lists) => {
                let bytes = (lists.step_bytes() / lists.count()) as f64;
                let rates = values.iter().map(|ns| bytes * 1e3 / ns.max(1e-3));
                Some((BANDWIDTH_MB_S, rates.collect()))
            }
            Self::Bandwidth(_) => Some((LATENCY_NS, ns_per_line(values))),
            Self::Latency(_) | Self::CacheChurn(_) | Self::Stores(_) | Self::Lattice(_) => None,
        }
    }

    /// The pages that its memory lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        match self {
            Self::Latency(list) => list.granted(),
            Self::Bandwidth(stream) => stream.granted(),
            Self::ParallelLists(lists) => lists.granted(),
            Self::CacheChurn(churn) => churn.granted(),
            Self::Stores(stores) => stores.granted(),
            Self::Lattice(lattice) => lattice.granted(),
        }
    }

    /// How its lines were chosen by bank. `None` where they were not.
    #[must_use]
    pub fn placed(&self) -> Option<Placed> {
        match self {
            Self::ParallelLists(lists) => lists.placed(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factory::generator;
    use quell_policy::workload::{Caches, Operation, Pages};
    use quell_types::units::Rate;

    #[test]
    fn sizes_follow_the_cache_and_travel_as_json() {
        let text = r#"{"kind":"latency","size":"0.5 LLC","order":"random","pages":"4KiB","operation":"read"}"#;
        let workload: Workload = serde_json::from_str(text).unwrap();
        let resolved = workload.resolve(&Caches {
            l1: Bytes(48 << 10),
            l2: Bytes(1 << 20),
            llc: Bytes(48 << 20),
            seen: Bytes(48 << 20),
        });
        let json = serde_json::to_string(&resolved).unwrap();
        assert_eq!(json, text.replace("0.5 LLC", "24MiB"));
        assert_eq!(
            serde_json::from_str::<ResolvedWorkload>(&json).unwrap(),
            resolved
        );
    }

    #[test]
    fn a_rate_of_nothing_is_refused() {
        let workload = ResolvedWorkload::Bandwidth {
            operation: Operation::Read,
            size: Bytes(4096),
            pages: Pages::Base,
            rate: Some(Rate(0)),
        };
        let refused = generator(&workload).err().unwrap().to_string();
        assert!(refused.contains("bandwidth: `rate`"), "{refused}");
    }
}
