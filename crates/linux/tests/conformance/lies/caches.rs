//! Lies about ways of caches.

use super::*;

fn ways(writer: &mut JournaledWriter<'_>, cgroups: &Cgroups, of: &Machine) -> (What, GroupCgroups) {
    let group = gather(writer, cgroups, of, &[Controller::Cpuset]);
    let files = writer.files;
    let resctrl = cache::adopt_or_mount(writer, "").unwrap();
    let info = resctrl.info(files).unwrap();
    let ours = cache::make(writer, &resctrl, "quell.ours").unwrap();
    for (class, mask) in [(&ours, 0xf000), (&resctrl.default_group(), 0x0fff)] {
        let part = Schemata::masks("L3", [0], Mask(mask));
        cache::allocate(writer, &resctrl, &info, class, &part).unwrap();
    }
    let own = of.own;
    let mut find = |files: &dyn Files| {
        let all = family(files, own)?;
        Ok(all.into_iter().map(|stat| stat.id.pid).collect())
    };
    // A liar who moves nobody is asked again and again.
    let _ = cache::take(writer, &resctrl, &ours, &mut find);
    let what = What::Ways {
        level: 3,
        mask: Mask(0xf000),
        shared_with: Vec::new(),
    };
    (what, group)
}

fn by_registers(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    of: &Machine,
) -> (What, GroupCgroups) {
    let group = gather(writer, cgroups, of, &[Controller::Cpuset]);
    let caches = registers::caches(writer.files, &[divided_by_registers()]).unwrap();
    let set = |writer: &mut JournaledWriter<'_>| {
        registers::allocate(writer, &caches[0], 1, Mask(0xf000))?;
        registers::classify(writer, &CpuSet::one(3), 1)?;
        registers::allocate(writer, &caches[0], 0, Mask(0x0fff))
    };
    // What does not read back is refused: that is no lie.
    let _ = set(writer);
    let what = What::WayRegisters {
        level: 3,
        mask: Mask(0xf000),
        shared_with: Vec::new(),
    };
    (what, group)
}

fn resctrl(of: &Machine) -> Resctrl {
    Resctrl::find(&*of.fake).unwrap().unwrap()
}

const ON_CACHES: [Told; 11] = [
    lie(
        "the class has the ways that a new one has",
        ways,
        V2,
        |path, _, _| match path.ends_with("quell.ours/schemata") {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "where 0xf000 was promised",
    ),
    lie(
        "the class has one way less",
        ways,
        V2,
        |path, _, _| match path.ends_with("quell.ours/schemata") {
            true => Lie::Instead("L3:0=7000"),
            false => Lie::None,
        },
        "has ways 0x7000 of L3 0, where 0xf000 was promised",
    ),
    lie(
        "everybody else keeps all ways",
        ways,
        V2,
        |path, _, _| match path.ends_with("resctrl/schemata") {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "the default resctrl group fills ways 0xf000 of L3 0",
    ),
    lie(
        "one process less is in the class",
        ways,
        V2,
        |path, text, of| match path.ends_with("/tasks") && text.trim() == of.child.to_string() {
            true => Lie::Swallowed,
            false => Lie::None,
        },
        "tasks of the group are in the default resctrl group",
    ),
    change(
        "a process leaves the class",
        ways,
        V2,
        |of, _| {
            of.write(
                &resctrl(of).default_group().file("tasks"),
                &of.child.to_string(),
            )
        },
        "tasks of the group are in the default resctrl group",
    ),
    change(
        "the mask of everybody else is widened",
        ways,
        V2,
        |of, _| of.write(&resctrl(of).default_group().file("schemata"), "L3:0=1fff"),
        "the default resctrl group fills ways 0x1000 of L3 0",
    ),
    change(
        "the mask of the class is changed",
        ways,
        V2,
        |of, _| {
            of.write(
                &resctrl(of).group("quell.ours").file("schemata"),
                "L3:0=e000",
            )
        },
        "has ways 0xe000 of L3 0, where 0xf000 was promised",
    ),
    change(
        "a class that fills them comes",
        ways,
        V2,
        |of, _| {
            let new = resctrl(of).group("new");
            of.fake.mkdir(&new.dir).unwrap();
            of.write(&new.file("schemata"), "L3:0=8000");
            of.write(&new.file("tasks"), &of.other.to_string());
        },
        "resctrl group new fills ways 0x8000 of L3 0",
    ),
    change(
        "a register of the class is changed",
        by_registers,
        V2,
        |of, _| of.write(&msr::path(&CpuSet::one(3), msr::L3_MASKS + 1), "0x7000"),
        "CPU 3 of the group fills ways 0x7000 of L3, where 0xf000 was promised",
    ),
    change(
        "a register of everybody else is changed",
        by_registers,
        V2,
        |of, _| of.write(&msr::path(&CpuSet::one(0), msr::L3_MASKS), "0xffff"),
        "fills ways 0xf000 of L3, which the group has to itself",
    ),
    change(
        "a CPU gets another class",
        by_registers,
        V2,
        |of, _| {
            let path = msr::path(&CpuSet::one(3), msr::ASSOCIATION);
            of.write(&path, &format!("{:#x}", msr::with_class(0)));
        },
        "CPU 3 of the group fills ways 0xfff of L3, where 0xf000 was promised",
    ),
];

#[test]
fn lies_about_caches_are_told() {
    told(&ON_CACHES);
}
