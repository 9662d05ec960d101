//! A published figure next to the one that was measured: how far they are apart, and whether the
//! change from one configuration to another goes the same way.

use quell_policy::experiment::PublishedFigure;
use quell_types::stats::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a measured change goes the way of the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// It does.
    Right,
    /// It goes the other way, or there is none.
    Wrong,
    /// No change was published, so that there is no direction.
    Flat,
    /// The interval of the measured change contains no change, and more than that.
    Unclear,
}

impl Direction {
    /// The name used in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
            Self::Flat => "flat",
            Self::Unclear => "unclear",
        }
    }

    /// From a published and a measured ratio of two configurations. A ratio within a factor of
    /// `1 + flat` of 1 is no change, upwards or downwards: swapped configurations judge alike.
    /// Without an interval (one round) the ratio stands for it.
    #[must_use]
    pub fn judge(published: f64, measured: f64, interval: Option<Interval>, flat: f64) -> Self {
        let small = |ratio: f64| ratio.max(1.0 / ratio) < 1.0 + flat;
        if small(published) {
            return Self::Flat;
        }
        let Interval { low, high } = interval.unwrap_or([measured, measured].into());
        if small(low) && small(high) {
            // No change is another finding than the published one, not a doubtful one.
            return Self::Wrong;
        }
        if low <= 1.0 && high >= 1.0 {
            return Self::Unclear;
        }
        if (measured > 1.0) == (published > 1.0) {
            Self::Right
        } else {
            Self::Wrong
        }
    }
}

/// The change from one configuration to another, published and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedChange {
    /// The configuration that the change is from.
    pub against: String,
    /// Published figure ÷ the one published for `against`.
    pub published: f64,
    /// The same of the measured figures: the median of the ratios within rounds, or the ratio of
    /// the medians where no round has both. Absent where one was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The interval of `measured` over rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_ci95: Option<Interval>,
    /// Whether the two go the same way; absent where one was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Why the direction is known to be wrong on this backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
}

/// A published figure and the measured one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedResult {
    /// The configuration.
    pub configuration: String,
    /// The subject.
    pub subject: String,
    /// The metric.
    pub metric: String,
    /// Which figure of it.
    pub figure: PublishedFigure,
    /// What was published.
    pub published: f64,
    /// Where.
    pub source: String,
    /// What was measured; absent where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The interval of `measured` over rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_ci95: Option<Interval>,
    /// Measured ÷ published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// How far `ratio` may be from 1; absent where it is not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<f64>,
    /// The change from another configuration; absent where none was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<PublishedChange>,
}

/// What `compare --check` fails for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The direction is wrong, and no note says so.
    Direction,
    /// The direction is right, and a note says that it is wrong.
    Known,
    /// The figure is farther from the published one than its row accepts.
    Size,
}

impl PublishedResult {
    /// Whether the figure is as near to the published one as its row asks; absent where nothing
    /// is asked or measured.
    #[must_use]
    pub fn near(&self) -> Option<bool> {
        Some((self.ratio? - 1.0).abs() <= self.size?)
    }

    /// The direction, where one is judged.
    #[must_use]
    pub fn direction(&self) -> Option<Direction> {
        self.change.as_ref()?.direction
    }

