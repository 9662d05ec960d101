//! The options of `quell profile`.

use std::path::PathBuf;

use clap::ArgGroup;
use quell_policy::workload::Workload;
use quell_record::demand::Swept;
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskMatch;
use quell_types::units::{Nanos, Share};

use crate::target::On;

/// `quell profile`
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("again").args(["probe", "sweep"]).multiple(true)))]
pub struct Profile {
    /// A generator: KIND[:KEY=VALUE|WORD,…], keys as in an experiment's `run`
    #[arg(value_name = "GENERATOR", conflicts_with_all = ["pid", "matching", "command", "show"])]
    pub generator: Option<Workload>,
    /// A process that runs, and its children
    #[arg(long, conflicts_with_all = ["matching", "command", "show"])]
    pub pid: Option<u32>,
    /// Tasks that run: KEY=VALUE[,KEY=VALUE…] as for `quell run --critical`; repeat for more
    #[arg(long = "match", value_name = "MATCH", conflicts_with_all = ["command", "show"])]
    pub matching: Vec<TaskMatch>,
    /// For so long, 100ms to 10min; a command that still runs is ended then [default: 5s; of a
    /// command, until it ends; on a simulated machine 1s]
    #[arg(long = "for", value_name = "SPAN")]
    pub span: Option<Nanos>,
    /// The machine to run on: linux, sim or sim:PROFILE (generators only), lab or lab:PROFILE
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// The CPUs that a generator or command is started on [default: a generator the last one, a
    /// command any]
    #[arg(long, value_name = "CPUS", conflicts_with_all = ["pid", "matching", "show"])]
    pub cpus: Option<CpuSet>,
    /// Find out, too, how much slower it gets beside a neighbour, one resource at a time (of a
    /// generator or a command, which is run again and again)
    #[arg(long, conflicts_with_all = ["pid", "matching", "show"])]
    pub probe: bool,
    /// Find out, too, with how much it keeps its speed: with how many ways or page colours of a
    /// cache, or with which budget of bandwidth: ways, colours or budgets (of a generator or a
    /// command, which is run again with each size)
    #[arg(long, value_name = "WHAT", value_delimiter = ',', conflicts_with_all = ["pid", "matching", "show"])]
    pub sweep: Vec<Swept>,
    /// With --sweep: the share of its speed alone that it has to keep [default: 95%]
    #[arg(
        long,
        value_name = "SHARE",
        requires = "sweep",
        conflicts_with = "within"
    )]
    pub keep: Option<Share>,
    /// With --sweep: how long its work may take instead, as a time; the 99th percentile where a
    /// round has a hundred windows, else their mean
    #[arg(long, value_name = "TIME", requires = "sweep")]
    pub within: Option<Nanos>,
    /// Rounds of the probe and of each sweep [default: 5; on a simulated machine 2]
    #[arg(long, requires = "again")]
    pub rounds: Option<u32>,
    /// Seed of the order of runs, and of a simulated machine
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the profile in this file [default: profiles/NAME.json beside what was measured of the
    /// machine]
    #[arg(long, value_name = "FILE", conflicts_with = "show")]
    pub out: Option<PathBuf>,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the profile as JSON
    #[arg(long)]
    pub json: bool,
    /// Show a profile that was kept: its file, or its name
    #[arg(long, value_name = "FILE")]
    pub show: Option<String>,
    /// A command to run
    #[arg(last = true, value_name = "CMD", conflicts_with = "show")]
    pub command: Vec<String>,
}
