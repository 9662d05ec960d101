//! This machine, put together: the Linux backend with the generators, the probe and the measured
//! rates.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quell_engine::calibrate::Unmeasured;
use quell_engine::compare::Progress;
use quell_kernel::procfs;
use quell_kernel::resctrl::Group;
use quell_kernel::root::Kernel;
use quell_kernel::tasks::{Matcher, assign, present};
use quell_linux::backend::{Linux, Tools};
use quell_linux::colours::settler::SettlerCommand;
use quell_linux::resident::KeeperCommand;
use quell_linux::session::WatchdogCommand;
use quell_plan::deep::{AddressMap, CacheSets, Fingerprint, MbaCurve};
use quell_plan::inventory::{Availability, Inventory, Measured};
use quell_policy::lab::Guest;
use quell_policy::workload::{Caches, Workload};
use quell_policy::{Adapt, Policy};
use quell_record::backend::{Backend, Observation, Probe, Seen};
use quell_report::age;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::mechanism::Mechanism;
use quell_types::partition::MbaUnit;
use quell_types::task::TaskMatch;
use quell_types::units::{Bytes, Rate};
use quell_workload::deep::{Class, Clock, Depth, throttled};

use crate::declared;
use crate::exit::{Exit, Result, failed, usage};
use crate::progress::Bar;
use crate::store::{self, Found};

/// Where runs keep their journals.
pub const RUN_ROOT: &str = quell_linux::lock::RUN_ROOT;

/// Keeps what was measured; without it everything goes on.
fn remember(machine: &Inventory) {
    let (Some(path), Some(measured)) = (store::path(), &machine.measured) else {
        return;
    };
    if let Err(e) = store::keep(&path, &fingerprint(machine), measured) {
        eprintln!(
            "quell: note: what was measured could not be stored and will be measured again: {e}"
        );
    }
}

