//! Tests of the command line that need neither rights nor silence: any order, side by side.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod architecture;
#[path = "../common/mod.rs"]
mod common;
mod fuzz;
mod init;
mod profile;
mod profiles;
mod published;
mod schedules;
mod sim;
mod sweep;
mod targets;
mod trace;
