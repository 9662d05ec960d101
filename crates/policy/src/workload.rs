//! The generators' patterns as data: what a subject with `run` does. The programs are in
//! `quell-workload`, the simulated ones in `quell-sim`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::units::{Bytes, LINE_BYTES, Nanos, Rate};

mod banks;
mod faults;
mod metrics;
mod pressure;
mod requests;
mod size;
mod spec;
mod traffic;
mod words;

pub use banks::Banks;
pub use faults::{Fault, MOST_LISTS, MOST_PRIORITY};
pub use metrics::{
    ACCESSES_PER_S, BANDWIDTH_MB_S, FRAME_MS, IPC, IPC_ALONE, LATENCY_NS, LATENCY_US, MEMORY_FULL,
    MEMORY_SOME, MISSES_PER_ACCESS, PAGE_INS, PAGES_PER_S, PROGRESS, REFAULTS, Reported,
    TURNAROUND_S, ns_per_line,
};
pub use pressure::{AnonHog, Detector, DirtyWriter, FileHog};
pub use requests::Requests;
pub use size::{Caches, Size};
pub use spec::SpecError;
pub use traffic::{Traffic, line_bytes};
pub(crate) use words::words;
pub use words::{Access, Operation, Order, Pages, Passes, Reading, Store, Touch, Word};

/// The default size of a list. It fits into the last-level cache, and a neighbour can evict it from
/// there.
pub const LIST_SIZE: Size = Size::Llc(0.5);
/// The default size of a stream's buffer, or of parallel lists: far beyond the caches.
pub const STREAM_SIZE: Size = Size::Llc(4.0);
/// The default size of a churned buffer: all of the last-level cache.
pub const CHURN_SIZE: Size = Size::Llc(1.0);
/// The default size of a real-time task's buffer: that of the cache-allocation study.
pub const TASK_SIZE: Size = Size::Bytes(Bytes(128 << 10));
/// Bytes of a word, as generators load and store it.
pub const WORD_BYTES: u64 = 8;

