//! Disks: limits on what a group moves, and for a critical group a latency target or a weight. The
//! kernel holds all three.

use quell_policy::Group;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::refusal::Remedy;
use quell_types::units::{Nanos, Rate};

use crate::plan::{DiskRates, Promise, Setting};

use super::draft::Draft;
use super::wanted::Worth;

/// The range of weights that the kernel accepts.
const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;

/// Whether the group's reserves have keys about disks.
pub(super) fn wanted(group: &Group) -> bool {
    group.reserve.disk_latency.is_some() || group.reserve.disk_weight.is_some()
}

/// Stands for the four disk limits, which one step holds.
const DISK_LIMITS: &str = "limit.disk-*";

/// What counts as written, and when.
const BY_FILE_SYSTEM: &str = "what is written through the page cache counts where the file system tells whose it is (ext4, \
    xfs, btrfs, f2fs)";
const AT_THE_MEAN: &str = "the kernel looks at the mean of half a second or so, and holds back what is below the same cgroup \
    as the group";
const A_PART_OF_LITTLE: &str = "a weight is a part of what the disk does, however little that is";

/// A key about disks, its step and its promise.
struct Key {
    name: &'static str,
    mechanism: Mechanism,
    /// What is wrong with the value; `None` if nothing is.
    mistake: Option<&'static str>,
    set: Setting,
    promise: Promise,
    worth: Worth,
}

pub(super) fn plan(draft: &mut Draft<'_>) {
    let policy = draft.policy;
    for (name, group) in &policy.groups {
        for key in keys(group) {
            set(draft, name, key);
        }
    }
}

/// The keys about disks that a group has.
fn keys(group: &Group) -> Vec<Key> {
    let limit = &group.limit;
    let rates = DiskRates {
        read: limit.disk_read,
        write: limit.disk_write,
        read_iops: limit.disk_read_iops,
        write_iops: limit.disk_write_iops,
    };
    let nothing = [rates.read, rates.write].contains(&Some(Rate(0)))
        || [rates.read_iops, rates.write_iops].contains(&Some(0));
    let limits = (rates != DiskRates::default()).then(|| Key {
        name: DISK_LIMITS,
        mechanism: Mechanism::IoMax,
        mistake: nothing.then_some("a limit of nothing stops the group at its first request"),
        set: Setting::IoMax(rates.clone()),
        promise: Promise::LimitDisk(rates),
        worth: Worth::of(Level::Enforced, BY_FILE_SYSTEM),
    });
    let latency = group.reserve.disk_latency.map(|target| Key {
        name: "reserve.disk-latency",
        mechanism: Mechanism::IoLatency,
        mistake: (target < Nanos::micros(1)).then_some("the kernel counts in whole microseconds"),
        set: Setting::IoLatency { target },
        promise: Promise::DiskLatency { target },
        worth: Worth::of(Level::Regulated, AT_THE_MEAN),
    });
    let weight = group.reserve.disk_weight.map(|weight| Key {
        name: "reserve.disk-weight",
        mechanism: Mechanism::IoWeight,
        mistake: (!WEIGHTS.contains(&weight)).then_some("a weight is 1 to 10000"),
        set: Setting::IoWeight { weight },
        promise: Promise::DiskWeight { weight },
        worth: Worth::of(Level::Regulated, A_PART_OF_LITTLE),
    });
    [limits, latency, weight].into_iter().flatten().collect()
}

/// The limits that the policy states: `read`, `write`, `read-iops`, `write-iops`.
fn written(rates: &DiskRates) -> impl Iterator<Item = &'static str> {
    let each = [
        ("read", rates.read.is_some()),
        ("write", rates.write.is_some()),
        ("read-iops", rates.read_iops.is_some()),
        ("write-iops", rates.write_iops.is_some()),
    ];
    each.into_iter().filter_map(|(key, is)| is.then_some(key))
}

/// Adds the step and the promise of one key, or refuses it.
fn set(draft: &mut Draft<'_>, group: &str, key: Key) {
    let at = format!("group.{group}.{}", key.name);
    let without = match &key.promise {
        Promise::LimitDisk(rates) => Remedy::LeaveOut {
            keys: written(rates)
                .map(|key| format!("group.{group}.limit.disk-{key}"))
                .collect(),
        },
        _ => Remedy::leave_out(at.clone()),
    };
    if let Some(mistake) = key.mistake {
        return draft.refuse(at, mistake, without);
    }
    if let Some(why) = draft.unavailable(key.mechanism) {
        return draft.refuse_lacking(key.mechanism, at, why, without);
    }
    let because = format!("{}, as written", key.name);
    let id = draft.step(Some(group), key.mechanism, key.set, because);
    draft.promise(group, key.promise, key.worth, [id]);
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
