//! A machine to simulate, built from its profile: all numbers are there ([`crate::profile`]).

use quell_model::Invalid;
use quell_types::units::Nanos;

use crate::machine::Description;
use crate::profile::Profile;

/// Times that the operating system takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// How long a task runs while others wait for its core.
    pub slice: Nanos,
    /// From one task to the next on a core.
    pub switch: Nanos,
    /// From a counter's overflow to the handler of its interrupt.
    pub interrupt_delay: Nanos,
    /// What the handler takes of its core's time.
    pub interrupt: Nanos,
}

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

    /// What a stop costs the program that is stopped: the interrupt that begins it, and the one
    /// that ends it.
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
