//! Colours that whole memory nodes have, given by `cpuset.mems`: on the model, with two nodes.

use std::collections::BTreeSet;

use quell_kernel::cgroup::{Controller, effective_mems};
use quell_kernel::fake::{Fake, Flavour, Spec};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::nodes::{keep_off, narrow_others, take};
use quell_types::cpuset::CpuSet;

use crate::arms::{compare, furnished};
use crate::bodies::gathered;

const BOTH: [Flavour; 2] = [Flavour::V1, Flavour::V2];

fn machine(flavour: Flavour) -> Fake {
    furnished(&Spec {
        nodes: 2,
        ..Spec::new(flavour)
    })
}

/// The nodes that a task has memory from.
fn mems(files: &dyn Files, pid: u32) -> CpuSet {
    let cgroups = quell_kernel::cgroup::Cgroups::discover(files).unwrap();
    let hierarchy = cgroups.of(Controller::Cpuset).unwrap();
    let dir = hierarchy.dir_of(files, pid).unwrap().unwrap();
    effective_mems(files, hierarchy, &dir).unwrap().unwrap()
}

#[test]
fn every_task_has_memory_from_its_nodes_and_none_after() {
    for flavour in BOTH {
        let fake = machine(flavour);
        let (pid, stranger) = fake.with(|m| (m.spawn("critical"), m.spawn("stranger")));
        let before = fake.dump();
        let files: &dyn Files = &fake;
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let (own, left) = (set("1"), set("0"));
        assert_eq!(mems(files, pid), set("0-1"));
        let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        take(&mut writer, &cgroups, &group_cgroups, &own).unwrap();
        let keep = Keep {
            homes: &[&group_cgroups],
            processes: &[std::process::id()].into(),
        };
        let mut seen = BTreeSet::new();
        keep_off(&mut writer, &cgroups, keep, &left, &mut seen).unwrap();
        assert_eq!(mems(files, pid), own, "{flavour:?}");
        assert_eq!(mems(files, stranger), left, "{flavour:?}");
        if flavour == Flavour::V1 {
            let dir = &group_cgroups.places[0].dir;
            let migrate = files.text(&format!("{dir}/cpuset.memory_migrate")).unwrap();
            assert_eq!(migrate, "1", "memory follows the nodes");
        }
        // A slice that is started later has other tasks, too.
        let hierarchy = cgroups.of(Controller::Cpuset).unwrap();
        let late = format!("{}/late.slice", hierarchy.mount);
        files.mkdir(&late).unwrap();
        let homes = [&group_cgroups];
        narrow_others(&mut writer, &cgroups, &homes, &left, &mut seen).unwrap();
        if flavour == Flavour::V2 {
            let got = effective_mems(files, hierarchy, &late).unwrap().unwrap();
            assert_eq!(got, left);
        }
        let written = held.journal.undo_all(files);
        assert_eq!(written.left, Vec::<String>::new(), "{flavour:?}");
        files.rmdir(&late).unwrap();
        let changed = compare(&before, &fake.dump());
        assert!(changed.is_empty(), "{flavour:?}: {changed:#?}");
    }
}

#[test]
fn nodes_that_the_cgroups_above_lack_are_refused() {
    let fake = machine(Flavour::V2);
    let pid = fake.with(|m| m.spawn("critical"));
    let files: &dyn Files = &fake;
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpuset]);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let hierarchy = cgroups.of(Controller::Cpuset).unwrap();
    let above = format!("{}/quell.slice/cpuset.mems", hierarchy.mount);
    writer.set(&above, "0").unwrap();
    let one: CpuSet = "1".parse().unwrap();
    let said = take(&mut writer, &cgroups, &group_cgroups, &one).unwrap_err();
    let said = said.to_string();
    assert!(said.contains("got memory nodes 0, not 1"), "{said}");
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
}
