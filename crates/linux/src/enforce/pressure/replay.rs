//! Replays what a real kernel was recorded to report under pressure (`tests/traces/record.sh`). The
//! controllers run behind this backend's own files, journal and threads, on the model of the
//! kernel, which reads as recorded.
//!
//! Nothing was controlled during the recording, so nothing done here changes the samples. Each test
//! is about what a controller does: that it is done, recorded and reverted. What was done is kept
//! next to the trace (`NAME.CONTROLLER`). `QUELL_BLESS=1` rewrites it after a meant change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quell_control::config::Allows;
use quell_control::pressure::{Controller as Control, Decision, LONGEST_FREEZE, Rules};
use quell_kernel::cgroup::Cgroups;
use quell_kernel::fake::{Fake, Flavour, Op, Spec};
use quell_types::units::{Nanos, Share};

use super::*;
use crate::journal::Journal;
use crate::journal::tests::header;

/// Time between two recorded samples.
const EVERY: Nanos = Nanos::millis(200);
/// When the best-effort group began, and when it ended, in the traces.
const BEGINS: Nanos = Nanos::secs(3);
const RESTS: Nanos = Nanos::secs(11);

fn traces() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

/// A recording, with a map from column to text for each sample.
struct Trace {
    name: &'static str,
    /// Total of `/proc/meminfo` and the watermarks, in KiB.
    machine: BTreeMap<String, u64>,
    samples: Vec<BTreeMap<String, String>>,
}

impl Trace {
    fn read(name: &'static str) -> Self {
        let text = std::fs::read_to_string(traces().join(format!("{name}.trace"))).unwrap();
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let words: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let pairs = words.chunks(2);
        let machine = pairs.map(|p| (p[0].to_owned(), p[1].parse().unwrap()));
        let machine = machine.collect();
        let columns: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let mut samples: Vec<BTreeMap<String, String>> = Vec::new();
        for line in lines {
            let before = samples.last();
            let value = |(column, text): (&&str, &str)| {
                let text = match text {
                    "." => before.unwrap()[*column].clone(),
                    text => text.to_owned(),
                };
                ((*column).to_owned(), text)
            };
            let sample: BTreeMap<_, _> = columns.iter().zip(line.split(' ')).map(value).collect();
            assert_eq!(sample.len(), columns.len(), "{line}");
            samples.push(sample);
        }
        Self {
            name,
            machine,
            samples,
        }
    }
}

fn number(sample: &BTreeMap<String, String>, column: &str) -> u64 {
    sample[column]
        .parse()
        .unwrap_or_else(|_| panic!("{column} is {}", sample[column]))
}

/// The contents of the kernel's files for a sample of the trace.
fn files_of(trace: &Trace, sample: &BTreeMap<String, String>, hog: u32) -> Vec<(String, String)> {
    let n = |column: &str| number(sample, column);
    let pressure = |avg10: &str, some, full| {
        format!(
            "some avg10={avg10} avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"
        )
    };
    let swap = n("swap_free");
    let mut all = vec![
        (
            vm::MEMINFO.to_owned(),
            format!(
                "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nSwapTotal: {swap} kB\nSwapFree: {swap} kB\n",
                trace.machine["total"],
                n("free"),
                n("available"),
            ),
        ),
        (
            Resource::Memory.system().to_owned(),
            pressure(&sample["avg10"], 0, 0),
        ),
        (
            format!("/proc/{hog}/io"),
            format!("read_bytes: {}\nwrite_bytes: 0\n", n("worst.io") << 10),
        ),
        (
            format!("/proc/{hog}/oom_score"),
            format!("{}\n", n("worst.score")),
        ),
    ];
    for group in ["detector", "hog"] {
        let of = |name: &str| n(&format!("{group}.{name}"));
        let bytes = |name: &str| of(name) << 10;
        let dir = dir(group);
        let mut put = |name: &str, text: String| all.push((format!("{dir}/{name}"), text));
        put("memory.current", format!("{}\n", bytes("current")));
        put(
            "memory.stat",
            format!(
                "anon {}\nfile {}\nshmem 0\nfile_mapped {}\nactive_file {}\ninactive_file {}\nunevictable 0\n\
                 workingset_refault_anon {}\nworkingset_refault_file {}\n",
                bytes("anon"),
                bytes("file"),
                bytes("mapped"),
                bytes("active"),
                bytes("inactive"),
                of("refault_anon"),
                of("refault_file"),
            ),
        );
        put(
            "memory.pressure",
            pressure("0.00", of("memory_some"), of("memory_full")),
        );
        put(
            "io.pressure",
            pressure("0.00", of("io_some"), of("io_full")),
        );
        put(
            "memory.events",
            format!(
                "low 0\nhigh 0\nmax {}\noom 0\noom_kill {}\n",
                of("max"),
                of("oom_kill")
            ),
        );
        put(
            "io.stat",
            format!("8:0 rbytes={} wbytes=0 rios=0 wios=0\n", bytes("io")),
        );
    }
    all
}

