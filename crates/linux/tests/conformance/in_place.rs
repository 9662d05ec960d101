//! Groups that are braked in another owner's cgroup, by threaded children of it.

use std::collections::BTreeSet;

use quell_kernel::cgroup::{Cgroups, Controller, Version};
use quell_kernel::cgroup_tree::{self, tasks_in};
use quell_kernel::fake::{Fake, Flavour, Spec};
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::tasks::{Matcher, assign};
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::{threaded, weight};
use quell_linux::group_cgroups::GroupCgroups;
use quell_types::task::TaskMatch;

use crate::arms::{Arm, Held, compare, furnished};
use crate::bodies::{GROUP, family, none, weighs};

/// The processes of a cgroup, and their descendants.
pub fn residents(
    files: &dyn Files,
    cgroup: &str,
) -> quell_kernel::error::Result<Vec<procfs::Stat>> {
    let keys = TaskMatch {
        cgroup: Some(cgroup.to_owned()),
        ..TaskMatch::default()
    };
    let matcher = Matcher::new(files, GROUP, &[keys])?;
    let mut found = assign(files, &[matcher], &BTreeSet::new(), &mut || {})?;
    Ok(found.take(GROUP))
}

/// Divides a cgroup on v2 into its tasks and room for brakes.
pub fn braked_in_place(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    cgroup: &str,
) -> GroupCgroups {
    let mut group_cgroups = GroupCgroups {
        group: GROUP.into(),
        places: Vec::new(),
    };
    let controllers = [Controller::Cpu, Controller::PerfEvent];
    group_cgroups
        .adopt(writer, cgroups, cgroup, &controllers)
        .unwrap();
    threaded::check(writer.files, GROUP, &group_cgroups.places[0].dir).unwrap();
    threaded::divide(writer, cgroups, &mut group_cgroups).unwrap();
    group_cgroups
        .gather(writer, &mut |files| residents(files, cgroup))
        .unwrap();
    weight::under_the_brake(writer, &group_cgroups).unwrap();
    group_cgroups
}

pub fn a_cgroup_is_braked_in_place_and_put_back(arm: &mut dyn Arm) {
    // The child lives in another cgroup.
    let (pid, newcomer) = (arm.start(1), arm.start(0));
    let files = arm.files();
    let cgroups = Cgroups::discover(files).unwrap();
    let cpu = cgroups.of(Controller::Cpu).unwrap();
    if cpu.version == Version::V1 {
        return quell_testing::skip("cgroup v1 has no threaded children");
    }
    let (name, service) = (
        "/quell-test-service",
        format!("{}/quell-test-service", cpu.mount),
    );
    let mut outer = Held::new(files);
    JournaledWriter::new(files, &mut outer.journal)
        .make(&service, &cpu.mount)
        .unwrap();
    let enter = |pid: u32| files.put(&format!("{service}/cgroup.procs"), &pid.to_string());
    let read = |file: &str| files.text(&format!("{service}/{file}")).unwrap();
    enter(pid).unwrap();
    let child = family(files, pid).unwrap()[1].id.pid;
    let elsewhere = cpu.dir_of(files, child).unwrap();
    let mut held = Held::new(files);
    let mut writer = JournaledWriter::new(files, &mut held.journal);
    let group_cgroups = braked_in_place(&mut writer, &cgroups, name);
    assert_eq!(read("cgroup.type"), "domain threaded");
    assert_eq!(
        group_cgroups.stop_procs_files(),
        [format!("{service}/stop/cgroup.procs")]
    );
    let work = format!("{service}/work");
    assert_eq!(group_cgroups.tasks_dirs(), std::slice::from_ref(&work));
    assert_eq!(weighs(files, &work).1, "1");
    assert_eq!(weighs(files, &format!("{service}/stop")).0, "10000");
    assert_eq!(tasks_in(files, &work).unwrap(), [pid]);
    assert_eq!(threaded::lost(files, &group_cgroups), None);
    let mut processes = Vec::new();
    cgroup_tree::processes(files, &work, |pid| processes.push(pid));
    assert_eq!(processes, [pid]);
    // A program that enters it later lies next to `work`, and is moved there.
    enter(newcomer).unwrap();
    assert_eq!(cpu.dir_of(files, newcomer).unwrap(), Some(service.clone()));
    group_cgroups
        .gather(&mut writer, &mut |files| residents(files, name))
        .unwrap();
    assert_eq!(cpu.dir_of(files, newcomer).unwrap(), Some(work));
    assert_eq!(cpu.dir_of(files, child).unwrap(), elsewhere);
    assert_eq!(held.journal.undo_all(files).left, none());
    assert_eq!(
        (read("cgroup.type"), read("cgroup.subtree_control")),
        ("domain".into(), String::new())
    );
    assert_eq!(files.folders(&service).unwrap(), none());
    for pid in [pid, newcomer] {
        assert_eq!(cpu.dir_of(files, pid).unwrap(), Some(service.clone()));
    }
}

/// A service with a second thread, in its own cgroup.
fn service(fake: &Fake) -> (u32, String) {
    let files: &dyn Files = fake;
    let dir = "/sys/fs/cgroup/service".to_owned();
    let pid = fake.with(|m| {
        let pid = m.spawn("service");
        m.thread(pid);
        pid
    });
    files.mkdir(&dir).unwrap();
    files
        .put(&format!("{dir}/cgroup.procs"), &pid.to_string())
        .unwrap();
    (pid, dir)
}

