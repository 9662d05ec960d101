//! Parts of caches and of memory bandwidth, and what is used of them: resctrl
//! (Documentation/filesystems/resctrl.rst).
//!
//! What there is, is discovered and never assumed: a resource is what its folder in `info` says, by
//! the files that are there and not by its name; one of a kind that is not known is kept as text.
//! Nothing here changes anything but `lock` and `locked::remove`; the rest is changed by
//! `quell_linux::enforce::cache`.

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
pub use monitoring::{Data, Reading};
pub use mount::Resctrl;
pub use schemata::{Schemata, Values};
