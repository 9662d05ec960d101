//! What this machine offers: each mechanism available or not, why, and what would enable it. Cheap
//! things are tried, not believed: a counter is opened and seen to count. Expensive things were
//! measured before: a counter that counted wrongly then is refused.

use std::collections::BTreeMap;

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::cpuinfo::Cpuinfo;
use quell_kernel::error::Result;
use quell_kernel::pmu::{self, Counting, Named, Pmu};
use quell_kernel::resctrl::offer::Offer;
use quell_kernel::root::Files;
use quell_kernel::{cpuset, fair, irq, paging, psi, resctrl, topology, trace, workqueue};
use quell_plan::inventory::{
    Availability, CpusetKind, Inventory, Lack, Means, Measured, MemoryControl, MemoryMeans,
    MeterKind,
};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{SMALL_PAGE, WayPartition};

use crate::colours::{self, Declared};
use crate::disks;

mod trials;

pub use trials::{Live, Trials, Tried};

/// The machine as found, with the counters that were seen to count.
#[derive(Debug)]
pub struct Probed {
    /// The machine as the planner needs it.
    pub inventory: Inventory,
    /// The events that meters open, per kind of CPU.
    pub counting: Vec<Counting>,
    /// The results of trying, for a capture.
    pub tried: Tried,
}

/// What is known of the machine beforehand.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// The result of an earlier measurement.
    pub measured: Option<Measured>,
    /// The address map that a person has stated.
    pub address_map: Option<Declared>,
    /// The CPUs that this process may use once no run has changed anything. Absent: those that it
    /// may use now.
    pub cpus: Option<CpuSet>,
}

/// Reads and tries what the machine offers.
///
/// # Errors
/// Files that cannot be read or make no sense.
pub fn probe(
    files: &dyn Files,
    trials: &dyn Trials,
    cgroups: &Cgroups,
    before: Before,
) -> Result<Probed> {
    let measured = before.measured;
    let allowed = match before.cpus {
        Some(ref cpus) => Some(cpus.clone()),
        None => cgroups.own_cpus(files)?,
    };
    let shape = topology::read(files, allowed.as_ref())?;
    let cpus: CpuSet = shape.cpus.iter().map(|c| c.id).collect();
    let root = trials.root();
    let mut counters = Vec::new();
    let mut counts = |pmu: &Pmu, event: &Named| {
        if !trials.counts(pmu, event) {
            return Err("was not seen to count".to_owned());
        }
        counters.push(pmu.event(event));
        counts_right(measured.as_ref(), &pmu.event(event))
    };
    let (counting, meter) = match pmu::counting(files, &shape.identity.vendor, &mut counts) {
        Ok(all) => {
            let meter = MeterKind::Hardware {
                events: all.iter().flat_map(Counting::names).collect(),
                fills_only: pmu::fills_only(&all, &cpus),
                apart: pmu::apart(&all, &cpus),
            };
            (all, Ok(meter))
        }
        Err(why) => (Vec::new(), Err(why)),
    };
    let time = time_meter(trials, cgroups);
    let (immunity, lock) = (trials.immunity(), trials.lock());
    let mut divides = None;
    let offer = resctrl::offer::offer(files, || {
        divides = trials.divides(files);
        divides.clone()
    })
    // An error here must not hide the rest of the machine.
    .unwrap_or_else(|e| Err(e.to_string()));
    let registers = trials.registers(files);
    let (page, declared) = (trials.page(), before.address_map.as_ref());
    // Without a map nothing is moved. Without root the reason would be another one.
    let settling = (declared.is_some() && root).then(|| trials.settling());
    let frames = settling
        .clone()
        .unwrap_or(Ok(()))
        .and_then(|()| lock.clone());
    let around = colours::Around {
        caches: &shape.caches,
        nodes: &shape.nodes,
        page,
        frames,
    };
    let colours = colours::offer(files, declared, around)?;
    let tried = Tried {
        immunity_refused: immunity.clone().err(),
        lock_refused: lock.clone().err(),
        root,
        realtime_refused: None,
        cgroup_clock_refused: time.clone().err(),
        divides,
        registers: Some(registers.clone()),
        settling,
        demands: trials.demands(),
        counters,
        page: Some(page).filter(|page| *page != SMALL_PAGE),
    };
    let memory = memory(files, cgroups, root, immunity, lock);
    let meter = meter_kind(meter, &time);
    let means = means(files, cgroups, &tried, meter, &time, registers, memory)?;
    let virtual_machine = shape.identity.hypervisor.is_some();
    let cpuset = means.cpuset;
    let mut mechanisms = mechanisms(files, cgroups, &means, &cpus, root, virtual_machine, &offer);
    for kind in [Mechanism::Sets, Mechanism::Banks] {
        mechanisms.insert(kind, colours.availability(kind, cpuset, root));
    }
    let inventory = Inventory {
        identity: shape.identity,
        cpus: shape.cpus,
        caches: shape.caches,
        nodes: shape.nodes,
        mechanisms,
        means,
        measured,
        partitions: colours.partitions(offer.map(|o| o.partitions).unwrap_or_default()),
        simulated: None,
    };
    Ok(Probed {
        inventory,
        counting,
        tried,
    })
}

