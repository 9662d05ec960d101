//! Does an event count right? It is opened around traffic that is known by construction: a stream
//! far larger than the caches, of which each line crosses once. The error factor is counted ÷
//! known.
//!
//! The complaint that this answers: one library's counts were two to three times off, another's
//! were zero (likwid issues 527 and 531, intel-cmt-cat issue 283).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Spread;

/// Below this share of the known traffic an event is rejected: a cap does not hold what is not
/// counted.
const LEAST: f64 = 0.9;
/// Above this share it is rejected, too: budgets would end at four fifths of what was promised.
const MOST: f64 = 1.25;

/// How an event counts traffic whose amount is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct CounterCheck {
    /// What was counted: `read stream`, `write stream` or `number of pages touched`.
    pub traffic: String,
    /// Counted ÷ known, over the rounds. 1 is right.
    pub factor: Spread,
}

impl CounterCheck {
    /// The check over `rounds`, each a pair of what was counted and what was known. `None` without
    /// a round in which something was known.
    #[must_use]
    pub fn of(traffic: &str, rounds: &[(u64, u64)]) -> Option<Self> {
        let factors: Vec<f64> = rounds
            .iter()
            .filter(|(_, known)| *known > 0)
            .map(|(counted, known)| *counted as f64 / *known as f64)
            .collect();
        Some(Self {
            traffic: traffic.to_owned(),
            factor: Spread::of(&factors)?,
        })
    }

    /// Why the event is rejected as a meter; `None` if it is not.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let factor = self.factor.p50;
        (!(LEAST..=MOST).contains(&factor)).then(|| {
            format!(
                "counts {factor:.2} of a known {} ({LEAST} to {MOST} is accepted)",
                self.traffic
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(rounds: &[(u64, u64)]) -> CounterCheck {
        CounterCheck::of("read stream", rounds).unwrap()
    }

    #[test]
    fn an_event_that_is_off_is_refused_with_its_factor() {
        assert_eq!(check(&[(1000, 1000), (1010, 1000)]).refusal(), None);
        let text = check(&[(340, 1000), (338, 1000), (900, 1000)])
            .refusal()
            .unwrap();
        assert!(text.contains("0.34 of a known read stream"), "{text}");
        assert!(check(&[(2000, 1000)]).refusal().is_some());
        assert!(check(&[(0, 1000)]).refusal().is_some());
        assert_eq!(CounterCheck::of("none", &[(5, 0)]), None);
    }

    proptest! {
        #[test]
        fn only_the_ratio_matters(known in 1_000u64..1 << 40, percent in 1u64..300) {
            let verdict = check(&[(known * percent / 100, known)]).refusal().is_none();
            // At the limits themselves, rounding may decide either way.
            prop_assert!(verdict == (90..=125).contains(&percent) || percent == 90 || percent == 125);
        }

        #[test]
        fn one_wild_round_of_three_changes_nothing(wild in 0u64..1 << 40) {
            prop_assert_eq!(check(&[(1000, 1000), (wild, 1000), (1000, 1000)]).refusal(), None);
        }
    }
}