fn dir(group: &str) -> String {
    format!("/sys/fs/cgroup/{group}")
}

/// What can be seen of the measures against the best-effort group.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    high: String,
    frozen: bool,
    stopped: bool,
    kept: String,
}

impl Held {
    fn see(fake: &dyn Files, hog: u32) -> Self {
        let text = |group, name: &str| fake.text(&format!("{}/{name}", dir(group))).unwrap();
        let state = procfs::stat(fake, hog).unwrap().map(|stat| stat.state);
        Self {
            high: text("hog", "memory.high"),
            frozen: text("hog", "cgroup.freeze") == "1",
            stopped: state.is_some_and(quell_kernel::pidfd::stopped),
            kept: text("detector", "memory.min"),
        }
    }

    /// The expected state after `act`.
    fn after(mut self, act: &Act) -> Self {
        match *act {
            Act::Protect { memory, .. } => self.kept = memory.0.to_string(),
            Act::Limit { most, .. } => {
                self.high = most.map_or("max".to_owned(), |b| (b.0 & !4095).to_string());
            }
            Act::Freeze { .. } => self.frozen = true,
            Act::Thaw { .. } => self.frozen = false,
            Act::Stop(_) => self.stopped = true,
            Act::Continue(_) | Act::Kill(_) => self.stopped = false,
            Act::Reclaim { .. } | Act::KeepUnswapped { .. } => {}
        }
        self
    }
}

/// A model with a detector and a best-effort group, watched as a backend watches them under a plan.
struct Scene {
    fake: Arc<Fake>,
    files: Arc<dyn Files>,
    hog: u32,
    journal: Journal,
    watch: Watch,
    rules: Rules,
    before: Held,
    _run: tempfile::TempDir,
}

impl Scene {
    fn open(trace: &Trace, kind: PressureController) -> Self {
        let fake = Arc::new(Fake::new(&Spec::new(Flavour::V2)));
        let files: Arc<dyn Files> = Arc::clone(&fake) as Arc<dyn Files>;
        let control = "/sys/fs/cgroup/cgroup.subtree_control";
        files.put(control, "+memory").unwrap();
        let [_, hog] = ["detector", "hog"].map(|name| {
            let pid = fake.with(|m| m.spawn(name));
            files.mkdir(&dir(name)).unwrap();
            let door = format!("{}/cgroup.procs", dir(name));
            files.put(&door, &pid.to_string()).unwrap();
            pid
        });
        let zone =
            ["min", "low", "high"].map(|mark| format!("{mark} {}\n", trace.machine[mark] / 4));
        fake.with(|m| m.recorded("/proc/zoneinfo", zone.concat()));
        show(&fake, trace, &trace.samples[0], hog);

        let run = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(run.path(), header()).unwrap();
        let lease = Arc::new(Lease::create(run.path(), 1, rt::now()).unwrap());
        let cgroups = Cgroups::discover(&*files).unwrap();
        let hierarchy = cgroups.of(Controller::Memory).unwrap();
        let member = |group: &str| {
            let place = CgroupDir {
                hierarchy: hierarchy.clone(),
                dir: dir(group),
                ours: false,
                braked: false,
            };
            let group_cgroups = GroupCgroups {
                group: group.to_owned(),
                places: vec![place.clone()],
            };
            (group_cgroups, Some(place))
        };
        let members = Members {
            critical: vec![member("detector")],
            neighbours: vec![member("hog")],
        };
        let plan = plan(kind);
        let before = Held::see(&*files, hog);
        let mut writer = JournaledWriter::new(&*files, &mut journal);
        let watch = Watch::open(&files, &mut writer, &lease, &plan, &members).unwrap();
        Self {
            fake,
            files,
            hog,
            journal,
            watch,
            rules: Rules {
                interval: plan.interval,
                start: plan.start,
                release: plan.release,
                grace: plan.grace,
                measured: vec![plan.critical[0].measured],
                allows: vec![plan.neighbours[0].allows],
            },
            before,
            _run: run,
        }
    }

