//! The model compared with what kernels were seen to do. These were Linux 6.18 with v1 on hardware,
//! and 6.12 and 6.1 with v2 in a virtual machine. Managed interrupts are compared with their
//! documentation. resctrl has its own bodies (`resctrl`). What can be tried without harm is also
//! tried on the running kernel (`v1_answers_are_the_kernels`).

use quell_kernel::fake::{Fake, Flavour, Rdt, Spec};
use quell_kernel::root::Files;
use quell_types::cpuset::CpuSet;

use crate::common::{Program, machine};

pub fn fake(flavour: Flavour) -> Fake {
    Fake::new(&Spec::new(flavour))
}

pub fn errno(result: std::io::Result<()>) -> i32 {
    result.map_or_else(|e| e.raw_os_error().unwrap(), |()| 0)
}

/// Writes and compares the answer: `(file, text, error number or 0)`.
pub fn answers(files: &dyn Files, dir: &str, cases: &[(&str, &str, i32)]) {
    for (file, text, wanted) in cases {
        let got = errno(files.write(&format!("{dir}/{file}"), text));
        assert_eq!(got, *wanted, "'{text}' to {dir}/{file}");
    }
}

pub fn reads(files: &dyn Files, dir: &str, cases: &[(&str, &str)]) {
    for (file, wanted) in cases {
        assert_eq!(
            files.text(&format!("{dir}/{file}")).unwrap(),
            *wanted,
            "{dir}/{file}"
        );
    }
}

fn v1_cpuset(files: &dyn Files, mount: &str, pid: u32, bound: u32) {
    let dir = &format!("{mount}/quell-test-model");
    let pid = &pid.to_string();
    files.mkdir(dir).unwrap();
    answers(
        files,
        dir,
        &[
            ("tasks", pid, libc::ENOSPC),
            ("cpuset.mems", "0", 0),
            ("cpuset.cpus", "0-1", 0),
        ],
    );
    answers(
        files,
        dir,
        &[
            ("cpuset.cpus", "8000", libc::ERANGE),
            ("cpuset.cpus", "x", libc::EINVAL),
            ("cpuset.cpus", "1-0", libc::EINVAL),
            ("cpuset.cpus", "0", 0),
        ],
    );
    files.mkdir(&format!("{dir}/a")).unwrap();
    reads(
        files,
        dir,
        &[
            ("a/cpuset.effective_cpus", ""),
            ("cpuset.effective_cpus", "0"),
        ],
    );
    answers(
        files,
        dir,
        &[
            ("a/cpuset.mems", "0", 0),
            ("a/cpuset.cpus", "0-1", libc::EACCES),
            ("a/cpuset.cpus", "0", 0),
            ("cpuset.cpus", "1", libc::EBUSY),
            ("cpuset.cpus", "", libc::EBUSY),
            ("a/cpuset.mems", "", 0),
            ("a/cpuset.mems", "0", 0),
            ("a/cgroup.procs", pid, 0),
            ("a/cpuset.cpus", "", libc::ENOSPC),
            ("a/cpuset.mems", "", libc::ENOSPC),
            ("a/cpuset.cpu_exclusive", "1", libc::EACCES),
            ("tasks", "4194000", libc::ESRCH),
            ("tasks", "abc", libc::EINVAL),
            ("tasks", "-5", libc::EINVAL),
            ("tasks", &bound.to_string(), libc::EINVAL),
            ("tasks", "2", libc::EINVAL),
        ],
    );
    let tid: u32 = pid.parse().unwrap();
    let set = |t: &str| t.parse::<CpuSet>().unwrap();
    assert_eq!(files.affinity(tid).unwrap(), set("0"));
    assert_eq!(errno(files.set_affinity(tid, &set("1"))), libc::EINVAL);
    assert_eq!(errno(files.set_affinity(tid, &set("0-1"))), 0);
    assert_eq!(files.affinity(tid).unwrap(), set("0"));
    assert_eq!(errno(files.rmdir(&format!("{dir}/a"))), libc::EBUSY);
    assert_eq!(errno(files.rmdir(dir)), libc::EBUSY);
    assert_eq!(errno(files.mkdir(&format!("{dir}/tasks"))), libc::EEXIST);
    assert_eq!(errno(files.mkdir(&format!("{dir}/x\ny"))), libc::EINVAL);
    assert_eq!(
        errno(files.write(&format!("{mount}/cpuset.cpus"), "0")),
        libc::EACCES
    );
    files.write(&format!("{mount}/tasks"), pid).unwrap();
    files.rmdir(&format!("{dir}/a")).unwrap();
    files.rmdir(dir).unwrap();
}

