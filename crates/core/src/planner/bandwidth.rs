//! Rates into budgets: limits, by the regulator or the CPU-time quota.

use crate::cpuset::CpuSet;
use crate::inventory::{Measured, MeterKind};
use crate::mechanism::{Level, Mechanism};
use crate::plan::{Held, Meter, Promise, Regulation, Setting, Step, StepId};
use crate::policy::{Bandwidth, BandwidthMechanism, Group, MeterWanted, Permission, Role, Split};
use crate::units::{LINE_BYTES, Lines, Nanos, Rate, Share};

use super::Draft;
use super::apart;
use super::cpus::on;
use super::deadline;
use super::mba;
use super::others::floor;
use super::period;
use super::pooling::{self, Budget};
use super::quota::{cpu_time, quota};
use super::rates::{Wanted, about, rounded};
use super::reserves::{judge_reserves, reserves, spare_of};
use super::together::{sibling_note, stopped_together, throttled_along};

/// How a group's rate was limited.
#[derive(Clone)]
pub(super) struct Limited {
    pub(super) group: String,
    pub(super) rate: Rate,
    pub(super) level: Level,
    pub(super) by: Option<StepId>,
    pub(super) weakest: Option<String>,
    /// CPUs on which everybody is counted, so that nobody there can exceed the budget.
    pub(super) counts_all: bool,
    pub(super) cpus: CpuSet,
}

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    let mut limited: Vec<Limited> = Vec::new();
    let reserved = reserves(draft);
    let spare = spare_of(draft, &reserved);
    let budgets: Vec<_> = policy
        .groups
        .iter()
        .map(|(name, group)| pooling::budget(draft, name, group, spare.as_deref()))
        .collect();
    let neighbours = budgets.iter().flatten().filter(|wanted| {
        let of = policy.groups.get(&wanted.group);
        of.is_some_and(|group| group.role != Role::Critical)
    });
    let together = Rate(neighbours.map(|wanted| wanted.rate.0).sum());
    let (period, why) = period::period(draft, together);
    draft.period = period;
    for ((name, group), wanted) in policy.groups.iter().zip(budgets) {
        if let Some(share) = group.limit.cpu_time {
            cpu_time(draft, name, share);
        }
        if let Some(wanted) = wanted
            && let Some(done) = limit(draft, name, group, &wanted, group.limit.bandwidth)
        {
            let along = wanted.with.iter().map(|with| Limited {
                group: with.clone(),
                rate: Rate(0),
                ..done.clone()
            });
            let along: Vec<Limited> = along.collect();
            limited.push(done);
            limited.extend(along);
        }
    }
    stopped_together(draft, &limited);
    rest_allowed(draft, &limited);
    let regulated = |step: &Step| matches!(step.set, Setting::Regulate(_));
    if draft.steps.iter().any(regulated) {
        draft.notes.extend(why);
    }
    pooling::notes(draft);
    judge_reserves(draft, &reserved, &limited);
    deadline::plan(draft, &reserved, &limited);
}

/// On a CPU whose counters count everybody, unmatched tasks are regulated along; by themselves they are not.
fn rest_allowed(draft: &mut Draft<'_>, limited: &[Limited]) {
    let counted = limited
        .iter()
        .filter(|l| l.counts_all)
        .fold(CpuSet::new(), |sum, l| sum.union(&l.cpus));
    let open = draft.division.rest.difference(&counted);
    // A limit that was refused would have counted them.
    if draft.policy.rest.allow.contains(&Permission::Throttle)
        && !open.is_empty()
        && draft.refusals.is_empty()
    {
        draft.refuse(
            "rest.allow",
            format!(
                "not yet: unmatched tasks are regulated along where counters count everybody on a regulated CPU, not by \
                 themselves: on {} nothing would limit them",
                on(&open)
            ),
            Some("match those that must be limited in a group of their own".to_owned()),
        );
    }
}

