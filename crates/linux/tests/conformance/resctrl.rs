//! resctrl as the kernel has it, and as `quell_kernel::resctrl` uses it. Each body runs on the
//! model (shaped like two of the lab's processors, as Linux 6.12 and 7.2). With
//! `QUELL_TEST_RESCTRL`, as in the lab, it runs on the kernel, and unmounts whatever is mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quell_kernel::error::Result;
use quell_kernel::procfs;
use quell_kernel::resctrl::groups::membership;
use quell_kernel::resctrl::{Group, Info, Kind, Mode, Reading, Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::cache;
use quell_types::partition::Mask;

use crate::arms::{Arm, Held};

pub const ROOT: &str = "/sys/fs/resctrl";

/// Mounts resctrl again, so that nothing in it has been changed.
pub fn fresh(files: &dyn Files, options: &str) -> (Resctrl, Info) {
    if Resctrl::find(files).unwrap().is_some() {
        files.unmount(ROOT).unwrap();
    }
    files.mount("resctrl", ROOT, options).unwrap();
    let resctrl = Resctrl::find(files).unwrap().unwrap();
    let info = resctrl.info(files).unwrap();
    (resctrl, info)
}

pub fn errno<T>(answer: std::io::Result<T>) -> i32 {
    answer.map_or_else(|e| e.raw_os_error().unwrap(), |_| 0)
}

/// The ways of the third level, in two halves.
fn halves(info: &Info) -> (u64, u64) {
    let (_, ways) = info.ways(3).next().unwrap();
    let low = ways.all.0 >> (ways.all.count() / 2);
    (low, ways.all.0 & !low)
}

/// Everything of resctrl that a run may change.
fn picture(files: &dyn Files, pids: &[u32]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let Some(resctrl) = Resctrl::find(files).unwrap() else {
        return all;
    };
    for group in resctrl.groups(files).unwrap() {
        for file in ["schemata", "mode", "cpus_list"] {
            let path = group.file(file);
            all.insert(path.clone(), files.text(&path).unwrap());
        }
    }
    for pid in pids {
        let group_cgroups = membership(files, *pid).unwrap();
        all.insert(pid.to_string(), format!("{group_cgroups:?}"));
    }
    all
}

/// A process and its children.
fn family(files: &dyn Files, pid: u32) -> BTreeSet<u32> {
    let all = procfs::processes(files).unwrap();
    let mut found: BTreeSet<u32> = all
        .iter()
        .filter(|s| s.parent == pid)
        .map(|s| s.id.pid)
        .collect();
    found.insert(pid);
    found
}

/// Makes a group. Monitoring ids of earlier groups are free again only when their lines have left
/// the caches.
pub fn make(files: &dyn Files, name: &str) {
    let begun = Instant::now();
    loop {
        match files.mkdir(&format!("{ROOT}/{name}")) {
            Err(e)
                if e.raw_os_error() == Some(libc::EBUSY)
                    && begun.elapsed() < Duration::from_secs(30) =>
            {
                std::thread::sleep(Duration::from_millis(100));
            }
            done => return done.unwrap(),
        }
    }
}

pub fn what_there_is_is_discovered(arm: &mut dyn Arm) {
    let files = arm.files();
    let (resctrl, info) = fresh(files, "");
    assert!(!resctrl.cdp && !resctrl.mib_s && resctrl.root == ROOT);
    let (l3, ways) = info.ways(3).next().unwrap();
    let all = resctrl.default_group().schemata(files).unwrap();
    for mask in all.masks_of("L3").unwrap().values() {
        assert_eq!(*mask, ways.all);
    }
    assert!(l3.classes >= info.classes() && info.classes() > 2);
    let usage = &ways.usage[&0];
    assert_eq!(usage.len(), ways.all.count() as usize);
    let (mb, bandwidth) = info.bandwidth().unwrap();
    assert_eq!(all.to_string().lines().last().unwrap(), "MB:0=100");
    assert!(bandwidth.least <= 10 && mb.classes >= info.classes());
    assert!(
        !info
            .resources
            .iter()
            .any(|r| matches!(r.kind, Kind::Unknown(_)))
    );
    let monitor = info.monitor(3).unwrap();
    assert!(monitor.rmids > info.classes());
    assert_eq!(resctrl.groups(files).unwrap(), [resctrl.default_group()]);
    let data = resctrl.default_group().data(files).unwrap();
    assert_eq!(
        (data[0].of.as_str(), data[0].domain, data[0].part),
        ("L3", 0, None)
    );
    for event in &monitor.events {
        assert!(
            matches!(data[0].events[event], Reading::Count(_)),
            "{event}"
        );
    }
    let sizes = resctrl.default_group().sizes(files).unwrap();
    assert_eq!(sizes["L3"][&0] % u64::from(ways.all.count()), 0);
}

pub fn the_kernel_refuses_and_says_why(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    let files = arm.files();
    let (resctrl, info) = fresh(files, "");
    let (_, ways) = info.ways(3).next().unwrap();
    make(files, "a");
    let hole = if ways.sparse {
        (0, "ok")
    } else {
        (libc::EINVAL, "The mask 5 has non-consecutive 1-bits")
    };
    let bad = libc::EINVAL;
    let too_wide = format!("L3:0={:x}", ways.all.0 + 1);
    let all = format!("L3:0={:x}", ways.all.0);
    for (file, text, error, status) in [
        ("a/schemata", "L3:0=5", hole.0, hole.1),
        ("a/schemata", &all, 0, "ok"),
        ("a/schemata", &too_wide, bad, "Mask out of range"),
        ("a/schemata", "L3:0=0", bad, "Mask out of range"),
        (
            "a/schemata",
            "L3:0=xyz",
            bad,
            "Non-hex character in the mask xyz",
        ),
        (
            "a/schemata",
            "L9:0=1",
            bad,
            "Unknown or unsupported resource name 'L9'",
        ),
        ("a/schemata", "L3", bad, "Missing ':'"),
        ("a/schemata", "", bad, "Missing ':'"),
        ("a/schemata", "L3:", bad, "Missing 'L3' value"),
        (
            "a/schemata",
            "L3:0",
            bad,
            "Missing '=' or non-numeric domain",
        ),
        (
            "a/schemata",
            "L3:x=1",
            bad,
            "Missing '=' or non-numeric domain",
        ),
        ("a/schemata", "L3:7=1", bad, "ok"),
        ("a/schemata", "L3:0=1;0=2", bad, "Duplicate domain 0"),
        (
            "a/schemata",
            "MB:0=5",
            bad,
            "MB value 5 out of range [10,100]",
        ),
        ("a/schemata", "MB:0=z", bad, "Invalid MB value z"),
        (
            "a/schemata",
            "L3:0=3\nMB:0=5",
            bad,
            "MB value 5 out of range [10,100]",
        ),
        ("a/schemata", "MB:0=15", 0, "ok"),
        ("a/mode", "exclusive", bad, "Schemata overlaps"),
        ("a/mode", "mine", bad, "Unknown or unsupported mode"),
        (
            "a/mode",
            "pseudo-locked",
            bad,
            "Unknown or unsupported mode",
        ),
        (
            "a/mode",
            "pseudo-locksetup",
            bad,
            "Pseudo-locking not supported",
        ),
        (
            "mode",
            "pseudo-locksetup",
            bad,
            "Cannot pseudo-lock default group",
        ),
        (
            "a/tasks",
            "4194000",
            libc::ESRCH,
            "No task 4194000; Error while processing task 4194000",
        ),
        ("a/tasks", "-1", bad, "Invalid pid -1"),
        ("a/tasks", "x", bad, "Task list parsing error pid x"),
        ("a/tasks", &pid.to_string(), 0, "ok"),
        ("size", "1", libc::EACCES, "ok"),
        ("info/L3/cbm_mask", "1", libc::EACCES, "ok"),
    ] {
        // Root may open a read-only file and is refused at the write. Other users are refused at
        // the open.
        let answer = errno(files.write(&format!("{ROOT}/{file}"), text));
        let answer = if answer == libc::EPERM {
            libc::EACCES
        } else {
            answer
        };
        let told = resctrl
            .last_status(files)
            .unwrap_or_else(|| "ok".to_owned());
        assert_eq!(
            (answer, told.as_str()),
            (error, status),
            "'{text}' to {file}"
        );
    }
    // Either all lines are accepted or none.
    let a = resctrl.group("a").schemata(files).unwrap();
    assert!(a.holds(&Schemata::parse(&format!("{all}\nMB:0=20"))), "{a}");
    for (file, text, error, said) in [
        ("a/cpus_list", "900", libc::ERANGE, "Bad CPU list/mask"),
        ("a/cpus_list", "x", bad, "Bad CPU list/mask"),
        ("cpus_list", "0", bad, "Can't drop CPUs from default group"),
        ("a/cpus_list", "1", 0, ""),
    ] {
        assert_eq!(
            errno(files.write(&format!("{ROOT}/{file}"), text)),
            error,
            "{text}"
        );
        // Older kernels keep the earlier status text.
        assert!(
            resctrl
                .last_status(files)
                .unwrap_or_default()
                .ends_with(said),
            "{text}"
        );
    }
    assert_eq!(resctrl.group("a").cpus(files).unwrap().to_string(), "1");
    assert!(!resctrl.default_group().cpus(files).unwrap().contains(1));
    for (dir, error) in [
        ("a", libc::EEXIST),
        ("a/x", libc::EPERM),
        ("mon_data/x", libc::EPERM),
        ("a/mon_groups/m", 0),
        ("a/mon_groups/m/x", libc::EPERM),
        ("mon_groups/m", 0),
    ] {
        assert_eq!(errno(files.mkdir(&format!("{ROOT}/{dir}"))), error, "{dir}");
    }
    let info_dir = errno(files.mkdir(&format!("{ROOT}/info/x")));
    assert!(
        [libc::EPERM, libc::ENODEV].contains(&info_dir),
        "{info_dir}"
    );
    // A task of `a` enters a monitor group of `a`, and of no other group.
    let of = |dir: &str| errno(files.write(&format!("{ROOT}/{dir}/tasks"), &pid.to_string()));
    assert_eq!((of("mon_groups/m"), of("a/mon_groups/m")), (bad, 0));
    let group_cgroups = membership(files, pid).unwrap().unwrap();
    assert_eq!(
        (
            group_cgroups.control.as_str(),
            group_cgroups.monitor.as_str()
        ),
        ("a", "m")
    );
    assert!(resctrl.group("a").tasks(files).unwrap().contains(&pid));
    let cpus = |list: &str| errno(files.write(&format!("{ROOT}/a/mon_groups/m/cpus_list"), list));
    assert_eq!((cpus("0"), cpus("1")), (bad, 0));
    for (dir, error) in [
        ("info", libc::EPERM),
        ("mon_data", libc::EPERM),
        ("a/mon_groups", libc::EPERM),
        ("nothing", libc::ENOENT),
        ("a", 0),
        ("mon_groups/m", 0),
    ] {
        assert_eq!(errno(files.rmdir(&format!("{ROOT}/{dir}"))), error, "{dir}");
    }
    // Its tasks and CPUs are in the default group again.
    assert!(resctrl.default_group().tasks(files).unwrap().contains(&pid));
    assert!(resctrl.default_group().cpus(files).unwrap().contains(1));
}

pub fn new_groups_get_what_nobody_has_to_himself(arm: &mut dyn Arm) {
    let files = arm.files();
    let (resctrl, info) = fresh(files, "");
    let (low, high) = halves(&info);
    let (_, ways) = info.ways(3).next().unwrap();
    let put = |file: &str, text: String| errno(files.write(&format!("{ROOT}/{file}"), &text));
    let mask = |group: &Group| group.schemata(files).unwrap().masks_of("L3").unwrap()[&0];
    let said = || resctrl.last_status(files).unwrap_or_default();
    make(files, "a");
    assert_eq!(mask(&resctrl.group("a")), ways.all);
    // Ways that devices fill cannot be exclusive. Nor can a group that shares the ways of another
    // level.
    let own = high & !ways.shareable.0;
    assert_eq!(put("schemata", format!("L3:0={low:x}")), 0);
    assert_eq!(put("a/schemata", format!("L3:0={own:x}")), 0);
    if info.ways(2).next().is_some() {
        assert_eq!(put("schemata", "L2:0=1;1=1".to_owned()), 0);
        assert_eq!(put("a/schemata", "L2:0=2;1=2".to_owned()), 0);
    }
    assert_eq!(put("a/mode", "exclusive".to_owned()), 0, "{}", said());
    assert_eq!(
        put("schemata", format!("L3:0={:x}", ways.all.0)),
        libc::EINVAL
    );
    assert_eq!(said(), "Overlaps with exclusive group");
    assert_eq!(
        put("a/schemata", format!("L3:0={:x}", own | low)),
        libc::EINVAL
    );
    assert_eq!(said(), "Overlaps with other group");
    if !ways.shareable.is_empty() {
        assert_eq!(put("a/schemata", format!("L3:0={high:x}")), libc::EINVAL);
        assert_eq!(said(), "Overlaps with other group");
    }
    make(files, "b");
    // The first piece that is not a's own. With sparse masks, newer kernels give every piece.
    let (pieces, found) = (Mask(low | ways.shareable.0), mask(&resctrl.group("b")));
    assert!(
        found == Mask(low) || (ways.sparse && found == pieces),
        "{found}"
    );
    // Quell reports the same before the kernel does, and names the group that has them.
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let wanted = Schemata::masks("L3", [0], ways.all);
    let refused =
        cache::allocate(&mut writer, &resctrl, &info, &resctrl.group("b"), &wanted).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("group a (exclusive) has"), "{refused}");
    if !ways.sparse {
        let hole = Schemata::masks("L3", [0], Mask(0b101));
        let refused =
            cache::allocate(&mut writer, &resctrl, &info, &resctrl.group("b"), &hole).unwrap_err();
        assert!(
            refused.to_string().contains("no mask with holes"),
            "{refused}"
        );
    }
    let refused =
        cache::set_mode(&mut writer, &resctrl, &resctrl.group("b"), &Mode::Exclusive).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("'Schemata overlaps': another group"),
        "{refused}"
    );
}

