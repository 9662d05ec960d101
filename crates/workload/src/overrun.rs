//! When does a CPU run a thread, and when not? A thread spins on one CPU and reads the clock. A
//! step far longer than usual is a gap in which it did not run: it was throttled or preempted, or
//! the hypervisor took the CPU. The time between two gaps is a run.
//!
//! On a throttled CPU the runs show the budget plus the delay from overflow to stop, and the gaps
//! show the throttles. This is the method of the kernel's `timerlat`/`osnoise` tracers
//! (Documentation/trace/osnoise-tracer.rst).
//!
//! The kernel variant spends its time inside system calls (reading /dev/zero), because a throttler
//! reacts differently to a thread in the kernel. A gap inside a call makes that call longer than
//! usual. So runs and gaps are known to about one call (`resolution_ns`).

use std::fmt;
use std::fs::File;

use quell_types::cpuset::CpuId;
use quell_types::stats::{mean, median, percentile, sorted};
use quell_types::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::bench::{SCHEMA, duration_text};
use crate::{Error, affinity, clock};

/// A step longer than the usual one by more than this is a gap.
pub const GAP_NS: u64 = 5_000;
/// What one system call of the kernel variant reads: 1 MiB, some 30 to 100 µs.
const CALL_BYTES: usize = 1 << 20;
/// How many steps the usual length is learnt from.
const LEARN: usize = 101;
/// More spans than this are counted and summed, but not kept for percentiles (32 MiB for both
/// kinds).
const KEPT: usize = 2 << 20;

/// Which CPU to watch, how, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverrunOptions {
    /// The CPU to which the thread is pinned.
    pub cpu: CpuId,
    /// How long the CPU is watched.
    pub duration: Nanos,
    /// Whether to spend the time inside system calls.
    pub kernel: bool,
}

/// Statistics of all runs, or of all gaps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spans {
    /// How many spans there were.
    pub count: u64,
    /// Their total, in nanoseconds.
    pub total_ns: u64,
    /// Statistics of their lengths. `None` where there was no span.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<Lengths>,
    /// How many had at least `from_ns` and less than twice that. Empty ranges are left out.
    pub histogram: Vec<Bin>,
}

/// Statistics of lengths, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// The mean of all lengths.
    pub mean_ns: f64,
    /// The 50th percentile of the lengths.
    pub p50_ns: f64,
    /// The 95th percentile of the lengths.
    pub p95_ns: f64,
    /// The 99th percentile of the lengths.
    pub p99_ns: f64,
    /// The longest of all lengths.
    pub max_ns: f64,
}

impl Lengths {
    /// Of lengths in any order. `None` without any.
    pub(crate) fn of(lengths: &[u64]) -> Option<Self> {
        let values: Vec<f64> = lengths.iter().map(|n| *n as f64).collect();
        let values = sorted(&values);
        Some(Self {
            mean_ns: mean(&values)?,
            p50_ns: percentile(&values, 50.0)?,
            p95_ns: percentile(&values, 95.0)?,
            p99_ns: percentile(&values, 99.0)?,
            max_ns: values.last().copied()?,
        })
    }
}

/// A range of lengths in the histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Its lower end, a power of two. Its upper end is twice that.
    pub from_ns: u64,
    /// How many lengths lie in it.
    pub count: u64,
}

/// When the CPU ran the thread, and when not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverrunReport {
    /// Always [`SCHEMA`]; the first field of the JSON.
    pub schema: String,
    /// Always `overrun`, as the command is called.
    pub name: String,
    /// The CPU that was watched.
    pub cpu: CpuId,
    /// Whether the time was spent inside system calls.
    pub kernel: bool,
    /// The watched span, in nanoseconds.
    pub duration_ns: u64,
    /// How exactly the ends of runs and gaps are known, in nanoseconds: one usual step.
    pub resolution_ns: u64,
    /// The uninterrupted runs. Those cut off by the beginning and the end of the watched span are
    /// only in the total.
    pub runs: Spans,
    /// The gaps between the runs.
    pub gaps: Spans,
}

