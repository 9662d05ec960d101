//! What happened: events, the current worth of promises, measurements, results. Also the trait
//! [`backend::Backend`], by which the engine drives a machine.

pub mod about;
pub mod account;
pub mod attribution;
pub mod backend;
pub mod declared;
pub mod demand;
pub mod demo;
pub mod events;
pub mod measurement;
pub mod now;
pub mod owners;
mod pages;
pub mod preview;
pub mod published;
pub mod quanta;
pub mod result;
pub mod standing;
pub mod target;
pub mod ways;
pub mod windows;
pub mod worst;
