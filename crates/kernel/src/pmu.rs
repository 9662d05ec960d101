//! Which hardware events count lines that cross to memory, per PMU, and whether they count here.
//!
//! Sources:
//! - Intel SDM volume 3B, chapter "Performance-Monitoring Events" (architectural event `LLC
//!   Misses`, 2EH/41H) and the core events `L2_LINES_IN.ALL` / `L2_LINES_OUT.NON_SILENT`
//! - AMD PPR for family 17h-1Ah (`ls_any_fills_from_sys`, PMCx044)
//! - Arm ARM, PMUv3 (`L2D_CACHE_REFILL` 17H, `L2D_CACHE_WB` 18H)
//!
//! Hybrid processors have one PMU per kind of core, each with its own CPUs and table. None of these
//! events is trusted. An event is used only after it has been seen to count. Once the machine has
//! been measured, it must also count known traffic right ([`check`]).

use std::collections::BTreeMap;

use quell_plan::deep::CounterCheck;
use quell_types::cpuset::{CpuId, CpuSet};

use crate::error::Result;
use crate::perf::{Event, EventCode, SW_MINOR_FAULTS, Scope, TYPE_SOFTWARE, Wake};
use crate::root::Files;
use crate::rt;

/// The most events that a meter may have: those that a brake polls.
pub const MOST_EVENTS: usize = 2;

const DEVICES: &str = "/sys/bus/event_source/devices";

/// An event of a PMU, from one of the tables below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name in the vendor's manual.
    pub name: &'static str,
    /// `config` of the event, for its PMU.
    pub config: u64,
    /// Whether it counts lines written to memory. Otherwise it counts lines read.
    pub write: bool,
}

/// What to count on one kind of core: alternatives, best first. The events of one alternative are
/// summed.
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

/// Intel big cores: lines into and out of L2 (prefetch included), else the architectural event.
const INTEL: Table = &[
    &[
        read("L2_LINES_IN.ALL", 0x1f25),
        write("L2_LINES_OUT.NON_SILENT", 0x0226),
    ],
    &[read("LONGEST_LAT_CACHE.MISS", 0x412e)],
];
/// Intel small cores and all other Intel PMUs.
const INTEL_ATOM: Table = &[&[read("LONGEST_LAT_CACHE.MISS", 0x412e)]];
/// AMD: fills from any memory. Only the uncore counts what is written back.
const AMD: Table = &[
    &[read("ls_any_fills_from_sys.dram_io_all", 0x4844)],
    &[read("cache-misses", 0x0964)],
];
/// Arm: refills and write-backs of L2, else read misses of the last level.
const ARM: Table = &[
    &[read("L2D_CACHE_REFILL", 0x17), write("L2D_CACHE_WB", 0x18)],
    &[read("LL_CACHE_MISS_RD", 0x37)],
];

/// One PMU of the processor's cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Its name under `/sys/bus/event_source/devices`.
    pub name: String,
    /// Its type number, for `perf_event_attr`.
    pub kind: u32,
    /// The CPUs that have it. `None` where all have it.
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
    /// An event's full name, `pmu/event`.
    #[must_use]
    pub fn event(&self, event: &Named) -> String {
        format!("{}/{}", self.name, event.name)
    }
}

/// Events of one PMU that were seen to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// The PMU of all these events.
    pub pmu: Pmu,
    /// The events to sum; at most [`MOST_EVENTS`].
    pub events: Vec<Named>,
}

impl Counting {
    /// The codes to open, reads before writes.
    #[must_use]
    pub fn codes(&self) -> Vec<EventCode> {
        let [mut codes, writes] = self.codes_by_direction();
        codes.extend(writes);
        codes
    }

    /// The codes of lines that come in, and those of lines written back.
    #[must_use]
    pub fn codes_by_direction(&self) -> [Vec<EventCode>; 2] {
        [false, true].map(|write| {
            let events = self.events.iter().filter(|e| e.write == write);
            let code = |e: &Named| EventCode {
                kind: self.pmu.kind,
                config: e.config,
            };
            events.map(code).collect()
        })
    }

