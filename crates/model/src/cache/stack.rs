//! LRU caches of several sizes at once, fully associative.
//!
//! Method:
//! - One list has all lines, the most recently used first. A cache of n lines holds the first n of
//!   the list. This is Mattson's stack.
//! - For each size the last line that its cache holds is known, and for each line the smallest
//!   cache that holds it. An access moves these marks by one line each. So it takes a step
//!   per size, and no walk through the list.
//! - Lines beyond the largest size are forgotten, so memory is bounded by it. The counts are exact.
//!
//! Deviation from hardware: real caches are not fully associative.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Invalid;

/// No line, in the links of the list.
const NONE: u32 = u32::MAX;
/// A line has a bit for each size.
const MOST_SIZES: usize = 16;

/// What went through one of the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Accesses that did not find the line.
    pub misses: u64,
    /// Lines that left.
    pub evictions: u64,
    /// Lines that were written to memory: dirty lines that left, and lines from a nearer cache
    /// whose copy here had left before.
    pub writebacks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    line: u64,
    newer: u32,
    older: u32,
    /// By size, whether the line was written since that cache filled it.
    dirty: u16,
    /// The smallest cache that holds the line.
    smallest: u8,
}

/// Spreads line numbers: it needs no protection against chosen keys.
#[derive(Clone, Copy, Debug, Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, line: u64) {
        self.0 = (self.0 ^ line).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Fully associative LRU caches of several sizes that see the same accesses.
#[derive(Clone, Debug)]
pub struct Stack {
    /// In lines, increasing.
    sizes: Vec<usize>,
    nodes: Vec<Node>,
    places: HashMap<u64, u32, BuildHasherDefault<LineHasher>>,
    newest: u32,
    oldest: u32,
    /// By size, the last line that the cache holds, once it is full.
    ends: Vec<u32>,
    /// A node that is not in the list.
    free: Option<u32>,
    traffic: Vec<Traffic>,
}

impl Stack {
    /// Empty caches of so many lines each.
    ///
    /// # Errors
    /// Where the sizes do not increase, or are none or more than sixteen.
    pub fn new(sizes: &[usize]) -> Result<Self, Invalid> {
        let largest = sizes.last().copied().unwrap_or(0);
        if sizes.is_empty() || sizes.len() > MOST_SIZES || sizes[0] == 0 {
            return Err(Invalid::new(
                "cache sizes",
                format!("{sizes:?} lines: give 1 to {MOST_SIZES} sizes of a line at least"),
            ));
        }
        if !sizes.is_sorted_by(|a, b| a < b) || u32::try_from(largest).is_ok_and(|n| n == NONE) {
            return Err(Invalid::new(
                "cache sizes",
                format!("{sizes:?} lines: give them in increasing order, below 2^32 - 1"),
            ));
        }
        Ok(Self {
            ends: vec![NONE; sizes.len()],
            traffic: vec![Traffic::default(); sizes.len()],
            nodes: Vec::with_capacity(largest + 1),
            places: HashMap::with_capacity_and_hasher(largest + 1, BuildHasherDefault::default()),
            sizes: sizes.to_vec(),
            newest: NONE,
            oldest: NONE,
            free: None,
        })
    }

    /// One access to a line, in all caches. Returns the index of the smallest one that had it. The
    /// number of sizes means that none had.
    pub fn access(&mut self, line: u64, write: bool) -> usize {
        let dirty = if write { u16::MAX } else { 0 };
        let before = self.places.len();
        let known = self.places.get(&line).copied();
        if let Some(at) = known
            && at == self.newest
        {
            self.nodes[at as usize].dirty |= dirty;
            return 0;
        }
        let found = if let Some(at) = known {
            let found = usize::from(self.nodes[at as usize].smallest);
            self.unlink(at, found);
            self.link(at);
            self.nodes[at as usize].dirty |= dirty;
            found
        } else {
            let at = self.node(line, dirty);
            self.places.insert(line, at);
            self.link(at);
            self.sizes.len()
        };
        for size in 0..found {
            self.traffic[size].misses += 1;
            if before >= self.sizes[size] {
                self.push_out(size);
            } else if before + 1 == self.sizes[size] {
                self.ends[size] = self.oldest;
            }
        }
        found
    }

    /// A nearer cache writes a line back. That is no use of the line: it stays where it is in the
    /// order. Caches without it pass it on to memory.
    pub fn write_back(&mut self, line: u64) {
        let known = self.places.get(&line).copied();
        let smallest = known.map_or(self.sizes.len(), |at| {
            usize::from(self.nodes[at as usize].smallest)
        });
        for traffic in &mut self.traffic[..smallest] {
            traffic.writebacks += 1;
        }
        if let Some(at) = known {
            self.nodes[at as usize].dirty |= u16::MAX << smallest;
        }
    }

    /// What went through each cache since the last call, in the order of the sizes.
    pub fn take_traffic(&mut self) -> Vec<Traffic> {
        let empty = vec![Traffic::default(); self.sizes.len()];
        std::mem::replace(&mut self.traffic, empty)
    }

    /// A node for a line that was not in the list.
    fn node(&mut self, line: u64, dirty: u16) -> u32 {
        let node = Node {
            line,
            newer: NONE,
            older: NONE,
            dirty,
            smallest: 0,
        };
        if let Some(at) = self.free.take() {
            self.nodes[at as usize] = node;
            return at;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("invariant: the largest size was checked")
    }

    /// Puts a node at the head.
    fn link(&mut self, at: u32) {
        let next = std::mem::replace(&mut self.newest, at);
        let node = &mut self.nodes[at as usize];
        (node.newer, node.older, node.smallest) = (NONE, next, 0);
        if next == NONE {
            self.oldest = at;
        } else {
            self.nodes[next as usize].newer = at;
        }
    }

    /// Takes a node, which is not the head, out of the list.
    fn unlink(&mut self, at: u32, smallest: usize) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        if self.ends.get(smallest) == Some(&at) {
            self.ends[smallest] = newer;
        }
        self.nodes[newer as usize].older = older;
        if older == NONE {
            self.oldest = newer;
        } else {
            self.nodes[older as usize].newer = newer;
        }
    }

    /// A line came into a full cache, so the last one leaves it.
    fn push_out(&mut self, size: usize) {
        let last = self.ends[size];
        let node = &mut self.nodes[last as usize];
        let traffic = &mut self.traffic[size];
        traffic.evictions += 1;
        traffic.writebacks += u64::from(node.dirty >> size & 1);
        node.dirty &= !(1 << size);
        self.ends[size] = node.newer;
        if size + 1 < self.sizes.len() {
            node.smallest += 1;
            return;
        }
        self.places.remove(&node.line);
        self.free = Some(last);
        self.oldest = node.newer;
        let newer = node.newer as usize;
        self.nodes[newer].older = NONE;
    }
}
