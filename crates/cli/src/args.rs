//! The command line's definitions; help, completions and man pages come from here.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use quell_policy::workload::{
    Access, CHURN_SIZE, LIST_SIZE, Operation, Order, Pages, STREAM_SIZE, Size, Store, TASK_SIZE,
    Touch, Word,
};
use quell_policy::{Bandwidth, CpusWanted};
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Nanos, Rate};

use crate::bench::OpenLoop;
use crate::demo::Demo;
use crate::init::Init;
use crate::lab::Lab;
use crate::ladder::Ladder;
use crate::pressure::Pressure;
use crate::profile::args::Profile;
use crate::target::On;
use crate::trace::Trace;
use crate::ways::Ways;

/// Keeps one program fast next to noisy neighbours on the same Linux machine.
#[derive(Debug, Parser)]
#[command(
    name = "quell",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure what neighbours slow down here, and what Quell mends
    Demo(Demo),
    /// Show what this machine can promise, what it cannot, and why
    Doctor(Doctor),
    /// Write a policy for a program that runs; change nothing
    Init(Init),
    /// Show what a policy would do here, and what its promises are worth
    Plan(Plan),
    /// Apply a policy, hold it, and revert everything at the end
    Run(Run),
    /// Show what is applied now, and whether it holds
    Status(Status),
    /// Run the same programs under several configurations
    Compare(Compare),
    /// Measure what a program asks of memory, and propose a policy
    Profile(Profile),
    /// Make a record's page again
    Report(Report),
    /// Print a record's figures or its timeline for other tools
    Export(Export),
    /// Run a load generator on its own
    Bench(Bench),
    /// Record programs for the simulated machine
    Trace(Trace),
    /// Show which task may fill which part of a cache over time
    Ways(Ways),
    /// Run a command in a virtual machine
    Lab(Lab),
    /// Revert what an earlier run left
    Restore,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages
    Man {
        /// Into this directory
        dir: PathBuf,
    },
    /// The watchdog of a run.
    #[command(name = "__watchdog", hide = true)]
    Watchdog {
        /// The run's folder.
        dir: PathBuf,
    },
    /// Keeps files in memory for a run.
    #[command(name = "__keep", hide = true)]
    Keep {
        /// The files.
        files: Vec<String>,
    },
    /// A generator of an experiment.
    #[command(name = "__generator", hide = true)]
    Generator {
        /// What it does, as JSON.
        workload: String,
    },
}

/// `quell doctor`
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Measure the machine instead of believing it, about a minute of full memory load, and remember what was found: who
    /// shares a cache in fact, rates, latency under load and against size, page size, wake-ups, counters
    #[arg(long)]
    pub deep: bool,
    /// Tell of another machine instead: a simulated one, sim or sim:PROFILE, or one of the lab, lab or lab:PROFILE
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// With --deep: fewer rounds, some fifteen seconds
    #[arg(long, requires = "deep")]
    pub quick: bool,
    /// Print the inventory as JSON; `quell plan --machine` reads it
    #[arg(long)]
    pub json: bool,
    /// Save the machine as text, host names removed: the kernel files that Quell reads, and what was tried and measured;
    /// `quell plan --machine` reads it
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
}

/// `quell plan`
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// The policy file
    pub policy: PathBuf,
    /// Measure this machine's memory rates first, where none are stored (a few seconds of full memory load). Without it the plan
    /// assumes rates, and says so; `quell run` always measures
    #[arg(long, conflicts_with_all = ["machine", "on"])]
    pub measure: bool,
    /// Plan for this machine (from `quell doctor --capture` or `--json`) instead of the one we run on
    #[arg(long, value_name = "FILE", conflicts_with = "on")]
    pub machine: Option<PathBuf>,
    /// Plan for another machine: a simulated one, sim or sim:PROFILE, or one of the lab, lab or lab:PROFILE
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// Show every step with its reason, and what is good to know besides
    #[arg(long)]
    pub steps: bool,
    /// Show every refusal, and every remedy of each, not only the first
    #[arg(long)]
    pub all: bool,
    /// Print the plan as JSON, its steps included
    #[arg(long)]
    pub json: bool,
}

/// `quell run`
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The policy file; leave it out and name groups with --critical and --best-effort instead
    #[arg(conflicts_with_all = ["critical", "best_effort", "limit", "period", "cpus", "save"])]
    pub policy: Option<PathBuf>,
    /// Tasks to protect: KEY=VALUE[,KEY=VALUE…] with pid, exe, comm, arg, user, cgroup, unit, container; repeat for more
    #[arg(long, value_name = "MATCH")]
    pub critical: Vec<TaskMatch>,
    /// Tasks that may be slowed; written as for --critical
    #[arg(long, value_name = "MATCH")]
    pub best_effort: Vec<TaskMatch>,
    /// At most this memory bandwidth for the best-effort tasks: part of what their CPUs can draw, or a rate [default: no limit;
    /// a low weight lets others go first]
    #[arg(long, value_name = "LIMIT")]
    pub limit: Option<Bandwidth>,
    /// How often the limit is a new one, 100us to 1s [default: the plan says which]
    #[arg(long, value_name = "TIME", requires = "limit")]
    pub period: Option<Nanos>,
    /// CPUs for the critical tasks: a number, or a list such as 0,2-3 [default: auto]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub cpus: Option<CpusWanted>,
    /// Wait until a process of every critical group runs, and change nothing before that; without it the run is refused
    #[arg(long)]
    pub wait: bool,
    /// The machine to run on: linux, or one of the lab, lab or lab:PROFILE, which is booted for the run
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// Write the policy that the options came to
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a record (manifest, events) into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// A command to launch: in the group that has neither `match` nor `command`; without a policy file it is the critical
    /// one, or the best-effort one if --critical is given
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

