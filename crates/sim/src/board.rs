//! A machine to simulate, built from its profile. All numbers are there ([`crate::profile`]).

use quell_model::Invalid;
use quell_types::units::Nanos;

use crate::machine::Description;
use crate::profile::Profile;

/// Times that the operating system takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// How long a task runs while another one waits for its core.
    pub slice: Nanos,
    /// Time to switch from one task to the next on a core.
    pub switch: Nanos,
    /// Time from a counter's overflow to the handler of its interrupt.
    pub interrupt_delay: Nanos,
    /// Core time that the handler takes.
    pub interrupt: Nanos,
}

/// A machine to simulate.
#[derive(Clone, Debug)]
pub struct Board {
    /// The profile with every number and its origin.
    pub profile: Profile,
    /// What [`crate::Machine`] is built from.
    pub description: Description,
    /// The times that the operating system takes.
    pub costs: Costs,
}

impl Board {
    /// The name of the profile that `--on sim` means.
    pub const USUAL: &'static str = "xeon-w3530";

    /// Builds the machine that `profile` describes.
    ///
    /// # Errors
    /// None for a profile that was read. For one that was changed since: what is impossible.
    pub fn of(profile: Profile) -> Result<Self, Invalid> {
        Ok(Self {
            description: profile.description()?,
            costs: Costs {
                slice: profile.os.slice,
                switch: profile.os.switch,
                interrupt_delay: profile.counters.delay,
                interrupt: profile.os.interrupt,
            },
            profile,
        })
    }

    /// The machine of [`Self::USUAL`].
    ///
    /// # Errors
    /// Never: its profile comes with Quell.
    pub fn usual() -> Result<Self, Invalid> {
        Self::of(Profile::built_in(Self::USUAL).expect("invariant: the usual profile is built in"))
    }

    /// What a stop costs the stopped program: the interrupt that begins it and the one that ends
    /// it.
    #[must_use]
    pub fn stop_cost(&self) -> Nanos {
        Nanos(2 * self.costs.interrupt.0)
    }

    /// The machine's memory in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.profile.memory.size.0
    }
}
