//! `plan(policy, inventory)`: what will be done on this machine, step by step, and what each
//! promise is then worth.
//!
//! The planner is pure: the same policy and inventory give the same plan. A promise that cannot be
//! kept is refused or downgraded with the reason; nothing is dropped.
//!
//! [`draft`] is the plan under construction, [`wanted`] and [`division`] are what is wanted. All
//! other modules read these three:
//! - [`cpus`] divides the CPUs, [`others`] what the critical groups leave, and [`sharing`] notes
//!   shared caches;
//! - [`claims`] and [`amounts`] read what is wanted of caches and banks, [`allot`] divides them,
//!   [`partition`] makes steps and promises of it, [`class_cpus`] adds kernel work, and
//!   [`too_small`] says which part is;
//! - [`rates`] reads what is wanted of bandwidth, [`bandwidth`] limits it, [`caps`] are the
//!   budgets;
//! - [`directions`] decides whether reads and writes can have a budget each, [`pooling`] pools
//!   budgets;
//! - [`brake`], [`quota`] and [`mba`] are what holds a limit, [`reserves`] judges what is promised
//!   from limits;
//! - [`deadline`] closes the loop around targets, [`weight`] gives best-effort groups their weight;
//! - [`schedule`] says who runs with whom, [`windows`] which group runs when, [`window_budgets`]
//!   what it may move then;
//! - [`io`] reads what is wanted of disks, [`memory`] plans which groups keep memory, are limited
//!   and steer, [`paging`] which memory is locked and in which pages it lies;
//! - [`words`] has the sentences.

mod adaptive_ways;
mod allot;
mod amounts;
mod assumed;
mod bandwidth;
mod brake;
mod caps;
mod claims;
mod class_cpus;
mod codedata;
mod cpus;
mod deadline;
mod directions;
mod division;
mod draft;
mod hoard;
mod io;
mod locking;
mod mba;
mod memory;
mod near;
mod nodes;
mod others;
mod paging;
mod partition;
mod period;
mod pooling;
mod quota;
mod rates;
mod registers;
mod reserves;
mod schedule;
mod sharing;
mod too_small;
mod wanted;
mod weight;
mod window_budgets;
mod windows;
mod words;

use quell_policy::{CpusWanted, Group, Irqs, Policy, Role};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::ids::StepId;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::{Cause, Refusal, Remedy};
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;

use crate::inventory::{CpusetKind, Inventory};
use crate::plan::{GroupPlan, Loops, Plan, Promise, Setting, Step};
use draft::Draft;
pub use draft::{Solo, Solos, WaysCurve};
pub use quell_control::config::ProgramDemand;
use wanted::Worth;
use words::cores;

/// The architecture on whose kernels Quell has been run, as `uname -m`.
const RUN_ON: &str = "x86_64";

/// Plans a policy for a machine.
///
/// # Errors
/// Everything that cannot be had, each with its key, the reason and the remedy.
pub fn plan(policy: &Policy, machine: &Inventory) -> Result<Plan, Vec<Refusal>> {
    plan_beside(policy, machine, &Solos::new())
}

/// Plans with what is known of the groups' programs when they run alone.
///
/// # Errors
/// As for [`plan`].
pub fn plan_beside(
    policy: &Policy,
    machine: &Inventory,
    solos: &Solos,
) -> Result<Plan, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let by_registers = registers::machine(policy, machine, &mut refusals);
    let machine = by_registers.as_ref().unwrap_or(machine);
    let mut division = cpus::divide(policy, machine, &mut refusals);
    others::divide(policy, machine, &mut division, &mut refusals);
    let groups = policy
        .groups
        .iter()
        .map(|(name, group)| GroupPlan {
            name: name.clone(),
            cpus: division.of(name).cpus.clone(),
            matching: group.matching.clone(),
        })
        .collect();
    let mut draft = Draft {
        policy,
        machine,
        division,
        groups,
        steps: Vec::new(),
        promises: Vec::new(),
        notes: Vec::new(),
        acts: Vec::new(),
        refusals,
        loops: Loops::default(),
        solos,
        period: Nanos(0),
    };
    draft.notes.append(&mut draft.division.notes);
    memory::bound(&mut draft);
    draft.gather();
    weight::plan(&mut draft);
    draft.partition();
    partition::plan(&mut draft);
    deadline::check(&mut draft);
    bandwidth::plan(&mut draft);
    memory::plan(&mut draft);
    paging::plan(&mut draft);
    io::plan(&mut draft);
    deadline::notes(&mut draft);
    partition::classes(&mut draft);
    class_cpus::plan(&mut draft);
    registers::plan(&mut draft);
    schedule::plan(&mut draft);
    windows::plan(&mut draft);
    draft.make_room_for_brakes();
    too_small::acts(&mut draft);
    // What was refused would be judged as missing, and its reason is reported already.
    if draft.refusals.is_empty() {
        draft.require();
        sharing::notes(&mut draft);
        draft.never_ran();
    }
    if !draft.refusals.is_empty() {
        return Err(draft.refusals);
    }
    draft.loops.observed = deadline::observed(&draft);
    let assumed = assumed::mark(&mut draft);
    Ok(Plan {
        policy: policy.name.clone(),
        groups: draft.groups,
        steps: draft.steps,
        promises: draft.promises,
        notes: draft.notes,
        loops: draft.loops,
        acts: draft.acts,
        assumed,
    })
}

