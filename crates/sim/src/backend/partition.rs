//! Steps that divide caches, banks, the controller and CPU time between groups. Most are set at
//! once. The colours of pages, and the lines to lock, wait until the group's programs start.

use quell_control::config::{Fill, Frame, Meter, Regulation};
use quell_plan::inventory::Availability;
use quell_plan::{Setting, Step};
use quell_record::backend::BackendError;
use quell_types::address::Colours;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::Mechanism;
use quell_types::partition::{ColourChoice, Mask};
use quell_types::units::{Bytes, Nanos, Share};

use super::Sim;
use crate::access::PAGE_SHIFT;
use crate::frames::{Choice, Placement};
use crate::os::{Granted, TaskId};

/// What a group's programs get when they start.
#[derive(Clone, Debug, Default)]
pub(super) struct Divided {
    choices: Vec<ColourChoice>,
    spill: bool,
    /// Whether ways were given to it.
    ways: bool,
    /// What is still to be locked: cache level, its ways, and bytes.
    lock: Option<(u32, Mask, Bytes)>,
}

fn wrong(what: impl std::fmt::Display) -> BackendError {
    BackendError(what.to_string())
}

impl Sim {
    /// Carries out a step of these mechanisms for a group or the rest.
    pub(super) fn divide(&mut self, name: &str, step: &Step) -> Result<(), BackendError> {
        self.group(name)?;
        let class = self.os.class(name).map_err(wrong)?;
        match &step.set {
            Setting::Ways {
                level,
                mask,
                caches_of,
            } => {
                if !caches_of.is_empty() {
                    self.exists(caches_of)?;
                }
                self.fill(name, *level, *mask, caches_of)?;
                self.group(name)?.share.ways = true;
            }
            Setting::Lock { level, mask, size } => {
                self.has(Mechanism::PseudoLock)?;
                let ways = Mask(self.ways(*level, *mask)?);
                self.group(name)?.share.lock = Some((*level, ways, *size));
            }
            Setting::Colour { choices, spill } => {
                let share = &mut self.group(name)?.share;
                share.choices.clone_from(choices);
                share.spill = *spill;
            }
            Setting::Mba { percent } => {
                self.has(Mechanism::Mba)?;
                let bounds = self.machine.partitions.mba.as_ref();
                if !(bounds.map_or(1, |mba| mba.least)..=100).contains(percent) {
                    return Err(wrong(format!(
                        "{percent} % of a core's requests: this machine throttles to {} to 100 %",
                        bounds.map_or(1, |mba| mba.least)
                    )));
                }
                self.os.set_mba(class, *percent);
            }
            Setting::MbaRate { mib_s } => {
                return Err(wrong(format!(
                    "{mib_s} MiB/s: this machine throttles to percentages of a core's requests, not to rates"
                )));
            }
            Setting::CpuMax { share, period } => {
                self.has(Mechanism::CpuMax)?;
                let time = u128::from(period.0) * u128::from(share.0) / u128::from(Share::WHOLE.0);
                let quota = Nanos(u64::try_from(time).unwrap_or(u64::MAX));
                self.os.set_quota(class, quota, *period);
            }
            _ => {}
        }
        Ok(())
    }