    /// What is wrong with it, the direction first.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let known = self.change.as_ref().is_some_and(|c| c.known.is_some());
        let direction = match (self.direction(), known) {
            (Some(Direction::Wrong), false) => Some(Fault::Direction),
            (Some(Direction::Right), true) => Some(Fault::Known),
            _ => None,
        };
        let size = (self.near() == Some(false)).then_some(Fault::Size);
        direction.into_iter().chain(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn judged(published: f64, low: f64, high: f64) -> Direction {
        let middle = (low * high).sqrt();
        Direction::judge(published, middle, Some([low, high].into()), 0.03)
    }

    #[test]
    fn a_change_is_judged_by_its_interval() {
        use Direction::{Flat, Right, Unclear, Wrong};
        for (published, low, high, is) in [
            (1.34, 1.1, 1.2, Right),
            (0.7, 0.8, 0.9, Right),
            (1.34, 0.8, 0.9, Wrong),
            (1.34, 0.9, 1.2, Unclear),
            (1.34, 1.0, 1.2, Unclear),
            // Little, but certainly upwards.
            (1.34, 1.01, 1.05, Right),
            // Certainly next to nothing.
            (1.34, 0.99, 1.01, Wrong),
            (1.34, 1.0, 1.0, Wrong),
            (1.02, 0.5, 0.6, Flat),
            (0.98, 1.5, 1.6, Flat),
        ] {
            assert_eq!(judged(published, low, high), is, "{published} {low} {high}");
        }
        assert_eq!(Direction::judge(2.0, 1.5, None, 0.03), Right);
        assert_eq!(Direction::judge(2.0, 0.5, None, 0.03), Wrong);
    }

    fn row(direction: Direction, known: bool, size: Option<f64>) -> PublishedResult {
        PublishedResult {
            configuration: "bank".into(),
            subject: "core1".into(),
            metric: "latency_ns".into(),
            figure: PublishedFigure::Normalized,
            published: 0.5,
            source: "a table".into(),
            measured: Some(0.6),
            measured_ci95: None,
            ratio: Some(1.2),
            size,
            change: Some(PublishedChange {
                against: "none".into(),
                published: 1.3,
                measured: Some(1.2),
                measured_ci95: None,
                direction: Some(direction),
                known: known.then(|| "why".into()),
            }),
        }
    }

    #[test]
    fn a_note_excuses_a_wrong_direction_and_no_right_one() {
        use Direction::{Flat, Right, Unclear, Wrong};
        let faults = |direction, known| row(direction, known, None).faults();
        assert_eq!(faults(Right, false), []);
        assert_eq!(faults(Wrong, false), [Fault::Direction]);
        assert_eq!(faults(Wrong, true), []);
        assert_eq!(faults(Right, true), [Fault::Known]);
        for direction in [Flat, Unclear] {
            assert_eq!(faults(direction, false), []);
            assert_eq!(faults(direction, true), []);
        }
    }

    #[test]
    fn a_size_is_judged_where_the_row_gives_one() {
        assert_eq!(row(Direction::Right, false, None).near(), None);
        assert_eq!(row(Direction::Right, false, Some(0.25)).near(), Some(true));
        let far = row(Direction::Wrong, false, Some(0.1));
        assert_eq!(far.near(), Some(false));
        assert_eq!(far.faults(), [Fault::Direction, Fault::Size]);
    }

    proptest! {
        #[test]
        fn swapped_configurations_are_judged_alike(
            published in 0.1f64..10.0, a in 0.1f64..10.0, b in 0.1f64..10.0, flat in 0.0f64..0.5,
        ) {
            let (low, high) = (a.min(b), a.max(b));
            let judge = |published: f64, low: f64, high: f64| {
                Direction::judge(published, (low * high).sqrt(), Some([low, high].into()), flat)
            };
            let swapped = judge(1.0 / published, 1.0 / high, 1.0 / low);
            prop_assert_eq!(judge(published, low, high), swapped);
        }

        #[test]
        fn a_published_change_that_is_turned_turns_the_judgement(
            published in 1.1f64..10.0, measured in 0.1f64..10.0,
        ) {
            let judge = |published| Direction::judge(published, measured, None, 0.03);
            let both = (judge(published), judge(1.0 / published));
            let turned = [
                (Direction::Right, Direction::Wrong),
                (Direction::Wrong, Direction::Right),
            ];
            let small = measured.max(1.0 / measured) < 1.03;
            let neither = small && both == (Direction::Wrong, Direction::Wrong);
            prop_assert!(turned.contains(&both) || neither, "{:?}", both);
        }
    }
}
