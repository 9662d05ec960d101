//! Sentences about targets and the loop around them.

use quell_types::ids::GroupId;
use quell_types::units::{Nanos, Share};

use crate::plan::Lever;

pub const OUTPUT_CANNOT_BE_READ: &str = "target.source is a pattern for what the program prints, and Quell reads that only of programs that it starts";
pub const NO_PROFILE: &str = "no profile says how long its units take alone";
pub const STRICT_STOPS_AT_THE_RESERVE: &str = "with regulator.strict a critical group is stopped at its reserve, also while \
    other groups leave bandwidth unused";
pub const NO_TARGET: &str = "no critical group has a target whose units are observed";
pub const GIVE_A_TARGET: &str = "give one a target, as in group.NAME.target.deadline = \"50ms\"";
pub const NO_LEVER: &str =
    "no best-effort group has a budget that the regulator holds, so there is nothing to lower";
pub const ADD_A_LEVER: &str =
    "add a best-effort group that may be throttled, and let the regulator hold its bandwidth";
pub const TAKES_FROM_OTHERS_ONLY: &str = "its units may be late for other reasons, and the loop can only lower the budgets of other groups";

sentences! {
    no_regulator(why: &str)
        "no budget of a best-effort group could be lowered: {why}";
    may_take(group: &str, share: Share, took: Nanos, profile: &str, may: Nanos)
        "group {group}: alone {share} of its units took {took} at most (profile {profile}): they may take {may}";
    is_a_wish(group: &str)
        "group {group}: nothing holds its target, since its units are not observed (source = \"none\")";
    is_only_observed(group: &str)
        "group {group}: its units are observed, and nothing holds them inside its target (regulator.adapt = \"deadline\" \
         would)";
    headroom(of: &str)
        "what the budgets of other groups leave is headroom of {of}: they may use it while {of} draws nothing, and none \
         of it while it does";
    rest_takes(on: &str)
        "unmatched tasks (group rest) have no limit on {on}: what they draw is missing for the groups";
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
            ": the group that is latest decides",
        ),
    };
    format!(
        "while units of {who} are late, the budget of {named} is lowered, else it is raised{worst}"
    )
}
