//! The machine's shape: CPUs, caches, memory nodes, identity, and users of hardware counters.
//!
//! Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu
//! (caches).

use std::collections::BTreeMap;

use quell_plan::inventory::{Cache, CacheKind, Cpu, Identity, Node};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::cpuinfo::Cpuinfo;
use crate::error::{Error, Result};
use crate::root::Files;
use crate::{node_memory, vm};

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
/// Threads of a core: eight are known (Power).
const MOST_SIBLINGS: usize = 128;

/// CPUs, caches and memory nodes of a machine, with its identity.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Kernel, processor model and hypervisor.
    pub identity: Identity,
    /// CPUs that are online and that Quell may use.
    pub cpus: Vec<Cpu>,
    /// Caches that belong to at least one of these CPUs, by level.
    pub caches: Vec<Cache>,
    /// Memory nodes; node 0 alone on a kernel without NUMA.
    pub nodes: Vec<Node>,
}

/// Reads the shape. `allowed` are the CPUs that Quell's own cpuset allows; all other CPUs are left
/// out.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`]; [`Error::Refused`] when no CPU is left.
pub fn read(files: &dyn Files, allowed: Option<&CpuSet>) -> Result<Topology> {
    let online = online(files)?;
    let usable = allowed.map_or_else(|| online.clone(), |a| a.intersection(&online));
    if usable.is_empty() {
        return Err(Error::refused(format!(
            "no CPU is left: {online} are online, none of them may be used by us"
        )));
    }
    let nodes = nodes(files, &online)?;
    let tiers = tiers(files, &online)?;
    let (isolated, tickless) = (isolated(files)?, tickless(files)?);
    let mut cpus = Vec::with_capacity(usable.len());
    for id in usable.iter() {
        let topology = format!("{CPUS}/cpu{id}/topology");
        let path = format!("{topology}/thread_siblings_list");
        let siblings = files.cpus(&path)?;
        if let Some(list) = siblings.as_ref().filter(|s| s.len() > MOST_SIBLINGS) {
            let wanted = format!("a list of the threads of a core, at most {MOST_SIBLINGS}");
            return Err(Error::malformed(&path, &list.to_string(), wanted));
        }
        let package = files.parsed::<i64>(
            &format!("{topology}/physical_package_id"),
            "a package number",
        )?;
        cpus.push(Cpu {
            id,
            siblings: siblings.unwrap_or_else(|| CpuSet::from_iter([id])),
            // Machines without packages report −1.
            package: package.and_then(|p| u32::try_from(p).ok()).unwrap_or(0),
            node: nodes
                .iter()
                .find(|n| n.cpus.contains(id))
                .map_or(0, |n| n.id),
            tier: tiers
                .iter()
                .position(|t| t.contains(id))
                .unwrap_or(tiers.len())
                .try_into()
                .unwrap_or(u32::MAX),
            isolated: isolated.contains(id),
            tickless: tickless.contains(id),
        });
    }
    Ok(Topology {
        identity: identity(files)?,
        caches: caches(files, &usable)?,
        cpus,
        nodes,
    })
}

/// The CPUs of each kind of core, the fastest first. Empty where all are alike. Arm and RISC-V
/// report capacities (drivers/base/arch_topology.c). Intel's hybrid processors have a counter unit
/// for each kind (arch/x86/events/intel). A CPU of a kind that is not among these is taken to be
/// slower than all others.
fn tiers(files: &dyn Files, online: &CpuSet) -> Result<Vec<CpuSet>> {
    let mut by_capacity: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in online.iter() {
        if let Some(capacity) =
            files.parsed::<u32>(&format!("{CPUS}/cpu{cpu}/cpu_capacity"), "a number")?
        {
            by_capacity.entry(capacity).or_default().insert(cpu);
        }
    }
    if !by_capacity.is_empty() {
        return Ok(by_capacity.into_values().rev().collect());
    }
    let mut kinds = Vec::new();
    for unit in ["cpu_core", "cpu_atom", "cpu_lowpower"] {
        kinds.extend(files.cpus(&format!("/sys/bus/event_source/devices/{unit}/cpus"))?);
    }
    Ok(kinds)
}

/// The CPUs that are online now.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn online(files: &dyn Files) -> Result<CpuSet> {
    let path = format!("{CPUS}/online");
    match files.cpus(&path)? {
        Some(set) if !set.is_empty() => Ok(set),
        _ => Err(Error::refused_with(
            format!("{path} is missing or empty"),
            "mount -t sysfs sysfs /sys",
        )),
    }
}

