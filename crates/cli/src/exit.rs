//! How the program ends.

use std::fmt::Display;
use std::process::ExitCode;

/// Exit codes (`docs/commands.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: failed.
    Failed,
    /// 2: bad usage or input.
    Usage,
    /// 3: ran, but a promise or expectation did not hold.
    NotHeld,
    /// 4: whether promises hold cannot be told.
    Unseen,
    /// 5: no run is active.
    Inactive,
    /// A launched command's status, passed through; also 125-127 as `env` has them.
    Status(i32),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NotHeld => 3,
            Exit::Unseen => 4,
            Exit::Inactive => 5,
            Exit::Status(status) => u8::try_from(status & 0xff).unwrap_or(1),
        })
    }
}

/// A failure: what to say, and how to end.
#[derive(Debug)]
pub struct Failure {
    /// For stderr, after `quell: `.
    pub text: String,
    /// The code.
    pub exit: Exit,
}

/// What every command comes to.
pub type Result<T = Exit> = std::result::Result<T, Failure>;

/// A failure of the machine or of Quell.
pub fn failed(text: impl Display) -> Failure {
    Failure {
        text: text.to_string(),
        exit: Exit::Failed,
    }
}

/// A failure of what the user gave.
pub fn usage(text: impl Display) -> Failure {
    Failure {
        text: text.to_string(),
        exit: Exit::Usage,
    }
}

/// Several problems of what the user gave, a line each.
pub fn problems<T: Display>(all: &[T]) -> Failure {
    let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
    usage(lines.join("\nquell: "))
}
