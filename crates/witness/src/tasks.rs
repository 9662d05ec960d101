//! Looks at every thread of the machine.
//!
//! One system call for each thread's CPUs, and what it takes to find the new threads ([`Census`]).
//! The kernel's threads are remembered. Only of a thread that may break a promise is more read: its
//! `stat`, its time and its cgroup.

use std::collections::{BTreeSet, HashMap, HashSet};

use quell_kernel::procfs::{self, Stat};
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;

use crate::alone::{Spent, Thread, is_placed, meet};
use crate::census::{Census, told};
use crate::claim::Party;
use crate::homes::Homes;
use crate::matches::Matches;
use quell_types::witness::Fault;

/// The most threads that are read further in one look. Of more nothing is known, and that is said.
const MOST: usize = 256;
/// The most that are looked at for that, with those that have ended.
const MOST_LOOKED_AT: usize = 4096;
/// The most threads of a group whose time is read at each look, to see whether they share a CPU.
const SAMPLED: usize = 64;
/// Age in seconds below which a task may not have been gathered yet.
const YOUNG: u64 = 1;

/// A claim that CPUs are a group's alone, or are those of several groups that take turns.
#[derive(Clone, Debug)]
pub(crate) struct Exclusive {
    /// Places of the groups in the list of parties.
    pub groups: Vec<usize>,
    pub cpus: CpuSet,
    /// Whether it is looked whether the groups' threads share a CPU.
    pub spread: bool,
    /// Whether the time of the groups' threads is needed.
    pub sampled: bool,
}

impl Exclusive {
    /// The group of a thread that is in these groups, as far as the claim is about it.
    pub fn group(&self, groups: &[usize]) -> Option<usize> {
        self.groups.iter().copied().find(|g| groups.contains(g))
    }
}

/// What a look needs to know beforehand.
pub(crate) struct View<'a> {
    pub files: &'a dyn Files,
    pub parties: &'a [Party],
    pub homes: &'a Homes,
    pub exclusive: &'a [Exclusive],
    /// Processes of Quell itself.
    pub ignore: &'a BTreeSet<u32>,
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Threads of parties, and those that may run on exclusive CPUs.
    pub threads: Vec<Thread>,
    /// The first matched thread outside of its party's homes, by party.
    pub outside: HashMap<usize, Fault>,
    /// Why not all threads were seen.
    pub blind: Option<String>,
}

/// What is remembered between looks.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    pub matches: Matches,
    census: Census,
    /// Time run and time waited, by thread.
    spent: HashMap<u32, Spent>,
    /// What was read of them in this look.
    fresh: HashMap<u32, Spent>,
}

/// Clock ticks since boot. `None` where the kernel does not say it.
fn uptime(files: &dyn Files) -> Option<u64> {
    let text = files.read("/proc/uptime").ok()?;
    let (seconds, rest) = text.split_once('.')?;
    let hundredths = rest.split(' ').next()?.parse::<u64>().ok()?;
    let seconds = seconds.parse::<u64>().ok()?;
    let ticks = rustix::param::clock_ticks_per_second();
    let part = hundredths.checked_mul(ticks)? / 100;
    seconds.checked_mul(ticks)?.checked_add(part)
}

/// The CPUs of a thread: by system call, or as its `status` says where the root is not the running
/// kernel's. `None` where it has ended.
fn allowed(files: &dyn Files, tid: u32) -> Option<CpuSet> {
    match files.affinity(tid) {
        Ok(cpus) => Some(cpus),
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            let text = files.read(&format!("/proc/{tid}/status")).ok()?;
            let key = "Cpus_allowed_list:";
            let list = text.lines().find_map(|line| line.strip_prefix(key))?;
            list.trim().parse().ok()
        }
        Err(_) => None,
    }
}

/// Why fewer threads were seen than the kernel counts. `None` where the difference can be births
/// and deaths meanwhile.
fn blindness(seen: usize, hidden: usize, counted: Option<usize>) -> Option<String> {
    let missing = counted.unwrap_or(seen).saturating_sub(seen);
    if hidden == 0 && missing <= 8 + seen / 16 {
        return None;
    }
    let of = counted.unwrap_or(seen + hidden);
    Some(format!(
        "/proc shows {seen} of {of} threads (hidepid, or another PID namespace)"
    ))
}

/// A thread that was found, before it is judged.
struct Found {
    tid: u32,
    pid: u32,
    cpus: CpuSet,
    /// Numbers of the places where it is.
    places: Vec<usize>,
}

impl Tasks {
    /// What is to be remembered, for these parties.
    pub fn new(files: &dyn Files, parties: &[Party]) -> Self {
        Self {
            matches: Matches::new(files, parties),
            ..Self::default()
        }
    }

