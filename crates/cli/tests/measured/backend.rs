//! This machine keeps what every backend promises: the bodies of `quell-conformance`, with root;
//! skipped aloud without.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::Machine;
use quell_conformance::{Arm, conformance, divided, inventory, offers, plan, step};
use quell_control::config::Meter;
use quell_control::config::Regulation;
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_linux::backend::{Linux, Tools};
use quell_linux::colours::settler::SettlerCommand;
use quell_linux::lock::RUN_ROOT;
use quell_linux::resident::KeeperCommand;
use quell_linux::session::WatchdogCommand;
use quell_plan::{Plan, Promise, Setting, Step};
use quell_policy::workload::{Caches, Workload};
use quell_record::backend::{Backend, SubjectId};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::options::CpuWeight;
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos, Rate};

/// Field order is drop order: the hold ends before the machine is compared with what it was.
struct Live {
    linux: Linux,
    pids: BTreeMap<SubjectId, u32>,
    _nobody: Nobody,
    machine: Machine,
}

/// On drop no generator runs any more.
struct Nobody;

impl Drop for Nobody {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(generators().collect::<Vec<_>>(), [], "born, number");
        }
    }
}

/// The generators that run: when they were born, and their numbers.
fn generators() -> impl Iterator<Item = (u64, u32)> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Some((born(pid)?, pid))
    })
}

fn generator(workload: &Workload, caches: &Caches) -> Vec<String> {
    let json = serde_json::to_string(&workload.resolve(caches)).unwrap();
    let program = env!("CARGO_BIN_EXE_quell").to_owned();
    vec![program, "__generator".to_owned(), json]
}

/// When a generator that we started was born, in clock ticks since boot.
fn born(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ours = fields[1].parse() == Ok(std::process::id());
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let serves = String::from_utf8_lossy(&command).contains("__generator");
    (ours && serves && fields[0] != "Z").then(|| fields[19].parse().unwrap())
}

impl Live {
    /// The process behind a subject: the youngest generator of ours when it is first asked for.
    fn pid(&mut self, subject: SubjectId) -> u32 {
        if let Some(pid) = self.pids.get(&subject).filter(|pid| born(**pid).is_some()) {
            return *pid;
        }
        let (_, pid) = generators().max().expect("a generator runs");
        self.pids.insert(subject, pid);
        pid
    }
}

/// The steps that gather a group and confine it.
fn gathered(arm: &mut dyn Arm, cpus: &CpuSet, braked: bool) -> Vec<Step> {
    let gather = Setting::Gather {
        matching: Vec::new(),
        outermost: false,
        braked,
    };
    let confine = Setting::Confine {
        cpus: cpus.clone(),
        mems: inventory(arm).nodes.iter().map(|node| node.id).collect(),
        exclusive: false,
    };
    let set = [gather, confine].map(|set| step("a", Mechanism::Cores, set));
    set.to_vec()
}

impl Live {
    /// The CPU-time cgroup of group `a`, or the one of that name below it.
    fn cgroup(&self, below: &str) -> String {
        let cgroups = Cgroups::discover(&self.machine.kernel).unwrap();
        let mount = cgroups.of(Controller::Cpu).unwrap().mount.clone();
        let mut all = vec![Path::new(&mount).join("quell.slice")];
        while let Some(dir) = all.pop() {
            let name = dir.file_name().unwrap().to_string_lossy().into_owned();
            if name == "a" {
                return dir.join(below).display().to_string();
            }
            let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
            all.extend(entries.map(|e| e.path()).filter(|p| p.is_dir()));
        }
        panic!("group a has no cgroup below {mount}/quell.slice");
    }

    /// The file of the group's weight, and a value that nobody asked for.
    fn weight(&self) -> (String, &'static str) {
        let cgroups = Cgroups::discover(&self.machine.kernel).unwrap();
        let file = match cgroups.of(Controller::Cpu).unwrap().version {
            Version::V1 => "cpu.shares",
            Version::V2 => "cpu.weight",
        };
        (
            format!("{}/{file}", self.cgroup("").trim_end_matches('/')),
            "777",
        )
    }
}

impl Arm for Live {
    fn backend(&mut self) -> &mut dyn Backend {
        &mut self.linux
    }