/// Sorts steps into runs and gaps. It does not read the clock, so it can be tested on values.
struct Splitter {
    usual: u64,
    longest: u64,
    run: u64,
    first: bool,
    runs: Collected,
    gaps: Collected,
}

struct Collected {
    count: u64,
    total: u64,
    kept: Vec<u64>,
    bins: [u64; 64],
}

impl Collected {
    fn new(kept: usize) -> Self {
        // Written and emptied again: pages come at the first write, and that must not happen in the
        // watched span.
        let mut lengths = vec![u64::MAX; kept];
        lengths.clear();
        Self {
            count: 0,
            total: 0,
            kept: lengths,
            bins: [0; 64],
        }
    }

    fn add(&mut self, length: u64) {
        self.count += 1;
        self.total += length;
        self.bins[length.max(1).ilog2() as usize] += 1;
        if self.kept.len() < self.kept.capacity() {
            self.kept.push(length);
        }
    }

    fn spans(&self) -> Spans {
        let bins = self.bins.iter().enumerate().filter(|(_, n)| **n > 0);
        Spans {
            count: self.count,
            total_ns: self.total,
            lengths: Lengths::of(&self.kept),
            histogram: bins
                .map(|(i, count)| Bin {
                    from_ns: 1 << i,
                    count: *count,
                })
                .collect(),
        }
    }
}

impl Splitter {
    fn new(usual: u64, kept: usize) -> Self {
        Self {
            usual,
            // Calls vary more than short steps, because they share their memory with other
            // programs. Twice the usual length is not yet a gap.
            longest: usual + GAP_NS.max(usual),
            run: 0,
            first: true,
            runs: Collected::new(kept),
            gaps: Collected::new(kept),
        }
    }

    fn step(&mut self, length: u64) {
        if length <= self.longest {
            self.run += length;
            return;
        }
        // The work of the step itself was done, too: on one side of the gap, unknown on which.
        let run = self.run + self.usual;
        if self.first {
            // The beginning of this run was not seen.
            self.runs.total += run;
            self.first = false;
        } else {
            self.runs.add(run);
        }
        self.gaps.add(length - self.usual);
        self.run = 0;
    }

    fn end(&mut self) {
        self.runs.total += self.run;
        self.run = 0;
    }
}

/// Watches a CPU for runs and gaps.
///
/// # Errors
/// When the CPU may not be used, or /dev/zero cannot be read.
pub fn overrun(options: &OverrunOptions) -> Result<OverrunReport, Error> {
    let _pinned = affinity::pin_to(options.cpu)?;
    let mut bytes = vec![1_u8; if options.kernel { CALL_BYTES } else { 0 }];
    let zero = File::open("/dev/zero").map_err(Error::kernel("opening /dev/zero"))?;
    let mut step = || -> Result<(), Error> {
        if options.kernel {
            // Short reads and interruptions only shorten the step.
            match rustix::io::read(&zero, &mut bytes) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                Err(e) => Err(Error::kernel("reading /dev/zero")(e)),
            }
        } else {
            std::hint::spin_loop();
            Ok(())
        }
    };
    let mut lengths = [0.0; LEARN];
    for length in &mut lengths {
        let before = clock::now();
        step()?;
        *length = (clock::now() - before) as f64;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the median of short durations"
    )]
    let usual = median(&lengths).unwrap_or(0.0) as u64;
    let mut seen = Splitter::new(usual, KEPT);
    let begin = clock::now();
    let end = begin.saturating_add(options.duration.0);
    let mut last = begin;
    while last < end {
        step()?;
        let now = clock::now();
        seen.step(now - last);
        last = now;
    }
    seen.end();
    Ok(OverrunReport {
        schema: SCHEMA.to_owned(),
        name: "overrun".to_owned(),
        cpu: options.cpu,
        kernel: options.kernel,
        duration_ns: last - begin,
        resolution_ns: usual,
        runs: seen.runs.spans(),
        gaps: seen.gaps.spans(),
    })
}