    /// Looks at all threads.
    pub fn look(&mut self, view: &View<'_>) -> Scan {
        let files = view.files;
        let mut scan = Scan::default();
        let mut at_home = view.homes.threads(files);
        let mut census = std::mem::take(&mut self.census);
        if let Err(e) = census.update(files) {
            scan.blind = Some(format!("/proc cannot be listed: {e}"));
            return scan;
        }
        let pids: Vec<u32> = census.threads.keys().copied().collect();
        self.matches.update(files, &pids);
        let mut reader = Reader {
            left: MOST,
            reads: MOST_LOOKED_AT,
            spent: false,
            uptime: uptime(files),
        };
        let mut ended = HashSet::new();
        for (&pid, tids) in &census.threads {
            if view.ignore.contains(&pid) || self.matches.is_kernel(pid) {
                continue;
            }
            let matched = self.matches.party(pid, view.ignore);
            for &tid in tids {
                let Some(cpus) = allowed(files, tid) else {
                    ended.insert(tid);
                    continue;
                };
                let places = at_home.remove(&tid).unwrap_or_default();
                let found = Found {
                    tid,
                    pid,
                    cpus,
                    places,
                };
                self.take(view, found, matched, &mut reader, &mut scan);
            }
        }
        census.forget(&ended);
        let seen = census.threads.values().map(Vec::len).sum();
        scan.blind = blindness(seen, census.hidden, told(files).map(|(count, _)| count));
        if reader.spent {
            let why = "more threads may break a promise than a look reads";
            scan.blind.get_or_insert_with(|| why.to_owned());
        }
        self.census = census;
        self.sample(view, &mut scan);
        self.spent = std::mem::take(&mut self.fresh);
        scan
    }

    /// Looks at one thread, and reads more of it where it may break a promise.
    fn take(
        &mut self,
        view: &View<'_>,
        found: Found,
        matched: Option<usize>,
        reader: &mut Reader,
        scan: &mut Scan,
    ) {
        let places = &view.homes.places;
        let mut groups: Vec<usize> = found.places.iter().map(|n| places[*n].party).collect();
        groups.extend(matched);
        groups.sort_unstable();
        groups.dedup();
        if let Some(party) = matched {
            let missing = |(n, _): &(usize, _)| !found.places.contains(n);
            if !scan.outside.contains_key(&party)
                && view.homes.of(party).any(|place| missing(&place))
                && let Some(fault) = self.outside(view, &found, party, reader)
            {
                scan.outside.insert(party, fault);
            }
        }
        let wrong = view
            .exclusive
            .iter()
            .any(|claim| match claim.group(&groups) {
                Some(group) => !is_placed(&found.cpus, &claim.cpus, &view.parties[group].cpus),
                None => meet(&found.cpus, &claim.cpus),
            });
        let mut thread = Thread {
            tid: found.tid,
            pid: found.pid,
            cpus: found.cpus,
            groups,
            ..Thread::default()
        };
        if wrong && !self.read(view, &mut thread, reader) {
            return;
        }
        if wrong || !thread.groups.is_empty() {
            scan.threads.push(thread);
        }
    }

    /// Reads more of a thread that may break a promise. Returns whether it is still there.
    fn read(&mut self, view: &View<'_>, thread: &mut Thread, reader: &mut Reader) -> bool {
        let files = view.files;
        let Some(stat) = reader.thread(files, thread.pid, thread.tid) else {
            return false;
        };
        let bound_by_kernel = stat.bound() && !stat.io_worker();
        if stat.kernel_thread() || bound_by_kernel {
            return false;
        }
        // It may have gone home since the homes were read. Then its CPUs were read too early, too.
        if let Some(now) = view.homes.places_of(files, thread.tid) {
            let parties = now.iter().map(|n| view.homes.places[*n].party);
            let before = thread.groups.len();
            thread.groups.extend(parties);
            thread.groups.sort_unstable();
            thread.groups.dedup();
            if thread.groups.len() > before {
                let Some(cpus) = allowed(files, thread.tid) else {
                    return false;
                };
                thread.cpus = cpus;
            }
        }
        // A program that Quell launches may be on its way, and so may a thread of a group within
        // what is its group's.
        let launched = self.matches.is_child(thread.pid, view.ignore);
        let at_home = !thread.groups.is_empty() && !is_strange(view, thread);
        let young = reader.is_young(stat.id.start);
        thread.exempt = young && (launched || at_home);
        thread.comm = stat.comm;
        thread.last_cpu = Some(stat.last_cpu);
        thread.running = stat.state == 'R';
        thread.spent = self.spent_by(files, thread.tid, young);
        true
    }

    /// What a thread used since the last look. A young one that the last look did not see used all
    /// of its time since.
    fn spent_by(&mut self, files: &dyn Files, tid: u32, young: bool) -> Option<Spent> {
        let (ran, waited) = procfs::schedstat(files, tid).ok()??;
        self.fresh.insert(tid, Spent { ran, waited });
        let before = match self.spent.get(&tid) {
            Some(before) if before.ran <= ran => *before,
            _ if young => Spent::default(),
            _ => return None,
        };
        Some(Spent {
            ran: ran - before.ran,
            waited: waited.saturating_sub(before.waited),
        })
    }

