//! Parts of caches and of memory bandwidth: groups of Quell as control groups of resctrl.
//!
//! A group has a control group of its own. Its name is one that Intel's `pqos` uses (`COS1`, …), so
//! that `pqos` reads and lists it, too. Where no class of service is free for a new group, an
//! unused one is taken for the time. `pqos` makes them all when it is first called. Groups that get
//! the same share one only where the plan has more groups than that. What unmatched tasks get is
//! written to the default group, which has all tasks that are in no other.
//!
//! A group that has ways to itself is made exclusive where the kernel allows it. Control groups
//! that other programs make meanwhile then begin without these ways.

mod check;
mod foreign;
mod locked;
mod members;
mod residency;
mod switching;

use std::collections::{BTreeMap, BTreeSet};

use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::info::Content;
use quell_kernel::resctrl::lock::{For, PATIENCE};
use quell_kernel::resctrl::{Group, Info, Mode, Reading, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_plan::{GroupPlan, Plan, Setting, Step};
use quell_record::about::About;
use quell_record::backend::{Action, Observation};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::mechanism::Level;
use quell_types::partition::Mask;

use super::{Applied, Enforcer, Launch, cache};
use crate::host::{Host, finding};
use check::Found;
pub use foreign::check;
use foreign::{Foreign, Own, caches, promised};
use locked::Locked;

/// resctrl, and what groups have of it.
struct Parts {
    resctrl: Resctrl,
    info: Info,
    /// Number of control groups that could be made or taken when this began.
    free: usize,
    /// The control group of each group, by the group's name.
    groups: BTreeMap<String, Group>,
    /// The CPUs that Quell has put into a group's control group, by the group's name.
    cpus: BTreeMap<String, CpuSet>,
    /// The locked region of each group, by the group's name.
    locks: BTreeMap<String, Locked>,
    /// Groups whose control group another program has removed, with its path, until that is
    /// reported.
    gone: Vec<(String, String)>,
    /// What the last check found, with the group's name.
    told: BTreeSet<(String, Found)>,
}

/// Whether a step gives its group a part of resctrl.
fn parts(set: &Setting) -> bool {
    matches!(
        set,
        Setting::Ways { .. }
            | Setting::WaysCodeData { .. }
            | Setting::Mba { .. }
            | Setting::MbaRate { .. }
    )
}

impl Parts {
    /// The lines of `schemata` for a setting: the same value in every domain.
    fn lines(&self, files: &dyn Files, set: &Setting) -> Result<Schemata> {
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
            Setting::Ways {
                level,
                mask,
                caches_of,
            } => {
                let near = caches(files, *level, caches_of)?;
                let lines = self
                    .way_names(*level)
                    .fold(Schemata::default(), |lines, name| {
                        let mut domains = now.domains(name);
                        domains.retain(&near);
                        lines.with(&Schemata::masks(name, domains, *mask))
                    });
                match lines.0.is_empty() {
                    true => Err(missing(&format!("ways of L{level}"))),
                    false => Ok(lines),
                }
            }
            Setting::WaysCodeData { level, code, data } => {
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

    /// The control groups of other programs.
    fn foreign(&self, files: &dyn Files) -> Result<Foreign> {
        Foreign::read(files, &self.resctrl, |group| {
            self.groups.values().any(|g| g == group)
                || self.locks.values().any(|l| l.is_of(&group.name))
        })
    }

    /// Names of the `schemata` lines that are ways of a level.
    fn way_names(&self, level: u32) -> impl Iterator<Item = &str> {
        self.info.ways(level).map(|(r, _)| r.name.as_str())
    }
}

/// Whether a step gives its group ways of a level.
fn ways_of(set: &Setting, of: u32) -> bool {
    matches!(set, Setting::Ways { level, .. } | Setting::WaysCodeData { level, .. } if *level == of)
}

/// The settings for resctrl that a plan has for a group.
fn settings<'a>(plan: &'a Plan, group: &str) -> Vec<&'a Setting> {
    let of = |s: &&Step| s.group.as_deref().unwrap_or(REST) == group;
    plan.steps
        .iter()
        .filter(of)
        .map(|s| &s.set)
        .filter(|set| parts(set))
        .collect()
}

/// Parts of caches and bandwidth. `parts` is `None` until the first step needs resctrl.
#[derive(Default)]
pub(crate) struct Classes {
    parts: Option<Parts>,
}

impl Enforcer for Classes {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        match set {
            Setting::MountCodeData { levels } => self.begin(host, levels).map(Some),
            Setting::Lock { level, mask, size } => {
                let parts = self.begun()?;
                parts.lock(host, group, *level, *mask, *size).map(Some)
            }
            Setting::WaysCpus { cpus } => self.give_cpus(host, group, cpus).map(Some),
            set if parts(set) => self.part(host, group, set).map(Some),
            _ => Ok(None),
        }
    }

    /// Moves the ways of a group, or of unmatched tasks, to another mask.
    fn act(&mut self, host: &mut Host, action: &Action) -> Result<()> {
        let Action::Ways { group, level, mask } = action else {
            return Ok(());
        };
        let group = self.class_of(group)?;
        let (level, mask) = (*level, *mask);
        let caches_of = CpuSet::new();
        let set = Setting::Ways {
            level,
            mask,
            caches_of,
        };
        self.steer(host, &group, &set)
    }

    /// Brings in newborn tasks, and reports what other programs took of a promise. Each finding is
    /// reported once, when it begins.
    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        let Some(of) = &mut self.parts else {
            return;
        };
        for (group, found) in of.fresh(host) {
            let because = match &found {
                Found::Note(what) => {
                    let what = format!("group {group}: {what}");
                    seen.push(finding(About::Classes, what, Some(&group)));
                    continue;
                }
                Found::Parts(because) | Found::Ways(_, because) | Found::Locked(because) => because,
            };
            let such = |set: &Setting| match found {
                Found::Note(_) => false,
                Found::Parts(_) => parts(set),
                Found::Ways(level, _) => ways_of(set, level),
                Found::Locked(_) => matches!(set, Setting::Lock { .. }),
            };
            seen.extend(host.worth(&group, &such, Level::None, because));
        }
    }

    /// The program enters its group's control group, and gets the memory that is locked for the
    /// group.
    fn launch(&mut self, program: &mut Launch<'_>) -> Result<()> {
        let Some(parts) = &mut self.parts else {
            return Ok(());
        };
        let class = parts.groups.get(program.group);
        program.procs_files.extend(class.map(|c| c.file("tasks")));
        match parts.locks.get_mut(program.group) {
            Some(locked) => locked.hand_to(program),
            None => Ok(()),
        }
    }

    fn release(&mut self, _: &mut Host) {
        self.parts = None;
    }
}