pub fn classes_and_ids_run_out_with_advice(arm: &mut dyn Arm) {
    let files = arm.files();
    let (resctrl, info) = fresh(files, "");
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let mut until_refused = |prefix: &str| {
        let mut made = 0;
        loop {
            match cache::make(&mut writer, &resctrl, &format!("{prefix}{made}")) {
                Ok(_) => made += 1,
                Err(e) => return (made, e.to_string()),
            }
        }
    };
    let (made, why) = until_refused("g");
    assert_eq!(made, info.classes() - 1);
    assert!(
        why.contains("resctrl says 'Out of CLOSIDs': every class of service is in use"),
        "{why}"
    );
    let (monitors, why) = until_refused("mon_groups/m");
    // Ids of earlier groups may still wait for their lines to leave the cache.
    let all = info.monitor(3).unwrap().rmids - info.classes();
    assert!(
        monitors <= all && monitors + 16 > all,
        "{monitors} of {all}"
    );
    assert!(
        why.contains("resctrl says 'Out of RMIDs': every monitoring id"),
        "{why}"
    );
    let taken = cache::make(&mut writer, &resctrl, "g0")
        .unwrap_err()
        .to_string();
    assert!(
        taken.contains("is there already, and not of this run"),
        "{taken}"
    );
    assert!(held.journal.undo_all(files).left.is_empty());
    assert_eq!(resctrl.groups(files).unwrap().len(), 1);
    assert!(resctrl.default_group().monitors(files).unwrap().is_empty());
}

