//! The options of `quell bench`.

use clap::{Subcommand, ValueEnum};
use quell_policy::workload::{CALL_RATE, CALL_SEARCH, Workload};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, Nanos, Rate};
use quell_workload::open_loop::{MOST_CONNECTIONS, OpenLoopOptions};

use crate::buffered::Buffered;
use crate::exit::{Result, usage};
use crate::ladder::Ladder;
use crate::options::{Common, Watch};
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
    /// What works on one buffer
    #[command(flatten)]
    Buffered(Buffered),
    /// A stage of a video call: round-trip time, frame rate, media rate, demand. Two stages started
    /// by one shell find each other
    Frames(Frames),
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

/// `quell bench frames`
#[derive(Debug, clap::Args)]
pub struct Frames {
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
    pub common: Common,
}

impl Frames {
    /// As an experiment has it.
    pub fn workload(&self) -> Result<Workload> {
        let given = [
            ("--search", self.search.is_some()),
            ("--rate", self.rate.is_some()),
        ];
        let (frame, fps, ring) = (self.frame, self.fps, self.ring);
        match self.stage {
            StageArg::Call => Ok(Workload::FramesCall {
                frame,
                fps,
                ring,
                search: self.search.unwrap_or(CALL_SEARCH),
                rate: self.rate.unwrap_or(CALL_RATE),
            }),
            StageArg::Display => match given.iter().find(|(_, given)| *given) {
                Some((key, _)) => Err(usage(format!("{key} is the call stage's: leave it out"))),
                None => Ok(Workload::FramesDisplay { frame, fps, ring }),
            },
        }
    }
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
