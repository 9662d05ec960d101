//! A small seeded generator. Runs must give the same order for the same seed in every version, so the algorithm is
//! our own and never changes: PCG-XSH-RR 64/32 (O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient
//! Statistically Good Algorithms for Random Number Generation", section 6).

/// The generator; equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

impl Rng {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Self {
            state: seed.wrapping_add(INCREMENT),
        };
        rng.next_u32();
        rng
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let folded = u32::try_from((((old >> 18) ^ old) >> 27) & 0xffff_ffff).unwrap_or(0);
        let turn = u32::try_from(old >> 59).unwrap_or(0);
        folded.rotate_right(turn)
    }

    /// A number below `bound` (which must not be zero), without bias.
    pub fn below(&mut self, bound: u32) -> u32 {
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let n = self.next_u32();
            if n >= threshold {
                return n % bound;
            }
        }
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let bound = u32::try_from(i + 1).unwrap_or(u32::MAX);
            items.swap(i, self.below(bound) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut rng = Rng::new(1);
        let first: Vec<u32> = (0..4).map(|_| rng.next_u32()).collect();
        let mut again = Rng::new(1);
        assert_eq!(first, (0..4).map(|_| again.next_u32()).collect::<Vec<_>>());
        assert_ne!(first, {
            let mut other = Rng::new(2);
            (0..4).map(|_| other.next_u32()).collect::<Vec<_>>()
        });
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        Rng::new(7).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
