//! The programs that a run starts, and the units of work that these and running programs report.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use quell_client::layout::VARIABLE;
use quell_kernel::error::{Error, Result};
use quell_kernel::rt;
use quell_kernel::tasks::Matcher;
use quell_plan::Observed;
use quell_record::about::About;
use quell_record::backend::{Observation, Program, Seen, SubjectId, SubjectSpec};
use quell_record::events::Declared;
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::source::Source;
use quell_types::units::Nanos;

use crate::children::{Birth, FirstPages, Subject};
use crate::clients::{self, Clients};
use crate::enforce::{Enforcers, Launch};
use crate::group_cgroups::GroupCgroups;
use crate::host::{Host, finding};
use crate::membership::Membership;
use crate::session::Session;
use crate::units::Units;

const NEVER: Nanos = Nanos(u64::MAX);

/// How long a forked child may take until it executes its program.
const EXECUTES_WITHIN: Nanos = Nanos::secs(120);

/// The programs of a run, and the sessions of programs that ran before it.
pub struct Programs {
    pub subjects: Vec<Subject>,
    /// The groups of the commands that were started in their group's cgroups.
    inside: BTreeMap<SubjectId, GroupId>,
    /// Groups whose units of work are reported.
    observed: BTreeMap<GroupId, Observed>,
    /// What programs have declared of their units, by group.
    declared: BTreeMap<GroupId, Declared>,
    units: BTreeMap<SubjectId, Units>,
    /// The sessions of programs that ask for one, once the plan wants any. `next_call` is when to
    /// look for new programs, [`NEVER`] once listening has failed.
    clients: Option<Clients>,
    pub next_call: Nanos,
}

impl Programs {
    pub fn new() -> Self {
        Self {
            subjects: Vec::new(),
            inside: BTreeMap::new(),
            observed: BTreeMap::new(),
            declared: BTreeMap::new(),
            units: BTreeMap::new(),
            clients: None,
            next_call: NEVER,
        }
    }

    /// Sets which groups' units of work a plan wants reported from now on.
    pub fn observe(&mut self, observed: &BTreeMap<GroupId, Observed>) {
        self.observed.clone_from(observed);
        let asked = observed.values().any(|o| o.source == Source::Client);
        self.next_call = if asked { Nanos(0) } else { NEVER };
    }

    /// Ends all programs. `beat` is called meanwhile.
    pub fn stop(&mut self, beat: &mut dyn FnMut()) {
        for subject in &mut self.subjects {
            subject.stop(beat);
        }
        *self = Self::new();
    }

    /// Starts a program in its group.
    pub fn start(
        &mut self,
        host: &mut Host,
        enforcers: &mut Enforcers,
        subject: &SubjectSpec,
    ) -> Result<SubjectId> {
        let command = match &subject.program {
            Program::Generator(workload) => {
                let caches = host.caches(subject.cpus.as_ref().and_then(CpuSet::first))?;
                (host.tools.generator)(workload, &caches)
            }
            Program::Command(command) => command.clone(),
        };
        // Quell may run anywhere itself. A program that belongs to no group must not inherit that.
        let all = host.all_cpus()?;
        let groups = &host.groups;
        let group = groups.of.get(&subject.group);
        let usual = group.map(|g| &g.cpus).or(groups.rest.as_ref());
        let group_cgroups = group.map(|g| &g.cgroups);
        let group_cgroups = group_cgroups.or(groups.bound.as_ref().map(|b| &b.loose));
        let id = SubjectId(u32::try_from(self.subjects.len()).unwrap_or(u32::MAX));
        let units = match self.observed.get(&subject.group) {
            Some(observed) => Units::new(id, &subject.group, observed)?,
            None => None,
        };
        let session = units.as_ref().and_then(Units::file);
        let mut env: Vec<(String, String)> = subject.env.clone().into_iter().collect();
        env.extend(session.map(|file| (VARIABLE.to_owned(), file.as_raw_fd().to_string())));
        let mut launch = Launch {
            group: &subject.group,
            id,
            subjects: &self.subjects,
            procs_files: group_cgroups
                .map(GroupCgroups::procs_files)
                .unwrap_or_default(),
            env,
            files: Vec::new(),
            paging: FirstPages::default(),
        };
        for enforcer in enforcers.each() {
            enforcer.launch(&mut launch)?;
        }
        let is_command = matches!(subject.program, Program::Command(_));
        let inside = is_command && !launch.procs_files.is_empty();
        let birth = Birth {
            command: &command,
            env: launch.env,
            procs_files: launch.procs_files,
            cpus: subject.cpus.as_ref().or(usual).unwrap_or(&all).clone(),
            generator: matches!(subject.program, Program::Generator(_)),
            capture: subject.capture,
            along: units.as_ref().is_some_and(Units::lines),
            inherits: session
                .into_iter()
                .chain(launch.files.iter().map(AsFd::as_fd))
                .collect(),
            paging: launch.paging,
        };
        // A child that enters a group of low weight may wait long for a CPU before it executes.
        let lease = host.session.as_ref().map(|s| Arc::clone(s.lease()));
        if let Some(lease) = &lease {
            lease.waits_until(rt::now().plus(EXECUTES_WITHIN));
        }
        let started = Subject::start(id, &subject.name, &birth);
        host.heart()();
        let started = started?;
        self.subjects.push(started);
        self.inside
            .extend(inside.then(|| (id, subject.group.clone())));
        self.units.extend(units.map(|units| (id, units)));
        for enforcer in enforcers.each() {
            enforcer.launched(host, &subject.group, subject.cpus.as_ref())?;
        }
        Ok(id)
    }

