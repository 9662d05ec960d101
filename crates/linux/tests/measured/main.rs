//! Tests that measure the machine: nothing runs next to them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/counted.rs"]
mod counted;
#[path = "../common/divided.rs"]
mod divided;
mod edges;
mod regulator;
mod ways;
#[path = "../common/witness.rs"]
mod witness;
