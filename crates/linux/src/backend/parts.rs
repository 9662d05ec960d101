//! Parts of caches and of memory bandwidth: groups of Quell as control groups of resctrl.
//!
//! A group has a control group of its own, named as Intel's `pqos` names them (`COS1`, …), so that it reads and lists them, too.
//! Where no class of service is free for a new one, a group that nobody uses is taken for the time: `pqos` makes them all when
//! it is first called. Only where the plan has more groups than that do those that get the same share one. What unmatched
//! tasks get is written to the default group, in which everybody is who is in no other.
//!
//! Whoever has ways to himself is made exclusive where the kernel lets him: groups that others make meanwhile then begin
//! without his ways.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::info::Content;
use quell_kernel::resctrl::lock::{For, PATIENCE};
use quell_kernel::resctrl::{Group, Info, Mode, Reading, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_plan::{GroupPlan, Plan, Promise, Setting, Step};
use quell_record::backend::Seen;
use quell_record::events::Event;
use quell_record::standing::Cause;
use quell_types::ids::REST;
use quell_types::mechanism::Level;
use quell_types::partition::Mask;

use super::Linux;
use super::locked::Locked;
use super::whereabouts::{Whereabouts, strangers, threads};
use super::worth::parts;
use crate::enforce::cache;
use crate::session::Session;

/// resctrl, while groups have parts.
pub(super) struct Parts {
    pub(super) resctrl: Resctrl,
    info: Info,
    /// Control groups that could be had when this began.
    free: usize,
    /// The control group of each group.
    groups: BTreeMap<String, Group>,
    /// What is locked for groups.
    pub(super) locks: BTreeMap<String, Locked>,
    /// Groups whose control group somebody has removed, and its path, until it is told.
    gone: Vec<(String, String)>,
    /// What was found at the last look, with the group.
    told: BTreeSet<(String, Found)>,
}

/// What a look at parts brings to light.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// For a person, in a sentence.
    Note(String),
    /// No part of the group is worth anything.
    Parts(Cause),
    /// Its ways of this level are not.
    Ways(u32, Cause),
    /// What is locked for it is not.
    Locked(Cause),
}

impl Parts {
    /// The lines of `schemata` that a setting comes to: the same in every domain.
    pub(super) fn lines(&self, files: &dyn Files, set: &Setting) -> Result<Schemata> {
        let now = self.resctrl.default_group().schemata(files)?;
        let missing = |what: &str| {
            Error::refused_with(
                format!("resctrl has no {what} here"),
                format!(
                    "quell doctor, and {}/info, tell what there is",
                    self.resctrl.root
                ),
            )
        };
        let bandwidth = |value: u32, mib_s: bool| {
            let (resource, _) = self.info.bandwidth().ok_or_else(|| missing("bandwidth"))?;
            if mib_s != self.resctrl.mib_s {
                let [is, wanted] =
                    [self.resctrl.mib_s, mib_s].map(|m| if m { "MiB/s" } else { "percent" });
                return Err(Error::refused_with(
                    format!(
                        "resctrl was mounted for bandwidth in {is} after this was planned in {wanted}"
                    ),
                    "plan again",
                ));
            }
            let domains = now.domains(&resource.name);
            Ok(Schemata::numbers(&resource.name, domains, value.into()))
        };
        match set {
            Setting::Ways { level, mask } => {
                let lines = self
                    .way_names(*level)
                    .fold(Schemata::default(), |lines, name| {
                        lines.with(&Schemata::masks(name, now.domains(name), *mask))
                    });
                match lines.0.is_empty() {
                    true => Err(missing(&format!("ways of L{level}"))),
                    false => Ok(lines),
                }
            }
            Setting::WaysApart { level, code, data } => {
                let mut lines = Schemata::default();
                for (resource, ways) in self.info.ways(*level) {
                    let mask = match ways.content {
                        Content::Code => *code,
                        Content::Data => *data,
                        Content::All => {
                            return Err(missing(&format!("code and data of L{level} apart")));
                        }
                    };
                    let name = resource.name.as_str();
                    lines = lines.with(&Schemata::masks(name, now.domains(name), mask));
                }
                Ok(lines)
            }
            Setting::Mba { percent } => bandwidth(*percent, false),
            Setting::MbaRate { mib_s } => bandwidth(*mib_s, true),
            _ => Ok(Schemata::default()),
        }
    }

