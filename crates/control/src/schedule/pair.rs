//! `pair`: the allocation of [`super::bandwidth_aware`] alone. Members are selected in turn, the
//! longest waiting first.

use super::allocation::fold;
use super::selection::queue;
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair;

impl Scheduler for Pair {
    fn name(&self) -> &'static str {
        "pair"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let mut chosen = queue(members);
        chosen.truncate(cores.seats());
        Ok(fold(members, &chosen, cores))
    }
}
