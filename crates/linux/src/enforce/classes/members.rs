//! Which threads are in which control group of resctrl.

use std::collections::BTreeSet;

use quell_kernel::cgroup::Version;
use quell_kernel::error::Result;
use quell_kernel::resctrl::Group;
use quell_kernel::root::Files;
use quell_kernel::{cgroup_tree, procfs};
use quell_types::cpuset::CpuSet;

use crate::group_cgroups::GroupCgroups;

/// Every thread in the cgroups of a group and in those below them.
pub fn threads(files: &dyn Files, group_cgroups: &GroupCgroups) -> Result<BTreeSet<u32>> {
    let (mut threads, mut processes) = (BTreeSet::new(), BTreeSet::new());
    for place in &group_cgroups.places {
        let (dirs, complete) = cgroup_tree::walk(files, &place.dir);
        for dir in dirs {
            let listed = |name: &str| tasks_of(files, &format!("{dir}/{name}"));
            if place.hierarchy.version == Version::V1 {
                // On v1 a process may have threads in other cgroups.
                threads.extend(listed("tasks")?);
                continue;
            }
            match listed("cgroup.procs") {
                Ok(pids) => processes.extend(pids),
                // A threaded cgroup cannot list processes.
                Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => {
                    threads.extend(listed("cgroup.threads")?);
                }
                Err(e) => return Err(e),
            }
        }
        if !complete {
            threads.extend(cgroup_tree::threads(files, &place.dir));
        }
    }
    for process in processes {
        threads.extend(procfs::threads(files, process)?);
    }
    Ok(threads)
}

/// The tasks that a file lists. Empty where the file is gone.
fn tasks_of(files: &dyn Files, path: &str) -> Result<Vec<u32>> {
    let text = files.optional(path)?.unwrap_or_default();
    Ok(cgroup_tree::listed(&text).collect())
}

/// A group, its control group, and the threads of both.
pub struct ClassMembers {
    pub name: String,
    pub group: Group,
    pub cgroups: GroupCgroups,
    /// Threads that were in the control group.
    pub inside: BTreeSet<u32>,
    /// Threads in the group's cgroups, read after `inside`.
    pub all: BTreeSet<u32>,
    /// CPUs that Quell has put into the control group.
    pub cpus: CpuSet,
}

impl ClassMembers {
    /// Whether threads of the group are outside that have not ended.
    pub fn outside(&self, files: &dyn Files) -> Result<bool> {
        any_alive(files, self.all.difference(&self.inside))
    }
}

