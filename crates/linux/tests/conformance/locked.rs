//! Memory locked in a cache, as the kernel does it and as `quell_kernel::resctrl` uses it. Each
//! body runs on the model shaped like the lab's `goldmont` and, in the lab, on the kernel.
//! `crates/cli/tests/lab/locked.rs` tests whether locked memory stays.

use quell_kernel::resctrl::locked::{holders, possible};
use quell_kernel::resctrl::{Mode, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::cache;
use quell_linux::undo;
use quell_types::partition::Mask;

use crate::arms::{Arm, Held};
use crate::resctrl::{ROOT, errno, fresh, make};

/// The two lowest ways of the first cache, which every group leaves.
const WAYS: Mask = Mask(0x3);
const LEFT: u64 = 0xfffc;

fn leave(files: &dyn Files, resctrl: &Resctrl) {
    let default = resctrl.default_group();
    let domains = default.schemata(files).unwrap().domains("L2");
    let left = Schemata::masks("L2", domains, Mask(LEFT));
    files
        .put(&default.file("schemata"), &left.to_string())
        .unwrap();
}

pub fn the_kernel_locks_and_refuses_and_says_why(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    let files = arm.files();
    let (resctrl, _) = fresh(files, "");
    possible(files, Some(&resctrl)).unwrap();
    for (name, file, text, status) in [
        (
            "busy",
            "tasks",
            pid.to_string(),
            "Tasks assigned to resource group",
        ),
        (
            "pinned",
            "cpus_list",
            "1".to_owned(),
            "CPUs assigned to resource group",
        ),
    ] {
        make(files, name);
        let group = resctrl.group(name);
        files.put(&group.file(file), &text).unwrap();
        let answer = errno(files.write(&group.file("mode"), "pseudo-locksetup"));
        assert_eq!(
            (answer, resctrl.last_status(files).as_deref()),
            (libc::EINVAL, Some(status))
        );
        files.rmdir(&group.dir).unwrap();
    }
    make(files, "a");
    let bad = libc::EINVAL;
    let ours = format!("L2:0={:x}", WAYS.0);
    let narrow = format!("L2:0={LEFT:x}");
    let step = |file: &str, text: &str, error: i32, status: &str| {
        let answer = match errno(files.write(&format!("{ROOT}/{file}"), text)) {
            libc::EPERM => libc::EACCES,
            answer => answer,
        };
        let told = resctrl
            .last_status(files)
            .unwrap_or_else(|| "ok".to_owned());
        assert_eq!(
            (answer, told.as_str()),
            (error, status),
            "'{text}' to {file}"
        );
    };
    step(
        "mode",
        "pseudo-locksetup",
        bad,
        "Cannot pseudo-lock default group",
    );
    step(
        "a/mode",
        "pseudo-locked",
        bad,
        "Unknown or unsupported mode",
    );
    step("a/mode", "pseudo-locksetup", 0, "ok");
    step("a/mode", "pseudo-locksetup", 0, "ok");
    let a = resctrl.group("a");
    assert_eq!(a.mode(files).unwrap(), Some(Mode::PseudoLockSetup));
    let text = |file: &str| files.text(&a.file(file)).unwrap();
    assert_eq!(text("schemata"), "L2:uninitialized");
    for file in ["tasks", "cpus", "cpus_list"] {
        assert_eq!(errno(files.read(&a.file(file))), libc::EACCES, "{file}");
        assert!(files.exists(&a.file(file)), "{file}");
    }
    assert!(a.tasks(files).unwrap().is_empty() && a.cpus(files).unwrap().is_empty());
    assert!(resctrl.used(files).unwrap().contains(&a));
    step("a/schemata", &ours, bad, "Overlaps with other group");
    step("schemata", &narrow, 0, "ok");
    step(
        "a/schemata",
        "L2:0=5",
        bad,
        "The mask 5 has non-consecutive 1-bits",
    );
    step("a/schemata", &ours, 0, "ok");
    assert_eq!(a.mode(files).unwrap(), Some(Mode::PseudoLocked));
    assert_eq!(
        (text("schemata"), text("size")),
        (ours.clone(), "L2:0=131072".to_owned())
    );
    assert_eq!(text("cpus_list"), "0-1");
    assert_eq!(errno(files.read(&a.file("tasks"))), libc::EACCES);
    let usage = files.text(&format!("{ROOT}/info/L2/bit_usage")).unwrap();
    assert!(
        usage.split(';').next().unwrap().ends_with("SSPP"),
        "{usage}"
    );
    assert!(files.exists("/dev/pseudo_lock/a"));
    step(
        "a/mode",
        "shareable",
        bad,
        "Cannot change pseudo-locked group",
    );
    step("a/mode", "pseudo-locked", 0, "ok");
    step("a/schemata", &ours, bad, "Resource group is pseudo-locked");
    step(
        "schemata",
        "L2:0=ffff",
        bad,
        "CBM overlaps with pseudo-locked region",
    );
    // Another region close to it is refused. A new group leaves it out, and the class is free
    // again.
    make(files, "b");
    let b = resctrl.group("b").schemata(files).unwrap();
    assert_eq!(b.masks_of("L2").unwrap()[&0], Mask(LEFT));
    make(files, "c");
    step("b/mode", "pseudo-locksetup", 0, "ok");
    step("schemata", "L2:0=ff0", 0, "ok");
    step("c/schemata", "L2:0=ff0", 0, "ok");
    step(
        "b/schemata",
        "L2:0=f000",
        bad,
        "Pseudo-locked region in hierarchy",
    );
    step("b/mode", "shareable", 0, "ok");
    for name in ["a", "b", "c"] {
        assert_eq!(errno(files.rmdir(&resctrl.group(name).dir)), 0, "{name}");
    }
    assert!(!files.exists("/dev/pseudo_lock/a"));
    step("schemata", "L2:0=ffff", 0, "ok");
}

pub fn memory_is_locked_and_let_go(arm: &mut dyn Arm) {
    let (resctrl, info) = fresh(arm.files(), "");
    arm.remember();
    let files = arm.files();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let what = Schemata::masks("L2", [0], WAYS);
    let early = cache::lock_memory(&mut writer, &resctrl, "quell-early", &what);
    let early = early.unwrap_err().to_string();
    assert!(
        early.contains("'Overlaps with other group'") && early.contains("give the others less"),
        "{early}"
    );
    let default = resctrl.default_group();
    let domains = default.schemata(files).unwrap().domains("L2");
    let left = Schemata::masks("L2", domains, Mask(LEFT));
    cache::allocate(&mut writer, &resctrl, &info, &default, &left).unwrap();
    let region = cache::lock_memory(&mut writer, &resctrl, "quell-a", &what).unwrap();
    assert_eq!(
        (region.bytes, region.cpus.to_string().as_str()),
        (128 << 10, "0-1")
    );
    assert!(files.exists(&region.device()));
    let second = cache::lock_memory(
        &mut writer,
        &resctrl,
        "quell-b",
        &Schemata::masks("L2", [0], Mask(0xc)),
    );
    let second = second.unwrap_err().to_string();
    assert!(
        second.contains("one region in a cache") || second.contains("Overlaps"),
        "{second}"
    );
    let refused = cache::allocate(
        &mut writer,
        &resctrl,
        &info,
        &default,
        &Schemata::masks("L2", [0], Mask(0xffff)),
    );
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("quell-a (pseudo-locked) has 0x3 of it"),
        "{refused}"
    );
    assert_eq!(held.journal.undo_all(files).left, Vec::<String>::new());
    assert_eq!(arm.differences(), Vec::<String>::new());
}

