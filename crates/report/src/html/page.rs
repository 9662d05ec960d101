//! What all sections share: the record as a comparison, and one colour and mark per family of
//! configurations, the same in every figure.

use maud::Markup;
use quell_record::events::{Record, Span};
use quell_record::result::{CompareResult, ConfigurationResult};
use quell_types::mechanism::Mechanism;

use crate::verdict::spoken_for;
use crate::view::View;

use super::chart::Mark;

/// A part of the page under a heading.
pub(crate) struct Section {
    /// The id of its element, unique in the page.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) body: Markup,
}

/// The configurations that differ only in their axes: `regulated@10%`, `regulated@20%`, …
pub(crate) struct Family<'r> {
    pub(crate) name: &'r str,
    pub(crate) appearance: Appearance,
    pub(crate) members: Vec<&'r ConfigurationResult>,
}

/// How a family is drawn: a class of the style sheet and a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Appearance {
    pub(crate) class: &'static str,
    pub(crate) mark: Mark,
}

const SOLO: Appearance = Appearance {
    class: "s0",
    mark: Mark::Disc,
};
const UNPROTECTED: Appearance = Appearance {
    class: "s1",
    mark: Mark::Cross,
};
const QUOTA: Appearance = Appearance {
    class: "s3",
    mark: Mark::Square,
};
const OTHERS: [Appearance; 5] = [
    Appearance {
        class: "s4",
        mark: Mark::Triangle,
    },
    Appearance {
        class: "s5",
        mark: Mark::Diamond,
    },
    Appearance {
        class: "s6",
        mark: Mark::Disc,
    },
    Appearance {
        class: "s7",
        mark: Mark::Triangle,
    },
    Appearance {
        class: "s0",
        mark: Mark::Diamond,
    },
];
/// The first family that Quell regulates.
const REGULATED: Appearance = Appearance {
    class: "s2",
    mark: Mark::Disc,
};

/// A record, prepared for the sections.
pub(crate) struct Page<'r> {
    pub(crate) record: &'r Record,
    /// The comparison, over the rounds that the verdict is about. `None` for a run.
    pub(crate) view: Option<View<'r>>,
    pub(crate) families: Vec<Family<'r>>,
}

impl<'r> Page<'r> {
    pub(crate) fn new(record: &'r Record) -> Self {
        let result = record.result.as_ref();
        let view = result.and_then(|r| View::new(r, spoken_for(r)));
        Self {
            record,
            families: view.map(|v| families(&v)).unwrap_or_default(),
            view,
        }
    }

    pub(crate) fn result(&self) -> Option<&'r CompareResult> {
        self.record.result.as_ref()
    }

    /// How a configuration is drawn, or a family by its name.
    pub(crate) fn appearance(&self, name: &str) -> Appearance {
        let is = |f: &&Family<'_>| f.name == name || f.members.iter().any(|c| c.name == name);
        self.families.iter().find(is).map_or(SOLO, |f| f.appearance)
    }

    /// The windows of a subject in a configuration, round by round.
    pub(crate) fn spans(
        &self,
        configuration: &str,
        subject: &str,
    ) -> impl Iterator<Item = &'r Span> {
        let spans = self.record.spans.iter();
        spans.filter(move |s| s.configuration == configuration && s.subject == subject)
    }
}

fn families<'r>(view: &View<'r>) -> Vec<Family<'r>> {
    let mut all: Vec<Family<'r>> = Vec::new();
    for configuration in &view.result.configurations {
        let name = configuration.family();
        match all.iter_mut().find(|f| f.name == name) {
            Some(family) => family.members.push(configuration),
            None => all.push(Family {
                name,
                appearance: SOLO,
                members: vec![configuration],
            }),
        }
    }
    let unprotected = view.unprotected().map(ConfigurationResult::family);
    let (mut others, mut regulated) = (OTHERS.into_iter().cycle(), Some(REGULATED));
    for family in &mut all {
        let uses = |mechanism| {
            let mut measured = family.members.iter().filter(|c| c.refused.is_empty());
            measured.any(|c| c.mechanisms.contains(&mechanism))
        };
        family.appearance = if view.result.baseline.as_deref() == Some(family.name) {
            SOLO
        } else if unprotected == Some(family.name) {
            UNPROTECTED
        } else if uses(Mechanism::CpuMax) && !uses(Mechanism::Bandwidth) {
            QUOTA
        } else {
            let first = regulated.take_if(|_| uses(Mechanism::Bandwidth));
            first.or_else(|| others.next()).unwrap_or(SOLO)
        };
    }
    all
}