impl Classes {
    fn begun(&mut self) -> Result<&mut Parts> {
        self.parts
            .as_mut()
            .ok_or_else(|| Error::refused("resctrl is not in use"))
    }

    /// Has resctrl mounted. If Quell mounts it, code and data are separate in the caches of these
    /// levels. Returns notes for a person.
    fn begin(&mut self, host: &mut Host, code_data: &[u32]) -> Result<Vec<String>> {
        if self.parts.is_some() {
            return Ok(Vec::new());
        }
        let before = Resctrl::find(&host.files)?.is_some();
        let options = code_data.iter().map(|level| match level {
            2 => "cdpl2",
            _ => "cdp",
        });
        let options: Vec<&str> = options.collect();
        let resctrl = cache::adopt_or_mount(&mut host.writer()?, &options.join(","))?;
        if let Some(level) = code_data.iter().find(|level| !resctrl.code_data(**level)) {
            return Err(Error::refused_with(
                format!(
                    "resctrl was mounted at {} after this was planned, with code and data of L{level} together",
                    resctrl.root
                ),
                "plan again",
            ));
        }
        let info = resctrl.info(&host.files)?;
        let classes = info.classes() as usize;
        let used = before.then(|| {
            format!(
                "resctrl was mounted already, at {}: it is used as it is",
                resctrl.root
            )
        });
        self.parts = Some(Parts {
            free: classes.saturating_sub(1 + resctrl.used(&host.files)?.len()),
            info,
            resctrl,
            groups: BTreeMap::new(),
            cpus: BTreeMap::new(),
            locks: BTreeMap::new(),
            gone: Vec::new(),
            told: BTreeSet::new(),
        });
        Ok(used.into_iter().collect())
    }

