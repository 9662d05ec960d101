//! A stream over a buffer, line after line, again and again: read, write, copy (one half of the
//! buffer to the other) or non-temporal stores. Program bytes: 64 a line, 128 for a copied one.

use quell_policy::workload::{Operation, Pages};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::Error;
use crate::kernels::{self, Extra, Kernel};
use crate::memory::{Buffer, Granted};

const LINE: usize = LINE_BYTES as usize;

/// What a stream does to its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// An operation that experiments use.
    Operation(Operation),
    /// Loads from one half and stores past the caches to the other: part of a machine's peak.
    CopyNonTemporal,
}

impl Way {
    /// The name that results use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operation(operation) => operation.name(),
            Self::CopyNonTemporal => "copy-non-temporal",
        }
    }

    const fn copies(self) -> bool {
        matches!(
            self,
            Self::CopyNonTemporal | Self::Operation(Operation::Copy)
        )
    }

    /// Program bytes of one step: a line, read and written where it is copied.
    #[must_use]
    pub const fn step_bytes(self) -> u64 {
        if self.copies() {
            2 * LINE_BYTES
        } else {
            LINE_BYTES
        }
    }

    /// The inner loop for this way of streaming.
    fn kernel(self) -> Result<Kernel, Error> {
        let kernel = match self {
            Self::Operation(operation) => kernels::kernel(operation),
            Self::CopyNonTemporal => kernels::extra(Extra::CopyNonTemporal),
        };
        kernel.ok_or_else(|| {
            Error::refused(
                format!("the operation '{}'", self.name()),
                format!(
                    "Quell knows no stores past the caches on {}",
                    std::env::consts::ARCH
                ),
                "use read, write or copy, or an x86-64 or Arm machine",
            )
        })
    }
}

/// A buffer, and the progress of the stream in it.
#[derive(Debug)]
pub struct Stream {
    buffer: Buffer,
    way: Way,
    kernel: Kernel,
    at: usize,
}

impl Stream {
    /// Takes a buffer of `size` bytes.
    ///
    /// # Errors
    /// Those of [`Buffer::new`]. Also when the processor lacks the operation.
    pub fn new(operation: Operation, size: Bytes, pages: Pages) -> Result<Self, Error> {
        let way = Way::Operation(operation);
        // Done before memory is taken: a refusal costs nothing.
        let kernel = way.kernel()?;
        Ok(Self {
            buffer: Buffer::new(size, pages)?,
            way,
            kernel,
            at: 0,
        })
    }

    /// Continues in the same buffer another way.
    ///
    /// # Errors
    /// When the processor lacks the operation.
    pub fn change(&mut self, way: Way) -> Result<(), Error> {
        self.kernel = way.kernel()?;
        self.way = way;
        self.at %= self.round();
        Ok(())
    }

    /// How many lines a round has.
    fn round(&self) -> usize {
        let lines = self.buffer.len() / LINE;
        if self.way.copies() { lines / 2 } else { lines }
    }

    /// Handles exactly `steps` lines.
    pub fn run(&mut self, steps: u64) {
        let round = self.round();
        let mut left = usize::try_from(steps).unwrap_or(usize::MAX);
        while left > 0 {
            let lines = left.min(round - self.at);
            let second = if self.way.copies() { round } else { 0 };
            // SAFETY: `at + lines` ≤ `round`, and the buffer holds `round` lines from its start.
            // Where the way copies, `round` more follow. It is aligned to 2 MiB, and no other code
            // refers to it.
            unsafe {
                let from = self.buffer.start().add(self.at * LINE);
                (self.kernel)(from.add(second * LINE), from, lines);
            }
            self.at = (self.at + lines) % round;
            left -= lines;
        }
    }

    /// Program bytes of one step.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        self.way.step_bytes()
    }

    /// The pages that the buffer lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(stream: &Stream, line: usize) -> [u8; LINE] {
        kernels::settle();
        // SAFETY: the tests ask for lines inside the buffer only.
        unsafe {
            stream
                .buffer
                .start()
                .add(line * LINE)
                .cast::<[u8; LINE]>()
                .read()
        }
    }

    #[test]
    fn a_write_stream_touches_the_lines_it_counts_and_goes_round() {
        let mut stream = Stream::new(Operation::Write, Bytes(4096), Pages::Base).unwrap();
        stream.run(63);
        assert_eq!(at(&stream, 62), [0x5a; LINE]);
        assert_ne!(at(&stream, 63), [0x5a; LINE]);
        stream.run(1 + 64 * 3 + 5);
        assert_eq!(at(&stream, 63), [0x5a; LINE]);
        assert_eq!(stream.at, 5);
        assert_eq!(stream.step_bytes(), 64);
    }

    #[test]
    fn a_copy_goes_from_the_first_half_to_the_second() {
        let mut stream = Stream::new(Operation::Copy, Bytes(4096), Pages::Base).unwrap();
        // SAFETY: the first half of the buffer is 2048 bytes.
        unsafe { stream.buffer.start().write_bytes(9, 2048) };
        stream.run(31);
        assert_eq!(at(&stream, 32 + 30), [9; LINE]);
        assert_ne!(at(&stream, 32 + 31), [9; LINE]);
        stream.run(2);
        assert_eq!((at(&stream, 63), stream.at), ([9; LINE], 1));
        assert_eq!(stream.step_bytes(), 128);
    }

    #[test]
    fn non_temporal_stores_reach_memory_or_are_refused() {
        match Stream::new(Operation::NonTemporal, Bytes(4096), Pages::Base) {
            Ok(mut stream) => {
                stream.run(64);
                assert_eq!(at(&stream, 63), [0x5a; LINE]);
            }
            Err(refused) => assert!(refused.to_string().contains("non-temporal")),
        }
    }
}
