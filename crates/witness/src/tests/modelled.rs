//! The model of the kernel, in both versions of cgroups: its cpusets decide where tasks may run.

use quell_kernel::fake::Rdt;
use quell_types::partition::Mask;

use super::*;

/// A machine on which a group of two processes has CPUs 2 and 3 to itself.
struct Partition {
    fake: Arc<Fake>,
    /// Mount point of the hierarchy with the cpusets.
    mount: &'static str,
    /// The group's processes.
    own: Vec<u32>,
    /// A program next to it.
    other: u32,
}

impl Partition {
    fn new(flavour: Flavour) -> Self {
        let spec = Spec {
            rdt: Some(Rdt::icelake()),
            ..Spec::new(flavour)
        };
        let fake = Arc::new(Fake::new(&spec));
        let mount = match flavour {
            Flavour::V1 => "/sys/fs/cgroup/cpuset",
            Flavour::V2 => "/sys/fs/cgroup",
        };
        let files: &dyn Files = &*fake;
        if flavour == Flavour::V2 {
            let path = format!("{mount}/cgroup.subtree_control");
            files.write(&path, "+cpuset +cpu").unwrap();
        }
        for (name, cpus) in [("own", "2-3"), ("rest", "0-1")] {
            let dir = format!("{mount}/{name}");
            files.mkdir(&dir).unwrap();
            files.write(&format!("{dir}/cpuset.cpus"), cpus).unwrap();
            files.write(&format!("{dir}/cpuset.mems"), "0").unwrap();
        }
        let (own, other) = fake.with(|m| (vec![m.spawn("own"), m.spawn("own")], m.spawn("other")));
        let found = Self {
            fake,
            mount,
            own,
            other,
        };
        for pid in &found.own {
            found.put("own", *pid);
        }
        for pid in [1, std::process::id(), other] {
            found.put("rest", pid);
        }
        found
    }

    /// Moves a process into a cgroup.
    fn put(&self, cgroup: &str, pid: u32) {
        let path = format!("{}/{cgroup}/cgroup.procs", self.mount);
        self.fake.write(&path, &pid.to_string()).unwrap();
    }

    fn witness(&self, what: What) -> Witness {
        let home = format!("{}/own", self.mount);
        let parties = vec![party("own", "comm=own", &[home.as_str()], "2-3")];
        let files: Arc<dyn Files> = self.fake.clone();
        Witness::new(files, vec![claim("own", what)], parties, BTreeSet::new())
    }
}

#[test]
fn a_partition_holds_and_a_stranger_in_it_is_named() {
    for flavour in [Flavour::V1, Flavour::V2] {
        let machine = Partition::new(flavour);
        let mut witness = machine.witness(alone("2-3"));
        assert_eq!(look(&mut witness, Nanos(0)), Verdict::Holds, "{flavour:?}");
        let rest = format!("{}/rest/cpuset.cpus", machine.mount);
        machine.fake.write(&rest, "0-2").unwrap();
        let verdict = look(&mut witness, Nanos(1));
        assert!(
            matches!(
                verdict,
                Verdict::Broken(Fault::Stranger {
                    cpu: 2,
                    others: 2,
                    ..
                })
            ),
            "{flavour:?} {verdict:?}"
        );
        machine.fake.write(&rest, "0-1").unwrap();
        assert_eq!(look(&mut witness, Nanos(2)), Verdict::Holds);
    }
}

#[test]
fn a_process_that_was_not_gathered_is_named() {
    for flavour in [Flavour::V1, Flavour::V2] {
        let machine = Partition::new(flavour);
        let mut witness = machine.witness(alone("2-3"));
        assert_eq!(look(&mut witness, Nanos(0)), Verdict::Holds);
        machine.put("rest", machine.own[1]);
        let verdict = said(&look(&mut witness, Nanos(1)));
        let expected = format!(
            "process {} (own) belongs to the group, but is in cgroup /rest, not in {}/own",
            machine.own[1], machine.mount
        );
        assert_eq!(verdict, expected);
    }
}

