//! The smallest part of a cache, or the smallest budget, with which a program keeps a goal: the
//! curve of `quell profile --sweep`, and what follows from it.
//!
//! The rule is "this size and all larger ones". A size holds where the whole interval over rounds
//! keeps the goal, and misses where none of the interval does. Else it is unclear, and so is a size
//! that was not measured. The smallest size is exact only where the next smaller one misses.
//! Otherwise the answer is two sizes that it lies between.

use std::fmt;
use std::str::FromStr;

use quell_types::stats::Interval;
use quell_types::units::{Bytes, Nanos, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is given to the program in growing sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Swept {
    /// Ways of a cache.
    Ways,
    /// Page colours of the last-level cache's sets.
    Colours,
    /// Limits of memory bandwidth.
    Budgets,
}

impl Swept {
    /// The name in options and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ways => "ways",
            Self::Colours => "colours",
            Self::Budgets => "budgets",
        }
    }

    /// The line for a policy's group that reserves this size. `label`: as [`Point::label`].
    #[must_use]
    pub fn reserve(self, label: &str) -> String {
        match self {
            Self::Ways => format!("reserve.cache = {{ ways = {label} }}"),
            Self::Colours => format!("reserve.cache = {{ colours = \"{label}\" }}"),
            Self::Budgets => format!("reserve.bandwidth = \"{label}\""),
        }
    }
}

impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Swept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = [Self::Ways, Self::Colours, Self::Budgets].into_iter();
        all.find(|swept| swept.name() == text)
            .ok_or_else(|| "write ways, colours or budgets".to_owned())
    }
}

/// What the program has to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Goal {
    /// This share of its speed alone, with everything that the machine has.
    Keep {
        /// The share; 100 % is its speed alone.
        share: Share,
    },
    /// Times of at most this long.
    Within {
        /// The longest time.
        limit: Nanos,
        /// The 99th percentile of a round's windows is judged. Otherwise it is their mean, since a
        /// round has too few of them.
        p99: bool,
    },
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep { share } => write!(f, "keep {share} of its speed alone"),
            Self::Within { limit, p99: true } => write!(f, "the 99th percentile within {limit}"),
            Self::Within { limit, p99: false } => write!(f, "the mean within {limit}"),
        }
    }
}

/// What the interval of a size says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Judged {
    /// All of the interval keeps the goal.
    Holds,
    /// None of it does.
    Misses,
    /// A part of it does, or there is none.
    Unclear,
}

impl Judged {
    /// Judges a figure of which more is better.
    #[must_use]
    pub fn at_least(found: Option<Interval>, least: f64) -> Self {
        match found {
            Some(found) if found.low >= least => Self::Holds,
            Some(found) if found.high < least => Self::Misses,
            _ => Self::Unclear,
        }
    }

    /// Judges a figure of which less is better.
    #[must_use]
    pub fn at_most(found: Option<Interval>, most: f64) -> Self {
        match found {
            Some(found) if found.high <= most => Self::Holds,
            Some(found) if found.low > most => Self::Misses,
            _ => Self::Unclear,
        }
    }
}

/// The program with one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// As a policy writes the size: `3`, `0-3`, `415MB/s`. `all`: everything, without a limit.
    pub label: String,
    /// Number of ways or colours, or bytes per second.
    pub size: u64,
    /// Bytes of cache in it. Absent for budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Bytes>,
    /// The metric: the median over rounds of their means, or of their 99th percentiles where the
    /// goal is about those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The interval of `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// Its speed ÷ its speed alone: the median of the ratios within rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<f64>,
    /// The interval of `kept`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_ci95: Option<Interval>,
    /// Whether the goal is kept with this size.
    pub judged: Judged,
    /// Why this size could not be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// How much the program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Needed {
    /// The largest size that misses the goal. Absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub too_small: Option<u64>,
    /// The smallest size with which, and with every larger one, the goal is kept. Absent where
    /// there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enough: Option<u64>,
    /// Whether no smaller one of the measured sizes may be enough, too.
    pub exact: bool,
}

