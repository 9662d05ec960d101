//! What a finding is about, as data. Its sentence is for people, and nothing is decided by it.

use std::mem::discriminant;

use quell_types::mechanism::Mechanism;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::standing::Cause;

/// What a finding is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum About {
    /// Nothing that has a kind: the sentence says what. Records before 0.1 have no other kind.
    #[default]
    Other,
    /// A mechanism, when its step was applied or later.
    Mechanism {
        /// The mechanism that the step belongs to.
        mechanism: Mechanism,
    },
    /// A value that another program has changed.
    Drift {
        /// The file that holds it.
        path: String,
    },
    /// Something is gone that holds promises, where no promise of this plan rests on it.
    Lost {
        /// The cause, as for a promise.
        because: Cause,
    },
    /// The tasks that a group gathers.
    Gather,
    /// Cgroups of a group that appeared while the plan was held.
    Late,
    /// The resctrl class of a group.
    Classes,
    /// Units of work of a group.
    Units,
    /// A program that asks to report its units of work.
    Client,
    /// What Quell keeps of the run itself: its journal, its lease, its watchdog.
    Session,
    /// Something that is missing in the record.
    Record,
    /// Something that the undoing has left as it was.
    NotReverted,
    /// The end of the run: why it failed, or was revoked.
    Failed,
}

impl About {
    pub(crate) const fn is_other(&self) -> bool {
        matches!(self, Self::Other)
    }

    /// Whether both are about the same thing, whatever the numbers. `false` for [`Self::Other`], of
    /// which nothing is known.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Other, _) => false,
            (Self::Lost { because: a }, Self::Lost { because: b }) => {
                discriminant(a) == discriminant(b)
            }
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Event, Stamped};

    #[test]
    fn a_finding_of_an_older_record_is_about_its_words() {
        let line = r#"{"at_ns":3,"event":"finding","what":"a note","group":"db"}"#;
        let stamped: Stamped = serde_json::from_str(line).unwrap();
        let event = Event::finding(About::Other, "a note", Some("db"));
        assert_eq!(stamped, Stamped { at_ns: 3, event });
        assert_eq!(serde_json::to_string(&stamped).unwrap(), line);
    }

    #[test]
    fn what_a_finding_is_about_is_read_as_it_was_written() {
        let path = "/sys/fs/cgroup/a/cpu.max".to_owned();
        let lost = About::Lost {
            because: Cause::Evicted,
        };
        for about in [About::Drift { path }, lost, About::Units] {
            let event = Event::finding(about, "words", None);
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        }
        let event = Event::finding(About::Units, "words", None);
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains(r#""about":{"kind":"units"}"#), "{text}");
    }

    #[test]
    fn the_same_is_told_by_data_and_not_by_numbers() {
        let spilled = |pages| About::Lost {
            because: Cause::Spilled {
                pages,
                program: "db".to_owned(),
            },
        };
        let drift = |path: &str| About::Drift {
            path: path.to_owned(),
        };
        assert!(spilled(3).same(&spilled(40)));
        assert!(!spilled(3).same(&About::Lost {
            because: Cause::Evicted
        }));
        assert!(drift("/a").same(&drift("/a")) && !drift("/a").same(&drift("/b")));
        assert!(!About::Other.same(&About::Other));
    }
}
