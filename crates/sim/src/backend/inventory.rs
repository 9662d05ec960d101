//! What the simulated machine is and offers: the inventory, from its board.

use std::collections::BTreeMap;

use quell_plan::inventory::{
    Availability, Cache, CacheKind, Cpu, CpusetKind, DemandSource, Identity, Inventory, Lack,
    Means, MemoryMeans, MeterKind, Node, Simulated,
};
use quell_types::address::Colours;
use quell_types::address::gf2::Space;
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{CodeData, Colouring, Mask, Partitions, WayPartition};
use quell_types::units::Bytes;

use crate::access::PAGE_SHIFT;
use crate::board::Board;
use crate::profile::Profile;

/// The names of the counters, as `pmu/event`.
const READ: &str = "sim/lines-read";
const WRITTEN: &str = "sim/lines-written";

/// The inventory of the machine, without measured rates.
pub(crate) fn inventory(board: &Board) -> Inventory {
    let (profile, levels) = (&board.profile, &board.description.levels);
    let cores = levels.first().map_or(0, |(level, _)| level.cache_of.len());
    let count = u32::try_from(cores).unwrap_or(u32::MAX);
    let all: CpuSet = (0..count).collect();
    Inventory {
        identity: Identity {
            kernel: format!("simulated by Quell {}", env!("CARGO_PKG_VERSION")),
            architecture: board.profile.architecture.clone(),
            vendor: "simulated".to_owned(),
            model: board.profile.model.clone(),
            microcode: None,
            hypervisor: None,
            lab: None,
        },
        cpus: (0..count)
            .map(|id| Cpu {
                id,
                siblings: (0..count)
                    .filter(|other| profile.core_of(*other) == profile.core_of(id))
                    .collect(),
                package: 0,
                node: 0,
                tier: 0,
                isolated: false,
                tickless: false,
            })
            .collect(),
        caches: caches(board),
        nodes: vec![Node {
            id: 0,
            cpus: all.clone(),
            memory: Bytes(board.memory()),
            near: CpuSet::new(),
        }],
        mechanisms: mechanisms(profile),
        means: Means {
            cpuset: CpusetKind::V2Partition,
            movable_irqs: 0,
            fixed_irqs: 0,
            workqueue_mask: true,
            meter: meter(profile, &all),
            time_meter: false,
            brake: Ok(()),
            brake_in_place: Ok(()),
            cpu_max: profile.mechanisms.available.contains(&Mechanism::CpuMax),
            registers: Err("a simulated machine has no registers; leave the key out".to_owned()),
            counter_users: Vec::new(),
            memory: MemoryMeans::default(),
            demand: DemandSource::default(),
        },
        partitions: partitions(profile),
        measured: None,
        simulated: Some(Simulated {
            profile: profile.name.clone(),
            parameters: profile.parameters(),
        }),
    }
}

/// What the counters see. For both directions together this is what the profile says; each
/// direction also has a counter of its own.
fn meter(profile: &Profile, all: &CpuSet) -> MeterKind {
    let both = profile.counters.writes;
    let names: &[&str] = if both { &[READ, WRITTEN] } else { &[READ] };
    MeterKind::Hardware {
        events: names.iter().map(|name| (*name).to_owned()).collect(),
        fills_only: if both { CpuSet::new() } else { all.clone() },
        apart: all.clone(),
    }
}

fn caches(board: &Board) -> Vec<Cache> {
    let mut caches = Vec::new();
    for (number, (level, _)) in (1..).zip(&board.description.levels) {
        let geometry = &level.geometry;
        let sets = geometry.sets();
        let kind = if number == 1 {
            CacheKind::Data
        } else {
            CacheKind::Unified
        };
        let most = level.cache_of.iter().max().copied().unwrap_or(0);
        for which in 0..=most {
            caches.push(Cache {
                level: number,
                kind,
                size: Bytes(sets * u64::from(geometry.ways) * geometry.line),
                ways: Some(geometry.ways),
                sets: u32::try_from(sets).ok(),
                line: Bytes(geometry.line),
                cpus: (0u32..)
                    .zip(&level.cache_of)
                    .filter(|(_, cache)| **cache == which)
                    .map(|(cpu, _)| cpu)
                    .collect(),
            });
        }
    }
    caches
}