    /// # Errors
    /// Where its CPUs do not exist, or it counts what this machine does not.
    pub(super) fn countable(&self, regulation: &Regulation) -> Result<(), BackendError> {
        self.exists(&regulation.cpus)?;
        if regulation.meter == Meter::Time {
            return Err(BackendError(
                "the simulated machine counts lines, not CPU time; leave `regulator.meter` out"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Lets groups run in the windows of a frame only.
    pub(super) fn windows(&mut self, frame: &Frame) -> Result<(), BackendError> {
        self.has(Mechanism::Windows)?;
        let mut classes = Vec::new();
        for name in frame.groups() {
            self.group(name)?;
            classes.push(self.os.class(name).map_err(wrong)?);
        }
        let mut granted = Vec::new();
        for span in &frame.spans {
            let ways = span.ways.map(|Fill { level, mask }| {
                self.has(Mechanism::Ways)?;
                Ok((level, self.ways(level, mask)?))
            });
            granted.push(Granted {
                ways: ways.transpose()?,
                budget: span.budget.clone(),
            });
            let (Some(regulation), Some(group)) = (&span.budget, &span.group) else {
                continue;
            };
            self.countable(regulation)?;
            for cpu in regulation.cpus.iter() {
                let regulated = (cpu, group.clone());
                self.regulated.entry(regulated).or_default();
            }
        }
        self.os.set_windows(frame, classes, granted, self.booted);
        Ok(())
    }

    /// Restricts what a group fills from now on to these ways. Where `caches_of` is not empty, only
    /// in the caches of these CPUs.
    pub(super) fn fill(
        &mut self,
        name: &str,
        level: u32,
        mask: Mask,
        caches_of: &CpuSet,
    ) -> Result<(), BackendError> {
        self.has(Mechanism::Ways)?;
        let class = self.os.class(name).map_err(wrong)?;
        let ways = self.ways(level, mask)?;
        self.os
            .set_ways(class, level, ways, caches_of)
            .map_err(wrong)?;
        self.tell_ways(name, level, mask, caches_of);
        Ok(())
    }

    /// # Errors
    /// When the profile lacks the mechanism.
    fn has(&self, mechanism: Mechanism) -> Result<(), BackendError> {
        match self.machine.mechanisms.get(&mechanism) {
            Some(Availability::No { why, .. }) => Err(wrong(format!("{mechanism}: {why}"))),
            _ => Ok(()),
        }
    }

    /// The ways of the caches of `level` that the segments of a mask stand for.
    fn ways(&self, level: u32, mask: Mask) -> Result<u64, BackendError> {
        let profile = &self.board.profile;
        let shape = profile.mechanisms.ways.as_ref();
        let shape = shape.filter(|ways| profile.level_of(&ways.cache) == level);
        let cache = profile
            .cache
            .iter()
            .find(|c| profile.level_of(&c.name) == level);
        let (Some(shape), Some(cache)) = (shape, cache) else {
            return Err(wrong(format!(
                "the ways of L{level} cannot be divided here"
            )));
        };
        if mask.count() < shape.least || mask.0 & !Mask::run(0, shape.segments).0 != 0 {
            return Err(wrong(format!(
                "mask {mask}: at least {} of {} bits are to be set, and no others",
                shape.least, shape.segments
            )));
        }
        Ok(shape.fill_mask(mask.0, cache.ways))
    }

    /// How pages are chosen for a program of `group` that wants `wanted`.
    pub(super) fn placement(
        &mut self,
        group: &str,
        wanted: &Placement,
    ) -> Result<Placement, BackendError> {
        let profile = &self.board.profile;
        let large = profile.tlb.large_page;
        let ways = profile.mechanisms.ways.as_ref();
        let regions = ways.is_some_and(|ways| ways.regions);
        let share = &self.group(group)?.share;
        if share.choices.is_empty() {
            // Locked memory must be contiguous, as the kernel's pseudo-locking takes it. Else its
            // lines would crowd some sets and leave ways of other sets unused. Ways that are given
            // to regions need a region.
            let locks = share.lock.is_some_and(|(_, _, left)| left.0 > 0);
            let sequential = locks || regions && share.ways;
            return Ok(match wanted {
                Placement::Plain if sequential => Placement::Sequential,
                wanted => wanted.clone(),
            });
        }
        if matches!(wanted, Placement::Huge) {
            return Err(wrong(too_large(&share.choices, large)));
        }
        let choices = share.choices.iter().map(|choice| {
            let masks: Vec<u64> = choice.functions.iter().map(|mask| mask.0).collect();
            let colours = Colours::new(&masks, PAGE_SHIFT);
            if colours.functions() != masks {
                return Err(wrong(format!(
                    "colours of {} by functions that pages do not decide, or that are not in reduced form",
                    choice.divides.of()
                )));
            }
            let chosen = choice.colours.iter().map(u64::from).collect();
            Ok(Choice { colours, chosen })
        });
        Ok(Placement::Coloured {
            choices: choices.collect::<Result<_, _>>()?,
            spill: share.spill,
        })
    }

    /// Locks what is still to be locked of a group's memory, in a task that has just started with
    /// `bytes`.
    pub(super) fn lock(
        &mut self,
        group: &str,
        task: TaskId,
        bytes: u64,
    ) -> Result<(), BackendError> {
        let Some((level, ways, left)) = self.group(group)?.share.lock else {
            return Ok(());
        };
        let now = left.0.min(bytes);
        if now > 0 {
            self.os.lock(task, level, ways.0, now).map_err(wrong)?;
            self.group(group)?.share.lock = Some((level, ways, Bytes(left.0 - now)));
        }
        Ok(())
    }
}

/// Why large pages cannot be coloured, for the message.
fn too_large(choices: &[ColourChoice], large: Bytes) -> String {
    let costs = choices.iter().map(|choice| {
        let masks: Vec<u64> = choice.functions.iter().map(|mask| mask.0).collect();
        let count = |shift| Colours::new(&masks, shift).count();
        format!(
            "{} of the {} colours of {}",
            count(large.0.trailing_zeros()),
            count(PAGE_SHIFT),
            choice.divides.of()
        )
    });
    let costs: Vec<String> = costs.collect();
    format!(
        "its group has page colours, and it wants large pages: a page of {large} leaves {}; leave `pages` out, or the colours",
        costs.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use quell_types::ids::StepId;

    use super::super::Group;
    use super::*;
    use crate::board::Board;
    use crate::profile::Profile;

    /// The placement of small pages for a group, before and after it is given ways.
    fn placements(profile: &str, level: u32) -> [Placement; 2] {
        let board = Board::of(Profile::built_in(profile).unwrap()).unwrap();
        let mut sim = Sim::new(board, 1).unwrap();
        let group = Group::on(sim.machine.cpu_set());
        sim.groups.insert("a".to_owned(), group);
        let before = sim.placement("a", &Placement::Plain).unwrap();
        let mask = Mask(0b1111);
        let step = Step {
            id: StepId(1),
            group: Some("a".to_owned()),
            mechanism: Mechanism::Ways,
            set: Setting::Ways {
                level,
                mask,
                caches_of: CpuSet::new(),
            },
            because: "the test says so".to_owned(),
            assumed: false,
        };
        sim.divide("a", &step).unwrap();
        [before, sim.placement("a", &Placement::Plain).unwrap()]
    }

    #[test]
    fn ways_of_regions_make_memory_sequential() {
        let [before, after] = placements("p4080", 3);
        assert!(matches!(before, Placement::Plain), "{before:?}");
        assert!(matches!(after, Placement::Sequential), "{after:?}");
        // Ways of classes of service leave pages where they are.
        let [before, after] = placements("apollolake", 2);
        assert!(matches!(before, Placement::Plain), "{before:?}");
        assert!(matches!(after, Placement::Plain), "{after:?}");
    }
}
