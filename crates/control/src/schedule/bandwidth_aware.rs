//! `bandwidth-aware`: selection by main-memory rate, then allocation by first-level rate.
//!
//! Source: Feliu, Sahuquillo, Petit and Duato, "Bandwidth-Aware On-Line Scheduling in SMT
//! Multicores", IEEE Transactions on Computers, as printed. The member that has waited longest
//! always goes first. No other member's wait counts.

use super::allocation::fold;
use super::selection::{closest, queue, target};
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct BandwidthAware;

impl Scheduler for BandwidthAware {
    fn name(&self) -> &'static str {
        "bandwidth-aware"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        Ok(fold(members, &printed(members, cores.seats()), cores))
    }
}

/// The selection as printed, in the order in which members are taken.
#[must_use]
pub fn printed(members: &[Member], seats: usize) -> Vec<usize> {
    let queue = queue(members);
    let (head, rest) = queue.split_at(queue.len().min(seats).min(1));
    closest(members, head.to_vec(), rest, target(members, seats), seats)
}
