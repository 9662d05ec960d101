//! Locked memory, and memory in pages of one size.
//!
//! - A launched program locks before its first instruction ([`crate::children`]). Processes that
//!   run, and those that were forked or have executed another program, are made to lock when they
//!   are found ([`memory_lock`]).
//! - Memory is moved into large pages by the kernel, at this process's request: before a
//!   measurement begins, and every second. Nothing of that has to be reverted: content and
//!   addresses stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_kernel::error::{Error, Result};
use quell_kernel::memory::Memory;
use quell_kernel::paging::{self, Movable};
use quell_kernel::root::Files;
use quell_kernel::stat::Stat;
use quell_kernel::trace::Call;
use quell_kernel::{rt, vm};
use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::{Action, Observation, Seen};
use quell_record::events::{Event, Paged};
use quell_record::standing::Cause;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::PageSize;
use quell_types::task::TaskId;
use quell_types::units::{Bytes, Nanos};

use super::{Applied, Enforcer, Launch};
use crate::children::FirstPages;
use crate::host::{Host, finding};
use crate::memory_lock::{self, Locked};

/// The most large pages that one call of the kernel moves memory into: about 40 ms.
const AT_ONCE: u64 = 8;
/// How long the slow duties may move memory of a group.
const AT_MOST: Duration = Duration::from_millis(200);
/// Memory is looked through again after so many times what looking through it took.
const PAUSE: u64 = 50;
/// How long a look asks processes to lock that have not. The rest are asked at the next.
const ASKING: Nanos = Nanos::millis(200);
/// How long after a try a process that did not lock is asked again, at first and at last. Each time
/// it is twice as long.
const AGAIN: Nanos = Nanos::secs(1);
const SELDOM: Nanos = Nanos::secs(32);
/// The promise of large pages is lost after so many tries that left small ones.
const TRIES: u32 = 3;

/// The groups with locked memory, or with pages of one size.
#[derive(Default)]
pub(crate) struct Paging {
    of: BTreeMap<String, Wanted>,
}

/// What one group wants, and what was found.
#[derive(Default)]
struct Wanted {
    /// `prefault` of the step that locks. `None`: nothing is locked.
    lock: Option<bool>,
    pages: Option<PageSize>,
    /// Processes that lock their memory for this step.
    locked: BTreeSet<TaskId>,
    /// Processes that locked memory when they were found first. A child that still shares the
    /// memory of its parent (vfork) does.
    doubtful: BTreeSet<TaskId>,
    /// Processes that do not lock their memory. This was reported.
    failed: BTreeMap<TaskId, Again>,
    /// When memory is looked through next for small pages.
    next: Nanos,
    /// Tries in a row that left memory in small pages.
    left: u32,
    /// How often the sizes were due to be reported.
    checks: u32,
    /// What was found before the first step, until it is reported.
    before: Option<Paged>,
}

/// When a process that did not lock is asked again.
struct Again {
    at: Nanos,
    /// How long after that.
    pause: Nanos,
}

fn locks(set: &Setting) -> bool {
    matches!(set, Setting::LockMemory { .. })
}

fn sizes_pages(set: &Setting) -> bool {
    matches!(set, Setting::PageSize { .. })
}

/// The sizes of a group's memory, summed over its processes.
fn measured(host: &Host, group: &str) -> Result<Paged> {
    let mut sum = Paged::default();
    for stat in host.processes(group)? {
        let Some(sizes) = paging::sizes(&host.files, stat.id.pid)? else {
            continue;
        };
        sum.processes += 1;
        for (all, one) in [
            (&mut sum.anonymous_bytes, sizes.anonymous.0),
            (&mut sum.large_bytes, sizes.huge.0),
            (&mut sum.locked_bytes, sizes.locked.0),
            (&mut sum.minor_faults, stat.minor_faults),
            (&mut sum.major_faults, stat.major_faults),
        ] {
            *all = all.saturating_add(one);
        }
    }
    Ok(sum)
}