    fn found_on(&mut self, subject: SubjectId) -> CpuSet {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid(subject))).unwrap();
        let list = status
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        list.unwrap().trim().parse().unwrap()
    }

    fn progress(&mut self, subject: SubjectId) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid(subject))).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let ticks: Vec<u64> = rest
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse().unwrap())
            .collect();
        ticks.iter().sum()
    }

    fn spans(&self) -> (Nanos, Nanos) {
        (Nanos::millis(50), Nanos::millis(400))
    }

    fn meter(&self) -> Option<Meter> {
        // Hardware events of a shared host are not there on every machine; CPU time is.
        Some(Meter::Time)
    }

    fn stream(&self) -> &'static str {
        // Past the caches: what a large one holds of a buffer while it is streamed, others take
        // while it is stopped.
        "bandwidth:non-temporal,size=32MiB"
    }

    fn prefer(&mut self) {
        let cgroups = Cgroups::discover(&self.machine.kernel).unwrap();
        let Some(cpu) = cgroups.of(Controller::Cpu) else {
            return;
        };
        // The directory goes, and with it what it weighs.
        let (file, most) = match cpu.version {
            Version::V1 => ("cpu.shares", "262144"),
            Version::V2 => ("cpu.weight", "10000"),
        };
        let path = format!("{}/quell.slice/{file}", cpu.mount);
        fs::write(&path, most).unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// A limit: its brake is a process, which somebody may kill.
    fn breakable(&mut self) -> Option<Plan> {
        if !offers(self, Mechanism::Bandwidth) {
            return None;
        }
        let (first, _) = divided(self);
        let mut steps = gathered(self, &first, true);
        let (peak, period) = (Rate(10_000_000_000), Nanos::millis(1));
        let rate = Rate(peak.0 / 2);
        let limit = Regulation {
            cpus: first,
            budget: Lines::at(rate, period),
            period,
            meter: Meter::Time,
            peak,
            pooling: None,
            split: Split::Even,
            least: Lines(0),
        };
        steps.push(step("a", Mechanism::Bandwidth, Setting::Regulate(limit)));
        let promise = Promise::LimitBandwidth { rate };
        Some(plan(steps, promise, Level::Estimated))
    }

    fn break_promise(&mut self) {
        let stop = self.cgroup("stop");
        let brakes = fs::read_to_string(format!("{stop}/cgroup.procs")).unwrap();
        for brake in brakes.lines() {
            let pid = rustix::process::Pid::from_raw(brake.parse().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }

    fn meddled_with(&mut self) -> Option<Plan> {
        if !offers(self, Mechanism::Weight) {
            return None;
        }
        let (first, _) = divided(self);
        let mut steps = gathered(self, &first, false);
        let weight = CpuWeight::Of(20);
        steps.push(step("a", Mechanism::Weight, Setting::Weight { weight }));
        let promise = Promise::Cpus { cpus: first };
        Some(plan(steps, promise, Level::Enforced))
    }

    fn meddle(&mut self) {
        let (path, value) = self.weight();
        fs::write(path, value).unwrap();
    }

    fn is_meddled(&mut self) -> bool {
        let (path, value) = self.weight();
        fs::read_to_string(path).unwrap().trim() == value
    }

    /// A stop costs up to 0.2 ms of the group's time on a slow nested virtual machine (seen).
    fn period(&self) -> Nanos {
        Nanos::millis(10)
    }

    fn noise(&self) -> (f64, u32) {
        (0.25, 3)
    }
}

fn live(_test: &str) -> Option<Live> {
    let mut machine = crate::common::machine()?;
    machine.remember();
    let tools = Tools {
        generator,
        shared_cache: quell_workload::probe::shared_cache,
        rates: |_, _| Err(std::io::Error::other("not measured in this test")),
        traffic: quell_workload::measure::known_traffic,
        watchdog: WatchdogCommand {
            program: env!("CARGO_BIN_EXE_quell").into(),
            arguments: vec!["__watchdog".into()],
        },
        keeper: KeeperCommand {
            program: env!("CARGO_BIN_EXE_quell").into(),
            arguments: vec!["__keep".into()],
        },
        hoard: KeeperCommand {
            program: env!("CARGO_BIN_EXE_quell").into(),
            arguments: vec!["__hoard".into()],
        },
        settler: SettlerCommand {
            program: env!("CARGO_BIN_EXE_quell").into(),
            arguments: vec!["__settle".into()],
        },
    };
    Some(Live {
        linux: Linux::new(Path::new(RUN_ROOT), tools).unwrap(),
        pids: BTreeMap::new(),
        _nobody: Nobody,
        machine,
    })
}

conformance!(live);
