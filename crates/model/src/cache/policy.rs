//! Who leaves a full set. A further policy is a variant of [`Policy`] and of `Replacement`, with its three answers.

/// A replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The least recently used of the allowed ways leaves.
    Lru,
    /// A binary tree over the ways, each node pointing away from the half used last (Handy, "The Cache Memory Book"; the
    /// policy of many first- and second-level caches, found on Intel ones by Abel and Reineke, RTAS 2013 and later). The
    /// victim is found by following the pointers, except where only one half holds allowed ways. Where the number of ways
    /// is no power of two, the ways missing at the tree's end count as not allowed. How real caches combine tree and fill
    /// mask is undisclosed: this is an assumption.
    TreePlru,
}

/// A policy's memory.
#[derive(Clone, Debug)]
pub(super) enum Replacement {
    /// Per set its ways, the most recently used first: a byte per line, so that large caches stay small here.
    Lru { order: Vec<u8>, ways: usize },
    /// Per set one bit per node, node n's children being 2n and 2n + 1, the root 1: set if the victim is on the right.
    TreePlru { trees: Vec<u64>, leaves: usize },
}

impl Replacement {
    pub(super) fn new(policy: Policy, sets: usize, ways: usize) -> Self {
        let count = u8::try_from(ways).expect("invariant: at most 64 ways");
        match policy {
            Policy::Lru => Self::Lru {
                order: (0..sets).flat_map(|_| 0..count).collect(),
                ways,
            },
            Policy::TreePlru => Self::TreePlru {
                trees: vec![0; sets],
                leaves: ways.next_power_of_two(),
            },
        }
    }

    /// `way` was used.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 ways")]
    pub(super) fn touch(&mut self, set: usize, way: usize) {
        match self {
            Self::Lru { order, ways } => {
                // Those before it move back by one; mostly there are none.
                let mut moved = way as u8;
                for place in &mut order[set * *ways..(set + 1) * *ways] {
                    std::mem::swap(place, &mut moved);
                    if usize::from(moved) == way {
                        break;
                    }
                }
            }
            Self::TreePlru { trees, leaves } => {
                let mut node = *leaves + way;
                let mut tree = trees[set];
                while node > 1 {
                    let parent = node / 2;
                    // Used on the right: point left.
                    tree = if node & 1 == 1 {
                        tree & !(1 << parent)
                    } else {
                        tree | 1 << parent
                    };
                    node = parent;
                }
                trees[set] = tree;
            }
        }
    }

    /// Who leaves among `allowed`, which is not empty.
    pub(super) fn victim(&self, set: usize, allowed: u64) -> usize {
        match self {
            Self::Lru { order, ways } => {
                let order = &order[set * ways..(set + 1) * ways];
                let last = order.iter().rev().find(|&&way| allowed >> way & 1 == 1);
                usize::from(*last.expect("invariant: some way is allowed"))
            }
            Self::TreePlru { trees, leaves } => {
                let tree = trees[set];
                let (mut node, mut low, mut width) = (1, 0, *leaves);
                while width > 1 {
                    width /= 2;
                    let half = (1u64 << width) - 1;
                    let (left, right) = (allowed >> low & half, allowed >> (low + width) & half);
                    let go_right = right != 0 && (left == 0 || tree >> node & 1 == 1);
                    node = 2 * node + usize::from(go_right);
                    low += if go_right { width } else { 0 };
                }
                low
            }
        }
    }
}
