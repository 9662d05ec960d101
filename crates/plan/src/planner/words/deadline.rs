//! Sentences about targets and the loop around them.

use quell_types::ids::GroupId;
use quell_types::units::{Nanos, Share};

use crate::plan::Lever;

pub const OUTPUT_CANNOT_BE_READ: &str =
    "the output of programs that run already cannot be read along";
pub const NO_PROFILE: &str = "no profile is at hand that tells what its units take alone";
pub const STRICT_STOPS_AT_THE_RESERVE: &str = "with regulator.strict a critical group is stopped at its reserve, whatever \
    is left to the others";
pub const NO_TARGET: &str = "no critical group has a target whose units are observed";
pub const GIVE_A_TARGET: &str = "give one a target, as in group.NAME.target.deadline = \"50ms\"";
pub const NO_LEVER: &str =
    "there is nobody whose budget could be moved: the regulator holds none of a best-effort group";
pub const ADD_A_LEVER: &str =
    "add a best-effort group that may be throttled, and let the regulator hold its bandwidth";
pub const TAKES_FROM_OTHERS_ONLY: &str =
    "whatever else makes its units late, the loop can only take from the others";

sentences! {
    may_take(group: &str, share: Share, took: Nanos, profile: &str, may: Nanos)
        "group {group}: alone {share} of its units took {took} at most (profile {profile}): they may take {may}";
    is_a_wish(group: &str)
        "group {group}: its target is a wish: nobody observes its units (source = \"none\")";
    is_only_observed(group: &str)
        "group {group}: its units are observed, and nothing holds them inside its target (regulator.adapt = \"deadline\" \
         would)";
    headroom(of: &str)
        "what the others are not left is headroom of {of}: given to them while it draws nothing, and kept whole while \
         it does";
    rest_takes(on: &str)
        "unmatched tasks (group rest) have no limit on {on}: what they draw is taken from the others";
}

pub fn follows(groups: &[GroupId], levers: &[Lever]) -> String {
    let named: Vec<String> = levers
        .iter()
        .map(|l| format!("{} (from {} down to {})", l.group, l.most, l.least))
        .collect();
    let named = named.join(", ");
    let (who, worst) = match groups {
        [one] => (format!("group {one}"), ""),
        several => (
            format!("the groups {}", several.join(", ")),
            ": what the one leaves that is worst off",
        ),
    };
    format!("as units of {who} are late or in time, less or more is left to {named}{worst}")
}
