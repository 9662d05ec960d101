//! Rates that a policy asks for, in bytes per second.

use crate::cpuset::CpuSet;
use crate::policy::{Bandwidth, Sustainable};
use crate::units::{Rate, Share};

use super::Draft;
use super::apart::Apart;
use super::cpus::on;
use super::pooling::Budget;

/// The share of a CPU that a loop or a split by demand leaves every CPU of a group: below, its programs stand still.
pub(super) const LEAST: Share = Share::percent(5);

/// A rate for a group, and how it came about.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) group: String,
    pub(super) rate: Rate,
    /// As in "39.2GB/s, 20% of …"; empty for a rate that was given.
    pub(super) origin: String,
    /// The rate that a percentage was given of.
    pub(super) of: Option<Rate>,
    pub(super) budget: Budget,
    /// The same by direction, where each is to have its own; then `rate` is the sum.
    pub(super) apart: Option<Apart>,
}

impl Wanted {
    /// The key that asks for it.
    pub(super) fn key(&self) -> String {
        let key = match self.budget {
            Budget::Limit | Budget::Spare => "limit",
            Budget::Strict | Budget::Reserve => "reserve",
        };
        format!("group.{}.{key}.bandwidth", self.group)
    }
}

/// A rate that was calculated, down to what a person reads: whole MB/s, below 1 GB/s whole kB/s.
pub(super) fn rounded(rate: Rate) -> Rate {
    let unit = if rate.0 >= 1_000_000_000 {
        1_000_000
    } else {
        1_000
    };
    Rate(rate.0 / unit * unit)
}

/// A share for a sentence: to a tenth of a percent.
pub(super) fn about(share: Share) -> Share {
    Share((share.0 + 500) / 1_000 * 1_000)
}

/// A rate in bytes per second, with percentages of what the group's CPUs can draw.
pub(super) fn resolve(
    draft: &mut Draft<'_>,
    name: &str,
    key: &str,
    wanted: Bandwidth,
) -> Option<Wanted> {
    let apart = Apart::of(wanted);
    let given = match wanted {
        Bandwidth::Share(share) => Err(share),
        Bandwidth::Rate(rate) => Ok(rate),
        Bandwidth::ReadWrite { .. } => Ok(apart.map_or(Rate(0), Apart::sum)),
    };
    let share = match given {
        Err(share) => share,
        Ok(rate) => {
            return Some(Wanted {
                group: name.to_owned(),
                rate,
                origin: String::new(),
                of: None,
                budget: Budget::Limit,
                apart,
            });
        }
    };
    let cpus = draft.division.of(name).cpus.clone();
    match draft.sustainable(&cpus) {
        Some(rate) => Some(Wanted {
            group: name.to_owned(),
            rate: rounded(rate.part(share)),
            origin: if draft.policy.regulator.sustainable == Sustainable::Machine {
                let rate = rounded(rate);
                format!(", {share} of the {rate} that all CPUs can draw together")
            } else {
                let (rate, on) = (rounded(rate), on(&cpus));
                format!(", {share} of the {rate} that {on} can draw")
            },
            of: Some(rate),
            budget: Budget::Limit,
            apart,
        }),
        None => {
            draft.refuse(
                format!("group.{name}.{key}"),
                format!("{share} of a rate that has not been measured on this machine"),
                Some("run `quell doctor --deep` once".to_owned()),
            );
            None
        }
    }
}

impl Draft<'_> {
    /// What CPUs can draw together: measured, or as the policy states.
    pub(super) fn sustainable(&self, cpus: &CpuSet) -> Option<Rate> {
        match self.policy.regulator.sustainable {
            Sustainable::Rate(rate) => Some(rate),
            Sustainable::Auto => self.machine.sustainable(cpus),
            Sustainable::Machine => self.machine.sustainable(&self.machine.cpu_set()),
        }
    }
}
