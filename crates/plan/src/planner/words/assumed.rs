//! Sentences about what rests on assumed rates.

use quell_types::mechanism::Level;
use quell_types::units::Rate;

use crate::plan::Held;

sentences! {
    /// What assumed rates cannot decide.
    refused_by_run(what: &str)
        "{what}. `quell run` refuses this if the measured rates are no better";
    at_assumed_rates(why: &str)
        "at assumed rates {why}";
    rates_are_assumed(one: Rate, all: Rate)
        "rates are assumed ({one} for a CPU, {all} in all): `quell run` measures first, `quell plan --measure` \
         measures now";
}

pub fn is_below(held: &Held, require: Level) -> String {
    let (group, promise, level) = (&held.group, &held.promise, held.level);
    refused_by_run(&format!(
        "group {group}: at assumed rates {promise} is at level {level}, and the policy requires {require}"
    ))
}
