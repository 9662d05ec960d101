//! Sentences about memory-bandwidth allocation in hardware.

use quell_types::partition::MbaBounds;
use quell_types::units::{Rate, Share};

use super::super::wanted::{Wanted, about, rounded};
use crate::deep::{MbaCurve, MbaPoint};

pub const STEPS_ARE_NOT_TOLD: &str = "this machine does not report its steps";
pub const LOOKS_ONCE_A_SECOND: &str = "the kernel measures once a second and moves by one step: for seconds the limit may be exceeded";
pub const UNTHROTTLED_IS_ITS_BOUND: &str = "what its CPUs reached unthrottled is its bound";
pub const PERCENTAGE_OF_A_CORE: &str = "the hardware delays requests by a percentage of what a core could make, and promises \
    no rate in bytes; what it comes to has not been measured here";
pub const WHOLE_IS_NO_LIMIT: &str = "100% of what a core could make is no limit";

sentences! {
    told(wanted: &Wanted)
        "limit {wanted}: the kernel adjusts the percentage (mba_MBps)";
    for_streams_only(operation: &str)
        "measured by streams of {operation}: the hardware delays requests, and promises no rate in bytes to other programs";
    not_with_so_many(wanted: &Wanted, cpus: usize)
        "{wanted} on {cpus} CPUs: what a percentage comes to was not measured with so many";
    is_a_rate(wanted: &Wanted)
        "{wanted} is a rate, and the hardware takes a percentage of each core's requests; what that comes to in bytes \
         has not been measured here";
    /// What is done to spread a regulated limit.
    spreads(requests: &str)
        "the regulator holds the limit; {requests} spread it over the period";
    reaching(percent: u32, operation: &str)
        "{percent}% of the requests, which reach it by streams of {operation}, as measured,";
    left_alone(group: &str, who: &str)
        "group {group}: the hardware's throttle is left alone: under no step below 100% did {who} reach the limit, as \
         measured";
}

/// For how many CPUs it was measured, where `cpus` are asked about.
fn measured_of(cpus: usize, point: &MbaPoint) -> String {
    let measured = counted(point.cpus as usize);
    if cpus == point.cpus as usize {
        return measured;
    }
    format!("{measured} (measured instead of {cpus})")
}

pub fn needs_no_step(wanted: &Wanted, cpus: usize, curve: &MbaCurve, point: &MbaPoint) -> String {
    let (group, operation) = (&wanted.group, &curve.operation);
    let (who, reached) = (measured_of(cpus, point), rounded(point.rate()));
    format!(
        "group {group}: the limit of {wanted} needs no step: {who} reached {reached} unthrottled, by streams of {operation}"
    )
}

pub fn as_measured(wanted: &Wanted, cpus: usize, curve: &MbaCurve, point: &MbaPoint) -> String {
    let (percent, operation) = (point.percent, &curve.operation);
    let (who, reached) = (measured_of(cpus, point), rounded(point.rate()));
    let low = rounded(Rate::measured(point.mb_s.low * 1e6));
    let most = rounded(point.most());
    let share = about(Share::ratio(reached.0, wanted.rate.0));
    format!(
        "limit {wanted}: under {percent}% of the requests {who} reached {reached} by streams of {operation} (rounds from \
         {low} to {most}), {share} of the limit"
    )
}

pub fn out_of_reach(wanted: &Wanted, curve: &MbaCurve, least: &MbaPoint) -> String {
    let (percent, operation) = (least.percent, &curve.operation);
    let (who, reached) = (counted(least.cpus as usize), rounded(least.most()));
    format!(
        "{wanted} cannot be reached by the hardware: under {percent}%, its strongest step, {who} still reached {reached} \
         by streams of {operation}, as measured"
    )
}

pub fn in_steps(group: &str, share: Share, percent: u32, bounds: &MbaBounds) -> String {
    let (share, step, least) = (about(share), bounds.step, bounds.least);
    format!(
        "group {group}: {share} of the requests is set as {percent}%: the hardware takes steps of {step}%, {least}% at least"
    )
}

pub fn counted(n: usize) -> String {
    format!("{n} CPU{}", super::one_or(n, "", "s"))
}
