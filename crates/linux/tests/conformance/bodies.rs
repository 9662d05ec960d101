//! The bodies: each a promise of a module of the backend, or of the kernel's interfaces.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::cgroup_tree::{procs_file, tasks_in};
use quell_kernel::root::Files;
use quell_kernel::tasks::{Matcher, assign, present};
use quell_kernel::{cgroup, irq, procfs, workqueue};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::cores::confine;
use quell_linux::enforce::{affinity, cpumax, io, quiet, weight};
use quell_linux::group_cgroups::{GroupCgroups, Layout, SLICE, outermost};
use quell_linux::undo;
use quell_types::cpuset::CpuSet;
use quell_types::options::CpuWeight;
use quell_types::task::TaskMatch;
use quell_types::units::{Nanos, Share};

use crate::arms::{Arm, Held};

pub const GROUP: &str = "quell-test";
pub const ALL: [Controller; 3] = [Controller::Cpuset, Controller::Cpu, Controller::PerfEvent];

fn by_pid(pid: u32) -> TaskMatch {
    TaskMatch {
        pid: Some(pid),
        ..TaskMatch::default()
    }
}

/// Gathers a process and its descendants in the cgroups of the test's group.
pub fn gather(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    pid: u32,
    controllers: &[Controller],
) -> GroupCgroups {
    let group_cgroups = GroupCgroups::create(writer, cgroups, GROUP, controllers).unwrap();
    group_cgroups
        .gather(writer, &mut |files| family(files, pid))
        .unwrap();
    group_cgroups
}

/// The same with its own journal.
pub fn gathered<'a>(
    files: &'a dyn Files,
    pid: u32,
    controllers: &[Controller],
) -> (Cgroups, Held<'a>, GroupCgroups) {
    let cgroups = Cgroups::discover(files).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = gather(&mut writer, &cgroups, pid, controllers);
    (cgroups, held, group_cgroups)
}

pub fn family(files: &dyn Files, pid: u32) -> quell_kernel::error::Result<Vec<procfs::Stat>> {
    let matcher = Matcher::new(files, GROUP, &[by_pid(pid)])?;
    present(files, std::slice::from_ref(&matcher), &BTreeSet::new())?;
    Ok(assign(files, &[matcher], &BTreeSet::new(), &mut || {})?.take(GROUP))
}

pub fn ends(files: &dyn Files) -> (CpuSet, CpuSet) {
    let all = quell_kernel::topology::online(files).unwrap();
    let last = all.iter().next_back().unwrap();
    (CpuSet::from_iter(all.first()), CpuSet::from_iter([last]))
}

pub fn none() -> Vec<String> {
    Vec::new()
}

pub fn a_group_with_children_is_gathered_confined_and_put_back(arm: &mut dyn Arm) {
    let pid = arm.start(2);
    arm.remember();
    let files = arm.files();
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &ALL);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let (_, last) = ends(files);
    let confined = confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &last,
        &"0".parse().unwrap(),
        true,
        &[],
    )
    .unwrap();
    for place in &group_cgroups.places {
        let inside = tasks_in(files, &place.dir).unwrap();
        assert_eq!(
            inside.len(),
            3,
            "{}: the process and both its children",
            place.dir
        );
    }
    assert_eq!(files.affinity(pid).unwrap(), last);
    if confined.partition {
        let v2 = cgroups.of(Controller::Cpuset).unwrap();
        let top = cgroup::effective_cpus(files, v2, &v2.mount)
            .unwrap()
            .unwrap();
        assert!(
            top.intersection(&last).is_empty(),
            "everybody else is off {last}: {top}"
        );
    }
    let undone = held.journal.undo_all(files);
    assert_eq!(undone.left, none());
    drop(held);
    assert_eq!(arm.differences(), none());
}

