//! Divides one thing, the ways of a cache or the colours of pages, among the groups that want a
//! part of it.
//!
//! Parts that the policy names are taken as named, and may overlap. Counted parts get numbers that
//! no other part has: locked parts from the top, the rest from the bottom, in the order of the
//! policy. What no group has is left to all other tasks.

use quell_types::cpuset::CpuSet;

/// What one group wants of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// These numbers, as the policy names them.
    Named(CpuSet),
    /// This many, which no other group may have.
    Count(u32),
    /// An even share: as much as each other `Even` part, and as what is left over.
    Even,
    /// This many from the top, which no other group may have.
    Top(u32),
}

/// Size of what is divided, and what parts of it are possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// How many there are; they are numbered from 0.
    pub count: u32,
    /// The smallest part that is possible.
    pub least: u32,
    /// Whether a part may have holes.
    pub sparse: bool,
}

/// The result of a division.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allotted {
    /// The parts, in the order of the wants.
    pub parts: Vec<CpuSet>,
    /// What all other groups and tasks get.
    pub left: CpuSet,
    /// What cannot be used, because a part may have no holes.
    pub idle: CpuSet,
}

/// A want for which not enough is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Short {
    /// Index of the want.
    pub which: usize,
    /// How many it would take.
    pub wanted: u32,
    /// What is left, possibly in several pieces.
    pub left: CpuSet,
}

/// Divides `whole` among the wants.
///
/// # Errors
/// The first want for which not enough is left.
pub(super) fn allot(whole: Whole, wants: &[Want]) -> Result<Allotted, Short> {
    let mut free: CpuSet = (0..whole.count).collect();
    let mut parts = vec![CpuSet::new(); wants.len()];
    for (part, want) in parts.iter_mut().zip(wants) {
        if let Want::Named(named) = want {
            *part = named.clone();
            free = free.difference(named);
        }
    }
    let mut take = |free: &mut CpuSet, which: usize, n: u32, top: bool| {
        let part = choose(free, n as usize, whole.sparse, top).ok_or_else(|| Short {
            which,
            wanted: n,
            left: free.clone(),
        })?;
        *free = free.difference(&part);
        parts[which] = part;
        Ok(())
    };
    for (which, want) in wants.iter().enumerate() {
        if let Want::Top(n) = want {
            take(&mut free, which, *n, true)?;
        }
    }
    for (which, want) in wants.iter().enumerate() {
        if let Want::Count(n) = want {
            take(&mut free, which, *n, false)?;
        }
    }
    let even = wants.iter().filter(|w| **w == Want::Even).count();
    let each = u32::try_from(free.len() / (even + 1)).unwrap_or(u32::MAX);
    for (which, want) in wants.iter().enumerate() {
        if *want == Want::Even {
            take(&mut free, which, each.max(whole.least).max(1), false)?;
        }
    }
    let left = if whole.sparse {
        free.clone()
    } else {
        let mut runs = runs(&free);
        runs.sort_by_key(CpuSet::len);
        runs.pop().unwrap_or_default()
    };
    Ok(Allotted {
        parts,
        idle: free.difference(&left),
        left,
    })
}

/// Chooses `n` of the free ones. Without holes they form a row, taken from the smallest row that is
/// large enough.
fn choose(free: &CpuSet, n: usize, sparse: bool, top: bool) -> Option<CpuSet> {
    let pool = if sparse {
        free.clone()
    } else {
        let mut runs = runs(free);
        if top {
            runs.reverse();
        }
        let mut fitting = runs.into_iter().filter(|run| run.len() >= n);
        match top {
            true => fitting.next()?,
            false => fitting.min_by_key(CpuSet::len)?,
        }
    };
    let part: CpuSet = if top {
        pool.iter().rev().take(n).collect()
    } else {
        pool.iter().take(n).collect()
    };
    (part.len() == n).then_some(part)
}

