//! Looks at machines in folders, at the model of the kernel, and at this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use quell_kernel::fake::{Fake, Flavour, Spec};
use quell_kernel::root::{Files, Kernel};

use quell_types::ids::PromiseId;

use super::*;
use crate::{Disks, Party};

mod folder;
mod live;
mod modelled;

fn claim(group: &str, what: What) -> Claim {
    Claim {
        id: PromiseId(1),
        group: group.to_owned(),
        what,
    }
}

fn alone(cpus: &str) -> What {
    What::Alone {
        cpus: cpus.parse().unwrap(),
    }
}

fn party(name: &str, matching: &str, homes: &[&str], cpus: &str) -> Party {
    Party {
        name: name.to_owned(),
        matching: match matching {
            "" => Vec::new(),
            text => vec![text.parse().unwrap()],
        },
        homes: homes.iter().map(|home| (*home).to_owned()).collect(),
        cpus: cpus.parse().unwrap(),
    }
}

/// The only verdict of a look.
fn look(witness: &mut Witness, now: Nanos) -> Verdict {
    let verdicts = witness.look(now);
    assert_eq!(verdicts.len(), 1);
    verdicts[0].1.clone()
}

/// What a verdict says.
fn said(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Holds => "holds".to_owned(),
        Verdict::Broken(fault) => fault.to_string(),
        Verdict::Unseen(why) => format!("unseen: {why}"),
    }
}
