//! The machine that `--on` names: this one, or a simulated one.

use std::str::FromStr;

use quell_core::backend::{Backend, Probe};
use quell_core::inventory::Inventory;
use quell_core::result::Timing;
use quell_core::text::suggestion;
use quell_linux::backend::Linux;
use quell_sim::Sim;
use quell_sim::board::Board;

use crate::exit::{Result, failed};
use crate::machine;

/// What `--on` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// This machine.
    Linux,
    /// A simulated one: its profile.
    Sim(String),
}

impl On {
    /// As results call it.
    pub fn name(&self) -> String {
        match self {
            Self::Linux => "linux".to_owned(),
            Self::Sim(profile) => format!("sim:{profile}"),
        }
    }

    /// What its times are.
    pub fn timing(&self) -> Timing {
        match self {
            Self::Linux => Timing::Real,
            Self::Sim(_) => Timing::Simulated,
        }
    }

    /// The machine, its rates measured; a simulated one draws what is random from `seed`.
    pub fn measured(&self, seed: u64) -> Result<(Target, Inventory)> {
        match self {
            Self::Linux => {
                let (backend, machine) = machine::measured()?;
                Ok((Target::Linux(Box::new(backend)), machine))
            }
            Self::Sim(profile) => {
                let board = Board::named(profile)
                    .ok_or_else(|| failed(format!("there is no profile '{profile}'")))?
                    .map_err(failed)?;
                let mut sim = Sim::new(board, seed).map_err(failed)?;
                let machine = sim.inventory(Probe::Deep).map_err(failed)?;
                Ok((Target::Sim(Box::new(sim)), machine))
            }
        }
    }
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (kind, profile) = text.split_once(':').unzip();
        match (kind.unwrap_or(text), profile) {
            ("linux", None) => Ok(Self::Linux),
            ("sim", None) => Ok(Self::Sim(Board::USUAL.to_owned())),
            ("sim", Some(profile)) if Board::NAMES.contains(&profile) => {
                Ok(Self::Sim(profile.to_owned()))
            }
            ("sim", Some(profile)) => {
                let close = suggestion(profile, Board::NAMES);
                Err(format!(
                    "there is no profile '{profile}'{}; there is {}",
                    close.map_or_else(String::new, |c| format!(" (did you mean '{c}'?)")),
                    Board::NAMES.join(", ")
                ))
            }
            ("lab", _) => Err("not yet: only linux and sim are built".to_owned()),
            _ => Err(format!(
                "'{text}' is no machine; write linux, sim or sim:PROFILE"
            )),
        }
    }
}

/// A machine to act on.
pub enum Target {
    /// This one.
    Linux(Box<Linux>),
    /// A simulated one.
    Sim(Box<Sim>),
}

impl Target {
    /// For the engine.
    pub fn backend(&mut self) -> &mut dyn Backend {
        match self {
            Self::Linux(linux) => &mut **linux,
            Self::Sim(sim) => &mut **sim,
        }
    }

    /// Ends the hold on it, if there is one.
    pub fn end(&mut self) -> Result<()> {
        match self {
            Self::Linux(linux) => linux.end().map(|_| ()).map_err(failed),
            Self::Sim(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_as_written_and_unknown_ones_refused() {
        let sim = On::Sim("xeon-w3530".to_owned());
        assert_eq!("linux".parse(), Ok(On::Linux));
        assert_eq!("sim".parse(), Ok(sim.clone()));
        assert_eq!("sim:xeon-w3530".parse(), Ok(sim));
        for (text, told) in [
            ("sim:xeon-w3503", "did you mean 'xeon-w3530'?"),
            ("sim:", "there is no profile ''"),
            ("lab", "not yet"),
            ("linux:x", "is no machine"),
            ("windows", "write linux, sim"),
        ] {
            let error = text.parse::<On>().unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
