//! Tests of the command line that measure the machine: nothing runs next to them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attribution;
mod backend;
#[path = "../common/mod.rs"]
mod common;
mod demo;
mod hold;
mod kills;
mod limits;
mod native;
mod profile;
mod real;
mod scheduler;
mod settling;
mod windows;
#[path = "../../../linux/tests/common/witness.rs"]
mod witness;
