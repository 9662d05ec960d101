//! Tests that need neither rights nor silence: any order, side by side.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod experiment;
mod policy;
mod scheduler;
mod windows;
