//! What can be asked of one line besides loads and stores: to be fetched ahead, written back,
//! dropped.

use crate::Error;
use crate::arch;
pub use crate::arch::{Maker, Request};

impl Request {
    const fn name(self) -> &'static str {
        match self {
            Self::Prefetch => "prefetch",
            Self::WriteBack => "write-back",
            Self::Flush => "flush",
        }
    }

    /// How it is made on this processor.
    ///
    /// # Errors
    /// When the processor, or our knowledge of it, does not have it.
    pub fn maker(self) -> Result<Maker, Error> {
        arch::request(self).ok_or_else(|| {
            Error::refused(
                format!("the operation '{}'", self.name()),
                format!(
                    "this processor ({}) has no instruction for it that Quell knows",
                    std::env::consts::ARCH
                ),
                "use another operation, or an x86-64 or Arm processor with it",
            )
        })
    }
}
