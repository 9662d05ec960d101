//! `progress`: half of the hardware threads go to the members with the least progress, the rest by
//! main-memory rate as in [`super::bandwidth_aware`].
//!
//! Source: Feliu, Sahuquillo, Petit and Duato, "Perf&Fair: A Progress-Aware Scheduler to Enhance
//! Performance and Fairness in SMT Multicores", IEEE Transactions on Computers, 2017, from
//! descriptions of it: the text itself was not read. How the study estimates progress is left to
//! the caller.

use super::allocation::fold;
use super::selection::{closest, queue, target};
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress;

impl Scheduler for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let seats = cores.seats();
        let mut behind = queue(members);
        behind.sort_by(|a, b| members[*a].progress.total_cmp(&members[*b].progress));
        let mut rest = behind.split_off(seats.div_ceil(2).min(behind.len()));
        // Those that are left go by rate, and by their wait where rates are the same.
        rest.sort_by_key(|i| (std::cmp::Reverse(members[*i].waited), *i));
        let chosen = closest(members, behind, &rest, target(members, seats), seats);
        Ok(fold(members, &chosen, cores))
    }
}