/// Which machine figures that are found now belong to.
pub fn fingerprint(machine: &Inventory) -> Fingerprint {
    let boot = Kernel::new().and_then(|files| procfs::boot_id(&files)).ok();
    machine.fingerprint(boot)
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// The command that serves a generator.
pub fn generator(workload: &Workload, caches: &Caches) -> Vec<String> {
    let json = serde_json::to_string(&workload.resolve(caches)).unwrap_or_default();
    vec!["/proc/self/exe".to_owned(), "__generator".to_owned(), json]
}

fn rates(cpus: &CpuSet, llc: Bytes) -> std::io::Result<Measured> {
    quell_workload::measure::rates(cpus, llc, unix_s())
}

fn watcher(cpu: CpuId) -> Vec<String> {
    let cpu = cpu.to_string();
    ["/proc/self/exe", "bench", "overrun", "--cpu", &cpu]
        .into_iter()
        .chain(["--duration", "1s", "--json"])
        .map(str::to_owned)
        .collect()
}

/// The command that starts the watchdog of a run.
pub fn watchdog() -> WatchdogCommand {
    WatchdogCommand {
        program: "/proc/self/exe".into(),
        arguments: vec!["__watchdog".into()],
    }
}

/// The backend, and the machine as found by the fast probe, with what was measured on it before, as
/// long as it holds.
pub fn linux() -> Result<(Linux, Inventory)> {
    let (backend, machine, notes) = found()?;
    for note in notes {
        eprintln!("quell: note: {note}");
    }
    Ok((backend, machine))
}

/// The machine as a generator sees it. It may be confined to a part of it, for which nothing was
/// measured.
pub fn confined() -> Result<Inventory> {
    Ok(found()?.1)
}

/// The command that starts a settler.
pub fn settler() -> SettlerCommand {
    SettlerCommand {
        program: "/proc/self/exe".into(),
        arguments: vec!["__settle".into()],
    }
}

/// As [`linux`]; and why what is kept of the machine does not hold.
fn found() -> Result<(Linux, Inventory, Vec<String>)> {
    let tools = Tools {
        generator,
        shared_cache: quell_workload::probe::shared_cache,
        rates,
        traffic: quell_workload::measure::known_traffic,
        watchdog: watchdog(),
        keeper: KeeperCommand {
            program: "/proc/self/exe".into(),
            arguments: vec!["__keep".into()],
        },
        hoard: KeeperCommand {
            program: "/proc/self/exe".into(),
            arguments: vec!["__hoard".into()],
        },
        settler: settler(),
    };
    let mut backend = Linux::new(Path::new(RUN_ROOT), tools).map_err(failed)?;
    let machine = backend.inventory(Probe::Fast).map_err(failed)?;
    let mut notes = Vec::new();
    match declared::find(&machine) {
        Ok(Some(map)) => backend.address_map(map),
        Ok(None) => {}
        Err(why) => notes.push(why),
    }
    let found = store::path().map_or(Found::Nothing, |path| {
        store::find(&path, &fingerprint(&machine))
    });
    match found {
        Found::Nothing => {}
        Found::Changed { at_unix_s, why } => notes.push(format!(
            "what was measured {} does not hold here: {}; `quell doctor --deep` measures again",
            age(unix_s(), at_unix_s),
            why.join("; ")
        )),
        Found::Holds(measured) => backend.measured(*measured),
    }
    let machine = backend.inventory(Probe::Fast).map_err(failed)?;
    Ok((backend, machine, notes))
}

/// Takes assumed rates where none were measured: for a plan that is not applied.
pub fn assume(machine: &mut Inventory) {
    if machine.measured.is_none() {
        machine.measured = Some(quell_plan::assumed::rates(machine));
    }
}

/// The processes that options name, by number and by what matches. All of them run, or the first
/// that does not is an error. `option` stands before a number in that error.
pub fn running(
    files: &Kernel,
    option: &str,
    pids: &[u32],
    matching: &[TaskMatch],
) -> Result<Vec<u32>> {
    let mut pids = pids.to_vec();
    for pid in &pids {
        if procfs::stat(files, *pid).map_err(failed)?.is_none() {
            return Err(usage(format!("{option}{pid}: no such process")));
        }
    }
    if matching.is_empty() {
        return Ok(pids);
    }
    let matcher = [Matcher::new(files, "watched", matching).map_err(failed)?];
    present(files, &matcher, &BTreeSet::new()).map_err(failed)?;
    let found = assign(files, &matcher, &BTreeSet::new(), &mut || {}).map_err(failed)?;
    let found: Vec<u32> = found.all().map(|s| s.id.pid).collect();
    if found.is_empty() {
        return Err(usage("--match: no process matches"));
    }
    pids.extend(found);
    Ok(pids)
}

/// Says that another Quell has changed the machine that is being described, or has left changes.
pub fn tell_holder() {
    let root = Path::new(RUN_ROOT);
    if let Some(pid) = quell_linux::lock::Lock::holder(root) {
        eprintln!(
            "quell: note: another Quell (process {pid}) is active; its CPUs are counted as free again"
        );
    } else if quell_linux::restore::folders(root).is_ok_and(|left| !left.is_empty()) {
        eprintln!(
            "quell: note: a run that was killed has left changes; its CPUs are counted as free again; `quell restore` reverts them"
        );
    }
}

/// Says how old the figures are that a plan rests on.
pub fn tell_age(machine: &Inventory) {
    if let Some(measured) = &machine.measured {
        eprintln!(
            "quell: note: this machine's rates were measured {}; `quell doctor --deep` measures again",
            age(unix_s(), measured.at_unix_s)
        );
    }
}

/// Measures the rates and the counters, and remembers.
pub fn measure(backend: &mut Linux) -> Result<Inventory> {
    let mut machine = backend.inventory(Probe::Deep).map_err(failed)?;
    match quell_engine::calibrate::stop_cost(backend, &machine, &watcher) {
        Ok(cost) => {
            if let Some(measured) = machine.measured.as_mut() {
                measured.stop_cost = cost;
                backend.measured(measured.clone());
            }
        }
        Err(Unmeasured::Stopped(signal)) => {
            backend.end().map_err(failed)?;
            let mut stopped = failed(format!("stopped by signal {signal} while it measured"));
            stopped.exit = Exit::Status(128 + signal);
            return Err(stopped);
        }
        Err(Unmeasured::Failed(why)) => eprintln!(
            "quell: note: what a stop costs could not be measured, and is taken as 30 us: {why}"
        ),
    }
    if let Some(measured) = machine.measured.as_mut() {
        measured.rest = rest(&BTreeSet::new(), measured.peak_cpu);
        backend.measured(measured.clone());
    }
    remember(&machine);
    Ok(machine)
}

/// Measures again what the tasks of no group draw, for a plan of this policy only: a second, where
/// what the plan promises rests on it. Processes that the policy matches are left out.
pub fn measure_rest(policy: &Policy, machine: &mut Inventory) -> Result<()> {
    let reserves = policy
        .groups
        .values()
        .any(|g| g.reserve.bandwidth.is_some());
    let Some(measured) = machine.measured.as_mut() else {
        return Ok(());
    };
    if !reserves && policy.regulator.adapt == Adapt::Off {
        return Ok(());
    }
    let files = Kernel::new().map_err(failed)?;
    let groups = policy.groups.iter();
    let matchers: Vec<Matcher> = groups
        .map(|(name, group)| Matcher::new(&files, name, &group.matching))
        .collect::<quell_kernel::error::Result<_>>()
        .map_err(failed)?;
    let assigned = assign(&files, &matchers, &BTreeSet::new(), &mut || {}).map_err(failed)?;
    let members = assigned.all().map(|stat| stat.id.pid);
    measured.rest = rest(&members.collect(), measured.peak_cpu);
    Ok(())
}

/// What all tasks draw whose processes are not in `members`; if it cannot be measured that is said,
/// and nothing is known.
fn rest(members: &BTreeSet<u32>, peak: Rate) -> Option<Rate> {
    let measured =
        Kernel::new().and_then(|files| quell_linux::rest::measure(&files, members, peak));
    measured.unwrap_or_else(|why| {
        eprintln!("quell: note: what tasks of no group draw could not be measured: {why}");
        None
    })
}

/// Measures everything, and remembers.
pub fn measure_deep(
    backend: &mut Linux,
    depth: &Depth,
    map: Option<AddressMap>,
    sets: Vec<CacheSets>,
) -> Result<Inventory> {
    let span = if depth.quick {
        "some fifteen seconds"
    } else {
        "about a minute"
    };
    eprintln!("quell: measuring this machine ({span} of full memory load)");
    let mut machine = measure(backend)?;
    let curve = curve(backend, &machine, depth);
    // Nothing is held while the rest is measured.
    backend.end().map_err(failed)?;
    let curve = match curve {
        Err(e) if e.kind() == ErrorKind::Interrupted => return Err(failed(e)),
        curve => curve,
    };
    let mut bar = Bar::new();
    let fifo = || quell_kernel::rt::fifo(quell_kernel::rt::WATCHDOG_PRIORITY);
    let mut deep = quell_workload::deep::measure(&machine, depth, &fifo, &mut |what, percent| {
        go_on(backend, &mut bar, what, percent)
    })
    .map_err(failed)?;
    drop(bar);
    match quell_kernel::pmu::check_on_page_faults() {
        Ok(check) => deep.page_faults = check,
        Err(why) => {
            deep.skipped.insert("counters".to_owned(), why.to_string());
        }
    }
    let curve = curve.unwrap_or_else(|why| {
        let block = "bandwidth allocation".to_owned();
        deep.skipped.insert(block, why.to_string());
        None
    });
    (deep.address_map, deep.cache_sets) = (map, sets);
    if let Some(measured) = machine.measured.as_mut() {
        measured.mba = curve;
        measured.deep = Some(Box::new(deep));
        backend.measured(measured.clone());
    }
    remember(&machine);
    Ok(machine)
}

/// What tells how long an access takes here: an emulated processor's time is that of the emulation,
/// but the lab's counts cycles.
fn clock() -> Clock {
    let counts = |guest: &Guest| guest.profile.is_some();
    match crate::guest::guest().is_some_and(counts) {
        true => Clock::Cycles,
        false => Clock::Ticks,
    }
}

/// What timing says of this machine's address map (some seconds).
pub fn address_map(backend: &mut Linux, machine: &Inventory) -> Result<AddressMap> {
    let mut bar = Bar::new();
    let found = quell_workload::deep::address_map(machine, clock(), &mut |what, percent| {
        go_on(backend, &mut bar, what, percent)
    });
    found.map_err(failed)
}

/// What eviction says of the sets of this machine's caches (20 s at most).
pub fn cache_sets(backend: &mut Linux, machine: &Inventory) -> Result<Vec<CacheSets>> {
    let mut bar = Bar::new();
    let found = quell_workload::deep::cache_sets(machine, clock(), &mut |what, percent| {
        go_on(backend, &mut bar, what, percent)
    });
    found.map_err(failed)
}

/// Threads that stream in a class of service of this machine.
struct Throttled<'a> {
    backend: &'a mut Linux,
    bar: Bar,
    group: Option<Group>,
    /// Steps of all that there are.
    done: u32,
    all: u32,
}

