//! Weights of cgroups that are changed in place, and of groups next to programs outside.

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::weight;
use quell_linux::group_cgroups::{GroupCgroups, Layout, SLICE, outermost};
use quell_types::options::CpuWeight;

use crate::arms::{Arm, Held};
use crate::bodies::{ALL, GROUP, none, weighs};

pub fn weights_count_against_programs_outside(arm: &mut dyn Arm) {
    arm.remember();
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let cpu = cgroups.of(Controller::Cpu).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let layout = Layout {
        outermost: true,
        ..Layout::default()
    };
    // Each lies next to all others, with its own weight.
    for (group, weight, shares) in [("a", 200, 2048), ("b", 1000, 10_240), ("c", 20, 205)] {
        let group_cgroups =
            GroupCgroups::create_as(&mut writer, &cgroups, None, group, &ALL, layout).unwrap();
        weight::give(&mut writer, &cgroups, &group_cgroups, CpuWeight::Of(weight)).unwrap();
        let dir = format!("{}/{}", cpu.mount, outermost(group));
        let v2 = cpu.version == Version::V2;
        let written = if v2 { weight } else { shares };
        assert_eq!(weighs(files, &dir).0, written.to_string(), "{group}");
        // What no child of the root hands on, anybody may take from the root.
        let slice = format!("{}/{SLICE}/cgroup.subtree_control", cpu.mount);
        let handed_on = files.read(&slice).is_ok_and(|text| text.contains("cpu"));
        assert!(handed_on || !v2, "{group}");
    }
    held.journal.undo_all(files);
    drop(held);
    assert_eq!(arm.differences(), none());
}

pub fn a_weight_in_place_goes_back_and_an_idle_cgroup_is_left(arm: &mut dyn Arm) {
    arm.start(0);
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let cpu = cgroups.of(Controller::Cpu).unwrap();
    let mut made = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut made.journal);
    // This cgroup stands for one that another program made.
    let theirs = GroupCgroups::create(&mut writer, &cgroups, GROUP, &[Controller::Cpu]).unwrap();
    let dir = theirs.places[0].dir.clone();
    let path = dir.strip_prefix(&cpu.mount).unwrap().to_owned();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let mut group_cgroups = GroupCgroups {
        group: GROUP.to_owned(),
        places: Vec::new(),
    };
    group_cgroups
        .adopt(&mut writer, &cgroups, &path, &[Controller::Cpu])
        .unwrap();
    let before = weighs(files, &dir);
    weight::give(&mut writer, &cgroups, &group_cgroups, CpuWeight::Of(5)).unwrap();
    assert_ne!(weighs(files, &dir), before);
    // Making it idle would lose its weight.
    let why = weight::give(&mut writer, &cgroups, &group_cgroups, CpuWeight::Idle).unwrap_err();
    assert!(why.to_string().contains("would lose the weight"), "{why}");
    held.journal.undo_all(files);
    assert_eq!(weighs(files, &dir), before);
    if files.exists(&format!("{dir}/cpu.idle")) {
        files.write(&format!("{dir}/cpu.idle"), "1").unwrap();
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let notes = weight::give(&mut writer, &cgroups, &group_cgroups, CpuWeight::Of(5)).unwrap();
        assert!(notes[0].contains("idle already"), "{notes:?}");
        assert_eq!(weighs(files, &dir).1, "1");
    }
    drop(held);
    made.journal.undo_all(files);
}
