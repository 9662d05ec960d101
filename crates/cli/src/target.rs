//! The machine that `--on` names: this one, a simulated one, or one of the lab.

use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;

use quell_engine::compare::Machines;
use quell_lab::profile::Profile as Emulated;
use quell_linux::backend::Linux;
use quell_plan::inventory::Inventory;
use quell_policy::lab::Accelerator;
use quell_record::backend::{Backend, Probe};
use quell_record::result::Timing;
use quell_sim::Sim;
use quell_sim::board::Board;
use quell_sim::coarse::{Coarse, inventory_of};
use quell_sim::profile::Profile;

use crate::exit::{Result, failed, usage};
use crate::machine;

/// What `--on` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum On {
    /// This machine.
    Linux,
    /// A simulated one: the name of its profile, or the path of one (with `/` or `.toml`); the
    /// usual one, where none is named.
    Sim(Option<String>),
    /// The coarse machine of a simulated one's profile: many recorded programs, no single accesses.
    Coarse(Option<String>),
    /// One of the lab: the processor's profile, as a name or a path; none where none is emulated.
    Lab(Option<String>),
}

impl On {
    /// This machine's name.
    pub const LINUX: &'static str = "linux";

    /// As results call it.
    pub fn name(&self) -> String {
        match self {
            Self::Linux => match crate::guest::guest() {
                Some(guest) => Self::Lab(guest.profile.clone()).name(),
                None => Self::LINUX.to_owned(),
            },
            Self::Lab(None) => "lab".to_owned(),
            Self::Lab(Some(profile)) => format!("lab:{profile}"),
            Self::Sim(profile) => format!("sim:{}", profile.as_deref().unwrap_or(Board::USUAL)),
            Self::Coarse(profile) => {
                format!("coarse:{}", profile.as_deref().unwrap_or(Coarse::USUAL))
            }
        }
    }

    /// What its times are.
    pub fn timing(&self) -> Timing {
        match self {
            Self::Linux | Self::Lab(_) => match crate::guest::guest() {
                Some(guest) if guest.accelerator != Accelerator::Kvm => Timing::Emulated,
                _ => Timing::Real,
            },
            Self::Sim(_) | Self::Coarse(_) => Timing::Simulated,
        }
    }

    /// The simulated machine that single accesses can be made on. `None`: it is none.
    pub fn board(&self) -> Result<Option<Board>> {
        let Self::Sim(profile) = self else {
            return Ok(None);
        };
        let profile = read(profile.as_deref().unwrap_or(Board::USUAL))?;
        Board::of(profile).map(Some).map_err(failed)
    }

    /// The machine, with what was measured on it before, as far as that is kept.
    pub fn found(&self, seed: u64) -> Result<Inventory> {
        match self {
            Self::Linux => Ok(machine::linux()?.1),
            Self::Sim(profile) => {
                let profile = read(profile.as_deref().unwrap_or(Board::USUAL))?;
                let board = Board::of(profile).map_err(failed)?;
                let mut sim = Sim::new(board, seed).map_err(failed)?;
                sim.inventory(Probe::Fast).map_err(failed)
            }
            Self::Coarse(_) | Self::Lab(_) => Ok(self.measured(seed, NonZeroUsize::MIN)?.1),
        }
    }

    /// The machine, its rates measured; of a simulated one, `jobs` that are alike and draw what is
    /// random from `seed`.
    pub fn measured(&self, seed: u64, jobs: NonZeroUsize) -> Result<(Target, Inventory)> {
        match self {
            Self::Linux => {
                let (backend, machine) = machine::measured()?;
                Ok((Target::Linux(Box::new(backend)), machine))
            }
            Self::Sim(profile) => {
                let profile = profile.as_deref().unwrap_or(Board::USUAL);
                let board = Board::of(read(profile)?).map_err(failed)?;
                let sim = || Sim::new(board.clone(), seed).map_err(failed);
                let mut sims = (0..jobs.get()).map(|_| sim()).collect::<Result<Vec<_>>>()?;
                let machine = match sims.first_mut() {
                    Some(first) => first.inventory(Probe::Deep).map_err(failed)?,
                    None => return Err(failed("there is no machine to run on")),
                };
                Ok((Target::Sims(sims), machine))
            }
            Self::Coarse(profile) => {
                let profile = profile.as_deref().unwrap_or(Coarse::USUAL);
                let board = Board::of(read(profile)?).map_err(failed)?;
                let coarse = || Coarse::new(board.clone(), seed).map_err(usage);
                let all = (0..jobs.get())
                    .map(|_| coarse())
                    .collect::<Result<Vec<_>>>()?;
                let machine = inventory_of(&board);
                Ok((Target::Coarse(all), machine))
            }
            Self::Lab(_) => Err(failed(
                "a machine of the lab can only be acted on from within",
            )),
        }
    }
}