fn caches(files: &dyn Files, usable: &CpuSet) -> Result<Vec<Cache>> {
    let mut found: Vec<Cache> = Vec::new();
    for cpu in usable.iter() {
        let dir = format!("{CPUS}/cpu{cpu}/cache");
        for index in files.names(&dir)?.iter().filter(|n| n.starts_with("index")) {
            if let Some(cache) = cache(files, &format!("{dir}/{index}"), cpu)?
                && !found.contains(&cache)
            {
                found.push(cache);
            }
        }
    }
    found.sort_by_key(|c| (c.level, c.kind != CacheKind::Data, c.cpus.first()));
    Ok(found)
}

/// The kernel's number of the cache of a level that holds a CPU's data: resctrl's domain.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`]; [`Error::Refused`] where there is none, or it has no
/// number.
pub fn cache_number(files: &dyn Files, cpu: CpuId, level: u32) -> Result<u32> {
    let dir = format!("{CPUS}/cpu{cpu}/cache");
    for index in files.names(&dir)?.iter().filter(|n| n.starts_with("index")) {
        let at = format!("{dir}/{index}");
        let Some(found) = cache(files, &at, cpu)? else {
            continue;
        };
        if found.holds_data_at(level) {
            let number = files.parsed(&format!("{at}/id"), "the number of a cache")?;
            return number.ok_or_else(|| Error::refused(format!("{at}/id is missing")));
        }
    }
    Err(Error::refused(format!(
        "CPU {cpu} has no cache of level {level}"
    )))
}

/// The largest second-level cache of any of these CPUs. `None` where the kernel reports none.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn largest_l2(files: &dyn Files, cpus: &CpuSet) -> Result<Option<Bytes>> {
    let all = caches(files, cpus)?.into_iter();
    let second = all.filter(|c| c.level == 2 && c.kind != CacheKind::Instruction);
    Ok(second.map(|c| c.size).max())
}

fn cache(files: &dyn Files, dir: &str, cpu: CpuId) -> Result<Option<Cache>> {
    let Some(level) = files.parsed(&format!("{dir}/level"), "a cache level")? else {
        return Ok(None);
    };
    let kind_path = format!("{dir}/type");
    let kind = match files.optional(&kind_path)?.as_deref() {
        Some("Data") => CacheKind::Data,
        Some("Instruction") => CacheKind::Instruction,
        Some("Unified") | None => CacheKind::Unified,
        Some(other) => {
            return Err(Error::malformed(
                &kind_path,
                other,
                "Data, Instruction or Unified",
            ));
        }
    };
    let size_path = format!("{dir}/size");
    let Some(size) = files.optional(&size_path)? else {
        return Ok(None);
    };
    let size = cache_size(&size)
        .ok_or_else(|| Error::malformed(&size_path, &size, "a size such as 48K"))?;
    let count = |name: &str| -> Result<Option<u32>> {
        // 0 ways means fully associative or unknown. Both count as not reported.
        Ok(files
            .parsed::<u32>(&format!("{dir}/{name}"), "a number")?
            .filter(|n| *n > 0))
    };
    Ok(Some(Cache {
        level,
        kind,
        size,
        ways: count("ways_of_associativity")?,
        sets: count("number_of_sets")?,
        line: Bytes(count("coherency_line_size")?.map_or(LINE_BYTES, u64::from)),
        cpus: files
            .cpus(&format!("{dir}/shared_cpu_list"))?
            .unwrap_or_else(|| CpuSet::from_iter([cpu])),
    }))
}

fn cache_size(text: &str) -> Option<Bytes> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let scale = match &text[end..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    text[..end]
        .parse::<u64>()
        .ok()?
        .checked_mul(scale)
        .map(Bytes)
}