/// The cgroup of a group in which a process is, and its children will be. Empty: it is in none.
fn home(host: &Host, group: &str, pid: u32) -> Result<String> {
    for place in &host.groups.one(group)?.cgroups.places {
        let dir = place.hierarchy.dir_of(&host.files, pid)?;
        if dir.is_some_and(|dir| place.holds(&dir)) {
            return Ok(place.dir.clone());
        }
    }
    Ok(String::new())
}

/// The memory that programs of a group may still take: of the machine, and of the group's limit.
fn room(host: &Host, group: &str) -> Result<Option<Bytes>> {
    let files: &dyn Files = &host.files;
    let machine = vm::memory(files)?.map(|m| m.available);
    let mut within = None;
    // A group in several cgroups has no limit of its own.
    if let Ok(Some(place)) = host.memory_place(group) {
        let memory = Memory::of(&place.hierarchy, &place.dir);
        let used = files.parsed::<u64>(&memory.usage(), "a number of bytes")?;
        let limit = memory.limit(files)?;
        let left = |most: Bytes| Bytes(most.0.saturating_sub(used.unwrap_or(0)));
        within = limit.map(left);
    }
    Ok(machine.into_iter().chain(within).min())
}

impl Wanted {
    /// Makes one process lock its memory, if it does not.
    fn lock(&mut self, host: &mut Host, group: &str, stat: &Stat, filled: bool) -> Result<Locked> {
        let task = stat.id;
        let now = paging::locked(&host.files, task.pid)?;
        match now {
            // It has ended.
            None => return Ok(Locked::Nothing),
            Some(Bytes(0)) => {}
            Some(_) if self.locked.contains(&task) => return Ok(Locked::Nothing),
            Some(_) if self.doubtful.insert(task) => return Ok(Locked::Nothing),
            Some(_) => {
                let why = "it locks memory itself, and the end of the run would unlock that";
                return Ok(Locked::Not(why.to_owned()));
            }
        }
        let room = if filled { room(host, group)? } else { None };
        if let Some(why) = memory_lock::refusal(&host.files, task.pid, filled, room)? {
            return Ok(Locked::Not(why));
        }
        let mut heart = host.heart();
        let dir = home(host, group, task.pid)?;
        match memory_lock::lock(&mut host.writer()?, task, &dir, filled, &mut heart) {
            Ok(Locked::Now(stopped)) => {
                self.locked.insert(task);
                Ok(Locked::Now(stopped))
            }
            other => other,
        }
    }

    /// Makes the processes lock that are there when the step is applied. Refuses before anything is
    /// changed where none can: a user's program of the same name that cannot keeps nobody from it.
    /// What becomes of the promise is told by the next look.
    fn lock_present(&mut self, host: &mut Host, group: &str, filled: bool) -> Applied {
        let present = host.processes(group)?;
        let room = if filled { room(host, group)? } else { None };
        let mut refused = Vec::new();
        for stat in &present {
            let why = memory_lock::refusal(&host.files, stat.id.pid, filled, room)?;
            refused.extend(why.map(|why| unlocked(group, stat, &why)));
        }
        one_can(&present, refused)?;
        let (mut count, mut longest, mut refused) = (0u32, Duration::ZERO, Vec::new());
        for stat in &present {
            match self.lock(host, group, stat, filled)? {
                Locked::Nothing => {}
                Locked::Now(stopped) => {
                    count += 1;
                    longest = longest.max(stopped);
                }
                Locked::Not(why) => refused.push(unlocked(group, stat, &why)),
            }
        }
        one_can(&present, refused)?;
        let note = format!(
            "group {group}: {count} running processes lock their memory now; a thread of each was stopped for it, {} us at most",
            longest.as_micros()
        );
        Ok(Some((count > 0).then_some(note).into_iter().collect()))
    }

