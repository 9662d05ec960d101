//! A dependent walk through a list with one node per 64-byte line: each load's address is the result of the one
//! before, so time ÷ accesses is the latency of one (as lmbench `lat_mem_rd` and IsolBench `latency` do).

use std::ptr;

use quell_core::units::{Bytes, LINE_BYTES};
use quell_core::workload::{Order, Pages};

use crate::Error;
use crate::list::cycle;
use crate::memory::{Buffer, Granted};

/// The same list in every run: what is compared is configurations, not permutations.
const SEED: u64 = 0x5eed;

#[repr(C, align(64))]
struct Node {
    next: *const Node,
}

/// A list laid out in memory, and where the walk stands.
#[derive(Debug)]
pub struct List {
    buffer: Buffer,
    at: *const Node,
    nodes: u32,
}

// SAFETY: `at` points into the buffer that moves along with it.
unsafe impl Send for List {}

impl List {
    /// Lays out a list over `size` bytes.
    ///
    /// # Errors
    /// As [`Buffer::new`]; when the list has more than 2^32 nodes (256 GiB).
    pub fn new(size: Bytes, order: Order, pages: Pages) -> Result<Self, Error> {
        let nodes = size.0 / LINE_BYTES;
        let nodes = u32::try_from(nodes.max(1)).map_err(|_| {
            Error::refused(
                format!("a list of {size}"),
                format!("it has {nodes} nodes, more than 2^32"),
                "ask for less than 256GiB",
            )
        })?;
        let buffer = Buffer::new(size, pages)?;
        let start = buffer.start().cast::<Node>();
        for (i, next) in cycle(nodes, order, SEED).into_iter().enumerate() {
            // SAFETY: `i` and `next` are below `nodes`, whose lines the buffer holds; it is aligned far beyond a line.
            unsafe {
                start.add(i).write(Node {
                    next: start.add(next as usize),
                });
            }
        }
        Ok(Self {
            buffer,
            at: start,
            nodes,
        })
    }

    /// Makes exactly `accesses` steps.
    #[inline(never)]
    pub fn walk(&mut self, accesses: u64) {
        let mut at = self.at;
        for _ in 0..accesses {
            // SAFETY: `at` is the buffer's first node or was read from a node, and every node points to another.
            at = unsafe { ptr::read_volatile(&raw const (*at).next) };
        }
        self.at = at;
    }

    /// How many nodes it has.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The pages it lies in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_of_all_nodes_comes_back_and_one_less_does_not() {
        for order in [Order::Random, Order::Sequential] {
            let mut list = List::new(Bytes(1 << 20), order, Pages::Base).unwrap();
            let first = list.at;
            list.walk(u64::from(list.nodes()) - 1);
            assert_ne!(list.at, first);
            list.walk(1);
            assert_eq!(list.at, first);
            assert_eq!(list.nodes(), 16_384);
        }
    }
}
