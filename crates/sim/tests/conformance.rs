//! The simulated machine keeps what every backend promises: the bodies of `quell-conformance`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use quell_conformance::{Arm, conformance};
use quell_core::backend::{Backend, SubjectId};
use quell_core::cpuset::CpuSet;
use quell_core::plan::Meter;
use quell_core::units::Nanos;
use quell_sim::Sim;
use quell_sim::board::Board;

struct Simulated(Sim);

impl Arm for Simulated {
    fn backend(&mut self) -> &mut dyn Backend {
        &mut self.0
    }

    fn found_on(&mut self, subject: SubjectId) -> CpuSet {
        let (core, _) = self.0.witness(subject).unwrap();
        CpuSet::from_iter([u32::try_from(core).unwrap()])
    }

    fn progress(&mut self, subject: SubjectId) -> u64 {
        self.0.witness(subject).unwrap().1
    }

    fn spans(&self) -> (Nanos, Nanos) {
        (Nanos::millis(1), Nanos::millis(5))
    }

    fn meter(&self) -> Option<Meter> {
        Some(Meter::Hardware)
    }
}

fn simulated(_: &str) -> Option<Simulated> {
    Some(Simulated(Sim::new(Board::usual().unwrap(), 1).unwrap()))
}

conformance!(simulated);
