//! Several groups with targets at once: each has its own [`Deadline`], and the others are left the
//! least that any of them leaves. So the loop obeys the worst off, and what a group whose units are
//! in time would leave is never less for it.
//!
//! What more one could leave while another needs it is not known, only what it left before: it
//! stays there until late units tell otherwise, and is searched on from there once it is the least
//! again.

use quell_types::units::{Nanos, Rate, Share};

use super::deadline::{Aim, Deadline, Step, Unit, Why};

/// What the others have falls by more than this: then units that began before say nothing of what
/// they have now. Less is let pass, or long units beside short ones, which move it often, would
/// never be judged.
const MUCH: Share = Share::percent(10);

/// The controllers of several groups that share what the others are left.
#[derive(Clone, Debug)]
pub struct Deadlines {
    each: Vec<Deadline>,
    /// The rates that their units are said to draw.
    needs: Vec<Option<Rate>>,
}

impl Deadlines {
    /// One for each aim, from `now` on. All have the same ends.
    #[must_use]
    pub fn new(aims: impl IntoIterator<Item = Aim>, now: Nanos) -> Self {
        let each: Vec<Deadline> = aims
            .into_iter()
            .map(|aim| Deadline::new(aim, now))
            .collect();
        let needs = vec![None; each.len()];
        Self { each, needs }
    }

    /// What is left to the others.
    #[must_use]
    pub fn given(&self) -> Rate {
        self.each
            .iter()
            .map(Deadline::given)
            .min()
            .unwrap_or_default()
    }

    /// What units of that aim leave to the others, as far as they go.
    #[must_use]
    pub fn given_by(&self, aim: usize) -> Rate {
        self.each.get(aim).map(Deadline::given).unwrap_or_default()
    }

    /// When the next step is due; never without an aim.
    #[must_use]
    pub fn next(&self) -> Nanos {
        let all = self.each.iter().map(Deadline::next);
        all.min().unwrap_or(Nanos(u64::MAX))
    }

    /// Takes in a unit of the aim of that number.
    pub fn seen(&mut self, aim: usize, unit: &Unit) {
        if let Some(control) = self.each.get_mut(aim) {
            control.seen(unit);
        }
    }

    /// Units of that aim are said to draw `need`. Before any has been judged, the others are left
    /// what that and the needs of the other aims leave of `sustainable`, if that is less than they
    /// have.
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

    /// Decides by what was seen since the last step. Every step names its aim; a change is what it
    /// comes to for the others, and at most one.
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
        // Who has made it what it is: of what is less, the one that leaves least; of what is more,
        // whoever gave in.
        let made_it = |n: usize, own: Rate| {
            let least = self.each.get(n).is_some_and(|c| c.given() == to);
            if to < from { least } else { own > from }
        };
        let mut told = to == from;
        let mut all = Vec::new();
        for (n, step) in steps {
            match step {
                Step::Change { to: own, why, .. } => {
                    if !told && made_it(n, own) {
                        told = true;
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
