//! Which hardware events count lines that cross to memory, per PMU, and whether they count here.
//!
//! Sources: Intel SDM volume 3B, chapter "Performance-Monitoring Events" (architectural event `LLC Misses`, 2EH/41H) and
//! the core events `L2_LINES_IN.ALL` / `L2_LINES_OUT.NON_SILENT`; AMD PPR for family 17h-1Ah (`ls_any_fills_from_sys`,
//! PMCx044); Arm ARM, PMUv3 (`L2D_CACHE_REFILL` 17H, `L2D_CACHE_WB` 18H). Hybrid processors have one PMU per kind of core, each
//! with its own CPUs and table. None of these is trusted: an event is used only after it has been seen to count.

use quell_core::cpuset::{CpuId, CpuSet};

use crate::error::Result;
use crate::perf::{Event, EventCode, Scope, Wake};
use crate::root::Files;

const DEVICES: &str = "/sys/bus/event_source/devices";

/// An event of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name, as the vendor's manual has it.
    pub name: &'static str,
    /// `config`.
    pub config: u64,
    /// Counts writes towards memory; else reads.
    pub write: bool,
}

/// What to count on one kind of core: alternatives, best first; each is counted as a sum.
type Table = &'static [&'static [Named]];

const fn read(name: &'static str, config: u64) -> Named {
    Named {
        name,
        config,
        write: false,
    }
}

const fn write(name: &'static str, config: u64) -> Named {
    Named {
        name,
        config,
        write: true,
    }
}

/// Intel big cores: lines into and out of L2 (prefetch included); else the architectural event.
const INTEL: Table = &[
    &[
        read("L2_LINES_IN.ALL", 0x1f25),
        write("L2_LINES_OUT.NON_SILENT", 0x0226),
    ],
    &[read("LONGEST_LAT_CACHE.MISS", 0x412e)],
];
/// Intel small cores and everything else that calls itself Intel.
const INTEL_ATOM: Table = &[&[read("LONGEST_LAT_CACHE.MISS", 0x412e)]];
/// AMD: fills from any memory; writes are told apart only in the uncore.
const AMD: Table = &[
    &[read("ls_any_fills_from_sys.dram_io_all", 0x4844)],
    &[read("cache-misses", 0x0964)],
];
/// Arm.
const ARM: Table = &[
    &[read("L2D_CACHE_REFILL", 0x17), write("L2D_CACHE_WB", 0x18)],
    &[read("LL_CACHE_MISS_RD", 0x37)],
];

/// One PMU of the processor's cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Its name under `/sys/bus/event_source/devices`.
    pub name: String,
    /// Its type number.
    pub kind: u32,
    /// Its CPUs; `None`: all.
    pub cpus: Option<CpuSet>,
}

/// The PMUs of the cores. Empty where the kernel knows none (most virtual machines).
///
/// # Errors
/// A file that cannot be read or makes no sense.
pub fn discover(files: &dyn Files) -> Result<Vec<Pmu>> {
    let mut found = Vec::new();
    if !files.exists(DEVICES) {
        return Ok(found);
    }
    for name in files.names(DEVICES)? {
        let core = ["cpu", "cpu_core", "cpu_atom"].contains(&name.as_str())
            || name.starts_with("armv8_")
            || name.starts_with("armv9_");
        let dir = format!("{DEVICES}/{name}");
        let kind = if core {
            files.parsed::<u32>(&format!("{dir}/type"), "a number")?
        } else {
            None
        };
        if let Some(kind) = kind {
            found.push(Pmu {
                cpus: files.cpus(&format!("{dir}/cpus"))?,
                name,
                kind,
            });
        }
    }
    Ok(found)
}

fn table(pmu: &Pmu, vendor: &str) -> Table {
    match (pmu.name.as_str(), vendor) {
        ("cpu_atom", _) => INTEL_ATOM,
        ("cpu" | "cpu_core", "GenuineIntel") => INTEL,
        ("cpu", "AuthenticAMD" | "HygonGenuine") => AMD,
        (name, _) if name.starts_with("arm") => ARM,
        _ => &[],
    }
}

