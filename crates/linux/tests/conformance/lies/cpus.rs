//! Lies about CPUs that a group has to itself.

use quell_linux::enforce::weight;
use quell_types::options::CpuWeight;

use super::*;

fn cpus(writer: &mut JournaledWriter<'_>, cgroups: &Cgroups, of: &Machine) -> (What, GroupCgroups) {
    let group = gather(writer, cgroups, of, &ALL);
    let [own, rest, node] = ["3", "0-2", "0"].map(|list| list.parse().unwrap());
    // What an enforcer itself sees by reading back is not its last word here.
    let _ = confine(writer, cgroups, &group, &own, &node, true, &[]);
    let nobody = BTreeSet::new();
    let keep = Keep {
        homes: &[&group],
        processes: &nobody,
    };
    let _ = confine_rest(writer, cgroups, keep, &rest);
    (What::Alone { cpus: own }, group)
}

const NOBODY: Lies = |path, _, _| match path.ends_with("procs") {
    true => Lie::Swallowed,
    false => Lie::None,
};

const ON_CPUS: [Told; 14] = [
    lie("nobody is moved", cpus, V1, NOBODY, "may run on CPU 3"),
    lie(
        "one process less is gathered",
        cpus,
        BOTH,
        |path, text, of| match path.ends_with("procs") && text == of.child.to_string() {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "belongs to the group, but is in cgroup /, not in",
    ),
    lie(
        "the group has another CPU",
        cpus,
        V1,
        |path, _, _| match is_of_group(path, "/cpuset.cpus") {
            true => Lie::Instead("2"),
            false => Lie::None,
        },
        "of the group may run on CPUs 2, where it should have 3",
    ),
    lie(
        "everybody else keeps all CPUs",
        cpus,
        V1,
        |path, _, _| match path.ends_with("/rest/cpuset.cpus") {
            true => Lie::Instead("0-3"),
            false => Lie::None,
        },
        "may run on CPU 3",
    ),
    lie(
        "a bystander is left where it was",
        cpus,
        V1,
        |path, text, of| match path.contains("/rest/") && text == of.other.to_string() {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "(other) may run on CPU 3",
    ),
    lie(
        "no other process is moved",
        cpus,
        V1,
        |path, _, _| match path.contains("/rest/") && path.ends_with("procs") {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "may run on CPU 3",
    ),
    change(
        "a stranger is moved onto the CPU",
        cpus,
        V1,
        |of, _| of.write("/sys/fs/cgroup/cpuset/cgroup.procs", &of.other.to_string()),
        "(other) may run on CPU 3",
    ),
    change(
        "a process of the group is moved away",
        cpus,
        BOTH,
        |of, _| {
            let rest = match of.flavour {
                Flavour::V1 => "/sys/fs/cgroup/cpuset/quell.slice/rest/cgroup.procs",
                Flavour::V2 => "/sys/fs/cgroup/cgroup.procs",
            };
            of.write(rest, &of.child.to_string());
        },
        "belongs to the group, but is in cgroup",
    ),
    change(
        "the group's CPUs are changed",
        cpus,
        V1,
        |of, homes| {
            of.write(
                &of.of_group(homes, Controller::Cpuset, "cpuset.cpus"),
                "2-3",
            )
        },
        "of the group may run on CPUs 2-3, where it should have 3",
    ),
    change(
        "the partition is ended",
        cpus,
        V2,
        |of, homes| {
            let path = of.of_group(homes, Controller::Cpuset, "cpuset.cpus.partition");
            of.write(&path, "member");
        },
        "may run on CPU 3",
    ),
    change(
        "the group ends",
        cpus,
        BOTH,
        |of, _| {
            of.fake.with(|m| {
                for pid in [of.child, of.own] {
                    m.exit(pid);
                    m.reap(pid);
                }
            });
        },
        "group quell-test has no process",
    ),
    change(
        "a quota is set on the group",
        cpus,
        V2,
        |of, homes| {
            let path = of.of_group(homes, Controller::Cpu, "cpu.max");
            of.write(&path, "20000 100000");
        },
        "cpu.max reads '20000 100000': the group gets at most 20% of a CPU",
    ),
    change(
        "a quota is set above the group",
        cpus,
        V2,
        |of, _| of.write("/sys/fs/cgroup/quell.slice/cpu.max", "50000 100000"),
        "/quell.slice/cpu.max reads '50000 100000'",
    ),
    change(
        "a quota is set above the group",
        cpus,
        V1,
        |of, _| of.write("/sys/fs/cgroup/cpu/quell.slice/cpu.cfs_quota_us", "50000"),
        "/quell.slice/cpu.cfs_quota_us reads '50000 100000'",
    ),
];

fn weighed(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    of: &Machine,
) -> (What, GroupCgroups) {
    let group = gather(writer, cgroups, of, &[Controller::Cpu]);
    let weight = CpuWeight::Of(10);
    weight::give(writer, cgroups, &group, weight).unwrap();
    let levels = Some(1);
    (What::Weight { weight, levels }, group)
}

const ON_WEIGHTS: [Told; 2] = [
    lie(
        "a weight is not set",
        weighed,
        BOTH,
        |path, _, _| match path.ends_with("cpu.weight") || path.ends_with("cpu.shares") {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "where weight 10 was promised",
    ),
    change(
        "a weight is set back",
        weighed,
        BOTH,
        |of, homes| {
            let (file, usual) = match of.flavour {
                Flavour::V1 => ("cpu.shares", "1024"),
                Flavour::V2 => ("cpu.weight", "100"),
            };
            of.write(&of.of_group(homes, Controller::Cpu, file), usual);
        },
        "where weight 10 was promised",
    ),
];

#[test]
fn lies_about_weights_are_told() {
    told(&ON_WEIGHTS);
}

#[test]
fn lies_about_cpus_are_told() {
    told(&ON_CPUS);
}
