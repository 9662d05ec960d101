//! What a Quell in the lab knows of where it is and how it was called: a file says which machine of
//! the lab this is, and the variables `QUELL_COMMAND_LINE`, `QUELL_TERMINAL` and `QUELL_STATE_DIR`
//! what the caller had.

use std::fs;
use std::sync::OnceLock;

use quell_policy::lab::Guest;

/// Where a machine of the lab says how it was booted.
pub const GUEST: &str = "/lab/guest.json";
/// The command line that the caller was called with.
pub const COMMAND_LINE: &str = "QUELL_COMMAND_LINE";
/// The widths of the terminals that output ends on, for standard output and error.
pub const TERMINAL: &str = "QUELL_TERMINAL";

/// The machine of the lab that this is, if it is one.
pub fn guest() -> Option<&'static Guest> {
    static GUEST_HERE: OnceLock<Option<Guest>> = OnceLock::new();
    let read = || serde_json::from_str(&fs::read_to_string(GUEST).ok()?).ok();
    GUEST_HERE.get_or_init(read).as_ref()
}

/// The command line of the Quell that called this one, where one did.
pub fn command_line() -> Option<String> {
    std::env::var(COMMAND_LINE).ok()
}

/// For standard output (0) and error (1): whether what we say ends on a terminal, elsewhere, and
/// how wide it is (0: unknown).
pub fn terminal(stream: usize) -> Option<usize> {
    let told = std::env::var(TERMINAL).ok()?;
    told.split(',').nth(stream)?.parse().ok()
}
