//! Which line leaves a full set. A further policy is a variant of [`Policy`] and of `Replacement`,
//! with its three answers.

/// How the line that leaves a full set is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The least recently used of the allowed ways leaves.
    Lru,
    /// A binary tree over the ways. Each node points away from the half that was used last (Handy,
    /// "The Cache Memory Book"). Many first- and second-level caches have this policy; Abel and
    /// Reineke found it on Intel ones (RTAS 2013 and later).
    ///
    /// The victim is found by following the pointers, except where only one half has allowed ways.
    /// Where the number of ways is no power of two, the ways missing at the tree's end count as not
    /// allowed. How real caches combine tree and fill mask is undisclosed: this is an assumption.
    TreePlru,
    /// Any of the allowed ways leaves. The choice comes from a generator with a fixed seed, so it
    /// is the same in every run.
    Random,
    /// Least recently used, but a line that is filled in is the next to leave until it is hit. One
    /// of `aging` lines is filled in as the most recently used, so that a new working set can
    /// settle. With `aging` of 32 this is bimodal insertion (Qureshi et al., "Adaptive Insertion
    /// Policies for High Performance Caching", ISCA 2007). Streamed lines displace little in such a
    /// cache. Of a loop that is too large for it, part remains in the cache.
    ///
    /// What Freescale's manuals call streaming pseudo-LRU with aging is taken to be this. How fast
    /// it ages was not found.
    Bimodal {
        /// One of so many lines settles. From 1, which is least recently used.
        aging: u32,
    },
}

/// A policy's state, in addition to one word per set that the cache keeps with the rest of the set.
#[derive(Clone, Debug)]
pub(super) enum Replacement {
    /// The ways, the most recently used first.
    Lru(Order),
    /// One bit per node, set if the victim is on the right. Node n has the children 2n and 2n + 1,
    /// and the root is 1.
    TreePlru { leaves: usize, used: Vec<Path> },
    /// The state of the generator: xorshift64 with 13, 7, 17 (Marsaglia, "Xorshift RNGs", 2003). It
    /// is not that of `quell-types`: this crate depends on no other one, and figures of simulated
    /// machines rely on its sequence.
    Random { state: u64 },
    /// The order of `Lru`, and how many lines were filled in since one was as the newest.
    Bimodal {
        order: Order,
        filled: u32,
        aging: u32,
    },
}

/// What a use of one way does to the nodes above it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    keep: u64,
    set: u64,
}

impl Path {
    /// The path of the way at this leaf.
    fn new(leaf: usize) -> Self {
        let mut path = Self { keep: !0, set: 0 };
        let mut node = leaf;
        while node > 1 {
            let parent = node / 2;
            path.keep &= !(1 << parent);
            // Used on the right: the node points left.
            path.set |= (!node as u64 & 1) << parent;
            node = parent;
        }
        path
    }
}

/// An order of the ways of each set.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Up to sixteen ways: four bits each in the set's word, the first place lowest.
    Word { ways: usize },
    /// More than sixteen ways: a byte each, set after set.
    Bytes { order: Vec<u8>, ways: usize },
}

/// Sixteen places of four bits: place n holds n.
const IN_ORDER: u64 = 0xfedc_ba98_7654_3210;
const LOW_BITS: u64 = 0x1111_1111_1111_1111;

impl Order {
    fn new(sets: usize, ways: usize) -> Self {
        let count = u8::try_from(ways).expect("invariant: at most 64 ways");
        if ways <= 16 {
            Self::Word { ways }
        } else {
            let order = (0..sets).flat_map(|_| 0..count).collect();
            Self::Bytes { order, ways }
        }
    }

    /// Moves `way` to the first place. Those before it move back by one.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 ways")]
    fn bring_forward(&mut self, word: &mut u64, set: usize, way: usize) {
        match self {
            Self::Word { .. } => {
                let at = place(*word, way);
                let before = *word & ((1 << at) - 1);
                *word = *word & (!0 << at) << 4 | before << 4 | way as u64;
            }
            Self::Bytes { order, ways } => {
                let mut moved = way as u8;
                for place in &mut order[set * *ways..(set + 1) * *ways] {
                    std::mem::swap(place, &mut moved);
                    if usize::from(moved) == way {
                        break;
                    }
                }
            }
        }
    }

    /// Moves `way` to the last place. Those behind it move forward by one.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 ways")]
    fn put_back(&mut self, word: &mut u64, set: usize, way: usize) {
        match self {
            Self::Word { ways } => {
                let (at, last) = (place(*word, way), 4 * (*ways - 1));
                // Beyond the last place nothing moves.
                let beyond = *word & (!0 << last) << 4;
                let behind = (*word ^ beyond) >> at >> 4;
                *word = beyond | (way as u64) << last | behind << at | *word & ((1 << at) - 1);
            }
            Self::Bytes { order, ways } => {
                let mut moved = way as u8;
                for place in order[set * *ways..(set + 1) * *ways].iter_mut().rev() {
                    std::mem::swap(place, &mut moved);
                    if usize::from(moved) == way {
                        break;
                    }
                }
            }
        }
    }

