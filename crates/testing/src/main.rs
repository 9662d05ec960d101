//! `quell-test`: builds and runs all tests of the workspace, each in a process of its own.
//! `scripts/test.sh` starts it; CONTRIBUTING says what it prints.

mod class;
mod interrupted;
mod lists;
mod memo;
mod process;
mod programs;
mod schedule;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::Duration;

use class::Class;
use lists::Lists;
use memo::Changed;
use process::Ended;
use quell_testing::SOAK;
use rustix::fs::{FlockOperation, flock};
use schedule::{Schedule, Waiting};
use verdict::{Done, Outcome};

const USAGE: &str = "\
usage: scripts/test.sh [OPTION…] [TEXT…]
Runs the tests whose names contain one of the texts; all tests without a text.
  --changed         only tests below a module `changed` whose files are not as they were when the
                    test last passed (tests/changed.toml, where it is noted that it passed)
  --soak            the long run: tests below modules `changed` and `long`, too; every test does
                    its utmost
  --jobs N          so many tests at a time (as many as there are CPUs)
  --list            prints the tests, and runs none
  --results FILE    writes a line for each test: class, outcome, seconds, CPU seconds, name, reasons
  --write-seconds   writes tests/seconds.toml anew";

/// What is asked for.
#[derive(Default)]
struct Options {
    changed: bool,
    soak: bool,
    jobs: Option<usize>,
    list: bool,
    results: Option<PathBuf>,
    write_seconds: bool,
    texts: Vec<String>,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or(format!("{argument} needs a value\n{USAGE}"))
        };
        match argument.as_str() {
            "--changed" => options.changed = true,
            "--soak" => options.soak = true,
            "--list" => options.list = true,
            "--write-seconds" => options.write_seconds = true,
            "--results" => options.results = Some(value()?.into()),
            "--jobs" => {
                let jobs = value()?;
                let number = jobs
                    .parse()
                    .map_err(|_| format!("--jobs {jobs}: not a number\n{USAGE}"))?;
                options.jobs = Some(number);
            }
            option if option.starts_with('-') => {
                return Err(format!("{option}: no such option\n{USAGE}"));
            }
            _ => options.texts.push(argument),
        }
    }
    Ok(options)
}

/// A test, and how it is run.
#[derive(Clone, Debug)]
struct Test {
    name: String,
    class: Class,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
}

