//! Several groups with targets at once. Each has its own [`Deadline`], and the best-effort groups
//! are left the least that any of them leaves. So the loop obeys the group whose units are latest.
//!
//! Another group whose units are in time keeps what it would leave: that never falls for this
//! reason. How much more it could leave is not known while the first group needs more. So it stays
//! at what it left before until its units are late. The search goes on from there once this group
//! leaves the least again.

use quell_types::units::{Nanos, Rate, Share};

use super::deadline::{Aim, Deadline, Step, Unit, Why};

/// If what the best-effort groups have falls by more than this, units that began before say nothing
/// about the new budget. Smaller falls are ignored: else long units next to short ones, which cause
/// such falls often, would never be judged.
const MUCH: Share = Share::percent(10);

/// The controllers of several groups that share what the best-effort groups are left.
#[derive(Clone, Debug)]
pub struct Deadlines {
    each: Vec<Deadline>,
    /// The rate that the units of each group are declared to draw, by aim. `None`: not declared.
    needs: Vec<Option<Rate>>,
}

impl Deadlines {
    /// A controller for each aim, from `now` on. All aims have the same `most` and `least`.
    #[must_use]
    pub fn new(aims: impl IntoIterator<Item = Aim>, now: Nanos) -> Self {
        let each: Vec<Deadline> = aims
            .into_iter()
            .map(|aim| Deadline::new(aim, now))
            .collect();
        let needs = vec![None; each.len()];
        Self { each, needs }
    }

    /// What is left to the best-effort groups: the least of all controllers. Zero without an aim.
    #[must_use]
    pub fn given(&self) -> Rate {
        self.each
            .iter()
            .map(Deadline::given)
            .min()
            .unwrap_or_default()
    }

    /// What the units of this aim alone would leave to the best-effort groups.
    #[must_use]
    pub fn given_by(&self, aim: usize) -> Rate {
        self.each.get(aim).map(Deadline::given).unwrap_or_default()
    }

    /// When the next step is due; `u64::MAX` without an aim.
    #[must_use]
    pub fn next(&self) -> Nanos {
        let all = self.each.iter().map(Deadline::next);
        all.min().unwrap_or(Nanos(u64::MAX))
    }

    /// Records a unit of the aim with that number.
    pub fn seen(&mut self, aim: usize, unit: &Unit) {
        if let Some(control) = self.each.get_mut(aim) {
            control.seen(unit);
        }
    }

    /// Records that the units of this aim are declared to draw `need`. Before any unit has been
    /// judged, the best-effort groups are left `sustainable` less the needs of all aims, if that is
    /// less than they have. `Some` if that changed what they have.
    pub fn declared(
        &mut self,
        now: Nanos,
        aim: usize,
        need: Rate,
        sustainable: Rate,
    ) -> Option<Step> {
        let from = self.given();
        *self.needs.get_mut(aim)? = Some(need);
        let all = self.needs.iter().flatten();
        let all = all.fold(0u64, |sum, need| sum.saturating_add(need.0));
        let left = Rate(sustainable.0.saturating_sub(all));
        self.each.get_mut(aim)?.guess(now, left);
        let to = self.given();
        let why = Why::Declared { need };
        (to < from).then_some(Step::Change { from, to, why })
    }

    /// Decides by what was seen since the last step. Every step is paired with the number of its
    /// aim. At most one step is a change, and it says what changes for the best-effort groups.
    pub fn step(&mut self, now: Nanos) -> Vec<(usize, Step)> {
        let from = self.given();
        let steps = self.each.iter_mut().map(|control| control.step(now, from));
        let steps: Vec<_> = steps
            .enumerate()
            .filter_map(|(n, s)| Some((n, s?)))
            .collect();
        let to = self.given();
        if from.0.saturating_sub(to.0) > from.part(MUCH).0 {
            self.each.iter_mut().for_each(|control| control.fell(now));
        }
        // The aim that a change is attributed to: of a fall, the one that leaves least; of a rise,
        // one that now leaves more than they had.
        let made_it = |n: usize, own: Rate| {
            let least = self.each.get(n).is_some_and(|c| c.given() == to);
            if to < from { least } else { own > from }
        };
        let mut reported = to == from;
        let mut all = Vec::new();
        for (n, step) in steps {
            match step {
                Step::Change { to: own, why, .. } => {
                    if !reported && made_it(n, own) {
                        reported = true;
                        all.push((n, Step::Change { from, to, why }));
                    }
                }
                other => all.push((n, other)),
            }
        }
        all
    }
}

#[cfg(test)]
#[path = "deadlines_tests.rs"]
mod tests;
