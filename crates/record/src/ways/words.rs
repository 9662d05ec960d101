//! Changes and registers in sentences.

use std::fmt;

use quell_types::partition::Mask;

use super::{Change, Register};

/// What a person wants listed of changes: not samples, and not threads that move between CPUs.
impl Change {
    /// The class whose settings changed, or whose register did.
    #[must_use]
    pub fn class(&self) -> Option<&str> {
        match self {
            Self::Appeared { class }
            | Self::Mask { class, .. }
            | Self::Throttle { class, .. }
            | Self::Mode { class, .. }
            | Self::Cpus { class, .. } => Some(class),
            Self::Differs { register } | Self::Agrees { register } => register.class.as_deref(),
            _ => None,
        }
    }

    /// The change in a sentence. `None` for samples, for threads that only ran (elsewhere), and for
    /// the machine.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        let mask = |mask: &Option<Mask>| mask.map_or_else(|| "none".to_owned(), |m| m.to_string());
        let number =
            |n: &Option<u64>| n.map_or_else(|| "none".to_owned(), |number| number.to_string());
        Some(match self {
            Self::Machine { .. } | Self::Sample { .. } | Self::Ended { .. } => return None,
            Self::Misses { .. } | Self::Ran { .. } | Self::Lost { .. } => return None,
            Self::Thread { from: None, .. } => return None,
            Self::Appeared { class } => format!("class {class} is there"),
            Self::Vanished { class } => format!("class {class} is gone"),
            Self::Mask {
                class,
                place,
                from: None,
                to,
            } => format!("{place}: class {class} may fill {}", mask(to)),
            Self::Mask {
                class,
                place,
                from,
                to,
            } => format!(
                "{place}: class {class} may fill {} instead of {}",
                mask(to),
                mask(from)
            ),
            Self::Throttle {
                class,
                place,
                from: None,
                to,
            } => format!("{place}: class {class} is set to {}", number(to)),
            Self::Throttle {
                class,
                place,
                from,
                to,
            } => format!(
                "{place}: class {class} is set to {} instead of {}",
                number(to),
                number(from)
            ),
            Self::Mode { class, from, to } => {
                format!("class {class} is {} instead of {}", to.name(), from.name())
            }
            Self::Cpus { class, from, to } if from.is_empty() => {
                format!("class {class} gets CPUs {to}")
            }
            Self::Cpus { class, from, to } if to.is_empty() => {
                format!("class {class} loses its CPUs {from}")
            }
            Self::Cpus { class, from, to } => {
                format!("class {class} gets CPUs {to} instead of {from}")
            }
            Self::Thread {
                tid,
                is,
                from: Some(from),
            } => format!(
                "thread {tid} ({}, process {}) goes from class {from} to class {}",
                is.name, is.pid, is.class
            ),
            Self::Differs { register } => format!("{register}"),
            Self::Agrees { register } => format!(
                "{} on CPU {} is what the kernel believes again",
                register.of, register.cpu
            ),
        })
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on CPU {} (register {:#x}) is {:#x}, and the kernel believes {:#x}",
            self.of, self.cpu, self.number, self.register, self.kernel
        )
    }
}
