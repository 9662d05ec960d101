//! The look of the witness: what it is asked, and which processes are Quell's own.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_kernel::procfs;
use quell_kernel::root::Kernel;
use quell_types::ids::PromiseId;
use quell_types::units::Nanos;
use quell_types::witness::{Fault, Verdict};
use quell_witness::{Party, Witness};

use super::Linux;
use crate::host::{claims, parties};

/// The witness, and the groups that it knows.
#[derive(Default)]
pub struct Looks {
    witness: Option<(Vec<Party>, Witness)>,
}

impl Linux {
    pub(super) fn seen(&mut self, now: Nanos) -> Vec<(PromiseId, Verdict)> {
        let Some(plan) = self.host.plan.as_ref().filter(|_| !self.revoked) else {
            return Vec::new();
        };
        let parties = parties(plan, &self.host.groups);
        let known = self.looks.witness.take().filter(|(of, _)| *of == parties);
        let (parties, mut witness) = known.unwrap_or_else(|| {
            let files = Arc::new(Kernel::at("/"));
            let counting = |cpu| self.host.counting(cpu).cloned();
            let claims = claims(plan, &self.host.groups, &counting);
            let witness = Witness::new(files, claims, parties.clone(), BTreeSet::new());
            (parties, witness)
        });
        witness.ignore(self.own_processes());
        witness.started(&self.programs.running());
        let mut verdicts = witness.look(now);
        // A program that the run started may end before the run does.
        verdicts.retain(|(_, verdict)| match verdict {
            Verdict::Broken(Fault::NoProcess { group }) => {
                let mut of = parties.iter().filter(|party| party.name == *group);
                of.any(|party| !party.matching.is_empty())
            }
            _ => true,
        });
        self.looks.witness = Some((parties, witness));
        verdicts
    }

    /// The processes of Quell: this one, the watchdog, brakes, and all that it has started but the
    /// programs of the run.
    fn own_processes(&self) -> BTreeSet<u32> {
        let own = std::process::id();
        let children = procfs::children(&self.host.files, own).unwrap_or_default();
        let mut all: BTreeSet<u32> = children.into_iter().collect();
        for subject in &self.programs.subjects {
            all.remove(&subject.pid());
        }
        all.insert(own);
        let session = self.host.session.as_ref();
        all.extend(session.and_then(|session| session.watchdog_pid()));
        all.extend(&self.host.brakes);
        all
    }
}
