//! A dependent walk through a list with one node per 64-byte line. Each load's address is the
//! result of the one before. So time ÷ accesses is the latency of one access, as in lmbench
//! `lat_mem_rd` and IsolBench `latency`. A walk that also stores leaves every line modified. Beyond
//! the caches each access then costs a write-back, too.

use quell_policy::workload::{Access, Order, Pages};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::Error;
use crate::memory::{Buffer, Granted};
use crate::node::{Node, lay, step};

/// The same list in every run: configurations are compared, not permutations.
pub const SEED: u64 = 0x5eed;

/// A list in memory, and the node that the walk has reached.
#[derive(Debug)]
pub struct List {
    buffer: Buffer,
    at: *const Node,
    nodes: u32,
    operation: Access,
}

// SAFETY: `at` points into the buffer that moves along with it.
unsafe impl Send for List {}

/// How many lines `size` holds, if their numbers fit into 32 bits.
pub fn lines(size: Bytes) -> Result<u32, Error> {
    let lines = size.0 / LINE_BYTES;
    u32::try_from(lines.max(1)).map_err(|_| {
        Error::refused(
            format!("a list of {size}"),
            format!("it has {lines} nodes, more than 2^32"),
            "ask for less than 256GiB",
        )
    })
}

/// Program bytes of one access: the line read, and the line written where the walk stores.
#[must_use]
pub const fn access_bytes(operation: Access) -> u64 {
    match operation {
        Access::Read => LINE_BYTES,
        Access::ReadWrite => 2 * LINE_BYTES,
    }
}

impl List {
    /// Lays out a list over `size` bytes.
    ///
    /// # Errors
    /// Those of [`Buffer::new`]. Also when the list has more than 2^32 nodes (256 GiB).
    pub fn new(size: Bytes, order: Order, pages: Pages, operation: Access) -> Result<Self, Error> {
        let nodes = lines(size)?;
        let buffer = Buffer::new(size, pages)?;
        let all: Vec<u32> = (0..nodes).collect();
        // SAFETY: the buffer holds `size` bytes, rounded up, so it holds these lines, of which
        // there is at least one.
        let at = unsafe { lay(&buffer, &all, order, SEED) };
        Ok(Self {
            buffer,
            at,
            nodes,
            operation,
        })
    }

    /// Makes exactly `accesses` steps.
    pub fn walk(&mut self, accesses: u64) {
        self.at = match self.operation {
            Access::Read => walk::<false>(self.at, accesses),
            Access::ReadWrite => walk::<true>(self.at, accesses),
        };
    }

    /// Program bytes of one access.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        access_bytes(self.operation)
    }

    /// How many nodes the list has.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The pages that the list lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

#[inline(never)]
fn walk<const STORE: bool>(mut at: *const Node, accesses: u64) -> *const Node {
    for _ in 0..accesses {
        // SAFETY: `at` is a node of the caller's list or was read from one, and every node points
        // to another.
        at = unsafe { step::<STORE>(at) };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_of_all_nodes_comes_back_and_one_less_does_not() {
        let cases = [
            (Order::Random, Access::Read),
            (Order::Random, Access::ReadWrite),
            (Order::Sequential, Access::Read),
        ];
        for (order, operation) in cases {
            let mut list = List::new(Bytes(1 << 20), order, Pages::Base, operation).unwrap();
            let first = list.at;
            list.walk(u64::from(list.nodes()) - 1);
            assert_ne!(list.at, first);
            list.walk(1);
            assert_eq!(list.at, first);
            assert_eq!(list.nodes(), 16_384);
        }
    }
}