impl Test {
    fn command(&self, soak: bool) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder);
        if soak {
            command.env(SOAK, "1");
        }
        command
    }

    fn run(&self, soak: bool) -> std::io::Result<Ended> {
        let longest = Duration::from_secs(if soak { 3 * 3600 } else { 900 });
        process::run(&mut self.command(soak), self.class.nicer(), longest)
    }
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let failed = options(std::env::args().skip(1)).and_then(|options| tested(&options));
    match failed {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs what is asked for; whether it failed.
fn tested(options: &Options) -> Result<bool, String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let top = top.canonicalize().map_err(|e| e.to_string())?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let _alone = alone()?;
    let lists = lists::read(&top.join("tests"))?;
    let all = tests(&top, &cargo, options.soak).map_err(|e| e.to_string())?;
    let there: BTreeSet<String> = all.iter().map(|test| test.name.clone()).collect();
    let mut changed = Changed::read(&top)?;
    let by_files = there.iter().filter(|name| is_below(name, memo::MODULE));
    changed.matches(&by_files.cloned().collect())?;
    let states = changed.states(&top)?;
    let due = changed.due(&states);
    let asked = |test: &Test| {
        let all = options.texts.is_empty();
        let named = all || options.texts.iter().any(|t| test.name.contains(t));
        let by_files = is_below(&test.name, memo::MODULE);
        let meant = match options.changed {
            true => due.contains(&test.name),
            false => !all || options.soak || !by_files,
        };
        named && meant
    };
    let asked: Vec<Test> = all.into_iter().filter(asked).collect();
    if options.list {
        asked
            .iter()
            .for_each(|test| println!("{:8} {}", test.class.name(), test.name));
        return Ok(false);
    }
    if asked.is_empty() && options.changed && options.texts.is_empty() {
        println!("No test of tests/changed.toml depends on a file that has changed.");
        return Ok(false);
    }
    if asked.is_empty() {
        return Err(format!(
            "no test has {:?} in its name (--list prints the names)",
            options.texts
        ));
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut missing = missing(cpus);
    if asked.iter().any(|test| test.class == Class::Lab) && !lab(&top)? {
        missing.push("the lab".to_owned());
    }
    let jobs = options.jobs.unwrap_or(cpus);
    interrupted::watch().map_err(|e| e.to_string())?;
    let ran = run(asked, &lists, jobs, options.soak);
    let (text, failed) = verdict::verdict(&ran, &lists, &missing, &there);
    print!("{text}");
    if let Some(path) = &options.results {
        std::fs::write(path, results(&ran)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let passed = ran.iter().filter(|done| is_passed(&done.outcome));
    if passed.fold(false, |news, done| changed.note(&done.name, &states) | news) {
        changed.write(&top)?;
    }
    if options.write_seconds {
        let took: BTreeMap<String, f64> = ran
            .iter()
            .map(|done| (done.name.clone(), done.wall))
            .collect();
        lists::write(&top.join("tests"), &took, |name| there.contains(name))?;
    }
    Ok(failed)
}

/// Whether a test lies below a module of that name.
fn is_below(test: &str, module: &str) -> bool {
    test.split("::").any(|name| name == module)
}

fn is_passed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Passed(skipped) if skipped.is_empty())
}

/// One run of the tests at a time: another one is waited for.
fn alone() -> Result<File, String> {
    let path = std::env::temp_dir().join("quell-test.lock");
    let told = |e: std::io::Error| format!("{}: {e}", path.display());
    // It may be another user's: to read it is enough.
    let made = || File::options().create_new(true).write(true).open(&path);
    let file = File::open(&path).or_else(|_| made()).map_err(told)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!(
            "Another run of the tests holds {}: waiting for its end.",
            path.display()
        );
        flock(&file, FlockOperation::LockExclusive).map_err(|e| told(e.into()))?;
    }
    Ok(file)
}

/// What CONTRIBUTING asks for and this machine lacks.
fn missing(cpus: usize) -> Vec<String> {
    const PROGRAMS: [&str; 8] = [
        "redis-server",
        "redis-benchmark",
        "stress-ng",
        "cyclictest",
        "sqlite3",
        "valgrind",
        "cpio",
        "numactl",
    ];
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root".to_owned());
    }
    if cpus < 2 {
        missing.push("a second CPU".to_owned());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &&str| std::env::split_paths(&paths).any(|path| path.join(name).exists());
    missing.extend(
        PROGRAMS
            .iter()
            .filter(|name| !found(name))
            .map(|name| (*name).to_owned()),
    );
    missing
}

/// Fetches what the lab is made of, before tests do so side by side; whether it can be had here.
/// `quell lab` says why not.
fn lab(top: &Path) -> Result<bool, String> {
    const UNAVAILABLE: i32 = 125;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(top.join("target"), PathBuf::from);
    let quell = target.join("debug/quell");
    for kernel in ["6.12", "7.2"] {
        let built = Command::new(&quell)
            .args(["lab", "--build", "--kernel", kernel])
            .status()
            .map_err(|e| format!("{}: {e}", quell.display()))?;
        match built.code() {
            Some(0) => {}
            Some(UNAVAILABLE) => return Ok(false),
            _ => return Err(format!("quell lab --build --kernel {kernel}: {built}")),
        }
    }
    Ok(true)
}

/// Parts of `tests/vm/guest.sh`; in the long run under all kernels.
fn virtual_machine(top: &Path, name: &str, soak: bool, parts: &[&str]) -> Test {
    let kernels = soak.then_some("--kernels").into_iter();
    Test {
        name: name.to_owned(),
        class: Class::Lab,
        program: top.join("tests/vm/run.sh"),
        arguments: kernels
            .chain(parts.iter().copied())
            .map(str::to_owned)
            .collect(),
        folder: top.to_owned(),
    }
}

