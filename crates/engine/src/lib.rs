//! The engine: what happens in which order, whatever the machine.
//!
//! It owns the one loop ([`drive`]), holding a plan ([`hold`]), running an experiment ([`compare`])
//! and the record of both ([`folder`], [`read`]). Backends are injected. Time comes from them,
//! randomness from a seed, and the calendar from the caller.

mod adapt;
mod aggregate;
pub mod calibrate;
mod cell;
mod collect;
pub mod compare;
pub mod drive;
mod expect;
pub mod folder;
pub mod hold;
mod loops;
mod memory;
pub mod place;
pub mod profile;
mod published;
pub mod read;
mod resume;
mod rounds;
mod settling;
mod setup;
mod side_by_side;
pub mod sink;
mod throttling;
mod together;
pub mod turns;
mod ways;
mod witness;

#[cfg(test)]
mod fake;