/// How the mechanisms would be carried out. `clock`: whether CPU time can be counted.
fn means(
    files: &dyn Files,
    cgroups: &Cgroups,
    tried: &Tried,
    meter: MeterKind,
    clock: &std::result::Result<(), String>,
    registers: std::result::Result<Vec<WayPartition>, String>,
    memory: MemoryMeans,
) -> Result<Means> {
    let ((movable_irqs, fixed_irqs), root) = (irq::count(files)?, tried.root);
    Ok(Means {
        cpuset: cpuset::kind(files, cgroups)?,
        movable_irqs: if root { movable_irqs } else { 0 },
        fixed_irqs: if root {
            fixed_irqs
        } else {
            fixed_irqs + movable_irqs
        },
        workqueue_mask: root && workqueue::mask(files)?.is_some(),
        meter,
        time_meter: clock.is_ok(),
        brake: brake(files, cgroups, clock),
        brake_in_place: brake_in_place(cgroups),
        cpu_max: root && cgroups.of(Controller::Cpu).is_some(),
        registers,
        counter_users: topology::counter_users(files)?,
        memory,
        demand: tried.demand(),
    })
}

/// What meters, from what hardware and the CPU clock of cgroups answered.
fn meter_kind(
    hardware: std::result::Result<MeterKind, String>,
    time: &std::result::Result<(), String>,
) -> MeterKind {
    match (hardware, time) {
        (Ok(meter), _) => meter,
        (Err(_), Ok(())) => MeterKind::Time,
        (Err(hardware), Err(time)) => MeterKind::None {
            why: format!("{hardware}; {time}"),
        },
    }
}

/// Whether an event that counts was found to count right, if that was measured. The error is the
/// reason.
fn counts_right(measured: Option<&Measured>, event: &str) -> std::result::Result<(), String> {
    let Some(measured) = measured else {
        return Ok(());
    };
    let Some(check) = measured.counters.get(event) else {
        return Err("was not checked beside known traffic (`quell doctor --deep` does)".to_owned());
    };
    check.refusal().map_or(Ok(()), Err)
}

/// Whether the CPU time of a cgroup can be counted on one CPU. The error is the reason.
fn time_meter(trials: &dyn Trials, cgroups: &Cgroups) -> std::result::Result<(), String> {
    let hierarchy = cgroups
        .of(Controller::PerfEvent)
        .ok_or("no cgroup hierarchy carries perf_event (mount cgroup2, or perf_event on v1)")?;
    trials.cgroup_clock(&hierarchy.own_dir())
}

/// The first kernel whose cgroups can be idle.
const IDLE_SINCE: (u32, u32) = (5, 15);

/// Whether a group can be stopped without stopping its CPU. The error is the reason.
fn brake(
    files: &dyn Files,
    cgroups: &Cgroups,
    time: &std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let hierarchy = cgroups
        .of(Controller::Cpu)
        .ok_or("no cgroup hierarchy carries the cpu controller")?;
    let release = files.optional("/proc/sys/kernel/osrelease");
    let release = release.ok().flatten().unwrap_or_default();
    // A distribution may have added the file to an older kernel. v2 has no such file in the root
    // cgroup.
    let there = files.exists(&format!("{}/cpu.idle", hierarchy.own_dir()));
    let new = topology::release_number(&release).is_some_and(|r| r >= IDLE_SINCE);
    if !there && !new {
        return Err(format!(
            "cgroups of this kernel cannot be idle (cpu.idle came with Linux {}.{})",
            IDLE_SINCE.0, IDLE_SINCE.1
        ));
    }
    time.clone()
}

