//! The verdict on a group's target.

use quell_types::units::Share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the units of a group did against their target, from two seconds after the first on. Of
/// several programs each is judged by itself, from two seconds after its own first unit on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetVerdict {
    /// Number of units.
    pub units: u64,
    /// How many of them were late.
    pub late: u64,
    /// The share of units that may be late.
    pub allowed: Share,
    /// The longest time that a unit took, in nanoseconds.
    pub longest_ns: u64,
    /// Number of sessions that were judged by themselves. Absent for one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub programs: Option<u64>,
}

impl TargetVerdict {
    /// Whether no more units were late than may be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        Share::ratio(self.late, self.units) <= self.allowed
    }

    /// Adds the units of another program.
    pub fn add(&mut self, other: &Self) {
        self.units += other.units;
        self.late += other.late;
        self.allowed = other.allowed;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Whether so many units were late that a program of which no more are than may be is hardly
    /// ever so unlucky: of many programs one always has the most. Three times the spread of as many
    /// draws, and two, since few draws are spread further.
    fn is_worse_than_chance(&self) -> bool {
        let may = self.units as f64 * self.allowed.0 as f64 / Share::WHOLE.0 as f64;
        self.late as f64 > may + 3.0 * may.sqrt() + 2.0
    }

    /// The verdict of several programs: that of all together, unless one of them was late more
    /// often than chance explains. So nobody who is in time hides another. `others` are not judged
    /// by themselves.
    #[must_use]
    pub fn worst(each: &[Self], others: Self) -> Self {
        let mut all = others;
        each.iter().for_each(|one| all.add(one));
        let judged = each.iter().filter(|one| one.is_worse_than_chance());
        let worst = judged.max_by_key(|one| Share::ratio(one.late, one.units));
        Self {
            longest_ns: all.longest_ns,
            programs: Some(each.len() as u64).filter(|programs| *programs > 1),
            ..*worst.unwrap_or(&all)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(units: u64, late: u64) -> TargetVerdict {
        TargetVerdict {
            units,
            late,
            allowed: Share::percent(1),
            longest_ns: late,
            programs: None,
        }
    }

    #[test]
    fn a_program_that_is_late_beyond_chance_counts() {
        let judged = |each: &[TargetVerdict]| {
            let worst = TargetVerdict::worst(each, TargetVerdict::default());
            (worst.units, worst.late, worst.programs, worst.is_met())
        };
        assert_eq!(judged(&[of(1000, 3)]), (1000, 3, None, true));
        let hidden = [of(100_000, 0), of(200, 20)];
        assert_eq!(judged(&hidden), (200, 20, Some(2), false));
        // One unit says nothing about a hundredth, and two of a hundred may be late by chance.
        assert_eq!(judged(&[of(1000, 3), of(1, 1)]), (1001, 4, Some(2), true));
        assert_eq!(judged(&[of(1000, 3), of(8, 2)]), (1008, 5, Some(2), true));
        assert_eq!(judged(&[of(1000, 3), of(100, 2)]), (1100, 5, Some(2), true));
        let many: Vec<TargetVerdict> = (0..50).map(|_| of(100, 2)).collect();
        assert_eq!(judged(&many), (5000, 100, Some(50), false));
        assert_eq!(TargetVerdict::worst(&[], TargetVerdict::default()).units, 0);
    }
}