/// A generator and its parameters. `docs/generators.md` says what each does and measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
// The published schema has one workload only, that of experiments.
#[schemars(rename = "Workload")]
pub enum Workload<S = Size> {
    /// A dependent walk through a list with one node per line (`latency_ns`).
    Latency {
        /// Size of the list.
        size: S,
        /// Order in which the nodes are linked.
        #[serde(default)]
        order: Order,
        /// Size of the list's pages.
        #[serde(default)]
        pages: Pages,
        /// What is done to each node.
        #[serde(default)]
        operation: Access,
    },
    /// A stream (`bandwidth_mb_s`, program bytes).
    Bandwidth {
        /// What is done with the buffer.
        operation: Operation,
        /// Size of the buffer.
        size: S,
        /// Size of the buffer's pages.
        #[serde(default)]
        pages: Pages,
        /// A target rate in program bytes; absent: as fast as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
    /// Independent random lists, walked at the same time (`latency_ns` per access, and
    /// `bandwidth_mb_s`).
    ParallelLists {
        /// How many lists: 1 to 64.
        lists: u32,
        /// The size of all lists together.
        size: S,
        /// Size of the lists' pages.
        #[serde(default)]
        pages: Pages,
        /// What is done to each node.
        #[serde(default)]
        operation: Access,
        /// Only lines in these DRAM banks. Needs CAP_SYS_ADMIN, to see physical addresses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        banks: Option<Banks>,
    },
    /// Line after line of a buffer as large as a cache is read, written, prefetched, flushed
    /// (`bandwidth_mb_s`, a line per operation).
    CacheChurn {
        /// What is done, in turn, each to lines of its own.
        #[serde(default = "read_and_write")]
        operations: Vec<Touch>,
        /// Size of the buffer.
        size: S,
        /// The order in which lines are visited.
        #[serde(default)]
        order: Order,
        /// Size of the buffer's pages.
        #[serde(default)]
        pages: Pages,
        /// A target rate, a line per operation; absent: as fast as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
    /// Word by word stores, one every so many bytes (`bandwidth_mb_s`, program bytes: 8 a store).
    Stores {
        /// Which kind of store is used.
        #[serde(default)]
        operation: Store,
        /// From one store to the next: 8, 16 or 32 bytes, or whole lines.
        #[serde(default = "line")]
        stride: Bytes,
        /// Size of the buffer.
        size: S,
        /// Size of the buffer's pages.
        #[serde(default)]
        pages: Pages,
        /// A target rate in program bytes; absent: as fast as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
    /// A lattice-Boltzmann stream like SPEC's lbm: of two grids of 19 distributions each, one is
    /// read and the other written, line by line, then they change places (`bandwidth_mb_s`, program
    /// bytes).
    Lattice {
        /// The size of both grids together.
        size: S,
        /// Size of the grids' pages.
        #[serde(default)]
        pages: Pages,
        /// A target rate in program bytes; absent: as fast as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
    /// A recorded program, replayed again and again on the simulated machine (`accesses_per_s`,
    /// lines touched).
    Trace {
        /// The trace, as `quell trace import` writes it; relative to the working directory.
        file: String,
    },
    /// A real program from its recorded figures, on the coarse machine: run again and again (`ipc`
    /// of its first run).
    Recorded {
        /// Which program, of those that come with Quell.
        program: String,
        /// How long it takes alone there. Its phases are stretched to that.
        #[serde(default = "recorded_alone")]
        alone: Nanos,
        /// Its cycles per instruction without misses are so many times what the file says.
        #[serde(default = "as_recorded", skip_serializing_if = "is_as_recorded")]
        cpi: f64,
        /// Its misses under way together are so many times what the file says.
        #[serde(default = "as_recorded", skip_serializing_if = "is_as_recorded")]
        overlap: f64,
        /// The part by which each figure that policies know of it may be off, up or down.
        #[serde(default, skip_serializing_if = "is_right")]
        off: f64,
    },
    /// A real-time task: released at a fixed interval, each job passes over a buffer (`cycles` of a
    /// pass).
    Periodic {
        /// Size of the buffer.
        size: S,
        /// Size of the buffer's pages.
        #[serde(default)]
        pages: Pages,
        /// The distance between two loads of a pass.
        #[serde(default = "periodic_step")]
        step: Bytes,
        /// Operations before each load, each of which needs the one before.
        #[serde(default, skip_serializing_if = "nothing")]
        compute: u32,
        /// From one release to the next.
        #[serde(default = "periodic_period")]
        period: Nanos,
        /// Releases are where the machine's monotonic clock is a multiple of the period, and this
        /// later. Below the period. Absent: the task begins as soon as it can.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        phase: Option<Nanos>,
        /// Passes over the buffer per job.
        #[serde(default = "periodic_passes")]
        passes: u32,
        /// The longest time from a release to the end of its job. Default: the period.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Nanos>,
        /// Its SCHED_FIFO priority. Absent: an ordinary task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<u32>,
        /// Says what a job moves and works on, as a program does through quell-client.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        declares: bool,
    },
    /// The call stage of a frame pipeline. It encodes frames and sends them as small packets to a
    /// peer that reflects them. It decodes what comes back for the display stage (`bandwidth_mb_s`,
    /// program bytes).
    FramesCall {
        /// A raw frame (4:2:0, so a byte and a half per pixel); 720p by default.
        #[serde(default = "frame_bytes")]
        frame: Bytes,
        /// Frames that the camera takes per second.
        #[serde(default = "frame_fps")]
        fps: u32,
        /// Raw frames that the camera has in memory, used in turn.
        #[serde(default = "frame_ring")]
        ring: u32,
        /// Positions in the frame before that each piece of a frame is compared with.
        #[serde(default = "call_search")]
        search: u32,
        /// The most media that rate control may send.
        #[serde(default = "call_rate")]
        rate: Rate,
    },
    /// The display stage: composes the call stage's frames into a framebuffer, or frames of its own
    /// while there is no call stage (`bandwidth_mb_s`, program bytes).
    FramesDisplay {
        /// A raw frame, as the call stage's.
        #[serde(default = "frame_bytes")]
        frame: Bytes,
        /// Frames per second that it composes of its own.
        #[serde(default = "frame_fps")]
        fps: u32,
        /// Frames of its own that it has in memory, used in turn.
        #[serde(default = "frame_ring")]
        ring: u32,
    },
    /// An object detector: maps its weights, and reads an image of 100 to 200 KB through the page
    /// cache for every frame (`frame_ms`).
    Detector(Detector),
    /// Grows to a size in anonymous memory and keeps using it; started again when it is killed
    /// (`pages_per_s`).
    AnonHog(AnonHog),
    /// Reads a file, once or again and again (`bandwidth_mb_s`).
    FileHog(FileHog),
    /// Writes a file over and over through the page cache (`bandwidth_mb_s`).
    DirtyWriter(DirtyWriter),
    /// A request server and its open-loop client (`latency_us`, from the intended start).
    Requests(Requests),
}

fn read_and_write() -> Vec<Touch> {
    vec![Touch::Read, Touch::Write]
}

const fn line() -> Bytes {
    Bytes(LINE_BYTES)
}

const fn recorded_alone() -> Nanos {
    Nanos::secs(20)
}

const fn as_recorded() -> f64 {
    1.0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_as_recorded(times: &f64) -> bool {
    *times == as_recorded()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_right(off: &f64) -> bool {
    *off == 0.0
}

const fn periodic_step() -> Bytes {
    Bytes(32)
}
const fn periodic_period() -> Nanos {
    Nanos::millis(10)
}
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn nothing(n: &u32) -> bool {
    *n == 0
}

const fn periodic_passes() -> u32 {
    1
}
const fn frame_bytes() -> Bytes {
    Bytes(1280 * 720 * 3 / 2)
}
const fn frame_fps() -> u32 {
    30
}
const fn frame_ring() -> u32 {
    16
}
const fn call_search() -> u32 {
    CALL_SEARCH
}
const fn call_rate() -> Rate {
    CALL_RATE
}

/// The default number of positions with which a call stage compares each piece of a frame.
pub const CALL_SEARCH: u32 = 4;
/// The default for the most media that a call stage sends. It is about what the case study's call
/// sent alone (4022 KB/s).
pub const CALL_RATE: Rate = Rate(4_000_000);

impl Workload {
    /// The default size of a kind of generator; `None` if it has none.
    #[must_use]
    pub fn usual_size(kind: &str) -> Option<Size> {
        match kind {
            "latency" => Some(LIST_SIZE),
            "bandwidth" | "parallel-lists" | "stores" | "lattice" => Some(STREAM_SIZE),
            "cache-churn" => Some(CHURN_SIZE),
            "periodic" => Some(TASK_SIZE),
            _ => None,
        }
    }

    /// The same with its size for a CPU with these caches. It no longer depends on the machine.
    #[must_use]
    pub fn resolve(&self, caches: &Caches) -> Workload<Bytes> {
        match self.clone() {
            Self::Latency {
                size,
                order,
                pages,
                operation,
            } => Workload::Latency {
                size: size.resolve(caches),
                order,
                pages,
                operation,
            },
            Self::Bandwidth {
                operation,
                size,
                pages,
                rate,
            } => Workload::Bandwidth {
                operation,
                size: size.resolve(caches),
                pages,
                rate,
            },
            Self::ParallelLists {
                lists,
                size,
                pages,
                operation,
                banks,
            } => Workload::ParallelLists {
                lists,
                size: size.resolve(caches),
                pages,
                operation,
                banks,
            },
            Self::CacheChurn {
                operations,
                size,
                order,
                pages,
                rate,
            } => Workload::CacheChurn {
                operations,
                size: size.resolve(caches),
                order,
                pages,
                rate,
            },
            Self::Stores {
                operation,
                stride,
                size,
                pages,
                rate,
            } => Workload::Stores {
                operation,
                stride,
                size: size.resolve(caches),
                pages,
                rate,
            },
            Self::Lattice { size, pages, rate } => Workload::Lattice {
                size: size.resolve(caches),
                pages,
                rate,
            },
            Self::Trace { file } => Workload::Trace { file },
            Self::Recorded {
                program,
                alone,
                cpi,
                overlap,
                off,
            } => Workload::Recorded {
                program,
                alone,
                cpi,
                overlap,
                off,
            },
            Self::Periodic {
                size,
                pages,
                step,
                compute,
                period,
                phase,
                passes,
                deadline,
                priority,
                declares,
            } => Workload::Periodic {
                size: size.resolve(caches),
                pages,
                step,
                compute,
                period,
                phase,
                passes,
                deadline,
                priority,
                declares,
            },
            Self::FramesCall {
                frame,
                fps,
                ring,
                search,
                rate,
            } => Workload::FramesCall {
                frame,
                fps,
                ring,
                search,
                rate,
            },
            Self::FramesDisplay { frame, fps, ring } => {
                Workload::FramesDisplay { frame, fps, ring }
            }
            Self::Detector(detector) => Workload::Detector(detector),
            Self::AnonHog(hog) => Workload::AnonHog(hog),
            Self::FileHog(hog) => Workload::FileHog(hog),
            Self::DirtyWriter(writer) => Workload::DirtyWriter(writer),
            Self::Requests(requests) => Workload::Requests(requests),
        }
    }
}

impl<S> Workload<S> {
    /// The generator's name, as in `quell bench NAME`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Latency { .. } => "latency",
            Self::Bandwidth { .. } => "bandwidth",
            Self::ParallelLists { .. } => "parallel-lists",
            Self::CacheChurn { .. } => "cache-churn",
            Self::Stores { .. } => "stores",
            Self::Lattice { .. } => "lattice",
            Self::Trace { .. } => "trace",
            Self::Recorded { .. } => "recorded",
            Self::Periodic { .. } => "periodic",
            Self::FramesCall { .. } => "frames-call",
            Self::FramesDisplay { .. } => "frames-display",
            Self::Detector(_) => "detector",
            Self::AnonHog(_) => "anon-hog",
            Self::FileHog(_) => "file-hog",
            Self::DirtyWriter(_) => "dirty-writer",
            Self::Requests(_) => "requests",
        }
    }

    /// The page size in which its memory is allocated.
    #[must_use]
    pub const fn pages(&self) -> Pages {
        match self {
            Self::Latency { pages, .. }
            | Self::Bandwidth { pages, .. }
            | Self::ParallelLists { pages, .. }
            | Self::CacheChurn { pages, .. }
            | Self::Stores { pages, .. }
            | Self::Lattice { pages, .. }
            | Self::Periodic { pages, .. } => *pages,
            Self::Trace { .. }
            | Self::Recorded { .. }
            | Self::FramesCall { .. }
            | Self::FramesDisplay { .. }
            | Self::Detector(_)
            | Self::AnonHog(_)
            | Self::FileHog(_)
            | Self::DirtyWriter(_)
            | Self::Requests(_) => Pages::Base,
        }
    }

    /// Its size, if that may depend on a cache.
    #[must_use]
    pub const fn size(&self) -> Option<&S> {
        match self {
            Self::Latency { size, .. }
            | Self::Bandwidth { size, .. }
            | Self::ParallelLists { size, .. }
            | Self::CacheChurn { size, .. }
            | Self::Stores { size, .. }
            | Self::Lattice { size, .. }
            | Self::Periodic { size, .. } => Some(size),
            _ => None,
        }
    }

    /// The same with these pages, if it has a choice.
    #[must_use]
    pub fn in_pages(mut self, wanted: Pages) -> Self {
        if let Self::Latency { pages, .. }
        | Self::Bandwidth { pages, .. }
        | Self::ParallelLists { pages, .. }
        | Self::CacheChurn { pages, .. }
        | Self::Stores { pages, .. }
        | Self::Lattice { pages, .. }
        | Self::Periodic { pages, .. } = &mut self
        {
            *pages = wanted;
        }
        self
    }

    /// Whether only the simulated machine can run it.
    #[must_use]
    pub const fn simulated_only(&self) -> bool {
        matches!(self, Self::Trace { .. })
    }

    /// Whether only the coarse machine can run it.
    #[must_use]
    pub const fn coarse_only(&self) -> bool {
        matches!(self, Self::Recorded { .. })
    }

    /// Whether only a real kernel can run it. Such a generator is about files and the reclaim of
    /// their pages, or about threads that wait for each other.
    #[must_use]
    pub const fn kernel_only(&self) -> bool {
        matches!(
            self,
            Self::Detector(_)
                | Self::AnonHog(_)
                | Self::FileHog(_)
                | Self::DirtyWriter(_)
                | Self::Requests(_)
        )
    }

    /// Its target rate, if it has one.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Self::Bandwidth { rate, .. }
            | Self::CacheChurn { rate, .. }
            | Self::Stores { rate, .. }
            | Self::Lattice { rate, .. }
            | Self::FileHog(FileHog { rate, .. })
            | Self::DirtyWriter(DirtyWriter { rate, .. }) => *rate,
            _ => None,
        }
    }

    /// The same with another target rate. A generator without one stays as it is.
    #[must_use]
    pub fn at(mut self, target: Option<Rate>) -> Self {
        if let Self::Bandwidth { rate, .. }
        | Self::CacheChurn { rate, .. }
        | Self::Stores { rate, .. }
        | Self::Lattice { rate, .. }
        | Self::FileHog(FileHog { rate, .. })
        | Self::DirtyWriter(DirtyWriter { rate, .. }) = &mut self
        {
            *rate = target;
        }
        self
    }
}