impl Class for Throttled<'_> {
    fn enter(&mut self, threads: &BTreeSet<u32>) -> std::io::Result<()> {
        let group = self.backend.class_of_threads(threads);
        self.group = Some(group.map_err(std::io::Error::other)?);
        Ok(())
    }

    fn set(&mut self, percent: u32) -> std::io::Result<()> {
        let of = 100 * self.done / self.all.max(1);
        self.done += 1;
        if !go_on(self.backend, &mut self.bar, "bandwidth allocation", of) {
            return Err(ErrorKind::Interrupted.into());
        }
        let Some(group) = &self.group else {
            return Ok(());
        };
        let set = self.backend.throttle_class(group, percent);
        set.map_err(std::io::Error::other)
    }
}

/// What the percentages of bandwidth allocation come to; `None` where there are none. What it
/// changes is held until the backend's end.
fn curve(
    backend: &mut Linux,
    machine: &Inventory,
    depth: &Depth,
) -> std::io::Result<Option<MbaCurve>> {
    let bounds = machine.partitions.mba.as_ref();
    let percent = bounds.filter(|b| b.unit == MbaUnit::Percent);
    let available = machine.mechanisms.get(&Mechanism::Mba);
    let (Some(bounds), Some(measured), Some(Availability::Yes { .. })) =
        (percent, &machine.measured, available)
    else {
        return Ok(None);
    };
    let cpus = backend.unclaimed().map_err(std::io::Error::other)?;
    let llc = machine.data_caches(cpus.first().unwrap_or_default()).llc;
    let mut class = Throttled {
        backend,
        bar: Bar::new(),
        group: None,
        done: 0,
        all: u32::try_from(depth.throttled.0 * MbaCurve::cells(bounds, &cpus)).unwrap_or(u32::MAX),
    };
    let operation = measured.peak_operation.as_str();
    throttled(bounds, &cpus, llc, operation, depth, &mut class).map(Some)
}

