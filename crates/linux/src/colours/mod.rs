//! What the machine's address map offers: colours of DRAM banks and cache sets, and whether memory
//! nodes have one colour each. Without a map nothing is known, and nothing is offered.

pub mod census;
pub mod hoard;
pub mod keeper;
pub mod owners;
pub mod placement;
pub mod settle;
mod settled;
pub mod settler;
mod sieve;
pub mod stored;
mod threads;
mod walk;

use std::collections::BTreeMap;

use quell_kernel::error::Result;
use quell_kernel::node_memory;
use quell_kernel::root::Files;
use quell_plan::inventory::{Availability, Cache, CacheKind, CpusetKind, Lack, Node};
use quell_types::address::gf2::Space;
use quell_types::address::{
    ADDRESS_BITS, BankMap, BitFunctions, Colours, Functions, Ranges, constant, large_shift,
    of_index,
};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{Colouring, KnownMap, MapOrigin, Mask, Partitions};
use quell_types::units::Bytes;
use serde::{Deserialize, Serialize};

/// The address map that a person has stated for a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Declared {
    /// Where the functions come from.
    pub origin: MapOrigin,
    /// Name of the published map, or of the file.
    pub from: String,
    /// Which machine, memory modules and firmware setting it holds for. `None`: not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The functions of the banks.
    pub map: BankMap,
    /// The index of the cache, as published. `None`: that of the last level, from its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sets: Option<BitFunctions>,
}

/// What a machine offers by its address map.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// The map and its colours. `None` without a map.
    pub known: Option<KnownMap>,
    /// Colours of the banks that memory nodes have.
    pub banks: Option<Colouring>,
    /// Colours of the cache sets that memory nodes have.
    pub sets: Option<Colouring>,
    /// Colours that banks and sets have in common, by a hoard. `None` where there are none.
    pub joint: Option<Colouring>,
    /// Whether nodes have all colours, so that a hoard keeps the frames of a group's.
    pub hoarded: bool,
    /// Why no colours are offered, where there is a map.
    why: String,
}

/// What is around the map.
pub struct Around<'a> {
    /// The machine's caches.
    pub caches: &'a [Cache],
    /// Its memory nodes.
    pub nodes: &'a [Node],
    /// The size of its small pages.
    pub page: Bytes,
    /// Whether page frames can be held, and pages be moved into them. The error is the reason.
    pub frames: std::result::Result<(), String>,
}

/// The functions of the last level's index, if it is plain address bits.
fn index(caches: &[Cache]) -> Vec<u64> {
    let data = caches.iter().filter(|c| c.kind != CacheKind::Instruction);
    let last = data.max_by_key(|c| c.level);
    let sets = last.and_then(|c| c.sets.map(|sets| (c.line.0, u64::from(sets))));
    sets.map_or_else(Vec::new, |(line, sets)| of_index(line, sets))
}

/// What a machine offers by this map.
///
/// # Errors
/// Files of the kernel that cannot be read or make no sense.
pub fn offer(files: &dyn Files, declared: Option<&Declared>, around: Around<'_>) -> Result<Offer> {
    let Around {
        caches,
        nodes,
        page,
        frames,
    } = around;
    let Some(declared) = declared else {
        return Ok(Offer::default());
    };
    let memory = node_memory::ranges(files, page.0)?;
    let end = memory.values().map(Ranges::end).max().unwrap_or_default();
    // Address bits above the end of memory are zero throughout.
    let reach = match end {
        0 => (1 << ADDRESS_BITS) - 1,
        end => u64::MAX.checked_shr((end - 1).leading_zeros()).unwrap_or(0),
    };
    let sets = declared.sets.clone().map_or_else(|| index(caches), |s| s.0);
    let banks = declared.map.space(reach);
    let sets = Space::spanned(sets.into_iter().map(|mask| mask & reach));
    let shift = page.0.trailing_zeros();
    let of_pages = |space: &Space| -> Option<Colouring> {
        let colours = Colours::new(space.rows(), shift);
        let large = Colours::new(space.rows(), large_shift(shift)).bits();
        (colours.bits() > 0).then(|| Colouring {
            page,
            ..Colouring::of_pages(colours.functions().iter().copied(), large)
        })
    };
    let joint = Colours::new(banks.rows(), shift).joint(&Colours::new(sets.rows(), shift));
    let known = KnownMap {
        origin: declared.origin,
        from: declared.from.clone(),
        about: declared.about.clone(),
        banks: of_pages(&banks),
        sets: of_pages(&sets),
        shared: joint.shared,
    };
    let mut offer = Offer {
        known: Some(known),
        ..Offer::default()
    };
    match (
        by_nodes(&mut offer, [&banks, &sets], &memory, nodes, page),
        frames,
    ) {
        (Ok(()), _) => {}
        (Err((_, true)), Ok(())) => {
            offer.hoarded = true;
            offer.banks = offer.known.as_ref().and_then(|map| map.banks.clone());
            offer.sets = offer.known.as_ref().and_then(|map| map.sets.clone());
            let of = |kind: &Option<Colouring>| {
                let functions = kind.iter().flat_map(|colours| &colours.functions);
                Space::spanned(functions.map(|mask| mask.0))
            };
            offer.joint = of_pages(&of(&offer.banks).intersection(&of(&offer.sets)));
            offer.why = "pages of this kernel leave no colours of this kind".to_owned();
        }
        (Err((why, true)), Err(no)) => {
            offer.why = format!("{why}, and a hoard cannot be had: {no}")
        }
        (Err((why, false)), _) => offer.why = why,
    }
    Ok(offer)
}