    /// The lines of `schemata` that are ways of a level.
    pub(super) fn way_names(&self, level: u32) -> impl Iterator<Item = &str> {
        self.info.ways(level).map(|(r, _)| r.name.as_str())
    }

    /// Control groups of somebody else that are used, and what they have.
    pub(super) fn others(&self, files: &dyn Files) -> Result<Vec<(String, Schemata)>> {
        let ours = |group: &Group| {
            self.groups.values().any(|g| g == group)
                || self.locks.values().any(|l| l.is_of(&group.name))
        };
        let used = self.resctrl.used(files)?.into_iter();
        used.filter(|group| !ours(group))
            .map(|group| Ok((group.name.clone(), group.schemata(files)?)))
            .collect()
    }

    /// Those of them that may fill these ways, too.
    pub(super) fn intruders(
        &self,
        others: &[(String, Schemata)],
        level: u32,
        mask: Mask,
    ) -> Vec<String> {
        let mut found = Vec::new();
        for (name, schemata) in others {
            let masks = self.info.ways(level);
            let masks = masks.filter_map(|(r, _)| schemata.masks_of(&r.name));
            let theirs = masks.flat_map(|m| m.values()).fold(0, |all, m| all | m.0);
            let common = Mask(theirs & mask.0);
            if !common.is_empty() {
                found.push(format!("resctrl's group {name} has {common} of L{level}"));
            }
        }
        found
    }
}

/// What a group gets of resctrl in a plan.
fn settings<'a>(plan: &'a Plan, group: &str) -> Vec<&'a Setting> {
    let of = |s: &&Step| s.group.as_deref().unwrap_or(REST) == group;
    plan.steps
        .iter()
        .filter(of)
        .map(|s| &s.set)
        .filter(|set| parts(set))
        .collect()
}

/// The ways that a plan promises to a group, and whether other groups of the plan share them.
fn promised(plan: &Plan) -> impl Iterator<Item = (&str, u32, Mask, bool)> {
    plan.promises.iter().filter_map(|held| match &held.promise {
        Promise::ReserveWays {
            level,
            mask,
            shared_with,
        } => Some((held.group.as_str(), *level, *mask, !shared_with.is_empty())),
        _ => None,
    })
}

impl Linux {
    /// Has resctrl mounted, by ourselves with code and data of these levels apart. What a person should know of it.
    pub(super) fn begin_parts(&mut self, apart: &[u32]) -> Result<Vec<String>> {
        if self.parts.is_some() {
            return Ok(Vec::new());
        }
        let before = Resctrl::find(&self.files)?.is_some();
        let options = apart.iter().map(|level| match level {
            2 => "cdpl2",
            _ => "cdp",
        });
        let options: Vec<&str> = options.collect();
        let resctrl = cache::adopt_or_mount(&mut self.hands()?, &options.join(","))?;
        if let Some(level) = apart.iter().find(|level| !resctrl.apart(**level)) {
            return Err(Error::refused_with(
                format!(
                    "resctrl was mounted at {} after this was planned, with code and data of L{level} together",
                    resctrl.root
                ),
                "plan again",
            ));
        }
        let info = resctrl.info(&self.files)?;
        let classes = info.classes() as usize;
        let used = before.then(|| {
            format!(
                "resctrl was mounted already, at {}: it is used as it is",
                resctrl.root
            )
        });
        self.parts = Some(Parts {
            free: classes.saturating_sub(1 + resctrl.used(&self.files)?.len()),
            info,
            resctrl,
            groups: BTreeMap::new(),
            locks: BTreeMap::new(),
            gone: Vec::new(),
            told: BTreeSet::new(),
        });
        Ok(used.into_iter().collect())
    }

