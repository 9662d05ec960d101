//! Latency under memory pressure (Channabasappa and Ravindran). An object [`detector`] has its
//! weights and images in pages of files. Hogs take memory from it: anonymous pages ([`anon`]), and
//! pages of files that are read or written ([`mod@file`]).
//!
//! Files have no name ([`files`]), so none remains, whatever ends the generator. They lie in the
//! folder for temporary files (`TMPDIR`), which has to be on a disk.
//!
//! | generator | metric | one value per | is |
//! |---|---|---|---|
//! | `detector` | `frame_ms` | arrival | from there to the end of the arithmetic |
//! | | `dropped` | arrival | 1 if the frame before was not done, else 0 |
//! | | `cache_misses` | frame | share of the image's pages not in the page cache (`mincore`) |
//! | | `major_faults`, `minor_faults` | frame | of the thread (`getrusage`) |
//! | | `resident_mb` | frame | 10^6 bytes, afterwards (`/proc/self/statm`) |
//! | | `memory_some`, `memory_full` | span | share of it in which tasks of the machine waited (PSI) |
//! | | `page_ins`, `refaults` | span | pages per second, of the machine (`/proc/vmstat`) |
//! | `anon-hog` | `pages_per_s` | window of 100 ms | pages stored to |
//! | | `resident_mb` | window | of the process that takes the memory |
//! | | `killed` | window | how often that process was killed; another one is started |
//! | `file-hog`, `dirty-writer` | `bandwidth_mb_s` | window of 100 ms | 10^6 bytes of the file |
//!
//! The `frame_ms` of a dropped frame runs to the end of the next frame that is processed.

mod anon;
mod detector;
mod file;
pub(crate) mod files;
mod machine;
mod progress;

pub(crate) use anon::AnonHog;
pub(crate) use detector::Detector;
pub(crate) use file::{FileHog, Writer};

use quell_types::units::Nanos;

use crate::Error;
use crate::generator::MOST_WINDOWS;
use crate::resolved::ResolvedWorkload;

/// Bytes of a page of this machine.
fn page() -> usize {
    rustix::param::page_size()
}

/// The length of a hog's windows in a span. What follows the last whole window is in none.
fn window(duration_ns: u64) -> u64 {
    duration_ns.clamp(1, 100_000_000)
}

/// Refuses a span with nothing to measure, or too much. These generators keep time by themselves,
/// whatever windows were asked for. It is checked before files are made, since that takes time.
///
/// # Errors
/// When the span has no value, or too many.
pub(crate) fn check(workload: &ResolvedWorkload, duration: Nanos) -> Result<(), Error> {
    let (each, what, remedy) = match workload {
        ResolvedWorkload::Detector(spec) => (
            detector::period(spec),
            "frames",
            "ask for another duration, or another number of frames per second",
        ),
        ResolvedWorkload::AnonHog(_)
        | ResolvedWorkload::FileHog(_)
        | ResolvedWorkload::DirtyWriter(_) => (
            window(duration.0),
            "windows of 100 ms",
            "ask for another duration",
        ),
        _ => return Ok(()),
    };
    let values = duration.0.div_ceil(each);
    if (1..=MOST_WINDOWS).contains(&values) {
        return Ok(());
    }
    Err(Error::refused(
        format!("measuring {duration}"),
        format!("that is {values} {what}, and a span has between 1 and {MOST_WINDOWS}"),
        remedy,
    ))
}

/// How often a hog asks whether to end, in nanoseconds.
const ASK_NS: u64 = 10_000_000;

/// 10^6 bytes in memory, from the second number (in pages) of `/proc/PID/statm`. `None` where there
/// is no such process.
fn resident_mb(pid: Option<u32>) -> Option<f64> {
    let path = pid.map_or("/proc/self/statm".to_owned(), |pid| {
        format!("/proc/{pid}/statm")
    });
    let text = std::fs::read_to_string(path).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some((pages * page() as u64) as f64 / 1e6)
}

/// A span without warm-up, for tests.
#[cfg(test)]
fn span_of(ms: u64) -> crate::generator::Span {
    crate::generator::Span {
        warmup: Nanos(0),
        duration: Nanos::millis(ms),
        window: Nanos::millis(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BenchOptions, bench};
    use quell_policy::workload::{AnonHog, Detector};
    use quell_types::units::Bytes;

    #[test]
    fn a_span_of_too_many_values_is_refused_in_their_unit() {
        let refused = |workload: &ResolvedWorkload, seconds| {
            let options = BenchOptions {
                duration: Nanos::secs(seconds),
                ..BenchOptions::new(workload.clone())
            };
            bench(&options).unwrap_err().to_string()
        };
        // No machine has so much memory. The span is what is refused.
        let size = Bytes(1 << 60);
        let detector = ResolvedWorkload::Detector(Detector {
            weights: size,
            ..Detector::default()
        });
        let hog = ResolvedWorkload::AnonHog(AnonHog {
            size,
            ramp: Nanos::secs(1),
        });
        for (workload, seconds, what, remedy) in [
            (&detector, 1_000_000, "20000000 frames", "frames per second"),
            (
                &hog,
                2_000_000,
                "20000000 windows of 100 ms",
                "another duration",
            ),
        ] {
            check(workload, Nanos::secs(100_000)).unwrap();
            let why = refused(workload, seconds);
            let says = [what, remedy, "16777216", "measuring"];
            assert!(says.iter().all(|s| why.contains(s)), "{why}");
            let why = refused(workload, 0);
            assert!(why.contains("between 1 and"), "{why}");
        }
    }
}
