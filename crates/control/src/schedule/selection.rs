//! Which members run: the parts that several policies share. Indices are places in the list of
//! members.

use super::Member;

/// All members, the longest waiting first. Members that have waited equally long stay in order.
#[must_use]
pub fn queue(members: &[Member]) -> Vec<usize> {
    let mut queue: Vec<usize> = (0..members.len()).collect();
    queue.sort_by_key(|i| std::cmp::Reverse(members[*i].waited));
    queue
}

/// The rate at which main memory is to be used, in transactions per microsecond: the mean rate of
/// the members alone, weighted by their time alone, times `seats`. Without times all weigh the
/// same.
///
/// Source: Feliu, Sahuquillo, Petit and Duato, "Bandwidth-Aware On-Line Scheduling in SMT
/// Multicores", the term that they call WK.
#[must_use]
pub fn target(members: &[Member], seats: usize) -> f64 {
    let timed = members.iter().any(|m| m.alone.time > 0.0);
    let weight = |m: &Member| if timed { m.alone.time } else { 1.0 };
    let all: f64 = members.iter().map(weight).sum();
    let sum: f64 = members.iter().map(|m| m.alone.memory * weight(m)).sum();
    if all > 0.0 {
        sum / all * seats as f64
    } else {
        0.0
    }
}

/// Fills the seats that `chosen` leaves, so that all rates together come close to `target`. Each
/// time it takes the member of `waiting` with the largest 1 ÷ |BW/CPU − rate|. BW is what is left
/// of the target, and CPU the number of seats left. If several are equally close, the first one of
/// `waiting` goes. The result begins with `chosen`.
///
/// Source: as for [`target`].
#[must_use]
pub fn closest(
    members: &[Member],
    chosen: Vec<usize>,
    waiting: &[usize],
    target: f64,
    seats: usize,
) -> Vec<usize> {
    let (mut chosen, mut waiting) = (chosen, waiting.to_vec());
    let mut left = target - chosen.iter().map(|i| members[*i].memory).sum::<f64>();
    while chosen.len() < seats {
        let ideal = left / (seats - chosen.len()) as f64;
        let off = |i: &usize| (ideal - members[*i].memory).abs();
        let best =
            (0..waiting.len()).min_by(|a, b| off(&waiting[*a]).total_cmp(&off(&waiting[*b])));
        let Some(best) = best else { break };
        let best = waiting.remove(best);
        left -= members[best].memory;
        chosen.push(best);
    }
    chosen
}

/// The bound on waiting that can be kept, in quanta: `bound`, or more if there are too many
/// `members` for it. Members that take turns wait so long at least.
#[must_use]
pub fn kept_bound(bound: u32, members: usize, seats: usize) -> u32 {
    let turns = members.div_ceil(seats.max(1)).saturating_sub(1);
    bound.max(u32::try_from(turns).unwrap_or(u32::MAX))
}

/// How many of the longest waiting must run now, so that no member waits for more than
/// [`kept_bound`] quanta.
///
/// A member that has waited w must run within `bound` − w quanta from now. All can, if and only if
/// for every k at most (k + 1) × `seats` members must run within k quanta (the test of earliest
/// deadline first for unit jobs on `seats` processors). So for every k the number beyond
/// k × `seats` must run now.
#[must_use]
pub fn due(members: &[Member], bound: u32, seats: usize) -> usize {
    let bound = kept_bound(bound, members.len(), seats);
    let mut within: Vec<u32> = members
        .iter()
        .map(|m| bound.saturating_sub(m.waited))
        .collect();
    within.sort_unstable();
    let beyond = within.iter().enumerate().map(|(before, quanta)| {
        let later = usize::try_from(*quanta).unwrap_or(usize::MAX);
        (before + 1).saturating_sub(later.saturating_mul(seats))
    });
    beyond.max().unwrap_or(0).min(seats)
}
