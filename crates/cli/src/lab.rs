//! `quell lab`: a command inside a virtual machine. `docs/lab.md` is its manual.

use std::io::{stderr, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use quell_core::units::{Bytes, Nanos, Rate};
use quell_lab::Error;
use quell_lab::packages::Packages;
use quell_lab::vm;

use crate::exit::{Exit, Failure, Result, failed, usage};

/// `quell lab`
#[derive(Debug, clap::Args)]
pub struct Lab {
    /// The kernel: the beginning of a release of Debian's (6.12 is the stable one, newer ones are backports)
    #[arg(long, value_name = "RELEASE", default_value = "7.2")]
    pub kernel: String,
    /// Emulate this processor, with cache and bandwidth allocation, monitoring and counters: icelake, goldmont, sparse, or a
    /// file
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
    /// Swap space
    #[arg(long, value_enum, default_value_t = Swap::None)]
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
    #[arg(long, value_enum)]
    pub lru: Option<Lru>,
    /// What runs the guest
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub accel: Accel,
    /// A word for the kernel's command line; repeat for more
    #[arg(long, value_name = "WORD")]
    pub append: Vec<String>,
    /// A program, file or folder of this machine that the guest has at the same place, or at the one given; programs bring their
    /// libraries; quell is this program, as /bin/quell; repeat for more
    #[arg(long, value_name = "PATH[=PLACE]")]
    pub with: Vec<String>,
    /// Gets what the command leaves in /out
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Stop after so long
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

/// Where pages are swapped to.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Swap {
    /// None
    None,
    /// A file, at the disk's rate
    File,
    /// Memory, compressed
    Zram,
}

/// How pages are aged.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Lru {
    /// Active and inactive lists
    Classic,
    /// Generations (MGLRU)
    Mglru,
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Accel {
    /// KVM on bare metal, without an emulated processor; else emulation
    Auto,
    /// KVM
    Kvm,
    /// Emulation
    Tcg,
}

/// Boots and runs; the command's status is the program's.
pub fn run(args: &Lab) -> Result {
    let packages = Packages::new(|line| eprintln!("{line}")).map_err(failure)?;
    if args.build {
        packages.qemu().map_err(failure)?;
        packages.tools().map_err(failure)?;
        let kernel = packages.kernel(&args.kernel).map_err(failure)?;
        let folder = packages.folder().display();
        eprintln!("lab: Linux {} is in {folder}", kernel.release);
        if args.command.is_empty() {
            return Ok(Exit::Done);
        }
    }
    let lab = vm::Lab {
        kernel: args.kernel.clone(),
        profile: args.profile.clone(),
        cpus: args.cpus,
        sockets: args.sockets,
        smt: args.smt,
        memory: args.memory,
        swap: match args.swap {
            Swap::None => vm::Swap::None,
            Swap::File => vm::Swap::File,
            Swap::Zram => vm::Swap::Zram,
        },
        swap_size: args.swap_size,
        disk: args.disk,
        disk_rate: args.disk_rate,
        lru: args.lru.map(|lru| match lru {
            Lru::Classic => vm::Lru::Classic,
            Lru::Mglru => vm::Lru::Generations,
        }),
        accelerator: match args.accel {
            Accel::Auto => vm::Accelerator::Auto,
            Accel::Kvm => vm::Accelerator::Kvm,
            Accel::Tcg => vm::Accelerator::Tcg,
        },
        append: args.append.clone(),
        with: args.with.clone(),
        out: args.out.clone(),
        timeout: args.timeout.map(|t| Duration::from_nanos(t.0)),
        console: args.console.clone(),
        command: args.command.clone(),
    };
    let outcome = lab
        .run(&packages, &mut stdout(), &mut stderr())
        .map_err(failure)?;
    if let Some(report) = outcome.report.filter(|_| args.report) {
        let text = serde_json::to_string_pretty(&report).map_err(failed)?;
        eprintln!("{text}");
    }
    Ok(Exit::Status(outcome.status))
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Input(_) | Error::Shape(_) => usage(error),
        Error::Unavailable(_) | Error::Failed(_) => failed(error),
    }
}
