//! A recorded program, replayed again and again.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;

use crate::access::PAGE_SHIFT;
use crate::access::{Access, LINE};
use crate::trace::{Damaged, Reader};

/// The most accesses that are kept in memory: 256 MiB of them.
const MOST: usize = 32 << 20;

/// One access to a line: where it is, and what the program computes before it.
#[derive(Clone, Copy, Debug)]
struct Step {
    line: u32,
    /// Core cycles, with two bits above them.
    compute: u32,
}

/// Set for a write.
const WRITES: u32 = 1 << 31;
/// Set for a further access of the instruction before.
const SAME: u32 = 1 << 30;

/// The accesses of a trace. Its pages lie in a dense memory of their own, in the order of their
/// first touch. An instruction takes a cycle.
///
/// Deviation: dependences are unknown, so no access waits for another. A program that follows
/// pointers is slower.
#[derive(Clone, Debug)]
pub struct Replay {
    steps: Arc<[Step]>,
    pages: u32,
    at: usize,
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The trace cannot be read.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The trace of this name has no accesses.
    #[error("{0}: no access in it; record the program again")]
    Empty(String),
    /// The trace of this name has more accesses than are kept.
    #[error("{0}: more than {MOST} accesses; record a shorter part of the program")]
    Long(String),
}

impl Replay {
    /// Reads a trace. `file` is its name in errors.
    ///
    /// # Errors
    /// Where it cannot be read, is empty, or is too long.
    pub fn read(from: impl BufRead, file: &str) -> Result<Self, Unusable> {
        const LINES: u64 = (1 << PAGE_SHIFT) / LINE;
        let mut pages: BTreeMap<u64, u32> = BTreeMap::new();
        let mut steps = Vec::new();
        for record in Reader::new(from, file)? {
            for access in record?.accesses() {
                let next = u32::try_from(pages.len()).unwrap_or(u32::MAX);
                let page = *pages.entry(access.address >> PAGE_SHIFT).or_insert(next);
                let within = u32::try_from(access.address / LINE % LINES).unwrap_or(0);
                let writes = if access.write { WRITES } else { 0 };
                let same = if access.instructions == Some(0) {
                    SAME
                } else {
                    0
                };
                steps.push(Step {
                    line: (page << (PAGE_SHIFT - 6)) + within,
                    compute: access.compute.min(SAME - 1) | writes | same,
                });
            }
            if steps.len() > MOST {
                return Err(Unusable::Long(file.to_owned()));
            }
        }
        if steps.is_empty() {
            return Err(Unusable::Empty(file.to_owned()));
        }
        Ok(Self {
            steps: steps.into(),
            pages: u32::try_from(pages.len()).unwrap_or(u32::MAX),
            at: 0,
        })
    }

    /// The memory that it touches, in bytes of whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) << PAGE_SHIFT
    }

    pub(super) fn next_access(&mut self) -> Access {
        let Step { line, compute } = self.steps[self.at];
        self.at = if self.at + 1 == self.steps.len() {
            0
        } else {
            self.at + 1
        };
        let cycles = compute & !(WRITES | SAME);
        let same = compute & SAME != 0;
        Access {
            address: u64::from(line) * LINE,
            write: compute & WRITES != 0,
            compute: cycles,
            instructions: Some(if same { 0 } else { cycles + 1 }),
            ..Access::default()
        }
    }
}