    /// The last way of `allowed`, which is not empty.
    #[inline]
    fn last(&self, word: u64, set: usize, allowed: u64) -> usize {
        match self {
            Self::Word { ways } => {
                let mut at = 4 * (*ways - 1);
                loop {
                    let way = (word >> at & 15) as usize;
                    if allowed >> way & 1 == 1 || at == 0 {
                        return way;
                    }
                    at -= 4;
                }
            }
            Self::Bytes { order, ways } => {
                let order = &order[set * *ways..(set + 1) * *ways];
                let last = order.iter().rev().find(|&&way| allowed >> way & 1 == 1);
                usize::from(*last.expect("invariant: some way is allowed"))
            }
        }
    }
}

/// The bit at which the place of `way` begins.
#[inline]
fn place(word: u64, way: usize) -> u32 {
    let differs = word ^ (way as u64 * LOW_BITS);
    // The highest bit of each place that is zero, and maybe of some above the first such place.
    let equal = differs.wrapping_sub(LOW_BITS) & !differs & (LOW_BITS << 3);
    equal.trailing_zeros() & 0x3c
}

impl Replacement {
    pub(super) fn new(policy: Policy, sets: usize, ways: usize) -> Self {
        match policy {
            Policy::Lru => Self::Lru(Order::new(sets, ways)),
            Policy::Random => Self::Random {
                state: 0x9e37_79b9_7f4a_7c15,
            },
            Policy::Bimodal { aging } => Self::Bimodal {
                order: Order::new(sets, ways),
                filled: 0,
                aging,
            },
            Policy::TreePlru => {
                let leaves = ways.next_power_of_two();
                let used = (0..ways).map(|way| Path::new(leaves + way)).collect();
                Self::TreePlru { leaves, used }
            }
        }
    }

    /// The first value of a set's word.
    pub(super) fn first(policy: Policy) -> u64 {
        match policy {
            Policy::Lru | Policy::Bimodal { .. } => IN_ORDER,
            Policy::TreePlru | Policy::Random => 0,
        }
    }

    /// Records that `way` was used.
    #[inline]
    pub(super) fn touch(&mut self, word: &mut u64, set: usize, way: usize) {
        match self {
            Self::Random { .. } => {}
            Self::Lru(order) | Self::Bimodal { order, .. } => order.bring_forward(word, set, way),
            Self::TreePlru { used, .. } => {
                let path = &used[way];
                *word = *word & path.keep | path.set;
            }
        }
    }

    /// Records that a line was filled into `way`.
    #[inline]
    pub(super) fn filled(&mut self, word: &mut u64, set: usize, way: usize) {
        let Self::Bimodal {
            order,
            filled,
            aging,
        } = self
        else {
            return self.touch(word, set, way);
        };
        *filled += 1;
        if *filled >= *aging {
            *filled = 0;
            order.bring_forward(word, set, way);
        } else {
            order.put_back(word, set, way);
        }
    }

    /// Fills a line in and returns its way: one of `allowed`, which is not empty.
    #[inline]
    pub(super) fn replace(&mut self, word: &mut u64, set: usize, allowed: u64) -> usize {
        if let Self::Lru(Order::Word { ways }) = self {
            let last = 4 * (*ways - 1);
            let way = (*word >> last & 15) as usize;
            if allowed >> way & 1 == 1 {
                // The last way becomes the first, and all other ways move back by one.
                let beyond = *word & (!0 << last) << 4;
                *word = beyond | (*word ^ beyond) << 4 & !((!0 << last) << 4) | way as u64;
                return way;
            }
        }
        let way = self.victim(*word, set, allowed);
        self.filled(word, set, way);
        way
    }

    /// The way that is replaced: one of `allowed`, which is not empty.
    #[inline]
    fn victim(&mut self, word: u64, set: usize, allowed: u64) -> usize {
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
            Self::Lru(order) | Self::Bimodal { order, .. } => order.last(word, set, allowed),
            Self::TreePlru { leaves, .. } if allowed.count_ones() as usize == *leaves => {
                let mut node = 1;
                while node < *leaves {
                    node = 2 * node + (word >> node & 1) as usize;
                }
                node - *leaves
            }
            Self::TreePlru { leaves, .. } => {
                let (mut node, mut low, mut width) = (1, 0, *leaves);
                while width > 1 {
                    width /= 2;
                    let half = (1u64 << width) - 1;
                    let (left, right) = (allowed >> low & half, allowed >> (low + width) & half);
                    let go_right = right != 0 && (left == 0 || word >> node & 1 == 1);
                    node = 2 * node + usize::from(go_right);
                    low += if go_right { width } else { 0 };
                }
                low
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Orders packed into a word behave as those in bytes, for every number of ways that fits.
    #[test]
    fn a_word_of_places_is_a_row_of_bytes() {
        let mut random = 1u64;
        for ways in 1..=16 {
            let mut word = Order::Word { ways };
            let mut bytes = Order::Bytes {
                order: (0..16).take(ways).collect(),
                ways,
            };
            let mut packed = IN_ORDER;
            for _ in 0..2000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let (way, allowed) = ((random >> 40) as usize % ways, random >> 20);
                if random >> 60 < 11 {
                    word.bring_forward(&mut packed, 0, way);
                    bytes.bring_forward(&mut 0, 0, way);
                } else {
                    word.put_back(&mut packed, 0, way);
                    bytes.put_back(&mut 0, 0, way);
                }
                let allowed = allowed & ((1 << ways) - 1) | 1 << way;
                assert_eq!(word.last(packed, 0, allowed), bytes.last(0, 0, allowed));
            }
        }
    }
}
