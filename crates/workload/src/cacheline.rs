//! What can be requested of one line in addition to loads and stores: to be prefetched, written
//! back, or dropped.

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

    /// The instruction for this request on this processor.
    ///
    /// # Errors
    /// When the processor has no such instruction, or Quell knows none.
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
