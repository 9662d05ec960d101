//! The command line of Quell.
fn main() {}