    /// Gives a group, or unmatched tasks, a part.
    fn part(&mut self, host: &mut Host, name: &str, set: &Setting) -> Result<Vec<String>> {
        let notes = self.begin(host, &[])?;
        let parts = self.begun()?;
        let group = parts.class(host, name)?;
        let lines = parts.lines(&host.files, set)?;
        let (resctrl, info) = (&parts.resctrl, &parts.info);
        {
            let _lock = resctrl.lock(&host.files, For::Changing, PATIENCE)?;
            cache::allocate(&mut host.writer()?, resctrl, info, &group, &lines)?;
        }
        let ways = match *set {
            Setting::Ways { level, mask, .. } => Some((level, mask)),
            Setting::WaysCodeData { level, code, data } => Some((level, Mask(code.0 | data.0))),
            _ => None,
        };
        if let Some((level, mask)) = ways {
            let mine = |own: &Own<'_>| (own.group, own.level, own.mask) == (name, level, mask);
            let own = host
                .plan
                .as_ref()
                .and_then(|plan| promised(plan).find(mine));
            if let Some(own) = own {
                let foreign = parts.foreign(&host.files)?;
                foreign.keep_off(&host.files, resctrl, &own)?;
            }
        }
        if name != REST {
            parts.follow(host, name)?;
        } else if ways.is_some() {
            parts.keep_out(host);
        }
        Ok(notes)
    }

    /// Puts a group's own CPUs into its control group. CPUs that another program has put into a
    /// control group stay there, and are named.
    fn give_cpus(&mut self, host: &mut Host, name: &str, cpus: &CpuSet) -> Result<Vec<String>> {
        let class = self.class_of(name)?;
        let parts = self.begun()?;
        if class.name.is_empty() {
            return Ok(Vec::new());
        }
        let _lock = parts.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
        let given = cache::give_cpus(&mut host.writer()?, &parts.resctrl, &class, cpus)?;
        let taken = given.taken.iter().map(|(other, cpus)| {
            format!(
                "group {name}: CPUs {cpus} are in resctrl's group {other}, and kernel work there fills its ways"
            )
        });
        let notes = taken.collect();
        parts.cpus.insert(name.to_owned(), given.cpus);
        Ok(notes)
    }

    /// Gives a control group another part, one of many that it gets in turn. One journal record
    /// covers them all.
    pub fn steer(&mut self, host: &mut Host, group: &Group, set: &Setting) -> Result<()> {
        let parts = self.begun()?;
        let lines = parts.lines(&host.files, set)?;
        let path = group.file("schemata");
        let _lock = parts.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
        let old = group.schemata(&host.files)?.only(&lines).to_string();
        host.writer()?.steer(&path, &old)?;
        let files: &dyn Files = &host.files;
        let put = || files.put(&path, &lines.to_string());
        parts.resctrl.explained(files, put)
    }

    /// Makes a control group for these threads, with the parts of a new group, and moves them into
    /// it.
    pub fn take(&mut self, host: &mut Host, threads: &BTreeSet<u32>) -> Result<Group> {
        self.begin(host, &[])?;
        let parts = self.begun()?;
        let _lock = parts.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
        let group = parts.new_class(host)?;
        let mut find = |_: &dyn Files| Ok(threads.clone());
        cache::take(&mut host.writer()?, &parts.resctrl, &group, &mut find)?;
        Ok(group)
    }

