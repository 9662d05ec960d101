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
    /// Any of the allowed ways leaves, drawn by a generator with a fixed seed: the same run after run.
    Random,
    /// Least recently used, but a line that is brought in is the next to leave until it is hit; one of 32 is brought in as the
    /// most recently used, so that a new working set can settle (bimodal insertion: Qureshi et al., "Adaptive Insertion
    /// Policies for High Performance Caching", ISCA 2007). What is streamed through such a cache displaces little, and
    /// part of a loop that is too large for it stays.
    Bimodal,
}

/// A policy's memory.
#[derive(Clone, Debug)]
pub(super) enum Replacement {
    /// Per set its ways, the most recently used first: a byte per line, so that large caches stay small here.
    Lru { order: Vec<u8>, ways: usize },
    /// Per set one bit per node, node n's children being 2n and 2n + 1, the root 1: set if the victim is on the right.
    TreePlru { trees: Vec<u64>, leaves: usize },
    /// The state of the generator (xorshift, Marsaglia).
    Random { state: u64 },
    /// As `Lru`, and how many lines were brought in.
    Bimodal {
        order: Vec<u8>,
        ways: usize,
        filled: u32,
    },
}

impl Replacement {
    pub(super) fn new(policy: Policy, sets: usize, ways: usize) -> Self {
        let count = u8::try_from(ways).expect("invariant: at most 64 ways");
        let order = || (0..sets).flat_map(|_| 0..count).collect();
        match policy {
            Policy::Lru => Self::Lru {
                order: order(),
                ways,
            },
            Policy::Random => Self::Random {
                state: 0x9e37_79b9_7f4a_7c15,
            },
            Policy::Bimodal => Self::Bimodal {
                order: order(),
                ways,
                filled: 0,
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
            Self::Random { .. } => {}
            Self::Lru { order, ways } | Self::Bimodal { order, ways, .. } => {
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

    /// A line was brought into `way`.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 ways")]
    pub(super) fn filled(&mut self, set: usize, way: usize) {
        let Self::Bimodal {
            order,
            ways,
            filled,
        } = self
        else {
            return self.touch(set, way);
        };
        *filled = filled.wrapping_add(1);
        if filled.is_multiple_of(32) {
            return self.touch(set, way);
        }
        // Those behind it move forward by one.
        let mut moved = way as u8;
        for place in order[set * *ways..(set + 1) * *ways].iter_mut().rev() {
            std::mem::swap(place, &mut moved);
            if usize::from(moved) == way {
                break;
            }
        }
    }

    /// Who leaves among `allowed`, which is not empty.
    pub(super) fn victim(&mut self, set: usize, allowed: u64) -> usize {
        match self {
            Self::Random { state } => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                let mut left = (*state >> 32) % u64::from(allowed.count_ones());
                let mut ways = allowed;
                while left > 0 {
                    ways &= ways - 1;
                    left -= 1;
                }
                ways.trailing_zeros() as usize
            }
            Self::Lru { order, ways } | Self::Bimodal { order, ways, .. } => {
                let order = &order[set * *ways..(set + 1) * *ways];
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