fn v1_quota(files: &dyn Files, mount: &str) {
    let dir = &format!("{mount}/quell-test-model");
    files.mkdir(dir).unwrap();
    files.mkdir(&format!("{dir}/a")).unwrap();
    reads(
        files,
        dir,
        &[
            ("cpu.cfs_quota_us", "-1"),
            ("cpu.cfs_period_us", "100000"),
            ("cpu.shares", "1024"),
        ],
    );
    answers(
        files,
        dir,
        &[
            ("cpu.cfs_quota_us", "500", libc::EINVAL),
            ("cpu.cfs_period_us", "500", libc::EINVAL),
            ("cpu.cfs_period_us", "2000000", libc::EINVAL),
            ("cpu.cfs_quota_us", "0", libc::EINVAL),
            ("cpu.cfs_quota_us", "50000", 0),
            ("a/cpu.cfs_quota_us", "60000", libc::EINVAL),
            ("a/cpu.cfs_quota_us", "40000", 0),
            ("cpu.cfs_quota_us", "30000", libc::EINVAL),
            ("cpu.shares", "1", 0),
            ("cpu.shares", "x", libc::EINVAL),
        ],
    );
    reads(files, dir, &[("cpu.shares", "2")]);
    files.rmdir(&format!("{dir}/a")).unwrap();
    files.rmdir(dir).unwrap();
}

#[test]
fn v1_answers_are_the_models() {
    let fake = fake(Flavour::V1);
    let pid = fake.with(|m| m.spawn("sleep"));
    v1_cpuset(&fake, "/sys/fs/cgroup/cpuset", pid, 10);
    v1_quota(&fake, "/sys/fs/cgroup/cpu");
}

mod live {
    use super::*;

    /// The same on the running kernel, where it has v1.
    #[test]
    fn v1_answers_are_the_kernels() {
        let Some((kernel, _lock)) = machine() else {
            return;
        };
        let mount = "/sys/fs/cgroup/cpuset";
        if !kernel.exists(&format!("{mount}/cpuset.cpus"))
            || !kernel.exists("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        {
            return quell_testing::skip("no cpuset and cpu hierarchies of version 1");
        }
        let program = Program::start(&["sleep", "60"]);
        let all = quell_kernel::procfs::processes(&kernel).unwrap();
        let bound = all.iter().find(|s| s.bound()).unwrap().id.pid;
        v1_cpuset(&kernel, mount, program.pid(), bound);
        v1_quota(&kernel, "/sys/fs/cgroup/cpu");
    }
}

#[test]
fn a_real_time_task_needs_runtime_and_a_zombie_is_nowhere() {
    let fake = fake(Flavour::V1);
    let files: &dyn Files = &fake;
    let (fifo, dead) = fake.with(|m| {
        let (fifo, dead) = (m.spawn("fifo"), m.spawn("dead"));
        m.realtime(fifo);
        (fifo, dead)
    });
    files.mkdir("/sys/fs/cgroup/cpu/a").unwrap();
    answers(
        files,
        "/sys/fs/cgroup/cpu/a",
        &[
            ("cgroup.procs", &fifo.to_string(), libc::EINVAL),
            ("cgroup.procs", &dead.to_string(), 0),
        ],
    );
    fake.with(|m| m.exit(dead));
    assert_eq!(
        errno(files.write("/sys/fs/cgroup/cpu/tasks", &dead.to_string())),
        0
    );
    reads(files, "/sys/fs/cgroup/cpu/a", &[("tasks", "")]);
    assert!(
        files
            .text(&format!("/proc/{dead}/cgroup"))
            .unwrap()
            .contains("1:cpu:/\n")
    );
    assert!(files.link(&format!("/proc/{dead}/exe")).is_err());
    files.rmdir("/sys/fs/cgroup/cpu/a").unwrap();
    fake.with(|m| m.reap(dead));
    assert_eq!(
        errno(files.write("/sys/fs/cgroup/cpu/tasks", &dead.to_string())),
        libc::ESRCH
    );
}

pub const TOP: &str = "/sys/fs/cgroup";

