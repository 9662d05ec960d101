//! Latency under memory pressure (Channabasappa and Ravindran): an object [`detector`] whose weights and images are pages of
//! files, and what takes memory from it: anonymous pages ([`anon`]), pages of files that are read or written ([`file`]).
//!
//! Files have no name ([`files`]): nothing is left of them, whatever ends the generator. They lie in the folder for temporary
//! files (`TMPDIR`), which has to be on a disk.
//!
//! | generator | metric | one value per | is |
//! |---|---|---|---|
//! | `detector` | `frame_ms` | arrival | from there to the end of the arithmetic; if dropped, to that of the next frame looked at |
//! | | `dropped` | arrival | 1 if the frame before was not done, so that nobody looked at this one; else 0 |
//! | | `cache_misses` | frame | share of the image's pages that were not in the page cache (`mincore`) |
//! | | `major_faults`, `minor_faults` | frame | of the thread (`getrusage`) |
//! | | `resident_mb` | frame | 10^6 bytes, afterwards (`/proc/self/statm`) |
//! | `anon-hog` | `pages_per_s` | window of 100 ms | pages stored to |
//! | | `resident_mb` | window | of the process that takes the memory |
//! | | `killed` | window | how often somebody killed that process; another one is started |
//! | `file-hog`, `dirty-writer` | `bandwidth_mb_s` | window of 100 ms | 10^6 bytes of the file |

mod anon;
mod detector;
mod file;
mod files;
mod progress;

pub(crate) use anon::AnonHog;
pub(crate) use detector::Detector;
pub(crate) use file::{FileHog, Writer};

/// The bytes of a page of this machine.
fn page() -> usize {
    rustix::param::page_size()
}

/// The length of a hog's windows in a span: what is left over behind the last whole one is in none.
fn window(duration_ns: u64) -> u64 {
    duration_ns.clamp(1, 100_000_000)
}

/// How often a hog looks whether it is to end.
const ASK_NS: u64 = 10_000_000;

/// 10^6 bytes in memory, as `/proc/PID/statm` (second number, in pages) tells; `None` where nobody is.
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
    use quell_core::units::Nanos;
    crate::generator::Span {
        warmup: Nanos(0),
        duration: Nanos::millis(ms),
        window: Nanos::millis(1),
    }
}
