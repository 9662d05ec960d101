//! Regulated CPUs: how their brakes are started, what the record has of each, and budgets that are
//! split again by demand.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_control::config::Meter as MeterKind;
use quell_control::config::{Frame, Regulation};
use quell_control::pooled::Pooled;
use quell_control::split::ByDemand;
use quell_kernel::cgroup::Controller;
use quell_kernel::cgroup_tree::listed;
use quell_kernel::error::{Error, Result};
use quell_kernel::perf::{self, Scope};
use quell_kernel::pmu::Counting;
use quell_kernel::root::Files;
use quell_kernel::{fair, rt};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::{Action, Observation, Seen, put_ahead};
use quell_record::events::{Decision, Event};
use quell_record::standing::Cause;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos};

use super::{Applied, Enforcer, cores, weight};
use crate::brake::{Brake, Decides, Grants, Lost};
use crate::group_cgroups::CgroupDir;
use crate::host::{Group, Host, finding, limits};
use crate::meter::{DirectionsMeter, EventMeter, Meter, TimeMeter};
use crate::pool::Pool;
use crate::session::Session;

/// How long a brake may take until it is in its cgroup and on its CPU.
const STARTS_WITHIN: Nanos = Nanos::secs(30);

/// A regulated CPU of a group, with its brake.
struct Regulated {
    group: String,
    brake: Brake,
    /// The regulation that the brake was started with.
    regulation: Regulation,
    /// What the record has of it so far: overflows, throttles, throttled nanoseconds, lines.
    told: [u64; 4],
    told_pooled: Pooled,
    /// Decisions taken from its ring and not yet on record. `missed` is how many are on record as
    /// lost.
    decisions: Vec<Decision>,
    missed: u64,
}

impl Regulated {
    /// Moves the decisions out of the ring, which then has room again.
    fn take(&mut self) {
        self.brake.stats().decisions.drain(&mut self.decisions);
    }

    fn totals(&self) -> [u64; 4] {
        let stats = self.brake.stats();
        [
            &stats.overflows,
            &stats.throttles,
            &stats.throttled_ns,
            &stats.lines,
        ]
        .map(|v| v.load(Ordering::Relaxed))
    }
}

/// A CPU of a regulated group that has no brake for now.
struct Absent {
    group: String,
    regulation: Regulation,
    cpu: CpuId,
}

impl Absent {
    /// Ends the brake and keeps what is needed to start another.
    fn of(regulated: Regulated) -> Self {
        Self {
            cpu: regulated.brake.cpu,
            group: regulated.group,
            regulation: regulated.regulation,
        }
    }
}

/// The budget of a group, which is split again by what its CPUs draw.
struct Splits {
    group: String,
    cpus: CpuSet,
    by: ByDemand,
}

impl Splits {
    fn new(group: &str, regulation: &Regulation, now: Nanos) -> Self {
        let group = group.to_owned();
        let cpus = regulation.cpus.clone();
        let total = Lines(regulation.budget.0.saturating_mul(cpus.len() as u64));
        let used = vec![Lines(0); cpus.len()];
        let by = ByDemand::new(total, regulation.least, regulation.period, now, used);
        Self { group, cpus, by }
    }

    /// Sets the lines per CPU. Their sum is what is split from the next time on.
    fn set_budget(&mut self, each: Lines) {
        let total = each.0.saturating_mul(self.cpus.len() as u64);
        self.by.set_total(Lines(total));
    }

    /// Splits the budget when it is time. A CPU that used up no budget since the last split counts
    /// as having drawn nothing.
    fn again(&mut self, brakes: &[Regulated], now: Nanos) {
        if now < self.by.next() {
            return;
        }
        let of = |cpu| {
            brakes
                .iter()
                .filter(|r| r.group == self.group)
                .map(|r| &r.brake)
                .find(|t| t.cpu == cpu)
        };
        let brakes: Vec<&Brake> = self.cpus.iter().filter_map(of).collect();
        let used = brakes.iter().map(|t| t.lines()).collect();
        let budgets: Vec<Lines> = brakes.iter().map(|t| t.budget()).collect();
        for (brake, part) in brakes.iter().zip(self.by.step(now, used, &budgets)) {
            brake.set_budget(part);
        }
    }
}

/// The brakes of all groups.
#[derive(Default)]
pub(crate) struct Brakes {
    brakes: Vec<Regulated>,
    /// CPUs that have no brake for now.
    absent: Vec<Absent>,
    /// What the brakes of one hold share. `None` until the first brake starts.
    pool: Option<Arc<Pool>>,
    splits: Vec<Splits>,
    /// The groups whose budgets switch with windows.
    windowed: BTreeMap<String, Arc<Grants>>,
}

