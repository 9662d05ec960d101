//! Real programs while their pages are moved, under a declared map, whose colours mean nothing for
//! the hardware here: what they compute, how long they take, where their pages lie in the end.
//! What they would gain is not measured.
//!
//! For the long run. Skipped aloud without root, without a program, and where the kernel moves no
//! pages.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::coloured::{able, counted, run_of};
use crate::common::{Machine, Program, Running, eventually, quell};
use quell_types::units::Nanos;
use rustix::process::Signal;

/// Not the usual ones: a server that is there already is none of ours.
const PORTS: [&str; 2] = ["36381", "36382"];
/// The two halves of the colours: what has one is given the other.
const HALVES: [&str; 2] = ["0-3", "4-7"];

fn rounds() -> usize {
    let wanted = std::env::var("QUELL_ROUNDS").ok();
    wanted.map_or(5, |n| n.parse().expect("QUELL_ROUNDS is a number"))
}

fn emptied() -> Option<Machine> {
    // A hoard takes free memory alone, and pages of files that were read are not free.
    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
    able()
}

/// Whether a program is there; said if it is not.
fn has(program: &str) -> bool {
    let there = Path::new("/usr/bin").join(program).exists();
    if !there {
        quell_testing::skip_part(format_args!("{program} is not installed"));
    }
    there
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `least, median, most` of some figures.
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{least:.3} {:.3} {most:.3}", median(values))
}

/// `quell colours settle` of a process, with its answer as JSON.
fn settle(machine: &Machine, pid: u32, colours: &str, more: &[&str]) -> Command {
    let mut command = crate::common::coloured::settle(machine, pid, colours, more);
    command.arg("--json");
    command
}

/// `quell run` of a policy with one group that reserves colours, and has this key besides.
fn reserve(machine: &Machine, key: &str, colours: &str, pace: &str) -> Command {
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 'any'\n{key}\n\
        reserve.banks = '{colours}'\n[hoard]\nlimit = '768MiB'\nreserve = '1GiB'\n{pace}\n"
    );
    run_of(machine, &policy)
}

// Programs that compute something and end.

/// What a program of the lists below is called, and its command for a shell. `$D` is a folder.
const BATCH: [(&str, &str); 4] = [
    (
        "sort",
        "LC_ALL=C exec sort --parallel=2 -S 300M -k2 $D/lines",
    ),
    ("sqlite3", "exec sqlite3 :memory: <$D/queries"),
    ("python3", "exec /usr/bin/python3 $D/work.py"),
    (
        "ffmpeg",
        "exec ffmpeg -v error -nostdin -f lavfi -i testsrc2=s=640x360:d=120 -threads 2 -c:v mpeg4 \
         -q:v 4 -flags bitexact -fflags bitexact -f avi -",
    ),
];

const QUERIES: &str = "
create table t(k integer primary key, a integer, b text);
insert into t with recursive r(i, x) as (select 1, 12345 union all
  select i + 1, (x * 1103515245 + 12345) % 2147483648 from r where i < 600000)
  select i, x % 100000, hex(x) || ' ' || i from r;
create index t_a on t(a);
select a, count(*), max(b) from t group by a order by count(*) desc, a limit 500;
select sum(length(x.b)), count(*) from t x join t y on y.a = x.a where x.k < 60000;
update t set b = b || a where a % 3 = 0;
select count(*), sum(length(b)), min(b), max(b) from t;
";

const WORK: &str = "
import hashlib, random
random.seed(7)
table = {}
for n in range(350000):
    key = random.randrange(200000)
    table.setdefault(key, []).append('%08x %d' % (random.getrandbits(32), n))
