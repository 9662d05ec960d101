//! The cgroups in which each party's tasks should be, and which threads are in them now.

use std::collections::HashMap;
use std::path::Path;

use quell_kernel::cgroup::{Cgroups, Hierarchy};
use quell_kernel::root::Files;
use quell_kernel::{cgroup_tree, procfs};
use quell_types::units::Nanos;

use crate::claim::Party;

/// The homes of one party in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The party's place in the list of parties.
    pub party: usize,
    /// Mount point of the hierarchy. The first home where the hierarchy is not known.
    pub mount: String,
    /// Directories of the homes.
    pub homes: Vec<String>,
}

/// The homes of all parties.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    pub places: Vec<Place>,
    hierarchies: Vec<Hierarchy>,
}

impl Homes {
    /// Sorts the homes by party and hierarchy.
    pub fn new(files: &dyn Files, parties: &[Party]) -> Self {
        let hierarchies = Cgroups::discover(files).unwrap_or_default().hierarchies;
        let mut places: Vec<Place> = Vec::new();
        for (party, of) in parties.iter().enumerate() {
            for home in &of.homes {
                let home = home.trim_end_matches('/').to_owned();
                let mounts = hierarchies.iter().map(|h| &h.mount);
                let mount = mounts
                    .filter(|m| Path::new(&home).starts_with(m))
                    .max_by_key(|m| m.len());
                let mount = mount.unwrap_or(&home).clone();
                match places
                    .iter_mut()
                    .find(|p| p.party == party && p.mount == mount)
                {
                    Some(place) => place.homes.push(home),
                    None => places.push(Place {
                        party,
                        mount,
                        homes: vec![home],
                    }),
                }
            }
        }
        for place in &mut places {
            // What is below another home would be counted twice.
            let all = place.homes.clone();
            place.homes.retain(|home| {
                !all.iter()
                    .any(|h| h != home && Path::new(home).starts_with(h))
            });
            place.homes.dedup();
        }
        Self {
            places,
            hierarchies,
        }
    }

    /// The places of one party.
    pub fn of(&self, party: usize) -> impl Iterator<Item = (usize, &Place)> {
        let all = self.places.iter().enumerate();
        all.filter(move |(_, place)| place.party == party)
    }

    /// The threads that are in homes now, each with the numbers of its places.
    pub fn threads(&self, files: &dyn Files) -> HashMap<u32, Vec<usize>> {
        let mut all: HashMap<u32, Vec<usize>> = HashMap::new();
        for (number, place) in self.places.iter().enumerate() {
            for home in &place.homes {
                for tid in cgroup_tree::threads(files, home) {
                    all.entry(tid).or_default().push(number);
                }
            }
        }
        all
    }

    /// The places of one thread, by its own file. `None` where it has ended, or where that does not
    /// say it: no hierarchy is known.
    pub fn places_of(&self, files: &dyn Files, tid: u32) -> Option<Vec<usize>> {
        let dirs = self.dirs_of(files, tid);
        if dirs.is_empty() {
            return None;
        }
        let inside = |place: &Place| {
            let homes = place.homes.iter();
            dirs.iter()
                .any(|(_, dir)| homes.clone().any(|home| Path::new(dir).starts_with(home)))
        };
        let all = self.places.iter().enumerate();
        Some(all.filter(|(_, p)| inside(p)).map(|(n, _)| n).collect())
    }

    /// Mount point and directory of a thread's cgroup in each hierarchy. Empty where it has ended.
    pub fn dirs_of(&self, files: &dyn Files, tid: u32) -> Vec<(String, String)> {
        let lines = procfs::memberships(files, &tid.to_string()).unwrap_or_default();
        let dir = |hierarchy: &Hierarchy| {
            let line = lines.iter().find(|line| hierarchy.is_of(line))?;
            Some((hierarchy.mount.clone(), hierarchy.dir(&line.path)?))
        };
        self.hierarchies.iter().filter_map(dir).collect()
    }