/// Whether `profile` names a file rather than a built-in profile.
fn is_path(profile: &str) -> bool {
    profile.contains('/') || profile.ends_with(".toml")
}

fn read(profile: &str) -> Result<Profile> {
    if !is_path(profile) {
        return Profile::built_in(profile).map_err(usage);
    }
    let text = quell_files::text(Path::new(profile), quell_files::MOST_TEXT)
        .map_err(|e| usage(format!("{profile}: {e}; name a profile that can be read")))?;
    Profile::parse(&text, profile).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        usage(lines.join("\n"))
    })
}

impl FromStr for On {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (kind, profile) = text.split_once(':').unzip();
        match (kind.unwrap_or(text), profile) {
            ("linux", None) => Ok(Self::Linux),
            ("sim", None) => Ok(Self::Sim(None)),
            ("sim", Some(profile)) if is_path(profile) => Ok(Self::Sim(Some(profile.to_owned()))),
            ("sim", Some(profile)) => match Profile::built_in(profile) {
                Ok(_) => Ok(Self::Sim(Some(profile.to_owned()))),
                Err(unknown) => Err(format!(
                    "{unknown}; or the path of a file, such as ./{profile}.toml"
                )),
            },
            ("coarse", None) => Ok(Self::Coarse(None)),
            ("coarse", Some(profile)) => match format!("sim:{profile}").parse()? {
                Self::Sim(profile) => Ok(Self::Coarse(profile)),
                other => Ok(other),
            },
            ("lab", None) => Ok(Self::Lab(None)),
            ("lab", Some(profile)) => match Emulated::load(profile) {
                Ok(_) => Ok(Self::Lab(Some(profile.to_owned()))),
                Err(unknown) => Err(unknown.to_string()),
            },
            _ => Err(format!(
                "'{text}' is no machine; write linux, sim, sim:PROFILE, sim:./FILE.toml, coarse, lab or lab:PROFILE"
            )),
        }
    }
}

/// A machine to act on.
pub enum Target {
    /// This one.
    Linux(Box<Linux>),
    /// Simulated ones, all alike.
    Sims(Vec<Sim>),
    /// Coarse ones, all alike.
    Coarse(Vec<Coarse>),
}

impl Target {
    /// For the engine.
    pub fn machines(&mut self) -> Machines<'_> {
        match self {
            Self::Linux(linux) => Machines::One(&mut **linux),
            Self::Sims(sims) => alike(sims),
            Self::Coarse(all) => alike(all),
        }
    }

    /// Ends the hold on it, if there is one.
    pub fn end(&mut self) -> Result<()> {
        match self {
            Self::Linux(linux) => linux.end().map(|_| ()).map_err(failed),
            Self::Sims(_) | Self::Coarse(_) => Ok(()),
        }
    }
}

fn alike<B: Backend + Send>(all: &mut [B]) -> Machines<'_> {
    let all = all.iter_mut().map(|one| one as &mut (dyn Backend + Send));
    Machines::Alike(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_as_written_and_unknown_ones_refused() {
        assert_eq!("linux".parse(), Ok(On::Linux));
        assert_eq!("sim".parse(), Ok(On::Sim(None)));
        assert_eq!("lab".parse(), Ok(On::Lab(None)));
        assert_eq!("lab:icelake".parse::<On>().unwrap().name(), "lab:icelake");
        assert_eq!(On::Sim(None).name(), "sim:xeon-w3530");
        for name in Profile::names().chain(["./mine.toml", "mine.toml"]) {
            let sim = On::Sim(Some(name.to_owned()));
            assert_eq!(format!("sim:{name}").parse(), Ok(sim));
        }
        for (text, told) in [
            ("sim:xeon-w3503", "did you mean 'xeon-w3530'?"),
            ("sim:", "no machine profile ''; there are xeon-w3530, p4080"),
            ("lab:x86", "icelake"),
            ("linux:x", "is no machine"),
            ("windows", "write linux, sim"),
        ] {
            let error = text.parse::<On>().unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_bad_profile_is_told_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml").display().to_string();
        let told = |path: &str| match read(path) {
            Ok(_) => String::new(),
            Err(failure) => failure.text,
        };
        std::fs::write(&path, "quell = 1\nnam = 'x'").unwrap();
        let text = told(&path);
        assert!(text.contains("mine.toml:2:1: unknown key 'nam'"), "{text}");
        std::fs::write(&path, "quell =").unwrap();
        assert!(told(&path).contains("mine.toml:1:"));
        std::fs::remove_file(&path).unwrap();
        assert!(told(&path).contains("No such file"));
    }
}