/// Whether a group that stays in its own cgroup can be stopped there. The error is the reason.
fn brake_in_place(cgroups: &Cgroups) -> std::result::Result<(), String> {
    match cgroups.of(Controller::Cpu).map(|h| h.version) {
        Some(Version::V2) => Ok(()),
        Some(Version::V1) => Err(
            "a brake there needs threaded children (cgroup v2), and the cpu controller is on cgroup v1"
                .to_owned(),
        ),
        None => Err("no cgroup hierarchy carries the cpu controller".to_owned()),
    }
}

fn yes(best: Level, how: impl Into<String>) -> Availability {
    Availability::Yes {
        best,
        how: how.into(),
    }
}

fn no(why: impl Into<String>, remedy: Option<&str>) -> Availability {
    Availability::No {
        why: why.into(),
        lack: Lack::Machine,
        remedy: remedy.map(str::to_owned),
    }
}

/// Remedy for a machine that has nothing to divide.
const ELSEWHERE: &str = "look at what it would do on a simulated machine (--on sim), or try it under a real kernel in the lab \
    (quell lab --profile icelake)";

fn mechanisms(
    files: &dyn Files,
    cgroups: &Cgroups,
    means: &Means,
    cpus: &CpuSet,
    root: bool,
    virtual_machine: bool,
    offer: &std::result::Result<Offer, String>,
) -> BTreeMap<Mechanism, Availability> {
    let unprivileged = || Availability::No {
        why: "changing the machine needs root (CAP_SYS_ADMIN), outside of a container".to_owned(),
        lack: Lack::Rights,
        remedy: Some("run as root on the host".to_owned()),
    };
    let processor = Cpuinfo::read(files).unwrap_or_default();
    let has = |flag: &str| processor.has(flag);
    let replaced = fair::replaced_by(files);
    let by_another = |scheduler: &String| {
        no(
            format!(
                "the sched_ext scheduler '{scheduler}' schedules ordinary tasks here: it may not heed weights, cpu.max and cpu.idle"
            ),
            Some("end that scheduler, or leave limits out and have CPUs divided alone"),
        )
    };
    Mechanism::ALL
        .into_iter()
        .map(|mechanism| {
            let scheduled = [Mechanism::Bandwidth, Mechanism::CpuMax, Mechanism::Weight];
            if let Some(scheduler) = replaced.as_ref().filter(|_| scheduled.contains(&mechanism)) {
                return (mechanism, by_another(scheduler));
            }
            let found = match mechanism {
                Mechanism::Cores
                | Mechanism::Bandwidth
                | Mechanism::CpuMax
                | Mechanism::Weight
                | Mechanism::Memory
                | Mechanism::Paging
                | Mechanism::Stop
                | Mechanism::IoMax
                | Mechanism::IoLatency
                | Mechanism::IoWeight
                | Mechanism::Windows
                | Mechanism::Placement
                    if !root =>
                {
                    unprivileged()
                }
                Mechanism::Cores => cores(means),
                Mechanism::Bandwidth => bandwidth(means, cpus),
                Mechanism::Weight if means.cpu_max => yes(
                    Level::Enforced,
                    "the kernel shares a CPU by it; unused CPU time goes to any group",
                ),
                Mechanism::CpuMax if means.cpu_max => yes(
                    Level::Enforced,
                    "CPU time per 100 ms; no bound within a period (periods from 1 ms)",
                ),
                Mechanism::CpuMax | Mechanism::Weight => no(
                    "no cgroup hierarchy carries the cpu controller",
                    Some("mount it"),
                ),
                Mechanism::PseudoLock if has("cat_l3") || has("cat_l2") => match offer {
                    Ok(Offer {
                        no_lock: Some(why), ..
                    }) => no(why.clone(), None),
                    Ok(_) if !root => unprivileged(),
                    Ok(offer) if offer.partitions.lock.is_some() => yes(
                        // Linux 7.2 says so, too, and does not do it.
                        Level::Estimated,
                        "the kernel says that it locks memory in ways that nobody else is given (resctrl); whether that stays is tried when it is locked, and not known before",
                    ),
                    Ok(_) => no("resctrl tells of no ways", None),
                    Err(why) => no(why.clone(), None),
                },
                Mechanism::Ways if has("cat_l3") || has("cat_l2") => match offer {
                    Ok(_) if !root => unprivileged(),
                    Ok(offer) if !offer.partitions.ways.is_empty() => {
                        yes(Level::Enforced, offer.how.clone())
                    }
                    Ok(_) => no("resctrl tells of no ways", None),
                    Err(why) => no(why.clone(), None),
                },
                Mechanism::Mba if has("mba") => match offer {
                    Ok(_) if !root => unprivileged(),
                    Ok(offer) if offer.partitions.mba.is_some() => {
                        yes(Level::Estimated, offer.how.clone())
                    }
                    Ok(offer) => {
                        let why = offer.no_mba.as_deref();
                        no(why.unwrap_or("resctrl tells of no bandwidth"), None)
                    }
                    Err(why) => no(why.clone(), None),
                },
                Mechanism::Ways | Mechanism::Mba | Mechanism::PseudoLock if virtual_machine => no(
                    "the processor offers no RDT, or the hypervisor hides it",
                    Some(ELSEWHERE),
                ),
                Mechanism::Ways | Mechanism::Mba | Mechanism::PseudoLock => {
                    no("the processor offers no RDT", Some(ELSEWHERE))
                }
                Mechanism::Memory => memory_control(&means.memory),
                Mechanism::Paging => paged(&means.memory),
                Mechanism::Stop if means.memory.freeze => yes(
                    Level::Regulated,
                    "groups are frozen whole, for a bounded time",
                ),
                Mechanism::Stop => yes(
                    Level::Regulated,
                    "no cgroup here can be frozen; the controllers latd and cgroup stop processes one by one",
                ),
                Mechanism::IoMax | Mechanism::IoLatency | Mechanism::IoWeight => {
                    disks::offered(files, cgroups, mechanism)
                }
                Mechanism::Windows => dispatched(
                    files,
                    means,
                    Level::Regulated,
                    "a real-time dispatcher freezes and thaws groups by the clock",
                ),
                Mechanism::Placement => dispatched(
                    files,
                    means,
                    Level::Estimated,
                    "processes take turns by declared rates: a real-time dispatcher freezes those that wait",
                ),
                // What the address map offers replaces it.
                Mechanism::Sets | Mechanism::Banks => no("no address map is known", None),
            };
            (mechanism, found)
        })
        .collect()
}

