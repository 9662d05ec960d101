//! Who is stopped with whom: a throttler stops everybody on its CPU, and hardware counters count everybody there.

use crate::cpuset::CpuSet;
use crate::plan::{Meter, REST, Setting};
use crate::policy::Role;
use crate::units::Rate;

use super::Draft;
use super::bandwidth::{Limited, regulator};
use super::cpus::on;
use super::rates::rounded;

/// Whether limits of these two groups, which nobody asked for one by one, are one: they run on the same CPUs, whose
/// counters cannot tell them apart, so that of two budgets the smaller would hold both.
pub(super) fn counted_as_one(draft: &Draft<'_>, one: &str, other: &str) -> bool {
    let cpus = &draft.division.of(one).cpus;
    *cpus == draft.division.of(other).cpus
        && matches!(regulator(draft, one, cpus), Ok(Meter::Hardware))
}

/// Regulated groups on the same CPUs stop together: whichever budget is used up first.
pub(super) fn stopped_together(draft: &mut Draft<'_>, limited: &[Limited]) {
    let regulated = |l: &&Limited| {
        draft
            .steps
            .iter()
            .any(|s| Some(s.id) == l.by && matches!(s.set, Setting::Regulate(_)))
    };
    let regulated: Vec<&Limited> = limited.iter().filter(regulated).collect();
    for (i, one) in regulated.iter().enumerate() {
        for other in &regulated[i + 1..] {
            let both = one.cpus.intersection(&other.cpus);
            if both.is_empty() {
                continue;
            }
            let who = format!("groups {} and {}", one.group, other.group);
            let remedy = if both.len() > 1 {
                "; give each CPUs of its own (`cpus`) to divide it between them"
            } else {
                ""
            };
            if one.by == other.by {
                draft.notes.push(format!(
                    "{who} have one budget together: the counters of {} count both{}",
                    on(&both),
                    if both.len() > 1 {
                        "; give each CPUs of its own (`cpus`) to have it divided by weight"
                    } else {
                        ""
                    }
                ));
                continue;
            }
            let each = |l: &Limited| Rate(l.rate.0 / l.cpus.len().max(1) as u64);
            let what = if one.counts_all {
                format!(
                    "the counters count both, so that together they get no more than the smaller budget, {} for each CPU",
                    rounded(each(one).min(each(other)))
                )
            } else {
                "the first budget to be used up stops both".to_owned()
            };
            draft.notes.push(format!(
                "{who} are regulated on the same {}: {what}{remedy}",
                on(&both)
            ));
        }
    }
}

/// Who else runs on the regulated CPUs and is stopped with the group.
pub(super) fn throttled_along(draft: &Draft<'_>, name: &str, cpus: &CpuSet) -> Vec<String> {
    let mut along: Vec<String> = draft
        .policy
        .groups
        .keys()
        .filter(|other| {
            *other != name && !draft.division.of(other).cpus.intersection(cpus).is_empty()
        })
        .cloned()
        .collect();
    if !draft.division.rest.intersection(cpus).is_empty() {
        along.push(REST.to_owned());
    }
    along
}

/// A throttler is no quiet neighbour to the other thread of its core.
pub(super) fn sibling_note(draft: &mut Draft<'_>, name: &str, cpus: &CpuSet) {
    let machine = draft.machine;
    let critical = draft.policy.with_role(Role::Critical);
    for (other, _) in critical.filter(|(other, _)| *other != name) {
        let critical = draft.division.of(other).cpus.clone();
        let beside: CpuSet = machine
            .cpus
            .iter()
            .filter(|c| cpus.contains(c.id) && !c.siblings.intersection(&critical).is_empty())
            .map(|c| c.id)
            .collect();
        if !beside.is_empty() {
            draft.notes.push(format!(
                "group {name} is throttled on CPU {beside}, SMT siblings of group {other}: while it waits the throttler still uses \
                 a little of the shared core"
            ));
        }
    }
}
