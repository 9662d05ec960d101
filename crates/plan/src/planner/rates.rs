//! Rates that a policy asks for, in bytes per second.

use quell_policy::{Bandwidth, Sustainable};
use quell_types::refusal::Remedy;
use quell_types::units::{Rate, Share};

use super::cpus::on;
use super::draft::Draft;
use super::wanted::{Apart, Budget, Wanted, rounded};

/// A bandwidth in bytes per second, and what it is a percentage of; both directions together. `Err`: the percentage,
/// where that has not been measured.
pub(super) fn in_bytes(
    draft: &Draft<'_>,
    name: &str,
    wanted: Bandwidth,
) -> Result<(Rate, Option<Rate>), Share> {
    Ok(match wanted {
        Bandwidth::Rate(rate) => (rate, None),
        Bandwidth::ReadWrite { .. } => (Apart::of(wanted).map_or(Rate(0), Apart::sum), None),
        Bandwidth::Share(share) => {
            let of = draft.sustainable(&draft.division.of(name).cpus);
            let of = of.ok_or(share)?;
            (of.part(share), Some(of))
        }
    })
}

/// What a key asks for, with percentages of what the group's CPUs can draw.
pub(super) fn resolve(
    draft: &mut Draft<'_>,
    name: &str,
    key: &str,
    wanted: Bandwidth,
) -> Option<Wanted> {
    let asked = |rate, origin, of| Wanted {
        group: name.to_owned(),
        rate,
        origin,
        of,
        budget: Budget::Limit,
        apart: Apart::of(wanted),
    };
    match (wanted, in_bytes(draft, name, wanted)) {
        (Bandwidth::Share(share), Ok((rate, Some(of)))) => {
            let given = matches!(draft.policy.regulator.sustainable, Sustainable::Rate(_));
            let total = if given {
                rounded(of).to_string()
            } else {
                draft.figure(of)
            };
            let on = on(&draft.division.of(name).cpus);
            let origin = match draft.policy.regulator.sustainable {
                Sustainable::Machine => {
                    format!(", {share} of the {total} that all CPUs can draw together")
                }
                _ => format!(", {share} of the {total} that {on} can draw"),
            };
            Some(asked(rounded(rate), origin, Some(of)))
        }
        (_, Ok((rate, _))) => Some(asked(rate, String::new(), None)),
        (_, Err(share)) => {
            draft.refuse(
                format!("group.{name}.{key}"),
                format!("{share} of a rate that has not been measured on this machine"),
                Remedy::command("quell doctor --deep"),
            );
            None
        }
    }
}
