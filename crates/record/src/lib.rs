//! What happened: events, what a promise is worth now, measurements, results; and the machine as it
//! is spoken to.

pub mod about;
pub mod account;
pub mod attribution;
pub mod backend;
pub mod demand;
pub mod demo;
pub mod events;
pub mod measurement;
pub mod result;
pub mod standing;
pub mod ways;
