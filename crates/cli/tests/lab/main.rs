//! Tests of the command line that boot a virtual machine of their own: next to anything but a
//! measurement.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod coloured;
mod disks;
mod divided;
mod following;
#[path = "../guest/mod.rs"]
mod guest;
mod hoarded;
mod hostile;
mod interrupts;
mod isolated;
mod locked;
mod near;
mod nodes;
mod outside;
mod paged;
mod pressed;
mod registers;
mod rights;
mod stopped;
mod throttled;
mod timeline;
mod turned;
mod ways;
mod windowed;
#[path = "../../../linux/tests/common/witness.rs"]
mod witness;
