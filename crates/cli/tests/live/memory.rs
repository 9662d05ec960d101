//! Memory under pressure on this machine: two programs below one nested limit of memory, so that
//! the rest of the machine notices nothing. Where the memory controller is on cgroup v1, as it was
//! here, the plan says what is not to be had.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::{Machine, Program, Running, eventually, in_status, machine, quell};
use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::oom;
use quell_linux::resident;
use rustix::process::Signal;

const MIB: usize = 1 << 20;
/// Both programs together have this.
const LIMIT: &str = "96M";

/// What `quell run` has in memory while it looks after that of others, at most. A program that is
/// not optimized is larger.
const MOST: u64 = if cfg!(debug_assertions) { 16 } else { 12 } << 20;

/// Cgroups of the test's in every hierarchy that matters, the memory of all below it limited.
struct Nest {
    tops: Vec<PathBuf>,
}

impl Nest {
    /// `None`, said aloud, where memory is not on v1 or pressure is not told.
    fn new(machine: &Machine) -> Option<Self> {
        let cgroups = Cgroups::discover(&machine.kernel).unwrap();
        let memory = cgroups.of(Controller::Memory);
        let Some(memory) = memory.filter(|m| m.version == Version::V1) else {
            quell_testing::skip("the memory controller is not on cgroup v1");
            return None;
        };
        let Some(v2) = cgroups
            .v2()
            .filter(|h| Path::new(&h.mount).join("memory.pressure").exists())
        else {
            quell_testing::skip("no cgroup v2 hierarchy tells of pressure");
            return None;
        };
        let mut tops = Vec::new();
        for hierarchy in [memory, v2] {
            let top = Path::new(&hierarchy.mount).join("nest-of-a-test");
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
        let procs_files: Vec<String> = self
            .tops
            .iter()
            .map(|top| format!("echo 0 >{}/{name}/cgroup.procs", top.display()))
            .collect();
        let script = format!("{}; {script}", procs_files.join("; "));
        let program = Program::start(&["sh", "-c", &script]);
        let inside = |top: &PathBuf| {
            let text = fs::read_to_string(top.join(name).join("cgroup.procs")).unwrap();
            text.lines().any(|line| line == program.pid().to_string())
        };
        eventually("it is in its cgroups", || self.tops.iter().all(inside));
        program
    }

    fn limit(&self) -> String {
        let path = self.tops[0].join("hog/memory.limit_in_bytes");
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    fn frozen(&self) -> bool {
        let path = self.tops[1].join("hog/cgroup.freeze");
        fs::read_to_string(path).unwrap().trim() == "1"
    }

    /// Ends whoever is in one of the cgroups, and removes it.
    fn end(&self, name: &str) {
        for dir in self.tops.iter().map(|top| top.join(name)) {
            for _ in 0..500 {
                let left = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                for pid in left.lines() {
                    if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
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

    fn make(&self, name: &str) {
        for top in &self.tops {
            fs::create_dir(top.join(name)).unwrap();
        }
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        for name in ["app", "hog", ""] {
            self.end(name);
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

#[test]
fn a_process_that_takes_a_critical_groups_cache_is_frozen() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (own, others) = (file(&machine, "own", 80), file(&machine, "others", 400));
    let Some(nest) = Nest::new(&machine) else {
        return;
    };
    // Frames that read 80 MiB, and somebody who reads 400 MiB again and again: both do not fit
    // into 96.
    let app = nest.start(
        "app",
        &format!("while :; do cat {own} >/dev/null; sleep 0.02; done"),
    );
    let hogging = format!("while :; do cat {others} >/dev/null; done");
    let mut hog = nest.start("hog", &hogging);
    machine.remember();
    let before = adjustment(app.pid());
    let policy = freezing(&machine);
    let record = machine.path("record");
    let mut command = quell();
    command.args(["run", &policy, "--out"]).arg(&record);
    let mut run = Running::start(&mut command);
    eventually("the hog is frozen", || {
        assert!(run.alive(), "it goes on: {:?}", fs::read_to_string(&policy));
        nest.frozen()
    });
    // Without CAP_SYS_RESOURCE the plan says that it cannot be.
    let immune = match oom::may_be_immune() {
        Ok(()) => "-1000".to_owned(),
        Err(_) => before.clone(),
    };
    assert_eq!(adjustment(app.pid()), immune);
    eventually("it goes on by itself", || !nest.frozen());
    let [resident, locked] = ["VmRSS", "VmLck"].map(|key| in_status(run.pid(), key));
    println!(
        "{} KiB resident, {} KiB of addresses locked",
        resident >> 10,
        locked >> 10
    );
    assert!(resident <= MOST, "{resident}");
    assert_eq!(locked > 0, resident::may_lock().is_ok(), "{locked}");
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code, 0);
    assert!(!nest.frozen());
    assert_eq!(adjustment(app.pid()), before);
    machine.unchanged("after the end");
    // Each record has a folder of its own in there.
    let folder = fs::read_dir(&record).unwrap().next().unwrap().unwrap();
    let told = fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    for act in ["\"act\":\"freeze\"", "\"act\":\"thaw\""] {
        assert!(told.contains(act), "{act}: {told}");
    }
    // Killed while it is frozen, or limited: the watchdog lets it go on, and nothing else is left
    // behind.
    let text = fs::read_to_string(&policy).unwrap();
    let limiting = text
        .replace("[\"freeze\"]", "[\"limit-memory\", \"kill\"]")
        .replace("[pressure]", "[pressure]\nsysctls = true");
    let limiting = machine.file("limiting.toml", &limiting);
    let (unlimited, settings) = (nest.limit(), settings());
    for n in 0..quell_testing::kills() {
        let file = if n % 2 == 0 { &policy } else { &limiting };
        let mut run = Running::start(quell().args(["run", file]));
        eventually("the hog is frozen or limited", || {
            assert!(run.alive(), "kill {n}: it ended by itself");
            // Who was killed, as the second policy allows, begins anew.
            if hog.0.try_wait().unwrap().is_some() {
                hog = nest.start("hog", &hogging);
            }
            nest.frozen() || nest.limit() != unlimited
        });
        run.signal(Signal::KILL);
        machine.undone();
        assert!(!nest.frozen(), "kill {n}");
        assert_eq!(nest.limit(), unlimited, "kill {n}");
        assert_eq!(self::settings(), settings, "kill {n}");
        assert_eq!(adjustment(app.pid()), before, "kill {n}");
        drop(run);
    }
    machine.unchanged("after the kills");
}

#[test]
fn who_goes_and_comes_again_while_watched_is_watched_again() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (own, others) = (file(&machine, "own", 80), file(&machine, "others", 400));
    let Some(nest) = Nest::new(&machine) else {
        return;
    };
    let app = format!("while :; do cat {own} >/dev/null; sleep 0.02; done");
    let hog = format!("while :; do cat {others} >/dev/null; done");
    let _app = nest.start("app", &app);
    let first = nest.start("hog", &hog);
    machine.remember();
    let mut run = Running::start(quell().args(["run", &freezing(&machine)]));
    eventually("the hog is frozen", || nest.frozen());
    // Frozen as it is.
    nest.end("hog");
    drop(first);
    std::thread::sleep(Duration::from_secs(2));
    assert!(run.alive(), "it goes on without a neighbour");
    nest.make("hog");
    let _second = nest.start("hog", &hog);
    eventually("the next one is frozen, too", || {
        assert!(run.alive());
        nest.frozen()
    });
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!nest.frozen());
}

/// The groups' own cgroups are on v1 only, as a person makes them there.
#[test]
fn cgroups_on_v1_alone_are_watched_and_frozen() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (own, others) = (file(&machine, "own", 80), file(&machine, "others", 400));
    let Some(mut nest) = Nest::new(&machine) else {
        return;
    };
    let tops = nest.tops.split_off(1);
    let made = tops[0].with_file_name("quell.slice/hog/cgroup.freeze");
    drop(Nest { tops });
    let app = format!("while :; do cat {own} >/dev/null; sleep 0.02; done");
    let _app = nest.start("app", &app);
    let _hog = nest.start("hog", &format!("while :; do cat {others} >/dev/null; done"));
    machine.remember();
    let run = Running::start(quell().args(["run", &freezing(&machine)]));
    eventually("the hog is frozen", || {
        fs::read_to_string(&made).is_ok_and(|text| text.trim() == "1")
    });
    run.signal(Signal::TERM);
    let done = run.wait();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.err.contains("too late"), "{done:?}");
}

#[test]
fn no_task_is_moved_out_of_a_limit_of_memory() {
    let Some(mut machine) = machine() else {
        return;
    };
    let Some(nest) = Nest::new(&machine) else {
        return;
    };
    let hog = nest.start("hog", "sleep 1000");
    machine.remember();
    let policy = machine.file(
        "policy.toml",
        &format!(
            "quell = 1\n[group.hog]\nrole = \"best-effort\"\nmatch = [{{ pid = {} }}]\n\
             allow = [\"limit-memory\", \"kill\"]\nlimit.memory = \"64MiB\"\n",
            hog.pid()
        ),
    );
    let run = Running::start(quell().args(["run", &policy]));
    run.wait().fails(
        1,
        &[
            "would leave /nest-of-a-test and its memory limit of 96MiB",
            "match = [{ cgroup = \"/nest-of-a-test/NAME\" }]",
        ],
    );
    let procs = fs::read_to_string(nest.tops[0].join("hog/cgroup.procs")).unwrap();
    assert!(procs.contains(&hog.pid().to_string()), "{procs}");
    machine.unchanged("after the refusal");
}

/// A policy that freezes the hog.
fn freezing(machine: &Machine) -> String {
    machine.file(
        "policy.toml",
        "quell = 1\n\
         [group.app]\nrole = \"critical\"\ncpus = \"any\"\nmatch = [{ cgroup = \"/nest-of-a-test/app\" }]\n\
         [group.hog]\nrole = \"best-effort\"\ncpus = \"any\"\nmatch = [{ cgroup = \"/nest-of-a-test/hog\" }]\n\
         allow = [\"freeze\"]\n[pressure]\n",
    )
}

/// What `pressure.sysctls` sets.
fn settings() -> Vec<String> {
    [
        "swappiness",
        "dirty_ratio",
        "dirty_background_ratio",
        "overcommit_memory",
    ]
    .map(|name| fs::read_to_string(format!("/proc/sys/vm/{name}")).unwrap())
    .to_vec()
}

/// A process that keeps a file, as a run starts it.
fn keep(file: &str) -> Child {
    let mut command = quell();
    command.args(["__keep", file]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_keeper_locks_a_file_until_its_standard_input_ends() {
    let Some(machine) = machine() else {
        return;
    };
    if let Err(why) = resident::may_lock() {
        return quell_testing::skip(why);
    }
    let weights = file(&machine, "weights", 24);
    let mut keeper = keep(&weights);
    let mut said = String::new();
    let mut out = BufReader::new(keeper.stdout.take().unwrap());
    out.read_line(&mut said).unwrap();
    assert_eq!(said, format!("kept {}\n", 24 * MIB));
    let status = fs::read_to_string(format!("/proc/{}/status", keeper.id())).unwrap();
    let locked = status
        .lines()
        .find_map(|l| l.strip_prefix("VmLck:"))
        .unwrap();
    assert_eq!(locked.trim(), format!("{} kB", 24 << 10));
    drop(keeper.stdin.take());
    assert!(keeper.wait().unwrap().success());
    let failed = keep("/no/such/file").wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success());
    assert!(
        why.contains("/no/such/file") && why.contains("No such file"),
        "{why}"
    );
}

#[test]
fn without_immunity_nothing_is_kept_and_the_reason_is_told() {
    let Some(mut machine) = machine() else {
        return;
    };
    if oom::may_be_immune().is_ok() {
        return quell_testing::skip("it is to be had here");
    }
    machine.remember();
    let policy = machine.file(
        "policy.toml",
        "quell = 1\n[group.app]\nrole = \"critical\"\ncpus = \"any\"\ncommand = [\"true\"]\nreserve.files = [\"/etc/hostname\"]\n",
    );
    crate::common::run(&["run", &policy]).fails(
        2,
        &[
            "policy.toml:6",
            "group.app.reserve.files",
            "CAP_SYS_RESOURCE",
        ],
    );
    machine.unchanged("refused");
}
