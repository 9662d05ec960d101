//! What `quell bench NAME` does for a generator: runs it alone and shows its percentiles over short
//! windows, as JSON or as text. `docs/generators.md` describes the generators and the JSON.

use std::collections::BTreeMap;
use std::fmt;

use quell_policy::workload::Traffic;
use quell_types::cpuset::CpuId;
use quell_types::stats::{mean, percentile, sorted};
use quell_types::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::factory::generator;
use crate::generator::Span;
use crate::memory::Granted;
use crate::resolved::{Placed, ResolvedWorkload};
use crate::{Error, affinity, pressure};

/// Schema id of every `quell bench … --json`. The report's `name` says which one it is.
pub const SCHEMA: &str = "quell.bench/1";

/// The generator to run, where, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchOptions {
    /// The generator and its parameters.
    pub workload: ResolvedWorkload,
    /// The CPU to which it is pinned before it takes memory. `None`: wherever the scheduler puts
    /// it.
    pub cpu: Option<CpuId>,
    /// Load before the measured span begins.
    pub warmup: Nanos,
    /// The length of the measured span.
    pub duration: Nanos,
    /// The length of each window in the span.
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

/// Statistics of one metric over the span, in the metric's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The mean over the windows, or over the jobs, packets or frames that have a value of the
    /// metric.
    pub mean: f64,
    /// The smallest value of all windows.
    pub min: f64,
    /// The 50th percentile of the values.
    pub p50: f64,
    /// The 95th percentile of the values.
    pub p95: f64,
    /// The 99th percentile of the values.
    pub p99: f64,
    /// The largest value of all windows.
    pub max: f64,
    /// How many values the metric has.
    pub windows: u64,
}

impl Figures {
    /// `None` where there are no values.
    fn of(values: &[f64]) -> Option<Self> {
        let ordered = sorted(values);
        let at = |p| percentile(&ordered, p);
        Some(Self {
            mean: mean(&ordered)?,
            min: at(0.0)?,
            p50: at(50.0)?,
            p95: at(95.0)?,
            p99: at(99.0)?,
            max: at(100.0)?,
            windows: ordered.len() as u64,
        })
    }

    fn rows(&self) -> [(&'static str, f64); 6] {
        [
            ("mean", self.mean),
            ("min", self.min),
            ("p50", self.p50),
            ("p95", self.p95),
            ("p99", self.p99),
            ("max", self.max),
        ]
    }
}

/// The outcome of one run of a generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Always [`SCHEMA`]; the first field of the JSON.
    pub schema: String,
    /// The name of the generator, as in `quell bench NAME`.
    pub name: String,
    /// The generator with the parameters it ran with.
    pub workload: ResolvedWorkload,
    /// The CPU to which it was pinned. `None`: it was not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// The pages that its memory lies in.
    pub granted: Granted,
    /// The lines it got. `None` unless they were chosen by DRAM bank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub banks: Option<Placed>,
    /// The metric it is judged by. Its name says its unit (`quell_policy::workload`).
    pub metric: String,
    /// The statistics of `metric`, as fields of the report.
    #[serde(flatten)]
    pub figures: Figures,
    /// The other metrics it reports, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Figures>,
    /// The length of a window in nanoseconds.
    pub window_ns: u64,
    /// Program bytes moved in the span. For a list: the lines touched.
    pub bytes: u64,
    /// Bytes on the memory bus per program byte, once the buffer is far larger than the caches.
    /// `None` where that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_per_byte: Option<Traffic>,
    /// The measured span in nanoseconds.
    pub duration_ns: u64,
}

/// Runs a generator alone and measures it.
///
/// # Errors
/// When the CPU or the memory cannot be had, the processor lacks the operation, or the span has no
/// or too many windows.
pub fn bench(options: &BenchOptions) -> Result<BenchReport, Error> {
    pressure::check(&options.workload, options.duration)?;
    let _pinned = options.cpu.map(affinity::pin_to).transpose()?;
    let mut generator = generator(&options.workload)?;
    let span = Span {
        warmup: options.warmup,
        duration: options.duration,
        window: options.window,
    };
    let nothing = || Error::refused("measuring", "there was no window", "ask for a longer span");
    let measured = generator.span(span, &mut || false)?.ok_or_else(nothing)?;
    let metric = options.workload.primary();
    let figures = |name: &str| measured.metrics.get(name).and_then(|v| Figures::of(v));
    let others = options.workload.metrics().iter().skip(1);
    Ok(BenchReport {
        schema: SCHEMA.to_owned(),
        name: options.workload.kind().to_owned(),
        workload: options.workload.clone(),
        cpu: options.cpu,
        granted: generator.granted(),
        banks: generator.placed(),
        metric: metric.to_owned(),
        figures: figures(metric).ok_or_else(nothing)?,
        metrics: others
            .filter_map(|m| Some((m.name.to_owned(), figures(m.name)?)))
            .collect(),
        window_ns: measured.window_ns,
        bytes: measured.bytes,
        traffic_per_byte: options.workload.traffic(),
        duration_ns: measured.duration_ns,
    })
}

