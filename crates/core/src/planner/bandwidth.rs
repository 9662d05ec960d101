//! Rates into budgets: limits, what reserves leave to the others, and the fallback to the CPU-time quota.

use crate::cpuset::CpuSet;
use crate::inventory::MeterKind;
use crate::mechanism::{Level, Mechanism};
use crate::plan::{Held, Meter, Promise, REST, Regulation, Setting, StepId};
use crate::policy::{
    Bandwidth, BandwidthMechanism, Group, MeterWanted, Permission, Role, Sustainable,
};
use crate::units::{LINE_BYTES, Lines, Nanos, Rate, Share};

use super::Draft;

/// Period of the CPU-time quota: the kernel's default (sched-bwc.rst).
const QUOTA_PERIOD: Nanos = Nanos::millis(100);

/// How a group's rate was limited.
struct Limited {
    group: String,
    level: Level,
    by: Option<StepId>,
    weakest: Option<String>,
    /// CPUs on which everybody is counted, so that nobody there can exceed the budget.
    counts_all: bool,
    cpus: CpuSet,
}

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    if policy.rest.allow.contains(&Permission::Throttle) {
        draft.refuse(
            "rest.allow",
            "not yet: unmatched tasks are throttled along on a regulated CPU, but not regulated by themselves",
            Some("match those that must be limited in a group of their own".to_owned()),
        );
    }
    let mut limited: Vec<Limited> = Vec::new();
    let reserved = reserves(draft);
    let spare = spare_of(draft, &reserved);
    for (name, group) in &policy.groups {
        if let Some(share) = group.limit.cpu_time {
            cpu_time(draft, name, share);
        }
        let explicit = group.limit.bandwidth;
        let rate = match explicit {
            Some(wanted) => resolve(draft, name, "limit.bandwidth", wanted),
            None => spare
                .as_ref()
                .and_then(|s| s.iter().find(|(n, _)| n == name))
                .map(|(_, r)| *r),
        };
        if let Some(rate) = rate
            && let Some(done) = limit(draft, name, group, rate, explicit.is_some())
        {
            limited.push(done);
        }
    }
    judge_reserves(draft, &reserved, &limited);
}

/// A rate in bytes per second, with percentages of what the group's CPUs can draw.
fn resolve(draft: &mut Draft<'_>, name: &str, key: &str, wanted: Bandwidth) -> Option<Rate> {
    let share = match wanted {
        Bandwidth::Rate(rate) => return Some(rate),
        // Refused as "not yet" before.
        Bandwidth::ReadWrite { .. } => return None,
        Bandwidth::Share(share) => share,
    };
    let cpus = draft.division.of(name).cpus.clone();
    match draft.sustainable(&cpus) {
        Some(rate) => Some(rate.part(share)),
        None => {
            draft.refuse(
                format!("group.{name}.{key}"),
                format!("{share} of a rate that has not been measured on this machine"),
                Some("run `quell doctor --deep` once, or give a rate such as 600MB/s and regulator.sustainable".to_owned()),
            );
            None
        }
    }
}

impl Draft<'_> {
    /// What CPUs can draw together: measured, or as the policy states.
    fn sustainable(&self, cpus: &CpuSet) -> Option<Rate> {
        match self.policy.regulator.sustainable {
            Sustainable::Rate(rate) => Some(rate),
            Sustainable::Auto => self.machine.sustainable(cpus),
        }
    }
}

fn reserves(draft: &mut Draft<'_>) -> Vec<(String, Rate)> {
    let policy = draft.policy;
    let mut list = Vec::new();
    for (name, group) in &policy.groups {
        if let Some(wanted) = group.reserve.bandwidth
            && let Some(rate) = resolve(draft, name, "reserve.bandwidth", wanted)
        {
            list.push((name.clone(), rate));
        }
    }
    let Some(sustainable) = draft.sustainable(&draft.machine.cpu_set()) else {
        return list;
    };
    let sum: u64 = list.iter().map(|(_, r)| r.0).sum();
    if sum > sustainable.0 {
        let named: Vec<String> = list.iter().map(|(n, r)| format!("{n} {r}")).collect();
        draft.refuse(
            "reserve.bandwidth",
            format!(
                "the reserves ({}) come to {}, more than the {sustainable} this machine sustains",
                named.join(", "),
                Rate(sum)
            ),
            Some("lower them until they fit".to_owned()),
        );
    }
    list
}

