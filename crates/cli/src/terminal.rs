//! How output is laid out, and how the command line is written down.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use quell_report::Style;

use crate::guest;

/// The command that was called, as a shell takes it.
pub fn command_line() -> String {
    if let Some(called) = guest::command_line() {
        return called;
    }
    let words: Vec<String> = std::env::args().map(|word| quoted(&word)).collect();
    words.join(" ")
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// How stdout is to be written: coloured on a terminal, unless NO_COLOR says otherwise.
pub fn style() -> Style {
    style_for(columns(&std::io::stdout(), 0))
}

/// The same for stderr.
pub fn error_style() -> Style {
    style_for(columns(&std::io::stderr(), 1))
}

/// Narrower than this nothing can be laid out.
const NARROWEST: usize = 40;

/// The width of the terminal that a stream is (0: it does not know); none where it is no terminal.
/// `number`: 0 for standard output, 1 for error.
pub fn columns(stream: &(impl IsTerminal + AsFd), number: usize) -> Option<usize> {
    if let Some(told) = guest::terminal(number) {
        return Some(told);
    }
    let size = rustix::termios::tcgetwinsize(stream.as_fd()).ok();
    let width = size.map_or(0, |s| usize::from(s.ws_col));
    stream.is_terminal().then_some(width)
}

fn style_for(columns: Option<usize>) -> Style {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let usual = Style::default().width;
    Style {
        color: columns.is_some() && !no_color,
        width: columns
            .filter(|w| *w > 0)
            .map_or(usual, |w| w.clamp(NARROWEST, usual)),
    }
}

/// Writes a line. A terminal that is gone is no reason to fail: the run has to revert first.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "quell: {text}");
}