fn nodes(files: &dyn Files, online: &CpuSet) -> Result<Vec<Node>> {
    let mut found: Vec<Node> = Vec::new();
    let ids = files.cpus(&format!("{NODES}/online"))?.unwrap_or_default();
    let all: Vec<u32> = ids.iter().collect();
    for id in ids.iter() {
        let dir = format!("{NODES}/node{id}");
        let meminfo = files
            .optional(&format!("{dir}/meminfo"))?
            .unwrap_or_default();
        let path = format!("{dir}/cpulist");
        let cpus = files.cpus(&path)?.unwrap_or_default();
        let near = node_memory::near(files, id, &all)?;
        let near: CpuSet = near.into_iter().filter(|other| *other != id).collect();
        // Parts of one memory have the same CPUs.
        let shares =
            |node: &&Node| !node.near.contains(id) && !node.cpus.intersection(&cpus).is_empty();
        if found.iter().any(|node| shares(&node)) {
            let wanted = "a list of CPUs that are in no other memory node";
            return Err(Error::malformed(&path, &cpus.to_string(), wanted));
        }
        found.push(Node {
            id,
            cpus,
            memory: vm::amount(&meminfo, "MemTotal:").unwrap_or_default(),
            near,
        });
    }
    if found.is_empty() {
        // A kernel without NUMA has no node directory: everything is node 0.
        found.push(Node {
            id: 0,
            cpus: online.clone(),
            memory: Bytes(0),
            near: CpuSet::new(),
        });
    }
    // A node's file may lack memory that was added since the boot.
    if let [one] = found.as_mut_slice() {
        let meminfo = files.optional(vm::MEMINFO)?.unwrap_or_default();
        one.memory = vm::amount(&meminfo, "MemTotal:").unwrap_or(one.memory);
    }
    Ok(found)
}