    /// The control group that a group, or unmatched tasks, are in.
    fn class_of(&mut self, name: &str) -> Result<Group> {
        let parts = self.begun()?;
        if name == REST {
            return Ok(parts.resctrl.default_group());
        }
        let group = parts.groups.get(name).cloned();
        group.ok_or_else(|| Error::refused(format!("group {name} has no control group")))
    }

    /// Bytes that a group's control group has moved from and to memory. `None` while the hardware
    /// has no count.
    pub fn moved_by(&mut self, files: &dyn Files, name: &str) -> Result<Option<u64>> {
        const EVENT: &str = "mbm_total_bytes";
        let data = self.class_of(name)?.data(files)?;
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
}

impl Parts {
    /// Makes groups exclusive that have ways to themselves, once unmatched tasks have left those.
    /// The kernel refuses that to groups that share ways of another level, or share ways with
    /// devices. Another tool may also keep the lock. Then the check of every second finds new
    /// groups, as in any case.
    fn keep_out(&self, host: &mut Host) {
        let Some(plan) = &host.plan else {
            return;
        };
        let own = promised(plan).filter(|own| !own.shared);
        // The kernel keeps an exclusive group from ways that others fill.
        let own = own.filter(|own| !switching::switches(plan, own.group));
        let own: BTreeSet<Group> = own
            .filter_map(|own| self.groups.get(own.group).cloned())
            .collect();
        let Ok(_lock) = self.resctrl.lock(&host.files, For::Changing, PATIENCE) else {
            return;
        };
        for group in own {
            if let Ok(mut writer) = host.writer() {
                let _ = cache::set_mode(&mut writer, &self.resctrl, &group, &Mode::Exclusive);
            }
        }
    }

    /// The control group of a group. It is made at the group's first part, unless the group has to
    /// share one that has the same parts.
    fn class(&mut self, host: &mut Host, name: &str) -> Result<Group> {
        if name == REST {
            return Ok(self.resctrl.default_group());
        }
        if let Some(group) = self.groups.get(name) {
            return Ok(group.clone());
        }
        let alike = host.plan.as_ref().and_then(|plan| {
            let wanted = |g: &&GroupPlan| !settings(plan, &g.name).is_empty();
            // Locking memory takes a class, too.
            let locks = |s: &&Step| matches!(s.set, Setting::Lock { .. });
            let locks = usize::from(plan.steps.iter().any(|s| locks(&s)));
            if plan.groups.iter().filter(wanted).count() + locks <= self.free {
                return None;
            }
            let own = settings(plan, name);
            if settings(plan, REST) == own {
                return Some(self.resctrl.default_group());
            }
            let mut others = self.groups.iter();
            let (_, group) = others.find(|(other, _)| settings(plan, other) == own)?;
            Some(group.clone())
        });
        let group = match alike {
            Some(group) => group,
            None => {
                let _lock = self.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
                self.new_class(host)?
            }
        };
        self.groups.insert(name.to_owned(), group.clone());
        Ok(group)
    }

    /// A control group that no group uses: a new one, or an idle one for the time.
    fn new_class(&self, host: &mut Host) -> Result<Group> {
        let resctrl = &self.resctrl;
        let all = resctrl.groups(&host.files)?;
        let names = (1..).map(|n| format!("COS{n}"));
        let mut names = names.filter(|name| all.iter().all(|g| g.name != *name));
        let name = names.next().unwrap_or_default();
        let made = cache::make(&mut host.writer()?, resctrl, &name);
        let Err(why) = made else { return made };
        let used = resctrl.used(&host.files)?;
        let ours: Vec<&Group> = self.groups.values().collect();
        let idle = |g: &&Group| !g.name.is_empty() && !used.contains(g) && !ours.contains(g);
        let Some(group) = all.iter().find(idle).cloned() else {
            return Err(why);
        };
        // Its last user may have left it with few ways.
        cache::widen(&mut host.writer()?, resctrl, &self.info, &group)?;
        Ok(group)
    }
}
