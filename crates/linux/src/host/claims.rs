//! What the witness is to judge: the promises of the plan, and the groups as they were gathered.

use quell_control::config::{Meter, Regulation};
use quell_kernel::pmu::Counting;
use quell_plan::{Direction, DiskRates, GroupPlan, Held, Plan, Promise, Setting, Step};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::ids::{GroupId, PromiseId};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::{CpuWeight, PageSize};
use quell_types::partition::{Colouring, Mask};
use quell_types::units::{Nanos, Rate, Share};
use quell_witness::{Claim, Counted, Disks, Party, What};

use super::Groups;
use crate::group_cgroups::{CgroupDir, outermost};

/// What the kernel's quota lets through beyond its share.
const OF_A_QUOTA: Share = Share::percent(5);
/// What brakes that wake late let through.
const OF_BRAKES: Share = Share::percent(25);

/// The promises of a plan, as claims. `counting` are the events that count traffic on a CPU.
pub fn claims(
    plan: &Plan,
    groups: &Groups,
    counting: &dyn Fn(CpuId) -> Option<Counting>,
) -> Vec<Claim> {
    let claim = |(id, held): (PromiseId, &Held)| Claim {
        id,
        group: held.group.clone(),
        what: what(plan, held, groups, counting),
    };
    let promised = plan.numbered().filter(|(_, held)| held.level > Level::None);
    // What an application says of its units is judged where it is read.
    promised
        .filter(|(_, held)| !matches!(held.promise, Promise::Deadline { .. }))
        .map(claim)
        .collect()
}

fn what(
    plan: &Plan,
    held: &Held,
    groups: &Groups,
    counting: &dyn Fn(CpuId) -> Option<Counting>,
) -> What {
    match &held.promise {
        Promise::Cpus { cpus } => What::Alone { cpus: cpus.clone() },
        Promise::Windows { cpus, frame, .. } => windows(plan, cpus, *frame),
        Promise::LimitCpuTime { .. }
        | Promise::LimitBandwidth { .. }
        | Promise::LimitDirection { .. } => limit(plan, held, counting),
        Promise::Weight { weight } => weighed(groups, &held.group, *weight),
        Promise::LimitMemory { most } => What::Memory { most: *most },
        Promise::ReserveWays {
            level,
            mask,
            shared_with,
        } => ways(plan, held, *level, *mask, shared_with),
        Promise::ReserveColours {
            divides, colours, ..
        } => {
            let colouring = steps(plan, held).find_map(|step| match &step.set {
                Setting::Settle {
                    divides: of,
                    colouring,
                    ..
                } if of == divides => Some((colouring.clone(), false)),
                // Colours of whole nodes: the kernel moves pages that lie on others.
                Setting::Colour { choices, .. } => {
                    let mut of = choices.iter().filter(|choice| choice.divides == *divides);
                    let of = of.find(|choice| !choice.nodes.is_empty())?;
                    let functions = of.functions.iter().map(|function| function.0);
                    Some((Colouring::of_pages(functions, 0), true))
                }
                _ => None,
            });
            match colouring {
                Some((colouring, at_birth)) => What::Colours {
                    colouring,
                    colours: colours.clone(),
                    at_birth,
                },
                None => What::Invisible("where new pages lie is known to the kernel alone"),
            }
        }
        Promise::ReserveMemory { size: Some(size) } => What::Kept { size: *size },
        Promise::ReserveMemory { size: None } => {
            What::Invisible("what the group works on is measured by the same loop that keeps it")
        }
        Promise::ReserveFiles { files } => What::Cached {
            files: files.clone(),
        },
        Promise::LockedMemory { .. } => What::Locked,
        Promise::PageSize { pages } => What::Pages {
            large: *pages == PageSize::Huge,
        },
        Promise::MemoryStall { share } => What::Stall { most: *share },
        Promise::LimitDisk(rates) => What::Disks(Disks::Most(most(rates))),
        Promise::DiskLatency { target } => What::Disks(Disks::Latency(target.0 / 1_000)),
        Promise::DiskWeight { weight } => What::Disks(Disks::Weight(*weight)),
        Promise::WindowBandwidth { .. } => {
            What::Invisible("a look once a second does not tell one window from another")
        }
        Promise::ReserveBandwidth { .. } | Promise::ReserveDirection { .. } => {
            What::Invisible("what a group could move is seen only while it moves that much")
        }
        Promise::ReserveLocked { .. } => {
            What::Invisible("only the program that locked them can time the lines")
        }
        Promise::Deadline { .. } => What::Invisible("the application judges it"),
    }
}

/// The steps that hold a promise.
fn steps<'a>(plan: &'a Plan, held: &'a Held) -> impl Iterator<Item = &'a Step> {
    let by = |step: &&Step| held.held_by.contains(&step.id);
    plan.steps.iter().filter(by)
}

/// The CPUs that a promise's steps give its group alone.
fn own_cpus(plan: &Plan, held: &Held) -> Option<CpuSet> {
    steps(plan, held).find_map(|step| match &step.set {
        Setting::Confine {
            cpus,
            exclusive: true,
            ..
        } => Some(cpus.clone()),
        _ => None,
    })
}

