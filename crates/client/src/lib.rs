//! What an application links to say how its work is going: which time a unit of work is to take and
//! which it took, frame by frame or beat by beat. Quell reads along and leaves the neighbours what
//! the units can spare (`regulator.adapt = "deadline"`).
//!
//! ```
//! let mut session = quell_client::Session::open();
//! session.set_target(std::time::Duration::from_millis(16));
//! for _frame in 0..3 {
//!     session.begin();
//!     // … the work …
//!     session.end();
//! }
//! ```
//!
//! The session is shared memory ([`layout`]) that Quell hands to the programs it launches, and to
//! others that ask at its socket: telling of a unit is a handful of stores and two looks at the
//! clock, no system call. Without Quell a call looks at the clock and at most once a second whether
//! Quell has come. `include/quell.h` is the same for C.
//!
//! Memory that a policy has Quell lock in a cache is handed over here, too: [`locked()`].

mod c;
mod door;
pub mod layout;
mod listener;
pub mod locked;
mod map;
mod reader;
mod session;

pub use layout::Refused;
pub use listener::{Caller, Listener};
pub use locked::{Locked, NotMapped, locked, locked_over};
pub use reader::{Reader, Seen, Unit};
pub use session::{Demand, Session};
