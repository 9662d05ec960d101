//! A progress bar on stderr, for anything over two seconds when stderr is a terminal, and a line
//! every minute at most where it is none.
//!
//! It is drawn when a cell begins and when it ends, never in between: a thread that kept it moving
//! would run on the very CPUs that are being measured.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use quell_engine::compare::Progress;
use quell_kernel::signals::{next_signal, release_stop_signals, stop_signals};

/// Shorter waits need no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a file or a pipe is told.
const LINES: Duration = Duration::from_secs(60);
const WIDTH: usize = 24;
/// A line of a file, at most.
const LONG: usize = 200;
/// Eighths of a column, as block elements.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// The bar, or its lines.
#[derive(Debug)]
pub struct Bar {
    begun: Instant,
    /// When the last line was written where stderr is no terminal.
    told: Instant,
    terminal: bool,
    blocks: bool,
    cells: u32,
    done: u32,
    /// Cells of the run that this one goes on with: they took no time now.
    before: u32,
    label: String,
    shown: bool,
    /// The signals that end a run, where nobody else looks at them.
    signals: Option<OwnedFd>,
    /// When no further round begins, and how many there are all the same.
    time: Option<(Instant, u32)>,
}

impl Bar {
    /// An empty bar.
    pub fn new() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let dumb = set("TERM").is_some_and(|t| t == "dumb");
        Self {
            begun: Instant::now(),
            told: Instant::now(),
            terminal: columns().is_some() && !dumb,
            blocks: locale.is_some_and(|l| l.to_lowercase().replace('-', "").contains("utf8")),
            cells: 0,
            done: 0,
            before: 0,
            label: String::new(),
            shown: false,
            signals: None,
            time: None,
        }
    }

    /// One that sees the signals that end a run, for simulated machines, which see none.
    pub fn seeing_signals() -> std::io::Result<Self> {
        let mut bar = Self::new();
        bar.signals = Some(stop_signals()?);
        Ok(bar)
    }

    /// No further round begins after `time.0`, once `time.1` rounds are over.
    pub fn within(mut self, time: Option<(Instant, u32)>) -> Self {
        self.time = time;
        self
    }

    fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[2K");
            let _ = std::io::stderr().flush();
            self.shown = false;
        }
    }

    fn draw(&mut self) {
        let elapsed = self.begun.elapsed();
        if self.cells == 0 {
            return;
        }
        if !self.terminal {
            if self.told.elapsed() >= LINES {
                self.told = Instant::now();
                eprintln!("quell: {}", self.line(elapsed, false, LONG));
            }
            return;
        }
        if elapsed < PATIENCE {
            return;
        }
        let columns = columns().filter(|n| *n > 0).map_or(80, |n| n.max(20));
        let line = self.line(elapsed, self.blocks, columns - 1);
        eprint!("\r\x1b[2K{line}");
        let _ = std::io::stderr().flush();
        self.shown = true;
    }

    fn line(&self, elapsed: Duration, blocks: bool, columns: usize) -> String {
        let (done, before) = (self.done, self.before);
        let to_do = self.cells.saturating_sub(done);
        let left = left(elapsed, done.saturating_sub(before), to_do);
        line(done, self.cells, left, &self.label, blocks, columns)
    }
}

/// The width of the terminal that is written to, if it is one.
fn columns() -> Option<usize> {
    crate::terminal::columns(&std::io::stderr(), 1)
}

/// How long `to_do` cells will take if `done` took `elapsed`; unknown before the first is done.
fn left(elapsed: Duration, done: u32, to_do: u32) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(f64::from(to_do) / f64::from(done)))
}