pub fn interrupts_and_kernel_work_are_kept_away_and_let_back(arm: &mut dyn Arm) {
    arm.remember();
    let files = arm.files();
    let (first, last) = ends(files);
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let moved = quiet::interrupts(&mut writer, &first, &last).unwrap();
    quiet::kernel_work(&mut writer, &last).unwrap();
    assert_eq!(workqueue::mask(files).unwrap(), Some(last.clone()));
    for number in files
        .names("/proc/irq")
        .unwrap()
        .iter()
        .filter_map(|n| n.parse::<u32>().ok())
    {
        let path = format!("/proc/irq/{number}/smp_affinity_list");
        let now = irq::read_settled(files, &path, &last.to_string()).unwrap();
        let now: CpuSet = now.trim().parse().unwrap();
        let quiet = now.intersection(&first).is_empty();
        assert!(
            quiet != moved.fixed.contains(&number),
            "interrupt {number} on CPUs {now}, told as fixed: {:?}",
            moved.fixed
        );
    }
    assert!(quiet::interrupts(&mut writer, &first, &first).is_err());
    assert!(
        quiet::kernel_work(&mut writer, &CpuSet::new()).is_err(),
        "no CPU at all is refused"
    );
    assert_eq!(held.journal.undo_all(files).left, none());
    drop(held);
    assert_eq!(arm.differences(), none());
}

