//! What an application links to report its work: how long each unit of work may take and how long
//! it took. A unit is a frame, a request, or the time between two heartbeats. Quell reads along,
//! and gives the neighbours what the units can spare (`regulator.adapt = "deadline"`).
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
//! The session is shared memory ([`layout`]). Quell passes it to the programs that it launches, and
//! to programs that ask at its socket. Reporting a unit takes a few stores and two reads of the
//! clock, and no system call. Without Quell a call reads the clock, and checks at most once a
//! second whether Quell has started. `include/quell.h` is the same for C.
//!
//! Memory that Quell locks in a cache for a policy is available here, too: [`locked()`].

mod attach;
mod c;
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