fn any_alive<'a>(files: &dyn Files, tids: impl Iterator<Item = &'a u32>) -> Result<bool> {
    for tid in tids {
        if procfs::stat(files, *tid)?.is_some_and(|s| !s.leaving()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What other programs have put into the control groups of the plan's groups: threads, and CPUs
/// whose other tasks fill the ways, too. Pairs of a group and a sentence.
pub fn strangers(files: &dyn Files, all: &[ClassMembers]) -> Result<Vec<(String, String)>> {
    let mut said = Vec::new();
    let classes: BTreeSet<&Group> = all.iter().map(|w| &w.group).collect();
    for class in classes.into_iter().filter(|c| !c.name.is_empty()) {
        let mut others = BTreeSet::new();
        let sharing = || all.iter().filter(|w| w.group == *class);
        sharing().for_each(|w| others.extend(&w.inside));
        sharing().for_each(|w| others.retain(|tid| !w.all.contains(tid)));
        let mut what = Vec::new();
        // The threads of a group without cgroups are not known.
        if sharing().any(|w| w.cgroups.places.is_empty()) {
            others.clear();
        }
        if any_alive(files, others.iter())? {
            what.push(format!(
                "somebody has moved threads of others into {}",
                class.file("tasks")
            ));
        }
        let given = sharing().fold(CpuSet::default(), |all, w| all.union(&w.cpus));
        let cpus = class.cpus(files)?.difference(&given);
        if !cpus.is_empty() {
            what.push(format!(
                "somebody has given CPUs {cpus} to {}, whose other tasks fill the same",
                class.file("cpus_list")
            ));
        }
        said.extend(sharing().flat_map(|w| {
            what.iter().map(|what| {
                let name = &w.name;
                (name.clone(), what.clone())
            })
        }));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use quell_kernel::cgroup::{Cgroups, Controller};
    use quell_kernel::fake::{Fake, Flavour, Op, Rdt, Spec};
    use quell_kernel::resctrl::Resctrl;

    use super::*;
    use crate::group_cgroups::CgroupDir;

    fn machine(flavour: Flavour) -> (Fake, GroupCgroups) {
        let fake = Fake::new(&Spec {
            rdt: Some(Rdt::icelake()),
            ..Spec::new(flavour)
        });
        let cgroups = Cgroups::discover(&fake).unwrap();
        let hierarchy = cgroups.of(Controller::Cpu).unwrap().clone();
        let dir = format!("{}/g", hierarchy.mount);
        fake.with(|m| m.somebody_makes(&dir)).unwrap();
        let place = CgroupDir {
            hierarchy,
            dir,
            ours: true,
            braked: false,
        };
        let group_cgroups = GroupCgroups {
            group: "g".to_owned(),
            places: vec![place],
        };
        (fake, group_cgroups)
    }

    fn put(files: &dyn Files, dir: &str, file: &str, task: u32) {
        files
            .write(&format!("{dir}/{file}"), &task.to_string())
            .unwrap();
    }

    #[test]
    fn threads_are_listed_on_v1_and_processes_on_v2() {
        for flavour in [Flavour::V1, Flavour::V2] {
            let (fake, group_cgroups) = machine(flavour);
            let dir = &group_cgroups.places[0].dir;
            let pid = fake.with(|m| m.spawn("program"));
            let other = fake.with(|m| m.thread(pid));
            let procs_file = match flavour {
                Flavour::V1 => "tasks",
                Flavour::V2 => "cgroup.procs",
            };
            put(&fake, dir, procs_file, pid);
            let all = match flavour {
                Flavour::V1 => BTreeSet::from([pid]),
                Flavour::V2 => BTreeSet::from([pid, other]),
            };
            assert_eq!(threads(&fake, &group_cgroups).unwrap(), all);
            fake.with(|m| m.somebody_makes(&format!("{dir}/below")))
                .unwrap();
            let inside = fake.with(|m| m.spawn("program"));
            put(&fake, &format!("{dir}/below"), procs_file, inside);
            assert!(threads(&fake, &group_cgroups).unwrap().contains(&inside));
            // A threaded cgroup answers so.
            fake.refuse(Op::Read, "/cgroup.procs", libc::EOPNOTSUPP);
            let found = threads(&fake, &group_cgroups).unwrap();
            assert!(found.contains(&pid) && found.is_superset(&all), "{found:?}");
        }
    }

    #[test]
    fn strangers_in_a_control_group_are_reported_dead_ones_not() {
        let (fake, group_cgroups) = machine(Flavour::V2);
        let resctrl = Resctrl::find(&fake).unwrap().unwrap();
        let group = resctrl.group("COS1");
        fake.mkdir(&group.dir).unwrap();
        let (own, stranger) = fake.with(|m| (m.spawn("own"), m.spawn("stranger")));
        put(&fake, &group_cgroups.places[0].dir, "cgroup.procs", own);
        let look = || ClassMembers {
            name: "g".to_owned(),
            inside: group.tasks(&fake).unwrap().into_iter().collect(),
            all: threads(&fake, &group_cgroups).unwrap(),
            group: group.clone(),
            cgroups: group_cgroups.clone(),
            cpus: CpuSet::default(),
        };
        assert!(look().outside(&fake).unwrap());
        put(&fake, &group.dir, "tasks", own);
        assert!(!look().outside(&fake).unwrap());
        let said = || {
            let said = strangers(&fake, &[look()]).unwrap();
            said.into_iter().map(|(_, what)| what).collect::<Vec<_>>()
        };
        assert!(said().is_empty());
        put(&fake, &group.dir, "tasks", stranger);
        let told = said();
        assert!(
            told.len() == 1 && told[0].contains("threads of others into"),
            "{told:?}"
        );
        let homeless = ClassMembers {
            all: BTreeSet::new(),
            cgroups: GroupCgroups {
                group: "g".to_owned(),
                places: Vec::new(),
            },
            ..look()
        };
        assert!(strangers(&fake, &[homeless]).unwrap().is_empty());
        fake.with(|m| m.begin_exit(stranger));
        assert!(said().is_empty());
        fake.write(&group.file("cpus_list"), "1").unwrap();
        assert!(said()[0].contains("has given CPUs 1 to"), "{:?}", said());
        let given = ClassMembers {
            cpus: "1".parse().unwrap(),
            ..look()
        };
        assert!(strangers(&fake, &[given]).unwrap().is_empty());
        // A thread that is ending is not waited for.
        let late = fake.with(|m| m.spawn("late"));
        put(&fake, &group_cgroups.places[0].dir, "cgroup.procs", late);
        assert!(look().outside(&fake).unwrap());
        fake.with(|m| m.begin_exit(late));
        assert!(!look().outside(&fake).unwrap());
    }
}