impl Enforcer for Brakes {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Setting::Regulate(regulation) = set else {
            return Ok(None);
        };
        let note = self.regulate(host, group, regulation)?;
        Ok(Some(note.into_iter().collect()))
    }

    /// A brake that has ended gets no new budget. Its end was reported when it was found.
    fn act(&mut self, _: &mut Host, action: &Action) -> Result<()> {
        let Action::Budget {
            group,
            cpus,
            budget,
        } = action
        else {
            return Ok(());
        };
        let of_group = |r: &&Regulated| r.group == *group && cpus.contains(r.brake.cpu);
        let brakes = || self.brakes.iter().filter(of_group).map(|r| &r.brake);
        if let Some(one) = brakes().find(|t| t.directions) {
            return Err(Error::refused(format!(
                "CPU {} has a budget of reads and one of writes: neither is moved by one for both",
                one.cpu
            )));
        }
        for brake in brakes() {
            brake.set_budget(*budget);
        }
        let split = |s: &&mut Splits| s.group == *group && s.cpus == *cpus;
        for splits in self.splits.iter_mut().filter(split) {
            splits.set_budget(*budget);
        }
        Ok(())
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        self.replace_ended(host, seen);
        self.leave_vacant(host, seen);
        self.brake_again(host, seen);
        host.brakes = self.brakes.iter().filter_map(|r| r.brake.pid()).collect();
    }

    fn release(&mut self, host: &mut Host) {
        self.stop();
        self.absent.clear();
        self.splits.clear();
        self.windowed.clear();
        self.pool = None;
        host.brakes.clear();
    }
}

impl Brakes {
    /// Starts brakes for the groups of a frame that have budgets in their windows. Returns what the
    /// dispatcher switches, in the order of the frame's groups. `None`: no budget.
    pub fn of_windows(
        &mut self,
        host: &mut Host,
        frame: &Frame,
    ) -> Result<Vec<Option<Arc<Grants>>>> {
        let mut all = Vec::new();
        for name in frame.groups() {
            let grants = Grants::of(frame, name);
            let grants =
                grants.map_err(|e| Error::refused(format!("group {name}: no brake: {e}")))?;
            let grants = grants.map(Arc::new);
            if let Some(grants) = &grants
                && let Some(first) = grants.first()
            {
                self.windowed.insert(name.clone(), Arc::clone(grants));
                let regulation = Regulation {
                    cpus: frame.cpus.clone(),
                    ..first.clone()
                };
                self.regulate(host, name, &regulation)?;
            }
            all.push(grants);
        }
        Ok(all)
    }

    /// Holds a group's budgets with a brake on each of its CPUs. Returns a note for a person.
    fn regulate(
        &mut self,
        host: &mut Host,
        name: &str,
        regulation: &Regulation,
    ) -> Result<Option<String>> {
        host.inventory()?;
        let group_cgroups = &host.groups.one(name)?.cgroups;
        fair::required(&host.files, name, &group_cgroups.tasks_dirs())?;
        if regulation.is_capped() {
            if group_cgroups.stop_procs_files().is_empty() {
                return Err(Error::refused_with(
                    format!("group {name}: its cgroup has no room for a brake"),
                    "hold its limit by cpu.max (mechanisms.bandwidth = \"none\")",
                ));
            }
            let (mut writer, _, group) = host.of(name)?;
            weight::under_the_brake(&mut writer, &group.cgroups)?;
        }
        for cpu in regulation.cpus.iter() {
            self.throttle(host, name, regulation, cpu)?;
        }
        if regulation.split == Split::Demand {
            self.splits.push(Splits::new(name, regulation, rt::now()));
        }
        let woken = |r: &&Regulated| r.group == name && r.brake.decides == Decides::Thread;
        let woken = self.brakes.iter().filter(woken).count();
        let by_thread = self.windowed.contains_key(name) || Decides::needs_the_thread(regulation);
        Ok((woken > 0 && !by_thread).then(|| {
            format!(
                "group {name}: its brakes are woken at every budget, which costs it 20 to 40 µs each: the kernel loads no program \
                 for the counter's interrupt (CAP_BPF and CAP_PERFMON)"
            )
        }))
    }