/// Shows how far a measurement is; false once a signal asks to stop.
pub fn go_on(backend: &mut Linux, bar: &mut Bar, what: &str, percent: u32) -> bool {
    bar.cell(what);
    bar.done(percent, 100);
    let mut seen = Observation::new();
    let now = backend.now();
    let waited = backend.wait(now, &mut seen);
    waited.is_ok() && !seen.iter().any(|s| matches!(s, Seen::Stop(_)))
}

/// The machine with latency against size, measured if it has not been yet, or `again` (some
/// seconds, said on stderr). Where it cannot be measured, caches count as large as the kernel
/// reports them.
pub fn with_seen_cache(
    backend: &mut Linux,
    mut machine: Inventory,
    again: bool,
) -> Result<Inventory> {
    let known = machine.cache_steps().is_some() && !again;
    if known || machine.measured.is_none() {
        return Ok(machine);
    }
    eprintln!("quell: measuring how much of this machine's caches is there (some seconds)");
    let mut bar = Bar::new();
    let steps = quell_workload::deep::cache_steps(&machine, &Depth::QUICK, &mut |what, percent| {
        go_on(backend, &mut bar, what, percent)
    });
    drop(bar);
    match steps {
        Ok(steps) => {
            if let Some(measured) = machine.measured.as_mut() {
                measured.cache_steps = Some(steps);
                backend.measured(measured.clone());
            }
            remember(&machine);
        }
        Err(e) if e.kind() == ErrorKind::Interrupted => {
            backend.end().map_err(failed)?;
            return Err(failed(e));
        }
        Err(why) => eprintln!(
            "quell: note: how much of the caches is there could not be measured, and is taken as reported: {why}"
        ),
    }
    Ok(machine)
}

/// The machine, measured if it has not been yet (a few seconds, said on stderr).
pub fn measured() -> Result<(Linux, Inventory)> {
    let (mut backend, machine) = linux()?;
    if machine.measured.is_some() {
        return Ok((backend, machine));
    }
    eprintln!("quell: measuring this machine's memory rates (once, a few seconds)");
    let machine = measure(&mut backend)?;
    Ok((backend, machine))
}

/// Why a list that is sized by the measured last-level cache shows nothing of a shared one.
pub fn unseen(machine: &Inventory) -> Option<String> {
    let seen = machine.seen_llc()?;
    let cpu = machine.cpus.first()?.id;
    let caches = machine.data_caches(cpu);
    (seen <= caches.l2 && caches.l2 < caches.llc).then(|| {
        format!(
            "latency rises beyond {seen}, and the second-level cache has {}: nothing is seen of a \
             shared cache ({} reported)",
            caches.l2, caches.llc
        )
    })
}

/// The files that a program's name may mean, in the order of `PATH`.
pub fn files_of(program: &str) -> Vec<PathBuf> {
    if program.contains('/') {
        return Vec::from_iter(Path::new(program).is_file().then(|| program.into()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).map(|dir| dir.join(program));
    all.filter(|file| file.is_file()).collect()
}