pub fn a_part_is_given_followed_and_taken_back(arm: &mut dyn Arm) {
    let (pid, other) = (arm.start(3), arm.start(0));
    let files = arm.files();
    let (resctrl, info) = fresh(files, "");
    let (low, high) = halves(&info);
    // One of them lives in a group, and a monitor group of it, that another program has made.
    make(files, "theirs");
    make(files, "theirs/mon_groups/m");
    files
        .write(&format!("{ROOT}/theirs/tasks"), &other.to_string())
        .unwrap();
    files
        .write(
            &format!("{ROOT}/theirs/mon_groups/m/tasks"),
            &other.to_string(),
        )
        .unwrap();
    let mut pids: Vec<u32> = family(files, pid).into_iter().collect();
    assert_eq!(pids.len(), 4);
    pids.push(other);
    let before = picture(files, &pids);
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let adopted = cache::adopt_or_mount(&mut writer, "").unwrap();
    assert_eq!(adopted, resctrl, "nothing is mounted anew");
    let ours = cache::make(&mut writer, &resctrl, "quell.ours").unwrap();
    let part = |mask: u64| Schemata::masks("L3", [0], Mask(mask));
    assert!(cache::allocate(&mut writer, &resctrl, &info, &ours, &part(high)).unwrap());
    assert!(
        !cache::allocate(&mut writer, &resctrl, &info, &ours, &part(high)).unwrap(),
        "it is so already"
    );
    assert!(
        cache::allocate(
            &mut writer,
            &resctrl,
            &info,
            &resctrl.default_group(),
            &part(low)
        )
        .unwrap()
    );
    // The hardware has steps of its own. The value that the kernel makes of it is no change by
    // another program.
    let slow = Schemata::numbers("MB", [0], 15);
    assert!(cache::allocate(&mut writer, &resctrl, &info, &ours, &slow).unwrap());
    let mut find = |files: &dyn Files| -> Result<BTreeSet<u32>> {
        let mut all = family(files, pid);
        all.insert(other);
        Ok(all)
    };
    assert_eq!(
        cache::take(&mut writer, &resctrl, &ours, &mut find).unwrap(),
        5
    );
    assert_eq!(
        cache::take(&mut writer, &resctrl, &ours, &mut find).unwrap(),
        0
    );
    let inside = ours.tasks(files).unwrap();
    assert!(pids.iter().all(|pid| inside.contains(pid)), "{inside:?}");
    let now = ours.schemata(files).unwrap();
    assert!(
        now.holds(&part(high).with(&Schemata::numbers("MB", [0], 20))),
        "{now}"
    );
    let undone = held.journal.undo_all(files);
    assert!(undone.left.is_empty(), "{undone:?}");
    assert_eq!(picture(files, &pids), before);
}

