//! Tests that need neither rights nor silence: any order, side by side.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod backend;
mod banks;
mod bound;
mod cachegrind;
mod coarse;
mod conformance;
mod directions;
mod machine;
mod mba;
mod mechanisms;
mod os;
mod patterns;
mod profiles;
mod sets;
mod smt;
mod trace;
mod ways;
