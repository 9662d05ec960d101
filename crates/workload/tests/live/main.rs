//! Tests that need the CPUs of the machine: one at a time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod serve;
mod witness;
