//! Shares of caches and of memory bandwidth, and their use: resctrl
//! (Documentation/filesystems/resctrl.rst).
//!
//! Everything is discovered and nothing assumed. A resource is what its directory in `info` says,
//! by the files there and not by its name. A resource of an unknown kind is kept as text.
//!
//! Only `lock` and `locked::remove` change anything here. `quell_linux::enforce::cache` makes all
//! other changes.

pub mod groups;
pub mod info;
pub mod lock;
pub mod locked;
pub mod masks;
pub mod monitoring;
pub mod mount;
pub mod offer;
pub mod processor;
pub mod schemata;
mod status;

pub use groups::{Group, Mode};
pub use info::{Info, Kind, Monitor, Resource};
pub use monitoring::{Data, Domain, Reading};
pub use mount::Resctrl;
pub use schemata::{Schemata, Values};
