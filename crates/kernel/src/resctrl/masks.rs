//! Masks, checked before they are written: what the kernel would refuse is refused here, with a
//! remedy.

use std::collections::BTreeMap;

use quell_types::partition::Mask;

use super::info::Ways;
use super::{Mode, Resctrl, Schemata};
use crate::error::{Error, Result};
use crate::root::Files;

/// The ways that a control group has in the caches of a level, code and data together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The group's name. Empty for the default group.
    pub name: String,
    /// What other groups may do with these ways.
    pub mode: Mode,
    /// The mask of the group's ways, by cache.
    pub masks: BTreeMap<u32, Mask>,
}

impl Owner {
    fn told(&self) -> String {
        if self.name.is_empty() {
            "the default group".to_owned()
        } else {
            format!("group {} ({})", self.name, self.mode)
        }
    }

    fn alone(&self) -> bool {
        self.mode != Mode::Shareable
    }
}

impl Resctrl {
    /// The ways of every control group in the caches of a level. `resources` are the names of that
    /// level.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn owners(&self, files: &dyn Files, resources: &[&str]) -> Result<Vec<Owner>> {
        let mut owners = Vec::new();
        for group in self.groups(files)? {
            let all = group.schemata(files)?;
            let mut masks: BTreeMap<u32, Mask> = BTreeMap::new();
            for (cache, mask) in resources.iter().filter_map(|r| all.masks_of(r)).flatten() {
                masks.entry(*cache).or_default().0 |= mask.0;
            }
            owners.push(Owner {
                mode: group.mode(files)?.unwrap_or(Mode::Shareable),
                name: group.name,
                masks,
            });
        }
        Ok(owners)
    }
}

/// The ways of a cache that a group can have: those that no other group has to itself. Where masks
/// may have no holes, only the lowest run of them.
#[must_use]
pub fn open(ways: &Ways, cache: u32, group: &str, owners: &[Owner]) -> Mask {
    let others = owners.iter().filter(|o| o.name != group && o.alone());
    let taken = others.filter_map(|o| o.masks.get(&cache));
    let free = taken.fold(ways.all.0, |free, mask| free & !mask.0);
    if ways.sparse || free == 0 {
        return Mask(free);
    }
    let start = free.trailing_zeros();
    let length = (free >> start).trailing_ones();
    Mask((u64::MAX >> (64 - length)) << start)
}

/// Checks whether the hardware accepts a mask.
///
/// # Errors
/// [`Error::Refused`] with a remedy.
pub fn possible(resource: &str, ways: &Ways, mask: Mask) -> Result<()> {
    let told = format!("{resource} cannot be given the mask {mask}");
    if mask.is_empty() || mask.0 & !ways.all.0 != 0 {
        return Err(Error::refused_with(
            format!("{told}: its ways are {}", ways.all),
            "name some of these, and no others",
        ));
    }
    let run = mask.0 >> mask.0.trailing_zeros();
    if !ways.sparse && run & run.wrapping_add(1) != 0 {
        return Err(Error::refused_with(
            format!(
                "{told}: this processor takes no mask with holes (info/{resource}/sparse_masks)"
            ),
            "name ways in one piece",
        ));
    }
    if mask.count() < ways.least {
        return Err(Error::refused_with(
            format!(
                "{told}: {} ways are the least here (info/{resource}/min_cbm_bits)",
                ways.least
            ),
            "name more",
        ));
    }
    Ok(())
}

/// Checks whether a group can have these ways without a conflict with other groups. `mode` is the
/// group's own.
///
/// # Errors
/// [`Error::Refused`] naming the group that has them.
pub fn free(
    resource: &str,
    ways: &Ways,
    group: &str,
    mode: &Mode,
    wanted: &BTreeMap<u32, Mask>,
    owners: &[Owner],
) -> Result<()> {
    for (cache, mask) in wanted {
        let told = || format!("{resource} of cache {cache} cannot be given as {mask}");
        if *mode == Mode::Exclusive && mask.0 & ways.shareable.0 != 0 {
            return Err(Error::refused_with(
                format!(
                    "{}: devices fill {} of it, too, and the group is exclusive",
                    told(),
                    ways.shareable
                ),
                "leave those ways out, or make the group shareable",
            ));
        }
        for other in owners.iter().filter(|o| o.name != group) {
            let theirs = other.masks.get(cache).copied().unwrap_or_default();
            let common = Mask(mask.0 & theirs.0);
            if common.is_empty() || !(other.alone() || *mode == Mode::Exclusive) {
                continue;
            }
            return Err(Error::refused_with(
                format!("{}: {} has {common} of it", told(), other.told()),
                match other.mode {
                    Mode::PseudoLocked | Mode::PseudoLockSetup => {
                        "what is locked stays until the group is removed (rmdir)"
                    }
                    Mode::Exclusive => {
                        "take it from that group first, or make that group shareable"
                    }
                    _ => "take it from that group first, or make this group shareable",
                },
            ));
        }
    }
    Ok(())
}

/// The lines of `wanted` that are ways, by resource.
pub fn of(wanted: &Schemata) -> impl Iterator<Item = (&String, &BTreeMap<u32, Mask>)> {
    wanted
        .0
        .keys()
        .filter_map(|name| Some((name, wanted.masks_of(name)?)))
}

#[cfg(test)]
mod tests {
    use super::super::info::Content;
    use super::*;

    fn ways(sparse: bool) -> Ways {
        Ways {
            level: 3,
            content: Content::All,
            all: Mask(0xfff),
            least: 2,
            shareable: Mask(0xc00),
            sparse,
            usage: BTreeMap::new(),
        }
    }

    #[test]
    fn what_the_hardware_does_not_take_is_refused_with_a_remedy() {
        let said = |mask, sparse| match possible("L3", &ways(sparse), Mask(mask)) {
            Ok(()) => String::new(),
            Err(e) => e.to_string(),
        };
        assert_eq!(said(0xff0, false), "");
        assert_eq!(said(0xf0f, true), "");
        assert!(said(0xf0f, false).contains("no mask with holes"));
        assert!(said(0, false).contains("its ways are 0xfff"));
        assert!(said(0x1000, true).contains("its ways are 0xfff"));
        assert!(said(0x1, false).contains("2 ways are the least"));
    }

    #[test]
    fn what_others_have_to_themselves_is_named() {
        let owner = |name: &str, mode, mask| Owner {
            name: name.to_owned(),
            mode,
            masks: BTreeMap::from([(0, Mask(mask))]),
        };
        let owners = [
            owner("", Mode::Shareable, 0x00f),
            owner("theirs", Mode::Exclusive, 0x0f0),
            owner("held", Mode::PseudoLocked, 0x300),
        ];
        let said = |mode, mask| {
            let wanted = BTreeMap::from([(0, Mask(mask))]);
            match free("L3", &ways(false), "ours", &mode, &wanted, &owners) {
                Ok(()) => String::new(),
                Err(e) => e.to_string(),
            }
        };
        assert_eq!(said(Mode::Shareable, 0xc0f), "");
        assert!(said(Mode::Shareable, 0x018).contains("group theirs (exclusive) has 0x10 of it"));
        assert!(said(Mode::Shareable, 0x200).contains("(pseudo-locked)"));
        assert!(said(Mode::Exclusive, 0x003).contains("the default group has 0x3 of it"));
        assert!(said(Mode::Exclusive, 0xc00).contains("devices fill 0xc00"));
    }
}