/// What the reserves of others leave, divided by weight among the best-effort groups without a limit of their own.
fn spare_of(draft: &Draft<'_>, reserved: &[(String, Rate)]) -> Option<Vec<(String, Rate)>> {
    if reserved.is_empty() {
        return None;
    }
    let total = draft.sustainable(&draft.machine.cpu_set())?;
    let open: Vec<(&String, &Group)> = draft
        .policy
        .groups
        .iter()
        .filter(|(_, g)| g.role == Role::BestEffort && g.limit.bandwidth.is_none())
        .collect();
    let kept = |name: &str| {
        reserved
            .iter()
            .find(|(n, _)| n == name)
            .map_or(0, |(_, r)| r.0)
    };
    let fixed: u64 = draft
        .policy
        .groups
        .iter()
        .map(|(name, g)| match g.limit.bandwidth {
            Some(Bandwidth::Rate(rate)) => rate.0.max(kept(name)),
            Some(Bandwidth::Share(share)) => draft
                .sustainable(&draft.division.of(name).cpus)
                .map_or(0, |r| r.part(share).0)
                .max(kept(name)),
            _ => kept(name),
        })
        .sum();
    let spare = total.0.saturating_sub(fixed);
    let weights: u64 = open.iter().map(|(_, g)| u64::from(g.weight())).sum();
    let part = |g: &Group| u128::from(spare) * u128::from(g.weight()) / u128::from(weights.max(1));
    Some(
        open.iter()
            .map(|(name, g)| {
                let extra = u64::try_from(part(g)).unwrap_or(u64::MAX);
                ((*name).clone(), Rate(kept(name).saturating_add(extra)))
            })
            .collect(),
    )
}

fn cpu_time(draft: &mut Draft<'_>, name: &str, share: Share) {
    let key = format!("group.{name}.limit.cpu-time");
    if let Some(why) = draft.unavailable(Mechanism::CpuMax) {
        draft.refuse(key, why, Some("leave the limit out".to_owned()));
        return;
    }
    let set = Setting::CpuMax {
        share,
        period: QUOTA_PERIOD,
    };
    let id = draft.step(
        Some(name),
        Mechanism::CpuMax,
        set,
        "limit.cpu-time: the kernel's own quota",
    );
    draft.promises.push(Held {
        group: name.to_owned(),
        promise: Promise::LimitCpuTime { share },
        level: Level::Enforced,
        held_by: vec![id],
        weakest: None,
    });
}

fn limit(
    draft: &mut Draft<'_>,
    name: &str,
    group: &Group,
    rate: Rate,
    explicit: bool,
) -> Option<Limited> {
    let key = format!("group.{name}.limit.bandwidth");
    if group.role == Role::Exempt || !group.allows(Permission::Throttle) {
        if explicit || group.role == Role::BestEffort {
            let remedy = "add \"throttle\" to the group's `allow`, or leave the limit out";
            draft.refuse(
                key,
                format!("the group ({}) may not be throttled", group.role.name()),
                Some(remedy.to_owned()),
            );
        }
        return None;
    }
    let cpus = draft.division.of(name).cpus.clone();
    let Some(peak) = draft.machine.measured.as_ref().map(|m| m.peak_cpu) else {
        draft.refuse(
            key,
            "the peak rate of one CPU has not been measured on this machine",
            Some("run `quell doctor --deep` once".to_owned()),
        );
        return None;
    };
    let each = Rate(rate.0 / (cpus.len() as u64).max(1));
    let share = Share::ratio(each.0, peak.0);
    if share >= Share::WHOLE {
        draft.notes.push(format!(
            "group {name}: its {} CPUs draw at most {} each, so the limit of {rate} needs no step",
            cpus.len(),
            peak
        ));
        draft.promises.push(limit_held(
            name,
            rate,
            Level::Estimated,
            None,
            Some("the measured peak of its CPUs is its bound".to_owned()),
        ));
        return Some(Limited {
            group: name.to_owned(),
            level: Level::Estimated,
            by: None,
            weakest: None,
            counts_all: false,
            cpus,
        });
    }
    match regulator(draft, name, &cpus) {
        Ok(meter) => regulate(draft, name, rate, each, peak, share, meter, cpus),
        Err(why) if draft.policy.mechanisms.bandwidth == BandwidthMechanism::Regulator => {
            draft.refuse(
                key,
                why,
                Some(
                    "write mechanisms.bandwidth = \"any\" to accept the CPU-time quota instead"
                        .to_owned(),
                ),
            );
            None
        }
        Err(why) => quota(draft, name, rate, share, &cpus, &why),
    }
}

