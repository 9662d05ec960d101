//! A machine to simulate, built from its profile: all numbers are there ([`crate::profile`]).

use quell_model::Invalid;
use quell_types::units::Nanos;

use crate::machine::Description;
use crate::os::Costs;
use crate::profile::Profile;

/// A machine to simulate.
#[derive(Clone, Debug)]
pub struct Board {
    /// Where every number comes from.
    pub profile: Profile,
    /// The hardware.
    pub description: Description,
    /// The operating system's times.
    pub costs: Costs,
}

impl Board {
    /// The profile that `--on sim` means.
    pub const USUAL: &'static str = "xeon-w3530";

    /// The machine that `profile` describes.
    ///
    /// # Errors
    /// None for a profile that was read; for one that was changed since, what cannot be.
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

    /// The usual machine.
    ///
    /// # Errors
    /// Never: its profile comes with Quell.
    pub fn usual() -> Result<Self, Invalid> {
        Self::of(Profile::built_in(Self::USUAL).expect("invariant: the usual profile is built in"))
    }

    /// What a stop costs the program that is stopped: the interrupt that begins it, and the one that ends it.
    #[must_use]
    pub fn stop_cost(&self) -> Nanos {
        Nanos(2 * self.costs.interrupt.0)
    }

    /// Its memory in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.profile.memory.size.0
    }
}
