//! `select`: the selection of [`super::bandwidth_aware`] alone. Its members take the cores in the
//! order in which they were selected.

use super::allocation::in_order;
use super::bandwidth_aware::printed;
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Select;

impl Scheduler for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        Ok(in_order(&printed(members, cores.seats()), cores))
    }
}
