//! The planner's sentences, by mechanism. Each is a function of the values that it names.
//!
//! Decisions are made elsewhere. A sentence gets what it needs: no module here reads a plan.

/// Functions that put values into a sentence.
macro_rules! sentences {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $kind:ty),*) $text:literal;)*) => {
        $($(#[$doc])* pub fn $name($($value: $kind),*) -> String {
            format!($text)
        })*
    };
}

pub mod assumed;
pub mod bandwidth;
pub mod cores;
pub mod deadline;
pub mod directions;
pub mod division;
pub mod hoard;
pub mod mba;
pub mod memory;
pub mod paging;
pub mod pooling;
pub mod reserves;
pub mod schedule;
pub mod windows;

use quell_types::cpuset::CpuSet;

/// `CPU 3`, `CPUs 2-3`.
pub fn on(cpus: &CpuSet) -> String {
    let s = if cpus.len() > 1 { "s" } else { "" };
    format!("CPU{s} {}", cpus.brief())
}

/// Chooses between the word for one and the word for several.
pub const fn one_or<'a>(n: usize, one: &'a str, several: &'a str) -> &'a str {
    if n == 1 { one } else { several }
}