pub fn what_is_open_stays_locked_until_it_is_closed(arm: &mut dyn Arm) {
    let files = arm.files();
    if Resctrl::find(files).unwrap().is_some() {
        files.unmount(ROOT).unwrap();
    }
    arm.remember();
    // Quell mounted it, so it has to be unmounted, too, and later.
    let entries = {
        let files = arm.files();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let resctrl = cache::adopt_or_mount(&mut writer, "").unwrap();
        leave(files, &resctrl);
        let what = Schemata::masks("L2", [0], WAYS);
        cache::lock_memory(&mut writer, &resctrl, "quell-a", &what).unwrap();
        held.let_go()
    };
    let pid = arm.opens("quell-a");
    let files = arm.files();
    assert_eq!(holders(files, "quell-a").unwrap(), [pid].into());
    let outcome = undo::undo(files, &entries);
    let left = outcome.undone.left.join("\n");
    assert!(
        left.contains(&format!("process {pid} has /dev/pseudo_lock/quell-a open")),
        "{left}"
    );
    assert!(left.contains("stays mounted with"), "{left}");
    let resctrl = Resctrl::find(files).unwrap().unwrap();
    assert_eq!(
        resctrl.group("quell-a").mode(files).unwrap(),
        Some(Mode::PseudoLocked)
    );
    arm.closes(pid);
    let again = undo::undo(arm.files(), &outcome.failed);
    assert_eq!((again.undone.left, again.failed), (Vec::new(), Vec::new()));
    assert_eq!(arm.differences(), Vec::<String>::new());
}