    /// Gives a group, or unmatched tasks, a part.
    pub(super) fn part(&mut self, name: &str, set: &Setting) -> Result<Vec<String>> {
        let notes = self.begin_parts(&[])?;
        let group = self.class(name)?;
        let parts = self.parts()?;
        let (resctrl, info) = (parts.resctrl.clone(), parts.info.clone());
        let lines = parts.lines(&self.files, set)?;
        {
            let _lock = resctrl.lock(&self.files, For::Changing, PATIENCE)?;
            cache::allocate(&mut self.hands()?, &resctrl, &info, &group, &lines)?;
        }
        let ways = match *set {
            Setting::Ways { level, mask } => Some((level, mask)),
            Setting::WaysApart { level, code, data } => Some((level, Mask(code.0 | data.0))),
            _ => None,
        };
        if let Some((level, mask)) = ways {
            let mine =
                |(group, l, m, _): (&str, u32, Mask, bool)| (group, l, m) == (name, level, mask);
            let own = self
                .plan
                .as_ref()
                .is_none_or(|plan| promised(plan).any(mine));
            let parts = self.parts()?;
            let others = parts.intruders(&parts.others(&self.files)?, level, mask);
            if own
                && name != REST
                && let Some(other) = others.first()
            {
                return Err(Error::refused_with(
                    format!(
                        "group {name} is to have ways {mask} of L{level} to itself, and {other}, which somebody else made"
                    ),
                    format!(
                        "remove it (rmdir {}/NAME, `pqos -R`), or give it other ways",
                        resctrl.root
                    ),
                ));
            }
        }
        if name != REST {
            self.follow(name)?;
        } else if ways.is_some() {
            self.keep_out();
        }
        Ok(notes)
    }

    /// Makes groups exclusive that have ways to themselves, once unmatched tasks have left them. The kernel refuses it to who
    /// shares ways of another level, or with devices, and somebody may keep the lock: then newcomers are looked for every second, as in any case.
    fn keep_out(&mut self) {
        let (Some(plan), Some(parts)) = (&self.plan, &self.parts) else {
            return;
        };
        let own = promised(plan).filter(|(_, _, _, shared)| !shared);
        let own: BTreeSet<Group> = own
            .filter_map(|(group, ..)| parts.groups.get(group).cloned())
            .collect();
        let resctrl = parts.resctrl.clone();
        let Ok(_lock) = resctrl.lock(&self.files, For::Changing, PATIENCE) else {
            return;
        };
        for group in own {
            if let Ok(mut hands) = self.hands() {
                let _ = cache::set_mode(&mut hands, &resctrl, &group, &Mode::Exclusive);
            }
        }
    }

    pub(super) fn parts(&self) -> Result<&Parts> {
        self.parts
            .as_ref()
            .ok_or_else(|| Error::refused("resctrl is not in use"))
    }

    /// The control group of a group: made at its first part, unless one with the same parts is there.
    fn class(&mut self, name: &str) -> Result<Group> {
        let parts = self.parts()?;
        let resctrl = parts.resctrl.clone();
        if name == REST {
            return Ok(resctrl.default_group());
        }
        if let Some(group) = parts.groups.get(name) {
            return Ok(group.clone());
        }
        let alike = self.plan.as_ref().and_then(|plan| {
            let wanted = |g: &&GroupPlan| !settings(plan, &g.name).is_empty();
            // Memory is locked by way of a class, too.
            let locks = |s: &&Step| matches!(s.set, Setting::Lock { .. });
            let locks = usize::from(plan.steps.iter().any(|s| locks(&s)));
            if plan.groups.iter().filter(wanted).count() + locks <= parts.free {
                return None;
            }
            let own = settings(plan, name);
            if settings(plan, REST) == own {
                return Some(resctrl.default_group());
            }
            let mut others = parts.groups.iter();
            let (_, group) = others.find(|(other, _)| settings(plan, other) == own)?;
            Some(group.clone())
        });
        let group = match alike {
            Some(group) => group,
            None => {
                let _lock = resctrl.lock(&self.files, For::Changing, PATIENCE)?;
                self.new_class(&resctrl)?
            }
        };
        if let Some(parts) = self.parts.as_mut() {
            parts.groups.insert(name.to_owned(), group.clone());
        }
        Ok(group)
    }

    /// A control group that nobody has: made, or an idle one for the time.
    pub(super) fn new_class(&mut self, resctrl: &Resctrl) -> Result<Group> {
        let all = resctrl.groups(&self.files)?;
        let names = (1..).map(|n| format!("COS{n}"));
        let mut names = names.filter(|name| all.iter().all(|g| g.name != *name));
        let made = cache::make(
            &mut self.hands()?,
            resctrl,
            &names.next().unwrap_or_default(),
        );
        let Err(why) = made else { return made };
        let parts = self.parts()?;
        let used = resctrl.used(&self.files)?;
        let ours: Vec<&Group> = parts.groups.values().collect();
        let idle = |g: &&Group| !g.name.is_empty() && !used.contains(g) && !ours.contains(g);
        let Some(group) = all.iter().find(idle).cloned() else {
            return Err(why);
        };
        // Whoever had it last may have left it narrow.
        let info = parts.info.clone();
        cache::widen(&mut self.hands()?, resctrl, &info, &group)?;
        Ok(group)
    }