    /// Makes processes lock that were found since, and reports what becomes of the promise.
    fn lock_newborn(&mut self, host: &mut Host, group: &str, seen: &mut Observation) -> Result<()> {
        let Some(filled) = self.lock else {
            return Ok(());
        };
        let mut present = host.processes(group)?;
        // Whoever has not failed yet comes first.
        present.sort_by_key(|stat| self.failed.contains_key(&stat.id));
        let lost = !self.failed.is_empty();
        let begun = rt::now();
        for stat in &present {
            let now = rt::now();
            // One that waits for a child it began with vfork(2) stops for nobody, and takes what is
            // waited for that each time.
            let later = self
                .failed
                .get(&stat.id)
                .is_some_and(|again| now < again.at);
            if later || now > begun.plus(ASKING) {
                continue;
            }
            let Locked::Not(why) = self.lock(host, group, stat, filled)? else {
                self.failed.remove(&stat.id);
                continue;
            };
            let pause = self.failed.get(&stat.id).map_or(AGAIN, |again| again.pause);
            let again = Again {
                at: rt::now().plus(pause),
                pause: Nanos(pause.0 * 2).min(SELDOM),
            };
            if self.failed.insert(stat.id, again).is_none() {
                let pid = stat.id.pid;
                let because = Cause::Unlocked { pid, why };
                seen.extend(host.worth(group, &locks, Level::None, &because));
            }
        }
        let present: BTreeSet<TaskId> = present.iter().map(|s| s.id).collect();
        self.failed.retain(|task, _| present.contains(task));
        self.doubtful.retain(|task| present.contains(task));
        if lost && self.failed.is_empty() {
            seen.extend(host.worth(group, &locks, Level::Enforced, &Cause::Locked));
        }
        Ok(())
    }

    /// Moves memory into large pages, until all of it lies there or the time is over. Returns what
    /// is left in small ones and why. `None` where the time was not enough to know.
    fn enlarge(
        &mut self,
        host: &Host,
        group: &str,
        within: Option<Duration>,
    ) -> Result<Option<(Bytes, String)>> {
        let size = PageSize::Huge.bytes();
        let (begun, mut heart) = (rt::now(), host.heart());
        let (mut left, mut because) = (0, String::new());
        for stat in host.processes(group)? {
            let Some(movable) = Movable::find(&host.files, stat.id.pid, size)? else {
                continue;
            };
            let mut failed = false;
            for run in movable.runs(AT_ONCE) {
                if let Err(e) = movable.collapse(&run) {
                    failed = true;
                    because = e.to_string();
                }
                heart();
                let spent = Duration::from_nanos(rt::now().since(begun).0);
                if within.is_some_and(|within| spent > within) {
                    return Ok(None);
                }
            }
            // A process that ends loses its memory meanwhile.
            if failed && let Some(rest) = Movable::find(&host.files, stat.id.pid, size)? {
                left += rest.blocks.len() as u64 * size.0;
            }
        }
        Ok(Some((Bytes(left), because)))
    }

    /// Moves memory into large pages, and reports what becomes of the promise.
    fn enlarge_new(&mut self, host: &Host, group: &str, seen: &mut Observation) -> Result<()> {
        let begun = rt::now();
        if self.pages != Some(PageSize::Huge) || begun < self.next {
            return Ok(());
        }
        let found = self.enlarge(host, group, Some(AT_MOST))?;
        let spent = rt::now().since(begun);
        if let Some((left, why)) = found {
            self.next = begun.plus(Nanos(spent.0.saturating_mul(PAUSE)));
            let lost = self.left >= TRIES;
            self.left = if left > Bytes(0) { self.left + 1 } else { 0 };
            if !lost && self.left >= TRIES {
                let because = Cause::SmallPages { bytes: left.0, why };
                seen.extend(host.worth(group, &sizes_pages, Level::None, &because));
            } else if lost && self.left == 0 {
                let because = Cause::LargePages;
                seen.extend(host.worth(group, &sizes_pages, Level::Enforced, &because));
            }
        }
        Ok(())
    }

