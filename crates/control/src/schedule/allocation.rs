//! On which core the selected members run: the parts that several policies share.

use super::{Cores, Member, Seat};

/// The first threads of all cores in order, then the second ones, and so on.
#[must_use]
pub fn in_order(chosen: &[usize], cores: Cores) -> Vec<Seat> {
    let seats = chosen.iter().take(cores.seats()).enumerate();
    let seats = seats.map(|(n, member)| Seat {
        core: n % cores.count,
        thread: n / cores.count,
        member: *member,
    });
    sorted(seats.collect())
}

/// Sorts by first-level rate and folds: the highest and the lowest share a core, then the next
/// ones. With more than two threads the folded list goes back and forth over the cores. Idle
/// threads count as the lowest, so that few members have a core each.
///
/// Source: Feliu and others, as for [`super::selection::target`], for two threads. The rest is an
/// extension of it.
#[must_use]
pub fn fold(members: &[Member], chosen: &[usize], cores: Cores) -> Vec<Seat> {
    let by_rate = by_first_level(members, chosen);
    let seats = by_rate.iter().take(cores.seats()).enumerate();
    let seats = seats.map(|(n, member)| {
        let (thread, at) = (n / cores.count, n % cores.count);
        let back = thread % 2 == 1;
        let core = if back { cores.count - 1 - at } else { at };
        Seat {
            core,
            thread,
            member: *member,
        }
    });
    sorted(seats.collect())
}

/// The opposite of [`fold`]: the members with the highest first-level rates share a core, then the
/// next ones.
#[must_use]
pub fn stack(members: &[Member], chosen: &[usize], cores: Cores) -> Vec<Seat> {
    let by_rate = by_first_level(members, chosen);
    let seats = by_rate.iter().take(cores.seats()).enumerate();
    let seats = seats.map(|(n, member)| Seat {
        core: n / cores.threads,
        thread: n % cores.threads,
        member: *member,
    });
    seats.collect()
}

/// One core for each of `groups`.
#[must_use]
pub fn grouped(groups: &[Vec<usize>]) -> Vec<Seat> {
    let seats = groups.iter().enumerate().flat_map(|(core, group)| {
        let threads = group.iter().enumerate();
        threads.map(move |(thread, member)| Seat {
            core,
            thread,
            member: *member,
        })
    });
    seats.collect()
}

/// The highest first-level rate first.
fn by_first_level(members: &[Member], chosen: &[usize]) -> Vec<usize> {
    let mut chosen = chosen.to_vec();
    chosen.sort_by(|a, b| {
        let (a, b) = (members[*a].first_level, members[*b].first_level);
        b.total_cmp(&a)
    });
    chosen
}

fn sorted(mut seats: Vec<Seat>) -> Vec<Seat> {
    seats.sort_unstable();
    seats
}