    /// The control group that a group, or unmatched tasks, are in.
    fn class_of(&self, name: &str) -> Result<Group> {
        let parts = self.parts()?;
        if name == REST {
            return Ok(parts.resctrl.default_group());
        }
        let group = parts.groups.get(name).cloned();
        group.ok_or_else(|| Error::refused(format!("group {name} has no control group")))
    }

    /// Moves the ways of a group, or of unmatched tasks, that were given to it before.
    pub(super) fn move_ways(&mut self, name: &str, level: u32, mask: Mask) -> Result<()> {
        let group = self.class_of(name)?;
        self.steer_part(&group, &Setting::Ways { level, mask })
    }

    /// Gives a control group another part, one of many that it gets in turn: recorded once for all of them.
    pub(super) fn steer_part(&mut self, group: &Group, set: &Setting) -> Result<()> {
        let parts = self.parts()?;
        let resctrl = parts.resctrl.clone();
        let lines = parts.lines(&self.files, set)?;
        let path = group.file("schemata");
        let _lock = resctrl.lock(&self.files, For::Changing, PATIENCE)?;
        let old = group.schemata(&self.files)?.only(&lines).to_string();
        self.hands()?.steer(&path, &old)?;
        let files: &dyn Files = &self.files;
        resctrl.explained(files, || files.put(&path, &lines.to_string()))
    }

    /// Bytes that a group's control group has moved from and to memory; `None` while the hardware cannot tell.
    pub(super) fn moved_by(&self, name: &str) -> Result<Option<u64>> {
        const EVENT: &str = "mbm_total_bytes";
        let data = self.class_of(name)?.data(&self.files)?;
        let whole = data.iter().filter(|d| d.part.is_none());
        let counts: Vec<Option<u64>> = whole
            .filter_map(|d| d.events.get(EVENT).map(Reading::count))
            .collect();
        if counts.is_empty() {
            return Err(Error::refused_with(
                format!("resctrl counts no traffic of group {name} here ({EVENT})"),
                "leave mechanisms.ways out",
            ));
        }
        Ok(counts.into_iter().sum())
    }

    /// The file through which a program of a group enters its control group before it executes.
    pub(super) fn part_door(&self, group: &str) -> Option<String> {
        let group = self.parts.as_ref()?.groups.get(group)?;
        Some(group.file("tasks"))
    }

    /// Moves the threads of a group that are still outside into its control group.
    fn follow(&mut self, name: &str) -> Result<()> {
        let Some(found) = self.whereabouts(name)? else {
            return Ok(());
        };
        if !found.outside(&self.files)? {
            return Ok(());
        }
        let resctrl = self.parts()?.resctrl.clone();
        let _lock = resctrl.lock(&self.files, For::Changing, PATIENCE)?;
        self.bring(&resctrl, &found)
    }

    fn bring(&mut self, resctrl: &Resctrl, found: &Whereabouts) -> Result<()> {
        let mut find = |files: &dyn Files| threads(files, &found.home);
        cache::take(&mut self.hands()?, resctrl, &found.group, &mut find)?;
        Ok(())
    }

    /// `None` for a group that has no control group. One that somebody has removed is given up.
    fn whereabouts(&mut self, name: &str) -> Result<Option<Whereabouts>> {
        let Some(parts) = self.parts.as_mut() else {
            return Ok(None);
        };
        let Some(group) = parts.groups.get(name).cloned() else {
            return Ok(None);
        };
        // Its folder alone tells nothing: the default group's stays when somebody unmounts.
        if !self.files.exists(&group.file("tasks")) {
            parts.groups.remove(name);
            parts.gone.push((name.to_owned(), group.dir));
            return Ok(None);
        }
        let home = self.group(name)?.home.clone();
        let inside = group.tasks(&self.files)?.into_iter().collect();
        Ok(Some(Whereabouts {
            name: name.to_owned(),
            all: threads(&self.files, &home)?,
            group,
            home,
            inside,
        }))
    }

