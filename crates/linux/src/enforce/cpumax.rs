//! The CPU-time quota: `cpu.max` (v2) or `cpu.cfs_quota_us` and `cpu.cfs_period_us` (v1).
//! Documentation/scheduler/sched-bwc.rst: quota and period are at least 1 ms, the period at most 1
//! s.

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::error::{Error, Result};
use quell_kernel::fair;
use quell_plan::Setting;
use quell_types::units::{Nanos, Share};

use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::group_cgroups::{CgroupDir, GroupCgroups};
use crate::host::Host;

const SHORTEST_US: u64 = 1_000;
const LONGEST_US: u64 = 1_000_000;

/// Carries out CPU-time quotas.
pub(crate) struct CpuMax;

impl Enforcer for CpuMax {
    fn apply(&mut self, host: &mut Host, group: &str, set: &Setting) -> Applied {
        let Setting::CpuMax { share, period } = set else {
            return Ok(None);
        };
        let (mut writer, cgroups, group) = host.of(group)?;
        limit(&mut writer, cgroups, &group.cgroups, *share, *period).map(Some)
    }
}

/// A quota and a period that the kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// CPU time per period, over all CPUs, in microseconds.
    pub quota_us: u64,
    /// Length of the period in microseconds, 1000 to 1000000.
    pub period_us: u64,
}

/// The quota for a share (100 % = one CPU), with the period closest to the wanted one that the
/// kernel accepts.
///
/// # Errors
/// [`Error::Refused`] for a share below 0.1 %, which no period can hold.
pub fn quota(share: Share, period: Nanos) -> Result<Quota> {
    if share.0 == 0 {
        return Err(Error::refused(
            "a CPU-time limit of 0 % would stop the group",
        ));
    }
    // The quota has a minimum, too, so a small share needs a longer period.
    let needed = (SHORTEST_US * Share::WHOLE.0).div_ceil(share.0);
    let period_us = (period.0 / 1_000).max(SHORTEST_US).max(needed);
    if period_us > LONGEST_US && needed > LONGEST_US {
        return Err(Error::refused_with(
            format!(
                "a CPU-time limit of {share} is below what the kernel can hold (1 ms of every second)"
            ),
            "ask for 0.1% or more",
        ));
    }
    let period_us = period_us.min(LONGEST_US);
    let quota_us =
        u64::try_from(u128::from(period_us) * u128::from(share.0) / u128::from(Share::WHOLE.0));
    Ok(Quota {
        quota_us: quota_us.unwrap_or(u64::MAX).max(SHORTEST_US),
        period_us,
    })
}

/// Limits a group's CPU time. Returns notes for a person.
///
/// # Errors
/// [`Error::File`]; [`Error::Refused`] where no `cpu` controller is available, or where the group
/// lives in several cgroups, whose quotas would add up.
pub fn limit(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    group_cgroups: &GroupCgroups,
    share: Share,
    period: Nanos,
) -> Result<Vec<String>> {
    let places: Vec<&CgroupDir> = group_cgroups.dirs(cgroups, Controller::Cpu).collect();
    let place = match places.as_slice() {
        [one] => *one,
        [] => {
            return Err(Error::refused_with(
                format!(
                    "group {}: no cgroup with the cpu controller can be had",
                    group_cgroups.group
                ),
                "mount one (v2, or v1 with -o cpu), or enable it in cgroup.subtree_control",
            ));
        }
        several => {
            let dirs: Vec<&str> = several.iter().map(|p| p.dir.as_str()).collect();
            return Err(Error::refused_with(
                format!(
                    "group {}: it lives in {} cgroups ({}), whose quotas would add up",
                    group_cgroups.group,
                    dirs.len(),
                    dirs.join(", ")
                ),
                "select it by one cgroup, or by its tasks",
            ));
        }
    };
    fair::required(
        writer.files,
        &group_cgroups.group,
        &group_cgroups.tasks_dirs(),
    )?;
    let quota = quota(share, period)?;
    match place.hierarchy.version {
        Version::V2 => {
            writer.set(
                &format!("{}/cpu.max", place.dir),
                &format!("{} {}", quota.quota_us, quota.period_us),
            )?;
        }
        Version::V1 => {
            // A new period alone would change the share, which parents and children bound. So there
            // is no quota while it changes.
            let quota_file = format!("{}/cpu.cfs_quota_us", place.dir);
            writer.set(&quota_file, "-1")?;
            writer.set(
                &format!("{}/cpu.cfs_period_us", place.dir),
                &quota.period_us.to_string(),
            )?;
            writer.set(&quota_file, &quota.quota_us.to_string())?;
        }
    }
    let wanted_us = period.0 / 1_000;
    if quota.period_us == wanted_us {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "group {}: the quota's period is {} instead of {period}: the kernel takes no quota below 1 ms",
        group_cgroups.group,
        Nanos::micros(quota.period_us)
    )])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_shares_need_longer_periods() {
        let of = |share: Share, ms| quota(share, Nanos::millis(ms)).unwrap();
        assert_eq!(
            of(Share::percent(10), 100),
            Quota {
                quota_us: 10_000,
                period_us: 100_000
            }
        );
        assert_eq!(
            of(Share::percent(10), 1),
            Quota {
                quota_us: 1_000,
                period_us: 10_000
            }
        );
        assert_eq!(
            of(Share::percent(250), 1),
            Quota {
                quota_us: 2_500,
                period_us: 1_000
            }
        );
        assert_eq!(
            of(Share(1_000), 1),
            Quota {
                quota_us: 1_000,
                period_us: 1_000_000
            }
        );
        assert!(quota(Share(900), Nanos::millis(1)).is_err());
        assert!(quota(Share(0), Nanos::millis(1)).is_err());
    }

    #[test]
    fn a_period_above_a_second_is_a_second() {
        let found = quota(Share::percent(50), Nanos::secs(5)).unwrap();
        assert_eq!(
            found,
            Quota {
                quota_us: 500_000,
                period_us: 1_000_000
            }
        );
    }
}