#[test]
fn a_cgroup_that_can_have_no_brake_is_refused() {
    let why = |set: &dyn Fn(&Fake, u32, &str)| {
        let fake = furnished(&Spec::new(Flavour::V2));
        let (pid, dir) = service(&fake);
        set(&fake, pid, &dir);
        let before = fake.dump();
        let why = threaded::check(&fake, GROUP, &dir).unwrap_err().to_string();
        assert_eq!(compare(&before, &fake.dump()), none());
        assert!(why.contains("mechanisms.bandwidth = \"any\""), "{why}");
        why
    };
    let put = |fake: &Fake, path: &str, text: &str| (fake as &dyn Files).put(path, text).unwrap();
    let child = why(&|fake, _, dir| fake.mkdir(&format!("{dir}/worker")).unwrap());
    assert!(child.contains("child cgroups (worker)"), "{child}");
    let empty = |fake: &Fake, pid: u32| put(fake, "/sys/fs/cgroup/cgroup.procs", &pid.to_string());
    let domain = why(&|fake, pid, dir| {
        empty(fake, pid);
        put(
            fake,
            "/sys/fs/cgroup/cgroup.subtree_control",
            "+memory +cpu",
        );
        put(
            fake,
            &format!("{dir}/cgroup.subtree_control"),
            "+memory +cpu",
        );
    });
    assert!(domain.contains("enables memory "), "{domain}");
    let inside = why(&|fake, pid, dir| {
        empty(fake, pid);
        put(fake, &format!("{dir}/cgroup.type"), "threaded");
    });
    assert!(inside.contains("is 'threaded'"), "{inside}");
    let realtime = why(&|fake, pid, _| fake.with(|m| m.realtime(pid)));
    assert!(realtime.contains("SCHED_FIFO"), "{realtime}");
}

#[test]
fn an_owner_may_take_back_what_a_brake_in_its_cgroup_needs() {
    for removed in [false, true] {
        let fake = furnished(&Spec::new(Flavour::V2));
        let (pid, dir) = service(&fake);
        let files: &dyn Files = &fake;
        let before = fake.dump();
        let cgroups = Cgroups::discover(files).unwrap();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let group_cgroups = braked_in_place(&mut writer, &cgroups, "/service");
        assert_eq!(tasks_in(files, &format!("{dir}/work")).unwrap().len(), 2);
        if removed {
            fake.with(|m| {
                m.exit(pid);
                m.reap(pid);
            });
            for below in ["/work", "/stop", ""] {
                files.rmdir(&format!("{dir}{below}")).unwrap();
            }
        } else {
            files
                .put(&format!("{dir}/cgroup.subtree_control"), "-cpu")
                .unwrap();
        }
        let lost = threaded::lost(files, &group_cgroups).unwrap();
        assert!(lost.contains("cpu.idle is gone"), "{lost}");
        group_cgroups
            .gather(&mut writer, &mut |f| residents(f, "/service"))
            .unwrap();
        assert_eq!(held.journal.undo_all(files).left, none());
        if !removed {
            assert_eq!(compare(&before, &fake.dump()), none());
        }
    }
}

/// A virtual machine's threads, as libvirt places them.
#[test]
fn threads_of_threaded_children_come_back_to_their_place() {
    for leader in ["libvirt", "libvirt/emulator"] {
        let fake = furnished(&Spec::new(Flavour::V2));
        let files: &dyn Files = &fake;
        let top = "/sys/fs/cgroup";
        for dir in ["libvirt", "libvirt/vcpu0", "libvirt/emulator"] {
            files.mkdir(&format!("{top}/{dir}")).unwrap();
            if dir != "libvirt" {
                files
                    .put(&format!("{top}/{dir}/cgroup.type"), "threaded")
                    .unwrap();
            }
        }
        let start = || {
            let (pid, threads) = fake.with(|m| {
                let pid = m.spawn("qemu");
                (pid, [m.thread(pid), m.thread(pid), m.thread(pid)])
            });
            let enter = |file: &str, task: u32| {
                files
                    .put(&format!("{top}/{file}"), &task.to_string())
                    .unwrap();
            };
            enter("libvirt/cgroup.procs", pid);
            enter("libvirt/vcpu0/cgroup.threads", threads[0]);
            enter("libvirt/emulator/cgroup.threads", threads[1]);
            enter(&format!("{leader}/cgroup.threads"), pid);
            files
                .set_affinity(threads[0], &"1".parse().unwrap())
                .unwrap();
            pid
        };
        let pids = [start(), start()];
        let before = fake.dump();
        let cgroups = Cgroups::discover(files).unwrap();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let controllers = [Controller::Cpuset, Controller::Cpu];
        let group = GroupCgroups::create(&mut writer, &cgroups, GROUP, &controllers).unwrap();
        let mut both = |files: &dyn Files| {
            let each = pids.iter().map(|pid| procfs::stat(files, *pid));
            Ok(each.map(|stat| stat.unwrap().unwrap()).collect())
        };
        group.gather(&mut writer, &mut both).unwrap();
        assert_eq!(tasks_in(files, &group.tasks_dirs()[0]).unwrap(), pids);
        assert_eq!(held.journal.undo_all(files).left, none(), "{leader}");
        assert_eq!(compare(&before, &fake.dump()), none(), "{leader}");
    }
}
