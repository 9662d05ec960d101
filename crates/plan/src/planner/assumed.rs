//! How a plan marks what rests on assumed rates.

use quell_control::config::Meter;
use quell_policy::Bandwidth;
use quell_types::mechanism::Level;
use quell_types::units::Rate;

use crate::plan::{AssumedRates, Held, Promise, Setting};

use super::draft::{Draft, Remedies};
use super::wanted::{Wanted, Worth, rounded};
use super::words::assumed::{self as words, refused_by_run};

impl Draft<'_> {
    /// Whether the rates of this machine are assumed.
    pub(super) fn assumes(&self) -> bool {
        self.machine.measured.as_ref().is_some_and(|m| m.assumed)
    }

    /// A rate calculated from the machine's rates, as text.
    pub(super) fn figure(&self, rate: Rate) -> String {
        let assumed = if self.assumes() { " (assumed)" } else { "" };
        format!("{}{assumed}", rounded(rate))
    }

    /// The word for how the machine's rates are known.
    pub(super) fn known(&self) -> &'static str {
        if self.assumes() {
            "assumed"
        } else {
            "measured"
        }
    }

    /// Refuses a limit that the rates make impossible. Where they are assumed the plan continues
    /// without the limit, and says so.
    pub(super) fn refuse_by_rates(
        &mut self,
        wanted: &Wanted,
        rate: Rate,
        why: String,
        remedies: impl Remedies,
    ) {
        let key = wanted.key();
        if self.assumes() {
            self.acts.push(refused_by_run(&format!("{key}: {why}")));
            let worth = Worth::of(Level::None, words::at_assumed_rates(&why));
            let promise = Promise::LimitBandwidth { rate };
            self.promise(&wanted.group, promise, worth, None);
        } else {
            self.refuse(key, why, remedies);
        }
    }
}

/// Reports promises below the level that the policy requires, if measured rates may lift them. They
/// are not refused.
pub(super) fn below(draft: &mut Draft<'_>, require: Level) {
    if !draft.assumes() {
        return;
    }
    let below = draft.promises.iter();
    let below = below.filter(|held| held.level < require && rests(draft, held));
    let said: Vec<String> = below.map(|held| words::is_below(held, require)).collect();
    draft.acts.extend(said);
}

/// Whether a promise's figure, or the step that holds it, follows from the machine's rates.
pub(super) fn rests(draft: &Draft<'_>, held: &Held) -> bool {
    match held.promise {
        Promise::ReserveBandwidth { .. } | Promise::ReserveDirection { .. } => true,
        Promise::LimitBandwidth { .. } | Promise::LimitDirection { .. } => {
            let group = draft.policy.groups.get(&held.group);
            let written = group.and_then(|g| g.limit.bandwidth);
            let given = matches!(
                written,
                Some(Bandwidth::Rate(_) | Bandwidth::ReadWrite { .. })
            );
            let counted = draft.steps.iter().any(|step| {
                held.held_by.contains(&step.id)
                    && matches!(&step.set, Setting::Regulate(r) if r.meter != Meter::Time)
            });
            !(given && counted)
        }
        Promise::Deadline { .. } => true,
        _ => false,
    }
}

/// Marks what rests on assumed rates, and returns those rates; `None` where nothing does.
pub(super) fn mark(draft: &mut Draft<'_>) -> Option<AssumedRates> {
    let measured = draft.machine.measured.as_ref().filter(|m| m.assumed)?;
    let rates = AssumedRates {
        peak_cpu: measured.peak_cpu,
        sustainable: measured.sustainable,
    };
    let marked: Vec<bool> = draft.promises.iter().map(|h| rests(draft, h)).collect();
    if !marked.contains(&true) {
        return None;
    }
    for (held, assumed) in draft.promises.iter_mut().zip(marked) {
        held.assumed = assumed;
    }
    let limits = |held: &&Held| {
        let limit = matches!(
            held.promise,
            Promise::LimitBandwidth { .. } | Promise::LimitDirection { .. }
        );
        held.assumed && limit
    };
    for held in draft.promises.iter().filter(limits) {
        for step in &mut draft.steps {
            step.assumed |= held.held_by.contains(&step.id);
        }
    }
    let (one, all) = (rounded(rates.peak_cpu), rounded(rates.sustainable));
    draft.acts.insert(0, words::rates_are_assumed(one, all));
    Some(rates)
}
