//! The command line of Quell: parses, calls, prints. Results go to stdout, everything else to
//! stderr.

mod args;
mod bench;
mod buffered;
mod colours;
mod compare;
mod declared;
mod demo;
mod doctor;
mod exit;
mod found;
mod generators;
mod guest;
mod help;
mod init;
mod kept;
mod lab;
mod lab_exec;
mod ladder;
mod machine;
mod named;
mod options;
mod others;
mod plan;
mod pressure;
mod preview;
mod profile;
mod progress;
mod report;
mod run;
mod state;
mod status;
mod store;
mod target;
mod terminal;
mod trace;
mod ways;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Args, Command};
use exit::Exit;

fn main() -> ExitCode {
    quell_linux::fault::arm_from_environment();
    let parsed = help::command()
        .try_get_matches()
        .and_then(|matches| Args::from_arg_matches(&matches));
    let args = match parsed {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage.into()
            } else {
                Exit::Done.into()
            };
        }
    };
    if matches!(
        args.command,
        Command::Status(_) | Command::Report(_) | Command::Export(_) | Command::Completions { .. }
    ) {
        quell_kernel::signals::end_with_the_reader();
    }
    let done = match args.command {
        Command::Demo(a) => demo::run(&a),
        Command::Doctor(a) => doctor::run(&a),
        Command::Init(a) => init::run(&a),
        Command::Plan(a) => plan::run(&a),
        Command::Run(a) => run::run(&a),
        Command::Status(a) => status::run(&a),
        Command::Compare(a) => compare::run(&a),
        Command::Profile(a) => profile::run(&a),
        Command::Report(a) => report::run(&a),
        Command::Export(a) => report::export(&a),
        Command::Bench(a) => bench::run(&a),
        Command::Trace(a) => trace::run(&a),
        Command::Ways(a) => ways::run(&a),
        Command::Colours(a) => colours::run(&a),
        Command::Lab(a) => lab::run(&a),
        Command::Restore => status::restore(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "quell", &mut std::io::stdout());
            Ok(Exit::Done)
        }
        Command::Man { dir } => man(&dir),
        Command::Watchdog { dir } => quell_linux::watchdog::run(&dir)
            .map(|_| Exit::Done)
            .map_err(exit::failed),
        Command::Keep { files } => quell_linux::resident::keep(&files)
            .map(|()| Exit::Done)
            .map_err(exit::failed),
        Command::Settler => {
            let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout());
            quell_linux::colours::settler::serve(&mut input, &mut output)
                .map(|()| Exit::Done)
                .map_err(exit::failed)
        }
        Command::Hoard { rules } => quell_linux::colours::keeper::keep(&rules)
            .map(|()| Exit::Done)
            .map_err(exit::failed),
        Command::Generator { workload } => bench::serve(&workload),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("quell: {}", quell_types::text::printable(&failure.text));
            failure.exit.into()
        }
    }
}

fn man(dir: &std::path::Path) -> exit::Result {
    clap_mangen::generate_to(Args::command(), dir)
        .map(|()| Exit::Done)
        .map_err(|e| {
            exit::failed(format!(
                "the man pages could not be written to {}: {e}",
                dir.display()
            ))
        })
}
