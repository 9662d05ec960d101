//! What can go wrong, with messages that say what to do.

use std::io;

/// Why a generator or a measurement could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not possible here, or not with these parameters.
    #[error("{what}: {why}; {remedy}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Why it is not possible.
        why: String,
        /// What the user can do.
        remedy: String,
    },
    /// A file of the kernel could not be read, or is malformed.
    #[error(transparent)]
    File(#[from] quell_kernel::error::Error),
    /// The measurement was asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A system call failed.
    #[error("{what}: {source}")]
    Kernel {
        /// What was being done, with the path or number concerned.
        what: String,
        /// The error of the system call.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn refused(
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Refused {
            what: what.into(),
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    /// For `map_err` on calls that return an error of the operating system.
    pub(crate) fn kernel<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Kernel {
            what,
            source: source.into(),
        }
    }

    /// The last error that the C library reported (`errno`).
    pub(crate) fn last(what: impl Into<String>) -> Self {
        Self::kernel(what)(io::Error::last_os_error())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Refused { .. } | Error::File(_) => io::ErrorKind::Unsupported,
            Error::Interrupted => io::ErrorKind::Interrupted,
            Error::Kernel { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}
