//! The dispatcher of processes that take turns. At the end of each quantum it freezes the members
//! that have to wait, gives those whose turn it is their CPU, and thaws them. A member is a process
//! with all that it starts, in a cgroup of its own.
//!
//! - Who runs is decided by [`Quanta`], which is pure.
//! - A member whose processes have ended leaves its CPU to another one within a quarter of a
//!   quantum.
//! - A member that is in a system call when it is frozen stops when that returns. It is counted,
//!   and nothing waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_control::config::{ProgramDemand, Scheduling};
use quell_control::quanta::{Quanta, Ready, Turn};
use quell_control::windows::Lateness;
use quell_control::work::Work;
use quell_kernel::cgroup_tree::listed;
use quell_kernel::root::{Files, Kernel, gone};
use quell_kernel::rt;
use quell_record::quanta::{Chance, GroupTurns, Quantum, Turns};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::journal::OwnCpus;
use quell_types::units::Nanos;
use rustix::time::ClockId;

use super::{Duty, Gate, Lost, Post, late};
use crate::brake::LOOK;
use crate::placement;
use crate::work::{self, Counters};

/// The shortest time between two checks whether a running member has ended. The second one after
/// its end finds it.
const CHECK: Nanos = Nanos::millis(10);

/// A process that takes turns, with all that it starts.
#[derive(Debug)]
pub struct Member {
    /// Its number. No other member ever has it.
    pub id: u64,
    /// The place of its group among those of the scheduling.
    pub group: usize,
    /// What it demands, as far as that is not counted.
    pub demand: ProgramDemand,
    /// Counters of its threads and their children. Empty: nothing is counted.
    pub(crate) counters: Vec<Counters>,
    /// By which its cgroup is frozen.
    pub gate: Gate,
    /// The directory of its cgroup.
    pub dir: String,
    /// The file that lists the threads of its cgroup.
    pub threads: String,
    /// The CPUs that its threads had before it took turns.
    pub cpus: CpuSet,
    /// The threads that had other CPUs.
    pub own: Vec<OwnCpus>,
}

/// Members on their way to the dispatcher.
pub type Inbox = Arc<Mutex<Vec<Member>>>;
/// Decisions on their way to the record.
pub type Outbox = Arc<Mutex<Vec<Quantum>>>;

/// The most decisions that wait for the record, where its writer is stopped.
const UNWRITTEN: usize = 4_096;

/// What became of one group's members.
#[derive(Debug, Default)]
struct Figures {
    processes: AtomicU64,
    ran: AtomicU64,
    waited: AtomicU64,
    longest: AtomicU64,
}

/// What a dispatcher did, and those before it for the same scheduling.
#[derive(Debug)]
pub struct Stats {
    quanta: AtomicU64,
    skipped: AtomicU64,
    late: Lateness,
    switch: Lateness,
    unparked: AtomicU64,
    uncounted: AtomicU64,
    wall: AtomicU64,
    waiting: AtomicU64,
    own: AtomicU64,
    groups: Vec<Figures>,
}

fn add(to: &AtomicU64, time: Nanos) {
    to.fetch_add(time.0, Ordering::Relaxed);
}

impl Stats {
    /// For so many groups.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        Self {
            quanta: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            late: Lateness::default(),
            switch: Lateness::default(),
            unparked: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
            wall: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            own: AtomicU64::new(0),
            groups: (0..groups).map(|_| Figures::default()).collect(),
        }
    }

    /// Notes that a member's counters could not be read.
    pub fn uncounted(&self) {
        self.uncounted.fetch_add(1, Ordering::Relaxed);
    }

    /// For how long so far a member waited.
    #[must_use]
    pub fn waiting(&self) -> Nanos {
        Nanos(self.waiting.load(Ordering::Relaxed))
    }

    /// The figures so far, with the names of the groups. `idle` is the CPUs' idle time.
    #[must_use]
    pub fn turns(&self, by: &Scheduling, idle: Option<Nanos>) -> Turns {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let named = by.groups.keys().zip(&self.groups);
        let groups = named.map(|(group, of)| GroupTurns {
            group: group.clone(),
            processes: get(&of.processes),
            ran_ns: get(&of.ran),
            waited_ns: get(&of.waited),
            longest_wait_ns: get(&of.longest),
        });
        Turns {
            quanta: get(&self.quanta),
            skipped: get(&self.skipped),
            late: late(&self.late),
            switch: late(&self.switch),
            unparked: get(&self.unparked),
            uncounted: get(&self.uncounted),
            wall_ns: get(&self.wall),
            waiting_ns: get(&self.waiting),
            own_ns: get(&self.own),
            idle_ns: idle.map(|idle| idle.0),
            groups: groups.collect(),
        }
    }
}

/// A member, and what the dispatcher made of it.
struct Held {
    member: Member,
    /// Whether it has processes.
    there: bool,
    /// Since when it is frozen.
    frozen: Option<Nanos>,
    /// Whether it was seen to have stopped since then.
    parked: bool,
    /// Its first thread, which is a process's as a rule, and the CPU time of that process when it
    /// was last checked.
    first: Option<u32>,
    used: Option<Nanos>,
    /// What it had done when it was last read.
    did: Option<Work>,
}

