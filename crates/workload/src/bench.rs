//! What `quell bench latency` and `quell bench bandwidth` do: one generator on its own, its percentiles over short
//! windows, as JSON or for a person.

use std::fmt;

use quell_core::cpuset::CpuId;
use quell_core::stats::{mean, percentile, sorted};
use quell_core::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::memory::Granted;
use crate::resolved::{Load, ResolvedWorkload};
use crate::{Error, affinity, serve};

/// Schema id of every `quell bench … --json`; `name` tells which.
pub const SCHEMA: &str = "quell.bench/1";

/// What to run and how long.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchOptions {
    /// The generator.
    pub workload: ResolvedWorkload,
    /// The CPU it is pinned to before it takes memory; absent: wherever the scheduler puts it.
    pub cpu: Option<CpuId>,
    /// Load before measuring.
    pub warmup: Nanos,
    /// The measured span.
    pub duration: Nanos,
    /// The length of a window.
    pub window: Nanos,
}

impl BenchOptions {
    /// `workload` for a second in windows of a millisecond, after 200 ms of warm-up.
    #[must_use]
    pub fn new(workload: ResolvedWorkload) -> Self {
        Self {
            workload,
            cpu: None,
            warmup: Nanos::millis(200),
            duration: Nanos::secs(1),
            window: Nanos::millis(1),
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// `latency` or `bandwidth`.
    pub name: String,
    /// What ran.
    pub workload: ResolvedWorkload,
    /// The CPU it was pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// The pages it was given.
    pub granted: Granted,
    /// The metric: `latency_ns` (nanoseconds per access) or `bandwidth_mb_s` (10^6 program bytes per second).
    pub metric: String,
    /// The mean over the windows.
    pub mean: f64,
    /// The smallest window.
    pub min: f64,
    /// The median window.
    pub p50: f64,
    /// The 95th percentile of the windows.
    pub p95: f64,
    /// The 99th percentile of the windows.
    pub p99: f64,
    /// The largest window.
    pub max: f64,
    /// How many windows.
    pub windows: u64,
    /// The length of a window in nanoseconds.
    pub window_ns: u64,
    /// Program bytes moved in the span (for a list: the lines touched).
    pub bytes: u64,
    /// The measured span in nanoseconds.
    pub duration_ns: u64,
}

/// Runs a generator on its own.
///
/// # Errors
/// When the CPU or the memory is not to be had, the processor lacks the operation, or the span has no or too many
/// windows.
pub fn bench(options: &BenchOptions) -> Result<BenchReport, Error> {
    let _pinned = options.cpu.map(affinity::pin_to).transpose()?;
    let mut driver = Load::driver(&options.workload)?;
    let metric = options.workload.primary();
    let (warmup, duration) = (options.warmup, options.duration);
    let nothing = || Error::refused("measuring", "there was no window", "ask for a longer span");
    let measured = serve::span(
        &mut driver,
        metric,
        warmup,
        duration,
        options.window,
        || false,
    )?
    .ok_or_else(nothing)?;
    let values = measured
        .metrics
        .get(metric)
        .map(|v| sorted(v))
        .unwrap_or_default();
    let at = |p| percentile(&values, p).ok_or_else(nothing);
    Ok(BenchReport {
        schema: SCHEMA.to_owned(),
        name: options.workload.kind().to_owned(),
        workload: options.workload.clone(),
        cpu: options.cpu,
        granted: driver.load().granted(),
        metric: metric.to_owned(),
        mean: mean(&values).ok_or_else(nothing)?,
        min: at(0.0)?,
        p50: at(50.0)?,
        p95: at(95.0)?,
        p99: at(99.0)?,
        max: at(100.0)?,
        windows: values.len() as u64,
        window_ns: measured.window_ns,
        bytes: measured.bytes,
        duration_ns: measured.duration_ns,
    })
}

/// A duration in nanoseconds, for a person: three digits and the unit that fits.
pub(crate) fn duration_text(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n >= 1e9 => (n / 1e9, "s"),
        n if n >= 1e6 => (n / 1e6, "ms"),
        n if n >= 1e3 => (n / 1e3, "us"),
        n => (n, "ns"),
    };
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, unit) = match &self.workload {
            ResolvedWorkload::Latency { order, .. } => {
                (format!("{order:?} list").to_lowercase(), "ns per access")
            }
            ResolvedWorkload::Bandwidth {
                operation, rate, ..
            } => {
                let at = rate.map(|r| format!(" at {r}")).unwrap_or_default();
                (format!("{} stream{at}", operation.name()), "MB/s")
            }
        };
        write!(f, "{}: {what} over {}", self.name, self.workload.size())?;
        if let Some(cpu) = self.cpu {
            write!(f, " on CPU {cpu}")?;
        }
        writeln!(
            f,
            ", {} windows of {}",
            self.windows,
            duration_text(self.window_ns as f64)
        )?;
        if let Some(complaint) = self.granted.complaint() {
            writeln!(f, "note: {complaint}")?;
        }
        let figures = [
            ("mean", self.mean),
            ("min", self.min),
            ("p50", self.p50),
            ("p95", self.p95),
            ("p99", self.p99),
            ("max", self.max),
        ];
        for (name, value) in figures {
            writeln!(f, "  {name:<5} {value:>12.1} {unit}")?;
        }
        let rate = self.bytes as f64 * 1e3 / self.duration_ns.max(1) as f64;
        writeln!(
            f,
            "  {} program bytes in {} ({rate:.0} MB/s)",
            self.bytes,
            duration_text(self.duration_ns as f64)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::units::{Bytes, Rate};
    use quell_core::workload::{Operation, Order, Pages};

    fn list() -> BenchOptions {
        BenchOptions {
            cpu: affinity::allowed().unwrap().first(),
            warmup: Nanos::millis(1),
            duration: Nanos::millis(20),
            ..BenchOptions::new(ResolvedWorkload::Latency {
                size: Bytes(1 << 18),
                order: Order::Sequential,
                pages: Pages::Base,
            })
        }
    }

    #[test]
    fn a_report_is_ordered_counts_its_windows_and_travels_as_json() {
        let report = bench(&list()).unwrap();
        assert_eq!((report.windows, report.window_ns), (20, 1_000_000));
        let figures = [report.min, report.p50, report.p95, report.p99, report.max];
        assert!(figures.is_sorted(), "{figures:?}");
        let json = serde_json::to_string(&report).unwrap();
        assert!(
            json.starts_with(r#"{"schema":"quell.bench/1","name":"latency""#),
            "{json}"
        );
        let read: BenchReport = serde_json::from_str(&json).unwrap();
        assert_eq!((read.workload, read.bytes), (report.workload, report.bytes));
    }

    #[test]
    fn a_person_reads_what_ran_where_and_in_which_unit() {
        let text = bench(&list()).unwrap().to_string();
        for part in [
            "sequential list over 256KiB",
            "on CPU",
            "ns per access",
            "program bytes",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let mut options = list();
        options.workload = ResolvedWorkload::Bandwidth {
            operation: Operation::Copy,
            size: Bytes(1 << 18),
            pages: Pages::Base,
            rate: Some(Rate(50_000_000)),
        };
        let text = bench(&options).unwrap().to_string();
        assert!(
            text.contains("copy stream at 50MB/s") && text.contains("MB/s\n"),
            "{text}"
        );
    }

    #[test]
    fn spans_without_windows_and_cpus_that_are_not_there_are_refused() {
        let wrong = |change: fn(&mut BenchOptions)| {
            let mut options = list();
            change(&mut options);
            bench(&options).unwrap_err().to_string()
        };
        assert!(wrong(|o| o.duration = Nanos(0)).contains("0ns"));
        assert!(wrong(|o| o.window = Nanos(0)).contains("0ns"));
        assert!(wrong(|o| (o.duration, o.window) = (Nanos::secs(100), Nanos(1))).contains("100s"));
        assert!(wrong(|o| o.cpu = Some(8191)).contains("8191"));
    }

    #[test]
    fn durations_read_well() {
        let read = [0.5, 42.0, 1_234.0, 98_700.0, 5e6, 2.5e9].map(duration_text);
        assert_eq!(
            read,
            [
                "0.50 ns", "42.0 ns", "1.23 us", "98.7 us", "5.00 ms", "2.50 s"
            ]
        );
    }
}