pub fn v2(release: &'static str) -> Fake {
    let fake = Fake::new(&Spec {
        release,
        ..Spec::new(Flavour::V2)
    });
    let files: &dyn Files = &fake;
    files.mkdir(&format!("{TOP}/a")).unwrap();
    assert!(
        !fake.exists(&format!("{TOP}/a/cpuset.cpus")),
        "files come with the controller"
    );
    files
        .write(
            &format!("{TOP}/cgroup.subtree_control"),
            "+cpuset +cpu +memory +pids",
        )
        .unwrap();
    fake
}

#[test]
fn v2_controllers_are_handed_down_and_processes_live_in_leaves() {
    let fake = v2("6.12.0");
    let files: &dyn Files = &fake;
    let pid = &fake.with(|m| m.spawn("program")).to_string();
    files.mkdir(&format!("{TOP}/a/b")).unwrap();
    answers(
        files,
        TOP,
        &[
            ("a/cgroup.subtree_control", "+nonsense", libc::EINVAL),
            ("a/cgroup.subtree_control", "cpu", libc::EINVAL),
            ("a/cgroup.subtree_control", "+perf_event", libc::ENOENT),
            ("a/cgroup.subtree_control", "+io", libc::ENOENT),
            ("a/cgroup.procs", pid, 0),
            // Threaded controllers may compete with threads; a domain's may not.
            ("a/cgroup.subtree_control", "+cpuset", 0),
            ("a/cgroup.subtree_control", "+memory", libc::EOPNOTSUPP),
            ("a/b/cgroup.procs", pid, libc::EOPNOTSUPP),
            ("cgroup.subtree_control", "-cpuset", libc::EBUSY),
            ("a/b/cgroup.subtree_control", "+cpu", libc::ENOENT),
            ("cgroup.procs", pid, 0),
            ("a/b/cgroup.procs", pid, 0),
            ("a/cgroup.procs", pid, libc::EBUSY),
            ("a/cgroup.freeze", "2", libc::ERANGE),
            ("a/cgroup.freeze", "x", libc::EINVAL),
            ("a/cgroup.kill", "0", libc::ERANGE),
            ("a/cgroup.type", "domain", libc::EINVAL),
            ("a/cgroup.events", "1", libc::EACCES),
        ],
    );
    assert_eq!(
        errno(files.read(&format!("{TOP}/a/cgroup.kill")).map(|_| ())),
        libc::EINVAL
    );
    reads(
        files,
        TOP,
        &[
            ("cgroup.subtree_control", "cpuset cpu memory pids"),
            ("a/b/cgroup.controllers", "cpuset"),
            ("a/cgroup.events", "populated 1\nfrozen 0"),
        ],
    );
    answers(
        files,
        TOP,
        &[("a/cgroup.freeze", "1", 0), ("a/cgroup.kill", "1", 0)],
    );
    reads(files, TOP, &[("a/cgroup.events", "populated 0\nfrozen 1")]);
    answers(
        files,
        TOP,
        &[
            ("a/cgroup.max.depth", "1", 0),
            ("a/cgroup.max.depth", "-1", libc::ERANGE),
        ],
    );
    assert_eq!(errno(files.mkdir(&format!("{TOP}/a/b/c"))), libc::EAGAIN);
}

#[test]
fn v2_threads_stay_in_their_domain() {
    let fake = v2("6.12.0");
    let files: &dyn Files = &fake;
    let pid = &fake.with(|m| m.spawn("program")).to_string();
    files.mkdir(&format!("{TOP}/t")).unwrap();
    files.mkdir(&format!("{TOP}/t/u")).unwrap();
    answers(
        files,
        TOP,
        &[
            ("t/u/cgroup.type", "threaded", 0),
            ("t/cgroup.subtree_control", "+memory", libc::EOPNOTSUPP),
            ("t/cgroup.subtree_control", "+cpu", 0),
            ("t/cgroup.procs", pid, 0),
            ("t/u/cgroup.threads", pid, 0),
            ("cgroup.threads", pid, libc::EOPNOTSUPP),
        ],
    );
    reads(
        files,
        TOP,
        &[
            ("t/cgroup.type", "domain threaded"),
            ("t/u/cgroup.type", "threaded"),
            ("t/cgroup.procs", pid),
            ("t/u/cgroup.threads", pid),
        ],
    );
    assert_eq!(
        errno(files.read(&format!("{TOP}/t/u/cgroup.procs")).map(|_| ())),
        libc::EOPNOTSUPP
    );
    files.mkdir(&format!("{TOP}/t/u/x")).unwrap();
    reads(files, TOP, &[("t/u/x/cgroup.type", "domain invalid")]);
    answers(
        files,
        TOP,
        &[
            ("t/u/x/cgroup.procs", pid, libc::EOPNOTSUPP),
            ("cgroup.procs", pid, 0),
        ],
    );
}