/// The members that take turns.
pub struct Turning {
    files: Kernel,
    quantum: Nanos,
    quanta: Quanta,
    seed: u64,
    inbox: Inbox,
    outbox: Outbox,
    /// Decisions that are not in the outbox yet.
    decided: Vec<Quantum>,
    held: Vec<Held>,
    /// How many have a turn.
    given: usize,
    stats: Arc<Stats>,
    /// Until when the figures of the members are complete.
    settled: Nanos,
}

impl Turning {
    /// The turns of `by` on these cores. Members come through `inbox`, decisions leave through
    /// `outbox`.
    #[must_use]
    pub fn new(
        files: &Kernel,
        by: &Scheduling,
        cores: &[CpuSet],
        seed: u64,
        inbox: &Inbox,
        outbox: &Outbox,
        stats: &Arc<Stats>,
    ) -> Self {
        Self {
            files: files.clone(),
            quantum: by.quantum,
            quanta: Quanta::new(by, cores, seed),
            seed,
            inbox: Arc::clone(inbox),
            outbox: Arc::clone(outbox),
            decided: Vec::new(),
            held: Vec::new(),
            given: 0,
            stats: Arc::clone(stats),
            settled: rt::now(),
        }
    }

    /// Sleeps until `due`, or until a running member has ended while another one waits. `false`:
    /// the dispatcher is to end.
    fn rest(&mut self, post: &Post, due: Nanos) -> Result<bool, Lost> {
        let check = Nanos(self.quantum.0 / 8).max(CHECK).min(LOOK);
        loop {
            let next = due.min(rt::now().plus(check));
            if !post.sleep_until(next)? {
                return Ok(false);
            }
            if next >= due || self.is_vacant() {
                return Ok(true);
            }
        }
    }

    /// Whether a CPU is free because a member has ended, and another one waits. The list of threads
    /// is read only where the process had no CPU time since the last check: reading it takes
    /// longer.
    fn is_vacant(&mut self) -> bool {
        if !self.held.iter().any(|h| h.there && h.frozen.is_some()) {
            return false;
        }
        let mut held = std::mem::take(&mut self.held);
        let mut running = 0;
        for held in held.iter_mut().filter(|h| h.there && h.frozen.is_none()) {
            let used = held.first.and_then(rt::process_time);
            let before = std::mem::replace(&mut held.used, used);
            let threads = || self.listed(&held.member);
            if used > before || threads().is_some_and(|t| !t.is_empty()) {
                running += 1;
            }
        }
        self.held = held;
        running < self.given
    }

    /// The threads of a member. `None` where its cgroup is gone.
    fn listed(&self, member: &Member) -> Option<Vec<u32>> {
        match self.files.read(&member.threads) {
            Ok(text) => Some(listed(&text).collect()),
            Err(e) if gone(&e) => None,
            Err(_) => Some(Vec::new()),
        }
    }

    /// Adds what members did since the last time to the figures.
    fn settle(&mut self, now: Nanos) {
        let since = now.since(self.settled);
        self.settled = now;
        let stats = &self.stats;
        let mut waits = false;
        for held in self.held.iter_mut().filter(|held| held.there) {
            let Some(of) = stats.groups.get(held.member.group) else {
                continue;
            };
            match held.frozen {
                Some(_) => {
                    waits = true;
                    add(&of.waited, since);
                    held.parked = held.parked || held.member.gate.is_parked();
                    if !held.parked {
                        stats.unparked.fetch_add(1, Ordering::Relaxed);
                    }
                }
                None => add(&of.ran, since),
            }
        }
        add(&stats.wall, since);
        if waits {
            add(&stats.waiting, since);
        }
    }

