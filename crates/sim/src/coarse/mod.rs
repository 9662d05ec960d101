//! The coarse machine: many programs on many hardware threads for minutes of simulated time. It
//! goes on from quantum to quantum instead of from access to access. A policy of
//! [`quell_control::schedule`] decides who runs.
//!
//! In each quantum the processes that run are balanced against each other ([`chip`]). One that
//! comes back fills its caches again: what it held is replaced as others fetch. Where a phase ends,
//! the balance is found anew.
//!
//! Everything random comes from the seed and the round, not from the configuration. So all policies
//! see the same processes in the same order, in the same phases.
//!
//! What is left out: sleeping, system calls, and what migrating costs beyond cold private caches.

#![expect(clippy::cast_sign_loss, reason = "no time and no count is negative")]

mod backend;
pub mod chip;
pub mod process;
#[cfg(test)]
mod tests;

pub use backend::{Coarse, inventory_of};

use quell_control::schedule::{Cores, Scheduler, Seat, TooMany};

use chip::{Chip, Pace, Thread};
use process::Process;

/// Processes on a chip, and who of them runs. Times are in microseconds.
pub struct World {
    chip: Chip,
    policy: Box<dyn Scheduler + Send>,
    /// For how long a decision holds.
    quantum: f64,
    /// Whether filling caches takes time.
    refills: bool,
    now: f64,
    /// When the decision that holds ends.
    until: f64,
    seats: Vec<Seat>,
    /// Those of the quantum before.
    before: Vec<Seat>,
    /// Nothing was fetched yet of what those lost that came.
    fresh: bool,
    /// Time that each process loses at the beginning of the quantum, by its number.
    lost: Vec<f64>,
    /// The processes, in the order in which policies see them.
    pub processes: Vec<Process>,
}

impl World {
    /// Nothing runs yet.
    #[must_use]
    pub fn new(chip: Chip, policy: Box<dyn Scheduler + Send>, quantum: f64, refills: bool) -> Self {
        Self {
            chip,
            policy,
            quantum,
            refills,
            now: 0.0,
            until: 0.0,
            seats: Vec::new(),
            before: Vec::new(),
            fresh: false,
            lost: Vec::new(),
            processes: Vec::new(),
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.now
    }

    /// The chip that everything runs on.
    #[must_use]
    pub fn chip(&self) -> &Chip {
        &self.chip
    }

    fn decide(&mut self) -> Result<(), TooMany> {
        let cores = Cores {
            count: self.chip.cores,
            threads: self.chip.threads,
        };
        let members: Vec<_> = {
            let all = self.processes.iter();
            all.map(|process| process.member(self.now, self.quantum, self.chip.mhz))
                .collect()
        };
        self.before = std::mem::take(&mut self.seats);
        self.seats = self.policy.decide(&members, cores)?;
        self.lost = vec![0.0; self.processes.len()];
        self.fresh = self.refills;
        for seat in &self.seats {
            self.processes[seat.member].begin();
        }
        self.until = self.now + self.quantum;
        Ok(())
    }

    /// Lets them run until `end`, until the quantum is over, or until one ends its phase: whatever
    /// comes first.
    ///
    /// # Errors
    /// If the policy cannot decide for so many.
    pub fn step(&mut self, end: f64) -> Result<(), TooMany> {
        if self.now >= self.until {
            self.decide()?;
        }
        let threads: Vec<Thread<'_>> = {
            let seats = self.seats.iter();
            seats
                .map(|seat| self.processes[seat.member].on(seat.core))
                .collect()
        };
        let paces = self.chip.balance(&threads);
        if std::mem::take(&mut self.fresh) {
            for (seat, (thread, pace)) in self.seats.iter().zip(threads.iter().zip(&paces)) {
                if self.before.contains(seat) {
                    continue;
                }
                let process = &self.processes[seat.member];
                let held = [process.held, process.kept()];
                let filling = self.chip.refill(thread, pace, held, self.quantum);
                self.lost[seat.member] = self.chip.switch + filling;
            }
        }
        let mut to = end.min(self.until);
        for (seat, pace) in self.seats.iter().zip(&paces) {
            let process = &self.processes[seat.member];
            // Phases that end almost together end together.
            let left = self.lost[seat.member] + process.left(*pace, self.chip.mhz) + 1.0;
            to = to.min(self.now + left);
        }
        self.advance(to.max(self.now), &paces);
        Ok(())
    }

    fn advance(&mut self, to: f64, paces: &[Pace]) {
        let span = to - self.now;
        let mut fetched = 0.0;
        let mut runs = vec![false; self.processes.len()];
        for (seat, pace) in self.seats.iter().zip(paces) {
            let lost = self.lost[seat.member].min(span);
            self.lost[seat.member] -= lost;
            self.processes[seat.member].run(*pace, self.chip.mhz, self.now, span, lost);
            runs[seat.member] = true;
            fetched += pace.fetched * span;
        }
        for (process, runs) in self.processes.iter_mut().zip(runs) {
            if !runs {
                process.wait(span, self.chip.replaced(fetched));
            }
        }
        self.now = to;
    }
}