fn limit_held(
    name: &str,
    rate: Rate,
    level: Level,
    by: Option<StepId>,
    weakest: Option<String>,
) -> Held {
    Held {
        group: name.to_owned(),
        promise: Promise::LimitBandwidth { rate },
        level,
        held_by: by.into_iter().collect(),
        weakest,
    }
}

/// Whether the regulator can hold a limit on these CPUs, and with which meter; or why not.
fn regulator(draft: &Draft<'_>, name: &str, cpus: &CpuSet) -> Result<Meter, String> {
    if let Some(why) = draft.unavailable(Mechanism::Bandwidth) {
        return Err(why);
    }
    if draft.policy.mechanisms.bandwidth == BandwidthMechanism::None {
        return Err("the policy switches the regulator off".to_owned());
    }
    let means = &draft.machine.means;
    means.realtime.clone()?;
    for (other, group) in &draft.policy.groups {
        let shared = draft.division.of(other).cpus.intersection(cpus);
        let slowed = group.role == Role::BestEffort && group.allows(Permission::Throttle);
        if other != name && !slowed && !shared.is_empty() {
            return Err(format!(
                "group {other} ({}) also runs on CPU {shared}, and a throttler stops everybody on its CPU",
                group.role.name()
            ));
        }
    }
    let time = || {
        if means.time_meter {
            Ok(Meter::Time)
        } else {
            Err("CPU time of a cgroup cannot be counted (perf_event)".to_owned())
        }
    };
    match (draft.policy.regulator.meter, &means.meter) {
        (MeterWanted::Time, _) => time(),
        (_, MeterKind::Hardware { .. }) => Ok(Meter::Hardware),
        (MeterWanted::Hardware, MeterKind::None { why }) => Err(why.clone()),
        (MeterWanted::Hardware, MeterKind::Time) => {
            Err("no hardware counter counts on this machine".to_owned())
        }
        (MeterWanted::Auto, _) => time(),
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the arithmetic of one step, each value named once"
)]
fn regulate(
    draft: &mut Draft<'_>,
    name: &str,
    rate: Rate,
    each: Rate,
    peak: Rate,
    share: Share,
    meter: Meter,
    cpus: CpuSet,
) -> Option<Limited> {
    let keys = &draft.policy.regulator;
    let (period, longest) = (keys.period, keys.longest);
    let kernel = draft.machine.means.kernel_floor;
    let floor = keys.floor.max(if keys.floor < Share::percent(5) {
        keys.floor
    } else {
        kernel
    });
    if share < floor {
        draft.refuse(
            format!("group.{name}.limit.bandwidth"),
            format!(
                "{rate} is {share} of its CPUs' time at their peak of {peak}, below the floor of {floor}: the kernel gives \
                 ordinary tasks about that much beside a real-time thread, so the limit would leak"
            ),
            Some(format!(
                "raise the limit to at least {}, or lower regulator.floor and accept level none",
                Rate(peak.part(floor).0 * cpus.len() as u64)
            )),
        );
        return None;
    }
    let budget = Lines::at(each, period);
    if budget.0 == 0 {
        draft.refuse(
            format!("group.{name}.limit.bandwidth"),
            format!(
                "{rate} over {} CPUs is less than one line of {LINE_BYTES} bytes per {period}",
                cpus.len()
            ),
            Some("raise the limit or the period".to_owned()),
        );
        return None;
    }
    let along = throttled_along(draft, name, &cpus);
    let mut weakest = match meter {
        Meter::Time => Some("counts the group's CPU time at the peak rate: an upper bound; what others do on its CPUs is not counted".to_owned()),
        Meter::Hardware => None,
    };
    let mut level = if meter == Meter::Time {
        Level::Estimated
    } else {
        Level::Regulated
    };
    if share < kernel {
        level = Level::None;
        weakest = Some(format!(
            "{share} of a CPU is below the {kernel} that the kernel gives ordinary tasks whatever we do"
        ));
    }
    let because = format!(
        "limit {rate}: {budget} per CPU and {period}, {share} of its time at the peak of {peak}; counted by {}",
        if meter == Meter::Time {
            "CPU time"
        } else {
            "hardware events"
        },
        budget = bytes_of(budget),
    );
    let regulation = Regulation {
        cpus: cpus.clone(),
        budget,
        period,
        meter,
        peak,
        stop_cost: draft
            .machine
            .measured
            .as_ref()
            .and_then(|m| m.stop_cost)
            .unwrap_or_default(),
        longest,
    };
    let id = draft.step(
        Some(name),
        Mechanism::Bandwidth,
        Setting::Regulate(regulation),
        because,
    );
    if !along.is_empty() {
        draft.notes.push(format!(
            "throttled along with group {name} on CPU {cpus}: {}",
            along.join(", ")
        ));
        if let Some(group) = draft.groups.iter_mut().find(|g| g.name == name) {
            group.throttled_along = along;
        }
    }
    if longest > Nanos::millis(5) {
        draft.notes.push(format!(
            "one uninterrupted stop may last {longest}: calls elsewhere that wait for this CPU's kernel workers (madvise, \
             fadvise, memory compaction) wait that long"
        ));
    }
    sibling_note(draft, name, &cpus);
    draft
        .promises
        .push(limit_held(name, rate, level, Some(id), weakest.clone()));
    Some(Limited {
        group: name.to_owned(),
        level,
        by: Some(id),
        weakest,
        counts_all: meter == Meter::Hardware,
        cpus,
    })
}

