//! What generators report: names, units, and which direction is good.

use quell_types::stats::Better;
use quell_types::units::LINE_BYTES;

use super::Workload;

/// Metric in nanoseconds per access.
pub const LATENCY_NS: &str = "latency_ns";
/// Lines that a walk brought from memory ÷ its accesses, over the span. On Linux absent without a
/// counter.
pub const MISSES_PER_ACCESS: &str = "misses_per_access";
/// 10^6 program bytes per second.
pub const BANDWIDTH_MB_S: &str = "bandwidth_mb_s";
/// Accesses to lines per second.
pub const ACCESSES_PER_S: &str = "accesses_per_s";
/// Milliseconds from a frame's arrival to its result. For a dropped frame, to the next result.
pub const FRAME_MS: &str = "frame_ms";
/// Share of the span in which some task of the machine waited for memory.
pub const MEMORY_SOME: &str = "memory_some";
/// Share of the span in which all tasks of the machine waited for memory.
pub const MEMORY_FULL: &str = "memory_full";
/// Pages of files that the machine read from disks, per second: the misses of its page cache.
pub const PAGE_INS: &str = "page_ins";
/// Pages that the machine had reclaimed and that came back soon, per second.
pub const REFAULTS: &str = "refaults";
/// Pages of anonymous memory used per second.
pub const PAGES_PER_S: &str = "pages_per_s";

/// Microseconds from a request's intended start to its answer.
pub const LATENCY_US: &str = "latency_us";

/// Instructions per cycle, of the time on a CPU alone.
pub const IPC: &str = "ipc";
/// The same where nothing else runs.
pub const IPC_ALONE: &str = "ipc_alone";
/// The time that a run takes alone ÷ the time that it took, waiting included.
pub const PROGRESS: &str = "progress";
/// From the beginning of a run to its end, waiting included.
pub const TURNAROUND_S: &str = "turnaround_s";

/// A metric that a generator reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Its name in experiments and results.
    pub name: &'static str,
    /// Its unit, for people.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
}

const fn lower(name: &'static str, unit: &'static str) -> Reported {
    Reported {
        name,
        unit,
        better: Better::Lower,
    }
}

const fn higher(name: &'static str, unit: &'static str) -> Reported {
    Reported {
        name,
        unit,
        better: Better::Higher,
    }
}

const LATENCY: [Reported; 2] = [
    lower(LATENCY_NS, "ns per access"),
    lower(MISSES_PER_ACCESS, "lines per access"),
];
const RATE: [Reported; 1] = [higher(BANDWIDTH_MB_S, "MB/s")];
const BANDWIDTH: [Reported; 2] = [
    higher(BANDWIDTH_MB_S, "MB/s"),
    lower(LATENCY_NS, "ns per 64 bytes"),
];
const LISTS: [Reported; 3] = [
    lower(LATENCY_NS, "ns per access"),
    higher(BANDWIDTH_MB_S, "MB/s"),
    lower(MISSES_PER_ACCESS, "lines per access"),
];
const PERIODIC: [Reported; 10] = [
    lower("cycles", "TSC cycles per pass"),
    lower("wakeup_us", "us"),
    lower("response_us", "us"),
    lower("llc_misses", "lines per job"),
    lower("misses", "of the jobs"),
    lower("own_misses", "lines per job"),
    lower("buffer_cycles", "cycles per job"),
    lower("own_cycles", "cycles per job"),
    lower("port_cycles", "cycles per job"),
    lower("interrupt_cycles", "cycles per job"),
];
const TRACE: [Reported; 2] = [
    higher(ACCESSES_PER_S, "accesses/s"),
    lower(LATENCY_NS, "ns per access"),
];
const RECORDED: [Reported; 7] = [
    higher(IPC, "instructions per cycle on a CPU"),
    higher(PROGRESS, "of the speed alone, waiting included"),
    lower(TURNAROUND_S, "s per run, waiting included"),
    lower("waited", "of the time, for a CPU"),
    higher(IPC_ALONE, "instructions per cycle alone"),
    higher("memory_per_us", "lines from and to memory per us on a CPU"),
    higher("first_level_per_us", "first-level accesses per us on a CPU"),
];
const FRAMES_CALL: [Reported; 6] = [
    higher(BANDWIDTH_MB_S, "MB/s"),
    lower("rtt_ms", "ms"),
    higher("frames_per_s", "frames/s"),
    higher("media_kb_s", "kB/s"),
    lower("wasted_packets", "packets/s"),
    lower("encode_ms", "ms per frame"),
];
const FRAMES_DISPLAY: [Reported; 4] = [
    higher(BANDWIDTH_MB_S, "MB/s"),
    higher("frames_per_s", "frames/s"),
    lower("compose_ms", "ms per frame"),
    lower("age_ms", "ms from capture"),
];
const DETECTOR: [Reported; 10] = [
    lower(FRAME_MS, "ms per frame"),
    lower("dropped", "of the frames"),
    lower("cache_misses", "of the images' pages"),
    lower("major_faults", "per frame"),
    lower("minor_faults", "per frame"),
    higher("resident_mb", "MB resident"),
    lower(MEMORY_SOME, "of the time, machine"),
    lower(MEMORY_FULL, "of the time, machine"),
    lower(PAGE_INS, "pages of files/s, machine"),
    lower(REFAULTS, "pages/s, machine"),
];
const REQUESTS: [Reported; 1] = [lower(LATENCY_US, "us per request")];
const ANON_HOG: [Reported; 3] = [
    higher(PAGES_PER_S, "pages/s"),
    higher("resident_mb", "MB resident"),
    lower("killed", "times per window"),
];

/// A stream's time per 64 program bytes, in nanoseconds. `rates` are over windows of equal length,
/// in 10^6 bytes per second. The result is one value, the mean over all that was moved, because a
/// window in which the stream was stopped has no time per block. It is empty where nothing was
/// moved.
#[must_use]
pub fn ns_per_line(rates: &[f64]) -> Vec<f64> {
    let sum: f64 = rates.iter().sum();
    let mean = LINE_BYTES as f64 * 1e3 * rates.len() as f64 / sum;
    Vec::from_iter(mean.is_finite().then_some(mean))
}

impl<S> Workload<S> {
    /// What it reports. The metric by which it is judged comes first.
    #[must_use]
    pub const fn metrics(&self) -> &'static [Reported] {
        match self {
            Self::Latency { .. } => &LATENCY,
            Self::ParallelLists { .. } => &LISTS,
            Self::Bandwidth { .. } => &BANDWIDTH,
            Self::CacheChurn { .. } | Self::Stores { .. } | Self::Lattice { .. } => &RATE,
            Self::Trace { .. } => &TRACE,
            Self::Recorded { .. } => &RECORDED,
            Self::Periodic { .. } => &PERIODIC,
            Self::FramesCall { .. } => &FRAMES_CALL,
            Self::FramesDisplay { .. } => &FRAMES_DISPLAY,
            Self::Detector(_) => &DETECTOR,
            Self::AnonHog(_) => &ANON_HOG,
            Self::FileHog(_) | Self::DirtyWriter(_) => &RATE,
            Self::Requests(_) => &REQUESTS,
        }
    }

    /// The metric by which it is judged.
    #[must_use]
    pub const fn primary(&self) -> &'static str {
        self.metrics()[0].name
    }
}
