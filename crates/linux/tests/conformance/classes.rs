//! What other programs do to resctrl while a run has parts of it. On the model only.

use std::collections::BTreeSet;

use quell_kernel::fake::{Fake, Flavour, Rdt, Spec};
use quell_kernel::resctrl::{Info, Mode, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::cache;
use quell_types::journal::Undo;
use quell_types::partition::Mask;

use crate::arms::Held;

fn machine(rdt: Rdt) -> (Fake, Resctrl, Info) {
    let fake = Fake::new(&Spec {
        rdt: Some(rdt),
        ..Spec::new(Flavour::V2)
    });
    let resctrl = Resctrl::find(&fake).unwrap().unwrap();
    let info = resctrl.info(&fake).unwrap();
    (fake, resctrl, info)
}

#[test]
fn a_cache_that_goes_offline_keeps_no_other_from_its_ways() {
    let (fake, resctrl, info) = machine(Rdt::sparse());
    let files: &dyn Files = &fake;
    let default = resctrl.default_group();
    let before = default.schemata(files).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let ways = Schemata::masks("L2", [0, 1], Mask(0xf));
    cache::allocate(&mut writer, &resctrl, &info, &default, &ways).unwrap();
    fake.with(|m| m.resctrl_domain("L2", 1, false));
    let undone = held.journal.undo_all(files);
    assert!(undone.left.is_empty(), "{undone:?}");
    fake.with(|m| m.resctrl_domain("L2", 1, true));
    assert_eq!(default.schemata(files).unwrap(), before);
}

#[test]
fn an_idle_group_that_is_taken_is_as_a_new_one_and_goes_back() {
    let (fake, resctrl, info) = machine(Rdt::icelake());
    let files: &dyn Files = &fake;
    for (name, text) in [
        ("", "L3:0=ff"),
        ("own", "L3:0=ff00"),
        ("idle", "L3:0=1\nMB:0=10"),
    ] {
        let group = match name {
            "" => resctrl.default_group(),
            name => resctrl.group(name),
        };
        if !name.is_empty() {
            files.mkdir(&group.dir).unwrap();
        }
        files.write(&group.file("schemata"), text).unwrap();
    }
    let own = resctrl.group("own");
    files
        .write(&own.file("mode"), Mode::Exclusive.as_str())
        .unwrap();
    let idle = resctrl.group("idle");
    let before = idle.schemata(files).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    cache::widen(&mut writer, &resctrl, &info, &idle).unwrap();
    let wide = Schemata::parse("L3:0=ff\nMB:0=100");
    assert_eq!(idle.schemata(files).unwrap(), wide);
    // So a step on one of them replaces its entry, and the other is still checked for drift.
    let written = held.journal.entries().iter().map(|e| match e {
        Undo::Write { new, .. } => new.clone(),
        other => format!("{other:?}"),
    });
    assert_eq!(written.collect::<Vec<_>>(), ["L3:0=ff", "MB:0=100"]);
    assert!(held.journal.undo_all(files).left.is_empty());
    assert_eq!(idle.schemata(files).unwrap(), before);
}

#[test]
fn cpus_of_a_class_go_back_and_those_of_others_stay() {
    let (fake, resctrl, _) = machine(Rdt::icelake());
    let files: &dyn Files = &fake;
    let [idle, other] = ["idle", "other"].map(|name| resctrl.group(name));
    for group in [&idle, &other] {
        files.mkdir(&group.dir).unwrap();
    }
    files.write(&other.file("cpus_list"), "1").unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let wanted = "0-1".parse().unwrap();
    let given = cache::give_cpus(&mut writer, &resctrl, &idle, &wanted).unwrap();
    assert_eq!(given.cpus.to_string(), "0");
    let taken: Vec<_> = given
        .taken
        .iter()
        .map(|(g, c)| format!("{g} {c}"))
        .collect();
    assert_eq!(taken, ["other 1"]);
    assert_eq!(idle.cpus(files).unwrap().to_string(), "0");
    assert!(held.journal.undo_all(files).left.is_empty());
    assert!(idle.cpus(files).unwrap().is_empty());
    assert_eq!(other.cpus(files).unwrap().to_string(), "1");
}

#[test]
fn a_group_that_is_gone_takes_nobody_and_says_so() {
    let (fake, resctrl, _) = machine(Rdt::icelake());
    let files: &dyn Files = &fake;
    let pid = fake.with(|m| m.spawn("program"));
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group = cache::make(&mut writer, &resctrl, "COS1").unwrap();
    files.rmdir(&group.dir).unwrap();
    let mut looks = 0;
    let mut find = |_: &dyn Files| {
        looks += 1;
        Ok(BTreeSet::from([pid]))
    };
    let refused = cache::take(&mut writer, &resctrl, &group, &mut find).unwrap_err();
    assert!(refused.to_string().contains("is gone"), "{refused}");
    assert_eq!(looks, 1);
}

#[test]
fn the_same_refusal_again_is_explained_again() {
    let (fake, resctrl, _) = machine(Rdt::icelake());
    let files: &dyn Files = &fake;
    let path = resctrl.default_group().file("schemata");
    let refused = || {
        let put = resctrl.explained(files, || files.put(&path, "L3:0=0"));
        put.unwrap_err().to_string()
    };
    let first = refused();
    assert!(first.contains("'Mask out of range'"), "{first}");
    assert_eq!(refused(), first);
}
