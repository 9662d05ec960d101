//! Waiting, and what a hold does meanwhile: the heartbeat, newborn tasks, drift, the brakes' figures.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_kernel::error::{Error, Result};
use quell_kernel::tasks::Matcher;
use quell_kernel::{fair, rt, signals};
use quell_plan::Setting;
use quell_record::backend::{Observation, Seen};
use quell_record::events::{Declared, Event, Spent};
use quell_record::standing::Cause;
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::mechanism::Level;
use quell_types::options::OnDrift;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags};

use super::worth::limits;
use super::{Absent, Linux, NEVER, Regulated};
use crate::brake::Lost;
use crate::clients::{self, Clients, Membership};
use crate::drift;
use crate::enforce::threaded;
use crate::resident::Keeper;
use crate::session::Session;
use crate::units::Units;

/// How often the heartbeat is renewed.
const BEAT: Nanos = Nanos::millis(100);
/// How often newborn tasks, drift and the brakes are looked after.
const LOOK: Nanos = Nanos::secs(1);

impl Linux {
    pub(super) fn beat_if_due(&mut self) -> Result<Option<String>> {
        let now = rt::now();
        if now < self.next_beat {
            return Ok(None);
        }
        self.next_beat = now.plus(BEAT);
        let Some(session) = self.session.as_mut() else {
            return Ok(None);
        };
        publish(session, &self.brakes);
        self.brakes.iter_mut().for_each(Regulated::take);
        for splits in &mut self.splits {
            splits.again(&self.brakes, now);
        }
        session.beat(&self.files, &self.cgroups, now)
    }

    /// Tells what the brakes did since the last time, before anything else seen meanwhile.
    fn account(&mut self, seen: &mut Observation) {
        for regulated in &mut self.brakes {
            let now = regulated.totals();
            let [overflows, throttles, throttled_ns, lines] =
                std::array::from_fn(|i| now[i] - regulated.told[i]);
            regulated.told = now;
            let did = regulated.brake.pooled();
            let before = std::mem::replace(&mut regulated.told_pooled, did.unwrap_or_default());
            let event = Event::Throttle {
                cpu: regulated.brake.cpu,
                group: regulated.group.clone(),
                overflows,
                throttles,
                throttled_ns,
                lines,
                pooled: did.map(|did| did.less(before)),
            };
            seen.insert(0, Seen::Event(event));
            regulated.take();
            let missed = regulated.brake.stats().decisions.missed();
            let lost = missed - std::mem::replace(&mut regulated.missed, missed);
            if lost > 0 || !regulated.decisions.is_empty() {
                let decisions = std::mem::take(&mut regulated.decisions);
                let group = regulated.group.clone();
                seen.push(Seen::Decisions(group, regulated.brake.cpu, decisions, lost));
            }
        }
    }

    /// Tells what the groups' threads have spent since the last time.
    fn tell_spent(&mut self, seen: &mut Observation) {
        for (name, group) in &mut self.groups {
            let Some(ledger) = group.ledger.as_mut() else {
                continue;
            };
            let dirs = group.home.tasks_dirs();
            match ledger.look(&self.files, &dirs) {
                // Nobody is there.
                Ok(Some(spent)) if spent == Spent::default() => {}
                Ok(Some(spent)) => {
                    let group = name.clone();
                    // Before anything that ends the hold.
                    seen.insert(0, Seen::Event(Event::Spent { group, spent }));
                }
                Ok(None) => group.ledger = None,
                Err(e) => {
                    group.ledger = None;
                    let what = format!("what group {name} spends is not told: {e}");
                    seen.push(Seen::Event(Event::Finding {
                        what,
                        group: Some(name.clone()),
                    }));
                }
            }
        }
    }