pub fn what_others_set_since_stays(arm: &mut dyn Arm) {
    let files = arm.files();
    let (resctrl, info) = fresh(files, "");
    let (low, _) = halves(&info);
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let default = resctrl.default_group();
    let ways = Schemata::masks("L3", [0], Mask(low));
    cache::allocate(&mut writer, &resctrl, &info, &default, &ways).unwrap();
    cache::allocate(
        &mut writer,
        &resctrl,
        &info,
        &default,
        &Schemata::numbers("MB", [0], 50),
    )
    .unwrap();
    files.write(&default.file("schemata"), "L3:0=1").unwrap();
    let left = held.journal.undo_all(files).left;
    assert!(
        left.len() == 1 && left[0].contains("somebody has changed it since"),
        "{left:?}"
    );
    let now = default.schemata(files).unwrap();
    assert!(
        now.holds(&Schemata::parse("L3:0=1\nMB:0=100")),
        "theirs stays, ours is taken back: {now}"
    );
}

pub fn what_we_mounted_goes_unless_others_use_it(arm: &mut dyn Arm) {
    let files = arm.files();
    fresh(files, "");
    for others in [false, true] {
        if Resctrl::find(files).unwrap().is_some() {
            files.unmount(ROOT).unwrap();
        }
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let resctrl = cache::adopt_or_mount(&mut writer, "").unwrap();
        let info = resctrl.info(files).unwrap();
        let ours = cache::make(&mut writer, &resctrl, "quell.ours").unwrap();
        let all = info.ways(3).next().unwrap().1.all;
        let part = Schemata::masks("L3", [0], Mask(all.0 >> 1));
        cache::allocate(&mut writer, &resctrl, &info, &ours, &part).unwrap();
        if others {
            make(files, "theirs");
        }
        let left = held.journal.undo_all(files).left;
        let mounted = Resctrl::find(files).unwrap().is_some();
        assert_eq!(
            (mounted, left.len()),
            (others, usize::from(others)),
            "{left:?}"
        );
        assert!(!files.exists(&format!("{ROOT}/quell.ours")));
        assert_eq!(held.journal.undo_all(files).restored, 0);
    }
    assert_eq!(errno(files.mount("resctrl", ROOT, "")), libc::EBUSY);
    files.unmount(ROOT).unwrap();
    assert_eq!(
        errno(files.mount("resctrl", ROOT, "nonsense")),
        libc::EINVAL
    );
    files.mount("resctrl", ROOT, "").unwrap();
}

