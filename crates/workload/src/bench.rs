//! What `quell bench NAME` does for a generator: runs it on its own and shows its percentiles over short windows, as JSON
//! or for a person. `docs/generators.md` describes the generators and the JSON.

use std::collections::BTreeMap;
use std::fmt;

use quell_core::cpuset::CpuId;
use quell_core::stats::{mean, percentile, sorted};
use quell_core::units::Nanos;
use quell_core::workload::{BANDWIDTH_MB_S, LATENCY_NS, Traffic};
use serde::{Deserialize, Serialize};

use crate::memory::Granted;
use crate::resolved::{Load, Placed, ResolvedWorkload};
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

/// One metric over the windows of a span.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
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
}

impl Spread {
    /// `None` without a window.
    fn of(values: &[f64]) -> Option<Self> {
        let values = sorted(values);
        let at = |p| percentile(&values, p);
        Some(Self {
            mean: mean(&values)?,
            min: at(0.0)?,
            p50: at(50.0)?,
            p95: at(95.0)?,
            p99: at(99.0)?,
            max: at(100.0)?,
        })
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The generator.
    pub name: String,
    /// What ran.
    pub workload: ResolvedWorkload,
    /// The CPU it was pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// The pages it was given.
    pub granted: Granted,
    /// The lines it was given, where they were chosen by DRAM bank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banks: Option<Placed>,
    /// The metric: `latency_ns` (nanoseconds per access) or `bandwidth_mb_s` (10^6 program bytes per second).
    pub metric: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Spread,
    /// Those of other metrics, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Spread>,
    /// How many windows.
    pub windows: u64,
    /// The length of a window in nanoseconds.
    pub window_ns: u64,
    /// Program bytes moved in the span (for a list: the lines touched).
    pub bytes: u64,
    /// What a program byte stands for on the memory bus, once the buffer is far larger than the caches. Absent where
    /// that cannot be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_per_byte: Option<Traffic>,
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
    let windows = measured.metrics.get(metric).map_or(0, Vec::len) as u64;
    let mut metrics: BTreeMap<String, Spread> = measured
        .metrics
        .iter()
        .filter_map(|(name, values)| Some((name.clone(), Spread::of(values)?)))
        .collect();
    Ok(BenchReport {
        schema: SCHEMA.to_owned(),
        name: options.workload.kind().to_owned(),
        workload: options.workload.clone(),
        cpu: options.cpu,
        granted: driver.load().granted(),
        banks: driver.load().placed(),
        metric: metric.to_owned(),
        figures: metrics.remove(metric).ok_or_else(nothing)?,
        metrics,
        windows,
        window_ns: measured.window_ns,
        bytes: measured.bytes,
        traffic_per_byte: options.workload.traffic(),
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
        let what = described(&self.workload);
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
        if let Some(placed) = self.banks {
            writeln!(
                f,
                "  {} of {} lines lie in the banks wanted",
                placed.lines, placed.of
            )?;
        }
        let first = [(&self.metric, &self.figures)];
        for (name, s) in first.into_iter().chain(&self.metrics) {
            let figures = [
                ("mean", s.mean),
                ("min", s.min),
                ("p50", s.p50),
                ("p95", s.p95),
                ("p99", s.p99),
                ("max", s.max),
            ];
            for (which, value) in figures {
                writeln!(f, "  {which:<5} {value:>12.1} {}", unit(name))?;
            }
        }
        let rate = self.bytes as f64 * 1e3 / self.duration_ns.max(1) as f64;
        writeln!(
            f,
            "  {} program bytes in {} ({rate:.0} MB/s)",
            self.bytes,
            duration_text(self.duration_ns as f64)
        )?;
        if let Some(traffic) = self.traffic_per_byte {
            writeln!(
                f,
                "  beyond the caches each stands for {:.2} bytes read from memory and {:.2} written to it",
                traffic.read, traffic.write
            )?;
        }
        Ok(())
    }
}

/// The unit of a metric.
fn unit(metric: &str) -> &str {
    match metric {
        LATENCY_NS => "ns per access",
        BANDWIDTH_MB_S => "MB/s",
        other => other,
    }
}

/// What a generator does, but for its size.
fn described(workload: &ResolvedWorkload) -> String {
    let mut text = match workload {
        ResolvedWorkload::Latency {
            order, operation, ..
        } => format!("{order} list, {operation}"),
        ResolvedWorkload::Bandwidth { operation, .. } => format!("{operation} stream"),
        ResolvedWorkload::ParallelLists {
            lists, operation, ..
        } => format!("{lists} random lists, {operation},"),
        ResolvedWorkload::CacheChurn {
            operations, order, ..
        } => {
            let all: Vec<&str> = operations.iter().map(|o| o.name()).collect();
            format!("{} of lines, {order}", all.join(" and "))
        }
        ResolvedWorkload::Stores {
            operation, stride, ..
        } => format!("{operation} stores every {stride}"),
    };
    if let Some(rate) = workload.rate() {
        text.push_str(&format!(" at {rate}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::units::{Bytes, Rate};
    use quell_core::workload::{Access, Operation, Order, Pages};

    fn list() -> BenchOptions {
        BenchOptions {
            cpu: affinity::allowed().unwrap().first(),
            warmup: Nanos::millis(1),
            duration: Nanos::millis(20),
            ..BenchOptions::new(ResolvedWorkload::Latency {
                size: Bytes(1 << 18),
                order: Order::Sequential,
                pages: Pages::Base,
                operation: Access::Read,
            })
        }
    }

    #[test]
    fn a_report_is_ordered_counts_its_windows_and_travels_as_json() {
        let report = bench(&list()).unwrap();
        assert_eq!((report.windows, report.window_ns), (20, 1_000_000));
        let s = report.figures;
        let figures = [s.min, s.p50, s.p95, s.p99, s.max];
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
            "sequential list, read over 256KiB",
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