for turn in range(4):
    items = sorted(table.items(), key=lambda item: item[1][-1])
    digest = hashlib.sha256(repr(items).encode()).hexdigest()
    print(turn, len(items), digest)
    for key, values in items[:len(items) // 3]:
        table[key] = [value[::-1] for value in values]
";

fn inputs(folder: &Path) {
    fs::write(folder.join("queries"), QUERIES).unwrap();
    fs::write(folder.join("work.py"), WORK).unwrap();
    let mut file = std::io::BufWriter::new(File::create(folder.join("lines")).unwrap());
    let mut random = quell_types::rng::Rng::new(26);
    for n in 0..2_000_000u32 {
        writeln!(
            file,
            "{n} {:08x} of the lines that are sorted",
            random.next_u32()
        )
        .unwrap();
    }
    file.flush().unwrap();
}

/// Not a test of its own: a shell that runs `QUELL_TEST_COMMAND`. Next to `QUELL_TEST_OUT` are the
/// output, the process number, and in the end the seconds of time and of CPU time.
#[test]
#[ignore = "a program that another test starts"]
fn times_a_program() {
    let name = |what: &str| std::env::var(what).unwrap();
    let out = PathBuf::from(name("QUELL_TEST_OUT"));
    let written = |ending: &str, text: String| {
        let new = out.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, out.with_extension(ending)).unwrap();
    };
    let begun = Instant::now();
    let mut child = Command::new("sh")
        .args(["-c", &name("QUELL_TEST_COMMAND")])
        .env("D", out.parent().unwrap())
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .spawn()
        .unwrap();
    written("pid", child.id().to_string());
    let status = child.wait().unwrap();
    let took = begun.elapsed().as_secs_f64();
    // SAFETY: a value that the kernel fills.
    let used = unsafe {
        let mut used = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut used);
        used
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cpu = seconds(used.ru_utime) + seconds(used.ru_stime);
    written("took", format!("{took} {cpu} {}", status.success()));
}

/// How pages of a program are moved.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// They are not.
    Plain,
    /// By `quell colours settle` from a moment after its start on, with these options.
    Settled(&'static [&'static str]),
    /// By `quell run` of a policy that launches it.
    Launched,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Settled(&[]), Way::Launched];
/// Right and left, without a pause: what it computes stays the same, whatever it costs.
const HASTE: Way = Way::Settled(&["--pace", "100%", "--longest-stop", "20ms"]);

/// One run of a program: seconds, seconds of CPU time, what it wrote.
struct Ran {
    took: f64,
    cpu: f64,
    output: Vec<u8>,
}

fn ran(machine: &Machine, name: &str, command: &str, way: Way) -> Ran {
    let out = machine.path(name);
    for ending in ["pid", "took"] {
        let _ = fs::remove_file(out.with_extension(ending));
    }
    let exe = std::env::current_exe().unwrap().display().to_string();
    let role = [
        "--exact",
        "--ignored",
        "--nocapture",
        "programs::times_a_program",
    ];
    let set = [
        format!("QUELL_TEST_COMMAND={command}"),
        format!("QUELL_TEST_OUT={}", out.display()),
    ];
    let mut said = String::new();
    if way == Way::Launched {
        let words = [&["env", &set[0], &set[1], &exe], &role[..]].concat();
        let words: Vec<String> = words.iter().map(|w| format!("'''{w}'''")).collect();
        let key = format!("command = [{}]", words.join(", "));
        let done = Running::start(&mut reserve(machine, &key, HALVES[0], "")).wait();
        // 3: memory grew faster than it was moved.
        assert!([0, 3].contains(&done.code), "{name}: {done:?}");
        let lines = done.err.lines().filter(|line| line.contains("its colours"));
        said = lines.collect::<Vec<_>>().join("; ");
    } else {
        let mut program = Command::new("env");
        let program = program.args(set).arg(exe).args(role);
        let program = Running::start(program);
        if let Way::Settled(options) = way {
            eventually("it runs", || out.with_extension("pid").exists());
            std::thread::sleep(Duration::from_millis(200));
            let mut half = 0;
            while !out.with_extension("took").exists() {
                let pid = fs::read_to_string(out.with_extension("pid")).unwrap();
                let mut command = settle(machine, pid.parse().unwrap(), HALVES[half], options);
                let done = Running::start(&mut command).wait();
                if let Ok(json) = serde_json::from_str::<serde_json::Value>(&done.out) {
                    let stops = &json["stops"];
                    said += &format!("{} moved, {} stops, ", json["moved"], stops["count"]);
                    said += &format!("{} at most; ", stops["longest"]);
                } else {
                    assert!(out.with_extension("took").exists(), "{name}: {done:?}");
                }
                half = 1 - half;
            }
        }
        let done = program.wait();
        assert_eq!(done.code, 0, "{name}: {done:?}");
    }
    eprintln!("{name} {way:?}: {said}");
    let text = fs::read_to_string(out.with_extension("took")).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    assert_eq!(words[2], "true", "{name} failed");
    Ran {
        took: words[0].parse().unwrap(),
        cpu: words[1].parse().unwrap(),
        output: fs::read(&out).unwrap(),
    }
}

