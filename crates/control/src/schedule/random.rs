//! `random`: a control. Selection and allocation are drawn from a seed. All are equally likely.

use quell_types::rng::Rng;

use super::allocation::in_order;
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy, with the random numbers that are still to come.
#[derive(Clone, Debug)]
pub struct Random {
    rng: Rng,
}

impl Random {
    /// The same seed gives the same schedules.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
        }
    }
}

impl Scheduler for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let mut all: Vec<usize> = (0..members.len()).collect();
        self.rng.shuffle(&mut all);
        Ok(in_order(&all, cores))
    }
}
