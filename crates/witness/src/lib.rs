//! An independent witness: it looks at the machine as a stranger would, and judges each promise.
//!
//! It knows the policy's words ([`Party`]) and the kernel's files only. It shares the thin readers
//! of `quell-kernel` with the rest of Quell, and no code with planner and enforcers. So a mistake
//! of theirs is not its own.
//!
//! [`Witness::look`] is to be called about once a second, and after each change of a plan. It
//! changes nothing and never fails. The judgements are functions on observed values; the reading
//! is separate:
//!
//! | file | subject |
//! |---|---|
//! | `tasks.rs` | every thread: where it may run, whose it is |
//! | `matches.rs` | which processes the match tables mean |
//! | `homes.rs` | the cgroups of each group, and their account of CPU time |
//! | `alone.rs` | CPUs that a group has to itself |
//! | `limits.rs` | limits on a group and above it, memory |
//! | `series.rs` | what was used from look to look, against a limit |
//! | `traffic.rs` | what is moved to and from memory |
//! | `weights.rs` | weights of CPU time |
//! | `ways.rs`, `registers.rs` | ways of caches |
//! | `colours.rs` | colours of pages |
//! | `memory.rs` | memory that is kept, locked, or waited for |
//! | `disks.rs` | settings of disks |
//! | `judge.rs` | which of these a claim needs, and the verdict |
//!
//! What it cannot see: threads that lived and died between two looks (their time is seen, where a
//! group's cgroup has an account), and use of a CPU by interrupts.
//!
//! A look at CPUs takes 5 ms of CPU time next to 1,000 processes (`benches/look.rs`, by
//! `cargo bench -p quell-witness --bench look`; two CPUs of a virtual machine).

mod alone;
mod census;
mod claim;
mod colours;
mod cpus;
mod disks;
mod homes;
mod judge;
mod limits;
mod matches;
mod memory;
mod registers;
mod series;
mod tasks;
mod traffic;
mod ways;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_kernel::root::Files;
use quell_types::ids::{GroupId, PromiseId};
use quell_types::units::Nanos;

pub use claim::{Claim, Counted, Disks, Party, What};
pub use quell_types::witness::{Amount, Fault, Verdict};

use cpus::CpuTimes;
use homes::Homes;
use judge::Memories;
use tasks::{Exclusive, Scan, Tasks, View};

/// Looks between two readings of the mounts.
const MOUNTS: u64 = 64;

/// The witness of one plan. See the crate's description.
pub struct Witness {
    files: Arc<dyn Files>,
    claims: Arc<[Claim]>,
    parties: Vec<Party>,
    ignore: BTreeSet<u32>,
    homes: Homes,
    tasks: Tasks,
    times: CpuTimes,
    /// What is remembered of each promise.
    memories: BTreeMap<PromiseId, Memories>,
    looks: u64,
}

impl Witness {
    /// A witness of these claims. `ignore` are Quell's own processes: the main one, the watchdog,
    /// brakes, dispatchers.
    #[must_use]
    pub fn new(
        files: Arc<dyn Files>,
        claims: Vec<Claim>,
        parties: Vec<Party>,
        ignore: BTreeSet<u32>,
    ) -> Self {
        Self {
            homes: Homes::default(),
            tasks: Tasks::new(&*files, &parties),
            times: CpuTimes::default(),
            memories: BTreeMap::new(),
            looks: 0,
            files,
            claims: claims.into(),
            parties,
            ignore,
        }
    }

    /// Sets Quell's own processes anew: a brake was started again.
    pub fn ignore(&mut self, pids: BTreeSet<u32>) {
        self.ignore = pids;
    }

    /// Sets the programs that were started for groups, by the numbers of their processes. They and
    /// their children have to be in the group's cgroups, as what the group matches.
    pub fn started(&mut self, pids: &BTreeMap<u32, GroupId>) {
        let of = |(pid, group): (&u32, &GroupId)| Some((*pid, self.party(group)?));
        let pids = pids.iter().filter_map(of).collect();
        self.tasks.matches.start(pids);
    }

    /// Looks at the machine. `now` is any clock that goes on steadily. The verdicts have the order
    /// of the claims. Of several faults of a promise, the first in the order of [`Fault`] is
    /// reported. It never fails: what cannot be seen is [`Verdict::Unseen`] with the reason.
    pub fn look(&mut self, now: Nanos) -> Vec<(PromiseId, Verdict)> {
        if self.claims.is_empty() {
            return Vec::new();
        }
        let files = Arc::clone(&self.files);
        if self.looks.is_multiple_of(MOUNTS) {
            self.homes = Homes::new(&*files, &self.parties);
        }
        self.looks += 1;
        self.times.look(&*files, now);
        let exclusive = self.exclusive();
        let about_tasks = self.claims.iter().any(Claim::is_about_tasks);
        let scan = match self.tasks.matches.any() || about_tasks {
            true => self.tasks.look(&View {
                files: &*files,
                parties: &self.parties,
                homes: &self.homes,
                exclusive: &exclusive,
                ignore: &self.ignore,
            }),
            false => Scan::default(),
        };
        let claims = Arc::clone(&self.claims);
        claims
            .iter()
            .map(|claim| (claim.id, self.verdict(claim, &scan, now)))
            .collect()
    }

    /// The place of a group in the list of parties.
    fn party(&self, group: &str) -> Option<usize> {
        self.parties.iter().position(|party| party.name == group)
    }

    /// The claims on whole CPUs, of groups that are known.
    fn exclusive(&self) -> Vec<Exclusive> {
        let of = |claim: &Claim| match &claim.what {
            What::Alone { cpus } => Some(Exclusive {
                groups: vec![self.party(&claim.group)?],
                spread: true,
                sampled: self.times.any_idle(cpus),
                cpus: cpus.clone(),
            }),
            What::Windows { cpus, groups, .. } => Some(Exclusive {
                groups: groups
                    .iter()
                    .filter_map(|(name, _)| self.party(name))
                    .collect(),
                spread: false,
                sampled: false,
                cpus: cpus.clone(),
            }),
            _ => None,
        };
        self.claims.iter().filter_map(of).collect()
    }
}
