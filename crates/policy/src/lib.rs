//! What is wanted: the policy language, the experiment language, and the programs that both name.

pub mod experiment;
pub mod lab;
pub mod workload;

mod policy;

pub use policy::*;