#[test]
fn v2_limits_are_checked_and_rounded() {
    let fake = v2("6.12.0");
    let files: &dyn Files = &fake;
    let a = &format!("{TOP}/a");
    answers(
        files,
        a,
        &[
            ("cpu.max", "500", libc::EINVAL),
            ("cpu.max", "5000 500", libc::EINVAL),
            ("cpu.max", "5000 2000000", libc::EINVAL),
            ("cpu.max", "junk", libc::EINVAL),
            ("cpu.max", "", libc::EINVAL),
            ("cpu.max", "max 50000", 0),
            ("cpu.max", "7000", 0),
            ("cpu.weight", "0", libc::ERANGE),
            ("cpu.weight", "x", libc::EINVAL),
            ("cpu.idle", "1", 0),
            ("cpu.weight", "5", libc::EINVAL),
            ("memory.max", "junk", libc::EINVAL),
            ("memory.max", "5000", 0),
            ("memory.high", "1G", 0),
            ("pids.max", "-1", libc::EINVAL),
            ("pids.max", "5", 0),
        ],
    );
    reads(
        files,
        a,
        &[
            ("cpu.max", "7000 50000"),
            ("cpu.weight", "1"),
            ("memory.max", "4096"),
            ("memory.high", "1073741824"),
            ("pids.max", "5"),
        ],
    );
    answers(files, a, &[("cpu.idle", "0", 0)]);
    reads(files, a, &[("cpu.weight", "100")]);
}

#[test]
fn masks_triggers_and_real_time_limits_are_checked() {
    let fake = fake(Flavour::V1);
    let files: &dyn Files = &fake;
    fake.with(|m| m.interrupt(7, &"0-3".parse().unwrap(), 0));
    answers(
        files,
        "",
        &[
            ("sys/devices/virtual/workqueue/cpumask", "0", libc::EINVAL),
            (
                "sys/devices/virtual/workqueue/cpumask",
                "10",
                libc::EOVERFLOW,
            ),
            ("sys/devices/virtual/workqueue/cpumask", "zz", libc::EINVAL),
            ("proc/irq/default_smp_affinity", "0", libc::EINVAL),
            ("proc/irq/7/smp_affinity_list", "9", libc::ERANGE),
            ("proc/irq/7/smp_affinity_list", "x", libc::EINVAL),
            ("proc/irq/7/effective_affinity", "1", libc::EACCES),
            ("proc/pressure/cpu", "some 150000 2000000", 0),
            ("proc/pressure/cpu", "full 150000 2000000", 0),
            ("proc/pressure/cpu", "some 0 2000000", libc::EINVAL),
            ("proc/pressure/io", "some 3000000 2000000", libc::EINVAL),
            ("proc/pressure/io", "x 1 2", libc::EINVAL),
            ("proc/pressure/memory", "some 1", libc::EINVAL),
            ("proc/sys/kernel/sched_rt_runtime_us", "x", libc::EINVAL),
            (
                "proc/sys/kernel/sched_rt_runtime_us",
                "2000000",
                libc::EINVAL,
            ),
            ("proc/sys/kernel/sched_rt_runtime_us", "-2", libc::EINVAL),
            ("proc/sys/kernel/sched_rt_runtime_us", "-1", 0),
        ],
    );
}

#[test]
fn ids_that_wait_are_another_error_than_none() {
    let fake = Fake::new(&Spec {
        rdt: Some(Rdt::icelake()),
        ..Spec::new(Flavour::V2)
    });
    let (files, r): (&dyn Files, _) = (&fake, "/sys/fs/resctrl");
    fake.with(|m| m.limbo(62));
    assert_eq!(errno(files.mkdir(&format!("{r}/a"))), 0);
    assert_eq!(errno(files.mkdir(&format!("{r}/b"))), libc::EBUSY);
    reads(files, r, &[("info/last_cmd_status", "Out of RMIDs")]);
}
