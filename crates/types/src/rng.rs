//! Small seeded generators. A seed must give the same numbers in every version, so the algorithms
//! are part of Quell and never change. There are two, because records of both exist: another
//! generator would give other figures for the same seed.
//!
//! - [`Rng`]: the order of cells, resampling, the lists of generators.
//! - [`SplitMix`]: simulated programs and page frames.
//!
//! A third one, the victims of a cache with random replacement, is part of the cache model
//! (`quell_model::cache`), which depends on no other crate.

/// PCG-XSH-RR 64/32 (O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
/// Algorithms for Random Number Generation", section 6).
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

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
/// 2014): a counter through a mixing function.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// From a seed, which may be any number.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which must not be zero. The bias is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(n);
        u64::try_from(product >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixed_counter_gives_the_published_numbers() {
        // The first outputs for the seed 1234567 (Rosetta Code, "Pseudo-random
        // numbers/Splitmix64").
        let mut random = SplitMix::new(1_234_567);
        let first: Vec<u64> = (0..2).map(|_| random.bits()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        assert!((0..1000).all(|_| random.below(3) < 3));
    }

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
