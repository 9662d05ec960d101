//! Disks: limits of what a group moves, and for a critical one a latency target or a weight. The kernel holds all three.

use quell_policy::Group;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::Remedy;
use quell_types::units::{Nanos, Rate};

use crate::plan::{DiskRates, Held, Promise, Setting};

use super::draft::Draft;

/// The weights that the kernel takes.
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// Whether the group has keys about disks among its reserves.
pub(super) fn wanted(group: &Group) -> bool {
    group.reserve.disk_latency.is_some() || group.reserve.disk_weight.is_some()
}

/// Stands for the four limits of disks, which are held by one step.
const DISK_LIMITS: &str = "limit.disk-*";

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    for (name, group) in &policy.groups {
        let limit = &group.limit;
        let rates = DiskRates {
            read: limit.disk_read,
            write: limit.disk_write,
            read_iops: limit.disk_read_iops,
            write_iops: limit.disk_write_iops,
        };
        let nothing = [rates.read, rates.write].contains(&Some(Rate(0)))
            || [rates.read_iops, rates.write_iops].contains(&Some(0));
        if rates != DiskRates::default() {
            let weakest = "what is written through the page cache counts where the file system tells whose it is (ext4, xfs, btrfs, f2fs)";
            set(
                draft,
                (name, DISK_LIMITS),
                Mechanism::IoMax,
                nothing.then_some("a limit of nothing stops the group at its first request"),
                Setting::IoMax(rates.clone()),
                (Promise::LimitDisk(rates), Level::Enforced, weakest),
            );
        }
        if let Some(target) = group.reserve.disk_latency {
            let weakest = "the kernel looks at the mean of half a second or so, and holds back what is below the same cgroup as the group";
            set(
                draft,
                (name, "reserve.disk-latency"),
                Mechanism::IoLatency,
                (target < Nanos::micros(1)).then_some("the kernel counts in whole microseconds"),
                Setting::IoLatency { target },
                (Promise::DiskLatency { target }, Level::Regulated, weakest),
            );
        }
        if let Some(weight) = group.reserve.disk_weight {
            let weakest = "a weight is a part of what the disk does, however little that is";
            set(
                draft,
                (name, "reserve.disk-weight"),
                Mechanism::IoWeight,
                (!WEIGHTS.contains(&weight)).then_some("a weight is 1 to 10000"),
                Setting::IoWeight { weight },
                (Promise::DiskWeight { weight }, Level::Regulated, weakest),
            );
        }
    }
}

/// The step and the promise of one key, or its refusal. `mistake`: what is wrong with the value.
fn set(
    draft: &mut Draft<'_>,
    (name, key): (&str, &str),
    mechanism: Mechanism,
    mistake: Option<&str>,
    set: Setting,
    (promise, level, weakest): (Promise, Level, &str),
) {
    let at = format!("group.{name}.{key}");
    let without = match key {
        DISK_LIMITS => Remedy::LeaveOut {
            keys: [
                "disk-read",
                "disk-write",
                "disk-read-iops",
                "disk-write-iops",
            ]
            .map(|key| format!("group.{name}.limit.{key}"))
            .to_vec(),
        },
        _ => Remedy::leave_out(at.clone()),
    };
    if let Some(mistake) = mistake {
        return draft.refuse(at, mistake, without);
    }
    if let Some(why) = draft.unavailable(mechanism) {
        return draft.refuse_lacking(mechanism, at, why, without);
    }
    let id = draft.step(Some(name), mechanism, set, format!("{key}, as written"));
    draft.promises.push(Held {
        group: name.to_owned(),
        promise,
        level,
        held_by: vec![id],
        weakest: Some(weakest.to_owned()),
        assumed: false,
    });
}

#[cfg(test)]
mod tests {
    use quell_policy::Policy;
    use quell_types::refusal::Refusal;

    use super::super::tests::machine;
    use super::*;
    use crate::plan::Plan;

    fn planned(keys: &str, has: &[Mechanism]) -> Result<Plan, Vec<Refusal>> {
        let mut machine = machine(2, 1);
        for mechanism in has {
            let yes = machine.mechanisms[&Mechanism::CpuMax].clone();
            machine.mechanisms.insert(*mechanism, yes);
        }
        let text = format!(
            "quell = 1\n[group.g]\nrole = 'best-effort'\ncommand = ['a']\ncpus = 'any'\n{keys}"
        );
        super::super::plan(&Policy::parse(&text, "io.toml").unwrap(), &machine)
    }

    #[test]
    fn what_is_written_is_set_and_promised() {
        let all = [Mechanism::IoMax, Mechanism::IoLatency, Mechanism::IoWeight];
        let keys = "limit.disk-write = '5MB/s'\nlimit.disk-read-iops = 200\n\
            reserve.disk-latency = '5ms'\nreserve.disk-weight = 800";
        let plan = planned(keys, &all).unwrap();
        let told: Vec<String> = plan
            .promises
            .iter()
            .map(|p| p.promise.to_string())
            .collect();
        assert_eq!(
            told,
            [
                "at most 5MB/s written, 200 reads a second on each disk",
                "disk requests within 5ms at the mean",
                "weight 800 where several want a disk",
            ]
        );
        assert!(plan.promises.iter().all(|p| p.held_by.len() == 1));
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_its_key() {
        let refused =
            |keys: &str, has: &[Mechanism]| planned(keys, has).unwrap_err()[0].to_string();
        let none = refused("limit.disk-write = '5MB/s'", &[]);
        assert!(
            none.starts_with("group.g.limit.disk-*: this machine says nothing about io-max"),
            "{none}"
        );
        let zero = refused("limit.disk-read-iops = 0", &[Mechanism::IoMax]);
        assert!(
            zero.contains("stops the group at its first request"),
            "{zero}"
        );
        let weight = refused("reserve.disk-weight = 20000", &[Mechanism::IoWeight]);
        assert!(weight.contains("1 to 10000"), "{weight}");
    }
}