    /// CPU time that tasks in a party's homes have used so far, those that ended included. The
    /// largest of the hierarchies that count. `None` where none does.
    pub fn usage(&self, files: &dyn Files, party: usize) -> Option<Nanos> {
        let sum = |place: &Place| {
            let each = place.homes.iter().map(|home| usage_of(files, home));
            each.flatten().reduce(Nanos::plus)
        };
        self.of(party).filter_map(|(_, place)| sum(place)).max()
    }
}

/// CPU time of a cgroup and those below it: `cpu.stat` (v2), `cpuacct.usage` (v1). `None` where it
/// counts none, or is gone.
fn usage_of(files: &dyn Files, dir: &str) -> Option<Nanos> {
    let v2 = files.read(&format!("{dir}/cpu.stat")).ok();
    let micros = v2.as_deref().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("usage_usec "))?;
        line.trim().parse::<u64>().ok()
    });
    if let Some(micros) = micros {
        return Some(Nanos(micros.saturating_mul(1_000)));
    }
    let v1 = files.read(&format!("{dir}/cpuacct.usage")).ok()?;
    v1.trim().parse().ok().map(Nanos)
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Spec};

    use super::*;

    #[test]
    fn homes_are_sorted_by_party_and_hierarchy() {
        let fake = Fake::new(&Spec::new(Flavour::V1));
        let files: &dyn Files = &fake;
        let party = |homes: &[&str]| Party {
            homes: homes.iter().map(|h| (*h).to_owned()).collect(),
            ..Party::default()
        };
        let parties = [
            party(&["/sys/fs/cgroup/cpuset/a", "/sys/fs/cgroup/cpu/a"]),
            party(&[
                "/sys/fs/cgroup/cpuset/b/c",
                "/sys/fs/cgroup/cpuset/b/",
                "/sys/fs/cgroup/cpuset/d",
            ]),
        ];
        for dir in ["a", "b", "b/c", "d"] {
            let dir = format!("/sys/fs/cgroup/cpuset/{dir}");
            files.mkdir(&dir).unwrap();
            files.write(&format!("{dir}/cpuset.cpus"), "0-3").unwrap();
            files.write(&format!("{dir}/cpuset.mems"), "0").unwrap();
        }
        let homes = Homes::new(files, &parties);
        let mounts: Vec<&str> = homes.places.iter().map(|p| p.mount.as_str()).collect();
        let cpuset = "/sys/fs/cgroup/cpuset";
        assert_eq!(mounts, [cpuset, "/sys/fs/cgroup/cpu", cpuset]);
        let of_b = ["/sys/fs/cgroup/cpuset/b", "/sys/fs/cgroup/cpuset/d"];
        assert_eq!(homes.places[2].homes, of_b);
        let pid = fake.with(|m| m.spawn("x"));
        files
            .write("/sys/fs/cgroup/cpuset/b/c/tasks", &pid.to_string())
            .unwrap();
        assert_eq!(homes.threads(files)[&pid], [2]);
        assert_eq!(homes.places_of(files, pid), Some(vec![2]));
        assert_eq!(homes.places_of(files, 1), Some(vec![]));
        assert_eq!(homes.places_of(files, 4_000_000), None);
    }

    #[test]
    fn both_versions_count_cpu_time() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = quell_kernel::root::Kernel::at(dir.path());
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("a/cpu.stat", "nr_periods 3\n");
        put("b/cpu.stat", "usage_usec 1500\nuser_usec 3\n");
        put("c/cpuacct.usage", "70\n");
        assert_eq!(usage_of(&kernel, "/a"), None);
        assert_eq!(usage_of(&kernel, "/b"), Some(Nanos(1_500_000)));
        assert_eq!(usage_of(&kernel, "/c"), Some(Nanos(70)));
        let party = Party {
            homes: vec!["/b".to_owned(), "/c".to_owned()],
            ..Party::default()
        };
        let homes = Homes::new(&kernel, &[party]);
        assert_eq!(homes.usage(&kernel, 0), Some(Nanos(1_500_000)));
    }
}