    /// Starts the brake of one CPU of a group.
    fn throttle(
        &mut self,
        host: &mut Host,
        name: &str,
        regulation: &Regulation,
        cpu: CpuId,
    ) -> Result<()> {
        let on = CpuSet::from_iter([cpu]);
        let (mut writer, cgroups, group) = host.of(name)?;
        let group_cgroups = &group.cgroups;
        let procs_files = cores::procs_files(
            &mut writer,
            cgroups,
            group_cgroups,
            regulation.is_capped(),
            &on,
        )?;
        let dirs: Vec<String> = group_cgroups
            .dirs(cgroups, Controller::PerfEvent)
            .map(CgroupDir::tasks_dir)
            .collect();
        let failed = |what: &str, e: std::io::Error| {
            Error::refused_with(
                format!("group {name}, CPU {cpu}: {what}: {e}"),
                "quell doctor tells what is missing; mechanisms.bandwidth = \"none\" uses cpu-max instead",
            )
        };
        let [dir] = dirs.as_slice() else {
            return Err(Error::refused_with(
                format!(
                    "group {name} lives in {} cgroups that carry perf_event; what it draws is counted in one",
                    dirs.len()
                ),
                "match it by something else than its cgroup, or limit cpu-time",
            ));
        };
        let dir = perf::cgroup_dir(Path::new(dir))
            .map_err(|e| failed("its cgroup cannot be opened", e))?;
        let meter: Box<dyn Meter> = match regulation.meter {
            MeterKind::Time => {
                let meter = TimeMeter::open(&dir, cpu, regulation.peak);
                Box::new(meter.map_err(|e| failed("its CPU clock cannot be counted", e))?)
            }
            hardware => event_meter(
                hardware,
                Scope::Cgroup(dir.as_fd(), cpu),
                host.counting(cpu),
            )
            .map_err(|e| failed("its counters cannot be opened", e))?,
        };
        let pool = self.pool(host)?;
        let lease = Arc::clone(host.session()?.0.lease());
        // On a busy machine the kernel takes long to move a process.
        lease.beat(rt::now());
        lease.waits_until(rt::now().plus(STARTS_WITHIN));
        let permit = Arc::new(move |now| lease.is_held(now));
        let grants = self.windowed.get(name);
        let brake = Brake::start(cpu, regulation, meter, permit, procs_files, &pool, grants)
            .map_err(|e| failed("no brake", e));
        host.heart()();
        let brake = brake?;
        host.brakes.extend(brake.pid());
        self.brakes.push(Regulated {
            group: name.to_owned(),
            brake,
            regulation: regulation.clone(),
            told: [0; 4],
            told_pooled: Pooled::default(),
            decisions: Vec::new(),
            missed: 0,
        });
        Ok(())
    }

