//! `bounded`: `bandwidth-aware` with a bound on waiting. Members that could otherwise wait for more
//! quanta than the bound go first, the longest waiting ones before the others. The selection as
//! printed fills the remaining hardware threads.

use super::allocation::fold;
use super::selection::{closest, due, queue, target};
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    bound: u32,
}

impl Bounded {
    /// No member waits for more than `bound` quanta in a row, or
    /// [`kept_bound`](super::selection::kept_bound) where there are too many members for that.
    #[must_use]
    pub fn new(bound: u32) -> Self {
        Self { bound }
    }
}

impl Scheduler for Bounded {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let (seats, queue) = (cores.seats(), queue(members));
        let first = due(members, self.bound, seats).max(1).min(seats);
        let (first, rest) = queue.split_at(first.min(queue.len()));
        let target = target(members, seats);
        let chosen = closest(members, first.to_vec(), rest, target, seats);
        Ok(fold(members, &chosen, cores))
    }
}
