//! The nodes of the lists, one per line, and their layout in memory.

use std::ptr;

use quell_policy::workload::Order;

use crate::list::cycle;
use crate::memory::Buffer;

/// A node: the next node's address, and a word that a walk may store to.
#[repr(C, align(64))]
pub struct Node {
    next: *const Node,
    word: u64,
}

/// Makes one cycle through the given lines of `buffer`. Returns its first node.
///
/// # Safety
/// There must be at least one line, every line must be below `buffer.len() / 64`, and none may
/// occur twice.
pub unsafe fn lay(buffer: &Buffer, lines: &[u32], order: Order, seed: u64) -> *const Node {
    let start = buffer.start().cast::<Node>();
    let nodes = u32::try_from(lines.len()).unwrap_or(u32::MAX);
    for (line, next) in lines.iter().zip(cycle(nodes, order, seed)) {
        // SAFETY: by the contract both nodes lie in the buffer, which is aligned far beyond a line
        // and is ours.
        unsafe {
            start.add(*line as usize).write(Node {
                next: start.add(lines[next as usize] as usize),
                word: 0,
            });
        }
    }
    start.wrapping_add(lines.first().map_or(0, |l| *l as usize))
}

/// One access: goes from a node to the next, after a store into it if `STORE`.
///
/// # Safety
/// `at` must be a node of a laid-out list with its buffer still alive, and nothing else may use the
/// list meanwhile.
#[inline(always)]
pub unsafe fn step<const STORE: bool>(at: *const Node) -> *const Node {
    // SAFETY: by the contract; the buffer is writable memory that no reference points into.
    unsafe {
        if STORE {
            ptr::write_volatile(&raw mut (*at.cast_mut()).word, 1);
        }
        ptr::read_volatile(&raw const (*at).next)
    }
}
