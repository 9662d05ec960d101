//! The simulated machine keeps the promises of every backend: the bodies of `quell-conformance`.
use quell_conformance::{Arm, conformance, inventory, plan, step, subject};
use quell_control::config::Meter;
use quell_plan::{Plan, Promise, Setting};
use quell_record::backend::{Backend, SubjectId};
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{ColourChoice, Divides};
use quell_types::units::Nanos;

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

    /// The promise rests on colours. A program that is larger than all page frames of one colour
    /// uses them up.
    fn breakable(&mut self) -> Option<Plan> {
        let banks = inventory(self).partitions.banks.unwrap();
        let colours = CpuSet::from_iter([0]);
        let choice = ColourChoice {
            divides: Divides::Banks,
            functions: banks.functions.clone(),
            colours: colours.clone(),
            nodes: CpuSet::new(),
        };
        let gather = Setting::Gather {
            matching: Vec::new(),
            outermost: false,
            braked: false,
        };
        let colour = Setting::Colour {
            choices: vec![choice],
            spill: true,
        };
        let steps = vec![
            step("a", Mechanism::Cores, gather),
            step("a", Mechanism::Banks, colour),
        ];
        let promise = Promise::ReserveColours {
            divides: Divides::Banks,
            colours,
            of: banks.count(),
            shared_with: Vec::new(),
        };
        Some(plan(steps, promise, Level::Enforced))
    }

    fn break_promise(&mut self) {
        let large = subject("a", "bandwidth:read,size=1GiB", None);
        self.0.start(&large).unwrap();
    }

    fn meddled_with(&mut self) -> Option<Plan> {
        quell_testing::skip("a simulated machine has nobody else");
        None
    }
}

fn simulated(_: &str) -> Option<Simulated> {
    Some(Simulated(Sim::new(Board::usual().unwrap(), 1).unwrap()))
}

conformance!(simulated);
