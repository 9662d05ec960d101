//! The bound on waiting, for policies that have none of their own.

use super::selection::{due, queue};
use super::{Cores, Member, Seat};

/// Gives the seats of members that need not run yet to members that must, so that no member waits
/// for more than `bound` quanta in a row, or [`kept_bound`](super::selection::kept_bound) where
/// there are too many members for that. Of those that need not run, the ones that have waited
/// shortest lose their seats.
#[must_use]
pub fn within(members: &[Member], bound: u32, cores: Cores, seats: Vec<Seat>) -> Vec<Seat> {
    let mut seats = seats;
    let first = due(members, bound, cores.seats());
    let queue = queue(members);
    let must = queue.get(..first).unwrap_or_default();
    for member in must {
        if seats.iter().any(|seat| seat.member == *member) {
            continue;
        }
        let may_wait = seats.iter_mut().filter(|s| !must.contains(&s.member));
        let waited = |seat: &&mut Seat| members.get(seat.member).map(|m| m.waited);
        if let Some(seat) = may_wait.min_by_key(waited) {
            seat.member = *member;
        }
    }
    seats
}
