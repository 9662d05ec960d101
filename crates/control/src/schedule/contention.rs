//! How much slower a member becomes by those that run with it: an estimate from rates, for policies
//! that compare co-schedules.
//!
//! - **Issue slots and first-level ports of a core.** Every thread wants its share of the cycles.
//!   Two threads collide as often as both want the same cycle, and one of them then waits. Two
//!   threads that each saturate a core alone get half of it each.
//! - **Memory.** The rate of the machine is shared. What is asked beyond it is waited for, by each
//!   member for the part of its time that it spends on memory. Members that do nothing but load get
//!   the machine's rate in sum.
//!
//! What is left out: shared caches, and waiting at memory below its rate. The estimate has no
//! parameter that is fitted to a schedule.

use super::Member;

/// What the machine can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// Instructions that a core can issue per cycle.
    pub issue: f64,
    /// First-level transactions per microsecond that a core can do.
    pub ports: f64,
    /// Main-memory transactions per microsecond that the machine can do.
    pub memory: f64,
    /// Main-memory transactions per microsecond that one hardware thread can do.
    pub thread: f64,
}

/// What a member would use if it ran alone, each as a share of what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Of a core's issue slots, 0 to 1.
    pub issue: f64,
    /// Of a core's first-level ports, 0 to 1.
    pub ports: f64,
    /// Of the machine's memory rate, from 0.
    pub memory: f64,
    /// Of its own time, what it spends on memory, 0 to 1.
    pub stall: f64,
}

impl Demand {
    /// The sum of both, field by field.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            issue: self.issue + more.issue,
            ports: self.ports + more.ports,
            memory: self.memory + more.memory,
            stall: self.stall + more.stall,
        }
    }
}

impl Contention {
    /// What `member` would use alone.
    ///
    /// Rates fall when others run, so a rate that was measured in company understates the demand.
    /// Transactions per instruction stay. So a rate is corrected by the IPC alone divided by the
    /// IPC in the same quantum. A member that has not run yet has its average alone.
    #[must_use]
    pub fn demand(&self, member: &Member) -> Demand {
        let ran = member.ipc > 0.0;
        let slowed = if ran && member.alone.ipc > 0.0 {
            member.alone.ipc / member.ipc
        } else {
            1.0
        };
        let memory = if ran {
            member.memory * slowed
        } else {
            member.alone.memory
        };
        Demand {
            issue: share(member.alone.ipc, self.issue).min(1.0),
            ports: share(member.first_level * slowed, self.ports).min(1.0),
            memory: share(memory.min(self.thread), self.memory),
            stall: share(memory, self.thread).min(1.0),
        }
    }

    /// How much longer all that is spent on memory takes, if members with `all` these demands run
    /// together: 0 as long as memory can serve them.
    #[must_use]
    pub fn excess(all: Demand) -> f64 {
        (all.memory - 1.0).max(0.0)
    }

    /// How fast a member with the demand `own` runs on a core whose members, itself included, have
    /// the demands `core`, next to an `excess` at memory: 1 is as fast as alone.
    #[must_use]
    pub fn speed(own: Demand, core: Demand, excess: f64) -> f64 {
        let issue = own.issue * (core.issue - own.issue).max(0.0);
        let ports = own.ports * (core.ports - own.ports).max(0.0);
        1.0 / (1.0 + issue + ports + own.stall * excess)
    }
}

/// `part` of `whole`: 0 where either is no positive number.
fn share(part: f64, whole: f64) -> f64 {
    let share = part / whole;
    if part > 0.0 && whole > 0.0 && share.is_finite() {
        share
    } else {
        0.0
    }
}