    /// The slow duties: newborn tasks, and what others have made that was promised to a group of ours. Each is told when it
    /// begins to be so.
    pub(super) fn look_after_parts(&mut self) -> Vec<Seen> {
        let found = self.found_in_parts();
        let tell = |(group, found): (String, Found)| match found {
            Found::Note(what) => vec![Seen::Event(Event::Finding {
                what: format!("group {group}: {what}"),
                group: Some(group),
            })],
            Found::Parts(because) => self.worth(&group, &parts, Level::None, &because),
            Found::Ways(level, because) => {
                let ways = |set: &Setting| match set {
                    Setting::Ways { level: of, .. } | Setting::WaysApart { level: of, .. } => {
                        *of == level
                    }
                    _ => false,
                };
                self.worth(&group, &ways, Level::None, &because)
            }
            Found::Locked(because) => {
                let locks = |set: &Setting| matches!(set, Setting::Lock { .. });
                self.worth(&group, &locks, Level::None, &because)
            }
        };
        found.into_iter().flat_map(tell).collect()
    }

    /// What is new since the last look, with the group.
    fn found_in_parts(&mut self) -> Vec<(String, Found)> {
        let (names, resctrl): (Vec<String>, Resctrl) = match &self.parts {
            Some(parts) => (
                parts.groups.keys().cloned().collect(),
                parts.resctrl.clone(),
            ),
            None => return Vec::new(),
        };
        let mut found = Vec::new();
        let mut all = Vec::new();
        for name in names {
            match self.whereabouts(&name) {
                Ok(known) => all.extend(known),
                Err(e) => found.push((name, Found::Note(e.to_string()))),
            }
        }
        // Once for all of them, and not waited for: a heartbeat must not be missed, and the next look tries again.
        let mut lock = None;
        for group in &all {
            if !self.session.as_ref().is_some_and(Session::still_held) {
                return found;
            }
            let moved = match group.outside(&self.files) {
                Ok(false) => continue,
                Ok(true) => {
                    let take = || resctrl.lock(&self.files, For::Changing, Duration::ZERO);
                    match lock.get_or_insert_with(take) {
                        Ok(_) => self.bring(&resctrl, group).map_err(|e| e.to_string()),
                        Err(e) => Err(format!("its newborn threads wait outside: {e}")),
                    }
                }
                Err(e) => Err(e.to_string()),
            };
            if let Err(why) = moved {
                found.push((group.name.clone(), Found::Note(why)));
            }
        }
        drop(lock);
        found.extend(self.disputed(&all));
        let Some(parts) = self.parts.as_mut() else {
            return found;
        };
        let files: &dyn Files = &self.files;
        let broken =
            |(name, l): (&String, &Locked)| Some((name.clone(), Found::Locked(l.broken(files)?)));
        found.extend(parts.locks.iter().filter_map(broken));
        let gone = std::mem::take(&mut parts.gone).into_iter();
        found.extend(gone.map(|(name, what)| (name, Found::Parts(Cause::Removed { what }))));
        let now: BTreeSet<(String, Found)> = found.into_iter().collect();
        let fresh = now.difference(&parts.told).cloned().collect();
        parts.told = now;
        fresh
    }

    /// What others have of what was promised to groups of ours, and what of that cannot be told.
    fn disputed(&self, all: &[Whereabouts]) -> Vec<(String, Found)> {
        let (Some(plan), Some(parts)) = (&self.plan, &self.parts) else {
            return Vec::new();
        };
        let unknown = |group: &str, e: Error| {
            let what = format!("whether others have its part cannot be told: {e}");
            vec![(group.to_owned(), Found::Note(what))]
        };
        let mut found = Vec::new();
        // Those of a group that could not be looked at would seem to be strangers.
        if let Some(first) = all.first().filter(|_| all.len() == parts.groups.len()) {
            match strangers(&self.files, all) {
                Ok(said) => found.extend(
                    said.into_iter()
                        .map(|(name, by)| (name, Found::Parts(Cause::Shared { by }))),
                ),
                Err(e) => found.extend(unknown(&first.name, e)),
            }
        }
        let Some((first, ..)) = promised(plan).next() else {
            return found;
        };
        let others = match parts.others(&self.files) {
            Ok(others) => others,
            Err(e) => {
                found.extend(unknown(first, e));
                return found;
            }
        };
        for (group, level, mask, _) in promised(plan) {
            let others = parts.intruders(&others, level, mask).into_iter();
            found.extend(others.map(|other| {
                let by = format!("{other}, of what group {group} has to itself");
                (group.to_owned(), Found::Ways(level, Cause::Shared { by }))
            }));
        }
        found
    }
}
