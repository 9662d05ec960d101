//! Ways that a plan promises, and control groups of other programs that may fill them, too.

use std::collections::BTreeSet;
use std::path::Path;

use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::{Group, Info, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_kernel::topology;
use quell_plan::{Plan, Promise, Setting};
use quell_types::cpuset::CpuSet;
use quell_types::journal::Undo;
use quell_types::partition::Mask;

use super::ways_of;
use crate::restore;

/// Ways that a plan promises a group.
pub(super) struct Own<'a> {
    pub group: &'a str,
    pub level: u32,
    pub mask: Mask,
    /// Whether other groups of the plan share them.
    pub shared: bool,
    /// CPUs whose caches this is about. Empty: all.
    pub caches_of: CpuSet,
}

/// The ways that a plan promises and classes hold.
pub(super) fn promised(plan: &Plan) -> impl Iterator<Item = Own<'_>> {
    plan.promises.iter().filter_map(|held| {
        let Promise::ReserveWays {
            level,
            mask,
            shared_with,
        } = &held.promise
        else {
            return None;
        };
        let mut own = plan.steps.iter();
        let own = own
            .find(|step| step.group.as_ref() == Some(&held.group) && ways_of(&step.set, *level))?;
        Some(Own {
            group: held.group.as_str(),
            level: *level,
            mask: *mask,
            shared: !shared_with.is_empty(),
            caches_of: match &own.set {
                Setting::Ways { caches_of, .. } => caches_of.clone(),
                _ => CpuSet::new(),
            },
        })
    })
}

/// The numbers of the caches of a level on these CPUs, or of all where there are no CPUs.
pub(super) fn caches(
    files: &dyn Files,
    level: u32,
    cpus: &CpuSet,
) -> Result<impl Fn(&u32) -> bool + use<>> {
    let number = |cpu| topology::cache_number(files, cpu, level);
    let all: BTreeSet<u32> = cpus.iter().map(number).collect::<Result<_>>()?;
    Ok(move |cache: &u32| all.is_empty() || all.contains(cache))
}

/// Control groups that are used and not `ours`, with their `schemata`.
pub(super) struct Foreign(Vec<(String, Schemata)>);

impl Foreign {
    pub(super) fn read(
        files: &dyn Files,
        resctrl: &Resctrl,
        ours: impl Fn(&Group) -> bool,
    ) -> Result<Self> {
        let used = resctrl.used(files)?.into_iter();
        used.filter(|group| !ours(group))
            .map(|group| Ok((group.name.clone(), group.schemata(files)?)))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// One sentence for each control group that may fill a group's ways, too.
    pub(super) fn intruders(
        &self,
        files: &dyn Files,
        info: &Info,
        own: &Own<'_>,
    ) -> Result<Vec<String>> {
        let level = own.level;
        let near = caches(files, level, &own.caches_of)?;
        let mut found = Vec::new();
        for (name, schemata) in &self.0 {
            let masks = info.ways(level);
            let masks = masks.filter_map(|(r, _)| schemata.masks_of(&r.name));
            let each = masks.flatten().filter(|(cache, _)| near(cache));
            let theirs = each.fold(0, |all, (_, mask)| all | mask.0);
            let common = Mask(theirs & own.mask.0);
            if !common.is_empty() {
                found.push(format!("resctrl's group {name} has {common} of L{level}"));
            }
        }
        Ok(found)
    }

    /// # Errors
    /// [`Error::Refused`] where some control group may fill the group's ways.
    pub(super) fn keep_off(
        &self,
        files: &dyn Files,
        resctrl: &Resctrl,
        own: &Own<'_>,
    ) -> Result<()> {
        let info = resctrl.info(files)?;
        let Some(other) = self.intruders(files, &info, own)?.into_iter().next() else {
            return Ok(());
        };
        let Own {
            group, level, mask, ..
        } = own;
        Err(Error::refused_with(
            format!(
                "group {group} is to have ways {mask} of L{level} to itself, and {other}, which \
                 somebody else made"
            ),
            format!(
                "remove it (rmdir {}/NAME, `pqos -R`), or give it other ways",
                resctrl.root
            ),
        ))
    }
}

/// Checks a plan before a run: whether other programs fill what it promises. Control groups of runs
/// below `run_root` are none of theirs.
///
/// # Errors
/// [`Error::Refused`] naming the control group; files that cannot be read.
pub fn check(files: &dyn Files, plan: &Plan, run_root: &Path) -> Result<()> {
    let mut promised = promised(plan).peekable();
    if promised.peek().is_none() {
        return Ok(());
    }
    let Some(resctrl) = Resctrl::find(files)? else {
        return Ok(());
    };
    let mut own = BTreeSet::new();
    for dir in restore::folders(run_root)? {
        let changes = restore::left_by(files, &dir).unwrap_or_default();
        own.extend(changes.into_iter().filter_map(|change| match change {
            Undo::Cgroup { path, .. } => Some(path),
            _ => None,
        }));
    }
    let foreign = Foreign::read(files, &resctrl, |group| own.contains(&group.dir))?;
    promised.try_for_each(|own| foreign.keep_off(files, &resctrl, &own))
}