#[test]
fn each_thread_counts_in_v1() {
    let machine = Partition::new(Flavour::V1);
    let tid = machine.fake.with(|m| m.thread(machine.own[0]));
    let mut witness = machine.witness(alone("2-3"));
    assert_eq!(look(&mut witness, Nanos(0)), Verdict::Holds);
    let path = format!("{}/rest/tasks", machine.mount);
    machine.fake.write(&path, &tid.to_string()).unwrap();
    let verdict = said(&look(&mut witness, Nanos(1)));
    assert!(
        verdict.starts_with(&format!("thread {tid} (own)")),
        "{verdict}"
    );
}

#[test]
fn a_process_in_one_hierarchy_only_is_outside() {
    let machine = Partition::new(Flavour::V1);
    let unified = "/sys/fs/cgroup/unified/own";
    machine.fake.mkdir(unified).unwrap();
    let homes = [format!("{}/own", machine.mount), unified.to_owned()];
    let homes: Vec<&str> = homes.iter().map(String::as_str).collect();
    let parties = vec![party("own", "comm=own", &homes, "2-3")];
    let files: Arc<dyn Files> = machine.fake.clone();
    let claims = vec![claim("own", alone("2-3"))];
    let mut witness = Witness::new(files, claims, parties, BTreeSet::new());
    let verdict = said(&look(&mut witness, Nanos(0)));
    assert!(
        verdict.ends_with("is in cgroup /, not in /sys/fs/cgroup/unified/own"),
        "{verdict}"
    );
}

#[test]
fn a_zombie_and_one_that_ends_are_no_strangers() {
    let machine = Partition::new(Flavour::V2);
    let mut witness = machine.witness(alone("2-3"));
    let leaving = machine.fake.with(|m| {
        let (zombie, leaving) = (m.spawn("zombie"), m.spawn("leaving"));
        m.exit(zombie);
        m.begin_exit(leaving);
        leaving
    });
    assert_eq!(look(&mut witness, Nanos(0)), Verdict::Holds);
    machine.fake.with(|m| m.exit(leaving));
    assert_eq!(look(&mut witness, Nanos(1)), Verdict::Holds);
}

#[test]
fn ways_are_those_of_the_class_of_the_groups_tasks() {
    let machine = Partition::new(Flavour::V2);
    machine.fake.with(|m| m.resctrl_mounted(Some("")));
    let files: &dyn Files = &*machine.fake;
    let top = "/sys/fs/resctrl";
    let put = |path: &str, text: &str| files.write(&format!("{top}/{path}"), text).unwrap();
    files.mkdir(&format!("{top}/own")).unwrap();
    put("schemata", "L3:0=f");
    put("own/schemata", "L3:0=f0");
    for pid in &machine.own {
        put("own/tasks", &pid.to_string());
    }
    let mut witness = machine.witness(What::Ways {
        level: 3,
        mask: Mask(0xf0),
        shared_with: Vec::new(),
    });
    let mut said = || said(&look(&mut witness, Nanos(0)));
    assert_eq!(said(), "holds");
    put("schemata", "L3:0=1f");
    assert!(said().starts_with("the default resctrl group fills ways 0x10 of L3 0"));
    put("schemata", "L3:0=f");
    put("own/schemata", "L3:0=70");
    assert!(said().contains("has ways 0x70 of L3 0, where 0xf0 was promised"));
    put("own/schemata", "L3:0=f0");
    put("tasks", &machine.own[1].to_string());
    assert!(said().starts_with("tasks of the group are in the default resctrl group"));
    put("own/tasks", &machine.own[1].to_string());
    assert_eq!(said(), "holds");
    put("own/tasks", &machine.other.to_string());
    assert_eq!(said(), "holds");
}

#[test]
fn ten_thousand_threads_are_looked_at() {
    let machine = Partition::new(Flavour::V1);
    let last = machine.fake.with(|m| {
        let threads = (0..10_000).map(|_| m.thread(machine.other));
        threads.last().unwrap()
    });
    let mut witness = machine.witness(alone("2-3"));
    assert_eq!(look(&mut witness, Nanos(0)), Verdict::Holds);
    let root = format!("{}/tasks", machine.mount);
    machine.fake.write(&root, &last.to_string()).unwrap();
    let expected = format!(
        "thread {last} (other) of process {} may run on CPU 2",
        machine.other
    );
    assert_eq!(said(&look(&mut witness, Nanos(1))), expected);
}