    fn sample(&mut self, processes: bool, sample: &mut Sample) -> Result<()> {
        let mut writer = JournaledWriter::new(&*self.files, &mut self.journal);
        self.watch
            .sample(&mut writer, &*self.files, None, processes, sample)
    }

    fn act(&mut self, act: &Act) {
        let mut writer = JournaledWriter::new(&*self.files, &mut self.journal);
        self.watch.act(&mut writer, act).unwrap();
    }

    /// Ends as a run does, and checks that everything is as it was before.
    fn end(mut self) {
        self.watch
            .let_go(&mut JournaledWriter::new(&*self.files, &mut self.journal));
        drop(self.watch);
        assert_eq!(
            self.journal.undo_all(&*self.files).left,
            Vec::<String>::new()
        );
        assert_eq!(Held::see(&*self.files, self.hog), self.before);
    }
}

fn plan(kind: PressureController) -> Pressured {
    let ours = kind == PressureController::Quell;
    Pressured {
        controller: kind,
        interval: EVERY,
        start: Share::percent(5),
        release: Share::percent(1),
        grace: Nanos::millis(500),
        critical: vec![Watched {
            group: "detector".into(),
            measured: ours,
        }],
        neighbours: vec![Steered {
            group: "hog".into(),
            allows: Allows {
                limit: kind != PressureController::Latd,
                freeze: true,
                reclaim: ours,
                kill: true,
            },
        }],
    }
}

fn show(fake: &Fake, trace: &Trace, sample: &BTreeMap<String, String>, hog: u32) {
    fake.with(|m| {
        for (path, text) in files_of(trace, sample, hog) {
            m.recorded(&path, text);
        }
        if m.alive().contains(&hog) {
            m.grow(hog, number(sample, "worst.resident") << 10);
        }
    });
}

