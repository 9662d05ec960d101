//! Tests of the command line that change the machine: one at a time, next to those in the lab.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attached;
mod births;
mod colours;
mod combined;
#[path = "../common/mod.rs"]
mod common;
mod deep;
mod direct;
mod gathered;
mod hoard;
mod hostile;
mod input;
mod look;
mod memory;
mod pages;
mod paging;
mod planned;
mod programs;
mod report;
mod silent;
mod speaks;
mod stages;
mod told;
mod units;
mod witnessed;