impl fmt::Display for OverrunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.kernel { "kernel" } else { "user" };
        writeln!(
            f,
            "overrun on CPU {} in {mode} mode for {}, known to {}",
            self.cpu,
            duration_text(self.duration_ns as f64),
            duration_text(self.resolution_ns as f64)
        )?;
        for (name, spans) in [("runs", &self.runs), ("gaps", &self.gaps)] {
            let share = spans.total_ns as f64 * 100.0 / self.duration_ns.max(1) as f64;
            write!(
                f,
                "{name}  {} in all ({share:.1} % of the time)",
                spans.count
            )?;
            if let Some(l) = &spans.lengths {
                let [p50, p95, p99, max] =
                    [l.p50_ns, l.p95_ns, l.p99_ns, l.max_ns].map(duration_text);
                write!(f, ", p50 {p50}, p95 {p95}, p99 {p99}, max {max}")?;
            }
            writeln!(f)?;
            for bin in &spans.histogram {
                let from = duration_text(bin.from_ns as f64);
                writeln!(f, "  from {from:>9}  {:>9}", bin.count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_lie_between_gaps_and_cut_off_ones_count_as_time() {
        let mut seen = Splitter::new(100, 8);
        // A first run of unknown beginning, a gap, a run of 3 steps, a gap, a last run of unknown
        // end.
        for length in [100, 100, 50_100, 100, 110, 90, 900_100, 100] {
            seen.step(length);
        }
        seen.end();
        let (runs, gaps) = (seen.runs.spans(), seen.gaps.spans());
        assert_eq!((runs.count, runs.lengths.unwrap().max_ns), (1, 400.0));
        assert_eq!((gaps.count, gaps.total_ns), (2, 950_000));
        assert_eq!(gaps.lengths.unwrap().max_ns, 900_000.0);
        let all = 100 + 100 + 50_100 + 300 + 900_100 + 100;
        assert_eq!(runs.total_ns + gaps.total_ns, all);
        let bin = |from_ns| Bin { from_ns, count: 1 };
        assert_eq!(gaps.histogram, [bin(1 << 15), bin(1 << 19)]);
    }

    #[test]
    fn a_long_call_that_varies_is_no_gap() {
        let mut seen = Splitter::new(80_000, 8);
        for length in [80_000, 95_000, 150_000, 79_000] {
            seen.step(length);
        }
        assert_eq!(seen.gaps.count, 0);
        seen.step(200_000);
        assert_eq!(seen.gaps.total, 120_000);
    }

    #[test]
    fn spans_beyond_those_kept_are_still_counted() {
        let mut seen = Collected::new(2);
        for length in [5, 6, 7] {
            seen.add(length);
        }
        let spans = seen.spans();
        assert_eq!((spans.count, spans.total_ns), (3, 18));
        assert_eq!(spans.lengths.unwrap().max_ns, 6.0);
    }

    #[test]
    fn both_modes_account_for_the_whole_time() {
        let cpu = affinity::allowed().unwrap().first().unwrap();
        for kernel in [false, true] {
            let report = overrun(&OverrunOptions {
                cpu,
                duration: Nanos::millis(20),
                kernel,
            })
            .unwrap();
            assert!(report.duration_ns >= 20_000_000);
            assert_eq!(
                report.runs.total_ns + report.gaps.total_ns,
                report.duration_ns
            );
            let json = serde_json::to_string(&report).unwrap();
            let read: OverrunReport = serde_json::from_str(&json).unwrap();
            assert_eq!(read.runs.histogram, report.runs.histogram);
            assert_eq!(read.gaps.lengths.is_some(), report.gaps.count > 0);
            assert!(
                report
                    .to_string()
                    .contains(if kernel { "kernel mode" } else { "user mode" })
            );
        }
    }
}
