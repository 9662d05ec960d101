//! From differences of addresses that conflict to the space that they span, where some of them are
//! wrong.
//!
//! Method: two addresses of one bank differ by a vector of a subspace, the kernel of the bank's
//! functions. A wrong difference lies anywhere. Random samples of the differences each propose
//! their span (Fischler and Bolles 1981, RANSAC). A sample with wrong members is mended: members
//! are left out as long as the likelihood rises. The proposal of highest likelihood is taken. The
//! likelihood counts the bits that a proposal saves over "any difference at all".

use crate::address::gf2::Space;
use crate::rng::SplitMix;

/// How many samples are tried.
const SAMPLES: u32 = 300;
/// The share of differences that are taken to be right, for the likelihood.
const RIGHT: f64 = 0.8;
/// No further sample is tried where a proposal explains this share of the differences.
const ENOUGH: f64 = 0.95;

/// A proposal: the differences within a bank, and how many of those seen it has.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    pub space: Space,
    pub explained: usize,
    score: f64,
}

impl Kernel {
    fn of(sample: &[u64], differences: &[u64], rank: u32) -> Self {
        let space = Space::spanned(sample.iter().copied());
        let explained = differences.iter().filter(|d| space.contains(**d)).count();
        let functions = f64::from(rank - space.rank());
        let wrong = (differences.len() - explained) as f64;
        let saved = (RIGHT * functions.exp2() + 1.0 - RIGHT).log2();
        let score = explained as f64 * saved + wrong * (1.0 - RIGHT).log2()
            - functions * f64::from(space.rank());
        Self {
            space,
            explained,
            score,
        }
    }

    /// Leaves out members of the sample that the others speak against.
    fn mended(self, mut sample: Vec<u64>, differences: &[u64], rank: u32) -> Self {
        let mut best = self;
        loop {
            let without = |at: usize| {
                let others = sample.iter().enumerate().filter(|(i, _)| *i != at);
                let others: Vec<u64> = others.map(|(_, d)| *d).collect();
                (Self::of(&others, differences, rank), others)
            };
            let next = (0..sample.len()).map(without);
            let Some((next, others)) = next.max_by(|a, b| a.0.score.total_cmp(&b.0.score)) else {
                return best;
            };
            if next.score <= best.score {
                return best;
            }
            (best, sample) = (next, others);
        }
    }

    /// How many differences it explains beyond those that it needs itself: each would lie in it by
    /// chance with a probability of at most one half.
    pub fn surplus(&self) -> usize {
        self.explained.saturating_sub(self.space.rank() as usize)
    }
}

/// The most likely kernel of these differences within `all` differences of the pool. `None` where
/// "any difference at all" explains them better than every proposal.
pub(super) fn decode(differences: &[u64], all: &Space, random: &mut SplitMix) -> Option<Kernel> {
    let rank = all.rank();
    let mut pile = differences.to_vec();
    let mut best: Option<Kernel> = None;
    for _ in 0..SAMPLES {
        let size = (rank as usize).min(pile.len());
        for at in 0..size {
            let other = at as u64 + random.below((pile.len() - at) as u64);
            pile.swap(at, usize::try_from(other).unwrap_or(at));
        }
        let sample = pile[..size].to_vec();
        let kernel = Kernel::of(&sample, differences, rank);
        if kernel.space.rank() == rank {
            continue;
        }
        let kernel = kernel.mended(sample, differences, rank);
        if kernel.score > best.as_ref().map_or(0.0, |best| best.score) {
            best = Some(kernel);
        }
        let enough = |k: &Kernel| k.explained as f64 >= ENOUGH * differences.len() as f64;
        if best.as_ref().is_some_and(enough) {
            break;
        }
    }
    best
}