fn limit(
    draft: &mut Draft<'_>,
    name: &str,
    group: &Group,
    wanted: &Wanted,
    explicit: Option<Bandwidth>,
) -> Option<Limited> {
    let mechanism = draft.policy.mechanisms.bandwidth;
    let rate = wanted.rate;
    let key = wanted.key();
    // `strict` is the permission to stop whoever has drawn its reserve, and who has no cap is never stopped.
    let allowed = match wanted.budget {
        Budget::Limit | Budget::Spare => group.allows(Permission::Throttle),
        Budget::Strict | Budget::Reserve => true,
    };
    if group.role == Role::Exempt || !allowed {
        if explicit.is_some() || group.role == Role::BestEffort {
            let remedy = "add \"throttle\" to the group's `allow`, or leave the limit out";
            draft.refuse(
                key,
                format!("the group ({}) may not be throttled", group.role.name()),
                Some(remedy.to_owned()),
            );
        }
        return None;
    }
    if let Some(both) = wanted.apart {
        return apart::limit(draft, name, group, wanted, both);
    }
    if mechanism == BandwidthMechanism::Mba {
        return mba::limit(draft, name, wanted, explicit);
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
    if cpus.is_empty() {
        // Refused for its CPUs already.
        return None;
    }
    let moves = deadline::moves(draft.policy, group);
    // More than its CPUs draw would be a budget that moves without an effect.
    let reach = peak.0.saturating_mul(cpus.len() as u64);
    let rate = if moves { rate.min(Rate(reach)) } else { rate };
    let wanted = &Wanted {
        rate,
        ..wanted.clone()
    };
    let each = Rate(rate.0 / cpus.len() as u64);
    let share = Share::ratio(each.0, peak.0);
    let pooled = pooling::is_pooled(&draft.policy.regulator, wanted.budget);
    if share >= Share::WHOLE && !pooled && !moves {
        draft.notes.push(format!(
            "group {name}: the limit of {rate}{} needs no step: {} cannot draw more ({} for each CPU)",
            wanted.origin,
            on(&cpus),
            rounded(peak)
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
            rate,
            level: Level::Estimated,
            by: None,
            weakest: None,
            counts_all: false,
            cpus,
        });
    }
    match regulator(draft, name, &cpus) {
        Ok(meter) => {
            let done = regulate(draft, name, wanted, each, peak, share, meter, cpus)?;
            if mechanism == BandwidthMechanism::MbaAndRegulator {
                mba::beside(draft, name, wanted, &done);
            }
            Some(done)
        }
        Err(why) if pooled => {
            draft.refuse(
                key,
                format!("its budget cannot be pooled: {why}"),
                Some("leave regulator.reclaim and regulator.after out".to_owned()),
            );
            None
        }
        Err(why) if mechanism.insists() => {
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
        Err(why) => quota(draft, name, wanted, share, &cpus, &why),
    }
}

pub(super) fn limit_held(
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
pub(super) fn regulator(draft: &Draft<'_>, name: &str, cpus: &CpuSet) -> Result<Meter, String> {
    if let Some(why) = draft.unavailable(Mechanism::Bandwidth) {
        return Err(why);
    }
    if !draft.policy.mechanisms.bandwidth.regulates() {
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
    wanted: &Wanted,
    each: Rate,
    peak: Rate,
    share: Share,
    meter: Meter,
    cpus: CpuSet,
) -> Option<Limited> {
    let rate = wanted.rate;
    let keys = &draft.policy.regulator;
    let (period, longest) = (draft.period, keys.longest);
    let kernel = draft.machine.means.kernel_floor;
    let floor = floor(draft.policy, draft.machine);
    let capped = wanted.budget != Budget::Reserve;
    if capped && share < floor {
        draft.refuse(
            wanted.key(),
            format!(
                "{rate}{origin} is {each} {places}: {part} of its time at the peak of {peak}, below the floor of \
                 {floor}, which the kernel gives ordinary tasks whatever a throttler does: the limit would leak",
                origin = if wanted.origin.is_empty() {
                    String::new()
                } else {
                    format!("{},", wanted.origin)
                },
                each = rounded(each),
                places = match cpus.len() {
                    1 => format!("on {}", on(&cpus)),
                    _ => format!("for each of {}", on(&cpus)),
                },
                part = about(share),
                peak = rounded(peak),
            ),
            Some(floor_remedy(draft, name, wanted, peak, floor, &cpus)),
        );
        return None;
    }
    let budget = Lines::at(each, period);
    if budget.0 == 0 {
        draft.refuse(
            wanted.key(),
            format!(
                "{rate} over {} CPUs is less than one line of {LINE_BYTES} bytes per {period}",
                cpus.len()
            ),
            Some("raise the limit or the period".to_owned()),
        );
        return None;
    }
    let pooling = pooling::pooling(&draft.policy.regulator, wanted.budget, meter, peak);
    let split = match cpus.len() {
        1 => Split::Even,
        _ => draft.policy.regulator.split,
    };
    let (mut level, mut weakest) = worth(draft, meter, &cpus);
    let measured = draft.machine.measured.as_ref();
    if let Some(doubt) = measured.and_then(Measured::doubt) {
        level = Level::Estimated;
        weakest = Some(weakest.map_or(doubt.clone(), |why| format!("{why}; {doubt}")));
    }
    if capped && share < kernel {
        level = Level::None;
        weakest = Some(format!(
            "{share} of a CPU is below the {kernel} that the kernel gives ordinary tasks whatever we do"
        ));
    }
    let because = format!(
        "{} {rate}{}{}: {} of one CPU's peak ({}){}{}",
        if wanted.budget == Budget::Limit || wanted.budget == Budget::Spare {
            "limit"
        } else {
            "reserve"
        },
        wanted.origin,
        match split {
            Split::Even if cpus.len() > 1 => ", split evenly",
            Split::Even => "",
            Split::Demand => ", split evenly at first",
        },
        about(share),
        rounded(peak),
        if capped {
            ""
        } else {
            "; it is counted and never stopped"
        },
        pooling::because(pooling.as_ref(), split),
    );
    if weakest.is_none() {
        weakest = pooling::weakest(pooling.as_ref());
    }
    let shared = pooling.is_some();
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
        pooling,
        split,
        least: match split {
            Split::Even => Lines(0),
            Split::Demand => Lines::at(peak.part(floor), period).min(budget),
        },
    };
    let id = draft.step(
        Some(name),
        Mechanism::Bandwidth,
        Setting::Regulate(regulation),
        because,
    );
    if !capped {
        // No limit on this group, and none that others' reserves could rest on.
        return None;
    }
    stops_others(draft, name, &cpus, meter);
    if shared {
        draft.notes.push(format!(
            "group {name} draws more than {rate} where others leave what is theirs, or all have drawn all there is: \
             so nothing is promised about its limit"
        ));
    } else {
        draft
            .promises
            .push(limit_held(name, rate, level, Some(id), weakest.clone()));
    }
    Some(Limited {
        group: name.to_owned(),
        rate,
        level,
        by: Some(id),
        weakest,
        counts_all: meter.counts_all(),
        cpus,
    })
}

/// Who is stopped with a group that is regulated on these CPUs, and what else a stop there is to others.
pub(super) fn stops_others(draft: &mut Draft<'_>, name: &str, cpus: &CpuSet, meter: Meter) {
    let along = throttled_along(draft, name, cpus);
    if !along.is_empty() {
        draft.notes.push(format!(
            "when group {name} has used its budget up on a CPU, everybody there stops with it: {} ({})",
            along.join(", "),
            if meter.counts_all() {
                "what they move counts, too"
            } else {
                "what they move is not counted"
            }
        ));
        if let Some(group) = draft.groups.iter_mut().find(|g| g.name == name) {
            group.throttled_along = along;
        }
    }
    let longest = draft.policy.regulator.longest;
    if longest > Nanos::millis(5) {
        draft.notes.push(format!(
            "one uninterrupted stop may last {longest}: calls elsewhere that wait for this CPU's kernel workers (madvise, \
             fadvise, memory compaction) wait that long"
        ));
    }
    sibling_note(draft, name, cpus);
}

/// What a limit held by this meter on these CPUs is worth, and the weakest link.
fn worth(draft: &Draft<'_>, meter: Meter, cpus: &CpuSet) -> (Level, Option<String>) {
    let unseen = match (meter, &draft.machine.means.meter) {
        (Meter::Time, _) => {
            let why = "counts the group's CPU time at the peak rate: an upper bound; what others do on its CPUs is not counted";
            return (Level::Estimated, Some(why.to_owned()));
        }
        (Meter::Hardware, MeterKind::Hardware { fills_only, .. }) => fills_only.intersection(cpus),
        _ => CpuSet::EMPTY,
    };
    if unseen.is_empty() {
        return (Level::Regulated, None);
    }
    let why = format!(
        "the counters of {} count the lines that come in, not those written back: who writes moves up to twice the limit, \
         and stores past the caches are not counted at all",
        on(&unseen)
    );
    (Level::Estimated, Some(why))
}

/// How a limit below the floor can be had after all.
fn floor_remedy(
    draft: &Draft<'_>,
    name: &str,
    wanted: &Wanted,
    peak: Rate,
    floor: Share,
    cpus: &CpuSet,
) -> String {
    let lowest = peak.part(floor).0.max(1);
    let fewer = wanted.rate.0 / lowest;
    let mut ways = Vec::new();
    if fewer > 0 && fewer < cpus.len() as u64 {
        ways.push(format!(
            "confine the group to {} (group.{name}.cpus = {fewer})",
            if fewer == 1 {
                "one CPU".to_owned()
            } else {
                format!("{fewer} CPUs")
            }
        ));
    }
    let raised = lowest.saturating_mul(cpus.len() as u64).div_ceil(1_000_000) * 1_000_000;
    let percent = wanted.of.map(|of| {
        let millionths = Share::ratio(raised, of.0).0;
        format!(" ({}%)", millionths.div_ceil(10_000))
    });
    ways.push(format!(
        "raise the limit to at least {}{}",
        Rate(raised),
        percent.unwrap_or_default()
    ));
    if draft.unavailable(Mechanism::CpuMax).is_none() {
        ways.push(format!(
            "have it held by the CPU-time quota (mechanisms.bandwidth = \"none\"), which gives the whole group {} of one \
             CPU's time",
            about(Share::ratio(wanted.rate.0, peak.0))
        ));
    }
    ways.push(
        "lower regulator.floor and write require = \"none\": nothing is promised then".to_owned(),
    );
    ways.join(", or ")
}