/// A duration in nanoseconds as text: three digits and the unit that fits.
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
        write!(f, "{}: {}", self.name, described(&self.workload))?;
        if let Some(cpu) = self.cpu {
            write!(f, " on CPU {cpu}")?;
        }
        match &self.workload {
            ResolvedWorkload::Periodic { .. } => {
                writeln!(f, ", {} passes", self.figures.windows)?;
            }
            ResolvedWorkload::Detector(_) => writeln!(f, ", {} frames", self.figures.windows)?,
            _ => writeln!(
                f,
                ", {} windows of {}",
                self.figures.windows,
                duration_text(self.window_ns as f64)
            )?,
        }
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
        let reported = self.workload.metrics();
        for (name, value) in self.figures.rows() {
            writeln!(f, "  {name:<5} {value:>12.1} {}", reported[0].unit)?;
        }
        if !self.metrics.is_empty() {
            write!(f, "  {:<13}", "")?;
            let names = self.figures.rows().map(|(name, _)| name);
            writeln!(f, "{}", names.map(|name| format!("{name:>11}")).concat())?;
        }
        for one in reported {
            if let Some(figures) = self.metrics.get(one.name) {
                let values = figures.rows().map(|(_, value)| format!("{value:>11.3}"));
                writeln!(f, "  {:<13}{} {}", one.name, values.concat(), one.unit)?;
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

/// What runs, as text.
fn described(workload: &ResolvedWorkload) -> String {
    let (what, size) = match workload {
        ResolvedWorkload::Latency {
            order,
            operation,
            size,
            ..
        } => (format!("{order} list, {operation}"), size),
        ResolvedWorkload::Bandwidth {
            operation, size, ..
        } => (format!("{operation} stream"), size),
        ResolvedWorkload::ParallelLists {
            lists,
            operation,
            size,
            ..
        } => (format!("{lists} random lists, {operation},"), size),
        ResolvedWorkload::CacheChurn {
            operations,
            order,
            size,
            ..
        } => {
            let all: Vec<&str> = operations.iter().map(|o| o.name()).collect();
            (format!("{} of lines, {order}", all.join(" and ")), size)
        }
        ResolvedWorkload::Stores {
            operation,
            stride,
            size,
            ..
        } => (format!("{operation} stores every {stride}"), size),
        ResolvedWorkload::Lattice { size, .. } => ("lattice of two grids".to_owned(), size),
        ResolvedWorkload::Trace { file } => return format!("replays {file}"),
        ResolvedWorkload::Recorded { program, .. } => return format!("{program}, recorded"),
        ResolvedWorkload::Periodic {
            size,
            step,
            period,
            passes,
            priority,
            ..
        } => {
            let how = priority.map_or_else(
                || "as an ordinary task".to_owned(),
                |p| format!("with SCHED_FIFO {p}"),
            );
            return format!("{passes} passes over {size} in steps of {step} every {period}, {how}");
        }
        ResolvedWorkload::FramesCall {
            frame, fps, rate, ..
        } => return format!("encodes {fps} frames of {frame} per second, sends at most {rate}"),
        ResolvedWorkload::Detector(spec) => {
            return format!(
                "an image and {} of each page of {} of weights, {} per second",
                spec.per_page, spec.weights, spec.fps
            );
        }
        ResolvedWorkload::AnonHog(spec) => {
            return format!("takes {} within {}, and goes on", spec.size, spec.ramp);
        }
        ResolvedWorkload::FileHog(spec) => {
            let how = format!("{} reads a file {}", spec.reading, spec.passes);
            (how, &spec.size)
        }
        ResolvedWorkload::DirtyWriter(spec) => ("writes a file over and".to_owned(), &spec.size),
        ResolvedWorkload::Requests(spec) => {
            let commit = spec.commit.map_or_else(String::new, |bytes| {
                format!(" and {bytes} written through to the disk")
            });
            return format!(
                "serves {} requests per second, a checksum of {}{commit} each",
                spec.per_second, spec.work
            );
        }
        ResolvedWorkload::FramesDisplay { frame, fps, .. } => {
            return format!(
                "composes frames of {frame}, {fps} per second of its own while there is no call"
            );
        }
    };
    let at = workload.rate().map(|r| format!(" at {r}"));
    format!("{what}{} over {size}", at.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_policy::workload::{Access, Operation, Order, Pages};
    use quell_types::units::{Bytes, Rate};

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
        assert_eq!((report.figures.windows, report.window_ns), (20, 1_000_000));
        let f = report.figures;
        let figures = [f.min, f.p50, f.p95, f.p99, f.max];
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
    fn spans_without_windows_and_missing_cpus_are_refused() {
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
