//! What a test says when it cannot run here, and whether this is the long run.
//!
//! A test that cannot run calls [`skip`] and returns. The runner (`quell-test`) then counts it as
//! skipped, not as passed.

use std::fmt;
use std::io::Write;

/// The file that takes a line for each skip: [`ALL`] or [`PART`], a space, the reason.
pub const SKIPS: &str = "QUELL_TEST_SKIPS";

/// Nothing of the test ran.
pub const ALL: &str = "all";

/// The rest of the test ran.
pub const PART: &str = "part";

/// Reports that this test cannot run here. The caller returns.
pub fn skip(reason: impl fmt::Display) {
    report(ALL, &reason.to_string());
}

/// Reports that a part of this test cannot run here. The caller goes on.
pub fn skip_part(reason: impl fmt::Display) {
    report(PART, &reason.to_string());
}

fn report(what: &str, reason: &str) {
    let reason = reason.replace('\n', " ");
    eprintln!("SKIPPED: {reason}");
    let Some(path) = std::env::var_os(SKIPS) else {
        return;
    };
    let line = format!("{what} {reason}\n");
    let file = std::fs::File::options().append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    // A skip that is not reported would pass.
    assert!(written.is_ok(), "cannot report a skip: {written:?}");
}

/// The variable that makes a run the long one.
pub const SOAK: &str = "QUELL_SOAK";

/// Whether this is the long run (`make soak`), in which a test does its utmost.
pub fn soak() -> bool {
    std::env::var_os(SOAK).is_some()
}

/// How often a test of deaths kills: `QUELL_KILLS`, or a few times.
///
/// # Panics
///
/// Where `QUELL_KILLS` is no number.
pub fn kills() -> usize {
    let wanted = std::env::var("QUELL_KILLS").ok();
    wanted.map_or(4, |n| n.parse().expect("QUELL_KILLS is a number"))
}
