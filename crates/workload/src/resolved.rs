//! A workload with its sizes in bytes, and the generator built from it.

use quell_core::units::{Bytes, LINE_BYTES, Rate};
use quell_core::workload::Workload;

use crate::Error;
use crate::latency::List;
use crate::load::Driver;
use crate::memory::Granted;
use crate::stream::Stream;

/// A generator and its parameters, independent of the machine: what a runner hands to a child.
pub type ResolvedWorkload = Workload<Bytes>;

/// The load a workload makes, in units of one step (an access; a line).
#[derive(Debug)]
pub enum Load {
    /// A list walk.
    Latency(List),
    /// A stream.
    Bandwidth(Stream),
}

impl Load {
    /// Takes and touches its memory, on the CPU and memory node the calling thread runs on.
    ///
    /// # Errors
    /// When the memory is not to be had, or the processor does not have the operation.
    pub fn new(workload: &ResolvedWorkload) -> Result<Self, Error> {
        match *workload {
            ResolvedWorkload::Latency { size, order, pages } => {
                List::new(size, order, pages).map(Self::Latency)
            }
            ResolvedWorkload::Bandwidth {
                operation,
                size,
                pages,
                rate,
            } => {
                if rate == Some(Rate(0)) {
                    return Err(Error::refused(
                        "a stream at 0B/s",
                        "it would never move",
                        "give a rate such as 600MB/s, or none",
                    ));
                }
                Stream::new(operation, size, pages).map(Self::Bandwidth)
            }
        }
    }

    /// The generator that keeps this load up, at the workload's target rate.
    pub(crate) fn driver(workload: &ResolvedWorkload) -> Result<Driver, Error> {
        let rate = match workload {
            ResolvedWorkload::Bandwidth { rate, .. } => *rate,
            ResolvedWorkload::Latency { .. } => None,
        };
        Ok(Driver::new(Self::new(workload)?, rate))
    }

    /// Does exactly `steps` steps.
    pub fn run(&mut self, steps: u64) {
        match self {
            Self::Latency(list) => list.walk(steps),
            Self::Bandwidth(stream) => stream.run(steps),
        }
    }

    /// Program bytes of one step. A list walk counts the line that each access touches.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        match self {
            Self::Latency(_) => LINE_BYTES,
            Self::Bandwidth(stream) => stream.step_bytes(),
        }
    }

    /// The primary metric over a span: nanoseconds per access, or 10^6 program bytes per second.
    #[must_use]
    pub fn value(&self, steps: u64, nanoseconds: u64) -> f64 {
        match self {
            // A span without an access took at least that long for the one under way.
            Self::Latency(_) => nanoseconds as f64 / steps.max(1) as f64,
            Self::Bandwidth(stream) => {
                (steps * stream.step_bytes()) as f64 * 1e3 / nanoseconds.max(1) as f64
            }
        }
    }

    /// The pages its memory lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        match self {
            Self::Latency(list) => list.granted(),
            Self::Bandwidth(stream) => stream.granted(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::workload::{Operation, Pages};

    #[test]
    fn sizes_follow_the_cache_and_travel_as_json() {
        let text = r#"{"kind":"latency","size":"0.5 LLC","order":"random","pages":"4KiB"}"#;
        let workload: Workload = serde_json::from_str(text).unwrap();
        let resolved = workload.resolve(Bytes(48 << 20));
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
        assert!(
            Load::new(&workload)
                .unwrap_err()
                .to_string()
                .contains("600MB/s")
        );
    }
}