impl Draft<'_> {
    /// Says where a plan rests on what the kernel's documents say, and on no run of it.
    fn never_ran(&mut self) {
        let architecture = &self.machine.identity.architecture;
        if architecture != RUN_ON && self.machine.simulated.is_none() {
            self.notes.push(cores::never_ran(architecture));
        }
    }

    /// Gives a cgroup first to each group for which anything is set.
    fn gather(&mut self) {
        let policy = self.policy;
        for (name, group) in &policy.groups {
            if group.role == Role::Exempt || !self.touched(name, group) {
                continue;
            }
            let mut tables = group.matching.iter();
            let because = match tables.len() {
                0 => cores::STAYS_IN,
                _ if tables.any(TaskMatch::in_place) => cores::CHANGED_IN_PLACE,
                _ => cores::LEAVES_FOR_THIS,
            };
            let outermost = weight::is_outermost(self, name, group);
            self.step(
                Some(name),
                Mechanism::Cores,
                Setting::Gather {
                    matching: group.matching.clone(),
                    outermost,
                    braked: false,
                },
                because,
            );
        }
    }

    /// Prepares the cgroups of groups that a brake may stop.
    fn make_room_for_brakes(&mut self) {
        let stopped = |step: &Step| match &step.set {
            Setting::Regulate(regulation) if regulation.is_capped() => step.group.clone(),
            _ => None,
        };
        let mut stopped: Vec<String> = self.steps.iter().filter_map(stopped).collect();
        for step in &self.steps {
            if let Setting::Windows(frame) = &step.set {
                stopped.extend(frame.budgeted().cloned());
            }
        }
        for step in &mut self.steps {
            let Setting::Gather {
                braked, matching, ..
            } = &mut step.set
            else {
                continue;
            };
            let Some(name) = step.group.as_ref().filter(|g| stopped.contains(g)) else {
                continue;
            };
            *braked = true;
            if matching.iter().any(TaskMatch::in_place) {
                self.notes.push(cores::has_threaded_children(name));
            }
        }
    }

    fn touched(&self, name: &str, group: &Group) -> bool {
        self.division.partitioned()
            || weight::of(self, group).is_some()
            || self.division.of(name).confined
            || !group.limit.is_empty()
            || io::wanted(group)
            || !group.paging.is_empty()
            || self.policy.is_scheduled(name)
            || deadline::adapts(self.policy)
            || memory::wanted(self.policy)
            || self.policy.groups.values().any(|g| {
                let reserve = &g.reserve;
                reserve.bandwidth.is_some() || reserve.cache.is_some() || reserve.banks.is_some()
            })
    }

    /// The core partition: confines the groups, and keeps all other tasks, interrupts and unbound
    /// kernel work off their CPUs.
    fn partition(&mut self) {
        let confined: Vec<String> = self
            .policy
            .groups
            .keys()
            .filter(|n| self.division.of(n).confined)
            .cloned()
            .collect();
        if confined.is_empty() && !self.division.partitioned() {
            return;
        }
        if let Some(why) = self.unavailable(Mechanism::Cores) {
            // A group of any CPUs is confined for the sake of others.
            let wants = |name: &&String| {
                let of = self.policy.groups.get(*name);
                of.is_some_and(|group| group.cpus_wanted() != CpusWanted::Any)
            };
            let asks = confined.iter().find(wants);
            let key = asks.map_or_else(|| "rest.cpus".to_owned(), |n| format!("group.{n}.cpus"));
            let instead = match asks {
                Some(_) => Remedy::set_text(key.clone(), "any"),
                None => Remedy::leave_out(key.clone()),
            };
            self.refuse_lacking(Mechanism::Cores, key, why, instead);
            return;
        }
        let kind = self.machine.means.cpuset;
        let free = self.division.free.clone();
        let mut holders: Vec<(String, StepId)> = Vec::new();
        for name in &confined {
            let part = self.division.of(name).clone();
            let mems = self.memory_of(&part.cpus);
            let because = if part.exclusive {
                cores::alone_by(kind)
            } else if self.division.windowed.is_empty() || part.cpus != self.division.windowed {
                cores::RUNS_ON_THE_REST
            } else {
                words::windows::ONLY_ITS_WINDOWS
            };
            let set = Setting::Confine {
                cpus: part.cpus.clone(),
                mems,
                exclusive: part.exclusive,
            };
            let id = self.step(Some(name), Mechanism::Cores, set, because);
            self.memory_note(name, &part.cpus);
            if part.exclusive {
                holders.push((name.clone(), id));
            }
        }
        if !self.division.partitioned() {
            return;
        }
        let rest = self.division.rest.clone();
        let because = if rest != free && self.policy.rest.cpus == CpusWanted::Remaining {
            cores::REST_STAYS_OFF_LIMITS
        } else {
            cores::REST_STAYS_OFF
        };
        // Nothing is free only where there are no other tasks.
        let kept = (!free.is_empty()).then(|| {
            let set = Setting::ConfineRest { cpus: rest };
            self.step(Some(REST), Mechanism::Cores, set, because)
        });
        let (interrupts, work) = match kept {
            Some(_) => self.quiet(&free),
            None => (None, None),
        };
        for (name, id) in holders {
            let away = self.policy.groups.get(&name).map(Group::irqs_wanted) == Some(Irqs::Away);
            let (level, weakest) = match kind {
                CpusetKind::AffinityOnly => (Level::Estimated, cores::AFFINITY_IS_SET_BACK),
                _ if !away => (Level::Enforced, cores::INTERRUPTS_COME),
                _ => (Level::Enforced, cores::KERNEL_THREADS_STAY),
            };
            let beside = self.beside(&name);
            let weakest = match beside.is_empty() {
                true => weakest.to_owned(),
                false => cores::smt_beside(&beside),
            };
            let mut held_by = vec![id];
            held_by.extend(kept);
            held_by.extend(interrupts.filter(|_| away));
            held_by.extend(work);
            let cpus = self.division.of(&name).cpus.clone();
            let worth = Worth::of(level, weakest);
            self.promise(&name, Promise::Cpus { cpus }, worth, held_by);
        }
    }

    /// SMT siblings of a group's CPUs that are not kept free for it. CPUs outside Quell's own
    /// cpuset are included.
    fn beside(&self, name: &str) -> CpuSet {
        let part = self.division.of(name);
        self.machine
            .cpus
            .iter()
            .filter(|c| part.cpus.contains(c.id))
            .fold(CpuSet::new(), |all, c| all.union(&c.siblings))
            .difference(&part.blocked)
    }

    /// Moves interrupts off the exclusive CPUs of the groups that want it, and unbound kernel work
    /// off all exclusive CPUs.
    fn quiet(&mut self, free: &CpuSet) -> (Option<StepId>, Option<StepId>) {
        let away = self.policy.groups.iter().filter(|(name, group)| {
            group.irqs_wanted() == Irqs::Away && self.division.of(name).exclusive
        });
        let from = away.fold(self.division.windowed.clone(), |all, (name, _)| {
            all.union(&self.division.of(name).blocked)
        });
        let means = &self.machine.means;
        let wanted = !from.is_empty();
        let interrupts = (wanted && means.movable_irqs > 0).then(|| {
            let set = Setting::MoveIrqs {
                from,
                to: free.clone(),
            };
            let because = match means.fixed_irqs {
                0 => cores::DEVICES_INTERRUPT_OTHERS_IF_MOVED,
                _ => cores::DEVICES_INTERRUPT_OTHERS,
            };
            self.step(None, Mechanism::Cores, set, because)
        });
        if wanted && means.fixed_irqs > 0 {
            let note = cores::fixed_interrupts(means.fixed_irqs);
            self.notes.push(note);
        }
        let work = means.workqueue_mask.then(|| {
            let set = Setting::WorkqueueMask { cpus: free.clone() };
            self.step(None, Mechanism::Cores, set, cores::KERNEL_WORK_STAYS_OFF)
        });
        if work.is_none() {
            self.notes.push(cores::KERNEL_WORK_MAY_RUN.to_owned());
        }
        (interrupts, work)
    }

    /// Notes that a cpuset confines memory, too, on a machine with several nodes.
    fn memory_note(&mut self, name: &str, cpus: &CpuSet) {
        let own = self.memory_of(cpus);
        if own.is_empty() || own.len() >= self.memory_of(&self.machine.cpu_set()).len() {
            return;
        }
        self.notes.push(cores::memory_of_nodes(name, &own));
    }

    /// Refuses the plan for a promise below the policy's `require`.
    fn require(&mut self) {
        let require = self.policy.require;
        let assuming = self.assumes();
        assumed::below(self, require);
        let worst = self.promises.iter().map(|held| held.level).min();
        let worst = worst.unwrap_or(Level::None);
        let below: Vec<Refusal> = self
            .promises
            .iter()
            .filter(|held| held.level < require && !(assuming && assumed::rests(self, held)))
            .map(|held| Refusal {
                key: format!("group.{}", held.group),
                why: cores::below(held, require),
                cause: Cause::Level,
                remedies: vec![
                    Remedy::set_text("require", worst),
                    Remedy::from("strengthen the weakest link"),
                ],
            })
            .collect();
        self.refusals.extend(below);
    }
}

#[cfg(test)]
pub(crate) mod tests;