    /// Reports the sizes, less and less often: the kernel walks through all page tables for them.
    fn report(&mut self, host: &Host, group: &str, seen: &mut Observation) -> Result<()> {
        let put = |pages: Paged, seen: &mut Observation| {
            let group = group.to_owned();
            seen.push(Seen::Event(Event::Paged { group, pages }));
        };
        if let Some(before) = self.before.take() {
            put(before, seen);
        }
        self.checks += 1;
        if self.checks.is_power_of_two() || self.checks.is_multiple_of(16) {
            put(measured(host, group)?, seen);
        }
        Ok(())
    }
}

/// The first refusal, where all of these processes are refused.
fn one_can(present: &[Stat], refused: Vec<Error>) -> Result<()> {
    let all = refused.len() == present.len();
    refused
        .into_iter()
        .next()
        .filter(|_| all)
        .map_or(Ok(()), Err)
}

fn unlocked(group: &str, stat: &Stat, why: &str) -> Error {
    Error::refused_with(
        format!(
            "group {group}: process {} ({}): {why}",
            stat.id.pid, stat.comm
        ),
        "launch it with `command`, leave paging.locked out, or keep its memory from reclaim (reserve.memory)",
    )
}

impl Enforcer for Paging {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        if !locks(set) && !sizes_pages(set) {
            return Ok(None);
        }
        host.groups.one(group)?;
        let wanted = match self.of.entry(group.to_owned()) {
            std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let before = measured(host, group)?;
                new.insert(Wanted {
                    before: (before.processes > 0).then_some(before),
                    ..Wanted::default()
                })
            }
        };
        match set {
            Setting::LockMemory { prefault } => {
                wanted.lock = Some(*prefault);
                wanted.lock_present(host, group, *prefault)
            }
            Setting::PageSize { pages } => {
                wanted.pages = Some(*pages);
                Ok(Some(Vec::new()))
            }
            _ => Ok(None),
        }
    }

    /// Before a measurement all memory gets large pages, so that none is moved within it.
    fn act(&mut self, host: &mut Host, action: &Action) -> Result<()> {
        if !matches!(action, Action::Go { .. }) {
            return Ok(());
        }
        for (group, wanted) in &mut self.of {
            if wanted.pages == Some(PageSize::Huge) {
                wanted.enlarge(host, group, None)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, host: &mut Host, seen: &mut Observation) {
        for (group, wanted) in &mut self.of {
            let done = wanted
                .lock_newborn(host, group, seen)
                .and_then(|()| wanted.enlarge_new(host, group, seen))
                .and_then(|()| wanted.report(host, group, seen));
            if let Err(e) = done {
                let mechanism = Mechanism::Paging;
                let about = About::Mechanism { mechanism };
                seen.push(finding(about, format!("group {group}: {e}"), Some(group)));
            }
        }
    }

    fn launch(&mut self, launch: &mut Launch<'_>) -> Result<()> {
        if let Some(wanted) = self.of.get(launch.group) {
            launch.paging = FirstPages {
                lock: wanted.lock.map(Call::lock_memory),
                small: launch.paging.small || wanted.pages == Some(PageSize::Base),
            };
        }
        Ok(())
    }

    /// The launched program has locked its memory: so that this is reverted if it outlives the run.
    fn launched(&mut self, host: &mut Host, group: &str, _: Option<&CpuSet>) -> Result<()> {
        let Some(wanted) = self.of.get_mut(group).filter(|w| w.lock.is_some()) else {
            return Ok(());
        };
        let own = host.files.lock_limit(std::process::id(), None);
        let own = own.map_err(|e| Error::refused(format!("RLIMIT_MEMLOCK: {e}")))?;
        for stat in host.processes(group)? {
            let locked = paging::locked(&host.files, stat.id.pid)?;
            if locked.is_some_and(|l| l > Bytes(0)) && wanted.locked.insert(stat.id) {
                let dir = home(host, group, stat.id.pid)?;
                memory_lock::launched(&mut host.writer()?, stat.id, own, dir)?;
            }
        }
        Ok(())
    }

    fn release(&mut self, _: &mut Host) {
        self.of.clear();
    }
}
