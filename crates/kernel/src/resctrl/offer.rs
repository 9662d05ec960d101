//! What the planner learns of all this: what can be divided, and how many classes of service are
//! free.

use std::collections::BTreeSet;

use quell_types::cpuset::CpuSet;
use quell_types::partition::{CodeData, Mask, MbaBounds, MbaUnit, Partitions, WayPartition};

use super::info::Bandwidth;
use super::lock::{For, PATIENCE};
use super::{Info, Resctrl, locked};
use crate::error::{Error, Result};
use crate::msr::{self, Devices};
use crate::root::Files;

/// What resctrl offers to a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What can be divided. Classes of service that other programs' control groups use are not
    /// counted.
    pub partitions: Partitions,
    /// A short text for a person on how this is offered.
    pub how: String,
    /// Why Quell cannot divide the bandwidth that resctrl has. `None` where it can, or there is
    /// none.
    pub no_mba: Option<String>,
    /// Why no memory can be locked in a cache. `None` where it can be.
    pub no_lock: Option<String>,
}

/// What resctrl offers here, or why it offers nothing. `unmounted` is what the processor reports,
/// which would be offered where resctrl is not mounted ([`processor`](super::processor)).
///
/// # Errors
/// Files that cannot be read or make no sense.
pub fn offer(
    files: &dyn Files,
    unmounted: impl FnOnce() -> Option<Partitions>,
) -> Result<std::result::Result<Offer, String>> {
    if let Some(resctrl) = Resctrl::find(files)? {
        // A tool that keeps the lock for longer is not waited for. What is read here is checked
        // again before anything is set.
        let _lock = resctrl.lock(files, For::Reading, PATIENCE).ok();
        let info = resctrl.info(files)?;
        let others = u32::try_from(resctrl.used(files)?.len()).unwrap_or(u32::MAX);
        let mut how = String::from("resctrl");
        if resctrl.cdp || resctrl.cdp_l2 {
            how.push_str(", mounted with code and data apart");
        }
        if others > 0 {
            how.push_str(&format!(
                "; {others} of its classes of service {} used by groups of others",
                if others == 1 { "is" } else { "are" }
            ));
        }
        let mut partitions = partitions(&info, resctrl.mib_s, others);
        let could = unmounted().unwrap_or_default();
        for ways in &mut partitions.ways {
            let same = could.ways.iter().find(|w| w.level == ways.level);
            ways.code_data = match same.map_or(CodeData::Never, |w| w.code_data) {
                _ if resctrl.code_data(ways.level) => CodeData::Now,
                CodeData::Never => CodeData::Never,
                _ => CodeData::MountedWithout,
            };
        }
        // AMD counts in eighths of GB/s, and reports neither that nor the maximum.
        let foreign = |(_, bandwidth): (_, &Bandwidth)| !bandwidth.linear && !resctrl.mib_s;
        let no_mba = info.bandwidth().is_some_and(foreign).then(|| {
            partitions.mba = None;
            format!(
                "bandwidth is not given in percent here ({}/info/MB/delay_linear is not 1)",
                resctrl.root
            )
        });
        let no_lock = locked::possible(files, Some(&resctrl)).err();
        return Ok(Ok(Offer {
            partitions: lockable(partitions, no_lock.is_none()),
            how,
            no_mba,
            no_lock,
        }));
    }
    // Captures by older versions do not have the file.
    let known = files.optional("/proc/filesystems")?;
    let has = |text: &String| text.lines().any(|l| l.trim_end().ends_with("\tresctrl"));
    if !known.as_ref().is_none_or(has) {
        return Ok(Err(
            "the kernel has no resctrl (CONFIG_X86_CPU_RESCTRL)".to_owned()
        ));
    }
    Ok(match unmounted() {
        Some(partitions) => {
            let no_lock = locked::possible(files, None).err();
            Ok(Offer {
                partitions: lockable(partitions, no_lock.is_none()),
                how: "resctrl, not mounted yet: Quell mounts it while a plan holds".to_owned(),
                no_mba: None,
                no_lock,
            })
        }
        None => Err(
            "resctrl is not mounted, and the processor does not report what it would offer; mounting it shows that (mount -t \
             resctrl resctrl /sys/fs/resctrl)"
                .to_owned(),
        ),
    })
}

/// What registers divide: seen to be readable, not known to be locked, and one mask for each class.
///
/// # Errors
/// [`Error::Refused`] with what keeps registers from dividing a cache here.
pub fn by_registers(files: &dyn Files) -> Result<Vec<WayPartition>> {
    if let Some(resctrl) = Resctrl::find(files)? {
        return Err(Error::refused_with(
            format!(
                "resctrl is mounted at {}, and the kernel writes the same registers",
                resctrl.root
            ),
            format!("umount {}", resctrl.root),
        ));
    }
    let Some(offered) = super::processor::by_registers(files) else {
        return Err(Error::refused(
            "the processor does not report registers that divide a cache",
        ));
    };
    let cpus = crate::topology::online(files)?;
    let devices = Devices::open(files, &cpus)?;
    devices.read(files, &cpus, msr::ASSOCIATION)?;
    one_mask(files, &devices, &offered.ways)?;
    msr::locked(files).map_or(Ok(offered.ways), Err)
}

