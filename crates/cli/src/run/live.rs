//! What a run writes to stderr: lines, and on a terminal a status that is drawn over and cleared
//! before any line.

use std::fs::File;
use std::io::Write;

use quell_report::Style;
use quell_types::units::Nanos;
use rustix::fs::{Mode, OFlags};

/// How often the status is drawn.
const EVERY: Nanos = Nanos::millis(950);
/// Back to the first column, and the line erased.
const CLEAR: &str = "\r\x1b[2K";

/// The status line of a terminal.
#[derive(Debug)]
pub struct Live {
    /// The terminal, opened anew so that no write waits: one that is stopped (Ctrl-S) or behind a
    /// slow line must not keep the run from its heartbeat. Absent where no status is wanted.
    terminal: Option<File>,
    shown: bool,
    next: Nanos,
}

impl Live {
    /// None where stderr is no terminal, or one that cannot go back on its line.
    pub fn new(wanted: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let wanted = wanted && !dumb && crate::terminal::columns(&std::io::stderr(), 1).is_some();
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()).ok();
        Self {
            terminal: wanted.then(open).flatten().map(File::from),
            shown: false,
            next: Nanos(0),
        }
    }

    /// Draws the status that `text` makes for the terminal as it is now, if it is time to.
    pub fn draw(&mut self, now: Nanos, text: impl FnOnce(Style) -> Option<String>) {
        if self.terminal.is_none() || now < self.next || !in_foreground() {
            return;
        }
        self.next = now.plus(EVERY);
        // As wide as it is now; a terminal that does not know gets what fits everywhere.
        let columns = crate::terminal::columns(&std::io::stderr(), 1).filter(|n| *n > 0);
        let style = Style {
            width: columns.unwrap_or(80),
            ..crate::terminal::error_style()
        };
        if let Some(line) = text(style) {
            self.shown = true;
            self.put(&format!("{CLEAR}{line}"));
        }
    }

    /// Erases the status, before something else is written.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.put(CLEAR);
        }
    }

    /// What does not fit now is left out.
    fn put(&mut self, text: &str) {
        if let Some(terminal) = self.terminal.as_mut() {
            let _ = terminal.write_all(text.as_bytes());
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whether the terminal is ours to write on: a run in the background would write into what the user
/// does there. Where that cannot be told (another's terminal), it is.
fn in_foreground() -> bool {
    let group = rustix::termios::tcgetpgrp(std::io::stderr());
    group.map_or(true, |group| group == rustix::process::getpgrp())
}
