//! `worst`: a control. Members are selected in turn as by [`super::pair`]. They are paired as badly
//! as their first-level rates allow, so that the two policies differ in the pairing alone.
//!
//! Source: the author's own framework has such allocators as controls
//! (`jofepre/lab_sched_framework`).

use super::allocation::stack;
use super::selection::queue;
use super::{Cores, Member, Scheduler, Seat, TooMany};

/// The policy. It keeps no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst;

impl Scheduler for Worst {
    fn name(&self) -> &'static str {
        "worst"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        let mut chosen = queue(members);
        chosen.truncate(cores.seats());
        Ok(stack(members, &chosen, cores))
    }
}
