//! The verdict on a group's target.

use quell_types::units::Share;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the units of a group did against their target, from two seconds after the first on. Of
/// several programs those of the worst count.
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
    /// Number of programs that told of units. Absent for one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub programs: Option<u64>,
}

impl TargetVerdict {
    /// Whether no more units were late than may be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        Share::ratio(self.late, self.units) <= self.allowed
    }

    /// The verdict of several programs: that with the most late units of those that told of enough
    /// for one to be late, and of all together. So nobody who is in time hides another.
    #[must_use]
    pub fn worst(each: &[Self]) -> Self {
        let mut all = Self::default();
        for one in each {
            all.units += one.units;
            all.late += one.late;
            all.allowed = one.allowed;
            all.longest_ns = all.longest_ns.max(one.longest_ns);
        }
        let enough = |one: &&Self| {
            one.allowed == Share(0) || one.units > 0 && Share::ratio(1, one.units) <= one.allowed
        };
        let judged = each.iter().filter(enough).chain([&all]);
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
    fn the_worst_program_counts_if_it_told_of_enough() {
        let judged = |each: &[TargetVerdict]| {
            let worst = TargetVerdict::worst(each);
            (worst.units, worst.late, worst.programs, worst.is_met())
        };
        assert_eq!(judged(&[of(1000, 3)]), (1000, 3, None, true));
        let hidden = [of(100_000, 0), of(200, 20)];
        assert_eq!(judged(&hidden), (200, 20, Some(2), false));
        // One unit says nothing about a hundredth.
        let short = [of(1000, 3), of(1, 1)];
        assert_eq!(judged(&short), (1001, 4, Some(2), true));
        let many: Vec<TargetVerdict> = (0..50).map(|_| of(10, 1)).collect();
        assert_eq!(judged(&many), (500, 50, Some(50), false));
        assert_eq!(TargetVerdict::worst(&[]).units, 0);
    }
}