    /// The events' full names, `pmu/event`.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.events.iter().map(|e| self.pmu.event(e)).collect()
    }
}

/// The counting events of every kind of core. `counts` tries an event, and its error says why the
/// event is no good.
///
/// # Errors
/// Why no event counts, for a person.
pub fn counting(
    files: &dyn Files,
    vendor: &str,
    counts: &mut dyn FnMut(&Pmu, &Named) -> std::result::Result<(), String>,
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
        let mut refused = Vec::new();
        let works = alternatives.iter().find(|events| {
            let why = events.iter().find_map(|e| {
                let why = counts(&pmu, e).err()?;
                Some(format!("{} {why}", e.name))
            });
            let works = why.is_none();
            refused.extend(why);
            works
        });
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
                    "no event of {} is fit to meter with: {}",
                    pmu.name,
                    refused.join("; ")
                ));
            }
        }
    }
    Ok(all)
}

/// The counters of a CPU. `None` where no PMU covers it.
#[must_use]
pub fn of_cpu(all: &[Counting], cpu: CpuId) -> Option<&Counting> {
    all.iter()
        .find(|c| c.pmu.cpus.as_ref().is_none_or(|set| set.contains(cpu)))
}

/// The CPUs among `cpus` whose events see no line that is written back.
#[must_use]
pub fn fills_only(all: &[Counting], cpus: &CpuSet) -> CpuSet {
    cpus.iter()
        .filter(|cpu| of_cpu(all, *cpu).is_some_and(|c| c.events.iter().all(|e| !e.write)))
        .collect()
}

/// The CPUs among `cpus` with events for both directions: lines that come in, and lines written
/// back.
#[must_use]
pub fn apart(all: &[Counting], cpus: &CpuSet) -> CpuSet {
    let both = |c: &Counting| c.codes_by_direction().iter().all(|codes| !codes.is_empty());
    cpus.iter()
        .filter(|cpu| of_cpu(all, *cpu).is_some_and(both))
        .collect()
}

/// Whether an event is seen to count, on a CPU that its PMU belongs to.
#[must_use]
pub fn counts(pmu: &Pmu, event: &Named) -> bool {
    let code = EventCode {
        kind: pmu.kind,
        config: event.config,
    };
    let tried = std::thread::scope(|scope| {
        let thread = scope.spawn(|| pin_to_one(pmu.cpus.as_ref()).is_ok() && moves(code));
        thread.join()
    });
    tried.unwrap_or(false)
}

/// Pins the calling thread to the first of these CPUs that it may use. `None`: it may run anywhere.
fn pin_to_one(cpus: Option<&CpuSet>) -> std::io::Result<()> {
    let Some(cpus) = cpus else {
        return Ok(());
    };
    let pinned = cpus.iter().any(|cpu| rt::pin(cpu).is_ok());
    pinned
        .then_some(())
        .ok_or_else(|| std::io::Error::other(format!("none of the CPUs {cpus} may be used")))
}

