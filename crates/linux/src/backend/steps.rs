//! Steps become changes of the machine, each recorded first.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_kernel::cgroup::Controller;
use quell_kernel::error::{Error, Result};
use quell_kernel::memory::Memory;
use quell_kernel::root::Files;
use quell_kernel::spent::Ledger;
use quell_kernel::tasks::{self, Matcher};
use quell_kernel::{below, oom, remaining, rt};
use quell_plan::{Setting, Step};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::mechanism::Level;
use quell_types::task::TaskMatch;
use quell_types::units::Bytes;

use super::{Bound, Group, Linux};
use crate::change::Hands;
use crate::enforce::affinity::Keep;
use crate::enforce::{self, cores, quiet, threaded};
use crate::home::{Home, Layout, Place};
use crate::resident::Keeper;
use crate::session::Session;

/// The hierarchies in which a limit is around all groups: there it is held, and told how long they wait.
const BOUND: [Controller; 2] = [Controller::Memory, Controller::Pressure];

impl Linux {
    pub(super) fn apply_step(&mut self, step: &Step) -> Result<Vec<String>> {
        self.beat_if_due()?;
        let (_, mut notes) = self.session()?;
        let group = step.group.as_deref().unwrap_or(REST);
        match &step.set {
            Setting::Gather {
                matching,
                low,
                braked,
            } => {
                let layout = Layout {
                    low: *low,
                    braked: *braked,
                };
                notes.extend(self.gather(group, matching, layout)?);
            }
            Setting::Confine {
                cpus,
                mems,
                exclusive,
            } => notes.extend(self.confine(group, cpus, mems, *exclusive)?),
            Setting::ConfineRest { cpus } => notes.extend(self.confine_rest(cpus)?),
            Setting::MoveIrqs { from, to } => {
                let moved = quiet::interrupts(&mut self.hands()?, from, to)?;
                notes.extend(moved.note(from));
            }
            Setting::WorkqueueMask { cpus } => {
                quiet::kernel_work(&mut self.hands()?, cpus)?;
            }
            Setting::Regulate(regulation) => {
                notes.extend(self.regulate(group, regulation)?);
            }
            Setting::OomImmune => {
                self.group_mut(group)?.immune = true;
                self.immunise(group)?;
            }
            Setting::ProtectMemory { size } => {
                let place = self.extend_memory(group)?;
                // What is measured is protected once it was.
                if let Some(size) = size {
                    let protection = (Bytes(0), *size);
                    enforce::memory::protect(
                        &mut self.hands()?,
                        &Memory::of(&place.hierarchy, &place.dir),
                        protection,
                        false,
                    )?;
                }
            }
            Setting::LockFiles { files } => notes.push(self.lock_files(group, files)?),
            Setting::LimitMemory { most, kills } => {
                let place = self.extend_memory(group)?;
                enforce::memory::limit(
                    &mut self.hands()?,
                    &Memory::of(&place.hierarchy, &place.dir),
                    *most,
                    *kills,
                )?;
            }
            Setting::BoundMemory { most } => self.bound(*most)?,
            Setting::WatchMemory => {
                self.extend(group, &[Controller::Memory, Controller::Pressure])?;
                self.group_mut(group)?.watched = true;
            }
            Setting::SteerMemory { unswapped, .. } => {
                self.extend(
                    group,
                    &[
                        Controller::Memory,
                        Controller::Io,
                        Controller::Freezer,
                        Controller::Pressure,
                    ],
                )?;
                if *unswapped && let Some(place) = self.memory_place(group)? {
                    let path = format!("{}/memory.swap.max", place.dir);
                    // A kernel without swap accounting has no such file.
                    if self.files.exists(&path) {
                        self.hands()?.set(&path, "0")?;
                    }
                }
            }
            Setting::Sysctls { values } => {
                for (name, value) in values {
                    enforce::memory::sysctl(&mut self.hands()?, name, *value)?;
                }
            }
            Setting::MountApart { levels } => notes.extend(self.begin_parts(levels)?),
            Setting::Ways { .. }
            | Setting::WaysApart { .. }
            | Setting::Mba { .. }
            | Setting::MbaRate { .. } => {
                notes.extend(self.part(group, &step.set)?);
            }
            Setting::Lock { level, mask, size } => {
                notes.extend(self.lock_memory(group, *level, *mask, *size)?);
            }
            set => {
                self.extend(group, enforce::controllers(set))?;
                let home = self.group(group)?.home.clone();
                let cgroups = self.cgroups.clone();
                notes.extend(enforce::apply(&mut self.hands()?, &cgroups, &home, set)?);
            }
        }
        Ok(notes)
    }

