//! What there is (inventory) and what will be done (plan), by a planner that reads a policy.

pub mod assumed;
pub mod choose;
pub mod deep;
pub mod hardware;
pub mod inventory;
pub mod pairs;
pub mod planner;

mod plan;

pub use plan::*;
