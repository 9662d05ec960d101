//! Tests that need neither rights nor silence: any order, side by side.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod address;
mod cache;
mod demand;
mod dram;