fn identity(files: &dyn Files) -> Result<Identity> {
    let cpuinfo = Cpuinfo::read(files)?;
    // x86 names; Arm prints implementer and part numbers instead; RISC-V `uarch`.
    let first = |names: &[&str]| {
        let mut found = names.iter().filter_map(|name| cpuinfo.first(name));
        found.next().map(str::to_owned)
    };
    Ok(Identity {
        kernel: files
            .optional("/proc/sys/kernel/osrelease")?
            .unwrap_or_default(),
        // A file since 6.1, so that a captured machine keeps its own.
        architecture: files.optional("/proc/sys/kernel/arch")?.unwrap_or_else(|| {
            rustix::system::uname()
                .machine()
                .to_string_lossy()
                .into_owned()
        }),
        vendor: first(&["vendor_id", "CPU implementer", "mvendorid"]).unwrap_or_default(),
        model: model(first(&["model name", "uarch"]), &cpuinfo),
        microcode: first(&["microcode"]),
        hypervisor: hypervisor(files, cpuinfo.is_guest())?,
        lab: files
            .optional(LAB)?
            .and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// File in which a machine of the lab describes how it was booted.
const LAB: &str = "/lab/guest.json";

/// The processor's name. Some vendors' kernels for Arm print one name for all processors. Then a
/// known part number says more.
fn model(name: Option<String>, cpuinfo: &Cpuinfo) -> String {
    let cores = arm_cores(cpuinfo);
    match name {
        Some(name)
            if !name.starts_with("ARMv8 Processor")
                || cores.is_empty()
                || cores.starts_with("0x") =>
        {
            name
        }
        _ => cores,
    }
}

/// Part numbers of Arm's own cores (MIDR_EL1; arch/arm64/include/asm/cputype.h).
const ARM_PARTS: [(&str, &str); 25] = [
    ("0xd03", "Cortex-A53"),
    ("0xd04", "Cortex-A35"),
    ("0xd05", "Cortex-A55"),
    ("0xd07", "Cortex-A57"),
    ("0xd08", "Cortex-A72"),
    ("0xd09", "Cortex-A73"),
    ("0xd0a", "Cortex-A75"),
    ("0xd0b", "Cortex-A76"),
    ("0xd0c", "Neoverse-N1"),
    ("0xd0d", "Cortex-A77"),
    ("0xd40", "Neoverse-V1"),
    ("0xd41", "Cortex-A78"),
    ("0xd42", "Cortex-A78AE"),
    ("0xd44", "Cortex-X1"),
    ("0xd46", "Cortex-A510"),
    ("0xd47", "Cortex-A710"),
    ("0xd48", "Cortex-X2"),
    ("0xd49", "Neoverse-N2"),
    ("0xd4d", "Cortex-A715"),
    ("0xd4e", "Cortex-X3"),
    ("0xd4f", "Neoverse-V2"),
    ("0xd80", "Cortex-A520"),
    ("0xd81", "Cortex-A720"),
    ("0xd84", "Neoverse-V3"),
    ("0xd8e", "Neoverse-N3"),
];

/// The kinds of core by the part numbers that `/proc/cpuinfo` prints on Arm, in the order of the
/// CPUs.
fn arm_cores(cpuinfo: &Cpuinfo) -> String {
    let by_arm = cpuinfo.values("CPU implementer").any(|by| by == "0x41");
    let mut kinds: Vec<&str> = Vec::new();
    for part in cpuinfo.values("CPU part") {
        let name = ARM_PARTS
            .iter()
            .find(|(number, _)| by_arm && *number == part)
            .map_or(part, |(_, name)| name);
        if !kinds.contains(&name) {
            kinds.push(name);
        }
    }
    kinds.join(" + ")
}

/// Clock sources that only a hypervisor's guests have (drivers in arch/x86/kernel/kvmclock.c,
/// arch/x86/xen/time.c, drivers/clocksource/hyperv_timer.c).
const GUEST_CLOCKS: [(&str, &str); 3] = [
    ("kvm-clock", "KVM"),
    ("hyperv_clocksource_tsc_page", "Hyper-V"),
    ("xen", "Xen"),
];

/// The hypervisor. `None` on hardware. Xen's own file comes first. Then comes the firmware's
/// vendor, where the processor reports that it is virtual (x86). Arm has no such flag: there the
/// vendor must be one that only makes virtual machines. Last comes the clock source.
fn hypervisor(files: &dyn Files, flagged: bool) -> Result<Option<String>> {
    if let Some(kind) = files.optional("/sys/hypervisor/type")? {
        return Ok(Some(kind));
    }
    // Only root can read it on some machines. The identity must not depend on the user.
    let vendor = files
        .optional("/sys/class/dmi/id/sys_vendor")
        .ok()
        .flatten()
        .unwrap_or_default();
    let clocks = files
        .optional("/sys/devices/system/clocksource/clocksource0/available_clocksource")?
        .unwrap_or_default();
    let by_clock = GUEST_CLOCKS
        .iter()
        .find(|(clock, _)| clocks.split_ascii_whitespace().any(|c| c == *clock))
        .map_or("unknown", |(_, name)| name);
    Ok(match (flagged, vendor.as_str()) {
        (true, "") => Some(by_clock.to_owned()),
        (true, _) | (false, "QEMU") => Some(vendor),
        (false, _) => None,
    })
}

/// Whether a change of a cpuset may widen the affinity of a thread for good. Kernels before 6.2
/// forget what a thread has set for itself. CPUs that were isolated at boot (`isolcpus`) are
/// missing in the affinity that every thread inherits, and no kernel remembers that.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn widens_affinities(files: &dyn Files) -> Result<bool> {
    let release = files.optional("/proc/sys/kernel/osrelease")?;
    let number = release.as_deref().and_then(release_number);
    Ok(number.is_some_and(|n| n < (6, 2)) || !isolated(files)?.is_empty())
}

/// The CPUs that the scheduler does not balance: isolated at boot (`isolcpus`), or by a partition.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn isolated(files: &dyn Files) -> Result<CpuSet> {
    let isolated = files.cpus(&format!("{CPUS}/isolated"))?;
    Ok(isolated.unwrap_or_default())
}

/// The CPUs that the machine can have. Empty where the kernel does not say.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn possible(files: &dyn Files) -> Result<CpuSet> {
    let possible = files.cpus(&format!("{CPUS}/possible"))?;
    Ok(possible.unwrap_or_default())
}

/// The CPUs without a tick of the timer while one thread runs there (`nohz_full`).
fn tickless(files: &dyn Files) -> Result<CpuSet> {
    // "(null)" where there are none, in some kernels.
    let text = files
        .optional(&format!("{CPUS}/nohz_full"))?
        .unwrap_or_default();
    Ok(text.trim().parse().unwrap_or_default())
}

/// Parses a release: `6.18.44-x` → (6, 18).
pub fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Known other users of hardware counters, a sentence each.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn counter_users(files: &dyn Files) -> Result<Vec<String>> {
    let mut users = Vec::new();
    if files
        .parsed::<u32>("/proc/sys/kernel/nmi_watchdog", "0 or 1")?
        .is_some_and(|n| n != 0)
    {
        users.push(
            "the NMI watchdog holds one hardware counter on every CPU (sysctl kernel.nmi_watchdog=0 frees it)".to_owned(),
        );
    }
    Ok(users)
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
