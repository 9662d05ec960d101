//! Memory under pressure on this machine: two programs below one nested limit of memory, so that the rest of the machine
//! notices nothing. Where the memory controller is on cgroup v1, as it was here, the plan says what is not to be had.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Machine, Program, Running, eventually, machine, quell};
use quell_linux::cgroup::{Cgroups, Controller, Version};
use rustix::process::Signal;

const MIB: usize = 1 << 20;
/// Both programs together have this.
const LIMIT: &str = "96M";

/// Cgroups of the test's in every hierarchy that matters, the memory of all below it limited.
struct Nest {
    tops: Vec<PathBuf>,
}

impl Nest {
    /// `None`, said aloud, where memory is not on v1 or pressure is not told.
    fn new(machine: &Machine, test: &str) -> Option<Self> {
        let cgroups = Cgroups::discover(&machine.kernel).unwrap();
        let memory = cgroups.of(Controller::Memory);
        let Some(memory) = memory.filter(|m| m.version == Version::V1) else {
            eprintln!("SKIPPED {test}: the memory controller is not on cgroup v1");
            return None;
        };
        let Some(v2) = cgroups
            .v2()
            .filter(|h| Path::new(&h.mount).join("memory.pressure").exists())
        else {
            eprintln!("SKIPPED {test}: no cgroup v2 hierarchy tells of pressure");
            return None;
        };
        let mut tops = Vec::new();
        for hierarchy in [memory, v2] {
            let top = Path::new(&hierarchy.mount).join("quell-test-memory");
            for name in ["", "app", "hog"] {
                fs::create_dir(top.join(name)).unwrap();
            }
            tops.push(top);
        }
        fs::write(tops[0].join("memory.limit_in_bytes"), LIMIT).unwrap();
        Some(Self { tops })
    }

    /// Starts a program in one of them.
    fn start(&self, name: &str, script: &str) -> Program {
        let doors: Vec<String> = self
            .tops
            .iter()
            .map(|top| format!("echo 0 >{}/{name}/cgroup.procs", top.display()))
            .collect();
        let script = format!("{}; {script}", doors.join("; "));
        Program::start(&["sh", "-c", &script])
    }

    fn frozen(&self) -> bool {
        let path = self.tops[1].join("hog/cgroup.freeze");
        fs::read_to_string(path).unwrap().trim() == "1"
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        for top in &self.tops {
            for name in ["app", "hog", ""] {
                let dir = top.join(name);
                for _ in 0..500 {
                    let left = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                    for pid in left.lines() {
                        if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw)
                        {
                            let _ = rustix::process::kill_process(pid, Signal::KILL);
                        }
                    }
                    if fs::remove_dir(&dir).is_ok() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// A file of so many MiB, none of it in memory: else its pages were ours, whoever reads them.
fn file(machine: &Machine, name: &str, mib: usize) -> String {
    let path = machine.path(name);
    let mut file = fs::File::create(&path).unwrap();
    for _ in 0..mib {
        file.write_all(&vec![7u8; MIB]).unwrap();
    }
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    path.display().to_string()
}

fn adjustment(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    text.unwrap_or_default().trim().to_owned()
}

fn events(folder: &Path) -> String {
    fs::read_to_string(folder.join("events.jsonl")).unwrap_or_default()
}

#[test]
fn who_takes_the_cache_of_a_critical_group_is_frozen_and_let_go_on_by_whoever_is_left() {
    let test = "memory";
    let Some(mut machine) = machine(test) else {
        return;
    };
    let (own, others) = (file(&machine, "own", 60), file(&machine, "others", 400));
    let Some(nest) = Nest::new(&machine, test) else {
        return;
    };
    // Frames that read 60 MiB, and somebody who reads 400 MiB again and again: both do not fit into 96.
    let app = nest.start(
        "app",
        &format!("while :; do cat {own} >/dev/null; sleep 0.02; done"),
    );
    let _hog = nest.start("hog", &format!("while :; do cat {others} >/dev/null; done"));
    machine.remember();
    let before = adjustment(app.pid());
    let policy = machine.file(
        "policy.toml",
        "quell = 1\n\
         [group.app]\nrole = \"critical\"\ncpus = \"any\"\nmatch = [{ cgroup = \"/quell-test-memory/app\" }]\n\
         [group.hog]\nrole = \"best-effort\"\ncpus = \"any\"\nmatch = [{ cgroup = \"/quell-test-memory/hog\" }]\n\
         allow = [\"freeze\"]\n[pressure]\n",
    );
    let record = machine.path("record");
    let mut command = quell();
    command.args(["run", &policy, "--out"]).arg(&record);
    let run = Running::start(&mut command);
    let mut run = run;
    eventually("the hog is frozen", || {
        assert!(run.alive(), "it goes on: {:?}", fs::read_to_string(&policy));
        nest.frozen()
    });
    assert_eq!(
        adjustment(app.pid()),
        "-1000",
        "the critical group is immune"
    );
    eventually("it goes on by itself", || !nest.frozen());
    eventually("the record tells both", || {
        let text = events(&record);
        text.contains("\"act\":\"freeze\"") && text.contains("\"act\":\"thaw\"")
    });
    // Killed while it is frozen: the watchdog lets it go on, and nothing else is left behind.
    eventually("the hog is frozen again", || nest.frozen());
    run.signal(Signal::KILL);
    machine.undone();
    assert!(!nest.frozen());
    assert_eq!(adjustment(app.pid()), before);
    drop(run);
    machine.unchanged("after the kill");
}

#[test]
fn named_files_are_locked_by_a_process_of_the_group_and_let_go_with_the_run() {
    let Some(mut machine) = machine("locked files") else {
        return;
    };
    let weights = file(&machine, "weights", 24);
    machine.remember();
    let locked = || {
        let text = fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("Mlocked:"));
        let kib: usize = line
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib >> 10
    };
    let before = locked();
    let pid = machine.path("pid");
    let policy = |file: &str| {
        format!(
            "quell = 1\n[group.app]\nrole = \"critical\"\ncpus = \"any\"\n\
             command = [\"sh\", \"-c\", \"echo $$ >{}; exec sleep 600\"]\nreserve.files = [\"{file}\"]\n",
            pid.display()
        )
    };
    let held = machine.file("held.toml", &policy(&weights));
    let mut run = Running::start(quell().args(["run", &held]));
    eventually("the weights are locked", || {
        assert!(run.alive());
        locked() >= before + 24
    });
    let launched = || fs::read_to_string(&pid).ok()?.trim().parse().ok();
    eventually("the program is launched", || launched().is_some());
    run.signal(Signal::KILL);
    machine.undone();
    eventually("they are not any more", || locked() < before + 24);
    let missing = machine.file("missing.toml", &policy("/no/such/file"));
    common::run(&["run", &missing]).fails(125, &["/no/such/file", "No such file"]);
    drop(run);
    // What the killed run launched is nobody's.
    common::send(launched().unwrap(), Signal::KILL);
    machine.unchanged("after the kill");
}