fn bytes_of(lines: Lines) -> String {
    format!("{:.1} KiB", (lines.0 * LINE_BYTES) as f64 / 1024.0)
}

/// Who else runs on the regulated CPUs and is stopped with the group.
fn throttled_along(draft: &Draft<'_>, name: &str, cpus: &CpuSet) -> Vec<String> {
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

fn sibling_note(draft: &mut Draft<'_>, name: &str, cpus: &CpuSet) {
    let machine = draft.machine;
    for (other, _) in draft.policy.with_role(Role::Critical) {
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

/// The CPU-time quota in place of the regulator.
fn quota(
    draft: &mut Draft<'_>,
    name: &str,
    rate: Rate,
    share: Share,
    cpus: &CpuSet,
    why: &str,
) -> Option<Limited> {
    if let Some(not) = draft.unavailable(Mechanism::CpuMax) {
        draft.refuse(
            format!("group.{name}.limit.bandwidth"),
            format!("the regulator cannot hold it ({why}), nor can the CPU-time quota ({not})"),
            None,
        );
        return None;
    }
    let total = Share(share.0.saturating_mul(cpus.len() as u64));
    let set = Setting::CpuMax {
        share: total,
        period: QUOTA_PERIOD,
    };
    let because = format!(
        "limit {rate} as CPU time at the peak rate, by cpu-max instead of the regulator: {why}"
    );
    let id = draft.step(Some(name), Mechanism::CpuMax, set, because);
    let weakest = Some(format!(
        "cpu-max lets a whole quota through at once, every {QUOTA_PERIOD}"
    ));
    draft.promises.push(limit_held(
        name,
        rate,
        Level::Estimated,
        Some(id),
        weakest.clone(),
    ));
    Some(Limited {
        group: name.to_owned(),
        level: Level::Estimated,
        by: Some(id),
        weakest,
        counts_all: false,
        cpus: cpus.clone(),
    })
}

/// A reserve is worth what the weakest limit on everyone else is worth.
fn judge_reserves(draft: &mut Draft<'_>, reserved: &[(String, Rate)], limited: &[Limited]) {
    let policy = draft.policy;
    for (name, rate) in reserved {
        let mut level = Level::Enforced;
        let mut weakest = None;
        let mut held_by = Vec::new();
        let mut weaken = |to: Level, why: String| {
            if to < level {
                level = to;
                weakest = Some(why);
            }
        };
        for (other, group) in policy.groups.iter().filter(|(n, _)| *n != name) {
            match limited.iter().find(|l| l.group == *other) {
                Some(l) => {
                    held_by.extend(l.by);
                    weaken(
                        l.level,
                        format!(
                            "group {other}: {}",
                            l.weakest.as_deref().unwrap_or("held by a loop")
                        ),
                    );
                }
                None if group.reserve.bandwidth.is_some() => {
                    weaken(
                        Level::None,
                        format!(
                            "group {other} has a reserve but no limit: nothing stops it at that rate"
                        ),
                    );
                }
                None => weaken(Level::None, format!("group {other} has no limit")),
            }
        }
        let counted = limited
            .iter()
            .filter(|l| l.counts_all)
            .fold(CpuSet::new(), |sum, l| sum.union(&l.cpus));
        if !draft.division.rest.is_subset(&counted) {
            weaken(
                Level::None,
                "unmatched tasks (group rest) have no limit".to_owned(),
            );
        }
        if level == Level::Enforced {
            // Nobody else is there: still only as good as the measured rate.
            level = Level::Estimated;
        }
        draft.promises.push(Held {
            group: name.clone(),
            promise: Promise::ReserveBandwidth { rate: *rate },
            level,
            held_by,
            weakest,
        });
    }
}