impl Pmu {
    /// An event's full name.
    #[must_use]
    pub fn event(&self, event: &Named) -> String {
        format!("{}/{}", self.name, event.name)
    }
}

/// Events of one PMU that were seen to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// The PMU.
    pub pmu: Pmu,
    /// The events, to be summed.
    pub events: Vec<Named>,
}

impl Counting {
    /// The codes to open.
    #[must_use]
    pub fn codes(&self) -> Vec<EventCode> {
        self.events
            .iter()
            .map(|e| EventCode {
                kind: self.pmu.kind,
                config: e.config,
            })
            .collect()
    }

    /// `pmu/event` for each.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.events.iter().map(|e| self.pmu.event(e)).collect()
    }
}

/// What counts on every kind of core, or why nothing does. `counts` tries an event.
///
/// # Errors
/// A reason for a person.
pub fn counting(
    files: &dyn Files,
    vendor: &str,
    counts: &mut dyn FnMut(&Pmu, &Named) -> bool,
) -> std::result::Result<Vec<Counting>, String> {
    let pmus = discover(files).map_err(|e| e.to_string())?;
    if pmus.is_empty() {
        return Err(
            "the kernel knows no counter unit of the CPUs (usual in virtual machines)".to_owned(),
        );
    }
    let mut all = Vec::new();
    for pmu in pmus {
        let alternatives = table(&pmu, vendor);
        let works = alternatives
            .iter()
            .find(|events| events.iter().all(|e| counts(&pmu, e)));
        match works {
            Some(events) => all.push(Counting {
                events: events.to_vec(),
                pmu,
            }),
            None if alternatives.is_empty() => {
                return Err(format!(
                    "no event table for the counters of {} ({vendor})",
                    pmu.name
                ));
            }
            None => {
                return Err(format!(
                    "no event of {} could be opened and seen to count",
                    pmu.name
                ));
            }
        }
    }
    Ok(all)
}

/// The counters of a CPU.
#[must_use]
pub fn of_cpu(all: &[Counting], cpu: CpuId) -> Option<&Counting> {
    all.iter()
        .find(|c| c.pmu.cpus.as_ref().is_none_or(|set| set.contains(cpu)))
}

/// Opens an event on this thread, writes through fresh memory, and sees whether it moves.
pub fn counts(kind: u32, config: u64) -> bool {
    let Ok(event) = Event::open(EventCode { kind, config }, Scope::ThisThread, Wake::Never) else {
        return false;
    };
    let Ok(before) = event.read() else {
        return false;
    };
    // 8 MiB of zeroed pages: at least some of their lines must come from or go to memory.
    let mut memory = vec![0u8; 8 << 20];
    for line in memory.chunks_mut(64) {
        line[0] = 1;
    }
    std::hint::black_box(&memory);
    event
        .read()
        .is_ok_and(|after| after.running && after.value > before.value + 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{SW_MINOR_FAULTS, TYPE_SOFTWARE};

    #[test]
    fn an_event_that_counts_is_seen_to_count_and_a_dead_one_is_not() {
        // Minor faults count 2048 pages of 4 KiB; a dummy event never counts.
        assert!(counts(TYPE_SOFTWARE, SW_MINOR_FAULTS));
        assert!(!counts(TYPE_SOFTWARE, 9));
        assert!(!counts(u32::MAX, 0));
    }

    #[test]
    fn each_kind_of_core_has_its_table() {
        let pmu = |name: &str| Pmu {
            name: name.to_owned(),
            kind: 4,
            cpus: None,
        };
        assert_eq!(table(&pmu("cpu_core"), "GenuineIntel"), INTEL);
        assert_eq!(table(&pmu("cpu_atom"), "GenuineIntel"), INTEL_ATOM);
        assert_eq!(table(&pmu("armv8_cortex_a76"), ""), ARM);
        assert!(table(&pmu("cpu"), "Unknown").is_empty());
        for events in [INTEL, INTEL_ATOM, AMD, ARM].into_iter().flatten() {
            assert!((1..=crate::meter::MOST_EVENTS).contains(&events.len()));
        }
    }
}
