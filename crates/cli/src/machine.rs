//! This machine, put together: the Linux backend with the generators, the probe and the measured rates.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use quell_core::backend::{Backend, Probe};
use quell_core::cpuset::{CpuId, CpuSet};
use quell_core::inventory::{Identity, Inventory, Measured};
use quell_core::units::Bytes;
use quell_core::workload::Workload;
use quell_linux::backend::{Linux, Tools};
use quell_linux::session::WatchdogCommand;
use quell_report::Style;
use serde::{Deserialize, Serialize};

use crate::exit::{Result, failed};

/// Where runs keep their journals.
pub const RUN_ROOT: &str = quell_linux::lock::RUN_ROOT;

/// What was measured, and on which machine.
#[derive(Debug, Serialize, Deserialize)]
struct Store {
    schema: String,
    identity: Identity,
    cpus: CpuSet,
    measured: Measured,
}

const STORE_SCHEMA: &str = "quell.measured/1";

fn store_path() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("QUELL_STATE_DIR") {
        return Some(PathBuf::from(dir).join("measured.json"));
    }
    if quell_linux::is_root() {
        return Some(PathBuf::from("/var/lib/quell/measured.json"));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    cache.map(|dir| dir.join("quell/measured.json"))
}

/// The stored measurement; whether it is of this machine is seen once the machine is known.
fn stored() -> Option<Store> {
    let text = std::fs::read_to_string(store_path()?).ok()?;
    serde_json::from_str::<Store>(&text)
        .ok()
        .filter(|s| s.schema == STORE_SCHEMA)
}

fn store(machine: &Inventory, measured: &Measured) -> std::io::Result<()> {
    let Some(path) = store_path() else {
        return Ok(());
    };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let store = Store {
        schema: STORE_SCHEMA.to_owned(),
        identity: machine.identity.clone(),
        cpus: machine.cpu_set(),
        measured: measured.clone(),
    };
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_string_pretty(&store)?)?;
    std::fs::rename(&new, &path)
}

/// The command that was called, as a shell takes it.
pub fn command_line() -> String {
    let words: Vec<String> = std::env::args().map(|word| quoted(&word)).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

fn generator(workload: &Workload, llc: Bytes) -> Vec<String> {
    let json = serde_json::to_string(&workload.resolve(llc)).unwrap_or_default();
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

/// The backend, and the machine as found by the fast probe, with what was measured on it before.
pub fn linux() -> Result<(Linux, Inventory)> {
    let tools = Tools {
        generator,
        shared_cache: quell_workload::probe::shared_cache,
        rates,
        watchdog: WatchdogCommand {
            program: "/proc/self/exe".into(),
            arguments: vec!["__watchdog".into()],
        },
    };
    let mut backend = Linux::new(Path::new(RUN_ROOT), tools).map_err(failed)?;
    let machine = backend.inventory(Probe::Fast).map_err(failed)?;
    match stored() {
        Some(store) if store.identity == machine.identity && store.cpus == machine.cpu_set() => {
            backend.measured(store.measured);
            let machine = backend.inventory(Probe::Fast).map_err(failed)?;
            Ok((backend, machine))
        }
        _ => Ok((backend, machine)),
    }
}

/// Measures and remembers.
pub fn measure(backend: &mut Linux) -> Result<Inventory> {
    let mut machine = backend.inventory(Probe::Deep).map_err(failed)?;
    match quell_engine::calibrate::stop_cost(backend, &machine, &watcher) {
        Ok(cost) => {
            if let Some(measured) = machine.measured.as_mut() {
                measured.stop_cost = cost;
                backend.measured(measured.clone());
            }
        }
        Err(why) => eprintln!(
            "quell: note: what a stop costs could not be measured, and is taken as nothing: {why}"
        ),
    }
    if let Some(measured) = &machine.measured
        && let Err(e) = store(&machine, measured)
    {
        eprintln!(
            "quell: note: what was measured could not be stored and will be measured again: {e}"
        );
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

/// How stdout is to be written: coloured on a terminal, unless NO_COLOR says otherwise.
pub fn style() -> Style {
    style_for(std::io::stdout().is_terminal())
}

/// The same for stderr.
pub fn error_style() -> Style {
    style_for(std::io::stderr().is_terminal())
}

fn style_for(terminal: bool) -> Style {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    Style {
        color: terminal && !no_color,
        ..Style::default()
    }
}
