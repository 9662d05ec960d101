//! Limits with a budget for each direction: lines that come in, and lines that are written back.
//!
//! Only counters tell the two apart. Nothing stands in for them: neither CPU time, nor the kernel's quota of it, nor the hardware's
//! percentages know what a program does with its time.

use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_policy::{BandwidthMechanism, Group, MeterWanted};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::refusal::{Cause, Remedy};
use quell_types::units::{LINE_BYTES, Lines, Rate, Share};

use crate::inventory::{Measured, MeterKind};
use crate::plan::{Direction, Held, Promise};

use super::brake::{regulate, regulator};
use super::cpus::on;
use super::deadline;
use super::draft::Draft;
use super::mba;
use super::pooling;
use super::quota;
use super::wanted::{Apart, Budget, Limited, Wanted, about, rounded};

/// The most that one CPU was seen to move in a direction: every line of a plain store comes in and is written back, a copy does one half
/// of its bytes each. Where operations were not measured, what it moved in all.
fn peak(measured: &Measured, direction: Direction) -> Rate {
    let of: &[(&str, u64)] = match direction {
        Direction::Read => &[("read", 1), ("write", 1), ("copy", 1)],
        Direction::Write => &[
            ("write", 1),
            ("non-temporal", 1),
            ("copy", 2),
            ("copy-non-temporal", 2),
        ],
    };
    of.iter()
        .filter_map(|(operation, part)| Some(Rate(measured.by_operation.get(*operation)?.0 / part)))
        .max()
        .unwrap_or(measured.peak_cpu)
}

/// A direction that is limited, on each CPU.
struct Way {
    direction: Direction,
    /// Of the whole group.
    rate: Rate,
    each: Rate,
    peak: Rate,
    /// The CPU can move more than that.
    binds: bool,
    lines: Lines,
}

/// Limits a group's directions.
pub(super) fn limit(
    draft: &mut Draft<'_>,
    name: &str,
    group: &Group,
    wanted: &Wanted,
    apart: Apart,
) -> Option<Limited> {
    let key = wanted.key();
    if let Some((cause, why)) = unsuited(draft, group, wanted) {
        draft.refuse_for(cause, key, why, wanted.at(wanted.rate, draft.policy));
        return None;
    }
    let cpus = draft.division.of(name).cpus.clone();
    if cpus.is_empty() {
        // Refused for its CPUs already.
        return None;
    }
    if let Err((cause, why, other)) = counted_apart(draft, (name, group), wanted.budget, &cpus) {
        let mut remedies = draft.enables(Mechanism::Bandwidth);
        remedies.extend(other);
        remedies.push(wanted.at(wanted.rate, draft.policy));
        draft.refuse_for(cause, key, why, remedies);
        return None;
    }
    let Some(measured) = draft.machine.measured.as_ref() else {
        draft.refuse(
            key,
            "the peak rate of one CPU has not been measured on this machine",
            Remedy::command("quell doctor --deep"),
        );
        return None;
    };
    let ways: Vec<Way> = apart
        .given()
        .map(|(direction, rate)| {
            let each = Rate(rate.0 / cpus.len() as u64);
            Way {
                direction,
                rate,
                each,
                peak: peak(measured, direction),
                binds: each < measured.peak_cpu,
                lines: Lines::at(each, draft.period),
            }
        })
        .collect();
    let mut refused = false;
    for way in ways.iter().filter(|way| way.binds) {
        if let Some(why) = unheld(draft, way, &cpus) {
            let raised = quota::rounded_up(draft, cpus.len(), wanted.rate);
            let remedy = wanted.at(raised, draft.policy);
            draft.refuse_by_rates((name, key.clone(), way.rate), why, remedy);
            refused = true;
        }
    }
    if refused {
        return None;
    }
    let done = budgeted(draft, name, wanted, apart, &ways, cpus);
    // It knows no directions: what one of them may have would hold the other, too, where that has no limit.
    let both = ways.len() == 2;
    if draft.policy.mechanisms.bandwidth == BandwidthMechanism::MbaAndRegulator
        && both
        && done.by.is_some()
    {
        let rate = done.rate;
        mba::beside(
            draft,
            name,
            &Wanted {
                rate,
                ..wanted.clone()
            },
            &done,
        );
    }
    Some(done)
}

/// What of the policy does not go with two budgets.
fn unsuited(draft: &Draft<'_>, group: &Group, wanted: &Wanted) -> Option<(Cause, &'static str)> {
    if draft.policy.mechanisms.bandwidth == BandwidthMechanism::Mba {
        let why = "the hardware delays requests to memory whatever their direction";
        return Some((Cause::Policy, why));
    }
    if pooling::is_pooled(&draft.policy.regulator, wanted.budget) {
        let why = "budgets of reads and writes are not pooled: a CPU that is stopped for one direction would hold back what it has \
                   left of the other";
        return Some((Cause::NotBuilt, why));
    }
    let why = "the loop around a target moves one budget of a CPU, not one for each direction";
    deadline::moves(draft.policy, group).then_some((Cause::NotBuilt, why))
}

/// Why reads and writes cannot be counted separately, and what helps besides one rate for both.
type Uncounted = (Cause, String, Option<Remedy>);

