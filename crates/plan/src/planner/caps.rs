//! What a limit amounts to on each CPU: one budget for all traffic, or one per direction.

use std::fmt;

use quell_control::config::Meter;
use quell_types::cpuset::CpuSet;
use quell_types::ids::StepId;
use quell_types::units::{Lines, Nanos, Rate, Share};

use crate::inventory::Measured;
use crate::plan::{Direction, Promise};

use super::wanted::{Wanted, Worth};

/// A budget that each CPU of a group has.
pub(super) struct Cap {
    /// `None`: all traffic together.
    pub(super) direction: Option<Direction>,
    /// The rate of the whole group.
    pub(super) rate: Rate,
    pub(super) each: Rate,
    /// The most that one CPU was measured to move, in this direction or in all.
    pub(super) peak: Rate,
    /// Whether a CPU can move more than that, or a loop is to move the budget.
    pub(super) binds: bool,
}

impl Cap {
    /// The promise that the budget stands for.
    pub(super) const fn promise(&self) -> Promise {
        let rate = self.rate;
        match self.direction {
            None => Promise::LimitBandwidth { rate },
            Some(direction) => Promise::LimitDirection { direction, rate },
        }
    }

    /// The budget's share of what one CPU can move.
    pub(super) fn share(&self) -> Share {
        Share::ratio(self.each.0, self.peak.0)
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.direction {
            None => self.rate.fmt(f),
            Some(direction) => write!(f, "{} {direction}", self.rate),
        }
    }
}

/// A limit together with the CPUs of its group.
pub(super) struct Limit {
    pub(super) wanted: Wanted,
    pub(super) cpus: CpuSet,
    /// The most that one CPU draws, in all directions.
    pub(super) peak: Rate,
    /// One budget for all traffic, or one or two for a direction each.
    pub(super) caps: Vec<Cap>,
}

impl Limit {
    /// `moves`: a loop moves the budget, so that it is needed whatever the CPUs can draw.
    pub(super) fn on(wanted: Wanted, cpus: CpuSet, measured: &Measured, moves: bool) -> Self {
        let cap = |direction, rate: Rate, peak| {
            let each = Rate(rate.0 / cpus.len().max(1) as u64);
            Cap {
                direction,
                rate,
                each,
                peak,
                binds: moves || Share::ratio(each.0, measured.peak_cpu.0) < Share::WHOLE,
            }
        };
        let caps = match wanted.apart {
            None => vec![cap(None, wanted.rate, measured.peak_cpu)],
            Some(directions) => directions
                .given()
                .map(|(direction, rate)| cap(Some(direction), rate, peak(measured, direction)))
                .collect(),
        };
        Self {
            wanted,
            cpus,
            peak: measured.peak_cpu,
            caps,
        }
    }

    /// The share of each CPU's time that the limit is.
    pub(super) fn share(&self) -> Share {
        Share::ratio(
            self.wanted.rate.0 / self.cpus.len().max(1) as u64,
            self.peak.0,
        )
    }

    /// The budgets that something has to hold.
    pub(super) fn binding(&self) -> impl Iterator<Item = &Cap> {
        self.caps.iter().filter(|cap| cap.binds)
    }

    /// The direction that it leaves open; `None` where both are limited, or it is for all traffic.
    pub(super) fn open(&self) -> Option<Direction> {
        let directions = self.wanted.apart?;
        let both = [Direction::Read, Direction::Write];
        both.into_iter()
            .find(|open| directions.given().all(|(given, _)| given != *open))
    }

    /// The meter and the lines of a period. `meter` is used for all traffic. `None`: no budget is
    /// held.
    pub(super) fn counted(&self, meter: Meter, period: Nanos) -> Option<(Meter, Lines)> {
        let mut held = self
            .binding()
            .map(|cap| (cap.direction, Lines::at(cap.each, period)));
        Some(match (held.next()?, held.next()) {
            ((None, lines), _) => (meter, lines),
            ((Some(Direction::Read), reads), Some((_, writes))) => {
                (Meter::Directions { writes }, reads)
            }
            ((Some(Direction::Read), reads), None) => (Meter::Reads, reads),
            ((Some(Direction::Write), writes), _) => (Meter::Writes, writes),
        })
    }
}

/// How a group's rate was limited, and what that is worth.
pub(super) struct Limited {
    pub(super) wanted: Wanted,
    pub(super) cpus: CpuSet,
    pub(super) by: Option<StepId>,
    pub(super) worth: Worth,
}

impl Limited {
    pub(super) fn of(limit: Limit, by: Option<StepId>, worth: Worth) -> Self {
        Self {
            wanted: limit.wanted,
            cpus: limit.cpus,
            by,
            worth,
        }
    }
}

/// The most that one CPU was measured to move in a direction. A plain store brings each line in and
/// writes it back; a copy does half of its bytes each way. Where no operation was measured, it is
/// the peak in all directions.
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
