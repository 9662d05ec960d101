//! Several groups with targets at once, and several programs of one group. Each program that tells
//! of units has its own [`Deadline`], and the best-effort groups are left the least that any of
//! them leaves. So the loop obeys the program whose units are latest: the percentile of a group is
//! that of its worst program, and who is in time hides nobody.
//!
//! A program whose units are in time keeps what it would leave: that never falls for this reason.
//! How much more it could leave is not known while another one needs more. So it stays at what it
//! left before until its units are late. The search goes on from there once it leaves the least
//! again.

use quell_types::units::{Nanos, Rate, Share};

use super::deadline::{Aim, Deadline, Step, Unit, Why};

/// If what the best-effort groups have falls by more than this, units that began before say nothing
/// about the new budget. Smaller falls are ignored: else long units next to short ones, which cause
/// such falls often, would never be judged.
const MUCH: Share = Share::percent(10);

/// The most programs of a group with a controller of their own. Those after them take that of one
/// that fell silent, or share one.
const MOST_TELLERS: usize = 128;

/// The controllers of several groups that share what the best-effort groups are left.
#[derive(Clone, Debug)]
pub struct Deadlines {
    aims: Vec<Aim>,
    each: Vec<OfOne>,
    /// The rate that the units of each group are declared to draw, by aim. `None`: not declared.
    needs: Vec<Option<Rate>>,
}

/// The controller of one program.
#[derive(Clone, Debug)]
struct OfOne {
    aim: usize,
    /// The program's number. `None` for the first of an aim before it has told of a unit.
    teller: Option<u32>,
    control: Deadline,
}

impl Deadlines {
    /// A controller for each aim, from `now` on. All aims have the same `most` and `least`.
    #[must_use]
    pub fn new(aims: impl IntoIterator<Item = Aim>, now: Nanos) -> Self {
        let aims: Vec<Aim> = aims.into_iter().collect();
        let of_one = |(aim, wanted): (usize, &Aim)| OfOne {
            aim,
            teller: None,
            control: Deadline::new(*wanted, now),
        };
        Self {
            each: aims.iter().enumerate().map(of_one).collect(),
            needs: vec![None; aims.len()],
            aims,
        }
    }

    /// What is left to the best-effort groups: the least of all controllers. Zero without an aim.
    #[must_use]
    pub fn given(&self) -> Rate {
        let all = self.each.iter().map(|one| one.control.given());
        all.min().unwrap_or_default()
    }

    /// What the units of this aim alone would leave to the best-effort groups.
    #[must_use]
    pub fn given_by(&self, aim: usize) -> Rate {
        let own = self.each.iter().filter(|one| one.aim == aim);
        let own = own.map(|one| one.control.given());
        own.min().unwrap_or_default()
    }

    /// When the next step is due; `u64::MAX` without an aim.
    #[must_use]
    pub fn next(&self) -> Nanos {
        let all = self.each.iter().map(|one| one.control.next());
        all.min().unwrap_or(Nanos(u64::MAX))
    }

    /// Records units of the aim with that number, which the program `teller` tells of.
    pub fn seen(&mut self, aim: usize, teller: u32, units: &[Unit]) {
        let Some(first) = units.first() else { return };
        if let Some(n) = self.controller(aim, teller, first.ended) {
            let control = &mut self.each[n].control;
            units.iter().for_each(|unit| control.seen(unit));
        }
    }

    /// The controller of a program: its own, else the first of the aim that nobody has yet, else a
    /// new one, else that of a program that fell silent.
    fn controller(&mut self, aim: usize, teller: u32, now: Nanos) -> Option<usize> {
        // The last: who comes and goes without end takes what others of that kind had.
        let is = |test: &dyn Fn(&OfOne) -> bool| {
            let all = &self.each;
            all.iter().rposition(|one| one.aim == aim && test(one))
        };
        let own = is(&|one| one.teller == Some(teller));
        if let Some(n) = own.or_else(|| is(&|one| one.teller.is_none())) {
            self.each[n].teller = Some(teller);
            return Some(n);
        }
        let many = self.each.iter().filter(|one| one.aim == aim).count();
        if many >= MOST_TELLERS {
            let Some(n) = is(&|one| one.control.is_silent()) else {
                return is(&|_| true);
            };
            self.each[n].teller = Some(teller);
            return Some(n);
        }
        self.each.push(OfOne {
            aim,
            teller: Some(teller),
            control: Deadline::new(*self.aims.get(aim)?, now),
        });
        Some(self.each.len() - 1)
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
        let mut own = self.each.iter_mut().filter(|one| one.aim == aim);
        let first = own.next()?;
        if own.all(|other| !other.control.knows()) {
            first.control.guess(now, left);
        }
        let to = self.given();
        let why = Why::Declared { need };
        (to < from).then_some(Step::Change { from, to, why })
    }

    /// Decides by what was seen since the last step. Every step is paired with the number of its
    /// aim. At most one step is a change, and it says what changes for the best-effort groups. An
    /// aim is silent when all its programs are.
    pub fn step(&mut self, now: Nanos) -> Vec<(usize, Step)> {
        let from = self.given();
        let all = self.each.iter_mut().map(|one| one.control.step(now, from));
        let steps: Vec<_> = all.enumerate().filter_map(|(n, s)| Some((n, s?))).collect();
        let to = self.given();
        if from.0.saturating_sub(to.0) > from.part(MUCH).0 {
            self.each.iter_mut().for_each(|one| one.control.fell(now));
        }
        // The program that a change is attributed to: of a fall, the one that leaves least; of a
        // rise, one that now leaves more than they had.
        let made_it = |one: &OfOne, own: Rate| match to < from {
            true => one.control.given() == to,
            false => own > from,
        };
        let silent = |aim: usize| {
            let mut own = self.each.iter().filter(|one| one.aim == aim);
            own.all(|one| one.control.is_silent())
        };
        let mut reported = to == from;
        let mut all = Vec::new();
        for (n, step) in steps {
            let one = &self.each[n];
            match step {
                Step::Change { to: own, why, .. } => {
                    if !reported && made_it(one, own) {
                        reported = true;
                        all.push((one.aim, Step::Change { from, to, why }));
                    }
                }
                Step::Silent { .. } if !silent(one.aim) => {}
                other => all.push((one.aim, other)),
            }
        }
        all
    }
}

#[cfg(test)]
#[path = "deadlines_tests.rs"]
mod tests;