impl Needed {
    /// From the points, the smallest size first.
    #[must_use]
    pub fn of(points: &[Point]) -> Self {
        let last = |fits: fn(Judged) -> bool| points.iter().rposition(|p| fits(p.judged));
        let missed = last(|judged| judged == Judged::Misses);
        let first = last(|judged| judged != Judged::Holds).map_or(0, |n| n + 1);
        let size = |n: usize| points.get(n).map(|p| p.size);
        Self {
            too_small: missed.and_then(size),
            enough: size(first),
            exact: first < points.len() && first == missed.map_or(0, |n| n + 1),
        }
    }
}

/// A program's speed over the size of one thing that it is given, and how much of it is enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// What grows.
    pub swept: Swept,
    /// The cache level that is divided. Absent for budgets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<u32>,
    /// What has to be kept.
    pub goal: Goal,
    /// What the program is judged by, with the unit in the name.
    pub metric: String,
    /// Number of rounds. In each, every size was measured once.
    pub rounds: u32,
    /// The confidence of the intervals.
    pub confidence: f64,
    /// The sizes, the smallest first. The last one is `all`.
    pub points: Vec<Point>,
    /// How much is enough.
    pub needed: Needed,
    /// The line for the program's group in a policy. Absent where no size short of everything is
    /// enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// What to know before relying on it, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cautions: Vec<String>,
}

impl Sweep {
    /// The point of a size.
    #[must_use]
    pub fn point(&self, size: u64) -> Option<&Point> {
        self.points.iter().find(|p| p.size == size)
    }

    /// The smallest size that may be enough: the one after the largest that misses.
    #[must_use]
    pub fn least(&self) -> Option<&Point> {
        let after = |small: u64| self.points.iter().find(|p| p.size > small);
        self.needed
            .too_small
            .map_or_else(|| self.points.first(), after)
    }

