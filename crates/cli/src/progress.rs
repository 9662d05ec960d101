//! A progress bar on stderr, for anything over two seconds when stderr is a terminal.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use quell_engine::compare::Progress;

const WIDTH: usize = 30;

/// The bar; silent where stderr is no terminal, notes excepted.
#[derive(Debug)]
pub struct Bar {
    begun: Instant,
    terminal: bool,
    label: String,
    shown: bool,
}

impl Bar {
    /// An empty bar.
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
            label: String::new(),
            shown: false,
        }
    }

    fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[2K");
            self.shown = false;
        }
    }
}

impl Progress for Bar {
    fn cell(&mut self, cell: &str) {
        cell.clone_into(&mut self.label);
    }

    fn done(&mut self, done: u32, cells: u32) {
        let elapsed = self.begun.elapsed();
        if !self.terminal || elapsed.as_secs() < 2 || cells == 0 {
            return;
        }
        let full = WIDTH * done as usize / cells as usize;
        let left = elapsed.mul_f64(f64::from(cells.saturating_sub(done)) / f64::from(done.max(1)));
        let bar: String = (0..WIDTH)
            .map(|i| if i < full { '█' } else { '·' })
            .collect();
        eprint!(
            "\r\x1b[2K{bar} {done}/{cells}, {} s left  {:.40}",
            left.as_secs(),
            self.label
        );
        let _ = std::io::stderr().flush();
        self.shown = true;
        if done == cells {
            self.clear();
        }
    }

    fn note(&mut self, text: &str) {
        self.clear();
        eprintln!("quell: {text}");
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