    /// The groups of the commands that run and were started in their group's cgroups, by process.
    pub fn running(&self) -> BTreeMap<u32, GroupId> {
        let running = self.subjects.iter().filter(|subject| subject.runs());
        let of = running.filter_map(|s| Some((s.pid(), self.inside.get(&s.id)?.clone())));
        of.collect()
    }

    pub fn subject(&mut self, id: SubjectId) -> Result<&mut Subject> {
        self.subjects
            .iter_mut()
            .find(|s| s.id == id)
            .ok_or_else(|| Error::refused(format!("there is no subject {}", id.0)))
    }

    /// Reports printed units of work at once. Units in sessions are reported at the end of a wait,
    /// because their programs wake nothing.
    pub fn tell_units(&mut self, session: Option<&Session>, seen: &mut Observation, until: Nanos) {
        let now = rt::now();
        for units in self.units.values_mut() {
            if units.lines() || !seen.is_empty() || now >= until {
                units.tell(now, seen);
            }
        }
        if let Some(clients) = &mut self.clients
            && (!seen.is_empty() || now >= until)
        {
            clients.tell_units(now, seen);
        }
        let launched = self.units.values();
        let attached = self.clients.iter().flat_map(Clients::units);
        let mut said: BTreeMap<GroupId, Declared> = BTreeMap::new();
        for (group, declared) in launched.chain(attached).map(Units::declared) {
            *said.entry(group.clone()).or_default() += declared;
        }
        said.retain(|group, declared| {
            *declared != Declared::default() || self.declared.contains_key(group)
        });
        if said == self.declared {
            return;
        }
        let changed = said
            .iter()
            .filter(|(group, declared)| self.declared.get(*group) != Some(declared));
        seen.extend(changed.map(|(group, declared)| Seen::Declared(group.clone(), *declared)));
        self.declared = said;
        if let Some(session) = session {
            session.declared(&self.declared);
        }
    }

    /// Answers programs that ask for a session, once there is a hold. Without a hold nothing
    /// listens.
    pub fn answer_clients(&mut self, host: &mut Host, seen: &mut Observation) {
        if rt::now() < self.next_call {
            return;
        }
        self.next_call = rt::now().plus(clients::EVERY);
        let mut clients = match self.clients.take() {
            Some(clients) => clients,
            None => match self.listen(host, seen) {
                Ok(Some(clients)) => clients,
                Ok(None) => return,
                Err(e) => {
                    self.next_call = NEVER;
                    let what = e.to_string();
                    seen.push(finding(About::Client, what, None));
                    return;
                }
            },
        };
        let has = |pid: u32| {
            let mut launched = self.units.values();
            launched.any(|units| units.owner() == u64::from(pid))
        };
        clients.attend(rt::now(), &has, &|| self.membership(host), seen);
        self.clients = Some(clients);
    }

    /// Begins to listen, unless programs are only launched and nothing is held.
    fn listen(&mut self, host: &mut Host, seen: &mut Observation) -> Result<Option<Clients>> {
        let running = self.observed.values().any(|o| !o.matching.is_empty());
        if host.session.is_none() && !running {
            return Ok(None);
        }
        for note in host.session()?.1 {
            seen.push(finding(About::Session, note, None));
        }
        Clients::listen(&host.run_root, &self.observed).map(Some)
    }

    fn membership<'a>(&self, host: &'a Host) -> Result<Membership<'a>> {
        let mut matchers = host.matchers()?;
        for (name, observed) in &self.observed {
            if matchers.iter().any(|matcher| matcher.group() == name) {
                continue;
            }
            matchers.push(Matcher::new(&host.files, name, &observed.matching)?);
        }
        let homes = host.groups.of.iter().flat_map(|(name, group)| {
            let places = group.cgroups.places.iter().cloned();
            places.map(|place| (name.clone(), place, group.matching.is_empty()))
        });
        Ok(Membership {
            files: &host.files,
            matchers,
            homes: homes.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use quell_client::Reader;

    use super::*;

    #[test]
    fn a_declaration_is_told_when_it_changes_and_only_then() {
        let session = Reader::create(None).unwrap();
        let memory = File::from(session.file().try_clone_to_owned().unwrap());
        let mut programs = Programs::new();
        let units = Units::of("job", quell_record::backend::TellerId(0), session);
        programs.units.insert(SubjectId(0), units);
        // Bytes per unit, where the program's half of the session has them.
        let mut told = |bytes_per_unit: u64| {
            memory
                .write_all_at(&bytes_per_unit.to_ne_bytes(), 72)
                .unwrap();
            let mut seen = Observation::new();
            programs.tell_units(None, &mut seen, Nanos(0));
            seen
        };
        let declared = |bytes_per_unit| {
            let declared = Declared {
                bytes_per_unit,
                working_set: 0,
            };
            vec![Seen::Declared("job".into(), declared)]
        };
        assert_eq!(told(0), []);
        assert_eq!(told(64), declared(64));
        assert_eq!(told(64), []);
        assert_eq!(told(128), declared(128));
        assert_eq!(told(0), declared(0));
    }
}