/// Opens an event on this thread, writes through fresh memory, and checks whether the event counts.
fn moves(code: EventCode) -> bool {
    let Ok(event) = Event::open(code, Scope::ThisThread, Wake::Never) else {
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

/// Makes a pass of traffic on the calling thread and returns how many lines it moved.
pub type Traffic = Box<dyn FnMut() -> u64>;
/// Prepares traffic on the calling thread: a stream that only reads, or one that only writes
/// (`true`).
pub type MakeTraffic<'a> = &'a (dyn Fn(bool) -> std::io::Result<Traffic> + Sync);

/// Number of passes of traffic that an event is checked with.
const PASSES: usize = 5;

/// Checks every event of this machine's tables that counts against known traffic: reads against a
/// stream that reads, writes against one that writes. Empty where no event counts. On each kind of
/// core the first usable CPU is used.
///
/// # Errors
/// When a file makes no sense.
pub fn check(
    files: &dyn Files,
    vendor: &str,
    make: MakeTraffic<'_>,
) -> Result<BTreeMap<String, CounterCheck>> {
    let mut found = BTreeMap::new();
    for pmu in discover(files)? {
        let counting = table(&pmu, vendor)
            .iter()
            .flat_map(|events| events.iter())
            .filter(|e| counts(&pmu, e));
        for event in counting {
            let code = EventCode {
                kind: pmu.kind,
                config: event.config,
            };
            let traffic = if event.write {
                "write stream"
            } else {
                "read stream"
            };
            // An event that could not be checked is not in the list, and is refused for that.
            if let Ok(Some(checked)) =
                beside(code, pmu.cpus.as_ref(), traffic, &|| make(event.write))
            {
                found.insert(pmu.event(event), checked);
            }
        }
    }
    Ok(found)
}

/// The check itself, tried on an event that every kernel has. Its traffic is known without a
/// counter: pages touched for the first time, each of which faults once.
///
/// # Errors
/// When the kernel has no such event, or no memory is available.
pub fn check_on_page_faults() -> Result<Option<CounterCheck>> {
    let code = EventCode {
        kind: TYPE_SOFTWARE,
        config: SW_MINOR_FAULTS,
    };
    beside(code, None, "number of pages touched", &|| {
        Ok(Box::new(touch_pages))
    })
    .map_err(unmade)
}

fn unmade(e: std::io::Error) -> crate::error::Error {
    crate::error::Error::refused(format!(
        "counters could not be checked beside known traffic: {e}"
    ))
}

/// Touches fresh base pages and returns how many.
fn touch_pages() -> u64 {
    const PAGES: usize = 2048;
    let page = rustix::param::page_size();
    let length = PAGES * page;
    // SAFETY: a fresh private mapping, written to page by page within its length, and unmapped
    // before any other code could know it.
    unsafe {
        let flags = rustix::mm::MapFlags::PRIVATE;
        let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let Ok(map) = rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, prot, flags) else {
            return 0;
        };
        // Without base pages there would be one fault per huge page. A kernel without huge pages
        // refuses this, and does not need it.
        let _ = rustix::mm::madvise(map, length, rustix::mm::Advice::LinuxNoHugepage);
        for offset in (0..length).step_by(page) {
            map.cast::<u8>().add(offset).write_volatile(1);
        }
        let _ = rustix::mm::munmap(map, length);
    }
    PAGES as u64
}

/// Counts an event on a thread of its own, which makes the traffic, on one of `cpus` if they are
/// given.
fn beside(
    code: EventCode,
    cpus: Option<&CpuSet>,
    traffic: &str,
    make: &(dyn Fn() -> std::io::Result<Traffic> + Sync),
) -> std::io::Result<Option<CounterCheck>> {
    let rounds = std::thread::scope(|scope| {
        let count = || -> std::io::Result<Vec<(u64, u64)>> {
            pin_to_one(cpus)?;
            let mut pass = make()?;
            let event = Event::open(code, Scope::ThisThread, Wake::Never)?;
            // The first pass warms up.
            pass();
            let mut rounds = Vec::new();
            for _ in 0..PASSES {
                let before = event.read()?;
                let known = pass();
                let after = event.read()?;
                // A counter that was lent to another event meanwhile proves nothing.
                if before.running && after.running {
                    rounds.push((after.value.saturating_sub(before.value), known));
                }
            }
            Ok(rounds)
        };
        let thread = scope.spawn(count);
        thread
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the counting thread died")))
    })?;
    Ok(CounterCheck::of(traffic, &rounds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{SW_MINOR_FAULTS, TYPE_SOFTWARE};

    fn countable() -> bool {
        let event = Event::open(FAULTS, Scope::ThisThread, Wake::Never);
        if let Err(e) = &event {
            let why = "no software event of a thread is to be had here";
            quell_testing::skip(format_args!("{why}: {e}"));
        }
        event.is_ok()
    }

    #[test]
    fn an_event_that_counts_is_seen_to_count_and_a_dead_one_is_not() {
        if !countable() {
            return;
        }
        // Minor faults count 2048 pages of 4 KiB. A dummy event never counts.
        let counts = |kind, config, cpus: Option<&str>| {
            let pmu = Pmu {
                name: "software".to_owned(),
                kind,
                cpus: cpus.map(|c| c.parse().unwrap()),
            };
            counts(&pmu, &read("event", config))
        };
        assert!(counts(TYPE_SOFTWARE, SW_MINOR_FAULTS, None));
        assert!(counts(TYPE_SOFTWARE, SW_MINOR_FAULTS, Some("0-1023")));
        // A CPU that is not there.
        assert!(!counts(TYPE_SOFTWARE, SW_MINOR_FAULTS, Some("1023")));
        assert!(!counts(TYPE_SOFTWARE, 9, None));
        assert!(!counts(u32::MAX, 0, None));
    }

    const FAULTS: EventCode = EventCode {
        kind: TYPE_SOFTWARE,
        config: SW_MINOR_FAULTS,
    };

    #[test]
    fn the_check_tells_a_right_event_from_one_that_is_off() {
        if !countable() {
            return;
        }
        let checked = check_on_page_faults().unwrap().unwrap();
        assert!((0.98..1.1).contains(&checked.factor.p50), "{checked:?}");
        assert_eq!(checked.refusal(), None);
        // The same faults, with twice the traffic claimed: the event misses half.
        let missing = beside(FAULTS, None, "lie", &|| Ok(Box::new(|| 2 * touch_pages())))
            .unwrap()
            .unwrap();
        assert!(
            missing.refusal().unwrap().contains("of a known lie"),
            "{missing:?}"
        );
        // A dummy event counts nothing.
        let dummy = EventCode {
            config: 9,
            ..FAULTS
        };
        let nothing = beside(dummy, None, "page", &|| Ok(Box::new(touch_pages)))
            .unwrap()
            .unwrap();
        assert_eq!(nothing.factor.p50, 0.0);
        assert!(nothing.refusal().is_some());
    }

    #[test]
    fn impossible_traffic_and_an_unknown_event_are_errors() {
        let none = || Err(std::io::Error::other("no memory"));
        assert!(
            beside(FAULTS, None, "page", &none)
                .unwrap_err()
                .to_string()
                .contains("no memory")
        );
        let unknown = EventCode {
            kind: u32::MAX,
            config: 0,
        };
        assert!(beside(unknown, None, "page", &|| Ok(Box::new(|| 1))).is_err());
    }

    #[test]
    fn a_core_with_an_event_of_each_direction_tells_them_apart() {
        let counting = |name: &str, cpus: &str, events: &[Named]| Counting {
            pmu: Pmu {
                name: name.to_owned(),
                kind: 4,
                cpus: Some(cpus.parse().unwrap()),
            },
            events: events.to_vec(),
        };
        let all = [
            counting("cpu_core", "0-3", INTEL[0]),
            counting("cpu_atom", "4-7", INTEL_ATOM[0]),
        ];
        let cpus = "0-1,4".parse().unwrap();
        assert_eq!(apart(&all, &cpus).to_string(), "0-1");
        assert_eq!(fills_only(&all, &cpus).to_string(), "4");
        let config = |codes: &[EventCode]| codes.iter().map(|c| c.config).collect::<Vec<_>>();
        let [reads, writes] = all[0].codes_by_direction();
        assert_eq!(
            (config(&reads), config(&writes)),
            (vec![0x1f25], vec![0x0226])
        );
        assert_eq!(config(&all[0].codes()), [0x1f25, 0x0226]);
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
            assert!((1..=MOST_EVENTS).contains(&events.len()));
        }
    }
}