/// `47 s`, `3 min 20 s`, `1 h 05 min`: coarser the longer, as an estimate should be.
fn duration(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60 / 10 * 10),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// One line of at most `columns` characters; what does not fit is cut off the label.
fn line(
    done: u32,
    cells: u32,
    left: Option<Duration>,
    label: &str,
    blocks: bool,
    columns: usize,
) -> String {
    let part = f64::from(done.min(cells)) / f64::from(cells.max(1));
    let mut text = format!(
        "{} {:3.0} %  {done}/{cells}",
        bar(part, blocks),
        part * 100.0
    );
    if let Some(left) = left {
        text.push_str(&format!("  {} left", duration(left)));
    }
    let room = columns.saturating_sub(text.chars().count() + 2);
    if room > 8 {
        text.push_str("  ");
        text.extend(label.chars().take(room));
    }
    text.chars().take(columns).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part between 0 and 1 of a few columns"
)]
fn bar(part: f64, blocks: bool) -> String {
    let eighths = (part * (WIDTH * 8) as f64) as usize;
    let (full, rest) = (eighths / 8, eighths % 8);
    let (body, edge, free) = if blocks {
        ("█", EIGHTHS[rest], "·")
    } else {
        ("#", "", "-")
    };
    let used = full + usize::from(!edge.is_empty());
    format!(
        "{}{edge}{}",
        body.repeat(full),
        free.repeat(WIDTH.saturating_sub(used))
    )
}

impl Progress for Bar {
    fn begin(&mut self, cells: u32) {
        self.cells = cells;
        self.begun = Instant::now();
        self.told = self.begun;
    }

    fn resumed(&mut self, done: u32) {
        self.before = done;
        self.done = done;
        self.note(&format!(
            "{done} of {} cells were measured before",
            self.cells
        ));
    }

    fn cell(&mut self, cell: &str) {
        cell.clone_into(&mut self.label);
        self.draw();
    }

    fn done(&mut self, done: u32, cells: u32) {
        // Cells measured before may come later in the order.
        self.done = if self.before > 0 { self.done + 1 } else { done };
        self.cells = cells;
        if self.done < cells {
            self.draw();
        } else {
            self.clear();
        }
    }

    fn enough(&mut self, done: u32) -> bool {
        self.time
            .is_some_and(|(until, least)| done >= least && Instant::now() >= until)
    }

    fn note(&mut self, text: &str) {
        self.clear();
        eprintln!("quell: {text}");
        self.draw();
    }

    fn stop(&mut self) -> Option<i32> {
        let signal = next_signal(self.signals.as_ref()?)?;
        let now = if release_stop_signals().is_ok() {
            "; another signal ends it at once"
        } else {
            ""
        };
        self.note(&format!(
            "signal {signal}: the cells that have begun are brought to their end{now}"
        ));
        Some(signal)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_and_how_long() {
        let left = left(Duration::from_secs(30), 10, 30);
        let text = line(10, 40, left, "round 2 of 4, regulated@10%", true, 100);
        assert_eq!(
            text,
            "██████··················  25 %  10/40  1 min 30 s left  round 2 of 4, regulated@10%"
        );
        let text = line(1, 40, None, "round 1", false, 40);
        assert_eq!(text, "------------------------   2 %  1/40");
    }

    #[test]
    fn a_narrow_terminal_gets_one_line_all_the_same() {
        for columns in [10, 30, 50, 79] {
            let text = line(
                33,
                40,
                Some(Duration::from_secs(4000)),
                &"x".repeat(99),
                true,
                columns,
            );
            assert!(text.chars().count() <= columns, "{text}");
        }
    }

    #[test]
    fn an_estimate_is_coarser_the_longer() {
        let text = |s| duration(Duration::from_secs(s));
        assert_eq!(
            (text(47), text(203), text(3_900)),
            ("47 s".into(), "3 min 20 s".into(), "1 h 05 min".into())
        );
    }

    #[test]
    fn cells_measured_before_do_not_shorten_the_estimate() {
        assert_eq!(left(Duration::from_secs(10), 0, 5), None);
        assert_eq!(
            left(Duration::from_secs(10), 5, 5),
            Some(Duration::from_secs(10))
        );
    }
}