    pub(super) fn hands(&mut self) -> Result<Hands<'_>> {
        let session = self
            .session
            .as_mut()
            .ok_or_else(|| Error::refused("no hold on the machine"))?;
        Ok(Hands::new(&self.files, session.journal()))
    }

    pub(super) fn group(&self, name: &str) -> Result<&Group> {
        self.groups.get(name).ok_or_else(|| {
            Error::refused(format!("group {name} was not gathered before this step"))
        })
    }

    pub(super) fn group_mut(&mut self, name: &str) -> Result<&mut Group> {
        self.groups.get_mut(name).ok_or_else(|| {
            Error::refused(format!("group {name} was not gathered before this step"))
        })
    }

    /// Gives a group that is gathered further controllers: those of its cgroups that it has already, or cgroups in further
    /// hierarchies. Controllers that this machine does not have are left out.
    fn extend(&mut self, name: &str, controllers: &[Controller]) -> Result<()> {
        if controllers.is_empty() {
            return Ok(());
        }
        let cgroups = self.cgroups.clone();
        let group = self.group(name)?;
        let (mut home, matching) = (group.home.clone(), group.matching.clone());
        let layout = group.layout;
        let in_place: Vec<TaskMatch> = matching.iter().filter(|m| m.in_place()).cloned().collect();
        if in_place.is_empty() {
            let more = self.home(name, controllers, layout)?;
            for place in more.places {
                if !home.places.contains(&place) {
                    home.places.push(place);
                }
            }
        } else {
            let found = self.assigned()?.remove(name).unwrap_or_default();
            for cgroup in tasks::cgroups_of(&self.files, &in_place, &found)? {
                home.adopt(&mut self.hands()?, &cgroups, &cgroup, controllers)?;
            }
        }
        self.group_mut(name)?.home = home;
        self.collect(name)
    }

    /// Makes cgroups for a group: below what is around all of them, if anything is.
    fn home(&mut self, name: &str, controllers: &[Controller], layout: Layout) -> Result<Home> {
        let cgroups = self.cgroups.clone();
        let above = self.bound.as_ref().map(|b| b.home.clone());
        let mut hands = self.hands()?;
        Home::create_as(
            &mut hands,
            (&cgroups, above.as_ref()),
            name,
            controllers,
            layout,
        )
    }

    /// Puts a limit around all groups that are gathered from now on, and programs of none.
    fn bound(&mut self, most: Bytes) -> Result<()> {
        let cgroups = self.cgroups.clone();
        let mut hands = self.hands()?;
        let home = Home::internal(&mut hands, &cgroups, "bound", &BOUND)?;
        let Some(place) = home.dirs(&cgroups, Controller::Memory).next() else {
            return Err(Error::refused("no hierarchy carries the memory controller"));
        };
        enforce::memory::bound(&mut hands, &Memory::of(&place.hierarchy, &place.dir), most)?;
        let within = (&cgroups, Some(&home));
        let loose = Home::create_as(&mut hands, within, REST, &BOUND, Layout::default())?;
        self.bound = Some(Bound { home, loose });
        Ok(())
    }

    fn extend_memory(&mut self, name: &str) -> Result<Place> {
        self.extend(name, &[Controller::Memory])?;
        self.memory_place(name)?.ok_or_else(|| {
            Error::refused_with(
                format!("group {name}: no cgroup with the memory controller can be had"),
                "mount cgroup2 with it, or enable it in cgroup.subtree_control",
            )
        })
    }

    /// Makes whoever is in a group immune from the OOM killer, if that is to be.
    pub(super) fn immunise(&mut self, name: &str) -> Result<()> {
        let Some(group) = self.groups.get(name).filter(|g| g.immune) else {
            return Ok(());
        };
        let dirs = group.home.tasks_dirs();
        let Some(dir) = dirs.first().cloned() else {
            return Ok(());
        };
        // Processes, in v1 too: of a thread that ends nobody would know whose it was.
        let mut inside = Vec::new();
        for dir in &dirs {
            below::processes(&self.files, dir, |pid| inside.push(pid));
        }
        inside.sort_unstable();
        inside.dedup();
        for pid in inside {
            let Some(stat) = quell_kernel::procfs::stat(&self.files, pid)? else {
                continue;
            };
            enforce::memory::oom_score(&mut self.hands()?, stat.id, oom::IMMUNE, &dir)?;
        }
        Ok(())
    }

    /// Keeps files in memory, charged to the group.
    fn lock_files(&mut self, name: &str, files: &[String]) -> Result<String> {
        self.extend(name, &[Controller::Memory])?;
        // Into cgroups that are changed in place, too: pages are charged to where they are touched.
        let places = &self.group(name)?.home.places;
        let doors: Vec<String> = places
            .iter()
            .map(|p| format!("{}/cgroup.procs", p.tasks_dir()))
            .collect();
        let (session, _) = self.session()?;
        let lease = Arc::clone(session.lease());
        let mut beat = || {
            if !lease.is_revoked() {
                lease.beat(rt::now());
            }
        };
        let keeper = Keeper::start(&self.tools.keeper, files, &doors, &mut beat)?;
        let note = format!(
            "group {name}: {} of files are locked in memory",
            keeper.bytes
        );
        self.group_mut(name)?.keeper = Some(keeper);
        Ok(note)
    }

    fn gather(
        &mut self,
        name: &str,
        matching: &[TaskMatch],
        layout: Layout,
    ) -> Result<Vec<String>> {
        let mut controllers = vec![Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];
        controllers.extend(self.bound.iter().flat_map(|_| BOUND));
        let cgroups = self.cgroups.clone();
        let cpus = self.all_cpus()?;
        let mut notes = Vec::new();
        let in_place: Vec<TaskMatch> = matching.iter().filter(|m| m.in_place()).cloned().collect();
        let mut home = if in_place.is_empty() {
            self.home(name, &controllers, layout)?
        } else {
            Home {
                group: name.to_owned(),
                places: Vec::new(),
            }
        };
        self.groups.insert(
            name.to_owned(),
            Group {
                home: home.clone(),
                layout,
                matching: matching.to_vec(),
                cpus,
                immune: false,
                limit_most: Level::Enforced,
                watched: false,
                keeper: None,
                ledger: Some(Ledger::new(rt::ticks_since_boot())),
            },
        );
        if matching.is_empty() {
            return Ok(notes);
        }
        let found = self.assigned()?.remove(name).unwrap_or_default();
        let named = tasks::cgroups_of(&self.files, &in_place, &found)?;
        let within = layout.braked && !in_place.is_empty();
        if within {
            self.check_in_place(name, &named)?;
        }
        for cgroup in named {
            home.adopt(&mut self.hands()?, &cgroups, &cgroup, &controllers)?;
        }
        if within {
            threaded::divide(&mut self.hands()?, &cgroups, &mut home)?;
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.home = home;
        }
        if found.is_empty() {
            notes.push(format!(
                "group {name}: no task matches yet; it is looked for every second"
            ));
        }
        self.collect(name)?;
        Ok(notes)
    }

    pub(super) fn matchers(&self) -> Result<Vec<Matcher>> {
        self.groups
            .iter()
            .map(|(name, g)| Matcher::new(&self.files, name, &g.matching))
            .collect()
    }

    /// Processes of ours that no group gets, whatever it matches.
    fn never(&self) -> BTreeSet<u32> {
        let watchdog = self.session.as_ref().and_then(Session::watchdog_pid);
        let brakes = self.brakes.iter().filter_map(|r| r.brake.pid());
        watchdog.into_iter().chain(brakes).collect()
    }

    pub(super) fn assigned(&self) -> Result<tasks::Assigned> {
        tasks::assign(&self.files, &self.matchers()?, &self.never())
    }

    /// Moves the tasks of a group that are still outside into its cgroups.
    pub(super) fn collect(&mut self, name: &str) -> Result<()> {
        let home = self.group(name)?.home.clone();
        if !home.places.iter().any(Place::collects) {
            return Ok(());
        }
        let (matchers, never) = (self.matchers()?, self.never());
        let mut find = |files: &dyn Files| {
            Ok(tasks::assign(files, &matchers, &never)?
                .remove(name)
                .unwrap_or_default())
        };
        home.gather(&mut self.hands()?, &mut find)?;
        Ok(())
    }

    fn confine(
        &mut self,
        name: &str,
        cpus: &CpuSet,
        mems: &CpuSet,
        exclusive: bool,
    ) -> Result<Vec<String>> {
        let home = self.group(name)?.home.clone();
        let cgroups = self.cgroups.clone();
        let pids: Vec<u32> = match cgroups.of(Controller::Cpuset) {
            Some(_) => Vec::new(),
            None => self
                .assigned()?
                .remove(name)
                .unwrap_or_default()
                .iter()
                .map(|s| s.id.pid)
                .collect(),
        };
        let confined = cores::confine(
            &mut self.hands()?,
            &cgroups,
            &home,
            cpus,
            mems,
            exclusive,
            &pids,
        )?;
        if let Some(group) = self.groups.get_mut(name) {
            group.cpus = cpus.clone();
        }
        Ok(confined.notes)
    }

    fn confine_rest(&mut self, cpus: &CpuSet) -> Result<Vec<String>> {
        let cgroups = self.cgroups.clone();
        let homes: Vec<Home> = self.groups.values().map(|g| g.home.clone()).collect();
        let homes: Vec<&Home> = homes.iter().collect();
        let processes: BTreeSet<u32> = [std::process::id()].into();
        let keep = Keep {
            homes: &homes,
            processes: &processes,
        };
        let mut notes = cores::confine_rest(&mut self.hands()?, &cgroups, keep, cpus)?;
        self.rest = Some(cpus.clone());
        // Our own process stays free, so that brakes can be pinned anywhere; this thread keeps off.
        if let Some(session) = &self.session {
            session.stay_on(&self.files, cpus);
        }
        let all = self.all_cpus()?;
        let quiet = all.difference(cpus);
        // Who was put there is not left there.
        let mut except = processes;
        for place in homes.iter().flat_map(|h| &h.places) {
            except.extend(below::tasks(&self.files, &place.dir));
        }
        notes.extend(remaining::remaining_on(&self.files, &quiet, &except)?.sentences(&quiet));
        Ok(notes)
    }
}
