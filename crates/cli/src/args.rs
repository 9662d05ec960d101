//! The command line's definitions; help, completions and man pages come from here.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::colours::Colours;
use crate::compare::Compare;
use crate::demo::Demo;
use crate::doctor::Doctor;
use crate::generators::Bench;
use crate::init::Init;
use crate::lab::Lab;
use crate::plan::Plan;
use crate::profile::args::Profile;
use crate::report::{Export, Report};
use crate::run::Run;
use crate::status::Status;
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
    /// Show which DRAM banks the pages of a program lie in
    Colours(Colours),
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
    /// Moves pages of a program, as it is asked.
    #[command(name = "__settle", hide = true)]
    Settler,
    /// Keeps page frames of some colours from all programs.
    #[command(name = "__hoard", hide = true)]
    Hoard {
        /// Which ones, and how much, as JSON.
        rules: String,
    },
    /// A generator of an experiment.
    #[command(name = "__generator", hide = true)]
    Generator {
        /// What it does, as JSON.
        workload: String,
    },
}