/// The rows of consecutive numbers, lowest first.
pub(super) fn runs(set: &CpuSet) -> Vec<CpuSet> {
    let mut runs: Vec<CpuSet> = Vec::new();
    let mut last = None;
    for n in set.iter() {
        match runs.last_mut() {
            Some(run) if last == Some(n.wrapping_sub(1)) => run.insert(n),
            _ => runs.push(CpuSet::from_iter([n])),
        }
        last = Some(n);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn whole(count: u32, sparse: bool) -> Whole {
        Whole {
            count,
            least: 1,
            sparse,
        }
    }

    fn texts(allotted: &Allotted) -> Vec<String> {
        allotted.parts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn counted_parts_follow_each_other_and_locked_ones_are_on_top() {
        let wants = [Want::Count(2), Want::Top(1), Want::Count(3)];
        let allotted = allot(whole(8, false), &wants).unwrap();
        assert_eq!(texts(&allotted), ["0-1", "7", "2-4"]);
        assert_eq!(allotted.left, set("5-6"));
    }

    #[test]
    fn named_parts_may_overlap_and_are_nobody_elses() {
        let wants = [
            Want::Named(set("2-3")),
            Want::Named(set("2-3")),
            Want::Count(2),
        ];
        let allotted = allot(whole(8, true), &wants).unwrap();
        assert_eq!(texts(&allotted), ["2-3", "2-3", "0-1"]);
        assert_eq!(allotted.left, set("4-7"));
    }

    #[test]
    fn without_holes_a_part_is_one_row_and_the_cut_off_stays_idle() {
        let wants = [Want::Named(set("2")), Want::Count(3)];
        let allotted = allot(whole(8, false), &wants).unwrap();
        assert_eq!(texts(&allotted), ["2", "3-5"]);
        assert_eq!((allotted.left, allotted.idle), (set("6-7"), set("0-1")));
        let wants = [Want::Named(set("3-5")), Want::Count(4)];
        let short = allot(whole(8, false), &wants).unwrap_err();
        assert_eq!(
            (short.which, short.wanted, short.left),
            (1, 4, set("0-2,6-7"))
        );
        assert!(allot(whole(8, true), &wants).is_ok());
    }

    #[test]
    fn private_parts_are_as_large_as_what_is_left() {
        let allotted = allot(whole(16, true), &[Want::Even, Want::Count(4), Want::Even]).unwrap();
        assert_eq!(texts(&allotted), ["4-7", "0-3", "8-11"]);
        assert_eq!(allotted.left, set("12-15"));
    }

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let want = prop_oneof![
            4 => (1u32..6).prop_map(Want::Count),
            1 => (1u32..3).prop_map(Want::Top),
            1 => Just(Want::Even),
            2 => (0u32..20, 1u32..5).prop_map(|(a, n)| Want::Named((a..a + n).collect())),
        ];
        proptest::collection::vec(want, 0..6)
    }

    proptest! {
        #[test]
        fn nothing_is_given_twice_nothing_is_lost_and_no_row_is_broken(
            wants in wants(), sparse in any::<bool>(),
        ) {
            let count = 24;
            let Ok(allotted) = allot(whole(count, sparse), &wants) else { return Ok(()) };
            let named = |i: usize| matches!(wants[i], Want::Named(_));
            let mut union = allotted.left.union(&allotted.idle);
            prop_assert!(allotted.left.intersection(&allotted.idle).is_empty());
            for (i, part) in allotted.parts.iter().enumerate() {
                prop_assert!(part.intersection(&allotted.left).is_empty());
                for (k, other) in allotted.parts.iter().enumerate().skip(i + 1) {
                    prop_assert!(named(i) && named(k) || part.intersection(other).is_empty());
                }
                match wants[i] {
                    Want::Count(n) | Want::Top(n) => prop_assert_eq!(part.len(), n as usize),
                    Want::Even | Want::Named(_) => prop_assert!(!part.is_empty()),
                }
                prop_assert!(sparse || runs(part).len() == 1);
                union = union.union(part);
            }
            prop_assert!(sparse || runs(&allotted.left).len() <= 1);
            prop_assert!(!sparse || allotted.idle.is_empty());
            prop_assert_eq!(union, (0..count).collect::<CpuSet>());
        }
    }
}
