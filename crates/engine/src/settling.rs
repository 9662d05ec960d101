//! Whether the pages of the groups with colours of their own are moved, so that a cell may measure.

use std::collections::{BTreeMap, BTreeSet};

use quell_plan::{Plan, Setting};
use quell_record::events::ColouredPages;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;

/// Where pages lie is known that long after a program has its memory.
const KNOWN: Nanos = Nanos::secs(5);
/// A cell waits no longer. What is then not moved is told as a promise that is lost.
const LONGEST: Nanos = Nanos::secs(300);
/// How often to look whether they are.
pub(crate) const LOOK: Nanos = Nanos::millis(500);
/// Less than one page in so many in another colour is none.
const FEW: u64 = 100;

/// The groups, and where the pages of their processes lie.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    groups: BTreeSet<GroupId>,
    pages: BTreeMap<(GroupId, u32), ColouredPages>,
    /// Since when all programs have their memory.
    since: Option<Nanos>,
}

impl Settling {
    /// Of those of the groups whose pages a plan moves.
    pub(crate) fn of(plan: &Plan, groups: &BTreeSet<GroupId>) -> Self {
        let settles = plan.steps.iter();
        let settles = settles.filter(|step| matches!(step.set, Setting::Settle { .. }));
        Self {
            groups: settles
                .filter_map(|step| groups.get(step.group.as_ref()?).cloned())
                .collect(),
            ..Self::default()
        }
    }

    /// Takes note of where the pages of a process lie.
    pub(crate) fn note(&mut self, group: GroupId, pid: u32, pages: ColouredPages) {
        self.pages.insert((group, pid), pages);
    }

    /// Whether there is nothing to wait for. To be asked once all programs have their memory.
    pub(crate) fn is_over(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        let settled = |group: &GroupId| {
            let mut own = self.pages.iter().filter(|((of, _), _)| of == group);
            let right = |(_, pages): (_, &ColouredPages)| pages.wrong * FEW <= pages.right;
            own.clone().next().is_some() && own.all(right)
        };
        let known = self.groups.iter().all(settled) && now >= since.plus(KNOWN);
        self.groups.is_empty() || known || now >= since.plus(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settling(groups: &[&str]) -> Settling {
        Settling {
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..Settling::default()
        }
    }

    fn pages(right: u64, wrong: u64) -> ColouredPages {
        ColouredPages {
            right,
            wrong,
            ..ColouredPages::default()
        }
    }

    #[test]
    fn a_cell_waits_until_the_pages_of_all_groups_are_right() {
        let second = Nanos::secs;
        assert!(settling(&[]).is_over(second(0)));
        let mut both = settling(&["a", "b"]);
        assert!(!both.is_over(second(100)));
        both.note("a".to_owned(), 1, pages(990, 9));
        assert!(!both.is_over(second(110)), "nothing is known of b");
        both.note("b".to_owned(), 2, pages(500, 500));
        assert!(!both.is_over(second(111)));
        both.note("b".to_owned(), 2, pages(1_000, 0));
        assert!(both.is_over(second(112)));
        both.note("b".to_owned(), 3, pages(0, 1));
        assert!(!both.is_over(second(399)), "another process of b");
        assert!(both.is_over(second(400)), "for ever is too long");
        let mut early = settling(&["a"]);
        early.note("a".to_owned(), 1, pages(10, 0));
        assert!(!early.is_over(second(1)), "it may have had less memory");
        assert!(early.is_over(second(6)));
    }
}
