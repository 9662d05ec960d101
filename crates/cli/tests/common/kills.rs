//! How often a test kills.

/// `QUELL_KILLS`; `make soak` gives a thousand.
pub fn kills() -> usize {
    let wanted = std::env::var("QUELL_KILLS").ok();
    wanted.map_or(4, |n| n.parse().expect("QUELL_KILLS is a number"))
}