/// All tests of the workspace, those of documentation and of `tests/vm`.
fn tests(top: &Path, cargo: &str, soak: bool) -> std::io::Result<Vec<Test>> {
    let mut all = vec![
        Test {
            name: "doc".to_owned(),
            class: Class::Pure,
            program: cargo.into(),
            arguments: ["test", "--workspace", "--locked", "--doc", "-q"]
                .map(str::to_owned)
                .into(),
            folder: top.to_owned(),
        },
        virtual_machine(
            top,
            "vm",
            soak,
            &["held", "memory", "nested", "regulated", "disks", "own"],
        ),
        virtual_machine(
            top,
            "vm::changed",
            soak,
            &["short", "reserved", "rights", "hazards", "programs"],
        ),
    ];
    for program in programs::built(cargo)? {
        let (runs, ignored) = programs::tests(&program)?;
        let later = ignored
            .into_iter()
            .filter(|test| is_below(test, memo::MODULE) || soak && is_below(test, "long"));
        for test in runs.into_iter().chain(later) {
            all.push(Test {
                name: format!("{}::{test}", program.name),
                class: Class::of(&program.package, &program.target, &test),
                program: program.path.clone(),
                arguments: [
                    "--exact",
                    &test,
                    "--include-ignored",
                    "--nocapture",
                    "--test-threads=1",
                ]
                .map(str::to_owned)
                .into(),
                folder: program.folder.clone(),
            });
        }
    }
    Ok(all)
}

/// Runs tests, so many at a time. One that fails and is listed as flaky is tried once more, alone.
fn run(tests: Vec<Test>, lists: &Lists, jobs: usize, soak: bool) -> Vec<Done> {
    let waiting = tests.into_iter().map(|test| Waiting {
        class: test.class,
        seconds: lists.seconds.get(&test.name).copied().unwrap_or(0.0),
        test,
    });
    let mut schedule = Schedule::new(waiting.collect(), jobs);
    let (send, ended) = mpsc::channel();
    let (mut ran, mut again) = (Vec::new(), Vec::new());
    while !schedule.done() {
        while let Some(next) = schedule.begin() {
            let (send, test) = (send.clone(), next.test);
            std::thread::spawn(move || {
                let ended = test.run(soak);
                // The receiver outlives all tests.
                let _ = send.send((test, ended));
            });
        }
        let Ok((test, ended)) = ended.recv() else {
            break;
        };
        schedule.end(test.class);
        let done = told(&test, ended, false);
        if done.outcome == Outcome::Failed && lists.flaky.contains_key(&test.name) {
            again.push((test, ran.len()));
        }
        ran.push(done);
    }
    for (test, at) in again {
        println!("again, alone: {}", test.name);
        let done = told(&test, test.run(soak), true);
        if done.outcome != Outcome::Failed {
            ran[at].outcome = Outcome::Flaky;
        }
    }
    interrupted::wait();
    ran
}

/// Prints how a test ended: a line, and of one that failed or was tried again its output.
fn told(test: &Test, ended: std::io::Result<Ended>, again: bool) -> Done {
    let mut done = Done {
        name: test.name.clone(),
        class: test.class,
        outcome: Outcome::Failed,
        wall: 0.0,
        cpu: 0.0,
    };
    match ended {
        Ok(ended) => {
            done.outcome = verdict::outcome(ended.passed, &ended.skips);
            (done.wall, done.cpu) = (ended.wall.as_secs_f64(), ended.cpu.as_secs_f64());
            // What may fail once shows what it said both times.
            if done.outcome == Outcome::Failed || again {
                println!(
                    "--- {}\n{}{}",
                    test.name,
                    ended.output,
                    ended.why.unwrap_or_default()
                );
            }
        }
        Err(error) => println!("--- {}: {error}", test.name),
    }
    println!(
        "{:7.2} s {:7} {}",
        done.wall,
        word(&done.outcome),
        test.name
    );
    done
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed(_) => "ok",
        Outcome::Skipped(_) => "skipped",
        Outcome::Failed => "FAILED",
        Outcome::Flaky => "flaky",
    }
}

/// A line for each test, with tabs.
fn results(ran: &[Done]) -> String {
    let mut text = String::new();
    for done in ran {
        let reasons = verdict::reasons(done).join("; ");
        let (class, word) = (done.class.name(), word(&done.outcome));
        let _ = writeln!(
            text,
            "{class}\t{word}\t{:.3}\t{:.3}\t{}\t{reasons}",
            done.wall, done.cpu, done.name
        );
    }
    text
}