/// Adds colours that whole memory nodes have. The error says why there are none, and whether they
/// have all colours, so that a hoard is the other way.
fn by_nodes(
    offer: &mut Offer,
    [banks, sets]: [&Space; 2],
    memory: &BTreeMap<u32, Ranges>,
    nodes: &[Node],
    page: Bytes,
) -> std::result::Result<(), (String, bool)> {
    if memory.is_empty() {
        let why = "the kernel does not say which addresses its memory has (/proc/zoneinfo)";
        return Err((why.to_owned(), false));
    }
    if memory.len() < 2 {
        let why = "there is one memory node, which has all colours";
        return Err((why.to_owned(), true));
    }
    // Memory of another socket is further away: a program that is moved there becomes slower.
    let apart = |node: &&Node| {
        let other = |id: &&u32| **id != node.id && !node.near.contains(**id);
        memory.contains_key(&node.id) && memory.keys().any(|id| other(&id))
    };
    if let Some(node) = nodes.iter().find(apart) {
        let why = format!(
            "memory nodes could have a colour each, but some are further from node {} than others, and its programs would be slower there",
            node.id
        );
        return Err((why, false));
    }
    offer.banks = coloured_nodes(banks, memory, page);
    // The same nodes cannot be divided twice.
    if offer.banks.is_none() {
        offer.sets = coloured_nodes(sets, memory, page);
    }
    match (&offer.banks, &offer.sets) {
        (None, None) => Err((
            format!("the {} memory nodes have all colours each", memory.len()),
            true,
        )),
        _ => Ok(()),
    }
}

/// The colours of whole nodes: functions that are constant within each node, as many as leave every
/// colour a node. `None` where that leaves one colour.
fn coloured_nodes(space: &Space, memory: &BTreeMap<u32, Ranges>, page: Bytes) -> Option<Colouring> {
    let parts: Vec<Ranges> = memory.values().cloned().collect();
    let mut functions: Vec<u64> = Vec::new();
    let mut found = Vec::new();
    for function in constant(space, &parts).rows() {
        functions.push(*function);
        match nodes_by_colour(&functions, memory) {
            Some(nodes) => found = nodes,
            None => drop(functions.pop()),
        }
    }
    let large = u32::try_from(functions.len()).unwrap_or(u32::MAX);
    (!functions.is_empty()).then(|| Colouring {
        functions: functions.into_iter().map(Mask).collect(),
        large,
        page,
        nodes: found,
    })
}

/// The nodes of each colour. `None` where some colour has none.
fn nodes_by_colour(functions: &[u64], memory: &BTreeMap<u32, Ranges>) -> Option<Vec<CpuSet>> {
    let count = u32::try_from(functions.len()).ok();
    let count = count.and_then(|bits| 1usize.checked_shl(bits))?;
    if count > memory.len() {
        return None;
    }
    let colour = Functions::new(functions.to_vec());
    let mut nodes = vec![CpuSet::new(); count];
    for (node, ranges) in memory {
        let at = usize::try_from(colour.of(ranges.first()?)).ok()?;
        nodes.get_mut(at)?.insert(*node);
    }
    nodes.iter().all(|all| !all.is_empty()).then_some(nodes)
}

impl Offer {
    /// What the machine can be divided by: by these colours, and by all `others`.
    #[must_use]
    pub fn partitions(self, others: Partitions) -> Partitions {
        Partitions {
            sets: self.sets,
            banks: self.banks,
            joint: self.joint,
            hoarded: self.hoarded,
            address_map: self.known,
            ..others
        }
    }

    /// Whether banks or sets can be divided here. `root`: Quell may change the machine.
    #[must_use]
    pub fn availability(
        &self,
        mechanism: Mechanism,
        cpuset: CpusetKind,
        root: bool,
    ) -> Availability {
        let no = |why: String, lack, remedy: Option<&str>| Availability::No {
            why,
            lack,
            remedy: remedy.map(str::to_owned),
        };
        let colours = match mechanism {
            Mechanism::Sets => &self.sets,
            _ => &self.banks,
        };
        match (&self.known, colours) {
            (None, _) => no(
                "no address map of this machine is known, so that nothing is known of the colours of its pages".to_owned(),
                Lack::Machine,
                Some(
                    "declare its map (quell colours map FILE, or the NAME of a published one); or look at what it would do on a simulated machine (--on sim)",
                ),
            ),
            (Some(_), None) if self.why.is_empty() => no(
                "memory nodes have colours of the other kind, and no colours of this one".to_owned(),
                Lack::Machine,
                None,
            ),
            (Some(_), None) => no(self.why.clone(), Lack::Machine, None),
            (Some(_), Some(_)) if !root => no(
                "changing the machine needs root (CAP_SYS_ADMIN), outside of a container".to_owned(),
                Lack::Rights,
                Some("run as root on the host"),
            ),
            (Some(_), Some(colours)) if self.hoarded => Availability::Yes {
                best: Level::Regulated,
                how: format!(
                    "a hoard holds the free page frames of a group's colours, of {}, and its pages are moved into them",
                    colours.count()
                ),
            },
            (Some(_), Some(_)) if cpuset == CpusetKind::AffinityOnly => no(
                "memory nodes have one colour each, but no cpuset controller is mounted that could give them to groups".to_owned(),
                Lack::Machine,
                Some("mount cgroup v2, or cpuset on v1"),
            ),
            (Some(_), Some(colours)) => Availability::Yes {
                best: Level::Enforced,
                how: format!(
                    "memory nodes have one of {} colours each (cpuset.mems)",
                    colours.count()
                ),
            },
        }
    }
}
