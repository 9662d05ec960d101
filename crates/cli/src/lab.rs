//! `quell lab`: a command inside a virtual machine. `docs/lab.md` is its manual.

use std::io::{stderr, stdout};
use std::path::PathBuf;
use std::time::Duration;

use quell_kernel::signals::{next_signal, stop_signals};
use quell_lab::Error;
use quell_lab::packages::Packages;
use quell_lab::vm::{self, Outcome, Talk};
use quell_policy::lab::{Accelerator, Guest, Lru, Swap};
use quell_types::units::{Bytes, Nanos, Rate};

use crate::exit::{Exit, Failure, Result, failed, usage};
use crate::options::word;

/// The status where the lab cannot be had here, as `env(1)` has it for what it could not start.
const NOT_HERE: i32 = 125;

/// `quell lab`
#[derive(Debug, clap::Args)]
pub struct Lab {
    /// The kernel: the beginning of a release of Debian's (6.12 is the stable one, newer ones are
    /// backports)
    #[arg(long, value_name = "RELEASE", default_value = "7.2")]
    pub kernel: String,
    /// Emulate this processor, with cache and bandwidth allocation, monitoring and counters:
    /// icelake, goldmont, apollolake, sparse, or a file
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,
    /// Hardware threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub cpus: u32,
    /// Sockets, each with a last-level cache of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub sockets: u32,
    /// Two hardware threads per core
    #[arg(long)]
    pub smt: bool,
    /// Memory
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub memory: Bytes,
    /// Memory nodes, each with an equal part of the memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u32,
    /// The memory controller on cgroup v1, next to v2 with all else; takes a kernel such as 6.1
    #[arg(long = "memory-v1")]
    pub memory_v1: bool,
    /// Swap space
    #[arg(long, value_parser = word::<Swap>(), default_value_t)]
    pub swap: Swap,
    /// Its size
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub swap_size: Bytes,
    /// An empty disk, mounted at /disk
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<Bytes>,
    /// What disk and swap file deliver together, at most
    #[arg(long, value_name = "RATE")]
    pub disk_rate: Option<Rate>,
    /// How the kernel ages pages [default: as it does]
    #[arg(long, value_parser = word::<Lru>())]
    pub lru: Option<Lru>,
    /// What runs the guest
    #[arg(long, value_parser = word::<Accelerator>(), default_value_t)]
    pub accel: Accelerator,
    /// A word for the kernel's command line; repeat for more
    #[arg(long, value_name = "WORD")]
    pub append: Vec<String>,
    /// A program, file or folder of this machine that the guest has at the same place, or at the
    /// one given; programs bring their libraries; quell is this program, as /bin/quell; repeat for
    /// more
    #[arg(long, value_name = "PATH[=PLACE]")]
    pub with: Vec<String>,
    /// Gets what the command leaves in /out
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// End it when the command has run for so long
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Nanos>,
    /// Gets what the guest's kernel says
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,
    /// Print what the emulated processor saw, as JSON, to standard error
    #[arg(long, requires = "profile")]
    pub report: bool,
    /// Only fetch what the lab is made of
    #[arg(long)]
    pub build: bool,
    /// The command: of the guest (busybox, pqos), else of this machine
    #[arg(last = true, value_name = "CMD", required_unless_present = "build")]
    pub command: Vec<String>,
}

/// Boots and runs; the command's status is the program's.
pub fn run(args: &Lab) -> Result {
    let guest = Guest {
        kernel: args.kernel.clone(),
        profile: args.profile.clone(),
        cpus: args.cpus,
        sockets: args.sockets,
        smt: args.smt,
        memory: args.memory,
        nodes: args.nodes,
        memory_v1: args.memory_v1,
        swap: args.swap,
        swap_size: args.swap_size,
        disk: args.disk,
        disk_rate: args.disk_rate,
        lru: args.lru,
        accelerator: args.accel,
        append: args.append.clone(),
        with: args.with.clone(),
    };
    if args.build {
        let packages = packages()?;
        packages.qemu().map_err(failure)?;
        packages.tools().map_err(failure)?;
        let kernel = packages.kernel(&args.kernel).map_err(failure)?;
        let folder = packages.folder().display();
        eprintln!("lab: Linux {} is in {folder}", kernel.release);
        if args.command.is_empty() {
            return Ok(Exit::Done);
        }
    }
    let outcome = boot(&vm::Lab {
        guest,
        out: args.out.clone(),
        timeout: args.timeout.map(|t| Duration::from_nanos(t.0)),
        console: args.console.clone(),
        command: args.command.clone(),
    })?;
    if let Some(report) = outcome.report.filter(|_| args.report) {
        let text = serde_json::to_string_pretty(&report).map_err(failed)?;
        eprintln!("{text}");
    }
    Ok(Exit::Status(outcome.status))
}

fn packages() -> Result<Packages> {
    Packages::new(|line| eprintln!("{line}")).map_err(failure)
}

/// Boots a machine whose command talks to our standard output and error and gets the signals that
/// end us.
pub fn boot(lab: &vm::Lab) -> Result<Outcome> {
    let packages = packages()?;
    let mut signals = None;
    // Not before the machine runs: what comes before ends at once, as any program does.
    let mut stop = || {
        next_signal(
            signals
                .get_or_insert_with(|| stop_signals().ok())
                .as_ref()?,
        )
    };
    let talk = Talk {
        output: &mut stdout(),
        errors: &mut stderr(),
        stop: &mut stop,
    };
    lab.run(&packages, talk).map_err(failure)
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Input(_) | Error::Shape(_) => usage(error),
        Error::Unavailable(_) => Failure {
            text: format!("the lab cannot be had here: {error}"),
            exit: Exit::Status(NOT_HERE),
        },
        Error::Failed(_) => failed(error),
    }
}
