//! The controllers: pure state machines that read like the papers they come from.

pub mod bandwidth;
pub mod deadline;
pub mod pool;
pub mod pooled;
pub mod split;