// Programs that answer.

/// A program that reads questions and writes answers, each of which ends with a line `END`.
struct Asked {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Asked {
    fn start(command: &[&str]) -> Self {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            questions: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn ask(&mut self, question: &str) -> String {
        self.questions.write_all(question.as_bytes()).unwrap();
        self.questions.flush().unwrap();
        let mut answer = String::new();
        loop {
            let from = answer.len();
            assert_ne!(self.answers.read_line(&mut answer).unwrap(), 0, "it ended");
            if &answer[from..] == "END\n" {
                return answer;
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Settles it again and again in the background while it answers, to one half of the colours and
/// the other. Its pages are right in the end.
fn answers_the_same(machine: &Machine, name: &str, mut program: Asked, first: &str, again: &str) {
    program.ask(first);
    let expected = program.ask(again);
    assert!(expected.len() > 100, "{name}: {expected}");
    let pid = program.child.id();
    for half in HALVES {
        let mut run = Running::start(&mut settle(machine, pid, half, HASTE.options()));
        let mut asked = 0;
        while run.alive() || asked == 0 {
            assert_eq!(program.ask(again), expected, "{name}: another answer");
            asked += 1;
        }
        let json = run.wait().json();
        // While it answers it gets new pages. Once it waits, the rest is moved.
        let last = Running::start(&mut settle(machine, pid, half, HASTE.options())).wait();
        let last = last.json();
        let found = counted(pid);
        let at = if half == HALVES[0] { 0..4 } else { 4..8 };
        let (right, all) = (found[at].iter().sum::<u64>(), found.iter().sum::<u64>());
        println!(
            "{name}: {right} of {all} pages right; {} moved during {asked} answers, then {}; {} refused; stops {}; load {}",
            json["moved"],
            last["moved"],
            last["refused"],
            json["stops"],
            load()
        );
        assert!(all > 5_000, "{name}: {found:?}");
        assert!(right * 1000 >= all * 999, "{name}: {found:?}");
        assert_eq!(program.ask(again), expected, "{name}: another answer");
    }
}

impl Way {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Settled(options) => options,
            _ => &[],
        }
    }
}

#[test]
fn programs_that_live_long_have_right_pages_and_answers() {
    let Some(mut machine) = emptied() else {
        return;
    };
    machine.remember();
    if has("sqlite3") {
        let (first, again) = QUERIES.split_once("select a").unwrap();
        let again = again.split_once("update").unwrap().0;
        let (first, again) = (
            format!("{first}\n.print END\n"),
            format!("select a{again}\n.print END\n"),
        );
        let program = Asked::start(&["/usr/bin/sqlite3", ":memory:"]);
        answers_the_same(&machine, "sqlite3", program, &first, &again);
    }
    if has("python3") {
        let file = machine.file(
            "answers.py",
            "import hashlib, random, sys\nrandom.seed(3)\n\
            table = {n: [str(random.random()) for _ in range(4)] for n in range(150000)}\n\
            for line in sys.stdin:\n\
            \x20   items = sorted(table.items(), key=lambda item: item[1])\n\
            \x20   print(line, [i[0] for i in items[:40]], hashlib.sha256(repr(items).encode()).hexdigest())\n\
            \x20   print('END', flush=True)\n",
        );
        let program = Asked::start(&["/usr/bin/python3", &file]);
        answers_the_same(&machine, "python3", program, "first\n", "again\n");
    }
    machine.unchanged("after the programs");
}

// A server under load.

/// A redis-server with about 200 MiB of values.
fn server(port: &str) -> Program {
    let folder = "/tmp";
    let memory = ["--save", "", "--appendonly", "no", "--dir", folder];
    let debug = ["--enable-debug-command", "local"];
    let start = ["/usr/bin/redis-server", "--port", port];
    let program = Program::start(&[&start[..], &memory, &debug].concat());
    eventually("the server answers", || ask(port, &["ping"]) == "PONG");
    ask(port, &["debug", "populate", "150000", "key", "1000"]);
    program
}

fn ask(port: &str, what: &[&str]) -> String {
    let mut client = Command::new("/usr/bin/redis-cli");
    let done = client.args(["-p", port]).args(what).output().unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// The 99th percentile and the longest latency of an open-loop client, in ms.
fn client(port: &str) -> [f64; 2] {
    let done = Running::start(quell().args([
        "bench",
        "open-loop",
        "--connect",
        &format!("127.0.0.1:{port}"),
        "--rate",
        "10000",
        "--duration",
        "4s",
        "--json",
    ]));
    let json = done.wait().json();
    // Each counts with the time that it waited.
    if json["unanswered"] != 0 {
        eprintln!("{} not answered within 1 s", json["unanswered"]);
    }
    ["p99_ns", "max_ns"].map(|key| json[key].as_f64().unwrap() / 1e6)
}

/// Latencies of a server in three states, by round.
#[derive(Default)]
struct Latencies {
    plain: Vec<[f64; 2]>,
    moved: Vec<[f64; 2]>,
    after: Vec<[f64; 2]>,
    /// The longest stop while they were moved, in ms.
    stops: Vec<f64>,
}

impl Latencies {
    fn print(&self, way: &str) -> [f64; 2] {
        let p99 = |of: &[[f64; 2]]| of.iter().map(|l| l[0]).collect::<Vec<_>>();
        let most = |of: &[[f64; 2]]| of.iter().map(|l| l[1]).collect::<Vec<_>>();
        let ratios = |of: &[[f64; 2]]| -> Vec<f64> {
            let pairs = of.iter().zip(&self.plain);
            pairs.map(|(of, to)| of[0] / to[0]).collect()
        };
        println!("redis, {way}; load {}", load());
        for (what, of) in [
            ("plain", &self.plain),
            ("while they are moved", &self.moved),
            ("after", &self.after),
        ] {
            println!(
                "  {what}: p99 ms {}; longest {}; p99 ÷ plain {}",
                spread(&p99(of)),
                spread(&most(of)),
                spread(&ratios(of))
            );
        }
        println!("  longest stops ms {}", spread(&self.stops));
        [&self.moved, &self.after].map(|of| median(&ratios(of)))
    }
}

/// Ends a run of a policy. Returns the longest stop in ms, as its closing lines say, if it has gone
/// through all memory.
fn ended(run: Running) -> Option<f64> {
    run.signal(Signal::TERM);
    let done = run.wait();
    assert!([0, 3].contains(&done.code), "{done:?}");
    let line = done.err.lines().find(|line| line.contains("its colours"));
    eprintln!("{line:?}");
    let (_, longest) = line?.split_once("longest ")?;
    longest.split(' ').next()?.parse().ok()
}

/// For `make soak`.
mod long {
    /// Times are compared.
    mod measured {
        use super::super::*;

        #[test]
        #[ignore = "for the long run"]
        fn programs_compute_the_same_while_they_are_moved() {
            let Some(mut machine) = emptied() else {
                return;
            };
            inputs(machine.folder.path());
            machine.remember();
            for (name, command) in BATCH.into_iter().filter(|(name, _)| has(name)) {
                let plain = ran(&machine, name, command, Way::Plain);
                assert!(plain.output.len() > 100, "{name} writes nothing");
                assert!(plain.took > 0.5, "{name} takes {} s", plain.took);
                let hasty = ran(&machine, name, command, HASTE);
                assert!(hasty.output == plain.output, "{name}: another result");
                let mut times = [(); 3].map(|()| (Vec::new(), Vec::new()));
                for round in 0..rounds() {
                    for n in 0..WAYS.len() {
                        let way = (round + n) % WAYS.len();
                        let this = ran(&machine, name, command, WAYS[way]);
                        assert!(this.output == plain.output, "{name}: another result");
                        times[way].0.push(this.took);
                        times[way].1.push(this.cpu);
                    }
                }
                for (way, (took, cpu)) in WAYS.iter().zip(&times) {
                    let ratios = |of: &[f64], to: &[f64]| -> Vec<f64> {
                        of.iter().zip(to).map(|(of, to)| of / to).collect()
                    };
                    let (time, work) = (ratios(took, &times[0].0), ratios(cpu, &times[0].1));
                    println!(
                        "{name} {way:?}: s {}; ÷ plain {}; CPU time ÷ plain {}; load {}",
                        spread(took),
                        spread(&time),
                        spread(&work),
                        load()
                    );
                    // The aim is 1.05. A shared machine allows no such bound.
                    assert!(median(&time) < 1.5, "{name} {way:?}: {time:?}");
                }
            }
            machine.unchanged("after the programs");
        }

        /// One server is left alone and one is moved, by turns.
        #[test]
        #[ignore = "for the long run"]
        fn a_server_answers_while_it_is_moved() {
            let Some(mut machine) = emptied() else {
                return;
            };
            if !["redis-server", "redis-cli"].into_iter().all(has) {
                return;
            }
            let (_still, moved) = (server(PORTS[0]), server(PORTS[1]));
            let digest = ask(PORTS[1], &["debug", "digest"]);
            assert_eq!(digest, ask(PORTS[0], &["debug", "digest"]));
            machine.remember();
            let pid = moved.pid();
            let mut settled = Latencies::default();
            for round in 0..rounds() {
                let half = round % 2;
                settled.plain.push(client(PORTS[0]));
                let mut run = Running::start(&mut settle(&machine, pid, HALVES[half], &[]));
                std::thread::sleep(Duration::from_millis(500));
                settled.moved.push(client(PORTS[1]));
                assert!(run.alive(), "all pages are moved already");
                run.signal(Signal::TERM);
                let done = run.wait();
                let json: serde_json::Value = serde_json::from_str(&done.out).unwrap();
                eprintln!("{round}: {json}");
                let longest: Nanos = json["stops"]["longest"].as_str().unwrap().parse().unwrap();
                settled.stops.push(longest.0 as f64 / 1e6);
                let mut haste = settle(&machine, pid, HALVES[half], HASTE.options());
                let json = Running::start(&mut haste).wait().json();
                let found = counted(pid);
                let right: u64 = found[half * 4..half * 4 + 4].iter().sum();
                let all: u64 = found.iter().sum();
                println!(
                    "{round}: {right} of {all} pages right, stops {}",
                    json["stops"]
                );
                assert!(right * 1000 >= all * 999, "{found:?}");
                settled.after.push(client(PORTS[1]));
                assert_eq!(ask(PORTS[1], &["debug", "digest"]), digest);
            }
            let mut held = Latencies::default();
            let key = format!("match = [{{ pid = {pid} }}]");
            for round in 0..rounds() {
                held.plain.push(client(PORTS[0]));
                let half = (round + rounds()) % 2;
                let run = Running::start(&mut reserve(&machine, &key, HALVES[half], ""));
                let before = counted(pid);
                eventually("its pages are moved", || counted(pid) != before);
                held.moved.push(client(PORTS[1]));
                held.stops.extend(ended(run));
                let haste = "pace = '100%'\nlongest-stop = '20ms'";
                let run = Running::start(&mut reserve(&machine, &key, HALVES[half], haste));
                eventually("its pages are right", || {
                    let found = counted(pid);
                    let right: u64 = found[half * 4..half * 4 + 4].iter().sum();
                    right * 1000 >= found.iter().sum::<u64>() * 999
                });
                held.after.push(client(PORTS[1]));
                held.stops.extend(ended(run));
                assert_eq!(ask(PORTS[1], &["debug", "digest"]), digest);
            }
            for (way, latencies) in [("quell colours settle", settled), ("quell run", held)] {
                let ratios = latencies.print(way);
                // The aims are 1.10 and 1.02. A shared machine allows no such bound.
                assert!(ratios.iter().all(|ratio| *ratio < 3.0), "{way}: {ratios:?}");
            }
            drop(moved);
        }
    }
}