fn cpus(text: &str) -> Result<CpusWanted, String> {
    match text.parse::<u32>() {
        Ok(n) => Ok(CpusWanted::Count(n)),
        Err(_) => text.parse(),
    }
}

/// `quell status`
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `quell compare`
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// A built-in experiment by name (neighbour, webrtc, p4080-4core, …: a wrong name lists them), others by path
    pub experiment: String,
    /// The machine to run on: linux, a simulated one, sim (the experiment's, if it names one) or sim:PROFILE, or one of the lab, lab
    /// or lab:PROFILE, which is booted for the run [default: the experiment's first]
    #[arg(long, value_name = "BACKEND")]
    pub on: Option<On>,
    /// With --on lab: what machine, over what the experiment says: KEY=VALUE with kernel, profile, cpus, sockets, smt, memory, swap,
    /// swap-size, disk, disk-rate, lru, accelerator, append, with; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// The directory that gets the record's folder
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub out: PathBuf,
    /// Seed of the order of cells and of the bootstrap [default: the experiment's]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Rounds [default: the experiment's]
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Only these configurations, by name, by the part before @, or by a pattern (* ? {AXIS}); the baseline always comes
    /// along
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Go on with the record of an interrupted run: measure the cells that it lacks; seed, rounds and --only are the record's
    #[arg(long, value_name = "RECORD", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// On a simulated machine, so many cells at a time, each on a thread of its own; the result is the same for any number
    /// [default: the CPUs there are]
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub jobs: Option<NonZeroUsize>,
    /// Exit with 3 when an expectation of the experiment is not met
    #[arg(long)]
    pub check: bool,
}

/// `quell report`
#[derive(Debug, clap::Args)]
pub struct Report {
    /// The record: the folder that `quell compare` or `quell run --out` named
    pub run: PathBuf,
    /// Write the page to this file instead of the record's report.html; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub html: Option<PathBuf>,
    /// Print the tables as text
    #[arg(long)]
    pub text: bool,
}

/// `quell export`
#[derive(Debug, clap::Args)]
pub struct Export {
    /// The record: the folder that `quell compare` or `quell run --out` named
    pub run: PathBuf,
    /// The format
    #[arg(long, value_enum)]
    pub format: Format,
}

/// The formats of `quell export`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Format {
    /// One row per configuration, subject and metric
    Csv,
    /// The result as `quell compare --json` prints it
    Json,
    /// The timeline, for ui.perfetto.dev or chrome://tracing: stages, throttled stretches, subjects, CPU time
    Perfetto,
}

/// `quell bench`
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// Which
    #[command(subcommand)]
    pub generator: Generator,
}

/// What generators have in common.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// The CPU to run on
    #[arg(long)]
    pub cpu: Option<u32>,
    /// Load before measuring
    #[arg(long, default_value = "200ms")]
    pub warmup: Nanos,
    /// The measured span
    #[arg(long, default_value = "1s")]
    pub duration: Nanos,
    /// The window that percentiles are over
    #[arg(long, default_value = "1ms")]
    pub window: Nanos,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What generators with a buffer have in common: its pages, and the rest.
#[derive(Debug, clap::Args)]
pub struct Buffer {
    /// The pages memory is taken in
    #[arg(long, value_parser = word::<Pages>(), default_value_t, conflicts_with = "huge")]
    pages: Pages,
    /// The same as --pages 2MiB
    #[arg(long)]
    huge: bool,
    /// What all generators have
    #[command(flatten)]
    pub common: Common,
}

impl Buffer {
    /// The pages asked for.
    pub const fn pages(&self) -> Pages {
        if self.huge { Pages::Huge } else { self.pages }
    }
}

/// What measurements of the machine itself have in common.
#[derive(Debug, clap::Args)]
pub struct Watch {
    /// For so long
    #[arg(long, default_value = "2s")]
    pub duration: Nanos,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
        /// A file with a line per bit of the bank's number, lowest first: the address bits whose exclusive or it is, as
        /// "14 18" (needs CAP_SYS_ADMIN)
        #[arg(long, value_name = "FILE", requires = "banks")]
        bank_map: Option<PathBuf>,
        /// Use only lines in these banks, as 0,3
        #[arg(long, value_name = "BANKS", value_delimiter = ',')]
        banks: Vec<u32>,
        /// Their pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Lines of a cache-sized buffer read, written, prefetched, flushed: lines × 64 bytes per second
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
    /// A lattice-Boltzmann stream like SPEC's lbm, 19 arrays read and 19 written: program bytes per second
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
    /// A real-time task that passes over a buffer at a fixed interval (cycles per pass, wake-up latency, misses)
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
    /// A stage of a video call: round-trip time, frame rate, media rate, demand. Two stages started by one shell find each other
    Frames {
        /// The stage: `call` encodes and exchanges packets with a peer over loopback, `display` composes
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
    /// GETs at a fixed rate from a server that speaks the redis protocol: latency from the intended start of each
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
    /// How often the probe for a shared cache is right: a pair of CPUs, and cases whose answer is known, round by round
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

/// A word of a known list, with its meaning in the help.
pub fn word<T: Word + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let known = T::WORDS.iter();
    PossibleValuesParser::new(known.map(|w| PossibleValue::new(w.name()).help(w.about())))
        .try_map(|name| T::named(&name).ok_or("it is not one of these"))
}

/// A stage of a video call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StageArg {
    /// Encodes, sends, receives, decodes
    Call,
    /// Composes what the call stage decoded
    Display,
}

/// How many cells at a time.
fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "it is how many cells run at a time, 1 or more".to_owned())
}
