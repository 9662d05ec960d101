//! The decision in the counter's interrupt: a program of type `BPF_PROG_TYPE_PERF_EVENT` runs on
//! each overflow. It wakes the brake's thread only where the budget was used up in less than a
//! period.
//!
//! The rule is [`CpuRegulator`](quell_control::bandwidth::CpuRegulator)'s, in the event's own unit.
//! The program is written as instructions (`program`) and loaded with `bpf(2)` (`load`). In the
//! tests an evaluator runs it against the regulator. Its state lies in a map that the thread has
//! mapped: Linux 5.5, CAP_BPF and CAP_PERFMON.
//!
//! The program cannot arm the event, which goes on with the period that it has. So the interrupt
//! decides only while the event is armed with a whole budget. It hands over to the thread when an
//! overflow comes too late.
//!
//! The kernel drops an overflow while another tracing program runs on the CPU. The next overflow, a
//! budget later, finds two budgets spent and wakes the thread, which debits both.

#[cfg(test)]
mod eval;
mod insn;
mod load;
mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use quell_types::units::Nanos;

/// A budget divided by this is how late an overflow may come and still be decided in the interrupt.
/// Overflows are late for two reasons. The event is armed when some of the budget is spent already.
/// And each time the group is switched out and in, its clock counts a little more than its timer.
const SLACK: u64 = 2;

/// A budget divided by this is what may be spent of it when the event is armed with all of it. It
/// is less than [`SLACK`] allows, so that something is left for later delays.
const SPENT: u64 = 3;

/// What the interrupt and the thread share. Both run on one CPU. So an interrupt comes before or
/// after a store of the thread, which sees all of the interrupt's effects.
#[repr(C)]
#[derive(Debug, Default)]
struct State {
    /// CLOCK_MONOTONIC nanoseconds when the budget began.
    start: AtomicU64,
    /// The count of the event from which use is charged to this budget.
    base: AtomicU64,
    /// Counts per period; zero while the thread decides.
    budget: AtomicU64,
    /// Length of the period in nanoseconds.
    period: AtomicU64,
    /// Counts by which an overflow may come late.
    slack: AtomicU64,
    /// Budgets begun in the interrupt so far.
    renewed: AtomicU64,
}

/// A budget in counts of an event: [`Account`](quell_control::bandwidth::Account) in the
/// event's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// When it began, on CLOCK_MONOTONIC.
    pub start: Nanos,
    /// The count of the event from which use is charged to this budget.
    pub base: u64,
    /// Counts of the event per period.
    pub budget: u64,
    /// Length of the period, at least a nanosecond.
    pub period: Nanos,
}

impl Budget {
    /// Whether the event, at `count` now, can be armed with the whole budget. The overflow then
    /// comes later than it should by what is spent already. That is debited, as is what a slow
    /// reaction lets through.
    #[must_use]
    fn is_whole(&self, count: u64) -> bool {
        count >= self.base && count - self.base <= self.budget / SPENT
    }
}

/// When the interrupt is tried again. On two kinds of CPUs it would wake the thread each time, and
/// later. Overflows come late where the group sleeps often, and use may be close to the budget.
#[derive(Debug, Default)]
struct Trials {
    /// Number of budgets that the thread still decides about.
    pause: u32,
    next: u32,
}

impl Trials {
    const LONGEST: u32 = 63;

    fn is_due(&mut self) -> bool {
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    /// A trial ended after `renewed` budgets begun in the interrupt. Two budgets pay for a trial.
    /// After fewer, the next pause is twice as long.
    fn ended(&mut self, renewed: u64) {
        self.next = if renewed < 2 {
            (2 * self.next + 1).min(Self::LONGEST)
        } else {
            0
        };
        self.pause = self.next;
    }
}

/// The loaded program of one event.
#[derive(Debug)]
pub struct Decider {
    map: load::Map<State>,
    program: OwnedFd,
    /// While the interrupt decides: the number of budgets begun in it before.
    delegated: Option<u64>,
    trials: Trials,
}

impl Decider {
    /// Loads the program. The thread decides until [`Self::delegate`].
    ///
    /// # Errors
    /// Where the kernel is too old or refuses the program.
    pub fn load() -> io::Result<Self> {
        // SAFETY: a few atomic integers.
        let map = unsafe { load::Map::<State>::new() }?;
        let program = load::program(&program::instructions(map.fd().as_raw_fd()))?;
        Ok(Self {
            map,
            program,
            delegated: None,
            trials: Trials::default(),
        })
    }

    /// Whether the interrupt should decide from now on, with the event at `count`. To be called
    /// once for each budget that lasted a period.
    pub fn takes(&mut self, budget: &Budget, count: u64) -> bool {
        budget.is_whole(count) && self.trials.is_due()
    }

    /// Lets the interrupt decide from now on. The event is armed with the budget.
    pub fn delegate(&mut self, budget: &Budget) {
        self.delegated = Some(self.renewed());
        let state = self.map.get();
        state.budget.store(0, Ordering::Release);
        state.start.store(budget.start.0, Ordering::Release);
        state.base.store(budget.base, Ordering::Release);
        state.period.store(budget.period.0, Ordering::Release);
        state.slack.store(budget.budget / SLACK, Ordering::Release);
        state.budget.store(budget.budget, Ordering::Release);
    }

    /// Makes the next overflow wake the thread, whatever has been spent.
    pub fn withhold(&self) {
        self.map.get().budget.store(0, Ordering::Release);
    }

    /// Lets the thread decide from now on. Returns when the current budget began and from which
    /// count use is charged to it, if the interrupt decided until now.
    pub fn recall(&mut self) -> Option<(Nanos, u64)> {
        let before = self.delegated.take()?;
        self.withhold();
        self.trials.ended(self.renewed().saturating_sub(before));
        let state = self.map.get();
        let start = state.start.load(Ordering::Acquire);
        Some((Nanos(start), state.base.load(Ordering::Acquire)))
    }

    /// Number of budgets begun in the interrupt so far.
    #[must_use]
    pub fn renewed(&self) -> u64 {
        self.map.get().renewed.load(Ordering::Relaxed)
    }
}

impl AsFd for Decider {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_tried_less_and_less_often() {
        let mut trials = Trials::default();
        let mut paused = || {
            let paused = (0..).find(|_| trials.is_due()).unwrap();
            trials.ended(1);
            paused
        };
        let pauses: [u32; 8] = std::array::from_fn(|_| paused());
        assert_eq!(pauses, [0, 1, 3, 7, 15, 31, 63, 63]);
        trials.ended(2);
        assert!(trials.is_due());
    }
}
