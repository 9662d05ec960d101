//! The plain regulator.
