//! Rates that a policy asks for. A share becomes a rate here, and nowhere else.

use quell_policy::{Bandwidth, Sustainable};
use quell_types::refusal::Remedy;
use quell_types::units::Rate;

use super::draft::Draft;
use super::wanted::{Budget, Directions, ShareOf, Wanted, rounded};
use super::words::bandwidth as words;

/// What all groups ask for, in the order of the policy.
#[derive(Default)]
pub(super) struct Rates {
    pub(super) limits: Vec<Wanted>,
    pub(super) reserves: Vec<Wanted>,
}

impl Rates {
    /// The limit that a group states, if it does.
    pub(super) fn limit(&self, group: &str) -> Option<&Wanted> {
        self.limits.iter().find(|wanted| wanted.group == group)
    }

    /// The reserve that a group states, if it does.
    pub(super) fn reserve(&self, group: &str) -> Option<&Wanted> {
        self.reserves.iter().find(|wanted| wanted.group == group)
    }

    /// The rate of a group's reserve; zero for a group without one.
    pub(super) fn kept(&self, group: &str) -> Rate {
        self.reserve(group).map_or(Rate(0), |wanted| wanted.rate)
    }
}

/// Reads what all groups ask for. Refuses a share where the rates were not measured.
pub(super) fn read(draft: &mut Draft<'_>) -> Rates {
    let mut rates = Rates::default();
    for (name, group) in &draft.policy.groups {
        if let Some(asked) = group.reserve.bandwidth {
            let wanted = resolve(draft, name, Budget::Reserve, asked);
            rates.reserves.extend(wanted);
        }
        if let Some(asked) = group.limit.bandwidth {
            let wanted = resolve(draft, name, Budget::Limit, asked);
            rates.limits.extend(wanted);
        }
    }
    rates
}

/// What one key asks for. A share is a share of what the group's CPUs can draw.
fn resolve(draft: &mut Draft<'_>, name: &str, budget: Budget, asked: Bandwidth) -> Option<Wanted> {
    let directions = Directions::of(asked);
    let mut wanted = Wanted {
        group: name.to_owned(),
        rate: directions.map_or(Rate(0), Directions::sum),
        origin: String::new(),
        share: None,
        budget,
        apart: directions,
    };
    match asked {
        Bandwidth::Rate(rate) => wanted.rate = rate,
        Bandwidth::ReadWrite { .. } => {}
        Bandwidth::Share(share) => {
            let cpus = &draft.division.of(name).cpus;
            let Some(of) = draft.sustainable(cpus) else {
                let remedy = Remedy::command("quell doctor --deep");
                draft.refuse(wanted.key(), words::unmeasured_share(share), remedy);
                return None;
            };
            let (total, by) = match draft.policy.regulator.sustainable {
                Sustainable::Rate(_) => (rounded(of).to_string(), Some(cpus)),
                Sustainable::Auto => (draft.figure(of), Some(cpus)),
                Sustainable::Machine => (draft.figure(of), None),
            };
            wanted.origin = words::origin(share, &total, by);
            wanted.share = Some(ShareOf { share, of });
            wanted.rate = rounded(wanted.exact());
        }
    }
    Some(wanted)
}