    /// The pool that the brakes of this hold share. Makes it if there is none.
    fn pool(&mut self, host: &mut Host) -> Result<Arc<Pool>> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let cpus = host.all_cpus()?.iter().next_back();
        let new = Arc::new(Pool::new(cpus.map_or(0, |c| c as usize + 1)));
        Ok(Arc::clone(self.pool.insert(new)))
    }

    /// Shows what the brakes did, and splits budgets again. Called several times a second.
    pub fn beat(&mut self, session: &Session, now: Nanos) {
        publish(session, &self.brakes);
        self.brakes.iter_mut().for_each(Regulated::take);
        for splits in &mut self.splits {
            splits.again(&self.brakes, now);
        }
    }

    pub fn stop(&mut self) {
        self.brakes.clear();
    }

    /// Reports what the brakes did since the last time, ahead of all else in `seen`.
    pub fn account(&mut self, seen: &mut Observation) {
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
            put_ahead(seen, Seen::Event(event));
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

    /// Reports brakes that ended by themselves. If a counter was taken away, a brake that counts
    /// CPU time replaces it.
    fn replace_ended(&mut self, host: &mut Host, seen: &mut Observation) {
        let all = std::mem::take(&mut self.brakes).into_iter();
        let (ended, mut going): (Vec<Regulated>, Vec<Regulated>) =
            all.partition(|r| r.brake.lost().is_some());
        let pooled = |r: &Regulated| r.regulation.pooling.is_some();
        let killed = |r: &Regulated| r.brake.lost() == Some(Lost::Killed);
        if ended.iter().any(|r| pooled(r) && killed(r)) {
            // A killed brake could not leave the pool, where other brakes would wait for it. So all
            // pooled brakes start again, in another pool.
            let (anew, stay) = going.into_iter().partition(pooled);
            going = stay;
            self.pool = None;
            let anew: Vec<Regulated> = anew;
            self.absent.extend(anew.into_iter().map(Absent::of));
        }
        self.brakes = going;
        // `quell status` gets their last figures.
        if let Some(session) = host.session.as_ref().filter(|_| !ended.is_empty()) {
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
            // The group's remaining CPUs keep the budgets that they have.
            self.splits
                .retain(|s| s.group != group || !s.cpus.contains(cpu));
            let regulation = Regulation {
                budget,
                ..regulation
            };
            // In windows CPU time is no substitute.
            let counted = why == Lost::Meter
                && regulation.meter == MeterKind::Hardware
                && !self.windowed.contains_key(&group);
            let by_time = counted.then(|| {
                let regulation = Regulation {
                    meter: MeterKind::Time,
                    ..regulation.clone()
                };
                self.throttle(host, &group, &regulation, cpu)
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
                seen.extend(host.worth(&group, &limits, Level::None, &because));
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
            seen.extend(host.spoil_limit(&group, most, &because));
        }
    }

    /// Starts brakes again where they were killed, and on CPUs that were taken away and are back.
    fn brake_again(&mut self, host: &mut Host, seen: &mut Observation) {
        let mut back = Vec::new();
        for absent in std::mem::take(&mut self.absent) {
            let vacant = host.groups.of.get(&absent.group);
            if vacant.is_some_and(|group| self.is_vacant(&host.files, group)) {
                self.absent.push(absent);
                continue;
            }
            match self.throttle(host, &absent.group, &absent.regulation, absent.cpu) {
                Ok(()) => back.push((absent.group, absent.cpu)),
                Err(_) => self.absent.push(absent),
            }
        }
        for (group, cpu) in back {
            let most = match host.groups.of.get(&group) {
                Some(known) if self.absent.iter().all(|a| a.group != group) => known.limit_most,
                _ => Level::None,
            };
            seen.extend(host.worth(&group, &limits, most, &Cause::Regulated { cpu }));
        }
    }

    /// Whether no program is left in a group that is braked in a cgroup that Quell did not make.
    fn is_vacant(&self, files: &dyn Files, group: &Group) -> bool {
        let brakes: BTreeSet<u32> = self.brakes.iter().filter_map(|r| r.brake.pid()).collect();
        let mut theirs = group.cgroups.places.iter().filter(|p| p.braked && !p.ours);
        theirs.any(|place| {
            // For a domain with threaded children this file lists the processes of all of them.
            let all = files.read(&format!("{}/cgroup.procs", place.dir));
            listed(&all.unwrap_or_default()).all(|pid| brakes.contains(&pid))
        })
    }

    /// Ends the brakes of groups that have no program left in a cgroup that Quell did not make. The
    /// owner of that cgroup waits until it is empty, or removes it. [`Self::brake_again`] starts
    /// the brakes when a program comes.
    fn leave_vacant(&mut self, host: &Host, seen: &mut Observation) {
        let groups = host.groups.of.iter();
        let vacant = groups.filter(|(_, group)| self.is_vacant(&host.files, group));
        let vacant: Vec<String> = vacant.map(|(name, _)| name.clone()).collect();
        for name in vacant {
            let all = std::mem::take(&mut self.brakes).into_iter();
            let (left, stay): (Vec<Regulated>, _) = all.partition(|r| r.group == name);
            self.brakes = stay;
            if left.is_empty() {
                continue;
            }
            self.splits.retain(|splits| splits.group != name);
            self.absent.extend(left.into_iter().map(Absent::of));
            let what = format!(
                "group {name}: no program is left in its cgroup: its brakes have ended until one comes"
            );
            let about = About::Mechanism {
                mechanism: Mechanism::Bandwidth,
            };
            seen.push(finding(about, what, Some(&name)));
        }
    }
}

/// Opens hardware events in `scope`, of the kind that is wanted.
fn event_meter(
    wanted: MeterKind,
    scope: Scope<'_>,
    counting: Option<&Counting>,
) -> std::io::Result<Box<dyn Meter>> {
    let [reads, writes] = counting
        .map(Counting::codes_by_direction)
        .unwrap_or_default();
    let meter = match wanted {
        MeterKind::Directions { .. } => {
            return Ok(Box::new(DirectionsMeter::open(&reads, &writes, scope)?));
        }
        MeterKind::Reads => EventMeter::open(&reads, scope),
        MeterKind::Writes => EventMeter::open(&writes, scope),
        MeterKind::Hardware | MeterKind::Time => EventMeter::open(&[reads, writes].concat(), scope),
    };
    Ok(Box::new(meter?))
}

/// Writes what the brakes did into the lease's page, for `quell status`.
fn publish(session: &Session, brakes: &[Regulated]) {
    // Sums over the groups on each CPU, and whether all their brakes run.
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