/// Whether the counters of these CPUs count reads and writes separately; if not, why.
fn counted_apart(
    draft: &Draft<'_>,
    (name, group): (&str, &Group),
    budget: Budget,
    cpus: &CpuSet,
) -> Result<(), Uncounted> {
    let only = "only hardware counters count reads and writes separately";
    let missing = |why: String| Err((Cause::Machine, why, None));
    match regulator(draft, name, group, budget) {
        Err(why) => {
            let why = format!("only the regulator limits reads and writes separately: {why}");
            Err((draft.lack(Mechanism::Bandwidth), why, None))
        }
        Ok(Meter::Time) if draft.policy.regulator.meter == MeterWanted::Time => {
            let why =
                "CPU time does not show the direction of traffic (regulator.meter = \"time\")";
            let other = Remedy::leave_out("regulator.meter");
            Err((Cause::Policy, why.to_owned(), Some(other)))
        }
        Ok(Meter::Time) => missing(format!("{only}, and none counts on this machine")),
        Ok(_) => match &draft.machine.means.meter {
            MeterKind::Hardware { apart, .. } if cpus.is_subset(apart) => Ok(()),
            MeterKind::Hardware { apart, .. } => {
                let why = format!(
                    "{only}, and on {} lines that are written back are not counted",
                    on(&cpus.difference(apart))
                );
                let near = (!apart.is_empty())
                    .then(|| Remedy::set_text(format!("group.{name}.cpus"), apart));
                Err((Cause::Machine, why, near))
            }
            _ => missing(format!("{only}, and none counts on this machine")),
        },
    }
}

/// Why a budget cannot be held.
fn unheld(draft: &Draft<'_>, way: &Way, cpus: &CpuSet) -> Option<String> {
    (way.lines.0 == 0).then(|| {
        format!(
            "{} {} over {} CPUs is less than one line of {LINE_BYTES} bytes per {}",
            way.rate,
            way.direction,
            cpus.len(),
            draft.period
        )
    })
}

fn budgeted(
    draft: &mut Draft<'_>,
    name: &str,
    wanted: &Wanted,
    apart: Apart,
    ways: &[Way],
    cpus: CpuSet,
) -> Limited {
    let lines = |direction| {
        let mut binding = ways.iter().filter(|w| w.binds);
        binding.find(|w| w.direction == direction).map(|w| w.lines)
    };
    let meter = match (lines(Direction::Read), lines(Direction::Write)) {
        (Some(read), Some(writes)) => Some((read, Meter::Apart { writes })),
        (Some(read), None) => Some((read, Meter::Reads)),
        (None, Some(writes)) => Some((writes, Meter::Writes)),
        (None, None) => None,
    };
    let (mut level, mut weakest) = (Level::Regulated, None);
    if draft.machine.simulated.is_none() {
        weakest = Some("what is stored past the caches may be counted by neither event".to_owned());
    }
    if let Some(doubt) = draft.machine.measured.as_ref().and_then(Measured::doubt) {
        level = Level::Estimated;
        weakest = Some(doubt);
    }
    let by = meter.map(|(budget, meter)| {
        let because = because(ways, cpus.len());
        let origin = &wanted.origin;
        let what = if wanted.budget == Budget::Limit {
            "limit"
        } else {
            "reserve"
        };
        let measured = draft.machine.measured.as_ref();
        let regulation = Regulation {
            cpus: cpus.clone(),
            budget,
            period: draft.period,
            meter,
            peak: measured.map_or(Rate(0), |m| m.peak_cpu),
            pooling: None,
            split: Split::Even,
            least: Lines(0),
        };
        regulate(draft, name, regulation, format!("{what} {because}{origin}"))
    });
    for way in ways {
        let (level, weakest) = if !way.binds {
            let why = format!(
                "the {} peak of its CPUs is its bound ({} for each)",
                draft.known(),
                rounded(
                    draft
                        .machine
                        .measured
                        .as_ref()
                        .map_or(Rate(0), |m| m.peak_cpu)
                )
            );
            (Level::Estimated, Some(why))
        } else {
            (level, weakest.clone())
        };
        draft.promises.push(Held {
            group: name.to_owned(),
            promise: Promise::LimitDirection {
                direction: way.direction,
                rate: way.rate,
            },
            level,
            held_by: by.filter(|_| way.binds).into_iter().collect(),
            weakest,
            assumed: false,
        });
    }
    // What others' reserves rest on: a direction that is left open bounds nothing.
    let open = [Direction::Read, Direction::Write]
        .into_iter()
        .find(|d| ways.iter().all(|way| way.direction != *d));
    if let Some(open) = open {
        (level, weakest) = (Level::None, Some(format!("nothing limits what is {open}")));
    }
    Limited {
        group: name.to_owned(),
        rate: apart.sum(),
        level,
        by,
        weakest,
        cpus,
    }
}

/// Both budgets, and where they come from.
fn because(ways: &[Way], cpus: usize) -> String {
    let each: Vec<String> = ways
        .iter()
        .map(|way| {
            let (rate, direction) = (way.rate, way.direction);
            if way.binds {
                let share = about(Share::ratio(way.each.0, way.peak.0));
                let peak = rounded(way.peak);
                format!("{rate} {direction} ({share} of the {peak} that one CPU can)")
            } else {
                format!("{rate} {direction} (no budget: its CPUs cannot)")
            }
        })
        .collect();
    let both = if ways.iter().filter(|way| way.binds).count() > 1 {
        "; whichever is used up first stops the group on that CPU"
    } else {
        ""
    };
    let split = if cpus > 1 {
        "; split evenly, since budgets of one direction are not yet split by demand"
    } else {
        ""
    };
    format!("{}{both}{split}", each.join(", and "))
}