    /// Whether a size held although a larger one missed.
    #[must_use]
    pub fn held_below_a_miss(&self) -> bool {
        let missed = |p: &&Point| Some(p.size) < self.needed.too_small;
        let mut below = self.points.iter().filter(missed);
        below.any(|p| p.judged == Judged::Holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(n: usize, judged: Judged) -> Point {
        Point {
            label: n.to_string(),
            size: n as u64,
            cache: None,
            value: None,
            ci95: None,
            kept: None,
            kept_ci95: None,
            judged,
            refused: None,
        }
    }

    /// Points of sizes 1, 2, 3, … from letters: holds, misses, unclear.
    fn points(letters: &str) -> Vec<Point> {
        let judged = letters.chars().map(|letter| match letter {
            'h' => Judged::Holds,
            'm' => Judged::Misses,
            _ => Judged::Unclear,
        });
        (1..).zip(judged).map(|(n, j)| point(n, j)).collect()
    }

    fn found(letters: &str) -> (Option<u64>, Option<u64>, bool) {
        let needed = Needed::of(&points(letters));
        (needed.too_small, needed.enough, needed.exact)
    }

    #[test]
    fn an_interval_holds_misses_or_does_not_decide() {
        let at_least = |low, high| Judged::at_least(Some([low, high].into()), 0.95);
        assert_eq!(at_least(0.95, 1.0), Judged::Holds);
        assert_eq!(at_least(0.90, 0.949), Judged::Misses);
        assert_eq!(at_least(0.90, 0.95), Judged::Unclear);
        let at_most = |low, high| Judged::at_most(Some([low, high].into()), 10.0);
        assert_eq!(at_most(9.0, 10.0), Judged::Holds);
        assert_eq!(at_most(10.1, 11.0), Judged::Misses);
        assert_eq!(at_most(10.0, 11.0), Judged::Unclear);
        assert_eq!(Judged::at_least(None, 0.0), Judged::Unclear);
        assert_eq!(Judged::at_least(Some([f64::NAN; 2].into()), 0.0), {
            Judged::Unclear
        });
    }

    #[test]
    fn the_answer_is_exact_only_between_a_miss_and_what_holds() {
        assert_eq!(found("mmhhh"), (Some(2), Some(3), true));
        assert_eq!(found("hhh"), (None, Some(1), true));
        assert_eq!(found("m?hh"), (Some(1), Some(3), false), "2 or 3");
        assert_eq!(found("?hh"), (None, Some(2), false), "1 or 2");
        assert_eq!(found("mmm?"), (Some(3), None, false), "not even all");
        assert_eq!(found("mhmhh"), (Some(3), Some(4), true), "a bump");
        assert_eq!(found(""), (None, None, false));
    }

    #[test]
    fn what_held_below_a_miss_is_seen() {
        let sweep = |letters: &str| {
            let points = points(letters);
            Sweep {
                swept: Swept::Ways,
                level: Some(3),
                goal: Goal::Keep {
                    share: Share::percent(95),
                },
                metric: "latency_ns".to_owned(),
                rounds: 5,
                confidence: 0.95,
                needed: Needed::of(&points),
                points,
                policy: None,
                cautions: Vec::new(),
            }
        };
        assert!(sweep("hmh").held_below_a_miss());
        assert!(!sweep("mmh").held_below_a_miss());
        assert!(!sweep("?hh").held_below_a_miss());
        assert_eq!(sweep("m?h").least().map(|p| p.size), Some(2));
        assert_eq!(sweep("?hh").least().map(|p| p.size), Some(1));
        assert_eq!(sweep("mm").least(), None);
    }

    #[test]
    fn what_is_swept_is_read_as_written() {
        for swept in [Swept::Ways, Swept::Colours, Swept::Budgets] {
            assert_eq!(swept.to_string().parse(), Ok(swept));
        }
        assert!("sets".parse::<Swept>().unwrap_err().contains("colours"));
        assert_eq!(Swept::Ways.reserve("3"), "reserve.cache = { ways = 3 }");
    }

    proptest! {
        #[test]
        fn no_size_is_named_that_missed_or_lies_below_a_miss(letters in "[hm?]{0,24}") {
            let all = points(&letters);
            let needed = Needed::of(&all);
            if let Some(enough) = needed.enough {
                let from = all.iter().filter(|p| p.size >= enough);
                prop_assert!(from.clone().count() > 0);
                for p in from {
                    prop_assert_eq!(p.judged, Judged::Holds);
                }
            }
            prop_assert!(needed.enough.is_some() || !needed.exact);
            if let (true, Some(enough)) = (needed.exact, needed.enough) {
                // The next smaller size misses, unless there is none.
                let below = all.iter().rfind(|p| p.size < enough);
                prop_assert!(below.is_none_or(|p| p.judged == Judged::Misses));
            }
        }

        #[test]
        fn a_curve_that_rises_gives_the_first_size_that_holds(
            mut kept in proptest::collection::vec(0.0..1.2f64, 1..24),
            least in 0.1..1.0f64,
        ) {
            kept.sort_by(f64::total_cmp);
            let judged = |k: &f64| Judged::at_least(Some([*k, *k].into()), least);
            let all: Vec<Point> = (1..).zip(&kept).map(|(n, k)| point(n, judged(k))).collect();
            let needed = Needed::of(&all);
            let first = kept.iter().position(|k| *k >= least);
            prop_assert_eq!(needed.enough, first.map(|n| n as u64 + 1));
            prop_assert_eq!(needed.exact, first.is_some());
        }

        #[test]
        fn a_wider_spread_never_names_a_smaller_size(
            mut kept in proptest::collection::vec(0.0..1.2f64, 1..24),
            half in 0.0..0.2f64,
        ) {
            kept.sort_by(f64::total_cmp);
            let at = |half: f64| {
                let judged = |k: &f64| Judged::at_least(Some([k - half, k + half].into()), 0.9);
                let all: Vec<Point> = (1..).zip(&kept).map(|(n, k)| point(n, judged(k))).collect();
                Needed::of(&all)
            };
            let (sharp, wide) = (at(0.0), at(half));
            prop_assert!(wide.enough.is_none() || wide.enough >= sharp.enough);
            prop_assert!(wide.too_small.is_none() || wide.too_small <= sharp.too_small);
        }
    }
}
