//! The decision in the counter's interrupt: a program of type `BPF_PROG_TYPE_PERF_EVENT` that is
//! run on each overflow and wakes the brake's thread only where the budget went sooner than a
//! period.
//!
//! The rule is [`CpuRegulator`](quell_control::bandwidth::CpuRegulator)'s, in the event's own
//! unit; the program is written as instructions (`program`) and loaded with `bpf(2)` (`load`), and
//! an evaluator runs it against the regulator in the tests. Its state lies in a map that the thread
//! has mapped: Linux 5.5, CAP_BPF and CAP_PERFMON.
//!
//! The program cannot arm the event: that goes on with the period it has. So the interrupt decides
//! only while the event is armed with a whole budget, and hands over to the thread when an overflow
//! comes too late.
//!
//! An overflow while another tracing program runs on the CPU is dropped by the kernel. The next
//! one, a budget later, finds two budgets spent and wakes the thread, which debits both.

#[cfg(test)]
mod eval;
mod insn;
mod load;
mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use quell_types::units::Nanos;

/// The part of a budget by which an overflow decided in the interrupt may come late: one of this
/// many. The event is armed when some of the budget is spent already, and each time the group is
/// switched out and in, its clock counts a little more than its timer.
const SLACK: u64 = 2;

/// What may be spent of a budget when the event is armed with all of it, in the same way: less, so
/// that something is left for what comes later.
const SPENT: u64 = 3;

/// What the interrupt and the thread share. Both run on one CPU, so that an interrupt comes before
/// or after a store of the thread, and the thread sees all of its effects.
#[repr(C)]
#[derive(Debug, Default)]
struct State {
    /// CLOCK_MONOTONIC nanoseconds when the budget began.
    start: AtomicU64,
    /// The event's count from which use is charged to it.
    base: AtomicU64,
    /// Counts per period; zero while the thread decides.
    budget: AtomicU64,
    /// Nanoseconds.
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
    /// When it began.
    pub start: Nanos,
    /// The event's count from which use is charged to it.
    pub base: u64,
    /// Counts per period.
    pub budget: u64,
    /// At least a nanosecond.
    pub period: Nanos,
}

impl Budget {
    /// Whether the event, at `count` now, can be armed with the whole budget. The overflow then
    /// comes later than it should by what is spent already: that is debited, as what a slow
    /// reaction lets through.
    #[must_use]
    fn is_whole(&self, count: u64) -> bool {
        count >= self.base && count - self.base <= self.budget / SPENT
    }
}

/// When the interrupt is tried again: of a CPU whose overflows come late, because its group sleeps
/// often, or whose use is close to its budget, it would wake the thread each time, and later.
#[derive(Debug, Default)]
struct Trials {
    /// Budgets that the thread still decides about.
    pause: u32,
    next: u32,
}

impl Trials {
    /// The longest pause, in budgets.
    const LONGEST: u32 = 63;

    fn is_due(&mut self) -> bool {
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    /// One ended after so many budgets begun in the interrupt. Two pay for it; after less the pause
    /// is twice as long each time.
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
    /// While the interrupt decides: budgets begun in it before.
    delegated: Option<u64>,
    trials: Trials,
}

impl Decider {
    /// Loads it; the thread decides until [`Self::delegate`].
    ///
    /// # Errors
    /// Where the kernel is too old or refuses it.
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

    /// Whether the interrupt should decide from now on, with the event at `count`. To be asked once
    /// for each budget that lasted a period.
    pub fn takes(&mut self, budget: &Budget, count: u64) -> bool {
        budget.is_whole(count) && self.trials.is_due()
    }

    /// The interrupt decides from now on. The event is armed with the budget.
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

    /// The next overflow wakes the thread, whatever has been spent.
    pub fn withhold(&self) {
        self.map.get().budget.store(0, Ordering::Release);
    }

    /// The thread decides from now on. Where the interrupt did until now: when the budget that the
    /// CPU is in began, and from which count use is charged to it.
    pub fn recall(&mut self) -> Option<(Nanos, u64)> {
        let before = self.delegated.take()?;
        self.withhold();
        self.trials.ended(self.renewed().saturating_sub(before));
        let state = self.map.get();
        let start = state.start.load(Ordering::Acquire);
        Some((Nanos(start), state.base.load(Ordering::Acquire)))
    }

    /// Budgets begun in the interrupt so far.
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