/// Refuses where a class has a mask for code and another for data on one of these CPUs.
fn one_mask(files: &dyn Files, devices: &Devices, offered: &[WayPartition]) -> Result<()> {
    for (ways, cpu) in offered
        .iter()
        .flat_map(|w| devices.cpus().map(move |c| (w, c)))
    {
        if devices.separate(files, &CpuSet::one(cpu), ways)? {
            let level = ways.level;
            return Err(Error::refused_with(
                format!("another tool gave code and data masks of their own in L{level}"),
                format!("pqos --iface=msr -R l{level}cdp-off"),
            ));
        }
    }
    Ok(())
}

/// Adds the level in which memory can be locked. It is the last one, where the kernel locks at all.
/// Processors on its list have only one level that can be divided.
fn lockable(mut partitions: Partitions, locks: bool) -> Partitions {
    let levels = partitions.ways.iter().map(|w| w.level);
    partitions.lock = levels.max().filter(|_| locks);
    partitions
}

fn partitions(info: &Info, mib_s: bool, others: u32) -> Partitions {
    let classes = info.classes().saturating_sub(others);
    let levels: BTreeSet<u32> = info.all_ways().map(|(_, w)| w.level).collect();
    let ways = levels.into_iter().filter_map(|level| {
        let (_, ways) = info.ways(level).next()?;
        let bits = ways.all.count();
        // Every mask that kernels have reported so far begins at bit 0.
        (ways.all == Mask::run(0, bits)).then_some(WayPartition {
            level,
            bits,
            least: ways.least,
            classes,
            sparse: ways.sparse,
            shareable: ways.shareable,
            code_data: CodeData::Never,
        })
    });
    Partitions {
        ways: ways.collect(),
        mba: info.bandwidth().map(|(_, bandwidth)| MbaBounds {
            classes,
            least: bandwidth.least,
            step: bandwidth.step,
            unit: if mib_s {
                MbaUnit::MibPerS
            } else {
                MbaUnit::Percent
            },
        }),
        ..Partitions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Flavour, Op, Rdt, Spec, divided_by_registers};
    use crate::root::Kernel;

    #[test]
    fn bandwidth_that_is_no_percentage_is_not_offered_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let mount = |options: &str| {
            let line = format!("36 21 0:33 / /r rw,relatime - resctrl resctrl rw{options}\n");
            put("proc/self/mountinfo", &line);
        };
        for (file, text) in [
            ("min_bandwidth", "0"),
            ("bandwidth_gran", "1"),
            ("num_closids", "16"),
        ] {
            put(&format!("r/info/MB/{file}"), text);
        }
        let kernel = Kernel::at(dir.path());
        let look = || offer(&kernel, || None).unwrap().unwrap();
        for (linear, options, unit) in [
            ("0", "", None),
            ("1", "", Some(MbaUnit::Percent)),
            ("0", ",mba_MBps", Some(MbaUnit::MibPerS)),
        ] {
            put("r/info/MB/delay_linear", linear);
            mount(options);
            let found = look();
            assert_eq!(found.partitions.mba.map(|m| m.unit), unit);
            assert_eq!(found.no_mba.is_some(), unit.is_none());
        }
    }

    #[test]
    fn whether_code_and_data_can_be_apart_is_the_mounts_word() {
        let fake = Fake::new(&Spec {
            rdt: Some(Rdt::icelake()),
            ..Spec::new(Flavour::V2)
        });
        let can = CodeData::OnceMounted { classes: 8 };
        let processor = |code_data| {
            let mut found = offer(&fake, || None).unwrap().unwrap().partitions;
            found.ways[0].code_data = code_data;
            Some(found)
        };
        let told = |code_data| {
            let found = offer(&fake, || processor(code_data)).unwrap().unwrap();
            found.partitions.ways[0].code_data
        };
        assert_eq!(told(can), CodeData::MountedWithout);
        assert_eq!(told(CodeData::Never), CodeData::Never);
        fake.with(|m| {
            m.resctrl_mounted(None);
            m.resctrl_mounted(Some("cdp"));
        });
        assert_eq!(told(can), CodeData::Now);
    }

    #[test]
    fn registers_that_keep_code_and_data_apart_are_refused() {
        let fake = Fake::new(&Spec {
            registers: true,
            ..Spec::new(Flavour::V2)
        });
        let cpus = CpuSet::one(0);
        let devices = Devices::open(&fake, &cpus).unwrap();
        let mut ways = divided_by_registers();
        let look = |ways: &WayPartition| one_mask(&fake, &devices, std::slice::from_ref(ways));
        assert!(look(&ways).is_ok());
        (&fake as &dyn Files)
            .put(&msr::path(&cpus, msr::L3_CONFIG), "0x1")
            .unwrap();
        let error = look(&ways).unwrap_err().to_string();
        assert!(error.ends_with("pqos --iface=msr -R l3cdp-off"), "{error}");
        // A processor without the register is not asked for it.
        ways.code_data = CodeData::Never;
        assert!(look(&ways).is_ok());
    }

    #[test]
    fn counters_that_hardware_assigns_hide_nothing_else() {
        let spec = Spec {
            rdt: Some(Rdt::icelake()),
            release: "7.2.0",
            ..Spec::new(Flavour::V2)
        };
        let fake = Fake::new(&spec);
        fake.refuse(Op::Read, "/available_mbm_cntrs", libc::EINVAL);
        let found = offer(&fake, || None).unwrap().unwrap();
        assert!(!found.partitions.ways.is_empty() && found.partitions.mba.is_some());
    }
}