pub fn a_quota_is_set_changed_and_taken_back(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    arm.remember();
    let files = arm.files();
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &[Controller::Cpu]);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let dir = group_cgroups.places[0].dir.clone();
    let read = || -> Vec<String> {
        let names = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"];
        let texts = names
            .iter()
            .filter_map(|n| files.read(&format!("{dir}/{n}")).ok());
        texts
            .flat_map(|t| t.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let fresh = read();
    let mark = writer.journal.mark();
    let ms = Nanos::millis;
    let notes = cpumax::limit(
        &mut writer,
        &cgroups,
        &group_cgroups,
        Share::percent(40),
        ms(100),
    )
    .unwrap();
    assert_eq!(
        (read(), notes),
        (vec!["40000".to_owned(), "100000".to_owned()], none())
    );
    // A period that is ten times as long, and a far shorter one: no value in between is refused.
    cpumax::limit(
        &mut writer,
        &cgroups,
        &group_cgroups,
        Share::percent(10),
        ms(1000),
    )
    .unwrap();
    let notes = cpumax::limit(
        &mut writer,
        &cgroups,
        &group_cgroups,
        Share::percent(10),
        ms(1),
    )
    .unwrap();
    assert_eq!(read(), ["1000", "10000"]);
    assert!(notes[0].contains("10ms instead of 1ms"), "{notes:?}");
    assert_eq!(held.journal.undo_to(files, mark).left, none());
    // The cgroup stays, so the quota itself is restored.
    assert_eq!(read(), fresh);
    held.journal.undo_all(files);
    drop(held);
    assert_eq!(arm.differences(), none());
}

/// The weight of a cgroup, and whether it is idle.
pub fn weighs(files: &dyn Files, dir: &str) -> (String, String) {
    let read = |names: &[&str]| {
        let mut texts = names.iter().map(|n| files.read(&format!("{dir}/{n}")));
        let found = texts.find_map(Result::ok).unwrap_or_default();
        found.trim().to_owned()
    };
    (read(&["cpu.weight", "cpu.shares"]), read(&["cpu.idle"]))
}

pub fn a_group_is_given_a_low_weight_and_room_for_brakes(arm: &mut dyn Arm) {
    let pid = arm.start(1);
    arm.remember();
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let cpu = cgroups.of(Controller::Cpu).unwrap();
    let v2 = cpu.version == Version::V2;
    if !files.exists(&format!("{}/cpu.idle", cpu.mount)) && !v2 {
        return quell_testing::skip("cgroups of this kernel cannot be idle");
    }
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let layout = Layout {
        outermost: true,
        braked: true,
    };
    let group_cgroups =
        GroupCgroups::create_as(&mut writer, &cgroups, None, GROUP, &ALL, layout).unwrap();
    group_cgroups
        .gather(&mut writer, &mut |files| family(files, pid))
        .unwrap();
    weight::give(&mut writer, &cgroups, &group_cgroups, CpuWeight::Of(5)).unwrap();
    weight::under_the_brake(&mut writer, &group_cgroups).unwrap();
    let group = format!("{}/{}", cpu.mount, outermost(GROUP));
    let (five, highest) = if v2 { ("5", "10000") } else { ("51", "262144") };
    assert_eq!(weighs(files, &group), (five.into(), "0".into()));
    assert_eq!(
        weighs(files, &format!("{group}/stop")),
        (highest.into(), "0".into())
    );
    assert_eq!(weighs(files, &format!("{group}/work")).1, "1");
    let inside = tasks_in(files, &format!("{group}/work")).unwrap();
    assert!(inside.contains(&pid), "{inside:?}");
    assert_eq!(
        group_cgroups.stop_procs_files(),
        [format!("{group}/stop/cgroup.procs")]
    );
    held.journal.undo_all(files);
    drop(held);
    assert_eq!(arm.differences(), none());
}

pub fn a_weight_of_disks_is_the_groups_and_its_slices_and_goes_back(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    arm.remember();
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let version = cgroups.of(Controller::Io).map(|io| io.version);
    let controller = match version {
        Some(Version::V2) => Controller::Io,
        _ => Controller::Cpu,
    };
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = gather(&mut writer, &cgroups, pid, &[controller]);
    let given = io::weigh(&mut writer, &cgroups, &group_cgroups, 700);
    if version == Some(Version::V2) {
        given.unwrap();
        let dir = &group_cgroups.places[0].dir;
        let weight = |dir: &str| files.read(&format!("{dir}/io.weight"));
        // A kernel without BFQ and without io.cost has no weights.
        if let Ok(text) = weight(dir) {
            assert_eq!(text.trim(), "default 700");
            let slice = dir.strip_suffix(&format!("/{GROUP}")).unwrap();
            assert_eq!(weight(slice).unwrap().trim(), "default 700");
            // The slice does not take over a smaller weight of another group.
            let other =
                GroupCgroups::create(&mut writer, &cgroups, "other", &[controller]).unwrap();
            io::weigh(&mut writer, &cgroups, &other, 300).unwrap();
            assert_eq!(weight(&other.places[0].dir).unwrap().trim(), "default 300");
            assert_eq!(weight(slice).unwrap().trim(), "default 700");
        }
    } else {
        let why = given.unwrap_err().to_string();
        assert!(why.contains("not set in one cgroup (v2)"), "{why}");
    }
    held.journal.undo_all(files);
    drop(held);
    assert_eq!(arm.differences(), none());
}

pub fn what_somebody_else_has_changed_since_is_left(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    let files = arm.files();
    let (first, last) = ends(files);
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let notes = affinity::confine(&mut writer, &[pid], &last).unwrap();
    assert_eq!(notes, none());
    assert_eq!(files.affinity(pid).unwrap(), last);
    files.set_affinity(pid, &first).unwrap();
    let undone = held.journal.undo_all(files);
    assert_eq!((undone.restored, undone.left.len()), (0, 1), "{undone:?}");
    assert!(
        undone.left[0].contains(&format!("task {pid} runs on CPUs {first}")),
        "{undone:?}"
    );
    assert_eq!(files.affinity(pid).unwrap(), first);
}

pub fn a_task_moved_by_somebody_else_stays_there(arm: &mut dyn Arm) {
    let pid = arm.start(0);
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let hierarchy = cgroups
        .of(Controller::PerfEvent)
        .or(cgroups.of(Controller::Cpu))
        .unwrap();
    let elsewhere = format!("{}/quell-test-elsewhere", hierarchy.mount);
    let mut outer = Held::new(files);
    JournaledWriter::new(files, &mut outer.journal)
        .make(&elsewhere, &hierarchy.mount)
        .unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    // Programs that were put into the group's cgroups are moved out with it. Programs that were
    // taken out are left alone.
    let group_cgroups = gather(
        &mut writer,
        &cgroups,
        pid,
        &[Controller::PerfEvent, Controller::Cpu],
    );
    assert!(
        group_cgroups
            .places
            .iter()
            .any(|p| p.hierarchy == *hierarchy)
    );
    files
        .write(&format!("{elsewhere}/cgroup.procs"), &pid.to_string())
        .unwrap();
    let undone = held.journal.undo_all(files);
    let told = undone
        .left
        .iter()
        .any(|l| l.contains(&format!("task {pid} was not moved back")));
    assert!(told, "{undone:?}");
    assert_eq!(hierarchy.dir_of(files, pid).unwrap(), Some(elsewhere));
}

pub fn a_group_of_ours_is_killed_whole(arm: &mut dyn Arm) {
    let pid = arm.start(2);
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    // A kernel without `cgroup.kill` kills by signals, which no process of the model can receive.
    let Some(_) = cgroups.v2() else { return };
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = gather(&mut writer, &cgroups, pid, &[Controller::PerfEvent]);
    let mut places = group_cgroups
        .places
        .iter()
        .filter(|p| p.hierarchy.version == Version::V2);
    let Some(place) = places.next() else { return };
    assert!(cgroup::populated(files, &place.dir).unwrap());
    assert!(cgroup::kill(files, &place.dir, Duration::from_secs(5)).unwrap());
    assert!(!cgroup::populated(files, &place.dir).unwrap());
    assert_eq!(held.journal.undo_all(files).left, none());
    drop(held);
    arm.wait(pid);
}

pub fn undoing_twice_changes_nothing(arm: &mut dyn Arm) {
    let pid = arm.start(1);
    arm.remember();
    let files = arm.files();
    let (cgroups, mut held, group_cgroups) = gathered(files, pid, &ALL);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let (_, last) = ends(files);
    confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &last,
        &"0".parse().unwrap(),
        false,
        &[],
    )
    .unwrap();
    let entries = held.journal.entries().to_vec();
    let first = undo::undo(files, &entries);
    assert_eq!((first.undone.left, first.failed.len()), (none(), 0));
    let second = undo::undo(files, &entries);
    assert_eq!((second.undone.restored, second.undone.left), (0, none()));
    drop(held);
    assert_eq!(arm.differences(), none());
}

