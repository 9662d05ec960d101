//! Sentences about reserves of memory bandwidth.

use quell_types::cpuset::CpuSet;
use quell_types::units::Rate;

use super::super::wanted::{MARGIN, Wanted, rounded};
use super::{on, one_or};
use crate::inventory::Measured;

pub const REST_IS_UNMEASURED: &str = "unmatched tasks (group rest) have no limit, and what they draw has not been measured \
    (`quell doctor --deep`)";
pub const ALL_IT_CAN_DRAW: &str =
    ", all that its CPUs can draw: nothing is taken before units are late";

/// What a promise rests on that a limit holds, where the limit has no weakest link itself.
pub fn the_limit_of(group: &str, weakest: Option<&str>) -> String {
    let why = weakest.unwrap_or("a loop holds it, after the fact");
    format!("the limit of group {group}: {why}")
}

sentences! {
    has_no_limit(group: &str)
        "group {group} has no limit";
    has_no_limit_but_a_reserve(group: &str)
        "group {group} has a reserve but no limit: nothing stops it at that rate";
    has_no_limit_unmeasured(group: &str)
        "group {group} has no limit, and none can be divided among the other groups before rates are measured (`quell doctor \
         --deep`)";
    budgets_exceed(budgets: Rate, total: &str)
        "the budgets come to {budgets}, more than the {total} that the CPUs sustain together";
    budgets_and_rest_exceed(budgets: Rate, drawn: Rate, both: Rate, known: &str, total: &str)
        "unmatched tasks (group rest) have no limit, and were {known} to draw {drawn}; {MARGIN} x that and the budgets \
         ({budgets}) come to {both}, more than the {total} that the CPUs sustain together";
    kept_for_rest(drawn: Rate, known: &str)
        "unmatched tasks (group rest) have no limit: {MARGIN} x the {drawn} that they were {known} to draw is kept for them";
}

pub fn too_much(reserves: &[Wanted], sum: Rate, sustainable: &str) -> String {
    let named: Vec<String> = reserves
        .iter()
        .map(|r| format!("{} {}", r.group, r.rate))
        .collect();
    let named = named.join(", ");
    format!(
        "the reserves ({named}) come to {sum}, more than the {sustainable} this machine sustains"
    )
}

pub fn what_is_left(rest: Rate, of: &str) -> String {
    let rest = match rest {
        Rate(0) => " and limits".to_owned(),
        rest => format!(", limits and {} for unmatched tasks", rounded(rest)),
    };
    format!("what reserves{rest} leave of {of}")
}

pub fn part_of(what: &str, weight: u64, all: u64) -> String {
    if weight == all {
        return format!(", {what}");
    }
    format!(", its part (weight {weight} of {all}) of {what}")
}

pub fn others_fill_the_nodes(nodes: &CpuSet, others: Rate, gives: Rate, known: &str) -> String {
    let s = one_or(nodes.len(), "", "s");
    let (others, gives) = (rounded(others), rounded(gives));
    format!(
        "memory node{s} {nodes}: the other groups together may draw {others} there, and it gives about {gives}, its part of \
         the {known} rate; limit them to what it has left"
    )
}

pub fn even_part_of_nodes(nodes: &CpuSet, gives: Rate, known: &str) -> String {
    let (s, gives) = (one_or(nodes.len(), "", "s"), rounded(gives));
    format!(
        "memory node{s} {nodes} is taken to have its even part of the {known} rate, about {gives}"
    )
}

pub fn draws_at_most(cpus: &CpuSet, draw: Rate, known: &str, total: &str) -> String {
    let (on, draw) = (on(cpus), rounded(draw));
    format!("tasks on {on} draw at most {draw} there, as {known}, of the {total} there are")
}

pub fn not_for_all(sum: Rate, operation: &str, least: Rate, measured: &Measured) -> String {
    let (least, most) = (rounded(least), rounded(measured.sustainable));
    let by = &measured.peak_operation;
    format!(
        "the reserves come to {sum}, and by {operation} the CPUs sustain {least} together ({most} by {by}); reserve no \
         more than that, or state `regulator.sustainable` for what your programs do"
    )
}