/// Plays a trace to a controller. Returns what it did, and when.
fn play(trace: &Trace, kind: PressureController) -> Vec<(Nanos, Decision)> {
    let mut scene = Scene::open(trace, kind);
    let mut control = Control::new(kind, &scene.rules, Nanos(0)).unwrap();
    let (mut sample, mut decisions, mut log) = (Sample::default(), Vec::new(), Vec::new());
    let mut held = Held::see(&*scene.files, scene.hog);
    for recorded in &trace.samples {
        let now = Nanos::millis(number(recorded, "at"));
        show(&scene.fake, trace, recorded, scene.hog);
        if now < control.next() {
            continue;
        }
        scene
            .sample(control.wants_processes(), &mut sample)
            .unwrap();
        let usage = number(recorded, "detector.current") << 10;
        assert_eq!(sample.critical[0].usage.0, usage);
        control.step(now, &sample, &mut decisions);
        for decision in decisions.drain(..) {
            scene.act(&decision.act);
            held = held.after(&decision.act);
            // A thread writes the limits, so they come late.
            let begun = Instant::now();
            loop {
                let is = Held::see(&*scene.files, scene.hog);
                if is == held {
                    break;
                }
                let late = begun.elapsed() > Duration::from_secs(10);
                assert!(!late, "{now}: {decision:?}: {is:?}, not {held:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            log.push((now, decision));
        }
    }
    scene.end();
    log
}

fn word(act: &Act) -> String {
    let mib = |bytes: Bytes| format!("{} MiB", bytes.0 >> 20);
    match *act {
        Act::Protect { memory, .. } => format!("protect {}", mib(memory)),
        Act::Limit { most, .. } => most.map_or("no limit".into(), |b| format!("limit {}", mib(b))),
        Act::KeepUnswapped { .. } => "keep unswapped".into(),
        Act::Freeze { .. } => "freeze".into(),
        Act::Thaw { .. } => "thaw".into(),
        Act::Reclaim { amount, .. } => format!("reclaim {}", mib(amount)),
        Act::Stop(_) => "stop".into(),
        Act::Continue(_) => "continue".into(),
        Act::Kill(_) => "kill".into(),
    }
}

/// Checks that the decisions are those kept next to the trace.
fn same(trace: &Trace, kind: &str, log: &[(Nanos, Decision)]) {
    let mut text = String::new();
    for (at, decision) in log {
        let (act, why) = (word(&decision.act), decision.why);
        writeln!(text, "{at}: {act}, as {why}").unwrap();
    }
    let path = traces().join(format!("{}.{kind}", trace.name));
    if std::env::var_os("QUELL_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, kept, "{}", path.display());
}

fn first(log: &[(Nanos, Decision)], is: fn(&Act) -> bool) -> Option<Nanos> {
    log.iter().find(|(_, d)| is(&d.act)).map(|(at, _)| *at)
}

/// What holds for every trace. Before the best-effort group begins, a controller only protects or
/// limits. All its decisions are those that are kept.
fn plays(name: &'static str, kind: PressureController, word: &str) -> Vec<(Nanos, Decision)> {
    let trace = Trace::read(name);
    let log = play(&trace, kind);
    let early = log.iter().find(|(at, d)| {
        let harmless = matches!(d.act, Act::Protect { .. } | Act::Limit { .. });
        *at < BEGINS && !harmless
    });
    assert!(early.is_none(), "{early:?}");
    same(&trace, word, &log);
    log
}

#[test]
fn quell_limits_and_stops_a_file_hog_and_kills_nothing() {
    let log = plays("file", PressureController::Quell, "quell");
    let is = |what: fn(&Act) -> bool| first(&log, what);
    assert_eq!(is(|act| matches!(act, Act::Kill(_) | Act::Stop(_))), None);
    let limited = is(|act| matches!(act, Act::Limit { .. })).unwrap();
    assert!(limited < BEGINS.plus(Nanos::secs(2)), "{limited}");
    let mut since = None;
    for (at, decision) in &log {
        match decision.act {
            Act::Freeze { .. } => {
                assert!(*at > limited && since.is_none(), "{at}");
                since = Some(*at);
            }
            Act::Thaw { .. } => {
                let since = since.take().expect("it was frozen");
                assert!(at.since(since) <= LONGEST_FREEZE, "{since} to {at}");
            }
            _ => {}
        }
    }
    assert!(since.is_none(), "it went on once it was at rest");
}

#[test]
fn ours_limits_who_grows_and_kills_when_nothing_is_left() {
    let log = plays("anon", PressureController::Quell, "quell");
    let is = |what: fn(&Act) -> bool| first(&log, what).unwrap();
    let limited = is(|act| matches!(act, Act::Limit { .. }));
    let killed = is(|act| matches!(act, Act::Kill(_)));
    assert!(limited < BEGINS.plus(Nanos::secs(3)), "{limited}");
    assert!(killed > limited, "{killed}");
    let once = log.iter().filter(|(_, d)| matches!(d.act, Act::Kill(_)));
    assert_eq!(once.count(), 1, "it is dead");
}

#[test]
fn the_daemon_stops_a_process_when_its_average_is_high() {
    for (name, goes_on) in [("file", true), ("anon", false)] {
        let log = plays(name, PressureController::Latd, "latd");
        let acts: Vec<&Act> = log.iter().map(|(_, d)| &d.act).collect();
        // Seconds after it began, because the average is over ten. A stopped process gives nothing
        // back, unless its memory can be reclaimed.
        assert!(matches!(acts[0], Act::Stop(_)), "{log:?}");
        assert!(log[0].0 >= BEGINS.plus(Nanos::secs(2)), "{log:?}");
        let rest = acts[1..].iter();
        let resumed = rest.filter(|act| matches!(act, Act::Continue(_))).count();
        assert_eq!((acts.len(), resumed), (1 + resumed, usize::from(goes_on)));
    }
}

#[test]
fn limits_that_grow_never_sink_and_a_process_is_stopped_as_well() {
    for name in ["file", "anon"] {
        let log = plays(name, PressureController::Cgroup, "cgroup");
        let limits = log.iter().filter_map(|(_, d)| match d.act {
            Act::Limit { most, .. } => most,
            _ => None,
        });
        let limits: Vec<Bytes> = limits.collect();
        assert!(!limits.is_empty() && limits.is_sorted(), "{log:?}");
        let stopped = first(&log, |act| matches!(act, Act::Stop(_)));
        assert!(
            stopped.is_some_and(|at| at > BEGINS && at < RESTS),
            "{log:?}"
        );
    }
}

#[test]
fn a_critical_group_without_readings_is_not_taken_for_calm() {
    let trace = Trace::read("file");
    let mut scene = Scene::open(&trace, PressureController::Quell);
    let mut sample = Sample::default();
    scene.sample(true, &mut sample).unwrap();
    // As after `echo 0 >cgroup.pressure`.
    scene
        .fake
        .refuse(Op::Read, "detector/memory.pressure", libc::ENODEV);
    let why = scene.sample(true, &mut sample).unwrap_err().to_string();
    for needed in [
        "/detector/memory.pressure is gone",
        "write 1 to",
        "cgroup.pressure",
    ] {
        assert!(why.contains(needed), "{why}");
    }
    scene.end();
}