    /// The slow duties of a hold: newborn tasks, drift, brakes that ended.
    fn look(&mut self, seen: &mut Observation) -> Result<()> {
        let finding =
            |what: String, group: Option<String>| Seen::Event(Event::Finding { what, group });
        self.account(seen);
        self.tell_spent(seen);
        self.replace_ended(seen);
        self.leave_vacant(seen);
        self.brake_again(seen);
        let matched: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, g)| !g.matching.is_empty())
            .map(|(n, _)| n.clone())
            .collect();
        for name in matched {
            if !self.session.as_ref().is_some_and(Session::still_held) {
                return Ok(());
            }
            let adopted = self.adopt_late(&name, seen);
            if let Err(e) = adopted.and_then(|()| self.collect(&name)) {
                seen.push(finding(e.to_string(), Some(name)));
            }
        }
        self.find_exempt(seen);
        self.look_after_memory(seen);
        seen.extend(self.look_after_parts());
        if let Some(session) = &self.session {
            let held = || session.still_held();
            for what in drift::look(&self.files, session.changes(), self.on_drift, &held) {
                seen.push(finding(what, None));
                if self.on_drift == OnDrift::Stop {
                    seen.push(Seen::Stop(0));
                }
            }
        }
        Ok(())
    }

    /// Tasks of limited groups that the fair scheduler does not schedule (they turned so, or were
    /// born so), and cgroups of braked groups that others changed. A group's promise is lost with
    /// the first, and stays lost: what ran was not limited.
    fn find_exempt(&mut self, seen: &mut Observation) {
        let steps = self.plan.iter().flat_map(|plan| &plan.steps);
        let limited = steps.filter(|s| limits(&s.set));
        let mut limited: Vec<GroupId> = limited.filter_map(|s| s.group.clone()).collect();
        limited.dedup();
        let replaced = fair::replaced_by(&self.files);
        for name in limited {
            let Some(group) = self.groups.get(&name) else {
                continue;
            };
            if group.limit_most == Level::None {
                continue;
            }
            let because = match &replaced {
                Some(scheduler) => Cause::Exempt {
                    task: format!("the sched_ext scheduler '{scheduler}' was loaded"),
                },
                None => match fair::exempt(&self.files, &group.home.tasks_dirs()) {
                    Some(task) => Cause::Exempt {
                        task: task.to_string(),
                    },
                    None => match threaded::lost(&self.files, &group.home) {
                        Some(why) => Cause::Loose { why },
                        None => continue,
                    },
                },
            };
            // What the watchdog has taken back was changed by nobody else.
            if !self.session.as_ref().is_some_and(Session::still_held) {
                return;
            }
            seen.extend(self.spoil_limit(&name, Level::None, &because));
        }
    }

    /// Brakes that ended by themselves, each told. One whose counter was taken away is followed by one that counts CPU time.
    fn replace_ended(&mut self, seen: &mut Observation) {
        let all = std::mem::take(&mut self.brakes).into_iter();
        let (ended, mut going): (Vec<Regulated>, Vec<Regulated>) =
            all.partition(|r| r.brake.lost().is_some());
        let pooled = |r: &Regulated| r.regulation.pooling.is_some();
        let killed = |r: &Regulated| r.brake.lost() == Some(Lost::Killed);
        if ended.iter().any(|r| pooled(r) && killed(r)) {
            // It could not leave the pool, where the others would wait for it: all begin anew in another one.
            let (anew, stay) = going.into_iter().partition(pooled);
            going = stay;
            self.pool = None;
            let anew: Vec<Regulated> = anew;
            self.absent.extend(anew.into_iter().map(Absent::of));
        }
        self.brakes = going;
        // The last that `quell status` hears of them.
        if let Some(session) = self.session.as_ref().filter(|_| !ended.is_empty()) {
            publish(session, &ended);
        }
        for Regulated {
            group,
            brake,
            regulation,
            ..
        } in ended
        {
            let (cpu, budget) = (brake.cpu, brake.budget());
            let Some(why) = brake.lost() else {
                continue;
            };
            drop(brake);
            // What is left of a group's CPUs keeps what it has.
            self.splits
                .retain(|s| s.group != group || !s.cpus.contains(cpu));
            let regulation = Regulation {
                budget,
                ..regulation
            };
            let counted = why == Lost::Meter && regulation.meter == Meter::Hardware;
            let by_time = counted.then(|| {
                let regulation = Regulation {
                    meter: Meter::Time,
                    ..regulation.clone()
                };
                self.throttle(&group, &regulation, cpu)
            });
            let because = match &by_time {
                Some(Ok(())) => Cause::CountedByTime {
                    cpu,
                    why: why.to_string(),
                },
                Some(Err(e)) => Cause::Unregulated {
                    cpu,
                    why: format!("{why}, and CPU time cannot be counted instead ({e})"),
                },
                None => Cause::Unregulated {
                    cpu,
                    why: why.to_string(),
                },
            };
            if matches!(why, Lost::WrongCpu | Lost::Killed) {
                seen.extend(self.worth(&group, &limits, Level::None, &because));
                self.absent.push(Absent {
                    group,
                    regulation,
                    cpu,
                });
                continue;
            }
            let most = match by_time {
                Some(Ok(())) => Level::Estimated,
                _ => Level::None,
            };
            seen.extend(self.spoil_limit(&group, most, &because));
        }
    }

    /// Brakes where they were killed, and for CPUs that were taken away and are back.
    fn brake_again(&mut self, seen: &mut Observation) {
        let mut back = Vec::new();
        for absent in std::mem::take(&mut self.absent) {
            let vacant = self.groups.get(&absent.group);
            if vacant.is_some_and(|group| self.is_vacant(group)) {
                self.absent.push(absent);
                continue;
            }
            match self.throttle(&absent.group, &absent.regulation, absent.cpu) {
                Ok(()) => back.push((absent.group, absent.cpu)),
                Err(_) => self.absent.push(absent),
            }
        }
        for (group, cpu) in back {
            let most = match self.groups.get(&group) {
                Some(known) if self.absent.iter().all(|a| a.group != group) => known.limit_most,
                _ => Level::None,
            };
            seen.extend(self.worth(&group, &limits, most, &Cause::Regulated { cpu }));
        }
    }

    /// Newborn tasks of immune groups, and keepers that ended.
    fn look_after_memory(&mut self, seen: &mut Observation) {
        let names: Vec<String> = self.groups.keys().cloned().collect();
        for name in names {
            if let Err(e) = self.immunise(&name) {
                let what = format!("group {name}: {e}");
                seen.push(Seen::Event(Event::Finding {
                    what,
                    group: Some(name.clone()),
                }));
            }
            let keeper = self.groups.get_mut(&name).and_then(|g| g.keeper.as_mut());
            if let Some(how) = keeper.and_then(Keeper::ended) {
                let files = |set: &Setting| matches!(set, Setting::LockFiles { .. });
                let because = Cause::KeeperEnded {
                    how: how.to_string(),
                };
                seen.extend(self.worth(&name, &files, Level::None, &because));
                if let Some(group) = self.groups.get_mut(&name) {
                    group.keeper = None;
                }
            }
        }
    }

    /// Tells the units of work that were printed, and at the end of a wait those in the sessions: their programs wake nobody.
    fn tell_units(&mut self, seen: &mut Observation, until: Nanos) {
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
        if let Some(session) = &self.session {
            session.declared(&self.declared);
        }
    }

    /// Answers programs that ask for a session, once there is a hold: nobody else listens then.
    fn answer_clients(&mut self, seen: &mut Observation) {
        let mut clients = match self.clients.take() {
            Some(clients) => clients,
            None => match self.listen(seen) {
                Ok(Some(clients)) => clients,
                Ok(None) => return,
                Err(e) => {
                    self.next_call = NEVER;
                    let what = e.to_string();
                    seen.push(Seen::Event(Event::Finding { what, group: None }));
                    return;
                }
            },
        };
        let has = |pid: u32| {
            let mut launched = self.units.values();
            launched.any(|units| units.owner() == u64::from(pid))
        };
        clients.attend(rt::now(), &has, &|| self.membership(), seen);
        self.clients = Some(clients);
    }

    /// Listens; not where programs are only launched and nothing is held: that does without.
    fn listen(&mut self, seen: &mut Observation) -> Result<Option<Clients>> {
        let running = self.observed.values().any(|o| !o.matching.is_empty());
        if self.session.is_none() && !running {
            return Ok(None);
        }
        for note in self.session()?.1 {
            seen.push(Seen::Event(Event::Finding {
                what: note,
                group: None,
            }));
        }
        Clients::listen(&self.run_root, &self.observed).map(Some)
    }

    fn membership(&self) -> Result<Membership<'_>> {
        let of_none = |name: &&String| !self.groups.contains_key(*name);
        let others = self.observed.iter().filter(|(name, _)| of_none(name));
        let mut matchers = self.matchers()?;
        for (name, observed) in others {
            matchers.push(Matcher::new(&self.files, name, &observed.matching)?);
        }
        let homes = self.groups.iter().flat_map(|(name, group)| {
            let places = group.home.places.iter().cloned();
            places.map(|place| (name.clone(), place))
        });
        Ok(Membership {
            files: &self.files,
            matchers,
            homes: homes.collect(),
        })
    }

    fn poll(&mut self, until: Nanos) -> Result<()> {
        let timeout = rt::timespec(until.since(rt::now()));
        let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for subject in &self.subjects {
            watched.extend(
                subject
                    .descriptors()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
        }
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::refused(format!("waiting failed: {e}"))),
        }
    }

    pub(super) fn observe(&mut self, until: Nanos, seen: &mut Observation) -> Result<()> {
        loop {
            match self.beat_if_due() {
                Ok(Some(note)) => seen.push(Seen::Event(Event::Finding {
                    what: note,
                    group: None,
                })),
                Ok(None) => {}
                Err(_) if self.revoked => {}
                Err(e) => {
                    self.revoked = true;
                    self.brakes.clear();
                    // The watchdog has undone it, but perhaps not a change we were in the middle of.
                    if let Some(session) = self.session.as_mut() {
                        session.undo(&self.files);
                    }
                    seen.push(Seen::Revoked(e.to_string()));
                }
            }
            for subject in &mut self.subjects {
                subject.observe(seen);
            }
            if !self.revoked && rt::now() >= self.next_call {
                self.next_call = rt::now().plus(clients::EVERY);
                self.answer_clients(seen);
            }
            self.tell_units(seen, until);
            while let Some(signal) = signals::next_signal(&self.signals) {
                seen.push(Seen::Stop(signal));
            }
            if self.session.is_some() && !self.revoked && rt::now() >= self.next_look {
                self.next_look = rt::now().plus(LOOK);
                self.look(seen)?;
            }
            if !seen.is_empty() || rt::now() >= until {
                if seen
                    .iter()
                    .any(|s| matches!(s, Seen::Exited(..) | Seen::Stop(_) | Seen::Result(..)))
                {
                    self.account(seen);
                }
                if seen
                    .iter()
                    .any(|s| matches!(s, Seen::Exited(..) | Seen::Stop(_)))
                {
                    self.tell_spent(seen);
                }
                return Ok(());
            }
            let next = if self.session.is_some() {
                until.min(self.next_beat)
            } else {
                until
            };
            self.poll(next.min(self.next_call))?;
        }
    }
}

/// Writes what the brakes did into the lease's page, for `quell status`.
fn publish(session: &Session, brakes: &[Regulated]) {
    // Of several groups on a CPU the sums.
    let mut of_cpu: BTreeMap<CpuId, ([u64; 4], bool)> = BTreeMap::new();
    for regulated in brakes {
        let (sums, all) = of_cpu.entry(regulated.brake.cpu).or_insert(([0; 4], true));
        for (sum, value) in sums.iter_mut().zip(regulated.totals()) {
            *sum += value;
        }
        *all &= regulated.brake.lost().is_none();
    }
    for (cpu, (sums, all)) in of_cpu {
        if let Some(record) = session.lease().record(cpu as usize) {
            for (slot, value) in record.0.iter().zip(sums) {
                slot.store(value, Ordering::Relaxed);
            }
            record.0[4].store(u64::from(all), Ordering::Relaxed);
        }
    }
}