/// Whether cgroups can be frozen and thawed in time, by a real-time process.
fn dispatched(files: &dyn Files, means: &Means, best: Level, how: &str) -> Availability {
    if !means.memory.freeze {
        return no(
            "no cgroup here can be frozen",
            Some("mount cgroup2, or the freezer controller of cgroup v1"),
        );
    }
    let runtime = files.optional("/proc/sys/kernel/sched_rt_runtime_us");
    if runtime.is_ok_and(|text| text.is_some_and(|text| text.trim() == "0")) {
        return no(
            "real-time threads get no CPU time here",
            Some("sysctl kernel.sched_rt_runtime_us=950000"),
        );
    }
    yes(best, how)
}

/// What can be done about memory here.
fn memory(
    files: &dyn Files,
    cgroups: &Cgroups,
    root: bool,
    immunity: std::result::Result<(), String>,
    lock: std::result::Result<(), String>,
) -> MemoryMeans {
    let control = match cgroups.of(Controller::Memory).map(|h| h.version) {
        Some(Version::V2) if root => MemoryControl::V2,
        Some(Version::V1) if root => MemoryControl::V1,
        _ => MemoryControl::None,
    };
    let pressure = match psi::is_reported(files) {
        true => Ok(()),
        false => Err(
            "this kernel has no pressure stall information, or it is off (psi=1 on its command line turns it on)".to_owned(),
        ),
    };
    let v2 = cgroups.v2();
    let below = |name: &str| v2.is_some_and(|h| files.exists(&format!("{}/{name}", h.mount)));
    MemoryMeans {
        group_pressure: pressure.is_ok() && below("memory.pressure"),
        // The root of v2 has no freezer. Every cgroup below it does, since Linux 5.2.
        freeze: root && (v2.is_some() || cgroups.of(Controller::Freezer).is_some()),
        reclaim: control == MemoryControl::V2 && below("memory.reclaim"),
        control,
        pressure,
        immunity,
        lock,
        hold: hold(files),
        large_pages: paging::large_pages(files),
    }
}

/// Whether a program can be made to lock its memory. The error is the reason.
fn hold(files: &dyn Files) -> std::result::Result<(), String> {
    /// Nobody may trace, not even root.
    const NEVER: u32 = 3;
    if !trace::is_built() {
        return Err("it is built for x86-64 only".to_owned());
    }
    let yama = files.parsed::<u32>("/proc/sys/kernel/yama/ptrace_scope", "0 to 3");
    match yama.map_err(|e| e.to_string())? {
        Some(NEVER) => Err("Yama lets no process trace another (kernel.yama.ptrace_scope is 3 until the next boot)".to_owned()),
        _ => Ok(()),
    }
}