/// The weight of a group. Beside brakes its tasks are in a cgroup below, and idle: the weight is of
/// both together.
fn weighed(groups: &Groups, name: &str, weight: CpuWeight) -> What {
    let Some(group) = groups.of.get(name) else {
        return What::Invisible("its cgroups are not known");
    };
    let braked = group.layout.braked;
    if braked && matches!(weight, CpuWeight::Of(100..)) {
        return What::Invisible("its tasks share their cgroup's weight with brakes");
    }
    let outermost = format!("/{}", outermost(name));
    let mut places = group.cgroups.places.iter();
    let against_all = places.all(|place| place.dir.ends_with(&outermost));
    What::Weight {
        weight,
        levels: (!against_all).then_some(1 + usize::from(braked)),
    }
}

/// The groups that take turns, and the time of each.
fn windows(plan: &Plan, cpus: &CpuSet, length: Nanos) -> What {
    let frame = plan.steps.iter().find_map(|step| match &step.set {
        Setting::Windows(frame) => Some(frame),
        _ => None,
    });
    let groups = frame.iter().flat_map(|frame| {
        let each = frame.groups().into_iter();
        each.map(|group| (group.clone(), frame.time_of(group)))
    });
    What::Windows {
        cpus: cpus.clone(),
        frame: length,
        groups: groups.collect(),
    }
}

/// A limit of CPU time, or of what is moved to and from memory.
fn limit(plan: &Plan, held: &Held, counting: &dyn Fn(CpuId) -> Option<Counting>) -> What {
    let found = steps(plan, held).find_map(|step| match (&step.set, &held.promise) {
        (Setting::CpuMax { share, period }, promise) => Some(What::CpuTime {
            // A quota holds the smallest of a group's limits.
            share: match promise {
                Promise::LimitCpuTime { share } => *share,
                _ => *share,
            },
            period: *period,
            tolerance: OF_A_QUOTA,
        }),
        (Setting::Regulate(of), Promise::LimitBandwidth { rate }) => {
            regulated(of, *rate, None, counting)
        }
        (Setting::Regulate(of), Promise::LimitDirection { direction, rate }) => {
            regulated(of, *rate, Some(*direction), counting)
        }
        _ => None,
    });
    found.unwrap_or(What::Invisible("no counter outside of Quell tells it"))
}

/// A limit that brakes hold. `None` where the budget moves with what others leave.
fn regulated(
    of: &Regulation,
    rate: Rate,
    direction: Option<Direction>,
    counting: &dyn Fn(CpuId) -> Option<Counting>,
) -> Option<What> {
    if of.pooling.is_some() {
        return None;
    }
    if of.meter == Meter::Time {
        return Some(What::CpuTime {
            share: Share::ratio(rate.0, of.peak.0),
            period: of.period,
            tolerance: OF_BRAKES,
        });
    }
    let counted = of.cpus.iter().map(|cpu| {
        let [reads, writes] = counting(cpu)?.codes_by_direction();
        let events = match (of.meter, direction) {
            (Meter::Reads, _) | (_, Some(Direction::Read)) => reads,
            (Meter::Writes, _) | (_, Some(Direction::Write)) => writes,
            _ => [reads, writes].concat(),
        };
        Some(Counted { cpu, events })
    });
    let counted = counted.collect::<Option<Vec<_>>>()?;
    Some(What::Traffic {
        most: rate,
        counted,
    })
}

fn ways(plan: &Plan, held: &Held, level: u32, mask: Mask, shared_with: &[GroupId]) -> What {
    let moves = !plan.loops.follows.is_empty()
        || (plan.steps.iter()).any(|step| matches!(step.set, Setting::Windows(_)));
    if moves {
        return What::Invisible("the ways move while the plan holds");
    }
    let given = steps(plan, held).any(|step| step.mechanism == Mechanism::Ways);
    if !given && let Some(cpus) = own_cpus(plan, held) {
        return What::Alone { cpus };
    }
    let by_registers =
        steps(plan, held).any(|step| matches!(step.set, Setting::WayRegisters { .. }));
    let shared_with = shared_with.to_vec();
    match by_registers {
        true => What::WayRegisters {
            level,
            mask,
            shared_with,
        },
        false => What::Ways {
            level,
            mask,
            shared_with,
        },
    }
}

/// The limits of disks by the kernel's keys.
fn most(rates: &DiskRates) -> Vec<(&'static str, u64)> {
    let all = [
        ("rbps", rates.read.map(|rate| rate.0)),
        ("wbps", rates.write.map(|rate| rate.0)),
        ("riops", rates.read_iops),
        ("wiops", rates.write_iops),
    ];
    let set = |(key, value): (&'static str, Option<u64>)| Some((key, value?));
    all.into_iter().filter_map(set).collect()
}

/// The groups of a plan, with the cgroups that they have now.
pub fn parties(plan: &Plan, groups: &Groups) -> Vec<Party> {
    let party = |group: &GroupPlan| {
        let gathered = groups.of.get(&group.name)?;
        let places = gathered.cgroups.places.iter();
        Some(Party {
            name: group.name.clone(),
            matching: gathered.matching.clone(),
            homes: places.map(CgroupDir::tasks_dir).collect(),
            cpus: group.cpus.clone(),
        })
    };
    plan.groups.iter().filter_map(party).collect()
}
