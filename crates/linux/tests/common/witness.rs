//! A witness of when user code runs: a loop that reads the clock without end and notes where it
//! jumped. It knows nothing of what stops it.

use std::io::Write;
use std::path::Path;

use quell_kernel::rt;
use quell_types::units::Nanos;

/// A jump of the clock that is longer ends a span: another task ran. Interrupts are shorter.
const GAP: u64 = 50_000;
/// Most spans that are noted.
const MOST: usize = 1 << 18;

/// Times in which user code ran: first and last reading of the clock, in nanoseconds.
pub type Span = (u64, u64);

/// Runs for so long, and then writes its spans to `path`, one a line.
pub fn watch(path: &Path, length: Nanos) {
    let mut spans: Vec<Span> = vec![(0, 0); MOST];
    let mut used = 0;
    let mut begun = rt::now().0;
    let end = begun + length.0;
    let mut last = begun;
    while last < end && used < MOST {
        let now = rt::now().0;
        if now - last > GAP {
            spans[used] = (begun, last);
            used += 1;
            begun = now;
        }
        last = now;
    }
    let mut text = Vec::new();
    for (begun, last) in &spans[..used] {
        writeln!(text, "{begun} {last}").unwrap();
    }
    writeln!(text, "{begun} {last}").unwrap();
    std::fs::write(path, text).unwrap();
}

/// The spans that a witness has written.
pub fn read(path: &Path) -> Vec<Span> {
    let text = std::fs::read_to_string(path).unwrap();
    let span = |line: &str| {
        let (begun, last) = line.split_once(' ').unwrap();
        (begun.parse().unwrap(), last.parse().unwrap())
    };
    text.lines().map(span).collect()
}

/// A part of values in ascending order, such as 0.99.
pub fn quantile(sorted: &[i64], part: f64) -> i64 {
    #[expect(clippy::cast_sign_loss, reason = "a part is not negative")]
    let place = (sorted.len() as f64 * part) as usize;
    sorted[place.min(sorted.len() - 1)]
}
