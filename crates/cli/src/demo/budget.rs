//! How the time of a demonstration is spent: pure arithmetic on rounds.

use std::time::Duration;

use quell_record::demo::Resource;

/// How long all of it may take, in seconds.
pub const WHOLE: Duration = Duration::from_secs(112);
/// The same in a machine of the lab.
pub const WHOLE_IN_LAB: Duration = Duration::from_secs(285);
/// Fewer rounds have no interval that excludes chance.
pub const LEAST: u32 = 3;
/// Rounds of a resource that is looked at by itself, or without Quell in a control.
pub const MOST: u32 = 5;
/// Rounds of what hurts everywhere, so that the others have their turn.
const SOME: u32 = 4;

/// One look at a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Whether Quell takes part: a first look at what rarely hurts leaves it out.
    pub quell: bool,
    /// Rounds.
    pub rounds: u32,
}

/// Cells of a round: both programs alone, both together, and both with Quell.
pub const fn cells(quell: bool) -> u32 {
    if quell { 4 } else { 3 }
}

/// What a cell is expected to take, before one was seen.
pub const fn expected(resource: Resource) -> Duration {
    Duration::from_millis(match resource {
        Resource::Cpu | Resource::Sibling => 1000,
        Resource::Memory => 3200,
        Resource::Cache => 800,
        Resource::Bandwidth => 1000,
        Resource::Disk => 1500,
    })
}

/// The first look at a resource: with Quell at once where neighbours hurt everywhere, and where it
/// is the only one (`alone`); else without. `None`: there is no time for it.
pub fn first(resource: Resource, alone: bool, quell: bool, left: Duration) -> Option<Pass> {
    let (sure, cell) = (sure(resource), expected(resource));
    let wanted = match (alone, sure) {
        (true, _) => MOST,
        (false, true) if quell => SOME,
        (false, true) => MOST,
        (false, false) => LEAST,
    };
    let quell = quell && (sure || alone);
    let rounds = fit(quell, cell, left)?.min(wanted);
    Some(Pass { quell, rounds })
}

/// The rounds that fit, if they are enough.
pub fn fit(quell: bool, cell: Duration, left: Duration) -> Option<u32> {
    let round = cell.saturating_mul(cells(quell)).as_nanos().max(1);
    let rounds = u32::try_from(left.as_nanos() / round).unwrap_or(u32::MAX);
    (rounds >= LEAST).then_some(rounds.min(MOST))
}

/// Whether neighbours hurt through it on nearly every machine, so that a first look is a waste.
pub const fn sure(resource: Resource) -> bool {
    matches!(resource, Resource::Cpu | Resource::Memory)
}

/// What the first looks at these resources take at least.
pub fn reserved(resources: &[Resource], quell: bool) -> Duration {
    resources
        .iter()
        .map(|r| expected(*r) * cells(sure(*r) && quell) * LEAST)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn as_many_rounds_as_fit_and_none_where_too_few_do() {
        assert_eq!(fit(true, SECOND, SECOND * 100), Some(MOST));
        assert_eq!(fit(true, SECOND, SECOND * 17), Some(4));
        assert_eq!(fit(true, SECOND, SECOND * 11), None);
        assert_eq!(fit(false, SECOND, SECOND * 11), Some(3));
        assert_eq!(fit(true, Duration::ZERO, Duration::ZERO), None);
    }

    #[test]
    fn what_rarely_hurts_is_looked_at_without_quell_first() {
        let rounds_of = |resource, alone, quell| {
            let pass = first(resource, alone, quell, SECOND * 100).unwrap();
            (pass.quell, pass.rounds)
        };
        assert_eq!(rounds_of(Resource::Cpu, false, true), (true, SOME));
        assert_eq!(rounds_of(Resource::Disk, false, true), (false, LEAST));
        assert_eq!(rounds_of(Resource::Disk, true, true), (true, MOST));
        // The control has no Quell.
        assert_eq!(rounds_of(Resource::Cpu, false, false), (false, MOST));
        assert_eq!(first(Resource::Cpu, false, true, SECOND), None);
    }

    #[test]
    fn every_resource_has_its_first_look_within_the_time() {
        assert!(reserved(&Resource::ALL, true) < WHOLE);
    }
}
