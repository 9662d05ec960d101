//! Lies about memory and disks.

use super::*;

const MOST: Bytes = Bytes(64 << 20);

fn memory_of(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    of: &Machine,
) -> (Memory, GroupCgroups) {
    let group = gather(writer, cgroups, of, &[Controller::Memory]);
    let place = group.dirs(cgroups, Controller::Memory).next().unwrap();
    (Memory::of(&place.hierarchy, &place.dir), group)
}

fn limit(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    of: &Machine,
) -> (What, GroupCgroups) {
    let (memory, group) = memory_of(writer, cgroups, of);
    enforce::memory::limit(writer, &memory, MOST, true).unwrap();
    (What::Memory { most: MOST }, group)
}

fn kept(writer: &mut JournaledWriter<'_>, cgroups: &Cgroups, of: &Machine) -> (What, GroupCgroups) {
    let (memory, group) = memory_of(writer, cgroups, of);
    enforce::memory::protect(writer, &memory, Bytes(0), MOST, false).unwrap();
    (What::Kept { size: MOST }, group)
}

fn disk(writer: &mut JournaledWriter<'_>, cgroups: &Cgroups, of: &Machine) -> (What, GroupCgroups) {
    let group = gather(writer, cgroups, of, &[Controller::Io]);
    disks::weigh(writer, cgroups, &group, 700).unwrap();
    (What::Disks(Disks::Weight(700)), group)
}

fn on_limits(path: &str) -> bool {
    path.contains("memory.max") || path.contains("memory.high") || path.contains("limit_in_bytes")
}

fn lift(of: &Machine, homes: &GroupCgroups) {
    let (files, text): (&[&str], &str) = match of.flavour {
        Flavour::V1 => (&["memory.limit_in_bytes"], "-1"),
        Flavour::V2 => (&["memory.high", "memory.max"], "max"),
    };
    for file in files {
        of.write(&of.of_group(homes, Controller::Memory, file), text);
    }
}

const ON_MEMORY: [Told; 9] = [
    lie(
        "a limit of memory is not set",
        limit,
        BOTH,
        |path, _, _| match on_limits(path) {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "where 64MiB was promised",
    ),
    lie(
        "a limit of memory is twice as high",
        limit,
        BOTH,
        |path, _, _| match on_limits(path) {
            true => Lie::Instead("134217728"),
            false => Lie::None,
        },
        "reads '134217728', where 64MiB was promised",
    ),
    change(
        "a limit of memory is lifted",
        limit,
        BOTH,
        lift,
        "where 64MiB was promised",
    ),
    lie(
        "memory is not kept",
        kept,
        V2,
        |path, _, _| match path.ends_with("memory.min") || path.ends_with("memory.low") {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "reads '0', where 64MiB was promised",
    ),
    lie(
        "memory is kept of the group, and not of those above",
        kept,
        V2,
        |path, _, _| {
            let protects = path.ends_with("memory.min") || path.ends_with("memory.low");
            match protects && !path.contains(GROUP) {
                true => Lie::Swallowed,
                false => Lie::None,
            }
        },
        "quell.slice/memory.min reads '0'",
    ),
    change(
        "memory is kept no longer",
        kept,
        V2,
        |of, homes| {
            for file in ["memory.min", "memory.low"] {
                of.write(&of.of_group(homes, Controller::Memory, file), "0");
            }
        },
        "reads '0', where 64MiB was promised",
    ),
    lie(
        "a weight of disks is not set",
        disk,
        V2,
        |path, _, _| match path.ends_with("io.weight") {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "reads 'default 100', where weight 700 was promised",
    ),
    lie(
        "a weight of disks is another one",
        disk,
        V2,
        |path, _, _| match is_of_group(path, "io.weight") {
            true => Lie::Instead("default 300"),
            false => Lie::None,
        },
        "reads 'default 300', where weight 700 was promised",
    ),
    change(
        "a weight of disks is changed",
        disk,
        V2,
        |of, homes| {
            of.write(
                &of.of_group(homes, Controller::Io, "io.weight"),
                "default 70",
            )
        },
        "reads 'default 70', where weight 700 was promised",
    ),
];

#[test]
fn lies_about_memory_and_disks_are_told() {
    told(&ON_MEMORY);
}