pub fn tasks_are_matched_with_their_descendants(arm: &mut dyn Arm) {
    let pid = arm.start(2);
    let files = arm.files();
    let found = family(files, pid).unwrap();
    assert_eq!(found.len(), 3);
    assert!(
        found.iter().all(|s| s.id.pid == pid || s.parent == pid),
        "{found:?}"
    );
    let all = procfs::processes(files).unwrap();
    let kernel = all.iter().find(|s| s.bound()).unwrap();
    let error = family(files, kernel.id.pid).unwrap_err().to_string();
    assert!(
        error.contains("is a kernel thread, has ended, or is Quell itself"),
        "{error}"
    );
    let error = family(files, std::process::id()).unwrap_err().to_string();
    assert!(error.contains("Quell itself"), "{error}");
    let same = Matcher::new(files, "twin", &[by_pid(pid)]).unwrap();
    let own = Matcher::new(files, GROUP, &[by_pid(pid)]).unwrap();
    let both = assign(files, &[own, same], &BTreeSet::new(), &mut || {}).unwrap();
    assert_eq!(both.all().count(), 0);
    let text = both.left_out[0].to_string();
    assert!(text.contains("two groups, quell-test and twin"), "{text}");
}

pub fn a_child_born_in_a_home_goes_where_its_parent_came_from(arm: &mut dyn Arm) {
    let pid = arm.start(1);
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let hierarchy = cgroups
        .of(Controller::PerfEvent)
        .or(cgroups.of(Controller::Cpu))
        .unwrap()
        .clone();
    let origin = format!("{}/quell-test-origin", hierarchy.mount);
    let mut outer = Held::new(files);
    JournaledWriter::new(files, &mut outer.journal)
        .make(&origin, &hierarchy.mount)
        .unwrap();
    files
        .write(&format!("{origin}/cgroup.procs"), &pid.to_string())
        .unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups =
        GroupCgroups::create(&mut writer, &cgroups, GROUP, &[Controller::PerfEvent]).unwrap();
    let mut only = |files: &dyn Files| Ok(procfs::stat(files, pid)?.into_iter().collect());
    group_cgroups.gather(&mut writer, &mut only).unwrap();
    let child = family(files, pid)
        .unwrap()
        .into_iter()
        .find(|s| s.parent == pid)
        .unwrap();
    let nested = format!("{}/inner", group_cgroups.places[0].dir);
    files.mkdir(&nested).unwrap();
    files
        .write(&procs_file(files, &nested), &child.id.pid.to_string())
        .unwrap();
    assert_eq!(held.journal.undo_all(files).left, none());
    assert!(!files.exists(&group_cgroups.places[0].dir));
    assert_eq!(hierarchy.dir_of(files, child.id.pid).unwrap(), Some(origin));
}

