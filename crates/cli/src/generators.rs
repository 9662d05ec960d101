//! The options of `quell bench`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use quell_policy::workload::{
    Access, CHURN_SIZE, LIST_SIZE, Operation, Order, STREAM_SIZE, Size, Store, TASK_SIZE, Touch,
};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, Nanos, Rate};
use quell_workload::open_loop::{MOST_CONNECTIONS, OpenLoopOptions};

use crate::ladder::Ladder;
use crate::options::{Buffer, Common, Watch, word};
use crate::pressure::Pressure;

/// `quell bench`
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// Which
    #[command(subcommand)]
    pub generator: Generator,
}

/// The generators.
#[derive(Debug, Subcommand)]
pub enum Generator {
    /// A dependent walk through a list: nanoseconds per access
    Latency {
        /// Its size, as 24MiB, '0.5 LLC', '0.5 seen LLC', '1 L2' or '1 L1'
        #[arg(long, default_value_t = LIST_SIZE)]
        size: Size,
        /// The order
        #[arg(long, value_parser = word::<Order>(), default_value_t)]
        order: Order,
        /// What is done to each node
        #[arg(long, value_parser = word::<Access>(), default_value_t)]
        operation: Access,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A stream: program bytes per second
    Bandwidth {
        /// What it does to each line
        #[arg(long, value_parser = word::<Operation>(), default_value = "write")]
        operation: Operation,
        /// The buffer's size
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Several independent random lists, walked side by side: nanoseconds per access, and bandwidth
    ParallelLists {
        /// How many lists: 1 to 64
        #[arg(long, default_value_t = 8)]
        lists: u32,
        /// The size of all lists together
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// What is done to each node
        #[arg(long, value_parser = word::<Access>(), default_value_t)]
        operation: Access,
        /// Address bits that form a DRAM bank's number, such as 0x7800 (needs CAP_SYS_ADMIN)
        #[arg(
            long,
            value_name = "MASK",
            requires = "banks",
            conflicts_with = "bank_map"
        )]
        bank_mask: Option<String>,
        /// A file with a line per bit of the bank's number, lowest first: the address bits whose
        /// exclusive or it is, as "14 18" (needs CAP_SYS_ADMIN)
        #[arg(long, value_name = "FILE", requires = "banks")]
        bank_map: Option<PathBuf>,
        /// Use only lines in these banks, as 0,3
        #[arg(long, value_name = "BANKS", value_delimiter = ',')]
        banks: Vec<u32>,
        /// Their pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Lines of a cache-sized buffer read, written, prefetched, flushed: lines × 64 bytes per
    /// second
    CacheChurn {
        /// What is done, in turn, each to lines of its own
        #[arg(long, value_parser = word::<Touch>(), value_delimiter = ',', default_value = "read,write")]
        operations: Vec<Touch>,
        /// The buffer's size, as 24MiB, '1 LLC', '1 L2' or '1 L1'
        #[arg(long, default_value_t = CHURN_SIZE)]
        size: Size,
        /// The order in which lines are visited
        #[arg(long, value_parser = word::<Order>(), default_value_t)]
        order: Order,
        /// A target rate such as 500MB/s, counting a line per operation
        #[arg(long)]
        rate: Option<Rate>,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Word by word stores, one every so many bytes: program bytes per second
    Stores {
        /// How they are stored
        #[arg(long, value_parser = word::<Store>(), default_value_t)]
        operation: Store,
        /// From one store to the next: 8B, 16B, 32B or a multiple of 64B
        #[arg(long, default_value = "64B")]
        stride: Bytes,
        /// The buffer's size
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A lattice-Boltzmann stream like SPEC's lbm, 19 arrays read and 19 written: program bytes per
    /// second
    Lattice {
        /// The size of both grids together
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Their pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A real-time task that passes over a buffer at a fixed interval (cycles per pass, wake-up
    /// latency, misses)
    Periodic {
        /// The buffer's size, as 24MiB, '0.5 LLC', '0.5 seen LLC', '1 L2' or '1 L1'
        #[arg(long, default_value_t = TASK_SIZE)]
        size: Size,
        /// The distance between two loads of a pass
        #[arg(long, default_value = "32B")]
        step: Bytes,
        /// From one release to the next
        #[arg(long, default_value = "10ms")]
        period: Nanos,
        /// Passes over the buffer per job
        #[arg(long, default_value_t = 1)]
        passes: u32,
        /// The longest time from a release to the end of its job (default: the period)
        #[arg(long)]
        deadline: Option<Nanos>,
        /// Its SCHED_FIFO priority, 1 to 79 (default: an ordinary task)
        #[arg(long)]
        priority: Option<u32>,
        /// Say what a job moves and works on, as a program does through quell-client
        #[arg(long)]
        declares: bool,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A stage of a video call: round-trip time, frame rate, media rate, demand. Two stages started
    /// by one shell find each other
    Frames {
        /// The stage: `call` encodes and exchanges packets with a peer over loopback, `display`
        /// composes
        #[arg(long, value_enum, default_value = "call")]
        stage: StageArg,
        /// Size of a raw frame (4:2:0)
        #[arg(long, default_value = "1350KiB")]
        frame: Bytes,
        /// Frames per second
        #[arg(long, default_value_t = 30)]
        fps: u32,
        /// Raw frames in memory, used in turn
        #[arg(long, default_value_t = 16)]
        ring: u32,
        /// Positions that each piece of a frame is compared with (call; default 4)
        #[arg(long)]
        search: Option<u32>,
        /// The most media that rate control may send (call; default 4MB/s)
        #[arg(long)]
        rate: Option<Rate>,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
    /// A detector, and what takes memory from it
    #[command(flatten)]
    Pressure(Pressure),
    /// A victim's percentiles against the rate of the aggressors beside it
    Ladder(Ladder),
    /// GETs at a fixed rate from a server that speaks the redis protocol: latency from the intended
    /// start of each
    OpenLoop(OpenLoop),
    /// Calls that wait for kernel work on every CPU: how long they take
    Flush {
        /// The CPU to call from
        #[arg(long)]
        cpu: Option<u32>,
        /// Keep kernel work pending on this other CPU, so that there is something to wait for
        #[arg(long)]
        stir: Option<u32>,
        /// For how long, and how it is printed
        #[command(flatten)]
        watch: Watch,
    },
    /// How long a task runs without interruption on a CPU, and how long it is kept off
    Overrun {
        /// The CPU
        #[arg(long)]
        cpu: u32,
        /// Inside system calls most of the time
        #[arg(long)]
        kernel: bool,
        /// For how long, and how it is printed
        #[command(flatten)]
        watch: Watch,
    },
    /// Whether two CPUs share a cache right now
    Sharing {
        /// The two CPUs, as 0,1
        cpus: CpuSet,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// How often the probe for a shared cache is right: a pair of CPUs, and cases whose answer is
    /// known, round by round
    Canary {
        /// The two CPUs, as 0,1 [default: the first two]
        cpus: Option<CpuSet>,
        /// Rounds
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rounds: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// The rates of this machine: one CPU alone, and all together
    Rates {
        /// Size of the last-level cache, if the kernel does not tell
        #[arg(long)]
        llc: Option<Bytes>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// A stage of a video call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StageArg {
    /// Encodes, sends, receives, decodes
    Call,
    /// Composes what the call stage decoded
    Display,
}

/// `quell bench open-loop`
#[derive(Debug, clap::Args)]
pub struct OpenLoop {
    /// The server, as host:port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    connect: String,
    /// Requests per second, at equal intervals, over all connections together
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: u32,
    /// Connections, which take turns
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CONNECTIONS)))]
    connections: u32,
    /// The CPU to run on [default: any]
    #[arg(long)]
    cpu: Option<CpuId>,
    /// Requests before measuring, at the same rate
    #[arg(long, default_value = "200ms")]
    warmup: Nanos,
    /// The measured span
    #[arg(long, default_value = "3s")]
    duration: Nanos,
    /// How long answers are waited for after the last request was due
    #[arg(long, default_value = "1s")]
    patience: Nanos,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl OpenLoop {
    /// As the client takes them.
    pub fn options(&self) -> OpenLoopOptions {
        OpenLoopOptions {
            connections: self.connections,
            cpu: self.cpu,
            warmup: self.warmup,
            duration: self.duration,
            patience: self.patience,
            ..OpenLoopOptions::new(&self.connect, self.rate)
        }
    }
}