    /// Takes new members in, and looks which of those that run have processes.
    fn look(&mut self) {
        // Not waited for: its owner may be stopped while it has the lock.
        if let Ok(mut inbox) = self.inbox.try_lock() {
            for member in inbox.drain(..) {
                if let Some(of) = self.stats.groups.get(member.group) {
                    of.processes.fetch_add(1, Ordering::Relaxed);
                }
                self.held.push(Held {
                    member,
                    there: true,
                    frozen: None,
                    parked: false,
                    first: None,
                    used: None,
                    did: None,
                });
            }
        }
        let stats = Arc::clone(&self.stats);
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|held| {
            // One that waits is looked at when its turn comes: reading the list costs time.
            if held.there && held.frozen.is_some() {
                return true;
            }
            let threads = self.listed(&held.member);
            held.there = threads.as_ref().is_some_and(|all| !all.is_empty());
            held.first = threads.as_ref().and_then(|all| all.first().copied());
            if !held.member.counters.is_empty() {
                held.did = work::together(&held.member.counters);
                if held.did.is_none() {
                    stats.uncounted();
                }
            }
            threads.is_some()
        });
        self.held = held;
    }

    fn decide(&mut self) -> Vec<Turn> {
        let there = self.held.iter().filter(|held| held.there);
        let ready = there.map(|held| Ready {
            id: held.member.id,
            demand: held.member.demand,
            did: held.did,
        });
        let ready: Vec<Ready> = ready.collect();
        let turns = self.quanta.decide(&ready);
        self.note(&turns);
        turns
    }

    /// Hands a decision to the record.
    fn note(&mut self, turns: &[Turn]) {
        let there = self.held.iter().filter(|held| held.there);
        let chance = |held: &Held| {
            let turn = turns.iter().find(|turn| turn.id == held.member.id);
            Chance {
                member: held.member.id,
                group: held.member.group,
                did: held.did,
                cpu: turn.map(|turn| turn.cpu),
            }
        };
        let (at, seed, chances) = (rt::now(), self.seed, there.map(chance).collect());
        self.decided.push(Quantum { at, seed, chances });
        // Not waited for: its reader may be stopped while it has the lock.
        if let Ok(mut outbox) = self.outbox.try_lock()
            && outbox.len() < UNWRITTEN
        {
            outbox.append(&mut self.decided);
        }
        let over = self.decided.len().saturating_sub(UNWRITTEN);
        self.decided.drain(..over);
    }

    /// Freezes the members that have no turn, and gives the others their CPU and lets them run.
    fn switch(&mut self, post: &Post, turns: &[Turn]) -> Result<(), Lost> {
        let turn = |held: &Held| turns.iter().find(|turn| turn.id == held.member.id).copied();
        for held in &mut self.held {
            if held.there && held.frozen.is_none() && turn(held).is_none() {
                set(held, true)?;
                (held.frozen, held.parked) = (Some(rt::now()), false);
            }
        }
        let mut moved: Vec<(usize, Vec<u32>)> = Vec::new();
        for (place, held) in self.held.iter().enumerate() {
            if let Some(turn) = turn(held) {
                let threads = self.listed(&held.member).unwrap_or_default();
                self.pin(&threads, turn.cpu);
                moved.push((place, threads));
            }
        }
        if let Err(lost) = post.permitted() {
            // These may have left their cgroup already, as the watchdog moves them back.
            for (place, threads) in moved {
                if let Some(Held { member, .. }) = self.held.get(place) {
                    let (cpus, own) = (&member.cpus, &member.own);
                    let _ = placement::put_threads_back(&self.files, &threads, cpus, own);
                }
            }
            return Err(lost);
        }
        for held in &mut self.held {
            if turn(held).is_none() {
                continue;
            }
            if let Some(since) = held.frozen.take() {
                set(held, false)?;
                let waited = rt::now().since(since);
                if let Some(of) = self.stats.groups.get(held.member.group) {
                    of.longest.fetch_max(waited.0, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Lets threads run on one CPU. One that has ended, and a CPU that went offline, change
    /// nothing: the owner starts another dispatcher when it finds the CPU gone.
    fn pin(&self, threads: &[u32], cpu: CpuId) {
        for thread in threads {
            let _ = self.files.set_affinity(*thread, &CpuSet::one(cpu));
        }
    }
}

/// Freezes or thaws a member. One whose cgroup is gone has ended.
fn set(held: &mut Held, frozen: bool) -> Result<(), Lost> {
    match held.member.gate.set(frozen) {
        Ok(()) => Ok(()),
        Err(e) if gone(&e) => {
            held.there = false;
            Ok(())
        }
        Err(_) => Err(Lost::Gate),
    }
}

impl Duty for Turning {
    fn dispatch(&mut self, post: &Post) -> Result<(), Lost> {
        let used = || rt::clock(ClockId::ThreadCPUTime);
        let before = self.stats.own.load(Ordering::Relaxed);
        let mut due = rt::now();
        self.settled = due;
        while self.rest(post, due)? {
            let begun = rt::now();
            self.settle(begun);
            self.look();
            let turns = self.decide();
            self.given = turns.len();
            self.switch(post, &turns)?;
            let done = rt::now();
            let stats = &self.stats;
            stats.quanta.fetch_add(1, Ordering::Relaxed);
            stats.switch.note(done.since(begun));
            stats.own.store(before + used().0, Ordering::Relaxed);
            if begun >= due {
                let late = begun.since(due);
                stats.late.note(late);
                let passed = late.0 / self.quantum.0.max(1);
                stats.skipped.fetch_add(passed, Ordering::Relaxed);
                due = due.plus(Nanos(self.quantum.0.saturating_mul(passed + 1)));
            } else {
                // A member has ended, so that this quantum begins early.
                due = begun.plus(self.quantum);
            }
        }
        Ok(())
    }

    fn let_go(&mut self) {
        self.look();
        for Held { member, .. } in &self.held {
            // While it is frozen it starts no thread with the CPU of its turn.
            let _ = placement::put_back(&self.files, &member.dir, &member.cpus, &member.own);
            let _ = member.gate.set(false);
        }
    }
}