pub fn code_and_data_apart_are_divided_alike(arm: &mut dyn Arm) {
    let files = arm.files();
    let (_, whole) = fresh(files, "");
    let l3 = whole.ways(3).next().unwrap().0.classes;
    let (resctrl, info) = fresh(files, "cdp");
    assert!(resctrl.cdp);
    let names: Vec<&str> = info.ways(3).map(|(r, _)| r.name.as_str()).collect();
    assert_eq!(names, ["L3CODE", "L3DATA"]);
    assert_eq!(info.ways(3).next().unwrap().0.classes, l3 / 2);
    let (low, high) = halves(&info);
    let put = |file: &str, text: &str| errno(files.write(&format!("{ROOT}/{file}"), text));
    let said = || resctrl.last_status(files).unwrap_or_default();
    make(files, "a");
    assert_eq!(put("a/schemata", "L3:0=1"), libc::EINVAL);
    assert_eq!(said(), "Unknown or unsupported resource name 'L3'");
    assert_eq!(put("a/mode", "pseudo-locksetup"), libc::EINVAL);
    assert_eq!(said(), "CDP enabled");
    // One group's code over another's data is an overlap, too. The kernel reports it late, and
    // Quell before.
    let own = high & !info.ways(3).next().unwrap().1.shareable.0;
    for (file, text) in [
        ("schemata", format!("L3CODE:0={low:x}")),
        ("schemata", format!("L3DATA:0={low:x}")),
        ("a/schemata", format!("L3CODE:0={own:x}")),
        ("a/schemata", format!("L3DATA:0={own:x}")),
    ] {
        assert_eq!(put(file, &text), 0, "{text}");
    }
    if info.ways(2).next().is_none() {
        assert_eq!(put("a/mode", "exclusive"), 0);
        assert_eq!(put("schemata", &format!("L3CODE:0={own:x}")), libc::EINVAL);
        assert_eq!(said(), "Overlaps with exclusive group");
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let wanted = Schemata::masks("L3DATA", [0], Mask(own));
        let default = resctrl.default_group();
        let refused = cache::allocate(&mut writer, &resctrl, &info, &default, &wanted);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("group a (exclusive) has"), "{refused}");
    }
    fresh(files, "");
}