    /// Why a matched thread is outside of its party's homes. `None` where it is not, is not the
    /// party's any more, ends, or is younger than a gathering.
    fn outside(
        &mut self,
        view: &View<'_>,
        found: &Found,
        party: usize,
        reader: &mut Reader,
    ) -> Option<Fault> {
        let files = view.files;
        let stat = reader.thread(files, found.pid, found.tid)?;
        if stat.kernel_thread() || reader.is_young(stat.id.start) {
            return None;
        }
        let now = view.homes.places_of(files, found.tid)?;
        let (_, place) = view.homes.of(party).find(|(n, _)| !now.contains(n))?;
        if self.matches.confirmed(files, found.pid, view.ignore) != Some(party) {
            return None;
        }
        let dirs = view.homes.dirs_of(files, found.tid);
        let dir = dirs.iter().find(|(mount, _)| *mount == place.mount);
        let cgroup = dir.map_or("", |(mount, dir)| dir.strip_prefix(mount).unwrap_or(dir));
        Some(Fault::Outside {
            tid: found.tid,
            pid: found.pid,
            comm: stat.comm,
            cgroup: match cgroup {
                "" => "/".to_owned(),
                path => path.to_owned(),
            },
            home: place.homes.first()?.clone(),
        })
    }

    /// Reads the time of the groups' own threads, where a claim needs it.
    fn sample(&mut self, view: &View<'_>, scan: &mut Scan) {
        for claim in view.exclusive.iter().filter(|claim| claim.spread) {
            let own = |t: &&mut Thread| !t.exempt && claim.group(&t.groups).is_some();
            let count = scan.threads.iter_mut().filter(own).count();
            if claim.cpus.len() < 2 || count > MOST || (count > SAMPLED && !claim.sampled) {
                continue;
            }
            for thread in scan.threads.iter_mut().filter(own) {
                thread.spent = self.spent_by(view.files, thread.tid, false);
                // Where it ran is needed only of a thread that waits.
                if claim.sampled
                    && thread.last_cpu.is_none()
                    && thread.spent.is_some_and(|s| s.waited > 0)
                    && let Ok(Some(stat)) = procfs::thread_stat(view.files, thread.pid, thread.tid)
                {
                    thread.last_cpu = Some(stat.last_cpu);
                }
            }
        }
    }

    /// Nanoseconds that threads of the kernel, and of Quell, ran so far, as far as they may run on
    /// these CPUs.
    pub fn exempt_time(
        &self,
        files: &dyn Files,
        cpus: &CpuSet,
        ignore: &BTreeSet<u32>,
    ) -> HashMap<u32, u64> {
        let quells = ignore.iter().flat_map(|pid| procfs::threads(files, *pid));
        let tids = self.matches.kernel().into_iter().chain(quells.flatten());
        let here = |tid: &u32| allowed(files, *tid).is_some_and(|may| meet(&may, cpus));
        let time = |tid: u32| Some((tid, procfs::schedstat(files, tid).ok()??.0));
        tids.filter(here).filter_map(time).collect()
    }
}

/// Whether a thread may run on CPUs that another group has to itself.
fn is_strange(view: &View<'_>, thread: &Thread) -> bool {
    view.exclusive
        .iter()
        .filter(|claim| claim.group(&thread.groups).is_none())
        .any(|claim| meet(&thread.cpus, &claim.cpus))
}

/// What bounds the reading of one look.
struct Reader {
    /// How many more threads may be read that have not ended.
    left: usize,
    /// How many more may be looked at for that.
    reads: usize,
    /// Whether there were more.
    spent: bool,
    /// Clock ticks since boot.
    uptime: Option<u64>,
}

impl Reader {
    /// A thread that runs or may run. Those that have ended and were not reaped are not counted, so
    /// that nobody hides others behind them.
    fn thread(&mut self, files: &dyn Files, pid: u32, tid: u32) -> Option<Stat> {
        let Some(reads) = self.reads.checked_sub(1).filter(|_| self.left > 0) else {
            self.spent = true;
            return None;
        };
        self.reads = reads;
        let stat = procfs::thread_stat(files, pid, tid).ok()??;
        if stat.leaving() {
            return None;
        }
        self.left -= 1;
        Some(stat)
    }

    /// Whether a task was born, in clock ticks since boot, so lately that it may not have been
    /// gathered yet.
    fn is_young(&self, start: u64) -> bool {
        let ticks = rustix::param::clock_ticks_per_second();
        self.uptime.is_some_and(|now| now < start + YOUNG * ticks)
    }
}