pub fn the_hierarchies_are_found(arm: &mut dyn Arm) {
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    for controller in [Controller::Cpuset, Controller::Cpu, Controller::Freezer] {
        let hierarchy = cgroups.of(controller).unwrap();
        let procs = format!("{}/cgroup.procs", hierarchy.own_dir());
        assert!(files.exists(&procs), "{procs}");
        let file = format!("{}/{SLICE}", hierarchy.mount);
        assert!(!files.exists(&file), "{file}");
    }
    let all = quell_kernel::topology::online(files).unwrap();
    assert!(cgroups.own_cpus(files).unwrap().unwrap().is_subset(&all));
}

pub fn a_cgroup_is_confined_in_place_and_nobody_is_moved(arm: &mut dyn Arm) {
    let pid = arm.start(1);
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let hierarchy = cgroups.of(Controller::Cpuset).unwrap();
    let place = format!("{}/quell-test-service", hierarchy.mount);
    let all = quell_kernel::topology::online(files).unwrap();
    // The cgroup of a service, with what a v1 cpuset needs.
    let mut outer = Held::new(files);
    JournaledWriter::new(files, &mut outer.journal)
        .make(&place, &hierarchy.mount)
        .unwrap();
    if hierarchy.version == Version::V1 {
        files.put(&format!("{place}/cpuset.mems"), "0").unwrap();
        files
            .put(&format!("{place}/cpuset.cpus"), &all.to_string())
            .unwrap();
    }
    files
        .put(&format!("{place}/cgroup.procs"), &pid.to_string())
        .unwrap();
    let before = files.affinity(pid).unwrap();
    let inside = tasks_in(files, &place).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let mut group_cgroups = GroupCgroups {
        group: GROUP.into(),
        places: Vec::new(),
    };
    group_cgroups
        .adopt(
            &mut writer,
            &cgroups,
            "/quell-test-service",
            &[Controller::Cpuset],
        )
        .unwrap();
    assert!(
        group_cgroups
            .adopt(&mut writer, &cgroups, "/", &[Controller::Cpuset])
            .is_err(),
        "the root is everybody's"
    );
    let (first, _) = ends(files);
    confine(
        &mut writer,
        &cgroups,
        &group_cgroups,
        &first,
        &CpuSet::new(),
        false,
        &[],
    )
    .unwrap();
    assert_eq!(files.affinity(pid).unwrap(), first);
    assert_eq!(tasks_in(files, &place).unwrap(), inside);
    assert_eq!(held.journal.undo_all(files).left, none());
    assert_eq!(files.affinity(pid).unwrap(), before);
    assert_eq!(tasks_in(files, &place).unwrap(), inside);
}
