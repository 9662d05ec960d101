//! What changes the machine: one file for each mechanism. Each change goes through [`Hands`], which
//! record it first, so that it can be taken back.

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::error::{Error, Result};
use quell_plan::Setting;

use crate::change::Hands;
use crate::home::Home;

pub mod affinity;
pub mod cache;
pub mod cores;
pub mod cpumax;
pub mod freezer;
pub mod io;
pub mod memory;
pub mod quiet;
pub mod stop;
pub mod threaded;
pub mod weight;

/// The controllers that a setting of a group needs beyond those that it was gathered with.
#[must_use]
pub const fn controllers(set: &Setting) -> &'static [Controller] {
    match set {
        Setting::IoMax(_) | Setting::IoLatency { .. } | Setting::IoWeight { .. } => {
            &[Controller::Io]
        }
        _ => &[],
    }
}

/// Carries out a setting that one group's cgroups are enough for. Returns what a person should know.
///
/// # Errors
/// As the mechanism's own; [`Error::Refused`] for what is not built for Linux.
pub fn apply(
    hands: &mut Hands<'_>,
    cgroups: &Cgroups,
    home: &Home,
    set: &Setting,
) -> Result<Vec<String>> {
    match set {
        Setting::Weight { weight } => weight::give(hands, cgroups, home, *weight),
        Setting::CpuMax { share, period } => cpumax::limit(hands, cgroups, home, *share, *period),
        Setting::IoMax(rates) => io::limit(hands, cgroups, home, rates),
        Setting::IoLatency { target } => io::target(hands, cgroups, home, *target),
        Setting::IoWeight { weight } => io::weigh(hands, cgroups, home, *weight),
        // No plan for this machine has them: it does not say that it could.
        _ => Err(Error::refused(format!(
            "group {}: this step is not built for Linux yet",
            home.group
        ))),
    }
}