fn paged(means: &MemoryMeans) -> Availability {
    let locked = match &means.hold {
        Ok(()) => "programs are made to lock their memory".to_owned(),
        Err(why) => format!("no memory is locked: {why}"),
    };
    let pages = match &means.large_pages {
        Ok(size) => format!("memory is moved into pages of {size}"),
        Err(why) => format!("there are no large pages: {why}"),
    };
    yes(Level::Regulated, format!("{locked}; {pages}"))
}

fn memory_control(means: &MemoryMeans) -> Availability {
    let reported = match (&means.pressure, means.group_pressure) {
        (Err(_), _) => "the kernel reports no pressure",
        (Ok(()), true) => "the kernel reports the pressure of every group",
        (Ok(()), false) => "the kernel reports the pressure of the machine only",
    };
    let limits = match (&means.control, &means.immunity) {
        (MemoryControl::V2, Ok(())) => "cgroup v2: memory.min, memory.high",
        (MemoryControl::V2, Err(_)) => "cgroup v2: limits, no protection",
        (MemoryControl::V1, _) => "cgroup v1: limits that kill, no protection",
        (MemoryControl::None, _) => "no cgroup hierarchy carries the memory controller",
    };
    let kept = match (&means.immunity, &means.lock) {
        (Ok(()), Ok(())) => "files are locked".to_owned(),
        (Err(why), _) => format!("nothing is kept, as {why}"),
        (Ok(()), Err(why)) => format!("files are not locked, as {why}"),
    };
    yes(Level::Enforced, format!("{limits}; {kept}; {reported}"))
}

fn cores(means: &Means) -> Availability {
    match means.cpuset {
        CpusetKind::V2Partition => yes(Level::Enforced, "cgroup v2 cpuset partition"),
        CpusetKind::V2 => yes(
            Level::Enforced,
            "cgroup v2 cpuset, all other cpusets narrowed",
        ),
        CpusetKind::V1 => yes(
            Level::Enforced,
            "cgroup v1 cpuset, all other cpusets narrowed",
        ),
        CpusetKind::AffinityOnly => yes(
            Level::Estimated,
            "affinity, thread by thread: no cpuset controller is mounted",
        ),
    }
}

fn bandwidth(means: &Means, cpus: &CpuSet) -> Availability {
    match (&means.brake, &means.meter) {
        (Err(why), _) => no(format!("{why}; limits fall back to cpu-max"), None),
        (_, MeterKind::None { why }) => no(format!("{why}; limits fall back to cpu-max"), None),
        (
            Ok(()),
            MeterKind::Hardware {
                events, fills_only, ..
            },
        ) => {
            let how = format!("brakes on {}", events.join(" + "));
            if fills_only.is_empty() {
                yes(Level::Regulated, how)
            } else if cpus.is_subset(fills_only) {
                yes(
                    Level::Estimated,
                    format!("{how}, which count no lines written back"),
                )
            } else {
                yes(
                    Level::Regulated,
                    format!(
                        "{how}; estimated on CPUs {fills_only}, where lines written back are not counted"
                    ),
                )
            }
        }
        (Ok(()), MeterKind::Time) => yes(
            Level::Estimated,
            "brakes on CPU time × peak rate (no hardware counter counts)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Op, Spec};

    use super::*;

    fn means(fake: &Fake, root: bool) -> MemoryMeans {
        let cgroups = Cgroups::discover(fake).unwrap();
        memory(fake, &cgroups, root, Ok(()), Ok(()))
    }

    #[test]
    fn kernels_without_pressure_are_told_from_missing_rights() {
        for (flavour, control) in [
            (Flavour::V2, MemoryControl::V2),
            (Flavour::V1, MemoryControl::V1),
        ] {
            let fake = Fake::new(&Spec::new(flavour));
            let found = means(&fake, true);
            assert_eq!((found.control, found.freeze), (control, true));
            assert_eq!(found.pressure, Ok(()));
            let plain = means(&fake, false);
            assert_eq!((plain.control, plain.freeze), (MemoryControl::None, false));
            // Without CONFIG_PSI, and switched off by `psi=0`.
            for missing in [libc::ENOENT, libc::EOPNOTSUPP] {
                fake.refuse(Op::Read, "/proc/pressure/memory", missing);
                let found = means(&fake, true);
                let why = found.pressure.clone().unwrap_err();
                assert!(why.contains("psi=1") && !found.group_pressure, "{why}");
                let Availability::Yes { how, .. } = memory_control(&found) else {
                    panic!("{found:?}");
                };
                assert!(how.contains("the kernel reports no pressure"), "{how}");
            }
        }
    }
}
