//! How many accesses a whole simulated machine handles, and requests its memory, per second of one
//! thread's CPU time: `cargo bench -p quell-sim [-- NAME]`. The machine is the usual one
//! (`xeon-w3530`). Each run starts where the one before stopped, with warm caches.

#[path = "../../model/benches/measure/mod.rs"]
mod measure;

use std::io::Cursor;
use std::process::Command;

use measure::{RUNS, chosen, of_all, rate};
use quell_sim::board::Board;
use quell_sim::frames::{Frames, Placement};
use quell_sim::pattern::{ParallelLists, Pattern, Replay};
use quell_sim::trace::import_lackey;
use quell_sim::{Description, Machine};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const US: u64 = 1_000_000;

/// What all cores have done: accesses, and lines moved to and from memory.
fn done(machine: &Machine) -> (u64, u64) {
    let all = (0..machine.cores()).map(|core| machine.counts(core));
    all.fold((0, 0), |(accesses, lines), counts| {
        let moved = counts.lines() + counts.writebacks;
        (accesses + counts.accesses, lines + moved)
    })
}

/// Runs `programs`, one per core with so much memory each. Prints how many accesses are simulated
/// per second, how many lines are moved meanwhile, and lines per access.
fn bench(description: &Description, name: &str, programs: Vec<(Pattern, u64)>) {
    if !chosen(name) {
        return;
    }
    let mut machine = Machine::new(description).expect("a real machine");
    let mut frames = Frames::new(20, 42);
    for (core, (pattern, bytes)) in programs.into_iter().enumerate() {
        let space = frames.allocate(bytes, &Placement::Plain);
        machine.start(core, pattern, space.expect("enough memory"), 0);
    }
    let mut now = 5_000 * US;
    machine.run(now);
    // Doubled until a step takes some tenths of a second.
    let mut step = 100 * US;
    let mut run = |step| {
        now += step;
        let before = done(&machine);
        let seconds = 1e-6
            / rate(1, &mut || {
                let _ = machine.run(now);
            });
        let after = done(&machine);
        let (accesses, lines) = (after.0 - before.0, after.1 - before.1);
        (seconds, accesses as f64, lines as f64)
    };
    while run(step).0 < 0.15 {
        step *= 2;
    }
    let runs: Vec<_> = (0..RUNS).map(|_| run(step)).collect();
    let accesses = of_all(runs.iter().map(|run| run.1 / run.0 / 1e6).collect());
    let lines = of_all(runs.iter().map(|run| run.2 / run.0 / 1e6).collect());
    let share = of_all(runs.iter().map(|run| run.2 / run.1).collect()).1;
    println!(
        "{name:<38} {:>6.1} M accesses/s   median {:>6.1}   lines moved {:>6.2} M/s   median {:>6.2}   per access {share:.3}",
        accesses.0, accesses.1, lines.0, lines.1
    );
}

/// A real program's accesses, recorded now. `None` without valgrind.
fn recorded(program: &[&str]) -> Option<Replay> {
    let folder = std::env::temp_dir().join(format!("quell-bench-{}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=lackey", "--trace-mem=yes"]);
    valgrind.arg(format!("--log-file={}", folder.display()));
    let done = valgrind.args(program).output();
    let lackey = std::fs::read(&folder);
    let _ = std::fs::remove_file(&folder);
    done.ok().filter(|done| done.status.success())?;
    let mut trace = Vec::new();
    import_lackey(Cursor::new(lackey.ok()?), "lackey", &mut trace).ok()?;
    Replay::read(Cursor::new(trace), "lackey").ok()
}

fn main() {
    let board = Board::usual().expect("the usual machine");
    let of = &board.description;
    let list = |bytes| (Pattern::latency(bytes, 7), bytes);
    let stream = |write| (Pattern::bandwidth(32 * MIB, write), 32 * MIB);
    let lists = |_| {
        let lists = ParallelLists::new(32 * MIB, 10, 7).expect("enough lines");
        (Pattern::ParallelLists(lists), 32 * MIB)
    };
    bench(of, "one core/list in L1", vec![list(16 * KIB)]);
    bench(of, "one core/list in L2", vec![list(160 * KIB)]);
    bench(of, "one core/list in L3", vec![list(1536 * KIB)]);
    bench(of, "four cores/lists in L1", vec![list(16 * KIB); 4]);
    bench(of, "four cores/lists in L3", vec![list(1024 * KIB); 4]);
    match recorded(&["sort", "Cargo.toml"]) {
        Some(program) => {
            let bytes = program.bytes();
            let program = (Pattern::Replay(program), bytes);
            bench(of, "one core/sort, recorded", vec![program.clone()]);
            bench(of, "four cores/sort, recorded", vec![program; 4]);
        }
        None => println!("sort, recorded: left out, valgrind is not to be had"),
    }
    let few = [vec![list(160 * KIB); 3], vec![list(32 * MIB)]].concat();
    bench(of, "four cores/L2, one in memory", few);
    bench(of, "four cores/streams of reads", vec![stream(false); 4]);
    bench(of, "four cores/streams of writes", vec![stream(true); 4]);
    bench(of, "four cores/ten lists each", (0..4).map(lists).collect());
    let storing = |n| match lists(n) {
        (Pattern::ParallelLists(lists), bytes) => (Pattern::ParallelLists(lists.storing()), bytes),
        other => other,
    };
    bench(
        of,
        "four cores/ten lists each, storing",
        (0..4).map(storing).collect(),
    );
}
