//! `quell trace`: a real program's accesses, recorded by valgrind, for the simulated machine.
//! `docs/traces.md` tells how.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use quell_sim::trace::{Import, Reader, Summary, import_lackey, summary};
use quell_types::units::Bytes;

use crate::exit::{Exit, Result, failed, usage};

/// What stands for standard input.
const STDIN: &str = "-";
/// How a program is recorded.
const RECORD: &str =
    "record one with 'valgrind --tool=lackey --trace-mem=yes --log-file=lackey.out PROGRAM'";

/// `quell trace`
#[derive(Debug, clap::Args)]
pub struct Trace {
    /// What to do
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What can be done with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Make a trace of what 'valgrind --tool=lackey --trace-mem=yes' wrote
    Import {
        /// Lackey's output, or - for standard input
        lackey: PathBuf,
        /// The trace to be written
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Tell what a trace holds: accesses, the memory they touch, how much of it caches would keep
    Show {
        /// The trace
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Imports or shows a trace.
pub fn run(args: &Trace) -> Result {
    match &args.command {
        TraceCommand::Import { lackey, output } => import(lackey, output),
        TraceCommand::Show { file, json } => show(file, *json),
    }
}

/// The trace is written beside its place and moved there once it is whole: a failure leaves what
/// was there before.
fn import(lackey: &Path, output: &Path) -> Result {
    let name = lackey.display().to_string();
    let (from, name): (Box<dyn BufRead>, String) = if name == STDIN {
        (Box::new(io::stdin().lock()), "standard input".to_owned())
    } else {
        let file = File::open(lackey).map_err(|e| usage(format!("{name}: {e}; {RECORD}")))?;
        (Box::new(BufReader::with_capacity(1 << 20, file)), name)
    };
    let unwritten = |e: io::Error| {
        let output = output.display();
        failed(format!("{output}: {e}; give another file by -o"))
    };
    let mut part = output.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let to = BufWriter::with_capacity(1 << 20, quell_files::replace(&part).map_err(unwritten)?);
    let count = match import_lackey(from, &name, to) {
        Ok(count) => fs::rename(&part, output).map(|()| count).map_err(unwritten),
        Err(Import::Write(error)) => Err(unwritten(error)),
        Err(error) => Err(usage(error)),
    };
    let count = count.inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })?;
    let bytes = fs::metadata(output).map_err(unwritten)?.len();
    println!("{}: {count} accesses in {bytes} bytes", output.display());
    Ok(Exit::Done)
}

fn show(file: &Path, json: bool) -> Result {
    let name = file.display().to_string();
    let opened = File::open(file)
        .map_err(|e| usage(format!("{name}: {e}; make one by 'quell trace import'")))?;
    let reader = Reader::new(BufReader::with_capacity(1 << 20, opened), &name).map_err(usage)?;
    let found = summary(reader).map_err(usage)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&found).map_err(failed)?);
    } else {
        print!("{}", told(&name, &found));
    }
    Ok(Exit::Done)
}

/// A trace for a person.
fn told(name: &str, all: &Summary) -> String {
    let lines = |lines: u64| format!("{:.2} MB", lines as f64 * 64.0 / 1e6);
    let share = |part: u64| part as f64 * 100.0 / all.line_accesses.max(1) as f64;
    let mut text = format!(
        "{name}: {} accesses by {} instructions\n  {} read, {} write, {} read and write; {} across two lines\n  \
         they touch {} lines of 64 bytes, {}, on {} pages of 4 KiB; a line {:.0} times\n",
        all.accesses(),
        all.instructions,
        all.reads,
        all.writes,
        all.modifies,
        all.line_accesses.saturating_sub(all.accesses()),
        all.lines,
        lines(all.lines),
        all.pages,
        all.line_accesses as f64 / all.lines.max(1) as f64,
    );
    for cache in &all.caches {
        text += &format!(
            "  a cache of {:>6} would miss {:>6.2} % of them, {} fetched\n",
            Bytes(cache.bytes).to_string(),
            share(cache.misses),
            lines(cache.misses),
        );
    }
    text
}