fn mechanisms(profile: &Profile) -> BTreeMap<Mechanism, Availability> {
    Mechanism::ALL
        .into_iter()
        .map(|mechanism| {
            let has = profile.mechanisms.available.contains(&mechanism);
            (mechanism, availability(profile, mechanism, has))
        })
        .collect()
}

/// How the model implements each mechanism; the profile says whether the machine has it.
fn availability(profile: &Profile, mechanism: Mechanism, has: bool) -> Availability {
    let no = |why: &str| Availability::No {
        why: why.to_owned(),
        lack: Lack::Machine,
        remedy: None,
    };
    let (best, how) = match mechanism {
        Mechanism::Cores => (
            Level::Enforced,
            "the simulated scheduler keeps everybody else off",
        ),
        Mechanism::Bandwidth => (
            Level::Regulated,
            "an interrupt when a counter of lines read from memory, or of lines written back, overflows",
        ),
        Mechanism::Ways => (
            Level::Enforced,
            "masks restrict what a group fills, not what it hits",
        ),
        Mechanism::Sets | Mechanism::Banks => (
            Level::Enforced,
            "the page allocator gives frames of the group's colours",
        ),
        Mechanism::PseudoLock => (
            Level::Enforced,
            "lines are locked into ways that nobody else fills",
        ),
        Mechanism::Mba => (
            Level::Estimated,
            "the hardware spaces a core's requests to memory",
        ),
        Mechanism::CpuMax => (
            Level::Enforced,
            "the simulated scheduler stops a group that has used its time",
        ),
        Mechanism::Windows => (
            Level::Regulated,
            "the simulated scheduler lets one group at a time run, by the clock",
        ),
        Mechanism::Placement => {
            return no("schedules are too long for the detailed machine; use --on coarse");
        }
        _ => {
            return Availability::No {
                why: "not yet built".to_owned(),
                lack: Lack::NotBuilt,
                remedy: None,
            };
        }
    };
    if !has {
        return no(&format!("the profile {} does not have it", profile.name));
    }
    Availability::Yes {
        best,
        how: how.to_owned(),
    }
}

/// How its caches, banks and controllers can be divided.
fn partitions(profile: &Profile) -> Partitions {
    let m = &profile.mechanisms;
    let has = |mechanism| m.available.contains(&mechanism);
    let ways: Vec<WayPartition> = m
        .ways
        .iter()
        .map(|ways| WayPartition {
            level: profile.level_of(&ways.cache),
            bits: ways.segments,
            least: ways.least,
            classes: ways.classes,
            sparse: ways.sparse,
            shareable: Mask::default(),
            code_data: CodeData::Never,
        })
        .collect();
    let large = profile.tlb.large_page.0.trailing_zeros();
    let colouring = |colours: &Colours| {
        (colours.bits() > 0).then(|| {
            let functions = colours.functions().iter().copied();
            Colouring::of_pages(functions, Colours::new(colours.functions(), large).bits())
        })
    };
    let last = profile.cache.len().saturating_sub(1);
    let (sets, banks) = (
        profile.set_colours(last, PAGE_SHIFT),
        profile.bank_colours(PAGE_SHIFT),
    );
    let both = has(Mechanism::Sets) && has(Mechanism::Banks);
    let span = |colours: &Colours| Space::spanned(colours.functions().iter().copied());
    let shared = span(&sets).intersection(&span(&banks));
    Partitions {
        hoarded: false,
        lock: has(Mechanism::PseudoLock)
            .then(|| ways.first().map(|ways| ways.level))
            .flatten(),
        ways,
        sets: has(Mechanism::Sets)
            .then(|| colouring(&profile.sparing_set_colours(PAGE_SHIFT)))
            .flatten(),
        banks: has(Mechanism::Banks).then(|| colouring(&banks)).flatten(),
        joint: both
            .then(|| colouring(&Colours::new(shared.rows(), PAGE_SHIFT)))
            .flatten(),
        mba: m.mba.clone(),
        exclusions: m.exclusion.clone(),
        address_map: None,
    }
}
